/* Finds devices and what they are good at. A new device is a folder beside this file and one word of DEVICE_LIST. */
#include "device/device.h"

#include "dfp/dialect.h"
#include "run/micro_batch.h"
#include "run/pool.h"

#include <string.h>

#define ADDRESS(name) &device_##name,
const struct device *const devices[] = {DEVICE_LIST(ADDRESS) NULL};

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

/* `judged_vector` is the width of the widest vectors. A scratch of 128 KiB stays in L2 of most CPUs. */
enum sol_status device_get_caps(const struct device *device, const struct sol_options *options,
                                struct device_caps *out) {
    *out = (struct device_caps){.block = 1,
                                .vector = 1,
                                .judged_vector = 16,
                                .scratch_max = 128 << 10,
                                .grain = 256,
                                .threads = pool_threads(),
                                .portion_cache = micro_batch_cache,
                                .dialect = &dfp_plain,
                                .is_host = true};
    if (device->caps) TRY(device->caps(options, out));
    if (out->block == 1 || out->block == out->vector) return SOL_OK;
    return fail(SOL_EBUG,
                "device %s has channel blocks of %d and vectors of %d: DFP needs the same",
                device->name, out->block, out->vector);
}

static const struct dnn_impl *const *list_impls(int device, bool *is_far) {
    static const struct sol_options defaults;
    static const struct dnn_impl *const none[] = {NULL};
    struct device_caps caps;
    if (device_get_caps(devices[device], &defaults, &caps) || !caps.impls) return none;
    *is_far = !caps.is_host;
    return caps.impls;
}

/* Does a device in front of this one have it? */
static bool is_listed(int device, const struct dnn_impl *impl) {
    bool is_far;
    for (int i = 0; i < device; i++)
        for (const struct dnn_impl *const *at = list_impls(i, &is_far); *at; at++)
            if (*at == impl) return true;
    return false;
}

void device_visit_impls(void (*visit)(void *user, const struct dnn_impl *impl, bool is_far),
                        void *user) {
    bool is_far;
    for (int i = 0; devices[i]; i++)
        for (const struct dnn_impl *const *at = list_impls(i, &is_far); *at; at++)
            if (!is_listed(i, *at)) visit(user, *at, is_far);
}

/* Can its programs run on pointers of callers that have not asked for this device? */
static bool is_host(const struct device *device) {
    static const struct sol_options defaults;
    struct device_caps caps;
    return !device_get_caps(device, &defaults, &caps) && caps.is_host;
}

enum sol_status device_check_number(const struct device *device, int number) {
    if (number >= 0 && (device->target || !number)) return SOL_OK;
    return fail(SOL_EINVAL, "there is no device %s %d%s", device->name, number,
                device->target ? "" : ": it is the only one, number 0");
}

enum sol_status device_find(const char *name, const struct device **out) {
    for (int i = 0; devices[i]; i++) {
        if (name && strcmp(name, devices[i]->name)) continue;
        const char *reason = device_unavailable_reason(devices[i]);
        if (name && reason) return fail(SOL_EDEVICE, "device %s cannot be used: %s", name, reason);
        if (reason || (!name && !is_host(devices[i]))) continue;
        *out = devices[i];
        return SOL_OK;
    }
    return name ? refuse_name(name) : fail(SOL_EDEVICE, "no device can be used");
}
