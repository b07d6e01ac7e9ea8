/*
 * Passes: each rewrites a model into an equivalent, cheaper one, without knowledge of devices.
 *
 *   user's model -> widen -> compose -> decompose -> simplify -> quantize -> fold -> patches -> cse -> recompute -> plan
 *
 * A pass is one file and one row in pass.c. It may append layers, and leave layers without readers: pass_run then calls
 * pass_clean and ir_verify.
 */
#ifndef SOL_PASS_H
#define SOL_PASS_H

#include "ir/make.h"

struct pass {
    const char *name;
    const char *what; /* for people */
    enum sol_status (*run)(struct model *m);
};
extern const struct pass passes[]; /* in order, ended by name == NULL */

/* Runs one pass, or all; cleans and verifies the model after each. */
enum sol_status pass_run(const struct pass *pass, struct model *m);
enum sol_status pass_run_all(struct model *m);

/* pass/widen.c, compose.c, decompose.c, simplify.c, quantize.c, fold.c, patches.c, cse.c, recompute.c */
enum sol_status pass_widen(struct model *m);
enum sol_status pass_compose(struct model *m);
enum sol_status pass_decompose(struct model *m);
enum sol_status pass_quantize(struct model *m);
enum sol_status pass_fold(struct model *m);
enum sol_status pass_simplify(struct model *m);
enum sol_status pass_patches(struct model *m);
enum sol_status pass_cse(struct model *m);
enum sol_status pass_recompute(struct model *m);

/* ---- pass/edit.c: tools for rewriting ---- */

/* A pass made of local rules: for each layer of a rule's kind, in the model's order, the tensor that `apply` returns replaces
 * the layer's output. It is that output itself if there is nothing to rewrite, and NULL after an error. Layers that rules
 * add are not visited. */
struct pass_rule {
    enum layer_kind kind;
    struct tensor *(*apply)(struct model *m, const struct layer *l);
};
enum sol_status pass_apply(struct model *m, const struct pass_rule *rules, int n_rules);
/* The only reader of `t`; NULL if there are none or several, if it reads `t` twice, or if `t` is an output of the model. */
struct layer *pass_single_reader(const struct model *m, const struct tensor *t);
/* Sorts the layers topologically and removes those that neither outputs nor layers with effects depend on, except inputs and
 * parameters. */
void pass_clean(struct model *m);

#endif
