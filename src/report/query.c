/*
 * Lists what this machine has: devices, instruction sets, kernel libraries, compiler, cache. Each with its version or path, or
 * the reason why it cannot be used.
 */
#include "device/cpu/cpu.h"
#include "device/device.h"
#include "jit/jit.h"

#include <stdlib.h>

#define VERSION "0.1.0"

const char *sol_version(void) { return VERSION; }

/* The detail of a device is its variant or description, if it can be used; else the reason. */
static void list_devices(void (*visit)(void *user, const struct sol_info *info), void *user) {
    static const struct sol_options defaults;
    for (int i = 0; devices[i]; i++) {
        const char *reason = device_unavailable_reason(devices[i]);
        const char *detail =
            devices[i]->variant ? devices[i]->variant(&defaults) : devices[i]->what;
        visit(user,
              &(struct sol_info){"device", devices[i]->name, !reason, reason ? reason : detail});
    }
}

/* Who is told about kernels. */
struct visitor {
    void (*visit)(void *user, const struct sol_info *info);
    void *user;
};

/* The detail of a vendor's library is its version, or why it cannot be used. A disabled one is not opened. */
static void list_kernel(void *visitor, const struct dnn_impl *impl, bool is_far) {
    const struct visitor *v = visitor;
    bool available = !env_has(ENV_SOL_DISABLE, impl->name);
    const char *detail = !available ? "disabled by SOL_DISABLE"
                         : is_far   ? "own kernel of far devices"
                                    : "own kernel";
    if (available && impl->probe) detail = impl->probe(&available);
    v->visit(v->user, &(struct sol_info){"library", impl->name, available, detail});
}

/* All instruction sets that kernels were built for. Those that this machine lacks can be used for deployed libraries. */
static void list_isas(void (*visit)(void *user, const struct sol_info *info), void *user) {
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        bool is_used = isa == cpu_isa(), has = cpu_has(isa);
        const char *detail = is_used ? "in use"
                             : has   ? "another one is used"
                                     : "this machine has none";
        visit(user, &(struct sol_info){"isa", isa->name, has, detail});
    }
}

void sol_query(void (*visit)(void *user, const struct sol_info *info), void *user) {
    const char *path = "cc", *version = "";
    char folder[4096];
    list_devices(visit, user);
    list_isas(visit, user);
    device_visit_impls(list_kernel, &(struct visitor){visit, user});
    bool found = jit_compiler(&path, &version) == SOL_OK;
    visit(user, &(struct sol_info){"compiler", found ? path : "cc", found,
                                   found ? version : sol_error()});
    bool usable = jit_cache_dir(folder, sizeof folder) == SOL_OK;
    visit(user, &(struct sol_info){"cache", "kernels", usable, usable ? folder : sol_error()});
}

int sol_max_threads(void) { return os_max_threads(); }

size_t sol_clean(const char *text, size_t n, bool keep_lines, char *out, size_t size) {
    return text_clean(text, n, keep_lines, out, size);
}
