/*
 * Layers that combine several input points, as point expressions: windows, reductions, convolution, linear, batch norm.
 *
 * A load is `checked` only if it can leave the input; loops over other loads need no tests.
 */
#include "ir/define.h"

#include <math.h>

/* ---- Windows ---- */

/* out * stride + tap * dilation - pad */
const struct index *define_tap(struct define *d, int axis, int out_var, int var) {
    const struct attr *a = &d->layer->attr;
    const struct index *at = TIMES(VAR(out_var), size_const(a->stride[axis]));
    at = PLUS(at, TIMES(VAR(var), size_const(a->dilation[axis])));
    return PLUS(at, NUMBER(-a->pad[axis]));
}

/* Can a window of this many taps leave the input? Without `ceil`, the last window ends inside the padded input. */
static bool hangs_over(const struct define *d, const int64_t kernel[2]) {
    const struct attr *a = &d->layer->attr;
    const int rows = d->layer->in[0]->rank - 2;
    for (int i = 0; i < 2; i++) {
        struct size in = d->layer->in[0]->dim[rows + i], out = d->layer->out[0]->dim[rows + i];
        if (a->pad[i] > 0) return true;
        if (!size_is_const(in)) {
            if (a->pad[2 + i] > 0 || a->ceil) return true;
            continue;
        }
        int64_t last = (size_value(out) - 1) * a->stride[i] + (kernel[i] - 1) * a->dilation[i];
        if (last >= size_value(in)) return true;
    }
    return false;
}

static struct expr *reduce_window(struct define *d, enum combine combine, struct size rows,
                                  struct size columns) {
    return define_reduce(d, combine, 2, (struct size[]){rows, columns});
}

static struct expr *reduce_kernel(struct define *d, enum combine combine) {
    const int64_t *kernel = d->layer->attr.kernel;
    return reduce_window(d, combine, size_const(kernel[0]), size_const(kernel[1]));
}

/* Combines the values in a window. Taps outside of the input read the neutral value. */
static struct expr *over_window(struct define *d, enum combine combine) {
    const int64_t *kernel = d->layer->attr.kernel;
    struct expr *e = reduce_kernel(d, combine);
    const struct index **index = define_point(d, 4);
    for (int i = 0; i < 2; i++) index[2 + i] = define_tap(d, i, 2 + i, e->first_var + i);
    e->arg[0] = define_load(d, 0, index, hangs_over(d, kernel), combines[combine].neutral);
    return e;
}

struct expr *define_max_pool(struct define *d) {
    struct expr *e = over_window(d, COMBINE_MAX);
    double floor = d->layer->attr.min;
    return floor == -INFINITY ? e : BINARY(MAX, e, C(floor));
}

static struct expr *position(struct define *d, const struct index *at) {
    struct expr index = {.kind = EXPR_INDEX, .type = SOL_I64, .n_index = 1};
    index.index = arena_copy(d->arena, &at, sizeof at);
    return CAST(SOL_I32, arena_copy(d->arena, &index, sizeof index));
}

#define WHOLE(value) expr_const(d->arena, SOL_I32, value)

/* What one tap of a window contributes: its distance from the window's first tap, where it is the largest value; -1 - distance where
 * it is NaN; else more than any distance. The least one is that of the first largest value, or of the last NaN: then the largest
 * value is NaN, too, and equals no tap. */
static struct expr *find_tap(struct define *d, struct expr *value, struct expr *top,
                             const struct index *at) {
    struct expr *distance = position(d, at), *other = WHOLE(INFINITY);
    if (size_family(d->type) == FAMILY_FLOAT)
        other = SELECT(BINARY(EQUAL, value, value), other, BINARY(SUB, WHOLE(-1), distance));
    return SELECT(BINARY(EQUAL, value, top), distance, other);
}

/* The first row or column of a window that is inside of the input, if its taps begin at `at`: taps are `step` apart. */
static struct expr *first_inside(struct define *d, const struct index *at, int64_t step) {
    struct expr *is_outside = define_range(d, at, size_const(INT32_MIN), size_const(0));
    return SELECT(is_outside, position(d, index_mod(d->arena, at, size_const(step))),
                  position(d, at));
}

/* Taps outside of the input read the least value. So where that is the largest one, the first tap inside of the input is taken; -1 if
 * there is none, as a dilated window may have. */
static struct expr *keep_inside(struct define *d, struct expr *found, struct expr *top,
                                const struct index *const first[2]) {
    const struct tensor *in = d->layer->in[0];
    const int64_t *dilation = d->layer->attr.dilation;
    struct expr *row = first_inside(d, first[0], dilation[0]),
                *column = first_inside(d, first[1], dilation[1]);
    struct expr *rows = position(d, index_size(d->arena, in->dim[2])),
                *columns = position(d, index_size(d->arena, in->dim[3]));
    struct expr *least = BINARY(ADD, BINARY(MUL, row, columns), column);
    if (dilation[0] > 1 || dilation[1] > 1) {
        least = SELECT(BINARY(LESS, row, rows), least, WHOLE(-1));
        least = SELECT(BINARY(LESS, column, columns), least, WHOLE(-1));
    }
    return SELECT(BINARY(EQUAL, top, C(-INFINITY)), least, found);
}

/* The position of the window's first tap, which may be outside of the input, plus the distance of the tap that was found. */
struct expr *define_max_pool_index(struct define *d) {
    const struct attr *a = &d->layer->attr;
    const struct size columns = d->layer->in[0]->dim[3];
    struct expr *top = over_window(d, COMBINE_MAX), *least = reduce_kernel(d, COMBINE_MIN);
    const struct index **index = define_point(d, 4), *first[2];
    for (int i = 0; i < 2; i++) {
        index[2 + i] = define_tap(d, i, 2 + i, least->first_var + i);
        first[i] = PLUS(TIMES(VAR(2 + i), size_const(a->stride[i])), NUMBER(-a->pad[i]));
    }
    const bool checked = hangs_over(d, a->kernel);
    struct expr *value = define_load(d, 0, index, checked, -INFINITY), *distance = least;
    const struct index *at = PLUS(TIMES(VAR(least->first_var), size_scale(columns, a->dilation[0])),
                                  TIMES(VAR(least->first_var + 1), size_const(a->dilation[1])));
    least->type = SOL_I32;
    least->arg[0] = find_tap(d, value, top, at);
    if (size_family(d->type) == FAMILY_FLOAT)
        distance = SELECT(BINARY(LESS, least, WHOLE(0)), BINARY(SUB, WHOLE(-1), least), least);
    struct expr *found =
        BINARY(ADD, position(d, PLUS(TIMES(first[0], columns), first[1])), distance);
    return checked ? keep_inside(d, found, top, first) : found;
}

/* The gradient of max_pool adds up, for a point of the image, what the windows give it that have taken it. Of the windows that begin at
 * or before the point along an axis, these are among the last `count`. */
static struct size count_covering(const struct attr *a, int axis) {
    return size_const(ceil_div((a->kernel[axis] - 1) * a->dilation[axis] + 1, a->stride[axis]));
}

/* The window that begins `count - 1 - var` windows before the last one. */
static const struct index *covering_window(struct define *d, int axis, int var, struct size count) {
    const struct attr *a = &d->layer->attr;
    const struct index *last =
        index_div(d->arena, PLUS(VAR(2 + axis), NUMBER(a->pad[axis])), size_const(a->stride[axis]));
    return PLUS(last, PLUS(VAR(var), NUMBER(1 - size_value(count))));
}

/* Can some of these windows not exist, at the borders of the image? */
static bool lacks_windows(const struct define *d, int axis, struct size count) {
    const struct attr *a = &d->layer->attr;
    const struct size x = d->layer->out[0]->dim[2 + axis], y = d->layer->in[0]->dim[2 + axis];
    if (!size_is_const(x) || a->pad[axis] / a->stride[axis] < size_value(count) - 1) return true;
    return (size_value(x) - 1 + a->pad[axis]) / a->stride[axis] >= size_value(y);
}

/* The windows come in rising order, so that the sums round as those of a loop over the windows. */
struct expr *define_max_pool_grad(struct define *d) {
    const struct size columns = d->layer->out[0]->dim[3],
                      count[] = {count_covering(&d->layer->attr, 0),
                                 count_covering(&d->layer->attr, 1)};
    d->type = d->layer->in[0]->dtype;
    struct expr *sum = reduce_window(d, COMBINE_ADD, count[0], count[1]);
    const struct index **index = define_point(d, 4);
    bool checked = false;
    for (int i = 0; i < 2; i++) {
        index[2 + i] = covering_window(d, i, sum->first_var + i, count[i]);
        checked = checked || lacks_windows(d, i, count[i]);
    }
    struct expr *taken = define_load(d, 1, index, checked, -1),
                *here = position(d, PLUS(TIMES(VAR(2), columns), VAR(3)));
    sum->arg[0] = SELECT(BINARY(EQUAL, taken, here), define_load(d, 0, index, checked, 0), C(0));
    return sum;
}

/* The number of taps that an average is divided by: those inside the input, or inside the padded input if padding counts.
 * Taps beyond the padding, which ceil mode allows, never count, as in PyTorch. */
static struct expr *count_along(struct define *d, int axis) {
    const struct attr *a = &d->layer->attr;
    struct expr *e = define_reduce(d, COMBINE_ADD, 1, (struct size[]){size_const(a->kernel[axis])});
    int64_t before = a->count_pad ? a->pad[axis] : 0, behind = a->count_pad ? a->pad[2 + axis] : 0;
    struct size high = size_add(d->layer->in[0]->dim[2 + axis], size_const(behind));
    e->arg[0] = CAST(d->type, define_range(d, define_tap(d, axis, 2 + axis, e->first_var),
                                           size_const(-before), high));
    return e;
}

/* Rows and columns are counted apart, so that the rows of a row of windows are counted once. */
static struct expr *count_taps(struct define *d) {
    struct expr *rows = count_along(d, 0);
    return BINARY(MUL, rows, count_along(d, 1));
}

/* Does every window count all its taps? Without `ceil`, all taps are inside the padded input. */
static bool counts_all(const struct define *d) {
    const struct attr *a = &d->layer->attr;
    if (!hangs_over(d, a->kernel)) return true;
    for (int i = 0; i < 2; i++) {
        struct size in = d->layer->in[0]->dim[2 + i], out = d->layer->out[0]->dim[2 + i];
        if (!a->ceil) continue;
        if (!size_is_const(in)) return false;
        int64_t last = (size_value(out) - 1) * a->stride[i] + a->kernel[i];
        if (last > size_value(in) + a->pad[i] + a->pad[2 + i]) return false;
    }
    return a->count_pad;
}

struct expr *define_avg_pool(struct define *d) {
    const int64_t *kernel = d->layer->attr.kernel;
    struct expr *sum = over_window(d, COMBINE_ADD);
    if (counts_all(d)) return BINARY(MUL, sum, C(1.0 / (double)(kernel[0] * kernel[1])));
    return BINARY(DIV, sum, count_taps(d));
}

/* ---- Adaptive average pooling: window i of n over `in` values is [floor(i*in/n), ceil((i+1)*in/n)) ---- */

struct adaptive {
    const struct index *start, *length;
    struct size longest;
    bool same; /* every window has the longest length */
};

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* With f = i*in mod n, window i has ceil((f + in) / n) values. f takes all multiples of gcd(in, n) below n, so the longest
 * window has f = n - gcd(in, n). Of an open dim the gcd is not known: it is at least 1. */
static struct size find_longest(struct define *d, struct size in, int64_t n) {
    int64_t gcd = size_is_const(in) ? common_divisor(size_value(in), n) : 1;
    return size_ceil(&d->layer->model->quotients, size_add(in, size_const(n - gcd)), n);
}

static struct adaptive adapt(struct define *d, int axis) {
    const struct size in = d->layer->in[0]->dim[2 + axis],
                      n = size_const(d->layer->attr.kernel[axis]);
    const struct index *scaled = TIMES(VAR(2 + axis), in);
    struct adaptive a = {.start = index_div(d->arena, scaled, n)};
    a.same = size_divide(in, n, &a.longest);
    if (a.same) a.start = TIMES(VAR(2 + axis), a.longest);
    else a.longest = find_longest(d, in, size_value(n));
    const struct size up = size_add(in, size_const(size_value(n) - 1));
    const struct index *end = index_div(d->arena, PLUS(scaled, index_size(d->arena, up)), n);
    a.length = PLUS(end, TIMES(a.start, size_const(-1)));
    return a;
}

/* Is tap `var` inside its window, that is var - length < 0? The condition becomes a bound of the loop over the taps. */
static struct expr *inside(struct define *d, const struct adaptive *a, int var) {
    const struct index *behind = PLUS(VAR(var), TIMES(a->length, size_const(-1)));
    return define_range(d, behind, size_const(-((int64_t)1 << 60)), size_const(0));
}

static struct expr *count_inside(struct define *d, const struct adaptive *a) {
    struct expr *count = define_reduce(d, COMBINE_ADD, 1, (struct size[]){a->longest});
    count->arg[0] = CAST(d->type, inside(d, a, count->first_var));
    return count;
}

/* The sum over windows of one length, divided by their number of taps. */
static struct expr *divide_by_taps(struct define *d, struct expr *sum, struct size rows,
                                   struct size columns) {
    struct size n = size_mul(rows, columns);
    if (size_is_const(n)) return BINARY(MUL, sum, C(1.0 / (double)size_value(n)));
    struct expr *count = reduce_window(d, COMBINE_ADD, rows, columns);
    count->arg[0] = C(1);
    return BINARY(DIV, sum, count);
}

/* Further reductions count the taps of a window: expressions cannot convert the length, an index, to a float. */
struct expr *define_adaptive_avg_pool(struct define *d) {
    struct adaptive rows = adapt(d, 0), columns = adapt(d, 1);
    struct expr *sum = reduce_window(d, COMBINE_ADD, rows.longest, columns.longest);
    const struct index **index = define_point(d, 4);
    bool exact = rows.same && columns.same;
    index[2] = PLUS(rows.start, VAR(sum->first_var));
    index[3] = PLUS(columns.start, VAR(sum->first_var + 1));
    struct expr *value = define_load(d, 0, index, !exact, 0);
    if (exact) {
        sum->arg[0] = value;
        return divide_by_taps(d, sum, rows.longest, columns.longest);
    }
    struct expr *guard =
        BINARY(MUL, inside(d, &rows, sum->first_var), inside(d, &columns, sum->first_var + 1));
    sum->arg[0] = SELECT(guard, value, C(0));
    struct expr *count = count_inside(d, &rows);
    return BINARY(DIV, sum, BINARY(MUL, count, count_inside(d, &columns)));
}

/* ---- Reductions ---- */

static bool is_reduced(const struct attr *a, int axis) {
    for (int i = 0; i < a->n_axes; i++)
        if (a->axes[i] == axis) return true;
    return false;
}

/* Kept axes are indexed by the output's variables, reduced axes by the reduction's. */
static struct expr *over_axes(struct define *d, enum combine combine) {
    const struct attr *a = &d->layer->attr;
    const struct tensor *in = d->layer->in[0];
    struct size extent[SOL_MAX_RANK];
    for (int i = 0; i < a->n_axes; i++) extent[i] = in->dim[a->axes[i]];
    struct expr *e = define_reduce(d, combine, a->n_axes, extent);
    const struct index **index = ARENA_ARRAY(d->arena, const struct index *, in->rank + 1);
    for (int k = 0, out = 0, var = e->first_var; k < in->rank; k++) {
        bool reduced = is_reduced(a, k);
        index[k] = VAR(reduced ? var++ : out);
        out += !reduced || a->keepdim;
    }
    e->arg[0] = define_load(d, 0, index, false, 0);
    return e->n_vars ? e : e->arg[0];
}

struct expr *define_sum(struct define *d) { return over_axes(d, COMBINE_ADD); }
struct expr *define_prod(struct define *d) { return over_axes(d, COMBINE_MUL); }
struct expr *define_reduce_max(struct define *d) { return over_axes(d, COMBINE_MAX); }
struct expr *define_reduce_min(struct define *d) { return over_axes(d, COMBINE_MIN); }

/* The sum over all positions r of x[r], or 0 where r is behind the output's position. */
struct expr *define_cumsum(struct define *d) {
    const struct tensor *in = d->layer->in[0];
    int axis = (int)d->layer->attr.axis;
    struct expr *sum = define_reduce(d, COMBINE_ADD, 1, &in->dim[axis]);
    const struct index **index = define_point(d, in->rank);
    const struct index *ahead = PLUS(VAR(axis), TIMES(VAR(sum->first_var), size_const(-1)));
    index[axis] = VAR(sum->first_var);
    sum->arg[0] =
        SELECT(define_range(d, ahead, size_const(0),
                            size_const(INT64_MAX / 2)), /* kernels subtract: it must not overflow */
               define_load(d, 0, index, false, 0), C(0));
    sum->prefix = axis + 1;
    return sum;
}

/* If the number of elements is known only at the call, a second reduction counts them. */
struct expr *define_mean(struct define *d) {
    const struct attr *a = &d->layer->attr;
    struct size n = size_const(1), extent[SOL_MAX_RANK];
    for (int i = 0; i < a->n_axes; i++)
        n = size_mul(n, extent[i] = d->layer->in[0]->dim[a->axes[i]]);
    struct expr *sum = over_axes(d, COMBINE_ADD);
    if (size_is_const(n)) return BINARY(DIV, sum, C((double)size_value(n)));
    struct expr *count = define_reduce(d, COMBINE_ADD, a->n_axes, extent);
    count->arg[0] = C(1);
    return BINARY(DIV, sum, count);
}

/* ---- Convolution and linear, as sums of products ---- */

/* Loads element `index` of input `i`, a vector. */
static struct expr *load_vector(struct define *d, int i, const struct index *index) {
    return define_load(d, i, arena_copy(d->arena, &index, sizeof index), false, 0);
}

static struct expr *add_bias(struct define *d, struct expr *sum, int var) {
    if (d->layer->n_in < 3) return sum;
    return BINARY(ADD, sum, load_vector(d, 2, VAR(var)));
}

/* Can a window along the depth leave the input? */
static bool hangs_behind(const struct define *d) {
    const int64_t *a = d->layer->attr.depth;
    return d->layer->in[0]->rank == 5 && (a[2] > 0 || a[3] > 0);
}

/* The points of x and of the weight that tap (c, r, s), or (c, q, r, s), of a convolution reads; the tap is variables `c` and those
 * behind it. */
static void place_taps(struct define *d, int c, const struct index **x,
                       const struct index **weight) {
    const struct tensor *w = d->layer->in[1], *out = d->layer->out[0];
    const struct attr *a = &d->layer->attr;
    /* Output channel k belongs to group k / (K / groups), whose input channels begin at group * C / groups. */
    const struct index *group =
        index_div(d->arena, VAR(1), size_const(size_value(out->dim[1]) / a->groups));
    x[1] = a->groups == 1 ? VAR(c) : PLUS(TIMES(group, w->dim[1]), VAR(c));
    if (size_is(w->dim[1], 1) && size_is(out->dim[1], a->groups) && a->groups > 1) x[1] = VAR(1);
    const int rank = w->rank;
    if (rank == 5)
        x[2] = PLUS(PLUS(TIMES(VAR(2), size_const(a->depth[0])),
                         TIMES(VAR(c + 1), size_const(a->depth[1]))),
                    NUMBER(-a->depth[2]));
    x[rank - 2] = define_tap(d, 0, rank - 2, c + rank - 3);
    x[rank - 1] = define_tap(d, 1, rank - 1, c + rank - 2);
    weight[0] = VAR(1);
    for (int i = 1; i < rank; i++) weight[i] = VAR(c + i - 1);
}

struct expr *define_conv(struct define *d) {
    const struct tensor *w = d->layer->in[1];
    const int rank = w->rank;
    int64_t kernel[2] = {size_value(w->dim[rank - 2]), size_value(w->dim[rank - 1])};
    struct expr *sum = define_reduce(d, COMBINE_ADD, rank - 1, &w->dim[1]);
    const struct index **x = define_point(d, rank), **weight = define_point(d, rank);
    place_taps(d, sum->first_var, x, weight);
    sum->arg[0] = BINARY(MUL, define_load(d, 0, x, hangs_over(d, kernel) || hangs_behind(d), 0),
                         define_load(d, 1, weight, false, 0));
    return add_bias(d, sum, 1);
}

struct expr *define_linear(struct define *d) {
    const struct tensor *x = d->layer->in[0];
    struct expr *sum = define_reduce(d, COMBINE_ADD, 1, &x->dim[x->rank - 1]);
    const struct index **at = define_point(d, x->rank), **weight = define_point(d, 2);
    at[x->rank - 1] = VAR(sum->first_var);
    weight[0] = VAR(x->rank - 1);
    weight[1] = VAR(sum->first_var);
    sum->arg[0] = BINARY(MUL, define_load(d, 0, at, false, 0), define_load(d, 1, weight, false, 0));
    return add_bias(d, sum, x->rank - 1);
}

/* ---- Quantized products ---- */

/* (x - zero) * weight, of integers. */
static struct expr *multiply_quantized(struct define *d, const struct index **x,
                                       const struct index **w, bool checked) {
    struct expr *value = CAST(SOL_I32, define_load(d, 0, x, checked, 0));
    return BINARY(MUL, BINARY(SUB, value, load_vector(d, 2, NUMBER(0))),
                  CAST(SOL_I32, define_load(d, 1, w, false, 0)));
}

/* Scale, bias and range of channel `var` of a sum. */
static struct expr *requantize(struct define *d, struct expr *sum, int var) {
    const struct index *channel = VAR(var);
    struct expr *scale = load_vector(d, 3, channel), *bias = load_vector(d, 4, channel);
    struct expr *f = BINARY(ADD, BINARY(MUL, CAST(SOL_F32, sum), scale), bias);
    if (d->layer->n_in < 6) return f;
    f = BINARY(ADD, UNARY(ROUND, f), load_vector(d, 5, NUMBER(0)));
    f = BINARY(MIN, BINARY(MAX, f, load_vector(d, 5, NUMBER(1))), load_vector(d, 5, NUMBER(2)));
    return CAST(d->layer->attr.dtype, f);
}

/* Taps outside of the image add nothing: they stand for 0, whatever the zero point. */
struct expr *define_quant_conv(struct define *d) {
    const struct tensor *x = d->layer->in[0], *w = d->layer->in[1];
    const int64_t kernel[2] = {size_value(w->dim[2]), size_value(w->dim[3])};
    d->type = SOL_I32;
    struct expr *sum = define_reduce(d, COMBINE_ADD, 3, &w->dim[1]), *product;
    const struct index **at = define_point(d, 4), **weight = define_point(d, 4);
    const bool checked = hangs_over(d, kernel);
    place_taps(d, sum->first_var, at, weight);
    product = multiply_quantized(d, at, weight, checked);
    for (int i = 2; i < 4 && checked; i++)
        product = SELECT(define_range(d, at[i], size_const(0), x->dim[i]), product, C(0));
    sum->arg[0] = product;
    return requantize(d, sum, 1);
}

struct expr *define_quant_linear(struct define *d) {
    const struct tensor *x = d->layer->in[0];
    d->type = SOL_I32;
    struct expr *sum = define_reduce(d, COMBINE_ADD, 1, &x->dim[x->rank - 1]);
    const struct index **at = define_point(d, x->rank), **weight = define_point(d, 2);
    at[x->rank - 1] = VAR(sum->first_var);
    weight[0] = VAR(x->rank - 1);
    weight[1] = VAR(sum->first_var);
    sum->arg[0] = multiply_quantized(d, at, weight, false);
    return requantize(d, sum, x->rank - 1);
}

/* ---- Matrix product, batch norm ---- */

/* Loads an element of a matrix of input `i`, at variables `row` and `column`; leading dims are the output's, broadcast. */
static struct expr *matrix(struct define *d, int i, int row, int column) {
    const struct tensor *in = d->layer->in[i];
    const struct index **index = ARENA_ARRAY(d->arena, const struct index *, in->rank);
    for (int k = 0; k < in->rank - 2; k++) index[k] = define_broadcast(d, in, k);
    index[in->rank - 2] = VAR(row);
    index[in->rank - 1] = VAR(column);
    return define_load(d, i, index, false, 0);
}

struct expr *define_matmul(struct define *d) {
    const struct tensor *a = d->layer->in[0];
    int rank = d->layer->out[0]->rank;
    struct expr *sum = define_reduce(d, COMBINE_ADD, 1, &a->dim[a->rank - 1]);
    sum->arg[0] =
        BINARY(MUL, matrix(d, 0, rank - 2, sum->first_var), matrix(d, 1, sum->first_var, rank - 1));
    return sum;
}

/* (x - mean) / sqrt(var + eps) * weight + bias. pass/decompose.c replaces the layer, so kernels do not use this. */
struct expr *define_batch_norm(struct define *d) {
    struct expr *in[5] = {define_in(d, 0)};
    for (int i = 1; i < 5; i++) {
        const struct index *channel = VAR(1);
        in[i] = define_load(d, i, arena_copy(d->arena, &channel, sizeof channel), false, 0);
    }
    struct expr *deviation = UNARY(SQRT, BINARY(ADD, in[2], C(d->layer->attr.eps)));
    struct expr *normal = BINARY(DIV, BINARY(SUB, in[0], in[1]), deviation);
    return BINARY(ADD, BINARY(MUL, normal, in[3]), in[4]);
}
