/*
 * Computes f16 and bf16 as f32: inputs and parameters are widened, outputs are rounded, and so is what the model casts to such a
 * type. Other values are not rounded, so that results are closer to the exact ones than if each layer rounded.
 *
 *   x: f16 -> cast f32 -> the same layers in f32 -> cast f16 -> output
 *
 * Outputs whose values are only moved stay as they are: the layers that move them are kept.
 *
 * Products of bf16 stay products of bf16: their layers get the attribute `factors`, by which kernels may round what they multiply.
 */
#include "pass/pass.h"

static bool is_half(enum sol_dtype dtype) { return dtype == SOL_F16 || dtype == SOL_BF16; }
static enum sol_dtype wide(enum sol_dtype dtype) { return is_half(dtype) ? SOL_F32 : dtype; }

static struct tensor *cast(struct model *m, struct tensor *x, enum sol_dtype to) {
    struct attr attr = ir_default_attr();
    attr.dtype = to;
    return x->dtype == to ? x : make_layer(m, LAYER_cast, 1, &x, &attr, x->producer->origin);
}

static bool has_half(const struct model *m) {
    for (int i = 0; i < m->layers.n; i++)
        for (int k = 0; k < m->layers.at[i]->n_out; k++)
            if (is_half(m->layers.at[i]->out[k]->dtype)) return true;
    return false;
}

/* A host's function takes and gives the types that were declared, so its inputs are rounded. */
static enum sol_status widen_host(struct model *m, struct layer *l, struct tensor **now) {
    for (int i = 0; i < l->n_in; i++)
        if (!(l->in[i] = cast(m, now[l->in[i]->id], l->in[i]->dtype))) return SOL_EBUG;
    for (int k = 0; k < l->n_out; k++)
        if (!(now[l->out[k]->id] = cast(m, l->out[k], wide(l->out[k]->dtype)))) return SOL_EBUG;
    return SOL_OK;
}

static bool has_factors(const struct layer *l) {
    return l->kind == LAYER_conv || l->kind == LAYER_linear || l->kind == LAYER_matmul ||
           l->kind == LAYER_attention;
}

/* The layer again, on the widened inputs. A cast to f16 or bf16 still rounds. */
static struct tensor *widen_layer(struct model *m, const struct layer *l, struct tensor **now) {
    struct tensor **in = ARENA_ARRAY(m->arena, struct tensor *, l->n_in + 1);
    struct attr attr = l->attr;
    bool is_new = is_half(attr.dtype);
    if (layer_infos[l->kind].traits & SOURCE && l->kind != LAYER_scalar)
        return cast(m, l->out[0], wide(l->out[0]->dtype));
    for (int i = 0; i < l->n_in; i++) is_new |= (in[i] = now[l->in[i]->id]) != l->in[i];
    attr.dtype = wide(attr.dtype);
    if (has_factors(l) && l->in[0]->dtype == SOL_BF16) attr.factors = SOL_BF16;
    if (!is_new) return l->out[0];
    if (l->kind == LAYER_cast && is_half(l->attr.dtype)) in[0] = cast(m, in[0], l->attr.dtype);
    if (l->kind == LAYER_cast && in[0]) return cast(m, in[0], attr.dtype);
    return make_layer(m, l->kind, l->n_in, in, &attr, l->origin);
}

static bool is_moving(const struct layer *l) {
    return (layer_infos[l->kind].traits & MOVEMENT) || l->kind == LAYER_concat ||
           l->kind == LAYER_expand || l->kind == LAYER_pad || l->kind == LAYER_gather;
}

/* Does the layer, which reads what it read before, give the same values as the widened one? */
static bool is_kept(const struct layer *l, struct tensor *const *now, const bool *kept) {
    const struct tensor *out = l->out[0];
    if (!is_half(out->dtype)) return now[out->id] == out;
    if (layer_infos[l->kind].traits & SOURCE) return l->kind != LAYER_scalar;
    bool moves = is_moving(l);
    for (int i = 0; i < l->n_in; i++) moves = moves && kept[l->in[i]->id];
    return moves;
}

enum sol_status pass_widen(struct model *m) {
    if (!has_half(m)) return SOL_OK;
    bool *kept = ARENA_ARRAY(m->arena, bool, m->n_tensors + 1);
    struct tensor **now = ARENA_ARRAY(m->arena, struct tensor *, m->n_tensors + 1);
    for (int i = 0, n = m->layers.n; i < n; i++) {
        struct layer *l = m->layers.at[i];
        if (l->kind == LAYER_host) TRY(widen_host(m, l, now));
        else if (!(now[l->out[0]->id] = widen_layer(m, l, now))) return SOL_EBUG;
        else {
            kept[l->out[0]->id] = is_kept(l, now, kept);
            ir_copy_gates(l, now[l->out[0]->id], now);
        }
    }
    for (int i = 0; i < m->outputs.n; i++) {
        struct tensor *t = m->outputs.at[i];
        if (kept[t->id]) continue;
        if (!(m->outputs.at[i] = cast(m, now[t->id], t->dtype))) return SOL_EBUG;
    }
    for (int i = 0; i < m->updates.n; i++) {
        struct tensor **value = &m->updates.at[i].value;
        if (kept[(*value)->id]) continue;
        if (!(*value = cast(m, now[(*value)->id], (*value)->dtype))) return SOL_EBUG;
    }
    return SOL_OK;
}
