/* tokenizer_load.c - opening a model folder's tokenizer, and closing it.
 *
 * tokenizer.json is the truth about ids; tokenizer_config.json only names the special tokens and is
 * compared with it. The order of reading matters: the model sizes the tables, the normalizer gives
 * added tokens their searched spelling, and the pre-tokenizer decides whether BPE works on raw
 * bytes. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/text/tokenizer_parts.h"

enum { FILE_BYTES_MAX = 256 << 20, CONFIG_BYTES_MAX = 16 << 20 };

static const char *const NAMED[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                    "cls_token", "sep_token", "mask_token"};
_Static_assert(COUNT_OF(NAMED) <= COUNT_OF(((struct tokenizer *)0)->named), "room for every name");

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    scratch_pool_free(t->pool);
    vocab_release(&t->vocab);
    for (int i = 0; i < STEP_COUNT_MAX; i++) {
        norm_step_release(&t->norm[i]);
        pre_step_release(&t->pre[i]);
        decode_step_release(&t->decode[i]);
    }
    for (size_t i = 0; i < t->added_count; i++) {
        mem_free(t->added[i].content);
    }
    mem_free(t->added);
    trie_release(&t->raw);
    trie_release(&t->normalized);
    mem_free(t->cuts);
    for (size_t i = 0; i < COUNT_OF(t->named); i++) {
        mem_free(t->named[i]);
    }
    str_release(&t->notes);
    str_release(&t->warnings);
    mem_free(t);
}

const char *tokenizer_named_token(const struct tokenizer *t, const char *name) {
    for (size_t i = 0; i < COUNT_OF(NAMED); i++) {
        if (str_equal(name, NAMED[i])) return t->named[i];
    }
    return NULL;
}

/* There is no tokenizer.json: says what is there instead, and the way out. */
static enum status refuse_missing(const char *folder, struct err *e) {
    static const char *const OTHERS[] = {"tokenizer.model", "spiece.model", "tekken.json",
                                         "vocab.json"};
    for (size_t i = 0; i < COUNT_OF(OTHERS); i++) {
        char *const path = file_join(folder, OTHERS[i]);
        const bool there = file_exists(path);
        mem_free(path);
        FAIL_IF(there, STATUS_UNSUPPORTED,
                "%s: the tokenizer is there as %s, but only tokenizer.json is read. Make it once, "
                "where the Python packages transformers and sentencepiece are: python3 -c \"from "
                "transformers import AutoTokenizer as T; "
                "T.from_pretrained('%s').save_pretrained('%s')\"; or take tokenizer.json from "
                "where the model came from",
                folder, OTHERS[i], folder, folder);
    }
    return err_set(e, STATUS_NOT_FOUND, "%s: has no tokenizer.json", folder);
}

static enum status read_file(const char *folder, struct tokenizer_file *out, struct err *e) {
    char *const path = file_join(folder, "tokenizer.json");
    enum status status = STATUS_OK;
    GUARD(file_exists(path) ? STATUS_OK : refuse_missing(folder, e));
    GUARD(file_read(path, FILE_BYTES_MAX, &out->text, e));
    GUARD_IF(str_starts_with(str_text(&out->text), "version https://git-lfs"), STATUS_INVALID,
             "%s: is a Git LFS pointer, not the file itself; run \"git lfs pull\" in the folder",
             path);
    GUARD(tokenizer_file_parse(out, path, e));
done:
    mem_free(path);
    return status;
}

static enum status read_parts(struct tokenizer *t, struct tokenizer_file *whole, struct err *e) {
    static const char *const KEYS[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    const cJSON *const file = whole->rest;
    FAIL_IF(!cJSON_IsObject(file), STATUS_INVALID, "tokenizer.json: expected an object");
    for (const cJSON *item = file->child; item; item = item->next) {
        size_t i = 0;
        while (KEYS[i] && strcmp(KEYS[i], item->string) != 0) {
            i++;
        }
        FAIL_IF(!KEYS[i], STATUS_UNSUPPORTED, "tokenizer.json: %.80s: this key is not supported",
                item->string);
    }
    const char *version = NULL;
    TRY(json_get_string(file, "version", &version, e));
    FAIL_IF(version && !str_equal(version, "1.0"), STATUS_UNSUPPORTED,
            "tokenizer.json: version: \"%.40s\" is not supported, only 1.0", version);
    TRY(read_normalizer(t, file, e));
    TRY(read_pre_tokenizer(t, file, e));
    TRY(read_model(t, whole, e));
    TRY(read_added_tokens(t, file, e));
    TRY(read_post_processor(t, file, e));
    return read_decoder(t, file, e);
}

/* A special token is a string or an object with its content. */
static const char *token_text(const cJSON *value) {
    if (cJSON_IsObject(value)) value = json_member(value, "content");
    return cJSON_IsString(value) ? value->valuestring : NULL;
}

/* Both files list the added tokens. An id with two spellings is an error; flags that differ are
 * worth a note. */
static enum status compare_list(struct tokenizer *t, const cJSON *list, const int32_t *index_of,
                                struct err *e) {
    static const char *const FLAGS[] = {"lstrip", "rstrip", "single_word", "special", "normalized"};
    for (const cJSON *item = cJSON_IsObject(list) ? list->child : NULL; item; item = item->next) {
        const char *const content = token_text(item);
        const char *const where = "tokenizer_config.json: added_tokens_decoder";
        int64_t id = -1;
        TRY(str_to_i64(item->string, where, &id, e));
        const bool exists = id >= 0 && id < t->vocab.size && (t->vocab.flags[id] & TOKEN_USED);
        const char *const ours = exists ? tokenizer_token(t, (int32_t)id) : NULL;
        FAIL_IF(ours && content && !str_equal(ours, content), STATUS_INVALID,
                "%s[%lld]: is \"%.80s\" here and \"%.80s\" in tokenizer.json", where, (long long)id,
                content, ours);
        const struct added_token *const token =
            exists && index_of[id] > 0 ? &t->added[index_of[id] - 1] : NULL;
        if (!token) {
            str_appendf(
                &t->notes,
                "%s[%lld]: \"%.80s\" is not an added token of tokenizer.json, which counts\n",
                where, (long long)id, content ? content : "");
            return STATUS_OK;
        }
        const bool values[] = {token->lstrip, token->rstrip, token->single_word, token->special,
                               token->normalized};
        for (size_t i = 0; i < COUNT_OF(FLAGS); i++) {
            bool flag = values[i];
            TRY(json_get_bool(item, FLAGS[i], &flag, e));
            if (flag == values[i]) continue;
            str_appendf(&t->notes,
                        "%s[%lld]: \"%.80s\" has another %s than in tokenizer.json, which counts\n",
                        where, (long long)id, token->content, FLAGS[i]);
            return STATUS_OK;
        }
    }
    return STATUS_OK;
}

static enum status compare_added(struct tokenizer *t, const cJSON *list, struct err *e) {
    int32_t *const index_of = mem_new((size_t)t->vocab.size + 1, sizeof *index_of); /* plus one */
    for (size_t i = 0; i < t->added_count; i++) {
        index_of[t->added[i].id] = (int32_t)i + 1;
    }
    const enum status status = compare_list(t, list, index_of, e);
    mem_free(index_of);
    return status;
}

/* add_bos_token and add_eos_token: rebuild the post-processor in the Llama class only, and mean
 * nothing elsewhere. */
static enum status read_add_flags(struct tokenizer *t, const cJSON *config, struct err *e) {
    static const char *const KEYS[] = {"add_bos_token", "add_eos_token"};
    const char *class = NULL;
    TRY(json_get_string(config, "tokenizer_class", &class, e));
    const bool llama = class && (str_starts_with(class, "LlamaTokenizer") ||
                                 str_starts_with(class, "CodeLlamaTokenizer") ||
                                 str_starts_with(class, "GemmaTokenizer"));
    for (size_t i = 0; i < COUNT_OF(KEYS); i++) {
        bool wanted = false;
        int32_t *const ids = i == 0 ? t->prefix : t->suffix;
        int *const count = i == 0 ? &t->prefix_count : &t->suffix_count;
        const cJSON *const value = json_member(config, KEYS[i]);
        if (!value || cJSON_IsNull(value)) continue;
        TRY(json_get_bool(config, KEYS[i], &wanted, e));
        const char *const token = t->named[i];
        const int32_t id = token ? tokenizer_id(t, token) : -1;
        const bool has = id >= 0 && *count > 0 && ids[i == 0 ? 0 : *count - 1] == id;
        if (wanted == has || (wanted && id < 0)) continue;
        if (!llama) {
            str_appendf(
                &t->notes,
                "tokenizer_config.json: %s is %s, but the post-processor of tokenizer.json %s it, "
                "which counts\n",
                KEYS[i], wanted ? "true" : "false", has ? "adds" : "does not add");
            continue;
        }
        *count = wanted ? 1 : 0;
        ids[0] = id;
    }
    return STATUS_OK;
}

enum status read_config(struct tokenizer *t, const char *folder, struct err *e) {
    char *const path = file_join(folder, "tokenizer_config.json");
    cJSON *config = NULL;
    enum status status = STATUS_OK;
    if (!file_exists(path)) goto done;
    GUARD(json_read_file(path, CONFIG_BYTES_MAX, &config, e));
    GUARD_IF(!cJSON_IsObject(config), STATUS_INVALID, "%s: expected an object", path);
    for (size_t i = 0; i < COUNT_OF(NAMED); i++) {
        t->named[i] = mem_strdup(token_text(json_member(config, NAMED[i])));
    }
    GUARD(compare_added(t, json_member(config, "added_tokens_decoder"), e));
    GUARD(read_add_flags(t, config, e));
done:
    cJSON_Delete(config);
    mem_free(path);
    return status;
}

enum status tokenizer_open_with(struct tokenizer **out, const char *folder,
                                const struct tokenizer_options *options, struct err *e) {
    struct tokenizer *const t = mem_new(1, sizeof *t);
    struct tokenizer_file file = {0};
    t->pool = scratch_pool_new();
    t->unk_id = -1;
    enum status status = read_file(folder, &file, e);
    if (status == STATUS_OK && read_parts(t, &file, e) != STATUS_OK)
        status = err_prefix(e, "%s", folder);
    if (status == STATUS_OK) status = read_config(t, folder, e);
    if (status == STATUS_OK)
        status = mistral_pattern(t, folder, &file.text, options->fix_mistral_regex, e);
    tokenizer_file_release(&file);
    if (status != STATUS_OK) {
        tokenizer_free(t);
        return status;
    }
    *out = t;
    return STATUS_OK;
}

enum status tokenizer_open(struct tokenizer **out, const char *folder, struct err *e) {
    return tokenizer_open_with(out, folder, &(struct tokenizer_options){0}, e);
}
