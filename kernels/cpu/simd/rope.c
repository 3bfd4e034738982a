/* rope.c - rotary position embedding in place.
 *
 * Sine and cosine are computed once a token, by the C library (angles reach the length of the
 * context, where a fast sine loses digits), and used for all heads of the token. */
#include <math.h>

#include "kernels/cpu/simd/simd.h"

/* Pairs are taken in blocks of this many, so that sines and cosines fit on the stack for any head.
 */
enum { PAIR_BLOCK = 128 };

static void rotate(float *restrict first, float *restrict second, const float *restrict cosine,
                   const float *restrict sine, int64_t pairs) {
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        const float x = first[i], y = second[i];
        first[i] = x * cosine[i] - y * sine[i];
        second[i] = y * cosine[i] + x * sine[i];
    }
}

static void rotate_token(const struct rope_args *a, int64_t t) {
    const int64_t half = a->rotary / 2;
    const float position = (float)a->positions[t];
    const float sign = a->inverse ? -a->scale : a->scale;
    for (int64_t from = 0; from < half; from += PAIR_BLOCK) {
        const int64_t pairs = simd_min(PAIR_BLOCK, half - from);
        float cosine[PAIR_BLOCK], sine[PAIR_BLOCK];
        for (int64_t i = 0; i < pairs; i++) {
            const float angle = position * a->inv_freq[from + i];
            cosine[i] = cosf(angle) * a->scale;
            sine[i] = sinf(angle) * sign;
        }
        for (int64_t h = 0; h < a->heads; h++) {
            float *head = (float *)a->x + t * a->ld + h * a->head_dim + from;
            rotate(head, head + half, cosine, sine, pairs);
        }
    }
}

enum status SIMD(cpu_rope)(struct device *device, const struct rope_args *a, struct err *e) {
    (void)device, (void)e;
#pragma omp parallel for schedule(static) if (a->tokens * a->heads * a->rotary > PARALLEL_MIN)
    for (int64_t t = 0; t < a->tokens; t++) {
        rotate_token(a, t);
    }
    return STATUS_OK;
}
