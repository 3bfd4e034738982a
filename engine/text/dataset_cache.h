/* dataset_cache.h - encoded data sets that are kept: planning a run and running it encode once.
 *
 * A cached file is named after the hash of everything that decides what is in it: the program
 * itself, the data files' bytes, the model's tokenizer and template files, the options. So it can
 * never be stale, only unused; the place bounds how much lies there. */
#ifndef PLIMSOLL_ENGINE_TEXT_DATASET_CACHE_H
#define PLIMSOLL_ENGINE_TEXT_DATASET_CACHE_H

#include "base/cache.h"
#include "engine/text/dataset.h"

#define DATASET_CACHE_SUFFIX ".tokens"

/* The path in the place for these inputs. Errors of reading them. Caller frees with mem_free. */
enum status dataset_cache_path(char **path, const struct dataset_keeping *keeping,
                               char *const *paths, int64_t path_count,
                               const struct dataset_options *options, struct err *e);

/* Opens what is cached there. *found is false when there is nothing, or when what is there is
 * damaged: then it is removed, and whoever asks makes it anew. */
enum status dataset_cache_get(struct dataset *dataset, const char *path, bool *found,
                              struct err *e);

#endif
