/* norm.cu - root-mean-square norm, forward with its fused residual and backward.
 *
 * A row is held in registers between its reduction and its output, so that every input is read
 * once and every output written once. Short rows (heads) take a part of a warp each, long rows a
 * block; rows that are odd, or too long for that, take the plain kernels, which read twice. The
 * gradient of the weight is summed in registers by blocks that walk over many rows, and then over
 * the blocks in a fixed order: no atomics. */
#include "kernels/cuda/common.cuh"

/* Threads of a row, and packs of each thread. */
struct row_shape {
    int threads, lanes, packs_each;
};

/* A zeroed shape where a row does not fit into the registers of `threads_max` threads. */
static struct row_shape choose_shape(int64_t packs, int threads_max) {
    struct row_shape shape = {256, WARP, 1};
    if (packs <= WARP) {
        shape.lanes = 1;
        while (shape.lanes < packs) {
            shape.lanes *= 2;
        }
    } else if (packs <= 2 * WARP) {
        shape.packs_each = 2;
    } else if (packs <= 4 * WARP) {
        shape.packs_each = 4;
    } else {
        shape.packs_each = packs <= 1024 ? 2 : 4;
        const int64_t threads = divide_up(divide_up(packs, shape.packs_each), WARP) * WARP;
        shape.threads = shape.lanes = (int)(threads <= threads_max ? threads : 0);
    }
    return shape;
}

/* The sum over the threads of one row, in all of them. */
static __device__ __forceinline__ float row_sum(float value, int lanes, float *shared) {
    return lanes <= WARP ? warp_sum(value, lanes) : block_sum(value, shared);
}

/* Computes y = x * rstd * (offset + weight), with x + residual for x where there is one.
 * Grid: rows over blocks, `lanes` threads a row, thread `lane` owns packs lane + p*lanes.
 * T [rows,width] in and out, f32 in between, weight f32. width a multiple of WIDE<T>, at most
 * lanes * P packs; everything aligned to 16 bytes.
 * Bytes: 2 (4 with residual) * sizeof(T) an element. */
template <typename T, int P>
__global__ void __launch_bounds__(1024) rmsnorm_kernel(const struct rmsnorm_args a, int lanes) {
    constexpr int N = WIDE<T>;
    __shared__ float shared[WARP];
    const int packs = (int)(a.width / N), lane = (int)threadIdx.x % lanes;
    const uint32_t rows = (uint32_t)(a.tokens * a.groups), groups = (uint32_t)a.groups;
    const uint32_t row = blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes;
    const uint32_t t = groups == 1 ? row : row / groups;
    const int64_t offset = (int64_t)(row - t * groups) * a.width;
    const bool valid = row < rows;
    uint4 raw[P];
    {
        const T *x = (const T *)a.x + t * a.ld_x + offset;
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            raw[p] = make_uint4(0, 0, 0, 0);
            if (valid && c < packs) raw[p] = load_16(x + (int64_t)c * N);
        }
    }
    if (a.residual) {
        const T *residual = (const T *)a.residual + t * a.ld_residual + offset;
        T *sum = (T *)a.sum + t * a.ld_sum + offset;
        uint4 other[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            other[p] = make_uint4(0, 0, 0, 0);
            if (valid && c < packs) other[p] = load_16(residual + (int64_t)c * N);
        }
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            float x[N], r[N];
            unpack<T>(raw[p], x);
            unpack<T>(other[p], r);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] += r[i];
            }
            raw[p] = pack<T>(x);
            if (valid && c < packs) store_16(sum + (int64_t)c * N, raw[p]);
        }
    }
    float squares = 0;
#pragma unroll
    for (int p = 0; p < P; p++) {
        float x[N];
        unpack<T>(raw[p], x);
#pragma unroll
        for (int i = 0; i < N; i++) {
            squares += x[i] * x[i];
        }
    }
    const float mean = row_sum(squares, lanes, shared) / (float)a.width;
    const float rstd = 1.0f / sqrtf(mean + a.eps);
    if (valid && lane == 0) a.rstd[row] = rstd;
    T *y = (T *)a.y + t * a.ld_y + offset;
#pragma unroll
    for (int p = 0; p < P; p++) {
        const int c = lane + p * lanes;
        if (!valid || c >= packs) continue;
        float x[N], weight[N];
        unpack<T>(raw[p], x);
        load_weights<N>(a.weight + (int64_t)c * N, weight);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = x[i] * rstd * (a.weight_offset + weight[i]);
        }
        store_16(y + (int64_t)c * N, pack<T>(x));
    }
}

/* The same for any width and alignment: one block a row, which is read twice. */
template <typename T>
__global__ void __launch_bounds__(256) rmsnorm_plain_kernel(const struct rmsnorm_args a) {
    __shared__ float shared[WARP];
    const int64_t row = blockIdx.x, t = row / a.groups, offset = row % a.groups * a.width;
    const T *x = (const T *)a.x + t * a.ld_x + offset;
    float squares = 0;
    if (a.residual) {
        const T *residual = (const T *)a.residual + t * a.ld_residual + offset;
        T *sum = (T *)a.sum + t * a.ld_sum + offset;
        for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
            sum[i] = from_float<T>(to_float(x[i]) + to_float(residual[i]));
        }
        /* Each thread reads back only what it wrote itself. */
        x = sum;
    }
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        const float value = to_float(x[i]);
        squares += value * value;
    }
    const float rstd = 1.0f / sqrtf(block_sum(squares, shared) / (float)a.width + a.eps);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
    T *y = (T *)a.y + t * a.ld_y + offset;
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        y[i] = from_float<T>(to_float(x[i]) * rstd * (a.weight_offset + a.weight[i]));
    }
}

static enum status check_rows(int64_t tokens, int64_t groups, struct err *e) {
    FAIL_IF(tokens > INT32_MAX / groups, STATUS_UNSUPPORTED,
            "rmsnorm: %lld tokens of %lld groups are more rows than one launch counts",
            (long long)tokens, (long long)groups);
    return STATUS_OK;
}

template <typename T> static bool is_wide_norm(const struct rmsnorm_args *a) {
    const int64_t size = sizeof(T);
    return a->width % WIDE<T> == 0 && is_wide(a->x, a->ld_x, size) &&
           is_wide(a->y, a->ld_y, size) && is_wide(a->weight, 0, 4) &&
           (!a->residual ||
            (is_wide(a->residual, a->ld_residual, size) && is_wide(a->sum, a->ld_sum, size)));
}

template <typename T>
static void launch_rmsnorm(cudaStream_t stream, const struct rmsnorm_args *a) {
    const int64_t rows = a->tokens * a->groups;
    const struct row_shape shape = choose_shape(a->width / WIDE<T>, 1024);
    if (!is_wide_norm<T>(a) || !shape.threads) {
        rmsnorm_plain_kernel<T><<<(unsigned)rows, 256, 0, stream>>>(*a);
        return;
    }
    const unsigned blocks = (unsigned)divide_up(rows, shape.threads / shape.lanes);
    if (shape.packs_each == 1) {
        rmsnorm_kernel<T, 1><<<blocks, shape.threads, 0, stream>>>(*a, shape.lanes);
    } else if (shape.packs_each == 2) {
        rmsnorm_kernel<T, 2><<<blocks, shape.threads, 0, stream>>>(*a, shape.lanes);
    } else {
        rmsnorm_kernel<T, 4><<<blocks, shape.threads, 0, stream>>>(*a, shape.lanes);
    }
}

enum status cuda_rmsnorm(struct device *device, const struct rmsnorm_args *a, struct err *e) {
    TRY(check_rows(a->tokens, a->groups, e));
    return launch_for(device, a->dtype, "rmsnorm", e, [&](auto one) {
        launch_rmsnorm<decltype(one)>(cuda_state_of(device)->stream, a);
    });
}

/* Computes, with g = dy*(offset+weight): dx (+)= rstd * (g - x * rstd^2 * mean(g*x)), and with
 * WEIGHT parts[block] = sum over the block's rows of dy*x*rstd.
 * Grid: blocks walk over the rows; threads as in rmsnorm_kernel, so that each keeps its columns.
 * T [rows,width], f32 in between; the limits of rmsnorm_kernel. `slots` is [rows of a block, width]
 * where a block holds several rows, for their sum.
 * Bytes: 3 (4 to accumulate) * sizeof(T) an element. */
template <typename T, int P, bool WEIGHT>
__global__ void __launch_bounds__(512, P == 1 && !WEIGHT  ? 3
                                       : P == 4 && WEIGHT ? 1
                                                          : 2)
    rmsnorm_backward_kernel(const struct rmsnorm_backward_args a, int lanes, float *parts) {
    constexpr int N = WIDE<T>;
    extern __shared__ float4 dynamic[];
    float *slots = (float *)dynamic;
    __shared__ float shared[2][WARP];
    const int packs = (int)(a.width / N), lane = (int)threadIdx.x % lanes;
    const uint32_t slot = threadIdx.x / lanes, per_block = blockDim.x / lanes;
    const uint32_t rows = (uint32_t)(a.tokens * a.groups), groups = (uint32_t)a.groups;
    float dweight[WEIGHT ? P : 1][N] = {};
    int turn = 0;
    for (int64_t base = (int64_t)blockIdx.x * per_block; base < rows;
         base += (int64_t)gridDim.x * per_block, turn ^= 1) {
        const uint32_t row = (uint32_t)base + slot;
        const uint32_t t = groups == 1 ? row : row / groups;
        const int64_t offset = (int64_t)(row - t * groups) * a.width;
        const bool valid = row < rows;
        const float rstd = valid ? a.rstd[row] : 0.0f;
        const T *x_row = (const T *)a.x + t * a.ld_x + offset;
        const T *dy_row = (const T *)a.dy + t * a.ld_dy + offset;
        T *dx_row = (T *)a.dx + t * a.ld_dx + offset;
        uint4 x_raw[P], dy_raw[P];
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            x_raw[p] = dy_raw[p] = make_uint4(0, 0, 0, 0);
            if (!valid || c >= packs) continue;
            x_raw[p] = load_16(x_row + (int64_t)c * N);
            dy_raw[p] = load_16(dy_row + (int64_t)c * N);
        }
        float dot = 0;
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            if (c >= packs) continue;
            float x[N], dy[N], weight[N];
            unpack<T>(x_raw[p], x);
            unpack<T>(dy_raw[p], dy);
            load_weights<N>(a.weight + (int64_t)c * N, weight);
#pragma unroll
            for (int i = 0; i < N; i++) {
                dot += dy[i] * (a.weight_offset + weight[i]) * x[i];
                if constexpr (WEIGHT) dweight[p][i] += dy[i] * x[i] * rstd;
            }
        }
        const float pull = row_sum(dot, lanes, shared[turn]) * rstd * rstd / (float)a.width;
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            if (!valid || c >= packs) continue;
            float x[N], dy[N], weight[N];
            unpack<T>(x_raw[p], x);
            unpack<T>(dy_raw[p], dy);
            load_weights<N>(a.weight + (int64_t)c * N, weight);
#pragma unroll
            for (int i = 0; i < N; i++) {
                x[i] = rstd * (dy[i] * (a.weight_offset + weight[i]) - x[i] * pull);
            }
            if (a.accumulate) {
                load_pack<T, N>(dx_row + (int64_t)c * N, dy);
#pragma unroll
                for (int i = 0; i < N; i++) {
                    x[i] += dy[i];
                }
            }
            store_16(dx_row + (int64_t)c * N, pack<T>(x));
        }
    }
    if constexpr (WEIGHT) {
        float *part = parts + (int64_t)blockIdx.x * a.width;
        float *own = slots + (int64_t)slot * a.width;
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int c = lane + p * lanes;
            if (c >= packs) continue;
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const int at = c * N + i;
                if (per_block == 1) {
                    store_pack<float, 4>(part + at, &dweight[p][i]);
                } else {
                    *(float4 *)(own + at) = *(const float4 *)&dweight[p][i];
                }
            }
        }
        if (per_block == 1) return;
        __syncthreads();
        for (int c = (int)threadIdx.x; c < (int)a.width; c += (int)blockDim.x) {
            float sum = 0;
            for (uint32_t s = 0; s < per_block; s++) {
                sum += slots[s * (uint32_t)a.width + (uint32_t)c];
            }
            part[c] = sum;
        }
    }
}

/* dx for any width and alignment: one block a row, which is read twice. */
template <typename T>
__global__ void __launch_bounds__(256)
    rmsnorm_backward_plain_kernel(const struct rmsnorm_backward_args a) {
    __shared__ float shared[WARP];
    const int64_t row = blockIdx.x, t = row / a.groups, offset = row % a.groups * a.width;
    const T *x = (const T *)a.x + t * a.ld_x + offset;
    const T *dy = (const T *)a.dy + t * a.ld_dy + offset;
    T *dx = (T *)a.dx + t * a.ld_dx + offset;
    const float rstd = a.rstd[row];
    float dot = 0;
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        dot += to_float(dy[i]) * (a.weight_offset + a.weight[i]) * to_float(x[i]);
    }
    const float pull = block_sum(dot, shared) * rstd * rstd / (float)a.width;
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        const float g = to_float(dy[i]) * (a.weight_offset + a.weight[i]);
        const float value = rstd * (g - to_float(x[i]) * pull);
        dx[i] = from_float<T>(a.accumulate ? to_float(dx[i]) + value : value);
    }
}

/* parts[blockIdx.y, c] = sum of dy*x*rstd over the rows of this part; a thread a column. */
template <typename T>
__global__ void __launch_bounds__(256)
    rmsnorm_weight_plain_kernel(const struct rmsnorm_backward_args a, float *parts) {
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= a.width) return;
    const int64_t rows = a.tokens * a.groups;
    float sum = 0;
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        const int64_t t = row / a.groups, at = row % a.groups * a.width + c;
        sum += to_float(((const T *)a.dy)[t * a.ld_dy + at]) *
               to_float(((const T *)a.x)[t * a.ld_x + at]) * a.rstd[row];
    }
    parts[blockIdx.y * a.width + c] = sum;
}

template <typename T> static bool is_wide_backward(const struct rmsnorm_backward_args *a) {
    const int64_t size = sizeof(T);
    return a->width % WIDE<T> == 0 && is_wide(a->x, a->ld_x, size) &&
           is_wide(a->dy, a->ld_dy, size) && is_wide(a->dx, a->ld_dx, size) &&
           is_wide(a->weight, 0, 4);
}

/* As many parts of the weight's gradient as the workspace takes. */
static int64_t most_parts(const struct device *device, int64_t width) {
    return device->workspace_bytes / (width * (int64_t)sizeof(float));
}

/* Returns how many parts of dweight lie in the workspace now. */
template <typename T, int P>
static int64_t launch_backward(struct device *device, const struct rmsnorm_backward_args *a,
                               struct row_shape shape) {
    const struct cuda_state *state = cuda_state_of(device);
    const int per_block = shape.threads / shape.lanes;
    const int64_t all = divide_up(a->tokens * a->groups, per_block);
    if (!a->dweight) {
        rmsnorm_backward_kernel<T, P, false>
            <<<(unsigned)all, shape.threads, 0, state->stream>>>(*a, shape.lanes, NULL);
        return 0;
    }
    /* 64 registers a thread are 1024 threads a multiprocessor. */
    const int64_t resident = state->multiprocessors * (int64_t)(1024 / shape.threads);
    int64_t blocks = all < resident ? all : resident;
    if (blocks > most_parts(device, a->width)) blocks = most_parts(device, a->width);
    const size_t bytes = per_block == 1 ? 0 : (size_t)per_block * (size_t)a->width * sizeof(float);
    rmsnorm_backward_kernel<T, P, true><<<(unsigned)blocks, shape.threads, bytes, state->stream>>>(
        *a, shape.lanes, (float *)device->workspace);
    return blocks;
}

/* The weight first: dx may be where dy is. */
template <typename T>
static int64_t launch_backward_plain(struct device *device, const struct rmsnorm_backward_args *a) {
    const struct cuda_state *state = cuda_state_of(device);
    const int64_t rows = a->tokens * a->groups, across = divide_up(a->width, 256);
    int64_t parts = 0;
    if (a->dweight) {
        parts = divide_up(state->multiprocessors * (int64_t)8, across);
        if (parts > rows) parts = rows;
        if (parts > most_parts(device, a->width)) parts = most_parts(device, a->width);
        rmsnorm_weight_plain_kernel<T>
            <<<dim3((unsigned)across, (unsigned)parts), 256, 0, state->stream>>>(
                *a, (float *)device->workspace);
    }
    rmsnorm_backward_plain_kernel<T><<<(unsigned)rows, 256, 0, state->stream>>>(*a);
    return parts;
}

enum status cuda_rmsnorm_backward(struct device *device, const struct rmsnorm_backward_args *a,
                                  struct err *e) {
    TRY(check_rows(a->tokens, a->groups, e));
    FAIL_IF(a->dweight && most_parts(device, a->width) < 1, STATUS_UNSUPPORTED,
            "rmsnorm_backward: a row of %lld elements does not fit into the workspace",
            (long long)a->width);
    int64_t parts = 0;
    TRY(launch_for(device, a->dtype, "rmsnorm_backward", e, [&](auto one) {
        using T = decltype(one);
        const struct row_shape shape = choose_shape(a->width / WIDE<T>, 512);
        if (!is_wide_backward<T>(a) || !shape.threads) {
            parts = launch_backward_plain<T>(device, a);
        } else if (shape.packs_each == 1) {
            parts = launch_backward<T, 1>(device, a, shape);
        } else if (shape.packs_each == 2) {
            parts = launch_backward<T, 2>(device, a, shape);
        } else {
            parts = launch_backward<T, 4>(device, a, shape);
        }
    }));
    if (!a->dweight) return STATUS_OK;
    return cuda_sum_parts(device, (const float *)device->workspace, parts, a->width, a->dweight,
                          true, e);
}
