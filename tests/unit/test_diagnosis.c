/* test_diagnosis.c - goal: every diagnosis is reached by a report that a person would call by that
 * name, and the paragraph says who asked for what, what is there and what helps; what is not known
 * is never printed. Method: a table with a report for each, and texts of other libraries as users
 * reported them (cases M18, M32, M34, M35, M38, M43). */
/* rooms: engine_memory */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#include "base/mem.h"
#include "base/str.h"
#include "engine/memory/diagnosis.h"

#define GIB(x) ((int64_t)((x)*1024) << 20)

/* A card of 24 GiB with 14 GiB of activations and nothing else that stands out. */
static struct diagnosis_report a_report(void) {
    struct diagnosis_report r = diagnosis_unknown();
    r.cards = 1;
    r.device_total = GIB(24);
    r.device_used = GIB(23.1);
    r.overhead = GIB(0.5);
    r.others = 0;
    struct arena_shortage *const s = &r.shortage;
    s->requested = GIB(1.9);
    s->category = CATEGORY_ACTIVATIONS;
    s->phase = PHASE_BACKWARD;
    s->label = (struct arena_label){"mlp", 30};
    s->capacity = GIB(23);
    s->reserved = s->allocated = GIB(22.6);
    s->largest_free_block = 0;
    s->by_category[CATEGORY_WEIGHTS] = GIB(6);
    s->by_category[CATEGORY_OPTIMIZER] = GIB(2);
    s->by_category[CATEGORY_GRADIENTS] = GIB(0.6);
    s->by_category[CATEGORY_ACTIVATIONS] = GIB(14);
    s->largest[0] = (struct arena_holding){GIB(1), CATEGORY_WEIGHTS, PHASE_LOAD, {NULL, -1}};
    s->largest_count = 1;
    return r;
}

static void move(struct diagnosis_report *r, enum category from, enum category to, double gib) {
    r->shortage.by_category[from] -= GIB(gib);
    r->shortage.by_category[to] += GIB(gib);
}

static struct diagnosis_report activations(void) {
    return a_report();
}

static struct diagnosis_report weights(void) {
    struct diagnosis_report r = a_report();
    move(&r, CATEGORY_ACTIVATIONS, CATEGORY_WEIGHTS, 14);
    r.shortage.category = CATEGORY_WEIGHTS;
    r.shortage.phase = PHASE_LOAD;
    return r;
}

static struct diagnosis_report optimizer_state(void) {
    struct diagnosis_report r = a_report();
    move(&r, CATEGORY_ACTIVATIONS, CATEGORY_OPTIMIZER, 14);
    r.shortage.category = CATEGORY_OPTIMIZER;
    r.shortage.phase = PHASE_LOAD;
    return r;
}

/* M18: the head asks for tokens times vocabulary at once. */
static struct diagnosis_report logits(void) {
    struct diagnosis_report r = a_report();
    r.shortage.requested = GIB(18.5);
    r.shortage.phase = PHASE_FORWARD;
    r.shortage.label = (struct arena_label){"loss", -1};
    return r;
}

/* The logits are held already, and what asks is their backward. */
static struct diagnosis_report logits_held(void) {
    struct diagnosis_report r = a_report();
    r.shortage.largest[0] =
        (struct arena_holding){GIB(12), CATEGORY_ACTIVATIONS, PHASE_FORWARD, {"loss", -1}};
    return r;
}

static struct diagnosis_report mixed(void) {
    struct diagnosis_report r = a_report();
    move(&r, CATEGORY_ACTIVATIONS, CATEGORY_WORKSPACE, 8);
    r.shortage.category = CATEGORY_WORKSPACE;
    r.shortage.label = (struct arena_label){NULL, -1};
    return r;
}

/* Peak 18 of 24 GiB: enough is free, in pieces. */
static struct diagnosis_report fragmentation(void) {
    struct diagnosis_report r = a_report();
    move(&r, CATEGORY_ACTIVATIONS, CATEGORY_WORKSPACE, 4.6);
    r.shortage.by_category[CATEGORY_WORKSPACE] = 0;
    r.shortage.allocated = GIB(18);
    r.shortage.largest_free_block = GIB(1.2);
    return r;
}

static struct diagnosis_report other_process(void) {
    struct diagnosis_report r = a_report();
    r.rank = 2;
    r.world = 4;
    r.cards = 4;
    r.others = GIB(3.2);
    r.shortage.capacity = GIB(19.4);
    r.shortage.allocated = r.shortage.reserved = GIB(19.4);
    r.shortage.requested = GIB(1.9);
    return r;
}

/* Others are there, but the device has room: the host of a CPU run, say. */
static struct diagnosis_report room_beside_another(void) {
    struct diagnosis_report r = other_process();
    r.device_total = GIB(64);
    return r;
}

/* The cap, not the neighbour, is what is short. */
static struct diagnosis_report capped_beside_another(void) {
    struct diagnosis_report r = other_process();
    r.cap = r.shortage.capacity;
    return r;
}

static const struct diagnosis_rank UNEVEN[] = {{0, 12LL << 30, 23LL << 30},
                                               {1, 13LL << 30, 23LL << 30},
                                               {2, 25LL << 30, 23LL << 30},
                                               {3, 12LL << 30, 23LL << 30}};
static const struct diagnosis_rank EVEN[] = {{0, 25LL << 30, 23LL << 30},
                                             {1, 25LL << 30, 23LL << 30},
                                             {2, 25LL << 30, 23LL << 30},
                                             {3, 25LL << 30, 23LL << 30}};

static struct diagnosis_report of_ranks(const struct diagnosis_rank *ranks) {
    struct diagnosis_report r = a_report();
    r.rank = 2;
    r.world = r.rank_count = r.cards = 4;
    r.ranks = ranks;
    r.reservation = true;
    r.shortage.requested = GIB(25);
    return r;
}

static struct diagnosis_report imbalance(void) {
    return of_ranks(UNEVEN);
}

/* All four run out together: it is no imbalance. */
static struct diagnosis_report all_alike(void) {
    return of_ranks(EVEN);
}

static struct diagnosis_report only_one_gpu(void) {
    struct diagnosis_report r = a_report();
    r.cards = 4;
    return r;
}

static struct diagnosis_report host_memory(void) {
    struct diagnosis_report r = a_report();
    r.host_failed = true;
    r.host_total = GIB(64);
    r.host_available = GIB(0.5);
    return r;
}

static struct diagnosis_report shm(void) {
    struct diagnosis_report r = a_report();
    r.world = r.cards = 4;
    r.shm_total = 64 << 20;
    r.shm_needed = GIB(0.5);
    return r;
}

static const struct {
    const char *name;
    struct diagnosis_report (*report)(void);
    enum diagnosis_kind kind;
    const char *says[3];
} CASES[] = {
    {"activations",
     activations,
     DIAGNOSIS_ACTIVATIONS,
     {"The run asked for 1.9 GiB of activations in backward (layer 30 mlp). 23.1 GiB of 24.0 GiB "
      "are in use, 14.0 GiB of it activations.",
      "gradient_checkpointing"}},
    {"weights", weights, DIAGNOSIS_WEIGHTS, {"in load", "20.0 GiB of it weights", "bf16"}},
    {"optimizer state",
     optimizer_state,
     DIAGNOSIS_OPTIMIZER_STATE,
     {"16.0 GiB of it optimizer", "lora"}},
    {"M18 logits", logits, DIAGNOSIS_LOGITS, {"18.5 GiB", "(loss)", "loss_chunk_rows"}},
    {"M18 logits held", logits_held, DIAGNOSIS_LOGITS, {"loss_chunk_rows"}},
    {"nothing stands out", mixed, DIAGNOSIS_SHORTAGE, {"per_device_train_batch_size"}},
    {"fragmentation",
     fragmentation,
     DIAGNOSIS_FRAGMENTATION,
     {"5.0 GiB are free", "largest piece is 1.2 GiB", "fragmented"}},
    {"M35 M38 another process",
     other_process,
     DIAGNOSIS_OTHER_PROCESS,
     {"Rank 2 asked for 1.9 GiB of activations in backward", "another process holds 3.2 GiB",
      "Without it the run would fit"}},
    {"room beside another",
     room_beside_another,
     DIAGNOSIS_ACTIVATIONS,
     {"another process holds 3.2 GiB"}},
    {"the cap is short",
     capped_beside_another,
     DIAGNOSIS_ACTIVATIONS,
     {"19.4 GiB of 19.4 GiB that memory.cap allows are in use, 14.0 GiB of it activations. "}},
    {"imbalance",
     imbalance,
     DIAGNOSIS_IMBALANCE,
     {"Rank 2 needs 25.0 GiB in all for backward", "the others 12.3 GiB on average"}},
    {"all ranks alike", all_alike, DIAGNOSIS_ACTIVATIONS, {"Rank 2 needs 25.0 GiB"}},
    {"only one card", only_one_gpu, DIAGNOSIS_ONLY_ONE_GPU, {"Only 1 of 4 cards is used"}},
    {"host memory", host_memory, DIAGNOSIS_HOST_MEMORY, {"512.0 MiB of 64.0 GiB are free"}},
    {"M34 shm",
     shm,
     DIAGNOSIS_SHM,
     {"need 512.0 MiB in /dev/shm, which has 64.0 MiB", "--ipc=host", "--shm-size=8g"}},
};

static void test_diagnosis_every_kind_is_told_apart(void **state) {
    (void)state;
    bool seen[DIAGNOSIS_COUNT] = {0};
    for (size_t i = 0; i < COUNT_OF(CASES); i++) {
        const struct diagnosis_report report = CASES[i].report();
        struct diagnosis d;
        diagnosis_make(&d, &report);
        seen[d.kind] = true;
        if (d.kind != CASES[i].kind)
            fail_msg("%s: %s instead of %s", CASES[i].name, diagnosis_name(d.kind),
                     diagnosis_name(CASES[i].kind));
        for (size_t k = 0; k < COUNT_OF(CASES[i].says) && CASES[i].says[k]; k++) {
            if (!strstr(d.text, CASES[i].says[k]))
                fail_msg("%s: \"%s\" is not in: %s", CASES[i].name, CASES[i].says[k], d.text);
        }
        assert_null(strstr(d.text, " -1"));
        assert_true(strlen(d.text) < DIAGNOSIS_TEXT_MAX / 2);
    }
    for (int kind = 0; kind < DIAGNOSIS_COUNT; kind++) {
        if (!seen[kind]) fail_msg("no case leads to %s", diagnosis_name((enum diagnosis_kind)kind));
    }
}

/* M43, and the 17179869184.00 GiB that others print under WSL. */
static void test_diagnosis_what_is_unknown_is_not_printed(void **state) {
    (void)state;
    struct diagnosis_report report = diagnosis_unknown();
    struct diagnosis d;
    report.shortage = a_report().shortage;
    diagnosis_make(&d, &report);
    assert_non_null(strstr(d.text, "22.6 GiB of 23.0 GiB are in use"));
    assert_null(strstr(d.text, "hold"));
    assert_null(strstr(d.text, " 0 B"));
    report.host_failed = true;
    diagnosis_make(&d, &report);
    assert_int_equal(d.kind, DIAGNOSIS_HOST_MEMORY);
    assert_null(strstr(d.text, "are free"));
}

/* M32, M34: what NCCL, the driver and Python said to users, and what it means. */
static void test_diagnosis_foreign_texts_are_translated(void **state) {
    (void)state;
    static const struct {
        const char *foreign, *says;
        enum diagnosis_kind kind;
    } cases[] = {
        {"NCCL WARN Cuda failure 'out of memory'", "memory.cap", DIAGNOSIS_SHORTAGE},
        {"include/alloc.h:48 NCCL WARN Failed to CUDA calloc 6291456 bytes", "NCCL",
         DIAGNOSIS_SHORTAGE},
        {"ncclUnhandledCudaError: unhandled cuda error, NCCL version 2.28", "NCCL",
         DIAGNOSIS_SHORTAGE},
        {"NCCL WARN Error: failed to extend /dev/shm/nccl-03v824 to 4194660 bytes", "--ipc=host",
         DIAGNOSIS_SHM},
        {"Call to posix_fallocate failed : No space left on device", "--shm-size", DIAGNOSIS_SHM},
        {"Error while creating shared memory segment /x (size 9637888), error: No space (28)",
         "--ipc=host", DIAGNOSIS_SHM},
        {"Unexpected bus error encountered in worker. This might be caused by insufficient shared "
         "memory (shm).",
         "--ipc=host", DIAGNOSIS_SHM},
        {"unlink shared memory /nccl-x failed, error: No such file or directory", "RemoveIPC",
         DIAGNOSIS_SHM},
        {"CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)", "library",
         DIAGNOSIS_SHORTAGE},
        {"cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY", "memory.cap", DIAGNOSIS_SHORTAGE},
        {"cudaHostAlloc failed: out of memory", "ulimit", DIAGNOSIS_HOST_MEMORY},
        {"pinning host memory for loading on cuda:0 (H200): out of memory "
         "(cudaErrorMemoryAllocation)",
         "ulimit", DIAGNOSIS_HOST_MEMORY},
        {"fork: Cannot allocate memory", "not the card's", DIAGNOSIS_HOST_MEMORY},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        enum diagnosis_kind kind = DIAGNOSIS_COUNT;
        const char *const text = diagnosis_translate(cases[i].foreign, &kind);
        if (!text) fail_msg("not translated: %s", cases[i].foreign);
        assert_int_equal(kind, cases[i].kind);
        if (!strstr(text, cases[i].says)) fail_msg("%s: %s", cases[i].foreign, text);
        struct diagnosis_report report = a_report();
        struct diagnosis d;
        report.foreign = cases[i].foreign;
        diagnosis_make(&d, &report);
        assert_int_equal(d.kind, cases[i].kind);
        assert_string_equal(d.text, text);
    }
    assert_null(diagnosis_translate("loss is not finite", NULL));
    assert_null(diagnosis_translate(NULL, NULL));
}

static void test_diagnosis_bytes_read_well(void **state) {
    (void)state;
    static const struct {
        int64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {512, "512 B"},
                 {1023, "1023 B"},
                 {1024, "1.0 KiB"},
                 {1048575, "1.0 MiB"},
                 {GIB(23.1), "23.1 GiB"},
                 {GIB(1024), "1.0 TiB"},
                 {INT64_MAX, "8388608.0 TiB"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char buffer[24];
        assert_string_equal(diagnosis_bytes(cases[i].bytes, buffer), cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diagnosis_every_kind_is_told_apart),
        cmocka_unit_test(test_diagnosis_what_is_unknown_is_not_printed),
        cmocka_unit_test(test_diagnosis_foreign_texts_are_translated),
        cmocka_unit_test(test_diagnosis_bytes_read_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
