/* peers.h - GPUs of one run that exchange device memory by themselves, without the host: NCCL.
 *
 * Only GPUs have it, one rank a card. Everything here is asked for on the device's own stream, in
 * order with its operations, and waits for nobody; what never comes back (a lost peer) is the
 * business of engine/dist, whose other channel knows who is gone. */
#ifndef PLIMSOLL_KERNELS_PEERS_H
#define PLIMSOLL_KERNELS_PEERS_H

#include "kernels/device.h"

enum { PEERS_KEY_BYTES = 128, PEERS_CARD_BYTES = 16 };

/* What decides whether ranks can be peers: records of all of them are compared. */
struct peers_card {
    bool usable;                  /* a GPU, and the library is there */
    uint8_t id[PEERS_CARD_BYTES]; /* of the card, all over the world */
    int64_t version;              /* of the library */
    char why[160];                /* usable is false: a sentence for people */
};
void device_peers_card(struct device *device, struct peers_card *out);

/* The key of a new group: one rank makes it, all open with it. */
enum status device_peers_new_key(struct device *device, char key[PEERS_KEY_BYTES], struct err *e);

struct device_peers;
struct peers_place {
    const char *key; /* PEERS_KEY_BYTES */
    int64_t rank, world;
};
/* Returns when all have come. STATUS_UNSUPPORTED without the library, STATUS_DEVICE with its words.
 * *bytes: what it took of the device, outside the arena. */
enum status device_peers_open(struct device_peers **out, struct device *device,
                              const struct peers_place *place, int64_t *bytes, struct err *e);
/* in_order: all come here; else the group is only given up. The device must be open still. */
void device_peers_close(struct device_peers *peers, bool in_order);

/* One contiguous piece a rank of some device memory, in elements. */
struct peers_piece {
    int64_t first, count;
};
/* Numbers of device memory: f32, bf16 or f16 where they are summed, any where they only travel. */
struct peers_data {
    void *data;
    enum dtype dtype;
};
/* data = sum over ranks, the same bits on all. */
enum status device_peers_sum(struct device_peers *peers, const struct peers_data *data,
                             int64_t count, struct err *e);
/* data[pieces[rank]] = sum over ranks; pieces [world]. What is outside is left alone. */
enum status device_peers_sum_pieces(struct device_peers *peers, const struct peers_data *data,
                                    const struct peers_piece *pieces, struct err *e);
/* Every rank's own piece to all. */
enum status device_peers_share_pieces(struct device_peers *peers, const struct peers_data *data,
                                      const struct peers_piece *pieces, struct err *e);
/* Bytes to, or from, a rank of the group; all of them side by side. */
struct peers_message {
    int64_t peer;
    void *data;
    int64_t bytes;
    bool sends;
};
enum status device_peers_exchange(struct device_peers *peers, const struct peers_message *messages,
                                  int64_t count, struct err *e);

/* What is asked of the group from here to aside_end comes after everything that was asked of the
 * device before, and runs on a stream of the group's own; *ticket is for the wait, which lets
 * everything asked of the device afterwards come after it. The host never waits. */
enum status device_peers_aside(struct device_peers *peers, struct err *e);
enum status device_peers_aside_end(struct device_peers *peers, int64_t *ticket, struct err *e);
enum status device_peers_wait(struct device_peers *peers, int64_t ticket, struct err *e);

/* An error that came up since the last call, without waiting. */
enum status device_peers_check(struct device_peers *peers, struct err *e);

#endif
