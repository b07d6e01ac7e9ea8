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

/* The output's shape must be the one that infer computes from the inputs. A frontend declares the shapes of host layers. */
static enum sol_status verify_shape(const struct layer *l) {
    struct layer again = *l;
    struct tensor out = *l->out[0], *outs[] = {&out};
    again.out = outs;
    if (layer_infos[l->kind].traits & SOURCE || l->kind == LAYER_host) return SOL_OK;
    TRY(layer_infos[l->kind].types(&again));
    TRY(layer_infos[l->kind].infer(&again));
    if (out.dtype == l->out[0]->dtype && ir_same_shape(&out, l->out[0], -1)) return SOL_OK;
    return fail(SOL_EBUG, "layer %d (%s) has a stale type or shape", l->id,
                layer_infos[l->kind].name);
}

static enum sol_status verify_output(const struct model *m, const struct layer *l, int i,
                                     char *made) {
    const struct tensor *t = l->out[i];
    if (t->id >= m->n_tensors) return fail(SOL_EBUG, "tensor id out of range");
    if (made[t->id]) return fail(SOL_EBUG, "tensor %d is made twice", t->id);
    if (t->producer != l) return fail(SOL_EBUG, "tensor %d names another producer", t->id);
    made[t->id] = 1;
    return SOL_OK;
}

/* Passes may give a layer inputs of an earlier phase, never of one that comes later. */
static enum sol_status verify_phase(const struct layer *l) {
    for (int k = 0; k < l->n_out; k++)
        for (int i = 0; i < l->n_in; i++)
            if (phase_join(l->in[i]->phase, l->out[k]->phase) != l->out[k]->phase)
                return fail(SOL_EBUG, "layer %d (%s) runs before its input %d is there", l->id,
                            layer_infos[l->kind].name, i);
    return SOL_OK;
}

/* Is the second output that of a recurrent layer? */
static bool has_gates(const struct layer *l) {
    if (l->n_out != 2 || !ir_may_keep_gates(l->kind)) return false;
    struct tensor expected;
    ir_set_gates(l, &expected);
    return l->out[1]->dtype == expected.dtype && ir_same_shape(l->out[1], &expected, -1);
}

static enum sol_status verify_layer(const struct model *m, const struct layer *l, char *made) {
    if (l->id < 0 || l->id >= m->n_layers) return fail(SOL_EBUG, "layer id out of range");
    if (l->n_out < 1 || (l->n_out > 1 && l->kind != LAYER_host && !has_gates(l)))
        return fail(SOL_EBUG, "layer %d (%s) has %d outputs", l->id, layer_infos[l->kind].name,
                    l->n_out);
    TRY(verify_inputs(l, made));
    for (int i = 0; i < l->n_out; i++) TRY(verify_output(m, l, i, made));
    TRY(verify_phase(l));
    return verify_shape(l);
}

/* `made` becomes 2 for the parameters of earlier updates. Passes may change what computes a value, but not its type. */
static enum sol_status verify_update(const struct update *u, int i, char *made) {
    const struct tensor *param = u->param, *value = u->value;
    if (!made[param->id] || !made[value->id])
        return fail(SOL_EBUG, "update %d has a tensor that is made by no layer", i);
    if (param->producer->kind != LAYER_param || !param->is_updated || ir_is_constant(param))
        return fail(SOL_EBUG, "update %d is not of a parameter that is marked as updated", i);
    if (made[param->id] == 2) return fail(SOL_EBUG, "update %d is the second of a parameter", i);
    if (param->dtype != value->dtype || !ir_same_shape(param, value, -1))
        return fail(SOL_EBUG, "update %d has a value of another type or shape", i);
    if (phase_is_backward(value->phase))
        return fail(SOL_EBUG,
                    "update %d has a value that is not there at the end of a forward call", i);
    made[param->id] = 2;
    return SOL_OK;
}

static enum sol_status verify_result(const struct model *m, int i, const char *made) {
    const struct tensor *t = m->outputs.at[i];
    if (!made[t->id]) return fail(SOL_EBUG, "output %d is made by no layer", i);
    if (m->output_phases.at[i] == FORWARD && phase_is_backward(t->phase))
        return fail(SOL_EBUG, "output %d is not there at the end of a forward call", i);
    return SOL_OK;
}

static enum sol_status verify_layers(const struct model *m, char *made) {
    for (int i = 0; i < m->layers.n; i++) TRY(verify_layer(m, m->layers.at[i], made));
    for (int i = 0; i < m->outputs.n; i++) TRY(verify_result(m, i, made));
    for (int i = 0; i < m->updates.n; i++) TRY(verify_update(&m->updates.at[i], i, made));
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
