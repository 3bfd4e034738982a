/* render_tool.c - the chat template interpreter as a filter of JSON lines, for comparing it with
 * other implementations.
 *
 * In:  {"template": text, or "folder": path, "messages": JSON text, "tools": JSON text or absent,
 * "variables": JSON text or absent, "add_generation_prompt": boolean, "now": Unix seconds} Out:
 * {"output": text, "spans": [[begin, end]...]} or {"error": text, "status": name} The inputs are
 * JSON inside of JSON so that numbers reach the interpreter as they were written. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/text/template.h"

static const char *member_text(const cJSON *request, const char *key) {
    const cJSON *const item = json_member(request, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static enum status open_template(const cJSON *request, struct chat_template **t, struct err *e) {
    const char *const source = member_text(request, "template");
    if (source) return chat_template_parse(t, source, strlen(source), "template", e);
    const char *const folder = member_text(request, "folder");
    return chat_template_open(t, folder ? folder : "", e);
}

static void answer(const cJSON *request) {
    struct err e = {0};
    struct str text = {0}, line = {0};
    struct template_spans spans = {0};
    struct chat_template *t = NULL;
    int64_t now = 0;
    const char *const messages = member_text(request, "messages");
    struct template_inputs inputs = {
        .messages_json = messages ? messages : "[]",
        .tools_json = member_text(request, "tools"),
        .variables_json = member_text(request, "variables"),
        .add_generation_prompt = cJSON_IsTrue(json_member(request, "add_generation_prompt")),
    };
    enum status status = json_get_i64(request, "now", &now, &e);
    inputs.now_unix_s = now;
    if (status == STATUS_OK) status = open_template(request, &t, &e);
    if (status == STATUS_OK) status = chat_template_render_spans(t, &inputs, &text, &spans, &e);
    cJSON *const out = cJSON_CreateObject();
    if (status == STATUS_OK) {
        json_add_string(out, "output", str_text(&text));
        cJSON *const list = cJSON_AddArrayToObject(out, "spans");
        for (size_t i = 0; i < spans.count; i++) {
            const int pair[] = {(int)spans.items[i].begin, (int)spans.items[i].end};
            cJSON_AddItemToArray(list, cJSON_CreateIntArray(pair, 2));
        }
    } else {
        json_add_string(out, "error", e.text);
        json_add_string(out, "status", status_name(status));
    }
    json_append(&line, out);
    puts(str_text(&line));
    cJSON_Delete(out);
    str_release(&line);
    str_release(&text);
    template_spans_release(&spans);
    chat_template_free(t);
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t len;
    while ((len = getline(&line, &capacity, stdin)) > 0) {
        struct err e = {0};
        cJSON *request = NULL;
        if (json_parse(line, (size_t)len, "request", &request, &e) != STATUS_OK) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        answer(request);
        cJSON_Delete(request);
        fflush(stdout);
    }
    free(line);
    return 0;
}
