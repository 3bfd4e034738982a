/* fuzz_template.c - any bytes as a chat template, rendered over a fixed conversation: it must end,
 * within its limits, in a rendering or in an error with a text. A NUL byte in the input separates
 * the template from messages of its own.
 *
 * rooms: engine_text engine_io base */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/template.h"

static const char MESSAGES[] = "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\","
                               "\"content\":\"\\u00e9 <x>\",\"n\":[1,1.0,1e30,null]},"
                               "{\"role\":\"assistant\",\"content\":\"<think>\\nr\\n</"
                               "think>\\n\\na\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
                               "\"arguments\":{\"city\":\"K\"}}}]}]";
static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]";

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    const char *const text = (const char *)data;
    const char *const split = memchr(text, 0, size);
    const size_t len = split ? (size_t)(split - text) : size;
    char *const messages = split ? mem_strndup(split + 1, size - len - 1) : mem_strdup(MESSAGES);
    struct chat_template *t = NULL;
    struct err e = {0};
    struct str out = {0};
    struct template_spans spans = {0};
    if (chat_template_parse(&t, text, len, "template", &e) == STATUS_OK) {
        const struct template_inputs inputs = {.messages_json = messages,
                                               .tools_json = TOOLS,
                                               .variables_json =
                                                   "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}",
                                               .add_generation_prompt = true,
                                               .now_unix_s = 1750000000};
        if (chat_template_render_spans(t, &inputs, &out, &spans, &e) == STATUS_OK) {
            if (out.len > TEMPLATE_OUTPUT_MAX ||
                utf8_valid_prefix(str_text(&out), out.len) < out.len)
                abort();
            for (size_t i = 0; i < spans.count; i++) {
                if (spans.items[i].begin > spans.items[i].end || spans.items[i].end > out.len)
                    abort();
            }
        } else if (!e.text[0]) {
            abort();
        }
    } else if (!e.text[0]) {
        abort();
    }
    chat_template_free(t);
    template_spans_release(&spans);
    str_release(&out);
    mem_free(messages);
    return 0;
}
