/*
 * Concats in place: each input is written straight into its slice of the output.
 *
 *   model with layouts -> [this file] -> plan->place: parent and offset of each tensor so placed
 *
 * A tensor can lie in one place only. Where it cannot (it is the caller's, or has a place already, or is itself only a
 * view), a copy is put in between. Concats are visited last to first, so that in a growing chain (cat(a,b), then cat(a,b,c))
 * the largest owns the memory and the smaller ones turn out to be its beginnings.
 */
#include "plan/plan.h"

/* Channels of every image in a row, so that a slice of channels is one piece of memory per image. */
static bool can_be_in_place(const struct layer *l) {
    if (l->kind != LAYER_concat || l->attr.axis != 1 || l->out[0]->is_constant) return false;
    for (int d = 1; d < l->out[0]->rank; d++)
        if (!size_is_const(l->out[0]->dim[d])) return false;
    return true;
}

/* Elements of one image of `t`. */
static struct size image_elements(const struct tensor *t) {
    struct size n = size_const(t->layout.block ? t->layout.stored : 1);
    for (int d = t->layout.block ? 2 : 1; d < t->rank; d++) n = size_mul(n, t->dim[d]);
    return n;
}

/* Who writes with an image stride of its choice: all but linear layers, gathers, sources, and layers that are mere views. */
static bool can_be_placed(const struct plan *plan, const struct tensor *t) {
    const struct layer *producer = t->producer;
    if (plan->place[t->id].parent || t->is_constant || ir_is_output(plan->model, t)) return false;
    if (layer_infos[producer->kind].traits & (SOURCE | WHOLE_INDEX) ||
        producer->kind == LAYER_linear)
        return false;
    if (movement_is_possible(producer) && !movement_keeps_batch(producer)) return false;
    return !view_is_alias(plan, producer) || can_be_in_place(producer);
}

/* Do l's inputs already lie one behind the other, from `first` on, in one parent? */
static bool is_beginning(const struct plan *plan, const struct layer *l) {
    const struct placement *first = &plan->place[l->in[0]->id];
    if (plan->place[l->out[0]->id].parent) return false; /* it lies elsewhere already */
    if (!first->parent || ir_is_output(plan->model, l->out[0])) return false;
    struct size at = first->offset;
    for (int i = 0; i < l->n_in; i++) {
        const struct placement *place = &plan->place[l->in[i]->id];
        if (place->parent != first->parent || !size_equal(place->offset, at)) return false;
        at = size_add(at, image_elements(l->in[i]));
    }
    return true;
}

static enum sol_status insert_copy(struct plan *plan, struct tensor **in) {
    struct tensor *from = *in;
    TRY(ir_add(plan->model, LAYER_copy, 1, in, NULL, from->producer->origin, in));
    (*in)->layout = from->layout;
    return SOL_OK;
}

static bool appears_before(const struct layer *l, int i) {
    for (int k = 0; k < i; k++)
        if (l->in[k] == l->in[i]) return true;
    return false;
}

static enum sol_status place_inputs(struct plan *plan, struct layer *l) {
    struct size at = size_const(0);
    for (int i = 0; i < l->n_in; i++) {
        if (!can_be_placed(plan, l->in[i]) || appears_before(l, i)) {
            TRY(insert_copy(plan, &l->in[i]));
            /* A parameter's copy too is written at every call, with its concat. */
            l->in[i]->is_constant = false;
        }
        plan->place[l->in[i]->id] = (struct placement){l->out[0], at};
        at = size_add(at, image_elements(l->in[i]));
    }
    return SOL_OK;
}

/* Linear layers, and movements across images, read tensors whose images follow each other. */
static bool needs_dense(const struct layer *l) {
    return l->kind == LAYER_linear || (movement_is_possible(l) && !movement_keeps_batch(l));
}

static enum sol_status make_inputs_dense(struct plan *plan) {
    struct model *m = plan->model;
    for (int i = 0, n = m->layers.n; i < n; i++) {
        struct layer *l = m->layers.at[i];
        if (needs_dense(l) && view_lies_apart(plan, l->in[0])) TRY(insert_copy(plan, &l->in[0]));
    }
    return SOL_OK;
}

/* Every concat input may need a copy; each is one more tensor. */
static int count_tensors(const struct model *m) {
    int n = m->n_tensors + m->layers.n;
    for (int i = 0; i < m->layers.n; i++)
        if (m->layers.at[i]->kind == LAYER_concat) n += m->layers.at[i]->n_in;
    return n;
}

enum sol_status plan_concats(struct plan *plan) {
    struct model *m = plan->model;
    plan->place = ARENA_ARRAY(plan->arena, struct placement, count_tensors(m));
    for (int i = m->layers.n - 1; i >= 0; i--) {
        struct layer *l = m->layers.at[i];
        if (!can_be_in_place(l)) continue;
        if (is_beginning(plan, l)) plan->place[l->out[0]->id] = plan->place[l->in[0]->id];
        else TRY(place_inputs(plan, l));
    }
    return make_inputs_dense(plan);
}
