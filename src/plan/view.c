/*
 * Addresses: where each tensor lies, and which layers cost nothing because their output is their input's memory.
 *
 *   places of concats + layers -> [this file] -> plan->view: root, offset and strides of each tensor
 *
 * Invariant: inside an image memory is dense, in the layout's order; only the batch stride is free.
 */
#include "plan/plan.h"

void view_dense_strides(const struct tensor *t, struct size stride[SOL_MAX_RANK]) {
    int axis = layout_channel_axis(t), block = t->layout.block;
    struct size step = size_const(block ? block : 1);
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step =
            size_mul(step, block && d == axis ? size_const(t->layout.stored / block) : t->dim[d]);
    }
}

static bool keeps_batch(const struct tensor *a, const struct tensor *b) {
    return a->rank > 0 && b->rank > 0 && size_equal(a->dim[0], b->dim[0]);
}

bool view_lies_apart(const struct plan *plan, const struct tensor *t) {
    if (plan->place[t->id].parent) return true;
    const struct layer *l = t->producer;
    if (!view_is_alias(plan, l) || l->kind == LAYER_concat) return false;
    return l->kind == LAYER_slice || view_lies_apart(plan, l->in[0]);
}

/* A slice of channels that begins and ends at whole blocks; in the plain world anywhere. */
static bool is_slice_view(const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    if (l->attr.axis != 1 || l->attr.step != 1 || in->layout.block != out->layout.block)
        return false;
    if (!in->layout.block) return true;
    int start = layout_position(&in->layout, (int)l->attr.start);
    int end = layout_position(&in->layout, (int)(l->attr.start + size_value(out->dim[1])));
    return start % in->layout.block == 0 &&
           round_up(end, in->layout.block) - start == out->layout.stored;
}

/* Do the inputs lie in the output, or inputs and output in the same larger concat? */
static bool is_in_place(const struct plan *plan, const struct layer *concat) {
    const struct placement *in = &plan->place[concat->in[0]->id],
                           *out = &plan->place[concat->out[0]->id];
    if (!in->parent) return false;
    return in->parent == concat->out[0] ||
           (in->parent == out->parent && size_equal(in->offset, out->offset));
}

bool view_is_alias(const struct plan *plan, const struct layer *l) {
    const struct tensor *out = l->out[0];
    if (l->n_in == 0 || (layer_infos[l->kind].traits & SHAPE_ONLY) == 0) return false;
    if (l->kind != LAYER_concat && ir_is_output(plan->model, out)) return false;
    if (l->kind == LAYER_concat) return is_in_place(plan, l);
    if (plan->place[out->id].parent || l->in[0]->producer->kind == LAYER_scalar) return false;
    if (l->kind == LAYER_slice) return is_slice_view(l);
    if (l->kind != LAYER_reshape && l->kind != LAYER_copy) return false;
    /* A copy that changes no layout is there for its memory: a linear layer reads dense rows. */
    if (l->kind == LAYER_copy && layout_equal(&l->in[0]->layout, &out->layout)) return false;
    if (!layout_is_same_order(l->in[0], out)) return false;
    return keeps_batch(l->in[0], out) || !view_lies_apart(plan, l->in[0]);
}

static const struct view *find_view(struct plan *plan, struct tensor *t);

static void view_place(struct plan *plan, const struct placement *place, struct view *out) {
    const struct view *parent = find_view(plan, place->parent);
    out->root = parent->root;
    out->offset = size_add(parent->offset, place->offset);
    out->stride[0] = parent->stride[0];
}

static void view_alias(struct plan *plan, const struct layer *l, struct view *out) {
    const struct tensor *in = l->in[0];
    const struct view *from = find_view(plan, l->in[0]);
    out->root = from->root;
    out->offset = from->offset;
    if (keeps_batch(in, l->out[0])) out->stride[0] = from->stride[0];
    if (l->kind != LAYER_slice) return;
    int64_t start = in->layout.block
                        ? layout_position(&in->layout, (int)l->attr.start) / in->layout.block
                        : l->attr.start;
    out->offset = size_add(out->offset, size_scale(from->stride[1], start));
}

/* Views refer to earlier layers or to the concat they lie in; those chains are as deep as concats are nested. */
static const struct view *find_view(struct plan *plan, struct tensor *t) {
    struct view *v = &plan->view[t->id];
    if (v->root) return v;
    v->root = t;
    v->offset = size_const(0);
    view_dense_strides(t, v->stride);
    if (plan->place[t->id].parent) view_place(plan, &plan->place[t->id], v);
    else if (view_is_alias(plan, t->producer) && t->producer->kind != LAYER_concat)
        view_alias(plan, t->producer, v);
    return v;
}

enum sol_status plan_views(struct plan *plan) {
    plan->view = ARENA_ARRAY(plan->arena, struct view, plan->model->n_tensors);
    for (int i = 0; i < plan->model->layers.n; i++)
        find_view(plan, plan->model->layers.at[i]->out[0]);
    /* An epilogue works in place. */
    for (int i = 0; i < plan->clusters.n; i++) {
        const struct cluster *e = plan->clusters.at[i]->epilogue;
        if (e) plan->view[e->tile->id] = plan->view[e->outputs.at[0]->id];
    }
    return SOL_OK;
}
