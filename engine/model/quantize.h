/* quantize.h - numbers into codes of 4 or 8 bits (kernels/quant.h), on the host, while a model is
 * loaded.
 *
 * The codes of NF4 and of doubly quantised scales are those that bitsandbytes makes on a GPU. Every
 * function is a pure one of what it is given, so all ranks and all starts of a run have the same
 * base. */
#ifndef PLIMSOLL_ENGINE_MODEL_QUANTIZE_H
#define PLIMSOLL_ENGINE_MODEL_QUANTIZE_H

#include <stdint.h>

#include "kernels/quant.h"

/* Codes of one block: `count` elements, an even number of at most QUANT_BLOCK. Returns the scale,
 * the largest magnitude. */
float quantize_nf4(const float *x, int64_t count, uint8_t *codes);
/* The scales of one tensor, in any number of threads: `codes` [count], `nested` as
 * quant_nested_count says. */
void quantize_scales(const float *scales, int64_t count, uint8_t *codes, float *nested);

/* The scale of a row whose largest magnitude is this. */
float quantize_fp8_scale(float largest);
/* Rounded to the nearest, ties to even; what is too large becomes the largest. NaN stays NaN. */
void quantize_fp8(const float *x, int64_t count, float scale, uint8_t *codes);
/* The largest magnitude. */
float quantize_largest(const float *x, int64_t count);

#endif
