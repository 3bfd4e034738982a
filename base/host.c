/* host.c - /proc, the control group (version 2) and getrlimit.
 *
 * Read at each call: it is cheap, and never stale. */
#include "base/host.h"

#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

enum { PROC_FILE_MAX = 1 << 16 };

/* The number that follows `key`, or the first of the text for key "". */
static bool number_after(const char *text, const char *key, int64_t *out) {
    const char *at = strstr(text, key);
    if (!at) return false;
    at += strlen(key);
    at += strspn(at, " \t");
    char *digits = mem_strndup(at, strspn(at, "0123456789"));
    const bool found = *digits && str_to_i64(digits, key, out, NULL) == STATUS_OK;
    mem_free(digits);
    return found;
}

static bool read_number(const char *path, int64_t *out) {
    struct str text = {0};
    struct err ignored = {0};
    const bool found = file_read(path, PROC_FILE_MAX, &text, &ignored) == STATUS_OK &&
                       number_after(str_text(&text), "", out);
    str_release(&text);
    return found;
}

/* Both numbers from one reading: the system gathers the whole file each time. */
static bool read_meminfo(int64_t *total, int64_t *available) {
    struct str text = {0};
    struct err ignored = {0};
    const bool found = file_read("/proc/meminfo", PROC_FILE_MAX, &text, &ignored) == STATUS_OK &&
                       number_after(str_text(&text), "MemTotal:", total) &&
                       number_after(str_text(&text), "MemAvailable:", available);
    str_release(&text);
    return found;
}

struct host_memory host_memory(void) {
    struct host_memory m = {-1, -1};
    int64_t total = 0, available = 0, limit = 0, used = 0;
    if (!read_meminfo(&total, &available)) return m;
    m = (struct host_memory){total * 1024, available * 1024};
    if (read_number("/sys/fs/cgroup/memory.max", &limit) && limit < m.total &&
        read_number("/sys/fs/cgroup/memory.current", &used)) {
        const int64_t left = limit > used ? limit - used : 0;
        m = (struct host_memory){limit, left < m.available ? left : m.available};
    }
    return m;
}

/* Two numbers of a statm in bytes: what is resident, and how much of that is shared. */
static bool read_statm(const char *path, int64_t *resident, int64_t *shared) {
    struct str text = {0};
    struct err ignored = {0};
    bool found = file_read(path, PROC_FILE_MAX, &text, &ignored) == STATUS_OK;
    const char *at = found ? strchr(str_text(&text), ' ') : NULL; /* the first is the size */
    found = at && number_after(at, " ", resident);
    if (found) at = strchr(at + 1, ' ');
    found = found && at && number_after(at, " ", shared);
    str_release(&text);
    if (!found) return false;
    const int64_t page = sysconf(_SC_PAGESIZE);
    *resident *= page;
    *shared *= page;
    return true;
}

int64_t host_resident(void) {
    int64_t resident = 0, shared = 0;
    return read_statm("/proc/self/statm", &resident, &shared) ? resident : -1;
}

int64_t host_private_of(int64_t pid) {
    int64_t resident = 0, shared = 0;
    char *path = str_format("/proc/%lld/statm", (long long)pid);
    const bool found = read_statm(path, &resident, &shared);
    mem_free(path);
    return found && resident > shared ? resident - shared : 0;
}

int64_t host_lock_limit(void) {
    struct rlimit limit = {0};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
    return (int64_t)limit.rlim_cur;
}
