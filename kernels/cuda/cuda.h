/* cuda.h - what the parts of the CUDA device know of each other. Private to kernels/cuda.
 *
 * device.c opens and describes the card, memory.c backs the arena through virtual memory,
 * transfer.c moves bytes through pinned buffers, copies.c beside the computation, gemm*.c is
 * cuBLASLt, cudnn*.c attention by cuDNN where the library is found, and every .cu file a family of
 * kernels. C code and kernels alike implement the slots of struct device_ops under the names below.
 * Everything but copies.c runs on one stream, in order; nothing here waits for the device except
 * downloads, synchronize, the blocking switch, and a product that is timed the first time it is met
 * (gemm_tune.c). */
#ifndef PLIMSOLL_KERNELS_CUDA_H
#define PLIMSOLL_KERNELS_CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/device.h"

struct cuda_driver;   /* driver.c: the driver's own functions, for virtual memory */
struct cuda_memory;   /* memory.c: what is reserved and backed */
struct cuda_transfer; /* transfer.c: the pinned ring */
struct cuda_stage;    /* stage.c: uploads that are on their way from pinned memory of loaders */
struct cuda_copies;   /* copies.c: the second stream */
struct cuda_gemm;     /* gemm.c: the cuBLASLt handle and the choices made */
struct cuda_dnn;      /* cudnn.c: the library and its plans */

struct cuda_state {
    int ordinal;    /* as CUDA counts them, after CUDA_VISIBLE_DEVICES */
    int capability; /* 90 for 9.0 */
    int multiprocessors;
    int64_t shared_bytes; /* a block may use, after asking for it */
    int64_t l2_bytes;
    cudaStream_t stream;
    bool capturing; /* what goes to the stream is written down (graph.c): it must not be queried */
    char card[64];  /* "NVIDIA H200" */
    struct err failed; /* the first error that CUDA cannot recover from; every later call repeats
                          it, so that the report names the cause and not what came after */
    struct cuda_driver *driver;
    struct cuda_memory *memory;
    struct cuda_transfer *transfer;
    struct cuda_copies *copies;
    struct cuda_stage *stage; /* NULL until the first use */
    struct cuda_gemm *gemm;
    struct cuda_dnn *dnn; /* NULL: not found, our own attention is used */
};

static inline struct cuda_state *cuda_state_of(struct device *device) {
    return (struct cuda_state *)device->state;
}

/* STATUS_OK, or STATUS_DEVICE with the operation, the card and what CUDA says. */
enum status cuda_check(struct device *device, cudaError_t error, const char *operation,
                       struct err *e);
/* After a launch: its error; with device->blocking also waits, so that what failed inside is named
 * here. */
enum status cuda_launched(struct device *device, const char *operation, struct err *e);

/* The variable of the environment, or NULL when it is missing or empty. The one place of
 * kernels/cuda that reads the environment. */
const char *cuda_environment(const char *name);

/* Makes `device` the card of this ordinal. STATUS_UNSUPPORTED without a driver or a card, or for
 * one older than compute capability 8.0. */
enum status cuda_device_init(struct device *device, int ordinal, struct err *e);

/* device.c, for cards.c: how many cards there are (or STATUS_UNSUPPORTED and why there is none, in
 * the name of `device`), and whether one is new enough. */
enum status cuda_count_cards(const struct device *device, int *count, struct err *e);
enum status cuda_check_capability(const char *device, const char *card, int capability,
                                  struct err *e);

/* The parts, opened by cuda_device_init and closed by the close slot. cuda_dnn_open leaves
 * state->dnn NULL where there is no usable library. */
enum status cuda_driver_open(struct device *device, struct err *e);
void cuda_driver_close(struct device *device);
enum status cuda_memory_open(struct device *device, struct err *e);
void cuda_memory_close(struct device *device);
enum status cuda_transfer_open(struct device *device, struct err *e);
void cuda_transfer_close(struct device *device);
enum status cuda_copies_open(struct device *device, struct err *e);
void cuda_copies_close(struct device *device);
void cuda_stage_close(struct device *device);
enum status cuda_gemm_open(struct device *device, struct err *e);
void cuda_gemm_close(struct device *device);
enum status cuda_dnn_open(struct device *device, struct err *e);
void cuda_dnn_close(struct device *device);

/* memory.c, transfer.c */
enum status cuda_reserve(struct device *, int64_t bytes, void **base, struct err *);
void cuda_unreserve(struct device *, void *base, int64_t bytes);
enum status cuda_commit(struct device *, void *at, int64_t bytes, struct err *);
void cuda_decommit(struct device *, void *at, int64_t bytes);
enum status cuda_upload(struct device *, void *to, const void *from, int64_t bytes, struct err *);
enum status cuda_download(struct device *, void *to, const void *from, int64_t bytes, struct err *);
enum status cuda_copy(struct device *, void *to, const void *from, int64_t bytes, struct err *);
enum status cuda_fill_zero(struct device *, void *at, int64_t bytes, struct err *);
enum status cuda_upload_rows(struct device *, const struct transfer *, struct err *);
enum status cuda_download_rows(struct device *, const struct transfer *, struct err *);
/* copies.c */
enum status cuda_stash(struct device *, void *host, const void *from, int64_t bytes, struct err *);
enum status cuda_fetch(struct device *, void *to, const void *host, int64_t bytes, struct err *);
enum status cuda_copies_wait(struct device *, struct err *);
/* Both streams are idle afterwards; what failed on the way. */
cudaError_t cuda_idle(const struct cuda_state *state);
/* stage.c */
enum status cuda_stage_new(struct device *, int64_t bytes, void **out, struct err *);
void cuda_stage_free(struct device *, void *at);
enum status cuda_stage_upload(struct device *, const struct transfer *, struct err *);
enum status cuda_stage_wait(struct device *, int64_t pending, struct err *);
enum status cuda_synchronize(struct device *, struct err *);
enum status cuda_memory_info(struct device *, struct device_memory *, struct err *);

/* graph.c */
enum status cuda_capture_begin(struct device *, struct err *);
enum status cuda_capture_end(struct device *, struct device_graph *, struct err *);
enum status cuda_graph_launch(struct device *, const struct device_graph *, struct err *);
void cuda_graph_free(struct device *, struct device_graph *);

/* gemm.c. cuda_gemm_version is "cuBLASLt 13.1.0". */
const char *cuda_gemm_version(const struct device *device);
enum status cuda_gemm(struct device *, const struct gemm_args *, struct err *);

/* attention.c chooses: cuDNN, our tensor-core kernels, or the plain ones for odd sizes and f32. */
int64_t cuda_attention_scratch(const struct device *, const struct attention_args *, bool backward);
enum status cuda_attention(struct device *, const struct attention_args *, struct err *);
enum status cuda_attention_backward(struct device *, const struct attention_backward_args *,
                                    struct err *);

/* norm.cu */
enum status cuda_rmsnorm(struct device *, const struct rmsnorm_args *, struct err *);
enum status cuda_rmsnorm_backward(struct device *, const struct rmsnorm_backward_args *,
                                  struct err *);
/* rope.cu, glu.cu */
enum status cuda_rope(struct device *, const struct rope_args *, struct err *);
enum status cuda_glu(struct device *, const struct glu_args *, struct err *);
enum status cuda_glu_backward(struct device *, const struct glu_backward_args *, struct err *);
/* embedding.cu, rows.cu */
enum status cuda_embedding(struct device *, const struct embedding_args *, struct err *);
enum status cuda_embedding_backward(struct device *, const struct embedding_backward_args *,
                                    struct err *);
enum status cuda_gather_rows(struct device *, const struct rows_args *, struct err *);
enum status cuda_scatter_rows(struct device *, const struct rows_args *, struct err *);
/* loss.cu */
enum status cuda_cross_entropy(struct device *, const struct cross_entropy_args *, struct err *);
enum status cuda_softmax_stats(struct device *, const struct softmax_stats_args *, struct err *);
enum status cuda_split_cross_entropy(struct device *, const struct split_cross_entropy_args *,
                                     struct err *);
enum status cuda_loss_sums(struct device *, const struct loss_sums_args *, struct err *);
/* optimizer.cu */
enum status cuda_adamw(struct device *, const struct adamw_args *, struct err *);
enum status cuda_sum_squares(struct device *, const struct sum_squares_args *, struct err *);
enum status cuda_clip(struct device *, const struct clip_args *, struct err *);
/* dropout.cu, elementwise.cu, columns.cu */
enum status cuda_dropout(struct device *, const struct dropout_args *, struct err *);
enum status cuda_add(struct device *, const struct add_args *, struct err *);
enum status cuda_divide(struct device *, const struct divide_args *, struct err *);
enum status cuda_convert(struct device *, const struct convert_args *, struct err *);
enum status cuda_convert_items(struct device *, const struct convert_items_args *, struct err *);
enum status cuda_column_sum(struct device *, const struct column_sum_args *, struct err *);
enum status cuda_column_scale(struct device *, const struct column_scale_args *, struct err *);
enum status cuda_row_norm(struct device *, const struct row_norm_args *, struct err *);
/* quant.cu */
enum status cuda_dequantize(struct device *, const struct dequantize_args *, struct err *);

#ifdef __cplusplus
}
#endif
#endif
