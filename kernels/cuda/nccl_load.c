/* nccl_load.c - finds NCCL and its functions.
 *
 * A table of names and places, as for the driver. NVLink multicast is switched off before the
 * library starts, unless the user has said otherwise: where it cannot get its memory on some ranks
 * only, versions 2.27 and 2.28 can hang. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/nccl.h"

static const char LIBRARY[] = "libnccl.so.2";

static const struct {
    const char *name;
    size_t offset;
} FUNCTIONS[] = {
    {"ncclGetVersion", offsetof(struct nccl, get_version)},
    {"ncclGetUniqueId", offsetof(struct nccl, get_unique_id)},
    {"ncclCommInitRank", offsetof(struct nccl, init_rank)},
    {"ncclCommDestroy", offsetof(struct nccl, destroy)},
    {"ncclCommAbort", offsetof(struct nccl, abort)},
    {"ncclCommGetAsyncError", offsetof(struct nccl, async_error)},
    {"ncclGetErrorString", offsetof(struct nccl, error_string)},
    {"ncclGetLastError", offsetof(struct nccl, last_error)},
    {"ncclGroupStart", offsetof(struct nccl, group_start)},
    {"ncclGroupEnd", offsetof(struct nccl, group_end)},
    {"ncclAllReduce", offsetof(struct nccl, all_reduce)},
    {"ncclReduce", offsetof(struct nccl, reduce)},
    {"ncclBroadcast", offsetof(struct nccl, broadcast)},
    {"ncclReduceScatter", offsetof(struct nccl, reduce_scatter)},
    {"ncclAllGather", offsetof(struct nccl, all_gather)},
    {"ncclSend", offsetof(struct nccl, send)},
    {"ncclRecv", offsetof(struct nccl, receive)},
};

enum status nccl_load(struct nccl *out, struct err *e) {
    *out = (struct nccl){0};
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    out->loaded = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    FAIL_IF(
        !out->loaded, STATUS_UNSUPPORTED,
        "%s is not found, and GPUs exchange gradients through it: install libnccl2, or name its "
        "folder in LD_LIBRARY_PATH",
        LIBRARY);
    for (size_t i = 0; i < COUNT_OF(FUNCTIONS); i++) {
        void *const found = dlsym(out->loaded, FUNCTIONS[i].name);
        FAIL_IF(!found, STATUS_UNSUPPORTED,
                "%s has no %s: it is older than 2.13; install a newer one", LIBRARY,
                FUNCTIONS[i].name);
        memcpy((char *)out + FUNCTIONS[i].offset, &found, sizeof found);
    }
    return STATUS_OK;
}
