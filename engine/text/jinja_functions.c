/* jinja_functions.c - the global functions, and looking up rows of all builtin tables.
 *
 * They are found when a template is parsed, so an unknown name is refused early. */
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"

enum { RANGE_MAX = 100000 }; /* as Jinja's sandbox */

const struct builtin *builtin_find(const struct builtin *rows, size_t count, const char *name,
                                   size_t len) {
    for (size_t i = 0; i < count; i++) {
        if (strlen(rows[i].name) == len && !memcmp(rows[i].name, name, len)) return &rows[i];
    }
    return NULL;
}

static enum status run_raise(struct render *r, const struct value *self, const struct args *args,
                             struct value *out) {
    (void)self;
    (void)out;
    struct str text = {0};
    TRY(print_value(r, &text, &args->at[0]));
    const enum status status = err_set(r->e, STATUS_INVALID, "%s", str_text(&text));
    str_release(&text);
    return render_fail(r, status);
}

/* A date without a zone, as Python's: %z and %Z are empty, %f is zeros. */
static void append_time(struct str *out, const struct text *format, const struct tm *when) {
    for (size_t i = 0; i < format->len; i++) {
        if (format->data[i] != '%' || i + 1 >= format->len) {
            str_append_char(out, format->data[i]);
            continue;
        }
        size_t end = i + 1;
        while (end + 1 < format->len && strchr("-_0^#EO", format->data[end]) && format->data[end]) {
            end++;
        }
        const char code = format->data[end];
        if (code == 'f') {
            str_append(out, "000000");
        } else if (code != 'z' && code != 'Z') {
            char spec[16] = {0}, text[128];
            const size_t len = end - i + 1 < sizeof spec ? end - i + 1 : sizeof spec - 1;
            memcpy(spec, format->data + i, len);
            str_append_bytes(out, text, strftime(text, sizeof text, spec, when));
        }
        i = end;
    }
}

static enum status run_strftime(struct render *r, const struct value *self, const struct args *args,
                                struct value *out) {
    (void)self;
    const struct text *format = NULL;
    TRY(want_text(r, &args->at[0], "the format of strftime_now", &format));
    TRY(render_work(r, 64 * format->len));
    const time_t now = (time_t)r->now_unix_s;
    struct tm when;
    RENDER_FAIL_IF(r, !localtime_r(&now, &when), STATUS_INVALID, "the date is out of range");
    struct str text = {0};
    append_time(&text, format, &when);
    const size_t valid = utf8_valid_prefix(str_text(&text), text.len);
    str_truncate(&text, valid);
    return string_from(r, &text, out);
}

/* dict(mapping or pairs, key=value...) */
static enum status fill_dict(struct render *r, const struct args *args, struct dict *dict) {
    RENDER_FAIL_IF(r, args->count > 1, STATUS_INVALID,
                   "at most one positional argument is possible here");
    if (args->count && args->items[0].kind == VALUE_DICT) {
        const struct dict *const from = args->items[0].as.dict;
        TRY(render_work(r, 64 * from->count));
        for (size_t i = 0; i < from->count; i++) {
            dict_set(&r->region, dict, from->entries[i].key, from->entries[i].value);
        }
    } else if (args->count) {
        const struct sequence *pairs = NULL, *pair = NULL;
        TRY(value_iterate(r, &args->items[0], &pairs));
        for (size_t i = 0; i < pairs->count; i++) {
            TRY(value_iterate(r, &pairs->items[i], &pair));
            RENDER_FAIL_IF(r, pair->count != 2 || !value_is_hashable(&pair->items[0]),
                           STATUS_INVALID, "a dict is made of pairs whose first part can be a key");
            dict_set(&r->region, dict, pair->items[0], pair->items[1]);
        }
    }
    for (size_t i = 0; i < args->keyword_count; i++) {
        dict_set(&r->region, dict, value_text(args->keywords[i].name), args->keywords[i].value);
    }
    return STATUS_OK;
}

static enum status run_dict(struct render *r, const struct value *self, const struct args *args,
                            struct value *out) {
    (void)self;
    struct dict *const dict = dict_new(&r->region);
    TRY(fill_dict(r, args, dict));
    *out = value_dict(dict);
    return STATUS_OK;
}

static enum status run_namespace(struct render *r, const struct value *self,
                                 const struct args *args, struct value *out) {
    (void)self;
    struct dict *const dict = dict_new(&r->region);
    TRY(fill_dict(r, args, dict));
    *out = (struct value){.kind = VALUE_NAMESPACE, .as.names = dict};
    return STATUS_OK;
}

static enum status run_range(struct render *r, const struct value *self, const struct args *args,
                             struct value *out) {
    (void)self;
    int64_t bounds[3] = {0, 0, 1};
    for (size_t i = 0; i < 3; i++) {
        const struct value *const v = &args->at[i];
        if (v->kind == VALUE_ABSENT) continue;
        RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "%s",
                       v->as.undefined->message);
        RENDER_FAIL_IF(r, v->kind != VALUE_INT && v->kind != VALUE_BOOL, STATUS_INVALID,
                       "range needs integers, not a %s", value_type_name(v));
        bounds[i] = value_integer(v);
    }
    if (args->at[1].kind == VALUE_ABSENT) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    const int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    RENDER_FAIL_IF(r, step == 0, STATUS_INVALID, "the step of a range may not be 0");
    struct sequence *const range = sequence_new(&r->region, SEQUENCE_RANGE, 0);
    range->start = start;
    range->stop = stop;
    range->step = step;
    for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
        RENDER_FAIL_IF(r, range->count == RANGE_MAX, STATUS_INVALID,
                       "a range may have at most %d items", RANGE_MAX);
        sequence_push(&r->region, range, value_int(at));
        if (__builtin_add_overflow(at, step, &at)) break;
    }
    *out = value_sequence(range);
    return render_work(r, 16 * range->count);
}

static enum status run_joiner(struct render *r, const struct value *self, const struct args *args,
                              struct value *out) {
    (void)self;
    struct cycle *const cycle = region_alloc(&r->region, 1, sizeof *cycle);
    struct sequence *const items = sequence_new(&r->region, SEQUENCE_TUPLE, 1);
    sequence_push(&r->region, items,
                  args->at[0].kind == VALUE_ABSENT ? value_string(&r->region, ", ", 2)
                                                   : args->at[0]);
    cycle->items = items;
    *out = (struct value){.kind = VALUE_JOINER, .as.cycle = cycle};
    return STATUS_OK;
}

static enum status run_cycler(struct render *r, const struct value *self, const struct args *args,
                              struct value *out) {
    (void)self;
    RENDER_FAIL_IF(r, !args->count || args->keyword_count, STATUS_INVALID,
                   "cycler needs items to go through");
    struct cycle *const cycle = region_alloc(&r->region, 1, sizeof *cycle);
    struct sequence *const items = sequence_new(&r->region, SEQUENCE_TUPLE, args->count);
    for (size_t i = 0; i < args->count; i++) {
        sequence_push(&r->region, items, args->items[i]);
    }
    cycle->items = items;
    *out = (struct value){.kind = VALUE_CYCLER, .as.cycle = cycle};
    return STATUS_OK;
}

const struct builtin *jinja_function(const char *name) {
    static const struct builtin ROWS[] = {
        {"raise_exception", "message", run_raise},
        {"strftime_now", "format", run_strftime},
        {"namespace", "*", run_namespace},
        {"dict", "*", run_dict},
        {"range", "start|stop step", run_range},
        {"joiner", "|sep", run_joiner},
        {"cycler", "*", run_cycler},
    };
    return builtin_find(ROWS, COUNT_OF(ROWS), name, strlen(name));
}
