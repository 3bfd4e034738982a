/* device_ops.c - the operations of the device interface: check the arguments, count the work, call
 * the table.
 *
 * The checks are the rules that device.h states for each struct; a broken one is a bug of the
 * caller and comes back as STATUS_INTERNAL naming the operation and the argument. Which element
 * types a device takes depends on its kind alone, so plans meet the same refusals. FLOPs are those
 * of the mathematics (a multiply-add is two, an elementwise function a handful), bytes are what
 * must cross memory once. Attention is counted as if every document had the maximal length, because
 * the true lengths live on the device and null devices have none. */
#include "kernels/device.h"

#include <string.h>

#define NEED(condition, text) FAIL_IF(!(condition), STATUS_INTERNAL, "%s: %s", __func__, text)
#define POSITIVE(field) NEED(a->field > 0, #field " must be positive")
#define GIVEN(field) NEED(a->field != NULL, #field " is missing")
#define STEPS(field, width)                                                                        \
    NEED(a->field >= (width), #field " is smaller than the row it steps over")

static uint64_t mixed(uint64_t hash, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

static void count(struct device *device, enum work_class kind, double flops, double bytes) {
    device_count(device, kind, flops, bytes);
    device->calls = mixed(mixed(device->calls, flops), bytes);
}

static double bytes_of(enum dtype dtype) {
    return (double)dtype_bytes(dtype);
}

/* What parameters and operands of products may be stored as. */
static bool stores(const struct device *device, enum dtype dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 ||
           (dtype == DTYPE_F16 && device->kind == DEVICE_CUDA);
}

/* Activations, on the CPU, are f32. */
static enum status check_dtype(const struct device *device, enum dtype dtype, const char *op,
                               struct err *e) {
    const bool taken = device->kind == DEVICE_CPU ? dtype == DTYPE_F32 : stores(device, dtype);
    FAIL_IF(!taken, STATUS_INTERNAL, "%s: %s does not compute on activations of %s", op,
            device->name,
            (unsigned)dtype < DTYPE_COUNT ? dtype_name(dtype) : "a type that is not known");
    return STATUS_OK;
}
#define ACTIVATIONS(field) TRY(check_dtype(device, a->field, __func__, e))

static enum status check_gemm_dtypes(const struct device *device, const struct gemm_args *a,
                                     const char *op, struct err *e) {
    const bool mixed = device->kind == DEVICE_CPU;
    FAIL_IF(!stores(device, a->a.dtype), STATUS_INTERNAL, "%s: a has a type that %s does not take",
            op, device->name);
    FAIL_IF(!stores(device, a->b.dtype), STATUS_INTERNAL, "%s: b has a type that %s does not take",
            op, device->name);
    FAIL_IF(!mixed && a->a.dtype != a->b.dtype, STATUS_INTERNAL,
            "%s: a is %s and b is %s; %s multiplies operands of one type only", op,
            dtype_name(a->a.dtype), dtype_name(a->b.dtype), device->name);
    FAIL_IF(a->c.dtype != DTYPE_F32 && (mixed || a->c.dtype != a->a.dtype), STATUS_INTERNAL,
            "%s: c must be float32%s", op, mixed ? "" : ", or of the operands' type");
    FAIL_IF(a->bias && a->bias_dtype != DTYPE_F32 && a->bias_dtype != a->c.dtype, STATUS_INTERNAL,
            "%s: bias must be float32, or of c's type", op);
    return STATUS_OK;
}

enum status device_gemm(struct device *device, const struct gemm_args *a, struct err *e) {
    POSITIVE(m);
    POSITIVE(n);
    POSITIVE(k);
    GIVEN(a.data);
    GIVEN(b.data);
    GIVEN(c.data);
    TRY(check_gemm_dtypes(device, a, __func__, e));
    STEPS(a.ld, a->trans_a ? a->m : a->k);
    STEPS(b.ld, a->trans_b ? a->k : a->n);
    STEPS(c.ld, a->n);
    const double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    count(device, WORK_PRODUCT, 2 * m * n * k,
          m * k * bytes_of(a->a.dtype) + k * n * bytes_of(a->b.dtype) +
              (a->beta == 0 ? 1 : 2) * bytes_of(a->c.dtype) * m * n);
    return device->ops->gemm(device, a, e);
}

enum status device_rmsnorm(struct device *device, const struct rmsnorm_args *a, struct err *e) {
    POSITIVE(tokens);
    POSITIVE(groups);
    POSITIVE(width);
    GIVEN(x);
    GIVEN(weight);
    GIVEN(y);
    GIVEN(rstd);
    ACTIVATIONS(dtype);
    NEED(!a->residual == !a->sum, "residual and sum go together");
    STEPS(ld_x, a->groups * a->width);
    STEPS(ld_y, a->groups * a->width);
    NEED(!a->residual || a->ld_residual >= a->groups * a->width,
         "ld_residual is smaller than the row it steps over");
    NEED(!a->sum || a->ld_sum >= a->groups * a->width,
         "ld_sum is smaller than the row it steps over");
    const double n = (double)a->tokens * (double)a->groups * (double)a->width;
    count(device, WORK_STREAM, 4 * n, bytes_of(a->dtype) * n * (a->residual ? 4 : 2));
    return device->ops->rmsnorm(device, a, e);
}

enum status device_rmsnorm_backward(struct device *device, const struct rmsnorm_backward_args *a,
                                    struct err *e) {
    POSITIVE(tokens);
    POSITIVE(groups);
    POSITIVE(width);
    GIVEN(x);
    GIVEN(weight);
    GIVEN(rstd);
    GIVEN(dy);
    GIVEN(dx);
    ACTIVATIONS(dtype);
    STEPS(ld_x, a->groups * a->width);
    STEPS(ld_dy, a->groups * a->width);
    STEPS(ld_dx, a->groups * a->width);
    const double n = (double)a->tokens * (double)a->groups * (double)a->width;
    count(device, WORK_STREAM, n * (a->dweight ? 10 : 7),
          bytes_of(a->dtype) * n * (a->accumulate ? 4 : 3));
    return device->ops->rmsnorm_backward(device, a, e);
}

enum status device_rope(struct device *device, const struct rope_args *a, struct err *e) {
    POSITIVE(tokens);
    POSITIVE(heads);
    POSITIVE(head_dim);
    POSITIVE(rotary);
    NEED(a->rotary % 2 == 0, "rotary must be even");
    NEED(a->rotary <= a->head_dim, "rotary must be at most head_dim");
    GIVEN(x);
    GIVEN(positions);
    GIVEN(inv_freq);
    ACTIVATIONS(dtype);
    STEPS(ld, a->heads * a->head_dim);
    const double n = (double)a->tokens * (double)a->heads * (double)a->rotary;
    count(device, WORK_STREAM, 3 * n, 2 * bytes_of(a->dtype) * n);
    return device->ops->rope(device, a, e);
}

static enum status check_attention(const struct device *device, const struct attention_args *a,
                                   const char *op, struct err *e) {
    TRY(check_dtype(device, a->dtype, op, e));
    FAIL_IF(
        a->tokens <= 0 || a->heads <= 0 || a->kv_heads <= 0 || a->head_dim <= 0 || a->segments <= 0,
        STATUS_INTERNAL, "%s: tokens, heads, kv_heads, head_dim and segments must be positive", op);
    FAIL_IF(a->heads % a->kv_heads != 0, STATUS_INTERNAL,
            "%s: heads must be a multiple of kv_heads", op);
    FAIL_IF(a->max_seqlen <= 0 || a->max_seqlen > a->tokens, STATUS_INTERNAL,
            "%s: max_seqlen must be in 1..tokens", op);
    FAIL_IF(a->window < 0 || !(a->softcap >= 0), STATUS_INTERNAL,
            "%s: window and softcap must not be negative", op);
    FAIL_IF(!a->cu_seqlens || !a->q || !a->k || !a->v || !a->out || !a->lse, STATUS_INTERNAL,
            "%s: cu_seqlens, q, k, v, out or lse is missing", op);
    FAIL_IF(a->ld_q < a->heads * a->head_dim || a->ld_k < a->kv_heads * a->head_dim ||
                a->ld_v < a->kv_heads * a->head_dim || a->ld_out < a->heads * a->head_dim,
            STATUS_INTERNAL, "%s: ld_q, ld_k, ld_v or ld_out is smaller than the row it steps over",
            op);
    return STATUS_OK;
}

static enum status check_scratch(const struct device *device, const struct attention_args *a,
                                 bool backward, const char *op, struct err *e) {
    FAIL_IF(!a->scratch && device->ops->attention_scratch(device, a, backward) > 0, STATUS_INTERNAL,
            "%s: scratch is missing", op);
    return STATUS_OK;
}

/* FLOPs of one product of [T,D] with [D,visible] for all heads. */
static double attention_product_flops(const struct attention_args *a) {
    const double longest = (double)a->max_seqlen;
    const double window = a->window > 0 && a->window < a->max_seqlen ? (double)a->window : longest;
    const double visible = window - window * (window - 1) / (2 * longest);
    return 2 * (double)a->tokens * (double)a->heads * (double)a->head_dim * visible;
}

enum status device_attention(struct device *device, const struct attention_args *a, struct err *e) {
    TRY(check_attention(device, a, __func__, e));
    TRY(check_scratch(device, a, false, __func__, e));
    const double row = (double)a->tokens * (double)a->head_dim;
    count(device, WORK_ATTENTION, 2 * attention_product_flops(a),
          2 * bytes_of(a->dtype) * row * (double)(a->heads + a->kv_heads));
    return device->ops->attention(device, a, e);
}

enum status device_attention_backward(struct device *device,
                                      const struct attention_backward_args *a, struct err *e) {
    const struct attention_args *f = &a->forward;
    TRY(check_attention(device, f, __func__, e));
    TRY(check_scratch(device, f, true, __func__, e));
    GIVEN(dout);
    GIVEN(dq);
    GIVEN(dk);
    GIVEN(dv);
    STEPS(ld_dout, f->heads * f->head_dim);
    STEPS(ld_dq, f->heads * f->head_dim);
    STEPS(ld_dk, f->kv_heads * f->head_dim);
    STEPS(ld_dv, f->kv_heads * f->head_dim);
    const double row = (double)f->tokens * (double)f->head_dim;
    count(device, WORK_ATTENTION, 5 * attention_product_flops(f),
          4 * bytes_of(f->dtype) * row * (double)(f->heads + f->kv_heads));
    return device->ops->attention_backward(device, a, e);
}

enum status device_glu(struct device *device, const struct glu_args *a, struct err *e) {
    POSITIVE(tokens);
    POSITIVE(width);
    NEED(a->activation == ACTIVATION_SILU || a->activation == ACTIVATION_GELU_TANH,
         "activation is not known");
    GIVEN(gate_up);
    GIVEN(out);
    ACTIVATIONS(dtype);
    STEPS(ld_gate_up, 2 * a->width);
    STEPS(ld_out, a->width);
    const double n = (double)a->tokens * (double)a->width;
    count(device, WORK_GATE, 6 * n, 3 * bytes_of(a->dtype) * n);
    return device->ops->glu(device, a, e);
}

enum status device_glu_backward(struct device *device, const struct glu_backward_args *a,
                                struct err *e) {
    POSITIVE(tokens);
    POSITIVE(width);
    NEED(a->activation == ACTIVATION_SILU || a->activation == ACTIVATION_GELU_TANH,
         "activation is not known");
    GIVEN(gate_up);
    GIVEN(dout);
    GIVEN(dgate_up);
    ACTIVATIONS(dtype);
    STEPS(ld_gate_up, 2 * a->width);
    STEPS(ld_dout, a->width);
    STEPS(ld_dgate_up, 2 * a->width);
    NEED(!a->gated || a->ld_gated >= a->width, "ld_gated is smaller than the row it steps over");
    const double n = (double)a->tokens * (double)a->width;
    count(device, WORK_GATE, n * (a->gated ? 13 : 12), bytes_of(a->dtype) * n * (a->gated ? 6 : 5));
    return device->ops->glu_backward(device, a, e);
}

enum status device_embedding(struct device *device, const struct embedding_args *a, struct err *e) {
    POSITIVE(tokens);
    POSITIVE(channels);
    POSITIVE(vocab);
    GIVEN(ids);
    GIVEN(table);
    GIVEN(out);
    NEED(a->first >= 0 && (a->partial || a->first == 0), "first is of partial tables");
    ACTIVATIONS(dtype);
    NEED(stores(device, a->table_dtype), "the table has a type that the device does not take");
    STEPS(ld_out, a->channels);
    const double n = (double)a->tokens * (double)a->channels;
    count(device, WORK_STREAM, n, n * (bytes_of(a->dtype) + bytes_of(a->table_dtype)));
    return device->ops->embedding(device, a, e);
}

enum status device_embedding_backward(struct device *device,
                                      const struct embedding_backward_args *a, struct err *e) {
    POSITIVE(tokens);
    POSITIVE(channels);
    POSITIVE(vocab);
    GIVEN(ids);
    GIVEN(dout);
    GIVEN(dtable);
    NEED(a->first >= 0 && (a->partial || a->first == 0), "first is of partial tables");
    ACTIVATIONS(dtype);
    STEPS(ld_dout, a->channels);
    const double n = (double)a->tokens * (double)a->channels;
    count(device, WORK_STREAM, 2 * n, n * (bytes_of(a->dtype) + 8));
    return device->ops->embedding_backward(device, a, e);
}

enum status device_cross_entropy(struct device *device, const struct cross_entropy_args *a,
                                 struct err *e) {
    POSITIVE(rows);
    POSITIVE(vocab);
    GIVEN(logits);
    GIVEN(labels);
    GIVEN(losses);
    GIVEN(correct);
    ACTIVATIONS(dtype);
    NEED(a->softcap >= 0, "softcap must not be negative");
    const double n = (double)a->rows * (double)a->vocab;
    count(device, WORK_LOSS, n * (a->write_gradient ? 8 : 5),
          bytes_of(a->dtype) * n * (a->write_gradient ? 2 : 1));
    return device->ops->cross_entropy(device, a, e);
}

enum status device_softmax_stats(struct device *device, const struct softmax_stats_args *a,
                                 struct err *e) {
    POSITIVE(rows);
    POSITIVE(vocab);
    NEED(a->first >= 0, "first must not be negative");
    GIVEN(logits);
    GIVEN(labels);
    GIVEN(stats);
    ACTIVATIONS(dtype);
    NEED(a->softcap >= 0, "softcap must not be negative");
    const double n = (double)a->rows * (double)a->vocab;
    count(device, WORK_LOSS, n * 5, bytes_of(a->dtype) * n);
    return device->ops->softmax_stats(device, a, e);
}

enum status device_split_cross_entropy(struct device *device,
                                       const struct split_cross_entropy_args *a, struct err *e) {
    POSITIVE(rows);
    POSITIVE(vocab);
    POSITIVE(members);
    NEED(a->first >= 0, "first must not be negative");
    GIVEN(logits);
    GIVEN(labels);
    GIVEN(stats);
    GIVEN(losses);
    GIVEN(correct);
    ACTIVATIONS(dtype);
    NEED(a->softcap >= 0, "softcap must not be negative");
    const double rows = (double)a->rows, n = a->write_gradient ? rows * (double)a->vocab : rows;
    count(device, WORK_LOSS, n * 3, bytes_of(a->dtype) * n * 2);
    return device->ops->split_cross_entropy(device, a, e);
}

static enum status check_adamw_dtypes(const struct device *device, const struct adamw_args *a,
                                      const char *op, struct err *e) {
    const bool cuda = device->kind == DEVICE_CUDA;
    FAIL_IF(a->param_dtype != DTYPE_F32 && !(cuda && a->param_dtype == DTYPE_BF16), STATUS_INTERNAL,
            "%s: param must be float32%s", op, cuda ? " or bfloat16" : "");
    FAIL_IF(a->state_dtype != DTYPE_F32 && !(cuda && a->state_dtype == DTYPE_BF16), STATUS_INTERNAL,
            "%s: m and v must be float32%s", op, cuda ? " or bfloat16" : "");
    FAIL_IF(a->copy && !stores(device, a->copy_dtype), STATUS_INTERNAL,
            "%s: copy has a type that %s does not take", op, device->name);
    return STATUS_OK;
}

enum status device_adamw(struct device *device, const struct adamw_args *a, struct err *e) {
    POSITIVE(count);
    POSITIVE(step);
    GIVEN(param);
    GIVEN(grad);
    GIVEN(m);
    GIVEN(v);
    GIVEN(grad_scale);
    NEED(a->beta1 >= 0 && a->beta1 < 1, "beta1 must be in [0,1)");
    NEED(a->beta2 >= 0 && a->beta2 < 1, "beta2 must be in [0,1)");
    TRY(check_adamw_dtypes(device, a, __func__, e));
    count(device, WORK_UPDATE, 14 * (double)a->count,
          (double)a->count * (4 + 2 * bytes_of(a->param_dtype) + 4 * bytes_of(a->state_dtype) +
                              (a->copy ? bytes_of(a->copy_dtype) : 0)));
    return device->ops->adamw(device, a, e);
}

enum status device_sum_squares(struct device *device, const struct sum_squares_args *a,
                               struct err *e) {
    POSITIVE(count);
    GIVEN(x);
    GIVEN(out);
    count(device, WORK_UPDATE, 2 * (double)a->count, 4 * (double)a->count);
    return device->ops->sum_squares(device, a, e);
}

enum status device_clip(struct device *device, const struct clip_args *a, struct err *e) {
    GIVEN(sum_squares);
    GIVEN(norm);
    GIVEN(coefficient);
    count(device, WORK_UPDATE, 4, 16);
    return device->ops->clip(device, a, e);
}

enum status device_loss_sums(struct device *device, const struct loss_sums_args *a, struct err *e) {
    POSITIVE(rows);
    GIVEN(losses);
    GIVEN(correct);
    GIVEN(totals);
    count(device, WORK_STREAM, 2 * (double)a->rows, 8 * (double)a->rows);
    return device->ops->loss_sums(device, a, e);
}

enum status device_dropout(struct device *device, const struct dropout_args *a, struct err *e) {
    POSITIVE(rows);
    POSITIVE(width);
    GIVEN(x);
    GIVEN(y);
    GIVEN(row_keys);
    NEED(a->p >= 0 && a->p < 1, "p must be in [0,1)");
    NEED(a->first >= 0, "first must not be negative");
    ACTIVATIONS(dtype);
    STEPS(ld_x, a->width);
    STEPS(ld_y, a->width);
    const double n = (double)a->rows * (double)a->width;
    count(device, WORK_STREAM, 2 * n, bytes_of(a->dtype) * n * (a->accumulate ? 3 : 2));
    return device->ops->dropout(device, a, e);
}

static enum status check_rows(const struct device *device, const struct rows_args *a,
                              const char *op, struct err *e) {
    TRY(check_dtype(device, a->dtype, op, e));
    FAIL_IF(a->rows <= 0 || a->width <= 0, STATUS_INTERNAL, "%s: rows and width must be positive",
            op);
    FAIL_IF(!a->index || !a->src || !a->dst, STATUS_INTERNAL, "%s: index, src or dst is missing",
            op);
    FAIL_IF(a->ld_src < a->width || a->ld_dst < a->width, STATUS_INTERNAL,
            "%s: ld_src or ld_dst is smaller than the row it steps over", op);
    return STATUS_OK;
}

enum status device_gather_rows(struct device *device, const struct rows_args *a, struct err *e) {
    TRY(check_rows(device, a, __func__, e));
    count(device, WORK_STREAM, 0, 2 * bytes_of(a->dtype) * (double)a->rows * (double)a->width);
    return device->ops->gather_rows(device, a, e);
}

enum status device_scatter_rows(struct device *device, const struct rows_args *a, struct err *e) {
    TRY(check_rows(device, a, __func__, e));
    count(device, WORK_STREAM, 0, 2 * bytes_of(a->dtype) * (double)a->rows * (double)a->width);
    return device->ops->scatter_rows(device, a, e);
}

enum status device_add(struct device *device, const struct add_args *a, struct err *e) {
    POSITIVE(rows);
    POSITIVE(cols);
    GIVEN(a);
    GIVEN(b);
    GIVEN(out);
    ACTIVATIONS(dtype);
    STEPS(ld_a, a->cols);
    STEPS(ld_b, a->cols);
    STEPS(ld_out, a->cols);
    const double n = (double)a->rows * (double)a->cols;
    count(device, WORK_STREAM, n, 3 * bytes_of(a->dtype) * n);
    return device->ops->add(device, a, e);
}

enum status device_column_sum(struct device *device, const struct column_sum_args *a,
                              struct err *e) {
    POSITIVE(rows);
    POSITIVE(cols);
    GIVEN(x);
    GIVEN(out);
    ACTIVATIONS(dtype);
    STEPS(ld_x, a->cols);
    NEED(!a->y || a->ld_y >= a->cols, "ld_y is smaller than the row it steps over");
    const double n = (double)a->rows * (double)a->cols;
    count(device, WORK_STREAM, n * (a->y ? 2 : 1), bytes_of(a->dtype) * n * (a->y ? 2 : 1));
    return device->ops->column_sum(device, a, e);
}

enum status device_column_scale(struct device *device, const struct column_scale_args *a,
                                struct err *e) {
    POSITIVE(rows);
    POSITIVE(cols);
    GIVEN(x);
    GIVEN(out);
    ACTIVATIONS(dtype);
    STEPS(ld_x, a->cols);
    STEPS(ld_out, a->cols);
    const double n = (double)a->rows * (double)a->cols;
    count(device, WORK_STREAM, n * (a->accumulate ? 2 : 1),
          bytes_of(a->dtype) * n * (a->accumulate ? 3 : 2));
    return device->ops->column_scale(device, a, e);
}

enum status device_row_norm(struct device *device, const struct row_norm_args *a, struct err *e) {
    POSITIVE(rows);
    POSITIVE(cols);
    GIVEN(x);
    GIVEN(out);
    STEPS(ld, a->cols);
    const double n = (double)a->rows * (double)a->cols;
    count(device, WORK_STREAM, 2 * n, 4 * n);
    return device->ops->row_norm(device, a, e);
}

enum status device_divide(struct device *device, const struct divide_args *a, struct err *e) {
    POSITIVE(count);
    GIVEN(a);
    GIVEN(b);
    GIVEN(out);
    count(device, WORK_STREAM, (double)a->count, 12 * (double)a->count);
    return device->ops->divide(device, a, e);
}

enum status device_convert(struct device *device, const struct convert_args *a, struct err *e) {
    POSITIVE(rows);
    POSITIVE(cols);
    GIVEN(src.data);
    GIVEN(dst.data);
    NEED(a->scale != 0, "scale is 0; 1 copies");
    NEED(stores(device, a->src.dtype), "src has a type that the device does not take");
    NEED(stores(device, a->dst.dtype), "dst has a type that the device does not take");
    STEPS(src.ld, a->cols);
    STEPS(dst.ld, a->cols);
    const double n = (double)a->rows * (double)a->cols;
    count(device, WORK_STREAM, a->scale == 1 ? 0 : n,
          n * (bytes_of(a->src.dtype) + bytes_of(a->dst.dtype)));
    return device->ops->convert(device, a, e);
}

enum status device_convert_items(struct device *device, const struct convert_items_args *a,
                                 struct err *e) {
    POSITIVE(count);
    POSITIVE(largest);
    GIVEN(items);
    NEED(a->count <= CONVERT_ITEMS_MAX, "count is too large");
    NEED(a->largest <= INT32_MAX, "largest is too large");
    NEED(a->elements >= a->largest, "elements is smaller than largest");
    NEED(stores(device, a->src_dtype), "src has a type that the device does not take");
    NEED(stores(device, a->dst_dtype), "dst has a type that the device does not take");
    const double n = (double)a->elements;
    count(device, WORK_STREAM, n, n * (bytes_of(a->src_dtype) + bytes_of(a->dst_dtype)));
    return device->ops->convert_items(device, a, e);
}

/* What is read: codes, scales and nested ones. */
static double quant_bytes(const struct dequantize_args *a) {
    return (double)(quant_code_bytes(a->quant, a->rows * a->cols) +
                    quant_scale_bytes(a->quant, a->rows, a->cols) +
                    4 * quant_nested_count(a->quant, a->rows, a->cols));
}

enum status device_dequantize(struct device *device, const struct dequantize_args *a,
                              struct err *e) {
    POSITIVE(rows);
    POSITIVE(cols);
    GIVEN(codes);
    GIVEN(scales);
    GIVEN(out.data);
    NEED(a->quant > QUANT_NONE && a->quant <= QUANT_FP8, "quant is none that is known");
    NEED(a->cols % QUANT_GRANULE == 0, "cols is not a multiple of 16");
    NEED((a->quant == QUANT_NF4_DOUBLE) == (a->nested != NULL),
         "nested goes with doubly quantised scales");
    NEED((uintptr_t)a->codes % 8 == 0, "codes must begin at a multiple of 8 bytes");
    NEED(stores(device, a->out.dtype), "out has a type that the device does not take");
    STEPS(out.ld, a->cols);
    const double n = (double)a->rows * (double)a->cols;
    count(device, WORK_STREAM, n, quant_bytes(a) + n * bytes_of(a->out.dtype));
    return device->ops->dequantize(device, a, e);
}
