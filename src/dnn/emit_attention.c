/*
 * From a cluster of module ATTENTION, which is one attention layer, to a step.
 *
 *   cluster -> sizes, and the strides of each tensor's storage, as formulas -> dnn_attention_run
 *
 * The tensors broadcast along the outer dims by strides of 0. Groups of heads become two dims, [group][head of the group]: along the
 * second one, k and v have the stride 0.
 */
#include "dnn/attention.h"
#include "dnn/emit.h"

#include <string.h>

/* Scratch memory of a thread grows with the sizes of rows of k and v. */
#define MAX_ROW 2048

static const struct tensor *tensor_of(const struct layer *l, int pointer) {
    if (pointer == ATTENTION_Y) return l->out[0];
    return pointer < l->n_in ? l->in[pointer] : NULL;
}

static bool is_short_row(const struct tensor *t) {
    const struct size last = t->dim[t->rank - 1];
    return size_is_const(last) && size_value(last) <= MAX_ROW;
}

bool dnn_computes_attention(const struct layer *l) {
    if (l->out[0]->dtype != SOL_F32) return false;
    for (int i = 0; i < l->n_in; i++)
        if (l->in[i]->dtype != SOL_F32 && (i < 3 || l->in[i]->dtype != SOL_BOOL)) return false;
    return is_short_row(l->in[0]) && is_short_row(l->in[2]);
}

static struct size float_bits(double value) {
    const float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return size_const(bits);
}

static bool may_round(const struct layer *l) { return l->attr.factors == SOL_BF16; }

/* The stride of dim `d` of the output, counted from the last: 0 where `t` is broadcast. */
static struct size stride_of(const struct build *b, const struct tensor *t, int from_last) {
    const int d = t ? t->rank - 1 - from_last : -1;
    if (d < 0 || size_is(t->dim[d], 1)) return size_const(0);
    return b->plan->storage[t->id].stride[d];
}

/* Outer dims are aligned at the last one. The heads, which are dim 2 from the last, may be two. */
static void fill_strides(const struct build *b, const struct layer *l, int pointer,
                         struct size *arg) {
    const struct tensor *t = tensor_of(l, pointer);
    const int64_t group = ir_head_group(l);
    const bool shares = pointer == ATTENTION_K || pointer == ATTENTION_V;
    struct size *at = arg + attention_stride(pointer, 0);
    for (int i = 0; i < ATTENTION_OUTER; i++) at[i] = size_const(0);
    for (int i = ATTENTION_OUTER - 1, from_last = 2; from_last < l->out[0]->rank;
         i--, from_last++) {
        const struct size stride = stride_of(b, t, from_last);
        at[i] = stride;
        if (from_last > 2 || group == 1) continue;
        if (shares) at[i] = size_const(0);
        at[--i] = size_scale(stride, shares ? 1 : group);
    }
    at[ATTENTION_OUTER] = stride_of(b, t, 1);
    at[ATTENTION_OUTER + 1] = stride_of(b, t, 0);
}

static void fill_dims(const struct layer *l, struct size *dim) {
    const struct tensor *y = l->out[0];
    const int64_t group = ir_head_group(l);
    for (int i = 0; i < ATTENTION_OUTER; i++) dim[i] = size_const(1);
    for (int i = ATTENTION_OUTER - 1, d = y->rank - 3; d >= 0; i--, d--) {
        dim[i] = y->dim[d];
        if (d < y->rank - 3 || group == 1) continue;
        dim[i--] = size_const(group);
        dim[i] = size_const(size_value(y->dim[d]) / group);
    }
}

static void fill_arguments(const struct build *b, const struct layer *l, int lanes,
                           struct size *arg) {
    const struct tensor *q = l->in[0], *k = l->in[1], *v = l->in[2];
    arg[ATTENTION_M] = q->dim[q->rank - 2];
    arg[ATTENTION_N] = k->dim[k->rank - 2];
    arg[ATTENTION_D] = q->dim[q->rank - 1];
    arg[ATTENTION_E] = v->dim[v->rank - 1];
    arg[ATTENTION_SCALE] = float_bits(l->attr.scale);
    arg[ATTENTION_CAP] = float_bits(l->attr.softcap);
    arg[ATTENTION_CAUSAL] = size_const(l->attr.causal);
    arg[ATTENTION_STRICT] = size_const(l->attr.strict);
    arg[ATTENTION_MASK_SIZE] = size_const(l->n_in > 3 ? size_element(l->in[3]->dtype) : 4);
    arg[ATTENTION_LANES] = size_const(lanes);
    arg[ATTENTION_PAIRS] = size_const(may_round(l));
    fill_dims(l, arg + ATTENTION_DIM);
    for (int i = 0; i < ATTENTION_N_POINTERS; i++) fill_strides(b, l, i, arg);
}

/* Multiply-adds count twice. Causal attention has about half of them. */
static struct size count_flops(const struct layer *l) {
    const struct tensor *k = l->in[1], *v = l->in[2], *y = l->out[0];
    const int64_t values = size_value(k->dim[k->rank - 1]) + size_value(v->dim[v->rank - 1]);
    const struct size rows = ir_count(y, 0, y->rank - 1);
    return size_scale(size_mul(rows, k->dim[k->rank - 2]), values * (l->attr.causal ? 1 : 2));
}

enum sol_status dnn_emit_attention(struct build *b, const struct cluster *cluster,
                                   const struct dnn_isa *isa) {
    const struct layer *l = cluster->layers.at[0];
    const int64_t d = size_value(l->in[0]->dim[l->in[0]->rank - 1]),
                  e = size_value(l->in[2]->dim[l->in[2]->rank - 1]);
    struct buffer_ref ptr[ATTENTION_N_POINTERS];
    struct size arg[ATTENTION_N_ARGS];
    for (int i = 0; i < ATTENTION_N_POINTERS; i++) ptr[i] = build_ref(b, tensor_of(l, i));
    fill_arguments(b, l, isa->lanes, arg);
    return build_step(
        b, cluster->phase,
        &(struct step){
            .kind = &step_attention,
            .data = isa->kernels,
            .n_ptr = COUNT(ptr),
            .ptr = ptr,
            .n_arg = COUNT(arg),
            .arg = arg,
            .scratch_size = (size_t)dnn_attention_scratch(d, e, may_round(l)) * sizeof(float),
            .flops = count_flops(l),
            .bytes = build_bytes(cluster),
            .name = arena_printf(b->arena, "attention %lldx%lld", (long long)d, (long long)e),
            .module = "DNN",
            .layers = build_describe(b, cluster)});
}
