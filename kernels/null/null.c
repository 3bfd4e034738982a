/* null.c - the null device: answers every operation at once and only keeps the books (which
 * device.c does for it).
 *
 * Its memory is address space without access: reserving gives a range that nothing may touch,
 * committing changes nothing, so that host code which reads or writes device memory directly faults
 * at once, on the planner, in every test. A download fills the host side with zeros: there is no
 * other value, and old bytes must not look like results. */
#include "kernels/null/null.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda_sizes.h"
#include "kernels/graph_none.h"

static void null_close(struct device *device) {
    (void)device;
}

static enum status null_reserve(struct device *device, int64_t bytes, void **base, struct err *e) {
    (void)device;
    void *at =
        mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FAIL_IF(at == MAP_FAILED, STATUS_OOM, "cannot reserve %lld bytes of address space for the plan",
            (long long)bytes);
    *base = at;
    return STATUS_OK;
}

static void null_unreserve(struct device *device, void *base, int64_t bytes) {
    (void)device;
    munmap(base, (size_t)bytes);
}

static enum status null_commit(struct device *device, void *at, int64_t bytes, struct err *e) {
    (void)device, (void)at, (void)bytes, (void)e;
    return STATUS_OK;
}

static void null_decommit(struct device *device, void *at, int64_t bytes) {
    (void)device, (void)at, (void)bytes;
}

static enum status null_transfer(struct device *device, void *to, const void *from, int64_t bytes,
                                 struct err *e) {
    (void)device, (void)to, (void)from, (void)bytes, (void)e;
    return STATUS_OK;
}

static enum status null_download(struct device *device, void *to, const void *from, int64_t bytes,
                                 struct err *e) {
    (void)device, (void)from, (void)e;
    memset(to, 0, (size_t)bytes);
    return STATUS_OK;
}

static enum status null_upload_rows(struct device *device, const struct transfer *t,
                                    struct err *e) {
    (void)device, (void)t, (void)e;
    return STATUS_OK;
}

static enum status null_download_rows(struct device *device, const struct transfer *t,
                                      struct err *e) {
    (void)device, (void)e;
    for (int64_t row = 0; row < t->rows; row++) {
        memset((char *)t->host + row * t->host_pitch, 0, (size_t)t->width);
    }
    return STATUS_OK;
}

static enum status null_synchronize(struct device *device, struct err *e) {
    (void)device, (void)e;
    return STATUS_OK;
}

static enum status null_memory(struct device *device, struct device_memory *memory, struct err *e) {
    (void)e;
    *memory = (struct device_memory){.free = device->total_bytes, .total = device->total_bytes};
    return STATUS_OK;
}

static int64_t null_attention_scratch(const struct device *device, const struct attention_args *a,
                                      bool backward) {
    return device->kind == DEVICE_CUDA ? cuda_sizes_attention_scratch(a, backward)
                                       : cpu_attention_scratch(device, a, backward);
}

#define NULL_OPERATION(name, args)                                                                 \
    static enum status null_##name(struct device *device, const struct args *a, struct err *e) {   \
        (void)device, (void)a, (void)e;                                                            \
        return STATUS_OK;                                                                          \
    }

NULL_OPERATION(gemm, gemm_args)
NULL_OPERATION(rmsnorm, rmsnorm_args)
NULL_OPERATION(rmsnorm_backward, rmsnorm_backward_args)
NULL_OPERATION(rope, rope_args)
NULL_OPERATION(attention, attention_args)
NULL_OPERATION(attention_backward, attention_backward_args)
NULL_OPERATION(glu, glu_args)
NULL_OPERATION(glu_backward, glu_backward_args)
NULL_OPERATION(embedding, embedding_args)
NULL_OPERATION(embedding_backward, embedding_backward_args)
NULL_OPERATION(cross_entropy, cross_entropy_args)
NULL_OPERATION(softmax_stats, softmax_stats_args)
NULL_OPERATION(split_cross_entropy, split_cross_entropy_args)
NULL_OPERATION(adamw, adamw_args)
NULL_OPERATION(sum_squares, sum_squares_args)
NULL_OPERATION(clip, clip_args)
NULL_OPERATION(loss_sums, loss_sums_args)
NULL_OPERATION(dropout, dropout_args)
NULL_OPERATION(rows, rows_args)
NULL_OPERATION(add, add_args)
NULL_OPERATION(column_sum, column_sum_args)
NULL_OPERATION(column_scale, column_scale_args)
NULL_OPERATION(row_norm, row_norm_args)
NULL_OPERATION(divide, divide_args)
NULL_OPERATION(convert, convert_args)
NULL_OPERATION(convert_items, convert_items_args)
NULL_OPERATION(dequantize, dequantize_args)

static enum status null_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e) {
    return null_commit(device, at, bytes, e);
}

/* Nobody looks behind the address, so that host memory of any size can be planned. */
static enum status null_stage_new(struct device *device, int64_t bytes, void **out, struct err *e) {
    (void)bytes;
    return cpu_stage_new(device, 1, out, e);
}

static const struct device_ops NULL_OPS = {
    .close = null_close,
    .reserve = null_reserve,
    .unreserve = null_unreserve,
    .commit = null_commit,
    .decommit = null_decommit,
    .upload = null_transfer,
    .download = null_download,
    .copy = null_transfer,
    .fill_zero = null_fill_zero,
    .upload_rows = null_upload_rows,
    .stage_new = null_stage_new,
    .stage_free = cpu_stage_free,
    .stage_upload = null_upload_rows,
    .stage_wait = cpu_stage_wait,
    .stash = null_transfer,
    .fetch = null_transfer,
    .copies_wait = null_synchronize,
    .download_rows = null_download_rows,
    .synchronize = null_synchronize,
    .memory = null_memory,
    .attention_scratch = null_attention_scratch,
    .capture_begin = no_capture_begin,
    .capture_end = no_capture_end,
    .graph_launch = no_graph_launch,
    .graph_free = no_graph_free,
    .gemm = null_gemm,
    .rmsnorm = null_rmsnorm,
    .rmsnorm_backward = null_rmsnorm_backward,
    .rope = null_rope,
    .attention = null_attention,
    .attention_backward = null_attention_backward,
    .glu = null_glu,
    .glu_backward = null_glu_backward,
    .embedding = null_embedding,
    .embedding_backward = null_embedding_backward,
    .cross_entropy = null_cross_entropy,
    .softmax_stats = null_softmax_stats,
    .split_cross_entropy = null_split_cross_entropy,
    .adamw = null_adamw,
    .sum_squares = null_sum_squares,
    .clip = null_clip,
    .loss_sums = null_loss_sums,
    .dropout = null_dropout,
    .gather_rows = null_rows,
    .scatter_rows = null_rows,
    .add = null_add,
    .column_sum = null_column_sum,
    .column_scale = null_column_scale,
    .row_norm = null_row_norm,
    .divide = null_divide,
    .convert = null_convert,
    .convert_items = null_convert_items,
    .dequantize = null_dequantize,
};

const struct device_ops *null_device_table(void) {
    return &NULL_OPS;
}

enum status null_device_init(struct device *device, enum device_kind kind, struct err *e) {
    (void)e;
    device->ops = &NULL_OPS;
    device->kind = kind;
    device->computes = false;
    device->total_bytes = INT64_C(1) << 46;
    snprintf(device->detail, sizeof device->detail, "plans for %s, computes nothing",
             kind == DEVICE_CPU ? "the processor" : "a CUDA GPU");
    return STATUS_OK;
}
