/* result.c - what a finished run leaves for others: an adapter as PEFT reads it, or a model folder
 * as transformers reads it. The tokenizer and template go along in both cases, so that the result
 * is never used with the wrong ones.
 *
 * The weights come from the files of the last checkpoint, whatever ranks wrote them: one rank makes
 * the result without holding more of it than a few rows. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/folder.h"
#include "engine/model/adapter.h"
#include "engine/model/assemble.h"
#include "engine/rundir.h"
#include "engine/text/tokenizer.h"
#include "engine/train/checkpoint.h"
#include "engine/train/checkpoint_part.h"

static enum status copy_if_there(const char *from_folder, const char *name, const char *to_folder,
                                 struct err *e) {
    char *from = file_join(from_folder, name), *to = file_join(to_folder, name);
    const enum status status = file_exists(from) ? file_copy(from, to, e) : STATUS_OK;
    mem_free(from);
    mem_free(to);
    return status;
}

static enum status copy_files(const struct result_source *source, bool whole_model,
                              const char *folder, struct err *e) {
    const char *const base = source->base;
    static const char *const TEXT_FILES[] = {"tokenizer.json", "tokenizer_config.json",
                                             "special_tokens_map.json", "chat_template.jinja",
                                             "added_tokens.json"};
    static const char *const MODEL_FILES[] = {"config.json", "generation_config.json"};
    for (size_t i = 0; i < COUNT_OF(TEXT_FILES); i++) {
        TRY(copy_if_there(base, TEXT_FILES[i], folder, e));
    }
    if (source->fix_mistral_regex) TRY(tokenizer_copy_fixed(base, folder, e));
    for (size_t i = 0; whole_model && i < COUNT_OF(MODEL_FILES); i++) {
        TRY(copy_if_there(base, MODEL_FILES[i], folder, e));
    }
    return STATUS_OK;
}

/* The dtype that config.json names; float16 models are written as bfloat16's wider sibling rather
 * than rounded twice. */
static enum st_dtype result_dtype(const struct model *m) {
    return strcmp(m->config.torch_dtype, "bfloat16") == 0 ? ST_BF16 : ST_F32;
}

static enum status save_model(const struct model *m, const char *checkpoint, const char *folder,
                              struct err *e) {
    struct block_set blocks = {0};
    size_t count = 0;
    const struct param *const tensors = model_whole_params(m, &count);
    char *const path = file_join(folder, "model.safetensors");
    enum status status = blocks_open(&blocks, checkpoint, PART_PREFIX, e);
    if (status == STATUS_OK)
        status = weights_assemble(tensors, count, &blocks, result_dtype(m), path, e);
    blocks_close(&blocks);
    mem_free(path);
    return status;
}

static enum status save_adapter(const struct model *m, const char *base, const char *checkpoint,
                                const char *folder, struct err *e) {
    char *const from = file_join(checkpoint, ADAPTER_WEIGHTS_NAME);
    char *const to = file_join(folder, ADAPTER_WEIGHTS_NAME);
    const enum status status = file_copy(from, to, e);
    mem_free(from);
    mem_free(to);
    return status == STATUS_OK ? adapter_save_config(m, base, folder, e) : status;
}

enum status result_save(struct session *s, const char *run, const struct result_source *source,
                        const char **name, struct err *e) {
    const struct model *const m = &s->model;
    arena_enter(s->arena, PHASE_EXPORT);
    *name = m->options.lora ? "adapter" : "model";
    char *path = file_join(run, *name), *folder = NULL;
    char *const checkpoint = rundir_checkpoint(run, source->step);
    enum status status = STATUS_OK;
    GUARD(folder_begin(path, &folder, e));
    GUARD(m->options.lora ? save_adapter(m, source->base, checkpoint, folder, e)
                          : save_model(m, checkpoint, folder, e));
    GUARD(copy_files(source, !m->options.lora, folder, e));
    GUARD(folder_commit(&folder, path, e));
done:
    folder_abort(&folder);
    mem_free(checkpoint);
    mem_free(path);
    return status;
}
