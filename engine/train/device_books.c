/* device_books.c - two subtractions, and the moments at which they are made.
 *
 * A card tells free and total only; who is who follows from the order of things. */
#include "engine/train/device_books.h"

#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/train/session.h"
#include "kernels/cards.h"
#include "kernels/peers.h"

/* Libraries load in the first steps, and graphs are captured by the third: what is measured until
 * then is ours. */
enum { OVERHEAD_LOOKS = 4, BOOT_ID_MAX = 64 };

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

/* FNV-1a; never 0, which means unknown. */
static uint64_t hash_of(const void *bytes, size_t count) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001B3u;
    }
    return hash ? hash : 1;
}

/* A card by its own id, a machine by that of its boot, which containers on it share. */
static uint64_t place_of(struct device *device) {
    struct str boot = {0};
    struct err ignored = {0};
    struct peers_card card = {.usable = false};
    uint64_t place = 0;
    static const uint8_t NONE[PEERS_CARD_BYTES] = {0};
    if (!device->computes) return 0;
    device_peers_card(device, &card);
    if (device->kind == DEVICE_CUDA && memcmp(card.id, NONE, sizeof card.id) != 0) {
        place = hash_of(card.id, sizeof card.id);
    } else if (device->kind == DEVICE_CPU && file_read("/proc/sys/kernel/random/boot_id",
                                                       BOOT_ID_MAX, &boot, &ignored) == STATUS_OK) {
        place = hash_of(str_text(&boot), boot.len);
    }
    str_release(&boot);
    return place;
}

enum status device_books_join(const struct session *s, struct err *e) {
    struct device_view view;
    if (!s->books) return STATUS_OK;
    /* Finding out loads NCCL: not for a rank that is alone. */
    if (s->comm && s->comm->world > 1) s->books->place = place_of(s->device);
    return device_books_look(s, &view, e);
}

struct device_share device_books_share(const struct device_books *books) {
    return (struct device_share){books->place, books->held};
}

void device_books_hear(struct device_books *books, const struct device_share *shares, int64_t world,
                       int64_t rank) {
    books->ours_elsewhere = 0;
    books->shared = world > 1 && books->place == 0; /* it may be */
    for (int64_t i = 0; i < world; i++) {
        if (i == rank || books->place == 0 || shares[i].place != books->place) continue;
        books->ours_elsewhere += shares[i].held;
        books->shared = true;
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
        if (s->books) {
            s->books->held = view->resident;
            view->others = at_least_zero(view->others - s->books->ours_elsewhere);
        }
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
    /* On a shared card neither can be told from what the other ranks took meanwhile. */
    if (!books || !books->before_known || books->shared) return STATUS_OK;
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
