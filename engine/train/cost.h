/* cost.h - how long work takes: counted operations against what a device gets done.
 *
 * A roofline a class of operations. Work comes from the null device (kernels/device.h counts it by
 * class and size of call), rates from a measurement of this very device, kept in the cache folder,
 * or from a table of published figures for cards that are not here, which is always said. An
 * estimate, unlike the plan of memory: it may be wrong by a third. */
#ifndef PLIMSOLL_ENGINE_TRAIN_COST_H
#define PLIMSOLL_ENGINE_TRAIN_COST_H

#include "base/json.h"
#include "kernels/device.h"

enum { RATE_POINTS_MAX = 4, RATES_NAME_MAX = 192 };

/* What a class gets done at one size of call: FLOP/s for products and attention, else byte/s. */
struct rate_point {
    double size, per_second;
};

/* Rates of one device in one precision. Zeroed: unknown. */
struct rates {
    char name[RATES_NAME_MAX];                                   /* of the device */
    bool measured;                                               /* here; else published */
    struct rate_point points[WORK_CLASS_COUNT][RATE_POINTS_MAX]; /* by rising size */
    int counts[WORK_CLASS_COUNT];
    double call_seconds; /* beside the work itself */
};

/* "products", "attention", ... */
const char *work_class_name(enum work_class kind);

/* Seconds that the work takes; with `by_class` [WORK_CLASS_COUNT], also of each class. Rates must
 * be known. */
double cost_seconds(const struct device_work *work, const struct rates *rates, double *by_class);
double cost_flops(const struct device_work *work);

/* Sum of a + times * b. */
void cost_add(struct device_work *a, double times, const struct device_work *b);

/* Cards with published figures, by short names such as "h100-80gb". */
struct card {
    const char *id, *name;
    int64_t memory_bytes;
    double flops[PRECISION_COUNT]; /* dense products */
    double bytes_per_second;
};
/* NULL after the last. */
const struct card *card_at(int index);
/* By id, or by a name as the driver gives it ("NVIDIA H200"); NULL: not in the table. */
const struct card *card_find(const char *name);
struct rates card_rates(const struct card *card, enum precision precision);

#endif
