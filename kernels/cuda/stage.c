/* stage.c - uploads straight from pinned memory that the loader fills: no copy on the host.
 *
 * The loader's threads read files into this memory and the copy engine takes it from there, so
 * every byte is moved once by a core and once by the bus. Each upload has an event; waiting for the
 * event of an older upload tells that its piece may be filled again. All go through the device's
 * one stream, so what is asked for later sees the bytes. */
#include "base/mem.h"
#include "kernels/cuda/cuda.h"

/* One more than may be pending, so that the event that is waited for is never one of a later
 * upload. */
enum { EVENTS = STAGE_PENDING_MAX + 1 };

struct cuda_stage {
    cudaEvent_t taken[EVENTS];
    int64_t uploads; /* asked for so far; upload i has the event i % EVENTS */
};

static enum status open_stage(struct device *device, struct err *e) {
    struct cuda_state *const state = cuda_state_of(device);
    if (state->stage) return STATUS_OK;
    state->stage = mem_new(1, sizeof *state->stage);
    for (int i = 0; i < EVENTS; i++) {
        TRY(cuda_check(device,
                       cudaEventCreateWithFlags(&state->stage->taken[i],
                                                cudaEventDisableTiming | cudaEventBlockingSync),
                       "opening", e));
    }
    return STATUS_OK;
}

void cuda_stage_close(struct device *device) {
    struct cuda_state *const state = cuda_state_of(device);
    if (!state->stage) return;
    for (int i = 0; i < EVENTS; i++) {
        if (state->stage->taken[i]) (void)cudaEventDestroy(state->stage->taken[i]);
    }
    mem_free(state->stage);
    state->stage = NULL;
}

enum status cuda_stage_new(struct device *device, int64_t bytes, void **out, struct err *e) {
    TRY(open_stage(device, e));
    return cuda_check(device, cudaHostAlloc(out, (size_t)bytes, cudaHostAllocDefault),
                      "pinning host memory for loading", e);
}

void cuda_stage_free(struct device *device, void *at) {
    (void)device;
    (void)cudaFreeHost(at);
}

enum status cuda_stage_upload(struct device *device, const struct transfer *t, struct err *e) {
    struct cuda_state *const state = cuda_state_of(device);
    struct cuda_stage *const stage = state->stage;
    ASSERT(stage); /* the memory comes from cuda_stage_new */
    const bool dense = t->rows == 1 || (t->host_pitch == t->width && t->device_pitch == t->width);
    const size_t width = (size_t)t->width, rows = (size_t)t->rows;
    const cudaError_t error = dense ? cudaMemcpyAsync(t->device, t->host, width * rows,
                                                      cudaMemcpyHostToDevice, state->stream)
                                    : cudaMemcpy2DAsync(t->device, (size_t)t->device_pitch, t->host,
                                                        (size_t)t->host_pitch, width, rows,
                                                        cudaMemcpyHostToDevice, state->stream);
    TRY(cuda_check(device, error, "upload", e));
    const cudaEvent_t taken = stage->taken[stage->uploads++ % EVENTS];
    TRY(cuda_check(device, cudaEventRecord(taken, state->stream), "upload", e));
    return cuda_launched(device, "upload", e);
}

enum status cuda_stage_wait(struct device *device, int64_t pending, struct err *e) {
    const struct cuda_stage *const stage = cuda_state_of(device)->stage;
    if (!stage || stage->uploads <= pending) return STATUS_OK;
    const cudaEvent_t taken = stage->taken[(stage->uploads - pending - 1) % EVENTS];
    return cuda_check(device, cudaEventSynchronize(taken), "upload", e);
}
