/* Inside src/ir: building blocks of define functions. */
#ifndef SOL_IR_DEFINE_H
#define SOL_IR_DEFINE_H

#include "ir/layer.h"

/* Input `i` at the output's own point, after broadcasting. */
struct expr *define_in(struct define *d, int i);
/* Input `i` at `index`; `checked` with `fill` outside. */
struct expr *define_load(struct define *d, int i, const struct index **index, bool checked,
                         double fill);
/* A reduction over n variables with these extents, numbered from d->n_vars on; what is combined, arg[0], is set later. */
struct expr *define_reduce(struct define *d, enum combine combine, int n,
                           const struct size *extent);
const struct index **define_point(struct define *d, int rank); /* v0, v1, .. */
struct expr *define_range(struct define *d, const struct index *index, int64_t low, int64_t high);
/* The index along dim `dim` of `in`, broadcast: dims line up at the end, and one of 1 beside a longer one is read at 0. */
const struct index *define_broadcast(struct define *d, const struct tensor *in, int dim);

/* Short forms; `d` is the define at hand. */
#define C(value) expr_const(d->arena, value)
#define UNARY(op, x) expr_apply(d->arena, PRIMITIVE_##op, x, NULL, NULL)
#define BINARY(op, x, y) expr_apply(d->arena, PRIMITIVE_##op, x, y, NULL)
#define VAR(v) index_var(d->arena, v)
#define NUMBER(value) index_const(d->arena, value)
#define PLUS(x, y) index_add(d->arena, x, y)
#define TIMES(x, factor) index_mul(d->arena, x, factor)
#define SELECT(condition, yes, no) expr_apply(d->arena, PRIMITIVE_SELECT, condition, yes, no)

#endif
