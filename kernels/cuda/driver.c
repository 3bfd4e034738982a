/* driver.c - finds the driver's functions for virtual memory.
 *
 * A table of names and places: a driver that lacks one is older than any that this build runs on,
 * which is said by name. */
#include "kernels/cuda/driver.h"

#include <stddef.h>
#include <string.h>

#include "base/mem.h"

/* The version of the interface that driver.h declares: the one of CUDA 12, in all later drivers. */
enum { INTERFACE_VERSION = 12000 };

static const struct {
    const char *name;
    size_t offset;
} FUNCTIONS[] = {
    {"cuMemAddressReserve", offsetof(struct cuda_driver, address_reserve)},
    {"cuMemAddressFree", offsetof(struct cuda_driver, address_free)},
    {"cuMemCreate", offsetof(struct cuda_driver, create)},
    {"cuMemRelease", offsetof(struct cuda_driver, release)},
    {"cuMemMap", offsetof(struct cuda_driver, map)},
    {"cuMemUnmap", offsetof(struct cuda_driver, unmap)},
    {"cuMemSetAccess", offsetof(struct cuda_driver, set_access)},
    {"cuMemGetAllocationGranularity", offsetof(struct cuda_driver, granularity)},
    {"cuGetErrorString", offsetof(struct cuda_driver, error_string)},
};

enum status cuda_driver_open(struct device *device, struct err *e) {
    struct cuda_state *state = cuda_state_of(device);
    state->driver = mem_new(1, sizeof *state->driver);
    for (size_t i = 0; i < COUNT_OF(FUNCTIONS); i++) {
        void *found = NULL;
        enum cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
        const cudaError_t error = cudaGetDriverEntryPointByVersion(
            FUNCTIONS[i].name, &found, INTERFACE_VERSION, cudaEnableDefault, &answer);
        FAIL_IF(error != cudaSuccess || answer != cudaDriverEntryPointSuccess || !found,
                STATUS_UNSUPPORTED,
                "device %s: the NVIDIA driver has no %s; install a newer driver", device->name,
                FUNCTIONS[i].name);
        memcpy((char *)state->driver + FUNCTIONS[i].offset, &found, sizeof found);
    }
    return STATUS_OK;
}

void cuda_driver_close(struct device *device) {
    struct cuda_state *state = cuda_state_of(device);
    mem_free(state->driver);
    state->driver = NULL;
}

const char *cuda_driver_text(const struct device *device, CUresult result) {
    const struct cuda_state *state = device->state;
    const char *text = NULL;
    if (state->driver->error_string(result, &text) != CUDA_SUCCESS || !text)
        return "an error that the driver has no text for";
    return text;
}
