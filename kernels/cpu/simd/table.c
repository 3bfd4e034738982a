/* table.c - the CPU device's table of operations for one instruction level.
 *
 * Memory and products are the same at every level (kernels/cpu); everything else comes from this
 * folder. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/graph_none.h"

extern const struct device_ops SIMD(cpu_ops);

const struct device_ops SIMD(cpu_ops) = {
    .close = cpu_close,
    .reserve = cpu_reserve,
    .unreserve = cpu_unreserve,
    .commit = cpu_commit,
    .decommit = cpu_decommit,
    .upload = cpu_transfer,
    .download = cpu_transfer,
    .copy = cpu_transfer,
    .fill_zero = cpu_fill_zero,
    .upload_rows = cpu_upload_rows,
    .stage_new = cpu_stage_new,
    .stage_free = cpu_stage_free,
    .stage_upload = cpu_upload_rows,
    .stage_wait = cpu_stage_wait,
    .stash = cpu_transfer,
    .fetch = cpu_transfer,
    .copies_wait = cpu_synchronize,
    .download_rows = cpu_download_rows,
    .synchronize = cpu_synchronize,
    .memory = cpu_memory,
    .attention_scratch = cpu_attention_scratch,
    .capture_begin = no_capture_begin,
    .capture_end = no_capture_end,
    .graph_launch = no_graph_launch,
    .graph_free = no_graph_free,
    .gemm = cpu_gemm,
    .rmsnorm = SIMD(cpu_rmsnorm),
    .rmsnorm_backward = SIMD(cpu_rmsnorm_backward),
    .rope = SIMD(cpu_rope),
    .attention = SIMD(cpu_attention),
    .attention_backward = SIMD(cpu_attention_backward),
    .glu = SIMD(cpu_glu),
    .glu_backward = SIMD(cpu_glu_backward),
    .embedding = SIMD(cpu_embedding),
    .embedding_backward = SIMD(cpu_embedding_backward),
    .cross_entropy = SIMD(cpu_cross_entropy),
    .softmax_stats = SIMD(cpu_softmax_stats),
    .split_cross_entropy = SIMD(cpu_split_cross_entropy),
    .adamw = SIMD(cpu_adamw),
    .sum_squares = SIMD(cpu_sum_squares),
    .clip = SIMD(cpu_clip),
    .loss_sums = SIMD(cpu_loss_sums),
    .dropout = SIMD(cpu_dropout),
    .gather_rows = SIMD(cpu_gather_rows),
    .scatter_rows = SIMD(cpu_scatter_rows),
    .add = SIMD(cpu_add),
    .column_sum = SIMD(cpu_column_sum),
    .column_scale = SIMD(cpu_column_scale),
    .row_norm = SIMD(cpu_row_norm),
    .divide = SIMD(cpu_divide),
    .convert = SIMD(cpu_convert),
    .convert_items = SIMD(cpu_convert_items),
};
