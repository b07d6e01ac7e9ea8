/* Attention as products and a softmax, if the device does not compute it as one layer. */
#include "pass/decompose.h"

struct tensor *decompose_attention(struct model *m, const struct layer *l) {
    struct attention a;
    if (m->computes && m->computes(l, m->lanes)) return l->out[0];
    make_attention_weights(m, l, &a);
    struct tensor *y = decompose_binary(m, l, LAYER_matmul, a.weights, a.v);
    return y && ir_head_group(l) > 1 ? make_reshape(m, y, l->out[0]->rank, l->out[0]->dim) : y;
}
