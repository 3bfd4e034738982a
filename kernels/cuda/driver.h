/* driver.h - the functions of the CUDA driver that the runtime has no form of: virtual memory.
 *
 * Taken from the driver at run time through cudart, so that the program starts where there is no
 * driver. The one place that includes CUDA's <cuda.h>. Private to kernels/cuda. */
#ifndef PLIMSOLL_KERNELS_CUDA_DRIVER_H
#define PLIMSOLL_KERNELS_CUDA_DRIVER_H

#include <cuda.h>

#include "kernels/cuda/cuda.h"

struct cuda_driver {
    CUresult (*address_reserve)(CUdeviceptr *, size_t bytes, size_t alignment, CUdeviceptr at,
                                unsigned long long flags);
    CUresult (*address_free)(CUdeviceptr, size_t bytes);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t bytes, const CUmemAllocationProp *,
                       unsigned long long flags);
    CUresult (*release)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle,
                    unsigned long long flags);
    CUresult (*unmap)(CUdeviceptr, size_t bytes);
    CUresult (*set_access)(CUdeviceptr, size_t bytes, const CUmemAccessDesc *, size_t count);
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags);
    CUresult (*error_string)(CUresult, const char **);
};

/* What the driver says about `result`, never NULL. */
const char *cuda_driver_text(const struct device *device, CUresult result);

#endif
