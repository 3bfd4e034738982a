/* host.c - tensors that wait in host memory between forward and backward.
 *
 * Copies are used again from step to step, because fresh pages cost more than the transfer. They
 * are not the arena's: the plan is about the device. */
#include "base/mem.h"
#include "engine/tensor/internal.h"

struct host_copy {
    void *data;
    int64_t bytes;
    struct host_copy *next;
};

/* One that is large enough, or a new one. */
static struct host_copy *take_copy(struct tensor_space *space, int64_t bytes) {
    for (struct host_copy **at = &space->free_copies; *at; at = &(*at)->next) {
        struct host_copy *const copy = *at;
        if (copy->bytes < bytes) continue;
        *at = copy->next;
        return copy;
    }
    struct host_copy *const copy = mem_new(1, sizeof *copy);
    copy->data = mem_resize(NULL, (size_t)bytes, 1);
    copy->bytes = bytes;
    return copy;
}

void host_copy_release(struct tensor_space *space, struct host_copy *copy) {
    if (!copy) return;
    copy->next = space->free_copies;
    space->free_copies = copy;
}

void host_copies_free(struct tensor_space *space) {
    while (space->free_copies) {
        struct host_copy *const copy = space->free_copies;
        space->free_copies = copy->next;
        mem_free(copy->data);
        mem_free(copy);
    }
}

static enum status upload_again(const struct recipe *recipe, struct tensor *into, struct err *e) {
    return recipe->copy ? tensor_upload(into, recipe->copy->data, e) : STATUS_OK;
}

enum status recipe_from_host(const struct tensor *t, struct recipe **out, struct err *e) {
    struct recipe *const r = pool_recipe(t->space);
    *out = r;
    r->make = upload_again;
    r->dtype = t->dtype;
    r->rows = t->rows;
    r->cols = t->cols;
    if (!t->space->device->computes) return STATUS_OK;
    r->copy = take_copy(t->space, tensor_bytes(t));
    return tensor_download(t, r->copy->data, e);
}
