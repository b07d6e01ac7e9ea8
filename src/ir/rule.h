/*
 * Inside src/ir: rules of gradients, and what they are written with.
 *
 *   ir_gradients (grad.c)  ->  the rule of each layer's kind, from the last layer to the first  ->  layers of BACKWARD
 *
 * A rule gets dy, the gradient of a number s (a loss) by the layer's output y, and gives the gradient of s by each input that wants
 * one. It is written with layers, so passes, fusion and all devices serve the backward part, too. The formulas, and the choices where
 * a function has a kink, are PyTorch's (tools/autograd/derivatives.yaml and the kernels that it names).
 *
 *   grad_point.c: pointwise layers      grad_reduce.c: reductions, softmax     grad_norm.c: norms
 *   grad_product.c: products            grad_window.c: pooling                 grad_move.c: layers that move values
 *   grad_recurrent.c: recurrent layers
 */
#ifndef SOL_IR_RULE_H
#define SOL_IR_RULE_H

#include "ir/layer.h"
#include "ir/make.h"

/* ---- The state of ir_gradients ---- */

/* A part of a tensor's gradient. `slice` is NULL, or the slice layer that has read the part. */
struct contribution {
    struct tensor *dx;
    const struct layer *slice;
};

struct gradients {
    struct model *m;
    bool *wants; /* by tensor id: a gradient of it is needed */
    VEC(struct contribution) *parts;
    enum sol_status status; /* of the first error */
};

/* The argument of rules. */
struct rule {
    struct model *m;
    const struct layer *layer;
    struct tensor *y, *dy;
    struct gradients *state; /* of grad.c */
};

/* Does input `i` want a gradient? */
bool rule_wants(const struct rule *r, int i);
/* Adds to the gradient of input `i`. A tensor that is larger, as y was after broadcasting, is summed to the input's shape; one that
 * is smaller is broadcast to it. NULL, after an error, is kept as the error. */
void rule_give(struct rule *r, int i, struct tensor *dx);
/* The same, of the part that slice layer r->layer reads. If parts tile the input, its gradient is their concat. */
void rule_give_part(struct rule *r, struct tensor *dx);
/* Ends the rule: the layer, with these attributes or inputs, has no gradient yet. `reason` is static. */
void rule_refuse(struct rule *r, const char *reason);

/* ---- Building blocks ---- */

struct tensor *rule_unary(struct rule *r, enum layer_kind kind, struct tensor *x);
struct tensor *rule_binary(struct rule *r, enum layer_kind kind, struct tensor *a,
                           struct tensor *b);
struct tensor *rule_where(struct rule *r, struct tensor *condition, struct tensor *yes,
                          struct tensor *no);
/* The sum over all dims along which `x` is larger than `rank` and `dim`; it has that shape. */
struct tensor *rule_sum_to(struct rule *r, struct tensor *x, int rank, const struct size *dim);
/* A reduction over the axes of r->layer, which stay with size 1. */
struct tensor *rule_reduce(struct rule *r, enum layer_kind kind, struct tensor *x);
/* dy, or y, of a reduction, with the reduced axes as dims of 1. */
struct tensor *rule_keep_axes(struct rule *r, struct tensor *reduced);
/* How many values of x lie along `n` axes, as a number of dy's type: a constant, or a sum of ones where a dim is open. */
struct tensor *rule_count(struct rule *r, const struct tensor *x, int n, const int64_t *axes);
struct tensor *rule_transpose(struct rule *r, struct tensor *x); /* exchanges the last two dims */
/* For layers with windows: the stride, dilation and padding along `axis` (0: rows, 1: columns) with which a transposed convolution of dy
 * has the size of x. False if x has an open size that does not follow from dy's. */
bool rule_fit_window(const struct rule *r, int axis, int64_t kernel, struct attr *attr);

/* Short forms; they need a variable `r`. */
#define X r->layer->in[0]
#define Y r->y
#define DY r->dy
#define NUM(value) make_scalar(r->m, r->dy->dtype, value)
#define UNARY(kind, x) rule_unary(r, LAYER_##kind, x)
#define BINARY(kind, a, b) rule_binary(r, LAYER_##kind, a, b)
#define ADD(a, b) BINARY(add, a, b)
#define SUB(a, b) BINARY(sub, a, b)
#define MUL(a, b) BINARY(mul, a, b)
#define DIV(a, b) BINARY(div, a, b)
#define SQUARE(x) UNARY(square, x)
#define WHERE(condition, yes, no) rule_where(r, condition, yes, no)

/* ---- Rules: one function per name in layer.def. grad_none stands for kinds whose outputs are no floats, and for `stop`: it is never called ---- */

#define LAYER(kind, min, max, shape, math, types, grad, traits, attrs) \
    void grad_##grad(struct rule *r);
#include "ir/layer.def"
#undef LAYER

#endif
