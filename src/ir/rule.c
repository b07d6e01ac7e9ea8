/*
 * Building blocks of the rules of gradients: layers with the origin of the rule's layer.
 *
 * A rule is a formula of calls; NULL, after an error, passes through all of them to rule_give, which keeps the error.
 */
#include "ir/rule.h"

/* ---- Results ---- */

bool rule_wants(const struct rule *r, int i) { return r->state->wants[r->layer->in[i]->id]; }

static void keep_error(struct rule *r, enum sol_status status) {
    if (!status || r->state->status) return;
    r->state->status = status;
    if (r->layer->origin)
        fail_prefix("gradient of %s (%s): ", layer_infos[r->layer->kind].name, r->layer->origin);
    else fail_prefix("gradient of %s: ", layer_infos[r->layer->kind].name);
}

void rule_refuse(struct rule *r, const char *reason) {
    keep_error(r, fail(SOL_EUNSUPPORTED, "%s", reason));
}

static void push_part(struct rule *r, int i, struct tensor *dx, const struct layer *slice) {
    struct gradients *s = r->state;
    if (r->state->status || !rule_wants(r, i)) return;
    if (!dx) keep_error(r, SOL_EUNSUPPORTED);
    else VEC_PUSH(s->m->arena, &s->parts[r->layer->in[i]->id], ((struct contribution){dx, slice}));
}

void rule_give(struct rule *r, int i, struct tensor *dx) {
    const struct tensor *x = r->layer->in[i];
    if (!rule_wants(r, i)) return;
    dx = rule_sum_to(r, dx, x->rank, x->dim);
    push_part(r, i, make_expand(r->m, dx, x->rank, x->dim, r->layer->origin), NULL);
}

void rule_give_part(struct rule *r, struct tensor *dx) { push_part(r, 0, dx, r->layer); }

/* ---- Layers ---- */

struct tensor *rule_unary(struct rule *r, enum layer_kind kind, struct tensor *x) {
    return make_unary(r->m, kind, x, r->layer->origin);
}

struct tensor *rule_binary(struct rule *r, enum layer_kind kind, struct tensor *a,
                           struct tensor *b) {
    return make_binary(r->m, kind, a, b, r->layer->origin);
}

struct tensor *rule_where(struct rule *r, struct tensor *condition, struct tensor *yes,
                          struct tensor *no) {
    return make_layer(r->m, LAYER_where, 3, (struct tensor *[]){condition, yes, no}, NULL,
                      r->layer->origin);
}

struct tensor *rule_sum_to(struct rule *r, struct tensor *x, int rank, const struct size *dim) {
    int64_t axes[SOL_MAX_RANK];
    int n = 0, more = x ? x->rank - rank : 0;
    for (int d = 0; x && d < x->rank; d++)
        if (d < more || (size_is(dim[d - more], 1) && !size_is(x->dim[d], 1))) axes[n++] = d;
    if (n) x = make_reduce(r->m, LAYER_sum, x, n, axes, true, r->layer->origin);
    return x && more > 0 ? make_reshape(r->m, x, rank, x->dim + more) : x;
}

struct tensor *rule_reduce(struct rule *r, enum layer_kind kind, struct tensor *x) {
    return make_reduce(r->m, kind, x, r->layer->attr.n_axes, r->layer->attr.axes, true,
                       r->layer->origin);
}

struct tensor *rule_keep_axes(struct rule *r, struct tensor *reduced) {
    const struct tensor *x = X;
    struct size dim[SOL_MAX_RANK];
    for (int d = 0; d < x->rank; d++) dim[d] = x->dim[d];
    for (int i = 0; i < r->layer->attr.n_axes; i++) dim[r->layer->attr.axes[i]] = size_const(1);
    if (!reduced || reduced->rank == x->rank) return reduced;
    return make_reshape(r->m, reduced, x->rank, dim);
}

/* The batch may be divided among calls of a kernel (run/micro_batch.h), so it is counted by a reduction, which needs all of it. */
struct tensor *rule_count(struct rule *r, const struct tensor *x, int n, const int64_t *axes) {
    double known = 1;
    struct tensor *count = NULL;
    for (int i = 0; i < n; i++) {
        const struct size dim = x->dim[axes[i]];
        const int64_t all = 0;
        if (size_is_const(dim)) {
            known *= (double)size_value(dim);
            continue;
        }
        struct tensor *ones = make_expand(r->m, NUM(1), 1, &dim, NULL),
                      *sum = make_reduce(r->m, LAYER_sum, ones, 1, &all, false, NULL);
        count = count ? MUL(count, sum) : sum;
    }
    return count ? MUL(count, NUM(known)) : NUM(known);
}

struct tensor *rule_transpose(struct rule *r, struct tensor *x) {
    return make_transpose(r->m, x, r->layer->origin);
}

/* The padding behind, and at the end of the result, with which a transposed convolution of `dy` has the size of x: windows that do
 * not reach the end of x leave rows there, which get 0; those that end behind it are cut off. */
bool rule_fit_window(const struct rule *r, int axis, int64_t kernel, struct attr *attr) {
    const int d = X->rank - 2 + axis;
    const struct attr *a = &r->layer->attr;
    const int64_t reach = a->dilation[axis] * (kernel - 1) + 1;
    struct size end = size_scale(size_sub(DY->dim[d], size_const(1)), a->stride[axis]);
    end = size_sub(size_add(end, size_const(reach - a->pad[axis])), X->dim[d]);
    if (!size_is_const(end)) return false;
    const int64_t over = size_value(end);
    attr->stride[axis] = a->stride[axis], attr->dilation[axis] = a->dilation[axis];
    attr->pad[axis] = a->pad[axis];
    attr->pad[2 + axis] = over > 0 ? over : 0;
    attr->output_pad[axis] = over < 0 ? -over : 0;
    return true;
}
