/* gpu_memory.c - the whole of a card's memory, planned and measured: gpu_memory [CASE...]
 *
 * The plan knows the arena to the byte. Beside it a card holds the driver's context, libraries and
 * the kernels they load; that is measured once, with a small model. Then each case is planned,
 * run through plan_steps as the planner runs it, and what the card then lacks (whoever holds it) is
 * compared: within 2 %, and the arena's peak exactly. One JSON line a case, then the closing line
 * of the test runner; where there is no card the exit code is 77. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/train/plan.h"
#include "tests/gpu/bench_shape.h"

enum { EXIT_SKIPPED = 77 };
static const double APART_MAX = 0.02;

struct memory_case {
    const char *name, *shape;
    bool full, checkpointing;
    int64_t rows, length;
};

static const struct memory_case SMALL = {"overhead", "smollm2-135m", false, false, 1, 256};
static const struct memory_case CASES[] = {
    {"135m-lora", "smollm2-135m", false, false, 8, 1024},
    {"0.5b-lora", "qwen2.5-0.5b", false, false, 8, 2048},
    {"1.5b-full", "qwen2.5-1.5b", true, false, 4, 2048},
    {"8b-lora", "llama-8b", false, false, 4, 2048},
    {"8b-lora-ckpt", "llama-8b", false, true, 4, 2048},
};

/* What one case gave, in bytes. */
struct sizes {
    int64_t planned_peak, measured_peak;         /* of what the arena has handed out */
    int64_t planned_reserved, measured_reserved; /* of what it has taken from the card */
    int64_t card_used;                           /* of the whole card, at the end of the steps */
};

static enum status make_spec(const struct memory_case *c, const char *device, struct spec *spec,
                             struct err *e) {
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "model", c->shape);
    json_add_string(json, "device", device);
    json_add_string(json, "finetuning_type", c->full ? "full" : "lora");
    json_add_bool(json, "bf16", true);
    json_add_bool(json, "gradient_checkpointing", c->checkpointing);
    cJSON *const data = cJSON_AddObjectToObject(json, "data");
    json_add_number(data, "max_length", 8192);
    cJSON *const files = cJSON_AddArrayToObject(data, "train_files");
    cJSON_AddItemToArray(files, cJSON_CreateString("made in memory"));
    const enum status status = spec_parse(spec, json, e);
    cJSON_Delete(json);
    return status;
}

static enum status run_session(const struct plan_request *request, struct sizes *out,
                               struct err *e) {
    struct session s = {0};
    struct arena_stats stats;
    struct device_memory memory = {0};
    const struct session_place place = {.device = request->spec->device, .train = true};
    enum status status = session_open(&s, &place, request->config, request->options, e);
    if (status == STATUS_OK) status = bench_fill(&s.model, e);
    if (status == STATUS_OK) status = plan_steps(&s, request, e);
    if (status == STATUS_OK) status = device_memory(s.device, &memory, e);
    if (status == STATUS_OK) {
        arena_get_stats(s.arena, &stats);
        out->measured_peak = stats.allocated_peak;
        out->measured_reserved = stats.reserved;
        out->card_used = memory.total - memory.free;
    }
    session_close(&s);
    return status;
}

/* Plans the case, then runs it. */
static enum status measure(const struct memory_case *c, const char *device, struct sizes *out,
                           struct err *e) {
    struct spec spec = {0};
    struct session_options options = {0};
    struct plan plan;
    struct batch_shapes shapes = {.count = 1, .exact = true};
    struct model_config *const config = mem_new(1, sizeof *config);
    const int64_t tokens = c->rows * c->length;
    shapes.items[0] = (struct batch_shape){.tokens = tokens,
                                           .trained = tokens - c->rows,
                                           .segments = c->rows,
                                           .max_seqlen = c->length};
    const struct plan_request request = {
        .config = config, .options = &options, .spec = &spec, .train = &shapes};
    enum status status = make_spec(c, device, &spec, e);
    if (status == STATUS_OK) status = bench_config(config, c->shape, e);
    if (status == STATUS_OK) status = session_options_read(&options, &spec, e);
    if (status == STATUS_OK) status = plan_make(&plan, &request, e);
    if (status == STATUS_OK) {
        out->planned_peak = plan.stats.allocated_peak;
        out->planned_reserved = plan.stats.reserved_peak;
        status = run_session(&request, out, e);
    }
    session_options_release(&options);
    spec_release(&spec);
    mem_free(config);
    return status;
}

static double gib(int64_t bytes) {
    return (double)bytes / 1073741824.0;
}

static bool report(const struct memory_case *c, const struct sizes *s, int64_t overhead) {
    const int64_t planned = s->planned_reserved + overhead;
    const double apart = fabs((double)s->card_used / (double)planned - 1);
    const bool ok = s->planned_peak == s->measured_peak && apart <= APART_MAX;
    printf("{\"case\":\"%s\",\"planned_peak\":%lld,\"measured_peak\":%lld,"
           "\"planned_card_gib\":%.3f,\"measured_card_gib\":%.3f,\"overhead_gib\":%.3f,"
           "\"apart\":%.4f,\"apart_max\":%.2f,\"ok\":%s}\n",
           c->name, (long long)s->planned_peak, (long long)s->measured_peak, gib(planned),
           gib(s->card_used), gib(overhead), apart, APART_MAX, ok ? "true" : "false");
    fflush(stdout);
    return ok;
}

static bool is_wanted(const char *name, int count, char **names) {
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) return true;
    }
    return count == 0;
}

int main(int argc, char **argv) {
    const char *device = getenv("PLIMSOLL_TEST_DEVICE");
    if (!device || !str_starts_with(device, "cuda:")) device = "cuda:0";
    struct sizes small = {0};
    struct err error = {0};
    const enum status opened = measure(&SMALL, device, &small, &error);
    if (opened == STATUS_UNSUPPORTED) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", error.text);
        return EXIT_SKIPPED;
    }
    int passed = 0, failed = opened != STATUS_OK;
    if (failed) printf("the small model: %s\n", error.text);
    const int64_t overhead = small.card_used - small.measured_reserved;
    for (size_t i = 0; opened == STATUS_OK && i < COUNT_OF(CASES); i++) {
        struct sizes sizes = {0};
        if (!is_wanted(CASES[i].name, argc - 1, argv + 1)) continue;
        const enum status status = measure(&CASES[i], device, &sizes, &error);
        if (status != STATUS_OK) printf("%s: %s\n", CASES[i].name, error.text);
        if (status == STATUS_OK && report(&CASES[i], &sizes, overhead))
            passed++;
        else
            failed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}
