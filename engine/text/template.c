/* template.c - the chat template's front door: parsing, what a rendering is given, and finding the
 * template of a model folder. A template may carry a second program, `tool_use`, for renderings
 * with tools. */
#include "engine/text/template.h"

#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/text/jinja_json.h"
#include "engine/text/jinja_parse.h"
#include "engine/text/jinja_render.h"

struct chat_template {
    char *what, *source;
    struct program program;
    struct chat_template *tool_use; /* or NULL */
};

enum status chat_template_parse(struct chat_template **out, const char *source, size_t len,
                                const char *what, struct err *e) {
    *out = NULL;
    FAIL_IF(len > TEMPLATE_SOURCE_MAX, STATUS_INVALID,
            "%s: the template has %zu bytes, at most %d are allowed", what, len,
            TEMPLATE_SOURCE_MAX);
    struct chat_template *t = mem_new(1, sizeof *t);
    t->what = mem_strdup(what);
    t->source = mem_strndup(source, len);
    struct err why = {0};
    const enum status status = program_parse(&t->program, source, len, &why);
    if (status != STATUS_OK) {
        chat_template_free(t);
        return err_set(e, status, "%s: %s", what, why.text);
    }
    *out = t;
    return STATUS_OK;
}

void chat_template_free(struct chat_template *t) {
    if (!t) return;
    chat_template_free(t->tool_use);
    program_release(&t->program);
    mem_free(t->source);
    mem_free(t->what);
    mem_free(t);
}

const char *chat_template_source(const struct chat_template *t) {
    return t->source;
}

bool chat_template_has_generation(const struct chat_template *t) {
    return t->program.has_generation;
}

void template_spans_release(struct template_spans *spans) {
    if (!spans) return;
    mem_free(spans->items);
    *spans = (struct template_spans){0};
}

/* ---- the template of a folder ---- */

static enum status open_file(struct chat_template **out, const char *path, struct err *e) {
    struct str source = {0};
    enum status status = file_read(path, TEMPLATE_SOURCE_MAX, &source, e);
    if (status == STATUS_OK)
        status = chat_template_parse(out, str_text(&source), source.len, path, e);
    str_release(&source);
    return status;
}

/* chat_template.jinja and, beside it, additional_chat_templates/tool_use.jinja. */
static enum status open_files(struct chat_template **out, const char *folder, const char *path,
                              struct err *e) {
    TRY(open_file(out, path, e));
    char *const tools = file_join(folder, "additional_chat_templates/tool_use.jinja");
    const enum status status =
        file_exists(tools) ? open_file(&(*out)->tool_use, tools, e) : STATUS_OK;
    mem_free(tools);
    return status;
}

/* The entry of the list with this name, or NULL. */
static const char *named_template(const cJSON *list, const char *name) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, list) {
        const cJSON *const key = json_member(item, "name");
        const cJSON *const text = json_member(item, "template");
        if (cJSON_IsString(key) && cJSON_IsString(text) && str_equal(key->valuestring, name))
            return text->valuestring;
    }
    return NULL;
}

static enum status open_config(struct chat_template **out, const char *path, struct err *e) {
    enum { CONFIG_MAX = 64 << 20 };
    cJSON *config = NULL;
    TRY(json_read_file(path, CONFIG_MAX, &config, e));
    enum status status = STATUS_OK;
    const cJSON *const item = json_member(config, "chat_template");
    const bool is_list = cJSON_IsArray(item);
    GUARD_IF(!item || cJSON_IsNull(item), STATUS_NOT_FOUND, "%s: it has no chat_template", path);
    GUARD_IF(!is_list && !cJSON_IsString(item), STATUS_INVALID,
             "%s: chat_template is neither text nor a list", path);
    const char *const source = is_list ? named_template(item, "default") : item->valuestring;
    const char *const tools = is_list ? named_template(item, "tool_use") : NULL;
    GUARD_IF(!source, STATUS_INVALID,
             "%s: chat_template is a list without an entry named \"default\"", path);
    GUARD(chat_template_parse(out, source, strlen(source), path, e));
    if (tools) GUARD(chat_template_parse(&(*out)->tool_use, tools, strlen(tools), path, e));
done:
    cJSON_Delete(config);
    return status;
}

enum status chat_template_open(struct chat_template **out, const char *folder, struct err *e) {
    *out = NULL;
    char *const jinja = file_join(folder, "chat_template.jinja");
    char *const config = file_join(folder, "tokenizer_config.json");
    enum status status;
    if (file_exists(jinja)) {
        status = open_files(out, folder, jinja, e);
    } else if (file_exists(config)) {
        status = open_config(out, config, e);
    } else {
        status =
            err_set(e, STATUS_NOT_FOUND,
                    "%s: there is no chat_template.jinja and no tokenizer_config.json", folder);
    }
    if (status != STATUS_OK) {
        chat_template_free(*out);
        *out = NULL;
    }
    mem_free(config);
    mem_free(jinja);
    return status;
}

/* ---- rendering ---- */

/* Sets a global, if the template mentions the name at all. */
static void set_global(struct render *r, const struct text *name, struct value value) {
    for (int32_t i = 0; i < r->program->name_count; i++) {
        const struct text *const known = r->program->names[i];
        if (known->len != name->len || memcmp(known->data, name->data, name->len)) continue;
        scope_set(r, r->globals, i, value);
        return;
    }
}

static void set_named(struct render *r, const char *name, struct value value) {
    set_global(r, value_string(&r->region, name, strlen(name)).as.text, value);
}

static enum status set_inputs(struct render *r, const struct template_inputs *inputs) {
    struct value messages, tools = value_none(), variables;
    TRY(jinja_json_read(&r->region, inputs->messages_json, strlen(inputs->messages_json),
                        "messages", &messages, r->e));
    if (inputs->tools_json) {
        TRY(jinja_json_read(&r->region, inputs->tools_json, strlen(inputs->tools_json), "tools",
                            &tools, r->e));
    }
    set_named(r, "messages", messages);
    set_named(r, "tools", tools);
    set_named(r, "documents", value_none());
    set_named(r, "add_generation_prompt", value_bool(inputs->add_generation_prompt));
    if (!inputs->variables_json) return STATUS_OK;
    TRY(jinja_json_read(&r->region, inputs->variables_json, strlen(inputs->variables_json),
                        "template variables", &variables, r->e));
    if (variables.kind != VALUE_DICT) {
        return err_set(r->e, STATUS_INVALID, "template variables: they must be a JSON object");
    }
    for (size_t i = 0; i < variables.as.dict->count; i++) {
        const struct dict_entry *const entry = &variables.as.dict->entries[i];
        set_global(r, entry->key.as.text, entry->value);
    }
    return STATUS_OK;
}

enum status chat_template_render_spans(const struct chat_template *t,
                                       const struct template_inputs *inputs, struct str *out,
                                       struct template_spans *spans, struct err *e) {
    const struct chat_template *const used = inputs->tools_json && t->tool_use ? t->tool_use : t;
    const size_t span_count = spans ? spans->count : 0;
    struct str text = {0};
    struct err why = {0};
    struct render r = {.program = &used->program,
                       .what = used->what,
                       .out = &text,
                       .top = &text,
                       .spans = spans,
                       .now_unix_s = inputs->now_unix_s,
                       .e = &why};
    r.region.bytes_max = TEMPLATE_MEMORY_MAX;
    r.globals = scope_new(&r, NULL);
    enum status status = set_inputs(&r, inputs);
    if (status == STATUS_OK) status = exec_body(&r, scope_new(&r, r.globals), &used->program.body);
    if (status == STATUS_OK) {
        str_append_bytes(out, str_text(&text), text.len);
    } else if (spans) {
        spans->count = span_count;
    }
    str_release(&text);
    region_release(&r.region);
    return status == STATUS_OK ? STATUS_OK : err_set(e, status, "%s", why.text);
}

enum status chat_template_render(const struct chat_template *t,
                                 const struct template_inputs *inputs, struct str *out,
                                 struct err *e) {
    return chat_template_render_spans(t, inputs, out, NULL, e);
}
