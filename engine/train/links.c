/* links.c - speeds of links, and rings over them.
 *
 * NVLink between two H200s is measured (BENCHMARKS.md, links: 20 us and then 253 to 304 GB/s for
 * rings of 512 MiB, by kind): 280 GB/s of the 450 that one direction is promised. The share taken
 * of other published figures is that one. A ring that crosses machines enters and leaves each of
 * them once for every rank that it has there, each through a network card of its own ("rails"), so
 * the network is as fast as so many cards, but never faster than the machine's inside. */
#include "engine/train/links.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/train/cost.h"

/* Before a collective of any size is done. */
static const double CALL_SECONDS = 20e-6;
/* Of a published figure, what a measured link reached. */
static const double NODE_SHARE = 0.62, NETWORK_SHARE = 0.85;

enum kind { NVLINK, PCIE, SHARED_MEMORY, KIND_COUNT };
static const struct {
    const char *name;
    double hop_seconds;
} KINDS[KIND_COUNT] = {
    [NVLINK] = {"NVLink", 1e-6},
    [PCIE] = {"PCI Express", 3e-6},
    [SHARED_MEMORY] = {"shared memory", 5e-6},
};

/* By ids of cost.c. One direction, bytes a second: data sheets give both together (NVLink 1.8 TB/s
 * for B200, 900 GB/s for Hopper, 600 GB/s for A100; PCI Express 5.0 x16 128 GB/s, 4.0 x16 64). The
 * network is what the maker's own machines have for each card: 400 Gb/s (DGX H100, H200, B200),
 * 200 Gb/s (DGX A100); what goes into other servers is taken to have 25 Gb/s a card. */
static const struct {
    const char *card;
    enum kind kind;
    double published, measured; /* measured 0: never */
    const char *network;
} NODES[] = {
    {"b200-180gb", NVLINK, 900e9, 0, "infiniband-400"},
    {"h200-141gb", NVLINK, 450e9, 280e9, "infiniband-400"},
    {"h100-80gb", NVLINK, 450e9, 0, "infiniband-400"},
    {"h100-pcie-80gb", PCIE, 64e9, 0, "infiniband-200"},
    {"a100-80gb", NVLINK, 300e9, 0, "infiniband-200"},
    {"a100-40gb", NVLINK, 300e9, 0, "infiniband-200"},
    {"rtx5090-32gb", PCIE, 64e9, 0, "ethernet-25"},
    {"cpu", SHARED_MEMORY, 2e9, 0, "ethernet-10"},
};

/* Per rank: a network card of its own. */
static const struct {
    const char *id, *name;
    double bits, hop_seconds;
} NETWORKS[] = {
    {"infiniband-400", "InfiniBand 400 Gb/s", 400e9, 5e-6},
    {"infiniband-200", "InfiniBand 200 Gb/s", 200e9, 5e-6},
    {"infiniband-100", "InfiniBand 100 Gb/s", 100e9, 5e-6},
    {"ethernet-400", "Ethernet 400 Gb/s", 400e9, 10e-6},
    {"ethernet-200", "Ethernet 200 Gb/s", 200e9, 10e-6},
    {"ethernet-100", "Ethernet 100 Gb/s", 100e9, 10e-6},
    {"ethernet-25", "Ethernet 25 Gb/s", 25e9, 20e-6},
    {"ethernet-10", "Ethernet 10 Gb/s", 10e9, 30e-6},
};

static struct link_speed node_of(const char *card, const char **usual) {
    const struct card *const known = card ? card_find(card) : NULL;
    const char *const id = known ? known->id : card ? card : "";
    struct link_speed link = {.hop_seconds = KINDS[PCIE].hop_seconds,
                              .bytes_per_second = NODE_SHARE * 32e9,
                              .from = "published"};
    enum kind kind = PCIE;
    *usual = "ethernet-25";
    for (size_t i = 0; i < COUNT_OF(NODES); i++) {
        if (strcmp(NODES[i].card, id) != 0) continue;
        kind = NODES[i].kind;
        const bool measured = NODES[i].measured > 0;
        link.bytes_per_second = measured ? NODES[i].measured : NODE_SHARE * NODES[i].published;
        link.from = measured ? "measured" : kind == SHARED_MEMORY ? "assumed" : "published";
        link.hop_seconds = KINDS[kind].hop_seconds;
        *usual = NODES[i].network;
    }
    snprintf(link.name, sizeof link.name, "%s", KINDS[kind].name);
    return link;
}

struct links links_find(const char *card, const char *network, int64_t per_node) {
    const char *usual = NULL;
    struct links links = {.node = node_of(card, &usual), .ranks_per_node = per_node};
    const bool assumed = strcmp(network, "auto") == 0;
    const char *const id = assumed ? usual : network;
    ASSERT(per_node >= 1);
    for (size_t i = 0; i < COUNT_OF(NETWORKS); i++) {
        if (strcmp(NETWORKS[i].id, id) != 0) continue;
        links.network.bytes_per_second = NETWORK_SHARE * NETWORKS[i].bits / 8;
        links.network.hop_seconds = NETWORKS[i].hop_seconds;
        links.network.from = assumed ? "assumed" : "published";
        snprintf(links.network.name, sizeof links.network.name, "%s", NETWORKS[i].name);
    }
    ASSERT(links.network.bytes_per_second > 0);
    return links;
}

int64_t links_nodes(const struct links *links, const struct comm_traffic *g) {
    const int64_t per = links->ranks_per_node;
    if (g->stride >= per) return g->world;
    return (g->first + (g->world - 1) * g->stride) / per - g->first / per + 1;
}

/* Once around. */
static double ring_seconds(const struct links *links, const struct comm_traffic *g, double bytes) {
    const double n = (double)g->world, nodes = (double)links_nodes(links, g);
    const double share = (n - 1) / n;
    if (nodes <= 1)
        return share * bytes / links->node.bytes_per_second +
               g->calls * (n - 1) * links->node.hop_seconds;
    const double rails = fmax(1, floor(n / nodes));
    const double speed =
        rails > 1 ? fmin(links->node.bytes_per_second, rails * links->network.bytes_per_second)
                  : links->network.bytes_per_second;
    const double hops = nodes * links->network.hop_seconds + (n - nodes) * links->node.hop_seconds;
    return share * bytes / speed + g->calls * hops;
}

double links_seconds(const struct links *links, const struct comm_traffic *row) {
    const double calls = row->calls * CALL_SECONDS;
    if (row->world <= 1) return 0;
    if (row->kind == TRAFFIC_ALL_REDUCE) return calls + 2 * ring_seconds(links, row, row->bytes);
    if (row->kind != TRAFFIC_MESSAGE) return calls + ring_seconds(links, row, row->bytes);
    const struct link_speed *const slowest =
        links_nodes(links, row) > 1 ? &links->network : &links->node;
    return calls + row->calls * slowest->hop_seconds + row->bytes / slowest->bytes_per_second;
}

static bool is_same(const struct comm_traffic *a, const struct comm_traffic *b) {
    return a->kind == b->kind && a->first == b->first && a->stride == b->stride &&
           a->world == b->world && a->aside == b->aside;
}

struct traffic_book traffic_since(const struct comm *comm, const struct traffic_book *then) {
    struct traffic_book book = {.count = comm->traffic_count};
    for (int i = 0; i < comm->traffic_count; i++) {
        book.rows[i] = comm->traffic[i];
        /* Rows are only ever added. */
        if (i >= then->count) continue;
        ASSERT(is_same(&comm->traffic[i], &then->rows[i]));
        book.rows[i].bytes -= then->rows[i].bytes;
        book.rows[i].calls -= then->rows[i].calls;
    }
    return book;
}

struct exchange_time links_time(const struct links *links, const struct traffic_book *book) {
    struct exchange_time time = {0};
    for (int i = 0; i < book->count; i++) {
        const struct comm_traffic *const row = &book->rows[i];
        if (row->calls <= 0) continue;
        const double seconds = links_seconds(links, row), n = (double)row->world;
        *(row->aside ? &time.aside : &time.plain) += seconds;
        if (links_nodes(links, row) > 1) time.across += seconds;
        time.bytes += row->kind == TRAFFIC_MESSAGE      ? row->bytes
                      : row->kind == TRAFFIC_ALL_REDUCE ? 2 * (n - 1) / n * row->bytes
                                                        : (n - 1) / n * row->bytes;
    }
    return time;
}
