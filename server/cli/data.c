/* data.c - `plimsoll data`: what a model would learn from a file, in the terminal.
 *
 * Speaks the REST API like every command. A file that is not on the server yet goes there for the
 * question and is taken away again. Rows are hostile: nothing that they hold may steer the
 * terminal (data_print.c). */
#include "server/cli/cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/cli/client.h"
#include "server/cli/data_print.h"
#include "server/cli/options.h"

static const char HELP[] =
    "plimsoll data FILE - what a model would learn from a file, through a running server\n"
    "\n"
    "  FILE              a data file, or the id of one that is on the server (file-...)\n"
    "  --model MODEL     a model of the server (its only one)\n"
    "  --row N           show row N as tokens; without it the whole file is counted\n"
    "  --ids             with --row: one line a token, with its id\n"
    "  --offset N        with --row: begin at token N of a long row (0)\n"
    "  --mask WHICH      which tokens are learned: assistant, last or all (assistant)\n"
    "  --max-length N    cut rows at so many tokens (1024)\n"
    "  --format NAME     the format of the rows, where it cannot be found from them\n"
    "  --seconds N       without --row: report on what was read in so many seconds (60)\n"
    "  --keep            leave the file on the server and print its id\n"
    "  --url URL         the server (http://127.0.0.1:8080)\n"
    "  --api-key-file F  the first line of F is sent as the API key\n"
    "  --json            print the server's answer as it is\n"
    "\n"
    "In a terminal trained tokens are green; elsewhere, or with NO_COLOR set, they stand between\n"
    "\xE2\x9F\xA6 and \xE2\x9F\xA7. Ends with exit code 1 if a row cannot be used.\n";

struct settings {
    const char *model, *url, *key_file, *mask, *format, *row, *offset, *max_length, *seconds;
    struct option_list files;
    bool ids, keep, json, help;
};

static enum status read_settings(const struct cli *cli, struct settings *s, struct err *e) {
    *s = (struct settings){.url = "http://127.0.0.1:8080"};
    const struct option options[] = {
        {.name = "--model", .text = &s->model},
        {.name = "--row", .text = &s->row},
        {.name = "--ids", .flag = &s->ids},
        {.name = "--offset", .text = &s->offset},
        {.name = "--mask", .text = &s->mask},
        {.name = "--max-length", .text = &s->max_length},
        {.name = "--format", .text = &s->format},
        {.name = "--keep", .flag = &s->keep},
        {.name = "--seconds", .text = &s->seconds},
        {.name = "--url", .text = &s->url},
        {.name = "--api-key-file", .text = &s->key_file},
        {.name = "--json", .flag = &s->json},
        {.name = "--help", .flag = &s->help},
    };
    const struct option_table table = {options, COUNT_OF(options), &s->files};
    TRY(options_parse(&table, cli->argc, cli->argv, e));
    if (s->help) return STATUS_OK;
    FAIL_IF(s->files.count != 1, STATUS_INVALID, "name one file: plimsoll data FILE");
    FAIL_IF(s->row && s->seconds, STATUS_INVALID,
            "--seconds is about the whole file: leave out --row");
    FAIL_IF(!s->row && (s->ids || s->offset), STATUS_INVALID,
            "--ids and --offset are about one row: add --row N");
    return STATUS_OK;
}

/* "&key=value" with everything but letters and digits as %XX. */
static void append_query(struct str *path, const char *key, const char *value) {
    if (!value) return;
    str_appendf(path, "%c%s=", strchr(str_text(path), '?') ? '&' : '?', key);
    for (const unsigned char *at = (const unsigned char *)value; *at; at++) {
        const bool plain =
            (*at >= '0' && *at <= '9') || (*at >= 'A' && *at <= 'Z') || (*at >= 'a' && *at <= 'z');
        str_appendf(path, plain ? "%c" : "%%%02X", *at);
    }
}

/* The id of the file on the server; *uploaded says that it went there for us. */
static enum status find_file(struct client *client, const char *name, char **id, bool *uploaded,
                             struct err *e) {
    cJSON *file = NULL;
    const char *found = NULL;
    *uploaded = !str_starts_with(name, "file-") || file_exists(name);
    if (!*uploaded) {
        *id = mem_strdup(name);
        return STATUS_OK;
    }
    TRY(client_upload(client, name, &file, e));
    enum status status = json_get_string(file, "id", &found, e);
    if (status == STATUS_OK && !found) {
        status = err_set(e, STATUS_IO, "the server's answer is no file");
    }
    if (status == STATUS_OK) *id = mem_strdup(found);
    cJSON_Delete(file);
    return status;
}

static enum status ask(struct client *client, const struct settings *s, const char *id,
                       cJSON **answer, struct err *e) {
    struct str path = {0};
    str_appendf(&path, "/v1/files/%s/%s", id, s->row ? "preview" : "report");
    append_query(&path, "model", s->model);
    append_query(&path, "mask", s->mask);
    append_query(&path, "max_length", s->max_length);
    append_query(&path, "format", s->format);
    append_query(&path, "row", s->row);
    append_query(&path, "offset", s->offset);
    append_query(&path, "seconds", s->seconds);
    const enum status status = client_call(client, str_text(&path), NULL, answer, e);
    str_release(&path);
    return status;
}

/* NO_COLOR as its authors want it: set and not empty. */
static bool wants_colour(const struct cli *cli) {
    return isatty(fileno(cli->out)) && !cli->no_color;
}

static enum status show(const struct cli *cli, const struct settings *s, struct client *client,
                        const char *id, bool *wrong, struct err *e) {
    cJSON *answer = NULL, *shown = NULL;
    TRY(ask(client, s, id, &answer, e));
    *wrong = data_has_errors(answer);
    cJSON_Delete(answer);
    const char *const text = client_text(client);
    if (s->json) {
        fprintf(cli->out, "%s%s", text, str_ends_with(text, "\n") ? "" : "\n");
        return STATUS_OK;
    }
    TRY(data_read_answer(text, &shown, e));
    struct str out = {0};
    const struct data_style style = {.colour = wants_colour(cli), .ids = s->ids};
    if (s->row) {
        data_print_rows(&out, shown, &style);
    } else {
        data_print_report(&out, shown, &style);
    }
    fputs(str_text(&out), cli->out);
    str_release(&out);
    cJSON_Delete(shown);
    return STATUS_OK;
}

/* A file that came for the question goes when it is answered; what goes wrong with that is said,
 * and no reason to fail. */
static void take_away(const struct cli *cli, const struct settings *s, struct client *client,
                      const char *id) {
    struct err error = {0};
    if (s->keep) {
        if (!s->json) fprintf(cli->out, "\nThe file stays on the server as %s.\n", id);
        return;
    }
    char *const path = str_format("/v1/files/%s", id);
    if (client_delete(client, path, &error) != STATUS_OK) {
        fprintf(stderr, "plimsoll: %s is left on the server: %s\n", id, error.text);
    }
    mem_free(path);
}

static enum status run(const struct cli *cli, const struct settings *s, bool *wrong,
                       struct err *e) {
    struct client *client = NULL;
    char *key = NULL, *id = NULL;
    bool uploaded = false;
    enum status status = STATUS_OK;
    GUARD(client_read_key(s->key_file, &key, e));
    GUARD(client_open(&client, s->url, key, cli->signalled, e));
    GUARD(find_file(client, s->files.items[0], &id, &uploaded, e));
    status = show(cli, s, client, id, wrong, e);
    if (uploaded) take_away(cli, s, client, id);
done:
    client_close(client);
    mem_free(key);
    mem_free(id);
    return status;
}

int cli_data(const struct cli *cli) {
    struct settings settings;
    struct err error = {0};
    bool wrong = false;
    enum status status = read_settings(cli, &settings, &error);
    if (status == STATUS_OK && settings.help) {
        fputs(HELP, cli->out);
        return 0;
    }
    if (status == STATUS_OK) status = run(cli, &settings, &wrong, &error);
    if (status == STATUS_INTERRUPTED) return 130;
    if (status != STATUS_OK) fprintf(stderr, "plimsoll: %s\n", error.text);
    return status == STATUS_OK && !wrong ? 0 : 1;
}
