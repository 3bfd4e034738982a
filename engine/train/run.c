/* run.c - the straight line of a run, top to bottom. A step is never half-reported: its event is
 * written after its update, and what a crash may lose is what came after the last checkpoint (law
 * 4).
 *
 * On a GPU the beginning is two lines side by side: a thread reads the data and makes the plan,
 * which need no device, while the device is opened and the weights are loaded. Only the thread
 * writes events until both have ended, and its error is the one that is reported first, so both
 * ways look the same from outside. */
#include "engine/train/run.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/start_trace.h"
#include "engine/io/folder.h"
#include "engine/model/weights.h"
#include "engine/rundir.h"
#include "engine/train/checkpoint.h"
#include "engine/train/corpus.h"
#include "engine/train/generate.h"
#include "engine/train/report.h"
#include "engine/train/corpus_report.h"
#include "engine/train/schedule.h"

/* Everything of one run. Zeroed, then filled in this order. */
struct run {
    const char *folder;
    bool (*stop)(void);
    struct event_log log;
    int lock_fd;
    struct spec spec;
    struct model_config config;
    struct session_options options;
    struct corpus corpus;
    struct plan plan;
    struct session session;
    struct weights_report weights; /* what the model files hold beyond the model */
    struct trainer_state state;
    struct schedule schedule;
    struct batch batch;
    int64_t started_ns;
};

static double seconds_since(int64_t ns) {
    return (double)(clock_steady_ns() - ns) * 1e-9;
}

/* The weights are there and of the right kind, without reading them: before the data are looked at.
 */
static enum status check_weights(const struct spec *spec, const struct model_config *config,
                                 struct err *e) {
    struct st_set set = {0};
    enum status status = st_open_folder(&set, spec->model, e);
    if (status == STATUS_OK) status = weights_check(config, &set, e);
    st_close(&set);
    return status;
}

static enum status read_spec(struct run *r, const char *spec_path, struct err *e) {
    TRY(spec_load(&r->spec, spec_path, e));
    FAIL_IF(!r->spec.model, STATUS_INVALID, "model: the spec names no model folder");
    TRY(model_config_load(&r->config, r->spec.model, e));
    TRY(session_options_read(&r->options, &r->spec, e));
    return check_weights(&r->spec, &r->config, e);
}

static enum status read_corpus(struct run *r, struct err *e) {
    struct corpus_progress_report progress = {.log = &r->log};
    const struct corpus_watch watch = {&progress, corpus_report_progress};
    return corpus_open(&r->corpus, &r->spec, &r->config, &watch, e);
}

static enum status make_plan(struct plan *plan, const struct spec *spec,
                             const struct model_config *config,
                             const struct session_options *options, struct corpus *corpus,
                             struct err *e) {
    struct batch_shapes *const train = mem_new(1, sizeof *train), *const eval =
                                                                      mem_new(1, sizeof *eval);
    shapes_scan(train, &corpus->batcher, corpus->total_steps);
    if (corpus->has_eval)
        shapes_scan(eval, &corpus->eval_batcher, corpus->eval_batcher.steps_per_epoch);
    const struct plan_request request = {
        .config = config, .options = options, .spec = spec, .train = train, .eval = eval};
    const enum status status = plan_make(plan, &request, e);
    mem_free(train);
    mem_free(eval);
    return status;
}

static enum status check_fit(const struct plan *plan, int64_t capacity, struct err *e) {
    if (plan->stats.reserved_peak <= capacity) return STATUS_OK;
    char needed[24], there[24];
    return err_set_param(e, STATUS_OOM, "memory.cap",
                         "the run needs %s and there are %s: lower per_device_train_batch_size or "
                         "data.max_length, or "
                         "set gradient_checkpointing",
                         str_bytes(plan->stats.reserved_peak, needed), str_bytes(capacity, there));
}

/* What needs no device: the data, and the plan from them. */
static enum status read_and_plan(struct run *r, struct err *e) {
    TRY(read_corpus(r, e));
    start_trace("data read");
    TRY(corpus_report_problems(&r->log, &r->spec, &r->corpus, e));
    TRY(report_phase(&r->log, "plan", e));
    TRY(make_plan(&r->plan, &r->spec, &r->config, &r->options, &r->corpus, e));
    start_trace("plan made");
    return STATUS_OK;
}

static enum status open_session(struct run *r, struct err *e) {
    const struct session_place place = {
        .device = r->spec.device, .capacity = r->spec.memory.cap, .train = true};
    TRY(session_open(&r->session, &place, &r->config, &r->options, e));
    r->session.device->hurried = true;
    start_trace("memory allocated");
    return STATUS_OK;
}

static enum status load_weights(struct run *r, struct err *e) {
    const struct session_source source = {.model = r->spec.model,
                                          .adapter = r->spec.adapter_name_or_path,
                                          .seed = (uint64_t)r->spec.seed};
    TRY(session_load(&r->session, &source, &r->weights, e));
    start_trace("weights on their way");
    return STATUS_OK;
}

static enum status check_session(const struct run *r, struct err *e) {
    struct arena_stats stats;
    arena_get_stats(r->session.arena, &stats);
    return check_fit(&r->plan, stats.capacity, e);
}

/* read_and_plan on a thread of its own. */
struct beside {
    struct run *run;
    struct err error;
    enum status status;
};

static void *read_and_plan_beside(void *context) {
    struct beside *const b = context;
    b->status = read_and_plan(b->run, &b->error);
    return NULL;
}

static enum status fill_session(struct run *r, struct err *e) {
    struct beside beside = {.run = r};
    pthread_t thread;
    const bool gpu = str_starts_with(r->spec.device, "cuda");
    if (!gpu || pthread_create(&thread, NULL, read_and_plan_beside, &beside) != 0) {
        /* On a CPU both sides want the same cores. */
        TRY(read_and_plan(r, e));
        TRY(open_session(r, e));
        TRY(check_session(r, e));
        TRY(report_phase(&r->log, "load", e));
        return load_weights(r, e);
    }
    struct err device_error = {0};
    enum status status = open_session(r, &device_error);
    if (status == STATUS_OK) status = load_weights(r, &device_error);
    pthread_join(thread, NULL);
    if (beside.status != STATUS_OK) {
        *e = beside.error;
        return beside.status;
    }
    if (status != STATUS_OK) {
        *e = device_error;
        return status;
    }
    TRY(check_session(r, e));
    return report_phase(&r->log, "load", e);
}

/* Says what of the model files is not used, and continues from the last checkpoint. */
static enum status load_state(struct run *r, struct err *e) {
    if (r->weights.unused > 0) {
        char *text = str_format("%lld tensors of the model files are not used, the first is %s",
                                (long long)r->weights.unused, r->weights.first_unused);
        const enum status status = report_log(&r->log, "warn", text, e);
        mem_free(text);
        TRY(status);
    }
    int64_t step = 0, damaged = 0;
    TRY(checkpoint_find(r->folder, &step, &damaged, e));
    if (damaged > 0) {
        TRY(report_log(&r->log, "warn",
                       "a damaged checkpoint was passed over: its manifest does not hold", e));
    }
    return step > 0 ? checkpoint_load(&r->session, r->folder, step, &r->state, e) : STATUS_OK;
}

static enum status prepare(struct run *r, struct err *e) {
    char *path = rundir_spec(r->folder);
    enum status status = report_phase(&r->log, "load", e);
    if (status == STATUS_OK) status = read_spec(r, path, e);
    mem_free(path);
    TRY(status);
    start_trace("spec read");
    TRY(fill_session(r, e));
    TRY(load_state(r, e));
    struct arena_stats stats;
    arena_get_stats(r->session.arena, &stats);
    const struct start_report start = {.corpus = &r->corpus,
                                       .plan = &r->plan,
                                       .device = r->session.device,
                                       .spec = &r->spec,
                                       .capacity = stats.capacity,
                                       .resumed_from_step = r->state.step};
    TRY(report_start(&r->log, &start, e));
    r->schedule = (struct schedule){.type = schedule_parse(r->spec.lr_scheduler_type),
                                    .peak = r->spec.learning_rate,
                                    .warmup_steps = r->spec.warmup_steps,
                                    .total_steps = r->corpus.total_steps};
    return STATUS_OK;
}

static struct step_options step_options_of(struct run *r, int64_t step, double scale) {
    return (struct step_options){.loss_scale = optimizer_loss_scale(&r->session.optimizer),
                                 .totals = optimizer_totals(&r->session.optimizer),
                                 .graphs = &r->session.graphs,
                                 .checkpointing = r->spec.gradient_checkpointing,
                                 .offloading = r->spec.activation_offloading,
                                 .loss_chunk_rows = r->spec.loss_chunk_rows,
                                 .seed = (uint64_t)r->spec.seed,
                                 .step = (uint64_t)step,
                                 .grad_scale = scale};
}

/* One optimizer step: all its micro-batches, then the update. */
static enum status train_step(struct run *r, struct err *e) {
    const int64_t step = r->state.step, began = clock_steady_ns();
    struct session *const s = &r->session;
    struct batcher *const b = &r->corpus.batcher;
    struct step_sums sums = {0};
    struct optimizer_report update;
    batcher_step(b, step);
    const struct step_options options = step_options_of(r, step, 1.0 / (double)b->step_trained);
    TRY(optimizer_zero_grad(&s->optimizer, e));
    for (int64_t micro = 0; micro < b->micro_count; micro++) {
        batcher_micro(b, micro, &r->batch);
        TRY(step_train(&s->model, &r->batch, &options, &sums, e));
    }
    ASSERT(sums.trained == b->step_trained);
    struct err refused = {0};
    if (graphs_take_trouble(&s->graphs, &refused))
        TRY(report_log(&r->log, "warn", refused.text, e));
    const double rate = schedule_rate(&r->schedule, step);
    arena_enter(s->arena, PHASE_OPTIMIZER);
    TRY(optimizer_step(&s->optimizer, rate, &update, e));
    if (update.skipped) TRY(report_skipped(&r->log, &s->optimizer.scaling, step + 1, e));
    r->state.step++;
    r->state.trained_tokens += sums.trained;
    const struct step_report report = {.step = r->state.step,
                                       .total_steps = r->corpus.total_steps,
                                       .trained_tokens = sums.trained,
                                       .tokens = sums.tokens,
                                       .correct = update.correct,
                                       .epoch = (double)r->state.step / (double)b->steps_per_epoch,
                                       .loss = update.loss / (double)sums.trained,
                                       .grad_norm = update.grad_norm,
                                       .learning_rate = rate,
                                       .seconds = seconds_since(began)};
    TRY(report_step(&r->log, &report, e));
    return report_memory(&r->log, s, r->state.step, "train", e);
}

static enum status evaluate(struct run *r, struct err *e) {
    if (!r->corpus.has_eval) return STATUS_OK;
    TRY(report_phase(&r->log, "eval", e));
    const int64_t began = clock_steady_ns();
    struct batcher *const b = &r->corpus.eval_batcher;
    const struct step_options options = step_options_of(r, 0, 1);
    struct step_sums sums = {0};
    TRY(optimizer_zero_totals(&r->session.optimizer, e));
    for (int64_t step = 0; step < b->steps_per_epoch; step++) {
        batcher_step(b, step);
        for (int64_t micro = 0; micro < b->micro_count; micro++) {
            batcher_micro(b, micro, &r->batch);
            TRY(step_evaluate(&r->session.model, &r->batch, &options, &sums, NULL, e));
        }
    }
    TRY(optimizer_read_totals(&r->session.optimizer, &sums.loss, &sums.correct, e));
    TRY(report_eval(&r->log, r->state.step, &sums, seconds_since(began), e));
    return report_phase(&r->log, "train", e);
}

static enum status say_samples(struct run *r, struct err *e) {
    const struct speaker speaker = {.model = &r->session.model,
                                    .tokenizer = r->corpus.tokenizer,
                                    .chat_template = r->corpus.chat_template,
                                    .now_unix_s = r->spec.created_at};
    const struct generate_options options = {.tokens_max = r->spec.sample_max_tokens,
                                             .length_max = r->spec.data.max_length};
    for (int64_t i = 0; i < r->spec.sample_prompts.count; i++) {
        struct str answer = {0};
        const char *const prompt = r->spec.sample_prompts.items[i];
        enum status status = generate_answer(&speaker, prompt, &options, &answer, e);
        if (status == STATUS_OK) {
            cJSON *const fields = cJSON_CreateObject();
            json_add_i64(fields, "step", r->state.step);
            json_add_string(fields, "prompt", prompt);
            json_add_string(fields, "text", str_text(&answer));
            status = event_write(&r->log, EVENT_SAMPLE, fields, e);
        }
        str_release(&answer);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status save_checkpoint(struct run *r, struct err *e) {
    TRY(report_phase(&r->log, "checkpoint", e));
    const struct checkpoint_place place = {
        .run = r->folder, .base = r->spec.model, .keep = r->spec.save_total_limit};
    TRY(checkpoint_save(&r->session, &r->state, &place, e));
    cJSON *const fields = cJSON_CreateObject();
    char *path = str_format("checkpoints/step-%lld", (long long)r->state.step);
    json_add_i64(fields, "step", r->state.step);
    json_add_string(fields, "path", path);
    mem_free(path);
    TRY(event_write(&r->log, EVENT_CHECKPOINT, fields, e));
    return report_phase(&r->log, "train", e);
}

static bool is_due(int64_t every, int64_t step) {
    return every > 0 && step % every == 0;
}

static enum status train(struct run *r, struct err *e) {
    TRY(report_phase(&r->log, "train", e));
    if (r->state.step == 0) TRY(say_samples(r, e));
    const int64_t last = r->corpus.total_steps;
    int64_t saved = r->state.step;
    while (r->state.step < last) {
        TRY(train_step(r, e));
        if (r->session.device->hurried) start_trace("first step done");
        r->session.device->hurried = false;
        const int64_t step = r->state.step;
        const bool stopping = r->stop() || rundir_stop_requested(r->folder);
        if (is_due(r->spec.eval_steps, step) && step < last) TRY(evaluate(r, e));
        if ((stopping || is_due(r->spec.save_steps, step)) && saved < step) {
            TRY(save_checkpoint(r, e));
            saved = step;
        }
        FAIL_IF(stopping && step < last, STATUS_INTERRUPTED, "stopped on request after step %lld",
                (long long)step);
    }
    TRY(evaluate(r, e));
    TRY(say_samples(r, e));
    return saved < last ? save_checkpoint(r, e) : STATUS_OK;
}

static enum status finish(struct run *r, const char *outcome, const char *result, struct err *e) {
    cJSON *const fields = cJSON_CreateObject();
    json_add_string(fields, "outcome", outcome);
    json_add_i64(fields, "step", r->state.step);
    json_add_i64(fields, "trained_tokens", r->state.trained_tokens);
    json_add_string(fields, "result", result);
    event_add_number(fields, "seconds", seconds_since(r->started_ns));
    return event_write(&r->log, EVENT_DONE, fields, e);
}

static enum status run_all(struct run *r, struct err *e) {
    const char *result = NULL;
    TRY(prepare(r, e));
    TRY(train(r, e));
    TRY(report_phase(&r->log, "export", e));
    const struct result_source source = {r->spec.model, r->spec.data.fix_mistral_regex};
    TRY(result_save(&r->session, r->folder, &source, &result, e));
    return finish(r, "succeeded", result, e);
}

static void run_close(struct run *r) {
    batch_release(&r->batch);
    session_close(&r->session);
    corpus_close(&r->corpus);
    session_options_release(&r->options);
    spec_release(&r->spec);
    event_log_close(&r->log);
}

enum status run_execute(const char *folder, bool (*stop)(void), bool echo, struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    *r = (struct run){
        .folder = folder, .stop = stop, .lock_fd = -1, .started_ns = clock_steady_ns()};
    enum status status = rundir_claim(folder, 0, &r->lock_fd, e);
    if (status == STATUS_OK) status = event_log_open(&r->log, folder, 0, e);
    if (status == STATUS_OK) {
        r->log.echo = echo;
        status = run_all(r, e);
        struct err ignored = {0};
        if (status == STATUS_INTERRUPTED) {
            finish(r, "stopped", NULL, &ignored);
        } else if (status != STATUS_OK) {
            if (status == STATUS_OOM && r->session.arena) {
                report_shortage(&r->log, arena_last_shortage(r->session.arena), &ignored);
            }
            report_error(&r->log, e);
        }
    }
    run_close(r);
    mem_free(r);
    return status;
}

static cJSON *plan_json(const struct plan *plan, const struct corpus *corpus,
                        const struct spec *spec, int64_t capacity) {
    const struct dataset_counts *const c = &corpus->train.counts;
    cJSON *const json = plan_to_json(plan, capacity);
    json_add_i64(json, "total_steps", corpus->total_steps);
    json_add_i64(json, "steps_per_epoch", corpus->batcher.steps_per_epoch);
    json_add_i64(json, "rows", c->rows);
    json_add_i64(json, "samples", c->samples);
    json_add_i64(json, "tokens", c->tokens);
    json_add_i64(json, "trained_tokens", c->trained_tokens);
    json_add_string(json, "format", data_format_name(corpus->train.format));
    cJSON_AddItemToObject(json, "counts", report_counts(c, &spec->data.train_files));
    if (corpus->has_eval)
        cJSON_AddItemToObject(json, "eval_counts",
                              report_counts(&corpus->eval.counts, &spec->data.eval_files));
    cJSON_AddItemToObject(json, "warnings", report_lines(tokenizer_warnings(corpus->tokenizer)));
    cJSON_AddItemToObject(json, "spec", spec_to_json(spec));
    return json;
}

/* What a run would have. With memory.cap the device itself need not be there: a plan for a GPU can
 * be made anywhere. */
static enum status capacity_of(const struct run *r, int64_t *capacity, struct err *e) {
    struct device *device = NULL;
    *capacity = r->spec.memory.cap;
    if (*capacity) return STATUS_OK;
    TRY(device_open(&device, r->spec.device, &r->options.device, e));
    const enum status status = session_capacity(device, 0, capacity, e);
    device_close(device);
    return status;
}

enum status run_plan(const char *spec_path, const char *folder, cJSON **out, struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    int64_t capacity = 0;
    enum status status = STATUS_OK;
    if (folder) GUARD(event_log_open(&r->log, folder, 0, e));
    GUARD(read_spec(r, spec_path, e));
    GUARD(read_corpus(r, e));
    GUARD(make_plan(&r->plan, &r->spec, &r->config, &r->options, &r->corpus, e));
    GUARD(capacity_of(r, &capacity, e));
    *out = plan_json(&r->plan, &r->corpus, &r->spec, capacity);
done:
    run_close(r);
    mem_free(r);
    return status;
}
