/* attend.c - see attend.h.
 *
 * Ranks come one after the other, and a lock may be free for a moment while nothing has ended: only
 * when none has been held for a while are they gone. */
#include "engine/train/attend.h"

#include <poll.h>
#include <stdio.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/rundir.h"

enum { LOOK_MS = 200, GONE_MS = 3000, SPEC_BYTES_MAX = 4 << 20 };

static enum status read_ranks(const char *folder, int64_t *ranks, struct err *e) {
    struct spec spec = {0};
    cJSON *json = NULL;
    char *const path = rundir_spec(folder);
    enum status status = json_read_file(path, SPEC_BYTES_MAX, &json, e);
    if (status == STATUS_OK) status = spec_parse(&spec, json, e);
    if (status == STATUS_OK) *ranks = spec.parallel.ranks;
    spec_release(&spec);
    cJSON_Delete(json);
    mem_free(path);
    return status;
}

static bool any_is_held(const char *folder, int64_t ranks) {
    for (int64_t rank = 0; rank < ranks; rank++) {
        if (rundir_rank_is_held(folder, rank)) return true;
    }
    return false;
}

/* A rank that came and went between two looks has left another identity. */
static int64_t pid_of_first(const char *folder) {
    struct rank_identity identity = {0};
    struct err ignored = {0};
    return rundir_identity(folder, 0, &identity, &ignored) == STATUS_OK ? identity.pid : 0;
}

enum status run_attend(const char *folder, bool (*stop)(void), struct err *e) {
    int64_t ranks = 0, held_ns = 0;
    TRY(read_ranks(folder, &ranks, e));
    const int64_t before = pid_of_first(folder);
    fprintf(stderr,
            "plimsoll-engine: waiting for %lld ranks. Start each of them, on any machine that sees "
            "this folder, with RANK=0 (to %lld) WORLD_SIZE=%lld plimsoll-engine run %s\n",
            (long long)ranks, (long long)ranks - 1, (long long)ranks, folder);
    for (;;) {
        const int64_t now = clock_steady_ns();
        const bool held = any_is_held(folder, ranks);
        if (held || (!held_ns && pid_of_first(folder) != before)) held_ns = now;
        if (held_ns && (now - held_ns) / 1000000 > GONE_MS) return STATUS_OK;
        FAIL_IF(!held && (stop() || rundir_stop_requested(folder)), STATUS_INTERRUPTED,
                "stopped on request; no rank is there");
        (void)poll(NULL, 0, LOOK_MS);
    }
}
