/* rope.cu - rotary position embedding in place, for all heads of a packed row at once.
 *
 * Sines and cosines are computed once a token and pair, in f32 with full range reduction (angles
 * reach the length of the context), kept in shared memory and used for every head; query and key
 * heads that lie side by side are one call. */
#include "kernels/cuda/common.cuh"

enum { THREADS = 256, PAIRS_MAX = 4096, ITEMS_WANTED = 1024, TOKENS_MAX = 32 };

/* Computes (x, y) -> (x cos - y sin, y cos + x sin) for pairs (i, i + rotary/2) of each head.
 * Grid: `each` tokens a block; a thread rotates N pairs of a head at a time, packs fastest, then
 * heads, then tokens. Shared: cos [each, pairs], sin [each, pairs].
 * T [tokens, heads*head_dim] in place; f32 in between. pairs = rotary/2, head_dim and ld are
 * multiples of N.
 * Bytes: 2 * sizeof(T) a rotated element. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) rope_kernel(const struct rope_args a, int each) {
    extern __shared__ float4 table[];
    const int pairs = (int)(a.rotary / 2), heads = (int)a.heads;
    float *cosines = (float *)table, *sines = cosines + each * pairs;
    const int64_t first = (int64_t)blockIdx.x * each;
    const int tokens = (int)(a.tokens - first < each ? a.tokens - first : each);
    const float sign = a.inverse ? -a.scale : a.scale;
    for (int i = (int)threadIdx.x; i < tokens * pairs; i += THREADS) {
        float sine, cosine;
        sincosf((float)a.positions[first + i / pairs] * a.inv_freq[i % pairs], &sine, &cosine);
        cosines[i] = cosine * a.scale;
        sines[i] = sine * sign;
    }
    __syncthreads();
    const int packs = pairs / N, row = heads * packs, items = tokens * row;
    for (int item = (int)threadIdx.x; item < items; item += THREADS) {
        const int t = item / row, rest = item - t * row;
        const int head = rest / packs, at = (rest - head * packs) * N;
        T *x_at = (T *)a.x + (first + t) * a.ld + (int64_t)head * a.head_dim + at;
        float x[N], y[N], cosine[N], sine[N];
        load_pack<T, N>(x_at, x);
        load_pack<T, N>(x_at + pairs, y);
        load_shared<N>(cosines + t * pairs + at, cosine);
        load_shared<N>(sines + t * pairs + at, sine);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float before = x[i];
            x[i] = before * cosine[i] - y[i] * sine[i];
            y[i] = y[i] * cosine[i] + before * sine[i];
        }
        store_pack<T, N>(x_at, x);
        store_pack<T, N>(x_at + pairs, y);
    }
}

/* Tokens of a block: enough work for its threads, enough blocks for the card, and tables that fit
 * several times into a multiprocessor. */
static int tokens_of_block(const struct cuda_state *state, const struct rope_args *a, int n) {
    const int64_t pairs = a->rotary / 2, items = divide_up(a->heads * pairs, n);
    int64_t each = divide_up(ITEMS_WANTED, items);
    const int64_t spread = a->tokens / (state->multiprocessors * (int64_t)4);
    if (each > spread) each = spread;
    if (each > PAIRS_MAX / 2 / pairs) each = PAIRS_MAX / 2 / pairs;
    if (each > TOKENS_MAX) each = TOKENS_MAX;
    return each < 1 ? 1 : (int)each;
}

template <typename T, int N>
static void launch_rope(const struct cuda_state *state, const struct rope_args *a) {
    const int each = tokens_of_block(state, a, N);
    const size_t bytes = (size_t)each * (size_t)a->rotary * sizeof(float);
    rope_kernel<T, N>
        <<<(unsigned)divide_up(a->tokens, each), THREADS, bytes, state->stream>>>(*a, each);
}

enum status cuda_rope(struct device *device, const struct rope_args *a, struct err *e) {
    FAIL_IF(a->rotary / 2 > PAIRS_MAX, STATUS_UNSUPPORTED,
            "rope: %lld rotated dimensions, at most %d are possible", (long long)a->rotary,
            2 * PAIRS_MAX);
    FAIL_IF(a->heads * a->rotary > INT32_MAX / TOKENS_MAX, STATUS_UNSUPPORTED,
            "rope: %lld heads of %lld rotated dimensions are more than one launch counts",
            (long long)a->heads, (long long)a->rotary);
    return launch_for(device, a->dtype, "rope", e, [&](auto one) {
        using T = decltype(one);
        constexpr int N = WIDE<T>;
        const struct cuda_state *state = cuda_state_of(device);
        if (a->rotary / 2 % N == 0 && a->head_dim % N == 0 && is_wide(a->x, a->ld, sizeof(T))) {
            launch_rope<T, N>(state, a);
        } else {
            launch_rope<T, 1>(state, a);
        }
    });
}
