/* memory.c - the CPU device's memory: reserved address space, backed and given back in whole pages.
 *
 * Reserved but not committed memory has no access rights, so that using memory which the arena did
 * not count faults at once instead of growing the process in silence. Committed memory reads as
 * zeros until it is written. */
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"

enum status cpu_reserve(struct device *device, int64_t bytes, void **base, struct err *e) {
    (void)device;
    void *at =
        mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FAIL_IF(at == MAP_FAILED, STATUS_OOM,
            "cannot reserve %lld bytes of address space; raise the limit on virtual memory (ulimit "
            "-v) or lower memory.cap",
            (long long)bytes);
    /* Only a hint: fewer page faults and table walks where the system has huge pages. */
    (void)madvise(at, (size_t)bytes, MADV_HUGEPAGE);
    *base = at;
    return STATUS_OK;
}

void cpu_unreserve(struct device *device, void *base, int64_t bytes) {
    (void)device;
    munmap(base, (size_t)bytes);
}

enum status cpu_commit(struct device *device, void *at, int64_t bytes, struct err *e) {
    (void)device;
    FAIL_IF(mprotect(at, (size_t)bytes, PROT_READ | PROT_WRITE) != 0, STATUS_OOM,
            "the system refuses to back %lld more bytes of host memory", (long long)bytes);
    return STATUS_OK;
}

void cpu_decommit(struct device *device, void *at, int64_t bytes) {
    (void)device;
    const int discarded = madvise(at, (size_t)bytes, MADV_DONTNEED);
    const int closed = mprotect(at, (size_t)bytes, PROT_NONE);
    ASSERT(discarded == 0 && closed == 0);
}

enum status cpu_transfer(struct device *device, void *to, const void *from, int64_t bytes,
                         struct err *e) {
    (void)device, (void)e;
    memmove(to, from, (size_t)bytes);
    return STATUS_OK;
}

enum status cpu_fill_zero(struct device *device, void *at, int64_t bytes, struct err *e) {
    (void)device, (void)e;
    memset(at, 0, (size_t)bytes);
    return STATUS_OK;
}

static void copy_rows(char *to, int64_t to_pitch, const char *from, int64_t from_pitch,
                      const struct transfer *t) {
    for (int64_t row = 0; row < t->rows; row++) {
        memmove(to + row * to_pitch, from + row * from_pitch, (size_t)t->width);
    }
}

enum status cpu_upload_rows(struct device *device, const struct transfer *t, struct err *e) {
    (void)device, (void)e;
    copy_rows(t->device, t->device_pitch, t->host, t->host_pitch, t);
    return STATUS_OK;
}

enum status cpu_download_rows(struct device *device, const struct transfer *t, struct err *e) {
    (void)device, (void)e;
    copy_rows(t->host, t->host_pitch, t->device, t->device_pitch, t);
    return STATUS_OK;
}

enum status cpu_stage_new(struct device *device, int64_t bytes, void **out, struct err *e) {
    (void)device, (void)e;
    *out = mem_new((size_t)bytes, 1);
    return STATUS_OK;
}

void cpu_stage_free(struct device *device, void *at) {
    (void)device;
    mem_free(at);
}

enum status cpu_stage_wait(struct device *device, int64_t pending, struct err *e) {
    (void)device, (void)pending, (void)e; /* what is uploaded has been read */
    return STATUS_OK;
}

enum status cpu_synchronize(struct device *device, struct err *e) {
    (void)device, (void)e; /* every operation has ended when it returns */
    return STATUS_OK;
}

enum status cpu_memory(struct device *device, struct device_memory *memory, struct err *e) {
    memory->total = device->total_bytes;
    TRY(cpu_host_free_bytes(&memory->free, e));
    if (memory->free > memory->total) memory->free = memory->total;
    return STATUS_OK;
}

int64_t cpu_attention_scratch(const struct device *device, const struct attention_args *a,
                              bool backward) {
    (void)device;
    return backward ? a->heads * a->tokens * (int64_t)sizeof(float) : 0;
}
