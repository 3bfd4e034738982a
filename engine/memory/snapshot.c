/* snapshot.c - the fields of a PyTorch snapshot, in the order in which a reader of the file meets
 * them.
 *
 * Three habits of the viewer decide the details. It throws where events have categories but none is
 * "unknown": the first event is a marker of that category. It replays events backwards from the
 * final segments: an address that is freed was allocated in what is then there, so a free is the
 * pair free_requested, free_completed. And blocks must tile their segment without gaps. */
#include "engine/memory/snapshot.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/memory/pickle.h"

/* Frame lists that were written once: by label, phase and category. */
struct frames {
    const char *what;
    int32_t layer;
    enum phase phase;
    enum category category;
    uint32_t number;
};
struct writer {
    struct pickle pickle;
    const struct snapshot_place *place;
    struct frames *frames;
    size_t frame_count, frame_capacity;
};

static void add_string(struct pickle *p, const char *key, const char *value) {
    pickle_string(p, key);
    pickle_string(p, value);
}

static void add_i64(struct pickle *p, const char *key, int64_t value) {
    pickle_string(p, key);
    pickle_i64(p, value);
}

static void add_bool(struct pickle *p, const char *key, bool value) {
    pickle_string(p, key);
    pickle_bool(p, value);
}

static void frame(struct pickle *p, const char *name, const char *file, int64_t line) {
    pickle_dict(p);
    add_string(p, "name", name);
    add_string(p, "filename", file);
    add_i64(p, "line", line);
    pickle_dict_end(p);
}

/* The innermost first, as PyTorch has them. */
static void write_frames(struct writer *w, const struct frames *f) {
    char label[ARENA_LABEL_MAX];
    const struct arena_label known = {f->what, f->layer};
    struct pickle *const p = &w->pickle;
    pickle_string(p, "frames");
    for (size_t i = w->frame_count; i-- > 0;) { /* neighbours share them */
        const struct frames *const old = &w->frames[i];
        if (old->what != f->what || old->layer != f->layer || old->phase != f->phase ||
            old->category != f->category)
            continue;
        pickle_again(p, old->number);
        return;
    }
    arena_label_text(&known, label);
    pickle_list(p);
    frame(p, label[0] ? label : category_name(f->category), phase_name(f->phase),
          f->layer > 0 ? f->layer : 0);
    frame(p, "step", "plimsoll", w->place->step);
    pickle_list_end(p);
    w->frames = mem_grow(w->frames, w->frame_count, &w->frame_capacity, sizeof *w->frames);
    w->frames[w->frame_count] = *f;
    w->frames[w->frame_count++].number = pickle_remember(p);
}

/* Those of no label all look alike, whatever rests in the layer. */
static struct frames frames_of(const struct arena_label *label, enum phase phase,
                               enum category category) {
    return (struct frames){.what = label->what,
                           .layer = label->what ? label->layer : -1,
                           .phase = phase,
                           .category = category};
}

static void write_block(struct writer *w, const struct arena_block *b, int64_t address) {
    struct pickle *const p = &w->pickle;
    const struct frames frames = frames_of(&b->label, b->phase, b->category);
    pickle_dict(p);
    add_i64(p, "address", address);
    add_i64(p, "size", b->bytes);
    add_i64(p, "requested_size", b->live ? b->requested : 0);
    add_string(p, "state", b->live ? "active_allocated" : "inactive");
    if (b->live) {
        write_frames(w, &frames);
    } else {
        pickle_string(p, "frames");
        pickle_list(p);
        pickle_list_end(p);
    }
    pickle_dict_end(p);
}

/* The arena is one expandable segment. */
static void write_segments(struct writer *w, const struct arena *arena) {
    struct pickle *const p = &w->pickle;
    struct arena_stats stats;
    arena_get_stats(arena, &stats);
    pickle_string(p, "segments");
    pickle_list(p);
    if (stats.reserved > 0) {
        pickle_dict(p);
        add_i64(p, "device", w->place->rank);
        add_i64(p, "address", SNAPSHOT_BASE);
        add_i64(p, "total_size", stats.reserved);
        add_i64(p, "allocated_size", stats.allocated);
        add_i64(p, "active_size", stats.allocated);
        add_i64(p, "requested_size", stats.requested);
        add_i64(p, "stream", 0);
        add_string(p, "segment_type", "large");
        pickle_string(p, "segment_pool_id");
        pickle_pair(p, 0, 0);
        add_bool(p, "is_expandable", true);
        pickle_string(p, "frames");
        pickle_list(p);
        pickle_list_end(p);
        pickle_string(p, "blocks");
        pickle_list(p);
        int64_t address = SNAPSHOT_BASE;
        for (const struct arena_block *b = arena_first(arena); b; b = b->next) {
            write_block(w, b, address);
            address += b->bytes;
        }
        pickle_list_end(p);
        pickle_dict_end(p);
    }
    pickle_list_end(p);
}

static void write_event(struct writer *w, const struct trace_event *t, const char *action,
                        int64_t began_us) {
    const struct arena_event *const event = &t->event;
    const bool pages = event->action == ARENA_BACK || event->action == ARENA_UNBACK;
    const bool alloc = event->action == ARENA_ALLOC;
    const struct arena_label label = pages ? (struct arena_label){"pages", -1} : event->label;
    const struct frames frames = frames_of(&label, event->phase, event->category);
    struct pickle *const p = &w->pickle;
    pickle_dict(p);
    add_string(p, "action", action);
    add_i64(p, "addr", SNAPSHOT_BASE + event->offset);
    add_i64(p, "size", alloc ? event->requested : event->bytes);
    add_i64(p, "stream", 0);
    add_i64(p, "time_us", began_us + t->time_ns / 1000);
    write_frames(w, &frames);
    add_string(p, "category", pages ? "unknown" : category_name(event->category));
    add_string(p, "user_metadata", phase_name(event->phase));
    pickle_string(p, "pool_id");
    pickle_pair(p, 0, 0);
    pickle_dict_end(p);
}

/* See the head: the viewer wants an event of this category. */
static void write_marker(struct writer *w, int64_t began_us) {
    const struct trace_event marker = {.event = {.action = ARENA_BACK, .label = {NULL, -1}}};
    write_event(w, &marker, "snapshot", began_us);
}

static void write_traces(struct writer *w, const struct trace *trace) {
    static const char *const ACTIONS[] = {[ARENA_ALLOC] = "alloc",
                                          [ARENA_FREE] = "free_requested",
                                          [ARENA_BACK] = "segment_map",
                                          [ARENA_UNBACK] = "segment_unmap"};
    struct pickle *const p = &w->pickle;
    const int64_t began_us = 1000 * trace_began_ms(trace);
    pickle_string(p, "device_traces");
    pickle_list(p);
    for (int64_t rank = 0; rank < w->place->rank; rank++) {
        pickle_list(p);
        pickle_list_end(p);
    }
    pickle_list(p);
    write_marker(w, began_us);
    for (int64_t i = 0; i < trace_count(trace); i++) {
        const struct trace_event *const t = trace_at(trace, i);
        write_event(w, t, ACTIONS[t->event.action], began_us);
        if (t->event.action == ARENA_FREE) write_event(w, t, "free_completed", began_us);
    }
    pickle_list_end(p);
    pickle_list_end(p);
}

static void write_settings(struct writer *w, const struct trace *trace) {
    struct pickle *const p = &w->pickle;
    pickle_string(p, "allocator_settings");
    pickle_dict(p);
    add_string(p, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    add_i64(p, "max_split_size", -1);
    pickle_string(p, "garbage_collection_threshold");
    pickle_f64(p, 0);
    add_bool(p, "expandable_segments", true);
    add_i64(p, "pinned_num_register_threads", 1);
    add_bool(p, "release_lock_on_cudamalloc", false);
    add_bool(p, "pinned_use_cuda_host_register", false);
    add_bool(p, "trace_alloc_overflowed", trace_dropped(trace) > 0);
    add_i64(p, "trace_alloc_max_entries", TRACE_EVENTS_MAX);
    pickle_string(p, "roundup_power2_divisions");
    pickle_dict(p);
    pickle_dict_end(p);
    pickle_dict_end(p);
}

enum status snapshot_write(const struct arena *arena, const struct trace *trace,
                           const struct snapshot_place *place, const char *path, struct err *e) {
    struct writer w = {.place = place};
    enum status status = STATUS_OK;
    GUARD(pickle_open(&w.pickle, path, e));
    pickle_dict(&w.pickle);
    write_segments(&w, arena);
    write_traces(&w, trace);
    write_settings(&w, trace);
    pickle_dict_end(&w.pickle);
    GUARD(pickle_commit(&w.pickle, e));
done:
    pickle_close(&w.pickle);
    mem_free(w.frames);
    return status;
}

/* Texts by number, in the order in which they are first met. */
struct labels {
    char **texts;
    size_t count, capacity;
};

static int64_t label_number(struct labels *l, const struct arena_label *label) {
    char text[ARENA_LABEL_MAX];
    arena_label_text(label, text);
    for (size_t i = l->count; i-- > 0;) { /* neighbours share labels */
        if (strcmp(l->texts[i], text) == 0) return (int64_t)i;
    }
    l->texts = mem_grow(l->texts, l->count, &l->capacity, sizeof *l->texts);
    l->texts[l->count] = mem_strdup(text);
    return (int64_t)l->count++;
}

enum { COLUMNS = 8 };
static const char *const COLUMN_NAMES[COLUMNS] = {"action", "bytes", "offset",  "category",
                                                  "phase",  "label", "time_us", "held"};

static cJSON *columns_of(const struct trace *trace, struct labels *labels) {
    struct str columns[COLUMNS] = {0};
    for (int64_t i = 0; i < trace_count(trace); i++) {
        const struct trace_event *const t = trace_at(trace, i);
        const struct arena_event *const event = &t->event;
        const int64_t values[COLUMNS] = {event->action,     event->bytes,
                                         event->offset,     event->category,
                                         event->phase,      label_number(labels, &event->label),
                                         t->time_ns / 1000, t->held};
        for (int c = 0; c < COLUMNS; c++) {
            str_appendf(&columns[c], "%s%lld", i ? "," : "[", (long long)values[c]);
        }
    }
    cJSON *const json = cJSON_CreateObject();
    for (int c = 0; c < COLUMNS; c++) {
        str_append(&columns[c], columns[c].len ? "]" : "[]");
        cJSON_AddRawToObject(json, COLUMN_NAMES[c], str_text(&columns[c]));
        str_release(&columns[c]);
    }
    return json;
}

static cJSON *strings(const char *(*name)(int), int count) {
    cJSON *const array = cJSON_CreateArray();
    for (int i = 0; i < count; i++) {
        cJSON_AddItemToArray(array, cJSON_CreateString(name(i)));
    }
    return array;
}

static const char *action_at(int index) {
    static const char *const NAMES[] = {[ARENA_ALLOC] = "alloc",
                                        [ARENA_FREE] = "free",
                                        [ARENA_BACK] = "back",
                                        [ARENA_UNBACK] = "unback"};
    return NAMES[index];
}

static const char *category_at(int index) {
    return category_name((enum category)index);
}

static const char *phase_at(int index) {
    return phase_name((enum phase)index);
}

cJSON *timeline_to_json(const struct trace *trace, const struct snapshot_place *place) {
    struct labels labels = {0};
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "object", "plimsoll.timeline");
    json_add_i64(json, "rank", place->rank);
    json_add_i64(json, "step", place->step);
    json_add_i64(json, "time_ms", trace_began_ms(trace));
    json_add_i64(json, "events", trace_count(trace));
    json_add_i64(json, "dropped", trace_dropped(trace));
    cJSON_AddItemToObject(json, "actions", strings(action_at, ARENA_UNBACK + 1));
    cJSON_AddItemToObject(json, "categories", strings(category_at, CATEGORY_COUNT));
    cJSON_AddItemToObject(json, "phases", strings(phase_at, PHASE_COUNT));
    cJSON *const columns = columns_of(trace, &labels);
    cJSON *const texts = cJSON_AddArrayToObject(json, "labels");
    for (size_t i = 0; i < labels.count; i++) {
        cJSON_AddItemToArray(texts, cJSON_CreateString(labels.texts[i]));
        mem_free(labels.texts[i]);
    }
    mem_free(labels.texts);
    cJSON_AddItemToObject(json, "columns", columns);
    return json;
}
