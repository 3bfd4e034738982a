/* device_graph.c - graphs: a sequence of operations that is written down once and then started as
 * one.
 *
 * The rules are kept here, above the table: what moves bytes between host and device or waits for
 * the device cannot be written down, and while a device is muted nothing reaches it. A muted device
 * uses the null device's table, so that a repeated sequence is checked and counted by the same code
 * that counts plans. Devices without graphs refuse, with the functions of graph_none.h. */
#include "kernels/device.h"

#include "kernels/graph_none.h"
#include "kernels/null/null.h"

enum status device_capture_begin(struct device *device, struct err *e) {
    FAIL_IF(device->mode != DEVICE_COMPUTES, STATUS_INTERNAL,
            "device_capture_begin: the device is capturing already, or muted");
    TRY(device->ops->capture_begin(device, e));
    device->mode = DEVICE_CAPTURES;
    return STATUS_OK;
}

enum status device_capture_end(struct device *device, struct device_graph *out, struct err *e) {
    *out = (struct device_graph){0};
    FAIL_IF(device->mode != DEVICE_CAPTURES, STATUS_INTERNAL,
            "device_capture_end: there was no device_capture_begin");
    device->mode = DEVICE_COMPUTES;
    return device->ops->capture_end(device, out, e);
}

enum status device_graph_launch(struct device *device, const struct device_graph *graph,
                                struct err *e) {
    FAIL_IF(device->mode != DEVICE_COMPUTES, STATUS_INTERNAL,
            "device_graph_launch: the device is capturing, or muted");
    FAIL_IF(!graph->state, STATUS_INTERNAL, "device_graph_launch: the graph is empty");
    return device->ops->graph_launch(device, graph, e);
}

void device_graph_free(struct device *device, struct device_graph *graph) {
    ASSERT(device->mode == DEVICE_COMPUTES);
    if (graph->state) device->ops->graph_free(device, graph);
    *graph = (struct device_graph){0};
}

void device_mute(struct device *device) {
    ASSERT(device->mode == DEVICE_COMPUTES);
    device->mode = DEVICE_IS_MUTED;
    device->heard = device->ops;
    device->ops = null_device_table();
}

void device_unmute(struct device *device) {
    ASSERT(device->mode == DEVICE_IS_MUTED);
    device->ops = device->heard;
    device->mode = DEVICE_COMPUTES;
}

enum status no_capture_begin(struct device *device, struct err *e) {
    return err_set(e, STATUS_UNSUPPORTED, "device %s has no graphs", device->name);
}

enum status no_capture_end(struct device *device, struct device_graph *out, struct err *e) {
    (void)out;
    return no_capture_begin(device, e);
}

enum status no_graph_launch(struct device *device, const struct device_graph *graph,
                            struct err *e) {
    (void)graph;
    return no_capture_begin(device, e);
}

void no_graph_free(struct device *device, struct device_graph *graph) {
    (void)device, (void)graph;
}
