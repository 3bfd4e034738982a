/* dataset_store.h - samples as they lie in a file or in memory, written once and then only read.
 *
 * The file: records end to end, each `count` int32 ids and then `count` bytes that say which are
 * trained, filled up to 4 bytes; the index, sample_place for every sample and one for the end; a
 * footer with counts and the hash of everything. Only ever appended to, and read through a mapping:
 * a data set larger than memory trains, since its pages are the page cache's, not the process's. */
#ifndef PLIMSOLL_ENGINE_TEXT_DATASET_STORE_H
#define PLIMSOLL_ENGINE_TEXT_DATASET_STORE_H

#include "base/file.h"
#include "engine/io/hash.h"
#include "engine/text/dataset.h"

/* Where a record is, and the line of its row. */
struct sample_place {
    int64_t at; /* bytes from the first record */
    int64_t line;
};

/* Bytes on their way into a file, or all of them when there is none. */
struct dataset_sink {
    struct file_writer file;
    struct str pending;
};

struct dataset_writer {
    bool to_file;
    struct dataset_counts counts;
    struct dataset_sink records, index;
    int64_t records_bytes;
    struct hash_stream hash;
};

/* Begins a file that will appear at `path`, or with NULL a data set in memory. */
enum status dataset_writer_open(struct dataset_writer *w, const char *path, struct err *e);
/* Appends a sample of at least one token. Errors of writing; STATUS_NO_SPACE says what to do. */
enum status dataset_writer_add(struct dataset_writer *w, const struct sample *sample,
                               struct err *e);
/* Completes it and opens it as `dataset`, which takes w->counts (what is not counted by adding may
 * be put there before). Caller releases the dataset, also after an error; `w` is closed. */
enum status dataset_writer_finish(struct dataset_writer *w, enum data_format format,
                                  struct dataset *dataset, struct err *e);
/* Leaves nothing behind. Fine for a zeroed or finished writer. */
void dataset_writer_abort(struct dataset_writer *w);

/* Opens a finished file. STATUS_NOT_FOUND; STATUS_INVALID: it is damaged or of another version. */
enum status dataset_open_file(struct dataset *dataset, const char *path, struct err *e);

#endif
