/* memory.c - the arena's memory on a card: addresses reserved once, backed page by page.
 *
 * Every page of device->page_bytes has an allocation handle of its own, so that any run of pages
 * can be given back and the next process gets it; addresses never move, so captured graphs and
 * descriptors stay valid while the arena grows. A commit that fails gives back what it had taken.
 * Pages are given back only when both streams are idle: the driver does not wait for kernels and
 * copies that still use them. */
#include "base/mem.h"
#include "base/str.h"
#include "kernels/cuda/driver.h"

struct page {
    CUmemGenericAllocationHandle handle;
    bool backed;
};

struct reservation {
    CUdeviceptr base;
    int64_t bytes;
    struct page *pages; /* [bytes / page_bytes] */
    struct reservation *next;
};

struct cuda_memory {
    CUmemAllocationProp kind;
    CUmemAccessDesc access;
    struct reservation *first;
};

enum status cuda_memory_open(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    struct cuda_memory *memory = state->memory = mem_new(1, sizeof *memory);
    memory->kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory->kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    memory->kind.location.id = state->ordinal;
    memory->access.location = memory->kind.location;
    memory->access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    size_t granularity = 0;
    const CUresult result =
        state->driver->granularity(&granularity, &memory->kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    FAIL_IF(result != CUDA_SUCCESS, STATUS_UNSUPPORTED,
            "device %s: this GPU or its driver has no virtual memory management (%s)", device->name,
            cuda_driver_text(device, result));
    FAIL_IF(granularity == 0 || device->page_bytes % (int64_t)granularity != 0, STATUS_UNSUPPORTED,
            "device %s: memory comes in pieces of %zu bytes, which do not divide a page of %lld",
            device->name, granularity, (long long)device->page_bytes);
    return STATUS_OK;
}

void cuda_memory_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    while (state->memory && state->memory->first) {
        struct reservation *r = state->memory->first;
        cuda_unreserve(device, (void *)(uintptr_t)r->base, r->bytes);
    }
    mem_free(state->memory);
    state->memory = NULL;
}

enum status cuda_reserve(struct device *device, int64_t bytes, void **base, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    CUdeviceptr at = 0;
    const CUresult result =
        state->driver->address_reserve(&at, (size_t)bytes, (size_t)device->page_bytes, 0, 0);
    FAIL_IF(result != CUDA_SUCCESS, STATUS_OOM,
            "%s: cannot reserve %lld bytes of GPU addresses (%s); lower memory.cap", device->name,
            (long long)bytes, cuda_driver_text(device, result));
    struct reservation *r = mem_new(1, sizeof *r);
    r->base = at;
    r->bytes = bytes;
    r->pages = mem_new((size_t)(bytes / device->page_bytes), sizeof *r->pages);
    r->next = state->memory->first;
    state->memory->first = r;
    *base = (void *)(uintptr_t)at;
    return STATUS_OK;
}

/* The reservation that holds the range; ranges outside are a bug of the caller. */
static struct reservation *holder(const struct cuda_state *state, const void *at, int64_t bytes) {
    const CUdeviceptr first = (uintptr_t)at;
    struct reservation *r = state->memory->first;
    while (r && (first < r->base || first + (CUdeviceptr)bytes > r->base + (CUdeviceptr)r->bytes)) {
        r = r->next;
    }
    ASSERT(r);
    return r;
}

/* Takes away pages first..first+count-1, which are all backed. Errors have no one to go to: they
 * mean that the card is gone, which the next operation reports. */
static void unback(struct device *device, struct reservation *r, int64_t first, int64_t count) {
    const struct cuda_driver *driver = cuda_state_of(device)->driver;
    for (int64_t i = first; i < first + count; i++) {
        ASSERT(r->pages[i].backed);
        (void)driver->unmap(r->base + (CUdeviceptr)(i * device->page_bytes),
                            (size_t)device->page_bytes);
        (void)driver->release(r->pages[i].handle);
        r->pages[i] = (struct page){.backed = false};
    }
}

static CUresult back_page(struct device *device, struct reservation *r, int64_t index) {
    const struct cuda_state *state = cuda_state_of(device);
    struct page *page = &r->pages[index];
    ASSERT(!page->backed);
    CUresult result =
        state->driver->create(&page->handle, (size_t)device->page_bytes, &state->memory->kind, 0);
    if (result != CUDA_SUCCESS) return result;
    result = state->driver->map(r->base + (CUdeviceptr)(index * device->page_bytes),
                                (size_t)device->page_bytes, 0, page->handle, 0);
    if (result != CUDA_SUCCESS) {
        (void)state->driver->release(page->handle);
        return result;
    }
    page->backed = true;
    return CUDA_SUCCESS;
}

static enum status refused(struct device *device, int64_t bytes, CUresult result, struct err *e) {
    struct device_memory now = {0};
    char asked[24], free[24], total[24];
    FAIL_IF(result != CUDA_ERROR_OUT_OF_MEMORY, STATUS_DEVICE,
            "%s: backing %s of memory failed: %s", device->name, str_bytes(bytes, asked),
            cuda_driver_text(device, result));
    TRY(cuda_memory_info(device, &now, e));
    return err_set(e, STATUS_OOM,
                   "%s (%s) cannot give %s more: %s of %s are free; another process on this GPU "
                   "may hold the rest (nvidia-smi lists them)",
                   device->name, cuda_state_of(device)->card, str_bytes(bytes, asked),
                   str_bytes(now.free, free), str_bytes(now.total, total));
}

enum status cuda_commit(struct device *device, void *at, int64_t bytes, struct err *e) {
    const struct cuda_state *state = cuda_state_of(device);
    struct reservation *r = holder(state, at, bytes);
    const int64_t first = (int64_t)((uintptr_t)at - r->base) / device->page_bytes;
    const int64_t count = bytes / device->page_bytes;
    CUresult result = CUDA_SUCCESS;
    int64_t done = 0;
    while (done < count && (result = back_page(device, r, first + done)) == CUDA_SUCCESS) {
        done++;
    }
    if (result == CUDA_SUCCESS)
        result = state->driver->set_access((uintptr_t)at, (size_t)bytes, &state->memory->access, 1);
    if (result == CUDA_SUCCESS) return STATUS_OK;
    unback(device, r, first, done);
    return refused(device, bytes, result, e);
}

void cuda_decommit(struct device *device, void *at, int64_t bytes) {
    const struct cuda_state *state = cuda_state_of(device);
    struct reservation *r = holder(state, at, bytes);
    (void)cuda_idle(state);
    unback(device, r, (int64_t)((uintptr_t)at - r->base) / device->page_bytes,
           bytes / device->page_bytes);
}

void cuda_unreserve(struct device *device, void *base, int64_t bytes) {
    struct cuda_state *state = cuda_state_of(device);
    struct reservation *r = holder(state, base, bytes);
    ASSERT(r->base == (uintptr_t)base && r->bytes == bytes);
    (void)cuda_idle(state);
    for (int64_t i = 0; i < bytes / device->page_bytes; i++) {
        if (r->pages[i].backed) unback(device, r, i, 1);
    }
    (void)state->driver->address_free(r->base, (size_t)r->bytes);
    struct reservation **link = &state->memory->first;
    while (*link != r) {
        link = &(*link)->next;
    }
    *link = r->next;
    mem_free(r->pages);
    mem_free(r);
}

enum status cuda_memory_info(struct device *device, struct device_memory *out, struct err *e) {
    size_t free_bytes = 0, total_bytes = 0;
    TRY(cuda_check(device, cudaMemGetInfo(&free_bytes, &total_bytes), "reading free memory", e));
    *out = (struct device_memory){.free = (int64_t)free_bytes, .total = (int64_t)total_bytes};
    return STATUS_OK;
}
