/* family_tool.c - a golden family trained by ranks that share its layers: what it learns, as JSON.
 * family_tool FOLDER MODEL VARIANT DEGREE [tails] [float8_e4m3]
 *
 * Every rank starts it, by mpirun or alone; they meet in FOLDER. MODEL is a folder of
 * tests/golden/data, VARIANT "full" or one of its adapters, DEGREE parallel.tensor_parallel_degree;
 * with `tails` adapters ride in the tails of operands (op_linear_tail.c), as they do on a GPU; with
 * `float8_e4m3` the frozen matrices of layers are kept so.
 * Rank 0 prints losses and gradient norms of a few steps, one of them over fewer tokens than there
 * are ranks, and the logits of two tokens after them. The numbers of degree 1 are those of
 * test_golden.c, so they are the reference. Exit code 0: no error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/model/weights.h"
#include "engine/train/session.h"
#include "engine/train/shapes.h"

enum { JSON_MAX = 1 << 20, STEPS = 4, FEW_TOKENS = 3, SHORT_STEP = 2 };

struct tool {
    const char *folder, *model, *variant;
    int64_t degree;
    bool tails;
    const char *base; /* base_weight_dtype */
    struct comm *comm;
    struct spec spec;
    struct session_options options;
    struct model_config config;
    struct session session;
    struct batch batch, few;
};

static enum status read_spec(struct tool *t, struct err *e) {
    cJSON *const json = cJSON_CreateObject();
    const bool full = str_equal(t->variant, "full");
    char *const adapter = file_join(t->model, t->variant);
    json_add_string(json, "model", t->model);
    cJSON *const files =
        cJSON_AddArrayToObject(cJSON_AddObjectToObject(json, "data"), "train_files");
    cJSON_AddItemToArray(files, cJSON_CreateString("golden.json"));
    json_add_string(json, "finetuning_type", full ? "full" : "lora");
    if (!full) json_add_string(json, "adapter_name_or_path", adapter);
    json_add_string(json, "base_weight_dtype", t->base);
    json_add_number(json, "max_grad_norm", 1);
    json_add_bool(json, "decay_norms_and_biases", true);
    cJSON *const parallel = cJSON_AddObjectToObject(json, "parallel");
    json_add_number(parallel, "ranks", (double)t->degree);
    json_add_number(parallel, "tensor_parallel_degree", (double)t->degree);
    const enum status status = spec_parse(&t->spec, json, e);
    cJSON_Delete(json);
    mem_free(adapter);
    return status;
}

/* The first so many tokens of each of the first `rows` rows, laid end to end. labels: those to
 * learn; the ids themselves: all. */
static void lay_out(struct batch *b, const cJSON *ids, const cJSON *labels, int64_t rows,
                    int64_t length) {
    const struct batch_shape shape = {
        .tokens = rows * length, .trained = 0, .segments = rows, .max_seqlen = length};
    shape_batch(&shape, b);
    for (int64_t i = 0; i < shape.tokens; i++) {
        const int row = (int)(i / length), column = (int)(i % length);
        const cJSON *const label_row = cJSON_GetArrayItem(labels, row);
        b->ids[i] = cJSON_GetArrayItem(cJSON_GetArrayItem(ids, row), column)->valueint;
        b->positions[i] = column;
        b->row_keys[i] = (int64_t)row << 24 | column;
        b->labels[i] =
            column + 1 < length ? cJSON_GetArrayItem(label_row, column + 1)->valueint : -100;
        b->trained += b->labels[i] >= 0;
    }
}

static enum status read_batches(struct tool *t, struct err *e) {
    char *const path = file_join(t->model, "golden.json");
    cJSON *json = NULL;
    const enum status status = json_read_file(path, JSON_MAX, &json, e);
    mem_free(path);
    TRY(status);
    const cJSON *const ids = json_member(json, "input_ids");
    const int64_t length = cJSON_GetArraySize(ids->child);
    lay_out(&t->batch, ids, json_member(json, "labels"), cJSON_GetArraySize(ids), length);
    lay_out(&t->few, ids, ids, 1, FEW_TOKENS);
    cJSON_Delete(json);
    return STATUS_OK;
}

static enum status open_tool(struct tool *t, struct err *e) {
    struct comm_place place;
    const struct comm_options comm = {
        .folder = t->folder, .silence_ms = COMM_SILENCE_MS, .patience_ms = 60000, .exit_code = 76};
    TRY(comm_place_read(&place, e));
    TRY(comm_open(&t->comm, &place, &comm, e));
    TRY(read_spec(t, e));
    TRY(model_config_load(&t->config, t->model, e));
    TRY(session_options_read(&t->options, &t->spec, e));
    t->options.rank = place.rank;
    const struct session_place here = {.device = "cpu",
                                       .cap = {.bytes = INT64_C(1) << 28},
                                       .train = true,
                                       .comm = t->comm,
                                       .lora_tails = t->tails};
    TRY(session_open(&t->session, &here, &t->config, &t->options, e));
    struct weights_report report;
    const struct session_source source = {.model = t->model,
                                          .adapter = t->spec.adapter_name_or_path};
    TRY(session_load(&t->session, &source, &report, e));
    return read_batches(t, e);
}

static enum status train(struct tool *t, const struct batch *batch, int64_t step, cJSON *curve,
                         struct err *e) {
    struct session *const s = &t->session;
    struct step_sums sums = {0};
    struct optimizer_report changed;
    const struct step_options options = {
        .layout = {.loss_chunk_rows = 8, .checkpointed_layers = step % 2 ? 1 : 0},
        .step = (uint64_t)step,
        .totals = optimizer_totals(&s->optimizer),
        .grad_scale = 1.0 / (double)batch->trained};
    TRY(optimizer_zero_grad(&s->optimizer, e));
    TRY(step_train(&s->model, batch, &options, &sums, e));
    TRY(optimizer_sum_gradients(&s->optimizer, e));
    TRY(optimizer_step(&s->optimizer, 1e-3, &changed, e));
    const double pair[] = {changed.loss / (double)batch->trained, changed.grad_norm};
    cJSON_AddItemToArray(curve, cJSON_CreateDoubleArray(pair, 2));
    return STATUS_OK;
}

static enum status speak(struct tool *t, cJSON *out, struct err *e) {
    const int32_t tokens[] = {0, (int32_t)t->batch.tokens - 1};
    const int64_t vocab = t->config.vocab_size;
    float *const logits = mem_new((size_t)(2 * vocab), sizeof *logits);
    const enum status status = step_logits(&t->session.model, &t->batch, tokens, 2, logits, e);
    if (status == STATUS_OK)
        cJSON_AddItemToObject(out, "logits", cJSON_CreateFloatArray(logits, (int)(2 * vocab)));
    mem_free(logits);
    return status;
}

static enum status run(struct tool *t, struct err *e) {
    TRY(open_tool(t, e));
    cJSON *const out = cJSON_CreateObject();
    cJSON *const curve = cJSON_AddArrayToObject(out, "curve");
    enum status status = STATUS_OK;
    for (int64_t step = 0; status == STATUS_OK && step < STEPS; step++) {
        status = train(t, step == SHORT_STEP ? &t->few : &t->batch, step, curve, e);
    }
    if (status == STATUS_OK) status = speak(t, out, e);
    struct str text = {0};
    json_append(&text, out);
    if (status == STATUS_OK && t->comm->rank == 0) printf("%s\n", str_text(&text));
    str_release(&text);
    cJSON_Delete(out);
    return status == STATUS_OK ? comm_barrier(t->comm, e) : status;
}

int main(int argc, char **argv) {
    struct err e = {0};
    if (argc < 5) {
        fprintf(stderr, "usage: family_tool FOLDER MODEL VARIANT DEGREE [tails] [float8_e4m3]\n");
        return 64;
    }
    struct tool t = {.folder = argv[1],
                     .model = argv[2],
                     .variant = argv[3],
                     .degree = argv[4][0] - '0',
                     .base = "auto"};
    for (int i = 5; i < argc; i++) {
        if (str_equal(argv[i], "tails")) {
            t.tails = true;
        } else {
            t.base = argv[i];
        }
    }
    const enum status status = run(&t, &e);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s\n", e.text);
        if (t.comm) comm_abandon(t.comm, &e);
    }
    session_close(&t.session);
    session_options_release(&t.options);
    spec_release(&t.spec);
    batch_release(&t.batch);
    batch_release(&t.few);
    comm_close(t.comm);
    return status == STATUS_OK ? 0 : 1;
}
