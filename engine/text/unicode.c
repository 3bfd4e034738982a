/* unicode.c - character classes and normal forms on top of utf8proc.
 *
 * utf8proc knows general categories but not the derived property Alphabetic; the circled and
 * squared Latin letters are the only Alphabetic characters that are neither letters, marks nor
 * letter numbers, so they are listed here. Memory comes from base/mem.h: utf8proc's own allocating
 * calls are not used. */
#include "engine/text/unicode.h"

#include <utf8proc.h>

#include "base/mem.h"

bool unicode_is_space(uint32_t code) {
    if (code < 0x80) return (code >= 0x09 && code <= 0x0D) || code == 0x20;
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
           code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool unicode_is_number(uint32_t code) {
    if (code < 0x80) return code >= '0' && code <= '9';
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool unicode_is_punctuation(uint32_t code) {
    if (code < 0x80) {
        return (code >= 0x21 && code <= 0x2F) || (code >= 0x3A && code <= 0x40) ||
               (code >= 0x5B && code <= 0x60) || (code >= 0x7B && code <= 0x7E);
    }
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool unicode_is_word(uint32_t code) {
    if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
        (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
        code == 0x200C || code == 0x200D) {
        return true;
    }
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
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

bool unicode_is_decimal(uint32_t code) {
    return category(code) == UTF8PROC_CATEGORY_ND;
}

uint32_t unicode_simple_upper(uint32_t code) {
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)code);
}

uint32_t unicode_simple_title(uint32_t code) {
    return (uint32_t)utf8proc_totitle((utf8proc_int32_t)code);
}

uint32_t unicode_before(const char *text, size_t at, size_t *start) {
    size_t from = at - 1;
    while (from > 0 && ((unsigned char)text[from] & 0xC0) == 0x80) {
        from--;
    }
    uint32_t code = 0;
    ASSERT(utf8_decode(text + from, at - from, &code) > 0);
    *start = from;
    return code;
}

void unicode_append_lower(struct str *out, const char *text, size_t len) {
    for (size_t at = 0; at < len;) {
        uint32_t code = 0;
        const int step = utf8_decode(text + at, len - at, &code);
        ASSERT(step > 0);
        at += (size_t)step;
        str_append_utf8(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
        /* The one character whose lower case is two: I with a dot above. */
        if (code == 0x130) str_append(out, "\xCC\x87");
    }
}

void unicode_append_normal(struct str *out, enum unicode_form form, const char *text, size_t len) {
    utf8proc_option_t options = UTF8PROC_STABLE;
    const bool composed = form == UNICODE_NFC || form == UNICODE_NFKC;
    options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == UNICODE_NFKC || form == UNICODE_NFKD) options |= UTF8PROC_COMPAT;
    const utf8proc_uint8_t *const bytes = (const utf8proc_uint8_t *)text;
    const utf8proc_ssize_t size = (utf8proc_ssize_t)len;

    utf8proc_int32_t few[64], *codes = few;
    utf8proc_ssize_t count = utf8proc_decompose(bytes, size, few, 63, options);
    ASSERT(count >= 0);
    if (count > 63) {
        codes = mem_new((size_t)count + 1, sizeof *codes);
        count = utf8proc_decompose(bytes, size, codes, count, options);
    }
    count = utf8proc_reencode(codes, count, options);
    ASSERT(count >= 0);
    str_append_bytes(out, codes, (size_t)count);
    if (codes != few) mem_free(codes);
}
