/* cuda_open.h - how the CUDA device is opened, for device.c. Private to kernels.
 *
 * Apart from kernels/cuda/cuda.h, which needs the headers of CUDA: a build without the toolkit
 * compiles device.c too, and then nothing calls this. */
#ifndef PLIMSOLL_KERNELS_CUDA_OPEN_H
#define PLIMSOLL_KERNELS_CUDA_OPEN_H

#include "kernels/cards.h"
#include "kernels/device.h"

/* Makes `device` the card of this ordinal. STATUS_UNSUPPORTED without a driver or a card, or for
 * one older than compute capability 8.0. */
enum status cuda_device_init(struct device *device, int ordinal, struct err *e);
/* device_cards_find; *out is zeroed. */
void cuda_cards_find(struct device_cards *out);

#endif
