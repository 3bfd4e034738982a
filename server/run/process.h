/* process.h - starting the engine and knowing what became of it.
 *
 * Every process gets its own session, so that Ctrl-C in the server's terminal does not reach it and
 * so that its process id names the whole group. It is not tied to the server's life: a run goes on
 * when the server dies, and the next server finds it again by its identity (pid, start time, boot).
 */
#ifndef PLIMSOLL_SERVER_RUN_PROCESS_H
#define PLIMSOLL_SERVER_RUN_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"
#include "engine/rundir.h"

/* What to start. Files are created and appended to; NULL means /dev/null. */
struct process_command {
    const char *const *argv; /* ends with NULL; argv[0] is the path of the program */
    const char *stdout_path, *stderr_path;
    const char *const *environment; /* NAME=VALUE, ends with NULL: where the user has not set NAME;
                                       NULL: none */
};
/* Starts it; *identity names it for ever. STATUS_NOT_FOUND if the program is not there. */
enum status process_start(const struct process_command *command, struct rank_identity *identity,
                          struct err *e);

enum process_state {
    PROCESS_RUNNING,
    PROCESS_EXITED,   /* exit_code is its exit status */
    PROCESS_SIGNALED, /* exit_code is the signal that killed it */
    PROCESS_GONE      /* it was not our child: only that it is gone is known */
};
struct process_end {
    enum process_state state;
    int exit_code;
};
/* Looks once, without waiting. After anything but PROCESS_RUNNING the process must not be asked for
 * again. */
struct process_end process_poll(const struct rank_identity *identity);
/* Sends a signal to this process alone; one that is gone is fine. */
void process_signal(const struct rank_identity *identity, int signal_number);
/* Sends a signal to the whole group; a group that is gone is fine. */
void process_signal_group(const struct rank_identity *identity, int signal_number);
/* True while any process of the group lives. */
bool process_group_exists(const struct rank_identity *identity);

/* Waits. For looking again at something that tells nobody when it changes. */
void process_pause_ms(int milliseconds);

/* A program that is run for what it prints. */
struct process_question {
    const char *const *argv; /* ends with NULL */
    const struct str *input; /* what it reads from stdin; NULL: nothing */
    size_t bytes_max;        /* of stdout */
    int64_t limit_ms;
    /* NULL, or asked several times a second: true when nobody waits for the answer any more. */
    bool (*gone)(const void *context);
    const void *context;
};
/* Runs it to its end and takes what it prints: at most `bytes_max` of stdout, the last 4 KiB of
 * stderr. It is killed after `limit_ms` (STATUS_TIMEOUT) and when nobody waits
 * (STATUS_INTERRUPTED). *exit_code is 128 + signal when it was killed. */
struct process_output {
    struct str out, err;
    int exit_code;
};
enum status process_capture(const struct process_question *question, struct process_output *output,
                            struct err *e);
void process_output_release(struct process_output *output);

#endif
