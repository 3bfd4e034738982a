/* support_scratch.h - a folder of its own for a test, and files in it.
 *
 * Every test that touches the disk works in one and removes it, so that tests never meet each
 * other's files. */
#ifndef PLIMSOLL_TESTS_UNIT_SUPPORT_SCRATCH_H
#define PLIMSOLL_TESTS_UNIT_SUPPORT_SCRATCH_H

#include <stddef.h>

/* A new empty folder; the caller gives it to scratch_free. */
char *scratch_new(void);
/* Removes the folder with all that is in it. */
void scratch_free(char *folder);
/* Writes a file into the folder and returns its path; the caller frees it with mem_free. */
char *scratch_write(const char *folder, const char *name, const void *bytes, size_t count);

#endif
