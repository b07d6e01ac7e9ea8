/*
 * Storage: in which tensor's memory each tensor lies, and at which address. Decided once per tensor, only here.
 *
 *   model with layouts -> [this file] -> plan->storage, and copies where a tensor needs memory of its own
 *
 * Two kinds of layers then need no step: a slice, reshape or copy whose output is a piece of its input (an alias), and a
 * concat, or a reshape to an output of the model, whose inputs are written directly into its output (placed). A tensor lies in one place only. So an input of a
 * concat that cannot be placed (it is the caller's, is placed already, or may be an alias) is copied into the output.
 *
 * Order: concats first, from the last to the first. So in a growing chain (cat(a, b), then cat(a, b, c)) the largest output
 * owns the memory, and each smaller one is the beginning of it. Then reshapes to outputs. Then all other layers in the model's
 * order, so that a tensor is decided after the tensor of which it may be an alias.
 *
 * Invariant: the memory of one sample is dense, in the layout's order; only the batch stride may be larger. What attention
 * reads and writes may have any strides (view.c).
 */
#include "plan/view.h"

static struct storage *storage_of(const struct plan *plan, const struct tensor *t) {
    return &plan->storage[t->id];
}

/* ---- Addresses ---- */

static void set_dense_strides(const struct tensor *t, struct size stride[SOL_MAX_RANK]) {
    int axis = layout_channel_axis(t), block = t->layout.block;
    struct size step = size_const(block ? block : 1);
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = step;
        step =
            size_mul(step, block && d == axis ? size_const(t->layout.stored / block) : t->dim[d]);
    }
}

static void set_own(const struct plan *plan, struct tensor *t) {
    struct storage *s = storage_of(plan, t);
    s->kind = STORAGE_OWN;
    s->root = t;
    s->offset = size_const(0);
    set_dense_strides(t, s->stride);
}

/* `t` lies `offset` elements behind the beginning of `parent`, sample by sample. */
static void set_placed(const struct plan *plan, struct tensor *t, const struct tensor *parent,
                       struct size offset) {
    struct storage *s = storage_of(plan, t);
    const struct storage *in = storage_of(plan, parent);
    set_own(plan, t);
    s->kind = STORAGE_PLACED;
    s->has_batch_stride = true;
    s->root = in->root;
    s->offset = size_add(in->offset, offset);
    s->stride[0] = in->stride[0];
}

static bool keeps_batch(const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    return in->rank > 0 && out->rank > 0 && size_equal(in->dim[0], out->dim[0]);
}

static void set_alias(const struct plan *plan, const struct layer *l) {
    struct storage *s = storage_of(plan, l->out[0]);
    const struct storage *in = storage_of(plan, l->in[0]);
    const int block = l->in[0]->layout.block;
    set_own(plan, l->out[0]);
    s->kind = STORAGE_ALIAS;
    s->has_batch_stride = l->kind == LAYER_slice || in->has_batch_stride;
    s->root = in->root;
    s->offset = in->offset;
    if (keeps_batch(l)) s->stride[0] = in->stride[0];
    if (l->kind != LAYER_slice) return;
    int start = (int)size_value(l->attr.start);
    if (block) start = layout_position(&l->in[0]->layout, start) / block;
    s->offset = size_add(s->offset, size_scale(in->stride[1], start));
}

bool storage_is_view(const struct plan *plan, const struct layer *l) {
    const struct storage *s = storage_of(plan, l->out[0]);
    return s->kind == STORAGE_ALIAS || s->is_filled;
}

void storage_set_in_place(const struct plan *plan, const struct tensor *tile,
                          const struct tensor *out) {
    *storage_of(plan, tile) = *storage_of(plan, out);
}

/* ---- Aliases ---- */

/* Is a slice one piece of memory per sample? True if it is over channels and, in a blocked layout, of whole blocks. */
static bool is_piece(const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    if (l->attr.axis != 1 || l->attr.step != 1 || !size_is_const(l->attr.start) ||
        in->layout.block != out->layout.block)
        return false;
    if (!in->layout.block) return true;
    int start = layout_position(&in->layout, (int)size_value(l->attr.start));
    int end =
        layout_position(&in->layout, (int)(size_value(l->attr.start) + size_value(out->dim[1])));
    return start % in->layout.block == 0 &&
           round_up(end, in->layout.block) - start == out->layout.stored;
}

/* Can the layer's output be an alias, not considering the batch stride of its input? Outputs of the model have memory of their
 * own, scalars have none. */
static bool may_be_alias(const struct plan *plan, const struct layer *l) {
    const struct tensor *out = l->out[0];
    if (l->kind != LAYER_slice && l->kind != LAYER_reshape && l->kind != LAYER_copy) return false;
    if (ir_is_output(plan->model, out) || l->in[0]->producer->kind == LAYER_scalar) return false;
    if (l->kind == LAYER_slice) return is_piece(l);
    /* A copy to the same layout exists to give the tensor memory of its own: never an alias. */
    if (l->kind == LAYER_copy && layout_equal(&l->in[0]->layout, &out->layout)) return false;
    return layout_is_same_order(l->in[0], out);
}

/* A reshape that changes the first dim can be an alias only if there are no gaps between samples. */
static bool is_alias(const struct plan *plan, const struct layer *l) {
    if (!may_be_alias(plan, l)) return false;
    return l->kind == LAYER_slice || keeps_batch(l) ||
           !storage_of(plan, l->in[0])->has_batch_stride;
}

/* ---- Concats ---- */

/* Can a concat's inputs be placed in its output? True if it is over channels, and it is not constant. */
static bool can_be_filled(const struct layer *l) {
    return l->kind == LAYER_concat && l->attr.axis == 1 && !ir_is_constant(l->out[0]);
}

/* Elements of one sample of `t`. */
static struct size sample_elements(const struct tensor *t) {
    if (!t->layout.block) return ir_count(t, 1, t->rank);
    return size_scale(ir_count(t, 2, t->rank), t->layout.stored);
}

static bool crosses_samples(const struct layer *l) {
    return movement_is_possible(l) && !movement_keeps_batch(l);
}

bool storage_is_dense(const struct layer *l) {
    return l->kind == LAYER_host || layer_infos[l->kind].traits & RECURRENT;
}

/* Can `t` be placed in the output of a concat of this phase? It must be undecided and computed in the same phase, and its producer
 * must be able to write with a batch stride: linear layers, gathers and their inverses, host and recurrent layers, sources, aliases and movements across samples cannot. */
static bool can_be_placed(const struct plan *plan, const struct tensor *t, enum phase phase) {
    const struct layer *producer = t->producer;
    if (storage_of(plan, t)->kind || t->phase != phase || ir_is_output(plan->model, t))
        return false;
    return !(layer_infos[producer->kind].traits & SOURCE) && producer->kind != LAYER_gather &&
           producer->kind != LAYER_scatter_sum && !ir_is_linear(producer) &&
           !storage_is_dense(producer) && !crosses_samples(producer) &&
           !may_be_alias(plan, producer);
}

static enum sol_status insert_copy(struct plan *plan, struct tensor **in) {
    struct tensor *from = *in;
    TRY(ir_add(plan->model, LAYER_copy, 1, in, NULL, from->producer->origin, in));
    (*in)->layout = from->layout;
    return SOL_OK;
}

static enum sol_status place_inputs(struct plan *plan, struct layer *l) {
    struct size at = size_const(0);
    for (int i = 0; i < l->n_in; i++) {
        if (!can_be_placed(plan, l->in[i], l->out[0]->phase)) {
            TRY(insert_copy(plan, &l->in[i]));
            /* It runs when the concat does, as the memory is the concat's. */
            l->in[i]->phase = l->out[0]->phase;
        }
        set_placed(plan, l->in[i], l->out[0], at);
        at = size_add(at, sample_elements(l->in[i]));
    }
    return SOL_OK;
}

/* Do l's inputs already lie one behind the other in a larger concat's output? Then its own output needs no other memory. */
static bool is_beginning(const struct plan *plan, const struct layer *l) {
    const struct storage *first = storage_of(plan, l->in[0]);
    if (storage_of(plan, l->out[0])->kind || ir_is_output(plan->model, l->out[0])) return false;
    struct size at = first->offset;
    for (int i = 0; i < l->n_in; i++) {
        const struct storage *s = storage_of(plan, l->in[i]);
        if (s->kind != STORAGE_PLACED || s->root != first->root || !size_equal(s->offset, at))
            return false;
        at = size_add(at, sample_elements(l->in[i]));
    }
    return true;
}

static enum sol_status decide_concat(struct plan *plan, struct layer *l) {
    struct storage *s = storage_of(plan, l->out[0]);
    if (is_beginning(plan, l)) set_placed(plan, l->out[0], l->in[0], size_const(0));
    else {
        if (!s->kind) set_own(plan, l->out[0]);
        TRY(place_inputs(plan, l));
    }
    s->is_filled = true;
    return SOL_OK;
}

/* ---- Outputs ---- */

/* Is the layer a reshape to an output of the model, whose input can be written there directly? Phases must agree, and batches, so that a part
 * of the batch is the same part of both. Host, recurrent and attention layers set the storage of their outputs themselves, and
 * layers that move values are one copy with the reshape. */
static bool can_be_written_through(const struct plan *plan, const struct layer *l) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    if (l->kind != LAYER_reshape || !ir_is_output(plan->model, out) || storage_of(plan, out)->kind)
        return false;
    if (storage_of(plan, in)->kind || in->phase != out->phase || ir_is_output(plan->model, in))
        return false;
    const struct layer *producer = in->producer;
    if (producer->kind == LAYER_attention || movement_is_possible(producer)) return false;
    return keeps_batch(l) && layout_is_same_order(in, out) && !storage_is_dense(producer) &&
           !(layer_infos[producer->kind].traits & SOURCE) && !may_be_alias(plan, producer);
}

/* The producer of the input writes the output, and the reshape needs no step. */
static void write_through(struct plan *plan, const struct layer *l) {
    set_own(plan, l->out[0]);
    set_own(plan, l->in[0]);
    storage_of(plan, l->in[0])->kind = STORAGE_PLACED;
    storage_of(plan, l->in[0])->root = l->out[0];
    storage_of(plan, l->out[0])->is_filled = true;
}

/* ---- All tensors ---- */

/* Linear layers and movements across samples need an input without gaps between samples. */
static bool needs_dense(const struct layer *l) { return ir_is_linear(l) || crosses_samples(l); }

static enum sol_status insert_own_copy(struct plan *plan, struct tensor **in) {
    TRY(insert_copy(plan, in));
    set_own(plan, *in);
    return SOL_OK;
}

/* The first input from which on the layer reads whole tensors without gaps: of those that read rows by indices, the table may have gaps. */
static int first_dense(const struct layer *l) {
    if (storage_is_dense(l) || l->kind == LAYER_scatter_sum) return 0;
    return l->kind == LAYER_gather || l->kind == LAYER_resample ? 1 : l->n_in;
}

/* Scalars have no memory, so the layer reads copies of them. */
static enum sol_status make_dense(struct plan *plan, struct layer *l) {
    for (int i = first_dense(l); i < l->n_in; i++) {
        bool has_memory = l->in[i]->producer->kind != LAYER_scalar;
        if (has_memory && !storage_of(plan, l->in[i])->has_batch_stride) continue;
        TRY(insert_own_copy(plan, &l->in[i]));
    }
    return SOL_OK;
}

/* It writes such tensors, too. */
static enum sol_status decide_dense(struct plan *plan, struct layer *l) {
    TRY(make_dense(plan, l));
    for (int i = 0; i < l->n_out; i++) set_own(plan, l->out[i]);
    return SOL_OK;
}

/* Scalars have no memory, so an attention layer reads a copy of its mask if that is one. */
static enum sol_status decide_attention(struct plan *plan, const struct views *views,
                                        struct layer *l) {
    const struct layer *permute = view_find_permute(views, l);
    if (l->n_in > 3 && l->in[3]->producer->kind == LAYER_scalar)
        TRY(insert_own_copy(plan, &l->in[3]));
    if (storage_of(plan, l->out[0])->kind) return SOL_OK;
    if (!permute) set_own(plan, l->out[0]);
    else {
        if (!storage_of(plan, permute->out[0])->kind) set_own(plan, permute->out[0]);
        view_set_output(views, permute);
    }
    return SOL_OK;
}

/* Decides the layer's output. Its inputs are decided: layers are in topological order, and inserted copies are decided
 * when they are inserted. */
static enum sol_status decide(struct plan *plan, const struct views *views, struct layer *l) {
    if (storage_is_dense(l)) return decide_dense(plan, l);
    if (l->kind == LAYER_attention) return decide_attention(plan, views, l);
    TRY(make_dense(plan, l));
    if (storage_of(plan, l->out[0])->kind) return SOL_OK;
    if (view_set(views, l)) return SOL_OK;
    if (needs_dense(l) && storage_of(plan, l->in[0])->has_batch_stride) {
        TRY(insert_own_copy(plan, &l->in[0]));
    }
    if (is_alias(plan, l)) set_alias(plan, l);
    else set_own(plan, l->out[0]);
    return SOL_OK;
}

/* An upper bound: a copy per input of concats and of layers that read several tensors without gaps, and one per layer that needs a dense
 * input. */
static int count_tensors(const struct model *m) {
    int n = m->n_tensors + m->layers.n;
    for (int i = 0; i < m->layers.n; i++)
        if (m->layers.at[i]->kind == LAYER_concat || m->layers.at[i]->kind == LAYER_attention ||
            first_dense(m->layers.at[i]) < m->layers.at[i]->n_in)
            n += m->layers.at[i]->n_in;
    return n;
}

enum sol_status plan_storage(struct plan *plan) {
    struct model *m = plan->model;
    struct views views;
    plan->storage = ARENA_ARRAY(plan->arena, struct storage, count_tensors(m));
    for (int i = m->layers.n - 1; i >= 0; i--)
        if (can_be_filled(m->layers.at[i])) TRY(decide_concat(plan, m->layers.at[i]));
    for (int i = 0; i < m->layers.n; i++)
        if (can_be_written_through(plan, m->layers.at[i])) write_through(plan, m->layers.at[i]);
    view_init(&views, plan);
    for (int i = 0; i < m->layers.n; i++) TRY(decide(plan, &views, m->layers.at[i]));
    return SOL_OK;
}
