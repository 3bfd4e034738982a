/* result.c - what a finished run leaves for others: an adapter as PEFT reads it, or a model folder
 * as transformers reads it. The tokenizer and template go along in both cases, so that the result
 * is never used with the wrong ones. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/io/folder.h"
#include "engine/model/adapter.h"
#include "engine/model/weights.h"
#include "engine/text/tokenizer.h"
#include "engine/train/checkpoint.h"

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

static enum status save_model(const struct model *m, const char *folder, struct err *e) {
    char *path = file_join(folder, "model.safetensors");
    const enum status status = weights_save(m, m->params, m->param_count, result_dtype(m), path, e);
    mem_free(path);
    return status;
}

enum status result_save(struct session *s, const char *run, const struct result_source *source,
                        const char **name, struct err *e) {
    const struct model *const m = &s->model;
    arena_enter(s->arena, PHASE_EXPORT);
    *name = m->options.lora ? "adapter" : "model";
    char *path = file_join(run, *name), *folder = NULL;
    enum status status = STATUS_OK;
    GUARD(folder_begin(path, &folder, e));
    GUARD(m->options.lora ? adapter_save(m, source->base, folder, e) : save_model(m, folder, e));
    GUARD(copy_files(source, !m->options.lora, folder, e));
    GUARD(folder_commit(&folder, path, e));
done:
    folder_abort(&folder);
    mem_free(path);
    return status;
}
