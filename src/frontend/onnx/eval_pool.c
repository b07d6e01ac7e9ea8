/* Pooling over windows: maximum, mean, norms; and MaxUnpool. */
#include "eval_window.h"

#include <math.h>
#include <string.h>

/* Is a tap within the padded input? With ceil_mode, the last window may extend beyond it. */
static bool is_padded(const struct eval_window *w, const int64_t *o, const int64_t *k) {
    for (int d = 0; d < w->n; d++)
        if (o[d] * w->stride[d] + k[d] * w->dilation[d] >= w->in[d] + w->before[d] + w->after[d])
            return false;
    return true;
}

/* Refuses padding as wide as the window: such a window would contain only padding, which has no maximum and no average. */
static void check_pads(struct eval *e, const struct eval_window *w) {
    for (int d = 0; d < w->n; d++) {
        int64_t pad = max_i64(w->before[d], w->after[d]),
                reach = (w->kernel[d] - 1) * w->dilation[d] + 1;
        if (pad && pad >= reach)
            eval_stop(e, fail(SOL_EINVAL, "a pad of %lld beside a window of %lld", (long long)pad,
                              (long long)reach));
    }
}

/* Reads the window; `dim` becomes the dims of the result. */
static struct eval_window plan_pool(struct eval *e, const struct array *x,
                                    int64_t dim[SOL_MAX_RANK]) {
    struct eval_window w = {0};
    eval_check(e, x->rank >= 3, "an input without dims to move over");
    eval_check(e, eval_attribute(e, "kernel_shape") != NULL, "attribute kernel_shape is missing");
    eval_window_list(e, "kernel_shape", x->rank - 2, 1, w.kernel);
    eval_window_read(e, x, &w);
    check_pads(e, &w);
    eval_window_place(e, &w, eval_int(e, "ceil_mode", 0));
    memcpy(dim, x->dim, sizeof x->dim);
    memcpy(dim + 2, w.out, (size_t)w.n * sizeof *dim);
    return w;
}

/* Converts a row-major offset in a plane to a column-major one: the first spatial dim is the fastest. */
static int64_t column_major(const struct eval_window *w, int64_t at) {
    int64_t result = 0, place[MAX_DIMS];
    for (int d = w->n - 1; d >= 0; d--) {
        place[d] = at % w->in[d];
        at /= w->in[d];
    }
    for (int d = w->n - 1; d >= 0; d--) result = result * w->in[d] + place[d];
    return result;
}

/* Padding is ignored; a window without input values gives -infinity. Output 1 has the index of each maximum in the whole input. */
void run_max_pool(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t dim[SOL_MAX_RANK];
    struct eval_window w = plan_pool(e, x, dim);
    struct array *y = eval_out(e, 0, x->type, x->rank, dim),
                 *index = eval_out(e, 1, TYPE_I64, x->rank, dim);
    int64_t in = eval_window_inner(&w, w.in), out = eval_window_inner(&w, w.out);
    bool by_column = eval_int(e, "storage_order", 0);
    double *v = array_doubles(e->space, x);
    struct walk o, k;
    walk_init(&o, x->rank, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&o)) {
        int64_t best = -1;
        const double *plane = v + i / out * in;
        walk_init(&k, w.n, w.kernel);
        for (int64_t t = 0; t < k.n; t++, walk_next(&k)) {
            int64_t at = eval_window_tap(&w, o.at + 2, k.at);
            /* Takes the first of equal values; NaN is larger than all. */
            if (at >= 0 && (best < 0 || plane[at] > plane[best] || plane[at] != plane[at]))
                best = at;
        }
        array_set_double(y, i, best < 0 ? -INFINITY : plane[best]);
        if (best >= 0)
            array_set_int(index, i, i / out * in + (by_column ? column_major(&w, best) : best));
    }
}

/* The p of a norm, at least 1. */
static double read_power(struct eval *e) {
    int64_t p = eval_int(e, "p", 2);
    if (p < 1) eval_stop(e, fail(SOL_EINVAL, "p is %lld", (long long)p));
    return (double)p;
}

/* choice 0: mean; 1: p-norm. */
void run_sum_pool(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t dim[SOL_MAX_RANK];
    struct eval_window w = plan_pool(e, x, dim);
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    int64_t in = eval_window_inner(&w, w.in), out = eval_window_inner(&w, w.out);
    bool counts_pads = eval_int(e, "count_include_pad", 0), is_norm = e->op->choice;
    double p = is_norm ? read_power(e) : 1, *v = array_doubles(e->space, x);
    struct walk o, k;
    walk_init(&o, x->rank, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&o)) {
        double sum = 0, n = 0;
        walk_init(&k, w.n, w.kernel);
        for (int64_t t = 0; t < k.n; t++, walk_next(&k)) {
            int64_t at = eval_window_tap(&w, o.at + 2, k.at);
            if (at >= 0) sum += is_norm ? pow(fabs(v[i / out * in + at]), p) : v[i / out * in + at];
            n += counts_pads ? is_padded(&w, o.at + 2, k.at) : at >= 0;
        }
        array_set_double(y, i, is_norm ? pow(sum, 1 / p) : sum / n);
    }
}

/* Over all spatial dims. choice 0: mean, 1: maximum, 2: p-norm. */
void run_global_pool(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t dim[SOL_MAX_RANK];
    eval_check(e, x->rank >= 2, "a rank below 2");
    for (int d = 0; d < x->rank; d++) dim[d] = d < 2 ? x->dim[d] : 1;
    int64_t n = product(x->rank - 2, x->dim + 2);
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    double p = e->op->choice == 2 ? read_power(e) : 1, *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < y->n; i++) {
        double sum = 0, top = -INFINITY;
        for (int64_t k = 0; k < n; k++) {
            double value = v[i * n + k];
            sum += e->op->choice == 2 ? pow(fabs(value), p) : value;
            top = value > top || value != value ? value : top;
        }
        array_set_double(y, i,
                         e->op->choice == 1 ? top
                         : e->op->choice    ? pow(sum, 1 / p)
                                            : sum / (double)n);
    }
}

/* Element `i` of `index`; unlike other indices, it may not be negative. */
static int64_t unpool_place(struct eval *e, const struct array *index, int64_t i, int64_t size) {
    int64_t at = array_int(index, i);
    if (at < 0 || at >= size)
        eval_stop(e, fail(SOL_EINVAL, "index %lld of %lld values", (long long)at, (long long)size));
    return at;
}

/* Puts each value at the position of its maximum. Indices are positions in the shape that the window implies, also with
 * output_shape. */
void run_max_unpool(struct eval *e) {
    const struct array *x = eval_in(e, 0), *index = eval_in(e, 1);
    struct eval_window w = {0};
    int64_t dim[SOL_MAX_RANK], *wanted;
    eval_check(e, x->rank >= 3 && index->n == x->n, "shapes that do not fit");
    eval_window_list(e, "kernel_shape", x->rank - 2, 1, w.kernel);
    eval_window_read(e, x, &w);
    memcpy(dim, x->dim, sizeof dim);
    for (int d = 0; d < w.n; d++)
        dim[2 + d] = (w.in[d] - 1) * w.stride[d] - w.before[d] - w.after[d] + w.kernel[d];
    struct array *y = eval_new(e, x->type, x->rank, dim), *result = y;
    for (int64_t i = 0; i < x->n; i++)
        memcpy(array_at(y, unpool_place(e, index, i, y->n)), array_at(x, i), types[x->type].size);
    if (eval_has(e, 2)) {
        eval_check(e, eval_in_ints(e, 2, &wanted) == x->rank, "output_shape");
        result = eval_new(e, x->type, x->rank, wanted);
        struct walk walk;
        walk_init(&walk, x->rank, y->dim);
        array_strides(result, walk.stride[0]);
        for (int d = 0; d < x->rank; d++)
            eval_check(e, wanted[d] >= y->dim[d], "an output too small");
        for (int64_t i = 0; i < y->n; i++, walk_next(&walk))
            memcpy(array_at(result, walk.offset[0]), array_at(y, i), types[x->type].size);
    }
    eval_set_output(e, 0, result);
}
