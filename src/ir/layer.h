/*
 * Inside src/ir: the infer, define and types functions, and helpers of the infer functions.
 *
 *   layer.def  ->  [declarations here], layer.c: the table  ->  infer*.c, define*.c, types.c: the functions
 */
#ifndef SOL_IR_LAYER_H
#define SOL_IR_LAYER_H

#include "ir/expr.h"

#include <math.h>

/* Every infer, define and types function that layer.def names. infer_none does nothing; define_none returns NULL. */
#define LAYER(kind, min, max, shape, math, types, grad, traits, attrs) \
    enum sol_status infer_##shape(struct layer *layer);          \
    struct expr *define_##math(struct define *d);                \
    enum sol_status types_##types(struct layer *layer);
#include "ir/layer.def"
#undef LAYER

/* Checks an axis and makes it non-negative: negative axes count from the end. */
enum sol_status infer_axis(int64_t *axis, int rank);
/* The same for all of attr->axes, none of which may occur twice. Sets seen[axis] for each; the caller clears `seen` before. */
enum sol_status infer_axes(struct attr *attr, int rank, bool seen[SOL_MAX_RANK]);
/* Sorts attr.axes, makes them non-negative, and fills in all axes if none is given. Sets reduced[axis] for each. */
enum sol_status infer_reduced_axes(struct layer *l, bool reduced[SOL_MAX_RANK]);
/* Has the type this value, for a bound or a fill value? An infinity stands for the limit of an integer type. */
enum sol_status infer_bound(enum sol_dtype dtype, double value);
/* The least and the largest of `count` indices start, start + step, ..; at least one. */
void infer_steps(const struct attr *attr, struct size count, struct size *least, struct size *most);
void infer_set_shape(struct tensor *out, const struct tensor *like);
/* Gives the output the highest rank of all inputs, with all dims 1. */
void infer_set_ones(struct layer *l);
/* Broadcasts the dims of `out` with those of `t`, except the last `skip`; both are aligned at the end. False: not possible. */
bool infer_broadcast_into(struct tensor *out, const struct tensor *t, int skip);
/* A shape as text for a message; the text is valid to the end of the enclosing block. */
#define SHAPE_TEXT(t) infer_shape_text(t, (char[256]){0})
const char *infer_shape_text(const struct tensor *t, char text[256]);

#endif
