/* pickle.h - writes values in Python's pickle format, protocol 2, as far as the viewer of PyTorch's
 * memory snapshots reads it: dicts, lists, pairs, strings, whole numbers, floats, booleans, None.
 *
 * The file is written while it grows and appears at once. A string is stored at its first use and
 * referred to afterwards, so keys cost five bytes. Long lists are closed in pieces: the viewer
 * spreads each piece over its own stack. */
#ifndef PLIMSOLL_ENGINE_MEMORY_PICKLE_H
#define PLIMSOLL_ENGINE_MEMORY_PICKLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"

enum { PICKLE_DEPTH_MAX = 8 };

struct pickle {
    struct file_writer file;
    struct str pending; /* not yet written */
    char **strings;     /* by memo number */
    size_t string_count, string_capacity;
    uint32_t *buckets; /* hash table of memo numbers + 1 */
    size_t bucket_count;
    int64_t items[PICKLE_DEPTH_MAX]; /* in the present piece of each open list; -1: a dict */
    int depth;
    struct err failure; /* the first one; reported by pickle_commit */
};

enum status pickle_open(struct pickle *p, const char *path, struct err *e);
/* Ends the value and makes the file appear. The first error of any call comes out here; then there
 * is no file. */
enum status pickle_commit(struct pickle *p, struct err *e);
/* Also after an error, and after pickle_commit. */
void pickle_close(struct pickle *p);

/* Inside a dict, a key comes before each value; inside a list, values follow each other. */
void pickle_dict(struct pickle *p);
void pickle_dict_end(struct pickle *p);
void pickle_list(struct pickle *p);
void pickle_list_end(struct pickle *p);
void pickle_string(struct pickle *p, const char *text);
void pickle_i64(struct pickle *p, int64_t value);
void pickle_f64(struct pickle *p, double value);
void pickle_bool(struct pickle *p, bool value);
void pickle_pair(struct pickle *p, int64_t a, int64_t b);

/* The value that has just been written can be written again by pickle_again with this number. */
uint32_t pickle_remember(struct pickle *p);
void pickle_again(struct pickle *p, uint32_t number);

#endif
