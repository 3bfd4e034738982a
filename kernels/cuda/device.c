/* device.c - opening a card: which one, what it is, and the table of its operations.
 *
 * Owns the errors of the CUDA device. CUDA reports what a kernel did wrong at some later call, and
 * after a fault inside a kernel every call fails for as long as the process lives. So the first
 * such error is kept and repeated: whoever asks next, a download or the next step, ends the rank
 * with the cause. With device->blocking each operation is waited for, and the text names the one
 * that failed. The opening errors say what is missing and what to do, since most of their readers
 * have no card or a driver that is too old. */
#include "kernels/cuda/cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/start_trace.h"
#include "base/str.h"

/* The tensor-core kernels use bf16 mma and cp.async, which begin with Ampere. */
enum { CAPABILITY_MIN = 80 };

static const char DRIVER_VERSION_FILE[] = "/sys/module/nvidia/version";
enum { DRIVER_VERSION_BYTES_MAX = 4096 };

const char *cuda_environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* True if CUDA will answer this way for ever: a fault of the program or of the card, after which a
 * harmless question fails too. */
static bool is_sticky(const struct cuda_state *state) {
    (void)cudaGetLastError();
    if (!state->stream) return false;   /* still opening: asking would start the card */
    if (state->capturing) return false; /* asking would spoil the capture */
    const cudaError_t now = cudaStreamQuery(state->stream);
    return now != cudaSuccess && now != cudaErrorNotReady;
}

enum status cuda_check(struct device *device, cudaError_t error, const char *operation,
                       struct err *e) {
    if (error == cudaSuccess) return STATUS_OK;
    struct cuda_state *state = cuda_state_of(device);
    if (state->failed.status != STATUS_OK)
        return err_set(e, STATUS_DEVICE, "%s", state->failed.text);
    struct err now = {0};
    const bool sticky = is_sticky(state);
    const bool named = device->blocking || !sticky;
    err_set(&now, STATUS_DEVICE, "%s on %s (%s): %s (%s)%s", operation, device->name, state->card,
            cudaGetErrorString(error), cudaGetErrorName(error),
            named ? ""
                  : "; it may come from an operation before this one, which "
                    "cuda_launch_blocking names");
    if (sticky) state->failed = now;
    return err_set(e, STATUS_DEVICE, "%s", now.text);
}

enum status cuda_launched(struct device *device, const char *operation, struct err *e) {
    TRY(cuda_check(device, cudaGetLastError(), operation, e));
    if (!device->blocking) return STATUS_OK;
    return cuda_check(device, cudaStreamSynchronize(cuda_state_of(device)->stream), operation, e);
}

enum status cuda_synchronize(struct device *device, struct err *e) {
    return cuda_check(device, cuda_idle(cuda_state_of(device)), "synchronize", e);
}

/* The parts in the order in which they are opened; closed in reverse. */
static const struct {
    enum status (*open)(struct device *, struct err *);
    void (*close)(struct device *);
    const char *done; /* in the trace of a start */
} PARTS[] = {
    {cuda_driver_open, cuda_driver_close, "driver's functions found"},
    {cuda_memory_open, cuda_memory_close, "virtual memory ready"},
    {cuda_transfer_open, cuda_transfer_close, "transfer ring ready"},
    {cuda_copies_open, cuda_copies_close, "copies ready"},
    {cuda_gemm_open, cuda_gemm_close, "cuBLASLt ready"},
    {cuda_dnn_open, cuda_dnn_close, "cuDNN looked for"},
};

/* Every close accepts a part that was never opened. */
static void cuda_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    if (!state) return;
    if (state->stream) (void)cuda_idle(state);
    cuda_stage_close(device);
    for (size_t i = COUNT_OF(PARTS); i-- > 0;) {
        PARTS[i].close(device);
    }
    if (state->stream) (void)cudaStreamDestroy(state->stream);
    mem_free(state);
    device->state = NULL;
}

static const struct device_ops CUDA_OPS = {
    .close = cuda_close,
    .reserve = cuda_reserve,
    .unreserve = cuda_unreserve,
    .commit = cuda_commit,
    .decommit = cuda_decommit,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .fill_zero = cuda_fill_zero,
    .upload_rows = cuda_upload_rows,
    .stage_new = cuda_stage_new,
    .stage_free = cuda_stage_free,
    .stage_upload = cuda_stage_upload,
    .stage_wait = cuda_stage_wait,
    .stash = cuda_stash,
    .fetch = cuda_fetch,
    .copies_wait = cuda_copies_wait,
    .download_rows = cuda_download_rows,
    .synchronize = cuda_synchronize,
    .memory = cuda_memory_info,
    .attention_scratch = cuda_attention_scratch,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_launch = cuda_graph_launch,
    .graph_free = cuda_graph_free,
    .gemm = cuda_gemm,
    .rmsnorm = cuda_rmsnorm,
    .rmsnorm_backward = cuda_rmsnorm_backward,
    .rope = cuda_rope,
    .attention = cuda_attention,
    .attention_backward = cuda_attention_backward,
    .glu = cuda_glu,
    .glu_backward = cuda_glu_backward,
    .embedding = cuda_embedding,
    .embedding_backward = cuda_embedding_backward,
    .cross_entropy = cuda_cross_entropy,
    .softmax_stats = cuda_softmax_stats,
    .split_cross_entropy = cuda_split_cross_entropy,
    .adamw = cuda_adamw,
    .sum_squares = cuda_sum_squares,
    .clip = cuda_clip,
    .loss_sums = cuda_loss_sums,
    .dropout = cuda_dropout,
    .gather_rows = cuda_gather_rows,
    .scatter_rows = cuda_scatter_rows,
    .add = cuda_add,
    .column_sum = cuda_column_sum,
    .column_scale = cuda_column_scale,
    .row_norm = cuda_row_norm,
    .divide = cuda_divide,
    .convert = cuda_convert,
    .convert_items = cuda_convert_items,
    .dequantize = cuda_dequantize,
};

/* " (CUDA_VISIBLE_DEVICES is "1", which may hide others)", or nothing. Returns `buffer`. */
static const char *hidden_cards(char *buffer, size_t capacity) {
    const char *visible = cuda_environment("CUDA_VISIBLE_DEVICES");
    if (visible)
        snprintf(
            buffer, capacity,
            "; CUDA_VISIBLE_DEVICES is \"%.100s\", which hides every GPU that it does not name",
            visible);
    else
        buffer[0] = '\0';
    return buffer;
}

/* Why CUDA could not count cards. */
static enum status no_card(const struct device *device, cudaError_t error, struct err *e) {
    char hint[192];
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    FAIL_IF(driver == 0, STATUS_UNSUPPORTED,
            "device %s: there is no NVIDIA driver on this machine (libcuda.so.1 was not found); "
            "install one for CUDA %d, or set device to \"cpu\"",
            device->name, CUDART_VERSION / 1000);
    FAIL_IF(error == cudaErrorInsufficientDriver, STATUS_UNSUPPORTED,
            "device %s: the NVIDIA driver is for CUDA %d.%d and this build needs %d.0; install a "
            "newer driver, or set device to \"cpu\"",
            device->name, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    FAIL_IF(error == cudaErrorNoDevice || error == cudaErrorInvalidDevice, STATUS_UNSUPPORTED,
            "device %s: the NVIDIA driver shows no GPU%s", device->name,
            hidden_cards(hint, sizeof hint));
    return err_set(e, STATUS_DEVICE, "device %s: the NVIDIA driver does not start: %s (%s)",
                   device->name, cudaGetErrorString(error), cudaGetErrorName(error));
}

enum status cuda_count_cards(const struct device *device, int *count, struct err *e) {
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaSuccess && *count > 0) return STATUS_OK;
    *count = 0;
    return no_card(device, error != cudaSuccess ? error : cudaErrorNoDevice, e);
}

static enum status check_ordinal(const struct device *device, int ordinal, struct err *e) {
    int count = 0;
    char hint[192];
    TRY(cuda_count_cards(device, &count, e));
    FAIL_IF(ordinal >= count, STATUS_UNSUPPORTED,
            "device %s: CUDA shows %d %s here, so the last one is cuda:%d%s", device->name, count,
            count == 1 ? "GPU" : "GPUs", count - 1, hidden_cards(hint, sizeof hint));
    return STATUS_OK;
}

static int attribute(const struct cuda_state *state, enum cudaDeviceAttr which) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, state->ordinal) == cudaSuccess ? value : 0;
}

enum status cuda_check_capability(const char *device, const char *card, int capability,
                                  struct err *e) {
    FAIL_IF(capability < CAPABILITY_MIN, STATUS_UNSUPPORTED,
            "device %s: %s has compute capability %d.%d, and %d.%d (Ampere) is the oldest that is "
            "supported; set device to another GPU or to \"cpu\"",
            device, card, capability / 10, capability % 10, CAPABILITY_MIN / 10,
            CAPABILITY_MIN % 10);
    return STATUS_OK;
}

static enum status read_card(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    struct cudaDeviceProp properties;
    TRY(cuda_check(device, cudaGetDeviceProperties(&properties, state->ordinal), "opening", e));
    snprintf(state->card, sizeof state->card, "%s", properties.name);
    state->capability = 10 * properties.major + properties.minor;
    state->multiprocessors = properties.multiProcessorCount;
    state->l2_bytes = properties.l2CacheSize;
    state->shared_bytes = attribute(state, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    device->total_bytes = (int64_t)properties.totalGlobalMem;
    return cuda_check_capability(device->name, state->card, state->capability, e);
}

/* "NVIDIA H200, 132 SMs, driver 580.159.04, CUDA 13.0, cuBLASLt 13.1.0". The driver's version is
 * left out where the kernel module does not tell it (some containers). */
static void describe(struct device *device) {
    const struct cuda_state *state = cuda_state_of(device);
    struct str driver = {0};
    struct err ignored = {0};
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    if (file_read(DRIVER_VERSION_FILE, DRIVER_VERSION_BYTES_MAX, &driver, &ignored) != STATUS_OK)
        str_clear(&driver);
    const size_t length = strcspn(str_text(&driver), "\n");
    snprintf(device->detail, sizeof device->detail, "%s, %d SMs%s%.*s, CUDA %d.%d, %s", state->card,
             state->multiprocessors, length ? ", driver " : "", (int)length, str_text(&driver),
             version / 1000, version % 1000 / 10, cuda_gemm_version(device));
    str_release(&driver);
}

/* Waiting threads sleep: a rank that spins at every wait takes a core from the data loader. */
static enum status start(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    TRY(cuda_check(
        device,
        cudaInitDevice(state->ordinal, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid),
        "opening", e));
    TRY(cuda_check(device, cudaSetDevice(state->ordinal), "opening", e));
    TRY(cuda_check(device, cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking),
                   "opening", e));
    start_trace("context made");
    for (size_t i = 0; i < COUNT_OF(PARTS); i++) {
        TRY(PARTS[i].open(device, e));
        start_trace(PARTS[i].done);
    }
    return STATUS_OK;
}

/* The libraries are found and relocated while the card's context is made, which takes a third of a
 * second. They stay loaded; who wants them asks for them by name again. */
static void *load_libraries(void *unused) {
    static const char *const NAMES[] = {"libcublasLt.so.13", "libcudnn.so.9",
                                        "libcudnn_graph.so.9"};
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        (void)dlopen(NAMES[i], RTLD_NOW | RTLD_LOCAL);
    }
    start_trace("libraries loaded");
    return unused;
}

static enum status start_beside_libraries(struct device *device, struct err *e) {
    pthread_t loader;
    const bool beside = pthread_create(&loader, NULL, load_libraries, NULL) == 0;
    const enum status status = start(device, e);
    if (beside) pthread_join(loader, NULL);
    return status;
}

enum status cuda_device_init(struct device *device, int ordinal, struct err *e) {
    enum status status = STATUS_OK;
    TRY(check_ordinal(device, ordinal, e));
    start_trace("cards counted");
    struct cuda_state *state = mem_new(1, sizeof *state);
    device->state = state;
    state->ordinal = ordinal;
    device->ops = &CUDA_OPS;
    device->kind = DEVICE_CUDA;
    device->computes = true;
    device->graphs = !device->blocking;
    GUARD(read_card(device, e));
    GUARD(start_beside_libraries(device, e));
    describe(device);

done:
    if (status != STATUS_OK) cuda_close(device);
    return status;
}
