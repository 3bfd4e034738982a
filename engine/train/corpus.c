/* corpus.c - from the spec's file names to batches.
 *
 * Training and held-out data go through the same reader with the same options. */
#include "engine/train/corpus.h"

#include <math.h>

int64_t corpus_total_steps(const struct spec *spec, int64_t samples) {
    if (spec->max_steps > 0) return spec->max_steps;
    const int64_t global = spec->per_device_train_batch_size * spec->gradient_accumulation_steps;
    const int64_t per_epoch = (samples + global - 1) / global;
    return (int64_t)ceil(spec->num_train_epochs * (double)per_epoch);
}

struct batch_options corpus_batch_options(const struct spec *spec, int32_t pad_id, bool eval) {
    struct batch_options o = {.max_length = spec->data.max_length,
                              .packing = spec->data.packing,
                              .seed = (uint64_t)spec->seed,
                              .pad_id = pad_id};
    if (eval) {
        o.micro_rows = o.global_rows = spec->per_device_eval_batch_size;
        return o;
    }
    o.micro_rows = spec->per_device_train_batch_size;
    o.global_rows = spec->per_device_train_batch_size * spec->gradient_accumulation_steps;
    o.shuffle = spec->data.shuffle;
    return o;
}

/* Padding is masked and causal attention never looks ahead, so any id does; the model's own is the
 * least surprising. */
static int32_t padding_id(const struct model_config *config) {
    if (config->pad_token_id >= 0 && config->pad_token_id < config->vocab_size)
        return (int32_t)config->pad_token_id;
    return config->eos_token_count > 0 ? (int32_t)config->eos_token_ids[0] : 0;
}

enum status corpus_open_text(const char *folder, struct tokenizer **tokenizer,
                             struct chat_template **chat_template, struct err *e) {
    TRY(tokenizer_open(tokenizer, folder, e));
    const enum status status = chat_template_open(chat_template, folder, e);
    if (status != STATUS_NOT_FOUND) return status;
    err_clear(e);
    return STATUS_OK;
}

enum status corpus_open(struct corpus *c, const struct spec *spec,
                        const struct model_config *config, struct err *e) {
    *c = (struct corpus){0};
    TRY(corpus_open_text(spec->model, &c->tokenizer, &c->chat_template, e));
    struct dataset_options options = {.format = data_format_parse(spec->data.format),
                                      .mask = data_mask_parse(spec->data.mask),
                                      .max_length = spec->data.max_length,
                                      .tokenizer = c->tokenizer,
                                      .chat_template = c->chat_template,
                                      .vocab = config->vocab_size,
                                      .now_unix_s = spec->created_at};
    TRY(dataset_load(&c->train, spec->data.train_files.items, spec->data.train_files.count,
                     &options, e));
    c->train_options = corpus_batch_options(spec, padding_id(config), false);
    c->eval_options = corpus_batch_options(spec, padding_id(config), true);
    c->total_steps = corpus_total_steps(spec, c->train.counts.samples);
    TRY(batcher_open(&c->batcher, &c->train, &c->train_options, e));
    c->has_eval = spec->data.eval_files.count > 0;
    if (!c->has_eval) return STATUS_OK;
    TRY(dataset_load(&c->eval, spec->data.eval_files.items, spec->data.eval_files.count, &options,
                     e));
    return batcher_open(&c->eval_batcher, &c->eval, &c->eval_options, e);
}

void corpus_close(struct corpus *c) {
    if (!c) return;
    batcher_close(&c->batcher);
    batcher_close(&c->eval_batcher);
    dataset_release(&c->train);
    dataset_release(&c->eval);
    chat_template_free(c->chat_template);
    tokenizer_free(c->tokenizer);
    *c = (struct corpus){0};
}
