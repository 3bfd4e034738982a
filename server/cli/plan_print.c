/* plan_print.c - the report of `plimsoll plan`.
 *
 * Numbers are the plan's own; nothing is computed here but widths. The bars share one scale, on
 * which the capacity is a line, as a load line is on a hull; where the capacity is far beyond what
 * is needed it lies outside the picture and is only told. */
#include "server/cli/plan_print.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/cli/data_print.h"

enum { BAR_WIDTH = 46, NAME_WIDTH = 12, SPEED_WIDTH = 20, TEXT_INDENT = 7, TEXT_WIDTH = 96 };
enum { CLASSES_MAX = 12, LAYOUTS_MAX = 10, LAYOUT_WIDTH = 34 };
/* Beyond so many times the need the capacity is not drawn. */
static const double DRAWN_MAX = 2.5;

/* Categories in the order of the bar: what lies still first. */
static const struct {
    const char *name, *colour;
    char letter;
} CATEGORIES[] = {
    {"weights", "\033[34m", 'w'},       {"adapters", "\033[36m", 'a'},
    {"gradients", "\033[35m", 'g'},     {"optimizer", "\033[33m", 'o'},
    {"activations", "\033[32m", '#'},   {"workspace", "\033[37m", 's'},
    {"communication", "\033[31m", 'c'}, {"staging", "\033[90m", 't'},
};
static const char RESET[] = "\033[0m", BOLD[] = "\033[1m", DIM[] = "\033[2m";
static const char GREEN[] = "\033[1;32m", RED[] = "\033[1;31m", YELLOW[] = "\033[1;33m";

struct page {
    struct str *out;
    const cJSON *plan;
    bool colour;
    double scale;    /* bytes of a whole bar */
    double capacity; /* 0: not drawn */
};

static double number(const cJSON *object, const char *key) {
    double value = 0;
    struct err ignored = {0};
    (void)json_get_f64(object, key, &value, &ignored);
    return value;
}

static const char *text(const cJSON *object, const char *key) {
    const char *value = NULL;
    struct err ignored = {0};
    (void)json_get_string(object, key, &value, &ignored);
    return value ? value : "";
}

static bool is_set(const cJSON *object, const char *key) {
    const cJSON *const item = json_member(object, key);
    return item && !cJSON_IsNull(item);
}

static void paint(const struct page *p, const char *colour) {
    if (p->colour) str_append(p->out, colour);
}

static const char *bytes(double value, char buffer[24]) {
    return str_bytes((int64_t)value, buffer);
}

/* What is planned: "Llama-3.1-8B, LoRA r 16, bf16, 4 rows of 1024 tokens". */
static void print_subject(const struct page *p) {
    const cJSON *const spec = json_member(p->plan, "spec"), *const data = json_member(spec, "data");
    const bool full = strcmp(text(spec, "finetuning_type"), "full") == 0;
    const char *const model = text(spec, "model"), *const slash = strrchr(model, '/');
    const char *precision = cJSON_IsTrue(json_member(spec, "bf16"))   ? "bf16"
                            : cJSON_IsTrue(json_member(spec, "fp16")) ? "fp16"
                            : cJSON_IsTrue(json_member(spec, "tf32")) ? "tf32"
                                                                      : "fp32";
    paint(p, BOLD);
    data_append_safe(p->out, slash && slash[1] ? slash + 1 : model, false);
    paint(p, RESET);
    str_appendf(p->out, "  %.2fB parameters, ", number(p->plan, "parameters") * 1e-9);
    if (full) {
        str_append(p->out, "all of them trained, ");
    } else {
        str_appendf(p->out, "LoRA r %.0f trains %.1fM of them, ", number(spec, "r"),
                    number(p->plan, "trainable_parameters") * 1e-6);
    }
    const double rows = number(json_member(p->plan, "layout"), "micro_rows");
    str_appendf(p->out, "%s\n%.0f row%s of at most %.0f tokens at a time", precision, rows,
                rows == 1 ? "" : "s", number(data, "max_length"));
    const bool files = strcmp(text(p->plan, "data_from"), "files") == 0;
    str_append(p->out, files ? ", as long as the data really are" : ", all of them full");
    str_appendf(p->out, ", on %s\n\n", text(json_member(p->plan, "verdict"), "device"));
}

static void print_verdict(const struct page *p) {
    const cJSON *const verdict = json_member(p->plan, "verdict");
    const cJSON *const fits = json_member(verdict, "fits");
    const bool open = !cJSON_IsBool(fits);
    paint(p, open ? YELLOW : cJSON_IsTrue(fits) ? GREEN : RED);
    str_append(p->out, open ? "  ?  " : cJSON_IsTrue(fits) ? "  FITS  " : "  DOES NOT FIT  ");
    paint(p, RESET);
    const char *const said = text(verdict, "text"), *const colon = strchr(said, ':');
    data_append_safe(p->out, !open && colon ? colon + 2 : said, false);
    str_append(p->out, "\n\n");
}

static void choose_scale(struct page *p) {
    const double need = number(p->plan, "planned_need_bytes");
    const double capacity = number(p->plan, "capacity_bytes");
    p->capacity = capacity > 0 && capacity <= DRAWN_MAX * need ? capacity : 0;
    p->scale = fmax(need, p->capacity);
    if (p->scale <= 0) p->scale = 1;
}

static int cells(const struct page *p, double value) {
    return (int)lround(value / p->scale * BAR_WIDTH);
}

/* One bar: each category begins where the sum of those before it ends. */
static void print_bar(const struct page *p, const cJSON *categories) {
    const int line = p->capacity > 0 ? cells(p, p->capacity) : -1;
    double sum = 0;
    int at = 0;
    for (size_t i = 0; i < COUNT_OF(CATEGORIES); i++) {
        sum += number(categories, CATEGORIES[i].name);
        const int end = cells(p, sum);
        if (end > at) paint(p, CATEGORIES[i].colour);
        for (; at < end; at++) {
            if (at == line) str_append(p->out, "\xE2\x94\x82");
            if (p->colour) {
                str_append(p->out, "\xE2\x96\x88");
            } else {
                str_append_char(p->out, CATEGORIES[i].letter);
            }
        }
    }
    paint(p, RESET);
    for (; at <= BAR_WIDTH; at++) {
        str_append(p->out, at == line ? "\xE2\x94\x82" : " ");
    }
}

static void print_phases(const struct page *p) {
    const cJSON *row = NULL;
    char size[24];
    cJSON_ArrayForEach(row, json_member(p->plan, "phase_table")) {
        const bool fullest = strcmp(text(row, "phase"), text(p->plan, "peak_phase")) == 0;
        str_appendf(p->out, "  %-*s", NAME_WIDTH, text(row, "phase"));
        print_bar(p, json_member(row, "categories"));
        if (fullest) paint(p, BOLD);
        str_appendf(p->out, " %11s%s\n", bytes(number(row, "peak_bytes"), size),
                    fullest ? "  <- fullest" : "");
        if (fullest) paint(p, RESET);
    }
}

/* A line of their own: with a large vocabulary they are what surprises people. */
static void print_logits(const struct page *p) {
    const double most = number(p->plan, "logits_peak_bytes");
    double there = 0;
    char a[24], b[24];
    const cJSON *row = NULL;
    if (most <= 0) return;
    cJSON_ArrayForEach(row, json_member(p->plan, "phase_table")) {
        if (strcmp(text(row, "phase"), text(p->plan, "peak_phase")) == 0)
            there = number(row, "logits_bytes");
    }
    str_appendf(p->out,
                "  %-*slogits and loss %s of the activations (at most %s; loss_chunk_rows)\n",
                NAME_WIDTH, "", bytes(there, a), bytes(most, b));
}

static void print_legend(const struct page *p) {
    const cJSON *const peak = json_member(p->plan, "categories_at_peak");
    char size[24];
    int count = 0;
    str_appendf(p->out, "\n  %-*s", NAME_WIDTH, "at the peak");
    for (size_t i = 0; i < COUNT_OF(CATEGORIES); i++) {
        const double held = number(peak, CATEGORIES[i].name);
        if (cells(p, held) == 0 && held < (double)(64 << 20)) continue;
        if (count > 0 && count % 3 == 0) str_appendf(p->out, "\n  %-*s", NAME_WIDTH, "");
        paint(p, CATEGORIES[i].colour);
        if (p->colour) {
            str_append(p->out, "\xE2\x96\x88");
        } else {
            str_append_char(p->out, CATEGORIES[i].letter);
        }
        paint(p, RESET);
        str_appendf(p->out, " %s %s   ", CATEGORIES[i].name, bytes(held, size));
        count++;
    }
    str_append(p->out, "\n");
    print_logits(p);
    if (p->capacity <= 0) return;
    str_appendf(p->out, "  %-*s\xE2\x94\x82 capacity %s (%s)\n", NAME_WIDTH, "",
                bytes(p->capacity, size), text(json_member(p->plan, "verdict"), "capacity_from"));
}

static void print_when(const struct page *p) {
    const cJSON *const when = json_member(p->plan, "when");
    const char *const part = text(when, "part");
    str_appendf(p->out, "\n  %-*s", NAME_WIDTH, "when");
    if (strcmp(part, "load") == 0) {
        str_append(p->out, "while the model is loaded\n");
        return;
    }
    str_appendf(p->out, "in %s of a micro-batch (%s) of %.0f tokens in %.0f documents\n",
                text(when, "phase"), part, number(when, "tokens"), number(when, "documents"));
}

static void print_beside(const struct page *p) {
    const cJSON *const overhead = json_member(p->plan, "overhead");
    const cJSON *const host = json_member(p->plan, "host");
    char a[24], b[24];
    str_appendf(p->out, "  %-*s", NAME_WIDTH, "beside it");
    if (is_set(overhead, "bytes")) {
        str_appendf(p->out, "%s for context and libraries (%s)\n",
                    bytes(number(overhead, "bytes"), a), text(overhead, "from"));
    } else {
        str_append(p->out, "context and libraries: not measured on this device yet\n");
    }
    str_appendf(p->out, "  %-*s%s of host memory for transfers while loading, %s while training\n",
                NAME_WIDTH, "", bytes(number(host, "staging_load_bytes"), a),
                bytes(number(host, "staging_train_bytes"), b));
}

static void append_seconds(struct str *out, double seconds) {
    if (seconds < 1) {
        str_appendf(out, "%.0f ms", 1000 * seconds);
    } else if (seconds < 120) {
        str_appendf(out, "%.1f s", seconds);
    } else if (seconds < 7200) {
        str_appendf(out, "%.0f min", seconds / 60);
    } else {
        str_appendf(out, "%.1f h", seconds / 3600);
    }
}

static void print_time(const struct page *p) {
    const cJSON *const time = json_member(p->plan, "time");
    str_appendf(p->out, "  %-*s", NAME_WIDTH, "a step");
    if (!is_set(time, "seconds_per_step")) {
        str_append(p->out, "time unknown: nothing was measured on this device yet (--measure)\n");
        return;
    }
    str_append(p->out, "about ");
    append_seconds(p->out, number(time, "seconds_per_step"));
    str_appendf(p->out, ", %.0f tokens/s", number(time, "tokens_per_second"));
    if (is_set(time, "seconds_total")) {
        str_append(p->out, ", the run ");
        append_seconds(p->out, number(time, "seconds_total"));
    }
    str_appendf(p->out, " (an estimate from %s rates)\n", text(time, "rates"));
}

/* "290 GB/s NVLink (measured)" */
static void append_link(struct str *out, const cJSON *link) {
    str_appendf(out, "%.4g GB/s %s (%s)", number(link, "bytes_per_second") * 1e-9,
                text(link, "name"), text(link, "from"));
}

static void print_exchange(const struct page *p) {
    const cJSON *const time = json_member(p->plan, "time");
    const cJSON *const exchange = json_member(time, "exchange");
    if (!exchange) return;
    str_appendf(p->out, "  %-*s", NAME_WIDTH, "");
    append_seconds(p->out, number(exchange, "seconds"));
    str_append(p->out, " of it for exchange between ranks, ");
    append_seconds(p->out, number(exchange, "hidden_seconds"));
    str_append(p->out, " more beside computing");
    if (number(time, "pipeline_waits_seconds") > 0) {
        str_append(p->out, "; a pipeline fills and empties for ");
        append_seconds(p->out, number(time, "pipeline_waits_seconds"));
    }
    str_appendf(p->out, "\n  %-*sover ", NAME_WIDTH, "");
    append_link(p->out, json_member(exchange, "link"));
    if (number(exchange, "between_machines_seconds") > 0) {
        str_appendf(p->out, ", between machines of %.0f ", number(exchange, "ranks_per_machine"));
        append_link(p->out, json_member(exchange, "network"));
    }
    str_append(p->out, "\n");
}

/* A line a class: ranks that are alike have one plan. */
static void print_ranks(const struct page *p) {
    const cJSON *const classes = json_member(p->plan, "rank_classes"), *class = NULL;
    const bool stages =
        number(cJSON_GetArrayItem(classes, cJSON_GetArraySize(classes) - 1), "stage") > 0;
    const char *name = "ranks";
    char size[24];
    int left = CLASSES_MAX;
    if (cJSON_GetArraySize(json_member(p->plan, "ranks")) < 2) return;
    cJSON_ArrayForEach(class, classes) {
        if (left-- == 0) {
            str_appendf(p->out, "  %-*sand %d classes more (--json)\n", NAME_WIDTH, "",
                        cJSON_GetArraySize(classes) - CLASSES_MAX);
            return;
        }
        str_appendf(p->out, "  %-*s%s", NAME_WIDTH, name, text(class, "ranks"));
        if (stages)
            str_appendf(p->out, " (stage %.0f, layers %.0f to %.0f)", number(class, "stage"),
                        number(class, "first_layer"), number(class, "end_layer") - 1);
        str_appendf(p->out, ": %s\n", bytes(number(class, "planned_need_bytes"), size));
        name = "";
    }
}

/* " --set a=1 --set b.c=2" */
static void append_keys(struct str *out, const cJSON *set, const char *prefix) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, set) {
        char *const path = str_format("%s%s", prefix, item->string);
        if (cJSON_IsObject(item)) {
            char *const group = str_format("%s.", path);
            append_keys(out, item, group);
            mem_free(group);
        } else {
            struct str value = {0};
            json_append(&value, item);
            const bool plain = cJSON_IsString(item);
            str_appendf(out, " --set %s=%s", path, plain ? item->valuestring : str_text(&value));
            str_release(&value);
        }
        mem_free(path);
    }
}

/* Words of a sentence, on lines of TEXT_WIDTH that begin so far in; the first line has begun. */
static void print_words(const struct page *p, const char *sentence) {
    size_t column = TEXT_INDENT;
    while (*sentence) {
        const size_t length = strcspn(sentence, " ");
        char *const word = mem_strndup(sentence, length);
        if (column > TEXT_INDENT && column + 1 + length > TEXT_WIDTH) {
            str_appendf(p->out, "\n%*s", TEXT_INDENT, "");
            column = TEXT_INDENT;
        } else if (column > TEXT_INDENT) {
            str_append(p->out, " ");
            column++;
        }
        data_append_safe(p->out, word, false);
        mem_free(word);
        column += length;
        sentence += length + (sentence[length] == ' ');
    }
}

static void print_change(const struct page *p, const cJSON *item, const char *name, bool keys) {
    char size[24];
    const cJSON *const fits = json_member(item, "fits");
    str_append(p->out, "  ");
    paint(p, cJSON_IsTrue(fits) ? GREEN : DIM);
    str_append(p->out, cJSON_IsTrue(fits) ? "fits " : cJSON_IsFalse(fits) ? "less " : "  -  ");
    paint(p, RESET);
    if (is_set(item, "need_bytes")) {
        str_appendf(p->out, "%11s  work x%-5.2f ", bytes(number(item, "need_bytes"), size),
                    number(item, "cost"));
    } else {
        str_appendf(p->out, "%11s  %11s ", "", "");
    }
    paint(p, BOLD);
    str_append(p->out, name);
    paint(p, RESET);
    struct str sentence = {0};
    const cJSON *const with = json_member(item, "with");
    str_append(&sentence, text(item, "text"));
    for (int i = 0; i < cJSON_GetArraySize(with); i++) {
        const cJSON *const other = cJSON_GetArrayItem(with, i);
        str_appendf(&sentence, "%s%s", i ? ", " : " With ",
                    cJSON_IsString(other) ? other->valuestring : "");
    }
    if (cJSON_GetArraySize(with) > 0) str_append(&sentence, ".");
    if (is_set(item, "refused")) str_appendf(&sentence, " But: %s", text(item, "refused"));
    str_appendf(p->out, "\n%*s", TEXT_INDENT, "");
    print_words(p, str_text(&sentence));
    str_release(&sentence);
    str_append(p->out, "\n");
    const cJSON *const set = json_member(item, "set");
    if (!keys || !cJSON_GetArraySize(set)) return;
    paint(p, DIM);
    str_append(p->out, "      ");
    append_keys(p->out, set, "");
    paint(p, RESET);
    str_append(p->out, "\n");
}

/* Remedies that reach the capacity, one by one; others only by what they leave. */
static void print_remedies(const struct page *p, const cJSON *remedies) {
    const int count = cJSON_GetArraySize(remedies);
    const cJSON *const last = count > 0 ? cJSON_GetArrayItem(remedies, count - 1) : NULL;
    char size[24];
    if (!last) return;
    if (!cJSON_IsTrue(json_member(last, "fits"))) {
        str_appendf(p->out,
                    "\nAll remedies together bring it down to %s, at %.2f times the work: that is "
                    "not enough.\n",
                    bytes(number(last, "need_bytes"), size), number(last, "cost"));
        return;
    }
    str_append(p->out, "\nRemedies, each added to those before it. The loss curve stays the same, "
                       "and a run\ntakes them by itself (memory.on_oom auto):\n");
    for (int i = 0; i < count; i++) {
        const cJSON *const item = cJSON_GetArrayItem(remedies, i);
        print_change(p, item, text(item, "remedy"), item == last);
    }
}

/* Advice that remedies follow anyway is not repeated. */
static void print_advice(const struct page *p, const cJSON *advice, bool remedied) {
    const cJSON *item = NULL;
    bool any = false;
    cJSON_ArrayForEach(item, advice) {
        const char *const name = text(item, "advice");
        if (strcmp(name, "plain") == 0) continue;
        if (remedied && strcmp(name, "micro_batch") == 0) continue;
        if (!any) str_append(p->out, "\nWhat you can change yourself:\n");
        any = true;
        print_change(p, item, name, true);
    }
}

static void print_changes(const struct page *p) {
    const cJSON *const remedies = json_member(p->plan, "remedies");
    print_remedies(p, remedies);
    print_advice(p, json_member(p->plan, "advice"), cJSON_GetArraySize(remedies) > 0);
}

static double fastest_of(const cJSON *list) {
    const cJSON *item = NULL;
    double most = 0;
    cJSON_ArrayForEach(item, list) most = fmax(most, number(item, "tokens_per_second"));
    return most;
}

/* " 1234 tokens/s ######" */
static void print_speed(const struct page *p, double speed, double fastest) {
    const int width = fastest > 0 ? (int)lround(speed / fastest * SPEED_WIDTH) : 0;
    str_appendf(p->out, " %9.0f tokens/s  ", speed);
    paint(p, GREEN);
    for (int i = 0; i < width; i++) {
        str_append(p->out, p->colour ? "\xE2\x96\x88" : "#");
    }
    paint(p, RESET);
}

static void print_layout(const struct page *p, const cJSON *item, bool picked, double fastest) {
    char size[24];
    const bool fits = cJSON_IsTrue(json_member(item, "fits"));
    str_append(p->out, picked ? "  -> " : "     ");
    if (picked) paint(p, BOLD);
    str_appendf(p->out, "%-*s", LAYOUT_WIDTH, text(item, "layout"));
    if (picked) paint(p, RESET);
    str_appendf(p->out, " %11s", bytes(number(item, "need_bytes"), size));
    if (fits && is_set(item, "tokens_per_second"))
        print_speed(p, number(item, "tokens_per_second"), fastest);
    if (!fits) str_append(p->out, "  does not fit");
    const cJSON *name = NULL;
    cJSON_ArrayForEach(name, json_member(item, "with")) {
        if (fits) str_appendf(p->out, " %s", cJSON_IsString(name) ? name->valuestring : "");
    }
    str_append(p->out, "\n");
}

/* Those that fit come first, by speed; then
 * those that need least. */
static bool comes_before(const cJSON *a, const cJSON *b) {
    const bool fits = cJSON_IsTrue(json_member(a, "fits"));
    if (fits != cJSON_IsTrue(json_member(b, "fits"))) return fits;
    if (fits && number(a, "tokens_per_second") != number(b, "tokens_per_second"))
        return number(a, "tokens_per_second") > number(b, "tokens_per_second");
    return number(a, "need_bytes") < number(b, "need_bytes");
}

static const cJSON *next_layout(const cJSON *candidates, const cJSON *after) {
    const cJSON *item = NULL, *best = NULL;
    cJSON_ArrayForEach(item, candidates) {
        if (!is_set(item, "need_bytes") || item == after) continue;
        if (after && !comes_before(after, item)) continue;
        if (!best || comes_before(item, best)) best = item;
    }
    return best;
}

/* Of what parallel.layout auto had to choose from. */
static void print_layouts(const struct page *p) {
    const cJSON *const layouts = json_member(p->plan, "layouts");
    const cJSON *const candidates = json_member(layouts, "candidates"), *item = NULL;
    const cJSON *const picked = cJSON_GetArrayItem(candidates, (int)number(layouts, "picked"));
    const double fastest = fastest_of(candidates);
    int planned = 0, shown = 0, refused = 0;
    if (!layouts) return;
    cJSON_ArrayForEach(item, candidates) {
        planned += is_set(item, "need_bytes");
        refused += !is_set(item, "need_bytes");
    }
    str_append(p->out, "\nLayouts, need of a rank, speed of all (parallel.layout auto)\n       ");
    print_words(p, text(layouts, "why"));
    str_append(p->out, "\n");
    print_layout(p, picked, true, fastest);
    for (item = next_layout(candidates, NULL); item && shown < LAYOUTS_MAX;
         item = next_layout(candidates, item)) {
        if (item != picked) print_layout(p, item, false, fastest);
        shown += item != picked;
    }
    if (planned > shown + 1) str_appendf(p->out, "     and %d more\n", planned - shown - 1);
    if (refused)
        str_appendf(p->out,
                    "     %d other layouts are not possible for this run (--json says why)\n",
                    refused);
}

static void print_ramp(const struct page *p, const cJSON *ramp) {
    const double fastest = fastest_of(ramp);
    const cJSON *rung = NULL;
    char a[24], b[24];
    str_append(p->out, "\nTried with real steps: rows x tokens, planned peak, measured peak\n");
    cJSON_ArrayForEach(rung, ramp) {
        const double planned = number(rung, "planned_peak_bytes");
        str_appendf(p->out, "  %5.0f x %-7.0f %11s", number(rung, "rows"), number(rung, "length"),
                    bytes(planned, a));
        if (!is_set(rung, "measured_peak_bytes")) {
            str_append(p->out, "  does not fit\n");
            continue;
        }
        const double measured = number(rung, "measured_peak_bytes");
        const bool equal = cJSON_IsTrue(json_member(rung, "equal"));
        paint(p, equal ? GREEN : RED);
        if (equal) {
            str_append(p->out, "  equal to the byte");
        } else {
            str_appendf(p->out, "  %11s, %.0f bytes off", bytes(measured, b), measured - planned);
        }
        paint(p, RESET);
        print_speed(p, number(rung, "tokens_per_second"), fastest);
        str_append(p->out, "\n");
    }
}

static void print_cap(const struct page *p, const cJSON *cap) {
    const double fastest = fastest_of(cap);
    const cJSON *rung = NULL, *name = NULL;
    char size[24];
    str_append(p->out, "\nWith less and less memory, and the remedies that this takes\n");
    cJSON_ArrayForEach(rung, cap) {
        const bool fits = cJSON_IsTrue(json_member(rung, "fits"));
        str_appendf(p->out, "  %3.0f %% %11s", 100 * number(rung, "share"),
                    bytes(number(rung, "capacity_bytes"), size));
        if (!fits) {
            str_append(p->out, "  no remedy is enough\n");
            continue;
        }
        print_speed(p, number(rung, "tokens_per_second"), fastest);
        cJSON_ArrayForEach(name, json_member(rung, "remedies")) {
            str_appendf(p->out, " %s", cJSON_IsString(name) ? name->valuestring : "");
        }
        str_append(p->out, "\n");
    }
}

static void print_probe(const struct page *p) {
    const cJSON *const probe = json_member(p->plan, "probe");
    if (!probe) return;
    print_ramp(p, json_member(probe, "ramp"));
    print_cap(p, json_member(probe, "cap"));
}

void plan_print(struct str *out, const cJSON *plan, bool colour) {
    struct page page = {.out = out, .plan = plan, .colour = colour};
    choose_scale(&page);
    print_subject(&page);
    print_verdict(&page);
    print_phases(&page);
    print_legend(&page);
    print_when(&page);
    print_beside(&page);
    print_time(&page);
    print_exchange(&page);
    print_ranks(&page);
    print_layouts(&page);
    print_changes(&page);
    print_probe(&page);
}

bool plan_is_fine(const cJSON *plan) {
    return !cJSON_IsFalse(json_member(plan, "fits"));
}
