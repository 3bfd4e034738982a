/* corpus.h - the text side of a run: tokenizer, chat template, training and held-out data, and how
 * they are cut.
 *
 * Everything in it is host memory; the device sees one micro-batch at a time. */
#ifndef PLIMSOLL_ENGINE_TRAIN_CORPUS_H
#define PLIMSOLL_ENGINE_TRAIN_CORPUS_H

#include "engine/model/config.h"
#include "engine/spec.h"
#include "engine/text/batch.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"

struct corpus {
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none */
    struct dataset train, eval;          /* eval is empty without eval_files */
    struct batch_options train_options, eval_options;
    struct batcher batcher, eval_batcher;
    bool has_eval;
    int64_t total_steps;
};

/* Tokenizer and chat template of a model folder; *chat_template becomes NULL when it has none,
 * which is fine until chat rows want one. Caller frees both, also after an error. */
enum status corpus_open_text(const char *folder, struct tokenizer **tokenizer,
                             struct chat_template **chat_template, struct err *e);

/* Those of a spec's model, as the spec asks for them (data.fix_mistral_regex). */
enum status corpus_open_spec_text(const struct spec *spec, struct tokenizer **tokenizer,
                                  struct chat_template **chat_template, struct err *e);

/* How a run of this spec reads its rows. Tokenizer and template (may be NULL) are borrowed by the
 * result. */
struct dataset_options corpus_dataset_options(const struct spec *spec,
                                              const struct model_config *config,
                                              const struct tokenizer *tokenizer,
                                              const struct chat_template *chat_template);
/* STATUS_INVALID when more rows have a problem than the spec's data.max_rows_* allow, with counts
 * and the first lines. */
enum status corpus_check_limits(const struct spec *spec, const struct dataset_counts *counts,
                                const struct spec_strings *files, struct err *e);

/* Who wants to know how far reading is; called while rows are encoded, not when all were kept from
 * before. */
struct corpus_watch {
    void *context;
    void (*progress)(void *context, const struct dataset_progress *progress);
};

/* Reads everything the spec names, encoded rows being kept in the cache folder (base/cache.h);
 * errors of corpus_check_limits too. Close with corpus_close, also after an error. */
enum status corpus_open(struct corpus *c, const struct spec *spec,
                        const struct model_config *config, const struct corpus_watch *watch,
                        struct err *e);
/* From here on batches are those of this rank of the spec's parallel.ranks; before it rank 0's. */
void corpus_take_rank(struct corpus *c, int64_t rank);
void corpus_close(struct corpus *c);
/* Cuts the rows that were read into batches of this spec, which may differ from the one that they
 * were read for in the sizes of batches only. The rank is 0 again. */
enum status corpus_cut(struct corpus *c, const struct spec *spec, const struct model_config *config,
                       struct err *e);

/* Optimizer steps of a whole run. */
int64_t corpus_total_steps(const struct spec *spec, int64_t steps_per_epoch);

/* The batch options of a spec, for training or for evaluation. */
struct batch_options corpus_batch_options(const struct spec *spec, int32_t pad_id, bool eval);

#endif
