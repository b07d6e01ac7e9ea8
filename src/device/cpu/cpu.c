/*
 * The device of this machine's CPU (`x86`, `arm64`, or `cpu` on other architectures): own kernels per instruction set, and
 * generated C.
 *
 *   cluster -> DNN: dnn/emit.c | COPY, GATHER: plan/build.c | DFP: dfp/step.c, and device/link.c compiles its C text
 */
#include "device/cpu/cpu.h"

#include "device/cpu/tune.h"
#include "device/device.h"
#include "dfp/dialect.h"
#include "dnn/emit.h"

#include <stdio.h>
#include <string.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

/* ---- Instruction set ---- */

bool cpu_has(const struct dnn_isa *isa) {
#ifdef __x86_64__
    if (!strcmp(isa->name, "avx512")) return CPU_HAS_AVX512;
    if (!strcmp(isa->name, "avx2")) return CPU_HAS_AVX2;
#elif defined __aarch64__
    /* Bits of HWCAP for arm64: vectors and floating point. */
    if (!strcmp(isa->name, "neon"))
        return (getauxval(AT_HWCAP) & (HWCAP_ASIMD | HWCAP_FP)) == (HWCAP_ASIMD | HWCAP_FP);
#endif
    return !strcmp(isa->name, "generic");
}

/* Names of all instruction sets, or of those that this machine has, best first. */
static const char *list_isas(bool all, char out[128]) {
    int n = 0;
    for (const struct dnn_isa *isa = dnn_isas; isa->name && n < 128; isa++)
        if (all || cpu_has(isa))
            n += snprintf(out + n, 128 - (size_t)n, n ? ", %s" : "%s", isa->name);
    return out;
}

const struct dnn_isa *cpu_isa(void) {
    const char *wanted = env_get(ENV_SOL_CPU);
    const struct dnn_isa *best = NULL;
    char names[128];
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        if (!cpu_has(isa)) continue;
        if (wanted && !strcmp(wanted, isa->name)) return isa;
        if (!best) best = isa;
    }
    if (wanted) env_refuse(ENV_SOL_CPU, list_isas(false, names));
    return best;
}

static const char *say_unavailable(void) { return NULL; }

/* The instruction set to compile for; options->cpu may name one that this machine lacks. NULL with a message: unknown name. */
static const struct dnn_isa *isa_of(const struct sol_options *options) {
    if (!options->cpu) return cpu_isa();
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        if (!strcmp(options->cpu, isa->name)) return isa;
    char names[128];
    (void)fail(SOL_EINVAL, "there are no kernels for the instruction set \"%.32s\": it can be %s",
               options->cpu, list_isas(true, names));
    return NULL;
}

static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    const struct dnn_isa *isa = isa_of(options);
    if (!isa) return SOL_EINVAL;
    caps->block = caps->vector = isa->lanes;
    caps->dialect = &dfp_gnu;
    caps->impls = dnn_impls;
    caps->calls_epilogue = true;
    return SOL_OK;
}

static const char *name_isa(const struct sol_options *options) { return isa_of(options)->name; }

/* ---- Steps ---- */

static enum sol_status emit_dfp(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    TRY(dfp_emit(b, cluster, &parts));
    device_queue_kernel(b, &parts);
    return SOL_OK;
}

/* No timing if this machine cannot run the kernels. */
static dnn_tune *tune_of(const struct sol_options *options) {
    return options->no_autotune || !cpu_has(isa_of(options)) ? NULL : cpu_tune;
}

static enum sol_status emit_dnn(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    const struct dnn_isa *isa = isa_of(b->options);
    dnn_tune *tune = tune_of(b->options);
    if (!cluster->dnn->epilogue) return dnn_emit(b, cluster, isa, tune, NULL);
    TRY(dfp_make_parts(b, cluster->dnn->epilogue, &parts));
    device_queue_kernel(b, &parts);
    struct step epilogue = {.data = parts.kernel,
                            .n_ptr = parts.n_ptr,
                            .n_arg = parts.n_arg,
                            .ptr = parts.ptr,
                            .arg = parts.arg,
                            .scratch_size = parts.scratch_size};
    return dnn_emit(b, cluster, isa, tune, &epilogue);
}

static enum sol_status emit(struct build *b, const struct cluster *cluster) {
    switch (cluster->module) {
    case MODULE_DNN: return emit_dnn(b, cluster);
    case MODULE_DFP: return emit_dfp(b, cluster);
    case MODULE_COPY: return build_copy(b, cluster);
    case MODULE_GATHER: return build_gather(b, cluster);
    case MODULE_RECURRENT: return dnn_emit_recurrent(b, cluster, isa_of(b->options));
    case MODULE_ATTENTION: return dnn_emit_attention(b, cluster, isa_of(b->options));
    case MODULE_HOST: return build_host(b, cluster);
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}

static enum sol_status link_kernels(struct build *b) {
    const char *flags = arena_printf(
        b->arena, CPU_OBJECT_FLAGS "-std=gnu99 " CPU_KERNEL_FLAGS " %s", isa_of(b->options)->flags);
    return device_link(b, &jit_objects, flags);
}

const struct device device_cpu = {
    .name = CPU_NAME,
    .what = "CPU, own kernels and generated C",
    .unavailable = say_unavailable,
    .variant = name_isa,
    .caps = get_caps,
    .supports_anchor = dnn_supports,
    .writes_plain = dnn_writes_plain,
    .computes = dnn_computes,
    .refuse_fusion = dfp_refuse,
    .emit = emit,
    .link = link_kernels,
};
