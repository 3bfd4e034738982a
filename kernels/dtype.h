/* dtype.h - what elements of device memory are stored as.
 *
 * Apart from device.h because the arguments of some operations have headers of their own (loss.h),
 * and those name it too. */
#ifndef PLIMSOLL_KERNELS_DTYPE_H
#define PLIMSOLL_KERNELS_DTYPE_H

#include <stdint.h>

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_I64, DTYPE_COUNT };

/* Bytes of one element. */
int64_t dtype_bytes(enum dtype dtype);
/* "float32", "bfloat16", "float16", "int32", "int64". */
const char *dtype_name(enum dtype dtype);

#endif
