/* neighbours.c - see neighbours.h: tensors as messages along the pipeline's axis of the mesh.
 *
 * Rows with room behind them (adapters in tails) are packed first, because the stage that receives
 * may want other tails, or none. */
#include "engine/train/neighbours.h"

int64_t neighbours_stages(const struct model *m) {
    return m->options.mesh ? m->options.mesh->axis[AXIS_PIPELINE].world : 1;
}

int64_t neighbours_stage(const struct model *m) {
    return m->options.mesh ? m->options.mesh->axis[AXIS_PIPELINE].rank : 0;
}

static bool is_sent(const struct hand *hand) {
    return hand->way == TO_NEXT || hand->way == TO_BEFORE;
}

/* *out: the tensor itself, or a copy without gaps. Caller releases. */
static enum status pack(const struct hand *hand, struct tensor **out, struct err *e) {
    struct tensor *const t = hand->tensor;
    if (t->ld == t->cols) {
        *out = tensor_retain(t);
        return STATUS_OK;
    }
    ASSERT(is_sent(hand));
    TRY(tensor_activation(t->space, t->rows, t->cols, 0, out, e));
    return tensor_copy(*out, t, e);
}

enum status neighbours_exchange(struct model *m, const struct hand *hands, int64_t count,
                                struct err *e) {
    struct comm_message messages[HANDS_MAX];
    struct tensor *packed[HANDS_MAX] = {0};
    const int64_t stage = neighbours_stage(m);
    enum status status = STATUS_OK;
    ASSERT(count <= HANDS_MAX);
    for (int64_t i = 0; i < count; i++) {
        const enum hand_way way = hands[i].way;
        GUARD(pack(&hands[i], &packed[i], e));
        messages[i] = (struct comm_message){.peer = way == TO_NEXT || way == FROM_NEXT ? stage + 1
                                                                                       : stage - 1,
                                            .data = packed[i]->data,
                                            .bytes = tensor_bytes(packed[i]),
                                            .sends = is_sent(&hands[i])};
    }
    if (count > 0)
        GUARD(comm_exchange(&m->options.mesh->axis[AXIS_PIPELINE], m->space->device, messages,
                            count, e));
done:
    for (int64_t i = 0; i < count; i++) {
        tensor_release(packed[i]);
    }
    return status;
}
