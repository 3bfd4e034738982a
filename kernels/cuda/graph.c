/* graph.c - CUDA graphs: what goes to the stream is written down, made executable, and launched.
 *
 * One launch instead of a thousand spares the host their cost and the card the gaps between short
 * kernels. Capture is relaxed: what the host does beside the stream meanwhile (asking cuBLASLt's
 * heuristic, setting a kernel's attributes) is allowed; products are not timed then (gemm_plan.c).
 * Memory that the driver takes for a graph lies outside the arena, so it is measured. A captured
 * stream must not be queried or waited for, which would spoil the capture: `capturing` says so to
 * whoever handles errors. */
#include "kernels/cuda/cuda.h"

static enum status free_bytes(struct device *device, int64_t *bytes, struct err *e) {
    struct device_memory memory = {0};
    TRY(cuda_memory_info(device, &memory, e));
    *bytes = memory.free;
    return STATUS_OK;
}

enum status cuda_capture_begin(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    FAIL_IF(device->blocking, STATUS_UNSUPPORTED,
            "%s: with cuda_launch_blocking nothing is captured", device->name);
    TRY(cuda_check(device, cudaStreamBeginCapture(state->stream, cudaStreamCaptureModeRelaxed),
                   "beginning a graph", e));
    state->capturing = true;
    return STATUS_OK;
}

/* Executable and on the card; its memory is what is then less free than before. */
static enum status make(struct device *device, cudaGraph_t written, struct device_graph *out,
                        struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    cudaGraphExec_t made = NULL;
    size_t nodes = 0;
    int64_t before = 0, after = 0;
    TRY(cuda_check(device, cudaGraphGetNodes(written, NULL, &nodes), "counting a graph", e));
    TRY(free_bytes(device, &before, e));
    TRY(cuda_check(device, cudaGraphInstantiate(&made, written, 0), "making a graph", e));
    enum status status =
        cuda_check(device, cudaGraphUpload(made, state->stream), "uploading a graph", e);
    if (status == STATUS_OK) status = free_bytes(device, &after, e);
    if (status != STATUS_OK) {
        (void)cudaGraphExecDestroy(made);
        return status;
    }
    *out = (struct device_graph){
        .state = made, .nodes = (int64_t)nodes, .bytes = before > after ? before - after : 0};
    return STATUS_OK;
}

enum status cuda_capture_end(struct device *device, struct device_graph *out, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    cudaGraph_t written = NULL;
    const cudaError_t error = cudaStreamEndCapture(state->stream, &written);
    state->capturing = false;
    enum status status = cuda_check(device, error, "ending a graph", e);
    if (status == STATUS_OK) status = make(device, written, out, e);
    if (written) (void)cudaGraphDestroy(written);
    return status;
}

enum status cuda_graph_launch(struct device *device, const struct device_graph *graph,
                              struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    return cuda_check(device, cudaGraphLaunch((cudaGraphExec_t)graph->state, state->stream),
                      "launching a graph", e);
}

/* The card may still be at work on it. */
void cuda_graph_free(struct device *device, struct device_graph *graph) {
    (void)cudaStreamSynchronize(cuda_state_of(device)->stream);
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph->state);
}
