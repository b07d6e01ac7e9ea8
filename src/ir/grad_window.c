/*
 * Gradients of pooling.
 *
 *   avg_pool            each window gives dy / taps to all its taps: a transposed depthwise convolution with ones
 *   adaptive_avg_pool   the same where all windows have one size; else products with the matrices of rows and columns
 *   max_pool            each window gives dy to the tap that it has taken
 */
#include "ir/rule.h"

#include <string.h>

/* start, start + step, .. as numbers of dy's type, along axis `axis` of the last two. */
static struct tensor *line(struct rule *r, int axis, double start, double step, struct size n) {
    struct tensor *at = make_positions(r->m, DY->dtype, 2, axis, n);
    return ADD(MUL(at, NUM(step)), NUM(start));
}

/* ---- Average pooling ---- */

/* The number of taps that count, of each window along `axis`: as in define_window.c, those inside the image, or inside the padded image. */
static struct tensor *count_taps(struct rule *r, int axis) {
    const struct attr *a = &r->layer->attr;
    const double front = a->count_pad ? (double)a->pad[axis] : 0,
                 behind = a->count_pad ? (double)a->pad[2 + axis] : 0,
                 size = (double)size_value(X->dim[2 + axis]);
    struct tensor *begin =
        line(r, axis, -(double)a->pad[axis], (double)a->stride[axis], DY->dim[2 + axis]);
    struct tensor *end =
        BINARY(minimum, ADD(begin, NUM((double)a->kernel[axis])), NUM(size + behind));
    return SUB(end, BINARY(maximum, begin, NUM(-front)));
}

static struct tensor *ones(struct rule *r) {
    const int64_t *kernel = r->layer->attr.kernel;
    const struct size dim[] = {X->dim[1], size_const(1), size_const(kernel[0]),
                               size_const(kernel[1])};
    return make_expand(r->m, NUM(1), 4, dim, NULL);
}

void grad_avg_pool(struct rule *r) {
    struct attr attr = ir_default_attr();
    attr.groups = size_value(X->dim[1]);
    for (int i = 0; i < 2; i++)
        if (!size_is_const(X->dim[2 + i]) ||
            !rule_fit_window(r, i, r->layer->attr.kernel[i], &attr))
            rule_refuse(r, "rows or columns of an open size");
    if (r->state->status) return;
    struct tensor *share = DIV(DY, MUL(count_taps(r, 0), count_taps(r, 1)));
    rule_give(r, 0,
              make_layer(r->m, LAYER_conv_transpose, 2, (struct tensor *[]){share, ones(r)}, &attr,
                         r->layer->origin));
}

/* ---- Adaptive average pooling ---- */

/* Each value of dy is repeated n[0] x n[1] times: [n,c,h,w] -> [n,c,h,1,w,1] -> [n,c,h*n[0],w*n[1]]. */
static struct tensor *repeat(struct rule *r, struct tensor *dy, const struct size n[2]) {
    const struct size one = size_const(1);
    if (!dy) return NULL;
    struct size apart[] = {dy->dim[0], dy->dim[1], dy->dim[2], one, dy->dim[3], one};
    struct tensor *parts = make_reshape(r->m, dy, 6, apart);
    apart[3] = n[0], apart[5] = n[1];
    parts = make_expand(r->m, parts, 6, apart, r->layer->origin);
    return parts ? make_reshape(r->m, parts, 4, X->dim) : NULL;
}

/* The numbers of rows and columns, as a number of dy's type. */
static struct tensor *window_size(struct rule *r) {
    const int64_t *kernel = r->layer->attr.kernel;
    static const int64_t axes[] = {2, 3};
    return DIV(rule_count(r, X, 2, axes), NUM((double)(kernel[0] * kernel[1])));
}

/* matrix[o, h] = 1 / (number of values of window o) if window o, [floor(o*H/O), ceil((o+1)*H/O)), has value h, else 0. */
static struct tensor *matrix(struct rule *r, int axis) {
    const double in = (double)size_value(X->dim[2 + axis]),
                 out = (double)r->layer->attr.kernel[axis];
    struct tensor *o = line(r, 0, 0, 1, size_const((int64_t)out)),
                  *h = line(r, 1, 0, 1, X->dim[2 + axis]);
    struct tensor *begin = UNARY(floor, DIV(MUL(o, NUM(in)), NUM(out)));
    struct tensor *end = UNARY(ceil, DIV(MUL(ADD(o, NUM(1)), NUM(in)), NUM(out)));
    struct tensor *inside = BINARY(bit_and, BINARY(less_equal, begin, h), BINARY(less, h, end));
    return WHERE(inside, DIV(NUM(1), SUB(end, begin)), NUM(0));
}

static void give_uneven(struct rule *r) {
    for (int i = 0; i < 2; i++)
        if (!size_is_const(X->dim[2 + i]))
            rule_refuse(r, "rows or columns of an open size, in windows of different sizes");
    if (r->state->status) return;
    struct tensor *columns = BINARY(matmul, DY, matrix(r, 1));
    rule_give(r, 0, BINARY(matmul, rule_transpose(r, matrix(r, 0)), columns));
}

void grad_adaptive_avg_pool(struct rule *r) {
    struct size n[2];
    const int64_t *kernel = r->layer->attr.kernel;
    bool even = true;
    for (int i = 0; i < 2; i++)
        even = even && size_divide(X->dim[2 + i], size_const(kernel[i]), &n[i]);
    if (even) rule_give(r, 0, repeat(r, DIV(DY, window_size(r)), n));
    else give_uneven(r);
}

/* The positions of the maxima are found again, and dy is added there, unless the window's result is the limit. */
void grad_max_pool(struct rule *r) {
    struct attr window = r->layer->attr;
    struct tensor *dy = DY;
    if (window.min != -(double)INFINITY)
        dy = WHERE(BINARY(less_equal, Y, NUM(window.min)), NUM(0), DY);
    window.min = -(double)INFINITY;
    struct tensor *index = make_layer(r->m, LAYER_max_pool_index, 1, &X, &window, r->layer->origin);
    window.n_shape = 4;
    memcpy(window.shape, X->dim, sizeof *X->dim * 4);
    rule_give(r, 0,
              make_layer(r->m, LAYER_max_pool_grad, 2, (struct tensor *[]){dy, index}, &window,
                         r->layer->origin));
}
