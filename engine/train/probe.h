/* probe.h - the plan, tried: real steps on the real device, rung by rung, beside what was planned.
 *
 * Two ramps. Up: one micro-batch at growing length and then growing rows, its peak measured and
 * held against the plan, which it must equal to the byte. Down: the capacity lowered from what the
 * run needs, with remedies, to the smallest that still trains, and how fast it is at each. The
 * model is loaded and not changed: the learning rate is 0 and nothing is written. */
#ifndef PLIMSOLL_ENGINE_TRAIN_PROBE_H
#define PLIMSOLL_ENGINE_TRAIN_PROBE_H

#include "engine/train/plan.h"

/* {"ramp":[{"rows","length","tokens","planned_peak_bytes","measured_peak_bytes","equal",
 * "tokens_per_second","fits"}], "cap":[{"share","capacity_bytes","fits","remedies":["..."],
 * "layout":{},"need_bytes","measured_peak_bytes","tokens_per_second"}],"all_equal"}: the last entry
 * of each list may be the first that does not fit. `request` as for plan_make;
 * `capacity` of the device. Errors of opening and loading. Caller frees *out. */
enum status probe_run(const struct plan_request *request, int64_t capacity, cJSON **out,
                      struct err *e);

#endif
