/* generate.c - greedy decoding through step_logits.
 *
 * The prompt goes through the model's own chat template, as training rows do. */
#include "engine/train/generate.h"

#include "base/json.h"
#include "base/mem.h"
#include "engine/train/pipeline.h"
#include "engine/train/shapes.h"
#include "engine/train/step.h"

static bool is_end(const struct model_config *c, int32_t id) {
    for (int64_t i = 0; i < c->eos_token_count; i++) {
        if (c->eos_token_ids[i] == id) return true;
    }
    return false;
}

static int32_t largest(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return (int32_t)best;
}

/* A batch of one document; label 0 on one token only because an unlabelled batch has no loss rows
 * to lay out. */
static void one_document(const int32_t *ids, int64_t count, struct batch *batch) {
    const struct batch_shape shape = {
        .tokens = count, .trained = 1, .segments = 1, .max_seqlen = count};
    shape_batch(&shape, batch);
    for (int64_t t = 0; t < count; t++) {
        batch->ids[t] = ids ? ids[t] : 0;
        batch->positions[t] = (int32_t)t;
    }
}

/* The logits are on the last stage of a pipeline: its choice to all, of several pipelines that of
 * the one with the first rank, so that all of them end at the same token. */
static enum status follow(const struct model *m, int32_t *next, struct err *e) {
    if (!pipeline_is_on(m)) return STATUS_OK;
    const struct mesh *const mesh = m->options.mesh;
    const struct mesh_place speaks = {.at[AXIS_PIPELINE] = mesh->shape.degree[AXIS_PIPELINE] - 1};
    int32_t *const all = mem_new((size_t)mesh->comm->world, sizeof *all);
    const enum status status = comm_gather(mesh->comm, next, sizeof *next, all, e);
    if (status == STATUS_OK) *next = all[mesh_rank_of(&mesh->shape, &speaks)];
    mem_free(all);
    return status;
}

enum status generate_greedy(struct model *m, const struct generate_options *options,
                            struct token_list *ids, struct err *e) {
    const int64_t vocab = m->config.vocab_size;
    float *const logits = mem_new((size_t)vocab, sizeof *logits);
    struct batch batch = {0};
    enum status status = STATUS_OK;
    for (int64_t i = 0; i < options->tokens_max && (int64_t)ids->count < options->length_max; i++) {
        const int32_t last = (int32_t)ids->count - 1;
        one_document(ids->ids, (int64_t)ids->count, &batch);
        status = step_logits(m, &batch, &last, 1, logits, e);
        if (status != STATUS_OK) break;
        int32_t next = largest(logits, vocab);
        status = follow(m, &next, e);
        if (status != STATUS_OK) break;
        ids->ids = mem_grow(ids->ids, ids->count, &ids->capacity, sizeof *ids->ids);
        ids->ids[ids->count++] = next;
        if (is_end(&m->config, next)) break;
    }
    batch_release(&batch);
    mem_free(logits);
    return status;
}

static enum status render_prompt(const struct speaker *s, const char *prompt, struct str *out,
                                 struct err *e) {
    cJSON *const messages = cJSON_CreateArray(), *const message = cJSON_CreateObject(),
                 *const names = cJSON_CreateObject();
    json_add_string(message, "role", "user");
    json_add_string(message, "content", prompt);
    cJSON_AddItemToArray(messages, message);
    static const char *const NAMED[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    for (size_t i = 0; i < COUNT_OF(NAMED); i++) {
        const char *const token = tokenizer_named_token(s->tokenizer, NAMED[i]);
        if (token) json_add_string(names, NAMED[i], token);
    }
    struct str messages_text = {0}, names_text = {0};
    json_append(&messages_text, messages);
    json_append(&names_text, names);
    const struct template_inputs inputs = {.messages_json = str_text(&messages_text),
                                           .variables_json = str_text(&names_text),
                                           .add_generation_prompt = true,
                                           .now_unix_s = s->now_unix_s};
    const enum status status = chat_template_render(s->chat_template, &inputs, out, e);
    str_release(&messages_text);
    str_release(&names_text);
    cJSON_Delete(messages);
    cJSON_Delete(names);
    return status;
}

enum status generate_answer(const struct speaker *s, const char *prompt,
                            const struct generate_options *options, struct str *out,
                            struct err *e) {
    struct str text = {0};
    struct token_list ids = {0};
    enum status status = STATUS_OK;
    if (s->chat_template) {
        GUARD(render_prompt(s, prompt, &text, e));
    } else {
        str_append(&text, prompt);
    }
    GUARD(tokenizer_encode(s->tokenizer, str_text(&text), text.len, SPECIAL_PARSE,
                           s->chat_template == NULL, &ids, e));
    GUARD_IF(ids.count == 0, STATUS_INVALID, "sample_prompts: \"%s\" has no token", prompt);
    const size_t prompt_count = ids.count;
    GUARD(generate_greedy(s->model, options, &ids, e));
    GUARD(tokenizer_decode(s->tokenizer, ids.ids + prompt_count, ids.count - prompt_count, true,
                           out, e));
done:
    str_release(&text);
    token_list_release(&ids);
    return status;
}

enum status generate_plan(struct model *m, int64_t length_max, struct err *e) {
    struct batch batch = {0};
    one_document(NULL, length_max, &batch);
    const int32_t last = (int32_t)length_max - 1;
    float *const logits = mem_new((size_t)m->config.vocab_size, sizeof *logits);
    const enum status status = step_logits(m, &batch, &last, 1, logits, e);
    mem_free(logits);
    batch_release(&batch);
    return status;
}
