/* mirror.c - a copy of device memory on the host, there and back.
 *
 * The device is waited for at both ends, so what the ranks do with the copy meanwhile is plain host
 * code. The memory is the process's, not page-locked: who shares a GPU is not after speed. */
#include "engine/dist/mirror.h"

#include "base/mem.h"

enum status mirror_open(struct mirror *m, struct device *device, void *data, int64_t bytes,
                        struct err *e) {
    *m = (struct mirror){
        .device = device, .data = data, .host = mem_new((size_t)bytes, 1), .bytes = bytes};
    return device_download(device, m->host, data, bytes, e);
}

void mirror_add_scratch(struct mirror *m, int64_t scratch_bytes) {
    m->scratch =
        (struct comm_scratch){.data = mem_new((size_t)scratch_bytes, 1), .bytes = scratch_bytes};
}

enum status mirror_close(struct mirror *m, enum status status, struct err *e) {
    if (status == STATUS_OK) status = device_upload(m->device, m->data, m->host, m->bytes, e);
    mem_free(m->host);
    mem_free(m->scratch.data);
    *m = (struct mirror){0};
    return status;
}
