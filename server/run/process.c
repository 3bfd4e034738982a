/* process.c - starting and watching the engine's processes.
 *
 * posix_spawn, because fork in a process with many threads is a trap. All other descriptors are
 * closed in the child and every signal is back to its default. */
#include "server/run/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

extern char **environ;

enum { STDERR_KEPT = 4096, PROC_FILE_MAX = 4096, REAP_STEP_MS = 5, GONE_LOOK_MS = 200 };

/* Field 22 of /proc/<pid>/stat; the name in field 2 may hold spaces and brackets, so count from the
 * last bracket. */
static int64_t start_time_of(int64_t pid) {
    char *path = str_format("/proc/%lld/stat", (long long)pid);
    struct str text = {0};
    struct err ignored = {0};
    int64_t value = 0;
    if (file_read(path, PROC_FILE_MAX, &text, &ignored) == STATUS_OK) {
        char *at = strrchr(text.data, ')');
        for (int field = 2; at && field < 22; field++) {
            at = strchr(at + 1, ' ');
        }
        char *const end = at ? strchr(at + 1, ' ') : NULL;
        if (end) {
            *end = 0;
            (void)str_to_i64(at + 1, path, &value, &ignored);
        }
    }
    str_release(&text);
    mem_free(path);
    return value;
}

static void read_boot_id(char out[40]) {
    struct str text = {0};
    struct err ignored = {0};
    out[0] = 0;
    if (file_read("/proc/sys/kernel/random/boot_id", 64, &text, &ignored) == STATUS_OK) {
        const size_t len = text.len < 36 ? text.len : 36;
        memcpy(out, text.data, len);
        out[len] = 0;
    }
    str_release(&text);
}

static void prepare_attributes(posix_spawnattr_t *attributes) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(attributes);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawnattr_setflags(attributes,
                             POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

static bool is_set(const char *setting) {
    const size_t name = strcspn(setting, "=") + 1;
    for (char **at = environ; *at; at++) {
        if (strncmp(*at, setting, name) == 0) return true;
    }
    return false;
}

/* Our environment for the engine, which adds this: threads that wait for each other sleep instead
 * of spinning. Spinning is a little faster on an idle machine and several times slower on one whose
 * cores also serve a page, a browser or another job. What the user has set stays. Caller frees. */
static char **engine_environment(const char *const *more) {
    static const char passive[] = "OMP_WAIT_POLICY=passive";
    size_t count = 0, extra = 0;
    while (environ[count]) {
        count++;
    }
    while (more && more[extra]) {
        extra++;
    }
    char **list = mem_new(count + extra + 2, sizeof *list);
    memcpy(list, environ, count * sizeof *list);
    if (!is_set(passive)) list[count++] = (char *)(uintptr_t)passive;
    for (size_t i = 0; i < extra; i++) {
        if (!is_set(more[i])) list[count++] = (char *)(uintptr_t)more[i];
    }
    return list;
}

static enum status spawn(const struct process_command *command, posix_spawn_file_actions_t *actions,
                         pid_t *pid, struct err *e) {
    const char *const *const argv = command->argv;
    posix_spawnattr_t attributes;
    prepare_attributes(&attributes);
    posix_spawn_file_actions_addclosefrom_np(actions, 3);
    char **environment = engine_environment(command->environment);
    const int code = posix_spawn(pid, argv[0], actions, &attributes, (char *const *)(uintptr_t)argv,
                                 environment);
    mem_free(environment);
    posix_spawnattr_destroy(&attributes);
    FAIL_IF(code != 0, code == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "cannot start %s: %s",
            argv[0], strerror(code));
    return STATUS_OK;
}

enum status process_start(const struct process_command *command, struct rank_identity *identity,
                          struct err *e) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const char *const paths[3] = {NULL, command->stdout_path, command->stderr_path};
    for (int fd = 0; fd < 3; fd++) {
        const int flags = fd == 0 ? O_RDONLY : O_WRONLY | O_CREAT | O_APPEND;
        posix_spawn_file_actions_addopen(&actions, fd, paths[fd] ? paths[fd] : "/dev/null", flags,
                                         0666);
    }
    pid_t pid = 0;
    const enum status status = spawn(command, &actions, &pid, e);
    posix_spawn_file_actions_destroy(&actions);
    TRY(status);
    *identity = (struct rank_identity){.pid = pid, .start_time = start_time_of(pid)};
    read_boot_id(identity->boot_id);
    return STATUS_OK;
}

struct process_end process_poll(const struct rank_identity *identity) {
    int how = 0;
    const pid_t got = waitpid((pid_t)identity->pid, &how, WNOHANG);
    if (got == 0) return (struct process_end){PROCESS_RUNNING, 0};
    if (got < 0) { /* not our child: a server before us started it */
        const bool alive = rank_is_alive(identity);
        return (struct process_end){alive ? PROCESS_RUNNING : PROCESS_GONE, 0};
    }
    if (WIFSIGNALED(how)) return (struct process_end){PROCESS_SIGNALED, WTERMSIG(how)};
    return (struct process_end){PROCESS_EXITED, WEXITSTATUS(how)};
}

void process_signal(const struct rank_identity *identity, int signal_number) {
    ASSERT(identity->pid > 1);
    (void)kill((pid_t)identity->pid, signal_number);
}

void process_signal_group(const struct rank_identity *identity, int signal_number) {
    ASSERT(identity->pid > 1);
    (void)kill((pid_t)-identity->pid, signal_number);
}

bool process_group_exists(const struct rank_identity *identity) {
    ASSERT(identity->pid > 1);
    return kill((pid_t)-identity->pid, 0) == 0 || errno == EPERM;
}

void process_pause_ms(int milliseconds) {
    (void)poll(NULL, 0, milliseconds);
}

/* The two pipes of a captured process. */
struct capture {
    const struct process_question *question;
    int fds[2];
    bool too_much, gone;
};

static void take(struct capture *c, int index, struct process_output *output) {
    char chunk[16384];
    const ssize_t count = read(c->fds[index], chunk, sizeof chunk);
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) {
        close(c->fds[index]);
        c->fds[index] = -1;
        return;
    }
    struct str *const to = index == 0 ? &output->out : &output->err;
    if (index == 0 && to->len + (size_t)count > c->question->bytes_max) {
        c->too_much = true;
        return;
    }
    str_append_bytes(to, chunk, (size_t)count);
    if (index == 1 && to->len > STDERR_KEPT) {
        const size_t extra = to->len - STDERR_KEPT;
        memmove(to->data, to->data + extra, STDERR_KEPT);
        str_truncate(to, STDERR_KEPT);
    }
}

/* Drains both pipes until they end, the time is over or nobody waits; true if they ended. */
static bool drain(struct capture *c, int64_t deadline_ns, struct process_output *output) {
    const struct process_question *const q = c->question;
    const int64_t slice_ms = q->gone ? GONE_LOOK_MS : 60000;
    while (c->fds[0] >= 0 || c->fds[1] >= 0) {
        const int64_t left_ms = (deadline_ns - clock_steady_ns()) / 1000000;
        c->gone = q->gone && q->gone(q->context);
        if (left_ms <= 0 || c->too_much || c->gone) return false;
        struct pollfd wait[2] = {{c->fds[0], POLLIN, 0}, {c->fds[1], POLLIN, 0}};
        const int ready = poll(wait, 2, (int)(left_ms > slice_ms ? slice_ms : left_ms));
        for (int i = 0; ready > 0 && i < 2; i++) {
            if (c->fds[i] >= 0 && wait[i].revents) take(c, i, output);
        }
    }
    return true;
}

/* Waits for the process, and kills it when the time is over. */
static int reap(pid_t pid, int64_t deadline_ns, bool in_time) {
    int how = 0;
    if (!in_time) (void)kill(-pid, SIGKILL);
    while (waitpid(pid, &how, in_time ? WNOHANG : 0) == 0) {
        if (clock_steady_ns() > deadline_ns) {
            (void)kill(-pid, SIGKILL);
            in_time = false;
        }
        process_pause_ms(REAP_STEP_MS);
    }
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}

static enum status open_pipes(int out[2], int err[2], struct err *e) {
    FAIL_IF(pipe2(out, O_CLOEXEC) != 0, STATUS_IO, "cannot open a pipe: %s", strerror(errno));
    if (pipe2(err, O_CLOEXEC) == 0) return STATUS_OK;
    const int code = errno;
    close(out[0]);
    close(out[1]);
    return err_set(e, STATUS_IO, "cannot open a pipe: %s", strerror(code));
}

static enum status capture_outcome(const struct capture *c, bool in_time, struct err *e) {
    const struct process_question *const q = c->question;
    const char *const program = q->argv[0], *const word = q->argv[1] ? q->argv[1] : "";
    FAIL_IF(c->too_much, STATUS_INVALID, "%s printed more than %zu bytes", program, q->bytes_max);
    FAIL_IF(c->gone, STATUS_INTERRUPTED, "%s %s was stopped: nobody waits for it", program, word);
    FAIL_IF(!in_time, STATUS_TIMEOUT, "%s %s took more than %lld s and was stopped", program, word,
            (long long)(q->limit_ms / 1000));
    return STATUS_OK;
}

/* A file without a name that holds the input: unlike a pipe it is never waited for. */
static enum status open_input(const struct str *input, int *fd, struct err *e) {
    *fd = memfd_create("input", MFD_CLOEXEC);
    size_t written = 0;
    while (*fd >= 0 && written < input->len) {
        const ssize_t count = write(*fd, input->data + written, input->len - written);
        if (count <= 0) break;
        written += (size_t)count;
    }
    if (*fd >= 0 && written == input->len && lseek(*fd, 0, SEEK_SET) == 0) return STATUS_OK;
    if (*fd >= 0) close(*fd);
    return err_set(e, STATUS_IO, "the question to the engine cannot be written: %s",
                   strerror(errno));
}

enum status process_capture(const struct process_question *question, struct process_output *output,
                            struct err *e) {
    int out[2], err[2], in = -1;
    if (question->input) TRY(open_input(question->input, &in, e));
    const enum status opened = open_pipes(out, err, e);
    if (opened != STATUS_OK) {
        if (in >= 0) close(in);
        return opened;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (in >= 0) {
        posix_spawn_file_actions_adddup2(&actions, in, 0);
    } else {
        posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    }
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    pid_t pid = 0;
    const struct process_command command = {.argv = question->argv};
    const enum status status = spawn(&command, &actions, &pid, e);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    if (in >= 0) close(in);
    struct capture c = {.question = question, .fds = {out[0], err[0]}};
    bool in_time = true;
    if (status == STATUS_OK) {
        const int64_t deadline_ns = clock_steady_ns() + question->limit_ms * 1000000;
        in_time = drain(&c, deadline_ns, output);
        output->exit_code = reap(pid, deadline_ns, in_time);
    }
    for (int i = 0; i < 2; i++) {
        if (c.fds[i] >= 0) close(c.fds[i]);
    }
    TRY(status);
    return capture_outcome(&c, in_time, e);
}

void process_output_release(struct process_output *output) {
    if (!output) return;
    str_release(&output->out);
    str_release(&output->err);
    *output = (struct process_output){0};
}
