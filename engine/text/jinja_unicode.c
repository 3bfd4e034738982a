/* jinja_unicode.c - Python's view of characters, on top of unicode.h. Full case mappings that
 * are not one to one are listed here for the letters that occur in the languages people train on;
 * utf8proc knows only the simple ones. */
#include "engine/text/jinja_unicode.h"

#include "base/err.h"
#include "base/mem.h"
#include "engine/text/unicode.h"

bool python_is_space(uint32_t code) {
    return unicode_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

bool unicode_is_digit(uint32_t code) {
    static const uint32_t SUPERSCRIPTS[] = {0xB2, 0xB3, 0xB9};
    for (size_t i = 0; i < COUNT_OF(SUPERSCRIPTS); i++) {
        if (code == SUPERSCRIPTS[i]) return true;
    }
    if (code == 0x2070 || (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089))
        return true;
    return unicode_is_decimal(code);
}

/* Letters whose upper case is several letters (Unicode SpecialCasing.txt); the title form differs
 * in the second. */
static const struct {
    uint32_t code;
    const char *upper, *title;
} SPECIAL[] = {
    {0xDF, "SS", "Ss"},
    {0x149, "\u02BCN", "\u02BCN"},
    {0x1F0, "J\u030C", "J\u030C"},
    {0xFB00, "FF", "Ff"},
    {0xFB01, "FI", "Fi"},
    {0xFB02, "FL", "Fl"},
    {0xFB03, "FFI", "Ffi"},
    {0xFB04, "FFL", "Ffl"},
    {0xFB05, "ST", "St"},
    {0xFB06, "ST", "St"},
    {0x587, "\u0535\u0552", "\u0535\u0582"},
};

void unicode_append_upper(struct str *out, uint32_t code) {
    for (size_t i = 0; i < COUNT_OF(SPECIAL); i++) {
        if (SPECIAL[i].code == code) {
            str_append(out, SPECIAL[i].upper);
            return;
        }
    }
    str_append_utf8(out, unicode_simple_upper(code));
}

void unicode_append_title(struct str *out, uint32_t code) {
    for (size_t i = 0; i < COUNT_OF(SPECIAL); i++) {
        if (SPECIAL[i].code == code) {
            str_append(out, SPECIAL[i].title);
            return;
        }
    }
    str_append_utf8(out, unicode_simple_title(code));
}

size_t utf8_count(const char *text, size_t len) {
    size_t count = 0;
    for (size_t i = 0; i < len; i++) {
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return count;
}

int utf8_length_at(const char *text) {
    const unsigned char c = (unsigned char)*text;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

size_t utf8_skip(const char *text, size_t len, size_t chars) {
    size_t at = 0;
    while (chars-- && at < len) {
        at += (size_t)utf8_length_at(text + at);
    }
    return at < len ? at : len;
}

size_t unicode_rstrip(const char *text, size_t len) {
    while (len) {
        size_t start = len - 1;
        while (start && ((unsigned char)text[start] & 0xC0) == 0x80) {
            start--;
        }
        uint32_t code = 0;
        if (!utf8_decode(text + start, len - start, &code) || !python_is_space(code)) return len;
        len = start;
    }
    return 0;
}

size_t unicode_lstrip(const char *text, size_t len) {
    size_t at = 0;
    while (at < len) {
        uint32_t code = 0;
        const int size = utf8_decode(text + at, len - at, &code);
        if (!size || !python_is_space(code)) break;
        at += (size_t)size;
    }
    return at;
}
