/* store.c - the data folder: one owner at a time, and no leftovers of an upload that a crash cut
 * short.
 *
 * The lock is a flock on an open file, so it is gone with the process however that dies. */
#include "server/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/store/store_open.h"

static enum status lock_folder(struct store *store, struct err *e) {
    char *path = file_join(store->folder, "lock");
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    const int code = errno;
    mem_free(path);
    FAIL_IF(fd < 0, STATUS_IO, "%s is not writable (%s): choose another folder with --data",
            store->folder, strerror(code));
    store->lock_fd_plus_1 = fd + 1;
    FAIL_IF(flock(fd, LOCK_EX | LOCK_NB) != 0, STATUS_CONFLICT,
            "another Plimsoll server is using %s: stop it, or give this one its own folder "
            "with --data",
            store->folder);
    return STATUS_OK;
}

/* A file without a row belongs to an upload whose client never got an answer. */
static enum status remove_orphans(struct store *store, struct err *e) {
    char *folder = file_join(store->folder, "files");
    char **names = NULL;
    size_t count = 0;
    enum status status = file_list(folder, &names, &count, e);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        char *id = mem_strdup(names[i]);
        char *const dot = strchr(id, '.');
        if (dot) *dot = 0;
        struct file_row row = {0};
        struct err missing = {0};
        const bool temporary = strstr(names[i], ".tmp.") != NULL;
        const enum status found = store_file_get(store, id, &row, &missing);
        if (temporary || found == STATUS_NOT_FOUND) {
            char *path = file_join(folder, names[i]);
            status = file_remove_all(path, e);
            mem_free(path);
        }
        file_row_release(&row);
        mem_free(id);
    }
    file_names_free(names, count);
    mem_free(folder);
    return status;
}

static enum status open_inside(struct store *store, struct err *e) {
    TRY(file_make_folder(store->folder, e));
    TRY(lock_folder(store, e));
    const char *const inner[] = {"files", "runs"};
    for (size_t i = 0; i < COUNT_OF(inner); i++) {
        char *path = file_join(store->folder, inner[i]);
        const enum status status = file_make_folder(path, e);
        mem_free(path);
        TRY(status);
    }
    char *path = file_join(store->folder, "plimsoll.db");
    const enum status status = db_open(&store->db, path, e);
    mem_free(path);
    TRY(status);
    return remove_orphans(store, e);
}

enum status store_open(struct store **out, const char *folder, struct err *e) {
    struct store *store = mem_new(1, sizeof *store);
    store->folder = mem_strdup(folder);
    const enum status status = open_inside(store, e);
    if (status != STATUS_OK) {
        store_close(store);
        return status;
    }
    *out = store;
    return STATUS_OK;
}

void store_close(struct store *store) {
    if (!store) return;
    db_close(store->db);
    if (store->lock_fd_plus_1) close(store->lock_fd_plus_1 - 1);
    mem_free(store->folder);
    mem_free(store);
}

const char *store_folder(const struct store *store) {
    return store->folder;
}

char *store_run_folder(const struct store *store, const char *job_id) {
    ASSERT(file_name_is_plain(job_id));
    return str_format("%s/runs/%s", store->folder, job_id);
}

char *store_file_path(const struct store *store, const char *file_id, const char *extension) {
    ASSERT(file_name_is_plain(file_id));
    return str_format("%s/files/%s%s", store->folder, file_id, extension);
}

void store_new_id(char out[64], const char *prefix) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    enum { LENGTH = 24 };
    unsigned char random[LENGTH];
    const ssize_t got = getrandom(random, sizeof random, 0);
    ASSERT(got == LENGTH);
    const size_t start = strlen(prefix);
    ASSERT(start + LENGTH < 64);
    memcpy(out, prefix, start);
    for (int i = 0; i < LENGTH; i++) {
        out[start + (size_t)i] = letters[random[i] % (sizeof letters - 1)];
    }
    out[start + LENGTH] = 0;
}

enum status store_begin(struct store *store, struct err *e) {
    return db_begin(store->db, e);
}

enum status store_end(struct store *store, enum status so_far, struct err *e) {
    return db_end(store->db, so_far, e);
}

enum status store_inspection_get(struct store *store, const char *path, const char *stamp,
                                 char **report, struct err *e) {
    *report = NULL;
    bool row = false;
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_INSPECTION_GET);
    db_bind_text(&q, path);
    db_bind_text(&q, stamp);
    const enum status status = db_step(&q, &row, e);
    if (row) *report = mem_strdup(db_text(&q, 0));
    db_unlock(store->db);
    return status;
}

enum status store_inspection_put(struct store *store, const char *path, const char *stamp,
                                 const char *report, struct err *e) {
    db_lock(store->db);
    struct db_query q = db_query(store->db, SQL_INSPECTION_PUT);
    db_bind_text(&q, path);
    db_bind_text(&q, stamp);
    db_bind_text(&q, report);
    const enum status status = db_run(&q, NULL, e);
    db_unlock(store->db);
    return status;
}
