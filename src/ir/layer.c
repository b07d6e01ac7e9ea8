/* The table of layers, made from layer.def. */
#include "ir/rule.h"

#include <string.h>

const struct layer_info layer_infos[N_LAYER_KINDS] = {
#define LAYER(kind, min, max, shape, math, types, grad, traits, attrs)    \
    [LAYER_##kind] = {#kind,        min,           max,    attrs, \
                      infer_##shape, define_##math, types_##types, grad_##grad, traits},
#include "ir/layer.def"
#undef LAYER
};

enum layer_kind ir_find_kind(const char *name) {
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (!strcmp(layer_infos[i].name, name)) return (enum layer_kind)i;
    return N_LAYER_KINDS;
}

struct attr ir_default_attr(void) {
    struct attr a;
    memset(&a, 0, sizeof a); /* also padding bytes, since pass/cse.c compares bytes */
    for (int i = 0; i < 2; i++) a.kernel[i] = a.stride[i] = a.dilation[i] = 1;
    a.depth[0] = a.depth[1] = 1;
    a.groups = a.step = 1;
    a.padding = -1;
    a.min = -(double)INFINITY;
    a.max = (double)INFINITY;
    a.alpha = 0.01;
    a.eps = 1e-5;
    a.p = 2;
    a.scale = a.input_scale = 1;
    a.wraps = true;
    return a;
}
