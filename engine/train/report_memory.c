/* report_memory.c - the events memory and oom: the arena's books, the device's, the host's.
 *
 * What is not known is null, never 0. The fields are listed in engine/events.h. */
#include "engine/train/report.h"

#include "base/file.h"
#include "engine/train/holdings.h"
#include "kernels/cards.h"

static const char SHM_FOLDER[] = "/dev/shm";

static void add_known(cJSON *json, const char *key, int64_t bytes) {
    if (bytes >= 0) {
        json_add_i64(json, key, bytes);
    } else {
        cJSON_AddNullToObject(json, key);
    }
}

static void add_categories(cJSON *json, const char *key,
                           const int64_t by_category[CATEGORY_COUNT]) {
    cJSON *const categories = cJSON_AddObjectToObject(json, key);
    for (int i = 0; i < CATEGORY_COUNT; i++) {
        json_add_i64(categories, category_name((enum category)i), by_category[i]);
    }
}

/* Only phases that were entered, and of them only what they held: the event is written each step.
 */
static void add_phases(cJSON *json, const struct arena_stats *stats) {
    cJSON *const phases = cJSON_AddObjectToObject(json, "phases");
    for (int p = 0; p < PHASE_COUNT; p++) {
        if (stats->phase_peak[p] == 0) continue;
        cJSON *const phase = cJSON_AddObjectToObject(phases, phase_name((enum phase)p));
        json_add_i64(phase, "peak", stats->phase_peak[p]);
        if (stats->phase_followed[p]) json_add_i64(phase, "logits", stats->phase_followed[p]);
        cJSON *const categories = cJSON_AddObjectToObject(phase, "categories");
        for (int i = 0; i < CATEGORY_COUNT; i++) {
            const int64_t bytes = stats->phase_categories[p][i];
            if (bytes) json_add_i64(categories, category_name((enum category)i), bytes);
        }
    }
}

/* What lies outside the largest free block, of all that is reserved and free. */
static double fragmentation(const struct arena_stats *s) {
    const int64_t unused = s->reserved - s->allocated;
    return unused > 0 ? 1 - (double)s->largest_free_block / (double)unused : 0;
}

static void add_arena(cJSON *json, const struct arena_stats *stats) {
    /* Between steps the activations are gone; what a chart needs is what was held when it was
     * fullest. */
    add_categories(json, "categories", stats->at_peak);
    add_categories(json, "categories_now", stats->by_category);
    add_categories(json, "step_categories", stats->window_categories);
    json_add_i64(json, "allocated", stats->allocated);
    json_add_i64(json, "reserved", stats->reserved);
    json_add_i64(json, "peak", stats->allocated_peak);
    json_add_i64(json, "step_peak", stats->window_peak);
    json_add_i64(json, "largest_free_block", stats->largest_free_block);
    json_add_number(json, "fragmentation", fragmentation(stats));
    json_add_i64(json, "capacity", stats->capacity);
}

/* The counters of the classic summary that the other fields do not tell (engine/memory/summary.h).
 */
static void add_allocator(cJSON *json, const struct arena_stats *s) {
    cJSON *const a = cJSON_AddObjectToObject(json, "allocator");
    json_add_i64(a, "requested", s->requested);
    json_add_i64(a, "requested_peak", s->requested_peak);
    json_add_i64(a, "reserved_peak", s->reserved_peak);
    json_add_i64(a, "allocated_total", s->allocated_total);
    json_add_i64(a, "reserved_total", s->reserved_total);
    json_add_i64(a, "non_releasable", s->non_releasable);
    json_add_i64(a, "live", s->live);
    json_add_i64(a, "live_peak", s->live_peak);
    json_add_i64(a, "live_total", s->live_total);
    json_add_i64(a, "failures", s->failures);
}

static void add_device(cJSON *json, const struct device_view *view) {
    add_known(json, "device_used", view->used);
    add_known(json, "device_total", view->total);
    add_known(json, "overhead", view->overhead);
    json_add_i64(json, "communication_outside", view->communication);
    add_known(json, "others", view->others);
}

enum status report_memory(struct event_log *log, struct session *s, const struct memory_report *r,
                          struct err *e) {
    struct arena_stats stats;
    struct device_view view;
    TRY(device_books_look(s, &view, e));
    arena_get_stats(s->arena, &stats);
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", r->step);
    json_add_string(fields, "phase", r->phase);
    add_arena(fields, &stats);
    add_known(fields, "cap", r->cap > 0 ? r->cap : -1);
    add_device(fields, &view);
    add_allocator(fields, &stats);
    add_known(fields, "host_used", view.resident);
    json_add_i64(fields, "host_pinned", s->space.host_bytes);
    add_known(fields, "host_total", view.host.total);
    add_phases(fields, &stats);
    arena_begin_window(s->arena);
    return event_write(log, EVENT_MEMORY, fields, e);
}

enum status report_holdings(struct event_log *log, const struct session *s, int64_t step,
                            struct err *e) {
    struct holdings holdings;
    holdings_find(&holdings, s);
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", step);
    cJSON_AddItemToObject(fields, "groups", holdings_to_json(&holdings));
    return event_write(log, EVENT_HOLDINGS, fields, e);
}

/* On the CPU the arena's memory is the host's: whether that is what could not give it. */
static bool is_short(int64_t available, const struct arena_shortage *s) {
    const int64_t total = s->reservation ? s->requested : s->allocated + s->requested;
    return available >= 0 && available < total - s->reserved;
}

static struct diagnosis_report diagnosis_report_of(struct event_log *log, struct session *s,
                                                   const struct oom_report *r) {
    struct diagnosis_report d = diagnosis_unknown();
    struct device_view view;
    struct err ignored = {0};
    (void)device_books_look(s, &view, &ignored); /* what it cannot tell stays unknown */
    d.shortage = *arena_last_shortage(s->arena);
    d.reservation = d.shortage.reservation;
    d.rank = log->rank;
    d.world = r->world > 0 ? r->world : 1;
    d.device_total = view.total;
    d.device_used = view.used;
    d.others = view.others;
    d.overhead = view.overhead;
    d.cap = r->cap > 0 ? r->cap : -1;
    if (arena_pretended_others(s->arena) > 0) { /* they are on a device of this capacity */
        d.device_total = d.shortage.capacity;
        d.device_used = d.shortage.allocated + view.others;
        d.cap = -1;
    }
    d.ranks = r->ranks;
    d.rank_count = r->rank_count;
    d.host_total = view.host.total;
    d.host_available = view.host.available;
    d.foreign = r->failure ? r->failure->text : NULL;
    d.host_failed = s->device->kind == DEVICE_CPU && is_short(view.host.available, &d.shortage);
    if (file_free_space(SHM_FOLDER, &d.shm_total, &ignored) != STATUS_OK) d.shm_total = -1;
    if (s->device->kind == DEVICE_CUDA) {
        struct device_cards cards;
        device_cards_find(&cards);
        d.cards = cards.count;
    }
    return d;
}

static void add_largest(cJSON *json, const struct arena_shortage *s) {
    cJSON *const largest = cJSON_AddArrayToObject(json, "largest");
    char label[ARENA_LABEL_MAX];
    for (int64_t i = 0; i < s->largest_count; i++) {
        const struct arena_holding *const one = &s->largest[i];
        cJSON *const item = cJSON_CreateObject();
        json_add_i64(item, "bytes", one->bytes);
        json_add_string(item, "category", category_name(one->category));
        json_add_string(item, "phase", phase_name(one->phase));
        arena_label_text(&one->label, label);
        json_add_string(item, "label", label[0] ? label : NULL);
        cJSON_AddItemToArray(largest, item);
    }
}

static void add_shortage(cJSON *json, const struct arena_shortage *s) {
    json_add_string(json, "phase", phase_name(s->phase));
    json_add_string(json, "category", category_name(s->category));
    json_add_string(json, "asked_by", s->reservation ? "reservation" : "allocation");
    json_add_i64(json, "requested", s->requested);
    json_add_i64(json, "allocated", s->allocated);
    json_add_i64(json, "reserved", s->reserved);
    json_add_i64(json, "capacity", s->capacity);
    json_add_i64(json, "largest_free_block", s->largest_free_block);
    add_categories(json, "categories", s->by_category);
    add_largest(json, s);
}

static void add_ranks(cJSON *json, const struct oom_report *r) {
    cJSON *const ranks = cJSON_AddArrayToObject(json, "ranks");
    for (int64_t i = 0; i < r->rank_count; i++) {
        cJSON *const item = cJSON_CreateObject();
        json_add_i64(item, "rank", r->ranks[i].rank);
        json_add_i64(item, "need", r->ranks[i].need);
        json_add_i64(item, "can_back", r->ranks[i].can_back);
        cJSON_AddItemToArray(ranks, item);
    }
}

enum status report_oom(struct event_log *log, struct session *s, const struct oom_report *r,
                       struct diagnosis *out, struct err *e) {
    const struct diagnosis_report report = diagnosis_report_of(log, s, r);
    const struct arena_shortage *const shortage = &report.shortage;
    struct diagnosis d;
    diagnosis_make(&d, &report);
    if (out) *out = d;
    cJSON *const fields = cJSON_CreateObject();
    json_add_i64(fields, "step", r->step);
    add_known(fields, "micro", r->micro);
    json_add_string(fields, "diagnosis", diagnosis_name(d.kind));
    json_add_string(fields, "explanation", d.text);
    if (!r->failure && shortage->requested > 0) add_shortage(fields, shortage);
    add_known(fields, "device_used", report.device_used);
    add_known(fields, "device_total", report.device_total);
    add_known(fields, "others", report.others);
    add_ranks(fields, r);
    return event_write(log, EVENT_OOM, fields, e);
}
