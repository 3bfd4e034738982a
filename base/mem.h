/* mem.h - host memory for metadata: strings, tables, parsed JSON. Tensors never live here
 * (engine/memory holds those).
 *
 * Nothing here returns NULL: when the host has no memory left the process says so in one sentence
 * and exits with MEM_EXIT_CODE. A rank that dies this way is resumed by the supervisor, a server
 * that dies is restarted: law 4 covers both, and no caller needs a branch that no test would ever
 * reach. Sizes that come from outside are bounded by their parsers before they get here. */
#ifndef PLIMSOLL_BASE_MEM_H
#define PLIMSOLL_BASE_MEM_H

#include <stddef.h>

enum { MEM_EXIT_CODE = 71 };

/* Zeroed memory for count items of size bytes each. Caller frees with mem_free. */
void *mem_new(size_t count, size_t size);

/* Grows or shrinks; new bytes are not cleared. `old` may be NULL. Caller frees with mem_free. */
void *mem_resize(void *old, size_t count, size_t size);

/* A copy of the string, or NULL for NULL. Caller frees with mem_free. */
char *mem_strdup(const char *text);

/* A terminated copy of `length` bytes. Caller frees with mem_free. */
char *mem_strndup(const char *text, size_t length);

/* NULL is allowed. */
void mem_free(void *memory);

/* From here on freed memory is kept for the next that is asked for, instead of given back to the
 * system at once: for processes that make the same large things again and again and end soon. */
void mem_keep_freed(void);
/* Makes room for one more item in a growing array: returns the (possibly moved) array with capacity
 * > count. Use: items = mem_grow(items, count, &capacity, sizeof *items); items[count++] = item; */
void *mem_grow(void *items, size_t count, size_t *capacity, size_t size);

/* Number of elements of a true array. */
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

#endif
