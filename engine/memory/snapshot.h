/* snapshot.h - an arena and its last events as a file that PyTorch's memory viewer opens
 * (pytorch.org/memory_viz), and as our own timeline.
 *
 * The snapshot has the fields of torch.cuda.memory._snapshot(). Where a stack of Python functions
 * would stand, there is what we know: the label of the allocation, its phase, the step. Categories
 * are ours; the viewer colours by them. Addresses are places in the arena's range and the same on
 * every device, so two snapshots can be compared. */
#ifndef PLIMSOLL_ENGINE_MEMORY_SNAPSHOT_H
#define PLIMSOLL_ENGINE_MEMORY_SNAPSHOT_H

#include "base/json.h"
#include "engine/memory/trace.h"

/* Where the range begins in a snapshot. */
#define SNAPSHOT_BASE INT64_C(0x700000000000)

struct snapshot_place {
    int64_t rank; /* the viewer's device number */
    int64_t step;
};
/* Writes the pickle: `arena` as it is, the events of `trace`, which must have been recorded up to
 * now. The file appears at once. */
enum status snapshot_write(const struct arena *arena, const struct trace *trace,
                           const struct snapshot_place *place, const char *path, struct err *e);

/* The events as columns: {"object":"plimsoll.timeline","rank","step","events","dropped","actions",
 * "categories","phases","labels" (what the numbers in the columns mean),
 * "columns":{"action","bytes","offset","category","phase","label","time_us","held"}}. Caller frees
 * with cJSON_Delete. */
cJSON *timeline_to_json(const struct trace *trace, const struct snapshot_place *place);

#endif
