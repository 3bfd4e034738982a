/* cuda_sizes.c - the scratch of the CUDA device's attention, for the device and for plans alike.
 *
 * The forward needs what the library may want. The backward keeps delta and sums dq in f32; our own
 * kernels may sum dk and dv there as well, in the place where the library has copies of what it
 * reads and writes, without gaps between rows. Every part begins at a multiple of 512 bytes, as
 * every allocation of the arena does. */
#include "kernels/cuda_sizes.h"

enum { PART_BYTES = 512, WIDE_COUNT = 6, NARROW_COUNT = 4, HALF = 2 };

static int64_t whole_parts(int64_t bytes) {
    return (bytes + PART_BYTES - 1) / PART_BYTES * PART_BYTES;
}

bool cuda_sizes_library_takes(const struct attention_args *args) {
    return args->dtype != DTYPE_F32 && !(args->softcap > 0) && args->head_dim % 8 == 0 &&
           args->head_dim <= CUDA_LIBRARY_HEAD_DIM_MAX;
}

struct cuda_attention_parts cuda_attention_parts(const struct attention_args *args) {
    const int64_t f32 = (int64_t)sizeof(float);
    const bool library = cuda_sizes_library_takes(args);
    const int64_t tokens = args->tokens + (library ? CUDA_LIBRARY_ROWS : 0);
    const int64_t rows = args->heads * tokens, wide = rows * args->head_dim;
    const int64_t ours =
        args->dtype == DTYPE_F32 ? 0 : 2 * args->tokens * args->heads * args->head_dim * f32;
    struct cuda_attention_parts parts = {.delta = 0};
    parts.dq = parts.delta + whole_parts(rows * f32);
    parts.stats = parts.dq + whole_parts(wide * f32);
    parts.dkv = parts.stats + (library ? whole_parts(rows * f32) : 0);
    parts.wide = parts.narrow = parts.dkv;
    parts.library = parts.bytes = parts.dkv + whole_parts(ours);
    if (!library) return parts;
    parts.wide_stride = whole_parts(wide * HALF);
    parts.narrow_stride = whole_parts(tokens * args->kv_heads * args->head_dim * HALF);
    parts.narrow = parts.wide + WIDE_COUNT * parts.wide_stride; /* more than our own want */
    parts.library = parts.narrow + NARROW_COUNT * parts.narrow_stride;
    parts.bytes = parts.library + CUDA_LIBRARY_SCRATCH;
    return parts;
}

int64_t cuda_sizes_attention_scratch(const struct attention_args *args, bool backward) {
    if (backward) return cuda_attention_parts(args).bytes;
    return cuda_sizes_library_takes(args) ? CUDA_LIBRARY_SCRATCH : 0;
}
