/* test_device.c - names, memory and argument checks of devices.
 * rooms: kernels base
 *
 * The null device must succeed at everything and touch nothing: its pointers fault when followed.
 */
#include "tests/unit/support_ops.h"

static void check_refused(const char *name, enum precision precision, enum status status,
                          const char *saying) {
    struct device *device = NULL;
    struct err error = {0};
    const struct device_options options = {.precision = precision};
    assert_int_equal(device_open(&device, name, &options, &error), status);
    assert_non_null(strstr(error.text, name));
    assert_non_null(strstr(error.text, saying));
    assert_null(device);
}

static void test_device_open_refuses_names_with_a_reason(void **state) {
    (void)state;
    check_refused("tpu", PRECISION_F32, STATUS_INVALID, "not known");
    check_refused("cuda", PRECISION_F32, STATUS_INVALID, "not known");
    check_refused("null:tpu", PRECISION_F32, STATUS_INVALID, "not known");
    static const char *const ordinals[] = {"cuda:",   "cuda:x",  "cuda:-1", "cuda:+1",   "cuda: 1",
                                           "cuda:1 ", "cuda:01", "cuda:1x", "cuda:99999"};
    for (size_t i = 0; i < COUNT_OF(ordinals); i++) {
        check_refused(ordinals[i], PRECISION_F32, STATUS_INVALID, "number of a GPU");
    }
}

/* Whatever this build and this machine have, this GPU is not there. */
static void test_device_open_of_a_gpu_that_is_not_there_is_unsupported(void **state) {
    (void)state;
    check_refused("cuda:4095", PRECISION_F32, STATUS_UNSUPPORTED, "device cuda:4095: ");
}

static void test_device_open_cpu_refuses_precisions_of_gpus(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "null:cpu"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        check_refused(names[i], PRECISION_TF32, STATUS_UNSUPPORTED, "set tf32 to false");
        check_refused(names[i], PRECISION_F16, STATUS_UNSUPPORTED, "set fp16 to false");
        check_refused(names[i], PRECISION_COUNT, STATUS_INTERNAL, "precision");
    }
}

static void test_device_open_cpu_says_what_it_runs_on(void **state) {
    (void)state;
    struct device *device = ops_open_named("cpu", PRECISION_F32);
    assert_true(device->computes && device->kind == DEVICE_CPU);
    assert_non_null(strstr(device->detail, "threads"));
    assert_true(device->total_bytes > 0 && device->workspace_bytes > 0);
    assert_int_equal(device->page_bytes % device->granule_bytes, 0);
    device_close(device);
    device_close(NULL);
}

static void test_device_null_plans_with_the_sizes_of_the_real_one(void **state) {
    (void)state;
    struct device *cpu = ops_open_named("cpu", PRECISION_F32);
    struct device *null = ops_open_named("null:cpu", PRECISION_F32);
    assert_false(null->computes);
    assert_int_equal(cpu->workspace_bytes, null->workspace_bytes);
    assert_int_equal(cpu->page_bytes, null->page_bytes);
    assert_int_equal(cpu->granule_bytes, null->granule_bytes);
    assert_int_equal(cpu->activation_dtype, null->activation_dtype);
    assert_int_equal(cpu->lora_tails, null->lora_tails);
    assert_int_equal(null->total_bytes, INT64_C(1) << 46);
    const struct attention_args sizes = {.tokens = 100, .heads = 6, .kv_heads = 2, .head_dim = 64};
    assert_int_equal(device_attention_scratch(cpu, &sizes, false), 0);
    assert_int_equal(device_attention_scratch(cpu, &sizes, true), 100 * 6 * 4);
    assert_int_equal(device_attention_scratch(null, &sizes, false), 0);
    assert_int_equal(device_attention_scratch(null, &sizes, true), 100 * 6 * 4);
    device_close(cpu);
    device_close(null);
}

/* The sizes that the contract of the CUDA device states; the device itself asks the same function.
 */
static void test_device_null_cuda_plans_with_the_sizes_of_a_gpu(void **state) {
    (void)state;
    struct device *device = ops_open_named("null:cuda", PRECISION_BF16);
    assert_true(device->kind == DEVICE_CUDA && device->lora_tails);
    assert_int_equal(device->page_bytes, 16 << 20);
    assert_int_equal(device->granule_bytes, 512);
    assert_int_equal(device->workspace_bytes, 64 << 20);
    struct attention_args sizes = {
        .tokens = 100, .heads = 6, .kv_heads = 2, .head_dim = 64, .dtype = DTYPE_BF16};
    /* With the library's 256 tokens more, delta and stats are 356 * 6 numbers each, in 17 times
     * 512; dq is f32; six tensors of 6 heads and four of 2 are in two bytes. */
    const int64_t library = 32 << 20, row = 8704, element = 356 * 64;
    const int64_t both = 2 * row + element * 6 * 4 + 6 * element * 6 * 2 + 4 * element * 2 * 2;
    assert_int_equal(device_attention_scratch(device, &sizes, false), library);
    assert_int_equal(device_attention_scratch(device, &sizes, true), both + library);
    sizes.dtype = DTYPE_F16;
    assert_int_equal(device_attention_scratch(device, &sizes, true), both + library);
    /* What the library cannot take: delta in 5 times 512, and f32 for dq, dk and dv. */
    const int64_t delta = 2560, dq = 153600;
    sizes.softcap = 50;
    assert_int_equal(device_attention_scratch(device, &sizes, false), 0);
    assert_int_equal(device_attention_scratch(device, &sizes, true), delta + 3 * dq);
    sizes.dtype = DTYPE_F32;
    assert_int_equal(device_attention_scratch(device, &sizes, false), 0);
    assert_int_equal(device_attention_scratch(device, &sizes, true), delta + dq);
    device_close(device);
}

static void test_device_rows_move_and_leave_the_gaps(void **state) {
    (void)state;
    struct device *device = ops_open();
    char there[] = "............", here[] = "abc-def-ghi";
    struct transfer t = {
        .device = there, .device_pitch = 4, .host = here, .host_pitch = 4, .width = 3, .rows = 2};
    ops_ok(device_upload_rows(device, &t, e));
    assert_string_equal(there, "abc.def.....");
    assert_true(device->bytes_moved == 6);
    char back[] = "__________";
    t.host = back;
    t.host_pitch = 5;
    ops_ok(device_download_rows(device, &t, e));
    assert_string_equal(back, "abc__def__");
    t.rows = 0;
    t.host = NULL;
    ops_ok(device_download_rows(device, &t, e));
    struct err error = {0};
    t = (struct transfer){
        .device = there, .device_pitch = 2, .host = here, .host_pitch = 4, .width = 3, .rows = 1};
    assert_int_equal(device_upload_rows(device, &t, &error), STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "device_upload_rows: device_pitch"));
    ops_close_device(device);
}

static void test_device_null_rows_come_back_as_zeros(void **state) {
    (void)state;
    struct device *device = ops_open_named("null:cuda", PRECISION_F32);
    char nothing = 0, back[] = "abcdef";
    const struct transfer t = {.device = &nothing,
                               .device_pitch = 9,
                               .host = back,
                               .host_pitch = 3,
                               .width = 2,
                               .rows = 2};
    ops_ok(device_upload_rows(device, &t, e));
    ops_ok(device_download_rows(device, &t, e));
    assert_memory_equal(back, "\0\0c\0\0f", 6);
    device_close(device);
}

static void test_device_memory_is_known_and_synchronize_succeeds(void **state) {
    (void)state;
    static const char *const names[] = {"cpu", "null:cpu", "null:cuda"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct device *device = ops_open_named(names[i], PRECISION_F32);
        struct device_memory memory = {0};
        ops_ok(device_memory(device, &memory, e));
        assert_true(memory.free > 0 && memory.free <= memory.total);
        assert_int_equal(memory.total, device->total_bytes);
        ops_ok(device_synchronize(device, e));
        device_close(device);
    }
}

static void test_device_cpu_memory_is_zero_after_commit_and_after_decommit(void **state) {
    (void)state;
    struct device *device = ops_open_named("cpu", PRECISION_F32);
    void *base = NULL;
    const int64_t page = device->page_bytes;
    ops_ok(device_reserve(device, 4 * page, &base, e));
    char *at = (char *)base + page;
    ops_ok(device_commit(device, at, page, e));
    assert_int_equal(at[0], 0);
    memset(at, 1, (size_t)page);
    device_decommit(device, at, page);
    ops_ok(device_commit(device, at, page, e));
    assert_int_equal(at[page - 1], 0);
    char host[4] = "abc";
    ops_ok(device_upload(device, at, host, 4, e));
    ops_ok(device_copy(device, at + 8, at, 4, e));
    ops_ok(device_fill_zero(device, at, 4, e));
    ops_ok(device_download(device, host, at + 8, 4, e));
    assert_string_equal(host, "abc");
    assert_int_equal(at[0], 0);
    device_unreserve(device, base, 4 * page);
    device_close(device);
}

static void test_device_commit_of_part_of_a_page_is_an_internal_error(void **state) {
    (void)state;
    struct device *device = ops_open_named("null:cuda", PRECISION_F32);
    void *base = NULL;
    struct err error = {0};
    assert_int_equal(device_reserve(device, device->page_bytes + 1, &base, &error),
                     STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "device_reserve"));
    device_close(device);
}

/* All pointers lead into reserved memory without access: a null device that looked at any of them
 * would fault. */
static void test_device_null_operations_succeed_and_touch_nothing(void **state) {
    (void)state;
    struct device *device = ops_open_named("null:cuda", PRECISION_BF16);
    void *base = NULL;
    ops_ok(device_reserve(device, device->page_bytes, &base, e));
    ops_ok(device_commit(device, base, device->page_bytes, e));
    float *x = base;
    const struct attention_args attention = {.tokens = 4,
                                             .heads = 2,
                                             .kv_heads = 1,
                                             .head_dim = 8,
                                             .segments = 1,
                                             .max_seqlen = 4,
                                             .cu_seqlens = base,
                                             .scale = 1,
                                             .dtype = DTYPE_BF16,
                                             .q = x,
                                             .k = x,
                                             .v = x,
                                             .ld_q = 16,
                                             .ld_k = 8,
                                             .ld_v = 8,
                                             .out = x,
                                             .ld_out = 16,
                                             .lse = x,
                                             .scratch = x};
    const struct matrix m = {x, DTYPE_BF16, 4};
    ops_ok(device_gemm(device, &(struct gemm_args){.m = 4, .n = 4, .k = 4, .a = m, .b = m, .c = m},
                       e));
    assert_true(device->flops == 2.0 * 64);
    ops_ok(device_attention(device, &attention, e));
    ops_ok(device_attention_backward(device,
                                     &(struct attention_backward_args){.forward = attention,
                                                                       .dout = x,
                                                                       .ld_dout = 16,
                                                                       .dq = x,
                                                                       .dk = x,
                                                                       .dv = x,
                                                                       .ld_dq = 16,
                                                                       .ld_dk = 8,
                                                                       .ld_dv = 8},
                                     e));
    ops_ok(device_cross_entropy(device,
                                &(struct cross_entropy_args){.rows = 2,
                                                             .vocab = 9,
                                                             .dtype = DTYPE_BF16,
                                                             .logits = x,
                                                             .labels = base,
                                                             .losses = x,
                                                             .correct = base},
                                e));
    ops_ok(device_embedding(device,
                            &(struct embedding_args){.tokens = 1,
                                                     .channels = 4,
                                                     .vocab = 3,
                                                     .ids = base,
                                                     .table = x,
                                                     .dtype = DTYPE_BF16,
                                                     .out = x,
                                                     .ld_out = 4},
                            e));
    ops_ok(device_upload(device, base, "x", 1, e));
    char host = 'x';
    ops_ok(device_download(device, &host, base, 1, e));
    assert_int_equal(host, 0);
    assert_true(device->bytes_moved > 0);
    device_unreserve(device, base, device->page_bytes);
    device_close(device);
}

static void test_device_bf16_products_are_granted_or_refused_with_the_reason(void **state) {
    (void)state;
    struct device *device = NULL;
    struct err error = {0};
    const struct device_options bf16 = {.precision = PRECISION_BF16};
    if (device_open(&device, "cpu", &bf16, &error) == STATUS_OK) {
        assert_true(device->precision == PRECISION_BF16 && device->activation_dtype == DTYPE_F32);
        device_close(device);
        return;
    }
    assert_int_equal(error.status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.text, "set bf16 to false"));
}

/* Plans for bf16 are made anywhere: the plan does not multiply. */
static void test_device_null_opens_with_bf16_products_anywhere(void **state) {
    (void)state;
    struct device *cpu = ops_open_named("null:cpu", PRECISION_BF16);
    struct device *cuda = ops_open_named("null:cuda", PRECISION_BF16);
    assert_true(cpu->precision == PRECISION_BF16 && cuda->precision == PRECISION_BF16);
    device_close(cpu);
    device_close(cuda);
}

static void test_device_dtypes_have_names_and_sizes(void **state) {
    (void)state;
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
    assert_int_equal(dtype_bytes(DTYPE_I64), 8);
    assert_string_equal(dtype_name(DTYPE_F32), "float32");
    assert_string_equal(dtype_name(DTYPE_I32), "int32");
    assert_int_equal(dtype_bytes(DTYPE_F16), 2);
    assert_string_equal(dtype_name(DTYPE_F16), "float16");
    static const char *const precisions[] = {"fp32", "tf32", "bf16", "fp16"};
    for (int i = 0; i < PRECISION_COUNT; i++) {
        assert_string_equal(precision_name((enum precision)i), precisions[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_open_refuses_names_with_a_reason),
        cmocka_unit_test(test_device_open_of_a_gpu_that_is_not_there_is_unsupported),
        cmocka_unit_test(test_device_open_cpu_refuses_precisions_of_gpus),
        cmocka_unit_test(test_device_open_cpu_says_what_it_runs_on),
        cmocka_unit_test(test_device_null_plans_with_the_sizes_of_the_real_one),
        cmocka_unit_test(test_device_null_cuda_plans_with_the_sizes_of_a_gpu),
        cmocka_unit_test(test_device_rows_move_and_leave_the_gaps),
        cmocka_unit_test(test_device_null_rows_come_back_as_zeros),
        cmocka_unit_test(test_device_memory_is_known_and_synchronize_succeeds),
        cmocka_unit_test(test_device_cpu_memory_is_zero_after_commit_and_after_decommit),
        cmocka_unit_test(test_device_commit_of_part_of_a_page_is_an_internal_error),
        cmocka_unit_test(test_device_null_operations_succeed_and_touch_nothing),
        cmocka_unit_test(test_device_bf16_products_are_granted_or_refused_with_the_reason),
        cmocka_unit_test(test_device_null_opens_with_bf16_products_anywhere),
        cmocka_unit_test(test_device_dtypes_have_names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
