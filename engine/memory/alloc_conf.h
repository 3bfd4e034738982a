/* alloc_conf.h - what PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF mean to the arena.
 *
 * People bring these variables along from other trainers. What the arena has too is taken over;
 * everything else is refused by name, because a setting that is silently ignored is worse than an
 * error. Only alloc_conf_read looks at the environment. */
#ifndef PLIMSOLL_ENGINE_MEMORY_ALLOC_CONF_H
#define PLIMSOLL_ENGINE_MEMORY_ALLOC_CONF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "engine/memory/arena.h"

/* Zeroed: nothing was asked for. */
struct alloc_conf {
    const char *variable;     /* where it comes from; borrowed, a literal when read */
    bool expandable_segments; /* True was asked for: the arena always grows in place */
    int64_t max_split_bytes;  /* 0: not given */
    double collect_threshold; /* 0: not given; else inside (0,1), a share of the capacity */
};

/* Reads one value such as "expandable_segments:True,max_split_size_mb:128". STATUS_UNSUPPORTED for
 * a key or value that the arena has nothing for, STATUS_INVALID for what PyTorch would not take
 * either; both with err.param = variable. */
enum status alloc_conf_parse(struct alloc_conf *conf, const char *variable, const char *text,
                             struct err *e);
/* From the environment. STATUS_INVALID when both variables are set and differ. */
enum status alloc_conf_read(struct alloc_conf *conf, struct err *e);

/* Settings of the spec and of the variable as one. The same thing said twice in two ways is
 * STATUS_INVALID, and the text names both. capacity: what a share is a share of. */
enum status alloc_conf_apply(const struct alloc_conf *conf, int64_t capacity,
                             struct arena_settings *settings, struct err *e);

/* One sentence for the log; appends nothing when nothing was asked for. */
void alloc_conf_describe(const struct alloc_conf *conf, struct str *out);

#endif
