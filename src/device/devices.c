/* The list of devices. A new device is a folder beside this file and one row here. */
#include "device/device.h"

#include <string.h>

const struct device *const devices[] = {&device_cpu, &device_ref, &device_c, &device_null, NULL};

const char *device_unavailable_reason(const struct device *device) {
    return env_has(ENV_SOL_DISABLE, device->name) ? "disabled by SOL_DISABLE"
                                                  : device->unavailable();
}

static enum sol_status refuse_name(const char *name) {
    (void)fail(SOL_EINVAL, "%s", devices[0]->name);
    for (int i = 1; devices[i]; i++)
        (void)fail(SOL_EINVAL, "%s, %s", sol_error(), devices[i]->name);
    fail_prefix("there is no device \"%.64s\": it can be ", name);
    return SOL_EINVAL;
}

enum sol_status device_find(const char *name, const struct device **out) {
    for (int i = 0; devices[i]; i++) {
        if (name && strcmp(name, devices[i]->name)) continue;
        const char *reason = device_unavailable_reason(devices[i]);
        if (name && reason) return fail(SOL_EDEVICE, "device %s cannot be used: %s", name, reason);
        if (reason) continue;
        *out = devices[i];
        return SOL_OK;
    }
    return name ? refuse_name(name) : fail(SOL_EDEVICE, "no device can be used");
}
