/* group.c - see group.h: who is in a group, and the connections of its GPUs.
 *
 * A group of all ranks uses the connections that comm_attach made. Others get a key of their own:
 * the first member of each makes one, and all keys travel in one gather. */
#include "engine/dist/group.h"

#include <string.h>

#include "base/environment.h"
#include "base/mem.h"
#include "engine/dist/attach.h"
#include "kernels/peers.h"

int64_t comm_group_member(const struct comm_group *g, int64_t i) {
    ASSERT(i >= 0 && i < g->world);
    return g->first + i * g->stride;
}

static enum status open_peers(struct comm_group *g, struct device *device, struct err *e) {
    struct comm *const c = g->comm;
    char mine[PEERS_KEY_BYTES] = {0};
    int64_t bytes = 0;
    if (g->rank == 0) TRY(device_peers_new_key(device, mine, e));
    char *const keys = mem_new((size_t)c->world, PEERS_KEY_BYTES);
    enum status status = comm_gather(c, mine, sizeof mine, keys, e);
    const struct peers_place place = {
        .key = keys + g->first * PEERS_KEY_BYTES, .rank = g->rank, .world = g->world};
    if (status == STATUS_OK) status = device_peers_open(&g->peers, device, &place, &bytes, e);
    g->owns_peers = true;
    c->peers_bytes += bytes;
    mem_free(keys);
    return status;
}

enum status comm_group_open(struct comm_group *out, struct comm *c, struct device *device,
                            const struct comm_members *members, struct err *e) {
    const int64_t steps = c->rank - members->first;
    ASSERT(members->world >= 1 && members->stride >= 1 && steps % members->stride == 0);
    *out = (struct comm_group){.comm = c,
                               .rank = steps / members->stride,
                               .world = members->world,
                               .first = members->first,
                               .stride = members->stride};
    ASSERT(out->rank >= 0 && out->rank < out->world);
    if (!c->peers) return STATUS_OK;
    if (out->world == c->world) {
        out->peers = c->peers;
        return STATUS_OK;
    }
    if (out->world == 1) return STATUS_OK;
    return comm_agree(c, open_peers(out, device, e), e);
}

void comm_group_close(struct comm_group *g) {
    if (g->owns_peers) device_peers_close(g->peers, !g->comm->abandoned);
    *g = (struct comm_group){0};
}

void comm_count(const struct comm_group *g, enum traffic_kind kind, int64_t bytes) {
    struct comm *const c = g->comm;
    if (g->world == 1 || bytes == 0) return;
    const struct comm_traffic wanted = {
        .kind = kind, .first = g->first, .stride = g->stride, .world = g->world, .aside = g->aside};
    int i = 0;
    while (i < c->traffic_count &&
           (c->traffic[i].kind != kind || c->traffic[i].first != g->first ||
            c->traffic[i].stride != g->stride || c->traffic[i].world != g->world ||
            c->traffic[i].aside != g->aside)) {
        i++;
    }
    ASSERT(i < COMM_TRAFFIC_MAX);
    if (i == c->traffic_count) c->traffic[c->traffic_count++] = wanted;
    c->traffic[i].bytes += (double)bytes;
    c->traffic[i].calls++;
}

/* PLIMSOLL_NO_OVERLAP=1 runs everything in order: what overlap is measured against. */
static bool runs_aside(const struct comm_group *g) {
    return g->peers && !environment("PLIMSOLL_NO_OVERLAP");
}

enum status comm_aside_begin(struct comm_group *g, struct err *e) {
    g->aside = true;
    return runs_aside(g) ? device_peers_aside(g->peers, e) : STATUS_OK;
}

enum status comm_aside_end(struct comm_group *g, int64_t *ticket, struct err *e) {
    *ticket = 0;
    g->aside = false;
    return runs_aside(g) ? device_peers_aside_end(g->peers, ticket, e) : STATUS_OK;
}

enum status comm_aside_wait(struct comm_group *g, int64_t ticket, struct err *e) {
    return g->peers && ticket > 0 ? device_peers_wait(g->peers, ticket, e) : STATUS_OK;
}
