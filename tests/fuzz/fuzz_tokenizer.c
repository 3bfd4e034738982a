/* fuzz_tokenizer.c - any bytes as tokenizer.json: opening ends in an error with a text, or in a
 * tokenizer whose ids of a fixed text are in range and can be decoded. What follows the first NUL
 * byte is the text instead of the fixed one.
 *
 * rooms: engine_text engine_io base */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void try_text(const struct tokenizer *t, const char *text, size_t len) {
    struct token_list ids = {0};
    struct str back = {0};
    struct err e = {0};
    if (tokenizer_encode(t, text, len, SPECIAL_PARSE, true, &ids, &e) == STATUS_OK) {
        for (size_t i = 0; i < ids.count; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= tokenizer_size(t)) abort();
        }
        if (tokenizer_decode(t, ids.ids, ids.count, false, &back, &e) != STATUS_OK && !e.text[0])
            abort();
    } else if (!e.text[0]) {
        abort();
    }
    str_release(&back);
    token_list_release(&ids);
}

/* A folder of this input's own, since tokenizer_open reads folders. In memory where there is such a
 * place, and without the care of file_write_atomic: thousands are written a second. */
static void write_folder(char *folder, const unsigned char *data, size_t size) {
    if (!mkdtemp(folder)) abort();
    char *const path = file_join(folder, "tokenizer.json");
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) abort();
    mem_free(path);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    const unsigned char *const end = memchr(data, 0, size);
    const size_t file_size = end ? (size_t)(end - data) : size;
    char folder[2][40] = {"/tmp/plimsoll-fuzz-XXXXXX", "/dev/shm/plimsoll-fuzz-XXXXXX"};
    char *const place = folder[access("/dev/shm", W_OK) == 0];
    struct err e = {0}, ignored = {0};
    struct tokenizer *t = NULL;
    write_folder(place, data, file_size);
    if (tokenizer_open(&t, place, &e) == STATUS_OK) {
        static const char TEXT[] =
            "Hello  w\xC3\xB6rld, 12345!\n\t<|im_end|> don't \xF0\x9F\x99\x82";
        try_text(t, TEXT, sizeof TEXT - 1);
        if (end) try_text(t, (const char *)end + 1, size - file_size - 1);
    } else if (!e.text[0]) {
        abort();
    }
    tokenizer_free(t);
    if (file_remove_all(place, &ignored) != STATUS_OK) abort();
    return 0;
}
