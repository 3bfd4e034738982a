/* device.c - opening devices by name, element types, and the memory half of the device interface.
 *
 * Owns the names ("cpu", "cuda:N", "null:cpu", "null:cuda") and the facts that depend on the kind
 * of a device alone: the planner runs on a null device and must meet the same granules, pages and
 * workspace as the real one. The operations themselves are in device_ops.c. Checks live here and
 * there, above the table, so that no device can forget them. */
#include "kernels/device.h"

#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"
#include "kernels/null/null.h"

enum { GRANULE_BYTES = 512, PAGE_BYTES = 2 << 20 };

/* CPU: room for one converted block of a product and for the tiles of attention. CUDA: what
 * cuBLASLt wants on Hopper. */
static const int64_t WORKSPACE_BYTES[DEVICE_KIND_COUNT] = {
    [DEVICE_CPU] = 32 << 20,
    [DEVICE_CUDA] = 64 << 20,
};

static const struct {
    int64_t bytes;
    const char *name;
} DTYPES[DTYPE_COUNT] = {
    [DTYPE_F32] = {4, "float32"},
    [DTYPE_BF16] = {2, "bfloat16"},
    [DTYPE_I32] = {4, "int32"},
    [DTYPE_I64] = {8, "int64"},
};

int64_t dtype_bytes(enum dtype dtype) {
    ASSERT((unsigned)dtype < DTYPE_COUNT);
    return DTYPES[dtype].bytes;
}

const char *dtype_name(enum dtype dtype) {
    ASSERT((unsigned)dtype < DTYPE_COUNT);
    return DTYPES[dtype].name;
}

static enum status open_by_name(struct device *device, const char *name, struct err *e) {
    if (strcmp(name, "cpu") == 0) {
        device->kind = DEVICE_CPU;
        return cpu_device_init(device, e);
    }
    if (strcmp(name, "null:cpu") == 0) return null_device_init(device, DEVICE_CPU, e);
    if (strcmp(name, "null:cuda") == 0) return null_device_init(device, DEVICE_CUDA, e);
    FAIL_IF(
        strncmp(name, "cuda:", 5) == 0, STATUS_UNSUPPORTED,
        "device %s: this build has no CUDA device; use \"cpu\", or \"null:cuda\" to plan for a GPU",
        name);
    return err_set(e, STATUS_INVALID,
                   "device %s is not known; it must be cpu, cuda:N, null:cpu or null:cuda", name);
}

enum status device_open(struct device **out, const char *name, bool gemm_bf16, struct err *e) {
    *out = NULL;
    FAIL_IF(!name || strlen(name) >= sizeof((struct device *)0)->name, STATUS_INVALID,
            "the name of a device must be cpu, cuda:N, null:cpu or null:cuda");
    struct device *device = mem_new(1, sizeof *device);
    memcpy(device->name, name, strlen(name) + 1);
    device->gemm_bf16 = gemm_bf16;
    device->granule_bytes = GRANULE_BYTES;
    device->page_bytes = PAGE_BYTES;
    const enum status status = open_by_name(device, name, e);
    if (status != STATUS_OK) {
        mem_free(device);
        return status;
    }
    device->workspace_bytes = WORKSPACE_BYTES[device->kind];
    *out = device;
    return STATUS_OK;
}

void device_close(struct device *device) {
    if (!device) return;
    device->ops->close(device);
    mem_free(device);
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
    return device->ops->commit(device, at, bytes, e);
}

void device_decommit(struct device *device, void *at, int64_t bytes) {
    ASSERT(at && bytes > 0 && bytes % device->page_bytes == 0);
    device->ops->decommit(device, at, bytes);
}

enum status device_upload(struct device *device, void *to, const void *from, int64_t bytes,
                          struct err *e) {
    TRY(check_transfer(to, from, bytes, __func__, e));
    device->bytes_moved += (double)bytes;
    return bytes == 0 ? STATUS_OK : device->ops->upload(device, to, from, bytes, e);
}

enum status device_download(struct device *device, void *to, const void *from, int64_t bytes,
                            struct err *e) {
    TRY(check_transfer(to, from, bytes, __func__, e));
    device->bytes_moved += (double)bytes;
    return bytes == 0 ? STATUS_OK : device->ops->download(device, to, from, bytes, e);
}

enum status device_copy(struct device *device, void *to, const void *from, int64_t bytes,
                        struct err *e) {
    TRY(check_transfer(to, from, bytes, __func__, e));
    device->bytes_moved += 2.0 * (double)bytes;
    return bytes == 0 ? STATUS_OK : device->ops->copy(device, to, from, bytes, e);
}

enum status device_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e) {
    TRY(check_transfer(at, at, bytes, __func__, e));
    device->bytes_moved += (double)bytes;
    return bytes == 0 ? STATUS_OK : device->ops->fill_zero(device, at, bytes, e);
}
