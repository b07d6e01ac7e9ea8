/*
 * The null device: a skeleton to copy when adding a device. It compiles every model and computes nothing.
 *
 *   cluster -> emit: a step per cluster, texts of DFP kernels collected -> link: the texts become functions
 *
 * Each function below makes the calls that a device needs; its comment says what to write there. HACKING.md, "Adding a
 * device", lists the files to change. The null device is always unavailable, as its programs do not write their outputs.
 */
#include "device/device.h"
#include "dfp/dfp.h"
#include "dfp/step.h"
#include "dnn/emit.h"

/* The kernels that `link` makes ready. A device that compiles their text has no such list: device/link.c keeps one. */
struct waiting {
    VEC(struct kernel *) kernels; /* in the program */
};

/* ---- What the device can do ---- */

/* Returns NULL if the device, its driver and its libraries exist; else the reason, for messages. Open the vendor's libraries
 * here by dlopen instead of linking them, so that SOL builds and starts on machines without them (as dnn/vendor.h does). */
static const char *say_unavailable(void) {
    return "a skeleton for new devices: it computes nothing";
}

/* What the device is good at; plan/caps.h explains each member. They have defaults (device_get_caps), so set what differs:
 *   block, vector, dialect   how layouts are stored and kernels are written. With GNU vectors of 16 floats both are 16, and the dialect
 *                            is dfp_gnu. dfp_plain is for compilers that vectorize loops themselves
 *   scratch_max, grain       memory, and least work, of a task of a generated kernel
 *   threads, portion_cache   what cost models count with; a cache of 0: no call divides its batch
 *   impls                    your list of DNN implementations. Those of CPUs are dnn_impls (dnn/dnn.h). dnn_emit chooses among them
 *   is_host                  false if the device has memory of its own: users must then ask for it by name
 * Refuse options here that name what the device lacks, such as an unknown CPU: return fail(SOL_EINVAL, ..). */
static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    (void)options;
    caps->block = caps->vector = 1;
    return SOL_OK;
}

/* Does your own code or library compute this convolution or linear layer? If so, `emit` gets it as a cluster of module DNN. Others
 * become loop nests of module DFP, so to leave it out is a good beginning (device/c). The CPU device uses dnn_supports. */
static bool supports_anchor(const struct layer *anchor, int lanes) {
    (void)lanes;
    return anchor->kind == LAYER_linear;
}

/* Why these layers cannot share a kernel; NULL: they can. Called for each layer that may join a cluster. Check the limits of the
 * device first, then call dfp_refuse for the limits of generated code. */
static const char *refuse_fusion(struct arena *arena, const struct device_caps *caps,
                                 const struct cluster *cluster) {
    if (cluster->layers.n > 64) return "the null device fuses at most 64 layers";
    return dfp_refuse(arena, caps, cluster);
}

/* ---- Steps ---- */

/* The number of tasks of a step for these arguments. exec.c divides [0, tasks) among the threads of the host's pool. A step that
 * only queues work on a device has one task. */
static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}

/* Computes tasks [begin, end), at every call: `ptr` has the addresses of the step's buffers, `arg` the values of its formulas. It
 * may use step->data, which `emit` has put into the program, but no data of the compiler. Report a failure by exec_fail. */
static void run_nothing(const struct step *step, void *const *ptr, const int64_t *arg,
                        void *scratch, int64_t begin, int64_t end) {
    (void)step, (void)ptr, (void)arg, (void)scratch, (void)begin, (void)end;
}

/* The table of this kind of step; other folders can tell by its address what a step does. */
static const struct step_kind step_nothing = {
    .name = "nothing", .run = run_nothing, .n_tasks = count_tasks};

/* DFP: dfp_emit makes the step and the C text of its loop nest. Unless `link` sets kernel->compiled, the nest is interpreted on
 * the host: so results are right before the device has a compiler. Then device_queue_kernel(build, &parts) replaces the list. */
static enum sol_status emit_dfp(struct build *build, const struct cluster *cluster) {
    struct waiting *waiting = build->device;
    struct dfp_parts parts = {0};
    TRY(dfp_emit(build, cluster, &parts));
    VEC_PUSH(build->arena, &waiting->kernels, parts.kernel);
    return SOL_OK;
}

/* DNN: your own kernel or library. The step's pointers are buffers with offsets, never addresses; sizes are formulas
 * in `arg`. If the kernel needs weights in another order, build_packed makes memory for them, and a step of a prepack phase fills it
 * (see dnn/emit.c). cluster->dnn->epilogue are layers that DFP computes in place after the kernel: dfp_make_parts makes
 * a kernel of them, which the CPU's kernels call once for each finished region of the output. */
static enum sol_status emit_dnn(struct build *build, const struct cluster *cluster) {
    int n = cluster->inputs.n + cluster->outputs.n, at = 0;
    struct buffer_ref *ptr = ARENA_ARRAY(build->arena, struct buffer_ref, n);
    for (int i = 0; i < cluster->inputs.n; i++) ptr[at++] = build_ref(build, cluster->inputs.at[i]);
    for (int i = 0; i < cluster->outputs.n; i++)
        ptr[at++] = build_ref(build, cluster->outputs.at[i]);
    struct step step = {.kind = &step_nothing,
                        .n_ptr = n,
                        .ptr = ptr,
                        .flops = size_const(0), /* for the profile, as `bytes` */
                        .bytes = build_bytes(cluster),
                        .name = "nothing",
                        .module = "DNN",
                        .layers = build_describe(build, cluster)};
    return build_step(build, cluster->phase, &step);
}

/* Emits one cluster; called in the order of execution. COPY and GATHER only move values: build_copy and build_gather make steps
 * that work on the host's memory; a device with memory of its own needs its own steps. RECURRENT computes a recurrent layer, here
 * by plain loops. HOST calls a
 * function of the frontend on the host's memory. VIEW needs no step: its output lies in
 * its input's memory, or the inputs in the output's. */
static enum sol_status emit(struct build *build, const struct cluster *cluster) {
    if (!build->device) build->device = ARENA_NEW(build->arena, struct waiting);
    switch (cluster->module) {
    case MODULE_DFP: return emit_dfp(build, cluster);
    case MODULE_DNN: return emit_dnn(build, cluster);
    case MODULE_COPY: return build_copy(build, cluster);
    case MODULE_GATHER: return build_gather(build, cluster);
    case MODULE_RECURRENT: return dnn_emit_recurrent(build, cluster, NULL);
    case MODULE_HOST: return build_host(build, cluster);
    case MODULE_ATTENTION: /* none: `computes` in the row below is NULL */
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}

/* ---- Link ---- */

static void compute_nothing(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin,
                            int64_t end) {
    (void)ptr, (void)arg, (void)scratch, (void)begin, (void)end;
}

/* Called once, after all clusters: sets kernel->compiled. A working device returns device_link(build, &jit_objects, flags)
 * (device/link.c): it compiles all queued texts by src/jit, in parallel and with a cache on disk, and releases them with the program.
 * Without `link`, all nests are interpreted. */
static enum sol_status link_kernels(struct build *build) {
    struct waiting *waiting = build->device;
    for (int i = 0; waiting && i < waiting->kernels.n; i++)
        waiting->kernels.at[i]->compiled = compute_nothing;
    return SOL_OK;
}

const struct device device_null = {
    .name = "null",
    .what = "skeleton for new devices",
    .unavailable = say_unavailable,
    .caps = get_caps,
    .supports_anchor = supports_anchor,
    .refuse_fusion = refuse_fusion,
    .emit = emit,
    .link = link_kernels,
};
