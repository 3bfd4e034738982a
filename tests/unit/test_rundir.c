/* test_rundir.c - names in a run directory, who holds a rank, and the wish to stop.
 *
 * Method: a child process claims the rank, so that a second claim, a zombie and a dead holder are
 * the real thing. rooms: engine_contract base */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/rundir.h"
#include "tests/unit/support_scratch.h"

static void test_rundir_checkpointNames_haveOneSpelling(void **state) {
    (void)state;
    char *path = rundir_checkpoint("run", 12);
    assert_string_equal(path, "run/checkpoints/step-12");
    assert_int_equal(rundir_checkpoint_step(file_base_name(path)), 12);
    mem_free(path);
    assert_int_equal(rundir_checkpoint_step("step-0"), 0);
    static const char *const BAD[] = {"step-",
                                      "step-01",
                                      "step--1",
                                      "step-1.tmp.44",
                                      "step-1 ",
                                      "epoch-1",
                                      "step-9999999999999999999"};
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        assert_int_equal(rundir_checkpoint_step(BAD[i]), -1);
    }
}

static void test_rundir_claim_isExclusiveAndEndsWithTheProcess(void **state) {
    (void)state;
    char *run = scratch_new();
    struct err e = {0};
    int fd = -1, ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        const bool fine = rundir_claim(run, 0, &fd, NULL) == STATUS_OK;
        if (write(ready[1], fine ? "y" : "n", 1) != 1) _exit(1);
        pause();
        _exit(0);
    }
    char answer = 0;
    assert_int_equal(read(ready[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    assert_int_equal(rundir_claim(run, 0, &fd, &e), STATUS_CONFLICT);
    struct rank_identity identity = {0};
    err_clear(&e);
    assert_int_equal(rundir_identity(run, 0, &identity, &e), STATUS_OK);
    assert_int_equal(identity.pid, child);
    assert_true(identity.host[0] != 0);
    assert_true(rank_is_alive(&identity));
    assert_true(rundir_rank_is_held(run, 0));
    assert_false(rundir_rank_is_held(run, 1));
    struct rank_identity other = identity;
    other.start_time--;
    assert_false(rank_is_alive(&other));
    other = identity;
    other.boot_id[0] = other.boot_id[0] == 'a' ? 'b' : 'a';
    assert_false(rank_is_alive(&other));
    kill(child, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_false(rank_is_alive(&identity)); /* a zombie */
    waitpid(child, NULL, 0);
    assert_false(rank_is_alive(&identity));
    assert_false(rundir_rank_is_held(run, 0));
    assert_int_equal(rundir_claim(run, 0, &fd, &e), STATUS_OK);
    assert_int_equal(rundir_identity(run, 0, &identity, &e), STATUS_OK);
    assert_int_equal(identity.pid, getpid());
    close(fd);
    close(ready[0]);
    close(ready[1]);
    scratch_free(run);
}

static void test_rundir_identity_refusesNonsense(void **state) {
    (void)state;
    char *run = scratch_new();
    struct err e = {0};
    struct rank_identity identity;
    assert_int_equal(rundir_identity(run, 0, &identity, &e), STATUS_NOT_FOUND);
    mem_free(scratch_write(run, "rank.0.pid", "", 0));
    err_clear(&e);
    assert_int_equal(rundir_identity(run, 0, &identity, &e), STATUS_NOT_FOUND);
    mem_free(scratch_write(run, "rank.0.pid", "{\"pid\":-1}", 10));
    err_clear(&e);
    assert_int_equal(rundir_identity(run, 0, &identity, &e), STATUS_INVALID);
    scratch_free(run);
}

static void test_rundir_stop_isAskedAndCleared(void **state) {
    (void)state;
    char *run = scratch_new();
    struct err e = {0};
    assert_false(rundir_stop_requested(run));
    assert_int_equal(rundir_request_stop(run, &e), STATUS_OK);
    assert_true(rundir_stop_requested(run));
    assert_int_equal(rundir_clear_control(run, &e), STATUS_OK);
    assert_int_equal(rundir_clear_control(run, &e), STATUS_OK);
    assert_false(rundir_stop_requested(run));
    mem_free(scratch_write(run, "control.json", "{\"stop\":", 8));
    assert_false(rundir_stop_requested(run));
    scratch_free(run);
}

static void test_rundir_control_isDoneOnceOrHolds(void **state) {
    (void)state;
    char *run = scratch_new();
    struct err e = {0};
    struct run_control control;
    uint64_t mark = 0;
    bool fresh = true;
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_OK);
    assert_false(fresh || control.stop || control.has_cap || control.remedy[0]);
    cJSON *wish = cJSON_Parse("{\"cap\":\"90%\",\"undo\":\"micro_batch\"}");
    assert_int_equal(rundir_control_wish(run, wish, &e), STATUS_OK);
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_OK);
    assert_true(fresh && control.has_cap && control.cap.share == 0.9);
    assert_string_equal(control.undo, "micro_batch");
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_OK);
    assert_false(fresh);
    wish = cJSON_Parse("{\"remedy\":{\"name\":\"loss_chunk\",\"accept\":false}}");
    assert_int_equal(rundir_control_wish(run, wish, &e), STATUS_OK);
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_OK);
    assert_true(fresh && control.has_cap && !control.accept && !control.undo[0]);
    assert_string_equal(control.remedy, "loss_chunk");
    assert_int_equal(rundir_request_stop(run, &e), STATUS_OK);
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_OK);
    assert_true(control.stop && control.has_cap && !control.remedy[0]);
    assert_int_equal(rundir_clear_control(run, &e), STATUS_OK);
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_OK);
    assert_true(control.has_cap && !control.stop);
    char *path = rundir_control(run);
    assert_int_equal(file_write_atomic(path, "{\"cap\":-1}", 10, &e), STATUS_OK);
    assert_int_equal(rundir_control_read(run, &mark, &fresh, &control, &e), STATUS_INVALID);
    assert_true(fresh && !control.has_cap && strstr(e.text, "control.json"));
    mem_free(path);
    scratch_free(run);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rundir_control_isDoneOnceOrHolds),
        cmocka_unit_test(test_rundir_checkpointNames_haveOneSpelling),
        cmocka_unit_test(test_rundir_claim_isExclusiveAndEndsWithTheProcess),
        cmocka_unit_test(test_rundir_identity_refusesNonsense),
        cmocka_unit_test(test_rundir_stop_isAskedAndCleared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
