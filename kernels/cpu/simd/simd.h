/* simd.h - the operations of the CPU device that are compiled once for each instruction level.
 * Private to kernels/cpu.
 *
 * Every file of this folder is built with CPU_LEVEL = plain, avx2 and avx512
 * (kernels/CMakeLists.txt); SIMD(name) gives its few public functions the name of their level, and
 * table.c of each level collects them. Loops are written for the compiler's vectoriser. Parallel
 * loops have static schedules and write disjoint outputs, so that the same number of threads gives
 * the same bits. */
#ifndef PLIMSOLL_KERNELS_SIMD_H
#define PLIMSOLL_KERNELS_SIMD_H

#include "kernels/device.h"

#ifndef CPU_LEVEL
#define CPU_LEVEL plain
#endif
#define SIMD_JOIN_NAMES(name, level) name##_##level
#define SIMD_JOIN(name, level) SIMD_JOIN_NAMES(name, level)
#define SIMD(name) SIMD_JOIN(name, CPU_LEVEL)

/* Below this many elements a second thread costs more than it brings (a fork and join is a few
 * microseconds). */
enum { PARALLEL_MIN = 16384 };

static inline int64_t simd_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t simd_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

enum status SIMD(cpu_rmsnorm)(struct device *, const struct rmsnorm_args *, struct err *);
enum status SIMD(cpu_rmsnorm_backward)(struct device *, const struct rmsnorm_backward_args *,
                                       struct err *);
enum status SIMD(cpu_rope)(struct device *, const struct rope_args *, struct err *);
enum status SIMD(cpu_attention)(struct device *, const struct attention_args *, struct err *);
enum status SIMD(cpu_attention_backward)(struct device *, const struct attention_backward_args *,
                                         struct err *);
enum status SIMD(cpu_glu)(struct device *, const struct glu_args *, struct err *);
enum status SIMD(cpu_glu_backward)(struct device *, const struct glu_backward_args *, struct err *);
enum status SIMD(cpu_embedding)(struct device *, const struct embedding_args *, struct err *);
enum status SIMD(cpu_embedding_backward)(struct device *, const struct embedding_backward_args *,
                                         struct err *);
enum status SIMD(cpu_cross_entropy)(struct device *, const struct cross_entropy_args *,
                                    struct err *);
enum status SIMD(cpu_softmax_stats)(struct device *, const struct softmax_stats_args *,
                                    struct err *);
enum status SIMD(cpu_split_cross_entropy)(struct device *, const struct split_cross_entropy_args *,
                                          struct err *);
enum status SIMD(cpu_adamw)(struct device *, const struct adamw_args *, struct err *);
enum status SIMD(cpu_sum_squares)(struct device *, const struct sum_squares_args *, struct err *);
enum status SIMD(cpu_clip)(struct device *, const struct clip_args *, struct err *);
enum status SIMD(cpu_loss_sums)(struct device *, const struct loss_sums_args *, struct err *);
enum status SIMD(cpu_dropout)(struct device *, const struct dropout_args *, struct err *);
enum status SIMD(cpu_gather_rows)(struct device *, const struct rows_args *, struct err *);
enum status SIMD(cpu_scatter_rows)(struct device *, const struct rows_args *, struct err *);
enum status SIMD(cpu_add)(struct device *, const struct add_args *, struct err *);
enum status SIMD(cpu_column_sum)(struct device *, const struct column_sum_args *, struct err *);
enum status SIMD(cpu_column_scale)(struct device *, const struct column_scale_args *, struct err *);
enum status SIMD(cpu_row_norm)(struct device *, const struct row_norm_args *, struct err *);
enum status SIMD(cpu_divide)(struct device *, const struct divide_args *, struct err *);
enum status SIMD(cpu_convert)(struct device *, const struct convert_args *, struct err *);
enum status SIMD(cpu_convert_items)(struct device *, const struct convert_items_args *,
                                    struct err *);
enum status SIMD(cpu_dequantize)(struct device *, const struct dequantize_args *, struct err *);

#endif
