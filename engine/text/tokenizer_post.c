/* tokenizer_post.c - the post-processor, reduced to ids in front of and behind the text.
 *
 * TemplateProcessing, RobertaProcessing and BertProcessing put ids around one text; ByteLevel only
 * trims offsets and adds none. In a Sequence each member goes around what the one before made. What
 * a template says about pairs of texts is read over: only single texts are encoded here. */
#include "engine/text/tokenizer_parts.h"

#include <string.h>

#include "base/mem.h"

/* What one member adds. */
struct around {
    int32_t front[POST_IDS_MAX], behind[POST_IDS_MAX];
    int front_count, behind_count;
};

static enum status wrap(struct tokenizer *t, const struct around *a, const struct where *at,
                        struct err *e) {
    const bool fits = t->prefix_count + a->front_count <= POST_IDS_MAX &&
                      t->suffix_count + a->behind_count <= POST_IDS_MAX;
    FAIL_IF(!fits, STATUS_UNSUPPORTED, "%s: adds more than %d tokens", at->text, POST_IDS_MAX);
    memmove(t->prefix + a->front_count, t->prefix, (size_t)t->prefix_count * sizeof *t->prefix);
    memcpy(t->prefix, a->front, (size_t)a->front_count * sizeof *t->prefix);
    memcpy(t->suffix + t->suffix_count, a->behind, (size_t)a->behind_count * sizeof *t->suffix);
    t->prefix_count += a->front_count;
    t->suffix_count += a->behind_count;
    return STATUS_OK;
}

static enum status add_ids(const struct tokenizer *t, const cJSON *ids, int32_t *list, int *count,
                           const struct where *at, struct err *e) {
    FAIL_IF(!cJSON_IsArray(ids), STATUS_INVALID, "%s: the special token has no list of ids",
            at->text);
    for (const cJSON *id = ids->child; id; id = id->next) {
        FAIL_IF(!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= t->vocab.size,
                STATUS_INVALID, "%s: an id of the special token does not exist", at->text);
        FAIL_IF(*count == POST_IDS_MAX, STATUS_UNSUPPORTED, "%s: adds more than %d tokens",
                at->text, POST_IDS_MAX);
        list[(*count)++] = (int32_t)id->valuedouble;
    }
    return STATUS_OK;
}

static enum status read_template(struct tokenizer *t, const cJSON *value, const struct where *at,
                                 struct err *e) {
    static const char *const KEYS[] = {"type", "single", "pair", "special_tokens", NULL};
    struct around a = {0};
    bool seen = false;
    int index = 0;
    TRY(json_only(value, at, KEYS, e));
    const struct where single = where_key(at, "single");
    const cJSON *const list = json_member(value, "single");
    FAIL_IF(!cJSON_IsArray(list), STATUS_UNSUPPORTED, "%s: expected a list of pieces", single.text);
    for (const cJSON *piece = list->child; piece; piece = piece->next, index++) {
        const struct where here = where_index(&single, index);
        const cJSON *const special = json_member(piece, "SpecialToken");
        const char *id = NULL;
        FAIL_IF(!special && !json_member(piece, "Sequence"), STATUS_UNSUPPORTED,
                "%s: expected SpecialToken or Sequence", here.text);
        TRY(json_text(special ? special : json_member(piece, "Sequence"), "id", &here, &id, e));
        if (!special) {
            FAIL_IF(seen || !str_equal(id, "A"), STATUS_UNSUPPORTED,
                    "%s: only one Sequence A is supported", here.text);
            seen = true;
            continue;
        }
        const cJSON *const ids =
            json_member(json_member(json_member(value, "special_tokens"), id), "ids");
        if (seen) {
            TRY(add_ids(t, ids, a.behind, &a.behind_count, &here, e));
        } else {
            TRY(add_ids(t, ids, a.front, &a.front_count, &here, e));
        }
    }
    FAIL_IF(!seen, STATUS_UNSUPPORTED, "%s: has no Sequence A", single.text);
    return wrap(t, &a, at, e);
}

/* ["</s>", 2]: the id of "sep" or "cls". */
static enum status read_pair(const struct tokenizer *t, const cJSON *value, const char *key,
                             const struct where *at, int32_t *out, struct err *e) {
    const cJSON *const pair = json_member(value, key);
    const cJSON *const id = cJSON_IsArray(pair) && pair->child ? pair->child->next : NULL;
    FAIL_IF(!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= t->vocab.size,
            STATUS_INVALID, "%s.%s: expected [token, id] of a token that exists", at->text, key);
    *out = (int32_t)id->valuedouble;
    return STATUS_OK;
}

static enum status read_one(struct tokenizer *t, const cJSON *value, const char *type,
                            const struct where *at, struct err *e) {
    static const char *const BYTE_KEYS[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                            NULL};
    static const char *const PAIR_KEYS[] = {
        "type", "sep", "cls", "trim_offsets", "add_prefix_space", NULL};
    if (str_equal(type, "ByteLevel")) return json_only(value, at, BYTE_KEYS, e);
    if (str_equal(type, "TemplateProcessing")) return read_template(t, value, at, e);
    if (!str_equal(type, "RobertaProcessing") && !str_equal(type, "BertProcessing"))
        return refuse_type(type, at, e);
    struct around a = {.front_count = 1, .behind_count = 1};
    TRY(json_only(value, at, PAIR_KEYS, e));
    TRY(read_pair(t, value, "cls", at, a.front, e));
    TRY(read_pair(t, value, "sep", at, a.behind, e));
    return wrap(t, &a, at, e);
}

enum status read_post_processor(struct tokenizer *t, const cJSON *file, struct err *e) {
    const struct where at = where_root("post_processor");
    return read_sequence(t, json_member(file, "post_processor"), "processors", &at, 0, read_one, e);
}
