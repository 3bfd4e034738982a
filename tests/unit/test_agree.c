/* test_agree.c - goal: what the ranks decide before a micro-step is a pure function of what they
 * posted: everybody goes, or everybody begins again, and a rank that is at another place is named.
 * Method: chosen posts; a world of one through its own channel. */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/train/agree.h"

enum { WORLD = 4 };

static void fill(struct agree_post posts[WORLD]) {
    for (int64_t rank = 0; rank < WORLD; rank++) {
        posts[rank] = (struct agree_post){.epoch = 3,
                                          .step = 11,
                                          .micro = 1,
                                          .micro_count = 2 + rank % 2,
                                          .need = 100 + rank,
                                          .can_back = 200 - rank,
                                          .backed = 1};
    }
}

static void test_agree_allBacked_go(void **state) {
    (void)state;
    struct agree_post posts[WORLD];
    fill(posts);
    const struct agreement a = agree_decide(posts, WORLD);
    assert_int_equal(a.verdict, AGREE_GO);
    assert_int_equal(a.need, 103);
    assert_int_equal(a.can_back, 197);
    assert_int_equal(a.rounds, 3);
}

static void test_agree_anyRankShort_allBeginAgain(void **state) {
    (void)state;
    for (int64_t rank = 0; rank < WORLD; rank++) {
        for (int failed = 0; failed < 2; failed++) {
            struct agree_post posts[WORLD];
            fill(posts);
            posts[rank].backed = failed;
            posts[rank].failed = failed;
            posts[rank].can_back = 50;
            const struct agreement a = agree_decide(posts, WORLD);
            assert_int_equal(a.verdict, AGREE_SHORT);
            assert_int_equal(a.rank, rank);
            assert_int_equal(a.failed, failed);
            assert_int_equal(a.can_back, 50);
        }
    }
}

static void test_agree_severalShort_theFirstIsNamed(void **state) {
    (void)state;
    struct agree_post posts[WORLD];
    fill(posts);
    posts[3].failed = posts[1].failed = 1;
    assert_int_equal(agree_decide(posts, WORLD).rank, 1);
}

static void test_agree_anotherPlace_isFoundEvenAmongShortages(void **state) {
    (void)state;
    static const size_t FIELDS[] = {offsetof(struct agree_post, epoch),
                                    offsetof(struct agree_post, step),
                                    offsetof(struct agree_post, micro)};
    for (size_t i = 0; i < COUNT_OF(FIELDS); i++) {
        struct agree_post posts[WORLD];
        fill(posts);
        posts[1].failed = 1;
        *(int64_t *)((char *)&posts[2] + FIELDS[i]) += 1;
        const struct agreement a = agree_decide(posts, WORLD);
        assert_int_equal(a.verdict, AGREE_APART);
        assert_int_equal(a.rank, 2);
    }
}

static void test_agree_worldOfOne_takesTheSamePath(void **state) {
    (void)state;
    struct comm *comm = NULL;
    struct err e = {0};
    struct agreement out;
    struct agree_post seen;
    const struct comm_place place = {.world = 1, .local_world = 1};
    const struct comm_options options = {0};
    assert_int_equal(comm_open(&comm, &place, &options, &e), STATUS_OK);
    const struct agree_post mine = {.micro_count = 5, .need = 7, .can_back = 6};
    assert_int_equal(agree_micro_step(comm, &mine, &seen, &out, &e), STATUS_OK);
    assert_int_equal(out.verdict, AGREE_SHORT);
    assert_int_equal(out.rounds, 5);
    assert_memory_equal(&seen, &mine, sizeof mine);
    struct layout layout = {.micro_rows = 4, .micro_tokens = 96, .checkpointed_layers = 2};
    const struct layout before = layout;
    assert_int_equal(agree_layout(comm, &layout, &e), STATUS_OK);
    assert_true(layout_equal(&layout, &before));
    int64_t number = -3;
    assert_int_equal(agree_least(comm, &number, &e), STATUS_OK);
    assert_int_equal(number, -3);
    comm_close(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agree_allBacked_go),
        cmocka_unit_test(test_agree_anyRankShort_allBeginAgain),
        cmocka_unit_test(test_agree_severalShort_theFirstIsNamed),
        cmocka_unit_test(test_agree_anotherPlace_isFoundEvenAmongShortages),
        cmocka_unit_test(test_agree_worldOfOne_takesTheSamePath),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
