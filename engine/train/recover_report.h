/* recover_report.h - the events about a lack of memory: oom, remedy, attention.
 *
 * The fields are listed in engine/events.h. Every rank tells its own shortages; what all ranks do
 * together is told by rank 0 alone. */
#ifndef PLIMSOLL_ENGINE_TRAIN_RECOVER_REPORT_H
#define PLIMSOLL_ENGINE_TRAIN_RECOVER_REPORT_H

#include "engine/train/run_parts.h"

/* One kind of change. Peaks are what a capacity must be. */
struct remedy_report {
    enum remedy_kind kind;
    const char *state; /* planned | offered | applied | refused | undone */
    const char *why, *text;
    struct layout from, to;
    int64_t peak_before, peak_after, capacity;
    double cost;
};
enum status report_remedy(struct run *r, const struct remedy_report *report, struct err *e);
/* From one layout to another: an event for each kind in which they differ. */
enum status report_layout(struct run *r, const struct remedy_report *common, struct err *e);
enum status report_attention(struct run *r, const struct remedy_list *list, struct err *e);
/* The arena's last shortage, if it was not told before. micro -1: outside a step. */
enum status recover_tell_shortage(struct run *r, int64_t micro, struct err *e);

#endif
