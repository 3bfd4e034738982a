/* store.h - what the appliance remembers: files, jobs, their events and series. Everything lives in
 * one data folder:
 *
 *   plimsoll.db        the database (db.h)
 *   lock               held by the one server that owns the folder
 *   files/<id>.<ext>   uploaded files under names made here; the user's file name is data only
 *   runs/<job id>/     run directories (engine/rundir.h)
 *
 * Rows are plain structs that the caller releases. All functions may be called from any thread.
 * Only the supervisor calls store_job_update: it is the one writer of a job's state. */
#ifndef PLIMSOLL_SERVER_STORE_STORE_H
#define PLIMSOLL_SERVER_STORE_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

struct store;

/* Opens the data folder, creating what is missing. STATUS_CONFLICT when another server owns it. */
enum status store_open(struct store **out, const char *folder, struct err *e);
void store_close(struct store *store);
const char *store_folder(const struct store *store);
/* Path of a job's run directory, and of a stored file by id and extension (".jsonl"). Caller frees
 * with mem_free. */
char *store_run_folder(const struct store *store, const char *job_id);
char *store_file_path(const struct store *store, const char *file_id, const char *extension);
/* A new unguessable id: prefix and 24 letters and digits. */
void store_new_id(char out[64], const char *prefix);

/* Everything between begin and end is one transaction that is on disk when end returns STATUS_OK;
 * see db.h. */
enum status store_begin(struct store *store, struct err *e);
enum status store_end(struct store *store, enum status so_far, struct err *e);

/* Files. */
struct file_row {
    int64_t number; /* order of creation */
    char *id, *filename, *purpose;
    char *status;  /* processed | error */
    char *details; /* why status is error: "line 4: ..."; or NULL */
    char *report;  /* JSON of the check, or NULL */
    char *path;
    int64_t created_at, bytes;
};
void file_row_release(struct file_row *row);
enum status store_file_put(struct store *store, const struct file_row *row, struct err *e);
/* STATUS_NOT_FOUND with a text for the user. */
enum status store_file_get(struct store *store, const char *id, struct file_row *out,
                           struct err *e);
/* Forgets the row and removes the file. STATUS_CONFLICT while a job that is not over needs it. */
enum status store_file_delete(struct store *store, const char *id, struct err *e);
/* A page of files; `purpose` and `after` (an id) may be NULL.
 */
struct page {
    const char *after;
    int64_t limit;
    bool ascending;
};
struct file_list {
    struct file_row *rows;
    int64_t count;
    bool more; /* there are some after these */
};
enum status store_file_list(struct store *store, const char *purpose, const struct page *page,
                            struct file_list *out, struct err *e);
void file_list_release(struct file_list *list);

/* Jobs. Times are unix seconds, 0 when unknown; *_ms milliseconds. JSON members are text. */
struct job_row {
    int64_t number;
    char *id, *model, *training_file;
    int64_t created_at, queued_ms, started_at, finished_at;
    char
        *status; /* queued | validating_files | running | paused | succeeded | failed | cancelled */
    char *phase; /* finer: queued, plan, load, train, eval, checkpoint, export, interrupted, done,
                    ... */
    char *wish;  /* NULL | cancel | pause | resume: what the user asked for and the supervisor has
                    not yet done */
    char *request; /* JSON: the fields of the create call, checked */
    char *spec;    /* JSON: the run spec's keys that were set; after planning the resolved spec */
    char *plan;    /* JSON: what `plimsoll-engine plan` said, or NULL */
    int64_t rank_pid, rank_start; /* identity of the running rank (engine/rundir.h); pid 0: none */
    char *rank_boot;
    int64_t event_offset; /* in events.0.jsonl, of the first byte not yet in the database */
    int64_t seq;          /* of the newest event in the database */
    int64_t step, total_steps;
    double loss, first_loss, tokens_per_second; /* NaN: unknown */
    double step_seconds;                        /* smoothed, for the time left; NaN: unknown */
    int64_t trained_tokens;
    char *memory;                /* JSON: the newest memory event, or NULL */
    char *outcome;               /* JSON: the done or error event of the present attempt, or NULL */
    char *error;                 /* JSON {"code","message","param"}, or NULL */
    int64_t crashes, crash_step; /* crashes in a row without a step beyond crash_step */
    char *result;                /* adapter | model, or NULL */
    char *fine_tuned_model;
    char *results_file;
    int64_t run_ms; /* time spent running, over all attempts */
};
void job_row_release(struct job_row *row);
struct job_list {
    struct job_row *rows;
    int64_t count;
    bool more; /* there are some after these */
};
void job_list_release(struct job_list *list);

/* Inserts a queued job: id, model, training_file, request, spec, created_at and queued_ms are taken
 * from `row`, and the row gets its number. `key` may be NULL. Only between store_begin and
 * store_end. */
enum status store_job_create(struct store *store, struct job_row *row, const char *key,
                             const char *request_hash, struct err *e);
/* The job created with this Idempotency-Key: its id and the hash of its request, or NULLs. Caller
 * frees both. */
enum status store_job_by_key(struct store *store, const char *key, char **id, char **request_hash,
                             struct err *e);
enum status store_job_get(struct store *store, const char *id, struct job_row *out, struct err *e);
/* How far events.<rank>.jsonl of a rank beyond 0 is in the database, in bytes; 0 at first. */
enum status store_rank_get(struct store *store, int64_t job, int64_t rank, int64_t *offset,
                           struct err *e);
enum status store_rank_put(struct store *store, int64_t job, int64_t rank, int64_t offset,
                           struct err *e);
/* Writes back everything but the wish and what never changes. */
enum status store_job_update(struct store *store, const struct job_row *row, struct err *e);
enum status store_job_wish(struct store *store, const char *id, const char *wish, struct err *e);
/* The present wish; caller frees. */
enum status store_job_wish_get(struct store *store, int64_t number, char **wish, struct err *e);
/* Jobs to look at: those in validating_files or running; those queued, in the order of their turns;
 * those without a process of which something is wished. At most `limit`. */
enum job_pick { JOB_ACTIVE, JOB_QUEUED, JOB_WISHED };
enum status store_job_pick(struct store *store, enum job_pick pick, int64_t limit,
                           struct job_list *out, struct err *e);
/* Jobs newest first, those that the filter keeps (`keep` NULL: all). */
struct job_filter {
    bool (*keep)(const struct job_row *row, const void *context);
    const void *context;
};
enum status store_job_list(struct store *store, const struct page *page, struct job_filter filter,
                           struct job_list *out, struct err *e);
/* How many queued jobs come before this one. */
enum status store_job_ahead(struct store *store, const struct job_row *row, int64_t *ahead,
                            struct err *e);
/* Calls `see` for each status that has jobs. */
enum status store_job_counts(struct store *store,
                             void (*see)(const char *status, int64_t count, void *context),
                             void *context, struct err *e);
/* Fine-tuned models: all (id NULL) or the one with this name. */
enum status store_job_tuned(struct store *store, const char *name, struct job_list *out,
                            struct err *e);
enum status store_job_untune(struct store *store, const struct job_row *row, struct err *e);

/* Cache of what the engine says about a model folder; `stamp` changes when the folder does. *report
 * is NULL when unknown; caller frees. */
enum status store_inspection_get(struct store *store, const char *path, const char *stamp,
                                 char **report, struct err *e);
enum status store_inspection_put(struct store *store, const char *path, const char *stamp,
                                 const char *report, struct err *e);

#endif
