/* multipart.h - a multipart/form-data body, read in pieces of any size.
 *
 * Form fields are small and kept; the one file part is handed on as it comes, so that memory stays
 * bounded whatever the file's size. Format: RFC 7578 and RFC 2046 section 5.1. Knows nothing of
 * HTTP. */
#ifndef PLIMSOLL_SERVER_WEB_MULTIPART_H
#define PLIMSOLL_SERVER_WEB_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/str.h"

enum { MULTIPART_FIELDS_MAX = 16, MULTIPART_FIELD_BYTES_MAX = 4096, MULTIPART_HEAD_MAX = 8192 };

struct multipart_field {
    char *name;
    struct str value;
};

/* Where the file's bytes go. */
struct multipart_sink {
    enum status (*write)(void *context, const void *bytes, size_t count, struct err *e);
    void *context;
};

struct multipart {
    struct str delimiter; /* CR LF -- boundary */
    struct str pending;   /* bytes that may be the start of a delimiter, or of a part's head */
    struct multipart_sink sink;
    int state; /* of multipart.c */
    int field; /* index of the field being read, -1: the file */
    bool file_seen;
    char *file_name; /* as the client gave it: data only, never a path; NULL before the part was
                        seen */
    struct multipart_field fields[MULTIPART_FIELDS_MAX];
    int field_count;
};

/* Takes the boundary out of a Content-Type header. STATUS_INVALID if it is not multipart/form-data
 * with a boundary. Release with multipart_release, also after an error. */
enum status multipart_init(struct multipart *m, const char *content_type,
                           struct multipart_sink sink, struct err *e);
void multipart_release(struct multipart *m);
/* Takes the next piece. Errors of the sink are handed on. */
enum status multipart_feed(struct multipart *m, const char *bytes, size_t count, struct err *e);
/* STATUS_INVALID if the body was cut short. */
enum status multipart_finish(struct multipart *m, struct err *e);
/* The text of a form field, or NULL. Points into the parser. */
const char *multipart_value(const struct multipart *m, const char *name);

#endif
