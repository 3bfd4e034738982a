/* balance.c - see balance.h.
 *
 * The cause is looked for in this order: more tokens, another stage (its layers take longer), and
 * what is left is the device. */
#include "server/api/balance.h"

#include <math.h>

#include "base/mem.h"
#include "base/str.h"

/* Ranks within these of the mean of the others are even. */
static const double EVEN_SECONDS = 1.1, EVEN_TOKENS = 1.05;
/* Below it nobody minds. */
static const double SECONDS_LEAST = 0.01;

static double number_of(const cJSON *object, const char *key) {
    double value = NAN;
    struct err ignored = {0};
    (void)json_get_f64(object, key, &value, &ignored);
    return value;
}

struct balance_stages balance_stages_of(const cJSON *spec) {
    const cJSON *const parallel = json_member(spec, "parallel");
    const double ranks = number_of(parallel, "ranks");
    const double stages = number_of(parallel, "pipeline_parallel_degree");
    const bool known = ranks >= 1 && stages >= 1 && stages <= ranks;
    return (struct balance_stages){known ? (int64_t)ranks : 1, known ? (int64_t)stages : 1};
}

int64_t balance_stage(const struct balance_stages *s, int64_t rank) {
    return rank / (s->ranks / s->stages);
}

/* One number of all ranks: the rank with most, and the mean of the others. */
struct spread {
    int64_t rank, count;
    double most, mean_of_others;
};

static struct spread spread_of(const cJSON *ranks, const char *key) {
    struct spread s = {.most = -1};
    double sum = 0;
    const cJSON *one = NULL;
    cJSON_ArrayForEach(one, ranks) {
        const double value = number_of(one, key);
        sum += value;
        if (value > s.most) {
            s.most = value;
            s.rank = s.count;
        }
        s.count++;
    }
    s.mean_of_others = s.count > 1 ? (sum - s.most) / (double)(s.count - 1) : NAN;
    return s;
}

static const char *cause_of(const cJSON *ranks, const struct spread *s, double *tokens,
                            const struct balance_stages *stages) {
    const double own = number_of(cJSON_GetArrayItem(ranks, (int)s->rank), "tokens");
    double others = -own;
    int64_t count = -1;
    const cJSON *one = NULL;
    /* Of ranks that share a row's work one alone counts it. */
    cJSON_ArrayForEach(one, ranks) {
        const double each = number_of(one, "tokens");
        if (!(each > 0)) continue;
        others += each;
        count++;
    }
    *tokens = own > 0 && count > 0 ? own / (others / (double)count) : NAN;
    /* In a pipeline only the last stage counts tokens. */
    if (stages->stages > 1) return "stage";
    return *tokens > EVEN_TOKENS ? "tokens" : "device";
}

static char *sentence(const struct spread *s, const char *cause, double tokens,
                      const struct balance_stages *stages) {
    struct str text = {0};
    if (!cause) {
        str_appendf(&text, "All %lld ranks compute about as long.", (long long)s->count);
        return str_take(&text);
    }
    str_appendf(&text, "Rank %lld computes %.3g s of a step, the others %.3g s on average: ",
                (long long)s->rank, s->most, s->mean_of_others);
    if (str_equal(cause, "stage")) {
        str_appendf(&text,
                    "it is in stage %lld of %lld, whose layers take longest; the other stages wait "
                    "for it.",
                    (long long)balance_stage(stages, s->rank) + 1, (long long)stages->stages);
    } else if (str_equal(cause, "tokens")) {
        str_appendf(&text, "it has %.2f times their tokens.", tokens);
    } else {
        str_append(&text, "with as many tokens, so its device is slower, or others use it too.");
    }
    return str_take(&text);
}

cJSON *balance_of_step(const cJSON *step, const struct balance_stages *stages) {
    const cJSON *const ranks = json_member(step, "ranks");
    const struct spread s = spread_of(ranks, "seconds"), waits = spread_of(ranks, "waited_seconds");
    /* A sum with what is not known is not known. */
    if (s.count < 2 || !isfinite(s.mean_of_others) || !isfinite(waits.mean_of_others))
        return cJSON_CreateNull();
    const double ratio = s.most / s.mean_of_others;
    const bool even = !(ratio > EVEN_SECONDS) || s.most < SECONDS_LEAST;
    double tokens = NAN;
    const char *const cause = even ? NULL : cause_of(ranks, &s, &tokens, stages);
    char *const text = sentence(&s, cause, tokens, stages);
    cJSON *const json = cJSON_CreateObject();
    json_add_i64(json, "rank", s.rank);
    json_add_number(json, "seconds", s.most);
    json_add_number(json, "mean_of_others", s.mean_of_others);
    json_add_number(json, "ratio", ratio);
    json_add_string(json, "cause", cause);
    json_add_string(json, "text", text);
    mem_free(text);
    return json;
}
