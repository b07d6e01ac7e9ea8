/*
 * Passes: rewrite a model into an equal one that is cheaper, as mathematics, knowing no device.
 *
 * One pass, one file, one row in pass.c. A pass may add layers anywhere in the list; pass_run sorts them and drops
 * those without readers afterwards, so that passes need not.
 */
#ifndef SOL_PASS_H
#define SOL_PASS_H

#include "ir/ir.h"

struct pass {
    const char *name;
    const char *what; /* for people */
    enum sol_status (*run)(struct model *m);
};
extern const struct pass passes[]; /* in order, ended by name == NULL */

/* Runs one pass, or all, and verifies the model after each. */
enum sol_status pass_run(const struct pass *pass, struct model *m);
enum sol_status pass_run_all(struct model *m);

/* pass/decompose.c, fold.c, simplify.c, cse.c */
enum sol_status pass_decompose(struct model *m);
enum sol_status pass_fold(struct model *m);
enum sol_status pass_simplify(struct model *m);
enum sol_status pass_cse(struct model *m);

/* ---- pass/edit.c: what rewriting needs ---- */

/* Adds a layer; on an error (SOL_EBUG: a pass built a wrong layer) returns NULL and keeps the message. */
struct tensor *pass_add(struct model *m, enum layer_kind kind, int n_in, struct tensor *const *in,
                        const struct attr *attr, const char *origin);
struct tensor *pass_scalar(struct model *m, double value);
struct tensor *pass_binary(struct model *m, enum layer_kind kind, struct tensor *a,
                           struct tensor *b, const char *origin);
struct tensor *pass_reshape(struct model *m, struct tensor *x, int rank, const struct size *dim);
/* What passes of local rules do: each layer of a rule's kind, in the model's order, is replaced by what `apply` returns.
 * That is the layer's own output when the rule does not apply, and NULL after an error. Layers that rules add are not
 * visited. */
struct pass_rule {
    enum layer_kind kind;
    struct tensor *(*apply)(struct model *m, const struct layer *l);
};
enum sol_status pass_apply(struct model *m, const struct pass_rule *rules, int n_rules);
/* The only reader of `t`, or NULL when there are none, several, or it is a model output. */
struct layer *pass_single_reader(const struct model *m, const struct tensor *t);
/* Topological order and no layers without readers (parameters and inputs stay). */
void pass_clean(struct model *m);

#endif
