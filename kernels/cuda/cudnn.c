/* cudnn.c - finding cuDNN at run time, and running plans.
 *
 * Only what is linked to nothing else is used: the graph part of the library, through dlopen, so
 * that the program starts without it. A library older than 9.10.2 is left alone: its attention
 * wants other graphs, and the backward of 9.10.0 and 9.10.1 is known to be wrong.
 *
 * PLIMSOLL_CUDNN=0 in the environment switches it off; =all takes shapes that cudnn_attention.c has
 * not proven, to prove them. */
#include "kernels/cuda/cudnn.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { VERSION_MIN = 91002 };

static bool find(struct cuda_dnn *dnn, const char *name, void *to) {
    void *const symbol = dlsym(dnn->library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool find_all(struct cuda_dnn *dnn) {
    return find(dnn, "cudnnGetVersion", &dnn->get_version) &&
           find(dnn, "cudnnCreate", &dnn->create) && find(dnn, "cudnnDestroy", &dnn->destroy) &&
           find(dnn, "cudnnSetStream", &dnn->set_stream) &&
           find(dnn, "cudnnGetLastErrorString", &dnn->last_error) &&
           find(dnn, "cudnnGetErrorString", &dnn->error_string) &&
           find(dnn, "cudnnBackendCreateDescriptor", &dnn->descriptor_create) &&
           find(dnn, "cudnnBackendDestroyDescriptor", &dnn->descriptor_destroy) &&
           find(dnn, "cudnnBackendSetAttribute", &dnn->set_attribute) &&
           find(dnn, "cudnnBackendGetAttribute", &dnn->get_attribute) &&
           find(dnn, "cudnnBackendFinalize", &dnn->finalize) &&
           find(dnn, "cudnnBackendExecute", &dnn->execute);
}

static void discard(struct cuda_dnn *dnn) {
    if (dnn->library) dlclose(dnn->library);
    mem_free(dnn);
}

enum status cuda_dnn_open(struct device *device, struct err *e) {
    (void)e; /* a machine without cuDNN is not an error: our own kernels take over */
    struct cuda_state *const state = cuda_state_of(device);
    state->dnn = NULL;
    const char *const wish = cuda_environment("PLIMSOLL_CUDNN");
    if (state->capability < 90 || (wish && strcmp(wish, "0") == 0)) return STATUS_OK;
    struct cuda_dnn *const dnn = mem_new(1, sizeof *dnn);
    *dnn = (struct cuda_dnn){.library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL)};
    if (!dnn->library || !find_all(dnn) || dnn->get_version() < VERSION_MIN ||
        dnn->create(&dnn->handle) != CUDNN_STATUS_SUCCESS) {
        discard(dnn);
        return STATUS_OK;
    }
    dnn->version = (int64_t)dnn->get_version();
    dnn->takes_unproven = wish && strcmp(wish, "all") == 0;
    if (dnn->set_stream(dnn->handle, state->stream) != CUDNN_STATUS_SUCCESS) {
        dnn->destroy(dnn->handle);
        discard(dnn);
        return STATUS_OK;
    }
    state->dnn = dnn;
    return STATUS_OK;
}

void cuda_dnn_close(struct device *device) {
    struct cuda_state *const state = cuda_state_of(device);
    struct cuda_dnn *const dnn = state->dnn;
    if (!dnn) return;
    cuda_dnn_forget(dnn);
    dnn->destroy(dnn->handle);
    discard(dnn);
    state->dnn = NULL;
}

static cudnnStatus_t run_pack(struct cuda_dnn *dnn, const struct dnn_run *run,
                              cudnnBackendDescriptor_t pack) {
    cudnnStatus_t status =
        dnn->set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                           run->count, (const void *)run->pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                    run->count, run->uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = dnn->set_attribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                                    (const void *)&run->workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = dnn->finalize(pack);
    return status == CUDNN_STATUS_SUCCESS ? dnn->execute(dnn->handle, run->plan, pack) : status;
}

enum status dnn_execute(struct device *device, const struct dnn_run *run, const char *what,
                        struct err *e) {
    struct cuda_dnn *const dnn = cuda_state_of(device)->dnn;
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t status = dnn->descriptor_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (status == CUDNN_STATUS_SUCCESS) status = run_pack(dnn, run, pack);
    if (pack) dnn->descriptor_destroy(pack);
    if (status != CUDNN_STATUS_SUCCESS) {
        char detail[256] = "";
        dnn->last_error(detail, sizeof detail);
        return err_set(e, STATUS_DEVICE, "%s: cuDNN %lld: %s: %s", what, (long long)dnn->version,
                       dnn->error_string(status), detail);
    }
    return cuda_launched(device, what, e);
}
