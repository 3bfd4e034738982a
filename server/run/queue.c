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

static struct queue_lack lack_on(enum queue_wait wait, const char *device) {
    struct queue_lack lack = {.wait = wait};
    snprintf(lack.device, sizeof lack.device, "%s", device);
    return lack;
}

static struct queue_lack lack_of_part(const struct queue_view *view,
                                      const struct claim_part *part) {
    int64_t users = 0;
    const int64_t claimed = claimed_on(view, part->device, &users);
    const int64_t room = room_of(view, part->device);
    const bool shared = claimed != CLAIM_WHOLE && part->bytes != CLAIM_WHOLE;
    const bool fits = shared && claimed <= room && part->bytes <= room - claimed;
    if (users == 0 || fits) return (struct queue_lack){.wait = QUEUE_STARTS};
    struct queue_lack lack = lack_on(QUEUE_MEMORY, part->device);
    lack.claimed = claimed;
    lack.room = room;
    return lack;
}

struct queue_lack queue_lack_of(const struct queue_view *view, const struct claim *wanted) {
    struct queue_lack lack = {.wait = QUEUE_STARTS};
    for (int64_t i = 0; i < wanted->count && lack.wait == QUEUE_STARTS; i++) {
        lack = lack_of_part(view, &wanted->parts[i]);
    }
    return lack;
}

/* A device that both use; NULL when there is none. */
static const char *shared_device(const struct claim *a, const struct claim *b) {
    for (int64_t i = 0; i < a->count; i++) {
        if (claim_on(b, a->parts[i].device) > 0) return a->parts[i].device;
    }
    return NULL;
}

struct queue_lack queue_why(const struct queue_view *view, const struct queue_line *line,
                            int64_t place) {
    ASSERT(place >= 0 && place < line->count);
    if (view->running_count >= line->jobs_max) return lack_on(QUEUE_PLACES, "");
    for (int64_t earlier = 0; earlier < place; earlier++) {
        const char *const device = shared_device(&line->claims[earlier], &line->claims[place]);
        if (device) return lack_on(QUEUE_BEHIND, device);
    }
    return queue_lack_of(view, &line->claims[place]);
}

int64_t queue_next(const struct queue_view *view, const struct queue_line *line) {
    for (int64_t place = 0; place < line->count; place++) {
        if (queue_why(view, line, place).wait == QUEUE_STARTS) return place;
    }
    return -1;
}
