/* trace.c - the ring: `first` is the oldest event, and a full ring overwrites it.
 *
 * Its memory is taken once, when a run first records, and given back with the trace. */
#include "engine/memory/trace.h"

#include "base/file.h"
#include "base/mem.h"

struct trace {
    struct arena *arena; /* while recording, else NULL */
    struct trace_event *events;
    int64_t capacity, first, count, dropped;
    int64_t began_ns, began_ms;
};

struct trace *trace_new(int64_t capacity) {
    ASSERT(capacity >= 2);
    struct trace *const trace = mem_new(1, sizeof *trace);
    trace->events = mem_new((size_t)capacity, sizeof *trace->events);
    trace->capacity = capacity;
    return trace;
}

void trace_free(struct trace *trace) {
    if (!trace) return;
    trace_end(trace);
    mem_free(trace->events);
    mem_free(trace);
}

static void add(struct trace *trace, const struct trace_event *event) {
    const int64_t at = (trace->first + trace->count) % trace->capacity;
    trace->events[at] = *event;
    if (trace->count < trace->capacity) {
        trace->count++;
    } else {
        trace->first = (trace->first + 1) % trace->capacity;
        trace->dropped++;
    }
}

static void see(void *context, const struct arena_event *event) {
    struct trace *const trace = context;
    const struct trace_event one = {.event = *event,
                                    .time_ns = clock_steady_ns() - trace->began_ns};
    add(trace, &one);
}

/* Pages first: a block lies in pages that are backed. */
static void add_what_is_held(struct trace *trace, const struct arena *arena) {
    struct arena_stats stats;
    arena_get_stats(arena, &stats);
    struct trace_event one = {
        .event = {.action = ARENA_BACK, .bytes = stats.reserved, .label = {NULL, -1}},
        .held = true};
    if (stats.reserved) add(trace, &one);
    for (const struct arena_block *b = arena_first(arena); b; b = b->next) {
        if (!b->live) continue;
        one.event =
            (struct arena_event){.action = ARENA_ALLOC,
                                 .offset = (const char *)b->data - (const char *)arena_base(arena),
                                 .bytes = b->bytes,
                                 .requested = b->requested,
                                 .category = b->category,
                                 .phase = b->phase,
                                 .label = b->label};
        add(trace, &one);
    }
}

void trace_begin(struct trace *trace, struct arena *arena) {
    trace_end(trace);
    trace->first = trace->count = trace->dropped = 0;
    trace->began_ns = clock_steady_ns();
    trace->began_ms = clock_unix_ms();
    add_what_is_held(trace, arena);
    trace->arena = arena;
    arena_watch(arena, see, trace);
}

void trace_end(struct trace *trace) {
    if (trace->arena) arena_watch(trace->arena, NULL, NULL);
    trace->arena = NULL;
}

int64_t trace_count(const struct trace *trace) {
    return trace->count;
}

const struct trace_event *trace_at(const struct trace *trace, int64_t index) {
    ASSERT(index >= 0 && index < trace->count);
    return &trace->events[(trace->first + index) % trace->capacity];
}

int64_t trace_dropped(const struct trace *trace) {
    return trace->dropped;
}

int64_t trace_began_ms(const struct trace *trace) {
    return trace->began_ms;
}
