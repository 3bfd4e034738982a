/* fuzz_rows.c - any bytes as an uploaded data file, plain, gzip, zstd or CSV: the check must end in
 * a report whose errors have texts and whose text is valid JSON, or in an error with a text. And
 * any bytes as a row to be repaired: what comes out is valid UTF-8 and needs no second repair.
 * The file is one in memory, because the reader takes paths.
 *
 * rooms: engine_text engine_io base */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/str.h"
#include "engine/text/dataset.h"
#include "engine/text/rows_repair.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* A report must read back: rows are put into it as their own text. */
static void check_report(cJSON *report) {
    struct str text = {0};
    cJSON *again = NULL;
    json_append(&text, report);
    if (utf8_valid_prefix(str_text(&text), text.len) < text.len) abort();
    if (json_parse(str_text(&text), text.len, "report", &again, NULL) != STATUS_OK) abort();
    const cJSON *error = NULL;
    cJSON_ArrayForEach(error, json_member(again, "errors")) {
        const char *message = "";
        if (json_get_string(error, "message", &message, NULL) != STATUS_OK || !*message) abort();
    }
    cJSON_Delete(again);
    str_release(&text);
}

static void check_repair(const unsigned char *data, size_t size) {
    struct str once = {0}, twice = {0};
    const int64_t replaced = rows_repair((const char *)data, size, &once);
    if (utf8_valid_prefix(str_text(&once), once.len) < once.len) abort();
    if (rows_repair(str_text(&once), once.len, &twice) != 0) abort();
    if (replaced == 0 && (once.len != size || (size && memcmp(once.data, data, size) != 0)))
        abort();
    str_release(&once);
    str_release(&twice);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    check_repair(data, size);
    char path[64];
    const int fd = memfd_create("rows", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    cJSON *report = NULL;
    struct err e = {0};
    const enum status status = dataset_check(path, 20, &report, &e);
    if (status == STATUS_OK) {
        check_report(report);
    } else if (!e.text[0]) {
        abort();
    }
    cJSON_Delete(report);
    close(fd);
    return 0;
}
