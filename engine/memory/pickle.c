/* pickle.c - the opcodes of protocol 2 (PEP 307; Python's pickletools describes each).
 *
 * Dicts and lists are opened empty with a mark behind them; what follows up to the mark is added at
 * the end, for lists also every LIST_PIECE items. */
#include "engine/memory/pickle.h"

#include <string.h>

#include "base/mem.h"

enum { FLUSH_BYTES = 1 << 16, LIST_PIECE = 1000, BUCKETS_FIRST = 256 };
enum {
    OP_PROTO = 0x80,
    OP_TUPLE2 = 0x86,
    OP_TRUE = 0x88,
    OP_FALSE = 0x89,
    OP_LONG1 = 0x8A,
};

static void put(struct pickle *p, int byte) {
    str_append_char(&p->pending, (char)byte);
}

/* Little-endian. */
static void put_bytes(struct pickle *p, uint64_t value, int count) {
    for (int i = 0; i < count; i++) {
        put(p, (int)(value >> (8 * i) & 0xFF));
    }
}

static void flush(struct pickle *p) {
    if (p->failure.status == STATUS_OK)
        (void)file_writer_write(&p->file, str_text(&p->pending), p->pending.len, &p->failure);
    str_clear(&p->pending);
}

/* A value begins: it counts in the list it is in. The piece before is closed here and not behind
 * its last item, which may still be remembered. */
static void begin_item(struct pickle *p) {
    if (p->pending.len >= FLUSH_BYTES) flush(p);
    if (p->depth == 0 || p->items[p->depth - 1] < 0) return;
    if (p->items[p->depth - 1]++ < LIST_PIECE) return;
    put(p, 'e');
    put(p, '(');
    p->items[p->depth - 1] = 1;
}

static void open_container(struct pickle *p, int empty, int64_t items) {
    ASSERT(p->depth < PICKLE_DEPTH_MAX);
    begin_item(p);
    put(p, empty);
    put(p, '(');
    p->items[p->depth++] = items;
}

static void close_container(struct pickle *p, int add) {
    ASSERT(p->depth > 0);
    put(p, add);
    p->depth--;
}

enum status pickle_open(struct pickle *p, const char *path, struct err *e) {
    *p = (struct pickle){0};
    TRY(file_writer_open(&p->file, path, e));
    put(p, OP_PROTO);
    put(p, 2);
    return STATUS_OK;
}

enum status pickle_commit(struct pickle *p, struct err *e) {
    ASSERT(p->depth == 0);
    put(p, '.');
    flush(p);
    if (p->failure.status != STATUS_OK) {
        file_writer_abort(&p->file);
        return err_set(e, p->failure.status, "%s", p->failure.text);
    }
    return file_writer_commit(&p->file, e);
}

void pickle_close(struct pickle *p) {
    if (!p) return;
    file_writer_abort(&p->file);
    str_release(&p->pending);
    for (size_t i = 0; i < p->string_count; i++) {
        mem_free(p->strings[i]);
    }
    mem_free(p->strings);
    mem_free(p->buckets);
    *p = (struct pickle){0};
}

void pickle_dict(struct pickle *p) {
    open_container(p, '}', -1);
}

void pickle_dict_end(struct pickle *p) {
    close_container(p, 'u');
}

void pickle_list(struct pickle *p) {
    open_container(p, ']', 0);
}

void pickle_list_end(struct pickle *p) {
    close_container(p, 'e');
}

static size_t hash_of(const char *text) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++) {
        hash = (hash ^ (unsigned char)*text) * 0x100000001B3u;
    }
    return (size_t)(hash ^ hash >> 29);
}

/* The bucket that holds the text's memo number + 1, or the empty one where it belongs. */
static uint32_t *bucket_of(struct pickle *p, const char *text) {
    size_t at = hash_of(text) % p->bucket_count;
    while (p->buckets[at] && strcmp(p->strings[p->buckets[at] - 1], text) != 0) {
        at = (at + 1) % p->bucket_count;
    }
    return &p->buckets[at];
}

static void grow_buckets(struct pickle *p) {
    mem_free(p->buckets);
    p->bucket_count = p->bucket_count ? 2 * p->bucket_count : BUCKETS_FIRST;
    p->buckets = mem_new(p->bucket_count, sizeof *p->buckets);
    for (size_t i = 0; i < p->string_count; i++) {
        if (p->strings[i]) *bucket_of(p, p->strings[i]) = (uint32_t)i + 1;
    }
}

/* Memo numbers are indices of `strings`; what is no string leaves a hole there. */
static uint32_t remember(struct pickle *p, const char *text) {
    p->strings = mem_grow(p->strings, p->string_count, &p->string_capacity, sizeof *p->strings);
    p->strings[p->string_count] = mem_strdup(text);
    put(p, 'r');
    put_bytes(p, p->string_count, 4);
    return (uint32_t)p->string_count++;
}

void pickle_string(struct pickle *p, const char *text) {
    begin_item(p);
    if (2 * (p->string_count + 1) > p->bucket_count) grow_buckets(p);
    uint32_t *const bucket = bucket_of(p, text);
    if (*bucket) {
        put(p, 'j');
        put_bytes(p, *bucket - 1, 4);
    } else {
        const size_t len = strlen(text);
        put(p, 'X');
        put_bytes(p, len, 4);
        str_append_bytes(&p->pending, text, len);
        *bucket = remember(p, text) + 1;
    }
}

/* Small ones as a byte or as a signed word, the rest in eight bytes of two's complement. */
static void put_i64(struct pickle *p, int64_t value) {
    if (value >= 0 && value < 256) {
        put(p, 'K');
        put_bytes(p, (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put(p, 'J');
        put_bytes(p, (uint64_t)value, 4);
    } else {
        put(p, OP_LONG1);
        put(p, 8);
        put_bytes(p, (uint64_t)value, 8);
    }
}

void pickle_i64(struct pickle *p, int64_t value) {
    begin_item(p);
    put_i64(p, value);
}

void pickle_f64(struct pickle *p, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    begin_item(p);
    put(p, 'G');
    for (int i = 7; i >= 0; i--) { /* the one big-endian number of the format */
        put(p, (int)(bits >> (8 * i) & 0xFF));
    }
}

void pickle_bool(struct pickle *p, bool value) {
    begin_item(p);
    put(p, value ? OP_TRUE : OP_FALSE);
}

void pickle_pair(struct pickle *p, int64_t a, int64_t b) {
    begin_item(p);
    put_i64(p, a);
    put_i64(p, b);
    put(p, OP_TUPLE2);
}

uint32_t pickle_remember(struct pickle *p) {
    return remember(p, NULL);
}

void pickle_again(struct pickle *p, uint32_t number) {
    begin_item(p);
    put(p, 'j');
    put_bytes(p, number, 4);
}
