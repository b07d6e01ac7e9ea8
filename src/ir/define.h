/* Inside src/ir: building blocks of define functions. */
#ifndef SOL_IR_DEFINE_H
#define SOL_IR_DEFINE_H

#include "ir/layer.h"

/* Input `i` at the output's own point, after broadcasting. */
struct expr *define_in(struct define *d, int i);
/* Input `i` at `index`; `checked` with `fill` outside. */
struct expr *define_load(struct define *d, int i, const struct index **index, bool checked,
                         double fill);
/* `combine` over n variables with these extents, numbered from d->n_vars on, starting from `start`; `body` is set later. */
struct expr *define_reduce(struct define *d, enum expr_op combine, double start, int n,
                           const struct size *extent);
const struct index **define_point(struct define *d, int rank); /* v0, v1, .. */
struct expr *define_range(struct define *d, const struct index *index, int64_t low, int64_t high);
struct expr *define_select(struct define *d, struct expr *condition, struct expr *yes,
                           struct expr *no);

#endif
