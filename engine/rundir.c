/* rundir.c - names in a run directory, who holds it, and the operator's wishes.
 *
 * A rank is known by pid, start time and boot id together, because pids are used again; that it
 * lives is known from /proc, that only one process is the rank from the lock on its pid file. The
 * pid file is written in place and padded to one size, so that the lock stays on the same file and
 * a reader never meets half of it. */
#include "engine/rundir.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/append.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/socket.h"

enum { PID_FILE_BYTES = 256, SMALL_FILE_MAX = 65536, PROC_FILE_MAX = 4096 };

static const char CHECKPOINT_PREFIX[] = "step-";

char *rundir_spec(const char *run) {
    return file_join(run, "spec.json");
}

char *rundir_control(const char *run) {
    return file_join(run, "control.json");
}

static char *numbered(const char *run, const char *before, int64_t rank, const char *after) {
    char *name = str_format("%s%lld%s", before, (long long)rank, after);
    char *path = file_join(run, name);
    mem_free(name);
    return path;
}

char *rundir_events(const char *run, int64_t rank) {
    return numbered(run, "events.", rank, ".jsonl");
}

char *rundir_pid(const char *run, int64_t rank) {
    return numbered(run, "rank.", rank, ".pid");
}

char *rundir_log(const char *run, int64_t rank) {
    return numbered(run, "rank.", rank, ".log");
}

char *rundir_memory(const char *run) {
    return file_join(run, "memory");
}

char *rundir_timeline(const char *run, int64_t rank) {
    return numbered(run, "memory/timeline.", rank, ".json");
}

char *rundir_snapshot(const char *run, int64_t rank) {
    return numbered(run, "memory/snapshot.", rank, ".pickle");
}

char *rundir_summary(const char *run, int64_t rank) {
    return numbered(run, "memory/summary.", rank, ".txt");
}

char *rundir_checkpoints(const char *run) {
    return file_join(run, "checkpoints");
}

char *rundir_checkpoint(const char *run, int64_t step) {
    char *folder = rundir_checkpoints(run);
    char *path = numbered(folder, CHECKPOINT_PREFIX, step, "");
    mem_free(folder);
    return path;
}

int64_t rundir_checkpoint_step(const char *name) {
    if (!str_starts_with(name, CHECKPOINT_PREFIX)) return -1;
    const char *const digits = name + strlen(CHECKPOINT_PREFIX);
    const size_t len = strlen(digits);
    if (len == 0 || len > 18 || strspn(digits, "0123456789") != len) return -1;
    if (digits[0] == '0' && len > 1) return -1; /* one spelling a step */
    int64_t step = 0;
    return str_to_i64(digits, "step", &step, NULL) == STATUS_OK ? step : -1;
}

static enum status read_boot_id(char out[40], struct err *e) {
    struct str text = {0};
    enum status status = file_read("/proc/sys/kernel/random/boot_id", PROC_FILE_MAX, &text, e);
    if (status == STATUS_OK) {
        const size_t len = strcspn(str_text(&text), "\n");
        if (len > 0 && len < 40) {
            memcpy(out, text.data, len);
            out[len] = 0;
        } else {
            status = err_set(e, STATUS_IO, "the boot id of this machine is not readable");
        }
    }
    str_release(&text);
    return status;
}

/* State letter and start time (fields 3 and 22 of proc(5)) of a process. The command in field 2 may
 * hold anything, so counting starts after its last parenthesis. */
static enum status read_process(int64_t pid, char *state, int64_t *start_time, struct err *e) {
    struct str text = {0};
    char *path = str_format("/proc/%lld/stat", (long long)pid);
    enum status status = file_read(path, PROC_FILE_MAX, &text, e);
    const char *const command_end = status == STATUS_OK ? strrchr(str_text(&text), ')') : NULL;
    int field = 2;
    const char *at = command_end ? command_end + 1 : "";
    while (*at && field < 22) {
        if (*at == ' ') field++;
        at++;
        if (field == 3 && at[-1] == ' ') *state = *at;
    }
    if (status == STATUS_OK) {
        char *number = mem_strndup(at, strcspn(at, " "));
        status = str_to_i64(number, path, start_time, e);
        mem_free(number);
    }
    mem_free(path);
    str_release(&text);
    return status;
}

static enum status write_identity(int fd, const char *path, struct err *e) {
    struct rank_identity self = {.pid = getpid()};
    char state = 0;
    TRY(read_boot_id(self.boot_id, e));
    TRY(read_process(self.pid, &state, &self.start_time, e));
    socket_host_name(self.host, sizeof self.host);
    struct str text = {0};
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "pid", self.pid);
    json_add_i64(json, "start_time", self.start_time);
    json_add_string(json, "boot_id", self.boot_id);
    json_add_string(json, "host", self.host);
    json_append(&text, json);
    cJSON_Delete(json);
    ASSERT(text.len < PID_FILE_BYTES);
    while (text.len < PID_FILE_BYTES - 1) {
        str_append_char(&text, ' ');
    }
    str_append_char(&text, '\n');
    const enum status status = lock_file_write(fd, path, text.data, text.len, e);
    str_release(&text);
    return status;
}

enum status rundir_claim(const char *run, int64_t rank, int *lock_fd, struct err *e) {
    char *path = rundir_pid(run, rank);
    int fd = -1;
    enum status status = lock_file_open(&fd, path, e);
    if (status == STATUS_CONFLICT) {
        struct rank_identity other = {0};
        const bool known = rundir_identity(run, rank, &other, NULL) == STATUS_OK;
        err_prefix(e, "rank %lld of %s is running already (process %lld on %s)", (long long)rank,
                   run, known ? (long long)other.pid : -1LL, other.host[0] ? other.host : "?");
    }
    if (status == STATUS_OK) status = write_identity(fd, path, e);
    if (status == STATUS_OK) {
        *lock_fd = fd;
    } else if (fd >= 0) {
        close(fd);
    }
    mem_free(path);
    return status;
}

static enum status parse_identity(const cJSON *json, const char *path, struct rank_identity *out,
                                  struct err *e) {
    const char *boot_id = "", *host = "";
    int64_t pid = 0, start_time = 0;
    TRY(json_get_i64(json, "pid", &pid, e));
    TRY(json_get_i64(json, "start_time", &start_time, e));
    TRY(json_get_string(json, "boot_id", &boot_id, e));
    TRY(json_get_string(json, "host", &host, e));
    const size_t len = strlen(boot_id);
    FAIL_IF(pid < 1 || len == 0 || len >= sizeof out->boot_id, STATUS_INVALID,
            "%s does not say which process the rank is", path);
    *out = (struct rank_identity){.pid = pid, .start_time = start_time};
    memcpy(out->boot_id, boot_id, len);
    snprintf(out->host, sizeof out->host, "%s", host);
    return STATUS_OK;
}

enum status rundir_identity(const char *run, int64_t rank, struct rank_identity *out,
                            struct err *e) {
    char *path = rundir_pid(run, rank);
    struct str text = {0};
    cJSON *json = NULL;
    enum status status = file_read(path, SMALL_FILE_MAX, &text, e);
    if (status == STATUS_OK && text.len == 0) {
        /* Created by a rank that has not come to write it yet. */
        status = err_set(e, STATUS_NOT_FOUND, "%s is empty", path);
    }
    if (status == STATUS_OK) status = json_parse(text.data, text.len, path, &json, e);
    if (status == STATUS_OK) status = parse_identity(json, path, out, e);
    cJSON_Delete(json);
    str_release(&text);
    mem_free(path);
    return status;
}

bool rank_is_alive(const struct rank_identity *identity) {
    char boot_id[40] = "";
    char state = 0;
    int64_t start_time = 0;
    if (identity->pid < 1) return false;
    if (read_boot_id(boot_id, NULL) != STATUS_OK) return false;
    if (strcmp(boot_id, identity->boot_id) != 0) return false;
    if (read_process(identity->pid, &state, &start_time, NULL) != STATUS_OK) return false;
    /* A zombie has ended and only waits for its parent. */
    return start_time == identity->start_time && state != 'Z' && state != 'X';
}

bool rundir_rank_is_held(const char *run, int64_t rank) {
    char *path = rundir_pid(run, rank);
    const bool held = lock_file_is_held(path);
    mem_free(path);
    return held;
}

/* FNV-1a; 0 is kept for "no file". */
static uint64_t mark_of(const struct str *text) {
    uint64_t hash = 0xCBF29CE484222325u;
    for (size_t i = 0; i < text->len; i++) {
        hash = (hash ^ (unsigned char)text->data[i]) * 0x100000001B3u;
    }
    return hash ? hash : 1;
}

static enum status copy_name(const cJSON *object, const char *key, char out[32], struct err *e) {
    const char *text = NULL;
    TRY(json_get_string(object, key, &text, e));
    if (text) snprintf(out, 32, "%s", text);
    return STATUS_OK;
}

static enum status parse_control(const cJSON *wish, struct run_control *out, struct err *e) {
    const cJSON *const cap = json_member(wish, "cap"), *const remedy = json_member(wish, "remedy");
    TRY(json_get_bool(wish, "stop", &out->stop, e));
    TRY(json_get_bool(wish, "snapshot", &out->snapshot, e));
    TRY(copy_name(wish, "undo", out->undo, e));
    out->has_cap = cap && !cJSON_IsNull(cap);
    if (out->has_cap) TRY(spec_cap_parse(&out->cap, cap, "cap", e));
    if (!remedy || cJSON_IsNull(remedy)) return STATUS_OK;
    FAIL_IF(!cJSON_IsObject(remedy), STATUS_INVALID, "remedy must be an object with name, accept");
    out->accept = true;
    TRY(json_get_bool(remedy, "accept", &out->accept, e));
    return copy_name(remedy, "name", out->remedy, e);
}

enum status rundir_control_read(const char *run, uint64_t *mark, bool *fresh,
                                struct run_control *out, struct err *e) {
    char *path = rundir_control(run);
    struct str text = {0};
    struct err missing = {0};
    cJSON *wish = NULL;
    *out = (struct run_control){0};
    enum status status = file_read(path, SMALL_FILE_MAX, &text, &missing);
    const uint64_t now = status == STATUS_OK ? mark_of(&text) : 0;
    if (fresh) *fresh = now != *mark;
    *mark = now;
    if (status == STATUS_NOT_FOUND) {
        status = STATUS_OK;
    } else if (status != STATUS_OK) {
        status = err_set(e, status, "%s", missing.text);
    } else {
        status = json_parse(str_text(&text), text.len, path, &wish, e);
        if (status == STATUS_OK) status = parse_control(wish, out, e);
        if (status != STATUS_OK) {
            *out = (struct run_control){0};
            err_prefix(e, "%s", path);
        }
    }
    cJSON_Delete(wish);
    str_release(&text);
    mem_free(path);
    return status;
}

static void keep_member(cJSON *wish, const cJSON *before, const char *key) {
    const cJSON *const member = json_member(before, key);
    if (!member || json_member(wish, key)) return;
    cJSON_AddItemToObject(wish, key, cJSON_Duplicate(member, true));
}

enum status rundir_control_wish(const char *run, cJSON *wish, struct err *e) {
    char *path = rundir_control(run);
    cJSON *before = NULL;
    int64_t serial = 0;
    if (json_read_file(path, SMALL_FILE_MAX, &before, NULL) == STATUS_OK) {
        (void)json_get_i64(before, "serial", &serial, NULL);
        keep_member(wish, before, "stop");
        keep_member(wish, before, "cap");
    }
    cJSON_DeleteItemFromObjectCaseSensitive(wish, "serial");
    json_add_i64(wish, "serial", serial + 1);
    const enum status status = json_write_file(path, wish, e);
    cJSON_Delete(before);
    cJSON_Delete(wish);
    mem_free(path);
    return status;
}

enum status rundir_request_stop(const char *run, struct err *e) {
    cJSON *const wish = cJSON_CreateObject();
    json_add_bool(wish, "stop", true);
    return rundir_control_wish(run, wish, e);
}

bool rundir_stop_requested(const char *run) {
    struct run_control control;
    struct err ignored = {0};
    uint64_t mark = 0;
    return rundir_control_read(run, &mark, NULL, &control, &ignored) == STATUS_OK && control.stop;
}

enum status rundir_clear_control(const char *run, struct err *e) {
    struct run_control control;
    struct err broken = {0};
    uint64_t mark = 0;
    char *path = rundir_control(run);
    enum status status = rundir_control_read(run, &mark, NULL, &control, &broken);
    if (status == STATUS_OK && control.has_cap) {
        cJSON *const wish = cJSON_CreateObject();
        cJSON_AddItemToObject(wish, "cap", spec_cap_to_json(&control.cap));
        status = json_write_file(path, wish, e);
        cJSON_Delete(wish);
    } else {
        status = file_remove_all(path, e);
    }
    mem_free(path);
    return status;
}
