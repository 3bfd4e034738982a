/* support_recorder.c - the recorder's table: one pair of functions an operation, made by a macro
 * from the name of its slot and of its arguments.
 *
 * Only what computes, copies or fills in device memory is taken; the rest is the CPU's own. */
#include "tests/golden/support_recorder.h"

#include <string.h>

#include "base/mem.h"

enum { ARGUMENT_BYTES_MAX = 512 };

struct call {
    enum status (*run)(struct device *, const void *args, struct err *);
    _Alignas(16) unsigned char args[ARGUMENT_BYTES_MAX];
};

struct recording {
    struct call *calls;
    size_t count, capacity;
};

static struct recorder *recorder_of(struct device *device) {
    return (struct recorder *)(uintptr_t)device->ops;
}

/* Computed now, or written down. */
static enum status take(struct device *device, const struct call *call, struct err *e) {
    struct recorder *const r = recorder_of(device);
    struct recording *const to = r->current;
    if (!to) {
        r->computed++;
        return call->run(device, call->args, e);
    }
    FAIL_IF(r->fail_after && (int64_t)to->count + 1 == r->fail_after, STATUS_DEVICE,
            "operation %lld was not captured", (long long)r->fail_after);
    to->calls = mem_grow(to->calls, to->count, &to->capacity, sizeof *to->calls);
    to->calls[to->count++] = *call;
    return STATUS_OK;
}

#define RECORDED(slot, arguments)                                                                  \
    _Static_assert(sizeof(struct arguments) <= ARGUMENT_BYTES_MAX, "room for the arguments");      \
    static enum status real_##slot(struct device *device, const void *args, struct err *e) {       \
        return recorder_of(device)->real->slot(device, args, e);                                   \
    }                                                                                              \
    static enum status take_##slot(struct device *device, const struct arguments *args,            \
                                   struct err *e) {                                                \
        struct call call = {.run = real_##slot};                                                   \
        memcpy(call.args, args, sizeof *args);                                                     \
        return take(device, &call, e);                                                             \
    }

RECORDED(gemm, gemm_args)
RECORDED(rmsnorm, rmsnorm_args)
RECORDED(rmsnorm_backward, rmsnorm_backward_args)
RECORDED(rope, rope_args)
RECORDED(attention, attention_args)
RECORDED(attention_backward, attention_backward_args)
RECORDED(glu, glu_args)
RECORDED(glu_backward, glu_backward_args)
RECORDED(embedding, embedding_args)
RECORDED(embedding_backward, embedding_backward_args)
RECORDED(cross_entropy, cross_entropy_args)
RECORDED(adamw, adamw_args)
RECORDED(sum_squares, sum_squares_args)
RECORDED(clip, clip_args)
RECORDED(loss_sums, loss_sums_args)
RECORDED(dropout, dropout_args)
RECORDED(gather_rows, rows_args)
RECORDED(scatter_rows, rows_args)
RECORDED(add, add_args)
RECORDED(column_sum, column_sum_args)
RECORDED(column_scale, column_scale_args)
RECORDED(row_norm, row_norm_args)
RECORDED(divide, divide_args)
RECORDED(convert, convert_args)
RECORDED(dequantize, dequantize_args)

struct copy_args {
    void *to;
    const void *from;
    int64_t bytes;
};

static enum status real_copy(struct device *device, const void *args, struct err *e) {
    struct copy_args a;
    memcpy(&a, args, sizeof a);
    const struct device_ops *const real = recorder_of(device)->real;
    return a.from ? real->copy(device, a.to, a.from, a.bytes, e)
                  : real->fill_zero(device, a.to, a.bytes, e);
}

static enum status take_copy(struct device *device, void *to, const void *from, int64_t bytes,
                             struct err *e) {
    struct call call = {.run = real_copy};
    memcpy(call.args, &(struct copy_args){to, from, bytes}, sizeof(struct copy_args));
    return take(device, &call, e);
}

static enum status take_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e) {
    return take_copy(device, at, NULL, bytes, e);
}

static enum status begin(struct device *device, struct err *e) {
    (void)e;
    recorder_of(device)->current = mem_new(1, sizeof(struct recording));
    return STATUS_OK;
}

static enum status end(struct device *device, struct device_graph *out, struct err *e) {
    (void)e;
    struct recorder *const r = recorder_of(device);
    *out = (struct device_graph){.state = r->current, .nodes = (int64_t)r->current->count};
    r->current = NULL;
    r->alive++;
    return STATUS_OK;
}

static enum status launch(struct device *device, const struct device_graph *graph, struct err *e) {
    const struct recording *const recording = graph->state;
    for (size_t i = 0; i < recording->count; i++) {
        TRY(recording->calls[i].run(device, recording->calls[i].args, e));
    }
    return STATUS_OK;
}

static void release(struct device *device, struct device_graph *graph) {
    struct recording *const recording = graph->state;
    recorder_of(device)->alive--;
    mem_free(recording->calls);
    mem_free(recording);
}

#define TAKE(slot) r->ops.slot = take_##slot
void recorder_install(struct recorder *r, struct device *device) {
    *r = (struct recorder){.ops = *device->ops, .real = device->ops};
    TAKE(gemm), TAKE(rmsnorm), TAKE(rmsnorm_backward), TAKE(rope), TAKE(attention);
    TAKE(attention_backward), TAKE(glu), TAKE(glu_backward), TAKE(embedding);
    TAKE(embedding_backward), TAKE(cross_entropy), TAKE(adamw), TAKE(sum_squares), TAKE(clip);
    TAKE(loss_sums), TAKE(dropout), TAKE(gather_rows), TAKE(scatter_rows), TAKE(add);
    TAKE(column_sum), TAKE(column_scale), TAKE(row_norm), TAKE(divide), TAKE(convert);
    TAKE(dequantize), TAKE(copy), TAKE(fill_zero);
    r->ops.capture_begin = begin;
    r->ops.capture_end = end;
    r->ops.graph_launch = launch;
    r->ops.graph_free = release;
    device->ops = &r->ops;
    device->graphs = true;
}

void recorder_remove(struct recorder *r, struct device *device) {
    device->ops = r->real;
    device->graphs = false;
}
