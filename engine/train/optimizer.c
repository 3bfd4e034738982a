/* optimizer.c - one norm, one clip, one AdamW call a part of the flat buffers.
 *
 * The host learns of a gradient that is not finite only after the update was asked for: the clip
 * coefficient is then not finite either, and the device changes nothing by it. */
#include "engine/train/optimizer.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/model/replicated.h"
#include "engine/model/shard.h"

/* Words of `numbers`, eight bytes each. The first are zeroed before every step. */
enum {
    NUMBER_LOSS,                 /* f64 */
    NUMBER_CORRECT,              /* f64 */
    NUMBER_SQUARES,              /* f64 */
    NUMBER_ZEROED,               /* how many of them */
    NUMBER_NORM = NUMBER_ZEROED, /* f32, like the rest */
    NUMBER_COEFFICIENT,
    NUMBER_SCALE,
    NUMBER_COUNT
};

/* As torch.amp.GradScaler has them; a gradient that overflows even at SCALE_MIN is not small. */
#define SCALE_FIRST 65536.0
#define SCALE_MIN 1.0
enum { SCALE_GROWTH_UPDATES = 2000 };

static void *number(const struct optimizer *o, int index) {
    return (char *)o->numbers->data + index * dtype_bytes(DTYPE_I64);
}

static enum status put_scale(struct optimizer *o, struct err *e) {
    const float scale = (float)o->scaling.scale;
    return device_upload(o->model->space->device, number(o, NUMBER_SCALE), &scale, sizeof scale, e);
}

/* What is trained and waits in host memory comes along with its states. */
static enum status states_away_new(struct optimizer *o, struct err *e) {
    const struct params_away *const a = &o->model->away;
    const struct away_guest guests[AWAY_GUESTS] = {{a->masters, a->masters_dtype},
                                                   {a->copies, a->copies_dtype}};
    return away_open(&o->away, o->model->space, o->model->own_count, guests, e);
}

static enum status states_new(struct optimizer *o, struct err *e) {
    struct tensor_space *const space = o->model->space;
    const int64_t count = o->model->own_count;
    TRY(tensor_new(space, DTYPE_F32, 1, count, CATEGORY_OPTIMIZER, &o->exp_avg, e));
    return tensor_new(space, DTYPE_F32, 1, count, CATEGORY_OPTIMIZER, &o->exp_avg_sq, e);
}

/* The other end of the pipeline, where both have the one embedding that input and head share, and
 * train it; NULL: there is none. */
static struct comm_group *other_end(const struct model *m) {
    struct mesh *const mesh = m->options.mesh;
    const bool shares = m->options.full && m->config.tie_word_embeddings;
    return mesh && mesh->ends.world > 1 && shares ? &mesh->ends : NULL;
}

static const struct storage *tied_embedding(const struct model *m) {
    const struct storage *s = m->storages;
    while (s->kind != PARAM_EMBEDDING) {
        s++;
    }
    return s;
}

/* Where the other end's share of the embedding's gradient arrives. */
static enum status scratch_new(struct optimizer *o, struct err *e) {
    const struct model *const m = o->model;
    const struct comm_group *const end = other_end(m);
    if (!end) return STATUS_OK;
    const struct storage *const s = tied_embedding(m);
    const int64_t bytes = comm_scratch_bytes(m->space->device->kind, s->rows * s->cols, end->world);
    if (bytes == 0) return STATUS_OK;
    return tensor_new(m->space, DTYPE_F32, 1, bytes / dtype_bytes(DTYPE_F32),
                      CATEGORY_COMMUNICATION, &o->scratch, e);
}

enum status optimizer_init(struct optimizer *o, struct model *m,
                           const struct optimizer_options *options, struct err *e) {
    *o = (struct optimizer){.options = *options,
                            .model = m,
                            .scaling = {.scale = options->scales_loss ? SCALE_FIRST : 1}};
    struct tensor_space *const space = m->space;
    FAIL_IF(m->trainable_count + m->trainable_elsewhere == 0, STATUS_INVALID,
            "there is nothing to train: the model has no trainable parameter");
    FAIL_IF(m->trainable_count == 0, STATUS_INVALID,
            "target_modules: layers %lld to %lld are a stage of the pipeline and have nothing to "
            "train; name modules of every stage, or lower parallel.pipeline_parallel_degree",
            (long long)m->options.first_layer, (long long)m->options.end_layer - 1);
    if (options->offloading || m->away.count > 0) {
        TRY(states_away_new(o, e));
    } else {
        TRY(states_new(o, e));
        TRY(tensor_fill_zero(o->exp_avg, e));
        TRY(tensor_fill_zero(o->exp_avg_sq, e));
    }
    TRY(tensor_new(space, DTYPE_I64, 1, NUMBER_COUNT, CATEGORY_OPTIMIZER, &o->numbers, e));
    TRY(scratch_new(o, e));
    TRY(tensor_fill_zero(o->numbers, e));
    return put_scale(o, e);
}

void optimizer_release(struct optimizer *o) {
    if (!o) return;
    away_close(&o->away);
    tensor_drop(&o->exp_avg);
    tensor_drop(&o->exp_avg_sq);
    tensor_drop(&o->numbers);
    tensor_drop(&o->scratch);
}

enum status optimizer_resume(struct optimizer *o, const struct loss_scaling *scaling,
                             int64_t updates, struct err *e) {
    o->updates = updates;
    if (o->options.scales_loss && scaling->scale > 0) o->scaling = *scaling;
    return put_scale(o, e);
}

double *optimizer_totals(const struct optimizer *o) {
    _Static_assert(NUMBER_CORRECT == NUMBER_LOSS + 1, "the two totals lie side by side");
    return number(o, NUMBER_LOSS);
}

const float *optimizer_loss_scale(const struct optimizer *o) {
    return o->options.scales_loss ? number(o, NUMBER_SCALE) : NULL;
}

enum status optimizer_zero_totals(struct optimizer *o, struct err *e) {
    return device_fill_zero(o->model->space->device, o->numbers->data,
                            NUMBER_ZEROED * dtype_bytes(DTYPE_I64), e);
}

enum status optimizer_read_totals(const struct optimizer *o, double *loss, int64_t *correct,
                                  struct err *e) {
    double totals[2];
    TRY(device_download(o->model->space->device, totals, optimizer_totals(o), sizeof totals, e));
    *loss = totals[0];
    *correct = (int64_t)totals[1];
    return STATUS_OK;
}

enum status optimizer_zero_grad(struct optimizer *o, struct err *e) {
    struct model *const m = o->model;
    m->forgets = !shard_is_on(m);
    if (!m->forgets) TRY(tensor_fill_zero(m->gradients, e));
    return optimizer_zero_totals(o, e);
}

static void *at(const struct tensor *t, int64_t first) {
    return (char *)t->data + first * dtype_bytes(t->dtype);
}

/* One AdamW over a part, or over some elements of it, from `skipped` on. */
struct run_of_part {
    const struct flat_part *part;
    int64_t skipped, count;
    float *exp_avg, *exp_avg_sq; /* of its first element */
    void *param, *copy;          /* likewise; copy: NULL where there is none */
    enum dtype param_dtype, copy_dtype;
};

/* What of a part is on the device all the time. */
static void find_here(const struct model *m, struct run_of_part *run) {
    const struct flat_part *const p = run->part;
    const struct tensor *const params = p->narrow ? m->flat_narrow : m->flat;
    const int64_t held = p->held + run->skipped;
    run->param = at(params, p->narrow ? held : held - m->flat_from);
    run->param_dtype = params->dtype;
    if (!m->copies || p->narrow) return;
    run->copy = at(m->copies, p->copied + run->skipped);
    run->copy_dtype = m->copies->dtype;
}

/* What of it visits with slice `s`. */
static void find_guest(const struct model *m, const struct away_slice *s, struct run_of_part *run) {
    const struct params_away *const a = &m->away;
    const int64_t first = run->part->own + run->skipped - s->first;
    run->param = (char *)s->guest[0] + first * dtype_bytes(a->masters_dtype);
    run->param_dtype = a->masters_dtype;
    if (!s->guest[1]) return;
    run->copy = (char *)s->guest[1] + first * dtype_bytes(a->copies_dtype);
    run->copy_dtype = a->copies_dtype;
}

static enum status update(const struct optimizer *o, const struct run_of_part *run, double lr,
                          struct err *e) {
    const struct model *const m = o->model;
    const struct flat_part *const p = run->part;
    const struct adamw_args args = {.count = run->count,
                                    .param_dtype = run->param_dtype,
                                    .state_dtype = DTYPE_F32,
                                    .param = run->param,
                                    .grad = at(m->gradients, p->summed + run->skipped),
                                    .m = run->exp_avg,
                                    .v = run->exp_avg_sq,
                                    .copy = run->copy,
                                    .copy_dtype = run->copy_dtype,
                                    .grad_scale = number(o, NUMBER_COEFFICIENT),
                                    .lr = lr,
                                    .beta1 = o->options.beta1,
                                    .beta2 = o->options.beta2,
                                    .eps = o->options.eps,
                                    .weight_decay = p->decayed ? o->options.weight_decay : 0,
                                    .step = o->updates + 1,
                                    .seed = o->options.seed,
                                    .first = p->first + run->skipped};
    return device_adamw(m->space->device, &args, e);
}

/* A rank may have had no micro-batch: its share is then zero. */
static enum status fill_forgotten(struct model *m, struct err *e) {
    if (m->forgets) TRY(tensor_fill_zero(m->gradients, e));
    m->forgets = false;
    return STATUS_OK;
}

/* Both ends of a pipeline get the sum of what each has of the embedding. */
static enum status sum_ends(const struct optimizer *o, struct err *e) {
    struct model *const m = o->model;
    struct comm_scratch scratch = {0};
    if (!other_end(m)) return STATUS_OK;
    if (o->scratch) scratch = (struct comm_scratch){o->scratch->data, tensor_bytes(o->scratch)};
    const struct storage *const s = tied_embedding(m);
    TRY(fill_forgotten(m, e));
    const struct comm_buffer sum = {tensor_f32(m->gradients) + s->flat_first, DTYPE_F32,
                                    s->rows * s->cols, 0};
    return comm_all_reduce(other_end(m), m->space->device, &scratch, &sum, e);
}

enum status optimizer_sum_gradients(struct optimizer *o, struct err *e) {
    struct model *const m = o->model;
    TRY(sum_ends(o, e));
    if (!m->shards && !m->replicated) return STATUS_OK; /* it is alone */
    TRY(fill_forgotten(m, e));
    if (m->shards) TRY(shard_sum(m, e));
    return replicated_sum(m, e);
}

static enum status add_squares(const struct optimizer *o, int64_t first, int64_t end,
                               struct err *e) {
    const struct model *const m = o->model;
    const struct sum_squares_args args = {
        .count = end - first, .x = at(m->gradients, first), .out = number(o, NUMBER_SQUARES)};
    return end > first ? device_sum_squares(m->space->device, &args, e) : STATUS_OK;
}

/* What another rank has too, and counts: the norm is of distinct elements. NULL: nothing. */
static const struct storage *counted_elsewhere(const struct model *m) {
    return other_end(m) && !model_begins(m) ? tied_embedding(m) : NULL;
}

/* The next of these elements from `from` on, of all that is trained. */
static bool next_gap(const struct model *m, int64_t from, struct comm_piece *gap) {
    const struct storage *const s = counted_elsewhere(m);
    bool found = replicated_next(m, from, gap);
    if (!s || s->flat_first + s->rows * s->cols <= from) return found;
    if (!found || s->flat_first < gap->first)
        *gap = (struct comm_piece){s->flat_first, s->rows * s->cols};
    return true;
}

/* Of one own piece, without what is counted elsewhere. */
static enum status part_squares(const struct optimizer *o, const struct flat_part *p,
                                struct err *e) {
    const int64_t end = p->first + p->count, moved = p->summed - p->first;
    struct comm_piece gap;
    int64_t at = p->first;
    while (at < end && next_gap(o->model, at, &gap) && gap.first < end) {
        TRY(add_squares(o, at + moved, gap.first + moved, e));
        at = gap.first + gap.count;
    }
    return add_squares(o, at + moved, end + moved, e);
}

/* Of the own pieces: where gradients lie as these do, in one go. */
static enum status own_squares(const struct optimizer *o, struct err *e) {
    const struct model *const m = o->model;
    struct comm_piece gap;
    const bool all = tensor_count(m->gradients) == m->own_count && !next_gap(m, 0, &gap);
    if (all) return add_squares(o, 0, m->own_count, e);
    for (size_t i = 0; i < m->part_count; i++) {
        TRY(part_squares(o, &m->parts[i], e));
    }
    return STATUS_OK;
}

static bool has_pieces(const struct optimizer *o) {
    const struct mesh *const mesh = o->model->options.mesh;
    return o->options.zero_stage > 0 && mesh && mesh->axis[AXIS_SHARD].world > 1;
}

/* Whether ranks hold different parameters, or different pieces of them. */
static bool is_divided(const struct optimizer *o) {
    const struct mesh *const mesh = o->model->options.mesh;
    return has_pieces(o) || o->model->group || (mesh && mesh->axis[AXIS_PIPELINE].world > 1);
}

/* Those that hold another stage, another part of layers, or another piece, of the same copy of the
 * parameters. */
static bool adds_squares(const struct optimizer *o, const struct mesh *mesh, int64_t rank) {
    const struct mesh_place there = mesh_place_of(&mesh->shape, rank);
    return there.at[AXIS_REPLICATE] == mesh->place.at[AXIS_REPLICATE] &&
           (has_pieces(o) || there.at[AXIS_SHARD] == mesh->place.at[AXIS_SHARD]);
}

/* The squares of all pieces, added in the order of ranks: the norm is then the same for all. */
static enum status sum_squares(const struct optimizer *o, struct err *e) {
    struct device *const device = o->model->space->device;
    const struct mesh *const mesh = o->model->options.mesh;
    double mine = 0, sum = 0;
    if (!is_divided(o)) return STATUS_OK;
    struct comm *const c = mesh->comm;
    TRY(device_download(device, &mine, number(o, NUMBER_SQUARES), sizeof mine, e));
    double *const all = mem_new((size_t)c->world, sizeof *all);
    const enum status status = comm_gather(c, &mine, sizeof mine, all, e);
    for (int64_t rank = 0; status == STATUS_OK && rank < c->world; rank++) {
        if (adds_squares(o, mesh, rank)) sum += all[rank];
    }
    mem_free(all);
    TRY(status);
    return device_upload(device, number(o, NUMBER_SQUARES), &sum, sizeof sum, e);
}

struct visit {
    const struct optimizer *optimizer;
    double learning_rate;
};

static enum status update_slice(const void *context, const struct away_slice *s, struct err *e) {
    const struct visit *const v = context;
    const struct model *const m = v->optimizer->model;
    for (size_t i = 0; i < m->part_count; i++) {
        const struct flat_part *const p = &m->parts[i];
        const int64_t first = p->own > s->first ? p->own : s->first;
        const int64_t part_end = p->own + p->count, slice_end = s->first + s->count;
        const int64_t end = part_end < slice_end ? part_end : slice_end;
        if (first >= end) continue;
        struct run_of_part run = {.part = p,
                                  .skipped = first - p->own,
                                  .count = end - first,
                                  .exp_avg = s->state[0] + (first - s->first),
                                  .exp_avg_sq = s->state[1] + (first - s->first),
                                  .copy_dtype = DTYPE_F32};
        if (p->away) {
            find_guest(m, s, &run);
        } else {
            find_here(m, &run);
        }
        TRY(update(v->optimizer, &run, v->learning_rate, e));
    }
    return STATUS_OK;
}

static enum status update_all(const struct optimizer *o, double lr, struct err *e) {
    const struct visit visit = {o, lr};
    if (!o->exp_avg) return away_each(&o->away, update_slice, &visit, e);
    const struct away_slice all = {
        0, o->model->own_count, {tensor_f32(o->exp_avg), tensor_f32(o->exp_avg_sq)}, {NULL}};
    return update_slice(&visit, &all, e);
}

static enum status ask(const struct optimizer *o, double learning_rate, struct err *e) {
    struct model *const m = o->model;
    struct device *const device = m->space->device;
    const struct clip_args clip = {.sum_squares = number(o, NUMBER_SQUARES),
                                   .loss_scale = optimizer_loss_scale(o),
                                   .max_norm = (float)o->options.max_grad_norm,
                                   .norm = number(o, NUMBER_NORM),
                                   .coefficient = number(o, NUMBER_COEFFICIENT)};
    TRY(fill_forgotten(m, e));
    TRY(own_squares(o, e));
    TRY(sum_squares(o, e));
    TRY(device_clip(device, &clip, e));
    TRY(update_all(o, learning_rate, e));
    TRY(shard_share(m, e));
    return model_refresh_tails(m, e);
}

static double read_f64(const int64_t *words, int index) {
    double value;
    memcpy(&value, &words[index], sizeof value);
    return value;
}

static double read_f32(const int64_t *words, int index) {
    float value;
    memcpy(&value, &words[index], sizeof value);
    return value;
}

/* After an overflow, or one more update without. */
static enum status adapt_scale(struct optimizer *o, bool overflow, struct err *e) {
    struct loss_scaling *const s = &o->scaling;
    if (overflow) {
        s->scale /= 2;
        s->good = 0;
        s->skipped++;
        return put_scale(o, e);
    }
    if (++s->good < SCALE_GROWTH_UPDATES) return STATUS_OK;
    s->scale *= 2;
    s->good = 0;
    return put_scale(o, e);
}

enum status optimizer_step(struct optimizer *o, double learning_rate, struct optimizer_report *r,
                           struct err *e) {
    int64_t words[NUMBER_COUNT];
    *r = (struct optimizer_report){0};
    TRY(ask(o, learning_rate, e));
    TRY(tensor_download(o->numbers, words, e));
    r->loss = read_f64(words, NUMBER_LOSS);
    r->correct = (int64_t)read_f64(words, NUMBER_CORRECT);
    r->grad_norm = read_f32(words, NUMBER_NORM);
    const bool overflow = !isfinite(r->grad_norm);
    r->skipped = overflow && o->options.scales_loss && o->scaling.scale > SCALE_MIN;
    FAIL_IF(overflow && !r->skipped, STATUS_DEVICE,
            "the gradient is not finite (norm %f) at update %lld: nothing was changed by it; a "
            "lower learning_rate, or "
            "max_grad_norm, is the usual cure",
            r->grad_norm, (long long)o->updates + 1);
    if (!overflow) o->updates++;
    return o->options.scales_loss ? adapt_scale(o, overflow, e) : STATUS_OK;
}
