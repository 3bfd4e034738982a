/* peers.c - exchanges between cards, through NCCL.
 *
 * On the device's own stream, or aside on one of the group's: events order the two, and the host
 * waits for neither. Pieces of one length are the library's own reduce-scatter and all-gather;
 * others are a group of reductions or broadcasts, one a rank, which it runs side by side. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda_peers.h"

/* Tickets that may be waited for at a time: the event of an older one is a later one by then, which
 * only waits longer. */
enum { TICKETS = 16 };

struct device_peers {
    struct device *device;
    struct nccl nccl;
    nccl_comm comm;
    int64_t rank, world;
    cudaStream_t aside;        /* made at the first use, or NULL */
    cudaEvent_t before;        /* what was asked of the device */
    cudaEvent_t done[TICKETS]; /* of what was asked aside */
    int64_t tickets;           /* given so far */
    bool is_aside;
};

static enum status check(const struct device_peers *p, int result, const char *what,
                         struct err *e) {
    if (result == 0 || result == NCCL_IN_PROGRESS) return STATUS_OK;
    const char *const more = p->comm ? p->nccl.last_error(p->comm) : NULL;
    return err_set(e, STATUS_DEVICE, "device %s: %s: NCCL says %s%s%.200s", p->device->name, what,
                   p->nccl.error_string(result), more && more[0] ? ", " : "", more ? more : "");
}

void cuda_peers_card(struct device *device, struct peers_card *out) {
    struct nccl nccl;
    struct err e = {0};
    struct cudaDeviceProp properties;
    int version = 0;
    if (nccl_load(&nccl, &e) != STATUS_OK) {
        snprintf(out->why, sizeof out->why, "%s", e.text);
        return;
    }
    const cudaError_t error = cudaGetDeviceProperties(&properties, cuda_state_of(device)->ordinal);
    if (error != cudaSuccess || nccl.get_version(&version) != 0) {
        snprintf(out->why, sizeof out->why, "%s does not tell what it is", device->name);
        return;
    }
    _Static_assert(sizeof properties.uuid == PEERS_CARD_BYTES, "a card is named by 16 bytes");
    memcpy(out->id, &properties.uuid, sizeof out->id);
    out->version = version;
    out->usable = true;
}

enum status cuda_peers_new_key(struct device *device, char key[PEERS_KEY_BYTES], struct err *e) {
    struct device_peers p = {.device = device};
    struct nccl_key made;
    _Static_assert(sizeof made == PEERS_KEY_BYTES, "NCCL's key");
    TRY(nccl_load(&p.nccl, e));
    TRY(check(&p, p.nccl.get_unique_id(&made), "beginning a group of GPUs", e));
    memcpy(key, &made, sizeof made);
    return STATUS_OK;
}

/* The first exchange makes the connections; it is better made here than in the first step. */
static enum status warm_up(struct device_peers *p, struct err *e) {
    const struct cuda_state *const state = cuda_state_of(p->device);
    void *words = NULL;
    TRY(cuda_check(p->device, cudaMalloc(&words, sizeof(float)), "meeting the other GPUs", e));
    enum status status =
        cuda_check(p->device, cudaMemsetAsync(words, 0, sizeof(float), state->stream),
                   "meeting the other GPUs", e);
    if (status == STATUS_OK) {
        status = check(
            p, p->nccl.all_reduce(words, words, 1, NCCL_FLOAT, NCCL_SUM, p->comm, state->stream),
            "meeting the other GPUs", e);
    }
    if (status == STATUS_OK) status = device_synchronize(p->device, e);
    (void)cudaFree(words);
    return status;
}

enum status cuda_peers_open(struct device_peers **out, struct device *device,
                            const struct peers_place *place, int64_t *bytes, struct err *e) {
    struct device_peers *const p = *out = mem_new(1, sizeof *p);
    struct device_memory before = {0}, after = {0};
    struct nccl_key key;
    *p = (struct device_peers){.device = device, .rank = place->rank, .world = place->world};
    memcpy(&key, place->key, sizeof key);
    TRY(nccl_load(&p->nccl, e));
    TRY(device_memory(device, &before, e));
    TRY(check(p, p->nccl.init_rank(&p->comm, (int)place->world, key, (int)place->rank),
              "meeting the other GPUs", e));
    TRY(warm_up(p, e));
    TRY(device_memory(device, &after, e));
    *bytes = before.free > after.free ? before.free - after.free : 0;
    return STATUS_OK;
}

void cuda_peers_close(struct device_peers *p, bool in_order) {
    if (p->comm) (void)(in_order ? p->nccl.destroy(p->comm) : p->nccl.abort(p->comm));
    if (p->aside) (void)cudaStreamDestroy(p->aside);
    if (p->before) (void)cudaEventDestroy(p->before);
    for (int i = 0; i < TICKETS; i++) {
        if (p->done[i]) (void)cudaEventDestroy(p->done[i]);
    }
    mem_free(p);
}

static cudaStream_t stream_of(const struct device_peers *p) {
    return p->is_aside ? p->aside : cuda_state_of(p->device)->stream;
}

static int type_of(enum dtype dtype) {
    if (dtype == DTYPE_BF16) return NCCL_BFLOAT16;
    return dtype == DTYPE_F16 ? NCCL_HALF : NCCL_FLOAT;
}

static void *at(const struct peers_data *d, int64_t element) {
    return (char *)d->data + element * dtype_bytes(d->dtype);
}

/* Pieces side by side, all of one length: what the library has calls for. */
static bool are_even(const struct device_peers *p, const struct peers_piece *pieces) {
    for (int64_t rank = 0; rank < p->world; rank++) {
        if (pieces[rank].count != pieces[0].count || pieces[0].count == 0 ||
            pieces[rank].first != pieces[0].first + rank * pieces[0].count) {
            return false;
        }
    }
    return true;
}

enum status cuda_peers_sum(struct device_peers *p, const struct peers_data *d, int64_t count,
                           struct err *e) {
    return check(p,
                 p->nccl.all_reduce(d->data, d->data, (size_t)count, type_of(d->dtype), NCCL_SUM,
                                    p->comm, stream_of(p)),
                 "a sum among GPUs", e);
}

static int sum_one_by_one(struct device_peers *p, const struct peers_data *d,
                          const struct peers_piece *pieces) {
    int result = p->nccl.group_start();
    for (int64_t rank = 0; result == 0 && rank < p->world; rank++) {
        void *const here = at(d, pieces[rank].first);
        if (pieces[rank].count == 0) continue;
        result = p->nccl.reduce(here, here, (size_t)pieces[rank].count, type_of(d->dtype), NCCL_SUM,
                                (int)rank, p->comm, stream_of(p));
    }
    const int ended = p->nccl.group_end();
    return result ? result : ended;
}

enum status cuda_peers_sum_pieces(struct device_peers *p, const struct peers_data *d,
                                  const struct peers_piece *pieces, struct err *e) {
    static const char WHAT[] = "a sum of pieces among GPUs";
    if (!are_even(p, pieces)) return check(p, sum_one_by_one(p, d, pieces), WHAT, e);
    return check(p,
                 p->nccl.reduce_scatter(at(d, pieces[0].first), at(d, pieces[p->rank].first),
                                        (size_t)pieces[0].count, type_of(d->dtype), NCCL_SUM,
                                        p->comm, stream_of(p)),
                 WHAT, e);
}

static int share_one_by_one(struct device_peers *p, const struct peers_data *d,
                            const struct peers_piece *pieces) {
    int result = p->nccl.group_start();
    for (int64_t rank = 0; result == 0 && rank < p->world; rank++) {
        void *const here = at(d, pieces[rank].first);
        if (pieces[rank].count == 0) continue;
        result = p->nccl.broadcast(here, here, (size_t)(pieces[rank].count * dtype_bytes(d->dtype)),
                                   NCCL_BYTE, (int)rank, p->comm, stream_of(p));
    }
    const int ended = p->nccl.group_end();
    return result ? result : ended;
}

enum status cuda_peers_share_pieces(struct device_peers *p, const struct peers_data *d,
                                    const struct peers_piece *pieces, struct err *e) {
    static const char WHAT[] = "an exchange of pieces among GPUs";
    if (!are_even(p, pieces)) return check(p, share_one_by_one(p, d, pieces), WHAT, e);
    return check(p,
                 p->nccl.all_gather(at(d, pieces[p->rank].first), at(d, pieces[0].first),
                                    (size_t)(pieces[0].count * dtype_bytes(d->dtype)), NCCL_BYTE,
                                    p->comm, stream_of(p)),
                 WHAT, e);
}

enum status cuda_peers_exchange(struct device_peers *p, const struct peers_message *messages,
                                int64_t count, struct err *e) {
    int result = p->nccl.group_start();
    for (int64_t i = 0; result == 0 && i < count; i++) {
        const struct peers_message *const m = &messages[i];
        if (m->bytes == 0) continue;
        result = m->sends ? p->nccl.send(m->data, (size_t)m->bytes, NCCL_BYTE, (int)m->peer,
                                         p->comm, stream_of(p))
                          : p->nccl.receive(m->data, (size_t)m->bytes, NCCL_BYTE, (int)m->peer,
                                            p->comm, stream_of(p));
    }
    const int ended = p->nccl.group_end();
    return check(p, result ? result : ended, "messages among GPUs", e);
}

static enum status make_aside(struct device_peers *p, struct err *e) {
    static const char WHAT[] = "a stream for exchanges";
    if (p->aside) return STATUS_OK;
    TRY(cuda_check(p->device, cudaStreamCreateWithFlags(&p->aside, cudaStreamNonBlocking), WHAT,
                   e));
    TRY(cuda_check(p->device, cudaEventCreateWithFlags(&p->before, cudaEventDisableTiming), WHAT,
                   e));
    for (int i = 0; i < TICKETS; i++) {
        TRY(cuda_check(p->device, cudaEventCreateWithFlags(&p->done[i], cudaEventDisableTiming),
                       WHAT, e));
    }
    return STATUS_OK;
}

enum status cuda_peers_aside(struct device_peers *p, struct err *e) {
    ASSERT(!p->is_aside);
    TRY(make_aside(p, e));
    TRY(cuda_check(p->device, cudaEventRecord(p->before, cuda_state_of(p->device)->stream),
                   "an exchange beside computing", e));
    TRY(cuda_check(p->device, cudaStreamWaitEvent(p->aside, p->before, 0),
                   "an exchange beside computing", e));
    p->is_aside = true;
    return STATUS_OK;
}

enum status cuda_peers_aside_end(struct device_peers *p, int64_t *ticket, struct err *e) {
    ASSERT(p->is_aside);
    p->is_aside = false;
    *ticket = ++p->tickets;
    return cuda_check(p->device, cudaEventRecord(p->done[*ticket % TICKETS], p->aside),
                      "an exchange beside computing", e);
}

enum status cuda_peers_wait(struct device_peers *p, int64_t ticket, struct err *e) {
    ASSERT(ticket > 0 && ticket <= p->tickets);
    return cuda_check(
        p->device,
        cudaStreamWaitEvent(cuda_state_of(p->device)->stream, p->done[ticket % TICKETS], 0),
        "waiting for an exchange", e);
}

enum status cuda_peers_check(struct device_peers *p, struct err *e) {
    int result = 0;
    TRY(check(p, p->nccl.async_error(p->comm, &result), "asking for errors", e));
    return check(p, result, "an exchange with other GPUs", e);
}
