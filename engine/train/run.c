/* run.c - the straight line of a run, top to bottom: prepare (run_start.c), train, save.
 *
 * A step is never half-reported: its event is written after its update, and what a crash may lose
 * is what came after the last checkpoint (law 4). */
#include "engine/train/run.h"

#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/start_trace.h"
#include "engine/rundir.h"
#include "engine/train/generate.h"
#include "engine/train/run_parts.h"

static double seconds_since(int64_t ns) {
    return (double)(clock_steady_ns() - ns) * 1e-9;
}

static struct step_options step_options_of(struct run *r, int64_t step, double scale) {
    return (struct step_options){.loss_scale = optimizer_loss_scale(&r->session.optimizer),
                                 .totals = optimizer_totals(&r->session.optimizer),
                                 .graphs = &r->session.graphs,
                                 .layout = r->layout,
                                 .seed = (uint64_t)r->spec.seed,
                                 .step = (uint64_t)step,
                                 .grad_scale = scale};
}

/* What memory.cap allows; 0: it is not set. */
static int64_t run_cap(const struct run *r) {
    return spec_cap_bytes(&r->spec.memory.cap, r->session.device->total_bytes);
}

static enum status run_report_memory(struct run *r, const char *phase, struct err *e) {
    const struct memory_report report = {.step = r->state.step, .phase = phase, .cap = run_cap(r)};
    return report_memory(&r->log, &r->session, &report, e);
}

/* One optimizer step: all its micro-batches, then the update. */
static enum status train_step(struct run *r, struct err *e) {
    const int64_t step = r->state.step, began = clock_steady_ns();
    struct session *const s = &r->session;
    struct batcher *const b = &r->corpus.batcher;
    struct step_sums sums = {0};
    struct optimizer_report update;
    comm_doing(r->comm, "step %lld", (long long)step + 1);
    batcher_step(b, step);
    const struct step_options options = step_options_of(r, step, 1.0 / (double)b->step_trained);
    TRY(session_adopt(s, &r->layout, e));
    TRY(optimizer_zero_grad(&s->optimizer, e));
    for (int64_t micro = 0; micro < b->micro_count; micro++) {
        batcher_micro(b, micro, &r->batch);
        TRY(step_train(&s->model, &r->batch, &options, &sums, e));
    }
    ASSERT(sums.trained == b->rank_trained);
    struct err refused = {0};
    if (graphs_take_trouble(&s->graphs, &refused))
        TRY(report_log(&r->log, "warn", refused.text, e));
    const double rate = schedule_rate(&r->schedule, step), computed = seconds_since(began);
    arena_enter(s->arena, PHASE_OPTIMIZER);
    TRY(optimizer_sum_gradients(&s->optimizer, e));
    TRY(optimizer_step(&s->optimizer, rate, &update, e));
    if (update.skipped && run_leads(r))
        TRY(report_skipped(&r->log, &s->optimizer.scaling, step + 1, e));
    const struct gang_part mine = {.loss = update.loss,
                                   .correct = update.correct,
                                   .trained = sums.trained,
                                   .tokens = sums.tokens,
                                   .seconds = computed,
                                   .stopping = r->stop() || rundir_stop_requested(r->folder)};
    struct gang_part all;
    TRY(gang_sum(r->comm, &mine, r->parts, &all, e));
    ASSERT(all.trained == b->step_trained);
    r->stopping = all.stopping;
    r->state.step++;
    r->state.trained_tokens += all.trained;
    const struct step_report report = {.step = r->state.step,
                                       .total_steps = r->corpus.total_steps,
                                       .trained_tokens = all.trained,
                                       .tokens = all.tokens,
                                       .correct = all.correct,
                                       .epoch = (double)r->state.step / (double)b->steps_per_epoch,
                                       .loss = all.loss / (double)all.trained,
                                       .grad_norm = update.grad_norm,
                                       .learning_rate = rate,
                                       .seconds = seconds_since(began),
                                       .parts = r->parts,
                                       .ranks = r->comm->world};
    if (run_leads(r)) TRY(report_step(&r->log, &report, e));
    TRY(run_report_memory(r, "train", e));
    arena_settle(s->arena);
    return STATUS_OK;
}

/* Of all ranks, over the same held-out rows. */
static enum status sum_evaluation(struct run *r, struct step_sums *sums, struct err *e) {
    const struct gang_part mine = {.loss = sums->loss,
                                   .correct = sums->correct,
                                   .trained = sums->trained,
                                   .tokens = sums->tokens};
    struct gang_part all;
    comm_doing(r->comm, "the evaluation after step %lld", (long long)r->state.step);
    TRY(gang_sum(r->comm, &mine, r->parts, &all, e));
    *sums = (struct step_sums){
        .loss = all.loss, .correct = all.correct, .trained = all.trained, .tokens = all.tokens};
    return STATUS_OK;
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
    TRY(sum_evaluation(r, &sums, e));
    if (run_leads(r)) TRY(report_eval(&r->log, r->state.step, &sums, seconds_since(began), e));
    return report_phase(&r->log, "train", e);
}

static enum status say_samples(struct run *r, struct err *e) {
    if (!run_leads(r)) return STATUS_OK;
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

static enum status write_checkpoint(struct run *r, struct err *e) {
    const struct checkpoint_place place = {
        .run = r->folder, .base = r->spec.model, .keep = r->spec.save_total_limit};
    TRY(checkpoint_save(&r->session, &r->state, &place, e));
    cJSON *const fields = cJSON_CreateObject();
    char *path = str_format("checkpoints/step-%lld", (long long)r->state.step);
    json_add_i64(fields, "step", r->state.step);
    json_add_string(fields, "path", path);
    mem_free(path);
    return event_write(&r->log, EVENT_CHECKPOINT, fields, e);
}

/* Nobody goes on before it is there: what a crash may lose is the same for all. */
static enum status save_checkpoint(struct run *r, struct err *e) {
    TRY(report_phase(&r->log, "checkpoint", e));
    comm_doing(r->comm, "the checkpoint of step %lld", (long long)r->state.step);
    if (run_leads(r)) TRY(write_checkpoint(r, e));
    TRY(comm_barrier(r->comm, e));
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
        const bool stopping = r->stopping;
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
    TRY(run_prepare(r, e));
    TRY(train(r, e));
    TRY(report_phase(&r->log, "export", e));
    const struct result_source source = {r->spec.model, r->spec.data.fix_mistral_regex};
    comm_doing(r->comm, "the result");
    if (run_leads(r)) TRY(result_save(&r->session, r->folder, &source, &result, e));
    TRY(comm_barrier(r->comm, e));
    return finish(r, "succeeded", result, e);
}

enum status run_execute(const char *folder, bool (*stop)(void), bool echo, struct err *e) {
    struct run *const r = mem_new(1, sizeof *r);
    *r = (struct run){
        .folder = folder, .stop = stop, .lock_fd = -1, .started_ns = clock_steady_ns()};
    enum status status = comm_place_read(&r->place, e);
    if (status == STATUS_OK) status = rundir_claim(folder, r->place.rank, &r->lock_fd, e);
    if (status == STATUS_OK) status = event_log_open(&r->log, folder, r->place.rank, e);
    if (status == STATUS_OK) {
        r->log.echo = echo;
        r->parts = mem_new((size_t)r->place.world, sizeof *r->parts);
        status = run_all(r, e);
        struct err ignored = {0};
        if (status == STATUS_INTERRUPTED) {
            finish(r, "stopped", NULL, &ignored);
        } else if (status != STATUS_OK) {
            if (status == STATUS_OOM && r->session.arena) {
                const struct oom_report oom = {
                    .step = r->state.step + 1, .micro = -1, .cap = run_cap(r)};
                report_oom(&r->log, &r->session, &oom, NULL, &ignored);
            }
            if (!atomic_exchange(&r->told, true)) report_error(&r->log, e);
            comm_abandon(r->comm, e);
        }
    }
    run_close(r);
    mem_free(r);
    return status;
}
