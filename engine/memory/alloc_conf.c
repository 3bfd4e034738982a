/* alloc_conf.c - the keys of PyTorch's allocator, each with what it means here or why it means
 * nothing.
 *
 * The syntax is PyTorch's: key:value pairs with commas between them; spaces do not count. Bounds
 * are its own too, so that what fails there fails here. */
#include "engine/memory/alloc_conf.h"

#include <string.h>

#include "base/environment.h"
#include "base/mem.h"

static const char NAME_OLD[] = "PYTORCH_CUDA_ALLOC_CONF", NAME_NEW[] = "PYTORCH_ALLOC_CONF";
/* PyTorch refuses limits at or below the 20 MiB of its large segments. */
enum { SPLIT_MB_MIN = 20, SPLIT_MB_MAX = 1 << 24 };

/* Keys that the arena has nothing for. */
static const struct {
    const char *key, *reason;
} REFUSED[] = {
    {"roundup_power2_divisions",
     "sizes are rounded to 512 bytes and to nothing else, so that the plan is exact"},
    {"roundup_bypass_threshold_mb", "sizes are not rounded to powers of two"},
    {"per_process_memory_fraction", "set memory.cap in the spec instead"},
    {"throw_on_cudamalloc_oom", "a shortage is always an error of the arena, see memory.on_oom"},
    {"release_lock_on_cudamalloc", "there is no Python lock to release"},
    {"graph_capture_record_stream_reuse", "no block is ever freed on another stream"},
    {"pinned_use_cuda_host_register", "page-locked memory is taken once, in the first step"},
    {"pinned_num_register_threads", "page-locked memory is taken once, in the first step"},
    {"pinned_use_background_threads", "page-locked memory is taken once, in the first step"},
    {"pinned_reserve_segment_size_mb", "page-locked memory is taken once, in the first step"},
};

static enum status parse_expandable(struct alloc_conf *conf, const char *value, struct err *e) {
    if (str_equal(value, "True") || str_equal(value, "true")) {
        conf->expandable_segments = true;
        return STATUS_OK;
    }
    const bool off = str_equal(value, "False") || str_equal(value, "false");
    if (off) {
        return err_set_param(e, STATUS_UNSUPPORTED, conf->variable,
                             "%s: expandable_segments:False is not possible: the arena always "
                             "grows in place; take the setting out",
                             conf->variable);
    }
    return err_set_param(e, STATUS_INVALID, conf->variable,
                         "%s: expandable_segments is \"%.40s\", it must be True or False",
                         conf->variable, value);
}

static enum status parse_split(struct alloc_conf *conf, const char *value, struct err *e) {
    int64_t mib = 0;
    if (str_to_i64(value, "max_split_size_mb", &mib, NULL) != STATUS_OK || mib <= SPLIT_MB_MIN ||
        mib > SPLIT_MB_MAX) {
        return err_set_param(e, STATUS_INVALID, conf->variable,
                             "%s: max_split_size_mb is \"%.40s\", it must be a whole number of "
                             "MiB above %d",
                             conf->variable, value, SPLIT_MB_MIN);
    }
    conf->max_split_bytes = mib << 20;
    return STATUS_OK;
}

static enum status parse_collect(struct alloc_conf *conf, const char *value, struct err *e) {
    double share = 0;
    if (str_to_f64(value, "garbage_collection_threshold", &share, NULL) != STATUS_OK ||
        !(share > 0 && share < 1)) {
        return err_set_param(e, STATUS_INVALID, conf->variable,
                             "%s: garbage_collection_threshold is \"%.40s\", it must be a number "
                             "between 0 and 1",
                             conf->variable, value);
    }
    conf->collect_threshold = share;
    return STATUS_OK;
}

static enum status parse_backend(struct alloc_conf *conf, const char *value, struct err *e) {
    if (str_equal(value, "native")) return STATUS_OK;
    return err_set_param(e, STATUS_UNSUPPORTED, conf->variable,
                         "%s: backend:%.40s is not possible: the arena is the only allocator; "
                         "take the setting out",
                         conf->variable, value);
}

static enum status refuse(const struct alloc_conf *conf, const char *key, struct err *e) {
    for (size_t i = 0; i < COUNT_OF(REFUSED); i++) {
        if (!str_equal(key, REFUSED[i].key)) continue;
        return err_set_param(e, STATUS_UNSUPPORTED, conf->variable,
                             "%s: %s is not supported: %s; take the setting out", conf->variable,
                             key, REFUSED[i].reason);
    }
    return err_set_param(e, STATUS_UNSUPPORTED, conf->variable,
                         "%s: %.60s is not known; understood are expandable_segments, "
                         "max_split_size_mb, garbage_collection_threshold",
                         conf->variable, key);
}

static enum status parse_pair(struct alloc_conf *conf, const char *pair, struct err *e) {
    static const struct {
        const char *key;
        enum status (*parse)(struct alloc_conf *, const char *, struct err *);
    } TAKEN[] = {{"expandable_segments", parse_expandable},
                 {"max_split_size_mb", parse_split},
                 {"garbage_collection_threshold", parse_collect},
                 {"backend", parse_backend}};
    const char *const colon = strchr(pair, ':');
    char *key = mem_strndup(pair, colon ? (size_t)(colon - pair) : strlen(pair));
    enum status status = STATUS_OK;
    bool taken = false;
    for (size_t i = 0; i < COUNT_OF(TAKEN) && !taken; i++) {
        if (!str_equal(key, TAKEN[i].key)) continue;
        taken = true;
        status = TAKEN[i].parse(conf, colon ? colon + 1 : "", e);
    }
    if (!taken) status = refuse(conf, key, e);
    mem_free(key);
    return status;
}

/* Up to the next comma; the lists in square brackets, which some refused keys have, are not taken
 * apart: their key is refused before anything behind it is looked at. */
enum status alloc_conf_parse(struct alloc_conf *conf, const char *variable, const char *text,
                             struct err *e) {
    *conf = (struct alloc_conf){.variable = variable};
    struct str plain = {0};
    enum status status = STATUS_OK;
    for (const char *at = text; *at; at++) {
        if (!strchr(" \t\r\n", *at)) str_append_char(&plain, *at);
    }
    const char *at = str_text(&plain);
    while (*at && status == STATUS_OK) {
        const size_t len = strcspn(at, ",");
        char *pair = mem_strndup(at, len);
        if (len) status = parse_pair(conf, pair, e);
        mem_free(pair);
        at += len + (at[len] == ',');
    }
    str_release(&plain);
    return status;
}

enum status alloc_conf_read(struct alloc_conf *conf, struct err *e) {
    const char *const old = environment(NAME_OLD), *const new = environment(NAME_NEW);
    *conf = (struct alloc_conf){0};
    if (old && new && !str_equal(old, new)) {
        return err_set_param(e, STATUS_INVALID, NAME_NEW,
                             "%s is \"%.200s\" and %s is \"%.200s\": set only one of them",
                             NAME_NEW, new, NAME_OLD, old);
    }
    if (!old && !new) return STATUS_OK;
    return alloc_conf_parse(conf, new ? NAME_NEW : NAME_OLD, new ? new : old, e);
}

enum status alloc_conf_apply(const struct alloc_conf *conf, int64_t capacity,
                             struct arena_settings *settings, struct err *e) {
    if (conf->max_split_bytes) {
        if (settings->split_limit && settings->split_limit != conf->max_split_bytes) {
            return err_set_param(e, STATUS_INVALID, "memory.split_limit",
                                 "memory.split_limit is %lld bytes and max_split_size_mb in %s is "
                                 "%lld: set only one of them",
                                 (long long)settings->split_limit, conf->variable,
                                 (long long)(conf->max_split_bytes >> 20));
        }
        settings->split_limit = conf->max_split_bytes;
    }
    if (conf->collect_threshold > 0) {
        if (settings->trim_threshold) {
            return err_set_param(e, STATUS_INVALID, "memory.trim_threshold",
                                 "memory.trim_threshold is %lld bytes and "
                                 "garbage_collection_threshold in %s is %g: set only one of them",
                                 (long long)settings->trim_threshold, conf->variable,
                                 conf->collect_threshold);
        }
        const int64_t bytes = (int64_t)(conf->collect_threshold * (double)capacity);
        settings->trim_threshold = bytes > 0 ? bytes : 1;
    }
    return STATUS_OK;
}

void alloc_conf_describe(const struct alloc_conf *conf, struct str *out) {
    if (!conf->variable) return;
    struct str parts = {0};
    if (conf->expandable_segments)
        str_append(&parts, "expandable_segments is how the arena always works");
    if (conf->max_split_bytes)
        str_appendf(&parts, "%smax_split_size_mb sets memory.split_limit to %lld MiB",
                    parts.len ? ", " : "", (long long)(conf->max_split_bytes >> 20));
    if (conf->collect_threshold > 0)
        str_appendf(&parts,
                    "%sgarbage_collection_threshold gives unused memory back between steps when "
                    "more than %g of the capacity is reserved",
                    parts.len ? ", " : "", conf->collect_threshold);
    if (parts.len) str_appendf(out, "%s: %s", conf->variable, str_text(&parts));
    str_release(&parts);
}
