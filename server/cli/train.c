/* train.c - `plimsoll train`: a job from the command line, through the REST API of a running
 * server.
 *
 * The job belongs to the server: Ctrl-C ends only the watching, and a server that goes away and
 * comes back is waited for. In a terminal one line shows the progress; into a file one line is
 * written every so often. */
#include "server/cli/cli.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/cli/client.h"
#include "server/cli/options.h"
#include "server/run/process.h"

enum { LINE_EVERY_MS = 2000, RETRY_MS = 1000, SERVER_GONE_MAX_MS = 300000 };

static const char HELP[] =
    "plimsoll train FILE --model MODEL - fine-tune on a file through a running server\n"
    "\n"
    "  --model MODEL     a model of the server (GET /v1/models)\n"
    "  --device DEVICE   cpu, or cuda:N for a GPU of the server (GET /v1/devices)\n"
    "  --eval FILE       rows that are only measured\n"
    "  --set KEY=VALUE   a key of the run spec, such as --set r=8 --set data.max_length=512;\n"
    "                    may be given more than once (GET /v1/spec lists them)\n"
    "  --suffix TEXT     part of the new model's name\n"
    "  --url URL         the server (http://127.0.0.1:8080)\n"
    "  --api-key-file F  the first line of F is sent as the API key\n"
    "  --json            print one JSON object as the last line:\n"
    "                    "
    "{\"job\",\"status\",\"first_loss\",\"last_loss\",\"adapter\",\"seconds\"}\n"
    "\n"
    "Ends with exit code 0 only if the job succeeded. Ctrl-C leaves the job running.\n";

struct settings {
    const char *model, *device, *eval, *url, *key_file, *suffix;
    struct option_list files, set;
    bool json, help;
};

/* What is shown while the job runs. */
struct progress {
    const struct cli *cli;
    bool terminal;
    int64_t shown_ms;
    char status[32], phase[32];
    double loss, first_loss, rate, memory, left, seconds;
    int64_t step, total;
    char *adapter; /* path of the download */
    char *error;
};

static enum status read_settings(const struct cli *cli, struct settings *s, struct err *e) {
    *s = (struct settings){.url = "http://127.0.0.1:8080"};
    const struct option options[] = {
        {.name = "--model", .text = &s->model},   {.name = "--eval", .text = &s->eval},
        {.name = "--url", .text = &s->url},       {.name = "--api-key-file", .text = &s->key_file},
        {.name = "--suffix", .text = &s->suffix}, {.name = "--set", .list = &s->set},
        {.name = "--json", .flag = &s->json},     {.name = "--help", .flag = &s->help},
        {.name = "--device", .text = &s->device},
    };
    const struct option_table table = {options, COUNT_OF(options), &s->files};
    TRY(options_parse(&table, cli->argc, cli->argv, e));
    if (s->help) return STATUS_OK;
    FAIL_IF(s->files.count != 1, STATUS_INVALID,
            "name one file to train on: plimsoll train FILE --model MODEL");
    FAIL_IF(!s->model, STATUS_INVALID, "--model is missing: name a model of the server");
    return STATUS_OK;
}

/* A value that is JSON (12, true, ["a"]) is taken as such, anything else is a text. */
static cJSON *value_of(const char *text) {
    cJSON *value = NULL;
    struct err ignored = {0};
    if (json_parse(text, strlen(text), "value", &value, &ignored) == STATUS_OK) return value;
    return cJSON_CreateString(text);
}

/* "data.max_length=512" -> {"data":{"max_length":512}} */
static enum status set_key(cJSON *spec, const char *assignment, struct err *e) {
    const char *const equals = strchr(assignment, '=');
    FAIL_IF(!equals || equals == assignment, STATUS_INVALID, "--set %.80s: expected KEY=VALUE",
            assignment);
    char *path = mem_strndup(assignment, (size_t)(equals - assignment));
    char *key = path;
    char *const dot = strchr(path, '.');
    cJSON *object = spec;
    if (dot) {
        *dot = 0;
        key = dot + 1;
        object = cJSON_GetObjectItemCaseSensitive(spec, path);
        if (!object) object = cJSON_AddObjectToObject(spec, path);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    cJSON_AddItemToObject(object, key, value_of(equals + 1));
    mem_free(path);
    return STATUS_OK;
}

static enum status upload(struct client *client, const char *file, const char *key, cJSON *body,
                          struct err *e) {
    cJSON *answer = NULL;
    const char *id = NULL, *status = NULL, *details = NULL;
    TRY(client_upload(client, file, &answer, e));
    enum status result = STATUS_OK;
    (void)json_get_string(answer, "id", &id, e);
    (void)json_get_string(answer, "status", &status, e);
    (void)json_get_string(answer, "status_details", &details, e);
    if (status && strcmp(status, "error") == 0) {
        result =
            err_set(e, STATUS_INVALID, "%s: %s", file, details ? details : "cannot be trained on");
    }
    json_add_string(body, key, id);
    cJSON_Delete(answer);
    return result;
}

/* The device is asked for before anything is uploaded: one that is not there would be refused only
 * when the job is planned. */
static enum status set_device(struct client *client, const char *device, cJSON *spec,
                              struct err *e) {
    cJSON *answer = NULL;
    const cJSON *item = NULL;
    const char *none = NULL;
    struct str known = {0};
    struct err ignored = {0};
    enum status status = STATUS_NOT_FOUND;
    TRY(client_call(client, "/v1/devices", NULL, &answer, e));
    (void)json_get_string(answer, "reason", &none, &ignored);
    cJSON_ArrayForEach(item, json_member(answer, "data")) {
        const char *id = NULL, *reason = NULL;
        (void)json_get_string(item, "id", &id, &ignored);
        (void)json_get_string(item, "reason", &reason, &ignored);
        if (!id) continue;
        str_appendf(&known, "%s%s", known.len ? ", " : "", id);
        if (!str_equal(id, device)) continue;
        status =
            reason ? err_set(e, STATUS_UNSUPPORTED, "--device %s: %s", device, reason) : STATUS_OK;
    }
    if (status == STATUS_NOT_FOUND)
        err_set(e, status, "--device %s: the server has only %s%s%s", device, str_text(&known),
                none ? "; " : "", none ? none : "");
    if (status == STATUS_OK) json_add_string(spec, "device", device);
    str_release(&known);
    cJSON_Delete(answer);
    return status;
}

static enum status create_job(struct client *client, const struct settings *s, char **id,
                              struct err *e) {
    cJSON *body = cJSON_CreateObject(), *job = NULL;
    const char *name = NULL;
    enum status status = STATUS_OK;
    json_add_string(body, "model", s->model);
    if (s->suffix) json_add_string(body, "suffix", s->suffix);
    cJSON *const spec = cJSON_AddObjectToObject(body, "plimsoll");
    for (int i = 0; i < s->set.count; i++) {
        GUARD(set_key(spec, s->set.items[i], e));
    }
    if (s->device) {
        cJSON_DeleteItemFromObjectCaseSensitive(spec, "device");
        GUARD(set_device(client, s->device, spec, e));
    }
    GUARD(upload(client, s->files.items[0], "training_file", body, e));
    if (s->eval) GUARD(upload(client, s->eval, "validation_file", body, e));
    GUARD(client_call(client, "/v1/fine_tuning/jobs", body, &job, e));
    GUARD(json_get_string(job, "id", &name, e));
    GUARD_IF(!name, STATUS_IO, "the server's answer is no job");
    *id = mem_strdup(name);
done:
    cJSON_Delete(body);
    cJSON_Delete(job);
    return status;
}

static void read_number(const cJSON *object, const char *key, double *out) {
    struct err ignored = {0};
    (void)json_get_f64(object, key, out, &ignored);
}

static void read_text(const cJSON *object, const char *key, char *out, size_t size) {
    const char *text = NULL;
    struct err ignored = {0};
    (void)json_get_string(object, key, &text, &ignored);
    if (text) snprintf(out, size, "%s", text);
}

static void append_time(struct str *out, double seconds) {
    const long whole = (long)seconds;
    if (whole >= 3600) str_appendf(out, "%ld h ", whole / 3600);
    if (whole >= 60) str_appendf(out, "%ld min ", whole / 60 % 60);
    if (whole < 3600) str_appendf(out, "%ld s ", whole % 60);
    str_append(out, "left");
}

static void append_line(const struct progress *p, struct str *out) {
    char size[24];
    if (p->step == 0) {
        str_appendf(out, "%s", p->phase[0] ? p->phase : p->status);
        return;
    }
    str_appendf(out, "step %lld/%lld", (long long)p->step, (long long)p->total);
    if (isfinite(p->loss)) str_appendf(out, "  loss %.4f", p->loss);
    if (p->rate > 0) str_appendf(out, "  %.0f tokens/s", p->rate);
    if (p->memory > 0) str_appendf(out, "  memory %s", str_bytes((int64_t)p->memory, size));
    str_append(out, "  ");
    if (isfinite(p->left) && p->left >= 0) append_time(out, p->left);
}

static void show(struct progress *p, bool now) {
    const int64_t time_ms = clock_steady_ns() / 1000000;
    if (!now && !p->terminal && time_ms - p->shown_ms < LINE_EVERY_MS) return;
    p->shown_ms = time_ms;
    struct str line = {0};
    append_line(p, &line);
    fprintf(p->cli->out, p->terminal ? "\r\033[K%s" : "%s\n", str_text(&line));
    fflush(p->cli->out);
    str_release(&line);
}

static void say(struct progress *p, const char *text) {
    fprintf(p->cli->out, p->terminal ? "\r\033[K%s\n" : "%s\n", text);
    fflush(p->cli->out);
}

static void take_job(struct progress *p, const cJSON *job) {
    const cJSON *const ours = json_member(job, "plimsoll");
    double step = (double)p->step, total = (double)p->total;
    char message[1024] = "";
    char before[32];
    snprintf(before, sizeof before, "%s", p->status);
    read_text(job, "status", p->status, sizeof p->status);
    read_text(ours, "phase", p->phase, sizeof p->phase);
    read_number(ours, "step", &step);
    read_number(ours, "total_steps", &total);
    read_number(ours, "loss", &p->loss);
    read_number(ours, "first_loss", &p->first_loss);
    read_number(ours, "run_seconds", &p->seconds);
    p->step = (int64_t)step;
    p->total = (int64_t)total;
    read_text(json_member(job, "error"), "message", message, sizeof message);
    if (message[0]) {
        mem_free(p->error);
        p->error = mem_strdup(message);
    }
    if (strcmp(before, p->status) != 0) show(p, true);
}

static void take_step(struct progress *p, const cJSON *step) {
    double number = 0, total = (double)p->total, seconds = NAN;
    read_number(step, "step", &number);
    read_number(step, "total_steps", &total);
    read_number(step, "loss", &p->loss);
    read_number(step, "tokens_per_second", &p->rate);
    read_number(step, "seconds", &seconds);
    p->step = (int64_t)number;
    p->total = (int64_t)total;
    if (isfinite(seconds)) p->left = seconds * (total - number);
    show(p, false);
}

/* What the model says, on one line; a model may say anything, so nothing in it may steer the
 * terminal. */
static void take_sample(struct progress *p, const cJSON *sample) {
    char prompt[256] = "", answer[512] = "";
    double step = 0;
    read_number(sample, "step", &step);
    read_text(sample, "prompt", prompt, sizeof prompt);
    read_text(sample, "text", answer, sizeof answer);
    char *line = str_format("after step %lld: %s -> %s", (long long)step, prompt, answer);
    for (unsigned char *at = (unsigned char *)line; *at; at++) {
        if (*at < 0x20 || *at == 0x7F) *at = ' ';
        if (at[0] == 0xC2 && at[1] >= 0x80 && at[1] < 0xA0) at[0] = at[1] = ' '; /* C1 controls */
    }
    say(p, line);
    mem_free(line);
}

static void take_eval(struct progress *p, const cJSON *eval) {
    double step = 0, loss = NAN;
    read_number(eval, "step", &step);
    read_number(eval, "loss", &loss);
    char *line = str_format("after step %lld: held-out loss %.4f", (long long)step, loss);
    say(p, line);
    mem_free(line);
}

/* Memory was short, and what was changed about it. */
static void take_memory_story(struct progress *p, const char *what, const cJSON *data) {
    char remedy[32] = "", state[16] = "", text[1024] = "";
    double step = 0;
    read_number(data, "step", &step);
    read_text(data, "remedy", remedy, sizeof remedy);
    read_text(data, "state", state, sizeof state);
    read_text(data, remedy[0] ? "text" : "explanation", text, sizeof text);
    char *line = str_format("step %lld: %s%s%s: %s", (long long)step, remedy[0] ? remedy : what,
                            remedy[0] ? " " : "", state, text);
    say(p, line);
    mem_free(line);
}

/* memory.on_oom is ask: the job waits. */
static void take_attention(struct progress *p, const cJSON *data) {
    say(p, "the job does not fit and waits for an answer, on its page or by POST .../remedy "
           "{\"remedy\":NAME,\"accept\":true}:");
    const cJSON *const remedies = json_member(data, "remedies");
    for (const cJSON *one = remedies ? remedies->child : NULL; one; one = one->next) {
        char name[32] = "", text[256] = "", size[24];
        double peak = 0;
        read_text(one, "remedy", name, sizeof name);
        read_text(one, "text", text, sizeof text);
        read_number(one, "peak", &peak);
        char *line = str_format("  %s (%s): %s", name, str_bytes((int64_t)peak, size), text);
        say(p, line);
        mem_free(line);
    }
}

static void see(const char *name, const cJSON *data, void *context) {
    struct progress *const p = context;
    char level[16] = "info", message[1024] = "";
    if (strcmp(name, "job") == 0) {
        take_job(p, data);
    } else if (strcmp(name, "step") == 0) {
        take_step(p, data);
    } else if (strcmp(name, "memory") == 0) {
        read_number(data, "peak", &p->memory);
    } else if (strcmp(name, "sample") == 0) {
        take_sample(p, data);
    } else if (strcmp(name, "eval") == 0) {
        take_eval(p, data);
    } else if (strcmp(name, "oom") == 0 || strcmp(name, "remedy") == 0) {
        take_memory_story(p, "short of memory", data);
    } else if (strcmp(name, "attention") == 0) {
        take_attention(p, data);
    } else if (strcmp(name, "log") == 0) {
        read_text(data, "level", level, sizeof level);
        read_text(data, "message", message, sizeof message);
        if (strcmp(level, "info") != 0) say(p, message);
    }
}

/* Follows to the end, through broken lines and restarts of the server. */
static enum status follow(struct client *client, const char *id, struct progress *p,
                          struct err *e) {
    char *path = str_format("/v1/fine_tuning/jobs/%s/stream?after=0", id);
    struct client_watch watch = {.path = path, .last_id = -1, .see = see, .context = p};
    int64_t good_ms = clock_steady_ns() / 1000000;
    enum status status = STATUS_OK;
    while (!watch.ended && status == STATUS_OK) {
        struct err broken = {0};
        const long long before = watch.last_id;
        const enum status got = client_follow(client, &watch, &broken);
        if (watch.ended) break;
        const int64_t now_ms = clock_steady_ns() / 1000000;
        if (got == STATUS_OK || watch.last_id != before) good_ms = now_ms;
        GUARD_IF(*p->cli->signalled, STATUS_INTERRUPTED, "interrupted");
        GUARD_IF(now_ms - good_ms > SERVER_GONE_MAX_MS, STATUS_TIMEOUT, "%s", broken.text);
        process_pause_ms(RETRY_MS);
    }
done:
    mem_free(path);
    return status;
}

static void print_json(const struct cli *cli, const char *id, const struct progress *p) {
    cJSON *object = cJSON_CreateObject();
    json_add_string(object, "job", id);
    json_add_string(object, "status", p->status);
    json_add_number(object, "first_loss", p->first_loss);
    json_add_number(object, "last_loss", p->loss);
    json_add_string(object, "adapter", p->adapter);
    json_add_number(object, "seconds", p->seconds);
    struct str text = {0};
    json_append(&text, object);
    fprintf(cli->out, "%s\n", str_text(&text));
    cJSON_Delete(object);
    str_release(&text);
}

static void finish(const struct cli *cli, const struct settings *s, const char *id,
                   struct progress *p) {
    const bool succeeded = strcmp(p->status, "succeeded") == 0;
    if (succeeded) p->adapter = str_format("%s/v1/fine_tuning/jobs/%s/adapter", s->url, id);
    if (p->terminal) show(p, true);
    if (p->terminal) fputc('\n', cli->out);
    if (!s->json) {
        fprintf(cli->out, "%s %s%s%s\n", id, p->status, p->error ? ": " : "",
                p->error ? p->error : "");
        if (succeeded) fprintf(cli->out, "result: %s\n", p->adapter);
        return;
    }
    if (p->error) fprintf(stderr, "plimsoll: %s\n", p->error);
    print_json(cli, id, p);
}

static enum status run(const struct cli *cli, const struct settings *s, struct progress *p,
                       struct err *e) {
    struct client *client = NULL;
    char *key = NULL, *id = NULL;
    enum status status = STATUS_OK;
    GUARD(client_read_key(s->key_file, &key, e));
    GUARD(client_open(&client, s->url, key, cli->signalled, e));
    GUARD(create_job(client, s, &id, e));
    fprintf(cli->out, "job %s: %s/#/jobs/%s\n", id, s->url, id);
    status = follow(client, id, p, e);
    if (status == STATUS_OK) finish(cli, s, id, p);
    if (status == STATUS_INTERRUPTED) {
        fprintf(cli->out,
                "\nThe job goes on. To cancel it: curl -X POST %s/v1/fine_tuning/jobs/%s/cancel\n",
                s->url, id);
    }
done:
    client_close(client);
    mem_free(key);
    mem_free(id);
    return status;
}

int cli_train(const struct cli *cli) {
    struct settings settings;
    struct err error = {0};
    struct progress p = {.cli = cli,
                         .terminal = isatty(fileno(cli->out)),
                         .loss = NAN,
                         .first_loss = NAN,
                         .left = NAN};
    enum status status = read_settings(cli, &settings, &error);
    if (status == STATUS_OK && settings.help) {
        fputs(HELP, cli->out);
        return 0;
    }
    if (status == STATUS_OK) status = run(cli, &settings, &p, &error);
    const bool succeeded = status == STATUS_OK && strcmp(p.status, "succeeded") == 0;
    mem_free(p.adapter);
    mem_free(p.error);
    if (status == STATUS_INTERRUPTED) return 130;
    if (status != STATUS_OK) fprintf(stderr, "plimsoll: %s\n", error.text);
    return succeeded ? 0 : 1;
}
