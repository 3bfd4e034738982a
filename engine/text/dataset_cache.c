/* dataset_cache.c - the name of a cached data set, and looking it up.
 *
 * The running program is part of the name, byte for byte: whatever turns rows into tokens may have
 * changed with it, and hashing it costs a millisecond. */
#include "engine/text/dataset_cache.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/hash.h"
#include "engine/text/dataset_store.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

enum { TEMPLATE_FILE_MAX = 64 << 20 };

/* What tokenizer_open and chat_template_open look at. */
static const char *const MODEL_FILES[] = {"tokenizer.json", "tokenizer_config.json",
                                          "chat_template.jinja",
                                          "additional_chat_templates/tool_use.jinja"};

static void add_options(struct hash_stream *h, const struct dataset_options *o) {
    const int64_t values[] = {o->format,
                              o->mask,
                              o->max_length,
                              o->vocab,
                              o->parse_special,
                              o->drop_messages,
                              o->split_turns,
                              o->merge_turns,
                              o->replace_invalid_utf8,
                              o->fold_system,
                              tokenizer_pattern_replaced(o->tokenizer),
                              ROW_PROBLEM_COUNT};
    hash_add(h, values, sizeof values);
}

/* Contents and their length, so that two files are not taken for one. */
static enum status add_file(struct hash_stream *h, const char *path, struct err *e) {
    int64_t bytes = 0;
    TRY(hash_add_file(h, path, &bytes, e));
    hash_add_i64(h, bytes);
    return STATUS_OK;
}

/* The time matters only to a template that asks for it. */
static enum status mentions_time(const char *path, bool *mentions, struct err *e) {
    struct str text = {0};
    TRY(file_read(path, TEMPLATE_FILE_MAX, &text, e));
    *mentions |= strstr(str_text(&text), "strftime_now") != NULL;
    str_release(&text);
    return STATUS_OK;
}

static enum status add_model(struct hash_stream *h, const char *folder, int64_t now_unix_s,
                             struct err *e) {
    bool mentions = false;
    for (size_t i = 0; i < COUNT_OF(MODEL_FILES); i++) {
        char *const path = file_join(folder, MODEL_FILES[i]);
        const bool there = file_exists(path);
        enum status status = STATUS_OK;
        hash_add_i64(h, there);
        if (there) status = add_file(h, path, e);
        if (there && i > 0 && status == STATUS_OK) status = mentions_time(path, &mentions, e);
        mem_free(path);
        TRY(status);
    }
    hash_add_i64(h, mentions ? now_unix_s : 0);
    return STATUS_OK;
}

static enum status add_all(struct hash_stream *h, const struct dataset_keeping *keeping,
                           char *const *paths, int64_t path_count,
                           const struct dataset_options *options, struct err *e) {
    TRY(add_file(h, "/proc/self/exe", e));
    add_options(h, options);
    hash_add_text(h, options->chat_template ? chat_template_source(options->chat_template) : NULL);
    TRY(add_model(h, keeping->model_folder, options->now_unix_s, e));
    for (int64_t i = 0; i < path_count; i++) {
        TRY(add_file(h, paths[i], e));
    }
    return STATUS_OK;
}

enum status dataset_cache_path(char **path, const struct dataset_keeping *keeping,
                               char *const *paths, int64_t path_count,
                               const struct dataset_options *options, struct err *e) {
    struct hash_stream h = {0};
    unsigned char hash[HASH_BYTES];
    char hex[HASH_HEX_CHARS + 1];
    *path = NULL;
    hash_open(&h);
    const enum status status = add_all(&h, keeping, paths, path_count, options, e);
    hash_result(&h, hash);
    hash_close(&h);
    TRY(status);
    hash_hex(hash, hex);
    char *const name = str_format("%s" DATASET_CACHE_SUFFIX, hex);
    *path = file_join(keeping->place->folder, name);
    mem_free(name);
    return STATUS_OK;
}

enum status dataset_cache_get(struct dataset *dataset, const char *path, bool *found,
                              struct err *e) {
    struct err flaw = {0};
    const enum status status = dataset_open_file(dataset, path, &flaw);
    *found = status == STATUS_OK;
    if (*found) cache_touch(path);
    if (status == STATUS_INVALID) return file_remove_all(path, e);
    FAIL_IF(status != STATUS_OK && status != STATUS_NOT_FOUND, status, "%s", flaw.text);
    return STATUS_OK;
}
