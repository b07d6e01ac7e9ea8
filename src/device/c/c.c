/*
 * The device `c`: one value at a time, in plain C. Libraries for processors that SOL knows nothing about are made with it.
 *
 * Everything is a nest of DFP, convolutions and products too: their point expressions are all it takes. Here the nests are
 * interpreted, which is for tests and for packing weights; as C text they become a library (deploy/portable.c).
 */
#include "device/device.h"
#include "dfp/dfp.h"
#include "dfp/step.h"

static const char *say_unavailable(void) { return NULL; }

static bool supports_anchor(const struct layer *anchor, int lanes) {
    (void)anchor, (void)lanes;
    return false;
}

static enum sol_status emit(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    switch (cluster->module) {
    case MODULE_DFP: return dfp_emit(b, cluster, &parts);
    case MODULE_COPY: return build_copy(b, cluster);
    case MODULE_GATHER: return build_gather(b, cluster);
    case MODULE_DNN: /* it takes none */
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}

const struct device device_c = {
    .name = "c",
    .what = "portable C, for libraries; interpreted here",
    .unavailable = say_unavailable,
    .supports_anchor = supports_anchor,
    .refuse_fusion = dfp_refuse,
    .emit = emit,
};
