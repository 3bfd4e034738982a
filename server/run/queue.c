/* queue.c - see queue.h.
 *
 * Claims are compared by subtraction from the room, so no sum can overflow, whatever a user wrote
 * as his cap. */
#include "server/run/queue.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void claim_release(struct claim *claim) {
    if (!claim) return;
    mem_free(claim->parts);
    *claim = (struct claim){0};
}

int64_t claim_on(const struct claim *claim, const char *device) {
    for (int64_t i = 0; i < claim->count; i++) {
        if (strcmp(claim->parts[i].device, device) == 0) return claim->parts[i].bytes;
    }
    return 0;
}

static int64_t add_claims(int64_t a, int64_t b) {
    return a > CLAIM_WHOLE - b ? CLAIM_WHOLE : a + b;
}

/* *users: how many of the jobs that run use the device. */
static int64_t claimed_on(const struct queue_view *view, const char *device, int64_t *users) {
    int64_t sum = 0;
    *users = 0;
    for (int64_t i = 0; i < view->running_count; i++) {
        const int64_t bytes = claim_on(&view->running[i], device);
        *users += bytes > 0;
        sum = add_claims(sum, bytes);
    }
    return sum;
}

static int64_t room_of(const struct queue_view *view, const char *device) {
    for (int64_t i = 0; i < view->room_count; i++) {
        if (strcmp(view->rooms[i].device, device) == 0) return view->rooms[i].bytes;
    }
    return -1;
}

static bool part_fits(const struct queue_view *view, const struct claim_part *part,
                      struct queue_lack *lack) {
    int64_t users = 0;
    const int64_t claimed = claimed_on(view, part->device, &users);
    if (users == 0) return true;
    const int64_t room = room_of(view, part->device);
    const bool shared = claimed != CLAIM_WHOLE && part->bytes != CLAIM_WHOLE;
    if (shared && claimed <= room && part->bytes <= room - claimed) return true;
    if (lack) {
        *lack = (struct queue_lack){.claimed = claimed, .room = room};
        snprintf(lack->device, sizeof lack->device, "%s", part->device);
    }
    return false;
}

bool queue_fits(const struct queue_view *view, const struct claim *wanted,
                struct queue_lack *lack) {
    for (int64_t i = 0; i < wanted->count; i++) {
        if (!part_fits(view, &wanted->parts[i], lack)) return false;
    }
    return true;
}

static bool share_a_device(const struct claim *a, const struct claim *b) {
    for (int64_t i = 0; i < a->count; i++) {
        if (claim_on(b, a->parts[i].device) > 0) return true;
    }
    return false;
}

int64_t queue_next(const struct queue_view *view, int64_t jobs_max, const struct claim *waiting,
                   int64_t waiting_count) {
    if (view->running_count >= jobs_max) return -1;
    for (int64_t i = 0; i < waiting_count; i++) {
        bool overtakes = false;
        for (int64_t earlier = 0; earlier < i && !overtakes; earlier++) {
            overtakes = share_a_device(&waiting[earlier], &waiting[i]);
        }
        if (!overtakes && queue_fits(view, &waiting[i], NULL)) return i;
    }
    return -1;
}
