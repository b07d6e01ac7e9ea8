/*
 * Models with a backward part, made of generated ones.
 *
 *   generated model -> copy -> some inputs, and tensors times 1, belong to BACKWARD -> text -> sol_model_parse
 */
#include "gen.h"
#include "ir/ir.h"
#include "pass/pass.h"

#include <stdlib.h>

#define GATES 3 /* tensors that are multiplied by the gate, at most */

/* Some readers of `t` read it times the gate instead. */
static void add_gate(struct model *m, struct tensor *t, struct tensor *gate, struct random *r) {
    struct tensor *product = make_binary(m, LAYER_mul, t, gate, NULL);
    for (int i = 0; product && i < m->layers.n - 1; i++)
        for (int k = 0; k < m->layers.at[i]->n_in; k++)
            if (m->layers.at[i]->in[k] == t && random_one_in(r, 2))
                m->layers.at[i]->in[k] = product;
    for (int i = 0; product && i < m->outputs.n; i++)
        if (m->outputs.at[i] == t && random_one_in(r, 2)) m->outputs.at[i] = product;
}

/* Constants stay constants: some layers take nothing else. Indices and lengths are no floats. */
static bool may_wait(const struct tensor *t) { return t->dtype == SOL_F32 && !ir_is_constant(t); }

static void divide(struct model *m, struct random *r) {
    struct tensor *gate = ir_add_source(m, LAYER_input, "gate", SOL_F32, 0, NULL);
    const int n = m->layers.n - 1;
    ir_set_backward(gate);
    for (int i = 0; i < m->inputs.n - 1; i++)
        if (random_one_in(r, 5)) ir_set_backward(m->inputs.at[i]);
    for (int i = 0; i < GATES && n > 0; i++) {
        struct layer *l = m->layers.at[random_int(r, 0, n - 1)];
        if (may_wait(l->out[0])) add_gate(m, l->out[0], gate, r);
    }
    pass_clean(m);
}

/* The copy of a model has the phases that follow from those of its inputs. */
static struct model *settle(struct arena *arena, const struct model *divided, struct random *r) {
    struct model *m = ir_clone(arena, divided);
    for (int i = 0; i < m->outputs.n; i++)
        if (phase_is_backward(m->outputs.at[i]->phase) || random_one_in(r, 3))
            m->output_phases.at[i] = BACKWARD;
    return m;
}

struct sol_model *gen_joint(const struct gen *g, struct random *r) {
    struct arena arena;
    struct text text;
    arena_init(&arena);
    struct model *m = ir_clone(&arena, ir_user_model(g->model));
    divide(m, r);
    text_init(&text, &arena);
    ir_print(&text, settle(&arena, m, r));
    struct sol_model *joint = NULL;
    if (sol_model_parse(text.at, &joint)) joint = NULL;
    arena_fini(&arena);
    return joint;
}
