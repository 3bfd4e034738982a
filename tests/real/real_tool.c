/* real_tool.c - questions of tests/real to the engine's libraries about a real model, answered as
 * JSON: per-token losses, token ids with masks, greedy continuations.
 *
 * `--device` and `--precision` (default cpu, fp32) go before the question. A test tool, not part of
 * the product: plimsoll-engine trains, this looks inside. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/model/weights.h"
#include "engine/train/corpus.h"
#include "engine/train/generate.h"
#include "engine/train/session.h"
#include "engine/train/shapes.h"

enum { JSON_MAX = 64 << 20, LENGTH_MAX = 2048 };

static void print(cJSON *json) {
    struct str text = {0};
    json_append(&text, json);
    puts(str_text(&text));
    str_release(&text);
    cJSON_Delete(json);
}

struct place {
    const char *device;
    enum precision precision;
};

static enum status open_model(struct session *s, const struct place *at, const char *model,
                              const char *adapter, struct err *e) {
    struct session_options options = {0};
    struct model_config *const config = mem_new(1, sizeof *config);
    struct weights_report report;
    const struct session_place place = {.device = at->device};
    const struct session_source source = {.model = model, .adapter = adapter};
    enum status status = model_config_load(config, model, e);
    if (status == STATUS_OK)
        status = session_options_for(&options, adapter, at->precision, LENGTH_MAX, e);
    if (status == STATUS_OK) status = session_open(s, &place, config, &options, e);
    if (status == STATUS_OK) status = session_load(s, &source, &report, e);
    session_options_release(&options);
    mem_free(config);
    return status;
}

static void ids_batch(const cJSON *ids, struct batch *batch) {
    const int64_t count = cJSON_GetArraySize(ids);
    const struct batch_shape shape = {
        .tokens = count, .trained = count - 1, .segments = 1, .max_seqlen = count};
    shape_batch(&shape, batch);
    int64_t t = 0;
    for (const cJSON *id = ids->child; id; id = id->next, t++) {
        batch->ids[t] = id->valueint;
        batch->positions[t] = (int32_t)t;
        if (t > 0) batch->labels[t - 1] = id->valueint;
    }
}

/* The five largest logits, largest first. */
static cJSON *top_five(const float *logits, int64_t vocab) {
    cJSON *const list = cJSON_CreateArray();
    int64_t taken[5];
    for (int k = 0; k < 5; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < vocab; i++) {
            bool used = false;
            for (int j = 0; j < k; j++) {
                used = used || taken[j] == i;
            }
            if (!used && (best < 0 || logits[i] > logits[best])) best = i;
        }
        taken[k] = best;
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)best));
    }
    return list;
}

/* losses MODEL GOLDEN -> {"nll":[...],"top5_ids":[[...]]} of golden.json's ids. */
static enum status losses(const struct place *at, char **args, struct err *e) {
    struct session s = {0};
    struct batch batch = {0};
    struct step_sums sums = {0};
    cJSON *golden = NULL, *const out = cJSON_CreateObject();
    float *nll = NULL, *logits = NULL;
    enum status status = STATUS_OK;
    GUARD(json_read_file(args[1], JSON_MAX, &golden, e));
    GUARD(open_model(&s, at, args[0], NULL, e));
    ids_batch(json_member(golden, "ids"), &batch);
    nll = mem_new((size_t)batch.trained, sizeof *nll);
    const struct step_options options = {.layout = {.loss_chunk_rows = 64}, .grad_scale = 1};
    GUARD(step_evaluate(&s.model, &batch, &options, &sums, nll, e));
    cJSON *const list = cJSON_AddArrayToObject(out, "nll"), *const top = cJSON_AddArrayToObject(
                                                                out, "top5_ids");
    for (int64_t i = 0; i < batch.trained; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)nll[i]));
    }
    const int64_t vocab = s.model.config.vocab_size;
    logits = mem_new((size_t)vocab, sizeof *logits);
    for (int32_t t = 0; t < batch.tokens; t += 37) {
        GUARD(step_logits(&s.model, &batch, &t, 1, logits, e));
        cJSON *const item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "position", t);
        cJSON_AddItemToObject(item, "ids", top_five(logits, vocab));
        cJSON_AddItemToArray(top, item);
    }
    print(out);
done:
    mem_free(nll);
    mem_free(logits);
    batch_release(&batch);
    session_close(&s);
    cJSON_Delete(golden);
    return status;
}

/* tokens MODEL FILE -> one line a row: {"ids":[...],"trained":[...]}. */
static enum status tokens(const struct place *at, char **args, struct err *e) {
    (void)at; /* text is no matter of a device */
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat_template = NULL;
    struct dataset data = {0};
    enum status status = STATUS_OK;
    GUARD(tokenizer_open(&tokenizer, args[0], e));
    GUARD(chat_template_open(&chat_template, args[0], e));
    const struct dataset_options options = {.max_length = LENGTH_MAX,
                                            .tokenizer = tokenizer,
                                            .chat_template = chat_template,
                                            .vocab = tokenizer_size(tokenizer)};
    GUARD(dataset_load(&data, &args[1], 1, &options, NULL, e));
    for (int64_t i = 0; i < data.counts.samples; i++) {
        const struct sample sample = dataset_sample(&data, i);
        cJSON *const row = cJSON_CreateObject();
        cJSON *const ids = cJSON_AddArrayToObject(row, "ids"), *const trained =
                                                                   cJSON_AddArrayToObject(
                                                                       row, "trained");
        for (int64_t t = 0; t < sample.count; t++) {
            cJSON_AddItemToArray(ids, cJSON_CreateNumber(sample.ids[t]));
            cJSON_AddItemToArray(trained, cJSON_CreateNumber(sample.trained[t]));
        }
        print(row);
    }
done:
    dataset_release(&data);
    chat_template_free(chat_template);
    tokenizer_free(tokenizer);
    return status;
}

/* greedy MODEL PROMPT_IDS COUNT [ADAPTER] -> {"new_ids":[...]} */
static enum status greedy(const struct place *at, char **args, struct err *e) {
    struct session s = {0};
    struct token_list ids = {0};
    cJSON *prompt = NULL;
    int64_t count = 0;
    enum status status = STATUS_OK;
    GUARD(json_parse(args[1], strlen(args[1]), "the prompt", &prompt, e));
    GUARD(str_to_i64(args[2], "the count", &count, e));
    GUARD(open_model(&s, at, args[0], args[3], e));
    for (const cJSON *id = prompt->child; id; id = id->next) {
        ids.ids = mem_grow(ids.ids, ids.count, &ids.capacity, sizeof *ids.ids);
        ids.ids[ids.count++] = id->valueint;
    }
    const size_t first = ids.count;
    const struct generate_options options = {.tokens_max = count, .length_max = LENGTH_MAX};
    GUARD(generate_greedy(&s.model, &options, &ids, e));
    cJSON *const out = cJSON_CreateObject();
    cJSON *const list = cJSON_AddArrayToObject(out, "new_ids");
    for (size_t i = first; i < ids.count; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber(ids.ids[i]));
    }
    print(out);
done:
    token_list_release(&ids);
    session_close(&s);
    cJSON_Delete(prompt);
    return status;
}

/* Reads the options before the question; returns where it is in argv, or 0 when they are wrong. */
static int read_place(int argc, char **argv, struct place *at) {
    int i = 1;
    for (; i + 1 < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        bool known = strcmp(argv[i], "--device") == 0;
        if (known) at->device = argv[i + 1];
        for (enum precision p = 0; !known && p < PRECISION_COUNT; p++) {
            known =
                strcmp(argv[i], "--precision") == 0 && strcmp(argv[i + 1], precision_name(p)) == 0;
            if (known) at->precision = p;
        }
        if (!known) return 0;
    }
    return i < argc ? i : 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int arguments_min;
        enum status (*run)(const struct place *at, char **args, struct err *e);
    } COMMANDS[] = {{"losses", 2, losses}, {"tokens", 2, tokens}, {"greedy", 3, greedy}};
    struct place at = {.device = "cpu"};
    const int first = read_place(argc, argv, &at);
    for (size_t i = 0; first > 0 && i < COUNT_OF(COMMANDS); i++) {
        struct err e = {0};
        if (strcmp(argv[first], COMMANDS[i].name) != 0 ||
            argc - first - 1 < COMMANDS[i].arguments_min)
            continue;
        if (COMMANDS[i].run(&at, argv + first + 1, &e) == STATUS_OK) return 0;
        fprintf(stderr, "real_tool: %s\n", e.text);
        return 1;
    }
    fputs("usage: real_tool [--device D] [--precision P] losses MODEL GOLDEN | tokens MODEL FILE | "
          "greedy MODEL IDS COUNT [ADAPTER]\n",
          stderr);
    return 2;
}
