/* encode.c - what all rows share (names of special tokens, the post-processor), and rows that are
 * plain texts.
 *
 * The post-processor is learned by trying, once: then texts can be tokenised with byte offsets
 * and its tokens added around them. */
#include "engine/text/encode.h"

#include <string.h>

#include "base/mem.h"

static const char *const NAMED_TOKENS[] = {"bos_token", "eos_token", "pad_token", "unk_token"};

/* The template's variables: special tokens under their names, those that exist. */
static char *make_variables(const struct tokenizer *t, bool not_thinking) {
    struct str out = {0};
    str_append_char(&out, '{');
    for (size_t i = 0; i < COUNT_OF(NAMED_TOKENS); i++) {
        const char *const text = tokenizer_named_token(t, NAMED_TOKENS[i]);
        if (!text) continue;
        str_appendf(&out, "%s\"%s\":", out.len > 1 ? "," : "", NAMED_TOKENS[i]);
        chat_append_quoted(&out, text, strlen(text));
    }
    if (not_thinking) str_appendf(&out, "%s\"enable_thinking\":false", out.len > 1 ? "," : "");
    str_append_char(&out, '}');
    return str_take(&out);
}

/* Learns what the post-processor adds from one letter with and without it. */
static enum status probe_post_processor(struct encoder *x, struct err *e) {
    struct token_list bare = {0}, with = {0};
    enum status status = STATUS_OK;
    const struct tokenizer *const t = x->options.tokenizer;
    GUARD(tokenizer_encode(t, "a", 1, SPECIAL_TEXT, false, &bare, e));
    GUARD(tokenizer_encode(t, "a", 1, SPECIAL_TEXT, true, &with, e));
    size_t at = 0;
    const size_t bytes = bare.count * sizeof *bare.ids;
    while (at + bare.count <= with.count && bytes && memcmp(with.ids + at, bare.ids, bytes) != 0) {
        at++;
    }
    GUARD_IF(at + bare.count > with.count, STATUS_UNSUPPORTED,
             "the tokenizer's post_processor does more than add tokens before and after a text");
    for (size_t i = 0; i < with.count; i++) {
        struct token_list *const list = i < at ? &x->before : &x->after;
        if (i >= at && i < at + bare.count) continue;
        list->ids = mem_grow(list->ids, list->count, &list->capacity, sizeof *list->ids);
        list->ids[list->count++] = with.ids[i];
    }
done:
    token_list_release(&bare);
    token_list_release(&with);
    return status;
}

enum status encoder_init(struct encoder *x, const struct dataset_options *options, struct err *e) {
    *x = (struct encoder){.options = *options, .eos_id = -1};
    const struct tokenizer *const t = options->tokenizer;
    x->variables = make_variables(t, false);
    x->variables_not_thinking = make_variables(t, true);
    x->renderer = (struct chat_renderer){.chat_template = options->chat_template,
                                         .variables_json = x->variables,
                                         .variables_not_thinking_json = x->variables_not_thinking,
                                         .now_unix_s = options->now_unix_s,
                                         .drop_messages = options->drop_messages};
    x->bos_text = tokenizer_named_token(t, "bos_token");
    x->eos_text = tokenizer_named_token(t, "eos_token");
    if (x->eos_text) x->eos_id = tokenizer_id(t, x->eos_text);
    return probe_post_processor(x, e);
}

void encoder_release(struct encoder *x) {
    if (!x) return;
    mem_free(x->variables);
    mem_free(x->variables_not_thinking);
    token_list_release(&x->before);
    token_list_release(&x->after);
    *x = (struct encoder){0};
}

bool encoder_is_special(const struct encoder *x, int32_t id) {
    if (id == x->eos_id) return true;
    const char *const text = tokenizer_token(x->options.tokenizer, id);
    return text && tokenizer_count_special(x->options.tokenizer, text, strlen(text)) > 0;
}

void encoded_row_release(struct encoded_row *out) {
    if (!out) return;
    for (int64_t i = 0; i < out->count; i++) {
        struct encoded *const part = &out->parts[i];
        token_list_release(&part->ids);
        token_list_release(&part->ends);
        str_release(&part->text);
        mem_free(part->trained);
    }
    mem_free(out->parts);
    *out = (struct encoded_row){0};
}

static void add_id(struct token_list *list, int32_t id) {
    list->ids = mem_grow(list->ids, list->count, &list->capacity, sizeof *list->ids);
    list->ids[list->count++] = id;
}

/* A row that begins with the text of the BOS that the post-processor adds must not get two (case
 * B01). */
static bool begins_with_bos(const struct encoder *x, const struct str *text) {
    if (!x->bos_text || x->before.count == 0) return false;
    const size_t len = strlen(x->bos_text);
    return tokenizer_id(x->options.tokenizer, x->bos_text) == x->before.ids[0] && len > 0 &&
           text->len >= len && memcmp(str_text(text), x->bos_text, len) == 0;
}

static bool ends_with_eos(const struct encoder *x, const struct str *text) {
    if (x->eos_id < 0) return false;
    const size_t len = strlen(x->eos_text);
    return len > 0 && text->len >= len &&
           memcmp(str_text(text) + text->len - len, x->eos_text, len) == 0;
}

/* The tokens of text[from..to) between what the post-processor adds, and an end-of-text token. */
static enum status encode_between(const struct encoder *x, const char *text, size_t len,
                                  struct encoded *out, struct err *e) {
    const enum special_mode mode = x->options.parse_special ? SPECIAL_PARSE : SPECIAL_TEXT;
    if (mode == SPECIAL_TEXT)
        out->control_tokens = tokenizer_count_special(x->options.tokenizer, text, len);
    for (size_t i = 0; i < x->before.count; i++) {
        add_id(&out->ids, x->before.ids[i]);
        add_id(&out->ends, 0);
    }
    TRY(tokenizer_encode_offsets(x->options.tokenizer, text, len, mode, &out->ids, &out->ends, e));
    for (size_t i = 0; i < x->after.count; i++) {
        add_id(&out->ids, x->after.ids[i]);
        add_id(&out->ends, (int32_t)len);
    }
    const bool ended = out->ids.count > 0 && out->ids.ids[out->ids.count - 1] == x->eos_id;
    if (x->eos_id >= 0 && !ended) {
        add_id(&out->ids, x->eos_id);
        add_id(&out->ends, (int32_t)len);
    }
    ASSERT(out->ids.count == out->ends.count);
    return STATUS_OK;
}

/* Prompt and text end to end. Tokens that begin in the prompt are not trained, unless everything
 * is. */
static enum status encode_texts(const struct encoder *x, const struct data_row *row,
                                struct encoded *out, struct err *e) {
    struct str all = {0};
    str_append_bytes(&all, str_text(&row->prompt), row->prompt.len);
    str_append_bytes(&all, str_text(&row->text), row->text.len);
    const size_t skip = begins_with_bos(x, &all) ? strlen(x->bos_text) : 0;
    if (ends_with_eos(x, &all) && all.len - strlen(x->eos_text) >= skip) {
        str_truncate(&all, all.len - strlen(x->eos_text));
    }
    const enum status status = encode_between(x, str_text(&all) + skip, all.len - skip, out, e);
    const size_t bare = all.len - skip;
    if (x->options.keep_text) str_append_bytes(&out->text, str_text(&all) + skip, bare);
    str_release(&all);
    if (status != STATUS_OK) return status;
    const bool everything = x->options.mask == MASK_ALL || row->prompt.len == 0;
    const size_t prompt = everything || row->prompt.len < skip ? 0 : row->prompt.len - skip;
    out->trained = mem_new(out->ids.count + 1, 1);
    /* An empty completion teaches nothing: its end-of-text token alone is not an answer. */
    if (row->text.len == 0 || bare == 0) return STATUS_OK;
    for (size_t i = 1; i < out->ids.count; i++) {
        const size_t begin = (size_t)out->ends.ids[i - 1];
        out->trained[i] = begin >= prompt && i >= x->before.count;
    }
    return STATUS_OK;
}

static enum status check_ids(const struct encoder *x, const struct encoded *out, struct err *e) {
    for (size_t i = 0; i < out->ids.count; i++) {
        FAIL_IF(out->ids.ids[i] < 0 || out->ids.ids[i] >= x->options.vocab, STATUS_INVALID,
                "token id %d is outside the model's vocabulary of %lld: the tokenizer does not "
                "belong to the model",
                out->ids.ids[i], (long long)x->options.vocab);
    }
    return STATUS_OK;
}

static enum status encode_part(const struct encoder *x, const struct data_row *row,
                               struct encoded *out, struct err *e) {
    if (row->is_chat) {
        TRY(encode_chat(x, &row->chat, out, e));
    } else {
        out->is_text = row->prompt.len == 0;
        TRY(encode_texts(x, row, out, e));
    }
    if (!x->options.keep_text) token_list_release(&out->ends); /* half of the memory */
    return check_ids(x, out, e);
}

/* Whether split_turns makes a row of this message. */
static bool is_turn(const struct chat *chat, size_t index) {
    const struct chat_message *const m = &chat->messages[index];
    return index >= chat->given && m->role == CHAT_ASSISTANT && m->trainable;
}

/* Each trained answer with all that is before it: as the model meets it when it answers, and with
 * the reasoning that templates take out of history (case B07). */
static enum status encode_turns(const struct encoder *x, const struct data_row *row,
                                struct encoded_row *out, struct err *e) {
    for (size_t i = 0; i < row->chat.count; i++) {
        if (!is_turn(&row->chat, i)) continue;
        struct data_row turn = {.is_chat = true, .chat = row->chat}; /* borrows its messages */
        turn.chat.count = i + 1;
        turn.chat.given = i;
        TRY(encode_part(x, &turn, &out->parts[out->count++], e));
    }
    return STATUS_OK;
}

enum status encode_row(const struct encoder *x, const struct data_row *row, struct encoded_row *out,
                       struct err *e) {
    *out = (struct encoded_row){0};
    FAIL_IF(row->is_preference, STATUS_UNSUPPORTED,
            "this is preference data (chosen, rejected), which supervised fine-tuning cannot use: "
            "to train on the better answers, write each row as \"prompt\" and \"completion\" "
            "with the text of \"chosen\", and leave \"rejected\" out");
    FAIL_IF(row->is_chat && !x->options.chat_template, STATUS_INVALID,
            "the row is a conversation and the model has no chat template: choose a model that has "
            "one, or give rows "
            "of \"text\" or of \"prompt\" and \"completion\"");
    size_t turns = 0;
    for (size_t i = 0; x->options.split_turns && row->is_chat && i < row->chat.count; i++) {
        turns += is_turn(&row->chat, i);
    }
    out->parts = mem_new(turns ? turns : 1, sizeof *out->parts);
    if (turns) return encode_turns(x, row, out, e);
    return encode_part(x, row, &out->parts[out->count++], e);
}
