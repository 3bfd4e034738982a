/* work.h - the books of what a device was asked to do, by what limits it and by the size of a call.
 *
 * Counted above the table of operations, so a null device has the same books as a real one: what
 * engine/train/cost.h makes seconds from. */
#ifndef PLIMSOLL_KERNELS_WORK_H
#define PLIMSOLL_KERNELS_WORK_H

/* What limits a call. */
enum work_class {
    WORK_PRODUCT,
    WORK_ATTENTION,
    WORK_LOSS,
    WORK_GATE,
    WORK_UPDATE, /* of the optimizer */
    WORK_STREAM, /* everything else that goes over arrays once */
    WORK_COPY,   /* transfers, copies, fills */
    WORK_CLASS_COUNT
};

/* Sizes of calls: powers of four of its FLOPs for products and attention, of its bytes for
 * everything else. */
enum { WORK_SIZES = 32 };
struct work_cell {
    double flops, bytes, calls;
};
struct device_work {
    struct work_cell cells[WORK_CLASS_COUNT][WORK_SIZES];
};

struct device;
/* Counts one call; device.c and device_ops.c do it for all. */
void device_count(struct device *device, enum work_class kind, double flops, double bytes);

#endif
