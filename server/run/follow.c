/* follow.c - from events to rows.
 *
 * One function a kind of event: what it changes in the job row and which series it extends. A
 * field that is missing or not finite is unknown (0 or NaN), never an error: the engine may be
 * newer than the server. */
#include "server/run/follow.h"

#include <math.h>

#include "base/file.h"
#include "base/mem.h"

/* Weight of the newest step in the smoothed seconds a step. */
static const double STEP_SECONDS_WEIGHT = 0.1;

void row_text(char **member, const char *text) {
    char *fresh = mem_strdup(text);
    mem_free(*member);
    *member = fresh;
}

static void row_json(char **member, const cJSON *value) {
    struct str text = {0};
    json_append(&text, value);
    mem_free(*member);
    *member = str_take(&text);
}

static int64_t get_i64(const cJSON *event, const char *key) {
    int64_t value = 0;
    struct err ignored = {0};
    (void)json_get_i64(event, key, &value, &ignored);
    return value;
}

static double get_f64(const cJSON *event, const char *key) {
    double value = NAN;
    struct err ignored = {0};
    (void)json_get_f64(event, key, &value, &ignored);
    return value;
}

static const char *get_text(const cJSON *event, const char *key) {
    const char *value = NULL;
    struct err ignored = {0};
    (void)json_get_string(event, key, &value, &ignored);
    return value ? value : "";
}

static enum status take_start(struct store *store, struct job_row *job, const cJSON *event,
                              struct err *e) {
    (void)store;
    (void)e;
    job->total_steps = get_i64(event, "total_steps");
    job->step = get_i64(event, "resumed_from_step");
    row_text(&job->phase, "train");
    return STATUS_OK;
}

static enum status take_phase(struct store *store, struct job_row *job, const cJSON *event,
                              struct err *e) {
    const bool asked = str_equal(job->phase, FOLLOW_PHASE_ATTENTION);
    row_text(&job->phase, get_text(event, "phase"));
    return asked ? follow_state(store, job, e) : STATUS_OK;
}

/* How far it is stands where the phase stands, so that whoever shows phases shows it. */
static enum status take_progress(struct store *store, struct job_row *job, const cJSON *event,
                                 struct err *e) {
    (void)store;
    (void)e;
    const double done = get_f64(event, "bytes"), total = get_f64(event, "bytes_total");
    if (!(total > 0)) return STATUS_OK;
    char *phase = str_format("encoding the data, %.0f %%", 100 * done / total);
    row_text(&job->phase, phase);
    mem_free(phase);
    return STATUS_OK;
}

/* What GET .../memory shows of a rank without reading the stream. */
static enum status take_latest(struct store *store, struct job_row *job, const cJSON *event,
                               struct err *e) {
    struct str text = {0};
    json_append(&text, event);
    const struct latest_row row = {.rank = get_i64(event, "rank"),
                                   .time_ms = get_i64(event, "time_ms"),
                                   .kind = get_text(event, "kind"),
                                   .data = str_text(&text)};
    const enum status status = store_latest_put(store, job->number, &row, e);
    str_release(&text);
    return status;
}

static enum status take_step(struct store *store, struct job_row *job, const cJSON *event,
                             struct err *e) {
    const struct step_row row = {
        .step = get_i64(event, "step"),
        .loss = get_f64(event, "loss"),
        .grad_norm = get_f64(event, "grad_norm"),
        .learning_rate = get_f64(event, "learning_rate"),
        .tokens_per_second = get_f64(event, "tokens_per_second"),
        .accuracy = get_f64(event, "mean_token_accuracy"),
    };
    job->step = row.step;
    job->loss = row.loss;
    job->tokens_per_second = row.tokens_per_second;
    if (get_i64(event, "total_steps")) job->total_steps = get_i64(event, "total_steps");
    if (row.step == 1 || isnan(job->first_loss)) job->first_loss = row.loss;
    const double seconds = get_f64(event, "seconds");
    if (isnan(job->step_seconds)) {
        job->step_seconds = seconds;
    } else if (isfinite(seconds)) {
        job->step_seconds += STEP_SECONDS_WEIGHT * (seconds - job->step_seconds);
    }
    if (json_member(event, "ranks")) TRY(take_latest(store, job, event, e));
    return store_step_put(store, job->number, &row, e);
}

/* The run waits, its process lives: only the phase says so. */
static enum status take_attention(struct store *store, struct job_row *job, const cJSON *event,
                                  struct err *e) {
    row_text(&job->phase, FOLLOW_PHASE_ATTENTION);
    TRY(take_latest(store, job, event, e));
    return follow_state(store, job, e);
}

static enum status take_memory(struct store *store, struct job_row *job, const cJSON *event,
                               struct err *e) {
    struct memory_row row = {.rank = get_i64(event, "rank"),
                             .step = get_i64(event, "step"),
                             .time_ms = get_i64(event, "time_ms")};
    for (int i = 0; i < MEMORY_VALUES; i++) {
        const double bytes = get_f64(event, memory_value_name((enum memory_value)i));
        row.values[i] = isfinite(bytes) ? (int64_t)bytes : -1;
    }
    const cJSON *const of_step = json_member(event, "step_categories");
    const cJSON *const categories = of_step ? of_step : json_member(event, "categories");
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        row.categories[i] = get_i64(categories, memory_category_name(i));
    }
    if (row.rank == 0) row_json(&job->memory, event);
    TRY(take_latest(store, job, event, e));
    return store_memory_put(store, job->number, &row, e);
}

static enum status take_eval(struct store *store, struct job_row *job, const cJSON *event,
                             struct err *e) {
    const struct eval_row row = {
        .step = get_i64(event, "step"),
        .loss = get_f64(event, "loss"),
        .accuracy = get_f64(event, "mean_token_accuracy"),
    };
    return store_eval_put(store, job->number, &row, e);
}

static enum status take_sample(struct store *store, struct job_row *job, const cJSON *event,
                               struct err *e) {
    const struct sample_row row = {
        .step = get_i64(event, "step"),
        .prompt = get_text(event, "prompt"),
        .text = get_text(event, "text"),
    };
    return store_sample_put(store, job->number, &row, e);
}

static enum status take_checkpoint(struct store *store, struct job_row *job, const cJSON *event,
                                   struct err *e) {
    const struct checkpoint_row row = {
        .step = get_i64(event, "step"),
        .created_at = get_i64(event, "time_ms") / 1000,
        .path = get_text(event, "path"),
    };
    return store_checkpoint_put(store, job->number, &row, e);
}

static enum status take_end(struct store *store, struct job_row *job, const cJSON *event,
                            struct err *e) {
    (void)store;
    (void)e;
    row_json(&job->outcome, event);
    if (json_member(event, "trained_tokens")) {
        job->trained_tokens = get_i64(event, "trained_tokens");
    }
    return STATUS_OK;
}

typedef enum status take(struct store *store, struct job_row *job, const cJSON *event,
                         struct err *e);
static take *const TAKERS[EVENT_KIND_COUNT] = {
    [EVENT_START] = take_start,
    [EVENT_PHASE] = take_phase,
    [EVENT_STEP] = take_step,
    [EVENT_MEMORY] = take_memory,
    [EVENT_EVAL] = take_eval,
    [EVENT_CHECKPOINT] = take_checkpoint,
    [EVENT_SAMPLE] = take_sample,
    [EVENT_ERROR] = take_end,
    [EVENT_DONE] = take_end,
    [EVENT_OOM] = take_latest,
    [EVENT_HOLDINGS] = take_latest,
    [EVENT_PROGRESS] = take_progress,
    [EVENT_ATTENTION] = take_attention,
};

static enum status take_event(struct store *store, struct job_row *job, const cJSON *event,
                              struct err *e) {
    const char *const name = get_text(event, "kind");
    const enum event_kind kind = event_kind_parse(name);
    if (kind == EVENT_KIND_COUNT) return STATUS_OK; /* of a newer engine */
    if (TAKERS[kind]) TRY(TAKERS[kind](store, job, event, e));
    struct str text = {0};
    json_append(&text, event);
    const enum status status =
        store_event_add(store, job, name, get_i64(event, "time_ms"), str_text(&text), e);
    str_release(&text);
    return status;
}

static enum status take_all(struct store *store, struct event_reader *reader, struct job_row *job,
                            take *take_one, int64_t *count, struct err *e) {
    while (*count < FOLLOW_BATCH) {
        cJSON *event = NULL;
        int64_t skipped = 0;
        TRY(event_reader_next(reader, &event, &skipped, e));
        if (!event) break;
        const enum status status = take_one(store, job, event, e);
        cJSON_Delete(event);
        TRY(status);
        (*count)++;
    }
    return STATUS_OK;
}

static enum status take_events(struct store *store, struct event_reader *reader,
                               struct job_row *job, int64_t *count, struct err *e) {
    TRY(take_all(store, reader, job, take_event, count, e));
    if (reader->offset == job->event_offset) return STATUS_OK;
    job->event_offset = reader->offset;
    return store_job_update(store, job, e);
}

enum status follow_batch(struct store *store, struct event_reader *reader, struct job_row *job,
                         int64_t *count, struct err *e) {
    *count = 0;
    TRY(store_begin(store, e));
    return store_end(store, take_events(store, reader, job, count, e), e);
}

static bool is_of_interest(enum event_kind kind) {
    return kind == EVENT_MEMORY || kind == EVENT_HOLDINGS || kind == EVENT_OOM ||
           kind == EVENT_LOG || kind == EVENT_ERROR;
}

/* For readers of ranks beyond 0: what is of interest goes the way of rank 0's events. */
static enum status take_other(struct store *store, struct job_row *job, const cJSON *event,
                              struct err *e) {
    const enum event_kind kind = event_kind_parse(get_text(event, "kind"));
    if (!is_of_interest(kind)) return STATUS_OK;
    if (kind == EVENT_ERROR && job->outcome) return STATUS_OK; /* rank 0 said why */
    return take_event(store, job, event, e);
}

enum status follow_other(struct store *store, struct event_reader *reader, struct job_row *job,
                         int64_t rank, int64_t *count, struct err *e) {
    const int64_t before = reader->offset;
    *count = 0;
    TRY(store_begin(store, e));
    enum status status = take_all(store, reader, job, take_other, count, e);
    if (status == STATUS_OK && reader->offset != before) {
        status = store_rank_put(store, job->number, rank, reader->offset, e);
        if (status == STATUS_OK) status = store_job_update(store, job, e);
    }
    return store_end(store, status, e);
}

enum status follow_say(struct store *store, struct job_row *job, const char *level,
                       const char *message, struct err *e) {
    cJSON *fields = cJSON_CreateObject();
    const int64_t now_ms = clock_unix_ms();
    json_add_i64(fields, "time_ms", now_ms);
    json_add_string(fields, "kind", event_kind_name(EVENT_LOG));
    json_add_string(fields, "level", level);
    json_add_string(fields, "message", message);
    struct str text = {0};
    json_append(&text, fields);
    cJSON_Delete(fields);
    const enum status status =
        store_event_add(store, job, event_kind_name(EVENT_LOG), now_ms, str_text(&text), e);
    str_release(&text);
    return status;
}

enum status follow_state(struct store *store, struct job_row *job, struct err *e) {
    TRY(store_event_add(store, job, "job", clock_unix_ms(), "{}", e));
    return store_job_update(store, job, e);
}
