/*
 * From a cluster of module RECURRENT, which is one recurrent layer, to steps.
 *
 *   cluster -> with vectors: a pack step, dnn_recurrent_run  |  else: dnn_recurrent_run_plain
 *
 * The vector kernel takes f32 and a weight that depends on parameters only. All tensors are plain and dense (plan/storage.c).
 */
#include "dnn/emit.h"
#include "dnn/recurrent.h"

static int64_t kind_of(const struct layer *l) {
    return l->kind == LAYER_lstm       ? RECURRENT_LSTM
           : l->kind == LAYER_gru      ? RECURRENT_GRU
           : l->kind == LAYER_rnn_relu ? RECURRENT_RELU
                                       : RECURRENT_TANH;
}

static int64_t units_of(const struct layer *l) { return size_value(l->in[1]->dim[1]); }

static void fill_arguments(const struct layer *l, int lanes, struct size *arg) {
    const int64_t axis = l->attr.axis, kind = kind_of(l);
    arg[RECURRENT_KIND] = size_const(kind);
    arg[RECURRENT_REVERSE] = size_const(l->attr.reverse);
    arg[RECURRENT_AXIS] = size_const(axis);
    arg[RECURRENT_STEPS] = l->in[0]->dim[axis];
    arg[RECURRENT_SAMPLES] = l->in[0]->dim[1 - axis];
    arg[RECURRENT_UNITS] = size_const(units_of(l));
    arg[RECURRENT_TILE] = size_const(dnn_recurrent_tile(kind, lanes));
    arg[RECURRENT_IS_DOUBLE] = size_const(l->in[0]->dtype == SOL_F64);
}

/* The packed weight of an earlier layer with the same weight and kind: a cell that runs once per step is packed once. */
static bool find_packed(const struct build *b, enum phase phase, const struct buffer_ref *weight,
                        const struct size *arg, struct buffer_ref *out) {
    for (int i = 0; i < b->steps[phase].n; i++) {
        const struct step *step = &b->steps[phase].at[i];
        if (step->run != dnn_recurrent_pack || step->ptr[0].kind != weight->kind ||
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
    const int64_t tile = dnn_recurrent_tile(kind_of(l), lanes), units = units_of(l);
    const int64_t vectors = dnn_recurrent_vectors(kind_of(l));
    const int64_t size = ceil_div(units, tile) * units * vectors * lanes * (int64_t)sizeof(float);
    const struct buffer_ref weight = build_ref(b, l->in[1]);
    const enum phase phase = phase_of_packing(b->cluster->phase);
    if (find_packed(b, phase, &weight, arg, packed)) return SOL_OK;
    *packed = build_packed(b, size, "packed weight");
    struct buffer_ref ptr[] = {weight, *packed};
    return build_step(b, phase,
                      &(struct step){.run = dnn_recurrent_pack,
                                     .n_tasks = dnn_recurrent_n_pack_tasks,
                                     .n_ptr = COUNT(ptr),
                                     .ptr = ptr,
                                     .n_arg = RECURRENT_N_ARGS,
                                     .arg = arg,
                                     .bytes = size_const(size),
                                     .name = "pack",
                                     .module = "DNN",
                                     .layers = "pack"});
}

enum sol_status dnn_emit_recurrent(struct build *b, const struct cluster *cluster,
                                   const struct dnn_isa *isa) {
    const struct layer *l = cluster->layers.at[0];
    const bool fits = isa && l->in[0]->dtype == SOL_F32 && ir_is_constant(l->in[1]);
    const bool has_more = l->kind == LAYER_lstm || l->kind == LAYER_gru;
    struct buffer_ref ptr[RECURRENT_N_POINTERS] = {
        [RECURRENT_X] = build_ref(b, l->in[0]),
        [RECURRENT_STATE] = build_ref(b, l->in[2]),
        [RECURRENT_MORE] = build_ref(b, has_more ? l->in[3] : NULL),
        [RECURRENT_LENGTHS] = build_ref(b, ir_lengths(l)),
        [RECURRENT_Y] = build_ref(b, l->out[0])};
    struct size arg[RECURRENT_N_ARGS];
    fill_arguments(l, fits ? isa->lanes : 1, arg);
    if (fits) TRY(emit_pack(b, l, isa->lanes, arg, &ptr[RECURRENT_WEIGHT]));
    else ptr[RECURRENT_WEIGHT] = build_ref(b, l->in[1]);
    return build_step(
        b, cluster->phase,
        &(struct step){.run = fits ? dnn_recurrent_run : dnn_recurrent_run_plain,
                       .n_tasks = dnn_recurrent_n_tasks,
                       .on_caller = fits,
                       .data = fits ? isa->kernels : NULL,
                       .n_ptr = COUNT(ptr),
                       .ptr = ptr,
                       .n_arg = COUNT(arg),
                       .arg = arg,
                       .flops = size_scale(ir_elements(l->in[0]), 2 * units_of(l)),
                       .bytes = build_bytes(cluster),
                       .name = arena_printf(b->arena, "%s %lld", layer_infos[l->kind].name,
                                            (long long)units_of(l)),
                       .module = "DNN",
                       .layers = build_describe(b, cluster)});
}
