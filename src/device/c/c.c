/*
 * The device `c`: portable C that computes one value at a time, for libraries that run on any processor.
 *
 *   cluster -> dfp_emit, build_copy, build_gather -> steps -> interpreted here, or a library (deploy/portable.c)
 *
 * All layers that compute are loop nests of DFP, also convolutions and products, generated from their point expressions. This
 * device interprets the nests, for tests and to pack weights; deploy/portable.c writes their C text into a library.
 */
#include "device/device.h"
#include "dfp/dialect.h"
#include "dfp/step.h"
#include "dnn/emit.h"

static const char *say_unavailable(void) { return NULL; }

/* One value at a time, as by default, but without hints: nothing is known of the compiler. */
static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    (void)options;
    caps->dialect = &dfp_portable;
    return SOL_OK;
}

static enum sol_status emit(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    switch (cluster->module) {
    case MODULE_DFP: return dfp_emit(b, cluster, &parts);
    case MODULE_COPY: return build_copy(b, cluster);
    case MODULE_GATHER: return build_gather(b, cluster);
    case MODULE_RECURRENT: return dnn_emit_recurrent(b, cluster, NULL);
    case MODULE_HOST: return build_host(b, cluster);
    case MODULE_DNN:       /* none: supports_anchor */
    case MODULE_ATTENTION: /* none: computes */
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}

const struct device device_c = {
    .name = "c",
    .what = "portable C, for libraries; interpreted here",
    .unavailable = say_unavailable,
    .caps = get_caps,
    .refuse_fusion = dfp_refuse,
    .emit = emit,
};
