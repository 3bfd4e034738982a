/* series.h - what a run said: the event stream of a job, and the series that charts are made of.
 *
 * Events have a sequence number per job, counted without gaps from 1; it is the `id:` of the SSE
 * stream. Step and memory events are kept in the stream for the newest EVENTS_KEPT numbers only,
 * their values stay in the series for ever. Series are keyed by (job, step), memory by (job, rank,
 * step), so that the steps a resumed run repeats replace those of the run that crashed. */
#ifndef PLIMSOLL_SERVER_STORE_SERIES_H
#define PLIMSOLL_SERVER_STORE_SERIES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "server/store/store.h"

enum { EVENTS_KEPT = 20000 };

struct event_row {
    int64_t seq, time_ms;
    char *kind; /* of engine/events.h, or "job": the job's state changed */
    char *data; /* JSON */
};
struct event_cursor {
    int64_t job, seq, limit;
    const char *kinds; /* before only: names with commas between them; NULL: as below */
};
void event_rows_free(struct event_row *rows, int64_t count);

/* Appends an event and counts job->seq up; the caller writes the job row in the same transaction.
 */
enum status store_event_add(struct store *store, struct job_row *job, const char *kind,
                            int64_t time_ms, const char *data, struct err *e);
/* At most `limit` events after / before the number `seq`, nearest first. Before leaves out `job`
 * and `memory` unless kinds are named. Caller frees with event_rows_free. */
enum status store_events_after(struct store *store, struct event_cursor at, struct event_row **rows,
                               int64_t *count, struct err *e);
enum status store_events_before(struct store *store, struct event_cursor at,
                                struct event_row **rows, int64_t *count, struct err *e);
/* True if events after `seq` are no longer kept. */
enum status store_events_lost(struct store *store, int64_t job, int64_t seq, bool *lost,
                              struct err *e);

/* NaN where the value is unknown or was not finite. */
struct step_row {
    int64_t step;
    double loss, grad_norm, learning_rate, tokens_per_second, accuracy;
};
/* The numbers of a memory event that make a series, in bytes. */
enum memory_value {
    MEMORY_ALLOCATED,
    MEMORY_RESERVED,
    MEMORY_PEAK,
    MEMORY_STEP_PEAK,
    MEMORY_CAPACITY,
    MEMORY_LARGEST_FREE,
    MEMORY_OVERHEAD,
    MEMORY_OTHERS,
    MEMORY_DEVICE_USED,
    MEMORY_DEVICE_TOTAL,
    MEMORY_HOST_USED,
    MEMORY_VALUES
};
/* As in the event: "allocated", ... */
const char *memory_value_name(enum memory_value value);
enum { MEMORY_CATEGORIES = 8 };
struct memory_row {
    int64_t rank, step, time_ms;
    int64_t values[MEMORY_VALUES];         /* -1: unknown */
    int64_t categories[MEMORY_CATEGORIES]; /* at the step's peak, as memory_category_name */
};
/* weights, adapters, gradients, optimizer, activations, workspace, communication, staging. */
const char *memory_category_name(int index);
/* The newest event of a kind of a rank. */
struct latest_row {
    int64_t rank, time_ms;
    const char *kind, *data; /* data: JSON */
};
struct eval_row {
    int64_t step;
    double loss, accuracy;
};
struct sample_row {
    int64_t step;
    const char *prompt, *text;
};
struct checkpoint_row {
    int64_t step, created_at;
    const char *path; /* relative to the run directory */
    double loss, accuracy, eval_loss, eval_accuracy;
};

enum status store_step_put(struct store *store, int64_t job, const struct step_row *row,
                           struct err *e);
enum status store_memory_put(struct store *store, int64_t job, const struct memory_row *row,
                             struct err *e);
enum status store_latest_put(struct store *store, int64_t job, const struct latest_row *row,
                             struct err *e);
enum status store_eval_put(struct store *store, int64_t job, const struct eval_row *row,
                           struct err *e);
enum status store_sample_put(struct store *store, int64_t job, const struct sample_row *row,
                             struct err *e);
enum status store_checkpoint_put(struct store *store, int64_t job, const struct checkpoint_row *row,
                                 struct err *e);

/* A stretch of steps, both ends included. */
struct step_span {
    int64_t from, to;
};
/* Narrows `span` to the steps that exist in the series; *empty when there are none. */
enum series_kind { SERIES_STEPS, SERIES_MEMORY };
enum status store_series_range(struct store *store, enum series_kind kind, int64_t job,
                               struct step_span *span, bool *empty, struct err *e);
/* Each calls the seer for every row of the span in rising order. Text in a row is borrowed during
 * the call; `see` must not use the store. */
struct step_seer {
    void (*see)(const struct step_row *row, void *context);
    void *context;
};
struct memory_seer {
    void (*see)(const struct memory_row *row, void *context);
    void *context;
};
struct latest_seer {
    void (*see)(const struct latest_row *row, void *context);
    void *context;
};
struct eval_seer {
    void (*see)(const struct eval_row *row, void *context);
    void *context;
};
struct sample_seer {
    void (*see)(const struct sample_row *row, void *context);
    void *context;
};
struct checkpoint_seer {
    void (*see)(const struct checkpoint_row *row, void *context);
    void *context;
};
enum status store_step_scan(struct store *store, int64_t job, struct step_span span,
                            struct step_seer seer, struct err *e);
/* Rank by rank, each in rising order of steps. */
enum status store_memory_scan(struct store *store, int64_t job, struct step_span span,
                              struct memory_seer seer, struct err *e);
/* By rank, then kind. */
enum status store_latest_scan(struct store *store, int64_t job, struct latest_seer seer,
                              struct err *e);
enum status store_eval_scan(struct store *store, int64_t job, struct step_span span,
                            struct eval_seer seer, struct err *e);
/* The newest `limit` samples, rising. */
enum status store_sample_scan(struct store *store, int64_t job, int64_t limit,
                              struct sample_seer seer, struct err *e);
/* Every checkpoint below the step, falling. */
enum status store_checkpoint_scan(struct store *store, int64_t job, int64_t below,
                                  struct checkpoint_seer seer, struct err *e);

#endif
