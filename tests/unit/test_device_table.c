/* test_device_table.c - what holds for every operation of the table, whatever it computes.
 * rooms: kernels base
 *
 * On the CPU: run twice on the same memory, it leaves the same bytes. On a null device: it succeeds
 * and touches nothing; all of its pointers lead into memory that may not be read. The list below is
 * complete, or the test fails: a new operation needs a line here. */
#include "tests/unit/support_ops.h"

/* Large enough that every operation uses all threads. */
enum { ROWS = 192, COLS = 256, HEADS = 4, DIM = 64, SLOTS = 12, SLOT = 2 * ROWS * COLS };
enum { ROOM_BYTES = SLOTS * SLOT * 4 + 12 * ROWS + 128, MEMORY_OPERATIONS = 9 };

/* The memory of a run: float arrays, and the integers that steer operations. */
struct room {
    float *slot[SLOTS];
    int32_t *ids; /* [ROWS] distinct, below ROWS */
    int32_t *cu;  /* [4] three documents */
    int64_t *keys;
    double *sum;
};

static struct room room_at(void *base) {
    struct room room = {0};
    float *at = base;
    for (int i = 0; i < SLOTS; i++) {
        room.slot[i] = at + (int64_t)i * SLOT;
    }
    char *rest = (char *)(at + (int64_t)SLOTS * SLOT);
    room.keys = (void *)rest;
    room.sum = (void *)(rest + 8 * ROWS);
    room.ids = (void *)(rest + 8 * ROWS + 64);
    room.cu = room.ids + ROWS;
    return room;
}

static void room_fill(const struct room *room) {
    uint64_t seed = 11;
    for (int64_t i = 0; i < (int64_t)SLOTS * SLOT; i++) {
        room->slot[0][i] = (float)ops_uniform(&seed);
    }
    for (int i = 0; i < ROWS; i++) {
        room->ids[i] = (i * 7 + 3) % ROWS;
        room->keys[i] = i * INT64_C(1000003);
    }
    const int32_t cu[4] = {0, 70, 71, ROWS};
    memcpy(room->cu, cu, sizeof cu);
    *room->sum = 2;
}

static struct matrix square(float *data) {
    return (struct matrix){data, DTYPE_F32, COLS};
}

#define OPERATION(name)                                                                            \
    static enum status run_##name(struct device *device, const struct room *r, struct err *e)

OPERATION(gemm) {
    const struct gemm_args args = {.m = ROWS,
                                   .n = COLS,
                                   .k = COLS,
                                   .alpha = 0.5f,
                                   .beta = 1,
                                   .trans_b = true,
                                   .a = square(r->slot[0]),
                                   .b = {r->slot[1], DTYPE_BF16, COLS},
                                   .c = square(r->slot[2]),
                                   .bias = r->slot[3]};
    return device_gemm(device, &args, e);
}

OPERATION(rmsnorm) {
    const struct rmsnorm_args args = {.tokens = ROWS,
                                      .groups = 1,
                                      .width = COLS,
                                      .x = r->slot[0],
                                      .ld_x = COLS,
                                      .residual = r->slot[1],
                                      .sum = r->slot[2],
                                      .weight = r->slot[3],
                                      .eps = 1e-5f,
                                      .y = r->slot[4],
                                      .ld_y = COLS,
                                      .rstd = r->slot[5]};
    return device_rmsnorm(device, &args, e);
}

OPERATION(rmsnorm_backward) {
    const struct rmsnorm_backward_args args = {.tokens = ROWS,
                                               .groups = 1,
                                               .width = COLS,
                                               .x = r->slot[0],
                                               .ld_x = COLS,
                                               .weight = r->slot[1],
                                               .rstd = r->slot[2],
                                               .dy = r->slot[3],
                                               .ld_dy = COLS,
                                               .dx = r->slot[4],
                                               .ld_dx = COLS,
                                               .accumulate = true,
                                               .dweight = r->slot[5]};
    return device_rmsnorm_backward(device, &args, e);
}

OPERATION(rope) {
    const struct rope_args args = {.tokens = ROWS,
                                   .heads = HEADS,
                                   .head_dim = DIM,
                                   .rotary = DIM,
                                   .x = r->slot[0],
                                   .ld = COLS,
                                   .positions = r->ids,
                                   .inv_freq = r->slot[1],
                                   .scale = 1};
    return device_rope(device, &args, e);
}

static struct attention_args attention_of(const struct room *r) {
    return (struct attention_args){.tokens = ROWS,
                                   .heads = HEADS,
                                   .kv_heads = HEADS / 2,
                                   .head_dim = DIM,
                                   .segments = 3,
                                   .max_seqlen = ROWS,
                                   .cu_seqlens = r->cu,
                                   .scale = 0.125f,
                                   .q = r->slot[0],
                                   .k = r->slot[1],
                                   .v = r->slot[2],
                                   .ld_q = COLS,
                                   .ld_k = COLS,
                                   .ld_v = COLS,
                                   .out = r->slot[3],
                                   .lse = r->slot[4]};
}

OPERATION(attention) {
    const struct attention_args args = attention_of(r);
    return device_attention(device, &args, e);
}

OPERATION(attention_backward) {
    const struct attention_backward_args args = {.forward = attention_of(r),
                                                 .dout = r->slot[5],
                                                 .dq = r->slot[6],
                                                 .dk = r->slot[7],
                                                 .dv = r->slot[8],
                                                 .ld_dq = COLS,
                                                 .ld_dk = COLS,
                                                 .ld_dv = COLS,
                                                 .delta = r->slot[9]};
    return device_attention_backward(device, &args, e);
}

OPERATION(glu) {
    const struct glu_args args = {
        .tokens = ROWS, .width = COLS, .gate_up = r->slot[0], .out = r->slot[1]};
    return device_glu(device, &args, e);
}

OPERATION(glu_backward) {
    const struct glu_backward_args args = {.tokens = ROWS,
                                           .width = COLS,
                                           .activation = ACTIVATION_GELU_TANH,
                                           .gate_up = r->slot[0],
                                           .dout = r->slot[1],
                                           .dgate_up = r->slot[2]};
    return device_glu_backward(device, &args, e);
}

OPERATION(embedding) {
    const struct embedding_args args = {.tokens = ROWS,
                                        .channels = COLS,
                                        .vocab = ROWS,
                                        .ids = r->ids,
                                        .table = r->slot[0],
                                        .scale = 2,
                                        .out = r->slot[1]};
    return device_embedding(device, &args, e);
}

OPERATION(embedding_backward) {
    const struct embedding_backward_args args = {.tokens = ROWS,
                                                 .channels = COLS,
                                                 .vocab = ROWS,
                                                 .ids = r->ids,
                                                 .dout = r->slot[0],
                                                 .scale = 2,
                                                 .dtable = r->slot[1]};
    return device_embedding_backward(device, &args, e);
}

OPERATION(cross_entropy) {
    const struct cross_entropy_args args = {.rows = ROWS,
                                            .vocab = COLS,
                                            .logits = r->slot[0],
                                            .labels = r->ids,
                                            .grad_scale = 0.5f,
                                            .write_gradient = true,
                                            .losses = r->slot[1],
                                            .correct = (void *)r->slot[2]};
    return device_cross_entropy(device, &args, e);
}

OPERATION(adamw) {
    const struct adamw_args args = {.count = ROWS * COLS,
                                    .param = r->slot[0],
                                    .grad = r->slot[1],
                                    .m = r->slot[2],
                                    .v = r->slot[3],
                                    .grad_scale = r->slot[4],
                                    .lr = 1e-3,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .weight_decay = 0.1,
                                    .step = 3};
    return device_adamw(device, &args, e);
}

OPERATION(sum_squares) {
    const struct sum_squares_args args = {.count = SLOT, .x = r->slot[0], .out = r->sum};
    return device_sum_squares(device, &args, e);
}

OPERATION(clip) {
    const struct clip_args args = {
        .sum_squares = r->sum, .max_norm = 1, .norm = r->slot[0], .coefficient = r->slot[1]};
    return device_clip(device, &args, e);
}

OPERATION(dropout) {
    const struct dropout_args args = {.rows = ROWS,
                                      .width = COLS,
                                      .x = r->slot[0],
                                      .y = r->slot[1],
                                      .p = 0.25f,
                                      .seed = 5,
                                      .stream = 6,
                                      .row_keys = r->keys,
                                      .accumulate = true};
    return device_dropout(device, &args, e);
}

static struct rows_args rows_of(const struct room *r) {
    return (struct rows_args){
        .rows = ROWS, .width = COLS, .index = r->ids, .src = r->slot[0], .dst = r->slot[1]};
}

OPERATION(gather_rows) {
    const struct rows_args args = rows_of(r);
    return device_gather_rows(device, &args, e);
}

OPERATION(scatter_rows) {
    const struct rows_args args = rows_of(r);
    return device_scatter_rows(device, &args, e);
}

OPERATION(add) {
    const struct add_args args = {
        .count = SLOT, .a = r->slot[0], .b = r->slot[1], .out = r->slot[0]};
    return device_add(device, &args, e);
}

OPERATION(column_sum) {
    const struct column_sum_args args = {.rows = ROWS,
                                         .cols = COLS,
                                         .x = r->slot[0],
                                         .ld_x = COLS,
                                         .y = r->slot[1],
                                         .ld_y = COLS,
                                         .out = r->slot[2],
                                         .accumulate = true};
    return device_column_sum(device, &args, e);
}

OPERATION(column_scale) {
    const struct column_scale_args args = {.rows = ROWS,
                                           .cols = COLS,
                                           .x = r->slot[0],
                                           .ld_x = COLS,
                                           .scale = r->slot[1],
                                           .bias = r->slot[2],
                                           .out = r->slot[3],
                                           .ld_out = COLS,
                                           .accumulate = true};
    return device_column_scale(device, &args, e);
}

OPERATION(row_norm) {
    const struct row_norm_args args = {
        .rows = ROWS, .cols = COLS, .x = r->slot[0], .ld = COLS, .out = r->slot[1]};
    return device_row_norm(device, &args, e);
}

OPERATION(divide) {
    const struct divide_args args = {
        .count = SLOT, .a = r->slot[0], .b = r->slot[1], .out = r->slot[2]};
    return device_divide(device, &args, e);
}

OPERATION(convert) {
    const struct convert_args args = {.rows = ROWS,
                                      .cols = COLS,
                                      .src = square(r->slot[0]),
                                      .dst = {r->slot[1], DTYPE_BF16, COLS}};
    return device_convert(device, &args, e);
}

static const struct {
    const char *name;
    enum status (*run)(struct device *device, const struct room *room, struct err *e);
} OPERATIONS[] = {
    {"gemm", run_gemm},
    {"rmsnorm", run_rmsnorm},
    {"rmsnorm_backward", run_rmsnorm_backward},
    {"rope", run_rope},
    {"attention", run_attention},
    {"attention_backward", run_attention_backward},
    {"glu", run_glu},
    {"glu_backward", run_glu_backward},
    {"embedding", run_embedding},
    {"embedding_backward", run_embedding_backward},
    {"cross_entropy", run_cross_entropy},
    {"adamw", run_adamw},
    {"sum_squares", run_sum_squares},
    {"clip", run_clip},
    {"dropout", run_dropout},
    {"gather_rows", run_gather_rows},
    {"scatter_rows", run_scatter_rows},
    {"add", run_add},
    {"column_sum", run_column_sum},
    {"column_scale", run_column_scale},
    {"row_norm", run_row_norm},
    {"divide", run_divide},
    {"convert", run_convert},
};

static void test_device_table_is_covered_by_this_test(void **state) {
    (void)state;
    assert_int_equal(COUNT_OF(OPERATIONS),
                     sizeof(struct device_ops) / sizeof(void (*)(void)) - MEMORY_OPERATIONS);
}

static void check_twice(struct device *device) {
    const int64_t bytes = ROOM_BYTES;
    float *before = mem_new((size_t)bytes / 4, 4), *after = mem_new((size_t)bytes / 4, 4),
          *memory = mem_new((size_t)bytes / 4, 4);
    const struct room room = room_at(memory);
    for (size_t i = 0; i < COUNT_OF(OPERATIONS); i++) {
        room_fill(&room);
        memcpy(before, memory, (size_t)bytes);
        ops_ok(OPERATIONS[i].run(device, &room, e));
        memcpy(after, memory, (size_t)bytes);
        if (memcmp(before, after, (size_t)bytes) == 0)
            fail_msg("%s changed nothing", OPERATIONS[i].name);
        memcpy(memory, before, (size_t)bytes);
        ops_ok(OPERATIONS[i].run(device, &room, e));
        if (memcmp(memory, after, (size_t)bytes) != 0)
            fail_msg("%s gave other bits the second time", OPERATIONS[i].name);
    }
    mem_free(before);
    mem_free(after);
    mem_free(memory);
}

static void test_device_table_run_twice_gives_the_same_bits(void **state) {
    (void)state;
    struct device *device = ops_open();
    check_twice(device);
    struct device *fast = NULL;
    struct err refused = {0};
    if (device_open(&fast, "cpu", true, &refused) == STATUS_OK) {
        device_set_workspace(fast, device->workspace);
        check_twice(fast);
        device_close(fast);
    }
    ops_close_device(device);
}

static void test_device_table_null_succeeds_and_touches_nothing(void **state) {
    (void)state;
    static const char *const NAMES[] = {"null:cpu", "null:cuda"};
    for (size_t i = 0; i < 2 * COUNT_OF(NAMES); i++) {
        struct device *device = NULL;
        void *base = NULL;
        ops_ok(device_open(&device, NAMES[i / 2], i % 2 == 1, e));
        assert_true(device->gemm_bf16 == (i % 2 == 1));
        const int64_t bytes = 16 * device->page_bytes;
        assert_true(ROOM_BYTES <= bytes);
        ops_ok(device_reserve(device, bytes, &base, e));
        ops_ok(device_commit(device, base, bytes, e));
        const struct room room = room_at(base);
        for (size_t op = 0; op < COUNT_OF(OPERATIONS); op++) {
            const double moved = device->bytes_moved;
            ops_ok(OPERATIONS[op].run(device, &room, e));
            if (!(device->bytes_moved > moved))
                fail_msg("%s is not in the books", OPERATIONS[op].name);
        }
        ops_ok(device_fill_zero(device, base, bytes, e));
        ops_ok(device_copy(device, room.slot[1], room.slot[0], SLOT, e));
        device_decommit(device, base, bytes);
        device_unreserve(device, base, bytes);
        device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_table_is_covered_by_this_test),
        cmocka_unit_test(test_device_table_run_twice_gives_the_same_bits),
        cmocka_unit_test(test_device_table_null_succeeds_and_touches_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
