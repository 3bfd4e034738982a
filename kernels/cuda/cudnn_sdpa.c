/* cudnn_sdpa.c - attention as the list of elementary operations that cuDNN knows it by.
 *
 * Forward: softmax(mask(scale * Q K^T)) V with statistics for the backward (Dao et al. 2022,
 * algorithm 1); backward as there, algorithm 4: P from the statistics, dV = P^T dO, dP = dO V^T,
 * dS = P * (dP - rowsum(dO * O)), dK = dS^T Q, dQ = dS K. Grouped heads: dK and dV are made for
 * every query head and summed over the group. */
#include "kernels/cuda/cudnn_sdpa.h"

/* A graph in the making and the tensors that several operations use. */
struct builder {
    struct dnn_graph *g;
    const struct sdpa_shape *shape;
    int64_t *uid;
    cudnnDataType_t io;
    int64_t scores[DNN_RANK], rows[DNN_RANK]; /* sizes of the score matrix and of one per row */
    const struct dnn_tensor *length_q, *length_kv, *scale, *masked, *q, *k, *v, *stats;
};

typedef const struct dnn_tensor *tensor;

static tensor named(struct builder *b, enum sdpa_role role, const struct dnn_tensor_spec *spec) {
    tensor t = dnn_graph_tensor(b->g, spec);
    b->uid[role] = t->uid;
    return t;
}

static tensor by_value(struct builder *b, enum sdpa_role role) {
    return named(b, role,
                 &(struct dnn_tensor_spec){.dtype = CUDNN_DATA_FLOAT,
                                           .dim = {1, 1, 1, 1},
                                           .stride = {1, 1, 1, 1},
                                           .by_value = true});
}

static tensor numbers(struct builder *b, enum sdpa_role role, int64_t count) {
    return named(b, role,
                 &(struct dnn_tensor_spec){
                     .dtype = CUDNN_DATA_INT32, .dim = {count, 1, 1, 1}, .stride = {1, 1, 1, 1}});
}

/* Where the sequences begin; the tensors that have them in common share one descriptor. */
static tensor offsets_of(struct builder *b, enum sdpa_role role) {
    if (b->uid[role] > 0) return &b->g->tensors[b->uid[role] - 1];
    return numbers(b, role, b->shape->documents + 1);
}

/* [documents, heads, length, width] with tokens `ld` apart, beginning at the given offsets. */
static tensor sequences(struct builder *b, enum sdpa_role role, enum sdpa_role offsets,
                        cudnnDataType_t dtype, int64_t heads, int64_t ld) {
    const struct sdpa_shape *const s = b->shape;
    const struct dnn_tensor_spec spec = {.dtype = dtype,
                                         .dim = {s->documents, heads, s->length, s->head_dim},
                                         .stride = {s->length * ld, s->head_dim, ld, 1},
                                         .ragged = offsets_of(b, offsets)};
    return named(b, role, &spec);
}

/* The same tensor as `plain` describes it, with rows and columns exchanged. */
static tensor transposed(struct builder *b, enum sdpa_role role, enum sdpa_role offsets,
                         int64_t ld) {
    const struct sdpa_shape *const s = b->shape;
    const struct dnn_tensor_spec spec = {.dtype = b->io,
                                         .dim = {s->documents, s->kv_heads, s->head_dim, s->length},
                                         .stride = {s->length * ld, s->head_dim, 1, ld},
                                         .ragged = offsets_of(b, offsets)};
    return named(b, role, &spec);
}

/* One f32 a row and head, tokens first. */
static tensor statistics(struct builder *b, enum sdpa_role role) {
    const struct sdpa_shape *const s = b->shape;
    const struct dnn_tensor_spec spec = {.dtype = CUDNN_DATA_FLOAT,
                                         .dim = {s->documents, s->heads, s->length, 1},
                                         .stride = {s->length * s->heads, 1, s->heads, 1},
                                         .ragged = offsets_of(b, SDPA_OFFSET_STATS)};
    return named(b, role, &spec);
}

static tensor pointwise(struct builder *b, cudnnPointwiseMode_t mode, tensor x, tensor with) {
    tensor y = dnn_graph_virtual(b->g, CUDNN_DATA_FLOAT, x->dim);
    dnn_graph_pointwise(b->g,
                        &(struct dnn_pointwise){
                            .mode = mode, .compute = CUDNN_DATA_FLOAT, .x = x, .b = with, .y = y});
    return y;
}

static tensor index_of(struct builder *b, tensor x, int64_t axis, cudnnDataType_t compute) {
    tensor y = dnn_graph_virtual(b->g, CUDNN_DATA_INT32, x->dim);
    dnn_graph_pointwise(
        b->g,
        &(struct dnn_pointwise){
            .mode = CUDNN_POINTWISE_GEN_INDEX, .compute = compute, .x = x, .axis = axis, .y = y});
    return y;
}

static tensor compare(struct builder *b, cudnnPointwiseMode_t mode, tensor x, tensor with) {
    tensor y = dnn_graph_virtual(b->g, CUDNN_DATA_BOOLEAN, x->dim);
    dnn_graph_pointwise(
        b->g, &(struct dnn_pointwise){
                  .mode = mode, .compute = CUDNN_DATA_BOOLEAN, .x = x, .b = with, .y = y});
    return y;
}

/* x where `keep`, minus infinity elsewhere. */
static tensor keep_where(struct builder *b, tensor x, tensor keep) {
    tensor y = dnn_graph_virtual(b->g, CUDNN_DATA_FLOAT, x->dim);
    dnn_graph_pointwise(b->g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                                      .compute = CUDNN_DATA_FLOAT,
                                                      .x = x,
                                                      .b = b->masked,
                                                      .t = keep,
                                                      .y = y});
    return y;
}

/* Only what lies inside the documents. */
static tensor mask_padding(struct builder *b, tensor x) {
    tensor row = index_of(b, x, 2, CUDNN_DATA_INT32);
    tensor column = index_of(b, x, 3, CUDNN_DATA_INT32);
    tensor row_in = compare(b, CUDNN_POINTWISE_CMP_LT, row, b->length_q);
    tensor column_in = compare(b, CUDNN_POINTWISE_CMP_LT, column, b->length_kv);
    tensor inside = compare(b, CUDNN_POINTWISE_LOGICAL_AND, row_in, column_in);
    return keep_where(b, x, inside);
}

/* Only the past, and of it only the window. */
static tensor mask_future(struct builder *b, tensor x) {
    tensor row = index_of(b, x, 2, CUDNN_DATA_FLOAT);
    tensor column = index_of(b, x, 3, CUDNN_DATA_FLOAT);
    tensor y = keep_where(b, x, compare(b, CUDNN_POINTWISE_CMP_GE, row, column));
    if (b->shape->window == 0) return y;
    tensor row_again = index_of(b, y, 2, CUDNN_DATA_FLOAT);
    tensor column_again = index_of(b, y, 3, CUDNN_DATA_FLOAT);
    tensor reach = pointwise(b, CUDNN_POINTWISE_ADD, column_again, by_value(b, SDPA_WINDOW));
    return keep_where(b, y, compare(b, CUDNN_POINTWISE_CMP_GT, reach, row_again));
}

static tensor reduce(struct builder *b, cudnnReduceTensorOp_t how, tensor x) {
    tensor y = dnn_graph_virtual(b->g, CUDNN_DATA_FLOAT, b->rows);
    dnn_graph_reduce(b->g, how, x, y);
    return y;
}

static tensor matmul(struct builder *b, tensor a, tensor with, tensor m, tensor n, tensor k) {
    const int64_t dim[DNN_RANK] = {a->dim[0], b->shape->heads, a->dim[2], with->dim[3]};
    tensor c = dnn_graph_virtual(b->g, CUDNN_DATA_FLOAT, dim);
    dnn_graph_matmul(b->g, &(struct dnn_matmul){.a = a, .b = with, .c = c, .m = m, .n = n, .k = k});
    return c;
}

static void forward(struct builder *b) {
    const struct sdpa_shape *const s = b->shape;
    b->v = sequences(b, SDPA_V, SDPA_OFFSET_V, b->io, s->kv_heads, s->ld_v);
    tensor out = sequences(b, SDPA_OUT, SDPA_OFFSET_OUT, b->io, s->heads, s->ld_out);
    b->stats = statistics(b, SDPA_STATS);
    tensor x = matmul(b, b->q, b->k, b->length_q, b->length_kv, NULL);
    x = pointwise(b, CUDNN_POINTWISE_MUL, x, b->scale);
    x = mask_future(b, mask_padding(b, x));
    tensor max = reduce(b, CUDNN_REDUCE_TENSOR_MAX, x);
    tensor shifted = pointwise(b, CUDNN_POINTWISE_SUB, x, max);
    tensor weights = pointwise(b, CUDNN_POINTWISE_EXP, shifted, NULL);
    tensor sum = reduce(b, CUDNN_REDUCE_TENSOR_ADD, weights);
    tensor log = pointwise(b, CUDNN_POINTWISE_LOG, sum, NULL);
    dnn_graph_pointwise(b->g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_ADD,
                                                      .compute = CUDNN_DATA_FLOAT,
                                                      .x = max,
                                                      .b = log,
                                                      .y = b->stats});
    tensor p = dnn_graph_virtual(b->g, b->io, b->scores);
    dnn_graph_pointwise(b->g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_DIV,
                                                      .compute = CUDNN_DATA_FLOAT,
                                                      .x = weights,
                                                      .b = sum,
                                                      .y = p});
    dnn_graph_matmul(b->g, &(struct dnn_matmul){
                               .a = p, .b = b->v, .c = out, .m = b->length_q, .k = b->length_kv});
}

/* rowsum(dO * O), kept in memory: two kernels use it. */
static tensor output_dots(struct builder *b, tensor dout, tensor out) {
    const struct sdpa_shape *const s = b->shape;
    const struct dnn_tensor_spec by_head = {.dtype = CUDNN_DATA_FLOAT,
                                            .dim = {s->documents, s->heads, s->length, s->head_dim},
                                            .stride = {s->heads * s->length * s->head_dim,
                                                       s->length * s->head_dim,
                                                       s->heads * s->head_dim, 1},
                                            .is_virtual = true};
    tensor product = dnn_graph_tensor(b->g, &by_head);
    dnn_graph_pointwise(b->g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_MUL,
                                                      .compute = CUDNN_DATA_FLOAT,
                                                      .x = dout,
                                                      .b = out,
                                                      .y = product});
    tensor dots = reduce(b, CUDNN_REDUCE_TENSOR_ADD, product);
    tensor kept = statistics(b, SDPA_SUM);
    dnn_graph_pointwise(b->g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_MUL,
                                                      .compute = CUDNN_DATA_FLOAT,
                                                      .x = dots,
                                                      .b = by_value(b, SDPA_ONE),
                                                      .y = kept});
    return kept;
}

/* x with its last two sizes exchanged, as operand of a product. */
static tensor turned(struct builder *b, tensor x) {
    const struct sdpa_shape *const s = b->shape;
    const int64_t square = s->length * s->length;
    const struct dnn_tensor_spec spec = {.dtype = b->io,
                                         .dim = {s->documents, s->heads, s->length, s->length},
                                         .stride = {s->heads * square, square, 1, s->length},
                                         .is_virtual = true};
    tensor y = dnn_graph_tensor(b->g, &spec);
    dnn_graph_reshape(b->g, x, y);
    return y;
}

/* What one gradient of keys or values is made of. */
struct key_gradient {
    enum sdpa_role role, heads_role, offsets; /* the gradient; by query head; where both begin */
    int64_t ld;
};

/* scores^T with: by query head and summed over the group, or at once where heads are not grouped.
 * The tensor by query head has the offsets of the gradient: the library multiplies them. */
static void key_gradient(struct builder *b, const struct key_gradient *of, tensor scores,
                         tensor with) {
    const struct sdpa_shape *const s = b->shape;
    tensor gradient = sequences(b, of->role, of->offsets, b->io, s->kv_heads, of->ld);
    tensor to = gradient;
    if (s->heads != s->kv_heads)
        to = sequences(b, of->heads_role, of->offsets, b->io, s->heads,
                       of->ld * (s->heads / s->kv_heads));
    dnn_graph_matmul(
        b->g, &(struct dnn_matmul){
                  .a = turned(b, scores), .b = with, .c = to, .m = b->length_kv, .k = b->length_q});
    if (to != gradient) dnn_graph_reduce(b->g, CUDNN_REDUCE_TENSOR_ADD, to, gradient);
}

/* dQ = dS K, summed in f32 in memory and rounded at the end. */
static void query_gradient(struct builder *b, tensor scores) {
    const struct sdpa_shape *const s = b->shape;
    const struct dnn_tensor_spec spec = {
        .dtype = b->io,
        .dim = {s->documents, s->kv_heads, s->length, s->head_dim},
        .stride = {b->k->stride[0], b->k->stride[1], b->k->stride[3], b->k->stride[2]},
        .is_virtual = true,
        .ragged = offsets_of(b, SDPA_OFFSET_K)};
    tensor keys = dnn_graph_tensor(b->g, &spec);
    dnn_graph_reshape(b->g, b->k, keys);
    tensor sum = sequences(b, SDPA_DQ32, SDPA_OFFSET_Q, CUDNN_DATA_FLOAT, s->heads, s->ld_q);
    tensor dq = sequences(b, SDPA_DQ, SDPA_OFFSET_Q, b->io, s->heads, s->ld_q);
    dnn_graph_matmul(b->g,
                     &(struct dnn_matmul){
                         .a = scores, .b = keys, .c = sum, .m = b->length_q, .k = b->length_kv});
    dnn_graph_pointwise(b->g, &(struct dnn_pointwise){.mode = CUDNN_POINTWISE_IDENTITY,
                                                      .compute = CUDNN_DATA_FLOAT,
                                                      .x = sum,
                                                      .y = dq});
}

static void backward(struct builder *b) {
    const struct sdpa_shape *const s = b->shape;
    b->v = transposed(b, SDPA_V, SDPA_OFFSET_V, s->ld_v);
    tensor out = sequences(b, SDPA_OUT, SDPA_OFFSET_OUT, b->io, s->heads, s->ld_out);
    tensor dout = sequences(b, SDPA_DOUT, SDPA_OFFSET_OUT, b->io, s->heads, s->ld_out);
    b->stats = statistics(b, SDPA_STATS);
    const struct key_gradient dk = {SDPA_DK, SDPA_DK_HEADS, SDPA_OFFSET_K, s->ld_k};
    const struct key_gradient dv = {SDPA_DV, SDPA_DV_HEADS, SDPA_OFFSET_V, s->ld_v};
    tensor dots = output_dots(b, dout, out);
    tensor x = matmul(b, b->q, b->k, b->length_q, b->length_kv, NULL);
    x = pointwise(b, CUDNN_POINTWISE_MUL, x, b->scale);
    x = mask_padding(b, x);
    x = pointwise(b, CUDNN_POINTWISE_SUB, x, b->stats);
    x = mask_future(b, x);
    tensor p = pointwise(b, CUDNN_POINTWISE_EXP, x, NULL);
    key_gradient(b, &dv, p, dout);
    tensor dp = matmul(b, dout, b->v, b->length_q, b->length_kv, NULL);
    tensor ds = pointwise(b, CUDNN_POINTWISE_SUB, dp, dots);
    ds = pointwise(b, CUDNN_POINTWISE_MUL, ds, p);
    ds = pointwise(b, CUDNN_POINTWISE_MUL, ds, b->scale);
    key_gradient(b, &dk, ds, b->q);
    query_gradient(b, ds);
}

void sdpa_graph(struct dnn_graph *g, const struct sdpa_shape *shape, int64_t uid[SDPA_ROLE_COUNT]) {
    const int64_t count = shape->documents, length = shape->length;
    struct builder b = {.g = g,
                        .shape = shape,
                        .uid = uid,
                        .io = shape->half ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16,
                        .scores = {count, shape->heads, length, length},
                        .rows = {count, shape->heads, length, 1}};
    b.length_q = numbers(&b, SDPA_LENGTH_Q, count);
    b.length_kv = numbers(&b, SDPA_LENGTH_KV, count);
    b.scale = by_value(&b, SDPA_SCALE);
    b.masked = by_value(&b, SDPA_MASKED);
    b.q = sequences(&b, SDPA_Q, SDPA_OFFSET_Q, b.io, shape->heads, shape->ld_q);
    b.k = transposed(&b, SDPA_K, SDPA_OFFSET_K, shape->ld_k);
    if (shape->backward) {
        backward(&b);
    } else {
        forward(&b);
    }
}
