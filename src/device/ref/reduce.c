/* The reference of reductions over axes, and of layers along one axis: softmax, cumsum, argmax, argmin. */
#include "device/ref/eval.h"

#include <math.h>

/* ---- Reductions ---- */

/* How a reduction merges values: floats in double, integers in int64_t, modulo 2^64. */
struct merge {
    double start; /* the result for no values; infinities stand for the limits of integers */
    double (*real)(double, double);
    int64_t (*whole)(int64_t, int64_t);
};

static double add(double a, double b) { return a + b; }
static int64_t add_whole(int64_t a, int64_t b) { return REF_WRAP(a, +, b); }
static double multiply(double a, double b) { return a * b; }
static int64_t multiply_whole(int64_t a, int64_t b) { return REF_WRAP(a, *, b); }
/* NaN if a or b is NaN. */
static double larger(double a, double b) { return isnan(a) || a > b ? a : b; }
static double smaller(double a, double b) { return isnan(a) || a < b ? a : b; }

static const struct merge merge_sum = {0, add, add_whole},
                          merge_product = {1, multiply, multiply_whole},
                          merge_max = {-INFINITY, larger, max_i64},
                          merge_min = {INFINITY, smaller, min_i64};

/* Splits the input's shape for a reduction: `reduced` has the dims that are reduced, `kept` the others; the remaining dims
 * of each are 1. Both keep the input's rank and strides, so the offset of an element is the sum of its offsets in
 * both. */
static void split_shape(const struct layer_call *c, struct shape *kept, struct shape *reduced) {
    struct shape xs = ref_get_shape(c, 0);
    *kept = *reduced = xs;
    kept->n = reduced->n = 1;
    for (int i = 0; i < xs.rank; i++) {
        bool is_axis = c->attr->n_axes == 0; /* no axes: all of them */
        for (int j = 0; j < c->attr->n_axes; j++)
            is_axis |= ref_wrap_axis(c->attr->axes[j], xs.rank) == i;
        (is_axis ? kept : reduced)->dim[i] = 1;
        kept->n *= kept->dim[i];
        reduced->n *= reduced->dim[i];
    }
}

/* Merges all inputs of output `i`, which begin at element `from`; `divide` by their number makes a mean. */
static void reduce_point(const struct layer_call *c, int64_t i, int64_t from,
                         const struct shape *reduced, const struct merge *merge, bool divide) {
    int64_t at[SOL_MAX_RANK] = {0};
    double real = merge->start;
    int64_t whole = c->is_real ? 0 : ref_constant(c->type, merge->start);
    for (int64_t j = 0; j < reduced->n; j++) {
        int64_t x = from + ref_find_offset(reduced, at);
        if (c->is_real) real = merge->real(real, ref_real(c, 0, x));
        else whole = merge->whole(whole, ref_whole(c, 0, x));
        ref_step_point(reduced, at);
    }
    if (c->is_real) ref_set_real(c, i, divide ? real / (double)reduced->n : real);
    else ref_set_whole(c, i, whole);
}

static void reduce(const struct layer_call *c, const struct merge *merge, bool divide) {
    struct shape kept, reduced;
    int64_t at[SOL_MAX_RANK] = {0};
    split_shape(c, &kept, &reduced);
    for (int64_t i = 0; i < kept.n; i++) {
        reduce_point(c, i, ref_find_offset(&kept, at), &reduced, merge, divide);
        ref_step_point(&kept, at);
    }
}

void ref_eval_sum(const struct layer_call *c) { reduce(c, &merge_sum, false); }

void ref_eval_mean(const struct layer_call *c) { reduce(c, &merge_sum, true); }

void ref_eval_prod(const struct layer_call *c) { reduce(c, &merge_product, false); }

void ref_eval_reduce_max(const struct layer_call *c) { reduce(c, &merge_max, false); }

void ref_eval_reduce_min(const struct layer_call *c) { reduce(c, &merge_min, false); }

/* ---- Along one axis ---- */

/* The elements along the axis, from element `first` of the input on. */
struct row {
    int64_t first, n, stride;
};

/* Calls `function` for each row along the attribute `axis`, numbered in row-major order. */
static void eval_rows(const struct layer_call *c,
                      void (*function)(const struct layer_call *c, int64_t number, struct row)) {
    struct shape xs = ref_get_shape(c, 0);
    int axis = ref_wrap_axis(c->attr->axis, xs.rank);
    int64_t at[SOL_MAX_RANK] = {0}, number = 0;
    for (int64_t i = 0; i < xs.n; i++) {
        if (at[axis] == 0) function(c, number++, (struct row){i, xs.dim[axis], xs.stride[axis]});
        ref_step_point(&xs, at);
    }
}

static void softmax_row(const struct layer_call *c, int64_t number, struct row row) {
    double top = -INFINITY, sum = 0;
    (void)number;
    for (int64_t i = 0; i < row.n; i++)
        top = larger(ref_real(c, 0, row.first + i * row.stride), top);
    for (int64_t i = 0; i < row.n; i++)
        sum += exp(ref_real(c, 0, row.first + i * row.stride) - top);
    for (int64_t i = 0; i < row.n; i++) {
        int64_t at = row.first + i * row.stride;
        ref_set_real(c, at, exp(ref_real(c, 0, at) - top) / sum);
    }
}

void ref_eval_softmax(const struct layer_call *c) { eval_rows(c, softmax_row); }

static void cumsum_row(const struct layer_call *c, int64_t number, struct row row) {
    double real = 0;
    int64_t whole = 0;
    (void)number;
    for (int64_t i = row.first; i < row.first + row.n * row.stride; i += row.stride) {
        if (c->is_real) ref_set_real(c, i, real += ref_real(c, 0, i));
        else ref_set_whole(c, i, whole = REF_WRAP(whole, +, ref_whole(c, 0, i)));
    }
}

void ref_eval_cumsum(const struct layer_call *c) { eval_rows(c, cumsum_row); }

/* Is element `x` of the input beyond element `best`: larger for argmax, smaller for argmin? NaN is beyond all numbers. */
static bool is_beyond(const struct layer_call *c, int64_t x, int64_t best) {
    bool most = c->layer->kind == LAYER_argmax;
    if (!c->is_real) {
        int64_t a = ref_whole(c, 0, x), b = ref_whole(c, 0, best);
        return most ? a > b : a < b;
    }
    double a = ref_real(c, 0, x), b = ref_real(c, 0, best);
    if (isnan(a) || isnan(b)) return !isnan(b);
    return most ? a > b : a < b;
}

static void extreme_row(const struct layer_call *c, int64_t number, struct row row) {
    int64_t best = 0;
    for (int64_t i = 1; i < row.n; i++)
        if (is_beyond(c, row.first + i * row.stride, row.first + best * row.stride)) best = i;
    ref_set_whole(c, number, best);
}

void ref_eval_argmax(const struct layer_call *c) { eval_rows(c, extreme_row); }

void ref_eval_argmin(const struct layer_call *c) { eval_rows(c, extreme_row); }
