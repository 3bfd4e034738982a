/* rows_repair.c - replacing what is no text in the JSON of a row.
 *
 * The text is not parsed: a backslash has a meaning only inside strings, and outside of them it is
 * an error that the parser finds later. */
#include "engine/text/rows_repair.h"

#include <stdbool.h>
#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD", ESCAPED_REPLACEMENT[] = "\\ufffd";

/* The four hexadecimal digits of \\uXXXX at text[at], or -1. */
static int32_t escape_code(const char *text, size_t len, size_t at) {
    if (len - at < 6 || text[at] != '\\' || text[at + 1] != 'u') return -1;
    int32_t value = 0;
    for (size_t i = at + 2; i < at + 6; i++) {
        const char c = text[i] | 0x20; /* digits have that bit already */
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The length of an escape at text[at]; *bad when it is half a pair. */
static size_t escape_length(const char *text, size_t len, size_t at, bool *bad) {
    const int32_t code = escape_code(text, len, at);
    *bad = false;
    /* What follows a backslash goes with it (it may be one), but for bytes to be looked at. */
    if (code < 0) return len - at >= 2 && (unsigned char)text[at + 1] < 0x80 ? 2 : 1;
    if (code < 0xD800 || code > 0xDFFF) return 6;
    const int32_t low = code < 0xDC00 && len - at >= 12 ? escape_code(text, len, at + 6) : -1;
    if (low >= 0xDC00 && low <= 0xDFFF) return 12;
    *bad = true;
    return 6;
}

/* How many bytes from a bad one on are replaced together: the longest beginning of a character. */
static size_t broken_length(const unsigned char *s, size_t len) {
    const size_t want = s[0] >= 0xF0 && s[0] <= 0xF4   ? 4
                        : s[0] >= 0xE0 && s[0] <= 0xEF ? 3
                        : s[0] >= 0xC2 && s[0] <= 0xDF ? 2
                                                       : 1;
    if (want == 1 || len < 2) return 1;
    const unsigned char low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[1] < low || s[1] > high) return 1;
    size_t n = 2;
    while (n < want && n < len && (s[n] & 0xC0) == 0x80) {
        n++;
    }
    return n;
}

int64_t rows_repair(const char *text, size_t len, struct str *out) {
    int64_t replaced = 0;
    size_t at = 0, plain = 0;
    while (at < len) {
        const unsigned char c = (unsigned char)text[at];
        uint32_t code;
        bool bad = false;
        size_t width = 1;
        if (c == '\\') {
            width = escape_length(text, len, at, &bad);
        } else if (c >= 0x80) {
            width = (size_t)utf8_decode(text + at, len - at, &code);
            bad = width == 0;
            if (bad) width = broken_length((const unsigned char *)text + at, len - at);
        }
        if (bad) {
            str_append_bytes(out, text + plain, at - plain);
            str_append(out, c == '\\' ? ESCAPED_REPLACEMENT : REPLACEMENT);
            plain = at + width;
            replaced++;
        }
        at += width;
    }
    str_append_bytes(out, text + plain, len - plain);
    return replaced;
}
