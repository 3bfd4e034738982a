/* copies.c - copies between card and host that run beside the computation, on a stream of their
 * own.
 *
 * Events order the two streams: a copy begins when the computing stream has done what was asked
 * before it, and copies_wait lets the computing stream, never the host, wait for the copies. Both
 * ends are read and written by the copy engine alone, which takes page-locked memory only. */
#include "base/mem.h"
#include "kernels/cuda/cuda.h"

struct cuda_copies {
    cudaStream_t stream;
    cudaEvent_t asked; /* of the computing stream, when a copy was asked for */
    cudaEvent_t done;  /* of this one, when somebody waited */
};

enum status cuda_copies_open(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_copies *copies = state->copies = mem_new(1, sizeof *copies);
    TRY(cuda_check(device, cudaStreamCreateWithFlags(&copies->stream, cudaStreamNonBlocking),
                   "opening", e));
    TRY(cuda_check(device, cudaEventCreateWithFlags(&copies->asked, cudaEventDisableTiming),
                   "opening", e));
    return cuda_check(device, cudaEventCreateWithFlags(&copies->done, cudaEventDisableTiming),
                      "opening", e);
}

void cuda_copies_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_copies *copies = state->copies;
    if (!copies) return;
    if (copies->stream) (void)cudaStreamDestroy(copies->stream);
    if (copies->asked) (void)cudaEventDestroy(copies->asked);
    if (copies->done) (void)cudaEventDestroy(copies->done);
    mem_free(copies);
    state->copies = NULL;
}

cudaError_t cuda_idle(const struct cuda_state *state) {
    const cudaError_t error = cudaStreamSynchronize(state->stream);
    if (error != cudaSuccess || !state->copies || !state->copies->stream) return error;
    return cudaStreamSynchronize(state->copies->stream);
}

/* `way` names the direction for CUDA and for errors. */
static enum status copy_beside(struct device *device, void *to, const void *from, int64_t bytes,
                               enum cudaMemcpyKind way, struct err *e) {
    const char *operation = way == cudaMemcpyDeviceToHost ? "stash" : "fetch";
    const struct cuda_state *state = cuda_state_of(device);
    const struct cuda_copies *copies = state->copies;
    TRY(cuda_check(device, cudaEventRecord(copies->asked, state->stream), operation, e));
    TRY(cuda_check(device, cudaStreamWaitEvent(copies->stream, copies->asked, 0), operation, e));
    TRY(cuda_check(device, cudaMemcpyAsync(to, from, (size_t)bytes, way, copies->stream), operation,
                   e));
    return device->blocking ? cuda_check(device, cuda_idle(state), operation, e) : STATUS_OK;
}

enum status cuda_stash(struct device *device, void *host, const void *from, int64_t bytes,
                       struct err *e) {
    return copy_beside(device, host, from, bytes, cudaMemcpyDeviceToHost, e);
}

enum status cuda_fetch(struct device *device, void *to, const void *host, int64_t bytes,
                       struct err *e) {
    return copy_beside(device, to, host, bytes, cudaMemcpyHostToDevice, e);
}

enum status cuda_copies_wait(struct device *device, struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    const struct cuda_copies *copies = state->copies;
    TRY(cuda_check(device, cudaEventRecord(copies->done, copies->stream), "copies_wait", e));
    return cuda_check(device, cudaStreamWaitEvent(state->stream, copies->done, 0), "copies_wait",
                      e);
}
