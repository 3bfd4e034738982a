/* start_trace.c - see start_trace.h.
 *
 * The kernel's own start time is taken instead of a clock read in main(), because what the loader
 * does before main() belongs to the wait too. Lines are written whole, so threads do not mix. */
#include "base/start_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

/* /proc/self/stat: "pid (name) state ppid ..."; the start in ticks is the 22nd field, so the 20th
 * after the name. */
enum { FIELDS_AFTER_NAME = 20, STAT_BYTES_MAX = 4096 };

static double start_ms(void) {
    struct str text = {0};
    struct err ignored = {0};
    double ticks = 0;
    if (file_read("/proc/self/stat", STAT_BYTES_MAX, &text, &ignored) == STATUS_OK) {
        const char *at = strrchr(str_text(&text), ')');
        for (int i = 0; at && i < FIELDS_AFTER_NAME; i++) {
            at = strchr(at + 1, ' ');
        }
        if (at) ticks = strtod(at, NULL);
    }
    str_release(&text);
    return ticks * 1e3 / (double)sysconf(_SC_CLK_TCK);
}

void start_trace(const char *done) {
    const char *const wanted = getenv("PLIMSOLL_TRACE_START");
    if (!wanted || strcmp(wanted, "1") != 0) return;
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    const double ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6 - start_ms();
    fprintf(stderr, "start %8.1f ms  %s\n", ms, done);
}
