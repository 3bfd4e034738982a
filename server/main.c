/* main.c - `plimsoll`: which command, and the one flag that a signal may set.
 *
 * The handler only sets the flag; whoever waits looks at it ten times a second, so it does not
 * matter which thread is interrupted. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/app.h"
#include "server/cli/cli.h"

static volatile sig_atomic_t signalled;

static void on_signal(int number) {
    signalled = number;
}

static const char HELP[] =
    "plimsoll - fine-tuning that does not run out of memory\n"
    "\n"
    "  plimsoll serve    page, REST API and jobs on one port\n"
    "  plimsoll train    fine-tune on a file through a server, with a progress line\n"
    "  plimsoll data     what a model would learn from a file: counts, problems, coloured tokens\n"
    "  plimsoll plan     the memory of a run, to the byte, before it is started\n"
    "  plimsoll version\n"
    "\n"
    "Each command explains itself with --help.\n";

static void catch_signals(void) {
    const struct sigaction stop = {.sa_handler = on_signal};
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

int main(int argc, char **argv) {
    const char *const command = argc > 1 ? argv[1] : "--help";
    catch_signals();
    const char *const no_color = getenv("NO_COLOR");
    const struct cli cli = {argc - 1, argv + 1, argv[0], stdout, no_color && *no_color, &signalled};
    if (strcmp(command, "serve") == 0) return cli_serve(&cli);
    if (strcmp(command, "train") == 0) return cli_train(&cli);
    if (strcmp(command, "data") == 0) return cli_data(&cli);
    if (strcmp(command, "plan") == 0) return cli_plan(&cli);
    if (strcmp(command, "version") == 0 || strcmp(command, "--version") == 0) {
        printf("plimsoll " PLIMSOLL_VERSION "\n");
        return 0;
    }
    const int help = strcmp(command, "help") == 0 || strcmp(command, "--help") == 0;
    fputs(HELP, help ? stdout : stderr);
    return help ? 0 : 2;
}
