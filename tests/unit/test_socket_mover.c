/* test_socket_mover.c - goal: bytes go from rank to rank over TCP whole and in order, whatever
 * their lengths, and ranks that do not make the same calls or are lost are named.
 *
 * Method: three ranks are processes of their own (fork) that meet in a scratch folder, as RANK and
 * WORLD_SIZE start them; what each saw comes back as its exit code. No MPI is needed.
 * rooms: engine_dist kernels base */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/dist/comm.h"
#include "engine/dist/mover.h"
#include "tests/unit/support_scratch.h"

enum { WORLD = 3, ROUNDS = 6, SILENCE_MS = 1500, WAIT_S = 60 };
enum { FINE = 0, WRONG = 1, LOST = 3 };
/* Nothing, less than a head, more than any buffer of the system. */
static const int64_t LENGTHS[] = {0, 1, 7, 4096, 65537, (int64_t)5 << 20};
enum { LENGTH_COUNT = 6, PAIRS = (WORLD - 1) * 2 };

typedef enum status rank_part(struct comm *c, struct err *e);

static unsigned char byte_of(int64_t from, int64_t to, int64_t round, int64_t message, int64_t i) {
    return (unsigned char)(from * 31 + to * 17 + round * 7 + message * 5 + i * 3 + (i >> 12));
}

/* The length of a message is known to both sides, and another one each round. */
static int64_t length_of(int64_t from, int64_t to, int64_t round, int64_t message) {
    return LENGTHS[(from + 2 * to + round + message) % LENGTH_COUNT];
}

static void fill(const struct comm *c, int64_t round, struct mpi_message *messages) {
    int64_t used = 0;
    for (int64_t peer = 0; peer < WORLD; peer++) {
        for (int64_t k = 0; peer != c->rank && k < LENGTH_COUNT; k++) {
            struct mpi_message *const out = &messages[used++], *const in = &messages[used++];
            out->peer = in->peer = peer;
            out->sends = true;
            out->bytes = length_of(c->rank, peer, round, k);
            in->bytes = length_of(peer, c->rank, round, k);
            out->data = mem_new((size_t)out->bytes + 1, 1);
            in->data = mem_new((size_t)in->bytes + 1, 1);
            for (int64_t i = 0; i < out->bytes; i++) {
                ((unsigned char *)out->data)[i] = byte_of(c->rank, peer, round, k, i);
            }
        }
    }
}

static enum status check_and_free(const struct comm *c, int64_t round, struct mpi_message *messages,
                                  struct err *e) {
    enum status status = STATUS_OK;
    for (int64_t m = 0; m < LENGTH_COUNT * PAIRS; m++) {
        const unsigned char *const bytes = messages[m].data;
        const int64_t k = m / 2 % LENGTH_COUNT;
        for (int64_t i = 0; !messages[m].sends && i < messages[m].bytes; i++) {
            if (bytes[i] == byte_of(messages[m].peer, c->rank, round, k, i)) continue;
            status =
                err_set(e, STATUS_INTERNAL, "round %lld, message %lld of rank %lld, byte %lld",
                        (long long)round, (long long)k, (long long)messages[m].peer, (long long)i);
            break;
        }
        mem_free(messages[m].data);
    }
    return status;
}

static enum status part_exchange(struct comm *c, struct err *e) {
    for (int64_t round = 0; round < ROUNDS; round++) {
        struct mpi_message messages[LENGTH_COUNT * PAIRS] = {0};
        fill(c, round, messages);
        const enum status status = mover_exchange(c, messages, (int64_t)COUNT_OF(messages), e);
        const enum status checked = check_and_free(c, round, messages, e);
        TRY(status);
        TRY(checked);
    }
    return STATUS_OK;
}

/* One message around the ring; rank 1 sends `more` bytes more than rank 2 wants. */
static enum status ring(struct comm *c, int64_t more, struct err *e) {
    char in[64] = "", out[64] = "";
    struct mpi_message messages[2] = {
        {.peer = (c->rank + 1) % WORLD, .data = out, .bytes = 8, .sends = true},
        {.peer = (c->rank + WORLD - 1) % WORLD, .data = in, .bytes = 8}};
    if (c->rank == 1) messages[0].bytes += more;
    return mover_exchange(c, messages, 2, e);
}

static enum status part_unlike(struct comm *c, struct err *e) {
    TRY(ring(c, 0, e));
    TRY(ring(c, 4, e));
    return comm_barrier(c, e);
}

static enum status part_die(struct comm *c, struct err *e) {
    TRY(ring(c, 0, e));
    if (c->rank == 1) raise(SIGKILL);
    TRY(ring(c, 0, e));
    return comm_barrier(c, e);
}

static enum status join_and_run(rank_part *part, int64_t rank, const char *folder, struct err *e) {
    const struct comm_place place = {.rank = rank,
                                     .world = WORLD,
                                     .local_rank = rank,
                                     .local_world = WORLD,
                                     .elsewhere = true,
                                     .launcher = LAUNCHED_BY_NAME};
    const struct comm_options options = {.folder = folder,
                                         .silence_ms = SILENCE_MS,
                                         .patience_ms = WAIT_S * 1000,
                                         .exit_code = LOST};
    struct comm *c = NULL;
    enum status status = comm_open(&c, &place, &options, e);
    if (status == STATUS_OK && !c->mover) {
        *e = c->no_mover;
        status = e->status;
    }
    if (status == STATUS_OK) {
        comm_doing(c, "the test");
        status = part(c, e);
    }
    if (status != STATUS_OK) comm_abandon(c, e);
    comm_close(c);
    return status;
}

static int run_rank(rank_part *part, int64_t rank, const char *folder, const char *says) {
    struct err e = {0};
    alarm(WAIT_S);
    if (join_and_run(part, rank, folder, &e) == STATUS_OK) return FINE;
    if (e.status == STATUS_LOST && strstr(e.text, says)) return LOST;
    print_message("rank %d: %s\n", (int)rank, e.text);
    return WRONG;
}

static void run_world(rank_part *part, const char *says, int codes[WORLD]) {
    char *const folder = scratch_new();
    pid_t pids[WORLD];
    for (int rank = 0; rank < WORLD; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) _exit(run_rank(part, rank, folder, says));
    }
    for (int rank = 0; rank < WORLD; rank++) {
        int how = 0;
        assert_int_equal(waitpid(pids[rank], &how, 0), pids[rank]);
        codes[rank] = WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
    }
    scratch_free(folder);
}

static void check_codes(const int codes[WORLD], int first, int second, int third) {
    assert_int_equal(codes[0], first);
    assert_int_equal(codes[1], second);
    assert_int_equal(codes[2], third);
}

static void test_socket_mover_brings_all_messages_in_order(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_exchange, "nobody is lost", codes);
    check_codes(codes, FINE, FINE, FINE);
}

static void test_socket_mover_lengths_that_differ_are_named(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_unlike, "rank 1 sends 12 bytes where 8 are expected", codes);
    check_codes(codes, LOST, LOST, LOST);
}

static void test_socket_mover_rank_that_dies_is_named(void **state) {
    (void)state;
    int codes[WORLD];
    run_world(part_die, "is gone: its process ended without a word", codes);
    check_codes(codes, LOST, -SIGKILL, LOST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_socket_mover_brings_all_messages_in_order),
        cmocka_unit_test(test_socket_mover_lengths_that_differ_are_named),
        cmocka_unit_test(test_socket_mover_rank_that_dies_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
