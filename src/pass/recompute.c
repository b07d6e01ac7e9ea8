/*
 * Decides which values of the forward call are saved for the backward call, and which are computed again.
 *
 *   y = x * scale + shift, read by both calls   ->   y, and y' = x * scale + shift in BACKWARD, which joins the kernel that reads it
 *
 * A value is computed again if only cheap layers (pointwise ones, broadcasts) lie between it and values that are there in BACKWARD:
 * saved ones, parameters, inputs of the call, and results of reductions, which are small. Then it costs neither the time to write and read it nor memory. A value that a product
 * reads is saved: the product's kernel needs it in memory.
 *
 * Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, is the general form; here only
 * layers whose result need not be stored are computed twice.
 *
 * Invariant: the copies belong to BACKWARD, though their inputs would be there in FORWARD.
 */
#include "pass/pass.h"

/* By tensor id. */
struct recompute {
    struct model *m;
    int n;                /* of these arrays */
    bool *read_late;      /* a layer of BACKWARD reads it */
    bool *stored;         /* .. and needs it in memory */
    bool *there;          /* BACKWARD has it, or can compute it again */
    struct tensor **copy; /* in BACKWARD; NULL: none yet */
};

static bool is_backward(const struct layer *l) { return l->out[0]->phase == BACKWARD; }

/* Its result is a formula per point, or the same values in another shape. */
static bool is_cheap(const struct layer *l) {
    return layer_infos[l->kind].traits & POINTWISE || l->kind == LAYER_expand ||
           l->kind == LAYER_reshape || l->kind == LAYER_arange;
}

static bool is_small(const struct layer *l) { return layer_infos[l->kind].traits & REDUCTION; }

/* DFP's layers read values that their kernel computes; others read memory. */
static bool reads_memory(const struct layer *l) { return !is_cheap(l) && !is_small(l); }

static void find_readers(struct recompute *r) {
    for (int i = 0; i < r->m->layers.n; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_in && is_backward(l); k++) {
            r->read_late[l->in[k]->id] = true;
            r->stored[l->in[k]->id] |= reads_memory(l);
        }
    }
}

static bool inputs_are_there(const struct recompute *r, const struct layer *l) {
    for (int k = 0; k < l->n_in; k++)
        if (!r->there[l->in[k]->id]) return false;
    return true;
}

static bool is_there(const struct recompute *r, const struct layer *l, const struct tensor *t) {
    if (t->phase != FORWARD || layer_infos[l->kind].traits & SOURCE) return true;
    if (is_cheap(l) && !r->stored[t->id]) return inputs_are_there(r, l);
    return r->read_late[t->id] || is_small(l);
}

static void find_there(struct recompute *r) {
    for (int i = 0; i < r->m->layers.n; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_out; k++) r->there[l->out[k]->id] = is_there(r, l, l->out[k]);
    }
}

/* Is `t` computed by a cheap layer of FORWARD, from values that are there? */
static bool may_repeat(const struct recompute *r, const struct tensor *t) {
    const struct layer *l = t->producer;
    return t->phase == FORWARD && is_cheap(l) && !r->stored[t->id] && inputs_are_there(r, l);
}

/* The copies of a chain of layers, from its first to its last: layers are visited in topological order, and all of a chain may be
 * repeated. */
static enum sol_status repeat(struct recompute *r, const struct layer *l) {
    struct tensor **in = ARENA_ARRAY(r->m->arena, struct tensor *, l->n_in + 1);
    for (int k = 0; k < l->n_in; k++) {
        struct tensor *copy = r->copy[l->in[k]->id];
        in[k] = copy ? copy : l->in[k];
    }
    struct tensor **out = &r->copy[l->out[0]->id];
    TRY(ir_add(r->m, l->kind, l->n_in, in, &l->attr, l->origin, out));
    ir_set_backward(*out);
    return SOL_OK;
}

/* needed[t]: a layer of BACKWARD reads t, or the copy of a layer will. */
static void find_needed(const struct recompute *r, int n_layers, bool *needed) {
    for (int i = n_layers - 1; i >= 0; i--) {
        const struct layer *l = r->m->layers.at[i];
        const struct tensor *t = l->out[0];
        needed[t->id] |= r->read_late[t->id];
        if (l->n_out > 1 || !needed[t->id] || !may_repeat(r, t)) continue;
        for (int k = 0; k < l->n_in; k++) needed[l->in[k]->id] = true;
    }
}

static void redirect(const struct recompute *r, struct layer *l) {
    for (int k = 0; k < l->n_in; k++)
        if (l->in[k]->id < r->n && r->copy[l->in[k]->id]) l->in[k] = r->copy[l->in[k]->id];
}

enum sol_status pass_recompute(struct model *m) {
    const int n_layers = m->layers.n, n = m->n_tensors;
    if (!ir_has_backward(m)) return SOL_OK;
    struct recompute r = {.m = m,
                          .n = n,
                          .read_late = ARENA_ARRAY(m->arena, bool, n + 1),
                          .stored = ARENA_ARRAY(m->arena, bool, n + 1),
                          .there = ARENA_ARRAY(m->arena, bool, n + 1),
                          .copy = ARENA_ARRAY(m->arena, struct tensor *, n + 1)};
    bool *needed = ARENA_ARRAY(m->arena, bool, n + 1);
    find_readers(&r);
    find_there(&r);
    find_needed(&r, n_layers, needed);
    for (int i = 0; i < n_layers; i++) {
        const struct layer *l = m->layers.at[i];
        if (l->n_out == 1 && needed[l->out[0]->id] && may_repeat(&r, l->out[0])) TRY(repeat(&r, l));
    }
    for (int i = 0; i < n_layers; i++)
        if (is_backward(m->layers.at[i])) redirect(&r, m->layers.at[i]);
    return SOL_OK;
}
