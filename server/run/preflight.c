/* preflight.c - the findings, one function each, in order of weight.
 *
 * A message says what was found, what it breaks, and what to do. */
#include "server/run/preflight.h"

#include <math.h>

#include "base/mem.h"
#include "base/str.h"

static const int64_t DISK_LOW = (int64_t)5 << 30;
static const int64_t SHM_LOW = (int64_t)1 << 30; /* containers get 64 MiB unless told otherwise */
static const int64_t MEMORY_LOW = (int64_t)1 << 30;
/* A driver and a desktop hold less; the figure is the field's. */
static const int64_t CARD_HELD = (int64_t)200 << 20;
/* Page-locked staging buffers are larger than the 8 MiB that systems start with. */
static const int64_t LOCK_LOW = (int64_t)64 << 20;

static const char FLAGS[] = "--ipc=host, or with --shm-size=8g --ulimit memlock=-1";

static void add(cJSON *findings, const char *level, const char *code, char *message) {
    cJSON *const finding = cJSON_CreateObject();
    json_add_string(finding, "level", level);
    json_add_string(finding, "code", code);
    json_add_string(finding, "message", message);
    cJSON_AddItemToArray(findings, finding);
    mem_free(message);
}

static bool is_card(const cJSON *device) {
    const char *id = NULL;
    struct err ignored = {0};
    (void)json_get_string(device, "id", &id, &ignored);
    return id && str_starts_with(id, "cuda");
}

static int64_t cards_count(const struct preflight *p) {
    int64_t count = 0;
    const cJSON *card = NULL;
    cJSON_ArrayForEach(card, p->cards) {
        count += is_card(card);
    }
    return count;
}

static int64_t bytes_of(const cJSON *card, const char *key) {
    double bytes = NAN;
    struct err ignored = {0};
    (void)json_get_f64(card, key, &bytes, &ignored);
    return isfinite(bytes) ? (int64_t)bytes : -1;
}

/* Memory that is held while no job runs is somebody else's, or a dead process's: no list of
 * processes is needed to say so, and in a container that list is empty. */
static void judge_cards(const struct preflight *p, cJSON *findings) {
    const cJSON *card = NULL;
    char held[24], total[24];
    if (p->running > 0) return;
    cJSON_ArrayForEach(card, p->cards) {
        const char *id = NULL, *name = NULL;
        struct err ignored = {0};
        (void)json_get_string(card, "id", &id, &ignored);
        (void)json_get_string(card, "name", &name, &ignored);
        const int64_t all = bytes_of(card, "total_bytes"), left = bytes_of(card, "free_bytes");
        if (!is_card(card) || all < 0 || left < 0 || all - left <= CARD_HELD) continue;
        add(findings, "warn", "gpu_memory_held",
            str_format(
                "%s of the %s of %s (%s) are in use, and no job of this server runs: another "
                "process holds them, or one that died badly. Jobs are planned on what is "
                "left. To find it: nvidia-smi; where that shows no process (in a "
                "container), fuser -v /dev/nvidia* on the host.",
                str_bytes(all - left, held), str_bytes(all, total), id, name ? name : "?"));
    }
}

static void judge_shm(const struct preflight *p, cJSON *findings) {
    char size[24];
    if (p->shm_failure) {
        add(findings, "warn", "shm_full",
            str_format("/dev/shm does not take a file of %d MiB (%s). Jobs on several GPUs end "
                       "there with a bus error: free it, or start the container with %s.",
                       SHM_PROBE_BYTES >> 20, p->shm_failure, FLAGS));
    } else if (p->shm_total >= 0 && p->shm_total < SHM_LOW) {
        add(findings, "info", "shm_small",
            str_format("/dev/shm has only %s. Jobs on several GPUs need more: start the container "
                       "with %s.",
                       str_bytes(p->shm_total, size), FLAGS));
    }
}

static void judge_memory(const struct preflight *p, cJSON *findings) {
    char left[24], all[24];
    if (p->memory_available < 0 || p->memory_available >= MEMORY_LOW) return;
    add(findings, "warn", "memory_low",
        str_format("Only %s of %s of %s are free: a job may be killed by the system while it reads "
                   "its data. End other programs%s.",
                   str_bytes(p->memory_available, left), str_bytes(p->memory_total, all),
                   p->container ? "the container's memory" : "this machine's memory",
                   p->container ? ", or raise the container's limit" : ""));
}

static void judge_disk(const struct preflight *p, cJSON *findings) {
    char size[24];
    if (p->disk_free < 0 || p->disk_free >= DISK_LOW) return;
    add(findings, "warn", "disk_low",
        str_format("Only %s are free in %s; checkpoints and results go there.",
                   str_bytes(p->disk_free, size), p->data_folder));
}

static void judge_lock_limit(const struct preflight *p, cJSON *findings) {
    char size[24];
    if (cards_count(p) == 0 || p->lock_limit < 0 || p->lock_limit >= LOCK_LOW) return;
    add(findings, "info", "memlock_low",
        str_format("A process may lock only %s of memory. Offloading and several GPUs over a fast "
                   "network need more: ulimit -l unlimited, in a container --ulimit memlock=-1.",
                   str_bytes(p->lock_limit, size)));
}

static void judge_wsl(const struct preflight *p, cJSON *findings) {
    if (!p->wsl || cards_count(p) == 0) return;
    add(findings, "warn", "wsl_spill",
        mem_strdup("This is WSL: when a card is full, Windows moves its memory to the machine's "
                   "instead of refusing, and training becomes about ten times slower without an "
                   "error. Set memory.cap to less than what the card has free."));
}

void preflight_judge(const struct preflight *p, cJSON *findings) {
    judge_disk(p, findings);
    judge_memory(p, findings);
    judge_cards(p, findings);
    judge_wsl(p, findings);
    judge_shm(p, findings);
    judge_lock_limit(p, findings);
}
