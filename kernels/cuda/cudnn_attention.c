/* cudnn_attention.c - attention through cuDNN: which shapes, plans by shape, and the scratch they
 * work in.
 *
 * Capacities are rounded up to powers of two, so that a run with packed rows needs a handful of
 * plans. Building one takes the library a good part of a second; it happens at the first use of a
 * shape, and a refusal is remembered like a plan. The backward works on copies without gaps between
 * rows and with zeros behind the last token, and its gradients are copied to where they belong: see
 * cudnn_sdpa.h for why. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/cudnn_copy.h"
#include "kernels/cuda/cudnn_offsets.h"
#include "kernels/cuda/cudnn_sdpa.h"
#include "kernels/cuda_sizes.h"

enum { LENGTH_MIN = 64, TILE = 128, OFFSET_COUNT = SDPA_LENGTH_Q, PART = 512 };

/* What the documents of a call look like to the library, each harder than the one before. */
enum layout {
    LAYOUT_NONE,
    LAYOUT_ONE,   /* one document of whole tiles, as long as the plan's capacity */
    LAYOUT_EQUAL, /* several such, as many as the plan's capacity */
    LAYOUT_ANY    /* any lengths, empty documents included */
};

/* The hardest layout that goes to the library, by card and version. cases_cudnn.c found every
 * layout right with 9.14 and 9.19 on capability 9.0; but a new shape costs a good part of a second
 * for its plan, and its kernels are as fast as our own (8b-lora: 17,248 tokens a second against
 * 17,213), so it gets what needs few plans. A library outside of this table leaves attention to our
 * kernels. */
static const struct {
    int capability;
    int64_t first, last; /* versions, as the library counts them */
    enum layout right;
} PROVEN[] = {
    {90, 91400, 91499, LAYOUT_ONE},
    {90, 91900, 91999, LAYOUT_ONE},
};

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

static enum layout layout_of(const struct attention_args *a) {
    const int64_t length = a->max_seqlen;
    const bool whole = length % TILE == 0 && power_of_two(LENGTH_MIN, length) == length &&
                       a->segments * length == a->tokens;
    if (!whole || power_of_two(1, a->segments) != a->segments) return LAYOUT_ANY;
    return a->segments == 1 ? LAYOUT_ONE : LAYOUT_EQUAL;
}

static bool is_proven(struct device *device, const struct attention_args *args) {
    const struct cuda_state *const state = cuda_state_of(device);
    enum layout right = LAYOUT_NONE;
    for (size_t i = 0; i < sizeof PROVEN / sizeof *PROVEN; i++) {
        if (state->capability == PROVEN[i].capability && state->dnn->version >= PROVEN[i].first &&
            state->dnn->version <= PROVEN[i].last)
            right = PROVEN[i].right;
    }
    return state->dnn->takes_unproven || layout_of(args) <= right;
}

/* The forward reads and writes the caller's arrays, the backward copies without gaps. */
static struct sdpa_shape shape_of(const struct attention_args *a, bool backward) {
    const int64_t wide = a->heads * a->head_dim, narrow = a->kv_heads * a->head_dim;
    return (struct sdpa_shape){.backward = backward,
                               .half = a->dtype == DTYPE_F16,
                               .documents = power_of_two(1, a->segments),
                               .length = power_of_two(LENGTH_MIN, a->max_seqlen),
                               .heads = a->heads,
                               .kv_heads = a->kv_heads,
                               .head_dim = a->head_dim,
                               .ld_q = backward ? wide : a->ld_q,
                               .ld_k = backward ? narrow : a->ld_k,
                               .ld_v = backward ? narrow : a->ld_v,
                               .ld_out = backward ? wide : a->ld_out,
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

static bool has_plan(struct cuda_dnn *dnn, const struct attention_args *args, bool backward) {
    const struct sdpa_shape shape = shape_of(args, backward);
    return plan_for(dnn, &shape)->plan != NULL;
}

bool cuda_dnn_supports(struct device *device, const struct attention_args *args) {
    struct cuda_dnn *const dnn = cuda_state_of(device)->dnn;
    if (!dnn || !cuda_sizes_library_takes(args) || !is_proven(device, args)) return false;
    if (device->deterministic) return false; /* its backward adds in any order */
    if (!aligned(args->q, args->ld_q) || !aligned(args->k, args->ld_k) ||
        !aligned(args->v, args->ld_v) || !aligned(args->out, args->ld_out))
        return false;
    if ((args->tokens + 1) * largest(args) > INT32_MAX) return false; /* offsets are 32 bits */
    if (offsets_bytes(power_of_two(1, args->segments)) > CUDA_LIBRARY_SCRATCH / 2) return false;
    /* Both directions or none: they share the layout of the statistics. */
    return has_plan(dnn, args, false) && has_plan(dnn, args, true);
}

const char *cuda_dnn_reason(struct device *device) {
    const struct cuda_dnn *const dnn = cuda_state_of(device)->dnn;
    return dnn->reason[0] ? dnn->reason : "its sizes, alignment, version or documents";
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
                                      [SDPA_OFFSET_STATS] = s->heads};
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
    const struct sdpa_shape shape = shape_of(args, false);
    const struct dnn_plan *const plan = plan_for(cuda_state_of(device)->dnn, &shape);
    struct call c = {
        .scale = args->scale, .masked = -INFINITY, .window = (float)shape.window, .one = 1};
    TRY(give_inputs(device, &c, plan, args, args->scratch, e));
    give_constants(&c, plan);
    give(&c, plan, SDPA_Q, args->q);
    give(&c, plan, SDPA_K, args->k);
    give(&c, plan, SDPA_V, args->v);
    give(&c, plan, SDPA_OUT, args->out);
    give(&c, plan, SDPA_STATS, args->lse);
    return execute(device, &c, plan, args->scratch, "attention (cuDNN)", e);
}

/* The backward's scratch: see struct cuda_attention_parts. */
struct staged {
    char *q, *out, *dout, *dq, *dk_heads, *dv_heads, *k, *v, *dk, *dv;
    char *sum, *dq32, *stats, *library;
    int64_t f32_bytes, stats_bytes; /* of sum, dq32 and stats together; of the numbers in stats */
};

static struct staged stage(const struct attention_args *a) {
    const struct cuda_attention_parts parts = cuda_attention_parts(a);
    char *const base = a->scratch;
    char *const wide = base + parts.wide, *const narrow = base + parts.narrow;
    return (struct staged){
        .q = wide,
        .out = wide + parts.wide_stride,
        .dout = wide + 2 * parts.wide_stride,
        .dq = wide + 3 * parts.wide_stride,
        .dk_heads = wide + 4 * parts.wide_stride,
        .dv_heads = wide + 5 * parts.wide_stride,
        .k = narrow,
        .v = narrow + parts.narrow_stride,
        .dk = narrow + 2 * parts.narrow_stride,
        .dv = narrow + 3 * parts.narrow_stride,
        .sum = base + parts.delta,
        .dq32 = base + parts.dq,
        .stats = base + parts.stats,
        .library = base + parts.library,
        .f32_bytes = parts.wide - parts.delta,
        .stats_bytes = a->tokens * a->heads * (int64_t)sizeof(float),
    };
}

/* Fills what the library reads. The sums begin as zeros, and behind the last token everything is
 * zero: whole tiles are read, and what is masked is still multiplied. */
static enum status copy_in(struct device *device, const struct attention_backward_args *args,
                           const struct staged *at, struct err *e) {
    const struct attention_args *const a = &args->forward;
    const int64_t wide = a->heads * a->head_dim, narrow = a->kv_heads * a->head_dim;
    const int64_t rows = a->tokens, slack = CUDA_LIBRARY_ROWS;
    const struct cuda_dnn_copy copies[] = {
        {a->q, at->q, a->ld_q, wide, wide, rows, slack},
        {a->k, at->k, a->ld_k, narrow, narrow, rows, slack},
        {a->v, at->v, a->ld_v, narrow, narrow, rows, slack},
        {a->out, at->out, a->ld_out, wide, wide, rows, slack},
        {args->dout, at->dout, args->ld_dout, wide, wide, rows, slack},
    };
    cudaStream_t stream = cuda_state_of(device)->stream;
    const char *const what = "attention backward: copies for cuDNN";
    TRY(cuda_check(device, cudaMemsetAsync(at->sum, 0, (size_t)at->f32_bytes, stream), what, e));
    TRY(cuda_check(device,
                   cudaMemcpyAsync(at->stats, a->lse, (size_t)at->stats_bytes,
                                   cudaMemcpyDeviceToDevice, stream),
                   what, e));
    return cuda_check(device, cuda_dnn_copy(stream, copies, sizeof copies / sizeof *copies), what,
                      e);
}

static enum status copy_out(struct device *device, const struct attention_backward_args *args,
                            const struct staged *at, struct err *e) {
    const struct attention_args *const a = &args->forward;
    const int64_t wide = a->heads * a->head_dim, narrow = a->kv_heads * a->head_dim;
    const struct cuda_dnn_copy copies[] = {
        {at->dq, args->dq, wide, args->ld_dq, wide, a->tokens, 0},
        {at->dk, args->dk, narrow, args->ld_dk, narrow, a->tokens, 0},
        {at->dv, args->dv, narrow, args->ld_dv, narrow, a->tokens, 0},
    };
    return cuda_check(
        device,
        cuda_dnn_copy(cuda_state_of(device)->stream, copies, sizeof copies / sizeof *copies),
        "attention backward: gradients", e);
}

static void give_staged(struct call *c, const struct dnn_plan *plan, const struct staged *at) {
    give(c, plan, SDPA_Q, at->q);
    give(c, plan, SDPA_K, at->k);
    give(c, plan, SDPA_V, at->v);
    give(c, plan, SDPA_OUT, at->out);
    give(c, plan, SDPA_STATS, at->stats);
    give(c, plan, SDPA_DOUT, at->dout);
    give(c, plan, SDPA_SUM, at->sum);
    give(c, plan, SDPA_DQ32, at->dq32);
    give(c, plan, SDPA_DK_HEADS, at->dk_heads);
    give(c, plan, SDPA_DV_HEADS, at->dv_heads);
    give(c, plan, SDPA_DQ, at->dq);
    give(c, plan, SDPA_DK, at->dk);
    give(c, plan, SDPA_DV, at->dv);
}

enum status cuda_dnn_attention_backward(struct device *device,
                                        const struct attention_backward_args *args, struct err *e) {
    const struct attention_args *const a = &args->forward;
    const struct sdpa_shape shape = shape_of(a, true);
    const struct dnn_plan *const plan = plan_for(cuda_state_of(device)->dnn, &shape);
    const struct staged at = stage(a);
    struct call c = {
        .scale = a->scale, .masked = -INFINITY, .window = (float)shape.window, .one = 1};
    FAIL_IF(!plan->plan, STATUS_DEVICE, "attention backward: cuDNN refuses this shape: %s",
            cuda_state_of(device)->dnn->reason);
    TRY(copy_in(device, args, &at, e));
    TRY(give_inputs(device, &c, plan, a, at.library, e));
    give_constants(&c, plan);
    give_staged(&c, plan, &at);
    TRY(execute(device, &c, plan, at.library, "attention backward (cuDNN)", e));
    return copy_out(device, args, &at, e);
}
