/* summary.c - the classic table.
 *
 * Sizes are whole numbers in the unit in which they have at most six digits, as in the original, so
 * that columns can be compared by eye. */
#include "engine/memory/summary.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { WIDTH = 75, CELL_MAX = 32 };
/* From here on the next unit is taken. */
static const int64_t SIZE_STEP = 768 * 1024, COUNT_STEP = 750000;
static const int64_t UNKNOWN = -1;

/* Appends a row of the frame: WIDTH times `c` between two bars. */
static void append_rule(struct str *out, char c) {
    str_append_char(out, '|');
    for (int i = 0; i < WIDTH; i++) {
        str_append_char(out, c);
    }
    str_append(out, "|\n");
}

static void append_centred(struct str *out, const char *text) {
    const int len = (int)strlen(text), left = (WIDTH - len) / 2;
    str_appendf(out, "|%*s%s%*s|\n", left, "", text, WIDTH - len - left, "");
}

static void size_cell(int64_t value, char cell[CELL_MAX]) {
    static const char *const UNITS[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    while (value >= SIZE_STEP && unit + 1 < COUNT_OF(UNITS)) {
        value /= 1024;
        unit++;
    }
    snprintf(cell, CELL_MAX, "%6lld %s", (long long)value, UNITS[unit]);
}

static void count_cell(int64_t value, char cell[CELL_MAX]) {
    static const char *const UNITS[] = {" ", "K", "M", "G"};
    size_t unit = 0;
    while (value >= COUNT_STEP && unit + 1 < COUNT_OF(UNITS)) {
        value /= 1000;
        unit++;
    }
    snprintf(cell, CELL_MAX, "%7lld %s ", (long long)value, UNITS[unit]);
}

struct metric {
    const char *name;
    bool count; /* else bytes */
    int64_t values[4];
};

static void append_metric(struct str *out, const struct metric *m) {
    str_appendf(out, "| %-21s ", m->name);
    for (int i = 0; i < 4; i++) {
        char cell[CELL_MAX] = "";
        if (m->values[i] != UNKNOWN && m->count) count_cell(m->values[i], cell);
        if (m->values[i] != UNKNOWN && !m->count) size_cell(m->values[i], cell);
        str_appendf(out, "| %10s ", cell);
    }
    str_append(out, "|\n");
}

void summary_append(struct str *out, const struct arena_stats *s, int64_t rank) {
    const struct metric metrics[] = {
        {"Allocated memory",
         false,
         {s->allocated, s->allocated_peak, s->allocated_total, s->allocated_total - s->allocated}},
        {"Requested memory", false, {s->requested, s->requested_peak, UNKNOWN, UNKNOWN}},
        {"Reserved memory",
         false,
         {s->reserved, s->reserved_peak, s->reserved_total, s->reserved_total - s->reserved}},
        {"Non-releasable memory", false, {s->non_releasable, UNKNOWN, UNKNOWN, UNKNOWN}},
        {"Allocations", true, {s->live, s->live_peak, s->live_total, s->live_total - s->live}},
    };
    char *title = str_format("Plimsoll memory summary, rank %lld", (long long)rank);
    char *failures = str_format("Out of memory: %lld", (long long)s->failures);
    append_rule(out, '=');
    append_centred(out, title);
    append_rule(out, '-');
    append_centred(out, failures);
    append_rule(out, '=');
    str_appendf(out, "|%-23s|%-12s|%-12s|%-12s|%-12s|\n", "        Metric", " Cur Usage",
                " Peak Usage", " Tot Alloc", " Tot Freed");
    for (size_t i = 0; i < COUNT_OF(metrics); i++) {
        append_rule(out, '-');
        append_metric(out, &metrics[i]);
    }
    append_rule(out, '=');
    mem_free(title);
    mem_free(failures);
}
