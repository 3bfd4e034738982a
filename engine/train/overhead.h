/* overhead.h - what a card holds of ours beside the arena: context, kernels, libraries.
 *
 * No plan can know it, so it is measured at the end of every run on a GPU and kept in the cache
 * folder by the card's name: the next plan for such a card shows a measured number, and one for a
 * card that was never used says that its number is assumed. On the CPU whoever plans measures
 * himself. */
#ifndef PLIMSOLL_ENGINE_TRAIN_OVERHEAD_H
#define PLIMSOLL_ENGINE_TRAIN_OVERHEAD_H

#include "engine/train/session.h"

/* Looks at the session's device and keeps what it holds. What cannot be measured or kept is left
 * as it was: no run fails for it. */
void overhead_remember(const struct session *s);
/* Of a device of this name (rates_name); -1 when none was ever used. */
int64_t overhead_recall(const char *name);

#endif
