/* Inside src/ir: what the infer and define functions share. */
#ifndef SOL_IR_LAYER_H
#define SOL_IR_LAYER_H

#include "ir/expr.h"

#include <math.h>

/* Every infer and define function that layer.def names; `none` stands for "there is nothing to do". */
#define LAYER(kind, min, max, shape, math, traits, attrs) \
    enum sol_status infer_##shape(struct layer *layer);   \
    struct expr *define_##math(struct define *d);
#include "ir/layer.def"
#undef LAYER

/* "axis 4 of a tensor of rank 3" as an error; negative axes count from the end. */
enum sol_status infer_axis(int64_t *axis, int rank);
/* The same for all of `axes`, none of which may be there twice; they are marked in `seen`. */
enum sol_status infer_axes(struct attr *a, int rank, bool seen[SOL_MAX_RANK]);
void infer_set_shape(struct tensor *out, const struct tensor *like);
/* Shape as text for a message, valid in the block around it. */
#define SHAPE_TEXT(t) infer_shape_text(t, (char[256]){0})
const char *infer_shape_text(const struct tensor *t, char text[256]);

#endif
