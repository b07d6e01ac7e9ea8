/* Which devices run a generated model. */
#ifndef TEST_TURN_H
#define TEST_TURN_H

#include "device/device.h"

#include <stdlib.h>

/* The reason why a device runs no models; NULL: it does. */
static inline const char *reason_to_skip(const struct device *device) {
    if (device == &device_null) return "it computes nothing";
    if (device->target && getenv("TEST_RUNNER")) return "an emulator starts no other program";
    return device_unavailable_reason(device);
}

/* The C compiler compiles all kernels of far devices, which takes long, so they run the first model of each group and few others. All of
 * them if the user has named what to test. */
static inline bool has_turn(const struct device *device, uint64_t seed, bool is_named) {
    if (reason_to_skip(device)) return false;
    return !device->target || is_named || seed == 1 || seed % 32 == 9;
}

#endif
