/* encode_chat.c - a conversation to tokens. The rendering is tokenised as a whole, special tokens
 * read as such; only when the row's own words spell a special token is it taken apart at the
 * template's special tokens, which are hard borders for any tokenizer, and what lies between them
 * is read as ordinary text. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/chat_read.h"
#include "engine/text/encode.h"

/* Builds ids from template text and words, keeping byte offsets of the whole. */
struct splicer {
    const struct encoder *encoder;
    struct str fragment; /* text since the last special token */
    size_t at;           /* bytes before the fragment */
    struct token_list *ids, *ends;
};

static void append_id(struct token_list *list, int32_t id) {
    list->ids = mem_grow(list->ids, list->count, &list->capacity, sizeof *list->ids);
    list->ids[list->count++] = id;
}

static enum status splice_flush(struct splicer *s, struct err *e) {
    const size_t first = s->ends->count;
    TRY(tokenizer_encode_offsets(s->encoder->options.tokenizer, str_text(&s->fragment),
                                 s->fragment.len, SPECIAL_TEXT, s->ids, s->ends, e));
    for (size_t i = first; i < s->ends->count; i++) {
        s->ends->ids[i] += (int32_t)s->at;
    }
    s->at += s->fragment.len;
    str_clear(&s->fragment);
    return STATUS_OK;
}

/* Template text: its special tokens end the fragment and are appended by id. */
static enum status splice_template(struct splicer *s, const char *text, size_t len, struct err *e) {
    struct token_list ids = {0}, ends = {0};
    enum status status = tokenizer_encode_offsets(s->encoder->options.tokenizer, text, len,
                                                  SPECIAL_PARSE, &ids, &ends, e);
    size_t done = 0;
    for (size_t i = 0; i < ids.count && status == STATUS_OK; i++) {
        if (!encoder_is_special(s->encoder, ids.ids[i])) continue;
        const size_t begin = i ? (size_t)ends.ids[i - 1] : 0, end = (size_t)ends.ids[i];
        str_append_bytes(&s->fragment, text + done, begin - done);
        status = splice_flush(s, e);
        s->at += end - begin;
        append_id(s->ids, ids.ids[i]);
        append_id(s->ends, (int32_t)s->at);
        done = end;
    }
    str_append_bytes(&s->fragment, text + done, len - done);
    token_list_release(&ids);
    token_list_release(&ends);
    return status;
}

/* The rendering, or with `marked` its twin with marks, spliced from template text and words. */
static enum status splice(const struct encoder *x, const struct chat_rendering *r, bool marked,
                          struct token_list *ids, struct token_list *ends, struct err *e) {
    struct splicer s = {.encoder = x, .ids = ids, .ends = ends};
    enum status status = STATUS_OK;
    const char *const text = str_text(&r->text);
    size_t at = 0;
    for (size_t i = 0; i < r->order_count; i++) {
        const struct chat_place place = r->places[r->order[i]];
        GUARD(splice_template(&s, text + at, place.begin - at, e));
        if (marked) {
            char mark[CHAT_MARK_LEN + 1];
            chat_mark_text(mark, r->salt, r->order[i]);
            str_append(&s.fragment, mark);
        } else {
            str_append_bytes(&s.fragment, text + place.begin, place.end - place.begin);
        }
        at = place.end;
    }
    GUARD(splice_template(&s, text + at, r->text.len - at, e));
    GUARD(splice_flush(&s, e));
done:
    str_release(&s.fragment);
    return status;
}

static bool same_ids(const struct token_list *a, const struct token_list *b) {
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0);
}

/* Splicing must be what tokenising the whole would give. The marked twin has no special spelling in
 * its words, so there both can be made and compared: tokenizers that treat the start of a text
 * apart fail here. */
static enum status check_splicing(const struct encoder *x, const struct chat_rendering *r,
                                  struct err *e) {
    struct token_list whole = {0}, whole_ends = {0}, spliced = {0}, spliced_ends = {0};
    enum status status = STATUS_OK;
    GUARD(tokenizer_encode_offsets(x->options.tokenizer, str_text(&r->marked), r->marked.len,
                                   SPECIAL_PARSE, &whole, &whole_ends, e));
    GUARD(splice(x, r, true, &spliced, &spliced_ends, e));
    if (!same_ids(&whole, &spliced)) {
        status =
            field_error(e, "messages",
                        "the words spell a special token, and this tokenizer offers no way to read "
                        "it as text: take it out of the row");
    }
done:
    token_list_release(&whole);
    token_list_release(&whole_ends);
    token_list_release(&spliced);
    token_list_release(&spliced_ends);
    return status;
}

/* Special spellings where words and template text cannot be told apart are refused. */
static enum status refuse_hidden_specials(const struct encoder *x, const struct chat *chat,
                                          struct err *e) {
    const struct tokenizer *const t = x->options.tokenizer;
    if (tokenizer_count_special(t, str_text(&chat->tools), chat->tools.len)) {
        return field_error(
            e, "tools",
            "spells a special token of the model, which cannot be told from a real one");
    }
    for (size_t i = 0; i < chat->count; i++) {
        const struct chat_message *const m = &chat->messages[i];
        int64_t hits = tokenizer_count_special(t, str_text(&m->extra), m->extra.len);
        for (size_t k = 0; k < m->call_count; k++) {
            const struct chat_call *const c = &m->calls[k];
            hits += tokenizer_count_special(t, str_text(&c->before), c->before.len);
            hits += tokenizer_count_special(t, str_text(&c->arguments), c->arguments.len);
            hits += tokenizer_count_special(t, str_text(&c->after), c->after.len);
        }
        char path[FIELD_MAX];
        field_index(path, "messages", i + chat->folded);
        if (hits == 0) continue;
        return field_error(
            e, path,
            "a tool call or key spells a special token of the model, which cannot be told "
            "from a real one");
    }
    return STATUS_OK;
}

static enum status encode_rendering(const struct encoder *x, const struct chat_rendering *r,
                                    const struct chat *chat, struct encoded *out, struct err *e) {
    const struct tokenizer *const t = x->options.tokenizer;
    if (x->options.parse_special) {
        return tokenizer_encode_offsets(t, str_text(&r->text), r->text.len, SPECIAL_PARSE,
                                        &out->ids, &out->ends, e);
    }
    TRY(refuse_hidden_specials(x, chat, e));
    for (size_t i = 0; i < r->pieces.count; i++) {
        out->control_tokens +=
            tokenizer_count_special(t, r->pieces.items[i].text, r->pieces.items[i].len);
    }
    if (out->control_tokens == 0) {
        return tokenizer_encode_offsets(t, str_text(&r->text), r->text.len, SPECIAL_PARSE,
                                        &out->ids, &out->ends, e);
    }
    if (!r->separated) {
        return field_error(
            e, "messages",
            "the words spell a special token, and the chat template mixes them with its "
            "own so that they cannot be told apart");
    }
    TRY(check_splicing(x, r, e));
    return splice(x, r, false, &out->ids, &out->ends, e);
}

static size_t token_begin(const struct encoded *out, size_t token) {
    return token ? (size_t)out->ends.ids[token - 1] : 0;
}

/* The first token that ends after byte `at`. */
static size_t token_after(const struct encoded *out, size_t at) {
    size_t low = 0, high = out->ends.count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((size_t)out->ends.ids[middle] <= at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Sets the flag of the answer's tokens and of the end-of-turn token, with what the template writes
 * between them (a model that never learns that space never gets to the end). Tokens that straddle
 * the answer's beginning stay out. */
static void flag_answer(const struct encoder *x, const struct chat_answer *answer, uint8_t flag,
                        struct encoded *out) {
    size_t first = token_after(out, answer->begin);
    if (first < out->ids.count && token_begin(out, first) < answer->begin) first++;
    size_t last = token_after(out, answer->end); /* one past */
    bool ended = false;
    for (size_t i = last; i < out->ids.count && token_begin(out, i) < answer->limit && !ended;
         i++) {
        ended = encoder_is_special(x, out->ids.ids[i]);
        if (ended) last = i + 1;
    }
    out->open_answers += !ended;
    for (size_t i = first; i < last; i++) {
        out->trained[i] = flag;
    }
}

static size_t last_assistant(const struct chat *chat) {
    size_t last = chat->count;
    for (size_t i = 0; i < chat->count; i++) {
        if (chat->messages[i].role == CHAT_ASSISTANT) last = i;
    }
    return last;
}

/* Flags every answer that is to be trained, or with mask all takes out those that are not. */
static enum status flag_answers(const struct encoder *x, struct chat_rendering *r,
                                const struct chat *chat, struct encoded *out, struct err *e) {
    const bool all = x->options.mask == MASK_ALL;
    const size_t last = last_assistant(chat);
    memset(out->trained, all, out->ids.count);
    for (size_t i = 0; i < chat->count; i++) {
        const struct chat_message *const m = &chat->messages[i];
        if (m->role != CHAT_ASSISTANT || m->trainable == all) continue;
        if (!all && (i < chat->given || (x->options.mask == MASK_LAST && i != last))) continue;
        struct chat_answer answer;
        TRY(chat_answer_find(&answer, r, &x->renderer, chat, i, e));
        if (!answer.empty) flag_answer(x, &answer, !all, out);
    }
    out->trained[0] = 0;
    return STATUS_OK;
}

/* The rendering. On request a system message that the template leaves out or refuses is put in
 * front of the first question; *chat is then the conversation that was rendered. */
static enum status render_row(const struct encoder *x, const struct chat **chat,
                              struct chat_folded *folded, struct chat_rendering *r, struct err *e) {
    struct err flaw = {0};
    const enum status status = chat_rendering_make(r, &x->renderer, *chat, &flaw);
    if (x->options.fold_system && r->system_lost && chat_fold_system(folded, *chat)) {
        struct err second = {0};
        struct chat_rendering other = {0};
        const enum status better =
            chat_rendering_make(&other, &x->renderer, &folded->chat, &second);
        if (better == STATUS_OK) {
            chat_rendering_release(r);
            *r = other;
            *chat = &folded->chat;
            return STATUS_OK;
        }
        if (!other.system_lost) flaw = second; /* folding did help, and something else is wrong */
        chat_rendering_release(&other);
    }
    if (status == STATUS_OK) return STATUS_OK;
    return err_set_param(e, status, flaw.param, "%s", flaw.text);
}

enum status encode_chat(const struct encoder *x, const struct chat *chat, struct encoded *out,
                        struct err *e) {
    struct chat_rendering r = {0};
    struct chat_folded folded = {0};
    enum status status = STATUS_OK;
    GUARD(render_row(x, &chat, &folded, &r, e));
    GUARD(encode_rendering(x, &r, chat, out, e));
    ASSERT(out->ids.count == out->ends.count);
    out->dropped_message = r.dropped_message;
    out->folded_system = chat == &folded.chat;
    out->arguments_as_text = r.arguments == CHAT_ARGUMENTS_TEXT;
    if (x->options.keep_text) str_append_bytes(&out->text, str_text(&r.text), r.text.len);
    out->trained = mem_new(out->ids.count + 1, 1);
    GUARD(flag_answers(x, &r, chat, out, e));
done:
    chat_rendering_release(&r);
    chat_folded_release(&folded);
    return status;
}
