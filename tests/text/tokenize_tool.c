/* tokenize_tool.c - the tokenizer as a filter, for tests that compare it with other tokenizers.
 *
 * tokenize_tool FOLDER: reads JSON lines {"text": ..., "special": bool, "post": bool} and writes
 * for each
 * {"ids": [...], "ends": [...], "decoded": ..., "streamed": ...}. tokenize_tool FOLDER --speed
 * FILE: encodes the file and prints one JSON object with bytes, tokens and seconds. "error" stands
 * in place of the ids when a text is refused. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/text/tokenizer.h"

enum { LINE_MAX_BYTES = 64 << 20 };

static cJSON *number_list(const struct token_list *list) {
    return list->count ? cJSON_CreateIntArray(list->ids, (int)list->count) : cJSON_CreateArray();
}

static enum status decode_both(const struct tokenizer *t, const struct token_list *ids, cJSON *out,
                               struct err *e) {
    struct str text = {0}, streamed = {0};
    struct token_stream *stream = NULL;
    enum status status = STATUS_OK;
    GUARD(tokenizer_decode(t, ids->ids, ids->count, false, &text, e));
    GUARD(token_stream_new(&stream, t, false, e));
    for (size_t i = 0; i < ids->count; i++) {
        GUARD(token_stream_push(stream, ids->ids[i], &streamed, e));
        GUARD_IF(utf8_valid_prefix(str_text(&streamed), streamed.len) != streamed.len,
                 STATUS_INTERNAL, "the stream split a character");
    }
    GUARD(token_stream_finish(stream, &streamed, e));
    json_add_string(out, "decoded", str_text(&text));
    json_add_string(out, "streamed", str_text(&streamed));
done:
    token_stream_free(stream);
    str_release(&text);
    str_release(&streamed);
    return status;
}

static enum status answer(const struct tokenizer *t, const cJSON *line, cJSON *out, struct err *e) {
    const char *text = NULL;
    bool special = true, post = false;
    struct token_list ids = {0}, same = {0}, ends = {0};
    enum status status = STATUS_OK;
    GUARD(json_get_string(line, "text", &text, e));
    GUARD_IF(!text, STATUS_INVALID, "text: is missing");
    GUARD(json_get_bool(line, "special", &special, e));
    GUARD(json_get_bool(line, "post", &post, e));
    const enum special_mode mode = special ? SPECIAL_PARSE : SPECIAL_TEXT;
    GUARD(tokenizer_encode(t, text, strlen(text), mode, post, &ids, e));
    GUARD(tokenizer_encode_offsets(t, text, strlen(text), mode, &same, &ends, e));
    cJSON_AddItemToObject(out, "ids", number_list(&ids));
    cJSON_AddItemToObject(out, "ends", number_list(&ends));
    GUARD(decode_both(t, &ids, out, e));
done:
    token_list_release(&ids);
    token_list_release(&same);
    token_list_release(&ends);
    return status;
}

static enum status filter(const struct tokenizer *t, struct err *e) {
    struct str line = {0}, reply = {0};
    enum status status = STATUS_OK;
    for (int c = getchar(); status == STATUS_OK && c != EOF; c = getchar()) {
        if (c != '\n') {
            str_append_char(&line, (char)c);
            GUARD_IF(line.len > LINE_MAX_BYTES, STATUS_INVALID, "a line is too long");
            continue;
        }
        cJSON *request = NULL;
        GUARD(json_parse(str_text(&line), line.len, "stdin", &request, e));
        cJSON *const out = cJSON_CreateObject();
        struct err refused = {0};
        if (answer(t, request, out, &refused) != STATUS_OK)
            json_add_string(out, "error", refused.text);
        json_append(&reply, out);
        cJSON_Delete(out);
        cJSON_Delete(request);
        str_append_char(&reply, '\n');
        fwrite(reply.data, 1, reply.len, stdout);
        str_clear(&reply);
        str_clear(&line);
    }
done:
    str_release(&line);
    str_release(&reply);
    return status;
}

static enum status speed(const struct tokenizer *t, const char *path, double open_seconds,
                         struct err *e) {
    struct str text = {0};
    struct token_list ids = {0};
    enum status status = STATUS_OK;
    GUARD(file_read(path, (size_t)1 << 30, &text, e));
    /* Processor time: it is one thread, and other work on the machine is none of its speed. */
    const clock_t start = clock();
    GUARD(tokenizer_encode(t, str_text(&text), text.len, SPECIAL_TEXT, false, &ids, e));
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    printf("{\"bytes\":%zu,\"tokens\":%zu,\"seconds\":%.4f,\"mb_per_second\":%.2f,\"open_seconds\":"
           "%.4f}\n",
           text.len, ids.count, seconds, (double)text.len / 1e6 / seconds, open_seconds);
done:
    str_release(&text);
    token_list_release(&ids);
    return status;
}

int main(int argc, char **argv) {
    struct err e = {0};
    struct tokenizer *t = NULL;
    const bool timed = argc == 4 && strcmp(argv[2], "--speed") == 0;
    if (argc != 2 && !timed) {
        fprintf(stderr, "usage: tokenize_tool FOLDER [--speed FILE]\n");
        return 2;
    }
    const clock_t start = clock();
    enum status status = tokenizer_open(&t, argv[1], &e);
    const double open_seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    if (status == STATUS_OK) fprintf(stderr, "%s", tokenizer_notes(t));
    if (status == STATUS_OK) status = timed ? speed(t, argv[3], open_seconds, &e) : filter(t, &e);
    tokenizer_free(t);
    if (status != STATUS_OK) fprintf(stderr, "%s: %s\n", status_name(status), e.text);
    return status == STATUS_OK ? 0 : 1;
}
