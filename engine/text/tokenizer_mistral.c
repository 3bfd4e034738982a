/* tokenizer_mistral.c - the wrong pattern that some releases of Mistral carry (case A07).
 *
 * Mistral's newer vocabularies (Tekken) were learned with a cutting of their own, but some releases
 * ship Llama 3's, which is told. On request the right one takes its place, as fix_mistral_regex of
 * transformers does; only there, since for any other tokenizer the file is right. What a run leaves
 * behind carries the pattern that it was trained with. */
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer_parts.h"

enum { FILE_BYTES_MAX = 256 << 20, CONFIG_BYTES_MAX = 16 << 20 };

static const char LLAMA3_PATTERN[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const char TEKKEN_PATTERN[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static struct pre_step *llama3_step(struct tokenizer *t) {
    for (int i = 0; i < t->pre_count; i++) {
        if (str_equal(t->pre[i].pattern.source, LLAMA3_PATTERN)) return &t->pre[i];
    }
    return NULL;
}

/* "" when the folder does not say; owned. */
static enum status read_model_type(char **type, const char *folder, struct err *e) {
    char *const path = file_join(folder, "config.json");
    cJSON *config = NULL;
    const char *name = "";
    enum status status = STATUS_OK;
    if (file_exists(path)) {
        GUARD(json_read_file(path, CONFIG_BYTES_MAX, &config, e));
        GUARD(json_get_string(config, "model_type", &name, e));
    }
    *type = mem_strdup(name ? name : "");
done:
    cJSON_Delete(config);
    mem_free(path);
    return status;
}

/* Where the file spells the pattern, a JSON string of *len bytes; NULL: not as expected. */
static const char *find_spelling(const struct str *file, size_t *len) {
    struct str quoted = {0};
    chat_append_quoted(&quoted, LLAMA3_PATTERN, strlen(LLAMA3_PATTERN));
    const char *const at = strstr(str_text(file), str_text(&quoted));
    *len = quoted.len;
    str_release(&quoted);
    return at;
}

/* What cannot be written into the result is refused before it is trained on. */
static enum status replace(struct tokenizer *t, struct pre_step *step, const struct str *file,
                           struct err *e) {
    size_t len = 0;
    if (!find_spelling(file, &len))
        return err_set_param(e, STATUS_UNSUPPORTED, "data.fix_mistral_regex",
                             "data.fix_mistral_regex: tokenizer.json spells the pattern of Llama 3 "
                             "in a way that cannot be replaced in the file");
    pattern_release(&step->pattern);
    step->pattern = (struct pattern){.source = mem_strdup(TEKKEN_PATTERN)};
    TRY(regex_open(&step->pattern.regex, TEKKEN_PATTERN, e));
    t->pattern_replaced = true;
    str_append(&t->notes, "tokenizer.json: pre_tokenizer: the pattern of Llama 3 is replaced by "
                          "Mistral's own, as data.fix_mistral_regex asks\n");
    return STATUS_OK;
}

static enum status refuse(const char *folder, const char *type, bool mistral, struct err *e) {
    if (mistral)
        return err_set_param(e, STATUS_INVALID, "data.fix_mistral_regex",
                             "data.fix_mistral_regex puts Mistral's pattern in the place of Llama "
                             "3's, which tokenizer.json of %s does not have: leave the key out",
                             folder);
    return err_set_param(e, STATUS_INVALID, "data.fix_mistral_regex",
                         "data.fix_mistral_regex is for tokenizers of Mistral, and %s has "
                         "model_type \"%.60s\": leave the key out",
                         folder, type);
}

enum status mistral_pattern(struct tokenizer *t, const char *folder, const struct str *file,
                            bool fix, struct err *e) {
    struct pre_step *const step = llama3_step(t);
    char *type = NULL;
    if (!step && !fix) return STATUS_OK;
    TRY(read_model_type(&type, folder, e));
    const bool mistral = str_starts_with(type, "mistral") || str_starts_with(type, "ministral");
    enum status status = STATUS_OK;
    if (fix) {
        status = mistral && step ? replace(t, step, file, e) : refuse(folder, type, mistral, e);
    } else if (mistral) {
        str_append(&t->warnings,
                   "tokenizer.json: pre_tokenizer: has the pattern of Llama 3, with which no "
                   "Mistral vocabulary was learned, so words like eBay or pH become other tokens "
                   "than the model knows. The file counts as it is; data.fix_mistral_regex: true "
                   "trains with Mistral's own pattern, and writes it into the result\n");
    }
    mem_free(type);
    return status;
}

bool tokenizer_pattern_replaced(const struct tokenizer *t) {
    return t->pattern_replaced;
}

/* The file with one JSON string exchanged for another: all else stays byte for byte. */
static enum status exchange(const struct str *in, struct str *out, const char *path,
                            struct err *e) {
    size_t len = 0;
    const char *const at = find_spelling(in, &len);
    FAIL_IF(!at, STATUS_INVALID, "%s: has lost the pattern of Llama 3 since the run began", path);
    const size_t before = (size_t)(at - str_text(in)), after = before + len;
    str_append_bytes(out, str_text(in), before);
    chat_append_quoted(out, TEKKEN_PATTERN, strlen(TEKKEN_PATTERN));
    str_append_bytes(out, str_text(in) + after, in->len - after);
    return STATUS_OK;
}

enum status tokenizer_copy_fixed(const char *from_folder, const char *to_folder, struct err *e) {
    char *const from = file_join(from_folder, "tokenizer.json");
    char *const to = file_join(to_folder, "tokenizer.json");
    struct str text = {0}, fixed = {0};
    enum status status = STATUS_OK;
    GUARD(file_read(from, FILE_BYTES_MAX, &text, e));
    GUARD(exchange(&text, &fixed, from, e));
    GUARD(file_write_atomic(to, str_text(&fixed), fixed.len, e));
done:
    str_release(&text);
    str_release(&fixed);
    mem_free(from);
    mem_free(to);
    return status;
}
