/*
 * Models with the gradients of generated ones.
 *
 *   generated model -> copy -> an input dy of BACKWARD per float output, and as outputs the gradients of all float leaves
 */
#include "gen.h"
#include "ir/ir.h"
#include "pass/pass.h"

#include <stdlib.h>

static bool is_float(const struct tensor *t) { return size_family(t->dtype) == FAMILY_FLOAT; }

struct leaves {
    int n;
    struct tensor *at[2 * GEN_LEAVES];
};

static void add_leaves(struct leaves *to, struct tensor *const *from, int n) {
    for (int i = 0; i < n; i++)
        if (is_float(from[i])) to->at[to->n++] = from[i];
}

/* dy[i] is the gradient of y[i]. */
static void add_seeds(struct model *m, struct leaves *y, struct leaves *dy) {
    add_leaves(y, m->outputs.at, m->outputs.n);
    for (; dy->n < y->n; dy->n++) {
        const struct tensor *of = y->at[dy->n];
        dy->at[dy->n] = ir_add_source(m, LAYER_input, "dy", of->dtype, of->rank, of->dim);
        ir_set_backward(dy->at[dy->n]);
    }
}

static enum sol_status add_gradients(struct model *m) {
    struct leaves x = {0}, y = {0}, dy = {0};
    struct tensor *dx[2 * GEN_LEAVES];
    add_leaves(&x, m->inputs.at, m->inputs.n);
    add_leaves(&x, m->params.at, m->params.n);
    add_seeds(m, &y, &dy);
    TRY(ir_gradients(m, y.n, y.at, dy.at, x.n, x.at, dx));
    for (int i = 0; i < x.n; i++)
        if (dx[i]) TRY(ir_add_output(m, dx[i], x.at[i]->name, BACKWARD));
    pass_clean(m);
    return SOL_OK;
}

struct sol_model *gen_gradient(const struct gen *g) {
    struct arena arena;
    struct text text;
    struct sol_model *joint = NULL;
    arena_init(&arena);
    struct model *m = ir_clone(&arena, ir_user_model(g->model));
    if (!add_gradients(m)) {
        text_init(&text, &arena);
        ir_print(&text, m);
        if (sol_model_parse(text.at, &joint)) joint = NULL;
    }
    arena_fini(&arena);
    return joint;
}
