/*
 * The null device: a skeleton to copy when adding a device. It compiles every model and computes nothing.
 *
 *   cluster -> emit: a step per cluster, texts of DFP kernels collected -> link: the texts become functions
 *
 * Each function below calls what a real device calls; its comment tells what to put there. HACKING.md, "Adding a device", has
 * the list of files to change. The null device itself can never be chosen, as a program of it would leave its outputs as they were.
 */
#include "device/device.h"
#include "dfp/dfp.h"
#include "dfp/step.h"

/* Kernels whose text waits for the device's compiler. A real device keeps `text` of struct dfp_parts as well. */
struct waiting {
    VEC(struct kernel *) kernels; /* in the program */
};

/* ---- What the device can do ---- */

/* NULL when the device, its driver and its libraries are there; else the reason, for people. Open the vendor's libraries here by
 * dlopen, and never link them, so that SOL builds and starts on machines without them (dnn/vendor.h does that for the CPU). */
static const char *say_unavailable(void) {
    return "a skeleton for new devices: it computes nothing";
}

/* Width of a channel block in floats: images are reordered so that so many channels lie together. 1: they never are. */
static int get_lanes(const struct sol_options *options) {
    (void)options;
    return 1;
}

/* Which convolutions and linear layers your own code or library computes: they come to `emit` as clusters of module DNN. The
 * others become loop nests of module DFP, so `return false` is a good beginning (device/c). The CPU asks dnn_supports. */
static bool supports_anchor(const struct layer *anchor, int lanes) {
    (void)lanes;
    return anchor->kind == LAYER_linear;
}

/* Why these layers cannot share a kernel; NULL: they can. Asked for each layer that may join a cluster. Put the limits of the device
 * first, and ask dfp_refuse for those of generated code. */
static const char *refuse_fusion(struct arena *arena, const struct cluster *cluster) {
    if (cluster->layers.n > 64) return "the null device fuses at most 64 layers";
    return dfp_refuse(arena, cluster);
}

/* ---- Steps ---- */

/* How many tasks a step has for these arguments. exec.c divides [0, tasks) among the threads of the host's pool. A step that only
 * queues work on a device has one. */
static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    (void)step, (void)arg;
    return 1;
}

/* The work of tasks [begin, end), at every call: `ptr` are the addresses of the step's buffers, `arg` the values of its formulas. It knows
 * `step->data`, which the emit function has put into the program, and nothing of the compiler. A failure is told by exec_fail. */
static void run_nothing(const struct step *step, void *const *ptr, const int64_t *arg,
                        void *scratch, int64_t begin, int64_t end) {
    (void)step, (void)ptr, (void)arg, (void)scratch, (void)begin, (void)end;
}

/* DFP: dfp_emit makes the step and the C text of its loop nest. Until `link` sets kernel->compiled, the nest is interpreted on the
 * host, which gives right results from the first day on. */
static enum sol_status emit_dfp(struct build *build, const struct cluster *cluster) {
    struct waiting *waiting = build->device;
    struct dfp_parts parts = {0};
    TRY(dfp_emit(build, cluster, &parts));
    VEC_PUSH(build->arena, &waiting->kernels, parts.kernel);
    return SOL_OK;
}

/* DNN: your own kernel or library. The step's pointers are buffers and offsets, never addresses, so that steps can be queued on a device;
 * sizes are formulas in `arg`. Weights that need another order: build_packed gives memory for them, and a step of `prepack` fills it
 * (dnn/emit.c has both). Layers that DFP computes behind the kernel, in place, are cluster->epilogue: dfp_make_parts makes
 * a kernel of them, which the CPU's kernels call on each part of the result that is finished. */
static enum sol_status emit_dnn(struct build *build, const struct cluster *cluster) {
    int n = cluster->inputs.n + cluster->outputs.n, at = 0;
    struct buffer_ref *ptr = ARENA_ARRAY(build->arena, struct buffer_ref, n);
    for (int i = 0; i < cluster->inputs.n; i++) ptr[at++] = build_ref(build, cluster->inputs.at[i]);
    for (int i = 0; i < cluster->outputs.n; i++)
        ptr[at++] = build_ref(build, cluster->outputs.at[i]);
    struct step step = {.run = run_nothing,
                        .n_tasks = count_tasks,
                        .n_ptr = n,
                        .ptr = ptr,
                        .flops = size_const(0), /* for the profile, as `bytes` */
                        .bytes = build_bytes(cluster),
                        .name = "nothing",
                        .module = "DNN",
                        .layers = build_describe(build, cluster)};
    return build_step(build, cluster->prepack, &step);
}

/* One cluster at a time, in the order of execution. COPY and GATHER only move values: build_copy and build_gather make steps that run
 * on the host's memory; a device with memory of its own makes its own steps. VIEW costs nothing: its output lies in its
 * input's memory, or the other way round. */
static enum sol_status emit(struct build *build, const struct cluster *cluster) {
    if (!build->device) build->device = ARENA_NEW(build->arena, struct waiting);
    switch (cluster->module) {
    case MODULE_DFP: return emit_dfp(build, cluster);
    case MODULE_DNN: return emit_dnn(build, cluster);
    case MODULE_COPY: return build_copy(build, cluster);
    case MODULE_GATHER: return build_gather(build, cluster);
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}

/* ---- Link ---- */

static void compute_nothing(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin,
                            int64_t end) {
    (void)ptr, (void)arg, (void)scratch, (void)begin, (void)end;
}

/* Once, after all clusters: compile the collected texts and set kernel->compiled. jit_build (jit/jit.h) runs a compiler, in parallel and
 * with a cache; it takes the compiler's flags and a loader of what the compiler wrote. What it returns goes into
 * program->code, with the function that releases it. device/cpu has all of it. Without `link` all nests are interpreted. */
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
    .lanes = get_lanes,
    .supports_anchor = supports_anchor,
    .refuse_fusion = refuse_fusion,
    .emit = emit,
    .link = link_kernels,
};
