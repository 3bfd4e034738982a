/* support_tokens.h - samples as text that a test can state: trained
 * tokens in [[ ]], special ids with ^ in front. Header only, because
 * helpers that are linked into every test may use base alone. */
#ifndef PLIMSOLL_TESTS_UNIT_SUPPORT_TOKENS_H
#define PLIMSOLL_TESTS_UNIT_SUPPORT_TOKENS_H

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/text/dataset.h"
#include "engine/text/template.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/support_scratch.h"

/* What a test loads with. Zeroed fields have sensible values. */
struct token_case {
    const char *folder; /* of the tokenizer, below tests/unit/data/dataset */
    const char *chat;   /* template source, or NULL: none */
    const char *rows;   /* the file */
    enum data_mask mask;
    enum data_format format;
    int64_t max_length, vocab;
    bool parse_special, drop_messages, split_turns, merge_turns, fold_system;
    bool replace_invalid_utf8;
};

/* Loads the case; the dataset is the caller's to release. */
static inline enum status token_case_load(const struct token_case *c, struct dataset *d,
                                          struct err *e) {
    char *const folder = scratch_new();
    char *const path = scratch_write(folder, "rows.jsonl", c->rows, strlen(c->rows));
    char *const model = str_format("tests/unit/data/dataset/%s", c->folder);
    struct tokenizer *tokenizer = NULL;
    struct chat_template *chat = NULL;
    ASSERT(tokenizer_open(&tokenizer, model, e) == STATUS_OK);
    if (c->chat)
        ASSERT(chat_template_parse(&chat, c->chat, strlen(c->chat), "template", e) == STATUS_OK);
    const struct dataset_options options = {
        .format = c->format,
        .mask = c->mask,
        .max_length = c->max_length ? c->max_length : 1000,
        .tokenizer = tokenizer,
        .chat_template = chat,
        .vocab = c->vocab ? c->vocab : 1000,
        .parse_special = c->parse_special,
        .drop_messages = c->drop_messages,
        .split_turns = c->split_turns,
        .merge_turns = c->merge_turns,
        .fold_system = c->fold_system,
        .replace_invalid_utf8 = c->replace_invalid_utf8,
    };
    const enum status status = dataset_load(d, &(char *){path}, 1, &options, NULL, e);
    chat_template_free(chat);
    tokenizer_free(tokenizer);
    mem_free(model);
    mem_free(path);
    scratch_free(folder);
    return status;
}

/* Appends the sample, "word[[trained^<special>]]". */
static inline void token_case_show(const char *folder, const struct sample *s, struct str *out) {
    char *const model = str_format("tests/unit/data/dataset/%s", folder);
    struct tokenizer *tokenizer = NULL;
    struct err e = {0};
    ASSERT(tokenizer_open(&tokenizer, model, &e) == STATUS_OK);
    for (int64_t i = 0; i < s->count; i++) {
        const bool before = i > 0 && s->trained[i - 1],
                   after = i + 1 < s->count && s->trained[i + 1];
        const char *const spelling = tokenizer_token(tokenizer, s->ids[i]);
        if (s->trained[i] && !before) str_append(out, "[[");
        if (spelling && tokenizer_count_special(tokenizer, spelling, strlen(spelling)))
            str_append_char(out, '^');
        ASSERT(tokenizer_decode(tokenizer, s->ids + i, 1, false, out, &e) == STATUS_OK);
        if (s->trained[i] && !after) str_append(out, "]]");
    }
    tokenizer_free(tokenizer);
    mem_free(model);
}

/* The samples of the case, each shown, with | between; or the error's text with ! in front. */
static inline char *token_case_run(const struct token_case *c, struct dataset_counts *counts) {
    struct dataset d = {0};
    struct err e = {0};
    struct str out = {0};
    if (token_case_load(c, &d, &e) != STATUS_OK) {
        const char *const text = strstr(e.text, "rows.jsonl");
        str_appendf(&out, "!%s", text ? text : e.text);
    }
    const int64_t shown = out.len ? 0 : d.counts.samples;
    for (int64_t i = 0; i < shown; i++) {
        const struct sample s = dataset_sample(&d, i);
        if (i) str_append_char(&out, '|');
        token_case_show(c->folder, &s, &out);
    }
    if (counts) *counts = d.counts;
    dataset_release(&d);
    return str_take(&out);
}

static inline void token_case_expect(const struct token_case *c, const char *expected) {
    char *const shown = token_case_run(c, NULL);
    if (!str_equal(shown, expected)) fail_msg("\ngot      %s\nexpected %s", shown, expected);
    mem_free(shown);
}

/* An error with this text, which never shows what stands in the rows. */
static inline void token_case_expect_refused(const struct token_case *c, const char *text) {
    char *const shown = token_case_run(c, NULL);
    if (shown[0] != '!' || !strstr(shown, text))
        fail_msg("\ngot %s\nexpected an error with %s", shown, text);
    assert_null(strstr(shown, "secret"));
    mem_free(shown);
}

#endif
