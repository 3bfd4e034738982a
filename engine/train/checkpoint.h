/* checkpoint.h - a run's state on disk, written under a temporary name with a manifest of hashes
 * and then renamed, so that a crash at any moment leaves the last complete one.
 *
 * checkpoints/step-N/
 *   part-0000R-of-0000W.safetensors   what rank R of W has written (checkpoint_part.h): blocks of
 *                                     AdamW's states and, of full fine-tuning, of the f32 masters
 *   adapter_config.json, adapter_model.safetensors   of LoRA, in f32
 *   trainer_state.json                {"step","updates","trained_tokens"}, of fp16 also the loss
 *                                     scale
 *   manifest.json                     sizes and hashes of all of them
 *
 * It knows no layout: any number of ranks, divided in any way, continues from it. */
#ifndef PLIMSOLL_ENGINE_TRAIN_CHECKPOINT_H
#define PLIMSOLL_ENGINE_TRAIN_CHECKPOINT_H

#include "engine/io/manifest.h"
#include "engine/train/session.h"

struct trainer_state {
    int64_t step; /* optimizer steps done */
    int64_t trained_tokens;
};

/* Where a checkpoint goes: checkpoints/step-N of `run`; the oldest beyond `keep` are removed (0:
 * none is). `base` goes into the adapter's config. */
struct checkpoint_place {
    const char *run;
    const char *base;
    int64_t keep;
};
/* Writing one. All ranks begin together: each leaves its part in a temporary folder and reads it
 * back for the manifest; an error of one is the error of all, after all have stopped writing. Then
 * rank 0 alone finishes: it adds the rest and makes the folder appear, and may try again after
 * STATUS_OOM. STATUS_NO_SPACE leaves the earlier checkpoints and no rest of this one.
 * checkpoint_end always, also after an error. */
struct checkpoint_writing {
    char *path, *made, *folder;
    struct manifest_entry *parts; /* that the ranks have written */
    int64_t part_count;
};
enum status checkpoint_begin(struct checkpoint_writing *w, struct session *s, int64_t step,
                             const struct checkpoint_place *place, struct err *e);
enum status checkpoint_finish(struct checkpoint_writing *w, struct session *s,
                              const struct trainer_state *state,
                              const struct checkpoint_place *place, struct err *e);
void checkpoint_end(struct checkpoint_writing *w);
/* All of it, by all ranks. */
enum status checkpoint_save(struct session *s, const struct trainer_state *state,
                            const struct checkpoint_place *place, struct err *e);

/* The newest checkpoint whose manifest holds: its step, or 0 when there is none. Damaged ones are
 * passed over and counted in *damaged. All ranks together: each reads a part of the files. */
enum status checkpoint_find(struct comm *c, const char *run, int64_t *step, int64_t *damaged,
                            struct err *e);
/* Restores weights or adapter, optimizer states and counters from checkpoints/step-N. */
enum status checkpoint_load(struct session *s, const char *run, int64_t step,
                            struct trainer_state *state, struct err *e);

/* Where the files come from that go along with a result. */
struct result_source {
    const char *base;       /* the model's folder */
    bool fix_mistral_regex; /* tokenizer.json is written with the pattern that was used */
    int64_t step;           /* of the checkpoint that the weights are taken from */
};
/* Writes the result of a finished run, by one rank, from the files of a checkpoint: adapter/ in
 * PEFT layout, or model/ in Hugging Face layout (config, tokenizer files and weights in the base
 * model's dtype). *name is "adapter" or "model". */
enum status result_save(struct session *s, const char *run, const struct result_source *source,
                        const char **name, struct err *e);

#endif
