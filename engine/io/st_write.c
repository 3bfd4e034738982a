/* st_write.c - writing one safetensors file as a stream: header first, then the tensors in the
 * order declared.
 *
 * The data is never held: a model of any size is written from pieces. The file appears at its name
 * on commit only, so a full disk or a crash leaves nothing that looks like weights. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/io/safetensors.h"

enum { HEADER_ALIGN = 8 };

void st_writer_declare(struct st_writer *w, const char *name, enum st_dtype dtype,
                       const int64_t *shape, int64_t rank) {
    ASSERT(!w->begun);
    ASSERT(rank >= 0 && rank <= SAFETENSORS_RANK_MAX);
    ASSERT(strlen(name) > 0 && strlen(name) <= SAFETENSORS_NAME_MAX);
    size_t capacity = (size_t)w->capacity;
    w->tensors = mem_grow(w->tensors, (size_t)w->count, &capacity, sizeof *w->tensors);
    w->capacity = (int64_t)capacity;
    struct st_tensor t = {.name = mem_strdup(name), .dtype = dtype, .rank = rank, .elements = 1};
    for (int64_t i = 0; i < rank; i++) {
        ASSERT(shape[i] >= 0);
        t.shape[i] = shape[i];
        ASSERT(!__builtin_mul_overflow(t.elements, shape[i], &t.elements));
    }
    t.bytes = t.elements * st_dtype_bytes(dtype);
    w->tensors[w->count++] = t;
    w->data_bytes += t.bytes;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status check_unique(const struct st_writer *w, struct err *e) {
    const char **names = mem_new((size_t)w->count, sizeof *names);
    for (int64_t i = 0; i < w->count; i++) {
        names[i] = w->tensors[i].name;
    }
    if (w->count) qsort(names, (size_t)w->count, sizeof *names, compare_names);
    enum status status = STATUS_OK;
    for (int64_t i = 1; i < w->count && status == STATUS_OK; i++) {
        if (strcmp(names[i - 1], names[i]) != 0) continue;
        status = err_set(e, STATUS_INTERNAL, "tensor \"%s\" is declared twice", names[i]);
    }
    mem_free(names);
    return status;
}

static void append_quoted(struct str *out, const char *text) {
    cJSON *value = cJSON_CreateString(text);
    json_append(out, value);
    cJSON_Delete(value);
}

static enum status append_header(const struct st_writer *w, struct str *out, struct err *e) {
    int64_t at = 0;
    str_append(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = 0; i < w->count; i++) {
        const struct st_tensor *const t = &w->tensors[i];
        FAIL_IF(at % st_dtype_bytes(t->dtype) != 0, STATUS_INTERNAL,
                "tensor \"%s\" would not be aligned: declare wider dtypes first", t->name);
        str_append_char(out, ',');
        append_quoted(out, t->name);
        str_appendf(out, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(t->dtype));
        for (int64_t d = 0; d < t->rank; d++) {
            str_appendf(out, d ? ",%lld" : "%lld", (long long)t->shape[d]);
        }
        str_appendf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)at,
                    (long long)(at + t->bytes));
        at += t->bytes;
    }
    str_append_char(out, '}');
    while (out->len % HEADER_ALIGN) {
        str_append_char(out, ' ');
    }
    return STATUS_OK;
}

static enum status write_header(struct st_writer *w, const struct str *header, struct err *e) {
    unsigned char length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (unsigned char)((uint64_t)header->len >> (8 * i));
    }
    TRY(file_writer_write(&w->file, length, sizeof length, e));
    return file_writer_write(&w->file, header->data, header->len, e);
}

enum status st_writer_begin(struct st_writer *w, const char *path, struct err *e) {
    ASSERT(!w->begun);
    struct str header = {0};
    enum status status = STATUS_OK;
    GUARD(check_unique(w, e));
    GUARD(append_header(w, &header, e));
    GUARD(file_writer_open(&w->file, path, e));
    GUARD(write_header(w, &header, e));
    w->begun = true;
done:
    if (status != STATUS_OK) st_writer_abort(w);
    str_release(&header);
    return status;
}

enum status st_writer_data(struct st_writer *w, const void *bytes, int64_t count, struct err *e) {
    ASSERT(w->begun && count >= 0);
    FAIL_IF(count > w->data_bytes - w->written_bytes, STATUS_INTERNAL,
            "writing %s: more data than the declared tensors hold", w->file.path);
    if (count) TRY(file_writer_write(&w->file, bytes, (size_t)count, e));
    w->written_bytes += count;
    return STATUS_OK;
}

enum status st_writer_commit(struct st_writer *w, struct err *e) {
    ASSERT(w->begun);
    enum status status = STATUS_OK;
    GUARD_IF(w->written_bytes != w->data_bytes, STATUS_INTERNAL,
             "writing %s: %lld bytes were written of the %lld declared", w->file.path,
             (long long)w->written_bytes, (long long)w->data_bytes);
    GUARD(file_writer_commit(&w->file, e));
done:
    st_writer_abort(w);
    return status;
}

void st_writer_abort(struct st_writer *w) {
    if (!w) return;
    file_writer_abort(&w->file);
    for (int64_t i = 0; i < w->count; i++) {
        mem_free((char *)(uintptr_t)w->tensors[i].name);
    }
    mem_free(w->tensors);
    *w = (struct st_writer){0};
}
