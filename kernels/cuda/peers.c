/* peers.c - exchanges between cards, through NCCL.
 *
 * All on the device's own stream. Pieces are of any length, so a sum or an exchange of pieces is a
 * group of reductions or broadcasts, one a rank, which the library runs side by side. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda_peers.h"

struct device_peers {
    struct device *device;
    struct nccl nccl;
    nccl_comm comm;
    int64_t rank, world;
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
    mem_free(p);
}

enum status cuda_peers_sum(struct device_peers *p, float *data, int64_t count, struct err *e) {
    return check(p,
                 p->nccl.all_reduce(data, data, (size_t)count, NCCL_FLOAT, NCCL_SUM, p->comm,
                                    cuda_state_of(p->device)->stream),
                 "the sum of gradients", e);
}

enum status cuda_peers_sum_pieces(struct device_peers *p, float *data,
                                  const struct peers_piece *pieces, struct err *e) {
    static const char WHAT[] = "the sum of gradients";
    const cudaStream_t stream = cuda_state_of(p->device)->stream;
    int result = p->nccl.group_start();
    for (int64_t rank = 0; result == 0 && rank < p->world; rank++) {
        float *const at = data + pieces[rank].first;
        if (pieces[rank].count == 0) continue;
        result = p->nccl.reduce(at, at, (size_t)pieces[rank].count, NCCL_FLOAT, NCCL_SUM, (int)rank,
                                p->comm, stream);
    }
    const int ended = p->nccl.group_end();
    TRY(check(p, result, WHAT, e));
    return check(p, ended, WHAT, e);
}

enum status cuda_peers_share_pieces(struct device_peers *p, void *data, int64_t element_bytes,
                                    const struct peers_piece *pieces, struct err *e) {
    static const char WHAT[] = "the exchange of pieces";
    const cudaStream_t stream = cuda_state_of(p->device)->stream;
    int result = p->nccl.group_start();
    for (int64_t rank = 0; result == 0 && rank < p->world; rank++) {
        char *const at = (char *)data + pieces[rank].first * element_bytes;
        if (pieces[rank].count == 0) continue;
        result = p->nccl.broadcast(at, at, (size_t)(pieces[rank].count * element_bytes), NCCL_BYTE,
                                   (int)rank, p->comm, stream);
    }
    const int ended = p->nccl.group_end();
    TRY(check(p, result, WHAT, e));
    return check(p, ended, WHAT, e);
}

enum status cuda_peers_check(struct device_peers *p, struct err *e) {
    int result = 0;
    TRY(check(p, p->nccl.async_error(p->comm, &result), "asking for errors", e));
    return check(p, result, "an exchange with other GPUs", e);
}
