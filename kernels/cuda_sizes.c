/* cuda_sizes.c - the scratch of the CUDA device's attention, for the device and for plans alike.
 *
 * The forward needs what the library may want. The backward keeps delta and sums dq in f32; the
 * library's gradients lie apart until they are copied to where they belong. Every part begins at a
 * multiple of 512 bytes, as every allocation of the arena does. */
#include "kernels/cuda_sizes.h"

enum { PART_BYTES = 512 };

static int64_t whole_parts(int64_t bytes) {
    return (bytes + PART_BYTES - 1) / PART_BYTES * PART_BYTES;
}

struct cuda_attention_parts cuda_attention_parts(const struct attention_args *args) {
    const int64_t f32 = (int64_t)sizeof(float);
    const int64_t rows = args->heads * args->tokens, wide = rows * args->head_dim;
    const bool narrow = args->dtype != DTYPE_F32;
    struct cuda_attention_parts parts = {.delta = 0};
    parts.dq = parts.delta + whole_parts(rows * f32);
    parts.dkv = parts.dq + whole_parts(wide * f32);
    parts.library = parts.dkv + (narrow ? whole_parts(2 * wide * f32) : 0);
    parts.bytes = parts.library + (narrow ? CUDA_LIBRARY_SCRATCH : 0);
    return parts;
}

int64_t cuda_sizes_attention_scratch(const struct attention_args *args, bool backward) {
    if (backward) return cuda_attention_parts(args).bytes;
    return args->dtype == DTYPE_F32 ? 0 : CUDA_LIBRARY_SCRATCH;
}
