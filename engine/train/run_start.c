/* run_start.c - a run up to its first step.
 *
 * On a GPU the beginning is two lines side by side: a thread reads the data and makes the plan,
 * which need no device, while the device is opened and the weights are loaded. Only the thread
 * writes events until both have ended, and its error is the one that is reported first, so both
 * ways look the same from outside. */
#include <pthread.h>

#include "base/mem.h"
#include "base/start_trace.h"
#include "engine/rundir.h"
#include "engine/train/corpus_report.h"
#include "engine/train/run_parts.h"

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

enum status run_read_spec(struct run *r, const char *spec_path, struct err *e) {
    TRY(spec_load(&r->spec, spec_path, e));
    FAIL_IF(!r->spec.model, STATUS_INVALID, "model: the spec names no model folder");
    TRY(model_config_load(&r->config, r->spec.model, e));
    TRY(session_options_read(&r->options, &r->spec, e));
    r->layout = layout_of_spec(&r->spec, &r->config);
    return check_weights(&r->spec, &r->config, e);
}

enum status run_make_plan(struct run *r, struct err *e) {
    struct corpus *const corpus = &r->corpus;
    struct batch_shapes *const train = mem_new(1, sizeof *train), *const eval =
                                                                      mem_new(1, sizeof *eval);
    shapes_scan(train, &corpus->batcher, corpus->total_steps);
    if (corpus->has_eval)
        shapes_scan(eval, &corpus->eval_batcher, corpus->eval_batcher.steps_per_epoch);
    const struct plan_request request = {.config = &r->config,
                                         .options = &r->options,
                                         .spec = &r->spec,
                                         .layout = &r->layout,
                                         .train = train,
                                         .eval = eval};
    const enum status status = plan_make(&r->plan, &request, e);
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
    TRY(run_read_corpus(r, e));
    start_trace("data read");
    if (run_leads(r)) TRY(corpus_report_problems(&r->log, &r->spec, &r->corpus, e));
    TRY(report_phase(&r->log, "plan", e));
    TRY(run_make_plan(r, e));
    start_trace("plan made");
    return STATUS_OK;
}

static enum status open_session(struct run *r, struct err *e) {
    const struct session_place place = {
        .device = r->spec.device, .cap = r->spec.memory.cap, .train = true, .comm = r->comm};
    r->options.optimizer.offloading = r->layout.optimizer_offloading;
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
    if (r->weights.unused > 0 && run_leads(r)) {
        char *text = str_format("%lld tensors of the model files are not used, the first is %s",
                                (long long)r->weights.unused, r->weights.first_unused);
        const enum status status = report_log(&r->log, "warn", text, e);
        mem_free(text);
        TRY(status);
    }
    return run_load_checkpoint(r, e);
}

enum status run_prepare(struct run *r, struct err *e) {
    char *path = rundir_spec(r->folder);
    enum status status = report_phase(&r->log, "load", e);
    if (status == STATUS_OK) status = run_read_spec(r, path, e);
    mem_free(path);
    TRY(status);
    start_trace("spec read");
    TRY(run_join(r, e));
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
    TRY(report_alloc_conf(&r->log, &r->options.alloc_conf, e));
    TRY(report_holdings(&r->log, &r->session, r->state.step, e));
    r->schedule = (struct schedule){.type = schedule_parse(r->spec.lr_scheduler_type),
                                    .peak = r->spec.learning_rate,
                                    .warmup_steps = r->spec.warmup_steps,
                                    .total_steps = r->corpus.total_steps};
    return STATUS_OK;
}

void run_close(struct run *r) {
    batch_release(&r->batch);
    session_close(&r->session);
    comm_close(r->comm);
    mem_free(r->parts);
    corpus_close(&r->corpus);
    session_options_release(&r->options);
    spec_release(&r->spec);
    event_log_close(&r->log);
}
