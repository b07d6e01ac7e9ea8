/*
 * Phases: layers that only BACKWARD needs wait until then, and it reads state as it was before the call.
 *
 *   plan_layouts -> [this file] -> plan_storage
 *
 * A layer runs as soon as its inputs are there (ir_add), so weights in the order that gradients need would be made with those of
 * FORWARD, and copies of saved values would be saved beside them. If only later phases read them, they wait: a constant layer until
 * PREPACK_BACKWARD, and one that only moves values until BACKWARD.
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

/* read_early[t]: FORWARD or PREPACK read tensor t, or the model returns it. */
static void wait_for_readers(const struct model *m, bool *read_early) {
    for (int i = m->layers.n - 1; i >= 0; i--) {
        struct layer *l = m->layers.at[i];
        struct tensor *out = l->out[0];
        if (!phase_is_backward(out->phase) && !read_early[out->id]) out->phase = last_phase(l);
        for (int k = 0; k < l->n_in; k++)
            if (!phase_is_backward(out->phase)) read_early[l->in[k]->id] = true;
    }
}

/* Does BACKWARD read the parameter, or a tensor that may be a view of it? */
static bool is_read_late(const struct plan *plan, const struct tensor *param) {
    const struct model *m = plan->model;
    bool *is_view = ARENA_ARRAY(plan->arena, bool, m->n_tensors + 1);
    is_view[param->id] = true;
    for (int i = 0; i < m->layers.n; i++) {
        const struct layer *l = m->layers.at[i];
        for (int k = 0; k < l->n_in; k++) {
            if (!is_view[l->in[k]->id]) continue;
            if (phase_is_backward(l->out[0]->phase)) return true;
            if (layer_infos[l->kind].traits & MOVEMENT || l->kind == LAYER_expand)
                is_view[l->out[0]->id] = true;
        }
    }
    return false;
}

/* All readers get one copy, which is saved. */
static enum sol_status save_state(const struct plan *plan, struct tensor *param) {
    struct model *m = plan->model;
    struct tensor *copy;
    if (!is_read_late(plan, param)) return SOL_OK;
    TRY(ir_add(m, LAYER_copy, 1, &param, NULL, NULL, &copy));
    for (int i = 0; i < m->layers.n - 1; i++)
        for (int k = 0; k < m->layers.at[i]->n_in; k++)
            if (m->layers.at[i]->in[k] == param) m->layers.at[i]->in[k] = copy;
    return SOL_OK;
}

enum sol_status plan_phases(const struct plan *plan) {
    struct model *m = plan->model;
    if (!ir_has_backward(m)) return SOL_OK;
    for (int i = 0; i < m->updates.n; i++) TRY(save_state(plan, m->updates.at[i].param));
    pass_clean(m);
    bool *read_early = ARENA_ARRAY(plan->arena, bool, m->n_tensors + 1);
    for (int i = 0; i < m->outputs.n; i++) read_early[m->outputs.at[i]->id] = true;
    for (int i = 0; i < m->updates.n; i++) read_early[m->updates.at[i].value->id] = true;
    wait_for_readers(m, read_early);
    return SOL_OK;
}
