/* memory.c - GET /v1/fine_tuning/jobs/{id}/memory: what a job holds, rank by rank.
 *
 * The newest memory, holdings, step and oom events of each rank, the allocator's counters as the
 * table that people know, and two judgements: how full the device is (by the device's number
 * where it is known, because that is where a run dies), and how uneven the ranks are. */
#include "server/api/api.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "server/api/balance.h"
#include "server/store/series.h"

/* Ranks within this of their mean are even. */
static const double EVEN_RATIO = 1.05;
static const double TIGHT_SHARE = 0.9, FULL_SHARE = 0.98;

static double number_of(const cJSON *object, const char *key) {
    double value = NAN;
    struct err ignored = {0};
    (void)json_get_f64(object, key, &value, &ignored);
    return value;
}

static const char *bytes_text(double bytes, char buffer[24]) {
    return str_bytes((int64_t)bytes, buffer);
}

/* What is the tightest bound, and how near it is: {"level","of","share","text"}. */
static cJSON *verdict(const cJSON *memory) {
    const double used = number_of(memory, "device_used"), total = number_of(memory, "device_total");
    /* Of the last step: the cap may have been another one before. */
    const double step_peak = number_of(memory, "step_peak"),
                 capacity = number_of(memory, "capacity");
    const double peak = isfinite(step_peak) ? step_peak : number_of(memory, "peak");
    const double of_device = total > 0 ? used / total : NAN;
    const double of_capacity = capacity > 0 ? peak / capacity : NAN;
    const bool device = !(of_capacity > of_device); /* also where either is unknown */
    const double share = device ? of_device : of_capacity;
    char a[24], b[24];
    cJSON *const json = cJSON_CreateObject();
    const char *const level = share >= FULL_SHARE ? "full" : share >= TIGHT_SHARE ? "tight" : "ok";
    json_add_string(json, "level", isfinite(share) ? level : NULL);
    json_add_string(json, "of", device ? "device" : "capacity");
    json_add_number(json, "share", share);
    if (!isfinite(share)) return json;
    char *text = str_format(device ? "%s of the device's %s are in use, by anybody (%.0f %%)."
                                   : "In its last step the run held up to %s of the %s it may take "
                                     "(%.0f %%).",
                            bytes_text(device ? used : peak, a),
                            bytes_text(device ? total : capacity, b), 100 * share);
    json_add_string(json, "text", text);
    mem_free(text);
    return json;
}

static void add_row(cJSON *rows, const char *metric, const char *unit, const double values[4]) {
    static const char *const COLUMNS[] = {"current", "peak", "allocated", "freed"};
    cJSON *const row = cJSON_CreateObject();
    json_add_string(row, "metric", metric);
    json_add_string(row, "unit", unit);
    for (int i = 0; i < 4; i++) {
        json_add_number(row, COLUMNS[i], values[i]);
    }
    cJSON_AddItemToArray(rows, row);
}

/* The rows of the classic allocator summary; see engine/memory/summary.h for what they mean here.
 */
static cJSON *summary(const cJSON *memory) {
    const cJSON *const a = json_member(memory, "allocator");
    cJSON *const rows = cJSON_CreateArray();
    if (!a) return rows;
    const double allocated = number_of(memory, "allocated"), all = number_of(a, "allocated_total");
    const double reserved = number_of(memory, "reserved"), backed = number_of(a, "reserved_total");
    const double live = number_of(a, "live"), blocks = number_of(a, "live_total");
    const double requested = number_of(a, "requested");
    add_row(rows, "Allocated memory", "bytes",
            (double[]){allocated, number_of(memory, "peak"), all, all - allocated});
    add_row(rows, "Requested memory", "bytes",
            (double[]){requested, number_of(a, "requested_peak"), NAN, NAN});
    add_row(rows, "Reserved memory", "bytes",
            (double[]){reserved, number_of(a, "reserved_peak"), backed, backed - reserved});
    add_row(rows, "Non-releasable memory", "bytes",
            (double[]){number_of(a, "non_releasable"), NAN, NAN, NAN});
    add_row(rows, "Allocations", "count",
            (double[]){live, number_of(a, "live_peak"), blocks, blocks - live});
    add_row(rows, "Out-of-memory events", "count",
            (double[]){number_of(a, "failures"), NAN, NAN, NAN});
    return rows;
}

/* Ranks one after the other, as the store gives them. */
struct gathering {
    cJSON *ranks; /* array */
    cJSON *present;
    int64_t rank;
};

static void see_latest(const struct latest_row *row, void *context) {
    struct gathering *const g = context;
    if (!g->present || g->rank != row->rank) {
        g->present = cJSON_CreateObject();
        g->rank = row->rank;
        json_add_number(g->present, "rank", (double)row->rank); /* it is read again below */
        cJSON_AddItemToArray(g->ranks, g->present);
    }
    cJSON *const event = api_parsed(row->data);
    if (str_equal(row->kind, "memory")) {
        cJSON_AddItemToObject(g->present, "verdict", verdict(event));
        cJSON_AddItemToObject(g->present, "summary", summary(event));
    }
    cJSON_AddItemToObject(g->present, row->kind, event);
}

/* Of one number of all ranks' memory events: the fullest rank and the mean of the others. */
struct spread {
    int64_t rank;
    double most, mean_of_others;
    int64_t count;
};

static struct spread spread_of(const cJSON *ranks, double (*value)(const cJSON *, const char *),
                               const char *key) {
    struct spread s = {.most = -1};
    double sum = 0;
    const cJSON *one = NULL;
    cJSON_ArrayForEach(one, ranks) {
        const double bytes = value(json_member(one, "memory"), key);
        if (!isfinite(bytes)) continue;
        sum += bytes;
        s.count++;
        if (bytes <= s.most) continue;
        s.most = bytes;
        s.rank = (int64_t)number_of(one, "rank");
    }
    s.mean_of_others = s.count > 1 ? (sum - s.most) / (double)(s.count - 1) : NAN;
    return s;
}

static double category_of(const cJSON *memory, const char *key) {
    return number_of(json_member(memory, "categories"), key);
}

/* The category in which the fullest rank exceeds the mean of the others most. */
static const char *cause_of(const cJSON *ranks, int64_t rank, double *difference) {
    const char *cause = NULL;
    *difference = 0;
    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        const char *const name = memory_category_name(i);
        const struct spread s = spread_of(ranks, category_of, name);
        if (s.rank != rank || !(s.most - s.mean_of_others > *difference)) continue;
        *difference = s.most - s.mean_of_others;
        cause = name;
    }
    return cause;
}

/* Stages of a pipeline hold different layers: that they differ is planned, and no cause is looked
 * for. */
static cJSON *imbalance(const cJSON *ranks, const struct balance_stages *stages) {
    const struct spread s = spread_of(ranks, number_of, "peak");
    if (s.count < 2) return cJSON_CreateNull();
    double difference = 0;
    char a[24], b[24], c[24];
    cJSON *const json = cJSON_CreateObject();
    const double ratio = s.mean_of_others > 0 ? s.most / s.mean_of_others : NAN;
    const bool even = !(ratio > EVEN_RATIO);
    const bool staged = stages->stages > 1;
    const char *const cause = even || staged ? NULL : cause_of(ranks, s.rank, &difference);
    json_add_i64(json, "rank", s.rank);
    json_add_number(json, "peak", s.most);
    json_add_number(json, "mean_of_others", s.mean_of_others);
    json_add_number(json, "ratio", ratio);
    json_add_string(json, "category", cause);
    char *text =
        even ? str_format("All %lld ranks hold about as much.", (long long)s.count)
        : cause
            ? str_format("Rank %lld peaks at %s, the others at %s on average; %s of that are %s.",
                         (long long)s.rank, bytes_text(s.most, a), bytes_text(s.mean_of_others, b),
                         bytes_text(difference, c), cause)
            : str_format("Rank %lld peaks at %s, the others at %s on average%s.", (long long)s.rank,
                         bytes_text(s.most, a), bytes_text(s.mean_of_others, b),
                         staged ? ": stages hold different layers, as planned" : "");
    json_add_string(json, "text", text);
    mem_free(text);
    return json;
}

enum status api_jobs_memory(void *context, struct http_request *q, struct http_reply *r,
                            struct err *e) {
    const struct app *const app = context;
    struct job_row job = {0};
    TRY(store_job_get(app->store, q->parameters[0], &job, e));
    struct gathering g = {.ranks = cJSON_CreateArray()};
    cJSON *const json = cJSON_CreateObject();
    json_add_string(json, "object", "plimsoll.memory");
    json_add_string(json, "job", job.id);
    const enum status status =
        store_latest_scan(app->store, job.number, (struct latest_seer){see_latest, &g}, e);
    cJSON *const spec = api_parsed(job.spec);
    const struct balance_stages stages = balance_stages_of(spec);
    const cJSON *const step = json_member(cJSON_GetArrayItem(g.ranks, 0), "step");
    cJSON_AddItemToObject(json, "imbalance", imbalance(g.ranks, &stages));
    cJSON_AddItemToObject(json, "balance", balance_of_step(step, &stages));
    cJSON_Delete(spec);
    cJSON_AddItemToObject(json, "ranks", g.ranks);
    cJSON_AddItemToObject(json, "plan", api_parsed(job.plan));
    job_row_release(&job);
    http_reply_json(r, json);
    return status;
}
