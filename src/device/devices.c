/* The list of devices. A new device is a folder beside this file and one row here. */
#include "device/device.h"

#include <string.h>

const struct device *const devices[] = {&device_cpu, &device_ref, &device_c, &device_null, NULL};

const char *device_reason_against(const struct device *device) {
    return env_has(ENV_SOL_DISABLE, device->name) ? "disabled by SOL_DISABLE"
                                                  : device->unavailable();
}

enum sol_status device_find(const char *name, const struct device **out) {
    for (int i = 0; devices[i]; i++) {
        if (name && strcmp(name, devices[i]->name)) continue;
        const char *reason = device_reason_against(devices[i]);
        if (name && reason) return fail(SOL_EDEVICE, "device %s cannot be used: %s", name, reason);
        if (reason) continue;
        *out = devices[i];
        return SOL_OK;
    }
    return name ? fail(SOL_EINVAL, "there is no device \"%s\"", name)
                : fail(SOL_EDEVICE, "no device can be used");
}
