/* messages.c - device memory from one member of a group to another: what the stages of a pipeline
 * hand on.
 *
 * GPUs that are peers send by themselves, the CPU through MPI as the bytes lie; shared GPUs copy to
 * the host first and back afterwards. */
#include "engine/dist/attach.h"

#include "base/mem.h"
#include "engine/dist/mover.h"
#include "engine/dist/wire.h"
#include "kernels/peers.h"

static enum status exchange_of_peers(struct comm_group *g, const struct comm_message *messages,
                                     int64_t count, struct err *e) {
    struct peers_message *const list = mem_new((size_t)count, sizeof *list);
    for (int64_t i = 0; i < count; i++) {
        const struct comm_message *const m = &messages[i];
        list[i] = (struct peers_message){m->peer, m->data, m->bytes, m->sends};
    }
    enum status status = comm_check(g->comm, e);
    if (status == STATUS_OK) status = device_peers_exchange(g->peers, list, count, e);
    mem_free(list);
    return status;
}

/* The host's own copies of what lies on a device: filled where it is sent. Caller frees each. */
static enum status copy_out(struct device *device, const struct comm_message *messages,
                            int64_t count, struct mpi_message *list, struct err *e) {
    for (int64_t i = 0; i < count; i++) {
        list[i].data = mem_new((size_t)messages[i].bytes, 1);
        if (!messages[i].sends) continue;
        TRY(device_download(device, list[i].data, messages[i].data, messages[i].bytes, e));
    }
    return STATUS_OK;
}

static enum status copy_in(struct device *device, const struct comm_message *messages,
                           int64_t count, const struct mpi_message *list, struct err *e) {
    for (int64_t i = 0; i < count; i++) {
        if (messages[i].sends) continue;
        TRY(device_upload(device, messages[i].data, list[i].data, messages[i].bytes, e));
    }
    return STATUS_OK;
}

static enum status exchange_on_host(struct comm_group *g, struct device *device,
                                    const struct comm_message *messages, int64_t count,
                                    struct err *e) {
    const bool copies = device->kind != DEVICE_CPU;
    struct mpi_message *const list = mem_new((size_t)count, sizeof *list);
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < count; i++) {
        const struct comm_message *const m = &messages[i];
        list[i] = (struct mpi_message){comm_group_member(g, m->peer), m->data, m->bytes, m->sends};
    }
    if (copies) status = copy_out(device, messages, count, list, e);
    if (status == STATUS_OK) status = mover_exchange(g->comm, list, count, e);
    if (status == STATUS_OK && copies) status = copy_in(device, messages, count, list, e);
    for (int64_t i = 0; copies && i < count; i++) {
        mem_free(list[i].data);
    }
    mem_free(list);
    return status;
}

enum status comm_exchange(struct comm_group *g, struct device *device,
                          const struct comm_message *messages, int64_t count, struct err *e) {
    for (int64_t i = 0; i < count; i++) {
        if (messages[i].sends) comm_count(g, TRAFFIC_MESSAGE, messages[i].bytes);
    }
    if (g->world == 1 || !g->comm->wire || count == 0) return STATUS_OK;
    wire_doing(g->comm->wire, "while the others waited for a neighbour");
    const enum status status = g->peers ? exchange_of_peers(g, messages, count, e)
                                        : exchange_on_host(g, device, messages, count, e);
    wire_doing(g->comm->wire, "while the others computed");
    return status;
}
