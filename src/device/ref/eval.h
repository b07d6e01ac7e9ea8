/*
 * Inside device/ref: what the functions of all layers share.
 *
 *   ref_layer (layers.c)  ->  struct layer_call  ->  ref_eval_<kind> (pointwise.c, product.c, window.c, reduce.c, move.c)
 *
 * Each function loops over the points of the output and computes one after the other. It is meant to be
 * obviously correct, not fast. Formulas are those of PyTorch's manual.
 */
#ifndef SOL_REF_EVAL_H
#define SOL_REF_EVAL_H

#include "device/ref/element.h"
#include "device/ref/ref.h"

/* A tensor's dims as numbers, for the symbols of this call. */
struct shape {
    int rank;
    int64_t n; /* elements */
    int64_t dim[SOL_MAX_RANK];
    int64_t stride[SOL_MAX_RANK];
};

/* The arguments of a layer's function. */
struct layer_call {
    const struct layer *layer;
    const struct attr *attr;
    const int64_t *symbols;
    enum sol_dtype type; /* of the first input, or of the output if there are no inputs */
    bool is_real;        /* is `type` a float? Else it is an integer or bool */
    struct shape shape;  /* of the output */
    const void *const *in;
    void *out, *kept; /* kept: the gates of a recurrent layer that keeps them; else NULL */
    enum sol_status *status;
};

/* One function per line of ir/layer.def. */
#define LAYER(kind, ...) void ref_eval_##kind(const struct layer_call *c);
#include "ir/layer.def"
#undef LAYER

/* ---- layers.c ---- */

struct shape ref_get_shape(const struct layer_call *c, int i); /* of input i */
/* Advances `at` to the next point of a shape in row-major order. */
void ref_step_point(const struct shape *s, int64_t *at);
/* The offset of the element of `s` that is broadcast to point `at` of a shape of rank `rank`. */
int64_t ref_find_broadcast(const struct shape *s, int rank, const int64_t *at);
int64_t ref_find_offset(const struct shape *s, const int64_t *at);
/* Negative axes count from the end. */
int ref_wrap_axis(int64_t axis, int rank);
/* Copies element `from` of input `k` to element `i` of the output, which has the same type. */
void ref_move(const struct layer_call *c, int64_t i, int k, int64_t from);
/* Writes an attribute's value. */
void ref_set_constant(const struct layer_call *c, int64_t i, double value);

/* Element `i` of input `k`, and element `i` of the output. */
static inline double ref_real(const struct layer_call *c, int k, int64_t i) {
    return ref_get_real(c->layer->in[k]->dtype, c->in[k], i);
}
static inline int64_t ref_whole(const struct layer_call *c, int k, int64_t i) {
    return ref_get_whole(c->layer->in[k]->dtype, c->in[k], i);
}
static inline void ref_set_real(const struct layer_call *c, int64_t i, double value) {
    ref_put_real(c->layer->out[0]->dtype, c->out, i, value);
}
static inline void ref_set_whole(const struct layer_call *c, int64_t i, int64_t value) {
    ref_put_whole(c->layer->out[0]->dtype, c->out, i, value);
}

/* x op y of integers, modulo 2^64: signed numbers that overflow are undefined in C. */
#define REF_WRAP(x, op, y) ((int64_t)((uint64_t)(x) op (uint64_t)(y)))

#endif
