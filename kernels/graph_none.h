/* graph_none.h - the graph slots of devices that have no graphs. Private to kernels.
 *
 * They answer STATUS_UNSUPPORTED. The CPU gains nothing by starting many operations at once, and
 * the null device starts none. */
#ifndef PLIMSOLL_KERNELS_GRAPH_NONE_H
#define PLIMSOLL_KERNELS_GRAPH_NONE_H

#include "kernels/device.h"

enum status no_capture_begin(struct device *, struct err *);
enum status no_capture_end(struct device *, struct device_graph *, struct err *);
enum status no_graph_launch(struct device *, const struct device_graph *, struct err *);
void no_graph_free(struct device *, struct device_graph *);

#endif
