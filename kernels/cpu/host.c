/* host.c - what this processor is: its name, threads, instruction levels and memory. Read once, at
 * device_open.
 *
 * The libraries for products do not always know new processors (Debian's OpenBLAS falls back to
 * kernels of 2004 on them), so the engine looks by itself. AMX needs the system's leave besides the
 * processor's bit: Linux grants the tile state per process, on request. */
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "kernels/cpu/cpu.h"

#if PLIMSOLL_X86
#include <cpuid.h>

enum {
    ARCH_REQUEST_PERMISSION = 0x1023,
    TILE_DATA = 18,
    LEAF_BRAND = 0x80000002,
    LEAF_FEATURES = 7
};

static void read_processor(struct cpu_host *host) {
    unsigned words[13] = {0};
    for (unsigned i = 0; i < 3; i++) {
        unsigned *w = words + 4 * (size_t)i;
        if (!__get_cpuid(LEAF_BRAND + i, w, w + 1, w + 2, w + 3)) return;
    }
    const char *brand = (const char *)words;
    while (*brand == ' ') {
        brand++;
    }
    snprintf(host->processor, sizeof host->processor, "%s", brand);
}

static bool may_use_amx_bf16(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(LEAF_FEATURES, 0, &a, &b, &c, &d)) return false;
    const bool bf16 = d >> 22 & 1, tile = d >> 24 & 1;
    return bf16 && tile && syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool has_avx512_bf16(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(LEAF_FEATURES, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

static void read_levels(struct cpu_host *host) {
    __builtin_cpu_init();
    host->amd = __builtin_cpu_is("amd");
    host->avx2 = __builtin_cpu_supports("x86-64-v3");
    host->avx512 = __builtin_cpu_supports("x86-64-v4");
    host->amx_bf16 = host->avx512 && may_use_amx_bf16();
    host->avx512_bf16 = host->avx512 && has_avx512_bf16();
}
#else
static void read_processor(struct cpu_host *host) {
    snprintf(host->processor, sizeof host->processor, "%s", "processor");
}

static void read_levels(struct cpu_host *host) {
    (void)host; /* everything is false */
}
#endif

/* A number that our control group states; false where it states none ("max", or no such file). */
static bool group_value(const char *path, int64_t *value) {
    enum { VALUE_BYTES_MAX = 64 };
    struct str text = {0};
    struct err ignored = {0};
    enum status status = file_read(path, VALUE_BYTES_MAX, &text, &ignored);
    if (status == STATUS_OK) {
        while (text.len > 0 && text.data[text.len - 1] == '\n') {
            str_truncate(&text, text.len - 1);
        }
        status = str_to_i64(str_text(&text), path, value, &ignored);
    }
    str_release(&text);
    return status == STATUS_OK;
}

void cpu_host_read(struct cpu_host *host) {
    memset(host, 0, sizeof *host);
    read_processor(host);
    read_levels(host);
    host->threads = omp_get_max_threads();
    const int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t limit = 0;
    const bool limited = group_value("/sys/fs/cgroup/memory.max", &limit);
    host->total_bytes = limited && limit < physical ? limit : physical;
}

/* The number that stands behind this name, at the beginning of a line that is not the first;
 * *value is 0 where the file has none. */
static enum status named_value(const char *path, const char *name, int64_t *value, struct err *e) {
    enum { FILE_BYTES_MAX = 1 << 16 };
    struct str text = {0};
    *value = 0;
    const enum status status = file_read(path, FILE_BYTES_MAX, &text, e);
    const char *at = status == STATUS_OK ? strstr(str_text(&text), name) : NULL;
    for (at = at ? at + strlen(name) : ""; *at == ' ' || (*at >= '0' && *at <= '9'); at++) {
        if (*at != ' ') *value = 10 * *value + (*at - '0');
    }
    str_release(&text);
    return status;
}

/* What the system could give without swapping: free pages and caches that it may drop. */
static enum status system_free_bytes(int64_t *bytes, struct err *e) {
    TRY(named_value("/proc/meminfo", "\nMemAvailable:", bytes, e));
    FAIL_IF(*bytes == 0, STATUS_DEVICE, "/proc/meminfo does not say what memory is available");
    *bytes <<= 10;
    return STATUS_OK;
}

/* Files that the group has in memory, which count as its own and go when it needs room: after
 * loading a model that is the model. */
static int64_t group_cache_bytes(void) {
    static const char PATH[] = "/sys/fs/cgroup/memory.stat";
    struct err ignored = {0};
    int64_t inactive = 0, active = 0;
    if (named_value(PATH, "\ninactive_file ", &inactive, &ignored) != STATUS_OK) return 0;
    if (named_value(PATH, "\nactive_file ", &active, &ignored) != STATUS_OK) return 0;
    return inactive + active;
}

enum status cpu_host_free_bytes(int64_t *bytes, struct err *e) {
    TRY(system_free_bytes(bytes, e));
    int64_t limit = 0, used = 0;
    if (!group_value("/sys/fs/cgroup/memory.max", &limit) ||
        !group_value("/sys/fs/cgroup/memory.current", &used))
        return STATUS_OK;
    used -= group_cache_bytes();
    const int64_t room = limit > used ? limit - used : 0;
    if (room < *bytes) *bytes = room;
    return STATUS_OK;
}
