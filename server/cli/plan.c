/* plan.c - `plimsoll plan`: what a run would need, in the terminal, before anything is downloaded.
 *
 * Asks the engine beside this program directly, so no server need run; with --url it asks that
 * server, which knows its own models, files and GPUs. */
#include "server/cli/cli.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/cli/client.h"
#include "server/cli/options.h"
#include "server/cli/parts.h"
#include "server/cli/plan_print.h"
#include "server/run/launch.h"
#include "server/run/process.h"

enum { SPEC_BYTES_MAX = 1 << 20, ANSWER_BYTES_MAX = 4 << 20, ASK_LIMIT_MS = 600000 };

static const char HELP[] =
    "plimsoll plan MODEL|SPEC - the memory of a run, to the byte, before it is started\n"
    "\n"
    "  MODEL             a model folder (its config.json is enough), or the name of a well-known\n"
    "                    model, such as Llama-3.1-8B or Qwen/Qwen3-4B\n"
    "  SPEC              a run spec (a .json file)\n"
    "  --set KEY=VALUE   a key of the run spec, such as bf16=true or data.max_length=4096\n"
    "  --data FILE       rows to train on: the plan is then for their real lengths\n"
    "  --card NAME       plan for this card, which need not be here: h100-80gb, rtx4090-24gb, ...\n"
    "  --measure         time this machine's operations first, once, for estimates of time\n"
    "  --probe           try it with real steps here: growing rows, then shrinking memory\n"
    "  --url URL         ask this server instead of the engine beside this program\n"
    "  --api-key-file F  with --url: the first line of F is sent as the API key\n"
    "  --engine FILE     the engine (beside this program)\n"
    "  --json            print the answer as it is\n"
    "\n"
    "Ends with exit code 1 if the run does not fit.\n";

struct settings {
    const char *card, *url, *key_file, *engine;
    struct option_list what, set, data;
    bool measure, probe, json, help;
};

static enum status read_settings(const struct cli *cli, struct settings *s, struct err *e) {
    *s = (struct settings){0};
    const struct option options[] = {
        {.name = "--set", .list = &s->set},
        {.name = "--data", .list = &s->data},
        {.name = "--card", .text = &s->card},
        {.name = "--measure", .flag = &s->measure},
        {.name = "--probe", .flag = &s->probe},
        {.name = "--url", .text = &s->url},
        {.name = "--api-key-file", .text = &s->key_file},
        {.name = "--engine", .text = &s->engine},
        {.name = "--json", .flag = &s->json},
        {.name = "--help", .flag = &s->help},
    };
    const struct option_table table = {options, COUNT_OF(options), &s->what};
    TRY(options_parse(&table, cli->argc, cli->argv, e));
    if (s->help) return STATUS_OK;
    FAIL_IF(s->what.count != 1, STATUS_INVALID,
            "name one model or one run spec: plimsoll plan Llama-3.1-8B");
    FAIL_IF(s->url && (s->measure || s->probe || s->data.count > 0), STATUS_INVALID,
            "--measure, --probe and --data are about this machine: leave out --url");
    return STATUS_OK;
}

/* "data.max_length=4096" into the spec; what is no JSON is a text. */
static enum status set_key(cJSON *spec, const char *pair, struct err *e) {
    const char *const equals = strchr(pair, '=');
    FAIL_IF(!equals || equals == pair, STATUS_INVALID, "--set %.80s: write it as KEY=VALUE", pair);
    struct err plain = {0};
    cJSON *value = NULL;
    if (json_parse(equals + 1, strlen(equals + 1), pair, &value, &plain) != STATUS_OK)
        value = cJSON_CreateString(equals + 1);
    char *const path = mem_strndup(pair, (size_t)(equals - pair)), *const dot = strchr(path, '.');
    cJSON *object = spec;
    if (dot) {
        *dot = 0;
        object = cJSON_GetObjectItemCaseSensitive(spec, path);
        if (!cJSON_IsObject(object)) {
            cJSON_DeleteItemFromObjectCaseSensitive(spec, path);
            object = cJSON_AddObjectToObject(spec, path);
        }
    }
    const char *const leaf = dot ? dot + 1 : path;
    cJSON_DeleteItemFromObjectCaseSensitive(object, leaf);
    cJSON_AddItemToObject(object, leaf, value);
    mem_free(path);
    return STATUS_OK;
}

static enum status add_data(cJSON *spec, const struct option_list *files, struct err *e) {
    if (files->count == 0) return STATUS_OK;
    cJSON *data = cJSON_GetObjectItemCaseSensitive(spec, "data");
    if (!cJSON_IsObject(data)) data = cJSON_AddObjectToObject(spec, "data");
    cJSON_DeleteItemFromObjectCaseSensitive(data, "train_files");
    cJSON *const list = cJSON_AddArrayToObject(data, "train_files");
    for (int i = 0; i < files->count; i++) {
        FAIL_IF(!file_exists(files->items[i]), STATUS_NOT_FOUND, "--data %s: there is no such file",
                files->items[i]);
        cJSON_AddItemToArray(list, cJSON_CreateString(files->items[i]));
    }
    return STATUS_OK;
}

/* The spec that the arguments ask for. Caller frees. */
static enum status read_spec(const struct settings *s, cJSON **spec, struct err *e) {
    const char *const what = s->what.items[0];
    if (str_ends_with(what, ".json") && !file_is_folder(what)) {
        TRY(json_read_file(what, SPEC_BYTES_MAX, spec, e));
        FAIL_IF(!cJSON_IsObject(*spec), STATUS_INVALID, "%s: a run spec is a JSON object", what);
    } else {
        *spec = cJSON_CreateObject();
        json_add_string(*spec, "model", what);
    }
    for (int i = 0; i < s->set.count; i++) {
        TRY(set_key(*spec, s->set.items[i], e));
    }
    return add_data(*spec, &s->data, e);
}

static enum status refused(const struct process_output *output, const cJSON *answer,
                           struct err *e) {
    if (launch_read_error(json_member(answer, "error"), e)) return e->status;
    return err_set(e, STATUS_INTERNAL, "planning gave no answer (exit code %d): %s",
                   output->exit_code, str_text(&output->err));
}

static bool is_interrupted(const void *context) {
    const struct cli *const cli = context;
    return *cli->signalled != 0;
}

static enum status ask_engine(const struct cli *cli, const struct settings *s, const cJSON *spec,
                              struct str *text, struct err *e) {
    char *const engine = parts_find(s->engine, "plimsoll-engine");
    struct str input = {0};
    struct process_output output = {0};
    cJSON *answer = NULL;
    struct err unread = {0};
    enum status status = STATUS_OK;
    const char *argv[8] = {engine, "plan", "-"};
    int argc = 3;
    if (s->card) argv[argc++] = "--card";
    if (s->card) argv[argc++] = s->card;
    if (s->measure) argv[argc++] = "--measure";
    if (s->probe) argv[argc++] = "--probe";
    json_append(&input, spec);
    const struct process_question question = {.argv = argv,
                                              .input = &input,
                                              .bytes_max = ANSWER_BYTES_MAX,
                                              .limit_ms = ASK_LIMIT_MS,
                                              .gone = is_interrupted,
                                              .context = cli};
    GUARD_IF(!engine, STATUS_NOT_FOUND, "%s is not there: name it with --engine",
             s->engine ? s->engine : "plimsoll-engine");
    GUARD(process_capture(&question, &output, e));
    (void)json_parse(str_text(&output.out), output.out.len, "the plan", &answer, &unread);
    if (output.exit_code != 0 || !answer) GUARD(refused(&output, answer, e));
    str_append(text, str_text(&output.out));
done:
    cJSON_Delete(answer);
    process_output_release(&output);
    str_release(&input);
    mem_free(engine);
    return status;
}

/* Model and card are the request's, all else is the spec's. Takes ownership of `spec`. */
static cJSON *body_of(const struct settings *s, cJSON *spec) {
    cJSON *const body = cJSON_CreateObject();
    cJSON_AddItemToObject(body, "model", cJSON_DetachItemFromObjectCaseSensitive(spec, "model"));
    if (s->card) json_add_string(body, "card", s->card);
    cJSON_AddItemToObject(body, "plimsoll", spec);
    return body;
}

static enum status ask_server(const struct cli *cli, const struct settings *s, const cJSON *spec,
                              struct str *text, struct err *e) {
    struct client *client = NULL;
    cJSON *answer = NULL, *const body = body_of(s, cJSON_Duplicate(spec, true));
    char *key = NULL;
    enum status status = STATUS_OK;
    GUARD(client_read_key(s->key_file, &key, e));
    GUARD(client_open(&client, s->url, key, cli->signalled, e));
    GUARD(client_call(client, "/v1/plan", body, &answer, e));
    str_append(text, client_text(client));
done:
    cJSON_Delete(answer);
    cJSON_Delete(body);
    client_close(client);
    mem_free(key);
    return status;
}

static enum status show(const struct cli *cli, const struct settings *s, const struct str *text,
                        bool *fine, struct err *e) {
    cJSON *plan = NULL;
    struct str out = {0};
    TRY(json_parse(str_text(text), text->len, "the plan", &plan, e));
    *fine = plan_is_fine(plan);
    if (s->json) {
        fprintf(cli->out, "%s%s", str_text(text), str_ends_with(str_text(text), "\n") ? "" : "\n");
    } else {
        plan_print(&out, plan, isatty(fileno(cli->out)) && !cli->no_color);
        fputs(str_text(&out), cli->out);
    }
    str_release(&out);
    cJSON_Delete(plan);
    return STATUS_OK;
}

static enum status run(const struct cli *cli, const struct settings *s, bool *fine, struct err *e) {
    cJSON *spec = NULL;
    struct str text = {0};
    enum status status = STATUS_OK;
    GUARD(read_spec(s, &spec, e));
    GUARD(s->url ? ask_server(cli, s, spec, &text, e) : ask_engine(cli, s, spec, &text, e));
    GUARD(show(cli, s, &text, fine, e));
done:
    cJSON_Delete(spec);
    str_release(&text);
    return status;
}

int cli_plan(const struct cli *cli) {
    struct settings settings;
    struct err error = {0};
    bool fine = true;
    enum status status = read_settings(cli, &settings, &error);
    if (status == STATUS_OK && settings.help) {
        fputs(HELP, cli->out);
        return 0;
    }
    if (status == STATUS_OK) status = run(cli, &settings, &fine, &error);
    if (status == STATUS_INTERRUPTED) return 130;
    if (status != STATUS_OK) fprintf(stderr, "plimsoll: %s\n", error.text);
    return status == STATUS_OK && fine ? 0 : 1;
}
