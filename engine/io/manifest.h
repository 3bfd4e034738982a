/* manifest.h - what a folder holds, so that damage is found before it is used: manifest.json lists
 * every file with its size and the XXH3-128 hash of its contents. Checkpoints carry one; a folder
 * without it is not a checkpoint. */
#ifndef PLIMSOLL_ENGINE_IO_MANIFEST_H
#define PLIMSOLL_ENGINE_IO_MANIFEST_H

#include "base/err.h"

/* Writes <folder>/manifest.json over all files of the folder and its subfolders. */
enum status manifest_write(const char *folder, struct err *e);
/* STATUS_OK if every listed file is there, unchanged. STATUS_NOT_FOUND without a manifest,
 * STATUS_INVALID names the first file that is missing or differs. Files that are not listed are not
 * looked at. */
enum status manifest_verify(const char *folder, struct err *e);

#endif
