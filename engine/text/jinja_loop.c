/* jinja_loop.c - the loop object.
 *
 * Items that a loop filter rejects are skipped one by one, as late as possible, because the
 * filter may look at namespaces that the body changes. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"

static enum status passes_filter(struct render *r, struct loop *loop, const struct value *item,
                                 bool *passes) {
    *passes = true;
    if (!loop->node->as.loop.filter) return STATUS_OK;
    struct value test;
    struct scope *const scope = scope_new(r, loop->scope);
    TRY(assign(r, scope, loop->node->as.loop.target, *item));
    TRY(eval(r, scope, loop->node->as.loop.filter, &test));
    *passes = value_is_true(&test);
    return STATUS_OK;
}

enum status loop_peek(struct render *r, struct loop *loop) {
    while (!loop->has_next && loop->at < loop->count) {
        const struct value *const item = &loop->items[loop->at++];
        bool passes;
        TRY(passes_filter(r, loop, item, &passes));
        if (!passes) continue;
        loop->next = *item;
        loop->has_next = true;
    }
    return STATUS_OK;
}

enum status loop_advance(struct render *r, struct loop *loop, bool *more) {
    TRY(loop_peek(r, loop));
    *more = loop->has_next;
    if (!*more) return STATUS_OK;
    loop->has_previous = loop->index0 >= 0;
    loop->previous = loop->current;
    loop->current = loop->next;
    loop->has_next = false;
    loop->index0++;
    return STATUS_OK;
}

/* Asking for the length settles the filter for all items that are left. */
static enum status loop_length(struct render *r, struct loop *loop, int64_t *out) {
    if (loop->node->as.loop.filter) {
        struct sequence *const left = sequence_new(&r->region, SEQUENCE_LIST, 0);
        while (true) {
            TRY(loop_peek(r, loop));
            if (!loop->has_next) break;
            sequence_push(&r->region, left, loop->next);
            loop->has_next = false;
        }
        /* a node without filter, so that they are not filtered again */
        struct node *const node = region_alloc(&r->region, 1, sizeof *node);
        *node = *loop->node;
        node->as.loop.filter = NULL;
        loop->node = node;
        loop->items = left->items;
        loop->count = left->count;
        loop->at = 0;
    }
    *out = loop->index0 + 1 + (loop->has_next ? 1 : 0) + (int64_t)(loop->count - loop->at);
    return STATUS_OK;
}

static enum status attribute_of_length(struct render *r, struct loop *loop, const char *name,
                                       struct value *out) {
    int64_t length = 0;
    TRY(loop_length(r, loop, &length));
    const int64_t left = length - loop->index0;
    *out = value_int(!strcmp(name, "length")     ? length
                     : !strcmp(name, "revindex") ? left
                                                 : left - 1);
    return STATUS_OK;
}

static enum status attribute_of_next(struct render *r, struct loop *loop, bool ask_last,
                                     struct value *out) {
    TRY(loop_peek(r, loop));
    if (ask_last) {
        *out = value_bool(!loop->has_next);
    } else {
        *out = loop->has_next ? loop->next : value_undefined(&r->region, "there is no next item");
    }
    return STATUS_OK;
}

static enum status run_cycle(struct render *r, const struct value *self, const struct args *args,
                             struct value *out) {
    RENDER_FAIL_IF(r, !args->count || args->keyword_count, STATUS_INVALID,
                   "loop.cycle needs items to go through");
    *out = args->items[(size_t)self->as.loop->index0 % args->count];
    return STATUS_OK;
}

static enum status run_changed(struct render *r, const struct value *self, const struct args *args,
                               struct value *out) {
    struct loop *const loop = self->as.loop;
    struct sequence *const now = sequence_new(&r->region, SEQUENCE_TUPLE, args->count);
    for (size_t i = 0; i < args->count; i++) {
        sequence_push(&r->region, now, args->items[i]);
    }
    struct value *const seen = region_alloc(&r->region, 1, sizeof *seen);
    *seen = value_sequence(now);
    bool same = false;
    if (loop->changed) TRY(values_equal(r, loop->changed, seen, &same));
    loop->changed = seen;
    *out = value_bool(!same);
    return STATUS_OK;
}

const struct builtin LOOP_METHODS[LOOP_METHOD_COUNT] = {{"cycle", "*", run_cycle},
                                                        {"changed", "*", run_changed}};

enum status loop_attribute(struct render *r, struct loop *loop, const struct text *name,
                           struct value *out, bool *found) {
    static const char *const NAMES[] = {"index",    "index0",   "first",    "depth",
                                        "depth0",   "previtem", "nextitem", "last",
                                        "revindex", "length",   "revindex0"};
    size_t i = 0;
    while (i < COUNT_OF(NAMES) &&
           (strlen(NAMES[i]) != name->len || memcmp(NAMES[i], name->data, name->len))) {
        i++;
    }
    *found = i < COUNT_OF(NAMES);
    switch (i) {
    case 0: *out = value_int(loop->index0 + 1); break;
    case 1: *out = value_int(loop->index0); break;
    case 2: *out = value_bool(loop->index0 == 0); break;
    case 3: *out = value_int(loop->depth); break;
    case 4: *out = value_int(loop->depth - 1); break;
    case 5:
        *out = loop->has_previous ? loop->previous
                                  : value_undefined(&r->region, "there is no previous item");
        break;
    case 6:
    case 7: return attribute_of_next(r, loop, i == 7, out);
    case 8:
    case 9:
    case 10: return attribute_of_length(r, loop, NAMES[i], out);
    default: break;
    }
    return STATUS_OK;
}
