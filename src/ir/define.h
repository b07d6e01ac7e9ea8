/*
 * Inside src/ir: building blocks of define functions.
 *
 *   define.c, define_shape.c, define_window.c: one function per line of layer.def  ->  struct expr
 */
#ifndef SOL_IR_DEFINE_H
#define SOL_IR_DEFINE_H

#include "ir/layer.h"

/* Loads input `i` at the output's own point, after broadcasting. */
struct expr *define_in(struct define *d, int i);
/* Loads input `i` at `index`, which may leave the input only if `checked` is set: then the value there is `fill`. */
struct expr *define_load(struct define *d, int i, const struct index **index, bool checked,
                         double fill);
/* A reduction over n new variables with these extents, numbered from d->n_vars on. The caller sets arg[0], the expression
 * whose values are combined. */
struct expr *define_reduce(struct define *d, enum combine combine, int n,
                           const struct size *extent);
const struct index **define_point(struct define *d, int rank); /* v0, v1, .. */
/* The row or column (axis 0 or 1) that tap `var` of the window at output position `out_var` reads. */
const struct index *define_tap(struct define *d, int axis, int out_var, int var);
/* The bool low <= index < high. */
struct expr *define_range(struct define *d, const struct index *index, struct size low,
                          struct size high);
/* The index along dim `dim` of `in`, broadcast to the output: dims are aligned at the end, and a dim of 1 that is broadcast
 * is read at 0. */
const struct index *define_broadcast(struct define *d, const struct tensor *in, int dim);

/* Short forms; they need a variable `d`, the struct define. */
#define C(value) expr_const(d->arena, d->type, value)
#define CAST(type, x) expr_cast(d->arena, type, x)
#define UNARY(op, x) expr_apply(d->arena, PRIMITIVE_##op, x, NULL, NULL)
#define BINARY(op, x, y) expr_apply(d->arena, PRIMITIVE_##op, x, y, NULL)
#define VAR(v) index_var(d->arena, v)
#define NUMBER(value) index_const(d->arena, value)
#define PLUS(x, y) index_add(d->arena, x, y)
#define TIMES(x, factor) index_mul(d->arena, x, factor)
#define SELECT(condition, yes, no) expr_apply(d->arena, PRIMITIVE_SELECT, condition, yes, no)

#endif
