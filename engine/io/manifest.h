/* manifest.h - what a folder holds, so that damage is found before it is used: manifest.json lists
 * every file with its size and the XXH3-128 hash of its contents. Checkpoints carry one; a folder
 * without it is not a checkpoint. */
#ifndef PLIMSOLL_ENGINE_IO_MANIFEST_H
#define PLIMSOLL_ENGINE_IO_MANIFEST_H

#include <stdint.h>

#include "base/err.h"
#include "engine/io/hash.h"

/* One file of it. */
enum { MANIFEST_NAME_BYTES = 256 };
struct manifest_entry {
    char name[MANIFEST_NAME_BYTES]; /* below the folder */
    int64_t bytes;
    char hex[HASH_HEX_CHARS + 1];
};
/* Reads a file of the folder: what the manifest will say of it. For those who wrote it, side by
 * side. */
enum status manifest_measure(const char *folder, const char *name, struct manifest_entry *entry,
                             struct err *e);
/* Writes <folder>/manifest.json over all files of the folder and its subfolders; those that are
 * known already are not read again. STATUS_INVALID if one of them is missing or has another size.
 */
enum status manifest_write(const char *folder, const struct manifest_entry *known, int64_t count,
                           struct err *e);
/* STATUS_OK if every listed file is there, unchanged. STATUS_NOT_FOUND without a manifest,
 * STATUS_INVALID names the first file that is missing or differs. Files that are not listed are not
 * looked at. `of` may do it together: this one takes every of-th file, from `part` on. */
enum status manifest_verify(const char *folder, int64_t part, int64_t of, struct err *e);

#endif
