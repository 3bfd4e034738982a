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
#include "engine/train/auto_batch.h"
#include "engine/train/auto_layout.h"
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
    bool found = false;
    auto_ranks_take(&r->spec, false);
    if (auto_layout_is_open(&r->spec)) TRY(auto_layout_recall(&r->spec, r->folder, &found, e));
    if (r->spec.per_device_train_batch_size == SPEC_AUTO)
        TRY(auto_batch_recall(&r->spec, r->folder, &found, e));
    TRY(model_config_load(&r->config, r->spec.model, e));
    TRY(session_options_read(&r->options, &r->spec, e));
    r->layout = layout_of_spec(&r->spec, &r->config);
    return check_weights(&r->spec, &r->config, e);
}

void run_find_shapes(void *context, bool eval, const struct layout *layout,
                     struct batch_shapes *out) {
    struct run *const r = context;
    struct corpus *const c = &r->corpus;
    struct batcher *const b = eval ? &c->eval_batcher : &c->batcher;
    if (eval) {
        batcher_cut(b, layout->eval_rows, 0);
    } else {
        batcher_cut(b, layout->micro_rows, layout->micro_tokens);
    }
    shapes_scan(out, b, eval ? b->steps_per_epoch : c->total_steps);
}

enum status run_plan_layout(struct run *r, const struct layout *layout, struct plan *plan,
                            struct err *e) {
    const struct shape_source source = {r, true, run_find_shapes};
    const struct batch_shapes none = {0};
    const struct plan_request request = {.config = &r->config,
                                         .options = &r->options,
                                         .spec = &r->spec,
                                         .train = &none,
                                         .eval = r->corpus.has_eval ? &none : NULL,
                                         .source = &source};
    return remedy_plan(plan, &request, layout, e);
}

enum status run_make_plan(struct run *r, struct err *e) {
    return run_plan_layout(r, &r->layout, &r->plan, e);
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

enum status run_open_session(struct run *r, struct err *e) {
    char device[SPEC_DEVICE_MAX];
    spec_device_of(&r->spec, r->place.local_rank, device);
    const char *const planned = str_starts_with(r->spec.device, "cuda") ? "null:cuda" : "null:cpu";
    const struct session_place place = {.device = r->rehearses ? planned : device,
                                        .cap = r->spec.memory.cap,
                                        .train = true,
                                        .comm = r->comm,
                                        .books = &r->books};
    if (!r->books.begun) device_books_begin(&r->books, place.device);
    session_take_layout(&r->options, &r->layout);
    TRY(session_open(&r->session, &place, &r->config, &r->options, e));
    r->session.device->hurried = true;
    start_trace("memory allocated");
    return STATUS_OK;
}

bool run_holds_layout(const struct run *r) {
    return session_has_layout(&r->options, &r->layout);
}

enum status run_load_weights(struct run *r, struct err *e) {
    const struct session_source source = {.model = r->spec.model,
                                          .adapter = r->spec.adapter_name_or_path,
                                          .seed = (uint64_t)r->spec.seed};
    if (r->rehearses) return session_load_nothing(&r->session, &source, e);
    TRY(session_load(&r->session, &source, &r->weights, e));
    start_trace("weights on their way");
    return STATUS_OK;
}

/* Finds a layout that fits; `open` says how opening the session ended. Where what the session holds
 * all the time is too much, or becomes another thing by the layout, it is opened again. *fresh: it
 * was, and has no weights. */
static enum status fit_session(struct run *r, enum status open, bool *fresh, struct err *e) {
    TRY(recover_begin(r, e));
    TRY(run_check_host(r, e));
    int64_t kept = open == STATUS_OK && run_holds_layout(r);
    TRY(agree_least(r->comm, &kept, e)); /* GPUs that exchange leave and come together */
    *fresh = !kept;
    if (kept) return STATUS_OK;
    session_close(&r->session);
    if (run_open_session(r, e) != STATUS_OOM) return e->status;
    return err_prefix(e, "weights, gradients and optimizer states alone do not fit; train with "
                         "finetuning_type lora or a smaller r, or give the run more memory");
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

/* Opening may fail for lack of memory where the layout asked for is too much: that is seen to when
 * the plan is there. */
static bool can_be_fitted(const struct run *r, enum status open) {
    return open == STATUS_OK || (open == STATUS_OOM && r->session.arena);
}

static enum status fill_one_by_one(struct run *r, struct err *e) {
    struct err device_error = {0};
    bool fresh = false;
    TRY(read_and_plan(r, e));
    const enum status open = run_open_session(r, &device_error);
    if (!can_be_fitted(r, open)) return err_set(e, open, "%s", device_error.text);
    TRY(fit_session(r, open, &fresh, e));
    TRY(report_phase(&r->log, "load", e));
    return run_load_weights(r, e);
}

static enum status fill_session(struct run *r, struct err *e) {
    struct beside beside = {.run = r};
    pthread_t thread;
    bool fresh = false;
    /* Several ranks read in turn, and who meets them is the trainer's thread. */
    const bool gpu = str_starts_with(r->spec.device, "cuda") && r->place.world == 1;
    if (!gpu || pthread_create(&thread, NULL, read_and_plan_beside, &beside) != 0)
        return fill_one_by_one(r, e); /* on a CPU both sides want the same cores */
    struct err device_error = {0}, weights_error = {0};
    const enum status open = run_open_session(r, &device_error);
    const enum status loaded = open == STATUS_OK ? run_load_weights(r, &weights_error) : STATUS_OK;
    pthread_join(thread, NULL);
    if (beside.status != STATUS_OK) {
        *e = beside.error;
        return beside.status;
    }
    if (!can_be_fitted(r, open)) return err_set(e, open, "%s", device_error.text);
    if (loaded != STATUS_OK) {
        *e = weights_error;
        return loaded;
    }
    TRY(fit_session(r, open, &fresh, e));
    TRY(report_phase(&r->log, "load", e));
    return fresh ? run_load_weights(r, e) : STATUS_OK;
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
    TRY(run_load_checkpoint(r, e));
    r->recovery.running = true;
    return arena_begin_pressure(r->session.arena, r->comm->rank, e);
}

enum status run_prepare(struct run *r, struct err *e) {
    char *path = rundir_spec(r->folder);
    enum status status = report_phase(&r->log, "load", e);
    if (status == STATUS_OK) status = run_read_spec(r, path, e);
    mem_free(path);
    TRY(status);
    const bool open = auto_layout_is_open(&r->spec);
    if (open || r->spec.per_device_train_batch_size == SPEC_AUTO) {
        const char *const key = open ? "parallel.layout" : "per_device_train_batch_size";
        return err_set_param(e, STATUS_INVALID, key,
                             "%s auto is decided by the plan: run "
                             "plimsoll-engine plan %s/spec.json %s first",
                             key, r->folder, r->folder);
    }
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
    TRY(device_books_join(&r->session, e));
    r->schedule = (struct schedule){.type = schedule_parse(r->spec.lr_scheduler_type),
                                    .peak = r->spec.learning_rate,
                                    .warmup_steps = r->spec.warmup_steps,
                                    .total_steps = r->corpus.total_steps};
    return STATUS_OK;
}

void run_close(struct run *r) {
    recover_end(r);
    batch_release(&r->batch);
    watching_release(&r->watching);
    session_close(&r->session);
    comm_close(r->comm);
    mem_free(r->parts);
    corpus_close(&r->corpus);
    session_options_release(&r->options);
    spec_release(&r->spec);
    event_log_close(&r->log);
}
