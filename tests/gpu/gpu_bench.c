/* gpu_bench.c - training speed and memory on a card, one JSON line a case: gpu_bench CASE...
 *
 * A case is a shape, what is trained, and the micro-batches. It goes through the session, the step
 * and the optimizer of a run, and nothing else; the planned figures come from the same calls on a
 * null device. tok_s is the median of ten steps after three; the loss of the first and the last
 * step are printed so that nobody measures a model that does not learn. PLIMSOLL_BENCH_GRAPHS=0
 * switches CUDA graphs off; PLIMSOLL_BENCH_SET='{"loss_chunk_rows": 8192}' sets keys of the spec.
 * The case `graphs` fails unless every loss and gradient norm is the same to the bit with graphs
 * and without. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/train/plan.h"
#include "tests/gpu/bench_shape.h"

enum { WARM = 3, TIMED = 10, STEPS = WARM + TIMED, ROWS_BATCHES = 24 };

struct bench_case {
    const char *name, *shape;
    bool full, checkpointing, offloading;
    bool nf4;              /* frozen weights in 4 bits, their scales in 8 */
    bool stochastic;       /* bf16 weights without an fp32 copy, as the peers train them */
    bool twice;            /* deterministic, without graphs and with them: the same bits */
    int64_t rows, length;  /* full rows of one micro-batch */
    int64_t packed_tokens; /* > 0: rows as in instruction data, packed to this many tokens */
    int64_t cap_gib;       /* > 0: find the longest single row that trains in so much */
};

static const struct bench_case CASES[] = {
    {.name = "8b-lora", .shape = "llama-8b", .rows = 4, .length = 2048},
    {.name = "8b-qlora", .shape = "llama-8b", .nf4 = true, .rows = 4, .length = 2048},
    {.name = "8b-lora-ckpt",
     .shape = "llama-8b",
     .checkpointing = true,
     .offloading = true,
     .rows = 4,
     .length = 2048},
    {.name = "0.5b-lora", .shape = "qwen2.5-0.5b", .rows = 8, .length = 2048},
    {.name = "135m-lora", .shape = "smollm2-135m", .rows = 8, .length = 1024},
    {.name = "1.5b-full", .shape = "qwen2.5-1.5b", .full = true, .rows = 4, .length = 2048},
    {.name = "1.5b-full-sr",
     .shape = "qwen2.5-1.5b",
     .full = true,
     .stochastic = true,
     .rows = 4,
     .length = 2048},
    {.name = "8b-rows", .shape = "llama-8b", .packed_tokens = 8192},
    {.name = "0.5b-rows", .shape = "qwen2.5-0.5b", .packed_tokens = 16384},
    {.name = "longest-8b-24g",
     .shape = "llama-8b",
     .checkpointing = true,
     .offloading = true,
     .cap_gib = 24},
    {.name = "graphs", .shape = "smollm2-135m", .twice = true, .rows = 8, .length = 1024},
};

/* ---- a spec, and a session of it ---------------------------------------------------------- */

/* PLIMSOLL_BENCH_SET: an object of spec keys, for experiments. */
static enum status set_wishes(cJSON *json, struct err *e) {
    const char *const wishes = getenv("PLIMSOLL_BENCH_SET");
    cJSON *more = NULL;
    if (!wishes) return STATUS_OK;
    TRY(json_parse(wishes, strlen(wishes), "PLIMSOLL_BENCH_SET", &more, e));
    for (const cJSON *item = more->child; item; item = item->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string);
        cJSON_AddItemToObject(json, item->string, cJSON_Duplicate(item, true));
    }
    cJSON_Delete(more);
    return STATUS_OK;
}

static enum status make_spec(const struct bench_case *c, struct spec *spec, struct err *e) {
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "model", c->shape);
    json_add_string(json, "device", "cuda:0");
    json_add_string(json, "finetuning_type", c->full ? "full" : "lora");
    json_add_bool(json, "bf16", true);
    cJSON_AddNumberToObject(json, "r", 16);
    cJSON_AddNumberToObject(json, "lora_alpha", 32);
    cJSON_AddNumberToObject(json, "lora_dropout", 0);
    const char *const graphs = getenv("PLIMSOLL_BENCH_GRAPHS");
    json_add_bool(json, "cuda_graphs", !graphs || strcmp(graphs, "0") != 0);
    json_add_bool(json, "full_determinism", c->twice);
    json_add_bool(json, "stochastic_rounding", c->stochastic);
    json_add_bool(json, "load_in_4bit", c->nf4);
    json_add_bool(json, "bnb_4bit_use_double_quant", c->nf4);
    json_add_bool(json, "gradient_checkpointing", c->checkpointing);
    json_add_bool(json, "activation_offloading", c->offloading);
    cJSON_AddNumberToObject(json, "learning_rate", 1e-4);
    /* Whoever checkpoints has no memory for logits of 4096 rows; 2048 cost no time. */
    cJSON_AddNumberToObject(json, "loss_chunk_rows", c->checkpointing ? 2048 : 4096);
    cJSON *const data = cJSON_AddObjectToObject(json, "data");
    cJSON_AddNumberToObject(data, "max_length", 131072);
    cJSON *const files = cJSON_AddArrayToObject(data, "train_files");
    cJSON_AddItemToArray(files, cJSON_CreateString("made in memory"));
    cJSON *const targets = cJSON_AddArrayToObject(json, "target_modules");
    cJSON_AddItemToArray(targets, cJSON_CreateString("all-linear"));
    enum status status = set_wishes(json, e);
    if (status == STATUS_OK) status = spec_parse(spec, json, e);
    cJSON_Delete(json);
    return status;
}

/* ---- micro-batches ------------------------------------------------------------------------- */

/* A row of the batch: `length` tokens of which those from `first_trained` on are predicted. */
static void add_document(struct batch *b, int64_t length, int64_t first_trained, int64_t vocab) {
    for (int64_t i = 0; i < length; i++) {
        const int64_t t = b->tokens + i;
        b->ids[t] = (int32_t)((uint64_t)(t * 2654435761u + 12345) % (uint64_t)vocab);
        b->positions[t] = (int32_t)i;
        b->row_keys[t] = b->segments << 24 | i;
        b->labels[t] = -100;
    }
    for (int64_t i = 0; i + 1 < length; i++) {
        if (i + 1 < first_trained) continue;
        b->labels[b->tokens + i] = b->ids[b->tokens + i + 1];
        b->trained++;
    }
    b->tokens += length;
    b->real_tokens += length;
    b->cu_seqlens[++b->segments] = (int32_t)b->tokens;
    if (length > b->max_seqlen) b->max_seqlen = length;
}

static void batch_reserve(struct batch *b, int64_t tokens, int64_t segments) {
    *b = (struct batch){.capacity_tokens = tokens, .capacity_segments = segments};
    b->ids = mem_new((size_t)tokens, sizeof *b->ids);
    b->labels = mem_new((size_t)tokens, sizeof *b->labels);
    b->positions = mem_new((size_t)tokens, sizeof *b->positions);
    b->row_keys = mem_new((size_t)tokens, sizeof *b->row_keys);
    b->cu_seqlens = mem_new((size_t)segments + 1, sizeof *b->cu_seqlens);
}

static void full_rows(struct batch *b, const struct bench_case *c, int64_t vocab) {
    batch_reserve(b, c->rows * c->length, c->rows);
    for (int64_t i = 0; i < c->rows; i++) {
        add_document(b, c->length, 0, vocab);
    }
}

/* Lengths log-normal, median 270, 32 to 2048, first 60 % prompt: the distribution that the peers'
 * benchmark draws from. First-fit into bins of the token budget. */
static int64_t packed_rows(struct batch *bins, int64_t bins_max, int64_t budget, int64_t vocab) {
    enum { SEGMENTS_MAX = 512, DRAWS = 900 };
    uint64_t state = 7;
    int64_t count = 0;
    for (int i = 0; i < DRAWS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const double u = ((double)(state >> 11) + 1) / 9007199254740993.0;
        state = state * 6364136223846793005u + 1442695040888963407u;
        const double v = (double)(state >> 11) / 9007199254740992.0;
        const double normal = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        int64_t length = (int64_t)exp(5.6 + 0.8 * normal);
        length = length < 32 ? 32 : length > 2048 ? 2048 : length;
        int64_t at = 0;
        while (at < count &&
               (bins[at].tokens + length > budget || bins[at].segments == SEGMENTS_MAX)) {
            at++;
        }
        if (at == bins_max) break; /* every bin is as full as this row lets it be */
        if (at == count) batch_reserve(&bins[count++], budget, SEGMENTS_MAX);
        add_document(&bins[at], length, length * 6 / 10, vocab);
    }
    return count;
}

/* ---- running ------------------------------------------------------------------------------- */

struct measured {
    double seconds[STEPS > ROWS_BATCHES ? STEPS : ROWS_BATCHES];
    double losses[STEPS > ROWS_BATCHES ? STEPS : ROWS_BATCHES];
    double norms[STEPS > ROWS_BATCHES ? STEPS : ROWS_BATCHES];
    double tokens, total_seconds, flops; /* of the timed steps */
    int64_t steps;
};

static enum status one_step(struct session *s, const struct spec *spec, const struct batch *b,
                            struct optimizer_report *report, struct err *e) {
    const struct step_options options = {.layout = layout_of_spec(spec, &s->model.config),
                                         .seed = 1,
                                         .grad_scale = 1.0 / (double)b->trained,
                                         .loss_scale = optimizer_loss_scale(&s->optimizer),
                                         .totals = optimizer_totals(&s->optimizer),
                                         .graphs = &s->graphs};
    struct step_sums sums = {0};
    TRY(optimizer_zero_grad(&s->optimizer, e));
    TRY(step_train(&s->model, b, &options, &sums, e));
    arena_enter(s->arena, PHASE_OPTIMIZER);
    return optimizer_step(&s->optimizer, spec->learning_rate, report, e);
}

static enum status run_steps(struct session *s, const struct spec *spec, const struct batch *bins,
                             int64_t bin_count, int64_t steps, struct measured *m, struct err *e) {
    for (int64_t i = 0; i < steps; i++) {
        const struct batch *const b = &bins[i % bin_count];
        if (i == WARM) m->flops = -s->device->flops;
        const int64_t began = clock_steady_ns();
        struct optimizer_report report = {0};
        struct err refused = {0};
        TRY(one_step(s, spec, b, &report, e));
        TRY(device_synchronize(s->device, e));
        m->seconds[i] = (double)(clock_steady_ns() - began) * 1e-9;
        m->losses[i] = report.loss / (double)b->trained;
        m->norms[i] = report.grad_norm;
        if (graphs_take_trouble(&s->graphs, &refused))
            fprintf(stderr, "gpu_bench: %s\n", refused.text);
        if (i >= WARM) {
            m->tokens += (double)b->real_tokens;
            m->total_seconds += m->seconds[i];
        }
    }
    m->steps = steps;
    m->flops += s->device->flops;
    return STATUS_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static enum status open_session(struct session *s, const struct spec *spec, const char *device,
                                int64_t capacity, struct err *e) {
    struct model_config *const config = mem_new(1, sizeof *config);
    struct session_options options = {0};
    const struct session_place place = {
        .device = device, .cap = {.bytes = capacity}, .train = true};
    enum status status = bench_config(config, spec->model, e);
    if (status == STATUS_OK) status = session_options_read(&options, spec, e);
    if (status == STATUS_OK) status = session_open(s, &place, config, &options, e);
    session_options_release(&options);
    mem_free(config);
    return status;
}

/* The peaks of the same steps on a null device. */
static enum status plan_case(const struct spec *spec, const struct batch *bins, int64_t bin_count,
                             struct arena_stats *stats, struct err *e) {
    struct session s = {0};
    struct measured unused = {0};
    enum status status = open_session(&s, spec, "null:cuda", 0, e);
    if (status == STATUS_OK)
        status = run_steps(&s, spec, bins, bin_count, bin_count + 1, &unused, e);
    if (status == STATUS_OK) arena_get_stats(s.arena, stats);
    session_close(&s);
    return status;
}

static double gib(int64_t bytes) {
    return (double)bytes / 1073741824.0;
}

static void report_case(const struct bench_case *c, struct session *s, struct measured *m,
                        const struct arena_stats *planned, int64_t start_free, struct err *e) {
    struct arena_stats stats;
    struct device_memory memory = {0};
    arena_get_stats(s->arena, &stats);
    (void)device_memory(s->device, &memory, e);
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "case", c->name);
    const double per_step = m->tokens / (double)(m->steps - WARM);
    const double seconds = median(m->seconds + WARM, m->steps - WARM);
    json_add_number(json, "tok_s",
                    c->packed_tokens ? m->tokens / m->total_seconds : per_step / seconds);
    json_add_number(json, "step_ms", seconds * 1e3);
    /* Of packed rows attention is counted as if all were the longest, so there the rate is unknown.
     */
    if (!c->packed_tokens) json_add_number(json, "tflops", m->flops / m->total_seconds * 1e-12);
    json_add_number(json, "peak_gib", gib(stats.allocated_peak));
    json_add_number(json, "planned_gib", gib(planned->allocated_peak));
    json_add_bool(json, "planned_equals_peak", stats.allocated_peak == planned->allocated_peak);
    json_add_number(json, "reserved_gib", gib(stats.reserved_peak));
    json_add_number(json, "card_used_gib", gib(start_free - memory.free));
    json_add_number(json, "host_gib", gib(s->space.host_bytes));
    json_add_i64(json, "graphs", s->graphs.kept);
    json_add_i64(json, "graph_launches", s->graphs.launched);
    json_add_i64(json, "graph_nodes", s->graphs.nodes);
    json_add_number(json, "graph_mib", (double)s->graphs.bytes / 1048576.0);
    json_add_number(json, "first_loss", m->losses[0]);
    json_add_number(json, "last_loss", m->losses[m->steps - 1]);
    struct str text = {0};
    json_append(&text, json);
    printf("%s\n", str_text(&text));
    fflush(stdout);
    str_release(&text);
    cJSON_Delete(json);
}

static enum status free_memory(const char *device, int64_t *bytes, struct err *e) {
    struct device *d = NULL;
    const struct device_options options = {.precision = PRECISION_BF16};
    struct device_memory memory = {0};
    TRY(device_open(&d, device, &options, e));
    const enum status status = device_memory(d, &memory, e);
    device_close(d);
    *bytes = memory.free;
    return status;
}

static enum status measure(const struct bench_case *c, const struct spec *spec, const char *device,
                           const struct batch *bins, int64_t bin_count, struct measured *m,
                           struct err *e) {
    struct session s = {0};
    struct arena_stats planned = {0};
    int64_t start_free = 0;
    *m = (struct measured){.steps = 0};
    TRY(free_memory(device, &start_free, e));
    TRY(plan_case(spec, bins, bin_count, &planned, e));
    enum status status = open_session(&s, spec, device, c->cap_gib << 30, e);
    if (status == STATUS_OK) status = bench_fill(&s.model, e);
    const int64_t steps = c->packed_tokens ? ROWS_BATCHES : c->cap_gib ? WARM + 2 : STEPS;
    if (status == STATUS_OK) status = run_steps(&s, spec, bins, bin_count, steps, m, e);
    if (status == STATUS_OK) report_case(c, &s, m, &planned, start_free, e);
    if (status == STATUS_OK && c->twice && spec->cuda_graphs && s.graphs.launched == 0)
        status = err_set(e, STATUS_INTERNAL, "no micro-batch was launched as a graph");
    session_close(&s);
    return status;
}

/* The same steps by calls and by graphs. */
static enum status compare_graphs(const struct bench_case *c, struct spec *spec, const char *device,
                                  const struct batch *bins, int64_t bin_count, struct err *e) {
    struct measured by_calls, by_graphs;
    spec->cuda_graphs = false;
    TRY(measure(c, spec, device, bins, bin_count, &by_calls, e));
    spec->cuda_graphs = true;
    TRY(measure(c, spec, device, bins, bin_count, &by_graphs, e));
    for (int64_t i = 0; i < by_calls.steps; i++) {
        FAIL_IF(memcmp(&by_calls.losses[i], &by_graphs.losses[i], sizeof(double)) != 0 ||
                    memcmp(&by_calls.norms[i], &by_graphs.norms[i], sizeof(double)) != 0,
                STATUS_INTERNAL,
                "step %lld: loss %.17g and gradient norm %.17g by calls, %.17g and %.17g by graphs",
                (long long)i + 1, by_calls.losses[i], by_calls.norms[i], by_graphs.losses[i],
                by_graphs.norms[i]);
    }
    return STATUS_OK;
}

/* The longest row, in steps of 1024, whose plan fits the cap. */
static enum status longest_row(const struct spec *spec, int64_t cap, int64_t vocab, int64_t *length,
                               struct err *e) {
    int64_t low = 1, high = 128;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        const struct bench_case one = {.rows = 1, .length = middle << 10};
        struct batch b;
        struct arena_stats planned = {0};
        full_rows(&b, &one, vocab);
        const enum status status = plan_case(spec, &b, 1, &planned, e);
        batch_release(&b);
        TRY(status);
        if (planned.reserved_peak <= cap) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    *length = low << 10;
    return STATUS_OK;
}

static enum status run_case(const struct bench_case *c, const char *device, struct err *e) {
    enum { BINS_MAX = 24 };
    struct batch bins[BINS_MAX] = {{0}};
    struct bench_case fixed = *c;
    int64_t bin_count = 1;
    struct spec spec = {0};
    struct model_config *const config = mem_new(1, sizeof *config);
    enum status status = make_spec(c, &spec, e);
    if (status == STATUS_OK) status = bench_config(config, c->shape, e);
    if (status == STATUS_OK && c->cap_gib) {
        fixed.rows = 1;
        status = longest_row(&spec, c->cap_gib << 30, config->vocab_size, &fixed.length, e);
        if (status == STATUS_OK)
            printf("{\"case\":\"%s\",\"tokens\":%lld}\n", c->name, (long long)fixed.length);
    }
    if (status == STATUS_OK) {
        if (c->packed_tokens) {
            bin_count = packed_rows(bins, BINS_MAX, c->packed_tokens, config->vocab_size);
        } else {
            full_rows(&bins[0], &fixed, config->vocab_size);
        }
        struct measured m;
        status = c->twice ? compare_graphs(c, &spec, device, bins, bin_count, e)
                          : measure(c, &spec, device, bins, bin_count, &m, e);
    }
    for (int64_t i = 0; i < bin_count; i++) {
        batch_release(&bins[i]);
    }
    spec_release(&spec);
    mem_free(config);
    return status;
}

int main(int argc, char **argv) {
    const char *device = getenv("PLIMSOLL_BENCH_DEVICE");
    if (!device) device = "cuda:0";
    int failed = 0;
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++) {
            wanted = wanted || strcmp(argv[k], CASES[i].name) == 0;
        }
        if (!wanted) continue;
        struct err e = {0};
        if (run_case(&CASES[i], device, &e) == STATUS_OK) continue;
        fprintf(stderr, "gpu_bench: %s: %s\n", CASES[i].name, e.text);
        failed = 1;
    }
    return failed;
}
