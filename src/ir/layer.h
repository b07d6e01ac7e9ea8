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

/* "axis 4 of a tensor of rank 3" as an error; negative axes count from the end, and are left without their sign. */
enum sol_status infer_axis(int64_t *axis, int rank);
/* The same for the list of axes, each of which may stand there once; they are noted in `seen`. */
enum sol_status infer_axes(struct attr *attr, int rank, bool seen[SOL_MAX_RANK]);
void infer_shape_like(struct tensor *out, const struct tensor *like);
/* For messages: "[?,3,224,224]", with a ? for what depends on symbols. Long ones are cut off. */
struct shape_text {
    char at[256];
};
struct shape_text infer_shape_text(const struct tensor *t);

#endif
