/* dropout.cu - dropout by Philox.
 *
 * The bits of the mask are those of every other device (kernels/philox.h): each row draws from its
 * own key, a quad of columns from one counter, so that the mask depends on no launch shape. */
#include "kernels/cuda/common.cuh"
#include "kernels/philox.h"

/* What the kernel needs of the drawing, prepared on the host. */
struct draw {
    uint64_t key;
    uint32_t threshold;
    float scale;
};

/* keep[i] = scale or 0 for column c + i. c is a multiple of 4 where N is more than 1. */
template <int N>
static __device__ __forceinline__ void draw_pack(const struct draw &d, int64_t row_key, int64_t c,
                                                 float *keep) {
    if constexpr (N == 1) {
        const struct philox block = philox_quad(d.key, row_key, (uint32_t)(c / 4));
        const int which = (int)(c % 4);
        const uint32_t low = which == 0 ? block.word[0] : block.word[1];
        const uint32_t high = which == 2 ? block.word[2] : block.word[3];
        keep[0] = (which < 2 ? low : high) >= d.threshold ? d.scale : 0.0f;
    } else {
#pragma unroll
        for (int q = 0; q < N / 4; q++) {
            const struct philox block = philox_quad(d.key, row_key, (uint32_t)(c / 4 + q));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                keep[4 * q + i] = block.word[i] >= d.threshold ? d.scale : 0.0f;
            }
        }
    }
}

/* Computes y (+)= keep ? x * scale : 0. A dropped value is 0 even where x is not finite.
 * Grid: tile_rows; a thread one pack, a loop over rows.
 * T [rows,width], f32 in between. width and both ld multiples of N.
 * Bytes: 2 (3 to accumulate) * sizeof(T) an element; about 20 integer operations. */
template <typename T, int N>
__global__ void __launch_bounds__(256)
    dropout_kernel(const struct dropout_args a, const struct draw d) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= a.width) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row < a.rows; row += step) {
        T *y_at = (T *)a.y + row * a.ld_y + c;
        float x[N], keep[N];
        load_pack<T, N>((const T *)a.x + row * a.ld_x + c, x);
        draw_pack<N>(d, a.row_keys[row], a.first + c, keep);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = keep[i] != 0 ? x[i] * keep[i] : 0.0f;
        }
        if (a.accumulate) {
            float y[N];
            load_pack<T, N>(y_at, y);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] += y[i];
            }
        }
        store_pack<T, N>(y_at, x);
    }
}

template <typename T, int N>
static void launch_dropout(struct device *device, const struct dropout_args *a) {
    const struct draw d = {philox_stream_key(a->seed, a->stream), philox_drop_threshold(a->p),
                           1.0f / (1.0f - a->p)};
    const struct tiling tiling = tile_rows(device, a->rows, divide_up(a->width, N));
    dropout_kernel<T, N><<<tiling.grid, tiling.block, 0, cuda_state_of(device)->stream>>>(*a, d);
}

enum status cuda_dropout(struct device *device, const struct dropout_args *a, struct err *e) {
    return launch_for(device, a->dtype, "dropout", e, [&](auto one) {
        using T = decltype(one);
        if (a->first % 4 == 0 && a->width % WIDE<T> == 0 && is_wide(a->x, a->ld_x, sizeof(T)) &&
            is_wide(a->y, a->ld_y, sizeof(T))) {
            launch_dropout<T, WIDE<T>>(device, a);
        } else {
            launch_dropout<T, 1>(device, a);
        }
    });
}
