/* main.c - plimsoll-engine: one rank of a run, and the questions that need the engine but no run.
 * Results go to stdout as one JSON object; errors go to stdout too, as {"error":{...}}, because who
 * calls this is a program: the server. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/start_trace.h"
#include "engine/model/weights.h"
#include "engine/rundir.h"
#include "engine/text/dataset.h"
#include "engine/train/attend.h"
#include "engine/train/data_ask.h"
#include "engine/train/generate.h"
#include "engine/train/inspect.h"
#include "engine/train/plan_ask.h"
#include "engine/train/run.h"
#include "engine/train/session.h"

enum { CHECK_ERRORS_MAX = 50, DATA_ARGUMENTS_MAX = 60, PLAN_ARGUMENTS_MAX = 8 };

static const char USAGE[] =
    "plimsoll-engine run DIR              train in a run directory that holds spec.json\n"
    "plimsoll-engine attend DIR           wait for the ranks of a run that somebody else starts, "
    "and\n"
    "                                     until they have ended\n"
    "plimsoll-engine rehearse DIR         the same without computing: every allocation of the run, "
    "in\n"
    "                                     its order, on any machine\n"
    "plimsoll-engine plan SPEC [--card NAME] [--measure] [--probe] [--by-name]\n"
    "                                     plan the memory of a run spec, for this machine or for "
    "a\n"
    "                                     card that need not be here; time its operations first;\n"
    "                                     try the plan with real steps on this machine;\n"
    "                                     SPEC - is stdin; the model is a name, never a folder\n"
    "plimsoll-engine plan SPEC DIR        the plan of a job that is about to start; how far it is\n"
    "                                     goes to the events of the run directory DIR\n"
    "plimsoll-engine inspect MODEL        describe a model folder\n"
    "plimsoll-engine devices              list the CPU and the GPUs that one can compute on\n"
    "plimsoll-engine check FILE           check a dataset file without a model\n"
    "plimsoll-engine data --model DIR --file FILE [--row N | --rows A-B] [--KEY VALUE...]\n"
    "                                     what a file becomes as tokens: counts, lengths, "
    "problems,\n"
    "                                     or rows; keys of the run spec such as --data.mask last\n"
    "plimsoll-engine generate MODEL PROMPT [ADAPTER [DEVICE]]\n"
    "                                     answer a prompt, greedily, with or without (\"\") an\n"
    "                                     adapter, on cpu or cuda:N\n";

/* SIGTERM and SIGINT ask a run to stop. They are blocked and looked at between steps, never
 * handled: a handler may run on any thread's stack, and oneDNN's generated kernels keep data below
 * the stack pointer, where the handler's frame would destroy it (seen as heap corruption in one of
 * ten stops). Threads inherit the mask, so this comes before the first of them. */
static sigset_t stop_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    return set;
}

static bool stop_requested(void) {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
}

static void print_json(cJSON *json) {
    struct str text = {0};
    json_append(&text, json);
    puts(str_text(&text));
    str_release(&text);
    cJSON_Delete(json);
}

static void print_error(const struct err *e) {
    cJSON *const json = cJSON_CreateObject();
    cJSON *const error = cJSON_AddObjectToObject(json, "error");
    json_add_string(error, "status", status_name(e->status));
    json_add_string(error, "message", e->text);
    json_add_string(error, "param", e->param[0] ? e->param : NULL);
    print_json(json);
}

static enum status command_plan(char **args, cJSON **out, struct err *e) {
    mem_keep_freed(); /* a verdict is dozens of plans: a third of its time was the system's */
    return plan_ask(args, out, e);
}

static enum status command_inspect(char **args, cJSON **out, struct err *e) {
    return inspect_model(args[0], out, e);
}

static enum status command_devices(char **args, cJSON **out, struct err *e) {
    (void)args;
    return inspect_devices(out, e);
}

static enum status command_check(char **args, cJSON **out, struct err *e) {
    return dataset_check(args[0], CHECK_ERRORS_MAX, out, e);
}

static enum status command_data(char **args, cJSON **out, struct err *e) {
    return data_ask(args, out, e);
}

static enum status command_generate(char **args, cJSON **out, struct err *e) {
    const bool adapter = args[2] && args[2][0], device = args[2] && args[3];
    const struct question question = {.model = args[0],
                                      .prompt = args[1],
                                      .adapter = adapter ? args[2] : NULL,
                                      .device = device ? args[3] : "cpu"};
    return inspect_answer(&question, out, e);
}

static int run(const char *folder, bool rehearse) {
    struct err e = {0};
    const sigset_t set = stop_signals();
    start_trace("main");
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    const enum status status = rehearse ? run_rehearse(folder, stop_requested, &e)
                                        : run_execute(folder, stop_requested, false, &e);
    if (status == STATUS_OK) return RUN_EXIT_DONE;
    fprintf(stderr, "plimsoll-engine: %s\n", e.text);
    if (status == STATUS_LOST) return RUN_EXIT_LOST;
    return status == STATUS_INTERRUPTED ? RUN_EXIT_STOPPED : RUN_EXIT_FAILED;
}

static int attend(const char *folder) {
    struct err e = {0};
    const sigset_t set = stop_signals();
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (run_attend(folder, stop_requested, &e) == STATUS_OK) return RUN_EXIT_DONE;
    fprintf(stderr, "plimsoll-engine: %s\n", e.text);
    return e.status == STATUS_INTERRUPTED ? RUN_EXIT_STOPPED : RUN_EXIT_FAILED;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int arguments_min, arguments_max;
        enum status (*run)(char **args, cJSON **out, struct err *e);
    } COMMANDS[] = {
        {"plan", 1, PLAN_ARGUMENTS_MAX, command_plan},
        {"inspect", 1, 1, command_inspect},
        {"check", 1, 1, command_check},
        {"data", 4, DATA_ARGUMENTS_MAX, command_data},
        {"generate", 2, 4, command_generate},
        {"devices", 0, 0, command_devices},
    };
    if (argc == 3 && strcmp(argv[1], "run") == 0) return run(argv[2], false);
    if (argc == 3 && strcmp(argv[1], "rehearse") == 0) return run(argv[2], true);
    if (argc == 3 && strcmp(argv[1], "attend") == 0) return attend(argv[2]);
    for (size_t i = 0; argc > 1 && i < COUNT_OF(COMMANDS); i++) {
        const int arguments = argc - 2;
        if (strcmp(argv[1], COMMANDS[i].name) != 0) continue;
        if (arguments < COMMANDS[i].arguments_min || arguments > COMMANDS[i].arguments_max) break;
        struct err e = {0};
        cJSON *out = NULL;
        if (COMMANDS[i].run(argv + 2, &out, &e) == STATUS_OK) {
            print_json(out);
            return RUN_EXIT_DONE;
        }
        print_error(&e);
        return RUN_EXIT_FAILED;
    }
    fputs(USAGE, stderr);
    return RUN_EXIT_USAGE;
}
