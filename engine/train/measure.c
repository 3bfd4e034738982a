/* measure.c - timing each class of operations at a few sizes.
 *
 * The sizes bracket what training asks for, from what fits a processor's cache to what does not. A
 * point is the best of several runs: other programs only make things slower. What is kept is one
 * small JSON file a device and precision. */
#include "engine/train/measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cache.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/memory/arena.h"
#include "kernels/cards.h"

enum { RUNS_MAX = 40, RUNS_MIN = 3, FILE_BYTES_MAX = 1 << 16, VERSION = 1 };
static const int64_t POOL_BYTES = (int64_t)160 << 20;
static const int64_t POINT_NS = 25000000; /* a point is timed for so long */

/* Buffers that all operations are timed on: their contents do not matter, they are zeroed. */
struct bench {
    struct device *device;
    struct arena *arena;
    char *pool;
    int64_t used;
    enum dtype dtype; /* of activations */
    struct rates *rates;
};

typedef enum status (*work_fn)(struct bench *b, int64_t size, struct err *e);

/* Room from the pool, until the next point. */
static void *take(struct bench *b, int64_t bytes) {
    char *const at = b->pool + b->used;
    b->used += (bytes + 511) / 512 * 512;
    ASSERT(b->used <= POOL_BYTES);
    return at;
}

static void *take_activations(struct bench *b, int64_t count) {
    return take(b, count * dtype_bytes(b->dtype));
}

static float *take_f32(struct bench *b, int64_t count) {
    return take(b, count * (int64_t)sizeof(float));
}

/* Products of a batch of rows with a weight, as linear layers make them. */
static enum status product(struct bench *b, int64_t size, struct err *e) {
    const int64_t m = size, n = 2 * size, k = size;
    const enum dtype weight = b->device->precision == PRECISION_BF16  ? DTYPE_BF16
                              : b->device->precision == PRECISION_F16 ? DTYPE_F16
                                                                      : DTYPE_F32;
    const struct gemm_args args = {
        .m = m,
        .n = n,
        .k = k,
        .alpha = 1,
        .trans_b = true,
        .a = {take_activations(b, m * k), b->dtype, k},
        .b = {take(b, n * k * dtype_bytes(weight)), weight, k},
        .c = {take_activations(b, m * n), b->dtype, n},
    };
    return device_gemm(b->device, &args, e);
}

static enum status attention(struct bench *b, int64_t tokens, struct err *e) {
    enum { HEADS = 8, WIDTH = 64 };
    const int64_t row = HEADS * WIDTH, count = tokens * row;
    const int32_t seqlens[2] = {0, (int32_t)tokens};
    int32_t *const cu_seqlens = take(b, sizeof seqlens);
    TRY(device_upload(b->device, cu_seqlens, seqlens, sizeof seqlens, e));
    struct attention_backward_args args = {
        .forward = {.tokens = tokens,
                    .heads = HEADS,
                    .kv_heads = HEADS,
                    .head_dim = WIDTH,
                    .segments = 1,
                    .max_seqlen = tokens,
                    .cu_seqlens = cu_seqlens,
                    .scale = 0.125f,
                    .dtype = b->dtype,
                    .q = take_activations(b, count),
                    .k = take_activations(b, count),
                    .v = take_activations(b, count),
                    .ld_q = row,
                    .ld_k = row,
                    .ld_v = row,
                    .out = take_activations(b, count),
                    .ld_out = row,
                    .lse = take_f32(b, HEADS * tokens)},
        .dout = take_activations(b, count),
        .ld_dout = row,
        .dq = take_activations(b, count),
        .dk = take_activations(b, count),
        .dv = take_activations(b, count),
        .ld_dq = row,
        .ld_dk = row,
        .ld_dv = row,
    };
    args.forward.scratch = take(b, device_attention_scratch(b->device, &args.forward, false));
    TRY(device_attention(b->device, &args.forward, e));
    args.forward.scratch = take(b, device_attention_scratch(b->device, &args.forward, true));
    return device_attention_backward(b->device, &args, e);
}

static enum status loss(struct bench *b, int64_t rows, struct err *e) {
    enum { VOCAB = 16384 };
    const struct cross_entropy_args args = {.rows = rows,
                                            .vocab = VOCAB,
                                            .dtype = b->dtype,
                                            .logits = take_activations(b, rows * VOCAB),
                                            .labels = take(b, rows * (int64_t)sizeof(int32_t)),
                                            .grad_scale = 1,
                                            .write_gradient = true,
                                            .losses = take_f32(b, rows),
                                            .correct = take(b, rows * (int64_t)sizeof(int32_t))};
    return device_cross_entropy(b->device, &args, e);
}

static enum status gate(struct bench *b, int64_t tokens, struct err *e) {
    enum { WIDTH = 2048 };
    void *const gate_up = take_activations(b, tokens * WIDTH * 2);
    void *const out = take_activations(b, tokens * WIDTH);
    const struct glu_args forward = {.tokens = tokens,
                                     .width = WIDTH,
                                     .dtype = b->dtype,
                                     .gate_up = gate_up,
                                     .ld_gate_up = WIDTH * 2,
                                     .out = out,
                                     .ld_out = WIDTH};
    const struct glu_backward_args backward = {.tokens = tokens,
                                               .width = WIDTH,
                                               .dtype = b->dtype,
                                               .gate_up = gate_up,
                                               .ld_gate_up = WIDTH * 2,
                                               .dout = out,
                                               .ld_dout = WIDTH,
                                               .dgate_up = gate_up,
                                               .ld_dgate_up = WIDTH * 2,
                                               .gated = out,
                                               .ld_gated = WIDTH};
    TRY(device_glu(b->device, &forward, e));
    return device_glu_backward(b->device, &backward, e);
}

static enum status update(struct bench *b, int64_t count, struct err *e) {
    const struct adamw_args args = {.count = count,
                                    .param = take_f32(b, count),
                                    .grad = take_f32(b, count),
                                    .m = take_f32(b, count),
                                    .v = take_f32(b, count),
                                    .grad_scale = take_f32(b, 1),
                                    .lr = 1e-3,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .step = 1};
    const struct sum_squares_args norm = {
        .count = count, .x = args.grad, .out = take(b, sizeof(double))};
    TRY(device_sum_squares(b->device, &norm, e));
    return device_adamw(b->device, &args, e);
}

static enum status stream(struct bench *b, int64_t tokens, struct err *e) {
    enum { WIDTH = 1024 };
    void *const x = take_activations(b, tokens * WIDTH), *const y =
                                                             take_activations(b, tokens * WIDTH);
    float *const weight = take_f32(b, WIDTH), *const rstd = take_f32(b, tokens);
    const struct rmsnorm_args norm = {.tokens = tokens,
                                      .groups = 1,
                                      .width = WIDTH,
                                      .dtype = b->dtype,
                                      .x = x,
                                      .ld_x = WIDTH,
                                      .weight = weight,
                                      .eps = 1e-5f,
                                      .y = y,
                                      .ld_y = WIDTH,
                                      .rstd = rstd};
    const struct rmsnorm_backward_args back = {.tokens = tokens,
                                               .groups = 1,
                                               .width = WIDTH,
                                               .dtype = b->dtype,
                                               .x = x,
                                               .ld_x = WIDTH,
                                               .weight = weight,
                                               .rstd = rstd,
                                               .dy = y,
                                               .ld_dy = WIDTH,
                                               .dx = y,
                                               .ld_dx = WIDTH};
    TRY(device_rmsnorm(b->device, &norm, e));
    return device_rmsnorm_backward(b->device, &back, e);
}

static enum status copy(struct bench *b, int64_t bytes, struct err *e) {
    return device_copy(b->device, take(b, bytes), take(b, bytes), bytes, e);
}

/* Sizes by kind of device; 0 ends a list. A GPU takes larger ones. */
static const struct {
    enum work_class kind;
    work_fn run;
    int64_t sizes[DEVICE_KIND_COUNT][RATE_POINTS_MAX];
} POINTS[] = {
    {WORK_PRODUCT, product, {{48, 160, 512, 1024}, {256, 1024, 2048, 4096}}},
    {WORK_ATTENTION, attention, {{64, 256, 768}, {256, 1024, 4096}}},
    {WORK_LOSS, loss, {{16, 64, 512}, {64, 512, 1024}}},
    {WORK_GATE, gate, {{8, 128, 1024}, {64, 1024, 2048}}},
    {WORK_UPDATE, update, {{1 << 13, 1 << 17, 1 << 22}, {1 << 16, 1 << 20, 1 << 23}}},
    {WORK_STREAM, stream, {{16, 512, 8192}, {256, 4096, 16384}}},
    {WORK_COPY, copy, {{1 << 16, 1 << 21, 1 << 25}, {1 << 18, 1 << 22, 1 << 26}}},
};

/* One run, waited for. */
static enum status time_once(struct bench *b, work_fn run, int64_t size, double *seconds,
                             struct err *e) {
    b->used = 0;
    TRY(device_synchronize(b->device, e));
    const int64_t began = clock_steady_ns();
    TRY(run(b, size, e));
    TRY(device_synchronize(b->device, e));
    *seconds = (double)(clock_steady_ns() - began) * 1e-9;
    return STATUS_OK;
}

static double sum_of(const struct device_work *work, enum work_class kind, bool calls) {
    double sum = 0;
    const bool flops = kind == WORK_PRODUCT || kind == WORK_ATTENTION;
    for (int k = 0; k < WORK_SIZES; k++) {
        const struct work_cell *const c = &work->cells[kind][k];
        sum += calls ? c->calls : flops ? c->flops : c->bytes;
    }
    return sum;
}

static enum status time_point(struct bench *b, enum work_class kind, work_fn run, int64_t size,
                              struct err *e) {
    const struct device_work before = b->device->work;
    double seconds = 0, best = HUGE_VAL;
    TRY(time_once(b, run, size, &seconds, e));
    const double work = sum_of(&b->device->work, kind, false) - sum_of(&before, kind, false);
    const double calls = sum_of(&b->device->work, kind, true) - sum_of(&before, kind, true);
    const int64_t began = clock_steady_ns();
    for (int i = 0; i < RUNS_MAX; i++) {
        if (i >= RUNS_MIN && clock_steady_ns() - began > POINT_NS) break;
        TRY(time_once(b, run, size, &seconds, e));
        best = fmin(best, seconds);
    }
    struct rates *const r = b->rates;
    r->points[kind][r->counts[kind]++] = (struct rate_point){work / calls, work / best};
    return STATUS_OK;
}

static enum status time_all(struct bench *b, struct err *e) {
    for (size_t i = 0; i < COUNT_OF(POINTS); i++) {
        for (int k = 0; k < RATE_POINTS_MAX && POINTS[i].sizes[b->device->kind][k] > 0; k++) {
            TRY(time_point(b, POINTS[i].kind, POINTS[i].run, POINTS[i].sizes[b->device->kind][k],
                           e));
        }
    }
    return STATUS_OK;
}

static enum status open_pool(struct bench *b, struct err *e) {
    struct arena_block *pool = NULL, *workspace = NULL;
    const int64_t page = b->device->page_bytes;
    const int64_t bytes = POOL_BYTES + b->device->workspace_bytes + page;
    TRY(arena_open(&b->arena, b->device, (bytes + page - 1) / page * page, e));
    TRY(arena_alloc(b->arena, b->device->workspace_bytes, CATEGORY_WORKSPACE, &workspace, e));
    device_set_workspace(b->device, workspace->data);
    TRY(arena_alloc(b->arena, POOL_BYTES, CATEGORY_STAGING, &pool, e));
    b->pool = pool->data;
    return device_fill_zero(b->device, b->pool, POOL_BYTES, e);
}

const char *rates_name(const struct device *device, char buffer[RATES_NAME_MAX]) {
    struct device_cards cards = {0};
    snprintf(buffer, RATES_NAME_MAX, "%s", device->detail);
    if (device->kind == DEVICE_CUDA) device_cards_find(&cards);
    for (int i = 0; i < cards.count; i++) {
        if (strcmp(cards.items[i].id, device->name) == 0)
            snprintf(buffer, RATES_NAME_MAX, "%s", cards.items[i].name);
    }
    return buffer;
}

enum status rates_measure(struct rates *rates, struct device *device, struct err *e) {
    *rates = (struct rates){.measured = true};
    rates_name(device, rates->name);
    struct bench b = {.device = device, .dtype = device->activation_dtype, .rates = rates};
    enum status status = STATUS_OK;
    GUARD_IF(!device->computes, STATUS_INVALID, "%s computes nothing that could be measured",
             device->name);
    GUARD(open_pool(&b, e));
    GUARD(time_all(&b, e));
done:
    arena_close(b.arena);
    device_set_workspace(device, NULL);
    return status;
}

enum status measure_file(const char *what, const char *device, char **path, struct err *e) {
    struct cache_place place = {0};
    const enum status status = cache_place_find(&place, e);
    if (status == STATUS_OK) {
        uint64_t hash = UINT64_C(0xCBF29CE484222325);
        for (const char *at = device; *at; at++) {
            hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001B3);
        }
        char *const name =
            str_format("%s-%d-%016llx.json", what, VERSION, (unsigned long long)hash);
        *path = file_join(place.folder, name);
        mem_free(name);
    }
    cache_place_release(&place);
    return status;
}

static enum status file_of(const char *device, enum precision precision, char **path,
                           struct err *e) {
    char *const what = str_format("rates-%s", precision_name(precision));
    const enum status status = measure_file(what, device, path, e);
    mem_free(what);
    return status;
}

enum status rates_keep(const struct rates *rates, enum precision precision, struct err *e) {
    char *path = NULL;
    TRY(file_of(rates->name, precision, &path, e));
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "device", rates->name);
    for (int i = 0; i < WORK_CLASS_COUNT; i++) {
        cJSON *const list = cJSON_AddArrayToObject(json, work_class_name((enum work_class)i));
        for (int k = 0; k < rates->counts[i]; k++) {
            cJSON *const point = cJSON_CreateObject();
            json_add_number(point, "size", rates->points[i][k].size);
            json_add_number(point, "per_second", rates->points[i][k].per_second);
            cJSON_AddItemToArray(list, point);
        }
    }
    const enum status status = json_write_file(path, json, e);
    cJSON_Delete(json);
    mem_free(path);
    return status;
}

static bool read_class(struct rates *rates, enum work_class kind, const cJSON *json) {
    struct err ignored = {0};
    double last = 0;
    const cJSON *const list = json_member(json, work_class_name(kind));
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
        struct rate_point p = {0};
        (void)json_get_f64(item, "size", &p.size, &ignored);
        (void)json_get_f64(item, "per_second", &p.per_second, &ignored);
        if (rates->counts[kind] == RATE_POINTS_MAX || !(p.size > last) || !(p.per_second > 0))
            return false;
        last = p.size;
        rates->points[kind][rates->counts[kind]++] = p;
    }
    return rates->counts[kind] > 0;
}

/* A file that cannot be read is as good as none: it is measured again. */
enum status rates_recall(struct rates *rates, const char *name, enum precision precision,
                         struct err *e) {
    *rates = (struct rates){.measured = true};
    snprintf(rates->name, sizeof rates->name, "%s", name);
    char *path = NULL;
    cJSON *json = NULL;
    struct err ignored = {0};
    TRY(file_of(name, precision, &path, e));
    bool fine = json_read_file(path, FILE_BYTES_MAX, &json, &ignored) == STATUS_OK;
    for (int i = 0; i < WORK_CLASS_COUNT && fine; i++) {
        fine = read_class(rates, (enum work_class)i, json);
    }
    cJSON_Delete(json);
    mem_free(path);
    FAIL_IF(!fine, STATUS_NOT_FOUND, "nothing was measured on %s yet", name);
    return STATUS_OK;
}
