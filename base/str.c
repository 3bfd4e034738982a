/* str.c - the growable string, numbers from text, UTF-8 validation (RFC 3629).
 *
 * Capacity doubles, so that appending byte by byte stays linear. */
#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"

static void reserve(struct str *s, size_t more) {
    const size_t need = s->len + more + 1;
    if (need <= s->capacity) return;
    size_t capacity = s->capacity ? s->capacity : 32;
    while (capacity < need) {
        capacity *= 2;
    }
    s->data = mem_resize(s->data, capacity, 1);
    s->capacity = capacity;
}

void str_release(struct str *s) {
    if (!s) return;
    mem_free(s->data);
    *s = (struct str){0};
}

void str_clear(struct str *s) {
    s->len = 0;
    if (s->data) s->data[0] = 0;
}

void str_truncate(struct str *s, size_t len) {
    ASSERT(len <= s->len);
    s->len = len;
    if (s->data) s->data[len] = 0;
}

void str_append_bytes(struct str *s, const void *bytes, size_t count) {
    reserve(s, count);
    if (count) memcpy(s->data + s->len, bytes, count);
    s->len += count;
    s->data[s->len] = 0;
}

void str_append(struct str *s, const char *text) {
    str_append_bytes(s, text, strlen(text));
}

void str_append_char(struct str *s, char c) {
    str_append_bytes(s, &c, 1);
}

static void append_args(struct str *s, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    const int count = vsnprintf(NULL, 0, format, args);
    ASSERT(count >= 0);
    reserve(s, (size_t)count);
    vsnprintf(s->data + s->len, (size_t)count + 1, format, again);
    s->len += (size_t)count;
    va_end(again);
}

void str_appendf(struct str *s, const char *format, ...) {
    va_list args;
    va_start(args, format);
    append_args(s, format, args);
    va_end(args);
}

void str_append_utf8(struct str *s, uint32_t code) {
    ASSERT(code < 0x110000);
    char out[4];
    size_t count = 0;
    if (code < 0x80) {
        out[count++] = (char)code;
    } else if (code < 0x800) {
        out[count++] = (char)(0xC0 | (code >> 6));
        out[count++] = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        out[count++] = (char)(0xE0 | (code >> 12));
        out[count++] = (char)(0x80 | ((code >> 6) & 0x3F));
        out[count++] = (char)(0x80 | (code & 0x3F));
    } else {
        out[count++] = (char)(0xF0 | (code >> 18));
        out[count++] = (char)(0x80 | ((code >> 12) & 0x3F));
        out[count++] = (char)(0x80 | ((code >> 6) & 0x3F));
        out[count++] = (char)(0x80 | (code & 0x3F));
    }
    str_append_bytes(s, out, count);
}

const char *str_text(const struct str *s) {
    return s->data ? s->data : "";
}

char *str_take(struct str *s) {
    char *text = s->data ? s->data : mem_strndup("", 0);
    *s = (struct str){0};
    return text;
}

char *str_format(const char *format, ...) {
    struct str s = {0};
    va_list args;
    va_start(args, format);
    append_args(&s, format, args);
    va_end(args);
    return str_take(&s);
}

bool str_equal(const char *a, const char *b) {
    if (!a || !b) return a == b;
    return strcmp(a, b) == 0;
}

bool str_starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool str_ends_with(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

enum status str_to_i64(const char *text, const char *what, int64_t *out, struct err *e) {
    char *end = NULL;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno) {
        return err_set_param(e, STATUS_INVALID, what, "%s: \"%s\" is not a whole number", what,
                             text);
    }
    *out = value;
    return STATUS_OK;
}

enum status str_to_f64(const char *text, const char *what, double *out, struct err *e) {
    char *end = NULL;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value)) {
        return err_set_param(e, STATUS_INVALID, what, "%s: \"%s\" is not a finite number", what,
                             text);
    }
    *out = value;
    return STATUS_OK;
}

enum status str_to_bytes(const char *text, const char *what, int64_t *out, struct err *e) {
    static const struct {
        const char *suffix;
        double factor;
    } UNITS[] = {
        {"", 1},       {"b", 1},        {"k", 1024.0},   {"kib", 1024.0}, {"kb", 1e3},
        {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
        {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12},
    };
    char *end = NULL;
    const double value = strtod(text, &end);
    while (end != text && *end == ' ') {
        end++;
    }
    for (size_t i = 0; end != text && i < COUNT_OF(UNITS); i++) {
        if (strcasecmp(end, UNITS[i].suffix) != 0) continue;
        const double bytes = value * UNITS[i].factor;
        if (!(bytes >= 0 && bytes < 0x1p62)) break;
        *out = (int64_t)bytes;
        return STATUS_OK;
    }
    return err_set_param(e, STATUS_INVALID, what, "%s: \"%s\" is not a size such as 24GiB or 900MB",
                         what, text);
}

const char *str_bytes(int64_t bytes, char buffer[24]) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (fabs(value) >= 1024 && unit + 1 < COUNT_OF(UNITS)) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, 24, unit ? "%.2f %s" : "%.0f %s", value, UNITS[unit]);
    return buffer;
}

int str_distance(const char *a, const char *b) {
    enum { MAX = 64 };
    const size_t n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    int row[MAX];
    for (size_t j = 0; j <= m; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            const int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            const int edge = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = replace < edge ? replace : edge;
        }
    }
    return row[m];
}

int utf8_decode(const char *text, size_t len, uint32_t *code) {
    const unsigned char *const s = (const unsigned char *)text;
    if (len == 0) return 0;
    if (s[0] < 0x80) {
        *code = s[0];
        return 1;
    }
    const int count = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || len < (size_t)count) return 0;
    uint32_t value = s[0] & (0x7Fu >> count);
    for (int i = 1; i < count; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < LEAST[count] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return 0;
    *code = value;
    return count;
}

size_t utf8_valid_prefix(const char *text, size_t len) {
    size_t at = 0;
    uint32_t code;
    while (at < len) {
        const int step = utf8_decode(text + at, len - at, &code);
        if (step == 0) break;
        at += (size_t)step;
    }
    return at;
}
