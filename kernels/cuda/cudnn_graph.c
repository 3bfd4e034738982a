/* cudnn_graph.c - putting operation graphs together and turning them into plans.
 *
 * Every descriptor that is made is remembered and destroyed with the graph. */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cudnn.h"

static void fail(struct dnn_graph *g, const char *what, cudnnStatus_t status) {
    if (g->failed) return;
    g->failed = true;
    char detail[160] = "";
    g->dnn->last_error(detail, sizeof detail);
    snprintf(g->reason, sizeof g->reason, "%s: %s: %s", what, g->dnn->error_string(status), detail);
}

static cudnnBackendDescriptor_t object(struct dnn_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t made = NULL;
    if (g->failed) return NULL;
    if (g->object_count == DNN_OBJECTS_MAX) {
        fail(g, "a graph of too many objects", CUDNN_STATUS_BAD_PARAM);
        return NULL;
    }
    const cudnnStatus_t status = g->dnn->descriptor_create(type, &made);
    if (status != CUDNN_STATUS_SUCCESS) {
        fail(g, "creating a descriptor", status);
        return NULL;
    }
    g->objects[g->object_count++] = made;
    return made;
}

static void set(struct dnn_graph *g, cudnnBackendDescriptor_t at, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *value) {
    if (g->failed) return;
    const cudnnStatus_t status = g->dnn->set_attribute(at, name, type, count, value);
    if (status == CUDNN_STATUS_SUCCESS) return;
    char what[64];
    snprintf(what, sizeof what, "setting attribute %d", (int)name);
    fail(g, what, status);
}

static void set_object(struct dnn_graph *g, cudnnBackendDescriptor_t at,
                       cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
    set(g, at, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&value);
}

static void finish(struct dnn_graph *g, cudnnBackendDescriptor_t at, const char *what) {
    if (g->failed) return;
    const cudnnStatus_t status = g->dnn->finalize(at);
    if (status != CUDNN_STATUS_SUCCESS) fail(g, what, status);
}

const struct dnn_tensor *dnn_graph_tensor(struct dnn_graph *g, const struct dnn_tensor_spec *spec) {
    const int64_t alignment = 16;
    cudnnBackendDescriptor_t at = object(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    if (g->failed) {
        g->tensors[0].uid = 1; /* a place in the list: nobody will run this graph */
        return &g->tensors[0];
    }
    struct dnn_tensor *const t = &g->tensors[g->tensor_count++];
    *t = (struct dnn_tensor){.descriptor = at, .uid = g->tensor_count, .dtype = spec->dtype};
    memcpy(t->dim, spec->dim, sizeof t->dim);
    memcpy(t->stride, spec->stride, sizeof t->stride);
    set(g, at, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &spec->dtype);
    set(g, at, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DNN_RANK, spec->dim);
    set(g, at, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DNN_RANK, spec->stride);
    set(g, at, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &t->uid);
    set(g, at, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (spec->is_virtual)
        set(g, at, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &spec->is_virtual);
    if (spec->by_value)
        set(g, at, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &spec->by_value);
    if (spec->ragged)
        set_object(g, at, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, spec->ragged->descriptor);
    finish(g, at, "a tensor");
    return t;
}

const struct dnn_tensor *dnn_graph_virtual(struct dnn_graph *g, cudnnDataType_t dtype,
                                           const int64_t dim[DNN_RANK]) {
    struct dnn_tensor_spec spec = {.dtype = dtype, .is_virtual = true};
    int64_t stride = 1;
    for (int i = DNN_RANK - 1; i >= 0; i--) {
        spec.dim[i] = dim[i];
        spec.stride[i] = stride;
        stride *= dim[i];
    }
    return dnn_graph_tensor(g, &spec);
}

static void append(struct dnn_graph *g, cudnnBackendDescriptor_t operation) {
    if (g->failed) return;
    if (g->operation_count == DNN_OPERATIONS_MAX) {
        fail(g, "a graph of too many operations", CUDNN_STATUS_BAD_PARAM);
        return;
    }
    g->operations[g->operation_count++] = operation;
}

void dnn_graph_pointwise(struct dnn_graph *g, const struct dnn_pointwise *op) {
    cudnnBackendDescriptor_t how = object(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &op->mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &op->compute);
    if (op->mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &op->axis);
    finish(g, how, "a pointwise description");
    cudnnBackendDescriptor_t at = object(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_object(g, at, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_object(g, at, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, op->x->descriptor);
    if (op->b) set_object(g, at, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, op->b->descriptor);
    if (op->t) set_object(g, at, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, op->t->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, op->y->descriptor);
    finish(g, at, "a pointwise operation");
    append(g, at);
}

void dnn_graph_matmul(struct dnn_graph *g, const struct dnn_matmul *op) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = object(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(g, how, "a product's description");
    cudnnBackendDescriptor_t at = object(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_ADESC, op->a->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_BDESC, op->b->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_CDESC, op->c->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    if (op->m)
        set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, op->m->descriptor);
    if (op->n)
        set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, op->n->descriptor);
    if (op->k)
        set_object(g, at, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, op->k->descriptor);
    finish(g, at, "a product");
    append(g, at);
}

void dnn_graph_reduce(struct dnn_graph *g, cudnnReduceTensorOp_t how_to, const struct dnn_tensor *x,
                      const struct dnn_tensor *y) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = object(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how_to);
    finish(g, how, "a reduction's description");
    cudnnBackendDescriptor_t at = object(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_object(g, at, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    finish(g, at, "a reduction");
    append(g, at);
}

void dnn_graph_reshape(struct dnn_graph *g, const struct dnn_tensor *x,
                       const struct dnn_tensor *y) {
    cudnnBackendDescriptor_t at = object(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_object(g, at, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->descriptor);
    set_object(g, at, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y->descriptor);
    finish(g, at, "a reshape");
    append(g, at);
}

enum { CONFIGS_MAX = 16 };

/* What the heuristics propose, best first; returns how many. */
static int64_t propose(struct dnn_graph *g, cudnnBackendDescriptor_t configs[CONFIGS_MAX]) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t whole = object(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
        (const void *)&g->dnn->handle);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count,
        (const void *)g->operations);
    finish(g, whole, "the operation graph");
    cudnnBackendDescriptor_t heuristics = object(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_object(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(g, heuristics, "the heuristics");
    for (int i = 0; i < CONFIGS_MAX; i++) {
        configs[i] = object(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    }
    if (g->failed) return 0;
    int64_t count = 0;
    const cudnnStatus_t status =
        g->dnn->get_attribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                              CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MAX, &count, (void *)configs);
    if (status != CUDNN_STATUS_SUCCESS) fail(g, "asking the heuristics", status);
    return count;
}

/* NULL when this engine cannot be built or wants too much workspace. */
static cudnnBackendDescriptor_t build(struct dnn_graph *g, cudnnBackendDescriptor_t config,
                                      int64_t workspace_max, int64_t *workspace) {
    struct cuda_dnn *const dnn = g->dnn;
    cudnnBackendDescriptor_t plan = NULL;
    int64_t count = 0;
    cudnnStatus_t status = dnn->descriptor_create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->set_attribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                    (const void *)&dnn->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->set_attribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&config);
    if (status == CUDNN_STATUS_SUCCESS) status = dnn->finalize(plan);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->get_attribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, workspace);
    if (status == CUDNN_STATUS_SUCCESS && *workspace <= workspace_max) return plan;
    if (status == CUDNN_STATUS_SUCCESS) {
        snprintf(g->reason, sizeof g->reason, "the plan wants %lld bytes of workspace",
                 (long long)*workspace);
    } else {
        char detail[160] = "";
        dnn->last_error(detail, sizeof detail);
        snprintf(g->reason, sizeof g->reason, "building the plan: %s: %s",
                 dnn->error_string(status), detail);
    }
    if (plan) dnn->descriptor_destroy(plan);
    return NULL;
}

bool dnn_graph_plan(struct dnn_graph *g, int64_t workspace_max, cudnnBackendDescriptor_t *plan,
                    int64_t *workspace) {
    cudnnBackendDescriptor_t configs[CONFIGS_MAX] = {NULL};
    *plan = NULL;
    const int64_t count = propose(g, configs);
    if (!g->failed && count == 0) {
        snprintf(g->reason, sizeof g->reason, "the library has no engine for this graph");
    }
    for (int64_t i = 0; !g->failed && !*plan && i < count; i++) {
        *plan = build(g, configs[i], workspace_max, workspace);
    }
    return *plan != NULL;
}

void dnn_graph_release(struct dnn_graph *g) {
    for (int64_t i = g->object_count; i > 0; i--) {
        g->dnn->descriptor_destroy(g->objects[i - 1]);
    }
    g->object_count = 0;
}
