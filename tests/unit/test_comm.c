/* test_comm.c - goal: ranks find each other, gather, and name whoever is lost, within their
 * deadlines. Method: every rank is a process of its own (fork) on the host channel in a scratch
 * folder; what it saw comes back as its exit code. No MPI is needed.
 * rooms: engine_dist kernels base */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/dist/group.h"
#include "engine/dist/wire.h"
#include "tests/unit/support_scratch.h"

enum { WORLD = 4, GATHERS = 50, SILENCE_MS = 1500, WAIT_MS = 20000 };
enum { FINE = 0, WRONG = 1, LOST = 3, LEFT = 76 };

struct job {
    struct comm_place place;
    struct comm_options options;
    char says[ERR_TEXT_MAX]; /* what a loss must say; "" for none */
};
typedef int rank_part(struct wire *w, const struct job *job);

static int64_t number_of(int64_t rank, int64_t round) {
    return rank * 1000003 + round;
}

/* One gather of one number from each. */
static enum status gather_once(struct wire *w, const struct job *job, int64_t round,
                               struct err *e) {
    int64_t all[WORLD], mine = number_of(job->place.rank, round);
    TRY(wire_gather(w, &mine, sizeof mine, all, e));
    for (int64_t rank = 0; rank < WORLD; rank++) {
        FAIL_IF(all[rank] != number_of(rank, round), STATUS_INTERNAL, "rank %lld is wrong",
                (long long)rank);
    }
    return STATUS_OK;
}

static int report(const struct job *job, const struct err *e) {
    if (e->status == STATUS_OK) return FINE;
    if (!job->says[0] || !strstr(e->text, job->says)) {
        print_message("rank %d: %s\n", (int)job->place.rank, e->text);
        return WRONG;
    }
    return LOST;
}

static int part_gather(struct wire *w, const struct job *job) {
    struct err e = {0};
    for (int64_t round = 0; round < GATHERS && e.status == STATUS_OK; round++) {
        gather_once(w, job, round, &e);
    }
    return report(job, &e);
}

/* Rank 2 dies after a few rounds. */
static int part_die(struct wire *w, const struct job *job) {
    struct err e = {0};
    for (int64_t round = 0; e.status == STATUS_OK; round++) {
        if (job->place.rank == 2 && round == 5) raise(SIGKILL);
        gather_once(w, job, round, &e);
    }
    return report(job, &e);
}

static int part_hub_dies(struct wire *w, const struct job *job) {
    struct err e = {0};
    for (int64_t round = 0; e.status == STATUS_OK; round++) {
        if (job->place.rank == 0 && round == 5) raise(SIGKILL);
        gather_once(w, job, round, &e);
    }
    return report(job, &e);
}

/* Rank 1 stops; who ends it is the parent. */
static int part_stop(struct wire *w, const struct job *job) {
    struct err e = {0};
    for (int64_t round = 0; e.status == STATUS_OK; round++) {
        if (job->place.rank == 1 && round == 5) raise(SIGSTOP);
        gather_once(w, job, round, &e);
    }
    return report(job, &e);
}

/* Rank 3 lives and does not come. */
static int part_late(struct wire *w, const struct job *job) {
    struct err e = {0};
    while (job->place.rank == 3 && wire_check(w, &e) == STATUS_OK) {
        usleep(1000);
    }
    if (e.status == STATUS_OK) gather_once(w, job, 0, &e);
    return report(job, &e);
}

/* Rank 1 makes other calls than the rest. */
static int part_unlike(struct wire *w, const struct job *job) {
    struct err e = {0};
    char small = 0, all[WORLD];
    if (job->place.rank == 1) {
        wire_gather(w, &small, sizeof small, all, &e);
    } else {
        gather_once(w, job, 0, &e);
    }
    return report(job, &e);
}

/* Rank 2 fails for a reason of its own. */
static int part_fails(struct wire *w, const struct job *job) {
    struct err e = {0};
    gather_once(w, job, 0, &e);
    if (job->place.rank == 2) {
        err_set(&e, STATUS_NO_SPACE, "the disk is full");
        wire_abandon(w, &e);
        return LOST;
    }
    gather_once(w, job, 1, &e);
    return e.status == STATUS_NO_SPACE ? report(job, &e) : WRONG;
}

/* Rank 1's trainer hangs where it hears nothing: the channel's thread ends the process. */
static int part_stuck(struct wire *w, const struct job *job) {
    struct err e = {0};
    /* All are there: who dies while others still join is another case. */
    if (gather_once(w, job, 0, &e) != STATUS_OK) return report(job, &e);
    if (job->place.rank == 1) {
        for (;;) {
            pause();
        }
    }
    if (job->place.rank == 2) {
        usleep(200000); /* the others have their records by then */
        raise(SIGKILL);
    }
    gather_once(w, job, 1, &e);
    return report(job, &e);
}

static int run_rank(rank_part *part, struct job *job) {
    struct wire *w = NULL;
    struct err e = {0};
    alarm(WAIT_MS / 1000);
    if (wire_open(&w, &job->place, &job->options, &e) != STATUS_OK) {
        print_message("rank %d: %s\n", (int)job->place.rank, e.text);
        wire_close(w);
        return WRONG;
    }
    wire_doing(w, "while the others met for the test");
    const int code = part(w, job);
    wire_close(w);
    return code;
}

/* Starts WORLD ranks; their exit codes, or minus the signal. `late` of them begin a little later.
 */
static void run_world(rank_part *part, const char *says, int64_t patience_ms, int codes[WORLD]) {
    char *const folder = scratch_new();
    pid_t pids[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        struct job job = {.place = {.rank = rank, .world = WORLD, .local_world = WORLD},
                          .options = {.folder = folder,
                                      .silence_ms = SILENCE_MS,
                                      .patience_ms = patience_ms,
                                      .exit_code = LEFT}};
        strncpy(job.says, says, sizeof job.says - 1);
        pids[rank] = fork();
        if (pids[rank] == 0) {
            if (rank == 0) usleep(100000); /* the others look for it in vain at first */
            _exit(run_rank(part, &job));
        }
    }
    const bool stops = part == part_stop;
    for (int i = 0; i < WORLD; i++) {
        const int rank = stops ? (int[]){0, 2, 3, 1}[i] : i; /* the stopped one last */
        int how = 0;
        if (stops && rank == 1) kill(pids[rank], SIGKILL);
        assert_int_equal(waitpid(pids[rank], &how, 0), pids[rank]);
        codes[rank] = WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
    }
    scratch_free(folder);
}

static void check_codes(const int codes[WORLD], int first, int second, int third, int fourth) {
    const int expected[WORLD] = {first, second, third, fourth};
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(codes[i], expected[i]);
    }
}

static void test_comm_gather_brings_all_records_in_order(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_gather, "", WAIT_MS, codes);
    check_codes(codes, FINE, FINE, FINE, FINE);
}

static void test_comm_rank_that_dies_is_named(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_die, "is gone: its process ended without a word, while the others met for",
              WAIT_MS, codes);
    check_codes(codes, LOST, LOST, -SIGKILL, LOST);
}

static void test_comm_first_rank_that_dies_is_named(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_hub_dies, "rank 0 (process ", WAIT_MS, codes);
    check_codes(codes, -SIGKILL, LOST, LOST, LOST);
}

static void test_comm_rank_that_is_stopped_is_named(void **state) {
    (void)state;
    int codes[WORLD];
    const int64_t began = clock_steady_ns();
    run_world(part_stop, "has given no sign of life for 1.5 s", WAIT_MS, codes);
    check_codes(codes, LOST, -SIGKILL, LOST, LOST);
    assert_true(clock_steady_ns() - began < (int64_t)(SILENCE_MS + 2500) * 1000000);
}

static void test_comm_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_late, "lives but has not joined the others", 500, codes);
    check_codes(codes, LOST, LOST, LOST, LOST);
}

static void test_comm_ranks_that_differ_are_noticed(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_unlike, "rank 1 does not make the same calls as the others", WAIT_MS, codes);
    check_codes(codes, LOST, LOST, LOST, LOST);
}

static void test_comm_failure_of_one_is_everybodys(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_fails, "rank 2: the disk is full", WAIT_MS, codes);
    check_codes(codes, LOST, LOST, LOST, LOST);
}

static void test_comm_rank_that_cannot_hear_is_ended(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_stuck, "is gone", WAIT_MS, codes);
    check_codes(codes, LOST, LEFT, -SIGKILL, LOST);
}

static void test_comm_pieces_cover_everything_once(void **state) {
    (void)state;
    for (int64_t world = 1; world <= 9; world++) {
        for (int64_t count = 0; count < 1000; count += 37) {
            int64_t end = 0;
            for (int64_t rank = 0; rank < world; rank++) {
                const struct comm_piece piece = comm_piece_of(count, COMM_PITCH, rank, world);
                assert_int_equal(piece.first, end);
                assert_true(piece.first % COMM_PITCH == 0 || piece.first == count);
                end += piece.count;
            }
            assert_int_equal(end, count);
        }
    }
    assert_int_equal(comm_scratch_bytes(DEVICE_CPU, 1000, 1), 0);
    assert_true(comm_scratch_bytes(DEVICE_CPU, (int64_t)1 << 40, 8) <= (int64_t)16 << 20);
    assert_int_equal(comm_scratch_bytes(DEVICE_CUDA, (int64_t)1 << 40, 8), 0);
}

/* Sets the variables, "NAME=VALUE" each, reads the place and takes them back. */
static enum status place_with(const char *const *settings, struct comm_place *place,
                              struct err *e) {
    for (const char *const *s = settings; *s; s++) {
        char *const copy = mem_strdup(*s);
        *strchr(copy, '=') = 0;
        setenv(copy, copy + strlen(copy) + 1, 1);
        mem_free(copy);
    }
    const enum status status = comm_place_read(place, e);
    for (const char *const *s = settings; *s; s++) {
        char *const name = mem_strndup(*s, strcspn(*s, "="));
        unsetenv(name);
        mem_free(name);
    }
    return status;
}

static void test_comm_place_comes_from_every_launcher(void **state) {
    (void)state;
    struct comm_place place;
    const char *const none[] = {NULL};
    assert_int_equal(place_with(none, &place, NULL), STATUS_OK);
    assert_int_equal(place.world, 1);
    assert_int_equal(place.launcher, LAUNCHED_ALONE);
    const char *const mpi[] = {"OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8",
                               "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                               NULL};
    assert_int_equal(place_with(mpi, &place, NULL), STATUS_OK);
    assert_int_equal(place.rank, 5);
    assert_int_equal(place.local_rank, 1);
    assert_int_equal(place.local_world, 4);
    assert_true(place.elsewhere);
    const char *const here[] = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                                "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
                                NULL};
    assert_int_equal(place_with(here, &place, NULL), STATUS_OK);
    assert_false(place.elsewhere);
    const char *const named[] = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", NULL};
    assert_int_equal(place_with(named, &place, NULL), STATUS_OK);
    assert_int_equal(place.launcher, LAUNCHED_BY_NAME);
    const char *const shell[] = {"SLURM_NTASKS=8", "SLURM_JOB_ID=7", NULL};
    assert_int_equal(place_with(shell, &place, NULL), STATUS_OK);
    assert_int_equal(place.world, 1);
    const char *const step[] = {"SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=8", NULL};
    assert_int_equal(place_with(step, &place, NULL), STATUS_OK);
    assert_int_equal(place.rank, 3);
}

static void test_comm_place_that_is_half_is_refused(void **state) {
    (void)state;
    struct comm_place place;
    struct err e = {0};
    const char *const half[] = {"WORLD_SIZE=2", NULL};
    assert_int_equal(place_with(half, &place, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "set RANK"));
    err_clear(&e);
    const char *const outside[] = {"RANK=2", "WORLD_SIZE=2", NULL};
    assert_int_equal(place_with(outside, &place, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "RANK=2, it must be from 0 to 1"));
}

static void test_comm_alone_and_planned_gather_the_own_record(void **state) {
    (void)state;
    struct comm *c = NULL;
    struct err e = {0};
    int64_t mine = 7, all[3] = {0};
    assert_int_equal(comm_open_planned(&c, 1, 3, &e), STATUS_OK);
    assert_int_equal(comm_gather(c, &mine, sizeof mine, all, &e), STATUS_OK);
    assert_int_equal(all[0] + all[1] + all[2], 21);
    assert_int_equal(comm_barrier(c, &e), STATUS_OK);
    comm_close(c);
    assert_int_equal(comm_open_planned(&c, 3, 3, &e), STATUS_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_comm_gather_brings_all_records_in_order),
        cmocka_unit_test(test_comm_rank_that_dies_is_named),
        cmocka_unit_test(test_comm_first_rank_that_dies_is_named),
        cmocka_unit_test(test_comm_rank_that_is_stopped_is_named),
        cmocka_unit_test(test_comm_rank_that_does_not_come_is_named),
        cmocka_unit_test(test_comm_ranks_that_differ_are_noticed),
        cmocka_unit_test(test_comm_failure_of_one_is_everybodys),
        cmocka_unit_test(test_comm_rank_that_cannot_hear_is_ended),
        cmocka_unit_test(test_comm_pieces_cover_everything_once),
        cmocka_unit_test(test_comm_place_comes_from_every_launcher),
        cmocka_unit_test(test_comm_place_that_is_half_is_refused),
        cmocka_unit_test(test_comm_alone_and_planned_gather_the_own_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
