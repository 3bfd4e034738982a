/* loss.c - softmax cross-entropy with its gradient written over the logits, and the sums of its
 * results. One row is read twice:
 * once for its maximum and sum (online, Milakov & Gimelshein 2018, in blocks that stay in the first
 * cache), once for the gradient. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/simd/math.h"
#include "kernels/cpu/simd/simd.h"

enum { LOGIT_BLOCK = 2048 };

static void cap_block(float *x, int64_t count, float softcap) {
    const float inverse = 1.0f / softcap;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        x[i] = softcap * simd_tanh(x[i] * inverse);
    }
}

static float block_max(const float *x, int64_t count) {
    float largest = x[0];
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; i++) {
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

static float block_sum(const float *x, int64_t count, float shift) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        sum += simd_exp(x[i] - shift);
    }
    return sum;
}

/* x becomes scale * softmax(x); `top` and `sum` describe the row. */
static void gradient_block(float *x, int64_t count, float top, float factor, float softcap) {
    if (softcap > 0) {
        const float inverse = 1.0f / softcap;
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            const float t = x[i] * inverse;
            x[i] = simd_exp(x[i] - top) * factor * (1.0f - t * t);
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        x[i] = simd_exp(x[i] - top) * factor;
    }
}

/* Whether the label is the first of the largest logits. */
static bool is_first_largest(const float *x, int64_t label, float top) {
    if (!(x[label] >= top)) return false;
    for (int64_t i = 0; i < label; i++) {
        if (x[i] >= top) return false;
    }
    return true;
}

static void loss_row(const struct cross_entropy_args *a, int64_t row) {
    float *x = (float *)a->logits + row * a->vocab;
    const double grad_scale =
        a->loss_scale ? (double)a->grad_scale * (double)*a->loss_scale : (double)a->grad_scale;
    const int64_t label = a->labels[row];
    float top = -INFINITY;
    double sum = 0;
    for (int64_t from = 0; from < a->vocab; from += LOGIT_BLOCK) {
        const int64_t count = simd_min(LOGIT_BLOCK, a->vocab - from);
        if (a->softcap > 0) cap_block(x + from, count, a->softcap);
        const float block = block_max(x + from, count);
        if (block > top) {
            sum *= exp((double)top - (double)block);
            top = block;
        }
        sum += (double)block_sum(x + from, count, top);
    }
    a->losses[row] = (float)(log(sum) + (double)top - (double)x[label]);
    a->correct[row] = is_first_largest(x, label, top);
    if (!a->write_gradient) return;
    const float capped = x[label];
    const float factor = (float)(grad_scale / sum);
    for (int64_t from = 0; from < a->vocab; from += LOGIT_BLOCK) {
        gradient_block(x + from, simd_min(LOGIT_BLOCK, a->vocab - from), top, factor, a->softcap);
    }
    const float t = a->softcap > 0 ? capped / a->softcap : 0;
    /* Not x[label] -= scale: near p = 1 the difference must keep its digits. */
    const double rest = exp((double)capped - (double)top) / sum - 1.0;
    x[label] = (float)(rest * grad_scale * (1.0 - (double)t * (double)t));
}

enum status SIMD(cpu_cross_entropy)(struct device *device, const struct cross_entropy_args *a,
                                    struct err *e) {
    (void)device;
    for (int64_t row = 0; row < a->rows; row++) {
        FAIL_IF(a->labels[row] < 0 || a->labels[row] >= a->vocab, STATUS_INTERNAL,
                "device_cross_entropy: labels[%lld] is %d, outside of the vocabulary of %lld",
                (long long)row, a->labels[row], (long long)a->vocab);
    }
#pragma omp parallel for schedule(static) if (a->rows * a->vocab > PARALLEL_MIN)
    for (int64_t row = 0; row < a->rows; row++) {
        loss_row(a, row);
    }
    return STATUS_OK;
}

/* A row's (capped) logits from `from` on; `room` is for those that have to be made. */
static const float *capped(const float *x, int64_t count, float softcap, float *room) {
    if (softcap <= 0) return x;
    memcpy(room, x, (size_t)count * sizeof *room);
    cap_block(room, count, softcap);
    return room;
}

static int64_t first_of(const float *x, float wanted) {
    int64_t i = 0;
    while (x[i] != wanted) {
        i++;
    }
    return i;
}

static void stats_row(const struct softmax_stats_args *a, int64_t row) {
    const float *const all = (const float *)a->logits + row * a->vocab;
    const int64_t label = a->labels[row] - a->first;
    double *const stats = a->stats + row * SOFTMAX_STATS;
    float room[LOGIT_BLOCK], top = -INFINITY, target = -INFINITY;
    int64_t best = -1;
    double sum = 0;
    for (int64_t from = 0; from < a->vocab; from += LOGIT_BLOCK) {
        const int64_t count = simd_min(LOGIT_BLOCK, a->vocab - from);
        const float *const x = capped(all + from, count, a->softcap, room);
        const float block = block_max(x, count);
        if (block > top) {
            sum *= exp((double)top - (double)block);
            top = block;
            best = a->first + from + first_of(x, block);
        }
        sum += (double)block_sum(x, count, top);
        if (label >= from && label < from + count) target = x[label - from];
    }
    stats[0] = (double)top;
    stats[1] = sum;
    stats[2] = (double)target;
    stats[3] = (double)best;
}

enum status SIMD(cpu_softmax_stats)(struct device *device, const struct softmax_stats_args *a,
                                    struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->vocab > PARALLEL_MIN)
    for (int64_t row = 0; row < a->rows; row++) {
        stats_row(a, row);
    }
    return STATUS_OK;
}

/* What all members say of a row, as one. */
struct row_stats {
    double top, sum, target, best;
};

static struct row_stats merge(const struct split_cross_entropy_args *a, int64_t row) {
    struct row_stats all = {-INFINITY, 0, -INFINITY, -1};
    for (int64_t i = 0; i < a->members; i++) {
        const double *const s = a->stats + (i * a->rows + row) * SOFTMAX_STATS;
        if (s[0] > all.top) {
            all.top = s[0];
            all.best = s[3];
        }
        if (s[2] > all.target) all.target = s[2];
    }
    for (int64_t i = 0; i < a->members; i++) {
        const double *const s = a->stats + (i * a->rows + row) * SOFTMAX_STATS;
        all.sum += s[1] * exp(s[0] - all.top);
    }
    return all;
}

static void split_row(const struct split_cross_entropy_args *a, int64_t row) {
    const struct row_stats all = merge(a, row);
    const double grad_scale =
        a->loss_scale ? (double)a->grad_scale * (double)*a->loss_scale : (double)a->grad_scale;
    a->losses[row] = (float)(log(all.sum) + all.top - all.target);
    a->correct[row] = all.best == (double)a->labels[row];
    if (!a->write_gradient) return;
    float *const x = (float *)a->logits + row * a->vocab;
    const float factor = (float)(grad_scale / all.sum);
    for (int64_t from = 0; from < a->vocab; from += LOGIT_BLOCK) {
        const int64_t count = simd_min(LOGIT_BLOCK, a->vocab - from);
        if (a->softcap > 0) cap_block(x + from, count, a->softcap);
        gradient_block(x + from, count, (float)all.top, factor, a->softcap);
    }
    const int64_t label = a->labels[row] - a->first;
    if (label < 0 || label >= a->vocab) return;
    const double t = a->softcap > 0 ? all.target / (double)a->softcap : 0;
    const double rest = exp(all.target - all.top) / all.sum - 1.0;
    x[label] = (float)(rest * grad_scale * (1.0 - t * t));
}

enum status SIMD(cpu_split_cross_entropy)(struct device *device,
                                          const struct split_cross_entropy_args *a, struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->rows * a->vocab > PARALLEL_MIN)
    for (int64_t row = 0; row < a->rows; row++) {
        split_row(a, row);
    }
    return STATUS_OK;
}

/* In row order, by one thread: a few thousand additions. */
enum status SIMD(cpu_loss_sums)(struct device *device, const struct loss_sums_args *a,
                                struct err *e) {
    (void)device, (void)e;
    double losses = 0;
    int64_t correct = 0;
    for (int64_t row = 0; row < a->rows; row++) {
        losses += (double)a->losses[row];
        correct += a->correct[row];
    }
    a->totals[0] += losses;
    a->totals[1] += (double)correct;
    return STATUS_OK;
}
