/* data_print.c - tables, bars and coloured tokens.
 *
 * Widths are those of ASCII; a terminal breaks long lines itself. */
#include "server/cli/data_print.h"

#include <string.h>

#include "base/mem.h"

enum { BARS_SHOWN = 16, BAR_WIDTH = 40, ROWS_NAMED = 8 };

/* SGR sequences: how each kind of token looks in a terminal. */
enum kind { KIND_IGNORED, KIND_TRAINED, KIND_CUT, KIND_COUNT };
static const char *const COLOURS[KIND_COUNT] = {"\033[2m", "\033[1;32m", "\033[9;31m"};
static const char *const KIND_WORDS[KIND_COUNT] = {"ignored", "trained", "cut"};
static const char RESET[] = "\033[0m";
static const char OPEN_MARK[] = "\xE2\x9F\xA6", CLOSE_MARK[] = "\xE2\x9F\xA7";

static int64_t number_of(const cJSON *object, const char *key) {
    int64_t value = 0;
    struct err ignored = {0};
    (void)json_get_i64(object, key, &value, &ignored);
    return value;
}

static double share_of(const cJSON *object, const char *key) {
    double value = 0;
    struct err ignored = {0};
    (void)json_get_f64(object, key, &value, &ignored);
    return value;
}

static const char *text_of(const cJSON *object, const char *key) {
    const char *value = NULL;
    struct err ignored = {0};
    (void)json_get_string(object, key, &value, &ignored);
    return value ? value : "";
}

static bool flag_of(const cJSON *object, const char *key) {
    return cJSON_IsTrue(json_member(object, key));
}

static bool has(const cJSON *object, const char *key) {
    const cJSON *const item = json_member(object, key);
    return item && !cJSON_IsNull(item);
}

/* Controls, and what steers direction or shows nothing: as on the page (webui/lib/tokens.js). */
static bool is_hidden(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0xAD || c == 0x61C || c == 0x200B ||
           c == 0x115F || c == 0x180E || c == 0x200E || c == 0x200F ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
           (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

void data_append_safe(struct str *out, const char *text, bool lines) {
    const size_t len = strlen(text);
    for (size_t at = 0; at < len;) {
        uint32_t code = 0;
        const int width = utf8_decode(text + at, len - at, &code);
        if (width == 0) {
            str_appendf(out, "\\x%02X", (unsigned char)text[at]);
        } else if (lines && (code == '\n' || code == '\t')) {
            str_append_char(out, (char)code);
        } else if (code == '\n') {
            str_append(out, "\\n");
        } else if (code == '\t') {
            str_append(out, "\\t");
        } else if (is_hidden(code)) {
            str_appendf(out, "<U+%04X>", code);
        } else {
            str_append_bytes(out, text + at, (size_t)width);
        }
        at += width ? (size_t)width : 1;
    }
}

enum status data_read_answer(const char *text, cJSON **out, struct err *e) {
    struct str seen = {0};
    for (const char *at = text; *at; at++) {
        if (at[0] == '\\' && strncmp(at, "\\u0000", 6) == 0) {
            str_append(&seen, "\\u2400");
            at += 5;
        } else {
            str_append_char(&seen, *at);
            if (at[0] == '\\' && at[1]) str_append_char(&seen, *++at);
        }
    }
    const enum status status = json_parse(str_text(&seen), seen.len, "the answer", out, e);
    str_release(&seen);
    return status;
}

bool data_has_errors(const cJSON *answer) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, json_member(answer, "rows")) {
        if (has(item, "error")) return true;
    }
    cJSON_ArrayForEach(item, json_member(answer, "problems")) {
        if (strcmp(text_of(item, "level"), "error") == 0 && number_of(item, "count") > 0) {
            return true;
        }
    }
    return false;
}

static void append_amounts(struct str *out, const cJSON *report) {
    const cJSON *const lengths = json_member(report, "lengths");
    const int64_t tokens = number_of(report, "tokens"),
                  trained = number_of(report, "trained_tokens");
    str_appendf(out, "  rows            %lld\n", (long long)number_of(report, "rows"));
    str_appendf(out, "  samples         %lld\n", (long long)number_of(report, "samples"));
    str_appendf(out, "  tokens          %lld\n", (long long)tokens);
    str_appendf(out, "  trained tokens  %lld", (long long)trained);
    if (tokens > 0) str_appendf(out, " (%.1f %%)", 100.0 * (double)trained / (double)tokens);
    str_appendf(out,
                "\n  row lengths     50 %% up to %lld, 90 %% up to %lld, 99 %% up to %lld, "
                "longest %lld\n",
                (long long)number_of(lengths, "p50"), (long long)number_of(lengths, "p90"),
                (long long)number_of(lengths, "p99"), (long long)number_of(lengths, "longest"));
    str_appendf(out, "  cut at          %lld tokens, %lld rows are longer\n",
                (long long)number_of(report, "max_length"),
                (long long)number_of(lengths, "over_max_length"));
    const cJSON *const packing = json_member(report, "packing");
    if (!cJSON_IsObject(packing)) return;
    str_appendf(out, "  packing         fills %.0f %% of what is computed, %.0f %% without\n",
                100 * share_of(packing, "packed_fill"), 100 * share_of(packing, "padded_fill"));
}

static double count_at(const cJSON *counts, int index) {
    const cJSON *const item = cJSON_GetArrayItem(counts, index);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* Rows of the bars first..first+merge-1. */
static double merged(const cJSON *counts, int first, int merge) {
    double sum = 0;
    for (int i = first; i < first + merge; i++) {
        sum += count_at(counts, i);
    }
    return sum;
}

static void append_bars(struct str *out, const cJSON *report) {
    const cJSON *const histogram = json_member(report, "histogram");
    const cJSON *const counts = json_member(histogram, "counts");
    const int bars = cJSON_GetArraySize(counts), merge = (bars - 1) / BARS_SHOWN + 1;
    const int64_t width = number_of(histogram, "width"), cut = number_of(report, "max_length");
    double most = 1;
    for (int i = 0; i < bars; i += merge) {
        const double rows = merged(counts, i, merge);
        most = rows > most ? rows : most;
    }
    if (bars > 0) str_append(out, "\n  tokens           rows\n");
    for (int i = 0; i < bars; i += merge) {
        const double rows = merged(counts, i, merge);
        const int64_t from = i * width + 1, to = (i + merge) * width;
        str_appendf(out, "  %6lld - %-6lld %6.0f ", (long long)from, (long long)to, rows);
        for (int k = 0; k < (int)(rows / most * BAR_WIDTH + 0.999); k++) {
            str_append(out, "\xE2\x96\x88"); /* a full block */
        }
        str_append_char(out, '\n');
        if (from <= cut && cut <= to && (i + merge) < bars) {
            str_appendf(out, "  ------ cut-off %lld\n", (long long)cut);
        }
    }
    const int64_t beyond = number_of(histogram, "beyond");
    if (beyond > 0) str_appendf(out, "  longer          %6lld\n", (long long)beyond);
}

static void append_problem_rows(struct str *out, const cJSON *problem) {
    const cJSON *row = NULL;
    const bool wrong = strcmp(text_of(problem, "level"), "error") == 0;
    int named = 0;
    cJSON_ArrayForEach(row, json_member(problem, "rows")) {
        if (wrong) {
            str_appendf(out, "    line %lld: ", (long long)number_of(row, "line"));
            data_append_safe(out, text_of(row, "message"), false);
            str_append_char(out, '\n');
            continue;
        }
        if (named == ROWS_NAMED) break;
        str_appendf(out, "%s%lld",
                    named++                            ? ", "
                    : number_of(problem, "count") == 1 ? "    row "
                                                       : "    rows ",
                    (long long)number_of(row, "row"));
    }
    if (wrong) return;
    str_append(out, number_of(problem, "count") > named ? ", ...\n" : "\n");
}

static void append_problems(struct str *out, const cJSON *report, const struct data_style *style) {
    const cJSON *problem = NULL;
    bool any = false;
    cJSON_ArrayForEach(problem, json_member(report, "problems")) {
        const int64_t count = number_of(problem, "count");
        if (count == 0) continue;
        const char *const level = text_of(problem, "level");
        const bool wrong = strcmp(level, "error") == 0;
        if (!any) str_append(out, "\n");
        any = true;
        str_appendf(out, "  %s%s%s %s: %lld %s. %s\n",
                    style->colour ? (wrong ? "\033[1;31m" : "\033[1;33m") : "", level,
                    style->colour ? RESET : "", text_of(problem, "name"), (long long)count,
                    count == 1 ? "row" : "rows", text_of(problem, "sentence"));
        append_problem_rows(out, problem);
    }
    if (has(report, "refusal")) {
        str_append(out, "\n  A run would not start: ");
        data_append_safe(out, text_of(report, "refusal"), false);
        str_append_char(out, '\n');
    }
    if (!any) str_append(out, "\n  No problems: every row is used in full.\n");
}

static void append_notes(struct str *out, const cJSON *report) {
    const cJSON *const chat_template = json_member(report, "template");
    const cJSON *const tokenizer = json_member(report, "tokenizer");
    const cJSON *note = NULL;
    if (flag_of(chat_template, "needed") && !has(chat_template, "file")) {
        str_append(out, "  error: the model has no chat template, and conversations need one\n");
    }
    cJSON_ArrayForEach(note, json_member(tokenizer, "notes")) {
        str_append(out, "  note: ");
        data_append_safe(out, cJSON_IsString(note) ? note->valuestring : "", false);
        str_append_char(out, '\n');
    }
    cJSON_ArrayForEach(note, json_member(tokenizer, "warnings")) {
        str_append(out, "  warn: ");
        data_append_safe(out, cJSON_IsString(note) ? note->valuestring : "", false);
        str_append_char(out, '\n');
    }
    const int64_t dropped = number_of(tokenizer, "dropped");
    if (dropped > 0) {
        str_appendf(out, "  warn: %lld characters have no token in this model and were lost\n",
                    (long long)dropped);
    }
}

void data_print_report(struct str *out, const cJSON *report, const struct data_style *style) {
    const char *const format = text_of(report, "format");
    data_append_safe(out, text_of(report, "filename"), false);
    str_append(out, " with ");
    data_append_safe(out, text_of(report, "model"), false);
    str_appendf(out, " (format %s, mask %s)\n", *format ? format : "not found",
                text_of(report, "mask"));
    if (cJSON_IsFalse(json_member(report, "complete"))) {
        str_appendf(out,
                    "  of the first %.0f %% of the file: add --seconds to read on for longer\n",
                    100 * share_of(report, "read_share"));
    }
    append_amounts(out, report);
    append_bars(out, report);
    append_problems(out, report, style);
    append_notes(out, report);
}

static enum kind kind_of(const cJSON *token, int64_t index, int64_t kept) {
    if (index >= kept) return KIND_CUT;
    return flag_of(token, "trained") ? KIND_TRAINED : KIND_IGNORED;
}

/* From one kind of token to the next; KIND_COUNT is before the first and after the last. */
static void change_kind(struct str *out, enum kind from, enum kind to,
                        const struct data_style *style) {
    if (from == to) return;
    if (style->colour) {
        str_append(out, to == KIND_COUNT ? RESET : "");
        if (to != KIND_COUNT) str_appendf(out, "%s%s", RESET, COLOURS[to]);
        return;
    }
    if (from == KIND_TRAINED) str_append(out, CLOSE_MARK);
    if (to == KIND_TRAINED) str_append(out, OPEN_MARK);
}

static void append_running_text(struct str *out, const cJSON *row, const struct data_style *style) {
    int64_t index = number_of(row, "offset");
    const int64_t kept = number_of(row, "kept");
    enum kind now = KIND_COUNT;
    bool told = false; /* where the cut is, once, where colour does not tell */
    const cJSON *token = NULL;
    cJSON_ArrayForEach(token, json_member(row, "tokens")) {
        const enum kind kind = kind_of(token, index++, kept);
        change_kind(out, now, kind, style);
        if (kind == KIND_CUT && !told && !style->colour) str_append(out, "[cut here]");
        told |= kind == KIND_CUT;
        now = kind;
        data_append_safe(out, text_of(token, has(token, "shown") ? "shown" : "text"), true);
    }
    change_kind(out, now, KIND_COUNT, style);
    str_append_char(out, '\n');
}

static void append_token_lines(struct str *out, const cJSON *row, const struct data_style *style) {
    int64_t index = number_of(row, "offset");
    const int64_t kept = number_of(row, "kept");
    const cJSON *token = NULL;
    cJSON_ArrayForEach(token, json_member(row, "tokens")) {
        const enum kind kind = kind_of(token, index, kept);
        str_appendf(out, "%6lld %8lld  %s%s%s  ", (long long)index++,
                    (long long)number_of(token, "id"), style->colour ? COLOURS[kind] : "",
                    KIND_WORDS[kind], style->colour ? RESET : "");
        str_appendf(out, "%*s", 7 - (int)strlen(KIND_WORDS[kind]), "");
        data_append_safe(out, text_of(token, "text"), false);
        str_append_char(out, '\n');
    }
}

static void append_row_head(struct str *out, const cJSON *row) {
    str_appendf(out, "row %lld, line %lld", (long long)number_of(row, "row"),
                (long long)number_of(row, "line"));
    if (number_of(row, "parts") > 1) {
        str_appendf(out, ", part %lld of %lld", (long long)number_of(row, "part"),
                    (long long)number_of(row, "parts"));
    }
    if (!has(row, "error")) {
        str_appendf(out, ": %lld tokens, %lld trained", (long long)number_of(row, "total"),
                    (long long)number_of(row, "trained"));
    }
    const cJSON *problem = NULL;
    cJSON_ArrayForEach(problem, json_member(row, "problems")) {
        str_appendf(out, ", %s", cJSON_IsString(problem) ? problem->valuestring : "");
    }
    str_append_char(out, '\n');
}

static void append_row(struct str *out, const cJSON *row, const struct data_style *style) {
    const cJSON *const error = json_member(row, "error");
    append_row_head(out, row);
    if (cJSON_IsObject(error)) {
        str_append(out, "error: ");
        data_append_safe(out, text_of(error, "message"), false);
        str_append_char(out, '\n');
        data_append_safe(out, text_of(row, "source"), true);
        str_append_char(out, '\n');
    } else if (style->ids) {
        append_token_lines(out, row, style);
    } else {
        append_running_text(out, row, style);
    }
    if (has(row, "next_offset")) {
        const int64_t next = number_of(row, "next_offset");
        str_appendf(out, "%lld more tokens: --offset %lld\n",
                    (long long)(number_of(row, "total") - next), (long long)next);
    }
}

void data_print_rows(struct str *out, const cJSON *preview, const struct data_style *style) {
    const cJSON *row = NULL;
    cJSON_ArrayForEach(row, json_member(preview, "rows")) {
        append_row(out, row, style);
    }
}
