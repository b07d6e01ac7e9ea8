/*
 * Views around attention: tensors that only attention layers read need no memory in an order of their own, as the kernel reads and
 * writes any strides. So it reads a projection [batch, rows, 3, heads, values] in place.
 *
 *   storage.c -> view_init -> view_set for each layer that moves values, view_set_output for each attention layer
 *
 * A tensor may be a view if all its readers are attention layers, or layers that move values and whose outputs may be views,
 * too. It is one if strides can express it and all views behind it: a reshape divides dims, or joins dims that lie one
 * behind the other. Else it gets memory of its own, and the layers behind it are tried again.
 */
#include "plan/view.h"
#include "pass/pass.h"

static bool moves_values(const struct layer *l) {
    return l->kind == LAYER_reshape || l->kind == LAYER_permute || l->kind == LAYER_slice ||
           l->kind == LAYER_expand;
}

/* Readers are behind a tensor's producer in the list, so it is walked backwards. */
void view_init(struct views *views, struct plan *plan) {
    const struct model *m = plan->model;
    *views = (struct views){.plan = plan, .n = m->n_tensors};
    views->may_be = ARENA_ARRAY(plan->arena, bool, views->n + 1);
    for (int i = 0; i < views->n; i++) views->may_be[i] = true;
    for (int i = 0; i < m->outputs.n; i++) views->may_be[m->outputs.at[i]->id] = false;
    for (int i = 0; i < m->updates.n; i++) views->may_be[m->updates.at[i].value->id] = false;
    for (int i = m->layers.n - 1; i >= 0; i--) {
        struct layer *l = m->layers.at[i];
        const bool reads_views =
            l->kind == LAYER_attention || (moves_values(l) && views->may_be[l->out[0]->id]);
        for (int k = 0; k < l->n_in; k++)
            if (!reads_views || l->in[k]->layout.block) views->may_be[l->in[k]->id] = false;
    }
}

/* ---- Strides ---- */

/*
 * The strides of a reshape, from the last dim to the first: dims of `in` that lie one behind the other are one run of values, which
 * dims of `out` must divide exactly. [4,6] with strides [6,1] is one run of 24, so [8,3] has strides [3,1]; with strides [12,1]
 * they are two runs, and [2,2,6] has [24,12,1].
 */
static bool reshape_strides(const struct tensor *in, const struct size *stride,
                            const struct tensor *out, struct size *to) {
    int i = out->rank - 1;
    for (int d = in->rank - 1; d >= 0; d--) {
        if (size_is(in->dim[d], 1)) continue;
        struct size run = in->dim[d], done = size_const(1);
        const struct size step = stride[d];
        for (; d > 0 &&
               (size_is(in->dim[d - 1], 1) || size_equal(stride[d - 1], size_mul(run, step)));
             d--)
            run = size_mul(run, in->dim[d - 1]);
        for (; i >= 0 && !size_equal(done, run); i--) {
            to[i] = size_mul(step, done);
            done = size_mul(done, out->dim[i]);
        }
        if (!size_equal(done, run)) return false;
    }
    for (; i >= 0; i--) {
        if (!size_is(out->dim[i], 1)) return false;
        to[i] = size_const(0);
    }
    return true;
}

static void slice_strides(const struct layer *l, struct storage *to) {
    struct size *stride = &to->stride[l->attr.axis];
    to->offset = size_add(to->offset, size_mul(*stride, l->attr.start));
    *stride = size_scale(*stride, l->attr.step);
}

/* Dims are aligned at the last one. Along those that are repeated, the stride is 0. */
static void expand_strides(const struct layer *l, const struct storage *from, struct size *to) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    for (int i = 1; i <= out->rank; i++) {
        const bool repeats = i > in->rank || size_is(in->dim[in->rank - i], 1);
        to[out->rank - i] = repeats ? size_const(0) : from->stride[in->rank - i];
    }
}

/* Where the output of `l` lies in the memory of its input, which lies at `from`. False: strides cannot express it. */
static bool follow(const struct layer *l, const struct storage *from, struct storage *to) {
    const struct tensor *in = l->in[0], *out = l->out[0];
    *to = *from;
    to->kind = STORAGE_ALIAS;
    to->is_filled = false;
    to->has_batch_stride = to->is_strided = true;
    if (l->kind == LAYER_slice) slice_strides(l, to);
    if (l->kind == LAYER_expand) expand_strides(l, from, to->stride);
    if (l->kind == LAYER_reshape && !reshape_strides(in, from->stride, out, to->stride))
        return false;
    for (int d = 0; l->kind == LAYER_permute && d < out->rank; d++)
        to->stride[d] = from->stride[l->attr.axes[d]];
    for (int d = 0; d < out->rank; d++)
        if (to->stride[d].bad) return false;
    return !to->offset.bad;
}

/* The kernel reads rows of q, k and v; the mask, its input 3, may have any strides. */
static bool fits_attention(const struct layer *l, const struct tensor *t, const struct storage *s) {
    const int last = t->rank - 1;
    for (int i = 0; i < 3; i++)
        if (l->in[i] == t && !size_is(s->stride[last], 1) && !size_is(t->dim[last], 1))
            return false;
    return true;
}

/* Can all readers of `t` read it at `s`? */
static bool fits(const struct views *views, const struct tensor *t, const struct storage *s) {
    struct storage next;
    for (int i = 0; i < t->readers.n; i++) {
        const struct layer *l = t->readers.at[i];
        if (l->kind == LAYER_attention ? !fits_attention(l, t, s)
                                       : !follow(l, s, &next) || !fits(views, l->out[0], &next))
            return false;
    }
    return true;
}

bool view_set(const struct views *views, const struct layer *l) {
    struct storage *storage = views->plan->storage, to;
    const struct tensor *in = l->in[0], *out = l->out[0];
    if (!moves_values(l) || in->id >= views->n || !views->may_be[out->id] || in->layout.block ||
        !out->readers.n || in->producer->kind == LAYER_scalar || storage[out->id].kind)
        return false;
    if (!follow(l, &storage[in->id], &to) || !fits(views, out, &to)) return false;
    storage[out->id] = to;
    return true;
}

/* ---- The output of attention ---- */

const struct layer *view_find_permute(const struct views *views, const struct layer *attention) {
    const struct tensor *y = attention->out[0];
    const int last = y->rank - 1;
    const struct layer *l = pass_single_reader(views->plan->model, y);
    const bool fits = l && l->kind == LAYER_permute && l->attr.axes[last] == last &&
                      !l->out[0]->layout.block && l->out[0]->phase == y->phase;
    return fits ? l : NULL;
}

void view_set_output(const struct views *views, const struct layer *permute) {
    struct storage *y = &views->plan->storage[permute->in[0]->id],
                   *to = &views->plan->storage[permute->out[0]->id];
    *y = (struct storage){.kind = STORAGE_PLACED,
                          .has_batch_stride = true,
                          .is_strided = true,
                          .root = to->root,
                          .offset = to->offset};
    for (int d = 0; d < permute->out[0]->rank; d++)
        y->stride[permute->attr.axes[d]] = to->stride[d];
    to->is_filled = true;
}
