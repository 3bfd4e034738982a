/* corpus.c - from the spec's file names to batches.
 *
 * Training and held-out data go through the same reader with the same options. */
#include "engine/train/corpus.h"

#include <math.h>

#include "base/file.h"
#include "base/mem.h"

/* How many rows may have a problem before the run is refused. */
struct row_limit {
    const char *key;
    enum row_problem problem;
    double most;
};

int64_t corpus_total_steps(const struct spec *spec, int64_t steps_per_epoch) {
    if (spec->max_steps > 0) return spec->max_steps;
    return (int64_t)ceil(spec->num_train_epochs * (double)steps_per_epoch);
}

struct batch_options corpus_batch_options(const struct spec *spec, int32_t pad_id, bool eval) {
    struct batch_options o = {.max_length = spec->data.max_length,
                              .packing = spec->data.packing,
                              .seed = (uint64_t)spec->seed,
                              .pad_id = pad_id,
                              .world = spec_data_world(spec)};
    if (eval) {
        o.micro_rows = spec->per_device_eval_batch_size;
        o.global_rows = o.micro_rows * o.world;
        return o;
    }
    o.micro_rows = spec_train_rows(spec);
    o.global_rows = spec_step_rows(spec) * o.world;
    o.micro_tokens = spec->micro_batch_tokens;
    o.shuffle = spec->data.shuffle;
    const bool rows = str_equal(spec->data.packing_strategy, "rows");
    o.strategy = rows ? BATCH_OF_ROWS : BATCH_OF_SAMPLES;
    return o;
}

/* Padding is masked and causal attention never looks ahead, so any id does; the model's own is the
 * least surprising. */
static int32_t padding_id(const struct model_config *config) {
    if (config->pad_token_id >= 0 && config->pad_token_id < config->vocab_size)
        return (int32_t)config->pad_token_id;
    return config->eos_token_count > 0 ? (int32_t)config->eos_token_ids[0] : 0;
}

static enum status open_template(const char *folder, struct chat_template **chat_template,
                                 struct err *e) {
    const enum status status = chat_template_open(chat_template, folder, e);
    if (status != STATUS_NOT_FOUND) return status;
    err_clear(e);
    return STATUS_OK;
}

enum status corpus_open_text(const char *folder, struct tokenizer **tokenizer,
                             struct chat_template **chat_template, struct err *e) {
    TRY(tokenizer_open(tokenizer, folder, e));
    return open_template(folder, chat_template, e);
}

enum status corpus_open_spec_text(const struct spec *spec, struct tokenizer **tokenizer,
                                  struct chat_template **chat_template, struct err *e) {
    const struct tokenizer_options options = {.fix_mistral_regex = spec->data.fix_mistral_regex};
    TRY(tokenizer_open_with(tokenizer, spec->model, &options, e));
    return open_template(spec->model, chat_template, e);
}

struct dataset_options corpus_dataset_options(const struct spec *spec,
                                              const struct model_config *config,
                                              const struct tokenizer *tokenizer,
                                              const struct chat_template *chat_template) {
    return (struct dataset_options){
        .format = data_format_parse(spec->data.format),
        .mask = data_mask_parse(spec->data.mask),
        .max_length = spec->data.max_length,
        .tokenizer = tokenizer,
        .chat_template = chat_template,
        .vocab = config->vocab_size,
        .now_unix_s = spec->created_at,
        .parse_special = spec->data.parse_special,
        .drop_messages = spec->data.max_rows_dropped_message > 0,
        .split_turns = spec->data.split_turns,
        .merge_turns = spec->data.merge_turns,
        .fold_system = spec->data.fold_system,
        .replace_invalid_utf8 = str_equal(spec->data.invalid_utf8, "replace"),
    };
}

/* "rows.jsonl line 3, rows.jsonl line 8". */
static void append_places(struct str *out, const struct row_tally *tally,
                          const struct spec_strings *files) {
    for (int64_t i = 0; i < tally->rows && i < TALLY_LINES; i++) {
        ASSERT(tally->first[i].file < files->count);
        str_appendf(out, "%s%s line %lld", i ? ", " : "",
                    file_base_name(files->items[tally->first[i].file]),
                    (long long)tally->first[i].line);
    }
}

static enum status over_limit(const struct row_limit *limit, const struct dataset_counts *counts,
                              const struct spec_strings *files, struct err *e) {
    const struct row_tally *const tally = &counts->problems[limit->problem];
    struct str places = {0};
    append_places(&places, tally, files);
    const enum status status = err_set_param(
        e, STATUS_INVALID, limit->key,
        "%lld of %lld rows are more than %s allows (%g%s): %s First: %s.", (long long)tally->rows,
        (long long)counts->rows, limit->key, limit->most < 1 ? 100 * limit->most : limit->most,
        limit->most < 1 ? " % of the rows" : " rows", row_problem_sentence(limit->problem),
        str_text(&places));
    str_release(&places);
    return status;
}

/* A limit below 1 is a share of the rows, any other a number of rows. */
enum status corpus_check_limits(const struct spec *spec, const struct dataset_counts *counts,
                                const struct spec_strings *files, struct err *e) {
    const struct row_limit limits[] = {
        {"data.max_rows_untrained", ROW_UNTRAINED, spec->data.max_rows_untrained},
        {"data.max_rows_answer_cut", ROW_ANSWER_CUT, spec->data.max_rows_answer_cut},
        {"data.max_rows_dropped_message", ROW_DROPPED_MESSAGE, spec->data.max_rows_dropped_message},
    };
    for (size_t i = 0; i < COUNT_OF(limits); i++) {
        const double most =
            limits[i].most < 1 ? limits[i].most * (double)counts->rows : limits[i].most;
        if ((double)counts->problems[limits[i].problem].rows > most)
            return over_limit(&limits[i], counts, files, e);
    }
    return STATUS_OK;
}

static enum status load_files(struct dataset *dataset, const struct spec_strings *files,
                              const struct spec *spec, const struct dataset_options *options,
                              const struct dataset_keeping *keeping, struct err *e) {
    TRY(dataset_load(dataset, files->items, files->count, options, keeping, e));
    return corpus_check_limits(spec, &dataset->counts, files, e);
}

static enum status load_all(struct corpus *c, const struct spec *spec,
                            const struct model_config *config, const struct corpus_watch *watch,
                            struct err *e) {
    const struct dataset_options options =
        corpus_dataset_options(spec, config, c->tokenizer, c->chat_template);
    struct cache_place place = {0};
    const struct dataset_keeping keeping = {.place = &place,
                                            .model_folder = spec->model,
                                            .context = watch->context,
                                            .progress = watch->progress};
    enum status status = cache_place_find(&place, e);
    if (status == STATUS_OK)
        status = load_files(&c->train, &spec->data.train_files, spec, &options, &keeping, e);
    if (status == STATUS_OK && c->has_eval)
        status = load_files(&c->eval, &spec->data.eval_files, spec, &options, &keeping, e);
    cache_place_release(&place);
    return status;
}

enum status corpus_open(struct corpus *c, const struct spec *spec,
                        const struct model_config *config, const struct corpus_watch *watch,
                        struct err *e) {
    *c = (struct corpus){.has_eval = spec->data.eval_files.count > 0};
    TRY(corpus_open_spec_text(spec, &c->tokenizer, &c->chat_template, e));
    TRY(load_all(c, spec, config, watch, e));
    return corpus_cut(c, spec, config, e);
}

enum status corpus_cut(struct corpus *c, const struct spec *spec, const struct model_config *config,
                       struct err *e) {
    batcher_close(&c->batcher);
    batcher_close(&c->eval_batcher);
    c->train_options = corpus_batch_options(spec, padding_id(config), false);
    c->eval_options = corpus_batch_options(spec, padding_id(config), true);
    TRY(batcher_open(&c->batcher, &c->train, &c->train_options, e));
    c->total_steps = corpus_total_steps(spec, c->batcher.steps_per_epoch);
    return c->has_eval ? batcher_open(&c->eval_batcher, &c->eval, &c->eval_options, e) : STATUS_OK;
}

void corpus_take_rank(struct corpus *c, int64_t rank) {
    batcher_take_rank(&c->batcher, rank);
    if (c->has_eval) batcher_take_rank(&c->eval_batcher, rank);
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
