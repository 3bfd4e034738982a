/* test_device_table.c - what holds for every operation of the table, whatever it computes.
 * rooms: kernels base
 *
 * On the CPU: run twice on the same memory, it leaves the same bytes. On a null device: it succeeds
 * and touches nothing; all of its pointers lead into memory that may not be read. The list below is
 * complete, or the test fails: a new operation needs a line here. */
#include "tests/unit/support_ops.h"

/* Large enough that every operation uses all threads. */
enum { ROWS = 192, COLS = 256, HEADS = 4, DIM = 64, SLOTS = 12, SLOT = 2 * ROWS * COLS };
enum { ROOM_BYTES = SLOTS * SLOT * 4 + 12 * ROWS + 128, MEMORY_OPERATIONS = 25 };

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

static struct matrix square(const struct device *device, float *data) {
    return (struct matrix){data, device->activation_dtype, COLS};
}

#define OPERATION(name)                                                                            \
    static enum status run_##name(struct device *device, const struct room *r, struct err *e)

OPERATION(gemm) {
    /* The CPU takes bf16 weights beside f32 activations, CUDA one type. */
    const enum dtype other = device->kind == DEVICE_CPU ? DTYPE_BF16 : device->activation_dtype;
    const struct gemm_args args = {.m = ROWS,
                                   .n = COLS,
                                   .k = COLS,
                                   .alpha = 0.5f,
                                   .beta = 1,
                                   .trans_b = true,
                                   .a = square(device, r->slot[0]),
                                   .b = {r->slot[1], other, COLS},
                                   .c = square(device, r->slot[2]),
                                   .bias = r->slot[3]};
    return device_gemm(device, &args, e);
}

OPERATION(rmsnorm) {
    const struct rmsnorm_args args = {.tokens = ROWS,
                                      .groups = 1,
                                      .width = COLS,
                                      .dtype = device->activation_dtype,
                                      .x = r->slot[0],
                                      .ld_x = COLS,
                                      .residual = r->slot[1],
                                      .ld_residual = COLS,
                                      .sum = r->slot[2],
                                      .ld_sum = COLS,
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
                                               .dtype = device->activation_dtype,
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
                                   .dtype = device->activation_dtype,
                                   .x = r->slot[0],
                                   .ld = COLS,
                                   .positions = r->ids,
                                   .inv_freq = r->slot[1],
                                   .scale = 1};
    return device_rope(device, &args, e);
}

static struct attention_args attention_of(const struct device *device, const struct room *r) {
    return (struct attention_args){.tokens = ROWS,
                                   .heads = HEADS,
                                   .kv_heads = HEADS / 2,
                                   .head_dim = DIM,
                                   .segments = 3,
                                   .max_seqlen = ROWS,
                                   .cu_seqlens = r->cu,
                                   .scale = 0.125f,
                                   .dtype = device->activation_dtype,
                                   .q = r->slot[0],
                                   .k = r->slot[1],
                                   .v = r->slot[2],
                                   .ld_q = COLS,
                                   .ld_k = COLS,
                                   .ld_v = COLS,
                                   .out = r->slot[3],
                                   .ld_out = COLS,
                                   .lse = r->slot[4],
                                   .scratch = r->slot[9]};
}

OPERATION(attention) {
    const struct attention_args args = attention_of(device, r);
    return device_attention(device, &args, e);
}

OPERATION(attention_backward) {
    const struct attention_backward_args args = {.forward = attention_of(device, r),
                                                 .dout = r->slot[5],
                                                 .ld_dout = COLS,
                                                 .dq = r->slot[6],
                                                 .dk = r->slot[7],
                                                 .dv = r->slot[8],
                                                 .ld_dq = COLS,
                                                 .ld_dk = COLS,
                                                 .ld_dv = COLS};
    return device_attention_backward(device, &args, e);
}

OPERATION(glu) {
    const struct glu_args args = {.tokens = ROWS,
                                  .width = COLS,
                                  .dtype = device->activation_dtype,
                                  .gate_up = r->slot[0],
                                  .ld_gate_up = 2 * COLS,
                                  .out = r->slot[1],
                                  .ld_out = COLS};
    return device_glu(device, &args, e);
}

OPERATION(glu_backward) {
    const struct glu_backward_args args = {.tokens = ROWS,
                                           .width = COLS,
                                           .activation = ACTIVATION_GELU_TANH,
                                           .dtype = device->activation_dtype,
                                           .gate_up = r->slot[0],
                                           .ld_gate_up = 2 * COLS,
                                           .dout = r->slot[1],
                                           .ld_dout = COLS,
                                           .dgate_up = r->slot[2],
                                           .ld_dgate_up = 2 * COLS};
    return device_glu_backward(device, &args, e);
}

OPERATION(embedding) {
    const struct embedding_args args = {.tokens = ROWS,
                                        .channels = COLS,
                                        .vocab = ROWS,
                                        .ids = r->ids,
                                        .table = r->slot[0],
                                        .scale = 2,
                                        .dtype = device->activation_dtype,
                                        .out = r->slot[1],
                                        .ld_out = COLS};
    return device_embedding(device, &args, e);
}

OPERATION(embedding_backward) {
    const struct embedding_backward_args args = {.tokens = ROWS,
                                                 .channels = COLS,
                                                 .vocab = ROWS,
                                                 .ids = r->ids,
                                                 .dtype = device->activation_dtype,
                                                 .dout = r->slot[0],
                                                 .ld_dout = COLS,
                                                 .scale = 2,
                                                 .dtable = r->slot[1]};
    return device_embedding_backward(device, &args, e);
}

OPERATION(cross_entropy) {
    const struct cross_entropy_args args = {.rows = ROWS,
                                            .vocab = COLS,
                                            .dtype = device->activation_dtype,
                                            .logits = r->slot[0],
                                            .labels = r->ids,
                                            .grad_scale = 0.5f,
                                            .loss_scale = r->slot[3],
                                            .write_gradient = true,
                                            .losses = r->slot[1],
                                            .correct = (void *)r->slot[2]};
    return device_cross_entropy(device, &args, e);
}

OPERATION(softmax_stats) {
    const struct softmax_stats_args args = {.rows = ROWS,
                                            .vocab = COLS,
                                            .first = COLS,
                                            .dtype = device->activation_dtype,
                                            .logits = r->slot[0],
                                            .labels = r->ids,
                                            .stats = (void *)r->slot[1]};
    return device_softmax_stats(device, &args, e);
}

OPERATION(split_cross_entropy) {
    const struct split_cross_entropy_args args = {.rows = ROWS,
                                                  .vocab = COLS,
                                                  .first = COLS,
                                                  .members = 1,
                                                  .dtype = device->activation_dtype,
                                                  .logits = r->slot[0],
                                                  .labels = r->ids,
                                                  .grad_scale = 0.5f,
                                                  .loss_scale = r->slot[3],
                                                  .write_gradient = true,
                                                  .stats = (void *)r->slot[1],
                                                  .losses = r->slot[2],
                                                  .correct = (void *)r->slot[4]};
    return device_split_cross_entropy(device, &args, e);
}

OPERATION(adamw) {
    const struct adamw_args args = {.count = ROWS * COLS,
                                    .param = r->slot[0],
                                    .grad = r->slot[1],
                                    .m = r->slot[2],
                                    .v = r->slot[3],
                                    .copy = r->slot[5],
                                    .copy_dtype = DTYPE_BF16,
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

OPERATION(loss_sums) {
    const struct loss_sums_args args = {
        .rows = ROWS, .losses = r->slot[0], .correct = r->ids, .totals = r->sum};
    return device_loss_sums(device, &args, e);
}

OPERATION(dropout) {
    const struct dropout_args args = {.rows = ROWS,
                                      .width = COLS,
                                      .dtype = device->activation_dtype,
                                      .x = r->slot[0],
                                      .ld_x = COLS,
                                      .y = r->slot[1],
                                      .ld_y = COLS,
                                      .p = 0.25f,
                                      .seed = 5,
                                      .stream = 6,
                                      .row_keys = r->keys,
                                      .accumulate = true};
    return device_dropout(device, &args, e);
}

static struct rows_args rows_of(const struct device *device, const struct room *r) {
    return (struct rows_args){.rows = ROWS,
                              .width = COLS,
                              .dtype = device->activation_dtype,
                              .index = r->ids,
                              .src = r->slot[0],
                              .ld_src = COLS,
                              .dst = r->slot[1],
                              .ld_dst = COLS};
}

OPERATION(gather_rows) {
    const struct rows_args args = rows_of(device, r);
    return device_gather_rows(device, &args, e);
}

OPERATION(scatter_rows) {
    const struct rows_args args = rows_of(device, r);
    return device_scatter_rows(device, &args, e);
}

OPERATION(add) {
    const struct add_args args = {.rows = ROWS,
                                  .cols = COLS,
                                  .dtype = device->activation_dtype,
                                  .a = r->slot[0],
                                  .ld_a = COLS,
                                  .b = r->slot[1],
                                  .ld_b = COLS,
                                  .out = r->slot[0],
                                  .ld_out = COLS};
    return device_add(device, &args, e);
}

OPERATION(column_sum) {
    const struct column_sum_args args = {.rows = ROWS,
                                         .cols = COLS,
                                         .dtype = device->activation_dtype,
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
                                           .dtype = device->activation_dtype,
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
                                      .scale = 0.5f,
                                      .src = square(device, r->slot[0]),
                                      .dst = {r->slot[1], DTYPE_BF16, COLS}};
    return device_convert(device, &args, e);
}

OPERATION(convert_items) {
    const struct convert_item items[] = {
        {r->slot[0], r->slot[1], ROWS, COLS, COLS, COLS, 0.5},
        {r->slot[2], r->slot[3], 3, 5, COLS, 7, 1},
    };
    struct convert_items_args args = {.count = 2,
                                      .items = (void *)r->slot[4],
                                      .src_dtype = device->activation_dtype,
                                      .dst_dtype = DTYPE_BF16,
                                      .largest = ROWS * COLS,
                                      .elements = ROWS * COLS + 15};
    TRY(device_upload(device, r->slot[4], items, sizeof items, e));
    return device_convert_items(device, &args, e);
}

OPERATION(dequantize) {
    const struct dequantize_args args = {.rows = ROWS,
                                         .cols = COLS,
                                         .quant = QUANT_NF4_DOUBLE,
                                         .codes = r->slot[0],
                                         .scales = r->slot[1],
                                         .nested = r->slot[2],
                                         .out = {r->slot[3], DTYPE_BF16, COLS}};
    return device_dequantize(device, &args, e);
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
    {"softmax_stats", run_softmax_stats},
    {"split_cross_entropy", run_split_cross_entropy},
    {"adamw", run_adamw},
    {"sum_squares", run_sum_squares},
    {"clip", run_clip},
    {"loss_sums", run_loss_sums},
    {"dropout", run_dropout},
    {"gather_rows", run_gather_rows},
    {"scatter_rows", run_scatter_rows},
    {"add", run_add},
    {"column_sum", run_column_sum},
    {"column_scale", run_column_scale},
    {"row_norm", run_row_norm},
    {"divide", run_divide},
    {"convert", run_convert},
    {"convert_items", run_convert_items},
    {"dequantize", run_dequantize},
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
    const struct device_options bf16 = {.precision = PRECISION_BF16};
    if (device_open(&fast, "cpu", &bf16, &refused) == STATUS_OK) {
        device_set_workspace(fast, device->workspace);
        check_twice(fast);
        device_close(fast);
    }
    ops_close_device(device);
}

/* Every operation on memory that may not be read. */
static void check_null(struct device *device) {
    void *base = NULL;
    const int64_t bytes =
        (ROOM_BYTES + device->page_bytes - 1) / device->page_bytes * device->page_bytes;
    ops_ok(device_reserve(device, bytes, &base, e));
    ops_ok(device_commit(device, base, bytes, e));
    const struct room room = room_at(base);
    for (size_t op = 0; op < COUNT_OF(OPERATIONS); op++) {
        const double moved = device->bytes_moved;
        ops_ok(OPERATIONS[op].run(device, &room, e));
        if (!(device->bytes_moved > moved)) fail_msg("%s is not in the books", OPERATIONS[op].name);
    }
    ops_ok(device_fill_zero(device, base, bytes, e));
    ops_ok(device_copy(device, room.slot[1], room.slot[0], SLOT, e));
    ops_ok(device_synchronize(device, e));
    device_decommit(device, base, bytes);
    device_unreserve(device, base, bytes);
}

static void test_device_table_null_succeeds_and_touches_nothing(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum precision precision;
        enum dtype activations;
    } cases[] = {
        {"null:cpu", PRECISION_F32, DTYPE_F32},    {"null:cpu", PRECISION_BF16, DTYPE_F32},
        {"null:cuda", PRECISION_F32, DTYPE_F32},   {"null:cuda", PRECISION_TF32, DTYPE_F32},
        {"null:cuda", PRECISION_BF16, DTYPE_BF16}, {"null:cuda", PRECISION_F16, DTYPE_F16},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct device *device = ops_open_named(cases[i].name, cases[i].precision);
        assert_int_equal(device->precision, cases[i].precision);
        assert_int_equal(device->activation_dtype, cases[i].activations);
        check_null(device);
        device_close(device);
    }
}

/* Half the width of the activations, half the bytes. */
static void test_device_table_counts_the_bytes_of_the_activations(void **state) {
    (void)state;
    struct device *wide = ops_open_named("null:cuda", PRECISION_TF32);
    struct device *narrow = ops_open_named("null:cuda", PRECISION_BF16);
    float never_read[1];
    struct room room = {.ids = (void *)never_read,
                        .cu = (void *)never_read,
                        .keys = (void *)never_read,
                        .sum = (void *)never_read};
    for (int i = 0; i < SLOTS; i++) {
        room.slot[i] = never_read;
    }
    ops_ok(run_add(wide, &room, e));
    ops_ok(run_add(narrow, &room, e));
    assert_true(wide->bytes_moved == 3.0 * 4 * ROWS * COLS);
    assert_true(narrow->bytes_moved == 3.0 * 2 * ROWS * COLS);
    assert_true(wide->flops == (double)ROWS * COLS && narrow->flops == wide->flops);
    device_close(wide);
    device_close(narrow);
}

static void test_device_table_cpu_refuses_activations_other_than_f32(void **state) {
    (void)state;
    struct device *device = ops_open();
    static const enum dtype others[] = {DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_COUNT};
    float x[4] = {0};
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        struct err error = {0};
        const struct add_args args = {.rows = 1,
                                      .cols = 2,
                                      .dtype = others[i],
                                      .a = x,
                                      .ld_a = 2,
                                      .b = x,
                                      .ld_b = 2,
                                      .out = x,
                                      .ld_out = 2};
        assert_int_equal(device_add(device, &args, &error), STATUS_INTERNAL);
        assert_non_null(strstr(error.text, "device_add: cpu does not compute on activations"));
    }
    ops_close_device(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_table_is_covered_by_this_test),
        cmocka_unit_test(test_device_table_run_twice_gives_the_same_bits),
        cmocka_unit_test(test_device_table_null_succeeds_and_touches_nothing),
        cmocka_unit_test(test_device_table_counts_the_bytes_of_the_activations),
        cmocka_unit_test(test_device_table_cpu_refuses_activations_other_than_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
