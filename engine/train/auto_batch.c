/* auto_batch.c - searching by planning: what a micro-batch needs grows with its rows.
 *
 * Every candidate is a plan of all ranks with the data cut as that candidate would have it. */
#include "engine/train/auto_batch.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

enum { KEPT_BYTES_MAX = 4096 };
static const char KEPT[] = "auto_batch.json";

/* One search. The spec that is planned with is the caller's own, changed for each candidate. */
struct search {
    struct spec *spec;
    struct layout *layout;
    const struct plan_subject *subject;
    struct plan_ranks *plans;
    int64_t step_rows; /* of a device; 0: as many as fit */
    int64_t capacity;
};

static void take(struct search *s, int64_t rows) {
    s->spec->per_device_train_batch_size = rows;
    s->spec->gradient_accumulation_steps = s->step_rows ? s->step_rows / rows : 1;
    s->layout->micro_rows = rows;
}

static enum status need_of(struct search *s, int64_t rows, int64_t *need, struct err *e) {
    take(s, rows);
    if (s->subject->corpus) TRY(corpus_cut(s->subject->corpus, s->spec, s->subject->config, e));
    plan_ranks_release(s->plans);
    TRY(plan_ranks_make(s->plans, s->subject, e));
    *need = plan_need(&s->plans->plan);
    return STATUS_OK;
}

/* The next smaller number of rows that cuts the step evenly. */
static int64_t below(const struct search *s, int64_t rows) {
    rows--;
    while (rows > 1 && s->step_rows % rows != 0) {
        rows--;
    }
    return rows;
}

/* From the largest down: there are few divisors, and the first that fits is the answer. */
static enum status find_divisor(struct search *s, int64_t *rows, int64_t *need, struct err *e) {
    *rows = s->step_rows;
    TRY(need_of(s, *rows, need, e));
    while (*need > s->capacity && *rows > 1) {
        *rows = below(s, *rows);
        TRY(need_of(s, *rows, need, e));
    }
    return STATUS_OK;
}

static enum status find_largest(struct search *s, int64_t *rows, int64_t *need, struct err *e) {
    int64_t low = 1, high = AUTO_ROWS_MAX;
    TRY(need_of(s, low, need, e));
    while (*need <= s->capacity && low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        int64_t more = 0;
        TRY(need_of(s, middle, &more, e));
        if (more <= s->capacity) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *rows = low;
    return need_of(s, low, need, e);
}

enum status auto_batch_find(struct spec *spec, struct layout *layout,
                            const struct plan_subject *subject, int64_t capacity, struct err *e) {
    struct search s = {.spec = spec,
                       .layout = layout,
                       .subject = subject,
                       .plans = mem_new(1, sizeof *s.plans),
                       .capacity = capacity};
    const int64_t asked = spec->gradient_accumulation_steps;
    int64_t rows = 0, need = 0;
    char needed[24], there[24];
    s.step_rows = asked > 1 ? asked : 0;
    enum status status =
        s.step_rows ? find_divisor(&s, &rows, &need, e) : find_largest(&s, &rows, &need, e);
    plan_ranks_release(s.plans);
    mem_free(s.plans);
    TRY(status);
    if (need <= capacity) return STATUS_OK;
    return err_set_param(e, STATUS_OOM, "per_device_train_batch_size",
                         "per_device_train_batch_size auto: even one row at a time needs %s, and "
                         "%s are there; set a number and let remedies find a way, or make the run "
                         "smaller",
                         str_bytes(need, needed), str_bytes(capacity, there));
}

enum status auto_batch_keep(const struct spec *spec, const char *folder, struct err *e) {
    cJSON *const json = cJSON_CreateObject();
    char *const path = file_join(folder, KEPT);
    json_add_i64(json, "per_device_train_batch_size", spec->per_device_train_batch_size);
    json_add_i64(json, "gradient_accumulation_steps", spec->gradient_accumulation_steps);
    const enum status status = json_write_file(path, json, e);
    mem_free(path);
    cJSON_Delete(json);
    return status;
}

enum status auto_batch_recall(struct spec *spec, const char *folder, bool *found, struct err *e) {
    char *const path = file_join(folder, KEPT);
    cJSON *json = NULL;
    int64_t rows = 0, steps = 0;
    enum status status = STATUS_OK;
    *found = file_exists(path);
    if (!*found) goto done;
    GUARD(json_read_file(path, KEPT_BYTES_MAX, &json, e));
    GUARD(json_get_i64(json, "per_device_train_batch_size", &rows, e));
    GUARD(json_get_i64(json, "gradient_accumulation_steps", &steps, e));
    GUARD_IF(rows < 1 || steps < 1, STATUS_INVALID, "%s: both numbers must be at least 1", path);
    spec->per_device_train_batch_size = rows;
    spec->gradient_accumulation_steps = steps;
done:
    cJSON_Delete(json);
    mem_free(path);
    return status;
}
