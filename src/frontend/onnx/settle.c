/*
 * Long models: parts of a model that is run at once are computed while it is built, so that their layers can be freed.
 *
 *   op_recurrent.c, op_sequence.c: layers of some steps -> call_settle -> parameters of a new model -> layers of the next steps
 *
 * A layer takes more than a kilobyte, and a step of a sequence has many layers.
 */
#include "import.h"

/* The values of a tensor of the model, in the import's arena. A model that is run at once has no open sizes. */
static struct settled describe(struct import *im, sol_tensor x) {
    struct settled s = {.dtype = sol_model_dtype(im->model, x)};
    s.rank = sol_model_shape(im->model, x, s.dim);
    int64_t n = size_element(s.dtype);
    for (int d = 0; d < s.rank; d++) n *= s.dim[d];
    for (int i = 0; i < im->settled.n; i++)
        if (im->settled.at[i].tensor == x) s.data = im->settled.at[i].data;
    s.is_new = !s.data;
    if (s.is_new) s.data = arena_alloc_array(im->arena, 1, (size_t)n + 1);
    return s;
}

static enum sol_status compute(struct import *im, void *const *out) {
    const void **in = ARENA_ARRAY(im->arena, const void *, im->inputs.n + 1);
    for (int i = 0; i < im->inputs.n; i++) in[i] = im->inputs.at[i]->live;
    return sol_model_evaluate(im->model, in, im->params.at, out);
}

/* Nothing may jump while `next` is not yet the import's: it would be lost. */
static enum sol_status replace_model(struct op_call *c) {
    struct import *im = c->im;
    struct sol_model *next = sol_model_new("node");
    if (!next) return fail(SOL_ENOMEM, "no memory for a model");
    sol_model_free(im->model);
    im->model = next;
    im->params.n = im->inputs.n = im->settled.n = 0;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]) c->in[i]->tensor = -1;
    return SOL_OK;
}

enum sol_status call_settle(struct op_call *c, int n, sol_tensor *const *list) {
    struct import *im = c->im;
    int n_out = 0;
    TRY(im->status);
    struct settled *all = ARENA_ARRAY(im->arena, struct settled, n + 1);
    void **out = ARENA_ARRAY(im->arena, void *, n + 1);
    for (int i = 0; i < n; i++) {
        if (*list[i] < 0) continue;
        all[i] = describe(im, *list[i]);
        if (!all[i].is_new) continue;
        sol_model_output(im->model, "settled", *list[i]);
        out[n_out++] = all[i].data;
    }
    TRY(compute(im, out));
    TRY(replace_model(c));
    for (int i = 0; i < n; i++) {
        if (*list[i] < 0) continue;
        *list[i] = all[i].tensor =
            call_param(c, all[i].dtype, all[i].rank, all[i].dim, all[i].data);
        VEC_PUSH(im->arena, &im->settled, all[i]);
    }
    return im->status;
}
