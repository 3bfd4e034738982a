/* cards.c - the list of GPUs of a build with CUDA, and the reason for an empty one without.
 *
 * The one place outside kernels/device.c that knows whether the CUDA device was built. */
#include "kernels/cards.h"

#include "kernels/cuda_open.h"

void device_cards_find(struct device_cards *out) {
    *out = (struct device_cards){.count = 0};
#if PLIMSOLL_HAS_CUDA
    cuda_cards_find(out);
#else
    err_set(&out->problem, STATUS_UNSUPPORTED, "this build of Plimsoll has no CUDA device");
#endif
}
