/* cudnn.h - cuDNN's backend API as attention uses it: the library, found at run time, and graphs of
 * operations that become plans. Private to kernels/cuda.
 *
 * Names and order of the attributes are those of NVIDIA's backend API reference. A graph collects
 * its first error and then does nothing more, so that a graph reads as a list of operations; the
 * error is looked at once, when it becomes a plan. */
#ifndef PLIMSOLL_KERNELS_CUDNN_H
#define PLIMSOLL_KERNELS_CUDNN_H

#include <cudnn_graph.h>

#include "kernels/cuda/cuda.h"

/* The functions that are used, and one handle on the device's stream. */
struct cuda_dnn {
    void *library;
    cudnnHandle_t handle;
    int64_t version;     /* 91900 for 9.19.0 */
    bool takes_unproven; /* PLIMSOLL_CUDNN=all */
    struct dnn_plan *plans;
    int64_t plan_count, plan_capacity;
    char reason[256]; /* why the last shape was refused */
    size_t (*get_version)(void);
    cudnnStatus_t (*create)(cudnnHandle_t *);
    cudnnStatus_t (*destroy)(cudnnHandle_t);
    cudnnStatus_t (*set_stream)(cudnnHandle_t, cudaStream_t);
    void (*last_error)(char *, size_t);
    const char *(*error_string)(cudnnStatus_t);
    cudnnStatus_t (*descriptor_create)(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *);
    cudnnStatus_t (*descriptor_destroy)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*set_attribute)(cudnnBackendDescriptor_t, cudnnBackendAttributeName_t,
                                   cudnnBackendAttributeType_t, int64_t, const void *);
    cudnnStatus_t (*get_attribute)(cudnnBackendDescriptor_t const, cudnnBackendAttributeName_t,
                                   cudnnBackendAttributeType_t, int64_t, int64_t *, void *);
    cudnnStatus_t (*finalize)(cudnnBackendDescriptor_t);
    cudnnStatus_t (*execute)(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t);
};

enum { DNN_RANK = 4, DNN_OBJECTS_MAX = 256, DNN_OPERATIONS_MAX = 64 };

/* A tensor of a graph; virtual ones exist only inside the fused kernel. */
struct dnn_tensor {
    cudnnBackendDescriptor_t descriptor;
    int64_t uid;
    cudnnDataType_t dtype;
    int64_t dim[DNN_RANK], stride[DNN_RANK];
};

struct dnn_tensor_spec {
    cudnnDataType_t dtype;
    int64_t dim[DNN_RANK], stride[DNN_RANK];
    bool is_virtual, by_value;
    const struct dnn_tensor *ragged; /* element offsets of the sequences, or NULL */
};

/* A graph while it is put together. */
struct dnn_graph {
    struct cuda_dnn *dnn;
    cudnnBackendDescriptor_t objects[DNN_OBJECTS_MAX];
    int64_t object_count;
    struct dnn_tensor tensors[DNN_OBJECTS_MAX];
    int64_t tensor_count;
    cudnnBackendDescriptor_t operations[DNN_OPERATIONS_MAX];
    int64_t operation_count;
    bool failed;
    char reason[256]; /* of the first failure */
};

/* A new tensor; uids count from 1 in the order of creation. Never NULL: after a failure some tensor
 * of the graph. */
const struct dnn_tensor *dnn_graph_tensor(struct dnn_graph *g, const struct dnn_tensor_spec *spec);

/* A virtual tensor of these sizes, laid out without gaps. */
const struct dnn_tensor *dnn_graph_virtual(struct dnn_graph *g, cudnnDataType_t dtype,
                                           const int64_t dim[DNN_RANK]);

struct dnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t compute;
    const struct dnn_tensor *x, *b, *t; /* b and t where the mode has them */
    int64_t axis;                       /* of GEN_INDEX */
    const struct dnn_tensor *y;
};
void dnn_graph_pointwise(struct dnn_graph *g, const struct dnn_pointwise *op);

struct dnn_matmul {
    const struct dnn_tensor *a, *b, *c;
    const struct dnn_tensor *m, *n, *k; /* the true sizes of each sequence, or NULL */
};
void dnn_graph_matmul(struct dnn_graph *g, const struct dnn_matmul *op);
void dnn_graph_reduce(struct dnn_graph *g, cudnnReduceTensorOp_t how_to, const struct dnn_tensor *x,
                      const struct dnn_tensor *y);
void dnn_graph_reshape(struct dnn_graph *g, const struct dnn_tensor *x, const struct dnn_tensor *y);

/* The first plan that the library's heuristics offer and that wants at most `workspace_max` bytes;
 * *workspace is what it wants. False with g->reason when there is none. The caller destroys the
 * plan; the graph's own objects are released by dnn_graph_release, which may come before. */
bool dnn_graph_plan(struct dnn_graph *g, int64_t workspace_max, cudnnBackendDescriptor_t *plan,
                    int64_t *workspace);
void dnn_graph_release(struct dnn_graph *g);

/* Runs a plan: uids and device pointers (host pointers of by-value tensors), in any order. */
struct dnn_run {
    cudnnBackendDescriptor_t plan;
    const int64_t *uids;
    void *const *pointers;
    int64_t count;
    void *workspace;
};
enum status dnn_execute(struct device *device, const struct dnn_run *run, const char *what,
                        struct err *e);

/* cudnn_attention.c: whether cuDNN takes this attention (the version and the layout of documents
 * proven, a plan in both directions), and the attention itself. A shape that was refused once is
 * remembered. */
bool cuda_dnn_supports(struct device *device, const struct attention_args *args);
const char *cuda_dnn_reason(struct device *device);
enum status cuda_dnn_attention(struct device *device, const struct attention_args *args,
                               struct err *e);
enum status cuda_dnn_attention_backward(struct device *device,
                                        const struct attention_backward_args *args, struct err *e);
/* Releases the plans. */
void cuda_dnn_forget(struct cuda_dnn *dnn);

#endif
