/* ranks.c - see ranks.h.
 *
 * What Open MPI should do differently here is said through its own variables; a user's own settings
 * stay. Partition, account, time limit and the like of Slurm are the server's SBATCH_* variables,
 * which sbatch reads by itself. */
#include "server/run/ranks.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/spec.h"
#include "server/run/slurm.h"

extern char **environ;

enum { WORDS_MAX = 512 };

static enum ranks_launcher launcher_of(const char *name) {
    static const char *const NAMES[] = {"local", "mpi", "slurm", "external"};
    for (int i = 0; name && i < (int)COUNT_OF(NAMES); i++) {
        if (strcmp(name, NAMES[i]) == 0) return (enum ranks_launcher)i;
    }
    return RANKS_LOCAL;
}

struct ranks_terms ranks_terms_of(const char *spec) {
    struct ranks_terms terms = {.ranks = 1};
    cJSON *value = NULL;
    const char *launcher = NULL, *hostfile = NULL;
    struct err ignored = {0};
    if (spec && json_parse(spec, strlen(spec), "spec", &value, &ignored) == STATUS_OK) {
        const cJSON *const parallel = json_member(value, "parallel");
        (void)json_get_i64(parallel, "ranks", &terms.ranks, &ignored);
        (void)json_get_string(parallel, "launcher", &launcher, &ignored);
        (void)json_get_string(parallel, "hostfile", &hostfile, &ignored);
    }
    if (terms.ranks < 1) terms.ranks = 1;
    terms.launcher = launcher_of(launcher);
    terms.hostfile = hostfile ? mem_strdup(hostfile) : NULL;
    cJSON_Delete(value);
    return terms;
}

void ranks_terms_release(struct ranks_terms *terms) {
    mem_free(terms->hostfile);
    *terms = (struct ranks_terms){0};
}

bool ranks_are_led(const struct ranks_terms *terms) {
    return terms->ranks > 1 || terms->launcher != RANKS_LOCAL;
}

void ranks_say_start(const struct ranks_terms *terms, const char *run, struct str *out) {
    const long long ranks = (long long)terms->ranks;
    if (terms->launcher == RANKS_MPI)
        str_appendf(out, ". %lld ranks on the hosts of %s", ranks, terms->hostfile);
    if (terms->launcher == RANKS_SLURM)
        str_appendf(out, ". Submitted to Slurm as %s: it starts when Slurm has room for %lld ranks",
                    file_base_name(run), ranks);
    if (terms->launcher == RANKS_EXTERNAL)
        str_appendf(out,
                    ". Waiting for %lld ranks: start each of them, on any machine that sees the "
                    "run directory, with RANK=0 (to %lld) WORLD_SIZE=%lld plimsoll-engine run %s",
                    ranks, ranks - 1, ranks, run);
}

/* The first program of this name in PATH, or NULL. Caller frees. */
static char *find_program(const char *name) {
    const char *at = environment("PATH");
    while (at && *at) {
        const size_t len = strcspn(at, ":");
        char *const folder = mem_strndup(at, len), *const path = file_join(folder, name);
        mem_free(folder);
        if (len > 0 && access(path, X_OK) == 0) return path;
        mem_free(path);
        at += len + (at[len] == ':');
    }
    return NULL;
}

/* Both take ownership of the text. */
static void add_word(struct ranks_command *command, char *word) {
    ASSERT(command->argc < WORDS_MAX);
    command->argv[command->argc++] = word;
}

static void add_setting(struct ranks_command *command, char *setting) {
    ASSERT(command->settings < WORDS_MAX);
    command->environment[command->settings++] = setting;
}

static void add_words(struct ranks_command *command, const char *const *words) {
    for (; *words; words++) {
        add_word(command, mem_strdup(*words));
    }
}

/* mpirun, and what it should know. */
static enum status begin_mpirun(struct ranks_command *command, const struct ranks_terms *terms,
                                struct err *e) {
    char *const mpirun = find_program("mpirun");
    const bool local = terms->launcher == RANKS_LOCAL;
    if (!mpirun)
        return err_set_param(e, STATUS_UNSUPPORTED, local ? "parallel.ranks" : "parallel.launcher",
                             "parallel.%s is %s%lld: mpirun, which starts the ranks, is not "
                             "installed here; install openmpi-bin, or set %s",
                             local ? "ranks" : "launcher", local ? "" : "mpi and parallel.ranks ",
                             (long long)terms->ranks,
                             local ? "parallel.ranks to 1" : "parallel.launcher to local");
    add_word(command, mpirun);
    /* Root is what a container runs as; ranks may be more than cores; and a rank's threads may use
       all of its share, wherever that is. */
    add_setting(command, mem_strdup("OMPI_ALLOW_RUN_AS_ROOT=1"));
    add_setting(command, mem_strdup("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"));
    add_setting(command, mem_strdup("OMPI_MCA_rmaps_base_oversubscribe=1"));
    add_setting(command, mem_strdup("OMPI_MCA_hwloc_base_binding_policy=none"));
    return STATUS_OK;
}

static enum status make_local(struct ranks_command *command, const struct ranks_terms *terms,
                              struct err *e) {
    if (terms->ranks == 1) return STATUS_OK;
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN), ranks = terms->ranks;
    TRY(begin_mpirun(command, terms, e));
    add_word(command, mem_strdup("-n"));
    add_word(command, str_format("%lld", (long long)ranks));
    /* The ranks share this machine's cores. */
    add_setting(command,
                str_format("OMP_NUM_THREADS=%lld", (long long)(cores > ranks ? cores / ranks : 1)));
    return STATUS_OK;
}

/* Settings of the ranks that mpirun does not carry to other hosts by itself. */
static void forward_environment(struct ranks_command *command) {
    static const char *const PREFIXES[] = {"PLIMSOLL_", "OMP_", "NCCL_", "XDG_CACHE_HOME="};
    for (char **at = environ; *at; at++) {
        for (size_t i = 0; i < COUNT_OF(PREFIXES); i++) {
            const bool wanted = str_starts_with(*at, PREFIXES[i]) &&
                                !str_starts_with(*at, "PLIMSOLL_API_KEY") &&
                                command->argc < WORDS_MAX / 2;
            if (!wanted) continue;
            add_word(command, mem_strdup("-x"));
            add_word(command, mem_strndup(*at, strcspn(*at, "=")));
        }
    }
    if (environment("OMP_WAIT_POLICY")) return; /* else process_start sets it */
    add_word(command, mem_strdup("-x"));
    add_word(command, mem_strdup("OMP_WAIT_POLICY"));
}

static enum status make_mpi(struct ranks_command *command, const struct ranks_terms *terms,
                            struct err *e) {
    TRY(begin_mpirun(command, terms, e));
    const char *const hostfile = terms->hostfile ? terms->hostfile : "";
    if (!file_exists(hostfile))
        return err_set_param(e, STATUS_NOT_FOUND, "parallel.hostfile",
                             "parallel.hostfile: there is no file %.300s on the machine of the "
                             "appliance",
                             hostfile);
    add_words(command,
              (const char *const[]){"--hostfile", hostfile, "--map-by", "slot", "-np", NULL});
    add_word(command, str_format("%lld", (long long)terms->ranks));
    forward_environment(command);
    /* A machine whose cable is cut must not hold up the end of the others for minutes. */
    add_setting(command, mem_strdup("OMPI_MCA_oob_tcp_keepalive_time=5"));
    add_setting(command, mem_strdup("OMPI_MCA_oob_tcp_keepalive_intvl=2"));
    add_setting(command, mem_strdup("OMPI_MCA_oob_tcp_keepalive_probes=3"));
    return STATUS_OK;
}

static enum status make_slurm(struct ranks_command *command, const struct ranks_terms *terms,
                              const char *engine, const char *run, struct err *e) {
    char *const sbatch = find_program("sbatch"), *const srun = find_program("srun");
    const bool there = sbatch && srun;
    mem_free(srun);
    if (!there) {
        mem_free(sbatch);
        return err_set_param(e, STATUS_UNSUPPORTED, "parallel.launcher",
                             "parallel.launcher is slurm: sbatch and srun are not installed here; "
                             "the appliance must run where jobs of Slurm are submitted");
    }
    add_word(command, sbatch);
    char *const script = slurm_script(run), *const log = rundir_log(run, 0);
    const char *const name = file_base_name(run);
    add_words(command,
              (const char *const[]){"--parsable", "--wait", "--open-mode=append", "--output", log,
                                    "--chdir", run, "--job-name", name, "--ntasks", NULL});
    add_word(command, str_format("%lld", (long long)terms->ranks));
    add_word(command, mem_strdup(script));
    mem_free(log);
    mem_free(script);
    command->stdout_path = slurm_job_file(run);
    return slurm_prepare(engine, run, e);
}

enum status ranks_command_make(struct ranks_command *command, const struct ranks_terms *terms,
                               const char *engine, const char *run, struct err *e) {
    *command =
        (struct ranks_command){.argv = mem_new(WORDS_MAX + 1, sizeof *command->argv),
                               .environment = mem_new(WORDS_MAX + 1, sizeof *command->environment)};
    if (terms->launcher == RANKS_SLURM) return make_slurm(command, terms, engine, run, e);
    if (terms->launcher == RANKS_MPI) {
        TRY(make_mpi(command, terms, e));
    } else if (terms->launcher == RANKS_LOCAL) {
        TRY(make_local(command, terms, e));
    }
    const char *const verb = terms->launcher == RANKS_EXTERNAL ? "attend" : "run";
    add_words(command, (const char *const[]){engine, verb, run, NULL});
    return STATUS_OK;
}

void ranks_command_release(struct ranks_command *command) {
    for (int64_t i = 0; i < command->argc; i++) {
        mem_free(command->argv[i]);
    }
    for (int64_t i = 0; i < command->settings; i++) {
        mem_free(command->environment[i]);
    }
    mem_free(command->argv);
    mem_free(command->environment);
    mem_free(command->stdout_path);
    *command = (struct ranks_command){0};
}

void ranks_kill(const char *run, const struct ranks_terms *terms) {
    for (int64_t rank = 0; rank < terms->ranks; rank++) {
        struct rank_identity identity = {0};
        struct err ignored = {0};
        if (rundir_identity(run, rank, &identity, &ignored) == STATUS_OK &&
            rank_is_alive(&identity))
            process_signal(&identity, SIGKILL);
    }
    if (terms->launcher != RANKS_SLURM) return;
    char *const scancel = find_program("scancel");
    if (scancel) slurm_cancel(scancel, run);
    mem_free(scancel);
}

bool ranks_any_there(const char *run, const struct ranks_terms *terms) {
    for (int64_t rank = 0; rank < terms->ranks; rank++) {
        if (rundir_rank_is_held(run, rank)) return true;
    }
    return false;
}
