/* test_store.c - the store: what is written is there after reopening, what failed is not, and a
 * million points are thinned out without losing a spike.
 *
 * rooms: server engine_contract base
 *
 * Each test has its own data folder in /tmp, which it removes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "server/api/api.h"
#include "server/run/follow.h"

enum { POINTS = 1000000, SPIKE_AT = 654321, HOLE_AT = 123456 };

static char *new_folder(void) {
    char id[64];
    store_new_id(id, "test-store-");
    return str_format("/tmp/%s", id);
}

static struct store *open_store(const char *folder) {
    struct store *store = NULL;
    struct err e = {0};
    assert_int_equal(store_open(&store, folder, &e), STATUS_OK);
    return store;
}

static void remove_folder(char *folder) {
    struct err e = {0};
    assert_int_equal(file_remove_all(folder, &e), STATUS_OK);
    mem_free(folder);
}

static struct job_row new_job(struct store *store, const char *key) {
    char id[64];
    struct err e = {0};
    store_new_id(id, "ftjob-");
    struct job_row row = {
        .id = mem_strdup(id),
        .model = mem_strdup("m"),
        .training_file = mem_strdup("file-x"),
        .status = mem_strdup("queued"),
        .phase = mem_strdup("queued"),
        .request = mem_strdup("{}"),
        .spec = mem_strdup("{}"),
    };
    enum status status = store_begin(store, &e);
    if (status == STATUS_OK) {
        status = store_end(store, store_job_create(store, &row, key, "h", &e), &e);
    }
    assert_int_equal(status, STATUS_OK);
    return row;
}

static void test_store_second_owner_is_refused(void **state) {
    (void)state;
    char *folder = new_folder();
    struct store *store = open_store(folder), *second = NULL;
    struct err e = {0};
    assert_int_equal(store_open(&second, folder, &e), STATUS_CONFLICT);
    assert_non_null(strstr(e.text, folder));
    store_close(store);
    store_close(open_store(folder));
    remove_folder(folder);
}

static void test_job_written_is_there_after_reopening(void **state) {
    (void)state;
    char *folder = new_folder();
    struct store *store = open_store(folder);
    struct err e = {0};
    struct job_row row = new_job(store, "key");
    assert_true(isnan(row.loss));
    row.loss = 1.5;
    row.step = 7;
    row_text(&row.status, "running");
    row_text(&row.error, "{\"code\":\"x\"}");
    assert_int_equal(store_job_update(store, &row, &e), STATUS_OK);
    assert_int_equal(store_job_wish(store, row.id, "cancel", &e), STATUS_OK);
    store_close(store);
    store = open_store(folder);
    struct job_row again = {0};
    assert_int_equal(store_job_get(store, row.id, &again, &e), STATUS_OK);
    assert_true(again.loss == 1.5 && again.step == 7);
    assert_string_equal(again.status, "running");
    assert_string_equal(again.wish, "cancel");
    assert_string_equal(again.error, "{\"code\":\"x\"}");
    char *id = NULL, *hash = NULL;
    assert_int_equal(store_job_by_key(store, "key", &id, &hash, &e), STATUS_OK);
    assert_string_equal(id, row.id);
    mem_free(id);
    mem_free(hash);
    job_row_release(&again);
    job_row_release(&row);
    store_close(store);
    remove_folder(folder);
}

static void test_transaction_that_fails_leaves_nothing(void **state) {
    (void)state;
    char *folder = new_folder();
    struct store *store = open_store(folder);
    struct err e = {0}, wanted = {0};
    struct job_row row = new_job(store, NULL);
    assert_int_equal(store_begin(store, &e), STATUS_OK);
    assert_int_equal(follow_say(store, &row, "info", "lost", &e), STATUS_OK);
    err_set(&wanted, STATUS_INVALID, "wanted");
    assert_int_equal(store_end(store, STATUS_INVALID, &wanted), STATUS_INVALID);
    struct event_row *rows = NULL;
    int64_t count = 0;
    const struct event_cursor all = {row.number, 0, 10, NULL};
    assert_int_equal(store_events_after(store, all, &rows, &count, &e), STATUS_OK);
    assert_int_equal(count, 0);
    event_rows_free(rows, count);
    job_row_release(&row);
    store_close(store);
    remove_folder(folder);
}

static void test_events_old_metrics_are_pruned_messages_stay(void **state) {
    (void)state;
    char *folder = new_folder();
    struct store *store = open_store(folder);
    struct err e = {0};
    struct job_row row = new_job(store, NULL);
    assert_int_equal(store_begin(store, &e), STATUS_OK);
    assert_int_equal(follow_say(store, &row, "info", "first", &e), STATUS_OK);
    for (int i = 0; i < EVENTS_KEPT + 2000; i++) {
        assert_int_equal(store_event_add(store, &row, "step", i, "{}", &e), STATUS_OK);
    }
    assert_int_equal(store_end(store, store_job_update(store, &row, &e), &e), STATUS_OK);
    struct event_row *rows = NULL;
    int64_t count = 0;
    const struct event_cursor start = {row.number, 0, 2, NULL};
    assert_int_equal(store_events_after(store, start, &rows, &count, &e), STATUS_OK);
    assert_string_equal(rows[0].kind, "log");
    assert_true(rows[1].seq > 1000);
    bool lost = false, kept = true;
    assert_int_equal(store_events_lost(store, row.number, 1, &lost, &e), STATUS_OK);
    assert_int_equal(store_events_lost(store, row.number, row.seq - 10, &kept, &e), STATUS_OK);
    assert_true(lost && !kept);
    event_rows_free(rows, count);
    job_row_release(&row);
    store_close(store);
    remove_folder(folder);
}

static void put_points(struct store *store, int64_t job, int64_t count) {
    struct err e = {0};
    assert_int_equal(store_begin(store, &e), STATUS_OK);
    for (int64_t step = 1; step <= count; step++) {
        const double wave = 2 + sin((double)step / 1000);
        const struct step_row row = {
            .step = step,
            .loss = step == SPIKE_AT  ? 1e6
                    : step == HOLE_AT ? NAN
                                      : wave,
            .grad_norm = wave / 2,
            .learning_rate = 1e-4,
            .tokens_per_second = 1000 + (double)(step % 97),
            .accuracy = step == SPIKE_AT + 1 ? -1 : 0.5,
        };
        assert_int_equal(store_step_put(store, job, &row, &e), STATUS_OK);
    }
    assert_int_equal(store_end(store, STATUS_OK, &e), STATUS_OK);
}

static cJSON *metrics_of(struct store *store, const struct job_row *row,
                         struct metrics_request request, int64_t *milliseconds) {
    struct err e = {0};
    struct str text = {0};
    cJSON *value = NULL;
    const int64_t start_ns = clock_steady_ns();
    assert_int_equal(metrics_write(store, row, &request, &text, &e), STATUS_OK);
    *milliseconds = (clock_steady_ns() - start_ns) / 1000000;
    assert_int_equal(json_parse(str_text(&text), text.len, "metrics", &value, &e), STATUS_OK);
    str_release(&text);
    return value;
}

/* The steps rise, every column is as long as they are, and spike, dip and hole are there. */
static void check_thinned(const cJSON *metrics, int points_max) {
    const cJSON *const steps = json_member(metrics, "steps"), *column = NULL, *item = NULL;
    const cJSON *const step = json_member(steps, "step"), *const loss = json_member(steps, "loss");
    const cJSON *const accuracy = json_member(steps, "mean_token_accuracy");
    const int count = cJSON_GetArraySize(step);
    assert_in_range(count, points_max / 4, points_max);
    cJSON_ArrayForEach(column, steps) {
        assert_int_equal(cJSON_GetArraySize(column), count);
    }
    double before = 0;
    bool spike = false, hole = false, dip = false;
    const cJSON *l = loss->child, *a = accuracy->child;
    cJSON_ArrayForEach(item, step) {
        assert_true(item->valuedouble > before);
        before = item->valuedouble;
        spike |= item->valuedouble == SPIKE_AT && l->valuedouble == 1e6;
        hole |= item->valuedouble == HOLE_AT && cJSON_IsNull(l);
        dip |= a->valuedouble == -1;
        l = l->next;
        a = a->next;
    }
    assert_true(spike && hole && dip);
}

static void test_metrics_a_million_points_keep_every_spike(void **state) {
    (void)state;
    char *folder = new_folder();
    struct store *store = open_store(folder);
    struct job_row row = new_job(store, NULL);
    put_points(store, row.number, POINTS);
    int64_t whole_ms = 0, part_ms = 0, zoom_ms = 0;
    cJSON *whole = metrics_of(store, &row, (struct metrics_request){800, 0, INT64_MAX}, &whole_ms);
    check_thinned(whole, 4 * 800);
    cJSON *part = metrics_of(store, &row, (struct metrics_request){800, 1, 100000}, &part_ms);
    cJSON *zoom = metrics_of(store, &row,
                             (struct metrics_request){800, SPIKE_AT - 10, SPIKE_AT + 10}, &zoom_ms);
    assert_int_equal(cJSON_GetArraySize(json_member(json_member(zoom, "steps"), "step")), 21);
    print_message("metrics: %d points in %lld ms, 100000 in %lld ms, 21 in %lld ms\n", POINTS,
                  (long long)whole_ms, (long long)part_ms, (long long)zoom_ms);
    cJSON_Delete(whole);
    cJSON_Delete(part);
    cJSON_Delete(zoom);
    job_row_release(&row);
    store_close(store);
    remove_folder(folder);
}

static void test_metrics_repeated_step_replaces(void **state) {
    (void)state;
    char *folder = new_folder();
    struct store *store = open_store(folder);
    struct job_row row = new_job(store, NULL);
    int64_t ms = 0;
    put_points(store, row.number, 20);
    put_points(store, row.number, 10);
    cJSON *metrics = metrics_of(store, &row, (struct metrics_request){800, 0, INT64_MAX}, &ms);
    assert_int_equal(cJSON_GetArraySize(json_member(json_member(metrics, "steps"), "step")), 20);
    cJSON_Delete(metrics);
    job_row_release(&row);
    store_close(store);
    remove_folder(folder);
}

static void keep_report(struct store *store, const char *key) {
    struct err e = {0};
    assert_int_equal(store_inspection_put(store, key, "stamp", "{}", &e), STATUS_OK);
}

static bool is_kept(struct store *store, const char *key) {
    char *report = NULL;
    struct err e = {0};
    assert_int_equal(store_inspection_get(store, key, "stamp", &report, &e), STATUS_OK);
    const bool kept = report != NULL;
    mem_free(report);
    return kept;
}

static void test_file_deleted_takes_its_reports_along(void **state) {
    (void)state;
    char *const folder = new_folder();
    struct store *const store = open_store(folder);
    struct err e = {0};
    char *const path = file_join(folder, "rows");
    const struct file_row row = {.id = (char *)(uintptr_t) "file-a",
                                 .filename = (char *)(uintptr_t) "rows.jsonl",
                                 .purpose = (char *)(uintptr_t) "fine-tune",
                                 .status = (char *)(uintptr_t) "processed",
                                 .path = path};
    assert_int_equal(file_write_atomic(path, "x", 1, &e), STATUS_OK);
    assert_int_equal(store_file_put(store, &row, &e), STATUS_OK);
    keep_report(store, "report:file-a:/models/one");
    keep_report(store, "report:file-a:/models/two");
    keep_report(store, "report:file-ab:/models/one");
    keep_report(store, "/models/one");
    assert_int_equal(store_file_delete(store, "file-a", &e), STATUS_OK);
    assert_false(is_kept(store, "report:file-a:/models/one"));
    assert_false(is_kept(store, "report:file-a:/models/two"));
    assert_true(is_kept(store, "report:file-ab:/models/one"));
    assert_true(is_kept(store, "/models/one"));
    mem_free(path);
    store_close(store);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_second_owner_is_refused),
        cmocka_unit_test(test_job_written_is_there_after_reopening),
        cmocka_unit_test(test_transaction_that_fails_leaves_nothing),
        cmocka_unit_test(test_events_old_metrics_are_pruned_messages_stay),
        cmocka_unit_test(test_metrics_a_million_points_keep_every_spike),
        cmocka_unit_test(test_metrics_repeated_step_replaces),
        cmocka_unit_test(test_file_deleted_takes_its_reports_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
