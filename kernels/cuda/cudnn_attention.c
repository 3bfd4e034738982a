/* cudnn_attention.c - attention through cuDNN: plans by shape, and the scratch they work in.
 *
 * Capacities are rounded up to powers of two, so that a run with packed rows needs a handful of
 * plans. Building one takes the library a good part of a second; it happens at the first use of a
 * shape, and a refusal is remembered like a plan. The gradients come out without gaps and are copied
 * to where they belong: the library sums grouped heads in a layout of its own. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/cudnn_offsets.h"
#include "kernels/cuda/cudnn_sdpa.h"
#include "kernels/cuda_sizes.h"

enum { LENGTH_MIN = 64, HEAD_DIM_MAX = 128, OFFSET_COUNT = SDPA_LENGTH_Q, PART = 512 };

struct dnn_plan {
    struct sdpa_shape shape;
    cudnnBackendDescriptor_t plan; /* NULL: the library does not do this shape */
    int64_t workspace;
    int64_t uid[SDPA_ROLE_COUNT];
};

static int64_t power_of_two(int64_t at_least, int64_t value) {
    int64_t p = at_least;
    while (p < value) {
        p *= 2;
    }
    return p;
}

static struct sdpa_shape shape_of(const struct attention_args *a, bool backward, int64_t ld_dout) {
    return (struct sdpa_shape){.backward = backward,
                               .half = a->dtype == DTYPE_F16,
                               .documents = power_of_two(1, a->segments),
                               .length = power_of_two(LENGTH_MIN, a->max_seqlen),
                               .heads = a->heads,
                               .kv_heads = a->kv_heads,
                               .head_dim = a->head_dim,
                               .ld_q = a->ld_q,
                               .ld_k = a->ld_k,
                               .ld_v = a->ld_v,
                               .ld_out = a->ld_out,
                               .ld_dout = ld_dout,
                               .window = a->window < a->max_seqlen ? a->window : 0};
}

/* Rows of the offset table are `pitch` numbers apart. */
static int64_t offsets_pitch(int64_t documents) {
    return (documents + 1 + 31) / 32 * 32;
}

static int64_t offsets_bytes(int64_t documents) {
    const int64_t bytes = (OFFSET_COUNT + 1) * offsets_pitch(documents) * (int64_t)sizeof(int32_t);
    return (bytes + PART - 1) / PART * PART;
}

static struct dnn_plan *remember(struct cuda_dnn *dnn, const struct dnn_plan *plan) {
    if (dnn->plan_count == dnn->plan_capacity) {
        dnn->plan_capacity = dnn->plan_capacity ? 2 * dnn->plan_capacity : 16;
        dnn->plans = mem_resize(dnn->plans, (size_t)dnn->plan_capacity, sizeof *dnn->plans);
    }
    dnn->plans[dnn->plan_count] = *plan;
    return &dnn->plans[dnn->plan_count++];
}

static struct dnn_plan *plan_for(struct cuda_dnn *dnn, const struct sdpa_shape *shape) {
    for (int64_t i = 0; i < dnn->plan_count; i++) {
        if (memcmp(&dnn->plans[i].shape, shape, sizeof *shape) == 0) return &dnn->plans[i];
    }
    struct dnn_plan made = {.shape = *shape};
    struct dnn_graph *const g = mem_new(1, sizeof *g);
    *g = (struct dnn_graph){.dnn = dnn};
    sdpa_graph(g, shape, made.uid);
    const int64_t room = CUDA_LIBRARY_SCRATCH - offsets_bytes(shape->documents);
    (void)dnn_graph_plan(g, room, &made.plan, &made.workspace);
    memcpy(dnn->reason, g->reason, sizeof dnn->reason);
    dnn_graph_release(g);
    mem_free(g);
    return remember(dnn, &made);
}

void cuda_dnn_forget(struct cuda_dnn *dnn) {
    for (int64_t i = 0; i < dnn->plan_count; i++) {
        if (dnn->plans[i].plan) dnn->descriptor_destroy(dnn->plans[i].plan);
    }
    mem_free(dnn->plans);
    dnn->plans = NULL;
    dnn->plan_count = dnn->plan_capacity = 0;
}

static bool aligned(const void *at, int64_t ld) {
    return (uintptr_t)at % 16 == 0 && ld % 8 == 0;
}

static int64_t largest(const struct attention_args *a) {
    const int64_t all[] = {a->ld_q, a->ld_k, a->ld_v, a->ld_out, a->heads * a->head_dim};
    int64_t most = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i] > most) most = all[i];
    }
    return most;
}

bool cuda_dnn_supports(struct device *device, const struct attention_args *args) {
    struct cuda_dnn *const dnn = cuda_state_of(device)->dnn;
    if (!dnn || args->dtype == DTYPE_F32 || args->softcap > 0) return false;
    if (args->head_dim % 8 != 0 || args->head_dim > HEAD_DIM_MAX) return false;
    if (device->deterministic) return false; /* its backward adds in any order */
    if (!aligned(args->q, args->ld_q) || !aligned(args->k, args->ld_k) ||
        !aligned(args->v, args->ld_v) || !aligned(args->out, args->ld_out))
        return false;
    if ((args->tokens + 1) * largest(args) > INT32_MAX) return false; /* offsets are 32 bits */
    if (offsets_bytes(power_of_two(1, args->segments)) > CUDA_LIBRARY_SCRATCH / 2) return false;
    /* Both directions or none: they share the layout of the statistics. */
    const struct sdpa_shape there = shape_of(args, false, 0);
    if (!plan_for(dnn, &there)->plan) return false;
    const struct sdpa_shape back = shape_of(args, true, args->ld_out);
    return plan_for(dnn, &back)->plan != NULL;
}

/* What one call gives to its plan. */
struct call {
    int64_t uids[SDPA_ROLE_COUNT];
    void *pointers[SDPA_ROLE_COUNT];
    int64_t count;
    float scale, masked, window, one;
};

static void give(struct call *c, const struct dnn_plan *plan, enum sdpa_role role,
                 const void *pointer) {
    if (plan->uid[role] == 0) return;
    c->uids[c->count] = plan->uid[role];
    c->pointers[c->count++] = (void *)(uintptr_t)pointer;
}

/* Makes the offset table at `library` and gives it, the inputs and the constants. */
static enum status give_inputs(struct device *device, struct call *c, const struct dnn_plan *plan,
                               const struct attention_args *a, char *library, struct err *e) {
    const struct sdpa_shape *const s = &plan->shape;
    const int64_t pitch = offsets_pitch(s->documents);
    const int64_t by[OFFSET_COUNT] = {[SDPA_OFFSET_Q] = s->ld_q,
                                      [SDPA_OFFSET_K] = s->ld_k,
                                      [SDPA_OFFSET_V] = s->ld_v,
                                      [SDPA_OFFSET_OUT] = s->ld_out,
                                      [SDPA_OFFSET_STATS] = s->heads,
                                      [SDPA_OFFSET_DOUT] = s->ld_dout,
                                      [SDPA_OFFSET_DQ] = s->heads * s->head_dim,
                                      [SDPA_OFFSET_DKV] = s->kv_heads * s->head_dim};
    const struct cuda_dnn_documents documents = {
        .cu_seqlens = a->cu_seqlens, .segments = a->segments, .capacity = s->documents};
    int32_t *const table = (int32_t *)library;
    TRY(cuda_check(
        device,
        cuda_dnn_offsets(cuda_state_of(device)->stream, &documents, by, OFFSET_COUNT, table, pitch),
        "attention: offsets", e));
    for (int role = 0; role < OFFSET_COUNT; role++) {
        give(c, plan, (enum sdpa_role)role, table + role * pitch);
    }
    give(c, plan, SDPA_LENGTH_Q, table + OFFSET_COUNT * pitch);
    give(c, plan, SDPA_LENGTH_KV, table + OFFSET_COUNT * pitch);
    return STATUS_OK;
}

static void give_constants(struct call *c, const struct dnn_plan *plan) {
    give(c, plan, SDPA_SCALE, &c->scale);
    give(c, plan, SDPA_MASKED, &c->masked);
    give(c, plan, SDPA_WINDOW, &c->window);
    give(c, plan, SDPA_ONE, &c->one);
}

static void give_tensors(struct call *c, const struct dnn_plan *plan,
                         const struct attention_args *a) {
    give(c, plan, SDPA_Q, a->q);
    give(c, plan, SDPA_K, a->k);
    give(c, plan, SDPA_V, a->v);
    give(c, plan, SDPA_OUT, a->out);
    give(c, plan, SDPA_STATS, a->lse);
}

static enum status execute(struct device *device, const struct call *c, const struct dnn_plan *plan,
                           char *library, const char *what, struct err *e) {
    const struct dnn_run run = {.plan = plan->plan,
                                .uids = c->uids,
                                .pointers = c->pointers,
                                .count = c->count,
                                .workspace = library + offsets_bytes(plan->shape.documents)};
    return dnn_execute(device, &run, what, e);
}

enum status cuda_dnn_attention(struct device *device, const struct attention_args *args,
                               struct err *e) {
    const struct sdpa_shape shape = shape_of(args, false, 0);
    const struct dnn_plan *const plan = plan_for(cuda_state_of(device)->dnn, &shape);
    struct call c = {
        .scale = args->scale, .masked = -INFINITY, .window = (float)shape.window, .one = 1};
    TRY(give_inputs(device, &c, plan, args, args->scratch, e));
    give_constants(&c, plan);
    give_tensors(&c, plan, args);
    return execute(device, &c, plan, args->scratch, "attention (cuDNN)", e);
}

/* Rows of `width` elements without gaps to rows `ld` apart. */
static enum status spread(struct device *device, void *to, int64_t ld, const void *from,
                          int64_t width, int64_t rows, struct err *e) {
    enum { HALF = 2 };
    return cuda_check(device,
                      cudaMemcpy2DAsync(to, (size_t)(ld * HALF), from, (size_t)(width * HALF),
                                        (size_t)(width * HALF), (size_t)rows,
                                        cudaMemcpyDeviceToDevice, cuda_state_of(device)->stream),
                      "attention backward: gradients", e);
}

enum status cuda_dnn_attention_backward(struct device *device,
                                        const struct attention_backward_args *args, struct err *e) {
    const struct attention_args *const a = &args->forward;
    const struct sdpa_shape shape = shape_of(a, true, args->ld_dout);
    const struct dnn_plan *const plan = plan_for(cuda_state_of(device)->dnn, &shape);
    FAIL_IF(!plan->plan, STATUS_DEVICE, "attention backward: cuDNN refuses this shape: %s",
            cuda_state_of(device)->dnn->reason);
    const struct cuda_attention_parts parts = cuda_attention_parts(a);
    const int64_t wide = a->tokens * a->heads * a->head_dim * 2;
    const int64_t narrow = a->tokens * a->kv_heads * a->head_dim * 2;
    char *const base = a->scratch, *const library = base + parts.library;
    char *const grouped = base + parts.dkv; /* dk, dv by query head, dq, dk, dv */
    char *const dq = grouped + (a->heads == a->kv_heads ? 0 : 2 * wide), *const dk = dq + wide,
                *const dv = dk + narrow;
    struct call c = {
        .scale = a->scale, .masked = -INFINITY, .window = (float)shape.window, .one = 1};
    TRY(give_inputs(device, &c, plan, a, library, e));
    give_constants(&c, plan);
    give_tensors(&c, plan, a);
    give(&c, plan, SDPA_DOUT, args->dout);
    give(&c, plan, SDPA_SUM, base + parts.delta);
    give(&c, plan, SDPA_DQ32, base + parts.dq);
    give(&c, plan, SDPA_DK_HEADS, grouped);
    give(&c, plan, SDPA_DV_HEADS, grouped + wide);
    give(&c, plan, SDPA_DQ, dq);
    give(&c, plan, SDPA_DK, dk);
    give(&c, plan, SDPA_DV, dv);
    TRY(execute(device, &c, plan, library, "attention backward (cuDNN)", e));
    const int64_t query = a->heads * a->head_dim, key = a->kv_heads * a->head_dim;
    TRY(spread(device, args->dq, args->ld_dq, dq, query, a->tokens, e));
    TRY(spread(device, args->dk, args->ld_dk, dk, key, a->tokens, e));
    return spread(device, args->dv, args->ld_dv, dv, key, a->tokens, e);
}
