/* device_books.c - two subtractions, and the moments at which they are made.
 *
 * A card tells free and total only; who is who follows from the order of things. */
#include "engine/train/device_books.h"

#include <string.h>

#include "base/host.h"
#include "base/str.h"
#include "engine/train/session.h"
#include "kernels/cards.h"

/* Libraries load in the first steps, and graphs are captured by the third: what is measured until
 * then is ours. */
enum { OVERHEAD_LOOKS = 4 };

void device_books_begin(struct device_books *books, const char *device) {
    *books = (struct device_books){0};
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

/* A null device has neither overhead nor others. */
static struct device_view look_at_host(const struct session *s, const struct arena_stats *stats) {
    const int64_t pretended = arena_pretended_others(s->arena);
    if (!s->device->computes)
        return (struct device_view){stats->reserved, s->device->total_bytes, 0, 0};
    const struct host_memory host = host_memory();
    const int64_t mine = host_resident();
    if (host.total < 0 || mine < 0) return (struct device_view){-1, s->device->total_bytes, -1, -1};
    struct device_view view = {.used = host.total - host.available,
                               .total = host.total,
                               .overhead = at_least_zero(mine - stats->reserved)};
    view.others = at_least_zero(view.used - mine);
    if (pretended < 0) return view;
    /* A test says who else is there, on a device that is as large as the capacity. */
    return (struct device_view){
        .used = stats->reserved + pretended, .total = stats->capacity, .others = pretended};
}

enum status device_books_look(struct device_books *books, const struct session *s,
                              struct device_view *out, struct err *e) {
    struct arena_stats stats;
    arena_get_stats(s->arena, &stats);
    if (s->device->kind != DEVICE_CUDA || !s->device->computes) {
        *out = look_at_host(s, &stats);
        return STATUS_OK;
    }
    struct device_memory memory = {0};
    TRY(device_memory(s->device, &memory, e));
    const int64_t used = memory.total - memory.free;
    const int64_t ours = stats.reserved + s->graphs.bytes;
    *out = (struct device_view){.used = used, .total = memory.total, .overhead = -1, .others = -1};
    if (!books->before_known) return STATUS_OK;
    if (books->looks < OVERHEAD_LOOKS) {
        const int64_t beside = at_least_zero(used - ours - books->before);
        if (beside > books->overhead) books->overhead = beside;
        books->looks++;
    }
    out->overhead = books->overhead + s->graphs.bytes;
    out->others = at_least_zero(used - ours - books->overhead);
    return STATUS_OK;
}
