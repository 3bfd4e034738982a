/* elementwise.cu - sums, quotients and conversion between element types, all of it nothing but
 * memory traffic.
 *
 * Every thread reads its elements before it writes them, so outputs may lie over inputs of the same
 * shape. */
#include "kernels/cuda/common.cuh"

/* Rows that a thread has in flight. */
enum { ROWS = 4 };

/* Computes out = a + b.
 * Grid: tile_rows; a thread one pack of ROWS rows at a time.
 * T [rows,cols], f32 in between. cols and the three ld multiples of N.
 * Bytes: 3 * sizeof(T) an element. */
template <typename T, int N>
__global__ void __launch_bounds__(256) add_kernel(const struct add_args a) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= a.cols) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    for (int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; row < a.rows; row += step) {
        float x[N], y[N];
        load_pack<T, N>((const T *)a.a + row * a.ld_a + c, x);
        load_pack<T, N>((const T *)a.b + row * a.ld_b + c, y);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] += y[i];
        }
        store_pack<T, N>((T *)a.out + row * a.ld_out + c, x);
    }
}

template <typename T, int N>
static void launch_add(struct device *device, const struct add_args *a) {
    const struct tiling tiling = tile_rows(device, a->rows, divide_up(a->cols, N));
    add_kernel<T, N><<<tiling.grid, tiling.block, 0, cuda_state_of(device)->stream>>>(*a);
}

enum status cuda_add(struct device *device, const struct add_args *a, struct err *e) {
    return launch_for(device, a->dtype, "add", e, [&](auto one) {
        using T = decltype(one);
        if (a->cols % WIDE<T> == 0 && is_wide(a->a, a->ld_a, sizeof(T)) &&
            is_wide(a->b, a->ld_b, sizeof(T)) && is_wide(a->out, a->ld_out, sizeof(T))) {
            launch_add<T, WIDE<T>>(device, a);
        } else {
            launch_add<T, 1>(device, a);
        }
    });
}

/* Computes out = a / b, f32. Grid: a thread an element. Bytes: 12 an element. */
static __global__ void __launch_bounds__(256) divide_kernel(const struct divide_args a) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.count) a.out[i] = a.a[i] / a.b[i];
}

enum status cuda_divide(struct device *device, const struct divide_args *a, struct err *e) {
    const unsigned blocks = (unsigned)divide_up(a->count, 256);
    divide_kernel<<<blocks, 256, 0, cuda_state_of(device)->stream>>>(*a);
    return cuda_launched(device, "divide", e);
}

/* Computes dst = scale * src, rounded to nearest even; a NaN stays one.
 * Grid: tile_rows; a thread one pack of ROWS rows at a time.
 * A [rows,cols] -> B [rows,cols], f32 in between. cols and both ld multiples of N (or of 16 bytes).
 * Bytes: sizeof(A) + sizeof(B) an element. */
template <typename A, typename B, int N>
__global__ void __launch_bounds__(256) convert_kernel(const struct convert_args a) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= a.cols) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row < a.rows; row += ROWS * step) {
        float x[ROWS][N];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = row + r * step;
            if (at < a.rows) load_pack<A, N>((const A *)a.src.data + at * a.src.ld + c, x[r]);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = row + r * step;
            if (at >= a.rows) break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[r][i] *= a.scale;
            }
            store_pack<B, N>((B *)a.dst.data + at * a.dst.ld + c, x[r]);
        }
    }
}

template <typename A, typename B, int N>
static void launch_convert(struct device *device, const struct convert_args *a) {
    const struct tiling tiling = tile_rows(device, a->rows, divide_up(a->cols, N));
    convert_kernel<A, B, N><<<tiling.grid, tiling.block, 0, cuda_state_of(device)->stream>>>(*a);
}

/* Rows without gaps are one long row: whatever their length, they are cut into whole packs. */
static struct convert_args flatten(const struct convert_args *a, int64_t pack) {
    struct convert_args flat = *a;
    if (a->src.ld == a->cols && a->dst.ld == a->cols && a->rows * a->cols % pack == 0) {
        flat.cols = flat.src.ld = flat.dst.ld = pack * 256;
        flat.rows = a->rows * a->cols / flat.cols;
        if (flat.rows * flat.cols != a->rows * a->cols) {
            flat.rows = 1;
            flat.cols = flat.src.ld = flat.dst.ld = a->rows * a->cols;
        }
    }
    return flat;
}

enum status cuda_convert(struct device *device, const struct convert_args *a, struct err *e) {
    enum status status = STATUS_OK;
    TRY(launch_for(device, a->src.dtype, "convert", e, [&](auto from) {
        using A = decltype(from);
        status = launch_for(device, a->dst.dtype, "convert", e, [&](auto to) {
            using B = decltype(to);
            constexpr int N = WIDE_OF_BOTH<A, B>;
            const struct convert_args flat = flatten(a, N);
            if (flat.cols % N == 0 && is_wide(flat.src.data, flat.src.ld, sizeof(A)) &&
                is_wide(flat.dst.data, flat.dst.ld, sizeof(B))) {
                launch_convert<A, B, N>(device, &flat);
            } else {
                launch_convert<A, B, 1>(device, a);
            }
        });
    }));
    return status;
}

/* One item by one row of blocks; a thread ROWS packs at a time, far enough apart that a warp's are
 * side by side. */
template <typename A, typename B, int N>
static __device__ __forceinline__ void convert_item(const struct convert_item &item) {
    const uint32_t across = (uint32_t)item.cols / N, packs = across * (uint32_t)item.rows;
    const float scale = (float)item.scale;
    const uint32_t step = gridDim.x * blockDim.x;
    for (uint32_t at = blockIdx.x * blockDim.x + threadIdx.x; at < packs; at += ROWS * step) {
        float x[ROWS][N];
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t pack = at + r * step, row = pack / across, c = (pack % across) * N;
            if (pack < packs) load_pack<A, N>((const A *)item.src + row * item.ld_src + c, x[r]);
        }
#pragma unroll
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t pack = at + r * step, row = pack / across, c = (pack % across) * N;
            if (pack >= packs) break;
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[r][i] *= scale;
            }
            store_pack<B, N>((B *)item.dst + row * item.ld_dst + c, x[r]);
        }
    }
}

template <typename T>
static __device__ __forceinline__ bool is_aligned(const void *at, int64_t ld) {
    return (uintptr_t)at % 16 == 0 && ld * (int64_t)sizeof(T) % 16 == 0;
}

/* Computes what cuda_convert does, for every item.
 * Grid: y an item, x over its packs, as many as the largest needs.
 * A -> B, f32 in between. Any shape: each item takes packs where its own numbers allow it.
 * Bytes: sizeof(A) + sizeof(B) an element. */
template <typename A, typename B>
__global__ void __launch_bounds__(256) convert_items_kernel(const struct convert_items_args a) {
    constexpr int N = WIDE_OF_BOTH<A, B>;
    const struct convert_item item = a.items[blockIdx.y];
    if (item.cols % N == 0 && is_aligned<A>(item.src, item.ld_src) &&
        is_aligned<B>(item.dst, item.ld_dst)) {
        convert_item<A, B, N>(item);
    } else {
        convert_item<A, B, 1>(item);
    }
}

enum status cuda_convert_items(struct device *device, const struct convert_items_args *a,
                               struct err *e) {
    enum status status = STATUS_OK;
    TRY(launch_for(device, a->src_dtype, "convert_items", e, [&](auto from) {
        using A = decltype(from);
        status = launch_for(device, a->dst_dtype, "convert_items", e, [&](auto to) {
            using B = decltype(to);
            const int64_t each = 256 * ROWS * WIDE_OF_BOTH<A, B>;
            const dim3 grid((unsigned)divide_up(a->largest, each), (unsigned)a->count);
            convert_items_kernel<A, B><<<grid, 256, 0, cuda_state_of(device)->stream>>>(*a);
        });
    }));
    return status;
}
