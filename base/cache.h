/* cache.h - the folder for files that can be made again, and how much may lie in it.
 *
 * PLIMSOLL_CACHE_DIR, else $XDG_CACHE_HOME/plimsoll, else ~/.cache/plimsoll. The appliance sets
 * PLIMSOLL_CACHE_DIR to a folder inside its data folder, so that planning and training, which are
 * processes of their own, find the same files. PLIMSOLL_CACHE_MAX ("50GiB") bounds the folder; when
 * it is fuller, what was used longest ago goes first. */
#ifndef PLIMSOLL_BASE_CACHE_H
#define PLIMSOLL_BASE_CACHE_H

#include <stdint.h>

#include "base/err.h"

/* Where and how much. */
struct cache_place {
    char *folder; /* exists */
    int64_t bytes_max;
};

/* Reads the environment and makes the folder. STATUS_INVALID names the variable that is wrong or
 * missing, STATUS_IO the folder that cannot be made. Caller releases, also after an error. */
enum status cache_place_find(struct cache_place *place, struct err *e);
void cache_place_release(struct cache_place *place);
/* Sets PLIMSOLL_CACHE_DIR for this process and those it starts, unless the user has set it. Only
 * before other threads run. */
void cache_place_preset(const char *folder);

/* Marks a file as used now. */
void cache_touch(const char *path);
/* Removes files of the place whose name ends in `suffix`, the longest unused first, until they fit;
 * never `keep`. Also unfinished files (".tmp." in the name) of more than a day ago. What cannot be
 * looked at or removed stays: another process may be doing the same. */
void cache_trim(const struct cache_place *place, const char *suffix, const char *keep);

#endif
