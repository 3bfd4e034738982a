/* data_rows.c - single rows as tokens, written as JSON while they are visited.
 *
 * The text of a token is what it covers of the rendering. Where it covers nothing (tokens that the
 * tokenizer puts around a text) its spelling in the vocabulary is shown; where it covers a part of
 * a character its bytes are, so that the answer is valid UTF-8 whatever the row. */
#include "engine/train/data_rows.h"

#include <string.h>

#include "base/mem.h"
#include "engine/text/chat.h"
#include "engine/text/encode.h"
#include "engine/text/tokenizer.h"

enum {
    TOKEN_TEXT_MAX = 200,     /* bytes shown of one token */
    TEXT_MAX = 1 << 20,       /* bytes shown of a rendering */
    SOURCE_MAX = 4096,        /* bytes shown of a row that is wrong */
    ANSWER_SOFT_MAX = 8 << 20 /* after so many bytes no further tokens are written */
};

struct writer {
    const struct data_reader *reader;
    const struct data_window *window;
    struct str *out;
    int64_t written;
    enum data_format format;
    struct str rows;
};

static void append_key(struct str *out, const char *key, int64_t value) {
    str_appendf(out, "\"%s\":%lld,", key, (long long)value);
}

/* Appends the bytes; those that are no UTF-8 as \xHH. True if there were such. */
static bool append_escaped(struct str *out, const char *text, size_t len) {
    bool stray = false;
    for (size_t at = 0; at < len;) {
        uint32_t code;
        const int width = utf8_decode(text + at, len - at, &code);
        if (width > 0) {
            str_append_bytes(out, text + at, (size_t)width);
        } else {
            str_appendf(out, "\\x%02X", (unsigned char)text[at]);
            stray = true;
        }
        at += width > 0 ? (size_t)width : 1;
    }
    return stray;
}

/* As many whole characters as fit into `max` bytes. */
static size_t whole_prefix(const char *text, size_t len, size_t max) {
    size_t end = len < max ? len : max;
    while (end < len && end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80) {
        end--;
    }
    return end;
}

/* Where the character that byte `at` is inside of begins; `at` itself between characters. */
static size_t character_start(const struct str *text, size_t at) {
    while (at > 0 && at < text->len && ((unsigned char)text->data[at] & 0xC0) == 0x80) {
        at--;
    }
    return at;
}

/* Appends up to TOKEN_TEXT_MAX bytes of text[begin..end), an ellipsis for the rest. True if a byte
 * of it is no part of a whole character. */
static bool append_some(struct str *out, const struct str *text, size_t begin, size_t end) {
    const size_t len = whole_prefix(str_text(text) + begin, end - begin, TOKEN_TEXT_MAX);
    const bool stray = append_escaped(out, str_text(text) + begin, len);
    if (len < end - begin) str_append(out, "\xE2\x80\xA6");
    return stray;
}

static bool is_special(const struct tokenizer *t, int32_t id) {
    const char *const eos = tokenizer_named_token(t, "eos_token");
    return tokenizer_is_special(t, id) || (eos && tokenizer_id(t, eos) == id);
}

static size_t token_begin(const struct encoded *row, int64_t token) {
    return token > 0 ? (size_t)row->ends.ids[token - 1] : 0;
}

/* The characters that end in this token, so that those of all tokens in a row are the rendering. */
static void write_shown(struct writer *w, const struct str *text, size_t begin, size_t end) {
    const size_t from = character_start(text, begin), to = character_start(text, end);
    struct str shown = {0};
    if (to > from) (void)append_some(&shown, text, from, to);
    str_append(&w->rows, ",\"partial\":true,\"shown\":");
    chat_append_quoted(&w->rows, str_text(&shown), shown.len);
    str_release(&shown);
}

static void write_token(struct writer *w, const struct encoded *row, int64_t index) {
    const struct tokenizer *const t = w->reader->tokenizer;
    const int32_t id = row->ids.ids[index];
    const size_t begin = token_begin(row, index), end = (size_t)row->ends.ids[index];
    ASSERT(begin <= end && end <= row->text.len);
    struct str text = {0};
    bool partial = false;
    if (end > begin) {
        partial = append_some(&text, &row->text, begin, end);
    } else {
        const char *const spelling = tokenizer_token(t, id);
        if (spelling) (void)append_escaped(&text, spelling, strlen(spelling));
    }
    str_appendf(&w->rows, "{\"id\":%d,\"text\":", id);
    chat_append_quoted(&w->rows, str_text(&text), text.len);
    str_appendf(&w->rows, ",\"trained\":%s,\"special\":%s", row->trained[index] ? "true" : "false",
                is_special(t, id) ? "true" : "false");
    if (partial) write_shown(w, &row->text, begin, end);
    str_append_char(&w->rows, '}');
    str_release(&text);
}

/* The rendering from the first to the last token of the page: whole characters of it. */
static void write_text(struct writer *w, const struct encoded *row, int64_t first, int64_t last) {
    const char *const text = str_text(&row->text);
    const size_t begin = character_start(&row->text, token_begin(row, first));
    size_t end = last ? (size_t)row->ends.ids[last - 1] : 0;
    while (end < row->text.len && ((unsigned char)text[end] & 0xC0) == 0x80) {
        end++;
    }
    if (end < begin) end = begin;
    const size_t len = whole_prefix(text + begin, end - begin, TEXT_MAX);
    str_append(&w->rows, "\"text\":");
    chat_append_quoted(&w->rows, text + begin, len);
    str_appendf(&w->rows, ",\"text_cut\":%s,", len < end - begin ? "true" : "false");
}

static void write_tokens(struct writer *w, const struct encoded *row) {
    const int64_t total = (int64_t)row->ids.count, limit = w->window->limit;
    const int64_t first = w->window->offset < total ? w->window->offset : total;
    int64_t last = first;
    append_key(&w->rows, "offset", first);
    struct str rest = w->rows; /* tokens first: they say where the page ends */
    w->rows = (struct str){0};
    for (; last < total && last - first < limit && rest.len + w->rows.len < ANSWER_SOFT_MAX;
         last++) {
        if (last > first) str_append_char(&w->rows, ',');
        write_token(w, row, last);
    }
    const struct str tokens = w->rows;
    w->rows = rest;
    if (last < total) {
        append_key(&w->rows, "next_offset", last);
    } else {
        str_append(&w->rows, "\"next_offset\":null,");
    }
    write_text(w, row, first, last);
    str_append(&w->rows, "\"source\":null,\"tokens\":[");
    str_append_bytes(&w->rows, str_text(&tokens), tokens.len);
    str_append_char(&w->rows, ']');
    struct str done = tokens;
    str_release(&done);
}

/* How much of the row a run uses. */
static void write_counts(struct writer *w, const struct row_outcome *o) {
    const struct encoded *const row = o->encoded;
    const int64_t total = (int64_t)row->ids.count, max = w->reader->options.max_length;
    const bool dropped = o->problems & (1u << ROW_UNTRAINED | 1u << ROW_ANSWER_CUT);
    const int64_t kept = row->is_text || total < max ? total : max;
    int64_t trained = 0;
    for (int64_t i = 1; i < kept; i++) {
        trained += row->trained[i] != 0;
    }
    const int64_t pieces = kept < 2 || dropped ? 0 : (kept - 2) / (max - 1) + 1;
    append_key(&w->rows, "total", total);
    append_key(&w->rows, "kept", kept);
    append_key(&w->rows, "trained", trained);
    append_key(&w->rows, "samples", pieces);
}

/* A row that is wrong has no tokens: what is wrong, and how the row begins. */
static void write_invalid(struct writer *w, const struct row_outcome *o) {
    const size_t len = o->text ? whole_prefix(o->text, o->len, SOURCE_MAX) : 0;
    struct str source = {0};
    (void)append_escaped(&source, o->text ? o->text : "", len);
    if (o->text && len < o->len) str_append(&source, "\xE2\x80\xA6");
    str_append(&w->rows, "\"total\":0,\"kept\":0,\"trained\":0,\"samples\":0,\"offset\":0,"
                         "\"next_offset\":null,\"text\":\"\",\"text_cut\":false,\"source\":");
    if (o->text) {
        chat_append_quoted(&w->rows, str_text(&source), source.len);
    } else {
        str_append(&w->rows, "null");
    }
    str_append(&w->rows, ",\"tokens\":[]");
    str_release(&source);
}

static void write_problems(struct writer *w, const struct row_outcome *o) {
    cJSON *const json = cJSON_CreateObject();
    cJSON *const problems = cJSON_AddArrayToObject(json, "problems");
    for (int i = 0; i < ROW_PROBLEM_COUNT; i++) {
        if (!(o->problems & 1u << i)) continue;
        cJSON_AddItemToArray(problems, cJSON_CreateString(row_problem_name((enum row_problem)i)));
    }
    if (o->error) {
        cJSON *const error = cJSON_AddObjectToObject(json, "error");
        data_add_text(error, "field", o->error->param[0] ? o->error->param : NULL);
        data_add_text(error, "message", o->error->text);
    } else {
        cJSON_AddNullToObject(json, "error");
    }
    struct str text = {0};
    json_append(&text, json);
    cJSON_Delete(json);
    str_append_bytes(&w->rows, text.data + 1, text.len - 2); /* without the braces */
    str_append_char(&w->rows, ',');
    str_release(&text);
}

static enum status see_row(void *context, const struct row_outcome *o, struct err *e) {
    struct writer *const w = context;
    if (o->row + 1 < w->window->row_first) { /* reading could not go on as far as that */
        return err_set_param(e, STATUS_INVALID, "row",
                             "row %lld cannot be reached: the file cannot be read beyond line "
                             "%lld: %s",
                             (long long)w->window->row_first, (long long)o->line,
                             o->error ? o->error->text : "");
    }
    if (w->format == FORMAT_AUTO) w->format = o->format;
    str_append(&w->rows, w->written++ ? ",{" : "{");
    append_key(&w->rows, "row", o->row + 1);
    append_key(&w->rows, "line", o->line);
    append_key(&w->rows, "part", o->part + 1);
    append_key(&w->rows, "parts", o->parts);
    write_problems(w, o);
    if (o->encoded) {
        write_counts(w, o);
        write_tokens(w, o->encoded);
    } else {
        write_invalid(w, o);
    }
    str_append_char(&w->rows, '}');
    return STATUS_OK;
}

static void write_answer(const struct writer *w) {
    const bool known = w->format != FORMAT_AUTO;
    str_appendf(w->out, "{\"format\":%s%s%s,\"mask\":\"%s\",\"max_length\":%lld,\"rows\":[",
                known ? "\"" : "", known ? data_format_name(w->format) : "null", known ? "\"" : "",
                w->reader->spec.data.mask, (long long)w->reader->options.max_length);
    str_append_bytes(w->out, str_text(&w->rows), w->rows.len);
    str_append(w->out, "]}");
}

enum status data_rows(const struct data_reader *reader, const struct data_window *window,
                      struct str *out, struct err *e) {
    ASSERT(window->row_first >= 1 && window->row_count >= 1 && window->limit >= 1);
    struct writer w = {.reader = reader, .window = window, .out = out, .format = FORMAT_AUTO};
    const struct dataset_visitor visitor = {.context = &w,
                                            .row = see_row,
                                            .go_on = true,
                                            .rows_first = window->row_first - 1,
                                            .rows_max = window->row_count};
    struct dataset_options options = reader->options;
    options.keep_text = true;
    const struct spec_strings *const files = &reader->spec.data.train_files;
    enum status status = dataset_each(files->items, files->count, &options, &visitor, e);
    if (status == STATUS_OK && w.written == 0) {
        status = err_set_param(e, STATUS_NOT_FOUND, "row", "the file has no row %lld",
                               (long long)window->row_first);
    }
    if (status == STATUS_OK) write_answer(&w);
    str_release(&w.rows);
    return status;
}
