/*
 * From a cluster of module RECURRENT, which is one recurrent layer or the gradient of one, to steps.
 *
 *   cluster -> with vectors: a pack step, step_recurrent  |  else: step_recurrent_plain
 *           -> the same with step_recurrent_grad
 *
 * The vector kernel takes f32 and a weight that depends on parameters only. All tensors are plain and dense (plan/storage.c).
 */
#include "dnn/emit.h"
#include "dnn/recurrent_grad.h"

static int64_t kind_of(const struct layer *l) {
    const enum layer_kind kind = ir_recurrent_kind(l->kind);
    return kind == LAYER_lstm       ? RECURRENT_LSTM
           : kind == LAYER_gru      ? RECURRENT_GRU
           : kind == LAYER_rnn_relu ? RECURRENT_RELU
                                    : RECURRENT_TANH;
}

static bool is_grad(const struct layer *l) { return ir_recurrent_kind(l->kind) != l->kind; }

static int64_t units_of(const struct layer *l) { return size_value(l->in[1]->dim[1]); }

static int64_t tile_of(const struct layer *l, int lanes) {
    return is_grad(l) ? dnn_recurrent_grad_tile(lanes) : dnn_recurrent_tile(kind_of(l), lanes);
}

static void fill_arguments(const struct layer *l, int lanes, struct size *arg) {
    const int64_t axis = l->attr.axis;
    arg[RECURRENT_KIND] = size_const(kind_of(l));
    arg[RECURRENT_REVERSE] = size_const(l->attr.reverse);
    arg[RECURRENT_AXIS] = size_const(axis);
    arg[RECURRENT_STEPS] = l->in[0]->dim[axis];
    arg[RECURRENT_SAMPLES] = l->in[0]->dim[1 - axis];
    arg[RECURRENT_UNITS] = size_const(units_of(l));
    arg[RECURRENT_TILE] = size_const(tile_of(l, lanes));
    arg[RECURRENT_IS_DOUBLE] = size_const(l->in[0]->dtype == SOL_F64);
}

/* ---- Packing ---- */

static const struct step_kind *packing_of(const struct layer *l) {
    return is_grad(l) ? &step_recurrent_grad_pack : &step_recurrent_pack;
}

/* Floats of the packed weight, with vectors of `lanes`. */
static int64_t packed_size(const struct layer *l, int lanes) {
    const int64_t units = units_of(l), n_tiles = ceil_div(units, tile_of(l, lanes));
    if (is_grad(l)) return n_tiles * tile_of(l, lanes) * units * dnn_recurrent_gates(kind_of(l));
    return n_tiles * units * dnn_recurrent_vectors(kind_of(l)) * lanes;
}

/* The packed weight of an earlier layer with the same weight and kind: a cell that runs once per step is packed once. */
static bool find_packed(const struct build *b, enum phase phase, const struct step_kind *pack,
                        const struct buffer_ref *weight, const struct size *arg,
                        struct buffer_ref *out) {
    for (int i = 0; i < b->steps[phase].n; i++) {
        const struct step *step = &b->steps[phase].at[i];
        if (step->kind != pack || step->ptr[0].kind != weight->kind ||
            step->ptr[0].index != weight->index ||
            !size_equal(step->ptr[0].offset, weight->offset) ||
            !size_equal(step->arg[RECURRENT_KIND], arg[RECURRENT_KIND]) ||
            !size_equal(step->arg[RECURRENT_UNITS], arg[RECURRENT_UNITS]))
            continue;
        *out = step->ptr[1];
        return true;
    }
    return false;
}

static enum sol_status emit_pack(struct build *b, const struct layer *l, int lanes,
                                 struct size *arg, struct buffer_ref *packed) {
    const int64_t size = packed_size(l, lanes) * (int64_t)sizeof(float);
    const struct buffer_ref weight = build_ref(b, l->in[1]);
    const enum phase phase = phase_of_packing(b->cluster->phase);
    if (find_packed(b, phase, packing_of(l), &weight, arg, packed)) return SOL_OK;
    *packed = build_packed(b, size, "packed weight");
    struct buffer_ref ptr[] = {weight, *packed};
    return build_step(b, phase,
                      &(struct step){.kind = packing_of(l),
                                     .n_ptr = COUNT(ptr),
                                     .ptr = ptr,
                                     .n_arg = RECURRENT_N_ARGS,
                                     .arg = arg,
                                     .bytes = size_const(size),
                                     .name = "pack",
                                     .module = "DNN",
                                     .layers = "pack"});
}

/* ---- The layer ---- */

/* Does the vector kernel compute it? */
static bool fits(const struct layer *l, const struct dnn_isa *isa) {
    return isa && l->in[0]->dtype == SOL_F32 && ir_is_constant(l->in[1]);
}

/* `ptr` has all pointers but the weight, which is ptr[weight]; `step` its functions. */
static enum sol_status emit_step(struct build *b, const struct cluster *cluster,
                                 const struct dnn_isa *isa, struct buffer_ref *ptr, int weight,
                                 struct step step) {
    const struct layer *l = cluster->layers.at[0];
    struct size arg[RECURRENT_N_ARGS];
    fill_arguments(l, fits(l, isa) ? isa->lanes : 1, arg);
    if (fits(l, isa)) TRY(emit_pack(b, l, isa->lanes, arg, &ptr[weight]));
    else ptr[weight] = build_ref(b, l->in[1]);
    step.data = fits(l, isa) ? isa->kernels : NULL;
    step.ptr = ptr;
    step.n_arg = COUNT(arg);
    step.arg = arg;
    step.flops = size_scale(ir_count(l->in[0], 0, 2),
                            2 * dnn_recurrent_gates(kind_of(l)) * units_of(l) * units_of(l));
    step.bytes = build_bytes(cluster);
    step.name =
        arena_printf(b->arena, "%s %lld", layer_infos[l->kind].name, (long long)units_of(l));
    step.module = "DNN";
    step.layers = build_describe(b, cluster);
    return build_step(b, cluster->phase, &step);
}

/* The last of the inputs before the lengths, if the kind has one more than the others. */
static struct tensor *more_of(const struct layer *l) {
    const bool has_more = dnn_recurrent_gates(kind_of(l)) > 1;
    return has_more ? l->in[layer_infos[l->kind].min_in - 1] : NULL;
}

static enum sol_status emit_grad(struct build *b, const struct cluster *cluster,
                                 const struct dnn_isa *isa) {
    const struct layer *l = cluster->layers.at[0];
    struct buffer_ref ptr[RECURRENT_GRAD_N_POINTERS] = {
        [RECURRENT_GRAD_GATES] = build_ref(b, l->in[0]),
        [RECURRENT_GRAD_DY] = build_ref(b, l->in[2]),
        [RECURRENT_GRAD_MORE] = build_ref(b, more_of(l)),
        [RECURRENT_GRAD_LENGTHS] = build_ref(b, ir_lengths(l)),
        [RECURRENT_GRAD_OUT] = build_ref(b, l->out[0])};
    return emit_step(
        b, cluster, isa, ptr, RECURRENT_GRAD_WEIGHT,
        (struct step){.kind = fits(l, isa) ? &step_recurrent_grad : &step_recurrent_grad_plain,
                      .n_ptr = COUNT(ptr)});
}

enum sol_status dnn_emit_recurrent(struct build *b, const struct cluster *cluster,
                                   const struct dnn_isa *isa) {
    const struct layer *l = cluster->layers.at[0];
    if (is_grad(l)) return emit_grad(b, cluster, isa);
    struct buffer_ref ptr[RECURRENT_N_POINTERS] = {
        [RECURRENT_X] = build_ref(b, l->in[0]),
        [RECURRENT_STATE] = build_ref(b, l->in[2]),
        [RECURRENT_MORE] = build_ref(b, more_of(l)),
        [RECURRENT_LENGTHS] = build_ref(b, ir_lengths(l)),
        [RECURRENT_Y] = build_ref(b, l->out[0]),
        [RECURRENT_KEPT] = build_ref(b, l->n_out > 1 ? l->out[1] : NULL)};
    return emit_step(b, cluster, isa, ptr, RECURRENT_WEIGHT,
                     (struct step){.kind = fits(l, isa) ? &step_recurrent : &step_recurrent_plain,
                                   .n_ptr = COUNT(ptr)});
}
