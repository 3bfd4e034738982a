/* cases_elementwise.c - gated units, dropout, sums, quotients, conversion.
 *
 * n: rows, cols, padding in every ld, then for units: gelu (1), in place (1), forward made again
 * (1); for dropout: accumulate, in place, the first column's place in a wider matrix; for
 * conversion: dtype of the result. x: p of dropout, scale of conversion. Large cases are also
 * timed. */
#include "base/mem.h"
#include "tests/gpu/cases.h"

enum { TIMED_MIN = 1 << 22 };

struct arrays {
    const struct gpu_case *c;
    struct gpu_array *x, *y, *out, *keys;
};

static enum status time_large(struct gpu_test *t, gpu_op *op, struct arrays *p, double bytes,
                              struct err *e) {
    const double size = (double)p->c->n[0] * (double)p->c->n[1];
    return size < TIMED_MIN ? STATUS_OK : gpu_time(t, op, p, size * bytes, 0, e);
}

/* ---- gated units ---- */

static enum activation activation_of(const struct gpu_case *c) {
    return c->n[3] ? ACTIVATION_GELU_TANH : ACTIVATION_SILU;
}

static enum status run_glu(struct device *device, enum side side, void *context, struct err *e) {
    const struct arrays *p = context;
    return device_glu(device,
                      &(struct glu_args){
                          .tokens = p->c->n[0],
                          .width = p->c->n[1],
                          .activation = activation_of(p->c),
                          .dtype = gpu_dtype(p->x, side),
                          .gate_up = p->x->at[side],
                          .ld_gate_up = p->x->ld,
                          .out = p->out->at[side],
                          .ld_out = p->out->ld,
                      },
                      e);
}

static enum status run_glu_backward(struct device *device, enum side side, void *context,
                                    struct err *e) {
    const struct arrays *p = context;
    return device_glu_backward(device,
                               &(struct glu_backward_args){
                                   .tokens = p->c->n[0],
                                   .width = p->c->n[1],
                                   .activation = activation_of(p->c),
                                   .dtype = gpu_dtype(p->x, side),
                                   .gate_up = p->x->at[side],
                                   .ld_gate_up = p->x->ld,
                                   .dout = p->y->at[side],
                                   .ld_dout = p->y->ld,
                                   .dgate_up = p->out->at[side],
                                   .ld_dgate_up = p->out->ld,
                                   .gated = p->c->n[5] ? p->y->at[side] : NULL,
                                   .ld_gated = p->y->ld,
                               },
                               e);
}

static enum status glu_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], width = c->n[1], pad = c->n[2];
    struct arrays p = {.c = c};
    p.x = gpu_random(t, rows, 2 * width, 2 * width + pad, c->dtype, 3);
    p.out = gpu_output(t, rows, width, width + pad, c->dtype);
    TRY(gpu_run(t, run_glu, &p, e));
    gpu_compare(t, p.out, "out", 0);
    return time_large(t, run_glu, &p, 3 * (double)dtype_bytes(c->dtype), e);
}

static enum status glu_backward_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], width = c->n[1], pad = c->n[2];
    struct arrays p = {.c = c};
    p.x = gpu_random(t, rows, 2 * width, 2 * width + pad, c->dtype, 3);
    p.y = gpu_random(t, rows, width, width + pad, c->dtype, 1);
    p.out = c->n[4] ? p.x : gpu_output(t, rows, 2 * width, 2 * width + pad, c->dtype);
    TRY(gpu_run(t, run_glu_backward, &p, e));
    gpu_compare(t, p.out, "dgate_up", 0);
    if (c->n[5]) gpu_compare(t, p.y, "gated", 0);
    return time_large(t, run_glu_backward, &p, (c->n[5] ? 6 : 5) * (double)dtype_bytes(c->dtype),
                      e);
}

/* ---- dropout ---- */

static enum status run_dropout(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct arrays *p = context;
    return device_dropout(device,
                          &(struct dropout_args){
                              .rows = p->c->n[0],
                              .width = p->c->n[1],
                              .dtype = gpu_dtype(p->x, side),
                              .x = p->x->at[side],
                              .ld_x = p->x->ld,
                              .y = p->out->at[side],
                              .ld_y = p->out->ld,
                              .p = (float)p->c->x[0],
                              .seed = UINT64_C(0x123456789ABCDEF),
                              .stream = UINT64_C(0xFEDCBA987654321),
                              .row_keys = p->keys->at[side],
                              .accumulate = p->c->n[3] != 0,
                              .first = p->c->n[5],
                          },
                          e);
}

/* The mask must be the CPU's, bit for bit. Where x is exactly 0 it does not show. */
static void compare_masks(struct gpu_test *t, const struct gpu_array *out) {
    float *cpu = gpu_read(t, out, SIDE_CPU), *card = gpu_read(t, out, SIDE_GPU);
    int64_t differ = 0;
    for (int64_t i = 0; i < out->rows * out->cols; i++) {
        differ += (cpu[i] == 0) != (card[i] == 0);
    }
    gpu_expect(t, differ == 0, "%lld elements are dropped on one side only", (long long)differ);
    mem_free(cpu);
    mem_free(card);
}

static enum status dropout_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], width = c->n[1], pad = c->n[2];
    struct arrays p = {.c = c};
    int64_t *keys = mem_new((size_t)rows, sizeof *keys);
    for (int64_t r = 0; r < rows; r++) {
        keys[r] = (int64_t)gpu_next(t);
    }
    p.keys = gpu_values(t, keys, rows, DTYPE_I64);
    mem_free(keys);
    p.x = gpu_random(t, rows, width, width + pad, c->dtype, 1);
    p.out = c->n[4]   ? p.x
            : c->n[3] ? gpu_random(t, rows, width, width + 2 * pad, c->dtype, 1)
                      : gpu_output(t, rows, width, width + 2 * pad, c->dtype);
    TRY(gpu_run(t, run_dropout, &p, e));
    gpu_compare(t, p.out, "y", 0);
    if (!c->n[3]) compare_masks(t, p.out);
    return time_large(t, run_dropout, &p, 2 * (double)dtype_bytes(c->dtype), e);
}

/* ---- sums, quotients, conversion ---- */

static enum status run_add(struct device *device, enum side side, void *context, struct err *e) {
    const struct arrays *p = context;
    return device_add(device,
                      &(struct add_args){
                          .rows = p->c->n[0],
                          .cols = p->c->n[1],
                          .dtype = gpu_dtype(p->x, side),
                          .a = p->x->at[side],
                          .ld_a = p->x->ld,
                          .b = p->y->at[side],
                          .ld_b = p->y->ld,
                          .out = p->out->at[side],
                          .ld_out = p->out->ld,
                      },
                      e);
}

static enum status run_divide(struct device *device, enum side side, void *context, struct err *e) {
    const struct arrays *p = context;
    return device_divide(device,
                         &(struct divide_args){
                             .count = p->c->n[1],
                             .a = p->x->at[side],
                             .b = p->y->at[side],
                             .out = p->out->at[side],
                         },
                         e);
}

static enum status run_convert(struct device *device, enum side side, void *context,
                               struct err *e) {
    const struct arrays *p = context;
    return device_convert(device,
                          &(struct convert_args){
                              .rows = p->c->n[0],
                              .cols = p->c->n[1],
                              .scale = (float)p->c->x[0],
                              .src = gpu_matrix(p->x, side),
                              .dst = gpu_matrix(p->out, side),
                          },
                          e);
}

static enum status add_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1], pad = c->n[2];
    struct arrays p = {.c = c};
    p.x = gpu_random(t, rows, cols, cols + pad, c->dtype, 1);
    p.y = gpu_random(t, rows, cols, cols + 2 * pad, c->dtype, 1);
    p.out = c->n[4] ? p.y : gpu_output(t, rows, cols, cols + pad, c->dtype);
    TRY(gpu_run(t, run_add, &p, e));
    gpu_compare(t, p.out, "out", 0);
    return time_large(t, run_add, &p, 3 * (double)dtype_bytes(c->dtype), e);
}

static enum status divide_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t count = c->n[1];
    struct arrays p = {.c = c};
    p.x = gpu_random(t, 1, count, count, DTYPE_F32, 1);
    p.y = gpu_random(t, 1, count, count, DTYPE_F32, 1);
    p.out = gpu_output(t, 1, count, count, DTYPE_F32);
    TRY(gpu_run(t, run_divide, &p, e));
    gpu_compare(t, p.out, "out", 1e-7);
    return STATUS_OK;
}

/* All rows but the last as one item, the last as another with a scale of its own. */
static enum status run_convert_items(struct device *device, enum side side, void *context,
                                     struct err *e) {
    const struct arrays *p = context;
    const int64_t above = p->x->rows - 1, cols = p->x->cols, ld_x = p->x->ld, ld = p->out->ld;
    const enum dtype from = gpu_dtype(p->x, side), to = gpu_dtype(p->out, side);
    char *const src = p->x->at[side], *const dst = p->out->at[side];
    const struct convert_item items[] = {
        {src, dst, above, cols, ld_x, ld, p->c->x[0]},
        {src + above * ld_x * dtype_bytes(from), dst + above * ld * dtype_bytes(to), 1, cols, ld_x,
         ld, -2 * p->c->x[0]},
    };
    TRY(device_upload(device, p->keys->at[side], items, sizeof items, e));
    return device_convert_items(device,
                                &(struct convert_items_args){
                                    .count = 2,
                                    .items = p->keys->at[side],
                                    .src_dtype = from,
                                    .dst_dtype = to,
                                    .largest = above * cols,
                                    .elements = (above + 1) * cols,
                                },
                                e);
}

static enum status convert_items_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1], pad = c->n[2];
    const int64_t room[2 * sizeof(struct convert_item) / sizeof(int64_t)] = {0};
    struct arrays p = {.c = c};
    p.keys = gpu_values(t, room, (int64_t)COUNT_OF(room), DTYPE_I64);
    p.x = gpu_random(t, rows, cols, cols + pad, c->dtype, 1);
    p.out = gpu_output(t, rows, cols, cols + 2 * pad, (enum dtype)c->n[3]);
    TRY(gpu_run(t, run_convert_items, &p, e));
    gpu_compare(t, p.out, "dst", 0);
    return STATUS_OK;
}

static enum status convert_case(struct gpu_test *t, const struct gpu_case *c, struct err *e) {
    const int64_t rows = c->n[0], cols = c->n[1], pad = c->n[2];
    const enum dtype to = (enum dtype)c->n[3];
    struct arrays p = {.c = c};
    p.x = gpu_random(t, rows, cols, cols + pad, c->dtype, 1);
    p.out = gpu_output(t, rows, cols, cols + 2 * pad, to);
    TRY(gpu_run(t, run_convert, &p, e));
    gpu_compare(t, p.out, "dst", 0);
    return time_large(t, run_convert, &p, (double)(dtype_bytes(c->dtype) + dtype_bytes(to)), e);
}

#define CASE(kind, function, label, type, value, ...)                                              \
    {                                                                                              \
        .name = kind "/" label, .run = function, .dtype = type, .n = {__VA_ARGS__}, .x = { value } \
    }
#define EVERY_DTYPE(kind, function, label, value, ...)                                             \
    CASE(kind, function, label, DTYPE_F32, value, __VA_ARGS__),                                    \
        CASE(kind, function, label, DTYPE_BF16, value, __VA_ARGS__),                               \
        CASE(kind, function, label, DTYPE_F16, value, __VA_ARGS__)
#define CONVERT(label, from, to, ...)                                                              \
    {                                                                                              \
        .name = "convert/" label, .run = convert_case, .dtype = from, .n = {__VA_ARGS__, to},      \
        .x = {                                                                                     \
            0.75                                                                                   \
        }                                                                                          \
    }
#define CONVERT_EVERY_DTYPE(label, ...)                                                            \
    CONVERT(label "-to-f32", DTYPE_F32, DTYPE_F32, __VA_ARGS__),                                   \
        CONVERT(label "-to-bf16", DTYPE_F32, DTYPE_BF16, __VA_ARGS__),                             \
        CONVERT(label "-to-f16", DTYPE_F32, DTYPE_F16, __VA_ARGS__),                               \
        CONVERT(label "-to-f32", DTYPE_BF16, DTYPE_F32, __VA_ARGS__),                              \
        CONVERT(label "-to-bf16", DTYPE_BF16, DTYPE_BF16, __VA_ARGS__),                            \
        CONVERT(label "-to-f16", DTYPE_BF16, DTYPE_F16, __VA_ARGS__),                              \
        CONVERT(label "-to-f32", DTYPE_F16, DTYPE_F32, __VA_ARGS__),                               \
        CONVERT(label "-to-bf16", DTYPE_F16, DTYPE_BF16, __VA_ARGS__),                             \
        CONVERT(label "-to-f16", DTYPE_F16, DTYPE_F16, __VA_ARGS__)

static const struct gpu_case CASES[] = {
    EVERY_DTYPE("glu", glu_case, "1536", 0, 37, 1536, 64),
    EVERY_DTYPE("glu", glu_case, "4864-gelu", 0, 19, 4864, 0, 1),
    EVERY_DTYPE("glu", glu_case, "odd", 0, 19, 77, 3),
    CASE("glu", glu_case, "8192x14336", DTYPE_BF16, 0, 8192, 14336, 64),
    CASE("glu", glu_case, "16384x4864", DTYPE_BF16, 0, 16384, 4864),
    EVERY_DTYPE("glu_backward", glu_backward_case, "1536", 0, 37, 1536, 64),
    EVERY_DTYPE("glu_backward", glu_backward_case, "4864-gelu", 0, 19, 4864, 0, 1),
    EVERY_DTYPE("glu_backward", glu_backward_case, "in-place", 0, 19, 896, 64, 0, 1),
    EVERY_DTYPE("glu_backward", glu_backward_case, "odd", 0, 19, 77, 3, 1, 1),
    EVERY_DTYPE("glu_backward", glu_backward_case, "again", 0, 19, 896, 64, 0, 1, 1),
    EVERY_DTYPE("glu_backward", glu_backward_case, "again-odd-gelu", 0, 19, 77, 3, 1, 1, 1),
    CASE("glu_backward", glu_backward_case, "8192x14336", DTYPE_BF16, 0, 8192, 14336, 64, 0, 1),
    CASE("glu_backward", glu_backward_case, "8192x14336-again", DTYPE_BF16, 0, 8192, 14336, 64, 0,
         1, 1),
    EVERY_DTYPE("dropout", dropout_case, "1536", 0.1, 37, 1536, 64),
    EVERY_DTYPE("dropout", dropout_case, "in-place", 0.5, 37, 896, 0, 0, 1),
    EVERY_DTYPE("dropout", dropout_case, "add", 0.1, 37, 896, 64, 1),
    EVERY_DTYPE("dropout", dropout_case, "odd", 0.3, 37, 77, 3),
    EVERY_DTYPE("dropout", dropout_case, "part", 0.3, 37, 896, 64, 0, 0, 1792),
    EVERY_DTYPE("dropout", dropout_case, "part-odd", 0.3, 37, 896, 64, 0, 0, 1791),
    CASE("dropout", dropout_case, "8192x4096", DTYPE_BF16, 0.1, 8192, 4096),
    EVERY_DTYPE("add", add_case, "896", 0, 37, 896, 64),
    EVERY_DTYPE("add", add_case, "odd-in-place", 0, 37, 77, 3, 0, 1),
    CASE("add", add_case, "8192x4096", DTYPE_BF16, 0, 8192, 4096),
    CASE("divide", divide_case, "1001", DTYPE_F32, 0, 1, 1001),
    CONVERT_EVERY_DTYPE("896", 37, 896, 64),
    CONVERT_EVERY_DTYPE("flat-2048", 8, 512, 0),
    CONVERT_EVERY_DTYPE("flat", 8, 77, 0),
    CONVERT_EVERY_DTYPE("odd", 11, 77, 3),
    CASE("convert_items", convert_items_case, "16x4096", DTYPE_F32, 2, 17, 4096, 0, DTYPE_BF16),
    CASE("convert_items", convert_items_case, "14336x16", DTYPE_F32, 2, 14337, 16, 64, DTYPE_BF16),
    CASE("convert_items", convert_items_case, "896-f16", DTYPE_F32, 2, 37, 896, 64, DTYPE_F16),
    CASE("convert_items", convert_items_case, "896-f32", DTYPE_F32, 2, 37, 896, 64, DTYPE_F32),
    CASE("convert_items", convert_items_case, "odd", DTYPE_F32, 2, 11, 77, 3, DTYPE_BF16),
    CONVERT("8192x4096-to-bf16", DTYPE_F32, DTYPE_BF16, 8192, 4096, 0),
    CONVERT("8192x4096-to-f32", DTYPE_BF16, DTYPE_F32, 8192, 4096, 64),
};

const struct gpu_suite gpu_suite_elementwise = {"elementwise", CASES, COUNT_OF(CASES)};
