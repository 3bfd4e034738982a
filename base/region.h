/* region.h - memory that is given out piece by piece and taken back all at once: for parsed trees
 * and for the values of one evaluation, which die together.
 *
 * A region may be given a limit. Running over it never fails inside region_alloc (no caller would
 * want that branch): the region remembers it, and the interpreter that owns the region asks
 * region_is_full at each of its steps. */
#ifndef PLIMSOLL_BASE_REGION_H
#define PLIMSOLL_BASE_REGION_H

#include <stdbool.h>
#include <stddef.h>

struct region_block;

/* Zeroed means empty and without a limit. */
struct region {
    struct region_block *block; /* the one being filled; older ones hang behind it */
    size_t used, capacity;      /* of that block, in bytes */
    size_t bytes;               /* given out in total */
    size_t bytes_max;           /* 0: no limit */
};

/* Gives everything back; the zeroed region can be used again. */
void region_release(struct region *r);
/* Zeroed memory, aligned to 16 bytes, alive until region_release. Points into the region. */
void *region_alloc(struct region *r, size_t count, size_t size);
/* A terminated copy of the bytes. Points into the region. */
char *region_copy(struct region *r, const void *bytes, size_t count);
/* Whether more than bytes_max bytes were given out. */
bool region_is_full(const struct region *r);

#endif
