/* run_train.c - the pieces of a training run: one step, one evaluation, samples, a checkpoint.
 *
 * Each of them is begun again when memory was short (recover.h). Only the step takes part in the
 * agreement of all ranks: the others are a rank's own affair, and never change how a step is run.
 */
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/shard_weights.h"
#include "engine/train/generate.h"
#include "engine/train/pipeline.h"
#include "engine/train/run_parts.h"

static double seconds_since(int64_t ns) {
    return (double)(clock_steady_ns() - ns) * 1e-9;
}

static struct step_options step_options_of(struct run *r, int64_t step, double scale) {
    return (struct step_options){
        .loss_scale = optimizer_loss_scale(&r->session.optimizer),
        .totals = optimizer_totals(&r->session.optimizer),
        .graphs = &r->session.graphs,
        .order = pipeline_kind_parse(r->spec.parallel.pipeline_parallel_schedule),
        .layout = r->layout,
        .seed = (uint64_t)r->spec.seed,
        .step = (uint64_t)step,
        .grad_scale = scale};
}

/* Several micro-batches are in memory at a time, so there is one agreement for all of them. */
static enum status try_pipeline(struct run *r, const struct step_options *options,
                                struct step_sums *sums, struct err *e) {
    TRY(recover_ready(r, 0, e));
    comm_doing(r->comm, "the micro-batches of step %lld", (long long)r->state.step + 1);
    TRY(recover_pipeline(r, options, sums, e));
    return recover_ready(r, r->recovery.last.rounds, e);
}

/* All micro-batches of the step at hand. STATUS_OOM: nothing of it counts, begin again. */
static enum status try_step(struct run *r, struct step_sums *sums, struct err *e) {
    const int64_t step = r->state.step;
    struct batcher *const b = &r->corpus.batcher;
    *sums = (struct step_sums){0};
    batcher_cut(b, r->layout.micro_rows, r->layout.micro_tokens);
    batcher_step(b, step);
    struct step_options options = step_options_of(r, step, 1.0 / (double)b->step_trained);
    TRY(optimizer_zero_grad(&r->session.optimizer, e));
    if (pipeline_is_on(&r->session.model)) return try_pipeline(r, &options, sums, e);
    int64_t micro = 0;
    do {
        TRY(recover_ready(r, micro, e));
        options.last = micro + 1 == r->recovery.last.rounds;
        if (micro < b->micro_count) {
            batcher_micro(b, micro, &r->batch);
            TRY(recover_train(r, &options, sums, e));
        } else {
            TRY(recover_idle(r, options.last, e));
        }
        micro++;
    } while (micro < r->recovery.last.rounds);
    return recover_ready(r, micro, e);
}

/* What memory.cap allows now: the operator may have changed it. */
int64_t run_cap(const struct run *r) {
    struct arena_stats stats;
    arena_get_stats(r->session.arena, &stats);
    const int64_t asked = spec_cap_bytes(&r->spec.memory.cap, r->session.device->total_bytes);
    return asked || r->recovery.capped ? stats.capacity : 0;
}

static enum status tell_memory(struct run *r, const char *phase, struct err *e) {
    const struct memory_report report = {.step = r->state.step, .phase = phase, .cap = run_cap(r)};
    return report_memory(&r->log, &r->session, &report, e);
}

/* The update: it allocates nothing, so it cannot be short of memory. */
static enum status update(struct run *r, double rate, struct optimizer_report *report,
                          struct err *e) {
    struct arena_stats before, after;
    arena_get_stats(r->session.arena, &before);
    arena_enter(r->session.arena, PHASE_OPTIMIZER);
    comm_doing(r->comm, "step %lld", (long long)r->state.step + 1);
    TRY(optimizer_sum_gradients(&r->session.optimizer, e));
    TRY(optimizer_step(&r->session.optimizer, rate, report, e));
    arena_get_stats(r->session.arena, &after);
    ASSERT(before.allocations == after.allocations);
    if (report->skipped && run_leads(r))
        return report_skipped(&r->log, &r->session.optimizer.scaling, r->state.step + 1, e);
    return STATUS_OK;
}

/* The micro-batches of the step, until they have all been trained. */
static enum status train_micros(struct run *r, struct step_sums *sums, struct err *e) {
    struct err why = {0}, refused = {0};
    enum status status = try_step(r, sums, &why);
    while (status == STATUS_OOM) {
        TRY(recover_again(r, e));
        why = (struct err){0};
        status = try_step(r, sums, &why);
    }
    if (status != STATUS_OK) return err_set_param(e, status, why.param, "%s", why.text);
    recover_done(r);
    ASSERT(sums->trained == r->corpus.batcher.rank_trained);
    return graphs_take_trouble(&r->session.graphs, &refused)
               ? report_log(&r->log, "warn", refused.text, e)
               : STATUS_OK;
}

/* What the other ranks hold on this rank's device. */
static void hear_shares(struct run *r) {
    const int64_t world = r->comm->world;
    struct device_share *const shares = mem_new((size_t)world, sizeof *shares);
    for (int64_t i = 0; i < world; i++) {
        shares[i] = r->parts[i].share;
    }
    device_books_hear(&r->books, shares, world, r->comm->rank);
    mem_free(shares);
}

enum status run_train_step(struct run *r, struct err *e) {
    const int64_t began = clock_steady_ns(), waited_before = r->comm->waited_ns;
    const struct batcher *const b = &r->corpus.batcher;
    struct step_sums sums;
    struct optimizer_report changed;
    watching_begin(&r->watching, r->session.arena, r->recovery.snapshot,
                   r->state.step + 1 == r->corpus.total_steps);
    r->recovery.snapshot = false;
    TRY(train_micros(r, &sums, e));
    const double rate = schedule_rate(&r->schedule, r->state.step), met = seconds_since(began);
    const double waited = 1e-9 * (double)(r->comm->waited_ns - waited_before);
    TRY(update(r, rate, &changed, e));
    const bool counts = mesh_counts(&r->session.mesh);
    const struct gang_part mine = {.loss = counts ? changed.loss : 0,
                                   .correct = counts ? changed.correct : 0,
                                   .trained = counts ? sums.trained : 0,
                                   .tokens = counts ? sums.tokens : 0,
                                   .seconds = r->comm->peers ? met : met - waited,
                                   .waited = r->comm->peers ? NAN : waited,
                                   .share = device_books_share(&r->books)};
    struct gang_part all;
    TRY(gang_sum(r->comm, &mine, r->parts, &all, e));
    hear_shares(r);
    ASSERT(all.trained == b->step_trained);
    r->state.step++;
    r->state.trained_tokens += all.trained;
    const struct step_report report = {.step = r->state.step,
                                       .total_steps = r->corpus.total_steps,
                                       .trained_tokens = all.trained,
                                       .tokens = all.tokens,
                                       .correct = all.correct,
                                       .epoch = (double)r->state.step / (double)b->steps_per_epoch,
                                       .loss = all.loss / (double)all.trained,
                                       .grad_norm = changed.grad_norm,
                                       .learning_rate = rate,
                                       .seconds = seconds_since(began),
                                       .parts = r->parts,
                                       .ranks = r->comm->world};
    if (run_leads(r)) TRY(report_step(&r->log, &report, e));
    TRY(tell_memory(r, "train", e));
    const struct watching_place place = {r->folder, r->state.step};
    TRY(watching_end(&r->watching, r->session.arena, &place, &r->log, e));
    arena_settle(r->session.arena);
    return STATUS_OK;
}

static enum status try_evaluation(struct run *r, struct step_sums *sums, struct err *e) {
    struct batcher *const b = &r->corpus.eval_batcher;
    const struct step_options options = step_options_of(r, 0, 1);
    *sums = (struct step_sums){0};
    batcher_cut(b, r->layout.eval_rows, 0);
    TRY(optimizer_zero_totals(&r->session.optimizer, e));
    for (int64_t step = 0; step < b->steps_per_epoch; step++) {
        batcher_step(b, step);
        for (int64_t micro = 0; micro < b->micro_count; micro++) {
            batcher_micro(b, micro, &r->batch);
            TRY(step_evaluate(&r->session.model, &r->batch, &options, sums, NULL, e));
        }
        for (int64_t micro = b->micro_count; micro < b->micro_count_most; micro++) {
            TRY(step_idle_forward(&r->session.model, e));
        }
    }
    return optimizer_read_totals(&r->session.optimizer, &sums->loss, &sums->correct, e);
}

/* A number that could not be measured for lack of memory is left out, and said to be. */
static enum status leave_out(struct run *r, const char *what, const struct err *why,
                             struct err *e) {
    if (recover_is_off(r)) return err_set(e, why->status, "%s: %s", what, why->text);
    char *text = str_format("%s was left out, training goes on: %s", what, why->text);
    const enum status status = report_log(&r->log, "warn", text, e);
    mem_free(text);
    return status;
}

/* Over the same held-out rows, whoever had which. *whole: no rank has left out its part. */
static enum status sum_evaluation(struct run *r, bool left_out, struct step_sums *sums, bool *whole,
                                  struct err *e) {
    const bool counts = mesh_counts(&r->session.mesh);
    const struct gang_part mine = {.loss = counts ? sums->loss : 0,
                                   .correct = counts ? sums->correct : 0,
                                   .trained = counts ? sums->trained : 0,
                                   .tokens = counts ? sums->tokens : 0,
                                   .stopping = left_out};
    struct gang_part all;
    comm_doing(r->comm, "the evaluation after step %lld", (long long)r->state.step);
    TRY(gang_sum(r->comm, &mine, r->parts, &all, e));
    *sums = (struct step_sums){
        .loss = all.loss, .correct = all.correct, .trained = all.trained, .tokens = all.tokens};
    *whole = !all.stopping;
    return STATUS_OK;
}

enum status run_evaluate(struct run *r, struct err *e) {
    if (!r->corpus.has_eval) return STATUS_OK;
    TRY(report_phase(&r->log, "eval", e));
    const int64_t began = clock_steady_ns();
    struct step_sums sums;
    struct err why = {0};
    bool whole = false;
    enum status status = recover_together(r, try_evaluation(r, &sums, &why), &why);
    for (int64_t tries = 0; status == STATUS_OOM; tries++) {
        if (recover_beside(r, REMEDY_EVAL_BATCH, tries, &why) != STATUS_OK) break;
        why = (struct err){0};
        status = try_evaluation(r, &sums, &why);
    }
    const bool left_out = status == STATUS_OOM;
    if (left_out) TRY(leave_out(r, "an evaluation", &why, e));
    if (!left_out && status != STATUS_OK) return err_set(e, status, "%s", why.text);
    TRY(sum_evaluation(r, left_out, &sums, &whole, e));
    if (whole && run_leads(r))
        TRY(report_eval(&r->log, r->state.step, &sums, seconds_since(began), e));
    return report_phase(&r->log, "train", e);
}

static enum status try_sample(struct run *r, const char *prompt, struct str *answer,
                              struct err *e) {
    const struct speaker speaker = {.model = &r->session.model,
                                    .tokenizer = r->corpus.tokenizer,
                                    .chat_template = r->corpus.chat_template,
                                    .now_unix_s = r->spec.created_at};
    const struct generate_options options = {.tokens_max = r->spec.sample_max_tokens,
                                             .length_max = r->layout.sample_tokens};
    str_clear(answer);
    return generate_answer(&speaker, prompt, &options, answer, e);
}

static enum status say_sample(struct run *r, const char *prompt, struct err *e) {
    struct str answer = {0};
    struct err why = {0};
    enum status status = recover_together(r, try_sample(r, prompt, &answer, &why), &why);
    for (int64_t tries = 0; status == STATUS_OOM; tries++) {
        if (recover_beside(r, REMEDY_SAMPLE_LENGTH, tries, &why) != STATUS_OK) break;
        why = (struct err){0};
        status = try_sample(r, prompt, &answer, &why);
    }
    if (status == STATUS_OK && run_leads(r)) {
        cJSON *const fields = cJSON_CreateObject();
        json_add_i64(fields, "step", r->state.step);
        json_add_string(fields, "prompt", prompt);
        json_add_string(fields, "text", str_text(&answer));
        status = event_write(&r->log, EVENT_SAMPLE, fields, e);
    } else if (status == STATUS_OOM) {
        status = leave_out(r, "a sample", &why, e);
    } else if (status != STATUS_OK) {
        status = err_set_param(e, status, why.param, "%s", why.text);
    }
    str_release(&answer);
    return status;
}

enum status run_say_samples(struct run *r, struct err *e) {
    /* Where a forward pass needs all ranks, all say the same. */
    const struct model *const m = &r->session.model;
    const bool together = weights_are_sharded(m) || pipeline_is_on(m) || m->group;
    if (!run_leads(r) && !together) return STATUS_OK;
    comm_doing(r->comm, "the samples after step %lld", (long long)r->state.step);
    for (int64_t i = 0; i < r->spec.sample_prompts.count; i++) {
        TRY(say_sample(r, r->spec.sample_prompts.items[i], e));
    }
    return STATUS_OK;
}

static enum status finish_checkpoint(struct run *r, struct checkpoint_writing *w,
                                     const struct checkpoint_place *place, struct err *e) {
    struct err why = {0};
    enum status status = checkpoint_finish(w, &r->session, &r->state, place, &why);
    if (status == STATUS_OOM && recover_beside(r, REMEDY_TRIM, 0, &why) == STATUS_OK) {
        why = (struct err){0};
        status = checkpoint_finish(w, &r->session, &r->state, place, &why);
    }
    if (status != STATUS_OK) return err_set_param(e, status, why.param, "%s", why.text);
    cJSON *const fields = cJSON_CreateObject();
    char *path = str_format("checkpoints/step-%lld", (long long)r->state.step);
    json_add_i64(fields, "step", r->state.step);
    json_add_string(fields, "path", path);
    mem_free(path);
    return event_write(&r->log, EVENT_CHECKPOINT, fields, e);
}

/* A rehearsal has nothing to write: files go through host memory and allocate nothing here. */
static enum status pretend_writing(struct run *r, enum phase phase, struct err *e) {
    arena_enter(r->session.arena, phase);
    return comm_barrier(r->comm, e);
}

/* Nobody goes on before it is there: what a crash may lose is the same for all. */
enum status run_save_checkpoint(struct run *r, struct err *e) {
    const struct checkpoint_place place = {
        .run = r->folder, .base = r->spec.model, .keep = r->spec.save_total_limit};
    struct checkpoint_writing writing = {0};
    enum status status = STATUS_OK;
    if (r->rehearses) return pretend_writing(r, PHASE_CHECKPOINT, e);
    GUARD(report_phase(&r->log, "checkpoint", e));
    comm_doing(r->comm, "the checkpoint of step %lld", (long long)r->state.step);
    GUARD(checkpoint_begin(&writing, &r->session, r->state.step, &place, e));
    if (run_leads(r)) GUARD(finish_checkpoint(r, &writing, &place, e));
    GUARD(comm_barrier(r->comm, e));
    GUARD(report_phase(&r->log, "train", e));
done:
    checkpoint_end(&writing);
    return status;
}

static enum status write_result(struct run *r, const char **name, struct err *e) {
    const struct result_source source = {r->spec.model, r->spec.data.fix_mistral_regex,
                                         r->state.step};
    struct err why = {0};
    enum status status = result_save(&r->session, r->folder, &source, name, &why);
    if (status == STATUS_OOM && recover_beside(r, REMEDY_TRIM, 0, &why) == STATUS_OK) {
        why = (struct err){0};
        status = result_save(&r->session, r->folder, &source, name, &why);
    }
    return status == STATUS_OK ? STATUS_OK : err_set_param(e, status, why.param, "%s", why.text);
}

enum status run_export(struct run *r, const char **name, struct err *e) {
    *name = NULL;
    TRY(report_phase(&r->log, "export", e));
    comm_doing(r->comm, "the result");
    if (r->rehearses) return pretend_writing(r, PHASE_EXPORT, e);
    if (run_leads(r)) TRY(write_result(r, name, e));
    return comm_barrier(r->comm, e);
}
