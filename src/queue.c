/*
 * Queues by the name of a device: finds the device's run-time half.
 *
 *   sol_queue_new -> device_find -> run/queue.c
 */
#include "device/device.h"
#include "run/far.h"

enum sol_status sol_queue_new(const char *name, int number, struct sol_queue **out) {
    const struct device *device;
    TRY(device_find(name, &device));
    TRY(device_check_number(device, number));
    return queue_new(device->target ? device->target : &host_target, number, out);
}
