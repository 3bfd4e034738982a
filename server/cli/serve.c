/* serve.c - `plimsoll serve`: puts the parts together, waits for a signal, takes them apart in
 * reverse.
 *
 * The order matters: the data folder's lock first, the port before any job is touched, the
 * supervisor last. */
#include "server/cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cache.h"
#include "base/file.h"
#include "base/mem.h"
#include "server/api/api.h"
#include "server/cli/options.h"
#include "server/cli/parts.h"
#include "server/run/process.h"

enum { PORT_PRESET = 8080, PORT_MAX = 65535, SIGNAL_LOOK_MS = 100 };
static const int64_t UPLOAD_BYTES_MAX = (int64_t)8 << 30;
static const int64_t FORM_OVERHEAD_BYTES = 1 << 20; /* boundaries and fields around the file */

static const char HELP[] =
    "plimsoll serve - the appliance: page, REST API and jobs on one port\n"
    "\n"
    "  --listen ADDRESS     address to listen on (127.0.0.1)\n"
    "  --port N             port, 0 for any free one (8080)\n"
    "  --data FOLDER        where files, jobs and results are kept (./plimsoll-data)\n"
    "  --models FOLDER      a folder of model folders; may be given more than once\n"
    "                       (models beside the program, or /usr/share/plimsoll/models)\n"
    "  --web FOLDER         the page (webui beside the program, or /usr/share/plimsoll/webui)\n"
    "  --engine FILE        plimsoll-engine (beside the program)\n"
    "  --api-key-file FILE  ask for one of these keys, one a line\n"
    "  --allow-host NAME    a name under which the server may be reached, beside localhost, this\n"
    "                       machine's name and plain addresses; may be given more than once\n"
    "  --max-upload SIZE    largest file (8GiB)\n"
    "  --max-jobs N         run at most so many jobs at a time (4); jobs share a device only when\n"
    "                       each has a memory.cap and the caps fit beside each other\n"
    "  --stop-jobs          at the end, ask the runs to write a checkpoint and stop; otherwise "
    "they\n"
    "                       keep running and the next server finds them\n"
    "\n"
    "SIGTERM or Ctrl-C ends the server. Jobs continue by themselves at the next start.\n";

struct settings {
    const char *listen, *data, *web, *engine, *key_file, *max_upload;
    int64_t port, jobs_max;
    struct option_list models, hosts;
    bool stop_jobs, help;
};

/* Everything that has to be taken apart again. */
struct server {
    struct settings settings;
    struct guard guard;
    struct app app;
    struct http *http;
    char *web, *engine, *models, *upload_folder;
};

static enum status read_settings(const struct cli *cli, struct settings *s, struct err *e) {
    *s = (struct settings){.listen = "127.0.0.1",
                           .data = "plimsoll-data",
                           .port = PORT_PRESET,
                           .jobs_max = SUPERVISOR_JOBS_PRESET};
    const struct option options[] = {
        {.name = "--listen", .text = &s->listen},
        {.name = "--port", .number = &s->port},
        {.name = "--data", .text = &s->data},
        {.name = "--models", .list = &s->models},
        {.name = "--web", .text = &s->web},
        {.name = "--engine", .text = &s->engine},
        {.name = "--api-key-file", .text = &s->key_file},
        {.name = "--allow-host", .list = &s->hosts},
        {.name = "--max-upload", .text = &s->max_upload},
        {.name = "--max-jobs", .number = &s->jobs_max},
        {.name = "--stop-jobs", .flag = &s->stop_jobs},
        {.name = "--help", .flag = &s->help},
    };
    const struct option_table table = {options, COUNT_OF(options), NULL};
    TRY(options_parse(&table, cli->argc, cli->argv, e));
    FAIL_IF(s->port < 0 || s->port > PORT_MAX, STATUS_INVALID,
            "--port is %lld, it must be from 0 to %d", (long long)s->port, PORT_MAX);
    FAIL_IF(s->jobs_max < 1 || s->jobs_max > SUPERVISOR_JOBS_MAX, STATUS_INVALID,
            "--max-jobs is %lld, it must be from 1 to %d", (long long)s->jobs_max,
            SUPERVISOR_JOBS_MAX);
    return STATUS_OK;
}

/* Absolute and without links: the folder's confinement compares real paths. */
static void make_real(char **path) {
    char real[PATH_MAX];
    if (!*path || !realpath(*path, real)) return;
    mem_free(*path);
    *path = mem_strdup(real);
}

static enum status find_parts(struct server *v, struct err *e) {
    const struct settings *const s = &v->settings;
    v->engine = parts_find(s->engine, "plimsoll-engine");
    FAIL_IF(!v->engine, STATUS_NOT_FOUND, "%s is not there: name it with --engine",
            s->engine ? s->engine : "plimsoll-engine");
    v->web = parts_find(s->web, "webui");
    FAIL_IF(s->web && !v->web, STATUS_NOT_FOUND, "--web %s: there is no such folder", s->web);
    make_real(&v->web);
    make_real(&v->engine);
    for (int i = 0; i < s->models.count; i++) {
        FAIL_IF(!file_is_folder(s->models.items[i]), STATUS_NOT_FOUND,
                "--models %s: there is no such folder", s->models.items[i]);
        v->app.model_folders[v->app.model_folder_count++] = s->models.items[i];
    }
    if (s->models.count) return STATUS_OK;
    v->models = parts_find(NULL, "models");
    if (v->models) v->app.model_folders[v->app.model_folder_count++] = v->models;
    return STATUS_OK;
}

static enum status set_guard(struct server *v, struct err *e) {
    for (int i = 0; i < v->settings.hosts.count && i < GUARD_HOSTS_MAX; i++) {
        v->guard.hosts[v->guard.host_count++] = mem_strdup(v->settings.hosts.items[i]);
    }
    if (!v->settings.key_file) return STATUS_OK;
    return guard_load_keys(&v->guard, v->settings.key_file, e);
}

static void on_news(void *context) {
    const struct app *const app = context;
    sse_hub_wake(app->hub);
}

static int64_t total_of(const char *device, void *context) {
    const struct app *const app = context;
    return devices_total(app->devices, app->engine, device);
}

static enum status open_http(struct server *v, struct err *e) {
    int64_t upload_max = UPLOAD_BYTES_MAX;
    if (v->settings.max_upload)
        TRY(str_to_bytes(v->settings.max_upload, "--max-upload", &upload_max, e));
    v->upload_folder = file_join(store_folder(v->app.store), "files");
    struct http_config config = {
        .listen = v->settings.listen,
        .port = v->settings.port,
        .fallback = api_page,
        .context = &v->app,
        .guard = &v->guard,
        .upload_folder = v->upload_folder,
        .upload_bytes_max = upload_max + FORM_OVERHEAD_BYTES,
    };
    config.routes = api_routes(&config.route_count);
    return http_open(&v->http, &config, e);
}

/* The port last but one: a server that cannot have it must not touch any job. */
static enum status open_server(struct server *v, struct err *e) {
    TRY(find_parts(v, e));
    TRY(set_guard(v, e));
    char real[PATH_MAX];
    TRY(file_make_folder(v->settings.data, e));
    FAIL_IF(!realpath(v->settings.data, real), STATUS_IO, "--data %s cannot be opened",
            v->settings.data);
    TRY(store_open(&v->app.store, real, e));
    char *cache = file_join(real, "cache"); /* before there are threads: it sets the environment */
    cache_place_preset(cache);
    mem_free(cache);
    v->app.hub = sse_hub_new();
    v->app.reports = gate_new(APP_REPORTS_MAX);
    v->app.previews = gate_new(APP_PREVIEWS_MAX);
    v->app.plans = gate_new(APP_PLANS_MAX);
    v->app.devices = devices_known_new();
    v->app.engine = v->engine;
    v->app.web = v->web;
    v->app.started_ms = clock_unix_ms();
    const struct supervisor_config config = {
        .place = {.store = v->app.store,
                  .engine = v->engine,
                  .news = on_news,
                  .total_bytes = total_of,
                  .context = &v->app},
        .jobs_max = v->settings.jobs_max,
    };
    v->app.supervisor = supervisor_new(&config);
    TRY(open_http(v, e));
    return supervisor_start(v->app.supervisor, e);
}

static void close_server(struct server *v) {
    if (v->app.hub) sse_hub_stop(v->app.hub);
    http_close(v->http);
    supervisor_stop(v->app.supervisor, v->settings.stop_jobs);
    sse_hub_free(v->app.hub);
    gate_free(v->app.reports);
    gate_free(v->app.previews);
    gate_free(v->app.plans);
    devices_known_free(v->app.devices);
    store_close(v->app.store);
    guard_release(&v->guard);
    mem_free(v->engine);
    mem_free(v->web);
    mem_free(v->models);
    mem_free(v->upload_folder);
}

static void say_ready(const struct cli *cli, const struct server *v) {
    const bool v6 = strchr(v->settings.listen, ':') != NULL;
    fprintf(cli->out, "Plimsoll " PLIMSOLL_VERSION " is ready on http://%s%s%s:%lld (data in %s)\n",
            v6 ? "[" : "", v->settings.listen, v6 ? "]" : "", (long long)http_port(v->http),
            store_folder(v->app.store));
    if (!v->web) fprintf(cli->out, "There is no page: start with --web FOLDER to have one\n");
    fflush(cli->out);
}

int cli_serve(const struct cli *cli) {
    struct server v = {0};
    struct err error = {0};
    enum status status = read_settings(cli, &v.settings, &error);
    if (status == STATUS_OK && v.settings.help) {
        fputs(HELP, cli->out);
        return 0;
    }
    if (status == STATUS_OK) status = open_server(&v, &error);
    if (status == STATUS_OK) {
        say_ready(cli, &v);
        while (!*cli->signalled) {
            process_pause_ms(SIGNAL_LOOK_MS);
        }
    }
    close_server(&v);
    if (status == STATUS_OK) return 0;
    fprintf(stderr, "plimsoll: %s\n", error.text);
    return 1;
}
