/* db.h - one sqlite database behind a small door; db.c is the only home of sqlite3.h.
 *
 * One connection, one lock: whoever wants to run statements holds the lock (db_lock, recursive)
 * from the first bind to the last column. Statements are named (sql.h), prepared once and kept.
 * Inside db_begin ... db_end everything is one transaction that is on disk when db_end returns
 * STATUS_OK. */
#ifndef PLIMSOLL_SERVER_STORE_DB_H
#define PLIMSOLL_SERVER_STORE_DB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "server/store/sql.h"

struct db;
struct sqlite3_stmt;

/* Opens or creates the database file and brings it to the newest schema. On a network file system
 * the write-ahead log is off, because sqlite's shared memory does not work there. Close with
 * db_close. */
enum status db_open(struct db **out, const char *path, struct err *e);
void db_close(struct db *db);

void db_lock(struct db *db);
void db_unlock(struct db *db);
/* Takes the lock and starts a transaction (nesting is allowed: only the outermost counts). */
enum status db_begin(struct db *db, struct err *e);
/* Commits when `so_far` is STATUS_OK, rolls back otherwise, gives the lock back; returns the worse
 * of the two. */
enum status db_end(struct db *db, enum status so_far, struct err *e);

/* A named statement, reset and without values. Borrowed until the next db_query with the same name;
 * needs the lock. */
struct db_query {
    struct db *db;
    struct sqlite3_stmt *statement;
    int bound;
};
struct db_query db_query(struct db *db, enum sql_name name);
/* Each binds the next parameter. NULL text and non-finite numbers become NULL. Text is copied. */
void db_bind_text(struct db_query *q, const char *text);
void db_bind_i64(struct db_query *q, int64_t value);
void db_bind_f64(struct db_query *q, double value);
/* The next row: *row is false after the last one. */
enum status db_step(struct db_query *q, bool *row, struct err *e);
/* Runs a statement that gives no rows; *changed (may be NULL) is the number of rows it touched. */
enum status db_run(struct db_query *q, int64_t *changed, struct err *e);
/* Columns of the present row. Text points into the row and is NULL for NULL; a NULL number is 0 or
 * NaN. */
const char *db_text(const struct db_query *q, int column);
int64_t db_i64(const struct db_query *q, int column);
double db_f64(const struct db_query *q, int column);

#endif
