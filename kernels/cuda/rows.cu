/* rows.cu - gather and scatter of whole rows by index.
 *
 * Rows are moved as bytes in the widest unit that pointers, pitches and width allow; what the
 * elements are does not matter, only their size. */
#include "kernels/cuda/common.cuh"

/* Rows that a thread has in flight. */
enum { ROWS = 2 };

/* Distances in units of U. */
struct rows_move {
    int64_t rows, width, ld_src, ld_dst;
    const int32_t *index;
    const void *src;
    void *dst;
};

/* Computes dst[i] = src[index[i]] or, to SCATTER, dst[index[i]] = src[i].
 * Grid: tile_rows; a thread one unit of ROWS rows at a time.
 * U: 16, 4 or 2 bytes. Bytes: 2 * sizeof(U) a unit, and the index. */
template <typename U, bool SCATTER>
__global__ void __launch_bounds__(256) move_rows_kernel(const struct rows_move a) {
    const int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= a.width) return;
    const int64_t step = (int64_t)gridDim.y * blockDim.y;
    int64_t row = (int64_t)blockIdx.y * blockDim.y + threadIdx.y;
    for (; row < a.rows; row += ROWS * step) {
        U unit[ROWS];
        int64_t to[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = row + r * step;
            if (at >= a.rows) break;
            const int64_t other = a.index[at];
            to[r] = SCATTER ? other : at;
            unit[r] = __ldcg((const U *)a.src + (SCATTER ? at : other) * a.ld_src + c);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (row + r * step < a.rows) __stcg((U *)a.dst + to[r] * a.ld_dst + c, unit[r]);
        }
    }
}

template <typename U, bool SCATTER>
static void launch_move(struct device *device, const struct rows_args *a) {
    const int64_t each = (int64_t)sizeof(U) / dtype_bytes(a->dtype);
    const struct rows_move move = {
        a->rows, a->width / each, a->ld_src / each, a->ld_dst / each, a->index, a->src, a->dst};
    const struct tiling tiling = tile_rows(device, move.rows, move.width);
    move_rows_kernel<U, SCATTER>
        <<<tiling.grid, tiling.block, 0, cuda_state_of(device)->stream>>>(move);
}

template <bool SCATTER>
static enum status move_rows(struct device *device, const struct rows_args *a,
                             const char *operation, struct err *e) {
    const int64_t size = dtype_bytes(a->dtype);
    FAIL_IF(size > 4, STATUS_INTERNAL, "%s on %s: rows of %s are not moved", operation,
            device->name, dtype_name(a->dtype));
    if (a->width * size % 16 == 0 && is_wide(a->src, a->ld_src, size) &&
        is_wide(a->dst, a->ld_dst, size)) {
        launch_move<uint4, SCATTER>(device, a);
    } else if (size == 4) {
        launch_move<uint32_t, SCATTER>(device, a);
    } else {
        launch_move<uint16_t, SCATTER>(device, a);
    }
    return cuda_launched(device, operation, e);
}

enum status cuda_gather_rows(struct device *device, const struct rows_args *a, struct err *e) {
    return move_rows<false>(device, a, "gather_rows", e);
}

enum status cuda_scatter_rows(struct device *device, const struct rows_args *a, struct err *e) {
    return move_rows<true>(device, a, "scatter_rows", e);
}
