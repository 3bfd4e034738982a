/* test_device.c - names, memory and argument checks of devices.
 * rooms: kernels base
 *
 * The null device must succeed at everything and touch nothing: its pointers fault when followed.
 */
#include "tests/unit/support_ops.h"

static void test_device_open_refuses_names_with_a_reason(void **state) {
    (void)state;
    struct device *device = NULL;
    struct err error = {0};
    assert_int_equal(device_open(&device, "cuda:0", false, &error), STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.text, "cuda:0"));
    err_clear(&error);
    assert_int_equal(device_open(&device, "tpu", false, &error), STATUS_INVALID);
    assert_non_null(strstr(error.text, "tpu"));
    assert_null(device);
}

static void test_device_open_cpu_says_what_it_runs_on(void **state) {
    (void)state;
    struct device *device = NULL;
    ops_ok(device_open(&device, "cpu", false, e));
    assert_true(device->computes && device->kind == DEVICE_CPU);
    assert_non_null(strstr(device->detail, "threads"));
    assert_true(device->total_bytes > 0 && device->workspace_bytes > 0);
    assert_int_equal(device->page_bytes % device->granule_bytes, 0);
    device_close(device);
    device_close(NULL);
}

static void test_device_null_plans_with_the_sizes_of_the_real_one(void **state) {
    (void)state;
    struct device *cpu = NULL, *null = NULL;
    ops_ok(device_open(&cpu, "cpu", false, e));
    ops_ok(device_open(&null, "null:cpu", false, e));
    assert_false(null->computes);
    assert_int_equal(cpu->workspace_bytes, null->workspace_bytes);
    assert_int_equal(cpu->page_bytes, null->page_bytes);
    assert_int_equal(cpu->granule_bytes, null->granule_bytes);
    assert_int_equal(null->total_bytes, INT64_C(1) << 46);
    device_close(cpu);
    device_close(null);
}

static void test_device_cpu_memory_is_zero_after_commit_and_after_decommit(void **state) {
    (void)state;
    struct device *device = NULL;
    void *base = NULL;
    ops_ok(device_open(&device, "cpu", false, e));
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
    struct device *device = NULL;
    void *base = NULL;
    struct err error = {0};
    ops_ok(device_open(&device, "null:cuda", false, e));
    assert_int_equal(device_reserve(device, device->page_bytes + 1, &base, &error),
                     STATUS_INTERNAL);
    assert_non_null(strstr(error.text, "device_reserve"));
    device_close(device);
}

/* All pointers lead into reserved memory without access: a null device that looked at any of them
 * would fault. */
static void test_device_null_operations_succeed_and_touch_nothing(void **state) {
    (void)state;
    struct device *device = NULL;
    void *base = NULL;
    ops_ok(device_open(&device, "null:cuda", true, e));
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
                                             .q = x,
                                             .k = x,
                                             .v = x,
                                             .ld_q = 16,
                                             .ld_k = 8,
                                             .ld_v = 8,
                                             .out = x,
                                             .lse = x};
    const struct matrix m = {x, DTYPE_F32, 4};
    ops_ok(device_gemm(device, &(struct gemm_args){.m = 4, .n = 4, .k = 4, .a = m, .b = m, .c = m},
                       e));
    assert_true(device->flops == 2.0 * 64);
    ops_ok(device_attention(device, &attention, e));
    ops_ok(device_attention_backward(device,
                                     &(struct attention_backward_args){.forward = attention,
                                                                       .dout = x,
                                                                       .dq = x,
                                                                       .dk = x,
                                                                       .dv = x,
                                                                       .ld_dq = 16,
                                                                       .ld_dk = 8,
                                                                       .ld_dv = 8,
                                                                       .delta = x},
                                     e));
    ops_ok(device_cross_entropy(
        device,
        &(struct cross_entropy_args){
            .rows = 2, .vocab = 9, .logits = x, .labels = base, .losses = x, .correct = base},
        e));
    ops_ok(device_embedding(
        device,
        &(struct embedding_args){
            .tokens = 1, .channels = 4, .vocab = 3, .ids = base, .table = x, .out = x},
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
    if (device_open(&device, "cpu", true, &error) == STATUS_OK) {
        assert_true(device->gemm_bf16);
        device_close(device);
        return;
    }
    assert_int_equal(error.status, STATUS_UNSUPPORTED);
    assert_non_null(strstr(error.text, "set bf16 to false"));
}

/* Plans for bf16 are made anywhere: the plan does not multiply. */
static void test_device_null_opens_with_bf16_products_anywhere(void **state) {
    (void)state;
    static const char *const names[] = {"null:cpu", "null:cuda"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct device *device = NULL;
        ops_ok(device_open(&device, names[i], true, e));
        assert_true(device->gemm_bf16);
        device_close(device);
    }
}

static void test_device_dtypes_have_names_and_sizes(void **state) {
    (void)state;
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
    assert_int_equal(dtype_bytes(DTYPE_I64), 8);
    assert_string_equal(dtype_name(DTYPE_F32), "float32");
    assert_string_equal(dtype_name(DTYPE_I32), "int32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_open_refuses_names_with_a_reason),
        cmocka_unit_test(test_device_open_cpu_says_what_it_runs_on),
        cmocka_unit_test(test_device_null_plans_with_the_sizes_of_the_real_one),
        cmocka_unit_test(test_device_cpu_memory_is_zero_after_commit_and_after_decommit),
        cmocka_unit_test(test_device_commit_of_part_of_a_page_is_an_internal_error),
        cmocka_unit_test(test_device_null_operations_succeed_and_touch_nothing),
        cmocka_unit_test(test_device_bf16_products_are_granted_or_refused_with_the_reason),
        cmocka_unit_test(test_device_null_opens_with_bf16_products_anywhere),
        cmocka_unit_test(test_device_dtypes_have_names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
