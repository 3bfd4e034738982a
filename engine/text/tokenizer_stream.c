/* tokenizer_stream.c - decoding token by token, never splitting a character.
 *
 * Works for decoders of one shape, which covers the families: steps that look at each spelling
 * alone, then bytes (ByteLevel or ByteFallback), then Fuse, then Strip on the whole text. Held back
 * are only an unfinished character and, where Strip cuts at the end, what it may still cut. */
#include <string.h>

#include "base/mem.h"
#include "engine/text/tokenizer_parts.h"

struct token_stream {
    const struct tokenizer *t;
    bool skip_special;
    int alone_count;        /* steps before the bytes or the Fuse */
    enum decode_kind bytes; /* DECODE_BYTE_LEVEL, DECODE_BYTE_FALLBACK or DECODE_FUSE: none */
    const struct decode_step *strip; /* after Fuse, or NULL */
    struct str pending;              /* bytes of an unfinished character */
    struct str held;                 /* characters that Strip may cut at the end */
    int32_t cut;                     /* by Strip at the start */
    bool begun, text_begun;
};

static bool is_alone(enum decode_kind kind) {
    return kind == DECODE_REPLACE || kind == DECODE_STRIP || kind == DECODE_METASPACE;
}

static bool read_shape(struct token_stream *s) {
    const struct tokenizer *const t = s->t;
    int i = 0;
    s->bytes = DECODE_FUSE;
    while (i < t->decode_count && is_alone(t->decode[i].kind)) {
        i++;
    }
    s->alone_count = i;
    const bool bytes = i < t->decode_count && t->decode[i].kind != DECODE_FUSE;
    if (bytes) s->bytes = t->decode[i++].kind;
    bool fused = s->bytes == DECODE_BYTE_LEVEL;
    while (i < t->decode_count && t->decode[i].kind == DECODE_FUSE) {
        fused = true;
        i++;
    }
    if (i < t->decode_count && fused && t->decode[i].kind == DECODE_STRIP)
        s->strip = &t->decode[i++];
    while (i < t->decode_count && t->decode[i].kind == DECODE_FUSE) {
        i++;
    }
    return i == t->decode_count;
}

enum status token_stream_new(struct token_stream **out, const struct tokenizer *t,
                             bool skip_special, struct err *e) {
    struct token_stream *const s = mem_new(1, sizeof *s);
    s->t = t;
    s->skip_special = skip_special;
    if (!read_shape(s)) {
        mem_free(s);
        return err_set(e, STATUS_UNSUPPORTED,
                       "tokenizer.json: decoder: this order of steps cannot decode token by token");
    }
    *out = s;
    return STATUS_OK;
}

void token_stream_free(struct token_stream *s) {
    if (!s) return;
    str_release(&s->pending);
    str_release(&s->held);
    mem_free(s);
}

/* Text through Strip: cuts at the start, holds back at the end. */
static void give(struct token_stream *s, const char *text, size_t len, struct str *out) {
    const struct decode_step *const strip = s->strip;
    const size_t unit = strip ? strlen(strip->content) : 0;
    while (strip && !s->text_begun && s->cut < strip->start && len >= unit &&
           memcmp(text, strip->content, unit) == 0) {
        text += unit;
        len -= unit;
        s->cut++;
    }
    if (len == 0) return;
    s->text_begun = true;
    str_append_bytes(&s->held, text, len);
    size_t keep = 0;
    for (int32_t i = 0; strip && i < strip->stop; i++) {
        const bool may_go =
            s->held.len - keep >= unit &&
            memcmp(s->held.data + s->held.len - keep - unit, strip->content, unit) == 0;
        if (!may_go) break;
        keep += unit;
    }
    const size_t ready = s->held.len - keep;
    str_append_bytes(out, s->held.data, ready);
    memmove(s->held.data, s->held.data + ready, keep);
    str_truncate(&s->held, keep);
}

/* Whole characters out of the pending bytes. */
static void give_pending(struct token_stream *s, bool final, struct str *out) {
    struct str text = {0};
    size_t used = 0;
    if (s->bytes == DECODE_BYTE_LEVEL) {
        used = append_lossy(&text, str_text(&s->pending), s->pending.len, final);
    } else {
        used = utf8_valid_prefix(str_text(&s->pending), s->pending.len);
        str_append_bytes(&text, str_text(&s->pending), used);
        /* A byte run that can no longer become a character, or that ends here: one U+FFFD a byte.
         */
        while (used < s->pending.len && (final || s->pending.len - used >= 4)) {
            str_append(&text, "\xEF\xBF\xBD");
            used++;
        }
    }
    if (used > 0) memmove(s->pending.data, s->pending.data + used, s->pending.len - used);
    if (used > 0) str_truncate(&s->pending, s->pending.len - used);
    give(s, str_text(&text), text.len, out);
    str_release(&text);
}

static enum status alone_steps(struct token_stream *s, struct str *text, struct err *e) {
    struct scratch *const scratch = scratch_take(s->t);
    enum status status = STATUS_OK;
    for (int i = 0; i < s->alone_count && status == STATUS_OK; i++) {
        struct str next = {0};
        status =
            decode_one(&s->t->decode[i], scratch, !s->begun, str_text(text), text->len, &next, e);
        str_release(text);
        *text = next;
    }
    scratch_give(s->t, scratch);
    return status;
}

enum status token_stream_push(struct token_stream *s, int32_t id, struct str *out, struct err *e) {
    const char *spelling = NULL;
    size_t len = 0;
    struct str text = {0};
    TRY(token_spelling(s->t, id, s->skip_special, &spelling, &len, e));
    if (!spelling) return STATUS_OK;
    if (!s->t->has_decoder && s->begun) str_append_char(&text, ' ');
    str_append_bytes(&text, spelling, len);
    const enum status status = alone_steps(s, &text, e);
    s->begun = true;
    const int byte =
        s->bytes == DECODE_BYTE_FALLBACK ? fallback_byte(str_text(&text), text.len) : -1;
    if (status != STATUS_OK) {
        str_release(&text);
        return status;
    }
    if (byte >= 0) {
        str_append_char(&s->pending, (char)byte);
        give_pending(s, false, out);
    } else if (s->bytes == DECODE_BYTE_LEVEL) {
        append_alphabet_bytes(&s->pending, str_text(&text), text.len);
        give_pending(s, false, out);
    } else {
        give_pending(s, true, out);
        give(s, str_text(&text), text.len, out);
    }
    str_release(&text);
    return STATUS_OK;
}

enum status token_stream_finish(struct token_stream *s, struct str *out, struct err *e) {
    (void)e;
    give_pending(s, true, out);
    str_clear(&s->held); /* Strip cuts what it was holding back */
    s->begun = s->text_begun = false;
    s->cut = 0;
    return STATUS_OK;
}
