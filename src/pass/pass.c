/*
 * The list of passes, and how a pass is run.
 *
 *   pass->run -> pass_clean -> ir_verify -> printed with SOL_DEBUG=pass
 */
#include "pass/pass.h"

#include <stdio.h>

/* widen is first, so that other passes make f32 layers only; then compose, which finds composites; then decompose, so that the rest handle simple layers only. */
const struct pass passes[] = {
    {"widen", "f16 and bf16 are computed as f32; inputs are widened, outputs rounded", pass_widen},
    {"compose", "a product, a softmax and a product become one attention layer", pass_compose},
    {"decompose",
     "composites become simple layers: batch norm a product and a sum, softmax its five steps",
     pass_decompose},
    {"simplify", "layers without effect go: clamps to infinity, reshapes to the same shape, ...",
     pass_simplify},
    {"quantize", "products of dequantized tensors become products of integers", pass_quantize},
    {"fold", "per-channel products and sums after conv and linear move into their parameters",
     pass_fold},
    {"patches",
     "convolutions of one pixel, one window or windows side by side become linear layers",
     pass_patches},
    {"cse", "equal layers with equal inputs are computed once", pass_cse},
    {"recompute",
     "values that the backward call can compute at no cost, or are to be, are not saved",
     pass_recompute},
    {NULL, NULL, NULL},
};

/* SOL_DEBUG=pass */
static void show(const char *name, const struct model *m) {
    struct text text;
    text_init(&text, m->arena);
    ir_print(&text, m);
    fprintf(stderr, "---- %s ----\n%s", name, text.at);
}

/* A pass that finds nothing to do leaves a model that is clean and verified. */
static enum sol_status clean(struct model *m, int n_edits) {
    if (m->n_edits == n_edits) return SOL_OK;
    pass_clean(m);
    return ir_verify(m);
}

enum sol_status pass_run(const struct pass *pass, struct model *m) {
    const int n_edits = m->n_edits;
    TRY(pass->run(m));
    const enum sol_status status = clean(m, n_edits);
    if (status) fail_prefix("after pass %s: ", pass->name);
    else if (env_has(ENV_SOL_DEBUG, "pass")) show(pass->name, m);
    return status;
}

enum sol_status pass_run_all(struct model *m) {
    pass_clean(m);
    for (const struct pass *pass = passes; pass->name; pass++) TRY(pass_run(pass, m));
    return SOL_OK;
}
