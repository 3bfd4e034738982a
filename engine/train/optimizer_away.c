/* optimizer_away.c - the round trip of the slices.
 *
 * While slice i is updated, slice i+2 is on its way here and slice i-1 on its way back, which needs
 * three rooms: the one that i-1 leaves is the one that i+2 enters. Device copies are ordered by
 * device_copies_wait alone, so the host runs ahead and waits for nothing. */
#include "engine/train/optimizer_away.h"

#include "base/mem.h"

/* 16 MiB of each state: large enough for the bus, small enough to need little room. */
enum { SLICE_ELEMENTS = 4 << 20, AHEAD = 2 };

static int64_t bytes_of(int64_t elements) {
    return elements * dtype_bytes(DTYPE_F32);
}

static enum status take_host_memory(struct states_away *a, struct err *e) {
    for (int k = 0; k < AWAY_STATES; k++) {
        void *host = NULL;
        if (device_stage_new(a->space->device, bytes_of(a->count), &host, e) != STATUS_OK) {
            return err_prefix(e,
                              "optimizer_offloading wants %lld MiB of host memory for one of its "
                              "two states",
                              (long long)(bytes_of(a->count) >> 20));
        }
        a->host[k] = host;
        a->space->host_bytes += bytes_of(a->count);
    }
    return STATUS_OK;
}

enum status away_open(struct states_away *a, struct tensor_space *space, int64_t count,
                      struct err *e) {
    *a = (struct states_away){
        .space = space, .count = count, .slice = count < SLICE_ELEMENTS ? count : SLICE_ELEMENTS};
    for (int room = 0; room < AWAY_ROOMS && room * a->slice < count; room++) {
        for (int k = 0; k < AWAY_STATES; k++) {
            TRY(tensor_new(space, DTYPE_F32, 1, a->slice, CATEGORY_OPTIMIZER, &a->rooms[room][k],
                           e));
        }
    }
    return take_host_memory(a, e);
}

void away_close(struct states_away *a) {
    if (!a->space) return;
    struct err ignored = {0}; /* after an error copies may be on their way */
    (void)device_synchronize(a->space->device, &ignored);
    for (int room = 0; room < AWAY_ROOMS; room++) {
        for (int k = 0; k < AWAY_STATES; k++) {
            tensor_drop(&a->rooms[room][k]);
        }
    }
    for (int k = 0; k < AWAY_STATES; k++) {
        if (!a->host[k]) continue;
        device_stage_free(a->space->device, a->host[k]);
        a->space->host_bytes -= bytes_of(a->count);
    }
    *a = (struct states_away){0};
}

static struct away_slice slice_at(const struct states_away *a, int64_t index) {
    struct away_slice s = {.first = index * a->slice};
    s.count = a->count - s.first < a->slice ? a->count - s.first : a->slice;
    for (int k = 0; k < AWAY_STATES; k++) {
        s.state[k] = tensor_f32(a->rooms[index % AWAY_ROOMS][k]);
    }
    return s;
}

static enum status fetch(const struct states_away *a, int64_t index, struct err *e) {
    const struct away_slice s = slice_at(a, index);
    for (int k = 0; k < AWAY_STATES; k++) {
        TRY(device_fetch(a->space->device, s.state[k], a->host[k] + s.first, bytes_of(s.count), e));
    }
    return STATUS_OK;
}

static enum status send_back(const struct states_away *a, const struct away_slice *s,
                             struct err *e) {
    for (int k = 0; k < AWAY_STATES; k++) {
        TRY(device_stash(a->space->device, a->host[k] + s->first, s->state[k], bytes_of(s->count),
                         e));
    }
    return STATUS_OK;
}

enum status away_each(const struct states_away *a, away_visit *visit, const void *context,
                      struct err *e) {
    const int64_t slices = (a->count + a->slice - 1) / a->slice;
    for (int64_t i = 0; i < AHEAD && i < slices; i++) {
        TRY(fetch(a, i, e));
    }
    for (int64_t i = 0; i < slices; i++) {
        const struct away_slice s = slice_at(a, i);
        TRY(device_copies_wait(a->space->device, e));
        if (i + AHEAD < slices) TRY(fetch(a, i + AHEAD, e));
        TRY(visit(context, &s, e));
        TRY(send_back(a, &s, e));
    }
    return device_copies_wait(a->space->device, e);
}
