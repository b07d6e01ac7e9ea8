/* Checks the invariants of the IR after every pass. A failure is a bug of SOL, not an error of the user. */
#include "ir/ir.h"

#include <string.h>

static enum sol_status verify_inputs(const struct layer *l, const char *made) {
    for (int i = 0; i < l->n_in; i++)
        if (!made[l->in[i]->id])
            return fail(SOL_EBUG, "layer %d (%s) reads tensor %d before it is made", l->id,
                        layer_infos[l->kind].name, l->in[i]->id);
    return SOL_OK;
}

/* The output's shape must be the one that infer computes from the inputs. */
static enum sol_status verify_shape(const struct layer *l) {
    struct layer again = *l;
    struct tensor out = *l->out[0];
    again.out[0] = &out;
    if (layer_infos[l->kind].traits & SOURCE) return SOL_OK;
    TRY(layer_infos[l->kind].types(&again));
    TRY(layer_infos[l->kind].infer(&again));
    if (out.dtype == l->out[0]->dtype && ir_same_shape(&out, l->out[0], -1)) return SOL_OK;
    return fail(SOL_EBUG, "layer %d (%s) has a stale type or shape", l->id,
                layer_infos[l->kind].name);
}

static enum sol_status verify_layer(const struct model *m, const struct layer *l, char *made) {
    if (l->id < 0 || l->id >= m->n_layers || l->out[0]->id >= m->n_tensors)
        return fail(SOL_EBUG, "layer id out of range");
    if (made[l->out[0]->id]) return fail(SOL_EBUG, "tensor %d is made twice", l->out[0]->id);
    if (l->out[0]->producer != l)
        return fail(SOL_EBUG, "tensor %d names another producer", l->out[0]->id);
    TRY(verify_inputs(l, made));
    made[l->out[0]->id] = 1;
    return verify_shape(l);
}

static enum sol_status verify_layers(const struct model *m, char *made) {
    for (int i = 0; i < m->layers.n; i++) TRY(verify_layer(m, m->layers.at[i], made));
    for (int i = 0; i < m->outputs.n; i++)
        if (!made[m->outputs.at[i]->id]) return fail(SOL_EBUG, "output %d is made by no layer", i);
    return SOL_OK;
}

/* Does not allocate in the model's arena, since several threads may compile one model. */
enum sol_status ir_verify(const struct model *m) {
    char *made = mem_alloc((size_t)m->n_tensors + 1, 16);
    if (!made) return fail(SOL_ENOMEM, "no memory to verify the model");
    enum sol_status status = verify_layers(m, made);
    mem_free(made);
    return status;
}
