/* watching.h - a look inside one step: which allocations it makes, in what order, with what left at
 * its end; as files in the folder memory/ of the run directory.
 *
 *   timeline.<rank>.json    the events of a step (timeline_to_json); of the second step of every
 *                           process, and of each step that is asked for
 *   snapshot.<rank>.pickle  for PyTorch's memory viewer; only when asked for
 *   summary.<rank>.txt      the allocator's table; only when asked for
 *
 * A file that cannot be written is a warning: watching never ends a run. */
#ifndef PLIMSOLL_ENGINE_TRAIN_WATCHING_H
#define PLIMSOLL_ENGINE_TRAIN_WATCHING_H

#include "engine/events.h"
#include "engine/memory/trace.h"

/* Zeroed: nothing was recorded. Release with watching_release. */
struct watching {
    struct trace *trace; /* NULL until the first recording */
    bool recording, asked;
    int64_t steps; /* begun so far */
};

/* A step begins. `asked`: somebody wants to see it; `last`: there is no step after it. */
void watching_begin(struct watching *w, struct arena *arena, bool asked, bool last);
/* The session is closed and opened again in the middle of a step: before, with NULL, and after. A
 * recorded step is then recorded from here on. */
void watching_move(struct watching *w, struct arena *arena);
/* The step is done; the files are written if it was recorded. */
struct watching_place {
    const char *run_folder;
    int64_t step;
};
enum status watching_end(struct watching *w, const struct arena *arena,
                         const struct watching_place *place, struct event_log *log, struct err *e);
void watching_release(struct watching *w);

#endif
