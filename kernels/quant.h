/* quant.h - frozen weights in 4 or 8 bits: how they lie in memory, and what their codes mean.
 *
 * NF4 (Dettmers et al. 2023, QLoRA, section 3; values and layout of bitsandbytes): blocks of 64
 * elements, counted through a tensor's rows, have one scale, their largest magnitude; two codes a
 * byte, the first in the high bits. Doubly quantised, the scales are 8-bit codes themselves: their
 * mean is taken off, and each 256 have one scale. FP8: E4M3 (Micikevicius et al. 2022) with a scale
 * for each row. Several tensors that are one matrix here (q, k and v) are quantised one by one, as
 * the parts of it. Sizes are pure functions, so that a plan knows them. */
#ifndef PLIMSOLL_KERNELS_QUANT_H
#define PLIMSOLL_KERNELS_QUANT_H

#include <stdint.h>

enum quant { QUANT_NONE, QUANT_NF4, QUANT_NF4_DOUBLE, QUANT_FP8 };
enum { QUANT_BLOCK = 64, QUANT_NESTED = 256, QUANT_PARTS_MAX = 3 };
/* Columns are a whole number of these: what a thread of a device decodes at a time. */
enum { QUANT_GRANULE = 16 };
/* The largest value of E4M3. */
#define QUANT_FP8_MAX 448.0f

/* The 16 values of a code, quantiles of a normal distribution. */
#define QUANT_NF4_VALUES                                                                           \
    {                                                                                              \
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                  \
            -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,             \
            0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,                      \
            0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f,  \
            1.0f                                                                                   \
    }
/* A code is the number of these that a value lies above. */
enum { QUANT_NF4_STEPS = 15 };
#define QUANT_NF4_THRESHOLDS                                                                       \
    {                                                                                              \
        -0.8480964004993439f, -0.6106329262256622f, -0.4599952697753906f, -0.33967943489551544f,   \
            -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f,                  \
            0.03979014977812767f, 0.1202552504837513f, 0.2035212516784668f, 0.2920137718319893f,   \
            0.3893125355243683f, 0.5016634166240692f, 0.6427869200706482f, 0.8614784178118011f     \
    }

/* One stored tensor of a matrix: its rows, and where in the buffer what is kept of it begins. */
struct quant_part {
    int64_t first_row, rows;
    int64_t codes, scales, nested; /* bytes; nested: of doubly quantised scales, else 0 */
};

/* How a matrix lies in one buffer: all codes, all scales, all nested ones. */
struct quant_layout {
    enum quant quant;
    int64_t rows, cols, bytes; /* a multiple of 64 */
    int64_t part_count;
    struct quant_part parts[QUANT_PARTS_MAX];
};

static inline int64_t quant_code_bytes(enum quant quant, int64_t elements) {
    return quant == QUANT_FP8 ? elements : elements / 2;
}

/* Scales of a tensor [rows, cols]: of its blocks, or of its rows. */
static inline int64_t quant_scale_count(enum quant quant, int64_t rows, int64_t cols) {
    return quant == QUANT_FP8 ? rows : (rows * cols + QUANT_BLOCK - 1) / QUANT_BLOCK;
}

static inline int64_t quant_scale_bytes(enum quant quant, int64_t rows, int64_t cols) {
    return quant_scale_count(quant, rows, cols) * (quant == QUANT_NF4_DOUBLE ? 1 : 4);
}

/* f32: the mean that was taken off, then a scale for each QUANT_NESTED. */
static inline int64_t quant_nested_count(enum quant quant, int64_t rows, int64_t cols) {
    if (quant != QUANT_NF4_DOUBLE) return 0;
    return 1 + (quant_scale_count(quant, rows, cols) + QUANT_NESTED - 1) / QUANT_NESTED;
}

/* "nf4" for both, "float8_e4m3". */
const char *quant_name(enum quant quant);

/* Places what is kept of `layout`'s parts, whose rows are given; fills the rest. */
void quant_place(struct quant_layout *layout);

/* The 256 values of doubly quantised scales, rising: the dynamic map of 8-bit optimizers (Dettmers
 * et al. 2022, section 2). */
extern const float quant_dynamic_map[256];

#endif
