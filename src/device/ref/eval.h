/* Inside device/ref: what the functions of all layers share. */
#ifndef SOL_REF_EVAL_H
#define SOL_REF_EVAL_H

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
    struct shape shape;     /* of the output */
    const float *const *in; /* a gather casts its indices to their type */
    float *out;
    enum sol_status *status;
};

/* norms.c */
#define LAYER(kind, ...) void ref_eval_##kind(const struct layer_call *c);
#include "ir/layer.def"
#undef LAYER

struct shape ref_get_shape(const struct layer_call *c, int i); /* of input i */
void ref_step_point(const struct shape *s, int64_t *at);
int64_t ref_find_broadcast(const struct shape *s, int rank, const int64_t *at);
int64_t ref_find_offset(const struct shape *s, const int64_t *at);
int ref_wrap_axis(int64_t axis, int rank);

static inline double ref_real(const struct layer_call *c, int k, int64_t i) {
    return (double)c->in[k][i];
}
static inline void ref_set_real(const struct layer_call *c, int64_t i, double value) {
    c->out[i] = (float)value;
}
static inline void ref_move(const struct layer_call *c, int64_t i, int k, int64_t from) {
    c->out[i] = c->in[k][from];
}
static inline void ref_set_constant(const struct layer_call *c, int64_t i, double value) {
    c->out[i] = (float)value;
}

#endif
