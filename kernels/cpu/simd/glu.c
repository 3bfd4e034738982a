/* glu.c - gated linear units, forward and backward: silu and the tanh form of gelu.
 *
 * The backward pass computes the activation again instead of reading a saved one: that is cheaper
 * than the memory traffic, and it lets the gradient be written over the input. */
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/math.h"

/* gelu(x) = x/2 * (1 + tanh(A * (x + B x^3))), Hendrycks & Gimpel 2016; A = sqrt(2/pi). */
#define GELU_A 0.7978845608028654f
#define GELU_B 0.044715f

static void silu_row(const float *gate, const float *up, float *out, int64_t width) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        out[i] = gate[i] * simd_logistic(gate[i]) * up[i];
    }
}

static void gelu_row(const float *gate, const float *up, float *out, int64_t width) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        const float x = gate[i];
        const float t = simd_tanh(GELU_A * (x + GELU_B * x * x * x));
        out[i] = 0.5f * x * (1.0f + t) * up[i];
    }
}

enum status SIMD(cpu_glu)(struct device *device, const struct glu_args *a, struct err *e) {
    (void)device, (void)e;
    const int64_t width = a->width;
#pragma omp parallel for schedule(static) if (a->tokens * width > PARALLEL_MIN)
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *gate = (const float *)a->gate_up + t * a->ld_gate_up;
        float *out = (float *)a->out + t * a->ld_out;
        if (a->activation == ACTIVATION_SILU) {
            silu_row(gate, gate + width, out, width);
        } else {
            gelu_row(gate, gate + width, out, width);
        }
    }
    return STATUS_OK;
}

/* One row. Each element is read before it is written: dgate and dup may be gate and up, and gated
 * may be dout. Where it is not wanted, gated is dup, which is written after it. */
struct backward_row {
    const float *gate, *up, *dout;
    float *dgate, *dup, *gated;
};

/* d silu(x) = s + x s (1-s), with s the logistic function. */
static void silu_backward_row(const struct backward_row *r, int64_t width) {
    const float *gate = r->gate, *up = r->up, *dout = r->dout;
    float *dgate = r->dgate, *dup = r->dup, *gated = r->gated;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        const float x = gate[i], y = up[i], d = dout[i];
        const float s = simd_logistic(x);
        const float value = x * s;
        dgate[i] = d * y * (s + value * (1.0f - s));
        gated[i] = value * y;
        dup[i] = d * value;
    }
}

static void gelu_backward_row(const struct backward_row *r, int64_t width) {
    const float *gate = r->gate, *up = r->up, *dout = r->dout;
    float *dgate = r->dgate, *dup = r->dup, *gated = r->gated;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        const float x = gate[i], y = up[i], d = dout[i];
        const float t = simd_tanh(GELU_A * (x + GELU_B * x * x * x));
        const float inner = GELU_A * (1.0f + 3.0f * GELU_B * x * x);
        const float slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
        dgate[i] = d * y * slope;
        gated[i] = 0.5f * x * (1.0f + t) * y;
        dup[i] = d * 0.5f * x * (1.0f + t);
    }
}

enum status SIMD(cpu_glu_backward)(struct device *device, const struct glu_backward_args *a,
                                   struct err *e) {
    (void)device, (void)e;
    const int64_t width = a->width;
#pragma omp parallel for schedule(static) if (a->tokens * width > PARALLEL_MIN)
    for (int64_t t = 0; t < a->tokens; t++) {
        const float *gate = (const float *)a->gate_up + t * a->ld_gate_up;
        float *dgate = (float *)a->dgate_up + t * a->ld_dgate_up, *dup = dgate + width;
        const struct backward_row row = {.gate = gate,
                                         .up = gate + width,
                                         .dout = (const float *)a->dout + t * a->ld_dout,
                                         .dgate = dgate,
                                         .dup = dup,
                                         .gated =
                                             a->gated ? (float *)a->gated + t * a->ld_gated : dup};
        if (a->activation == ACTIVATION_SILU) {
            silu_backward_row(&row, width);
        } else {
            gelu_backward_row(&row, width);
        }
    }
    return STATUS_OK;
}
