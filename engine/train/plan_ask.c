/* plan_ask.c - a run up to the point where it would need a device, and what is known then.
 *
 * A job's plan makes the same calls as its run, in the same order. A question goes the same way as
 * far as its model folder allows: a folder without weights is planned from its config.json, a model
 * that is known by name from the catalog, a spec without data (or a model without a tokenizer) with
 * full rows of max_length; the answer says which. */
#include "engine/train/plan_ask.h"

#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/catalog.h"
#include "engine/train/auto_batch.h"
#include "engine/train/auto_layout.h"
#include "engine/train/corpus_report.h"
#include "engine/train/estimate.h"
#include "engine/train/measure.h"
#include "engine/train/plan_ranks.h"
#include "engine/train/probe.h"
#include "engine/train/run_parts.h"
#include "engine/train/verdict.h"

enum { SPEC_BYTES_MAX = 1 << 20 };

struct question {
    const char *spec_path, *folder, *card;
    bool measure, probe, by_name; /* the model is a name of the catalog, never a folder */
    struct run *run;
    struct plan_ranks *plans;
    const char *model_from, *weights, *data; /* words of the answer */
    bool has_corpus;
    struct estimate_place place;
    struct auto_layouts layouts; /* parallel.layout auto */
};

static enum status read_args(struct question *q, char **args, struct err *e) {
    for (; args[0]; args++) {
        if (strcmp(args[0], "--measure") == 0) {
            q->measure = true;
        } else if (strcmp(args[0], "--probe") == 0) {
            q->probe = true;
        } else if (strcmp(args[0], "--by-name") == 0) {
            q->by_name = true;
        } else if (strcmp(args[0], "--card") == 0) {
            FAIL_IF(!args[1], STATUS_INVALID, "--card needs the name of a card, such as h100-80gb");
            q->card = *++args;
        } else if (str_starts_with(args[0], "--")) {
            return err_set(
                e, STATUS_INVALID,
                "plan: %.80s is not known; known are --card, --measure, --probe, --by-name",
                args[0]);
        } else if (!q->spec_path) {
            q->spec_path = strcmp(args[0], "-") == 0 ? "/dev/stdin" : args[0];
        } else if (!q->folder) {
            q->folder = args[0];
        } else {
            return err_set(e, STATUS_INVALID, "plan: %.80s is one argument too many", args[0]);
        }
    }
    FAIL_IF(!q->spec_path, STATUS_INVALID, "plan: name a file with a run spec");
    return STATUS_OK;
}

/* The same as for a run: every refusal included. */
static enum status read_job(struct question *q, struct err *e) {
    struct run *const r = q->run;
    r->folder = q->folder;
    TRY(event_log_open(&r->log, q->folder, 0, e));
    TRY(run_read_spec(r, q->spec_path, e));
    TRY(run_read_corpus(r, e));
    q->model_from = "folder";
    q->weights = "there";
    q->data = "files";
    q->has_corpus = true;
    return STATUS_OK;
}

static enum status load_spec(struct question *q, struct err *e) {
    struct spec *const spec = &q->run->spec;
    const char *const path = q->spec_path;
    cJSON *object = NULL;
    TRY(json_read_file(path, SPEC_BYTES_MAX, &object, e));
    enum status status = spec_parse_question(spec, object, e);
    cJSON_Delete(object);
    if (status != STATUS_OK) return err_prefix(e, "%s", path);
    auto_ranks_take(spec, q->card != NULL);
    return spec->created_at ? STATUS_OK : file_modified(path, &spec->created_at, e);
}

/* A folder with any weights must have the right ones. */
static enum status look_at_weights(struct question *q, struct err *e) {
    const struct run *const r = q->run;
    struct st_set set = {0};
    struct err absent = {0};
    enum status status = st_open_folder(&set, r->spec.model, &absent);
    q->weights = status == STATUS_OK ? "there" : "missing";
    if (status == STATUS_NOT_FOUND) {
        status = STATUS_OK;
    } else if (status != STATUS_OK) {
        *e = absent;
    } else {
        status = weights_check(&r->config, &set, e);
    }
    st_close(&set);
    return status;
}

static enum status find_model(struct question *q, struct err *e) {
    struct run *const r = q->run;
    q->model_from = "catalog";
    q->weights = "missing";
    if (q->by_name || !file_is_folder(r->spec.model))
        return catalog_load(&r->config, r->spec.model, e);
    q->model_from = "folder";
    TRY(model_config_load(&r->config, r->spec.model, e));
    return look_at_weights(q, e);
}

static bool has_tokenizer(const struct question *q) {
    char *const path = file_join(q->run->spec.model, "tokenizer.json");
    const bool there = file_exists(path);
    mem_free(path);
    return there;
}

/* "auto" becomes a number; that of a job is kept, so that it stays the same. */
static enum status find_batch(struct question *q, const struct plan_subject *subject,
                              struct err *e) {
    struct run *const r = q->run;
    if (r->spec.per_device_train_batch_size != SPEC_AUTO) return STATUS_OK;
    if (q->place.capacity <= 0) {
        return err_set_param(e, STATUS_INVALID, "per_device_train_batch_size",
                             "per_device_train_batch_size auto needs to know the memory: %s",
                             q->place.missing);
    }
    TRY(auto_batch_find(&r->spec, &r->layout, subject, q->place.capacity, e));
    return q->folder ? auto_batch_keep(&r->spec, q->folder, e) : STATUS_OK;
}

/* Likewise the layout. */
static enum status find_layout(struct question *q, struct err *e) {
    struct run *const r = q->run;
    const struct auto_run run = {.spec = &r->spec,
                                 .options = &r->options,
                                 .layout = &r->layout,
                                 .config = &r->config,
                                 .corpus = q->has_corpus ? &r->corpus : NULL};
    const bool open = auto_layout_is_open(&r->spec);
    TRY(auto_layout_find(&run, &q->place, &q->layouts, e));
    return open && q->folder ? auto_layout_keep(&r->spec, q->folder, e) : STATUS_OK;
}

static enum status plan_all(struct question *q, struct err *e) {
    struct run *const r = q->run;
    TRY(find_layout(q, e));
    const struct plan_subject subject = {.spec = &r->spec,
                                         .config = &r->config,
                                         .options = &r->options,
                                         .layout = &r->layout,
                                         .corpus = q->has_corpus ? &r->corpus : NULL};
    TRY(find_batch(q, &subject, e));
    return plan_ranks_make(q->plans, &subject, e);
}

static enum status read_question(struct question *q, struct err *e) {
    struct run *const r = q->run;
    TRY(load_spec(q, e));
    TRY(find_model(q, e));
    TRY(session_options_read(&r->options, &r->spec, e));
    r->layout = layout_of_spec(&r->spec, &r->config);
    q->has_corpus = !q->by_name && r->spec.data.train_files.count > 0 && has_tokenizer(q);
    q->data = q->has_corpus ? "files" : "full rows";
    return q->has_corpus ? run_read_corpus(r, e) : STATUS_OK;
}

static enum status measure_here(const struct question *q, struct err *e) {
    struct device *device = NULL;
    struct rates rates;
    TRY(device_open(&device, q->run->spec.device, &q->run->options.device, e));
    enum status status = rates_measure(&rates, device, e);
    if (status == STATUS_OK) status = rates_keep(&rates, device->precision, e);
    device_close(device);
    return status;
}

static void add_corpus(cJSON *json, const struct run *r) {
    const struct corpus *const corpus = &r->corpus;
    const struct dataset_counts *const c = &corpus->train.counts;
    json_add_i64(json, "total_steps", corpus->total_steps);
    json_add_i64(json, "steps_per_epoch", corpus->batcher.steps_per_epoch);
    json_add_i64(json, "rows", c->rows);
    json_add_i64(json, "samples", c->samples);
    json_add_i64(json, "tokens", c->tokens);
    json_add_i64(json, "trained_tokens", c->trained_tokens);
    json_add_string(json, "format", data_format_name(corpus->train.format));
    cJSON_AddItemToObject(json, "counts", report_counts(c, &r->spec.data.train_files));
    if (corpus->has_eval)
        cJSON_AddItemToObject(json, "eval_counts",
                              report_counts(&corpus->eval.counts, &r->spec.data.eval_files));
    cJSON_AddItemToObject(json, "warnings", report_lines(tokenizer_warnings(corpus->tokenizer)));
}

/* A plan for a GPU can be made anywhere; a job must have its device, or a cap. */
static enum status find_place(struct question *q, struct err *e) {
    struct run *const r = q->run;
    TRY(estimate_place_find(&q->place, &r->spec, &r->options.device, q->card, e));
    if (!q->folder || r->spec.memory.cap.bytes > 0) return STATUS_OK;
    struct device *device = NULL;
    char name[SPEC_DEVICE_MAX];
    spec_device_of(&r->spec, 0, name);
    TRY(device_open(&device, name, &r->options.device, e));
    const enum status status = session_capacity(device, &r->spec.memory.cap,
                                                session_sharers(&r->spec), &q->place.capacity, e);
    device_close(device);
    return status;
}

/* Processor time of this process so far: what planning took, whatever else the machine does. */
static double own_ms(void) {
    return 1e3 * (double)clock() / CLOCKS_PER_SEC;
}

static enum status answer(const struct question *q, cJSON **out, struct err *e) {
    const struct run *const r = q->run;
    const struct plan *const plan = &q->plans->plan;
    cJSON *const json = plan_to_json(plan, q->place.capacity);
    json_add_string(json, "model_from", q->model_from);
    json_add_string(json, "weights", q->weights);
    json_add_string(json, "data_from", q->data);
    cJSON_AddItemToObject(json, "ranks", plan_ranks_to_json(q->plans));
    json_add_i64(json, "neediest_rank", q->plans->neediest);
    const struct estimate_subject subject = {.plan = plan,
                                             .slowest = plan_ranks_slowest(q->plans, &q->place),
                                             .shape = q->plans->shape,
                                             .total_steps =
                                                 q->has_corpus ? r->corpus.total_steps : 0};
    cJSON_AddItemToObject(json, "rank_classes", plan_classes_to_json(q->plans));
    estimate_add(json, &subject, &q->place);
    cJSON *const layouts = auto_layouts_to_json(&q->layouts);
    if (layouts) cJSON_AddItemToObject(json, "layouts", layouts);
    if (q->has_corpus) add_corpus(json, r);
    cJSON_AddItemToObject(json, "layout", layout_to_json(&r->layout));
    cJSON_AddItemToObject(json, "spec", spec_to_json(&r->spec));
    const enum status status = verdict_add(json, plan, &q->plans->request, q->place.capacity, e);
    json_add_number(json, "planning_ms", own_ms());
    if (status == STATUS_OK) {
        *out = json;
    } else {
        cJSON_Delete(json);
    }
    return status;
}

/* Real steps, after everything that can be said without them. */
static enum status add_probe(const struct question *q, cJSON *json, struct err *e) {
    cJSON *probe = NULL;
    FAIL_IF(q->card || q->place.capacity <= 0, STATUS_INVALID,
            "--probe trains on this machine: leave out --card, and name a device that is here");
    FAIL_IF(strcmp(q->weights, "there") != 0, STATUS_NOT_FOUND,
            "--probe trains: it needs the weights of %s", q->run->spec.model);
    TRY(probe_run(&q->plans->request, q->place.capacity, &probe, e));
    cJSON_AddItemToObject(json, "probe", probe);
    return STATUS_OK;
}

enum status plan_ask(char **args, cJSON **out, struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    struct question q = {.run = r, .plans = mem_new(1, sizeof *q.plans)};
    cJSON *json = NULL;
    enum status status = STATUS_OK;
    GUARD(read_args(&q, args, e));
    GUARD(q.folder ? read_job(&q, e) : read_question(&q, e));
    if (q.measure) GUARD(measure_here(&q, e));
    GUARD(find_place(&q, e));
    GUARD(plan_all(&q, e));
    GUARD(answer(&q, &json, e));
    if (q.probe) GUARD(add_probe(&q, json, e));
    *out = json;
    json = NULL;
done:
    cJSON_Delete(json);
    plan_ranks_release(q.plans);
    auto_layouts_release(&q.layouts);
    mem_free(q.plans);
    run_close(r);
    mem_free(r);
    return status;
}
