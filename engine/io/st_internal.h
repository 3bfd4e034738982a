/* st_internal.h - what safetensors.c (one file) and st_folder.c (a set of shards) share. Nobody
 * else includes it.
 *
 * A set is filled file by file, then sorted once: st_find is a binary search. */
#ifndef PLIMSOLL_ENGINE_IO_ST_INTERNAL_H
#define PLIMSOLL_ENGINE_IO_ST_INTERNAL_H

#include <stddef.h>

#include "engine/io/safetensors.h"

/* Maps the file, checks every rule and adds its tensors. The caller closes the set, also after an
 * error. */
enum status st_add_file(struct st_set *set, const char *path, struct err *e);
/* Sorts by name; STATUS_INVALID if two tensors have the same one. */
enum status st_finish(struct st_set *set, struct err *e);
/* Refuses JSON text that would cost far more memory than its length: nesting, number of values, NUL
 * in strings, invalid UTF-8. `what` names it in the error. */
enum status st_check_json(const char *text, size_t len, const char *what, struct err *e);

#endif
