/* trace.h - the last allocation events of an arena, in a ring of fixed size: what a timeline and a
 * snapshot are made of.
 *
 * Recording costs a copy of some forty bytes an event and never grows: a history that is kept
 * without bound has filled hosts. What was held when recording began comes first, as allocations of
 * that moment; when the ring wraps, the oldest go, so the end of a trace always agrees with the
 * arena. */
#ifndef PLIMSOLL_ENGINE_MEMORY_TRACE_H
#define PLIMSOLL_ENGINE_MEMORY_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/memory/arena.h"

enum { TRACE_EVENTS_MAX = 1 << 16 };

struct trace_event {
    struct arena_event event;
    int64_t time_ns; /* since trace_begin */
    bool held;       /* it was there when recording began */
};

struct trace;

/* Room for `capacity` events, at least 2. Caller frees with trace_free; NULL is fine there. */
struct trace *trace_new(int64_t capacity);
void trace_free(struct trace *trace);

/* Forgets what there was and records from here on, as the arena's watcher. The trace must stay
 * where it is until trace_end. */
void trace_begin(struct trace *trace, struct arena *arena);
/* Stops recording; what was recorded stays. */
void trace_end(struct trace *trace);

/* Events in order of time, index from 0; and how many older ones are gone. */
int64_t trace_count(const struct trace *trace);
const struct trace_event *trace_at(const struct trace *trace, int64_t index);
int64_t trace_dropped(const struct trace *trace);
/* When recording began, in milliseconds since 1970. */
int64_t trace_began_ms(const struct trace *trace);

#endif
