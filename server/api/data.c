/* data.c - what a file becomes as tokens under a model: /v1/files/{id}/report and .../preview.
 *
 * The engine answers both, in a process of its own with a deadline: it has the tokenizer, and a
 * hostile row can only hurt that process. A report reads the whole file, so it is kept until the
 * file, the model's text files, the engine or the options change. What the engine prints is passed
 * on as it is: rows may hold what a JSON library would bend (NUL characters, big numbers). */
#include "server/api/api.h"

#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "server/run/process.h"

enum {
    REPORT_SECONDS_MAX = 480,
    REPORT_LIMIT_MS = 500000, /* the official client waits ten minutes */
    PREVIEW_LIMIT_MS = 120000,
    PLACE_LIMIT_MS = 60000, /* for a place at the gate */
    PLACE_LOOK_MS = 200,
    ANSWER_BYTES_MAX = 16 << 20,
    ARGUMENTS_MAX = 64,
    BUSY_CODE = 503
};

/* Of a file that takes longer the part is reported that was read by then. */
static const char REPORT_SECONDS_PRESET[] = "60";

/* What may stand in the query, and the engine's word for it. */
enum use { BOTH, REPORT, PREVIEW };
struct option_name {
    const char *query, *engine;
    enum use use;
};
static const struct option_name OPTIONS[] = {
    {"format", "--data.format", BOTH},
    {"mask", "--data.mask", BOTH},
    {"max_length", "--data.max_length", BOTH},
    {"parse_special", "--data.parse_special", BOTH},
    {"split_turns", "--data.split_turns", BOTH},
    {"merge_turns", "--data.merge_turns", BOTH},
    {"fold_system", "--data.fold_system", BOTH},
    {"fix_mistral_regex", "--data.fix_mistral_regex", BOTH},
    {"invalid_utf8", "--data.invalid_utf8", BOTH},
    {"max_rows_untrained", "--data.max_rows_untrained", BOTH},
    {"max_rows_answer_cut", "--data.max_rows_answer_cut", BOTH},
    {"max_rows_dropped_message", "--data.max_rows_dropped_message", BOTH},
    {"packing", "--data.packing", BOTH},
    {"per_device_train_batch_size", "--per_device_train_batch_size", BOTH},
    {"gradient_accumulation_steps", "--gradient_accumulation_steps", BOTH},
    {"seed", "--seed", BOTH},
    {"seconds", "--seconds", REPORT},
    {"row", "--row", PREVIEW},
    {"rows", "--rows", PREVIEW},
    {"offset", "--offset", PREVIEW},
    {"limit", "--limit", PREVIEW},
};

/* One question to the engine. `argv` ends with NULL; its entries are borrowed. */
struct question {
    const struct app *app;
    const struct http_request *request;
    bool preview;
    char *model; /* as the client names it */
    struct model_ref ref;
    struct file_row file;
    const char *argv[ARGUMENTS_MAX];
    int argc;
};

static void question_release(struct question *q) {
    mem_free(q->model);
    model_ref_release(&q->ref);
    file_row_release(&q->file);
}

static void add(struct question *q, const char *name, const char *value) {
    ASSERT(q->argc + 3 < ARGUMENTS_MAX);
    q->argv[q->argc++] = name;
    if (value) q->argv[q->argc++] = value;
}

static bool is_for(const struct option_name *option, bool preview) {
    return option->use == BOTH || option->use == (preview ? PREVIEW : REPORT);
}

static const struct option_name *find_option(const char *key, bool preview) {
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        if (strcmp(OPTIONS[i].query, key) != 0) continue;
        return is_for(&OPTIONS[i], preview) ? &OPTIONS[i] : NULL;
    }
    return NULL;
}

static enum status unknown_option(const char *key, bool preview, struct err *e) {
    const char *nearest = "model";
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        if (!is_for(&OPTIONS[i], preview)) continue;
        if (str_distance(key, OPTIONS[i].query) < str_distance(key, nearest)) {
            nearest = OPTIONS[i].query;
        }
    }
    return err_set_param(e, STATUS_INVALID, key, "%.80s is not known; did you mean %s?", key,
                         nearest);
}

static enum status read_options(struct question *q, const struct http_request *r, struct err *e) {
    for (int i = 0; i < r->query_count; i++) {
        const char *const key = r->query[i].key;
        if (strcmp(key, "model") == 0) continue;
        const struct option_name *const option = find_option(key, q->preview);
        if (!option) return unknown_option(key, q->preview, e);
        if (http_query(r, key) != r->query[i].value) {
            return err_set_param(e, STATUS_INVALID, key, "%s is given twice", key);
        }
        add(q, option->engine, r->query[i].value);
    }
    return STATUS_OK;
}

/* Model and file, and the arguments that name them and the options. */
static enum status question_of(struct question *q, const struct http_request *r, struct err *e) {
    TRY(store_file_get(q->app->store, r->parameters[0], &q->file, e));
    const char *const model = http_query(r, "model");
    if (model) {
        q->model = mem_strdup(model);
    } else {
        TRY(model_only(q->app, &q->model, e));
    }
    TRY(model_find(q->app, q->model, &q->ref, e));
    add(q, q->app->engine, "data");
    add(q, "--model", q->ref.folder);
    add(q, "--file", q->file.path);
    TRY(read_options(q, r, e));
    int64_t seconds = REPORT_SECONDS_MAX;
    const struct http_bounds bounds = {1, REPORT_SECONDS_MAX};
    TRY(http_query_i64(r, "seconds", bounds, &seconds, e));
    if (!q->preview && !http_query(r, "seconds")) add(q, "--seconds", REPORT_SECONDS_PRESET);
    if (q->preview && !http_query(r, "row") && !http_query(r, "rows")) add(q, "--row", "1");
    q->argv[q->argc] = NULL;
    return STATUS_OK;
}

/* The engine names keys of the run spec; the client wrote names of the query. */
static const char *public_name(const char *param) {
    for (size_t i = 0; i < COUNT_OF(OPTIONS); i++) {
        if (strcmp(OPTIONS[i].engine + 2, param) == 0) return OPTIONS[i].query;
    }
    return param;
}

/* What the engine says instead of an answer. */
static enum status engine_error(const struct process_output *output, struct err *e) {
    cJSON *answer = NULL;
    const char *name = NULL, *message = NULL, *param = NULL;
    struct err ignored = {0};
    (void)json_parse(str_text(&output->out), output->out.len, "answer", &answer, &ignored);
    const cJSON *const error = json_member(answer, "error");
    (void)json_get_string(error, "status", &name, &ignored);
    (void)json_get_string(error, "message", &message, &ignored);
    (void)json_get_string(error, "param", &param, &ignored);
    enum status status = name ? status_from_name(name) : STATUS_COUNT;
    if (status == STATUS_COUNT || status == STATUS_OK) status = STATUS_INTERNAL;
    if (message) {
        (void)err_set_param(e, status, param ? public_name(param) : "", "%s", message);
    } else {
        (void)err_set(e, status, "reading the file as tokens failed (exit code %d): %s",
                      output->exit_code, str_text(&output->err));
    }
    cJSON_Delete(answer);
    return status;
}

/* Appends what the engine answers: the text of one JSON object. */
static enum status ask_now(const struct question *q, struct str *answer, struct err *e) {
    struct process_output output = {0};
    enum status status = STATUS_OK;
    const struct process_question question = {
        .argv = q->argv,
        .bytes_max = ANSWER_BYTES_MAX,
        .limit_ms = q->preview ? PREVIEW_LIMIT_MS : REPORT_LIMIT_MS,
        .gone = http_client_gone,
        .context = q->request,
    };
    GUARD(process_capture(&question, &output, e));
    if (output.exit_code != 0) {
        status = engine_error(&output, e);
        goto done;
    }
    GUARD_IF(output.out.len < 2 || output.out.data[0] != '{', STATUS_INTERNAL,
             "the engine's answer is no JSON object");
    str_append_bytes(answer, output.out.data, output.out.len);
done:
    process_output_release(&output);
    return status;
}

/* Waits for a place as long as somebody waits for the answer. */
static enum status take_place(const struct question *q, struct gate *gate, struct err *e) {
    for (int64_t waited_ms = 0;; waited_ms += PLACE_LOOK_MS) {
        err_clear(e);
        if (gate_enter(gate, PLACE_LOOK_MS, e) == STATUS_OK) return STATUS_OK;
        if (waited_ms >= PLACE_LIMIT_MS || http_client_gone(q->request)) return e->status;
    }
}

/* Asks when it is our turn; *code is what HTTP says when it does not come. */
static enum status ask(const struct question *q, int *code, struct str *answer, struct err *e) {
    struct gate *const gate = q->preview ? q->app->previews : q->app->reports;
    *code = BUSY_CODE;
    TRY(take_place(q, gate, e));
    *code = 0;
    const enum status status = ask_now(q, answer, e);
    gate_leave(gate);
    return status;
}

static void append_stamp(struct str *stamp, const char *path) {
    struct stat info;
    if (stat(path, &info) != 0) return;
    str_appendf(stamp, "%s=%lld.%09ld-%lld;", file_base_name(path), (long long)info.st_mtim.tv_sec,
                info.st_mtim.tv_nsec, (long long)info.st_size);
}

/* Changes with everything a report depends on, but the file itself: that never changes. */
static void stamp_of(const struct question *q, struct str *stamp) {
    static const char *const names[] = {"config.json",           "tokenizer.json",
                                        "tokenizer_config.json", "special_tokens_map.json",
                                        "chat_template.jinja",   "chat_template.json"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *const path = file_join(q->ref.folder, names[i]);
        append_stamp(stamp, path);
        mem_free(path);
    }
    append_stamp(stamp, q->app->engine);
    for (int i = 0; q->argv[i]; i++) {
        str_appendf(stamp, "%s;", q->argv[i]);
    }
}

/* The report that is kept, or a new one. One is kept for a file and a model: the last one asked
 * for, so that asking with ever other options does not fill the disk. */
static enum status report_of(const struct question *q, int *code, struct str *answer,
                             struct err *e) {
    char *known = NULL;
    struct str stamp = {0};
    char *const key = str_format("report:%s:%s", q->file.id, q->ref.folder);
    enum status status = STATUS_OK;
    stamp_of(q, &stamp);
    GUARD(store_inspection_get(q->app->store, key, str_text(&stamp), &known, e));
    if (known) {
        str_append(answer, known);
        goto done;
    }
    GUARD(ask(q, code, answer, e));
    GUARD(store_inspection_put(q->app->store, key, str_text(&stamp), str_text(answer), e));
done:
    str_release(&stamp);
    mem_free(known);
    mem_free(key);
    return status;
}

/* {"object",...} and the engine's members behind it. */
static void reply_with(struct http_reply *r, const struct question *q, const char *object,
                       const struct str *answer) {
    cJSON *const head = cJSON_CreateObject();
    json_add_string(head, "object", object);
    json_add_string(head, "file_id", q->file.id);
    json_add_string(head, "filename", q->file.filename);
    json_add_string(head, "model", q->model);
    json_append(&r->body, head);
    cJSON_Delete(head);
    str_truncate(&r->body, r->body.len - 1);
    str_append_char(&r->body, ',');
    str_append_bytes(&r->body, answer->data + 1, answer->len - 1);
}

static enum status answer(const struct app *app, const struct http_request *q, bool preview,
                          struct http_reply *r, struct err *e) {
    struct question question = {.app = app, .request = q, .preview = preview};
    struct str text = {0};
    enum status status = STATUS_OK;
    GUARD(question_of(&question, q, e));
    GUARD(preview ? ask(&question, &r->code, &text, e) : report_of(&question, &r->code, &text, e));
    reply_with(r, &question, preview ? "file.preview" : "file.report", &text);
done:
    str_release(&text);
    question_release(&question);
    return status;
}

enum status api_files_report(void *context, struct http_request *q, struct http_reply *r,
                             struct err *e) {
    return answer(context, q, false, r, e);
}

enum status api_files_preview(void *context, struct http_request *q, struct http_reply *r,
                              struct err *e) {
    return answer(context, q, true, r, e);
}
