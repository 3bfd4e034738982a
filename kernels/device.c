/* device.c - opening devices by name, element types, and the memory half of the device interface.
 *
 * Owns the names ("cpu", "cuda:N", "null:cpu", "null:cuda") and the facts that depend on the kind
 * of a device and its precision alone: the planner runs on a null device and must meet the same
 * granules, pages, workspace and activations as the real one. The operations themselves are in
 * device_ops.c. Checks live here and there, above the table, so that no device can forget them.
 */
#include "kernels/device.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda_open.h"
#include "kernels/null/null.h"

enum { GRANULE_BYTES = 512, ORDINAL_DIGITS_MAX = 4 };

/* What page-locked memory leaves to the rest of the machine. */
static const int64_t HOST_MARGIN_BYTES = 256 << 20;

/* What depends on the kind alone. Pages: the CPU's huge pages; on CUDA, where each costs a driver
 * call, few. Workspace: on the CPU room for one converted block of a product and for the tiles of
 * attention; on CUDA what cuBLASLt wants on Hopper. */
static const struct {
    int64_t page_bytes, workspace_bytes;
    bool lora_tails;
} KINDS[DEVICE_KIND_COUNT] = {
    [DEVICE_CPU] = {.page_bytes = 2 << 20, .workspace_bytes = 32 << 20},
    [DEVICE_CUDA] = {.page_bytes = 16 << 20, .workspace_bytes = 64 << 20, .lora_tails = true},
};

static const char *const PRECISIONS[PRECISION_COUNT] = {
    [PRECISION_F32] = "fp32",
    [PRECISION_TF32] = "tf32",
    [PRECISION_BF16] = "bf16",
    [PRECISION_F16] = "fp16",
};

static const struct {
    int64_t bytes;
    const char *name;
} DTYPES[DTYPE_COUNT] = {
    [DTYPE_F32] = {4, "float32"}, [DTYPE_BF16] = {2, "bfloat16"}, [DTYPE_F16] = {2, "float16"},
    [DTYPE_I32] = {4, "int32"},   [DTYPE_I64] = {8, "int64"},
};

int64_t dtype_bytes(enum dtype dtype) {
    ASSERT((unsigned)dtype < DTYPE_COUNT);
    return DTYPES[dtype].bytes;
}

const char *dtype_name(enum dtype dtype) {
    ASSERT((unsigned)dtype < DTYPE_COUNT);
    return DTYPES[dtype].name;
}

const char *precision_name(enum precision precision) {
    ASSERT((unsigned)precision < PRECISION_COUNT);
    return PRECISIONS[precision];
}

/* Digits only, without a leading zero: "cuda:0" has one spelling. */
static enum status read_ordinal(const char *name, int *ordinal, struct err *e) {
    const char *digits = name + strlen("cuda:");
    const size_t count = strspn(digits, "0123456789");
    FAIL_IF(count == 0 || count > ORDINAL_DIGITS_MAX || digits[count] != '\0' ||
                (count > 1 && digits[0] == '0'),
            STATUS_INVALID,
            "device %s: after \"cuda:\" comes the number of a GPU, counted from 0, as in cuda:0",
            name);
    *ordinal = 0;
    for (size_t i = 0; i < count; i++) {
        *ordinal = 10 * *ordinal + (digits[i] - '0');
    }
    return STATUS_OK;
}

static enum status open_cuda(struct device *device, int ordinal, struct err *e) {
#if PLIMSOLL_HAS_CUDA
    return cuda_device_init(device, ordinal, e);
#else
    (void)ordinal;
    return err_set(
        e, STATUS_UNSUPPORTED,
        "device %s: this build has no CUDA device; use \"cpu\", or \"null:cuda\" to plan for a GPU",
        device->name);
#endif
}

/* What a name says: the kind, whether it only plans, and which GPU. */
struct place {
    enum device_kind kind;
    bool null;
    int ordinal;
};

static enum status read_name(const char *name, struct place *place, struct err *e) {
    *place = (struct place){.kind = DEVICE_CPU};
    if (strcmp(name, "cpu") == 0) return STATUS_OK;
    place->null = true;
    if (strcmp(name, "null:cpu") == 0) return STATUS_OK;
    place->kind = DEVICE_CUDA;
    if (strcmp(name, "null:cuda") == 0) return STATUS_OK;
    place->null = false;
    if (strncmp(name, "cuda:", strlen("cuda:")) == 0) return read_ordinal(name, &place->ordinal, e);
    return err_set(e, STATUS_INVALID,
                   "device %s is not known; it must be cpu, cuda:N, null:cpu or null:cuda", name);
}

/* The same for a null device: a plan for what the real one refuses would be worth nothing. */
static enum status check_precision(const struct device *device, struct err *e) {
    const enum precision precision = device->precision;
    FAIL_IF((unsigned)precision >= PRECISION_COUNT, STATUS_INTERNAL,
            "device %s: precision %d is not known", device->name, (int)precision);
    FAIL_IF(device->kind == DEVICE_CPU && precision == PRECISION_TF32, STATUS_UNSUPPORTED,
            "device %s: tf32 products exist on GPUs only; set tf32 to false, or use a GPU",
            device->name);
    FAIL_IF(device->kind == DEVICE_CPU && precision == PRECISION_F16, STATUS_UNSUPPORTED,
            "device %s: the CPU does not compute in fp16; set fp16 to false, or use a GPU",
            device->name);
    return STATUS_OK;
}

static enum dtype activation_dtype(enum device_kind kind, enum precision precision) {
    if (kind == DEVICE_CUDA && precision == PRECISION_BF16) return DTYPE_BF16;
    if (kind == DEVICE_CUDA && precision == PRECISION_F16) return DTYPE_F16;
    return DTYPE_F32;
}

/* Everything that null and real devices share is set before the kind's own part. */
static enum status open_place(struct device *device, const struct place *place, struct err *e) {
    device->kind = place->kind;
    TRY(check_precision(device, e));
    device->activation_dtype = activation_dtype(place->kind, device->precision);
    device->lora_tails = KINDS[place->kind].lora_tails;
    device->granule_bytes = GRANULE_BYTES;
    device->page_bytes = KINDS[place->kind].page_bytes;
    device->workspace_bytes = KINDS[place->kind].workspace_bytes;
    if (place->null) return null_device_init(device, place->kind, e);
    return place->kind == DEVICE_CPU ? cpu_device_init(device, e)
                                     : open_cuda(device, place->ordinal, e);
}

enum status device_open(struct device **out, const char *name, const struct device_options *options,
                        struct err *e) {
    *out = NULL;
    FAIL_IF(!name || strlen(name) >= sizeof((struct device *)0)->name, STATUS_INVALID,
            "the name of a device must be cpu, cuda:N, null:cpu or null:cuda");
    FAIL_IF(!options, STATUS_INTERNAL, "device_open: options are missing");
    struct place place;
    TRY(read_name(name, &place, e));
    struct device *device = mem_new(1, sizeof *device);
    memcpy(device->name, name, strlen(name) + 1);
    device->precision = options->precision;
    device->deterministic = options->deterministic;
    device->blocking = options->blocking;
    const enum status status = open_place(device, &place, e);
    if (status != STATUS_OK) {
        mem_free(device);
        return status;
    }
    *out = device;
    return STATUS_OK;
}

void device_close(struct device *device) {
    if (!device) return;
    device->ops->close(device);
    mem_free(device);
}

/* The power of four that a size lies at. */
static int size_class(double size) {
    int exponent = 0;
    (void)frexp(size, &exponent);
    const int at = exponent / 2;
    return at < 0 ? 0 : at < WORK_SIZES ? at : WORK_SIZES - 1;
}

void device_count(struct device *device, enum work_class kind, double flops, double bytes) {
    const bool counts_flops = kind == WORK_PRODUCT || kind == WORK_ATTENTION;
    struct work_cell *const cell =
        &device->work.cells[kind][size_class(counts_flops ? flops : bytes)];
    device->flops += flops;
    device->bytes_moved += bytes;
    cell->flops += flops;
    cell->bytes += bytes;
    cell->calls++;
}

void device_set_workspace(struct device *device, void *workspace) {
    device->workspace = workspace;
}

/* A reservation or a part of it: whole pages. */
static enum status check_pages(const struct device *device, int64_t bytes, const char *op,
                               struct err *e) {
    FAIL_IF(bytes <= 0 || bytes % device->page_bytes != 0, STATUS_INTERNAL,
            "%s: bytes is %lld, it must be a positive multiple of the page of %lld bytes", op,
            (long long)bytes, (long long)device->page_bytes);
    return STATUS_OK;
}

static enum status check_transfer(const void *to, const void *from, int64_t bytes, const char *op,
                                  struct err *e) {
    FAIL_IF(bytes < 0, STATUS_INTERNAL, "%s: bytes is %lld", op, (long long)bytes);
    FAIL_IF(bytes > 0 && !to, STATUS_INTERNAL, "%s: to is missing", op);
    FAIL_IF(bytes > 0 && !from, STATUS_INTERNAL, "%s: from is missing", op);
    return STATUS_OK;
}

/* Bytes that pass the host are not a part of graphs: those would carry the old ones. */
static enum status check_present(const struct device *device, const char *op, struct err *e) {
    FAIL_IF(device->mode != DEVICE_COMPUTES, STATUS_INTERNAL, "%s cannot be a part of a graph", op);
    return STATUS_OK;
}

enum status device_reserve(struct device *device, int64_t bytes, void **base, struct err *e) {
    *base = NULL;
    TRY(check_pages(device, bytes, __func__, e));
    return device->ops->reserve(device, bytes, base, e);
}

void device_unreserve(struct device *device, void *base, int64_t bytes) {
    if (base) device->ops->unreserve(device, base, bytes);
}

enum status device_commit(struct device *device, void *at, int64_t bytes, struct err *e) {
    TRY(check_pages(device, bytes, __func__, e));
    FAIL_IF(!at, STATUS_INTERNAL, "device_commit: at is missing");
    FAIL_IF(device->mode == DEVICE_IS_MUTED, STATUS_INTERNAL,
            "device_commit: a graph that is repeated wants more memory than it had");
    return device->ops->commit(device, at, bytes, e);
}

void device_decommit(struct device *device, void *at, int64_t bytes) {
    ASSERT(at && bytes > 0 && bytes % device->page_bytes == 0);
    ASSERT(device->mode == DEVICE_COMPUTES);
    device->ops->decommit(device, at, bytes);
}

enum status device_upload(struct device *device, void *to, const void *from, int64_t bytes,
                          struct err *e) {
    TRY(check_present(device, __func__, e));
    TRY(check_transfer(to, from, bytes, __func__, e));
    device_count(device, WORK_COPY, 0, (double)bytes);
    return bytes == 0 ? STATUS_OK : device->ops->upload(device, to, from, bytes, e);
}

enum status device_download(struct device *device, void *to, const void *from, int64_t bytes,
                            struct err *e) {
    TRY(check_present(device, __func__, e));
    TRY(check_transfer(to, from, bytes, __func__, e));
    device_count(device, WORK_COPY, 0, (double)bytes);
    return bytes == 0 ? STATUS_OK : device->ops->download(device, to, from, bytes, e);
}

enum status device_copy(struct device *device, void *to, const void *from, int64_t bytes,
                        struct err *e) {
    TRY(check_transfer(to, from, bytes, __func__, e));
    device_count(device, WORK_COPY, 0, 2.0 * (double)bytes);
    return bytes == 0 ? STATUS_OK : device->ops->copy(device, to, from, bytes, e);
}

enum status device_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e) {
    TRY(check_transfer(at, at, bytes, __func__, e));
    device_count(device, WORK_COPY, 0, (double)bytes);
    return bytes == 0 ? STATUS_OK : device->ops->fill_zero(device, at, bytes, e);
}

static enum status check_rows_transfer(const struct transfer *t, const char *op, struct err *e) {
    FAIL_IF(t->width < 0 || t->rows < 0, STATUS_INTERNAL, "%s: %lld rows of %lld bytes", op,
            (long long)t->rows, (long long)t->width);
    FAIL_IF(t->device_pitch < t->width || t->host_pitch < t->width, STATUS_INTERNAL,
            "%s: device_pitch or host_pitch is smaller than the row it steps over", op);
    FAIL_IF(t->width > 0 && t->rows > 0 && (!t->device || !t->host), STATUS_INTERNAL,
            "%s: device or host is missing", op);
    return STATUS_OK;
}

enum status device_upload_rows(struct device *device, const struct transfer *t, struct err *e) {
    TRY(check_present(device, __func__, e));
    TRY(check_rows_transfer(t, __func__, e));
    if (t->width == 0 || t->rows == 0) return STATUS_OK;
    device_count(device, WORK_COPY, 0, (double)t->width * (double)t->rows);
    return device->ops->upload_rows(device, t, e);
}

enum status device_download_rows(struct device *device, const struct transfer *t, struct err *e) {
    TRY(check_present(device, __func__, e));
    TRY(check_rows_transfer(t, __func__, e));
    if (t->width == 0 || t->rows == 0) return STATUS_OK;
    device_count(device, WORK_COPY, 0, (double)t->width * (double)t->rows);
    return device->ops->download_rows(device, t, e);
}

/* Asked before, because a system that runs out of memory does not refuse: it ends a process. */
static enum status check_host_memory(const struct device *device, int64_t bytes, struct err *e) {
    int64_t available = 0;
    char asked[24], there[24];
    if (!device->computes) return STATUS_OK;
    TRY(cpu_host_free_bytes(&available, e));
    FAIL_IF(available - bytes < HOST_MARGIN_BYTES, STATUS_DEVICE,
            "the host has no %s of memory to spare for transfers: %s are available, of which it "
            "keeps %s",
            str_bytes(bytes, asked), str_bytes(available, there),
            str_bytes(HOST_MARGIN_BYTES, (char[24]){0}));
    return STATUS_OK;
}

enum status device_stage_new(struct device *device, int64_t bytes, void **out, struct err *e) {
    *out = NULL;
    FAIL_IF(bytes <= 0, STATUS_INTERNAL, "%s: %lld bytes", __func__, (long long)bytes);
    TRY(check_host_memory(device, bytes, e));
    return device->ops->stage_new(device, bytes, out, e);
}

void device_stage_free(struct device *device, void *at) {
    if (at) device->ops->stage_free(device, at);
}

enum status device_stage_upload(struct device *device, const struct transfer *t, struct err *e) {
    TRY(check_rows_transfer(t, __func__, e));
    FAIL_IF(t->width == 0 || t->rows == 0, STATUS_INTERNAL, "%s: nothing to upload", __func__);
    device_count(device, WORK_COPY, 0, (double)t->width * (double)t->rows);
    return device->ops->stage_upload(device, t, e);
}

enum status device_stage_wait(struct device *device, int64_t pending, struct err *e) {
    FAIL_IF(pending < 0 || pending > STAGE_PENDING_MAX, STATUS_INTERNAL, "%s: %lld pending",
            __func__, (long long)pending);
    return device->ops->stage_wait(device, pending, e);
}

enum status device_stash(struct device *device, void *host, const void *from, int64_t bytes,
                         struct err *e) {
    TRY(check_transfer(host, from, bytes, __func__, e));
    device_count(device, WORK_COPY, 0, (double)bytes);
    return bytes == 0 ? STATUS_OK : device->ops->stash(device, host, from, bytes, e);
}

enum status device_fetch(struct device *device, void *to, const void *host, int64_t bytes,
                         struct err *e) {
    TRY(check_transfer(to, host, bytes, __func__, e));
    device_count(device, WORK_COPY, 0, (double)bytes);
    return bytes == 0 ? STATUS_OK : device->ops->fetch(device, to, host, bytes, e);
}

enum status device_copies_wait(struct device *device, struct err *e) {
    return device->ops->copies_wait(device, e);
}

enum status device_synchronize(struct device *device, struct err *e) {
    TRY(check_present(device, __func__, e));
    return device->ops->synchronize(device, e);
}

enum status device_memory(struct device *device, struct device_memory *memory, struct err *e) {
    *memory = (struct device_memory){0};
    return device->ops->memory(device, memory, e);
}

int64_t device_attention_scratch(const struct device *device, const struct attention_args *a,
                                 bool backward) {
    return device->ops->attention_scratch(device, a, backward);
}
