/* folder.h - publishing a whole folder at once: it is filled under a temporary name beside its
 * place and renamed when it is complete. Whoever looks at the place sees all of it or nothing, and
 * a crash leaves only a *.tmp.* folder. */
#ifndef PLIMSOLL_ENGINE_IO_FOLDER_H
#define PLIMSOLL_ENGINE_IO_FOLDER_H

#include "base/err.h"

/* Creates an empty folder "<path>.tmp.<pid>" (and the parents); its name goes to *temporary. The
 * caller hands that to folder_commit or folder_abort, which free it. */
enum status folder_begin(const char *path, char **temporary, struct err *e);
/* Makes the folder appear at `path`, in place of what was there. Its files have been synced by
 * their writers. Frees and clears *temporary; after an error nothing is left under the temporary
 * name. */
enum status folder_commit(char **temporary, const char *path, struct err *e);
/* Removes what was written so far. Frees and clears *temporary; NULL is allowed. */
void folder_abort(char **temporary);
/* Removes what crashes left in `parent`: every entry named *.tmp.<number>. Only for who knows that
 * nobody else is writing there. A missing folder is fine. */
enum status folder_sweep(const char *parent, struct err *e);

#endif
