/* jinja_unicode.c - Python's view of characters, from utf8proc's tables. Full case mappings that
 * are not one to one are listed here for the letters that occur in the languages people train on;
 * utf8proc knows only the simple ones. */
#include "engine/text/jinja_unicode.h"

#include <utf8proc.h>

#include "base/err.h"
#include "base/mem.h"
#include "engine/text/unicode.h"

bool python_is_space(uint32_t code) {
    return unicode_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static utf8proc_category_t category(uint32_t code) {
    return utf8proc_category((utf8proc_int32_t)code);
}

bool unicode_is_printable(uint32_t code) {
    if (code < 0x7F) return code >= 0x20;
    switch (category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

bool unicode_is_upper(uint32_t code) {
    return utf8proc_isupper((utf8proc_int32_t)code) && category(code) != UTF8PROC_CATEGORY_LT;
}

bool unicode_is_lower(uint32_t code) {
    return utf8proc_islower((utf8proc_int32_t)code);
}

bool unicode_is_alpha(uint32_t code) {
    const utf8proc_category_t c = category(code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool unicode_is_digit(uint32_t code) {
    static const uint32_t SUPERSCRIPTS[] = {0xB2, 0xB3, 0xB9};
    for (size_t i = 0; i < COUNT_OF(SUPERSCRIPTS); i++) {
        if (code == SUPERSCRIPTS[i]) return true;
    }
    if (code == 0x2070 || (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089))
        return true;
    return category(code) == UTF8PROC_CATEGORY_ND;
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
    str_append_utf8(out, (uint32_t)utf8proc_toupper((utf8proc_int32_t)code));
}

void unicode_append_title(struct str *out, uint32_t code) {
    for (size_t i = 0; i < COUNT_OF(SPECIAL); i++) {
        if (SPECIAL[i].code == code) {
            str_append(out, SPECIAL[i].title);
            return;
        }
    }
    str_append_utf8(out, (uint32_t)utf8proc_totitle((utf8proc_int32_t)code));
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
