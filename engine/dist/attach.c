/* attach.c - how the device memory of the ranks is to travel, once each has its device.
 *
 * All ranks decide alike, because all look at the same records: GPUs that are all different and
 * have NCCL exchange by themselves; everything else goes through MPI, for GPUs by way of the host.
 * So several ranks may share a card, which NCCL refuses. */
#include "engine/dist/attach.h"

#include <string.h>

#include "base/mem.h"
#include "engine/dist/mover.h"
#include "kernels/peers.h"

/* The first pair of ranks that cannot be peers, or the first rank that cannot: why, in words. */
static bool can_be_peers(const struct comm *c, const struct peers_card *cards, struct err *why) {
    for (int64_t a = 0; a < c->world; a++) {
        if (!cards[a].usable) {
            err_set(why, STATUS_UNSUPPORTED, "rank %lld: %s", (long long)a, cards[a].why);
            return false;
        }
        for (int64_t b = 0; b < a; b++) {
            if (memcmp(cards[a].id, cards[b].id, sizeof cards[a].id) == 0) {
                err_set(why, STATUS_UNSUPPORTED,
                        "ranks %lld and %lld share a GPU, and NCCL wants one for each",
                        (long long)b, (long long)a);
                return false;
            }
            if (cards[a].version != cards[b].version) {
                err_set(why, STATUS_UNSUPPORTED,
                        "rank %lld has NCCL %lld and rank %lld has NCCL %lld", (long long)b,
                        (long long)cards[b].version, (long long)a, (long long)cards[a].version);
                return false;
            }
        }
    }
    return true;
}

static enum status open_peers(struct comm *c, struct device *device, struct err *e) {
    char mine[PEERS_KEY_BYTES] = {0};
    if (c->rank == 0) TRY(device_peers_new_key(device, mine, e));
    char *const keys = mem_new((size_t)c->world, PEERS_KEY_BYTES);
    const struct peers_place place = {.key = keys, .rank = c->rank, .world = c->world};
    enum status status = comm_gather(c, mine, sizeof mine, keys, e);
    if (status == STATUS_OK) {
        status = device_peers_open(&c->peers, device, &place, &c->peers_bytes, e);
    }
    mem_free(keys);
    return status;
}

enum status comm_agree(struct comm *c, enum status mine, struct err *e) {
    struct err *const all = mem_new((size_t)c->world, sizeof *all);
    struct err here = {0};
    if (mine != STATUS_OK) here = *e;
    enum status status = comm_gather(c, &here, sizeof here, all, e);
    for (int64_t rank = 0; status == STATUS_OK && rank < c->world; rank++) {
        if (all[rank].status == STATUS_OK) continue;
        *e = all[rank];
        status = e->status;
        if (rank != c->rank) err_prefix(e, "rank %lld", (long long)rank);
    }
    mem_free(all);
    return status;
}

enum status comm_attach(struct comm *c, struct device *device, struct err *e) {
    if (!c->wire || !device->computes) return STATUS_OK;
    struct peers_card mine;
    struct err why = {0};
    comm_doing(c, "the start");
    device_peers_card(device, &mine);
    struct peers_card *const cards = mem_new((size_t)c->world, sizeof *cards);
    enum status status = comm_gather(c, &mine, sizeof mine, cards, e);
    const bool peers = status == STATUS_OK && can_be_peers(c, cards, &why);
    mem_free(cards);
    TRY(status);
    if (peers) return comm_agree(c, open_peers(c, device, e), e);
    status = c->mover ? STATUS_OK : c->no_mover.status;
    if (status != STATUS_OK) *e = c->no_mover;
    if (status != STATUS_OK && device->kind == DEVICE_CUDA)
        err_set(e, STATUS_UNSUPPORTED, "%s; and %.300s", why.text, c->no_mover.text);
    return comm_agree(c, status, e);
}
