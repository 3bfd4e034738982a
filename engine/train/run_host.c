/* run_host.c - the host's memory: how much of it a run may have before the machine would swap.
 *
 * A machine that swaps is slower than any remedy, and its users notice before the job does, so what
 * does not fit is refused. The ranks of a machine share; all decide by the least. */
#include "base/host.h"
#include "base/mem.h"
#include "engine/train/run_parts.h"

static bool host_is_device(const struct run *r) {
    return str_equal(r->spec.device, "cpu");
}

enum status run_host_room(struct run *r, int64_t *bytes, struct err *e) {
    const struct session *const s = &r->session;
    const struct host_memory host = host_memory();
    int64_t held = s->space.host_bytes;
    if (s->arena && host_is_device(r)) {
        struct arena_stats stats;
        arena_get_stats(s->arena, &stats);
        held += stats.reserved;
    }
    const int64_t more = (host.available - SESSION_MARGIN_BYTES) / r->comm->local_world;
    *bytes = host.available < 0 ? INT64_MAX : held + (more > 0 ? more : 0);
    TRY(agree_least(r->comm, bytes, e));
    if (*bytes == INT64_MAX) *bytes = 0;
    return STATUS_OK;
}

enum status run_check_host(struct run *r, struct err *e) {
    const struct plan *const p = &r->plan;
    int64_t room = 0, wanted = p->staged_load > p->staged_train ? p->staged_load : p->staged_train;
    if (host_is_device(r)) wanted += plan_need(p);
    TRY(run_host_room(r, &room, e));
    if (room == 0 || wanted <= room) return STATUS_OK;
    char needed[24], there[24];
    return err_set_param(e, STATUS_OOM, "host memory",
                         "the run wants %s of the host's memory and may have %s before the machine "
                         "would swap: end other programs, or turn off optimizer_offloading, "
                         "param_offloading and activation_offloading",
                         str_bytes(wanted, needed), str_bytes(room, there));
}
