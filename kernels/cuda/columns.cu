/* columns.cu - sums over rows, scales of columns, norms of rows: what biases, DoRA and the
 * gradients of norm weights need.
 *
 * Sums over rows have two stages of fixed shapes: parts of the rows go to the workspace, then the
 * parts are added in order. No atomics: the same bits every time. */
#include "kernels/cuda/common.cuh"

enum {
    DEPTH = 8, /* rows that the warps of a block sum at a time */
    PART_ROWS = 32,
    FINISH_DEPTH = 32
};

/* Computes out[c] = (accumulate ? out[c] : 0) + sum of parts[p, c] over p.
 * Grid: 32 columns a block; 32 rows of threads take every 32nd part, and are added in order.
 * f32. Bytes: 4 an element of parts. */
static __global__ void __launch_bounds__(WARP *FINISH_DEPTH)
    sum_parts_kernel(const float *parts, int64_t count, int64_t cols, float *out, bool accumulate) {
    __shared__ float partial[FINISH_DEPTH][WARP + 1];
    const int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    float sum = 0;
    if (c < cols) {
#pragma unroll 4
        for (int64_t p = threadIdx.y; p < count; p += FINISH_DEPTH) {
            sum += parts[p * cols + c];
        }
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    /* Each warp now has a column: its lanes hold the sums of the 32 rows of threads. */
    const float total = warp_sum(partial[threadIdx.x][threadIdx.y]);
    const int64_t column = (int64_t)blockIdx.x * WARP + threadIdx.y;
    if (threadIdx.x == 0 && column < cols) out[column] = accumulate ? out[column] + total : total;
}

enum status cuda_sum_parts(struct device *device, const float *parts, int64_t count, int64_t cols,
                           float *out, bool accumulate, struct err *e) {
    const unsigned blocks = (unsigned)divide_up(cols, WARP);
    sum_parts_kernel<<<blocks, dim3(WARP, FINISH_DEPTH), 0, cuda_state_of(device)->stream>>>(
        parts, count, cols, out, accumulate);
    return cuda_launched(device, "sum_parts", e);
}

/* Computes parts[blockIdx.y, c] = sum of x (times y) over the rows of this part.
 * Grid: x over chunks of 32*N columns, y over parts; warp w takes every DEPTH-th row of the part
 * from w on, and the warps are added in order.
 * T [rows,cols], f32 sums. cols and both ld multiples of N.
 * Bytes: sizeof(T) (twice with y) an element. */
template <typename T, int N, bool PRODUCT>
__global__ void __launch_bounds__(WARP *DEPTH)
    column_sum_kernel(const struct column_sum_args a, float *parts) {
    __shared__ float partial[DEPTH][WARP * N];
    const int64_t c = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N;
    const int64_t each = (a.rows + gridDim.y - 1) / gridDim.y, from = blockIdx.y * each;
    const int64_t to = from + each < a.rows ? from + each : a.rows;
    float sum[N] = {};
    if (c < a.cols) {
#pragma unroll 4
        for (int64_t row = from + threadIdx.y; row < to; row += DEPTH) {
            float x[N], y[N];
            load_pack<T, N>((const T *)a.x + row * a.ld_x + c, x);
            if constexpr (PRODUCT) load_pack<T, N>((const T *)a.y + row * a.ld_y + c, y);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if constexpr (PRODUCT) {
                    sum[i] += x[i] * y[i];
                } else {
                    sum[i] += x[i];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        partial[threadIdx.y][threadIdx.x * N + i] = sum[i];
    }
    __syncthreads();
    for (int i = (int)(threadIdx.y * WARP + threadIdx.x); i < WARP * N; i += WARP * DEPTH) {
        const int64_t column = (int64_t)blockIdx.x * (WARP * N) + i;
        if (column >= a.cols) continue;
        float total = 0;
        for (int w = 0; w < DEPTH; w++) {
            total += partial[w][i];
        }
        parts[blockIdx.y * a.cols + column] = total;
    }
}

/* Blocks for the whole card, but no part so short that the second stage costs more than it. */
static int64_t choose_parts(const struct device *device, const struct cuda_state *state,
                            const struct column_sum_args *a, int64_t chunks) {
    int64_t parts = divide_up(state->multiprocessors * (int64_t)8, chunks);
    const int64_t useful = divide_up(a->rows, PART_ROWS);
    const int64_t most = device->workspace_bytes / (a->cols * (int64_t)sizeof(float));
    if (parts > useful) parts = useful;
    if (parts > most) parts = most;
    return parts < 65535 ? parts : 65535;
}

template <typename T, int N>
static int64_t launch_column_sum(struct device *device, const struct column_sum_args *a) {
    const struct cuda_state *state = cuda_state_of(device);
    const int64_t chunks = divide_up(a->cols, WARP * N);
    const int64_t parts = choose_parts(device, state, a, chunks);
    const dim3 grid((unsigned)chunks, (unsigned)parts), block(WARP, DEPTH);
    float *workspace = (float *)device->workspace;
    if (a->y) {
        column_sum_kernel<T, N, true><<<grid, block, 0, state->stream>>>(*a, workspace);
    } else {
        column_sum_kernel<T, N, false><<<grid, block, 0, state->stream>>>(*a, workspace);
    }
    return parts;
}

enum status cuda_column_sum(struct device *device, const struct column_sum_args *a, struct err *e) {
    FAIL_IF(a->cols * (int64_t)sizeof(float) > device->workspace_bytes, STATUS_UNSUPPORTED,
            "column_sum: %lld columns do not fit into the workspace", (long long)a->cols);
    int64_t parts = 0;
    TRY(launch_for(device, a->dtype, "column_sum", e, [&](auto one) {
        using T = decltype(one);
        if (a->cols % WIDE<T> == 0 && is_wide(a->x, a->ld_x, sizeof(T)) &&
            (!a->y || is_wide(a->y, a->ld_y, sizeof(T)))) {
            parts = launch_column_sum<T, WIDE<T>>(device, a);
        } else {
            parts = launch_column_sum<T, 1>(device, a);
        }
    }));
    return cuda_sum_parts(device, (const float *)device->workspace, parts, a->cols, a->out,
                          a->accumulate, e);
}

/* Computes out[t,c] = (accumulate ? out[t,c] : 0) + x[t,c] * scale[c] + bias[c].
 * Grid: tile_rows; a thread one pack of columns, whose scale and bias it keeps, a loop over rows.
 * T [rows,cols], f32 in between. cols and both ld multiples of N.
 * Bytes: 2 (3 to accumulate) * sizeof(T) an element. */
template <typename T, int N>
__global__ void __launch_bounds__(256) column_scale_kernel(const struct column_scale_args a) {
    const int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= a.cols) return;
    float scale[N], bias[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        scale[i] = 1;
        bias[i] = 0;
    }
    if (a.scale) load_weights<N>(a.scale + c, scale);
    if (a.bias) load_weights<N>(a.bias + c, bias);
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row < a.rows; row += step) {
        T *out_at = (T *)a.out + row * a.ld_out + c;
        float x[N], out[N];
        load_pack<T, N>((const T *)a.x + row * a.ld_x + c, x);
        if (a.accumulate) load_pack<T, N>(out_at, out);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = x[i] * scale[i] + bias[i];
            if (a.accumulate) x[i] += out[i];
        }
        store_pack<T, N>(out_at, x);
    }
}

template <typename T, int N>
static void launch_column_scale(struct device *device, const struct column_scale_args *a) {
    const struct tiling tiling = tile_rows(device, a->rows, divide_up(a->cols, N));
    column_scale_kernel<T, N><<<tiling.grid, tiling.block, 0, cuda_state_of(device)->stream>>>(*a);
}

enum status cuda_column_scale(struct device *device, const struct column_scale_args *a,
                              struct err *e) {
    return launch_for(device, a->dtype, "column_scale", e, [&](auto one) {
        using T = decltype(one);
        if (a->cols % WIDE<T> == 0 && is_wide(a->x, a->ld_x, sizeof(T)) &&
            is_wide(a->out, a->ld_out, sizeof(T)) && is_wide(a->scale, 0, 4) &&
            is_wide(a->bias, 0, 4)) {
            launch_column_scale<T, WIDE<T>>(device, a);
        } else {
            launch_column_scale<T, 1>(device, a);
        }
    });
}

/* Computes out[r] = sqrt(sum of x[r,n]^2), f32. Grid: a block a row. cols and ld multiples of N.
 * Bytes: 4 an element. */
template <int N>
__global__ void __launch_bounds__(256) row_norm_kernel(const struct row_norm_args a) {
    __shared__ float shared[WARP];
    const float *x_row = a.x + (int64_t)blockIdx.x * a.ld;
    float sum = 0;
#pragma unroll 4
    for (int64_t c = (int64_t)threadIdx.x * N; c < a.cols; c += 256 * N) {
        float x[N];
        load_pack<float, N>(x_row + c, x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            sum += x[i] * x[i];
        }
    }
    const float total = block_sum(sum, shared);
    if (threadIdx.x == 0) a.out[blockIdx.x] = sqrtf(total);
}

enum status cuda_row_norm(struct device *device, const struct row_norm_args *a, struct err *e) {
    constexpr int N = WIDE<float>;
    const cudaStream_t stream = cuda_state_of(device)->stream;
    if (a->cols % N == 0 && is_wide(a->x, a->ld, sizeof(float))) {
        row_norm_kernel<N><<<(unsigned)a->rows, 256, 0, stream>>>(*a);
    } else {
        row_norm_kernel<1><<<(unsigned)a->rows, 256, 0, stream>>>(*a);
    }
    return cuda_launched(device, "row_norm", e);
}
