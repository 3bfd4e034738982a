/* copies.c - copies between card and host that run beside the computation, on a stream for each
 * direction, since the bus carries both at once.
 *
 * Events order the streams: a copy begins when the computing stream has done what was asked before
 * it, a fetch also when the stashes asked before it are done, and copies_wait lets the computing
 * stream, never the host, wait for all of them. Both ends are read and written by the copy engine
 * alone, which takes page-locked memory only. */
#include "base/mem.h"
#include "kernels/cuda/cuda.h"

enum way { AWAY, BACK, WAYS };

struct cuda_copies {
    cudaStream_t streams[WAYS];
    cudaEvent_t asked;      /* of the computing stream, when a copy was asked for */
    cudaEvent_t done[WAYS]; /* of a stream, when somebody waited for it */
};

static enum status new_event(struct device *device, cudaEvent_t *event, struct err *e) {
    return cuda_check(device, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "opening",
                      e);
}

enum status cuda_copies_open(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_copies *copies = state->copies = mem_new(1, sizeof *copies);
    for (int way = 0; way < WAYS; way++) {
        TRY(cuda_check(device,
                       cudaStreamCreateWithFlags(&copies->streams[way], cudaStreamNonBlocking),
                       "opening", e));
        TRY(new_event(device, &copies->done[way], e));
    }
    return new_event(device, &copies->asked, e);
}

void cuda_copies_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_copies *copies = state->copies;
    if (!copies) return;
    for (int way = 0; way < WAYS; way++) {
        if (copies->streams[way]) (void)cudaStreamDestroy(copies->streams[way]);
        if (copies->done[way]) (void)cudaEventDestroy(copies->done[way]);
    }
    if (copies->asked) (void)cudaEventDestroy(copies->asked);
    mem_free(copies);
    state->copies = NULL;
}

cudaError_t cuda_idle(const struct cuda_state *state) {
    cudaError_t error = cudaStreamSynchronize(state->stream);
    for (int way = 0; error == cudaSuccess && state->copies && way < WAYS; way++) {
        const cudaStream_t stream = state->copies->streams[way];
        if (stream) error = cudaStreamSynchronize(stream);
    }
    return error;
}

/* `stream` goes on when what `other` was asked for is done. */
static enum status wait_for(struct device *device, cudaStream_t stream, cudaStream_t other,
                            cudaEvent_t event, struct err *e) {
    TRY(cuda_check(device, cudaEventRecord(event, other), "waiting for copies", e));
    return cuda_check(device, cudaStreamWaitEvent(stream, event, 0), "waiting for copies", e);
}

static enum status copy_beside(struct device *device, void *to, const void *from, int64_t bytes,
                               enum way way, struct err *e) {
    const char *operation = way == AWAY ? "stash" : "fetch";
    const enum cudaMemcpyKind kind = way == AWAY ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    const struct cuda_state *state = cuda_state_of(device);
    const struct cuda_copies *copies = state->copies;
    const cudaStream_t stream = copies->streams[way];
    TRY(wait_for(device, stream, state->stream, copies->asked, e));
    TRY(cuda_check(device, cudaMemcpyAsync(to, from, (size_t)bytes, kind, stream), operation, e));
    return device->blocking ? cuda_check(device, cuda_idle(state), operation, e) : STATUS_OK;
}

enum status cuda_stash(struct device *device, void *host, const void *from, int64_t bytes,
                       struct err *e) {
    return copy_beside(device, host, from, bytes, AWAY, e);
}

enum status cuda_fetch(struct device *device, void *to, const void *host, int64_t bytes,
                       struct err *e) {
    const struct cuda_copies *copies = cuda_state_of(device)->copies;
    TRY(wait_for(device, copies->streams[BACK], copies->streams[AWAY], copies->done[AWAY], e));
    return copy_beside(device, to, host, bytes, BACK, e);
}

enum status cuda_copies_wait(struct device *device, struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    for (int way = 0; way < WAYS; way++) {
        TRY(wait_for(device, state->stream, state->copies->streams[way], state->copies->done[way],
                     e));
    }
    return STATUS_OK;
}
