/* ref_layer, and what the functions of all layers share: points, shapes, elements. */
#include "device/ref/eval.h"

#include <string.h>

/* ---- Points and shapes ---- */

static struct shape eval_shape(const struct tensor *t, const int64_t *symbols) {
    struct shape s = {.rank = t->rank, .n = 1};
    for (int i = t->rank - 1; i >= 0; i--) {
        s.dim[i] = size_eval(&t->dim[i], symbols);
        s.stride[i] = s.n;
        s.n *= s.dim[i];
    }
    return s;
}

struct shape ref_get_shape(const struct layer_call *c, int i) {
    return eval_shape(c->layer->in[i], c->symbols);
}

void ref_step_point(const struct shape *s, int64_t *at) {
    for (int i = s->rank - 1; i >= 0; i--) {
        if (++at[i] < s->dim[i]) return;
        at[i] = 0;
    }
}

int64_t ref_find_broadcast(const struct shape *s, int rank, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < s->rank; i++)
        if (s->dim[i] != 1) offset += at[rank - s->rank + i] * s->stride[i];
    return offset;
}

int64_t ref_find_offset(const struct shape *s, const int64_t *at) {
    int64_t offset = 0;
    for (int i = 0; i < s->rank; i++) offset += at[i] * s->stride[i];
    return offset;
}

int ref_wrap_axis(int64_t axis, int rank) { return (int)(axis < 0 ? axis + rank : axis); }

/* ---- Elements ---- */

void ref_move(const struct layer_call *c, int64_t i, int k, int64_t from) {
    size_t size = (size_t)size_element(c->layer->out[0]->dtype);
    memcpy((char *)c->out + (size_t)i * size, (const char *)c->in[k] + (size_t)from * size, size);
}

void ref_set_constant(const struct layer_call *c, int64_t i, double value) {
    enum sol_dtype type = c->layer->out[0]->dtype;
    if (size_family(type) == FAMILY_FLOAT) ref_set_real(c, i, value);
    else ref_set_whole(c, i, ref_constant(type, value));
}

/* The frontend's function computes host layers: ref.c calls it. */
void ref_eval_host(const struct layer_call *c) { (void)c; }

/* ---- The table ---- */

static void (*const evals[N_LAYER_KINDS])(const struct layer_call *c) = {
#define LAYER(kind, ...) [LAYER_##kind] = ref_eval_##kind,
#include "ir/layer.def"
#undef LAYER
};

enum sol_status ref_layer(const struct layer *layer, const int64_t *symbols, const void *const *in,
                          void *const *out) {
    enum sol_status status = SOL_OK;
    struct layer_call call = {.layer = layer,
                              .attr = &layer->attr,
                              .symbols = symbols,
                              .in = in,
                              .out = out[0],
                              .kept = layer->n_out > 1 ? out[1] : NULL,
                              .status = &status};
    call.type = (layer->n_in ? layer->in[0] : layer->out[0])->dtype;
    call.is_real = size_family(call.type) == FAMILY_FLOAT;
    call.shape = eval_shape(layer->out[0], symbols);
    evals[layer->kind](&call);
    return status;
}
