/*
 * The functions of the DNN module's steps (step.h): they convert a step's pointers and arguments to a struct dnn_call, and
 * finished regions of y to calls of the generated epilogue.
 */
#include "dnn/step.h"

#include <string.h>

/* ---- Packing ---- */

static int64_t count_pack_tasks(const struct step *step, const int64_t *arg) {
    (void)arg;
    const struct dnn_plan *plan = step->data;
    return plan->n_pack_tasks;
}

static void pack_weight(const struct step *step, void *const *ptr, const int64_t *arg,
                        void *scratch, int64_t begin, int64_t end) {
    (void)arg, (void)scratch;
    const struct dnn_plan *plan = step->data;
    for (int64_t task = begin; task < end; task++) plan->impl->pack(plan, ptr[0], ptr[1], task);
}

/* ---- The epilogue ---- */

/* The generated epilogue of one call of run_plan: its kernel with pointers and arguments. */
struct finishing {
    const struct kernel *kernel;
    void *const *ptr;
    const int64_t *arg;
    char *scratch;
    int64_t k_blocks, pixels; /* of a sample of y; linear: 1, k */
};

/* struct dnn_call's epilogue: converts a region of y to the points [begin, end) of the generated kernel (emit.h). */
static void finish_tile(void *user, int64_t n, int64_t k_block, int64_t pixel, int n_pixels) {
    const struct finishing *f = user;
    const int64_t begin = (n * f->k_blocks + k_block) * f->pixels + pixel;
    kernel_call(f->kernel, f->ptr, f->arg, f->scratch, begin, begin + n_pixels);
}

size_t dnn_step_scratch(const struct dnn_plan *plan) {
    return (size_t)round_up((int64_t)plan->scratch_size, 64);
}

static struct finishing make_finishing(const struct dnn_work *work, void *const *ptr,
                                       const int64_t *arg, void *scratch) {
    const struct dnn_problem *p = &work->plan.problem;
    const bool is_conv = p->kind == DNN_CONV;
    return (struct finishing){.kernel = work->finish,
                              .ptr = ptr + DNN_N_POINTERS,
                              .arg = arg + DNN_N_ARGS,
                              .scratch = (char *)scratch + dnn_step_scratch(&work->plan),
                              .k_blocks = is_conv ? p->k / p->lanes : 1,
                              .pixels = is_conv ? (int64_t)p->oh * p->ow : p->k};
}

/* ---- Sizes of a call ---- */

static enum sol_status set_size(const struct step *step, int64_t size, int *to) {
    if (size > INT32_MAX)
        return fail(SOL_EUNSUPPORTED, "%s: a side of %lld is too large", step->name,
                    (long long)size);
    *to = (int)size;
    return SOL_OK;
}

static enum sol_status set_sizes(const struct step *step, const int64_t *arg,
                                 struct dnn_problem *p) {
    const int n = dnn_n_sizes(p->kind);
    const int64_t *size = arg + step->n_arg - n;
    int *const sides[] = {&p->h, &p->w, &p->oh, &p->ow}, *const products[] = {&p->k, &p->c};
    int *const *to = n == COUNT(sides) ? sides : products;
    p->batch_hint = max_i64(1, arg[DNN_BATCH]);
    if (p->kind == DNN_MATMUL) memcpy(p->matrix, size, sizeof p->matrix), size += DNN_N_MATRIX;
    for (int i = 0; size + i < arg + step->n_arg; i++) TRY(set_size(step, size[i], to[i]));
    return SOL_OK;
}

/* The scratch of the epilogue follows that of the implementation, so it moves if that changes. */
static enum sol_status adapt_plan(const struct step *step, const int64_t *arg, struct arena *arena,
                                  const struct step **out) {
    struct dnn_work work = *(const struct dnn_work *)step->data;
    struct step copy = *step;
    const size_t packed_size = work.plan.packed_size, partial_size = work.plan.partial_size,
                 scratch = dnn_step_scratch(&work.plan);
    TRY(set_sizes(step, arg, &work.plan.problem));
    work.plan.impl->plan(&work.plan);
    const bool is_fixed = !work.plan.problem.packs_b;
    if ((is_fixed && work.plan.packed_size != packed_size) ||
        work.plan.partial_size != partial_size)
        return fail(SOL_EBUG, "%s: the packed weight or partial results depend on the sizes",
                    step->name);
    copy.scratch_size = step->scratch_size - scratch + dnn_step_scratch(&work.plan);
    copy.data = arena_copy(arena, &work, sizeof work);
    *out = arena_copy(arena, &copy, sizeof copy);
    return SOL_OK;
}

/* Packs b of a matmul as its product, which is planned for the same sizes, reads it. */
static enum sol_status adapt_pack(const struct step *step, const int64_t *arg, struct arena *arena,
                                  const struct step **out) {
    struct dnn_plan plan = *(const struct dnn_plan *)step->data;
    struct step copy = *step;
    TRY(set_sizes(step, arg, &plan.problem));
    plan.impl->plan(&plan);
    copy.data = arena_copy(arena, &plan, sizeof plan);
    *out = arena_copy(arena, &copy, sizeof copy);
    return SOL_OK;
}

const struct step_kind step_dnn_pack = {
    .name = "dnn_pack", .run = pack_weight, .n_tasks = count_pack_tasks, .adapt = adapt_pack};

/* ---- Running ---- */

/* Without samples there is no y, but a gradient of a weight, which is 0. */
static int64_t count_tasks(const struct step *step, const int64_t *arg) {
    const struct dnn_work *work = step->data;
    if (!arg[DNN_BATCH] && work->plan.problem.kind != DNN_CONV_WEIGHT) return 0;
    return work->plan.impl->n_tasks(&work->plan, arg[DNN_BATCH]);
}

/* The first DNN_N_POINTERS pointers and DNN_N_ARGS arguments are the implementation's, the others the epilogue's. */
static void run_plan(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                     int64_t begin, int64_t end) {
    const struct dnn_work *work = step->data;
    struct finishing finishing = make_finishing(work, ptr, arg, scratch);
    struct dnn_call call = {.x = ptr[DNN_X],
                            .packed = ptr[DNN_PACKED],
                            .weight = ptr[DNN_WEIGHT],
                            .bias = ptr[DNN_BIAS],
                            .residual = ptr[DNN_RESIDUAL],
                            .scale = ptr[DNN_SCALE],
                            .shift = ptr[DNN_SHIFT],
                            .zero = ptr[DNN_ZERO],
                            .range = ptr[DNN_RANGE],
                            .y = ptr[DNN_Y],
                            .batch = arg[DNN_BATCH],
                            .x_stride = arg[DNN_X_STRIDE],
                            .y_stride = arg[DNN_Y_STRIDE],
                            .residual_stride = arg[DNN_RESIDUAL_STRIDE],
                            .epilogue = work->finish ? finish_tile : NULL,
                            .epilogue_user = &finishing};
    work->plan.impl->run(&work->plan, &call, scratch, begin, end);
}

const struct step_kind step_dnn = {
    .name = "dnn", .run = run_plan, .n_tasks = count_tasks, .adapt = adapt_plan};

/* ---- Partial results ---- */

static int64_t count_parts(const struct step *step, const int64_t *arg) {
    (void)arg;
    const struct dnn_plan *plan = step->data;
    return plan->impl->n_parts(plan);
}

static void join_parts(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
                       int64_t begin, int64_t end) {
    (void)scratch;
    const struct dnn_plan *plan = step->data;
    for (int64_t part = begin; part < end; part++)
        plan->impl->join(plan, arg[DNN_BATCH], ptr[0], ptr[1], part);
}

const struct step_kind step_dnn_join = {
    .name = "dnn_join", .run = join_parts, .n_tasks = count_parts};
