/* parts.h - where the other parts of an installation are: the engine, the page, models.
 *
 * Beside the program that runs, whatever the working folder is, else in /usr/share/plimsoll. */
#ifndef PLIMSOLL_SERVER_CLI_PARTS_H
#define PLIMSOLL_SERVER_CLI_PARTS_H

/* The file or folder that was named (may be NULL), or the one of this name. Caller frees with
 * mem_free; NULL if it is nowhere. */
char *parts_find(const char *named, const char *name);

#endif
