/*
 * Gradients: adds the layers that compute them to a model (reverse accumulation).
 *
 *   find_wanting: which tensors lie between x and y   ->   for each layer from the last to the first: collect, then its rule
 *
 * A tensor that several layers read has several contributions, which are summed in the order of the readers, the last one first; the
 * order is fixed, so results do not vary. Contributions that are gradients of slices become one concat if they tile the tensor.
 *
 * Griewank and Walther, "Evaluating Derivatives", SIAM 2008, chapter 3.
 */
#include "ir/rule.h"

static bool is_float(const struct tensor *t) { return size_family(t->dtype) == FAMILY_FLOAT; }

/* ---- The gradient of one tensor, from its contributions ---- */

static int64_t start_of(const struct layer *slice) { return size_value(slice->attr.start); }

static bool is_plain_slice(const struct layer *l, int64_t axis) {
    return l && l->attr.axis == axis && l->attr.step == 1 && size_is_const(l->attr.start) &&
           size_is_const(l->attr.shape[0]);
}

/* The contribution that begins at `start`, among those that are not in use; -1 if there is none. */
static int find_start(int n, const struct contribution *part, const bool *used, int64_t axis,
                      int64_t start) {
    for (int i = 0; i < n; i++)
        if (!used[i] && is_plain_slice(part[i].slice, axis) && start_of(part[i].slice) == start &&
            size_value(part[i].slice->attr.shape[0]) > 0)
            return i;
    return -1;
}

/* Joins contributions that tile `t` along the axis of slice `first`; false if there is a gap. */
static bool tile(struct model *m, const struct tensor *t, int n, struct contribution *part,
                 bool *used, const struct layer *first) {
    struct attr attr = ir_default_attr();
    struct tensor **in = ARENA_ARRAY(m->arena, struct tensor *, n + 1);
    bool *taken = arena_copy(m->arena, used, sizeof *used * (size_t)n);
    int n_in = 0;
    attr.axis = first->attr.axis;
    if (!size_is_const(t->dim[attr.axis])) return false;
    for (int64_t at = 0, end = size_value(t->dim[attr.axis]); at < end;) {
        int i = find_start(n, part, taken, attr.axis, at);
        if (i < 0) return false;
        taken[i] = true;
        in[n_in++] = part[i].dx;
        at += size_value(part[i].slice->attr.shape[0]);
    }
    struct tensor *whole = make_layer(m, LAYER_concat, n_in, in, &attr, first->origin);
    for (int i = 0, placed = 0; whole && i < n; i++) {
        if (!taken[i] || used[i]) continue;
        used[i] = placed++ > 0;
        if (!used[i]) part[i] = (struct contribution){whole, NULL};
    }
    return whole;
}

/* Zeros in front of, between and behind the values that a slice has read. */
static struct tensor *fill_around(struct model *m, const struct tensor *t,
                                  const struct contribution *part) {
    struct attr attr = part->slice->attr;
    struct tensor *dx = part->dx;
    attr.shape[0] = t->dim[attr.axis];
    return make_layer(m, LAYER_place, 1, &dx, &attr, part->slice->origin);
}

/* The gradient of `t`; NULL if no reader has one. From then on it is the only contribution. */
static struct tensor *collect(struct gradients *s, const struct tensor *t) {
    const int n = s->parts[t->id].n;
    struct contribution *part = s->parts[t->id].at;
    bool *used = ARENA_ARRAY(s->m->arena, bool, n + 1);
    struct tensor *sum = NULL;
    for (int i = 0; i < n; i++)
        if (!used[i] && part[i].slice) tile(s->m, t, n, part, used, part[i].slice);
    for (int i = 0; i < n; i++) {
        if (used[i]) continue;
        struct tensor *dx = part[i].slice ? fill_around(s->m, t, &part[i]) : part[i].dx;
        sum = sum ? make_binary(s->m, LAYER_add, sum, dx, t->producer->origin) : dx;
        if (!sum && !s->status) s->status = SOL_EUNSUPPORTED;
    }
    if (n) part[0] = (struct contribution){sum, NULL}, s->parts[t->id].n = 1;
    return sum;
}

/* ---- All layers ---- */

static bool passes_gradients(const struct layer *l) {
    return layer_infos[l->kind].grad != grad_none;
}

static bool wants_any(const struct gradients *s, const struct layer *l) {
    for (int k = 0; k < l->n_in; k++)
        if (s->wants[l->in[k]->id]) return true;
    return false;
}

/* A tensor wants a gradient if it is one of x, or if it is computed from one that wants a gradient, and is a float. Behind a layer
 * `stop` none does, unless it is one of x. */
static void find_wanting(struct gradients *s, int n_x, struct tensor *const *x) {
    for (int i = 0; i < n_x; i++) s->wants[x[i]->id] = true;
    for (int i = 0; i < s->m->layers.n; i++) {
        const struct layer *l = s->m->layers.at[i];
        const bool wants = passes_gradients(l) && wants_any(s, l);
        for (int k = 0; wants && k < l->n_out; k++)
            if (is_float(l->out[k])) s->wants[l->out[k]->id] = true;
    }
}

/* Gives each input of the layer its gradient, if the output has one. */
static void visit(struct gradients *s, const struct layer *l) {
    const bool wants = wants_any(s, l);
    const int n_out = l->n_out; /* a rule may add one */
    struct rule r = {.m = s->m, .layer = l, .y = l->out[0], .state = s};
    for (int k = 0; wants && k < n_out && !s->status; k++) {
        r.y = l->out[k];
        r.dy = s->wants[r.y->id] ? collect(s, r.y) : NULL;
        if (r.dy && !s->status) layer_infos[l->kind].grad(&r);
    }
}

static enum sol_status check_seeds(int n_y, struct tensor *const *y, struct tensor *const *dy) {
    for (int i = 0; i < n_y; i++)
        if (!is_float(y[i]) || y[i]->dtype != dy[i]->dtype || !ir_same_shape(y[i], dy[i], -1))
            return fail(
                SOL_EINVAL,
                "gradients: output %d is %s %s, and its gradient %s %s; both must be of one "
                "float type and shape",
                i, size_dtype_name(y[i]->dtype), SHAPE_TEXT(y[i]), size_dtype_name(dy[i]->dtype),
                SHAPE_TEXT(dy[i]));
    return SOL_OK;
}

static enum sol_status check_targets(int n_x, struct tensor *const *x) {
    for (int i = 0; i < n_x; i++)
        if (!is_float(x[i]))
            return fail(SOL_EINVAL, "gradients: tensor %d is %s; only floats have gradients", i,
                        size_dtype_name(x[i]->dtype));
    return SOL_OK;
}

enum sol_status ir_gradients(struct model *m, int n_y, struct tensor *const *y,
                             struct tensor *const *dy, int n_x, struct tensor *const *x,
                             struct tensor **dx) {
    const int n_layers = m->layers.n, n_tensors = m->n_tensors;
    struct gradients s = {.m = m};
    TRY(check_seeds(n_y, y, dy));
    TRY(check_targets(n_x, x));
    s.wants = ARENA_ARRAY(m->arena, bool, n_tensors + 1);
    s.parts = arena_alloc(m->arena, sizeof *s.parts * (size_t)(n_tensors + 1));
    find_wanting(&s, n_x, x);
    for (int i = 0; i < n_y; i++)
        if (s.wants[y[i]->id])
            VEC_PUSH(m->arena, &s.parts[y[i]->id], ((struct contribution){dy[i], NULL}));
    for (int i = n_layers - 1; i >= 0 && !s.status; i--) visit(&s, m->layers.at[i]);
    for (int i = 0; i < n_x && !s.status; i++) {
        x[i]->is_trained = x[i]->producer->kind == LAYER_param;
        dx[i] = collect(&s, x[i]);
    }
    return s.status;
}
