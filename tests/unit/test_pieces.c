/* test_pieces.c - goal: whatever the number of ranks, the ZeRO stage and the precision, the pieces
 * of all ranks that share a copy are all that is trained, each element once; they lie apart in the
 * own buffers, and their masters in memory that the rank has. Method: sessions of planned ranks on
 * the null device, every element of every storage counted.
 */
/* rooms: engine_train */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "engine/model/catalog.h"
#include "engine/model/pieces.h"
#include "engine/model/shard_weights.h"
#include "engine/train/session.h"

enum { STORAGES_MAX = 4096 };

/* What the ranks so far have of each storage, and how far the own buffer of one is taken. */
struct tally {
    const struct model *model;
    int64_t covered[STORAGES_MAX]; /* elements, from the first on: pieces come in order of ranks */
    int64_t own_end;
    int64_t count; /* of the own elements, gaps left out */
};

static void must(enum status status, const struct err *e) {
    if (status != STATUS_OK) fail_msg("%s", e->text);
}

static bool lies_in(const struct tensor *t, const char *at, int64_t bytes) {
    const char *const begin = t ? t->data : NULL;
    return t && at >= begin && at + bytes <= begin + tensor_bytes(t);
}

static enum status take(void *context, const struct own_piece *p, struct err *e) {
    (void)e;
    struct tally *const t = context;
    const struct model *const m = t->model;
    const int64_t bytes = p->count * dtype_bytes(p->master_dtype);
    assert_in_range(p->storage, 0, STORAGES_MAX - 1);
    assert_int_equal(p->first, t->covered[p->storage]);
    t->covered[p->storage] += p->count;
    assert_true(p->count > 0 && p->own >= t->own_end);
    t->own_end = p->own + p->count;
    t->count += p->count;
    assert_true(t->own_end <= pieces_count(m));
    if (p->away) {
        assert_int_equal(p->master_dtype, m->away.masters_dtype);
        assert_ptr_equal(p->master, m->away.masters + p->own * dtype_bytes(p->master_dtype));
        return STATUS_OK;
    }
    assert_true(lies_in(m->flat, p->master, bytes) || lies_in(m->flat_narrow, p->master, bytes));
    return STATUS_OK;
}

static void read_options(struct session_options *options, struct spec *spec, const char *text) {
    struct err e = {0};
    cJSON *json = NULL;
    must(json_parse(text, strlen(text), "spec", &json, &e), &e);
    must(spec_parse_question(spec, json, &e), &e);
    cJSON_Delete(json);
    must(session_options_read(options, spec, &e), &e);
    options->optimizer.zero_stage = spec->parallel.zero_stage;
}

static void count_rank(const struct spec *spec, struct session_options *options, int64_t rank,
                       struct tally *tally, bool last) {
    struct err e = {0};
    struct session s = {0};
    struct model_config config;
    const struct session_place place = {.device = "null:cuda", .train = true};
    must(catalog_load(&config, spec->model, &e), &e);
    options->rank = rank;
    must(session_open(&s, &place, &config, options, &e), &e);
    tally->model = &s.model;
    tally->own_end = 0;
    must(pieces_each(&s.model, take, tally, &e), &e);
    for (size_t i = 0; last && i < s.model.storage_count; i++) {
        const struct storage *const at = &s.model.storages[i];
        assert_int_equal(tally->covered[i], at->trainable ? at->rows * at->cols : 0);
    }
    const struct tensor *const state = s.optimizer.exp_avg;
    const int64_t states = state ? tensor_count(state) : s.optimizer.away.count;
    if (rank == 0) assert_int_equal(states, pieces_count(&s.model));
    session_close(&s);
}

static void test_pieces_of_all_ranks_are_everything_once(void **state) {
    (void)state;
    static const char *const METHODS[] = {
        "\"r\":8",
        "\"use_dora\":true",
        "\"finetuning_type\":\"full\"",
        "\"finetuning_type\":\"full\",\"bf16\":true",
        "\"finetuning_type\":\"full\",\"bf16\":true,\"stochastic_rounding\":true",
        "\"finetuning_type\":\"full\",\"bf16\":true,\"param_offloading\":true"};
    for (size_t method = 0; method < COUNT_OF(METHODS); method++) {
        for (int64_t world = 1; world <= 5; world += 2) {
            /* Only one copy of what is trained may wait in host memory. */
            const bool away = strstr(METHODS[method], "param_offloading");
            for (int64_t stage = world > 1 && away ? 3 : 0; stage <= (world > 1 ? 3 : 0); stage++) {
                char *const text = str_format(
                    "{\"model\":\"Qwen2.5-0.5B\",\"device\":\"cuda\",%s,\"parallel\":{\"ranks\":"
                    "%lld,\"zero_stage\":%lld},\"data\":{\"max_length\":64}}",
                    METHODS[method], (long long)world, (long long)stage);
                struct session_options options;
                struct spec spec;
                struct tally *const tally = mem_new(1, sizeof *tally);
                read_options(&options, &spec, text);
                const int64_t ranks = stage == 0 ? 1 : world;
                for (int64_t rank = 0; rank < ranks; rank++) {
                    count_rank(&spec, &options, rank, tally, rank + 1 == ranks);
                }
                mem_free(tally);
                session_options_release(&options);
                spec_release(&spec);
                mem_free(text);
            }
        }
    }
}

/* Llama: no biases, an untied head. */
static void test_pieces_of_hybrid_ranks_are_those_of_one_copy(void **state) {
    (void)state;
    struct session_options options;
    struct spec spec;
    struct tally *const tally = mem_new(1, sizeof *tally);
    read_options(&options, &spec,
                 "{\"model\":\"Llama-3.1-8B\",\"device\":\"cuda\",\"finetuning_type\":\"full\","
                 "\"bf16\":true,\"parallel\":{\"ranks\":8,\"zero_stage\":3,"
                 "\"data_parallel_shard_degree\":4},\"data\":{\"max_length\":64}}");
    for (int64_t rank = 0; rank < 4; rank++) {
        count_rank(&spec, &options, rank, tally, rank % 4 == 3);
    }
    assert_int_equal(tally->count, 8030261248); /* parameters of the model */
    memset(tally, 0, sizeof *tally);
    for (int64_t rank = 4; rank < 8; rank++) {
        count_rank(&spec, &options, rank, tally, rank % 4 == 3);
    }
    assert_int_equal(tally->count, 8030261248);
    mem_free(tally);
    session_options_release(&options);
    spec_release(&spec);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_of_all_ranks_are_everything_once),
        cmocka_unit_test(test_pieces_of_hybrid_ranks_are_those_of_one_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
