/* peers.c - the front of the peers: which device has them, in builds with CUDA and without.
 *
 * A build without CUDA has no way to open any, so the calls that need one are never reached. */
#include "kernels/peers.h"

#include <stdio.h>

#include "base/mem.h"
#include "kernels/cuda_peers.h"

static bool is_card(const struct device *device) {
#if PLIMSOLL_HAS_CUDA
    return device->kind == DEVICE_CUDA && device->computes;
#else
    (void)device;
    return false;
#endif
}

void device_peers_card(struct device *device, struct peers_card *out) {
    *out = (struct peers_card){0};
    if (!is_card(device)) {
        snprintf(out->why, sizeof out->why, "%s is not a GPU", device->name);
        return;
    }
#if PLIMSOLL_HAS_CUDA
    cuda_peers_card(device, out);
#endif
}

enum status device_peers_new_key(struct device *device, char key[PEERS_KEY_BYTES], struct err *e) {
    FAIL_IF(!is_card(device), STATUS_UNSUPPORTED, "%s is not a GPU", device->name);
#if PLIMSOLL_HAS_CUDA
    return cuda_peers_new_key(device, key, e);
#else
    (void)key;
    return STATUS_UNSUPPORTED;
#endif
}

enum status device_peers_open(struct device_peers **out, struct device *device,
                              const struct peers_place *place, int64_t *bytes, struct err *e) {
    *out = NULL;
    ASSERT(place->world > 1 && place->rank >= 0 && place->rank < place->world);
    FAIL_IF(!is_card(device), STATUS_UNSUPPORTED, "%s is not a GPU", device->name);
#if PLIMSOLL_HAS_CUDA
    return cuda_peers_open(out, device, place, bytes, e);
#else
    (void)bytes;
    return STATUS_UNSUPPORTED;
#endif
}

/* Asks the cards, or asserts that there are none: none could be opened. */
#if PLIMSOLL_HAS_CUDA
#define ASK(call) (call)
#else
#define ASK(call) (nobody(peers))
static enum status nobody(const struct device_peers *peers) {
    ASSERT(!peers);
    return STATUS_OK;
}
#endif

void device_peers_close(struct device_peers *peers, bool in_order) {
    (void)in_order;
#if PLIMSOLL_HAS_CUDA
    if (peers) cuda_peers_close(peers, in_order);
#else
    (void)nobody(peers);
#endif
}

enum status device_peers_sum(struct device_peers *peers, const struct peers_data *data,
                             int64_t count, struct err *e) {
    (void)data, (void)e;
    return count > 0 ? ASK(cuda_peers_sum(peers, data, count, e)) : STATUS_OK;
}

enum status device_peers_sum_pieces(struct device_peers *peers, const struct peers_data *data,
                                    const struct peers_piece *pieces, struct err *e) {
    (void)data, (void)pieces, (void)e;
    return ASK(cuda_peers_sum_pieces(peers, data, pieces, e));
}

enum status device_peers_share_pieces(struct device_peers *peers, const struct peers_data *data,
                                      const struct peers_piece *pieces, struct err *e) {
    (void)data, (void)pieces, (void)e;
    return ASK(cuda_peers_share_pieces(peers, data, pieces, e));
}

enum status device_peers_exchange(struct device_peers *peers, const struct peers_message *messages,
                                  int64_t count, struct err *e) {
    (void)messages, (void)count, (void)e;
    return ASK(cuda_peers_exchange(peers, messages, count, e));
}

enum status device_peers_aside(struct device_peers *peers, struct err *e) {
    (void)e;
    return ASK(cuda_peers_aside(peers, e));
}

enum status device_peers_aside_end(struct device_peers *peers, int64_t *ticket, struct err *e) {
    (void)ticket, (void)e;
    return ASK(cuda_peers_aside_end(peers, ticket, e));
}

enum status device_peers_wait(struct device_peers *peers, int64_t ticket, struct err *e) {
    (void)ticket, (void)e;
    return ASK(cuda_peers_wait(peers, ticket, e));
}

enum status device_peers_check(struct device_peers *peers, struct err *e) {
    (void)e;
    return ASK(cuda_peers_check(peers, e));
}
