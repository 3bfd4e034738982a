/* test_memory_api.c - goal: a job's memory is told rank by rank, with the uneven rank named and its
 * cause, and judged by the number that ends runs (case M42); a database from before keeps its
 * series. Method: events of ranks put into a store, as the follower does, and the handlers' JSON.
 *
 * rooms: server engine_contract base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/api/api.h"
#include "server/store/series.h"

#define GIB(x) ((long long)((x)*1024) << 20)

static char *new_folder(void) {
    char id[64];
    store_new_id(id, "test-memory-");
    return str_format("/tmp/%s", id);
}

static struct store *open_store(const char *folder, struct job_row *row) {
    struct store *store = NULL;
    struct err e = {0};
    char id[64];
    assert_int_equal(store_open(&store, folder, &e), STATUS_OK);
    store_new_id(id, "ftjob-");
    *row = (struct job_row){.id = mem_strdup(id),
                            .model = mem_strdup("m"),
                            .training_file = mem_strdup("file-x"),
                            .status = mem_strdup("queued"),
                            .phase = mem_strdup("queued"),
                            .request = mem_strdup("{}"),
                            .spec = mem_strdup("{}")};
    assert_int_equal(store_begin(store, &e), STATUS_OK);
    assert_int_equal(store_end(store, store_job_create(store, row, NULL, "h", &e), &e), STATUS_OK);
    return store;
}

static void close_store(struct store *store, char *folder, struct job_row *row) {
    struct err e = {0};
    job_row_release(row);
    store_close(store);
    assert_int_equal(file_remove_all(folder, &e), STATUS_OK);
    mem_free(folder);
}

static void put(struct store *store, const struct job_row *job, int64_t rank, char *data) {
    struct err e = {0};
    const struct latest_row row = {.rank = rank, .kind = "memory", .data = data, .time_ms = 1};
    assert_int_equal(store_latest_put(store, job->number, &row, &e), STATUS_OK);
    mem_free(data);
}

/* A rank of a card of 24 GiB. */
static char *event_of(double activations, double used) {
    return str_format("{\"kind\":\"memory\",\"peak\":%lld,\"capacity\":%lld,\"device_used\":%lld,"
                      "\"device_total\":%lld,\"allocated\":1000,\"reserved\":5000,"
                      "\"categories\":{\"weights\":%lld,\"activations\":%lld},"
                      "\"allocator\":{\"allocated_total\":4000,\"reserved_total\":5000,\"live\":2,"
                      "\"live_total\":9,\"live_peak\":3,\"failures\":1}}",
                      GIB(6 + activations), GIB(23), GIB(used), GIB(24), GIB(6), GIB(activations));
}

static cJSON *ask(struct store *store, const struct job_row *job) {
    struct app app = {.store = store};
    struct http_request q = {.parameters = {job->id}};
    struct http_reply r = {0};
    struct err e = {0};
    assert_int_equal(api_jobs_memory(&app, &q, &r, &e), STATUS_OK);
    cJSON *json = NULL;
    assert_int_equal(json_parse(str_text(&r.body), r.body.len, "answer", &json, &e), STATUS_OK);
    str_release(&r.body);
    return json;
}

static const cJSON *rank_of(const cJSON *json, int index) {
    return cJSON_GetArrayItem(json_member(json, "ranks"), index);
}

static const char *text_at(const cJSON *object, const char *key) {
    return json_member(object, key)->valuestring;
}

/* M24: look at the highest card, not at the sum; and say what makes the difference. */
static void test_memory_uneven_rank_is_named_with_its_cause(void **state) {
    (void)state;
    struct job_row job;
    char *folder = new_folder();
    struct store *store = open_store(folder, &job);
    for (int64_t rank = 0; rank < 4; rank++) {
        put(store, &job, rank, event_of(rank == 2 ? 12 : 8, 15));
    }
    cJSON *json = ask(store, &job);
    const cJSON *const imbalance = json_member(json, "imbalance");
    assert_int_equal(json_member(imbalance, "rank")->valueint, 2);
    assert_string_equal(text_at(imbalance, "category"), "activations");
    assert_string_equal(text_at(imbalance, "text"),
                        "Rank 2 peaks at 18.00 GiB, the others at 14.00 GiB on average; 4.00 GiB "
                        "of that are activations.");
    cJSON_Delete(json);
    put(store, &job, 2, event_of(8, 15));
    json = ask(store, &job);
    assert_string_equal(text_at(json_member(json, "imbalance"), "text"),
                        "All 4 ranks hold about as much.");
    cJSON_Delete(json);
    close_store(store, folder, &job);
}

/* M42: allocated, reserved and the device's number are all there, and it is the device that the
 * verdict is about where it is the fuller one. */
static void test_memory_verdict_is_about_the_device(void **state) {
    (void)state;
    struct job_row job;
    char *folder = new_folder();
    struct store *store = open_store(folder, &job);
    const struct {
        double activations, used;
        const char *level, *of;
    } cases[] = {{8, 15, "ok", "device"},
                 {8, 22, "tight", "device"},
                 {8, 23.9, "full", "device"},
                 {15, 10, "tight", "capacity"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        put(store, &job, 0, event_of(cases[i].activations, cases[i].used));
        cJSON *json = ask(store, &job);
        const cJSON *const one = rank_of(json, 0), *const verdict = json_member(one, "verdict");
        assert_string_equal(text_at(verdict, "level"), cases[i].level);
        assert_string_equal(text_at(verdict, "of"), cases[i].of);
        assert_non_null(json_member(json_member(one, "memory"), "allocated"));
        assert_non_null(json_member(json_member(one, "memory"), "reserved"));
        assert_true(cJSON_IsNull(json_member(json, "imbalance")));
        cJSON_Delete(json);
    }
    put(store, &job, 0, mem_strdup("{\"peak\":5}"));
    cJSON *json = ask(store, &job);
    assert_true(cJSON_IsNull(json_member(json_member(rank_of(json, 0), "verdict"), "level")));
    cJSON_Delete(json);
    close_store(store, folder, &job);
}

static void test_memory_summary_has_the_classic_rows(void **state) {
    (void)state;
    struct job_row job;
    char *folder = new_folder();
    struct store *store = open_store(folder, &job);
    put(store, &job, 0, event_of(8, 15));
    cJSON *json = ask(store, &job);
    const cJSON *const rows = json_member(rank_of(json, 0), "summary");
    const cJSON *const first = cJSON_GetArrayItem(rows, 0);
    assert_string_equal(text_at(first, "metric"), "Allocated memory");
    assert_int_equal(json_member(first, "current")->valueint, 1000);
    assert_int_equal(json_member(first, "freed")->valueint, 3000);
    const cJSON *const blocks = cJSON_GetArrayItem(rows, 4);
    assert_string_equal(text_at(blocks, "metric"), "Allocations");
    assert_int_equal(json_member(blocks, "freed")->valueint, 7);
    assert_true(cJSON_IsNull(json_member(cJSON_GetArrayItem(rows, 3), "current")));
    cJSON_Delete(json);
    close_store(store, folder, &job);
}

static void put_series(struct store *store, const struct job_row *job, int64_t rank, int64_t step) {
    struct err e = {0};
    struct memory_row row = {.rank = rank, .step = step, .time_ms = 1};
    for (int i = 0; i < MEMORY_VALUES; i++) {
        row.values[i] = i == MEMORY_OTHERS ? -1 : 30000000001 + rank;
    }
    assert_int_equal(store_memory_put(store, job->number, &row, &e), STATUS_OK);
}

/* Bytes beyond 2^32 come back to the last one; what is unknown is null; ranks do not mix. */
static void test_memory_series_are_by_rank_and_exact(void **state) {
    (void)state;
    struct job_row job;
    struct err e = {0};
    char *folder = new_folder();
    struct store *store = open_store(folder, &job);
    for (int64_t step = 1; step <= 3; step++) {
        put_series(store, &job, 0, step);
        put_series(store, &job, 1, step);
    }
    struct str text = {0};
    cJSON *json = NULL;
    const struct metrics_request request = {800, 0, INT64_MAX};
    assert_int_equal(metrics_write(store, &job, &request, &text, &e), STATUS_OK);
    assert_int_equal(json_parse(str_text(&text), text.len, "metrics", &json, &e), STATUS_OK);
    const cJSON *const memory = json_member(json, "memory");
    const cJSON *const other = cJSON_GetArrayItem(json_member(memory, "ranks"), 0);
    assert_int_equal(cJSON_GetArraySize(json_member(memory, "step")), 3);
    assert_int_equal(cJSON_GetArraySize(json_member(other, "step")), 3);
    assert_int_equal(json_member(other, "rank")->valueint, 1);
    assert_true(cJSON_GetArrayItem(json_member(memory, "peak"), 2)->valuedouble == 30000000001.0);
    assert_true(cJSON_GetArrayItem(json_member(other, "peak"), 0)->valuedouble == 30000000002.0);
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(json_member(memory, "others"), 0)));
    assert_int_equal(cJSON_GetArraySize(json_member(json_member(other, "categories"), "staging")),
                     3);
    cJSON_Delete(json);
    str_release(&text);
    close_store(store, folder, &job);
}

/* Made by the first release's statements: two steps of a job, without ranks. */
static void test_memory_series_of_an_older_database_are_kept(void **state) {
    (void)state;
    struct job_row job = {0};
    struct store *store = NULL;
    struct err e = {0};
    struct str text = {0};
    cJSON *json = NULL;
    char *folder = new_folder();
    char *path = file_join(folder, "plimsoll.db");
    assert_int_equal(file_make_folder(folder, &e), STATUS_OK);
    assert_int_equal(file_copy("tests/unit/data/store/schema1.db", path, &e), STATUS_OK);
    mem_free(path);
    assert_int_equal(store_open(&store, folder, &e), STATUS_OK);
    assert_int_equal(store_job_get(store, "ftjob-old", &job, &e), STATUS_OK);
    const struct metrics_request request = {800, 0, INT64_MAX};
    assert_int_equal(metrics_write(store, &job, &request, &text, &e), STATUS_OK);
    assert_int_equal(json_parse(str_text(&text), text.len, "metrics", &json, &e), STATUS_OK);
    const cJSON *const memory = json_member(json, "memory");
    assert_int_equal(cJSON_GetArraySize(json_member(memory, "step")), 2);
    assert_true(cJSON_GetArrayItem(json_member(memory, "peak"), 1)->valuedouble == 30000000003.0);
    assert_true(cJSON_GetArrayItem(json_member(memory, "step_peak"), 1)->valuedouble ==
                30000000003.0);
    assert_true(cJSON_IsNull(cJSON_GetArrayItem(json_member(memory, "others"), 0)));
    const cJSON *const staging = json_member(json_member(memory, "categories"), "staging");
    assert_int_equal(cJSON_GetArrayItem(staging, 1)->valueint, 8);
    cJSON_Delete(json);
    str_release(&text);
    close_store(store, folder, &job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_uneven_rank_is_named_with_its_cause),
        cmocka_unit_test(test_memory_verdict_is_about_the_device),
        cmocka_unit_test(test_memory_summary_has_the_classic_rows),
        cmocka_unit_test(test_memory_series_are_by_rank_and_exact),
        cmocka_unit_test(test_memory_series_of_an_older_database_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
