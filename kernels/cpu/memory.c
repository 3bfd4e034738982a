/* memory.c - the CPU device's memory: reserved address space, backed and given back in whole pages.
 *
 * Reserved but not committed memory has no access rights, so that using memory which the arena did
 * not count faults at once instead of growing the process in silence. Committed memory reads as
 * zeros until it is written. */
#include <string.h>
#include <sys/mman.h>

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
