/* monitor.c - /proc, /sys, statvfs, and a small file in /dev/shm.
 *
 * Read at each call: it is cheap, and never stale. */
#include "server/run/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/mem.h"
#include "server/run/preflight.h"

enum { PROC_FILE_MAX = 1 << 20 };
static const char SHM_FOLDER[] = "/dev/shm";

struct amount {
    int64_t total, free;
    bool known;
};

static struct amount memory_of_host(void) {
    const struct host_memory m = host_memory();
    return (struct amount){m.total, m.available, m.total >= 0};
}

static struct amount disk_of(const char *path) {
    struct statvfs info;
    if (statvfs(path, &info) != 0) return (struct amount){0};
    return (struct amount){(int64_t)info.f_blocks * (int64_t)info.f_frsize,
                           (int64_t)info.f_bavail * (int64_t)info.f_frsize, true};
}

static void add_amount(cJSON *out, const char *key, struct amount amount) {
    if (!amount.known) return;
    cJSON *const object = cJSON_AddObjectToObject(out, key);
    json_add_i64(object, "total", amount.total);
    json_add_i64(object, "free", amount.free);
}

static void add_cpu(cJSON *out) {
    struct str text = {0};
    struct err ignored = {0};
    char *name = NULL;
    if (file_read("/proc/cpuinfo", PROC_FILE_MAX, &text, &ignored) == STATUS_OK) {
        const char *at = strstr(str_text(&text), "model name");
        at = at ? strchr(at, ':') : NULL;
        if (at) name = mem_strndup(at + 2, strcspn(at + 2, "\n"));
    }
    cJSON *const device = cJSON_CreateObject();
    json_add_string(device, "id", "cpu");
    json_add_string(device, "name", name ? name : "CPU");
    json_add_i64(device, "processors", sysconf(_SC_NPROCESSORS_ONLN));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(out, "devices"), device);
    mem_free(name);
    str_release(&text);
}

/* Takes SHM_PROBE_BYTES in /dev/shm and gives them back. A size alone is no proof: tmpfs promises
 * more than it has, and who touches the rest dies. NULL: it works. */
static const char *probe_shm(void) {
    const int fd = open(SHM_FOLDER, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) return "no file can be made there";
    const int failure = posix_fallocate(fd, 0, SHM_PROBE_BYTES);
    close(fd);
    if (failure == 0) return NULL;
    return failure == ENOSPC ? "it is full" : "no room can be taken there";
}

static bool text_contains(const char *path, const char *needle) {
    struct str text = {0};
    struct err ignored = {0};
    const bool found = file_read(path, PROC_FILE_MAX, &text, &ignored) == STATUS_OK &&
                       strstr(str_text(&text), needle) != NULL;
    str_release(&text);
    return found;
}

void monitor_add(cJSON *out, const struct monitor_view *view) {
    const struct amount disk = disk_of(view->data_folder), shm = disk_of(SHM_FOLDER);
    const struct amount memory = memory_of_host();
    const int64_t lock_limit = host_lock_limit();
    add_cpu(out);
    add_amount(out, "memory", memory);
    add_amount(out, "disk", disk);
    add_amount(out, "shm", shm);
    if (lock_limit >= 0) {
        json_add_i64(out, "lock_limit", lock_limit);
    } else {
        cJSON_AddNullToObject(out, "lock_limit");
    }
    const struct preflight p = {
        .data_folder = view->data_folder,
        .disk_free = disk.known ? disk.free : -1,
        .shm_total = shm.known ? shm.total : -1,
        .shm_failure = shm.known ? probe_shm() : NULL,
        .memory_total = memory.known ? memory.total : -1,
        .memory_available = memory.known ? memory.free : -1,
        .lock_limit = lock_limit,
        .wsl = text_contains("/proc/sys/kernel/osrelease", "microsoft") ||
               text_contains("/proc/sys/kernel/osrelease", "WSL"),
        .container = file_exists("/.dockerenv") || file_exists("/run/.containerenv"),
        .running = view->running,
        .cards = view->cards,
    };
    preflight_judge(&p, cJSON_AddArrayToObject(out, "findings"));
}
