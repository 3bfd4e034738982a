/* template.h - the model's chat template: a sandboxed interpreter of the Jinja subset that chat
 * templates use, set up as Hugging Face sets it up (trim_blocks, lstrip_blocks, Python-like
 * printing, tojson without HTML escaping).
 *
 * Bounded: a template may not run more than TEMPLATE_STEPS_MAX steps, nest deeper than
 * TEMPLATE_DEPTH_MAX or print more than TEMPLATE_OUTPUT_MAX bytes. */
#ifndef PLIMSOLL_ENGINE_TEXT_TEMPLATE_H
#define PLIMSOLL_ENGINE_TEXT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

enum {
    TEMPLATE_STEPS_MAX = 20 * 1000 * 1000,
    TEMPLATE_DEPTH_MAX = 200, /* calls of macros inside each other, nested tags, nested JSON */
    TEMPLATE_OUTPUT_MAX = 64 << 20,  /* bytes */
    TEMPLATE_MEMORY_MAX = 512 << 20, /* bytes of values made during one rendering */
    TEMPLATE_SOURCE_MAX = 4 << 20,   /* bytes of template source */
};

struct chat_template; /* parsed; immutable, may be rendered from several threads */

/* Parses template source. Errors carry line and column of the template. Caller frees with
 * chat_template_free. */
enum status chat_template_parse(struct chat_template **out, const char *source, size_t len,
                                const char *what, struct err *e);
/* The template of a model folder: chat_template.jinja, else tokenizer_config.json's chat_template
 * (string, or the list entry named `default`). If there is also one named `tool_use` (in the list,
 * or, beside chat_template.jinja, in additional_chat_templates/tool_use.jinja), the result holds
 * both and a rendering with tools uses that one. STATUS_NOT_FOUND if the folder has none. */
enum status chat_template_open(struct chat_template **out, const char *folder, struct err *e);
void chat_template_free(struct chat_template *t);
/* The source text it was parsed from (of `default`). Points into the template. */
const char *chat_template_source(const struct chat_template *t);
/* Whether the template marks what the model says with generation blocks. */
bool chat_template_has_generation(const struct chat_template *t);

/* What a rendering is given. JSON values are texts, kept exact (big integers, 1 and 1.0 apart). */
struct template_inputs {
    const char *messages_json; /* array of message objects */
    const char *tools_json;    /* array, or NULL: None */
    const char
        *variables_json; /* object of further variables (bos_token, enable_thinking...), or NULL */
    bool add_generation_prompt;
    int64_t now_unix_s; /* what strftime_now sees; fixed when a job is created */
};

/* Appends the rendering to `out`. A raise_exception of the template is STATUS_INVALID with its
 * message. */
enum status chat_template_render(const struct chat_template *t,
                                 const struct template_inputs *inputs, struct str *out,
                                 struct err *e);

/* The parts of a rendering that came from generation blocks, in order. Zeroed means empty. */
struct template_span {
    size_t begin, end; /* bytes of the rendering, counted from where it was appended */
};
struct template_spans {
    struct template_span *items;
    size_t count, capacity;
    size_t unplaced; /* generation blocks inside a macro, block set or filter block: printed, but
                        not placed */
};
void template_spans_release(struct template_spans *spans);

/* As chat_template_render, and appends the spans. */
enum status chat_template_render_spans(const struct chat_template *t,
                                       const struct template_inputs *inputs, struct str *out,
                                       struct template_spans *spans, struct err *e);

#endif
