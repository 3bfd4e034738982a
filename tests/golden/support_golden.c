/* support_golden.c - opening a golden family through the same doors as a run: spec, config,
 * session.
 *
 * Anything that goes wrong here fails the running test with the engine's own words. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/weights.h"
#include "engine/train/shapes.h"
#include "tests/golden/support_golden.h"

enum { JSON_MAX = 1 << 20 };

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

char *golden_path(const struct golden *g, const char *name) {
    return file_join(g->folder, name);
}

bool golden_has(const char *name, const char *variant) {
    char *path = str_format("tests/golden/data/%s/golden.json", name);
    cJSON *json = NULL;
    struct err e = {0};
    must(json_read_file(path, JSON_MAX, &json, &e), &e);
    const bool has = json_member(json, variant) != NULL;
    cJSON_Delete(json);
    mem_free(path);
    return has;
}

/* The two rows of the golden batch laid end to end; labels are shifted here as transformers shifts
 * them inside the loss. */
static void read_batch(struct golden *g) {
    const cJSON *const ids = json_member(g->json, "input_ids"), *const labels =
                                                                    json_member(g->json, "labels");
    const int64_t rows = cJSON_GetArraySize(ids), length = cJSON_GetArraySize(ids->child);
    const struct batch_shape shape = {
        .tokens = rows * length, .trained = 0, .segments = rows, .max_seqlen = length};
    shape_batch(&shape, &g->batch);
    for (int64_t t = 0; t < shape.tokens; t++) {
        const int row = (int)(t / length), column = (int)(t % length);
        g->batch.ids[t] = cJSON_GetArrayItem(cJSON_GetArrayItem(ids, row), column)->valueint;
        g->batch.positions[t] = column;
        g->batch.row_keys[t] = (int64_t)row << 24 | column;
        const cJSON *const label_row = cJSON_GetArrayItem(labels, row);
        g->batch.labels[t] =
            column + 1 < length ? cJSON_GetArrayItem(label_row, column + 1)->valueint : -100;
        g->batch.trained += g->batch.labels[t] >= 0;
    }
}

static double number(const cJSON *object, const char *key) {
    const cJSON *const item = json_member(object, key);
    assert_non_null(item);
    return item->valuedouble;
}

struct golden_place golden_place(void) {
    const char *const device = getenv("PLIMSOLL_TEST_DEVICE");
    const char *const precision = getenv("PLIMSOLL_TEST_PRECISION");
    struct golden_place place = {.device = device && device[0] ? device : "cpu"};
    place.card = str_starts_with(place.device, "cuda:");
    if (!place.card && strcmp(place.device, "cpu") != 0)
        fail_msg("PLIMSOLL_TEST_DEVICE is %s, it must be cpu or cuda:N", place.device);
    if (!precision || !precision[0]) return place;
    for (enum precision p = 0; p < PRECISION_COUNT; p++) {
        place.precision = p;
        if (strcmp(precision, precision_name(p)) == 0) return place;
    }
    fail_msg("PLIMSOLL_TEST_PRECISION is %s, it must be fp32, tf32, bf16 or fp16", precision);
    return place;
}

/* fp32: sums in another order; AdamW divides by a gradient's own size, so weights and curves carry
 * it in full. The others: the rounding of one operand is 2^-11 (tf32, fp16) or 2^-9 (bf16), and a
 * gradient collects some tens of them; the loss is a mean of many tokens, in which they cancel.
 * What bf16 does to the reference itself is in data/bf16_spread.json (see test_golden.c). */
struct golden_bounds golden_bounds(void) {
    static const struct golden_bounds CPU = {1e-4, 1e-5, 1e-4, 1e-4, 1e-4, 1e-5};
    static const struct golden_bounds CARD[PRECISION_COUNT] = {
        [PRECISION_F32] = {1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4},
        [PRECISION_TF32] = {4e-3, 1e-3, 2e-2, 5e-3, 2e-2, 1e-3},
        [PRECISION_F16] = {4e-3, 1e-3, 2e-2, 5e-3, 2e-2, 1e-3},
        [PRECISION_BF16] = {3e-2, 1e-2, 1e-1, 1e-2, 5e-2, 5e-3},
    };
    const struct golden_place place = golden_place();
    return !place.card && place.precision == PRECISION_F32 ? CPU : CARD[place.precision];
}

static void add_place(cJSON *json) {
    static const char *const KEYS[PRECISION_COUNT] = {
        [PRECISION_TF32] = "tf32", [PRECISION_BF16] = "bf16", [PRECISION_F16] = "fp16"};
    const struct golden_place place = golden_place();
    json_add_string(json, "device", place.device);
    if (KEYS[place.precision]) json_add_bool(json, KEYS[place.precision], true);
}

static void read_spec(struct golden *g, const char *variant, const char *device,
                      const char *changes) {
    const cJSON *const hyper = json_member(g->section, "hyper");
    struct err e = {0};
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "model", g->folder);
    /* The golden batch comes from golden.json; a spec without data would be refused. */
    cJSON *const files =
        cJSON_AddArrayToObject(cJSON_AddObjectToObject(json, "data"), "train_files");
    cJSON_AddItemToArray(files, cJSON_CreateString("golden.json"));
    json_add_string(json, "finetuning_type", strcmp(variant, "full") == 0 ? "full" : "lora");
    json_add_number(json, "learning_rate", number(hyper, "lr"));
    json_add_number(json, "weight_decay", number(hyper, "weight_decay"));
    json_add_number(json, "max_grad_norm", number(hyper, "max_grad_norm"));
    json_add_number(json, "warmup_steps", number(hyper, "warmup_steps"));
    json_add_number(json, "max_steps", number(hyper, "steps"));
    json_add_string(json, "lr_scheduler_type", json_member(hyper, "schedule")->valuestring);
    json_add_bool(json, "decay_norms_and_biases", true);
    if (strcmp(device, GOLDEN_HERE) == 0 || strcmp(device, GOLDEN_HERE_PLANNED) == 0)
        add_place(json);
    char *adapter = golden_path(g, variant);
    if (strcmp(variant, "full") != 0) json_add_string(json, "adapter_name_or_path", adapter);
    mem_free(adapter);
    cJSON *more = NULL;
    if (changes) must(json_parse(changes, strlen(changes), "changes", &more, &e), &e);
    for (cJSON *item = more ? more->child : NULL; item; item = item->next) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, item->string);
        cJSON_AddItemToObject(json, item->string, cJSON_Duplicate(item, true));
    }
    must(spec_parse(&g->spec, json, &e), &e);
    cJSON_Delete(more);
    cJSON_Delete(json);
}

/* The product of a device, after its result has been filled with zeros. */
struct filling {
    struct device_ops ops;
    enum status (*gemm)(struct device *, const struct gemm_args *, struct err *);
};
static struct filling *filling(void) {
    static struct filling it;
    return &it;
}

static enum status fill_and_multiply(struct device *device, const struct gemm_args *a,
                                     struct err *e) {
    const int64_t element = dtype_bytes(a->c.dtype);
    for (int64_t row = 0; a->beta == 0 && row < a->m; row++) {
        char *const at = (char *)a->c.data + row * a->c.ld * element;
        TRY(device->ops->fill_zero(device, at, a->n * element, e));
    }
    return filling()->gemm(device, a, e);
}

/* initcheck does not see what a product of cuBLASLt stores by TMA and takes every later read of it
 * for a read of nothing. With PLIMSOLL_TEST_FILL_PRODUCTS results are filled first, so that all
 * other reads of the run can be checked; that products write their whole result is what gpu_ops
 * proves. */
static void fill_products(struct device *device) {
    if (!getenv("PLIMSOLL_TEST_FILL_PRODUCTS")) return;
    filling()->ops = *device->ops;
    filling()->gemm = device->ops->gemm;
    filling()->ops.gemm = fill_and_multiply;
    device->ops = &filling()->ops;
}

static void open_session(struct golden *g, const char *device, bool tails) {
    struct err e = {0};
    const struct golden_place here = golden_place();
    if (strcmp(device, GOLDEN_HERE) == 0) device = here.device;
    if (strcmp(device, GOLDEN_HERE_PLANNED) == 0) device = here.card ? "null:cuda" : "null:cpu";
    struct weights_report report;
    const struct session_place place = {
        .device = device, .cap = {.bytes = INT64_C(1) << 30}, .train = true, .lora_tails = tails};
    must(session_open(&g->session, &place, &g->config, &g->options, &e), &e);
    fill_products(g->session.device);
    const struct session_source source = {.model = g->folder,
                                          .adapter = g->spec.adapter_name_or_path};
    must(g->session.device->computes ? session_load(&g->session, &source, &report, &e)
                                     : session_load_nothing(&g->session, &source, &e),
         &e);
}

static void read_golden(struct golden *g, const char *name, const char *variant, const char *device,
                        const char *changes) {
    struct err e = {0};
    *g = (struct golden){.folder = str_format("tests/golden/data/%s", name)};
    char *path = golden_path(g, "golden.json");
    must(json_read_file(path, JSON_MAX, &g->json, &e), &e);
    mem_free(path);
    g->section = json_member(g->json, variant);
    assert_non_null(g->section);
    read_spec(g, variant, device, changes);
    read_batch(g);
    must(model_config_load(&g->config, g->folder, &e), &e);
    must(session_options_read(&g->options, &g->spec, &e), &e);
}

void golden_open(struct golden *g, const char *name, const char *variant, const char *device,
                 const char *changes) {
    read_golden(g, name, variant, device, changes);
    open_session(g, device, false);
}

void golden_open_tails(struct golden *g, const char *name, const char *variant, const char *device,
                       const char *changes) {
    read_golden(g, name, variant, device, changes);
    open_session(g, device, true);
}

void golden_close(struct golden *g) {
    session_close(&g->session);
    session_options_release(&g->options);
    spec_release(&g->spec);
    batch_release(&g->batch);
    cJSON_Delete(g->json);
    mem_free(g->folder);
    *g = (struct golden){0};
}

double relative_l2(const float *a, const float *b, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    if (size == 0) return sqrt(difference);
    return sqrt(difference / size);
}
