/* jinja_tojson.c - Python's json.dumps as the tojson filter of chat templates calls it: key order
 * kept, non-ASCII raw unless asked otherwise, no HTML escaping, 1 and 1.0 apart.
 *
 * A model is trained on these bytes, so they must be Python's. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/text/jinja_render.h"

static void append_json_string(struct str *out, const struct text *text, bool ascii) {
    str_append_char(out, '"');
    for (size_t at = 0; at < text->len;) {
        static const char PLAIN[] = "\"\\\n\r\t\b\f";
        static const char SHORT[] = "\"\\nrtbf";
        uint32_t code = 0;
        const int size = utf8_decode(text->data + at, text->len - at, &code);
        const char *const escape = code && code < 0x80 ? strchr(PLAIN, (char)code) : NULL;
        if (escape) {
            str_appendf(out, "\\%c", SHORT[escape - PLAIN]);
        } else if (code < 0x20 || (ascii && code > 0x7E && code < 0x10000)) {
            str_appendf(out, "\\u%04x", code);
        } else if (ascii && code >= 0x10000) {
            str_appendf(out, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                        0xDC00 + ((code - 0x10000) & 0x3FF));
        } else {
            str_append_bytes(out, text->data + at, (size_t)size);
        }
        at += (size_t)size;
    }
    str_append_char(out, '"');
}

static void append_json_float(struct str *out, double number) {
    if (isnan(number)) {
        str_append(out, "NaN");
    } else if (isinf(number)) {
        str_append(out, number < 0 ? "-Infinity" : "Infinity");
    } else {
        print_float(out, number);
    }
}

static void append_line(struct str *out, const struct json_style *style, int level) {
    if (!style->is_indented) return;
    str_append_char(out, '\n');
    for (int i = 0; i < level; i++) {
        str_append_bytes(out, style->indent->data, style->indent->len);
    }
}

static enum status print_level(struct render *r, struct str *out, const struct value *v,
                               const struct json_style *style, int level);

static enum status print_array(struct render *r, struct str *out, const struct sequence *s,
                               const struct json_style *style, int level) {
    str_append_char(out, '[');
    for (size_t i = 0; i < s->count; i++) {
        if (i) str_append_bytes(out, style->item_separator->data, style->item_separator->len);
        append_line(out, style, level + 1);
        TRY(print_level(r, out, &s->items[i], style, level + 1));
    }
    if (s->count) append_line(out, style, level);
    str_append_char(out, ']');
    return STATUS_OK;
}

/* Keys are strings in JSON; numbers, booleans and none become their JSON text. */
static enum status print_key(struct render *r, struct str *out, const struct value *key,
                             const struct json_style *style) {
    if (key->kind == VALUE_STRING) {
        append_json_string(out, key->as.text, style->ascii);
        return STATUS_OK;
    }
    RENDER_FAIL_IF(r, !value_is_number(key) && key->kind != VALUE_BIG && key->kind != VALUE_NONE,
                   STATUS_INVALID, "tojson: a %s cannot be a key", value_type_name(key));
    str_append_char(out, '"');
    TRY(print_level(r, out, key, style, 0));
    str_append_char(out, '"');
    return STATUS_OK;
}

/* Entries in the order of their keys: a merge sort over pointers. */
static enum status sort_entries(struct render *r, const struct dict_entry **items,
                                const struct dict_entry **scratch, size_t count) {
    if (count < 2) return STATUS_OK;
    const size_t half = count / 2;
    TRY(sort_entries(r, items, scratch, half));
    TRY(sort_entries(r, items + half, scratch + half, count - half));
    size_t a = 0, b = half;
    for (size_t i = 0; i < count; i++) {
        int order = -1;
        if (a == half) {
            order = 1;
        } else if (b < count) {
            TRY(value_compare(r, &items[a]->key, &items[b]->key, &order));
        }
        scratch[i] = order <= 0 ? items[a++] : items[b++];
    }
    memcpy(items, scratch, count * sizeof *scratch);
    return STATUS_OK;
}

static enum status print_object(struct render *r, struct str *out, const struct dict *d,
                                const struct json_style *style, int level) {
    const struct dict_entry **const order =
        region_alloc(&r->region, d->count * 2 + 1, sizeof *order);
    for (size_t i = 0; i < d->count; i++) {
        order[i] = &d->entries[i];
    }
    if (style->sort_keys) TRY(sort_entries(r, order, order + d->count, d->count));
    str_append_char(out, '{');
    for (size_t i = 0; i < d->count; i++) {
        if (i) str_append_bytes(out, style->item_separator->data, style->item_separator->len);
        append_line(out, style, level + 1);
        TRY(print_key(r, out, &order[i]->key, style));
        str_append_bytes(out, style->key_separator->data, style->key_separator->len);
        TRY(print_level(r, out, &order[i]->value, style, level + 1));
    }
    if (d->count) append_line(out, style, level);
    str_append_char(out, '}');
    return STATUS_OK;
}

static enum status print_level(struct render *r, struct str *out, const struct value *v,
                               const struct json_style *style, int level) {
    RENDER_FAIL_IF(r, level > VALUE_DEPTH_MAX, STATUS_INVALID,
                   "tojson: the value nests too deep (limit %d)", VALUE_DEPTH_MAX);
    RENDER_FAIL_IF(r, out->len > TEMPLATE_OUTPUT_MAX, STATUS_INVALID,
                   "the template prints too much (limit %d MiB)", TEMPLATE_OUTPUT_MAX >> 20);
    TRY(render_work(r, v->kind == VALUE_STRING ? v->as.text->len : 0));
    switch (v->kind) {
    case VALUE_NONE: str_append(out, "null"); return STATUS_OK;
    case VALUE_BOOL: str_append(out, v->as.truth ? "true" : "false"); return STATUS_OK;
    case VALUE_INT: str_appendf(out, "%lld", (long long)v->as.integer); return STATUS_OK;
    case VALUE_BIG: str_append_bytes(out, v->as.text->data, v->as.text->len); return STATUS_OK;
    case VALUE_FLOAT: append_json_float(out, v->as.number); return STATUS_OK;
    case VALUE_STRING: append_json_string(out, v->as.text, style->ascii); return STATUS_OK;
    case VALUE_SEQUENCE:
        if (v->as.sequence->type <= SEQUENCE_TUPLE)
            return print_array(r, out, v->as.sequence, style, level);
        break;
    case VALUE_DICT: return print_object(r, out, v->as.dict, style, level);
    default: break;
    }
    RENDER_FAIL_IF(r, v->kind == VALUE_UNDEFINED, STATUS_INVALID, "tojson: %s",
                   v->as.undefined->message);
    RENDER_FAIL(r, STATUS_INVALID, "tojson: a %s cannot be written as JSON", value_type_name(v));
}

enum status print_json(struct render *r, struct str *out, const struct value *v,
                       const struct json_style *style) {
    return print_level(r, out, v, style, 0);
}
