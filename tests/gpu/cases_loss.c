/* cases_loss.c - cross-entropy over every size of vocabulary, with and without cap and gradient,
 * and the sums of losses.
 *
 * n: rows, vocab, write_gradient, a loss scale (1). x: softcap, grad_scale, size of the logits. A
 * third of the labels is the first of the largest logits, a third the last of them (16-bit logits
 * tie), the rest is drawn. Of split cases n[4] columns are a second device's, whose part is
 * computed here too. Large cases are also timed. */
#include "base/mem.h"
#include "tests/gpu/cases.h"

enum { TIMED_MIN = 1 << 22 };

struct loss {
    const struct gpu_case *c;
    struct gpu_array *logits, *labels, *scale, *losses, *correct, *totals;
};

static enum status run_loss(struct device *device, enum side side, void *context, struct err *e) {
    const struct loss *p = context;
    const int64_t *n = p->c->n;
    return device_cross_entropy(device,
                                &(struct cross_entropy_args){
                                    .rows = n[0],
                                    .vocab = n[1],
                                    .dtype = gpu_dtype(p->logits, side),
                                    .logits = p->logits->at[side],
                                    .labels = p->labels->at[side],
                                    .softcap = (float)p->c->x[0],
                                    .grad_scale = (float)p->c->x[1],
                                    .loss_scale = p->scale ? p->scale->at[side] : NULL,
                                    .write_gradient = n[2] != 0,
                                    .losses = p->losses->at[side],
                                    .correct = p->correct->at[side],
                                },
                                e);
}

static enum status run_sums(struct device *device, enum side side, void *context, struct err *e) {
    const struct loss *p = context;
    return device_loss_sums(device,
                            &(struct loss_sums_args){
                                .rows = p->losses->cols,
                                .losses = p->losses->at[side],
                                .correct = p->correct->at[side],
                                .totals = p->totals->at[side],
                            },
                            e);
}

static struct gpu_array *draw_labels(struct gpu_test *t, const struct loss *p) {
    const int64_t rows = p->c->n[0], vocab = p->c->n[1];
    float *logits = gpu_read(t, p->logits, SIDE_CPU);
    int32_t *labels = mem_new((size_t)rows, sizeof *labels);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * vocab;
        int64_t first = 0, last = 0;
        for (int64_t i = 1; i < vocab; i++) {
            if (x[i] > x[first]) first = i;
            if (x[i] >= x[last]) last = i;
        }
        const int64_t drawn = (int64_t)(gpu_next(t) % (uint64_t)vocab);
        labels[r] = (int32_t)(r % 3 == 0 ? first : r % 3 == 1 ? last : drawn);
    }
    struct gpu_array *array = gpu_values(t, labels, rows, DTYPE_I32);
    mem_free(labels);
    mem_free(logits);
    return array;
}

static enum status loss_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], vocab = c->n[1];
    const float scale = 1024;
    struct loss p = {.c = c};
    p.logits = gpu_random(t, rows, vocab, vocab, c->dtype, c->x[2]);
    p.labels = draw_labels(t, &p);
    if (c->n[3]) p.scale = gpu_values(t, &scale, 1, DTYPE_F32);
    p.losses = gpu_output(t, 1, rows, rows, DTYPE_F32);
    p.correct = gpu_output(t, 1, rows, rows, DTYPE_I32);
    p.totals = gpu_doubles(t, 2);
    TRY(gpu_run(t, run_loss, &p, e));
    gpu_compare(t, p.losses, "losses", 1e-6);
    gpu_compare(t, p.correct, "correct", 0);
    if (c->n[2]) gpu_compare(t, p.logits, "gradient", 0);
    TRY(gpu_run(t, run_sums, &p, e));
    gpu_compare_f64(t, p.totals, "totals", 1e-6);
    const double size = (double)rows * (double)vocab;
    if (size < TIMED_MIN) return STATUS_OK;
    const double passes = c->n[2] ? 2 : 1;
    return gpu_time(t, run_loss, &p, passes * size * (double)dtype_bytes(c->dtype), 0, e);
}

/* Both devices' columns: what they tell each other, then losses and gradients. */
struct split {
    const struct gpu_case *c;
    struct gpu_array *logits[2], *labels, *stats, *losses, *correct;
};

static int64_t columns_of(const struct split *p, int member) {
    return p->c->n[member == 0 ? 1 : 4];
}

static enum status tell(struct device *device, enum side side, const struct split *p, int member,
                        struct err *e) {
    const int64_t rows = p->c->n[0];
    const struct softmax_stats_args args = {
        .rows = rows,
        .vocab = columns_of(p, member),
        .first = member == 0 ? 0 : p->c->n[1],
        .dtype = gpu_dtype(p->logits[member], side),
        .logits = p->logits[member]->at[side],
        .labels = p->labels->at[side],
        .softcap = (float)p->c->x[0],
        .stats = (double *)p->stats->at[side] + member * rows * SOFTMAX_STATS,
    };
    return device_softmax_stats(device, &args, e);
}

static enum status join(struct device *device, enum side side, const struct split *p, int member,
                        struct err *e) {
    const struct split_cross_entropy_args args = {
        .rows = p->c->n[0],
        .vocab = columns_of(p, member),
        .first = member == 0 ? 0 : p->c->n[1],
        .members = 2,
        .dtype = gpu_dtype(p->logits[member], side),
        .logits = p->logits[member]->at[side],
        .labels = p->labels->at[side],
        .softcap = (float)p->c->x[0],
        .grad_scale = (float)p->c->x[1],
        .write_gradient = p->c->n[2] != 0,
        .stats = p->stats->at[side],
        .losses = p->losses->at[side],
        .correct = p->correct->at[side],
    };
    return device_split_cross_entropy(device, &args, e);
}

static enum status run_split(struct device *device, enum side side, void *context, struct err *e) {
    const struct split *p = context;
    TRY(tell(device, side, p, 0, e));
    TRY(tell(device, side, p, 1, e));
    TRY(join(device, side, p, 0, e));
    return join(device, side, p, 1, e);
}

static enum status split_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], all = c->n[1] + c->n[4];
    struct split p = {.c = c};
    for (int i = 0; i < 2; i++) {
        const int64_t columns = columns_of(&p, i);
        p.logits[i] = gpu_random(t, rows, columns, columns, c->dtype, c->x[2]);
    }
    p.labels = gpu_indices(t, rows, all);
    p.stats = gpu_doubles(t, 2 * rows * SOFTMAX_STATS);
    p.losses = gpu_output(t, 1, rows, rows, DTYPE_F32);
    p.correct = gpu_output(t, 1, rows, rows, DTYPE_I32);
    TRY(gpu_run(t, run_split, &p, e));
    gpu_compare(t, p.losses, "losses", 1e-6);
    gpu_compare(t, p.correct, "correct", 0);
    for (int i = 0; i < 2 && c->n[2]; i++) {
        gpu_compare(t, p.logits[i], "gradient", 0);
    }
    const double size = (double)rows * (double)all;
    if (size < TIMED_MIN) return STATUS_OK;
    return gpu_time(t, run_split, &p, 3 * size * (double)dtype_bytes(c->dtype), 0, e);
}

static enum status sums_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    struct loss p = {.c = c};
    p.losses = gpu_random(t, 1, c->n[0], c->n[0], DTYPE_F32, 3);
    p.correct = gpu_indices(t, c->n[0], 2);
    p.totals = gpu_doubles(t, 2);
    TRY(gpu_run(t, run_sums, &p, e));
    TRY(gpu_run(t, run_sums, &p, e));
    gpu_compare_f64(t, p.totals, "totals", 1e-12);
    return gpu_time(t, run_sums, &p, 8 * (double)c->n[0], 0, e);
}

#define LOSS(label, type, cap, ...)                                                                \
    {                                                                                              \
        .name = "cross_entropy/" label, .run = loss_case, .dtype = type, .n = {__VA_ARGS__},       \
        .x = {                                                                                     \
            cap,                                                                                   \
            0.125,                                                                                 \
            6                                                                                      \
        }                                                                                          \
    }
#define SPLIT(label, type, cap, ...)                                                               \
    {                                                                                              \
        .name = "split_cross_entropy/" label, .run = split_case, .dtype = type,                    \
        .n = {__VA_ARGS__}, .x = {                                                                 \
            cap,                                                                                   \
            0.125,                                                                                 \
            6                                                                                      \
        }                                                                                          \
    }
#define SPLIT_EVERY_DTYPE(label, cap, ...)                                                         \
    SPLIT(label, DTYPE_F32, cap, __VA_ARGS__), SPLIT(label, DTYPE_BF16, cap, __VA_ARGS__),         \
        SPLIT(label, DTYPE_F16, cap, __VA_ARGS__)
#define EVERY_DTYPE(label, cap, ...)                                                               \
    LOSS(label, DTYPE_F32, cap, __VA_ARGS__), LOSS(label, DTYPE_BF16, cap, __VA_ARGS__),           \
        LOSS(label, DTYPE_F16, cap, __VA_ARGS__)

static const struct gpu_case CASES[] = {
    EVERY_DTYPE("8", 0, 19, 8, 1),
    EVERY_DTYPE("1", 0, 3, 1, 1),
    EVERY_DTYPE("1000", 0, 19, 1000, 1, 1),
    EVERY_DTYPE("1000-loss", 0, 19, 1000),
    EVERY_DTYPE("odd", 0, 19, 5003, 1),
    EVERY_DTYPE("odd-cap", 30, 19, 5003, 1),
    EVERY_DTYPE("49152", 0, 7, 49152, 1),
    EVERY_DTYPE("49152-cap", 30, 7, 49152, 1, 1),
    EVERY_DTYPE("128256", 0, 4, 128256, 1),
    EVERY_DTYPE("256000-cap", 30, 4, 256000, 1),
    EVERY_DTYPE("256000-loss", 0, 4, 256000),
    LOSS("1024x49152", DTYPE_BF16, 0, 1024, 49152, 1),
    LOSS("1024x128256", DTYPE_BF16, 0, 1024, 128256, 1),
    LOSS("1024x151936", DTYPE_BF16, 0, 1024, 151936, 1),
    LOSS("1024x128257-odd", DTYPE_BF16, 0, 1024, 128257, 1),
    LOSS("1024x151936-loss", DTYPE_BF16, 0, 1024, 151936),
    LOSS("512x256000-cap", DTYPE_BF16, 30, 512, 256000, 1),
    LOSS("512x128256", DTYPE_F32, 0, 512, 128256, 1),
    SPLIT_EVERY_DTYPE("8", 0, 19, 8, 1, 0, 16),
    SPLIT_EVERY_DTYPE("odd", 0, 19, 5003, 1, 0, 77),
    SPLIT_EVERY_DTYPE("odd-cap", 30, 19, 1, 1, 0, 5003),
    SPLIT_EVERY_DTYPE("loss", 0, 19, 1000, 0, 0, 1000),
    SPLIT("1024x128256", DTYPE_BF16, 0, 1024, 64128, 1, 0, 64128),
    SPLIT("512x256000-cap", DTYPE_BF16, 30, 512, 128000, 1, 0, 128000),
    {.name = "loss_sums/1", .run = sums_case, .dtype = DTYPE_F32, .n = {1}},
    {.name = "loss_sums/70001", .run = sums_case, .dtype = DTYPE_F32, .n = {70001}},
};

const struct gpu_suite gpu_suite_loss = {"loss", CASES, COUNT_OF(CASES)};
