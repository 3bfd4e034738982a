/* template.h - the model's chat template: a sandboxed interpreter of the Jinja subset that chat templates use, set up as
 * Hugging Face sets it up (trim_blocks, lstrip_blocks, Python-like printing, tojson without HTML escaping).
 *
 * Bounded: a template may not run more than TEMPLATE_STEPS_MAX steps, nest deeper than TEMPLATE_DEPTH_MAX or print more
 * than TEMPLATE_OUTPUT_MAX bytes. */
#ifndef PLIMSOLL_ENGINE_TEXT_TEMPLATE_H
#define PLIMSOLL_ENGINE_TEXT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

enum { TEMPLATE_STEPS_MAX = 20 * 1000 * 1000, TEMPLATE_DEPTH_MAX = 200, TEMPLATE_OUTPUT_MAX = 64 << 20 };

struct chat_template; /* parsed; immutable, may be rendered from several threads */

/* Parses template source. Errors carry line and column of the template. Caller frees with chat_template_free. */
enum status chat_template_parse(struct chat_template **out, const char *source, size_t len, const char *what,
                                struct err *e);
/* The template of a model folder: chat_template.jinja, else tokenizer_config.json's chat_template (string, or the list
 * entry named `default`). STATUS_NOT_FOUND if the folder has none. */
enum status chat_template_open(struct chat_template **out, const char *folder, struct err *e);
void chat_template_free(struct chat_template *t);
/* The source text it was parsed from. Points into the template. */
const char *chat_template_source(const struct chat_template *t);

/* What a rendering is given. JSON values are texts, kept exact (big integers, 1 and 1.0 apart). */
struct template_inputs {
    const char *messages_json;    /* array of message objects */
    const char *tools_json;       /* array, or NULL: None */
    const char *variables_json;   /* object of further variables (bos_token, enable_thinking...), or NULL */
    bool add_generation_prompt;
    int64_t now_unix_s;           /* what strftime_now sees; fixed when a job is created */
};

/* Appends the rendering to `out`. A raise_exception of the template is STATUS_INVALID with its message. */
enum status chat_template_render(const struct chat_template *t, const struct template_inputs *inputs, struct str *out,
                                 struct err *e);

#endif
