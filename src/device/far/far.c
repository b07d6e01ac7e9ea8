/*
 * The device `far`: a stand-in for an accelerator, which is another process on this machine. It runs all that far devices need, so it
 * tests the code that they share; it is no faster than the CPU.
 *
 *   cluster -> device_emit_far: kernels in plain C | device_link_far: the machine's C compiler -> far_target (target.c)
 */
#include "device/far/far.h"

#include "device/device.h"
#include "dfp/dialect.h"
#include "dnn/emit.h"
#include "jit/jit.h"

/* Kernels, and the process itself, are compiled when they are needed. */
static const char *say_unavailable(void) {
    const char *path, *version;
    return jit_compiler(&path, &version) ? sol_error() : NULL;
}

static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    (void)options;
    caps->portion_cache = 0;
    caps->dialect = &dfp_plain;
    caps->is_host = false;
    caps->impls = dnn_far_impls;
    return SOL_OK;
}

/* Cross compilers for arm64 do not know it. */
#ifdef __x86_64__
#define THIS_CPU "-march=native "
#else
#define THIS_CPU ""
#endif

static enum sol_status link_kernels(struct build *build) {
    static const struct far_tools tools = {.target = &far_target,
                                           .flags = "-shared -fPIC -std=gnu99 -O3 " THIS_CPU
                                                    "-ffp-contract=fast -fno-math-errno "
                                                    "-fno-trapping-math -fno-strict-aliasing -w"};
    return device_link_far(build, &tools);
}

const struct device device_far = {
    .name = "far",
    .what = "stand-in for an accelerator: a process of its own",
    .unavailable = say_unavailable,
    .caps = get_caps,
    .supports_anchor = dnn_plain_supports,
    .writes_plain = dnn_plain_takes_conv,
    .refuse_fusion = dfp_refuse,
    .emit = device_emit_far,
    .convert = device_convert,
    .link = link_kernels,
    .target = &far_target,
};
