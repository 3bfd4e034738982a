/* db.c - sqlite in write-ahead mode with full sync: what db_end reported is on disk, also after a
 * power cut.
 *
 * Statements are prepared at the first use. A busy database (a backup tool reading it) is waited
 * for; the user never sees "locked". */
#include "server/store/db.h"

#include <pthread.h>
#include <sqlite3.h>
#include <sys/vfs.h>

#include <math.h>

#include "base/mem.h"
#include "base/str.h"

enum { BUSY_TIMEOUT_MS = 10000 };

struct db {
    sqlite3 *handle;
    pthread_mutex_t mutex;
    int depth; /* of nested transactions */
    sqlite3_stmt *statements[SQL_COUNT];
};

#define SQL_TEXT(name, text) [name] = text,
static const char *const STATEMENTS[SQL_COUNT] = {SQL_STATEMENTS(SQL_TEXT)};
#undef SQL_TEXT

static const char *const MIGRATIONS[] = {SQL_MIGRATION_1, SQL_MIGRATION_2, SQL_MIGRATION_3};

static enum status db_error(struct db *db, const char *doing, struct err *e) {
    const int code = sqlite3_errcode(db->handle);
    const enum status status = code == SQLITE_FULL ? STATUS_NO_SPACE : STATUS_IO;
    return err_set(e, status, "%s the database: %s", doing, sqlite3_errmsg(db->handle));
}

static enum status execute(struct db *db, const char *sql, struct err *e) {
    if (sqlite3_exec(db->handle, sql, NULL, NULL, NULL) == SQLITE_OK) return STATUS_OK;
    return db_error(db, "writing to", e);
}

/* NFS, SMB, CIFS, FUSE and 9p by their magic numbers (statfs(2)). */
static bool on_network(const char *path) {
    struct statfs info;
    if (statfs(path, &info) != 0) return false;
    const unsigned long kind = (unsigned long)info.f_type & 0xFFFFFFFFul;
    const unsigned long network[] = {0x6969,     0x517B,     0xFF534D42,
                                     0xFE534D42, 0x65735546, 0x01021997};
    for (size_t i = 0; i < COUNT_OF(network); i++) {
        if (kind == network[i]) return true;
    }
    return false;
}

static enum status migrate(struct db *db, struct err *e) {
    sqlite3_stmt *ask = NULL;
    int64_t version = -1;
    if (sqlite3_prepare_v2(db->handle, "PRAGMA user_version", -1, &ask, NULL) == SQLITE_OK &&
        sqlite3_step(ask) == SQLITE_ROW) {
        version = sqlite3_column_int64(ask, 0);
    }
    sqlite3_finalize(ask);
    if (version < 0) return db_error(db, "reading", e);
    FAIL_IF(version > (int64_t)COUNT_OF(MIGRATIONS), STATUS_CONFLICT,
            "the database was written by a newer Plimsoll (schema %lld, this one knows %zu): "
            "start the newer version",
            (long long)version, COUNT_OF(MIGRATIONS));
    for (size_t i = (size_t)version; i < COUNT_OF(MIGRATIONS); i++) {
        char *sql =
            str_format("BEGIN IMMEDIATE;%s PRAGMA user_version=%zu;COMMIT;", MIGRATIONS[i], i + 1);
        const enum status status = execute(db, sql, e);
        mem_free(sql);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status prepare_connection(struct db *db, const char *path, struct err *e) {
    sqlite3_busy_timeout(db->handle, BUSY_TIMEOUT_MS);
    TRY(execute(db, on_network(path) ? "PRAGMA journal_mode=TRUNCATE" : "PRAGMA journal_mode=WAL",
                e));
    TRY(execute(db, "PRAGMA synchronous=FULL;PRAGMA cache_size=-32768", e));
    return migrate(db, e);
}

enum status db_open(struct db **out, const char *path, struct err *e) {
    struct db *db = mem_new(1, sizeof *db);
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&db->mutex, &kind);
    pthread_mutexattr_destroy(&kind);
    enum status status = STATUS_OK;
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &db->handle, flags, NULL) != SQLITE_OK) {
        status = db_error(db, "opening", e);
    }
    if (status == STATUS_OK) status = prepare_connection(db, path, e);
    if (status != STATUS_OK) {
        err_prefix(e, "%s", path);
        db_close(db);
        return status;
    }
    *out = db;
    return STATUS_OK;
}

void db_close(struct db *db) {
    if (!db) return;
    for (int i = 0; i < SQL_COUNT; i++) {
        sqlite3_finalize(db->statements[i]);
    }
    sqlite3_close(db->handle);
    pthread_mutex_destroy(&db->mutex);
    mem_free(db);
}

void db_lock(struct db *db) {
    pthread_mutex_lock(&db->mutex);
}

void db_unlock(struct db *db) {
    pthread_mutex_unlock(&db->mutex);
}

enum status db_begin(struct db *db, struct err *e) {
    db_lock(db);
    if (db->depth++ > 0) return STATUS_OK;
    const enum status status = execute(db, "BEGIN IMMEDIATE", e);
    if (status != STATUS_OK) {
        db->depth--;
        db_unlock(db);
    }
    return status;
}

/* A statement that is still in the middle of its rows would keep the transaction open. */
static void reset_all(struct db *db) {
    for (int i = 0; i < SQL_COUNT; i++) {
        if (db->statements[i]) sqlite3_reset(db->statements[i]);
    }
}

enum status db_end(struct db *db, enum status so_far, struct err *e) {
    ASSERT(db->depth > 0);
    enum status status = so_far;
    if (--db->depth == 0) {
        reset_all(db);
        if (status == STATUS_OK) status = execute(db, "COMMIT", e);
        if (status != STATUS_OK && !sqlite3_get_autocommit(db->handle)) {
            sqlite3_exec(db->handle, "ROLLBACK", NULL, NULL, NULL);
        }
    }
    db_unlock(db);
    return status;
}

struct db_query db_query(struct db *db, enum sql_name name) {
    sqlite3_stmt **const kept = &db->statements[name];
    if (!*kept) {
        const int code = sqlite3_prepare_v3(db->handle, STATEMENTS[name], -1,
                                            SQLITE_PREPARE_PERSISTENT, kept, NULL);
        ASSERT(code == SQLITE_OK); /* a statement of sql.h that does not fit the schema */
    }
    sqlite3_reset(*kept);
    sqlite3_clear_bindings(*kept);
    return (struct db_query){.db = db, .statement = *kept};
}

void db_bind_text(struct db_query *q, const char *text) {
    const int code = text ? sqlite3_bind_text(q->statement, ++q->bound, text, -1, SQLITE_TRANSIENT)
                          : sqlite3_bind_null(q->statement, ++q->bound);
    ASSERT(code != SQLITE_RANGE);
}

void db_bind_i64(struct db_query *q, int64_t value) {
    const int code = sqlite3_bind_int64(q->statement, ++q->bound, value);
    ASSERT(code == SQLITE_OK);
}

void db_bind_f64(struct db_query *q, double value) {
    const int code = isfinite(value) ? sqlite3_bind_double(q->statement, ++q->bound, value)
                                     : sqlite3_bind_null(q->statement, ++q->bound);
    ASSERT(code == SQLITE_OK);
}

enum status db_step(struct db_query *q, bool *row, struct err *e) {
    const int code = sqlite3_step(q->statement);
    *row = code == SQLITE_ROW;
    if (code == SQLITE_ROW) return STATUS_OK;
    enum status status = STATUS_OK;
    if (code != SQLITE_DONE) status = db_error(q->db, "reading", e);
    sqlite3_reset(q->statement);
    return status;
}

enum status db_run(struct db_query *q, int64_t *changed, struct err *e) {
    const int code = sqlite3_step(q->statement);
    enum status status = STATUS_OK;
    if (code != SQLITE_DONE && code != SQLITE_ROW) status = db_error(q->db, "writing to", e);
    sqlite3_reset(q->statement);
    if (changed) *changed = sqlite3_changes64(q->db->handle);
    return status;
}

const char *db_text(const struct db_query *q, int column) {
    return (const char *)sqlite3_column_text(q->statement, column);
}

int64_t db_i64(const struct db_query *q, int column) {
    return sqlite3_column_int64(q->statement, column);
}

double db_f64(const struct db_query *q, int column) {
    if (sqlite3_column_type(q->statement, column) == SQLITE_NULL) return NAN;
    return sqlite3_column_double(q->statement, column);
}
