/* flight.c - see flight.h.
 *
 * The same calls as a micro-batch that is alone (step.c), cut in two. */
#include "engine/train/flight.h"

enum status flight_open(struct flight *f, struct model *m, const struct batch *batch,
                        const struct step_options *options, struct step_sums *sums, struct err *e) {
    ASSERT(!f->open && options->totals);
    *f = (struct flight){.open = true, .empty = batch->trained == 0};
    if (f->empty) return STATUS_OK;
    tape_init(&f->tape, m->space);
    f->tape.training = true;
    TRY(micro_open(&f->micro, m, batch, options, e));
    if (f->micro.inputs.given) {
        tensor_want_gradient(f->micro.inputs.given);
        f->given = gradient_retain(f->micro.inputs.given->gradient);
    }
    return micro_add_sums(&f->micro, batch, options, sums, e);
}

enum status flight_forward(struct flight *f, const struct step_options *options, struct err *e) {
    struct micro *const u = &f->micro;
    struct tensor *anchor = NULL;
    if (f->empty) return STATUS_OK;
    arena_enter(f->tape.space->arena, PHASE_FORWARD);
    f->tape.recording = true;
    const enum status status = micro_forward(&f->tape, u, options, &anchor, e);
    f->tape.recording = false;
    tensor_release(anchor);
    tensor_drop(&u->inputs.given); /* what backward wants of it, the tape holds */
    TRY(status);
    if (!u->handed) return STATUS_OK;
    ASSERT(u->handed->gradient); /* every stage trains something */
    f->handed = gradient_retain(u->handed->gradient);
    f->out = u->handed;
    u->handed = NULL;
    return STATUS_OK;
}

enum status flight_expect(struct flight *f, struct err *e) {
    if (f->empty || !f->handed) return STATUS_OK;
    struct tensor_space *const space = f->tape.space;
    arena_enter(space->arena, PHASE_BACKWARD);
    arena_set_label(space->arena, (struct arena_label){"from the next stage", -1});
    return tensor_activation(space, f->handed->rows, f->handed->cols, 0, &f->back, e);
}

static enum status begin_backward(struct flight *f, struct err *e) {
    if (!f->handed) return STATUS_OK; /* the loss has set the beginning */
    const enum status status = gradient_add(f->handed, f->back, e);
    tensor_drop(&f->back);
    gradient_release(f->handed);
    f->handed = NULL;
    return status;
}

enum status flight_backward(struct flight *f, const struct step_options *options, struct err *e) {
    if (f->empty) return STATUS_OK;
    arena_enter(f->tape.space->arena, PHASE_BACKWARD);
    TRY(begin_backward(f, e));
    TRY(tape_backward(&f->tape, 0, e));
    TRY(micro_add_totals(&f->micro, options, e));
    micro_close(&f->micro);
    if (!f->given) return STATUS_OK;
    f->out = gradient_take(f->given);
    ASSERT(f->out);
    gradient_release(f->given);
    f->given = NULL;
    return STATUS_OK;
}

void flight_close(struct flight *f) {
    if (!f->open) return;
    tape_release(&f->tape);
    tensor_release(f->out);
    tensor_release(f->back);
    gradient_release(f->given);
    gradient_release(f->handed);
    micro_close(&f->micro);
    *f = (struct flight){0};
}
