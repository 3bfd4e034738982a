/* device_books.c - two subtractions, and the moments at which they are made.
 *
 * A card tells free and total only; who is who follows from the order of things. */
#include "engine/train/device_books.h"

#include <string.h>

#include "base/str.h"
#include "engine/train/session.h"
#include "kernels/cards.h"

/* Libraries load in the first steps, and graphs are captured by the third: what is measured until
 * then is ours. */
enum { OVERHEAD_LOOKS = 4 };

void device_books_begin(struct device_books *books, const char *device) {
    *books = (struct device_books){.begun = true};
    if (!str_starts_with(device, "cuda:")) return;
    struct device_cards cards;
    device_cards_find(&cards);
    for (int i = 0; i < cards.count; i++) {
        const struct device_card *const card = &cards.items[i];
        if (!str_equal(card->id, device) || card->free_bytes < 0) continue;
        books->before = card->total_bytes - card->free_bytes;
        books->before_known = books->before >= 0;
    }
}

static int64_t at_least_zero(int64_t bytes) {
    return bytes > 0 ? bytes : 0;
}

/* A null device has neither overhead nor others. On a CPU the device is the host. */
static void look_at_host(const struct session *s, const struct arena_stats *stats,
                         struct device_view *view) {
    const int64_t pretended = arena_pretended_others(s->arena);
    view->total = s->device->total_bytes;
    if (!s->device->computes) {
        view->used = stats->reserved;
        view->overhead = view->others = 0;
    } else if (pretended >= 0) {
        /* A test says who else is there, on a device that is as large as the capacity. */
        view->used = stats->reserved + pretended;
        view->total = stats->capacity;
        view->overhead = 0;
        view->others = pretended;
    } else if (view->host.total >= 0 && view->resident >= 0) {
        view->used = view->host.total - view->host.available;
        view->total = view->host.total;
        view->overhead = at_least_zero(view->resident - stats->reserved);
        view->others = at_least_zero(view->used - view->resident);
    }
}

static enum status look_at_card(const struct session *s, const struct arena_stats *stats,
                                struct device_view *view, struct err *e) {
    struct device_books *const books = s->books;
    struct device_memory memory = {0};
    TRY(device_memory(s->device, &memory, e));
    const int64_t ours = stats->reserved + s->graphs.bytes;
    view->used = memory.total - memory.free;
    view->total = memory.total;
    view->communication = s->comm ? s->comm->peers_bytes : 0;
    if (!books || !books->before_known) return STATUS_OK;
    if (books->looks < OVERHEAD_LOOKS) {
        const int64_t beside = at_least_zero(view->used - ours - books->before);
        if (beside > books->overhead) books->overhead = beside;
        books->looks++;
    }
    view->overhead = books->overhead + s->graphs.bytes;
    view->others = at_least_zero(view->used - ours - books->overhead);
    return STATUS_OK;
}

enum status device_books_look(const struct session *s, struct device_view *out, struct err *e) {
    struct arena_stats stats;
    arena_get_stats(s->arena, &stats);
    *out = (struct device_view){.used = -1,
                                .total = -1,
                                .overhead = -1,
                                .others = -1,
                                .host = host_memory(),
                                .resident = host_resident()};
    if (s->device->kind == DEVICE_CUDA && s->device->computes)
        return look_at_card(s, &stats, out, e);
    look_at_host(s, &stats, out);
    return STATUS_OK;
}
