/* nccl.h - the functions of NCCL that are used, as the library has had them since version 2.4.
 * Private to kernels/cuda.
 *
 * Declared here, because its header is seldom installed where the library is; the library is loaded
 * at run time. Result 0 is success. */
#ifndef PLIMSOLL_KERNELS_CUDA_NCCL_H
#define PLIMSOLL_KERNELS_CUDA_NCCL_H

#include <stddef.h>

#include "kernels/cuda/cuda.h"

enum { NCCL_KEY_BYTES = 128 };
struct nccl_key {
    char bytes[NCCL_KEY_BYTES];
};
typedef void *nccl_comm;
/* ncclDataType_t and ncclRedOp_t */
enum { NCCL_BYTE = 1, NCCL_HALF = 6, NCCL_FLOAT = 7, NCCL_BFLOAT16 = 9, NCCL_SUM = 0 };
/* ncclResult_t: what was asked for is on its way. */
enum { NCCL_IN_PROGRESS = 7 };

struct nccl {
    void *loaded;
    int (*get_version)(int *version);
    int (*get_unique_id)(struct nccl_key *key);
    int (*init_rank)(nccl_comm *out, int world, struct nccl_key key, int rank);
    int (*destroy)(nccl_comm);
    int (*abort)(nccl_comm);
    int (*async_error)(nccl_comm, int *result);
    const char *(*error_string)(int result);
    const char *(*last_error)(nccl_comm);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *from, void *to, size_t count, int type, int op, nccl_comm,
                      cudaStream_t);
    int (*reduce)(const void *from, void *to, size_t count, int type, int op, int root, nccl_comm,
                  cudaStream_t);
    int (*broadcast)(const void *from, void *to, size_t count, int type, int root, nccl_comm,
                     cudaStream_t);
    int (*reduce_scatter)(const void *from, void *to, size_t count, int type, int op, nccl_comm,
                          cudaStream_t);
    int (*all_gather)(const void *from, void *to, size_t count, int type, nccl_comm, cudaStream_t);
    int (*send)(const void *from, size_t count, int type, int peer, nccl_comm, cudaStream_t);
    int (*receive)(void *to, size_t count, int type, int peer, nccl_comm, cudaStream_t);
};

/* STATUS_UNSUPPORTED without the library, with what to install. It stays loaded as long as the
 * process: it has threads of its own. */
enum status nccl_load(struct nccl *out, struct err *e);

#endif
