/* dataset_store.c - writing samples to a file and reading them through a mapping.
 *
 * Records and index grow at the same time and must end up one after the other, so the index is
 * collected in a second file that is appended at the end. Numbers are those of the machine: the
 * file never leaves it. */
#include "engine/text/dataset_store.h"

#include <string.h>

#include "base/mem.h"

enum { PENDING_BYTES = 1 << 20, RECORD_ALIGN = 4, TOKEN_BYTES = 5, STORE_VERSION = 1 };

static const char MAGIC[8] = {'P', 'L', 'M', 'S', 'D', 'A', 'T', 'A'};

/* The end of the file. No padding: it is hashed as bytes, all but `hash`. */
struct footer {
    char magic[8];
    int64_t version, format, index_at;
    struct dataset_counts counts;
    unsigned char hash[HASH_BYTES];
};
_Static_assert(sizeof(struct footer) == 32 + sizeof(struct dataset_counts) + HASH_BYTES,
               "no padding in the footer");
_Static_assert(sizeof(struct dataset_counts) == 7 * 8 + ROW_PROBLEM_COUNT * 7 * 8,
               "no padding in the counts");
_Static_assert(sizeof(struct sample_place) == 16, "an entry of the index");

static enum status sink_flush(struct dataset_sink *sink, struct err *e) {
    struct err flaw = {0};
    const enum status status =
        file_writer_write(&sink->file, str_text(&sink->pending), sink->pending.len, &flaw);
    str_clear(&sink->pending);
    FAIL_IF(status == STATUS_NO_SPACE, status,
            "%s: the encoded data set does not fit; make room, or name a folder on another disk "
            "with PLIMSOLL_CACHE_DIR",
            flaw.text);
    FAIL_IF(status != STATUS_OK, status, "%s", flaw.text);
    return STATUS_OK;
}

/* In memory the pending bytes are the data. */
static enum status sink_add(struct dataset_writer *w, struct dataset_sink *sink, const void *bytes,
                            size_t count, struct err *e) {
    str_append_bytes(&sink->pending, bytes, count);
    if (!w->to_file || sink->pending.len < PENDING_BYTES) return STATUS_OK;
    if (sink == &w->records) hash_add(&w->hash, sink->pending.data, sink->pending.len);
    return sink_flush(sink, e);
}

enum status dataset_writer_open(struct dataset_writer *w, const char *path, struct err *e) {
    *w = (struct dataset_writer){.to_file = path != NULL};
    hash_open(&w->hash);
    if (!path) return STATUS_OK;
    char *index = str_format("%s.index", path);
    enum status status = file_writer_open(&w->records.file, path, e);
    if (status == STATUS_OK) status = file_writer_open(&w->index.file, index, e);
    mem_free(index);
    if (status != STATUS_OK) dataset_writer_abort(w);
    return status;
}

static enum status add_place(struct dataset_writer *w, int64_t line, struct err *e) {
    const struct sample_place place = {w->records_bytes, line};
    return sink_add(w, &w->index, &place, sizeof place, e);
}

enum status dataset_writer_add(struct dataset_writer *w, const struct sample *sample,
                               struct err *e) {
    static const unsigned char NOTHING[RECORD_ALIGN] = {0};
    const int64_t count = sample->count;
    ASSERT(count > 0 && w->hash.state);
    const size_t fill = (size_t)(-count * TOKEN_BYTES & (RECORD_ALIGN - 1));
    TRY(add_place(w, sample->line, e));
    TRY(sink_add(w, &w->records, sample->ids, (size_t)count * sizeof *sample->ids, e));
    TRY(sink_add(w, &w->records, NOTHING, 1, e)); /* nothing comes before the first token */
    TRY(sink_add(w, &w->records, sample->trained + 1, (size_t)count - 1, e));
    TRY(sink_add(w, &w->records, NOTHING, fill, e));
    w->records_bytes += count * TOKEN_BYTES + (int64_t)fill;
    for (int64_t i = 1; i < count; i++) {
        w->counts.trained_tokens += sample->trained[i];
    }
    w->counts.samples++;
    w->counts.tokens += count;
    if (count > w->counts.longest) w->counts.longest = count;
    return STATUS_OK;
}

/* Bytes between the records and the index, so that the index is aligned in the mapping. */
static size_t index_fill(int64_t records_bytes) {
    return (size_t)(-records_bytes & (int64_t)(sizeof(struct sample_place) - 1));
}

static enum status append_hashed(struct dataset_writer *w, const void *bytes, size_t count,
                                 struct err *e) {
    hash_add(&w->hash, bytes, count);
    str_append_bytes(&w->records.pending, bytes, count);
    return w->records.pending.len < PENDING_BYTES ? STATUS_OK : sink_flush(&w->records, e);
}

static enum status append_index(struct dataset_writer *w, struct err *e) {
    struct file_reader reader = {0};
    TRY(sink_flush(&w->index, e));
    TRY(file_reader_open(&reader, w->index.file.path_temporary, e));
    char *const bytes = mem_new(PENDING_BYTES, 1);
    enum status status = STATUS_OK;
    size_t count = 1;
    while (status == STATUS_OK && count) {
        status = file_reader_read(&reader, bytes, PENDING_BYTES, &count, e);
        if (status == STATUS_OK) status = append_hashed(w, bytes, count, e);
    }
    mem_free(bytes);
    file_reader_close(&reader);
    return status;
}

static enum status finish_file(struct dataset_writer *w, enum data_format format,
                               struct dataset *dataset, struct err *e) {
    static const unsigned char NOTHING[sizeof(struct sample_place)] = {0};
    struct footer footer = {.version = STORE_VERSION, .format = (int64_t)format};
    const size_t fill = index_fill(w->records_bytes);
    memcpy(footer.magic, MAGIC, sizeof MAGIC);
    footer.index_at = w->records_bytes + (int64_t)fill;
    footer.counts = w->counts;
    hash_add(&w->hash, str_text(&w->records.pending), w->records.pending.len);
    TRY(append_hashed(w, NOTHING, fill, e));
    TRY(append_index(w, e));
    TRY(append_hashed(w, &footer, offsetof(struct footer, hash), e));
    hash_result(&w->hash, footer.hash);
    str_append_bytes(&w->records.pending, footer.hash, sizeof footer.hash);
    TRY(sink_flush(&w->records, e));
    /* Mapped before it has its name: once it has, another process may remove it to make room. */
    TRY(file_map_open(&dataset->map, w->records.file.path_temporary, e));
    dataset->records = dataset->map.data;
    dataset->index =
        (const struct sample_place *)(const void *)(dataset->map.data + footer.index_at);
    return file_writer_commit(&w->records.file, e);
}

enum status dataset_writer_finish(struct dataset_writer *w, enum data_format format,
                                  struct dataset *dataset, struct err *e) {
    *dataset = (struct dataset){.format = format, .counts = w->counts};
    enum status status = add_place(w, 0, e);
    if (status == STATUS_OK && w->to_file) status = finish_file(w, format, dataset, e);
    if (status == STATUS_OK && !w->to_file) {
        dataset->owned_records = str_take(&w->records.pending);
        dataset->owned_index = str_take(&w->index.pending);
        dataset->records = (const unsigned char *)dataset->owned_records;
        dataset->index = (const struct sample_place *)(const void *)dataset->owned_index;
    }
    dataset_writer_abort(w);
    return status;
}

void dataset_writer_abort(struct dataset_writer *w) {
    if (!w) return;
    file_writer_abort(&w->records.file);
    file_writer_abort(&w->index.file);
    str_release(&w->records.pending);
    str_release(&w->index.pending);
    hash_close(&w->hash);
    *w = (struct dataset_writer){0};
}

/* Reads the whole file once, so that a damaged one is never trained on. `size` is that of the file;
 * the hash at its end is not part of what is hashed. */
static enum status check_hash(const char *path, int64_t size, const unsigned char *expected,
                              struct err *e) {
    struct hash_stream hash = {0};
    struct file_reader reader = {0};
    unsigned char found[HASH_BYTES];
    TRY(file_reader_open(&reader, path, e));
    char *const bytes = mem_new(PENDING_BYTES, 1);
    enum status status = STATUS_OK;
    int64_t left = size - HASH_BYTES;
    size_t count = 1;
    hash_open(&hash);
    while (status == STATUS_OK && count && left > 0) {
        status = file_reader_read(&reader, bytes, PENDING_BYTES, &count, e);
        const size_t part = (int64_t)count < left ? count : (size_t)left;
        if (status == STATUS_OK) hash_add(&hash, bytes, part);
        left -= (int64_t)part;
    }
    hash_result(&hash, found);
    if (status == STATUS_OK && memcmp(found, expected, HASH_BYTES) != 0)
        status = err_set(e, STATUS_INVALID, "%s is damaged", path);
    hash_close(&hash);
    mem_free(bytes);
    file_reader_close(&reader);
    return status;
}

static enum status open_mapped(struct dataset *dataset, const char *path, struct err *e) {
    struct footer footer;
    const int64_t size = (int64_t)dataset->map.bytes, body = size - (int64_t)sizeof footer;
    FAIL_IF(body < 0, STATUS_INVALID, "%s is too short", path);
    memcpy(&footer, dataset->map.data + body, sizeof footer);
    FAIL_IF(memcmp(footer.magic, MAGIC, sizeof MAGIC) != 0 || footer.version != STORE_VERSION,
            STATUS_INVALID, "%s is no data set of this version", path);
    TRY(check_hash(path, size, footer.hash, e));
    const int64_t places = footer.counts.samples + 1;
    FAIL_IF(footer.format <= FORMAT_AUTO || footer.format >= FORMAT_COUNT || places < 1 ||
                places > size || footer.index_at < 0 ||
                body - footer.index_at != places * (int64_t)sizeof(struct sample_place),
            STATUS_INVALID, "%s contradicts itself", path);
    dataset->format = (enum data_format)footer.format;
    dataset->counts = footer.counts;
    dataset->records = dataset->map.data;
    dataset->index =
        (const struct sample_place *)(const void *)(dataset->map.data + footer.index_at);
    return STATUS_OK;
}

enum status dataset_open_file(struct dataset *dataset, const char *path, struct err *e) {
    *dataset = (struct dataset){0};
    FAIL_IF(!file_exists(path), STATUS_NOT_FOUND, "%s is not there", path);
    TRY(file_map_open(&dataset->map, path, e));
    const enum status status = open_mapped(dataset, path, e);
    if (status != STATUS_OK) dataset_release(dataset);
    return status;
}

void dataset_release(struct dataset *dataset) {
    if (!dataset) return;
    file_map_close(&dataset->map);
    mem_free(dataset->owned_records);
    mem_free(dataset->owned_index);
    *dataset = (struct dataset){0};
}

struct sample dataset_sample(const struct dataset *dataset, int64_t index) {
    ASSERT(index >= 0 && index < dataset->counts.samples);
    const struct sample_place *const place = &dataset->index[index];
    /* Records are filled up by less than the bytes of one token. */
    const int64_t count = (place[1].at - place[0].at) / TOKEN_BYTES;
    const unsigned char *const record = dataset->records + place->at;
    return (struct sample){
        .ids = (const int32_t *)(const void *)record,
        .trained = record + count * (int64_t)sizeof(int32_t),
        .count = count,
        .line = place->line,
    };
}
