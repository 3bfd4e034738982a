/* json.h - cJSON with manners: reading with errors that name the key, writing numbers that survive
 * the way back.
 *
 * The home of cJSON's conventions: files are bounded, parse errors carry line and column,
 * non-finite numbers are written as null. Trees are freed with cJSON_Delete. */
#ifndef PLIMSOLL_BASE_JSON_H
#define PLIMSOLL_BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

/* Parses exactly one JSON value; trailing text other than white space is an error. `what` names the
 * source in the error. Caller frees with cJSON_Delete. */
enum status json_parse(const char *text, size_t len, const char *what, cJSON **out, struct err *e);
/* Reads and parses a file of at most `bytes_max`. */
enum status json_read_file(const char *path, size_t bytes_max, cJSON **out, struct err *e);
/* Writes atomically, indented, with a final newline. */
enum status json_write_file(const char *path, const cJSON *value, struct err *e);
/* Appends the compact text of `value`. */
void json_append(struct str *out, const cJSON *value);

/* Reading a member of an object. Missing or null leaves *out alone and is STATUS_OK; a wrong type
 * is STATUS_INVALID and names the key. */
enum status json_get_i64(const cJSON *object, const char *key, int64_t *out, struct err *e);
enum status json_get_f64(const cJSON *object, const char *key, double *out, struct err *e);
enum status json_get_bool(const cJSON *object, const char *key, bool *out, struct err *e);
/* *out points into the tree. */
enum status json_get_string(const cJSON *object, const char *key, const char **out, struct err *e);
/* The member with exactly this key (case counts), or NULL. */
const cJSON *json_member(const cJSON *object, const char *key);

/* Adds a number, or null when it is not finite. Shortest text that reads back to the same double.
 */
void json_add_number(cJSON *object, const char *key, double value);
void json_add_i64(cJSON *object, const char *key, int64_t value);
void json_add_string(cJSON *object, const char *key, const char *value); /* NULL becomes null */
void json_add_bool(cJSON *object, const char *key, bool value);

#endif
