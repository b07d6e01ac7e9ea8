/*
 * Phases: layers that only BACKWARD needs wait until then, and it reads state as it was before the call.
 *
 *   plan_layouts -> [this file] -> plan_storage
 *
 * A layer runs as soon as its inputs are there (ir_add), so weights in the order that gradients need would be made with those of
 * FORWARD, and copies of saved values would be saved beside them. If only later phases read them, they wait: a constant layer until
 * PREPACK_BACKWARD, and one that only moves values until BACKWARD. A turned weight waits for its matmul, which can read the weight
 * itself with other strides (anchor.c): weights change from call to call, so nothing is gained by turning them earlier.
 *
 * FORWARD ends by writing the new values of updated parameters. So BACKWARD reads copies of the old ones, which FORWARD saves.
 *
 * Invariant: a layer waits only if all its readers come later. No step of BACKWARD reads an updated parameter.
 */
#include "pass/pass.h"
#include "plan/plan.h"

/* Does it have as many values as its input, or more? Then nothing less is saved by running it early. */
static bool only_moves(const struct layer *l) {
    return l->kind == LAYER_copy || l->kind == LAYER_reshape || l->kind == LAYER_permute ||
           l->kind == LAYER_expand;
}

static enum phase last_phase(const struct layer *l) {
    if (layer_infos[l->kind].traits & SOURCE || l->kind == LAYER_host) return l->out[0]->phase;
    if (l->out[0]->phase == PREPACK) return PREPACK_BACKWARD;
    return only_moves(l) && !l->in[0]->is_updated ? BACKWARD : l->out[0]->phase;
}

/* Who reads a tensor. */
struct readers {
    enum phase first; /* the earliest phase of them; N_PHASES: nobody reads it */
    bool matmul;      /* one of them is a matmul */
};

static void add_reader(struct readers *r, const struct layer *l) {
    if (l->out[0]->phase < r->first) r->first = l->out[0]->phase;
    r->matmul |= l->kind == LAYER_matmul;
}

static void wait_for_readers(const struct model *m, struct readers *readers) {
    for (int i = m->layers.n - 1; i >= 0; i--) {
        struct layer *l = m->layers.at[i];
        struct tensor *out = l->out[0];
        const struct readers *r = &readers[out->id];
        if (l->kind == LAYER_permute && phase_is_prepack(out->phase) && r->matmul)
            out->phase = r->first;
        else if (!phase_is_backward(out->phase) && phase_is_backward(r->first))
            out->phase = last_phase(l);
        for (int k = 0; k < l->n_in; k++) add_reader(&readers[l->in[k]->id], l);
    }
}

/* Does BACKWARD read the parameter, or a tensor that may be a view of it? Movements have one input, so its views are a tree. */
static bool is_read_late(const struct tensor *t) {
    for (int i = 0; i < t->readers.n; i++) {
        const struct layer *l = t->readers.at[i];
        if (phase_is_backward(l->out[0]->phase)) return true;
        const bool may_be_view = layer_infos[l->kind].traits & MOVEMENT || l->kind == LAYER_expand;
        if (may_be_view && is_read_late(l->out[0])) return true;
    }
    return false;
}

/* All readers get one copy, which is saved. */
static enum sol_status save_state(struct model *m, struct tensor *param) {
    struct tensor *copy;
    if (!is_read_late(param)) return SOL_OK;
    TRY(ir_add(m, LAYER_copy, 1, &param, NULL, NULL, &copy));
    for (int i = 0; i < param->readers.n; i++) {
        const struct layer *l = param->readers.at[i];
        for (int k = 0; k < l->n_in && l != copy->producer; k++)
            if (l->in[k] == param) l->in[k] = copy;
    }
    return SOL_OK;
}

enum sol_status plan_phases(const struct plan *plan) {
    struct model *m = plan->model;
    if (!ir_has_backward(m)) return SOL_OK;
    for (int i = 0; i < m->updates.n; i++) TRY(save_state(m, m->updates.at[i].param));
    pass_clean(m);
    struct readers *readers = ARENA_ARRAY(plan->arena, struct readers, m->n_tensors + 1);
    for (int i = 0; i <= m->n_tensors; i++) readers[i].first = N_PHASES;
    for (int i = 0; i < m->outputs.n; i++) readers[m->outputs.at[i]->id].first = FORWARD;
    for (int i = 0; i < m->updates.n; i++) readers[m->updates.at[i].value->id].first = FORWARD;
    wait_for_readers(m, readers);
    return SOL_OK;
}
