/* gemm_tune.c - times the candidate algorithms of a product on its own operands.
 *
 * Once per class of products, card and library; the result is kept on disk. Real operands, because
 * the speed of tensor cores depends on the numbers: zeros run 13 % faster. With beta == 0 the runs
 * only write what the product itself will write. Otherwise C would change with each run, so it is
 * kept in host memory meanwhile and put back bit for bit. This is the one place of the device that
 * waits and allocates inside an operation, and it does so once. */
#include "base/file.h"
#include "base/mem.h"
#include "kernels/cuda/gemm.h"

/* A C larger than this is not kept, and the heuristic decides. */
static const int64_t KEPT_BYTES_MAX = INT64_C(1) << 30;
/* How long one candidate is timed, and within how many runs. */
static const float TIMED_MS = 1.0F;
enum { RUNS_MIN = 2, RUNS_MAX = 20 };
/* A first run that is so much slower than the best so far ends the trial. */
static const float HOPELESS = 1.3F;

struct clock {
    cudaEvent_t start, stop;
};

static enum status clock_open(struct device *device, struct clock *clock, struct err *e) {
    TRY(cuda_check(device, cudaEventCreate(&clock->start), "gemm timing", e));
    return cuda_check(device, cudaEventCreate(&clock->stop), "gemm timing", e);
}

static void clock_close(struct clock *clock) {
    if (clock->start) (void)cudaEventDestroy(clock->start);
    if (clock->stop) (void)cudaEventDestroy(clock->stop);
}

/* The product that is timed. */
struct trial {
    const struct gemm_plan *plan;
    const struct gemm_args *args;
    struct clock clock;
};

/* Milliseconds of one run, over `runs`; negative when cuBLASLt refuses the algorithm. */
static enum status time_runs(struct device *device, const struct trial *trial,
                             const cublasLtMatmulAlgo_t *algorithm, int runs, float *ms,
                             struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    *ms = -1;
    TRY(cuda_check(device, cudaEventRecord(trial->clock.start, state->stream), "gemm timing", e));
    for (int i = 0; i < runs; i++) {
        if (gemm_start(device, trial->plan, trial->args, algorithm) != CUBLAS_STATUS_SUCCESS) {
            (void)cudaGetLastError();
            return STATUS_OK;
        }
    }
    TRY(cuda_check(device, cudaEventRecord(trial->clock.stop, state->stream), "gemm timing", e));
    TRY(cuda_check(device, cudaEventSynchronize(trial->clock.stop), "gemm timing", e));
    TRY(cuda_check(device, cudaEventElapsedTime(ms, trial->clock.start, trial->clock.stop),
                   "gemm timing", e));
    *ms /= (float)runs;
    return STATUS_OK;
}

/* One candidate: a run that loads the kernel, a run that decides whether it is worth more, and the
 * timed ones. */
static enum status try_one(struct device *device, const struct trial *trial,
                           const cublasLtMatmulAlgo_t *algorithm, float best, float *ms,
                           struct err *e) {
    TRY(time_runs(device, trial, algorithm, 1, ms, e));
    if (*ms < 0) return STATUS_OK;
    TRY(time_runs(device, trial, algorithm, 1, ms, e));
    if (*ms < 0 || (best > 0 && *ms > HOPELESS * best)) return STATUS_OK;
    const float wanted = TIMED_MS / (*ms > 0.001F ? *ms : 0.001F);
    const int runs = wanted < RUNS_MIN ? RUNS_MIN : wanted > RUNS_MAX ? RUNS_MAX : (int)wanted;
    return time_runs(device, trial, algorithm, runs, ms, e);
}

static struct transfer transfer_of(const struct gemm_args *a, void *host) {
    const int64_t element = dtype_bytes(a->c.dtype);
    return (struct transfer){.device = a->c.data,
                             .device_pitch = a->c.ld * element,
                             .host = host,
                             .host_pitch = a->n * element,
                             .width = a->n * element,
                             .rows = a->m};
}

static enum status try_all(struct device *device, const struct trial *trial,
                           const struct gemm_candidates *candidates, struct gemm_choice *out,
                           struct err *e) {
    float best = 0;
    for (int i = 0; i < candidates->count; i++) {
        float ms = -1;
        TRY(try_one(device, trial, &candidates->items[i].algo, best, &ms, e));
        if (ms < 0 || (best > 0 && ms >= best)) continue;
        best = ms;
        out->algorithm = candidates->items[i].algo;
    }
    const int64_t ns = (int64_t)(best * 1e6F);
    out->time_ns = best > 0 && ns == 0 ? 1 : ns;
    return STATUS_OK;
}

enum status gemm_tune(struct device *device, const struct gemm_plan *plan,
                      const struct gemm_args *args, const struct gemm_candidates *candidates,
                      struct gemm_choice *out, struct err *e) {
    enum status status = STATUS_OK;
    struct trial trial = {.plan = plan, .args = args};
    const int64_t began_ns = clock_steady_ns();
    const int64_t kept_bytes = args->beta == 0 ? 0 : args->m * args->n * dtype_bytes(args->c.dtype);
    out->time_ns = 0;
    if (kept_bytes > KEPT_BYTES_MAX) return STATUS_OK;
    void *kept = kept_bytes ? mem_new(1, (size_t)kept_bytes) : NULL;
    const struct transfer transfer = transfer_of(args, kept);
    GUARD(clock_open(device, &trial.clock, e));
    if (kept) GUARD(cuda_download_rows(device, &transfer, e));
    GUARD(try_all(device, &trial, candidates, out, e));
    if (kept) GUARD(cuda_upload_rows(device, &transfer, e));

done:
    clock_close(&trial.clock);
    mem_free(kept);
    cuda_state_of(device)->gemm->tuning_ns += clock_steady_ns() - began_ns;
    return status;
}
