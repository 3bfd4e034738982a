/* optimizer_away.h - AdamW's two states in host memory: every slice visits the device for its
 * update and goes back. So may what it updates: guests.
 *
 * The update is the device's own kernel, so where the states are kept changes no bit of what is
 * learned. Slices travel both ways at once beside the updates; the device holds three of them.
 * The alternative, an update on the processor, moves gradients and weights instead of states (as
 * many bytes, both ways together) and then waits for the processor's memory, which is several
 * times slower than the bus on most machines (ZeRO-Offload, Ren et al. 2021, section 4.1). */
#ifndef PLIMSOLL_ENGINE_TRAIN_OPTIMIZER_AWAY_H
#define PLIMSOLL_ENGINE_TRAIN_OPTIMIZER_AWAY_H

#include "engine/tensor/tensor.h"

enum { AWAY_STATES = 2, AWAY_GUESTS = 2, AWAY_LANES = AWAY_STATES + AWAY_GUESTS, AWAY_ROOMS = 3 };

/* What comes along and goes back, of device_stage_new and as many elements as a state has; it stays
 * its owner's. host NULL: nothing. */
struct away_guest {
    void *host;
    enum dtype dtype;
};

/* What travels: exp_avg, exp_avg_sq, guests. */
struct away_lane {
    char *host; /* [count] */
    enum dtype dtype;
    struct tensor *rooms[AWAY_ROOMS]; /* [1, slice] on the device */
};

/* Zeroed: the states are not away. */
struct states_away {
    struct tensor_space *space;
    int64_t count, slice; /* elements of a state, and of the most that visits at once */
    struct away_lane lanes[AWAY_LANES]; /* the states are first, f32, of device_stage_new */
};

/* Takes host memory (8 bytes an element, zeros) and the rooms; guests NULL: none. Release with
 * away_close, also after an error. STATUS_OOM when the device has no room, STATUS_DEVICE when the
 * host has none. */
enum status away_open(struct states_away *a, struct tensor_space *space, int64_t count,
                      const struct away_guest guests[AWAY_GUESTS], struct err *e);
void away_close(struct states_away *a);
float *away_state(const struct states_away *a, int state);
/* What travels each way for one away_each. */
int64_t away_bytes(const struct states_away *a);

/* Elements first..first+count of both states and the guests, on the device while `visit` runs. */
struct away_slice {
    int64_t first, count;
    float *state[AWAY_STATES];
    void *guest[AWAY_GUESTS]; /* NULL where there is none */
};
typedef enum status away_visit(const void *context, const struct away_slice *slice, struct err *e);
/* Calls visit for every slice in order; what it asks of the device changes the states. */
enum status away_each(const struct states_away *a, away_visit *visit, const void *context,
                      struct err *e);

#endif
