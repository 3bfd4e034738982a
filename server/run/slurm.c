/* slurm.c - see slurm.h.
 *
 * The ranks find each other through the run directory and exchange without MPI, so srun needs no
 * plugin: --mpi=none, which every Slurm has. */
#include "server/run/slurm.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/run/process.h"

enum { CANCEL_MS = 5000, NUMBER_MAX = 128, ANSWER_MAX = 4096 };

char *slurm_script(const char *run) {
    return file_join(run, "slurm.sh");
}

char *slurm_job_file(const char *run) {
    return file_join(run, "slurm.job");
}

/* In single quotes for the shell; one inside ends, escapes and begins them again. */
static void append_quoted(struct str *out, const char *text) {
    str_append_char(out, '\'');
    for (; *text; text++) {
        if (*text == '\'') {
            str_append(out, "'\\''");
        } else {
            str_append_char(out, *text);
        }
    }
    str_append_char(out, '\'');
}

enum status slurm_prepare(const char *engine, const char *run, struct err *e) {
    struct str text = {0};
    char *const script = slurm_script(run), *const job = slurm_job_file(run);
    enum status status = STATUS_OK;
    str_append(&text, "#!/bin/sh\n# Written by plimsoll: starts the ranks of this run.\n"
                      "exec srun --mpi=none ");
    append_quoted(&text, engine);
    str_append(&text, " run ");
    append_quoted(&text, run);
    str_append_char(&text, '\n');
    GUARD(file_write_atomic(script, str_text(&text), text.len, e));
    GUARD(file_remove_all(job, e));
done:
    str_release(&text);
    mem_free(script);
    mem_free(job);
    return status;
}

/* What sbatch has printed: NUMBER or NUMBER;CLUSTER. "" where there is none. */
static void read_number(const char *path, char number[32]) {
    struct str text = {0};
    struct err ignored = {0};
    number[0] = 0;
    if (file_read(path, NUMBER_MAX, &text, &ignored) == STATUS_OK)
        snprintf(number, 32, "%.*s", (int)strspn(str_text(&text), "0123456789"), str_text(&text));
    str_release(&text);
}

void slurm_cancel(const char *scancel, const char *run) {
    char *const path = slurm_job_file(run);
    char number[32];
    struct process_output output = {0};
    struct err ignored = {0};
    read_number(path, number);
    /* sbatch may have been killed before it told the number; the name is the job's own. */
    char *const which =
        number[0] ? mem_strdup(number) : str_format("--name=%s", file_base_name(run));
    const char *const at_once[] = {scancel, "--signal=KILL", "--full", which, NULL};
    const char *const from_queue[] = {scancel, which, NULL};
    const char *const *const both[] = {at_once, from_queue};
    for (int i = 0; i < 2; i++) {
        const struct process_question question = {
            .argv = both[i], .bytes_max = ANSWER_MAX, .limit_ms = CANCEL_MS};
        (void)process_capture(&question, &output, &ignored);
        process_output_release(&output);
    }
    mem_free(path);
    mem_free(which);
}
