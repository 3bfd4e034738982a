/* cli.h - the commands of `plimsoll`. Each takes what follows its name and returns the exit code.
 *
 * Commands get their surroundings (output, the signal flag) handed in, because only main.c may
 * own a global and only it may choose where output goes. */
#ifndef PLIMSOLL_SERVER_CLI_CLI_H
#define PLIMSOLL_SERVER_CLI_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

/* What a command may use of its surroundings. `signalled` is set by main's handler for SIGINT and
 * SIGTERM. */
struct cli {
    int argc;
    char **argv;         /* argv[0] is the command's name */
    const char *program; /* how plimsoll itself was called, for paths beside it */
    FILE *out;
    bool no_color; /* NO_COLOR is set: no escape sequences, whatever `out` is */
    volatile sig_atomic_t *signalled;
};
int cli_serve(const struct cli *cli);
int cli_train(const struct cli *cli);
int cli_data(const struct cli *cli);
int cli_plan(const struct cli *cli);

#endif
