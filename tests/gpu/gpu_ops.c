/* gpu_ops.c - every operation on a card against the CPU device: gpu_ops [OPTION...] [PATTERN...]
 *
 * One JSON line a case {case, dtype, precision, what, error, tolerance, us, gbps, tflops, ok}, then
 * the closing line of the test runner. PATTERNs choose the cases whose names contain one of them.
 * Where there is no card the suite is skipped, with the reason, and the exit code is 77. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "tests/gpu/harness.h"
#include "tests/gpu/suites.h"

enum { EXIT_SKIPPED = 77, LOST_MAX = 5 };

static const char USAGE[] = "usage: gpu_ops [--device cuda:N] [--no-time] [--list] [PATTERN...]\n";

struct options {
    const char *card;
    bool timed, list;
    char **patterns;
    int pattern_count;
};

/* What has been opened: the card once for each precision, with and without determinism. */
struct sides {
    struct gpu_side cpu, card[PRECISION_COUNT][2];
};

struct counts {
    int passed, failed, lost;
};

static bool is_wanted(const struct options *o, const char *name) {
    bool wanted = o->pattern_count == 0;
    for (int i = 0; i < o->pattern_count; i++) {
        wanted |= strstr(name, o->patterns[i]) != NULL;
    }
    return wanted;
}

/* bf16 and f16 cases run on a card that is open for them. */
static enum precision precision_of(const struct gpu_case *c) {
    if (c->precision != PRECISION_F32) return c->precision;
    if (c->dtype == DTYPE_BF16) return PRECISION_BF16;
    return c->dtype == DTYPE_F16 ? PRECISION_F16 : PRECISION_F32;
}

static void print_text(const char *key, const char *text) {
    printf("\"%s\":\"", key);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        putchar((unsigned char)*text < ' ' ? ' ' : *text);
    }
    printf("\",");
}

static void report(const struct gpu_test *t, const char *name, const struct gpu_case *c) {
    const bool ok = t->failure[0] == '\0';
    printf("{");
    print_text("case", name);
    print_text("dtype", dtype_name(c->dtype));
    print_text("precision", precision_name(precision_of(c)));
    if (t->what[0]) {
        print_text("what", t->what);
        printf("\"error\":%.3g,\"tolerance\":%.3g,", !isfinite(t->error) ? -1 : t->error,
               t->tolerance);
    }
    if (t->us > 0) printf("\"us\":%.2f,", t->us);
    if (t->gbps > 0) printf("\"gbps\":%.1f,", t->gbps);
    if (t->tflops > 0) printf("\"tflops\":%.2f,", t->tflops);
    if (!ok) print_text("failure", t->failure);
    printf("\"ok\":%s}\n", ok ? "true" : "false");
    fflush(stdout);
}

static enum status run_case(struct gpu_test *t, struct sides *sides, const struct gpu_case *c,
                            struct err *e) {
    struct gpu_side *card = &sides->card[precision_of(c)][c->deterministic];
    const struct device_options options = {.precision = precision_of(c),
                                           .deterministic = c->deterministic};
    if (!card->device) TRY(gpu_side_open(card, t->card, &options, e));
    t->sides[SIDE_CPU] = &sides->cpu;
    t->sides[SIDE_GPU] = card;
    return c->run(t, c, e);
}

static void run_suite(struct gpu_test *t, struct sides *sides, const struct gpu_suite *suite,
                      const struct options *o, struct counts *counts) {
    for (int64_t i = 0; i < suite->count && counts->lost < LOST_MAX; i++) {
        const struct gpu_case *c = &suite->cases[i];
        char name[160];
        struct err error = {0};
        snprintf(name, sizeof name, "%s/%s%s", c->name, dtype_name(c->dtype),
                 c->deterministic ? "/deterministic" : "");
        if (!is_wanted(o, name)) continue;
        if (o->list) {
            printf("%s\n", name);
            continue;
        }
        gpu_test_begin(t, name);
        const enum status status = run_case(t, sides, c, &error);
        if (status != STATUS_OK) gpu_expect(t, false, "%s: %s", status_name(status), error.text);
        /* After a fault nothing works any more; a few repetitions show that it is so. */
        counts->lost = status == STATUS_DEVICE ? counts->lost + 1 : 0;
        if (t->sides[SIDE_GPU] && t->sides[SIDE_GPU]->device) gpu_test_end(t);
        report(t, name, c);
        if (t->failure[0])
            counts->failed++;
        else
            counts->passed++;
    }
}

static int skip(const char *reason) {
    printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", reason);
    return EXIT_SKIPPED;
}

static int run_all(const struct options *o, const char *program) {
    struct sides sides = {.cpu.device = NULL};
    struct gpu_test t = {.timed = o->timed, .card = o->card, .program = program};
    struct counts counts = {0};
    struct err error = {0};
    if (!o->list) {
        struct gpu_side *first = &sides.card[PRECISION_F32][0];
        const enum status opened =
            gpu_side_open(first, o->card, &(struct device_options){.blocking = false}, &error);
        if (opened == STATUS_UNSUPPORTED) return skip(error.text);
        if (opened != STATUS_OK ||
            gpu_side_open(&sides.cpu, "cpu", &(struct device_options){.blocking = false}, &error) !=
                STATUS_OK) {
            printf("%s\n0 passed, 1 failed\n", error.text);
            return 1;
        }
        printf("{\"device\":\"%s\",\"detail\":\"%s\"}\n", first->device->name,
               first->device->detail);
    }
    for (int64_t i = 0; i < GPU_SUITE_COUNT; i++) {
        run_suite(&t, &sides, GPU_SUITES[i], o, &counts);
    }
    for (int p = 0; p < PRECISION_COUNT; p++) {
        gpu_side_close(&sides.card[p][0]);
        gpu_side_close(&sides.card[p][1]);
    }
    gpu_side_close(&sides.cpu);
    if (o->list) return 0;
    printf("%d passed, %d failed\n", counts.passed, counts.failed);
    return counts.failed == 0 && counts.passed > 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    struct options o = {.card = "cuda:0", .timed = true};
    int i = 1;
    if (argc == 3 && strcmp(argv[1], "--fault") == 0) return gpu_fault(argv[2]);
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            o.card = argv[++i];
        } else if (strcmp(argv[i], "--no-time") == 0) {
            o.timed = false;
        } else if (strcmp(argv[i], "--list") == 0) {
            o.list = true;
        } else {
            fputs(USAGE, stderr);
            return 2;
        }
    }
    o.patterns = argv + i;
    o.pattern_count = argc - i;
    /* Algorithms are timed anew: the timing is tested, and no cache of a user is touched. */
    char cache[] = "/tmp/gpu_ops.XXXXXX";
    if (!mkdtemp(cache) || setenv("XDG_CACHE_HOME", cache, 1) != 0) {
        fputs("gpu_ops: cannot make a folder in /tmp\n", stderr);
        return 2;
    }
    const int code = run_all(&o, argv[0]);
    (void)file_remove_all(cache, NULL);
    return code;
}
