/*
 * The pipeline: compiles a model into a program. Start reading here.
 *
 *   model -> passes -> layouts -> storage -> clusters -> micro-batches -> steps (DFP, DNN, COPY, GATHER) -> linked program
 *
 * Invariant: all data of a compile but the program is in one arena, which compile_for frees. If memory is out, allocation
 * longjmps to `compile`, which returns SOL_ENOMEM.
 */
#include "compile.h"

#include "ir/ir.h"
#include "pass/pass.h"
#include "plan/build.h"

#include <stdio.h>
#include <string.h>

#define COMPILE_MAX_LAYERS 50000
#define COMPILE_FRAME 128 /* bytes of stack per layer, for recursive walks over the graph */

static void report_progress(const struct sol_options *options, int done, int total,
                            const char *what) {
    if (options->progress) options->progress(options->user, done, total, what);
}

/* The whole pipeline, for devices without emit_model. plan_layouts and plan_storage add layers, as passes do, so pass_clean
 * follows them. Progress counts one unit per cluster, and one for the C compiler. */
static enum sol_status lower(struct build *b, const struct device *device,
                             const struct model *user_model) {
    struct plan *plan = b->plan;
    plan->model = ir_clone(b->arena, user_model);
    plan->model->computes = device->computes;
    plan->model->lanes = plan->caps.block;
    plan->model->recompute = b->options->recompute;
    plan->model->hint = plan->hint;
    TRY(pass_run_all(plan->model));
    TRY(plan_layouts(plan));
    pass_clean(plan->model);
    TRY(plan_phases(plan));
    TRY(plan_storage(plan));
    pass_clean(plan->model);
    TRY(ir_verify(plan->model));
    TRY(plan_clusters(plan, device->refuse_fusion));
    TRY(plan_micro_batches(plan, plan->hint[0]));
    build_init(b);
    for (int i = 0; i < plan->clusters.n; i++) {
        const struct cluster *cluster = plan->clusters.at[i];
        report_progress(b->options, i, plan->clusters.n + 1, build_describe(b, cluster));
        build_begin(b, cluster);
        TRY(device->emit(b, cluster));
    }
    TRY(build_updates(b));
    report_progress(b->options, plan->clusters.n, plan->clusters.n + 1, "compiling kernels");
    if (device->link) TRY(device->link(b));
    report_progress(b->options, plan->clusters.n + 1, plan->clusters.n + 1, "done");
    return SOL_OK;
}

/* Module DNN of a device that has none. */
static bool supports_none(const struct layer *anchor, int lanes) {
    (void)anchor, (void)lanes;
    return false;
}

static enum sol_status compile(struct arena *arena, const struct device *device,
                               const struct model *model, const struct sol_options *options,
                               struct sol_program *program) {
    ARENA_BOUNDARY(arena, return fail(SOL_ENOMEM, "out of memory while compiling"));
    program->arena.boundary = arena->boundary;
    int64_t max = (int64_t)(os_stack_left() / COMPILE_FRAME);
    max = min_i64(max, COMPILE_MAX_LAYERS);
    if (model->layers.n > max)
        return fail(SOL_EUNSUPPORTED, "%d layers; at most %lld can be compiled on this stack",
                    model->layers.n, (long long)max);
    struct plan plan = {.arena = arena,
                        .supports_anchor =
                            device->supports_anchor ? device->supports_anchor : supports_none,
                        .writes_plain = device->writes_plain};
    struct build build = {.arena = arena,
                          .keep = &program->arena,
                          .program = program,
                          .options = options,
                          .plan = &plan,
                          .convert = device->convert};
    TRY(device_get_caps(device, options, &plan.caps));
    program->portion_cache = plan.caps.portion_cache;
    plan_set_hints(&plan, model, options);
    TRY(device->emit_model ? device->emit_model(&build, model) : lower(&build, device, model));
    program->target =
        device->variant
            ? arena_printf(&program->arena, "%s, %s", device->name, device->variant(options))
        : device->target
            ? arena_printf(&program->arena, "%s %d", device->name, options->device_number)
            : device->name; /* "x86, avx2", "far 0" */
    if (!device->emit_model) program->dot = plan_dot(&build);
    TRY(build_finish(&build, model));
    if (env_has(ENV_SOL_DEBUG, "plan")) fprintf(stderr, "%s", program->report);
    return SOL_OK;
}

enum sol_status compile_for(const struct device *device, const struct sol_model *user,
                            const struct sol_options *options, struct sol_program **out) {
    struct sol_program *program = program_new();
    if (!program) return fail(SOL_ENOMEM, "no memory for a program");
    struct arena arena;
    arena_init(&arena);
    enum sol_status status = compile(&arena, device, ir_user_model(user), options, program);
    arena_fini(&arena);
    program->arena.boundary = NULL;
    if (status) sol_program_release(program);
    else *out = program;
    return status;
}

enum sol_status sol_compile(const struct sol_model *user, const struct sol_options *options,
                            struct sol_program **out) {
    static const struct sol_options defaults;
    const struct device *device;
    if (!options) options = &defaults;
    sol_check_environment();
    if (!(options->recompute >= 0 && options->recompute <= 1) &&
        options->recompute != SOL_RECOMPUTE_CHEAP)
        return fail(SOL_EINVAL, "recompute is %g; it may be 0 to 1, or %g", options->recompute,
                    SOL_RECOMPUTE_CHEAP);
    TRY(sol_model_check(user));
    TRY(device_find(options->device, &device));
    TRY(device_check_number(device, options->device_number));
    return compile_for(device, user, options, out);
}

/* The text of a copy of the model after its first `pass` passes. */
static char *dump(struct arena *arena, const struct model *user, int pass, const char **name) {
    ARENA_BOUNDARY(arena, return NULL); /* sol_error() is set */
    struct model *m = ir_clone(arena, user);
    struct text text;
    int at = 0;
    *name = "as built";
    for (; at < pass && passes[at].name; at++) {
        if (pass_run(&passes[at], m)) return NULL;
        *name = passes[at].name;
    }
    if (at < pass) {
        (void)fail(SOL_EINVAL, "there are only %d passes", at);
        return NULL;
    }
    text_init(&text, arena);
    ir_print(&text, m);
    return strdup(text.at);
}

char *sol_dump(const struct sol_model *user, int pass, const char **name) {
    if (sol_model_check(user)) return NULL;
    struct arena arena;
    arena_init(&arena);
    char *result = dump(&arena, ir_user_model(user), pass, name);
    arena_fini(&arena);
    return result;
}
