/* pressure.c - see pressure.h.
 *
 * A file and not a number for what others hold, because a test moves it while the run goes on. */
#include "engine/memory/pressure.h"

#include <string.h>

#include "base/environment.h"
#include "base/file.h"
#include "base/mem.h"

enum { FILE_BYTES_MAX = 256 };

/* "N" or "N:RANK". */
static enum status read_count(const char *name, int64_t rank, int64_t *out, struct err *e) {
    const char *const text = environment(name);
    if (!text) return STATUS_OK;
    const char *const colon = strchr(text, ':');
    int64_t count = 0, wanted = 0;
    char *number = mem_strndup(text, colon ? (size_t)(colon - text) : strlen(text));
    enum status status = str_to_i64(number, name, &count, e);
    mem_free(number);
    if (status == STATUS_OK && colon) status = str_to_i64(colon + 1, name, &wanted, e);
    TRY(status);
    FAIL_IF(count < 1, STATUS_INVALID, "%s is \"%.40s\": the first one is number 1", name, text);
    if (wanted == rank) *out = count;
    return STATUS_OK;
}

struct pressure pressure_of_others(void) {
    return (struct pressure){.others_path = environment("PLIMSOLL_PRETEND_OTHERS")};
}

enum status pressure_read(struct pressure *p, int64_t rank, struct err *e) {
    *p = pressure_of_others();
    TRY(read_count("PLIMSOLL_FAIL_RESERVATION", rank, &p->reservation, e));
    return read_count("PLIMSOLL_FAIL_ALLOCATION", rank, &p->allocation, e);
}

bool pressure_hits(int64_t *left) {
    if (*left == 0) return false;
    --*left;
    return *left == 0;
}

int64_t pressure_others(struct pressure *p) {
    if (!p->others_path) return 0;
    struct str text = {0};
    struct err ignored = {0};
    int64_t bytes = 0;
    if (file_read(p->others_path, FILE_BYTES_MAX, &text, &ignored) == STATUS_OK) {
        const size_t digits = strspn(str_text(&text), "0123456789");
        if (text.data) str_truncate(&text, digits);
        if (str_to_i64(str_text(&text), "others", &bytes, &ignored) != STATUS_OK) bytes = 0;
    }
    str_release(&text);
    p->others = bytes;
    return bytes;
}
