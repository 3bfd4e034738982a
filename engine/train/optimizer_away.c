/* optimizer_away.c - the round trip of the slices.
 *
 * While slice i is updated, slice i+2 is on its way here and slice i-1 on its way back, which needs
 * three rooms: the one that i-1 leaves is the one that i+2 enters. Device copies are ordered by
 * device_copies_wait alone, so the host runs ahead and waits for nothing. */
#include "engine/train/optimizer_away.h"

#include "base/mem.h"

/* 16 MiB of each state: large enough for the bus, small enough to need little room. */
enum { SLICE_ELEMENTS = 4 << 20, AHEAD = 2 };

static int64_t bytes_of(const struct away_lane *l, int64_t elements) {
    return elements * dtype_bytes(l->dtype);
}

static enum status take_host_memory(struct states_away *a, struct err *e) {
    for (int k = 0; k < AWAY_STATES; k++) {
        const int64_t bytes = bytes_of(&a->lanes[k], a->count);
        void *host = NULL;
        if (device_stage_new(a->space->device, bytes, &host, e) != STATUS_OK) {
            return err_prefix(e,
                              "optimizer_offloading wants %lld MiB of host memory for one of its "
                              "two states",
                              (long long)(bytes >> 20));
        }
        a->lanes[k].host = host;
        a->space->host_bytes += bytes;
    }
    return STATUS_OK;
}

/* Whether something travels in it. */
static bool is_used(const struct states_away *a, int lane) {
    return lane < AWAY_STATES || a->lanes[lane].host;
}

enum status away_open(struct states_away *a, struct tensor_space *space, int64_t count,
                      const struct away_guest guests[AWAY_GUESTS], struct err *e) {
    *a = (struct states_away){
        .space = space, .count = count, .slice = count < SLICE_ELEMENTS ? count : SLICE_ELEMENTS};
    for (int k = 0; k < AWAY_LANES; k++) {
        const bool guest = k >= AWAY_STATES && guests;
        a->lanes[k].dtype = guest ? guests[k - AWAY_STATES].dtype : DTYPE_F32;
        a->lanes[k].host = guest ? guests[k - AWAY_STATES].host : NULL;
    }
    for (int room = 0; room < AWAY_ROOMS && room * a->slice < count; room++) {
        for (int k = 0; k < AWAY_LANES; k++) {
            struct away_lane *const l = &a->lanes[k];
            if (is_used(a, k))
                TRY(tensor_new(space, l->dtype, 1, a->slice, CATEGORY_OPTIMIZER, &l->rooms[room],
                               e));
        }
    }
    return take_host_memory(a, e);
}

void away_close(struct states_away *a) {
    if (!a->space) return;
    struct err ignored = {0}; /* after an error copies may be on their way */
    (void)device_synchronize(a->space->device, &ignored);
    for (int k = 0; k < AWAY_LANES; k++) {
        for (int room = 0; room < AWAY_ROOMS; room++) {
            tensor_drop(&a->lanes[k].rooms[room]);
        }
    }
    for (int k = 0; k < AWAY_STATES; k++) {
        if (!a->lanes[k].host) continue;
        device_stage_free(a->space->device, a->lanes[k].host);
        a->space->host_bytes -= bytes_of(&a->lanes[k], a->count);
    }
    *a = (struct states_away){0};
}

float *away_state(const struct states_away *a, int state) {
    return (float *)(void *)a->lanes[state].host;
}

int64_t away_bytes(const struct states_away *a) {
    int64_t bytes = 0;
    for (int k = 0; a->space && k < AWAY_LANES; k++) {
        if (is_used(a, k)) bytes += bytes_of(&a->lanes[k], a->count);
    }
    return bytes;
}

static struct away_slice slice_at(const struct states_away *a, int64_t index) {
    struct away_slice s = {.first = index * a->slice};
    s.count = a->count - s.first < a->slice ? a->count - s.first : a->slice;
    for (int k = 0; k < AWAY_LANES; k++) {
        const struct tensor *const room = a->lanes[k].rooms[index % AWAY_ROOMS];
        if (k < AWAY_STATES) {
            s.state[k] = tensor_f32(room);
        } else {
            s.guest[k - AWAY_STATES] = room ? room->data : NULL;
        }
    }
    return s;
}

/* Slice `index` of all lanes, to the device or back. */
static enum status carry(const struct states_away *a, int64_t index, bool back, struct err *e) {
    struct device *const device = a->space->device;
    const struct away_slice s = slice_at(a, index);
    for (int k = 0; k < AWAY_LANES; k++) {
        const struct away_lane *const l = &a->lanes[k];
        if (!is_used(a, k)) continue;
        char *const there = l->host + bytes_of(l, s.first);
        void *const here = l->rooms[index % AWAY_ROOMS]->data;
        TRY(back ? device_stash(device, there, here, bytes_of(l, s.count), e)
                 : device_fetch(device, here, there, bytes_of(l, s.count), e));
    }
    return STATUS_OK;
}

enum status away_each(const struct states_away *a, away_visit *visit, const void *context,
                      struct err *e) {
    const int64_t slices = (a->count + a->slice - 1) / a->slice;
    for (int64_t i = 0; i < AHEAD && i < slices; i++) {
        TRY(carry(a, i, false, e));
    }
    for (int64_t i = 0; i < slices; i++) {
        const struct away_slice s = slice_at(a, i);
        TRY(device_copies_wait(a->space->device, e));
        if (i + AHEAD < slices) TRY(carry(a, i + AHEAD, false, e));
        TRY(visit(context, &s, e));
        TRY(carry(a, i, true, e));
    }
    return device_copies_wait(a->space->device, e);
}
