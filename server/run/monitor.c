/* monitor.c - /proc, /sys/fs/cgroup and statvfs.
 *
 * Read at each call: it is cheap, and never stale. */
#include "server/run/monitor.h"

#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/host.h"
#include "base/mem.h"

enum { PROC_FILE_MAX = 1 << 20 };
static const int64_t DISK_LOW_BYTES = (int64_t)5 << 30;
static const int64_t SHM_LOW_BYTES = (int64_t)1
                                     << 30; /* containers get 64 MiB unless told otherwise */

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

static void add_finding(cJSON *findings, const char *level, const char *code, const char *message) {
    cJSON *const finding = cJSON_CreateObject();
    json_add_string(finding, "level", level);
    json_add_string(finding, "code", code);
    json_add_string(finding, "message", message);
    cJSON_AddItemToArray(findings, finding);
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

void monitor_add(cJSON *out, const char *data_folder) {
    const struct amount disk = disk_of(data_folder), shm = disk_of("/dev/shm");
    char size[24];
    add_cpu(out);
    add_amount(out, "memory", memory_of_host());
    add_amount(out, "disk", disk);
    add_amount(out, "shm", shm);
    cJSON *const findings = cJSON_AddArrayToObject(out, "findings");
    if (disk.known && disk.free < DISK_LOW_BYTES) {
        char *text = str_format("Only %s are free in %s; checkpoints and results go there.",
                                str_bytes(disk.free, size), data_folder);
        add_finding(findings, "warn", "disk_low", text);
        mem_free(text);
    }
    if (shm.known && shm.total < SHM_LOW_BYTES) {
        char *text = str_format(
            "/dev/shm has only %s. Jobs on several GPUs need more: start the container with "
            "--ipc=host or --shm-size=8g.",
            str_bytes(shm.total, size));
        add_finding(findings, "info", "shm_small", text);
        mem_free(text);
    }
}
