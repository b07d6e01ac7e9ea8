/*
 * The device `ve`: NEC's SX-Aurora TSUBASA, a card with a processor of long vectors and memory of its own.
 *
 *   cluster -> device_emit_far: kernels in plain C, with entry.h behind them | device_link_far: ncc -> ve_target (target.c)
 *
 * ncc vectorizes the loops of the dialect of single values: a vector has 256 elements, so text with short vectors would be slow. Products
 * are kernels of the same kind (dnn/product_plain.h), or calls of NEC's libraries (vednn.c, nlc.c).
 */
#include "device/ve/ve.h"

#include "device/device.h"
#include "dfp/dialect.h"
#include "dnn/emit.h"

EMBED_TEXT(ve_entry, EMBED_FILE("src/device/ve/entry.h"));

static const struct dnn_impl *const ve_impls[] = {&dnn_nlc, &dnn_vednn, &dnn_plain, NULL};

/* ---- The device's functions ---- */

static const char *say_unavailable(void) {
    const char *reason = ve_open_library(), *path, *version;
    int first;
    if (reason) return reason;
    if (target_visible("ve", veda.n_devices, 0, &first)) return sol_error();
    return jit_compiler_of(&ve_compiler, &path, &version) ? sol_error() : NULL;
}

/* A core has no cache of its own besides L1, but 2 MiB of the last one: scratch may take half of it. A task is at least as long as some
 * tens of vectors, as a loop over less than a vector costs as much as one over a vector. Steps are fast only on large batches, so
 * that a batch is never divided. */
static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    (void)options;
    caps->scratch_max = 1 << 20;
    caps->grain = 16384;
    caps->threads = 8;
    caps->portion_cache = 0;
    caps->dialect = &dfp_plain;
    caps->is_host = false;
    caps->impls = ve_impls;
    return SOL_OK;
}

static enum sol_status link_kernels(struct build *build) {
    struct far_tools tools = {
        .target = &ve_target, .compiler = &ve_compiler, .entry = ve_entry, .ending = "_ve"};
    TRY(ve_compiler_flags(&tools.flags));
    return device_link_far(build, &tools);
}

const struct device device_ve = {
    .name = "ve",
    .what = "NEC SX-Aurora TSUBASA",
    .unavailable = say_unavailable,
    .caps = get_caps,
    .supports_anchor = dnn_plain_supports,
    .writes_plain = dnn_plain_takes_conv,
    .refuse_fusion = dfp_refuse,
    .emit = device_emit_far,
    .convert = device_convert,
    .link = link_kernels,
    .target = &ve_target,
};
