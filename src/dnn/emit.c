/*
 * From a DNN cluster to steps.
 *
 *   cluster -> problem.c -> choice.c: an implementation -> a pack step in a phase of prepack, a step in the phase of the cluster
 *
 * The device passes the generated epilogue. This file appends the epilogue's pointers and arguments to those of the step;
 * step_dnn passes it to the implementation as a callback per finished region.
 */
#include "dnn/emit.h"

#include "dnn/choice.h"
#include "dnn/problem.h"
#include "dnn/step.h"

#include <string.h>

/* The last arguments of an open matmul's steps. */
static void set_matrices(const struct dnn_matrix_sizes *m, struct size *arg) {
    memcpy(arg, m->at, sizeof m->at);
    arg[DNN_N_MATRIX] = m->k, arg[DNN_N_MATRIX + 1] = m->c;
}

/* Those of an open conv, or of the gradient of its weight. */
static void set_sides(const struct layer *anchor, struct size *arg) {
    const struct tensor *image[] = {anchor->in[0], dnn_problem_y(anchor)};
    for (int i = 0; i < 4; i++) arg[i] = image[i / 2]->dim[image[i / 2]->rank - 2 + i % 2];
}

/*
 * A weight that is trained is packed right before each use, into memory of the call: it changes after each step, so it is packed as
 * often as it would be once per version, and packed weights of other layers take no memory meanwhile. So is b of a matmul.
 */
static enum sol_status emit_pack(struct build *b, const struct cluster *cluster,
                                 const struct dnn_plan *plan,
                                 const struct dnn_matrix_sizes *matrices,
                                 struct buffer_ref *packed) {
    const bool is_matmul = plan->problem.kind == DNN_MATMUL, open = is_matmul && plan->problem.open;
    const struct tensor *w = is_matmul ? cluster->dnn->w : cluster->dnn->anchor->in[1];
    const bool each_call = w->is_trained || is_matmul;
    const enum phase phase = each_call ? cluster->phase : phase_of_packing(cluster->phase);
    const struct size size = open ? matrices->packed : size_const((int64_t)plan->packed_size);
    *packed = each_call ? build_temporary(b, size, "packed weight")
                        : build_packed(b, (int64_t)plan->packed_size, "packed weight");
    struct buffer_ref ptr[] = {build_ref(b, w), *packed};
    struct size arg[1 + DNN_N_MATRIX + 2];
    if (open) {
        arg[DNN_BATCH] = dnn_problem_rows(dnn_problem_output(cluster));
        set_matrices(matrices, arg + 1);
    }
    struct step step = {.kind = &step_dnn_pack,
                        .is_open = open,
                        .data = plan,
                        .n_ptr = COUNT(ptr),
                        .ptr = ptr,
                        .n_arg = open ? COUNT(arg) : 0,
                        .arg = arg,
                        .bytes = size,
                        .name = "pack",
                        .module = "DNN",
                        .layers = "pack"};
    return build_step(b, phase, &step);
}

/* Elements from one sample of t to the next. Samples of a conv may have gaps between them (in a concat); the rows of a linear
 * layer are dense. */
static struct size batch_stride(const struct build *b, const struct tensor *t, bool is_conv) {
    if (!t) return size_const(0);
    return is_conv ? b->plan->storage[t->id].stride[0] : t->dim[t->rank - 1];
}

/* Each value of y, or of a transposed convolution's x, takes part in the products of all other dims of the weight. */
static struct size count_flops(const struct cluster *cluster) {
    const struct layer *l = cluster->dnn->anchor;
    const struct tensor *y = dnn_problem_y(l), *w = dnn_problem_weight(l);
    int64_t products = 1;
    if (l->kind == LAYER_matmul)
        return size_scale(size_mul(ir_elements(y), w->dim[w->rank - 2]), 2);
    for (int d = 1; d < w->rank; d++) products *= size_value(w->dim[d]);
    return size_scale(ir_elements(l->kind == LAYER_conv_transpose ? l->in[0] : y), 2 * products);
}

static const char *name_step(struct build *b, const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    if (p->kind == DNN_LINEAR || p->kind == DNN_MATMUL)
        return arena_printf(b->arena, "%s %d->%d", dnn_problem_name(p), p->c, p->k);
    return arena_printf(b->arena, "%s %s %dx%d/%d %d->%d @%dx%d",
                        p->transposed ? "transposed conv" : dnn_problem_name(p), plan->impl->name,
                        p->kh, p->kw, p->sh, p->c_model, p->k_model, p->h, p->w);
}

/* Appends the step that runs the plan. Its y is the cluster's output: the implementation writes it, then the epilogue works
 * on it in place. */
static enum sol_status emit_run(struct build *b, const struct cluster *cluster,
                                const struct dnn_work *work, const struct sol_candidate *candidate,
                                const struct dnn_matrix_sizes *matrices, struct buffer_ref packed,
                                struct buffer_ref partial, const struct step *epilogue) {
    const struct dnn_plan *plan = &work->plan;
    const struct layer *anchor = cluster->dnn->anchor;
    const bool is_weight = anchor->kind == LAYER_conv_weight;
    const struct tensor *y = is_weight ? dnn_problem_y(anchor) : dnn_problem_output(cluster),
                        *x = cluster->dnn->x;
    const bool is_conv = dnn_problem_has_images(anchor), open = plan->problem.open;
    const bool is_quantized = ir_is_quantized(anchor);
    const int n_ptr = DNN_N_POINTERS + epilogue->n_ptr, n_last = DNN_N_ARGS + epilogue->n_arg,
              n_arg = n_last + (open ? dnn_n_sizes(plan->problem.kind) : 0);
    struct buffer_ref *ptr = ARENA_ARRAY(b->arena, struct buffer_ref, n_ptr);
    struct size *arg = ARENA_ARRAY(b->arena, struct size, n_arg);
    ptr[DNN_X] = build_ref(b, x);
    ptr[DNN_PACKED] = packed;
    ptr[DNN_WEIGHT] = build_ref(b, plan->packed_size ? NULL : cluster->dnn->w);
    ptr[DNN_BIAS] = build_ref(b, dnn_problem_bias(anchor));
    ptr[DNN_RESIDUAL] = build_ref(b, cluster->dnn->residual);
    ptr[DNN_SCALE] = build_ref(b, is_quantized ? anchor->in[QUANT_SCALE] : cluster->dnn->scale);
    ptr[DNN_SHIFT] = build_ref(b, cluster->dnn->shift);
    ptr[DNN_ZERO] = build_ref(b, is_quantized ? anchor->in[QUANT_ZERO] : NULL);
    ptr[DNN_RANGE] = build_ref(b, anchor->n_in > QUANT_RANGE ? anchor->in[QUANT_RANGE] : NULL);
    ptr[DNN_Y] = plan->partial_size ? partial : build_ref(b, dnn_problem_output(cluster));
    arg[DNN_BATCH] = is_conv ? x->dim[0] : dnn_problem_rows(y);
    arg[DNN_X_STRIDE] = batch_stride(b, x, is_conv);
    arg[DNN_Y_STRIDE] = batch_stride(b, y, is_conv);
    arg[DNN_RESIDUAL_STRIDE] = batch_stride(b, cluster->dnn->residual, is_conv);
    for (int i = DNN_N_POINTERS; i < n_ptr; i++) ptr[i] = epilogue->ptr[i - DNN_N_POINTERS];
    for (int i = DNN_N_ARGS; i < n_last; i++) arg[i] = epilogue->arg[i - DNN_N_ARGS];
    if (open && is_conv) set_sides(anchor, arg + n_last);
    else if (open) set_matrices(matrices, arg + n_last);
    struct step step = {.kind = &step_dnn,
                        .is_open = open,
                        .data = work,
                        .n_ptr = n_ptr,
                        .ptr = ptr,
                        .n_arg = n_arg,
                        .arg = arg,
                        .scratch_size = dnn_step_scratch(plan) + epilogue->scratch_size,
                        .flops = count_flops(cluster),
                        .bytes = build_bytes(cluster),
                        .name = name_step(b, plan),
                        .module = "DNN",
                        .layers = build_describe(b, cluster),
                        .implementation = plan->impl->name,
                        .n_candidates = dnn_count_impls(b),
                        .candidate = candidate};
    return build_step(b, b->cluster->phase, &step);
}

/* Appends the step that makes the cluster's output of partial results. */
static enum sol_status emit_join(struct build *b, const struct cluster *cluster,
                                 const struct dnn_plan *plan, struct buffer_ref partial) {
    struct buffer_ref ptr[] = {partial, build_ref(b, dnn_problem_output(cluster))};
    struct step step = {.kind = &step_dnn_join,
                        .data = plan,
                        .n_ptr = COUNT(ptr),
                        .ptr = ptr,
                        .n_arg = 1,
                        .arg = &cluster->dnn->x->dim[0],
                        .bytes = size_const((int64_t)plan->partial_size),
                        .name = "sum of parts",
                        .module = "DNN",
                        .layers = build_describe(b, cluster)};
    return build_step(b, b->cluster->phase, &step);
}

enum sol_status dnn_emit(struct build *b, const struct cluster *cluster, const struct dnn_isa *isa,
                         dnn_tune *tune, const struct step *epilogue) {
    static const struct step none;
    struct dnn_work *work = ARENA_NEW(b->keep, struct dnn_work);
    struct dnn_matrix_sizes matrices;
    if (cluster->dnn->anchor->kind == LAYER_matmul)
        dnn_problem_matrices(b, cluster, dnn_problem_output(cluster), &matrices);
    struct dnn_problem problem = dnn_problem_make(b, cluster, &matrices);
    struct buffer_ref packed = {.kind = BUFFER_NONE}, partial = packed;
    struct sol_candidate *candidate =
        ARENA_ARRAY(b->keep, struct sol_candidate, dnn_count_impls(b) + 1);
    TRY(dnn_choose(b, &problem, isa, tune, candidate, &work->plan));
    if (!epilogue) epilogue = &none;
    work->finish = epilogue->data;
    if (work->plan.packed_size) TRY(emit_pack(b, cluster, &work->plan, &matrices, &packed));
    if (work->plan.partial_size)
        partial =
            build_temporary(b, size_const((int64_t)work->plan.partial_size), "parts of a gradient");
    TRY(emit_run(b, cluster, work, candidate, &matrices, packed, partial, epilogue));
    return work->plan.partial_size ? emit_join(b, cluster, &work->plan, partial) : SOL_OK;
}
