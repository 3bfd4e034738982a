/* multipart.c - looks for the delimiter with a window of its own length: bytes are handed on as
 * soon as they cannot be the start of one. States:
 *
 *   PREAMBLE -- delimiter --> AFTER_DELIMITER -- CR LF --> HEAD -- empty line --> BODY
 *   BODY -- delimiter --> AFTER_DELIMITER -- "--" --> END (whatever follows is ignored) */
#include "server/web/multipart.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

enum state { PREAMBLE, AFTER_DELIMITER, HEAD, BODY, END };

enum { BOUNDARY_MAX = 70, FILE_FIELD = -1 };

/* The value of `key=` in a header, quoted or not; false if it is not there. */
static bool header_parameter(const char *header, const char *key, struct str *out) {
    const size_t len = strlen(key);
    for (const char *at = header; (at = strchr(at, ';'));) {
        at++;
        while (*at == ' ' || *at == '\t') {
            at++;
        }
        if (strncasecmp(at, key, len) != 0 || at[len] != '=') continue;
        at += len + 1;
        const bool quoted = *at == '"';
        if (quoted) at++;
        while (*at && (quoted ? *at != '"' : *at != ';' && *at != ' ')) {
            if (quoted && *at == '\\' && (at[1] == '"' || at[1] == '\\')) at++;
            str_append_char(out, *at++);
        }
        return true;
    }
    return false;
}

enum status multipart_init(struct multipart *m, const char *content_type,
                           struct multipart_sink sink, struct err *e) {
    *m = (struct multipart){.sink = sink, .state = PREAMBLE, .field = FILE_FIELD};
    struct str boundary = {0};
    const bool form = content_type && strncasecmp(content_type, "multipart/form-data", 19) == 0;
    const bool found = form && header_parameter(content_type, "boundary", &boundary);
    const bool fine = found && boundary.len > 0 && boundary.len <= BOUNDARY_MAX;
    if (fine) {
        str_append(&m->delimiter, "\r\n--");
        str_append(&m->delimiter, str_text(&boundary));
        str_append(&m->pending, "\r\n"); /* the first delimiter has no line break before it */
    }
    str_release(&boundary);
    FAIL_IF(!fine, STATUS_INVALID,
            "upload a file as multipart/form-data with the fields `file` and `purpose`");
    return STATUS_OK;
}

void multipart_release(struct multipart *m) {
    if (!m) return;
    str_release(&m->delimiter);
    str_release(&m->pending);
    mem_free(m->file_name);
    for (int i = 0; i < m->field_count; i++) {
        mem_free(m->fields[i].name);
        str_release(&m->fields[i].value);
    }
    *m = (struct multipart){0};
}

const char *multipart_value(const struct multipart *m, const char *name) {
    for (int i = 0; i < m->field_count; i++) {
        if (str_equal(m->fields[i].name, name)) return str_text(&m->fields[i].value);
    }
    return NULL;
}

static enum status begin_file(struct multipart *m, const struct str *file_name, struct err *e) {
    FAIL_IF(m->file_seen, STATUS_INVALID,
            "upload one file at a time: the form has two `file` parts");
    m->file_seen = true;
    m->file_name = mem_strdup(str_text(file_name));
    m->field = FILE_FIELD;
    return STATUS_OK;
}

static enum status begin_field(struct multipart *m, const char *name, struct err *e) {
    FAIL_IF(m->field_count == MULTIPART_FIELDS_MAX, STATUS_INVALID,
            "the form has more than %d fields", MULTIPART_FIELDS_MAX);
    m->field = m->field_count++;
    m->fields[m->field].name = mem_strdup(name);
    return STATUS_OK;
}

static enum status begin_part(struct multipart *m, const char *head, struct err *e) {
    struct str name = {0}, file_name = {0};
    const char *line = head;
    while (line && strncasecmp(line, "content-disposition:", 20) != 0) {
        line = strstr(line, "\r\n");
        if (line) line += 2;
    }
    enum status status = STATUS_OK;
    char *own = line ? mem_strdup(line) : NULL;
    char *const end = own ? strstr(own, "\r\n") : NULL;
    if (end) *end = 0;
    GUARD_IF(!own || !header_parameter(own, "name", &name), STATUS_INVALID,
             "a part of the form has no name");
    header_parameter(own, "filename", &file_name);
    status = str_equal(str_text(&name), "file") ? begin_file(m, &file_name, e)
                                                : begin_field(m, str_text(&name), e);
done:
    mem_free(own);
    str_release(&name);
    str_release(&file_name);
    return status;
}

static enum status hand_on(struct multipart *m, const char *bytes, size_t count, struct err *e) {
    if (m->state != BODY || !count) return STATUS_OK; /* the preamble is ignored */
    if (m->field == FILE_FIELD) return m->sink.write(m->sink.context, bytes, count, e);
    struct str *const value = &m->fields[m->field].value;
    FAIL_IF(value->len + count > MULTIPART_FIELD_BYTES_MAX, STATUS_INVALID,
            "the form field %s is longer than %d bytes", m->fields[m->field].name,
            MULTIPART_FIELD_BYTES_MAX);
    str_append_bytes(value, bytes, count);
    return STATUS_OK;
}

static void drop_front(struct str *s, size_t count) {
    memmove(s->data, s->data + count, s->len - count);
    str_truncate(s, s->len - count);
}

/* Hands on what precedes the delimiter, or all that cannot belong to one. *progress: a delimiter
 * was found. */
static enum status scan_body(struct multipart *m, bool *progress, struct err *e) {
    struct str *const p = &m->pending;
    const char *const at =
        p->len ? memmem(p->data, p->len, m->delimiter.data, m->delimiter.len) : NULL;
    size_t ready = p->len >= m->delimiter.len ? p->len - m->delimiter.len + 1 : 0;
    if (at) ready = (size_t)(at - p->data);
    TRY(hand_on(m, p->data, ready, e));
    drop_front(p, ready + (at ? m->delimiter.len : 0));
    *progress = at != NULL;
    if (at) m->state = AFTER_DELIMITER;
    return STATUS_OK;
}

static enum status scan_after_delimiter(struct multipart *m, bool *progress, struct err *e) {
    struct str *const p = &m->pending;
    *progress = false;
    if (p->len < 2) return STATUS_OK;
    *progress = true;
    if (memcmp(p->data, "--", 2) == 0) {
        m->state = END;
        return STATUS_OK;
    }
    FAIL_IF(memcmp(p->data, "\r\n", 2) != 0, STATUS_INVALID,
            "the form's boundary line is malformed");
    drop_front(p, 2);
    m->state = HEAD;
    return STATUS_OK;
}

static enum status scan_head(struct multipart *m, bool *progress, struct err *e) {
    struct str *const p = &m->pending;
    const char *const end = p->len ? memmem(p->data, p->len, "\r\n\r\n", 4) : NULL;
    *progress = end != NULL;
    FAIL_IF(!end && p->len > MULTIPART_HEAD_MAX, STATUS_INVALID,
            "the head of a form part is longer than %d bytes", MULTIPART_HEAD_MAX);
    if (!end) return STATUS_OK;
    const size_t len = (size_t)(end - p->data) + 2;
    char *head = mem_strndup(p->data, len);
    const enum status status = begin_part(m, head, e);
    mem_free(head);
    drop_front(p, len + 2);
    m->state = BODY;
    return status;
}

enum status multipart_feed(struct multipart *m, const char *bytes, size_t count, struct err *e) {
    if (m->state == END) return STATUS_OK;
    str_append_bytes(&m->pending, bytes, count);
    bool progress = true;
    while (progress && m->state != END) {
        enum status status = STATUS_OK;
        switch (m->state) {
        case HEAD: status = scan_head(m, &progress, e); break;
        case AFTER_DELIMITER: status = scan_after_delimiter(m, &progress, e); break;
        default: status = scan_body(m, &progress, e);
        }
        TRY(status);
    }
    return STATUS_OK;
}

enum status multipart_finish(struct multipart *m, struct err *e) {
    FAIL_IF(m->state != END, STATUS_INVALID, "the upload was cut short");
    FAIL_IF(!m->file_seen, STATUS_INVALID, "the form has no part named `file`");
    return STATUS_OK;
}
