/*
 * Ensembles of decision trees: TreeEnsembleClassifier, TreeEnsembleRegressor, TreeEnsemble.
 *
 *   attributes  ->  struct forest  ->  for each row and tree: a walk from the root to a leaf  ->  the weights of the leaves, merged
 *
 * The first two operators list nodes of all trees and name each by two numbers, its tree and its place there; leaves are nodes. The
 * last one lists inner nodes and leaves apart, by their positions. Both become one list of nodes.
 *
 * Invariant: the numbers of nodes, features and targets in a forest are checked, so a walk is safe. Attributes may form a cycle; a walk
 * that is longer than the list of nodes has found one, and is an error.
 */
#include "ml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The numbers are those of TreeEnsemble's nodes_modes. */
enum mode { MODE_LEQ, MODE_LT, MODE_GTE, MODE_GT, MODE_EQ, MODE_NEQ, MODE_MEMBER, MODE_LEAF };
static const char *const mode_names[] = {"BRANCH_LEQ", "BRANCH_LT",  "BRANCH_GTE",    "BRANCH_GT",
                                         "BRANCH_EQ",  "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF"};

/* A leaf has the weights `first` to first + n - 1; a node of mode MEMBER the same of the members. Lists of attributes have fewer than
 * 2^31 values, so positions fit int32_t, and more nodes fit the caches. */
struct node {
    double split;
    int32_t feature, branch[2], first, n;
    uint8_t mode;
    bool missing; /* does NaN take the first branch? */
};
struct weight {
    int64_t node, target;
    double value;
};
struct forest {
    struct node *nodes;
    struct weight *weights; /* sorted by node */
    double *members;
    int64_t *roots;
    int64_t n, n_weights, n_roots, n_targets, n_members;
    int64_t greatest; /* the greatest feature that a node asks for; -1: none does */
};

/* ---- Walking ---- */

static bool is_member(const struct forest *f, const struct node *node, double x) {
    for (int32_t i = node->first; i < node->first + node->n; i++)
        if (f->members[i] == x) return true;
    return false;
}

static bool takes_first(const struct forest *f, const struct node *node, double x) {
    if (node->missing && isnan(x)) return true;
    switch (node->mode) {
    case MODE_LEQ: return x <= node->split;
    case MODE_LT: return x < node->split;
    case MODE_GTE: return x >= node->split;
    case MODE_GT: return x > node->split;
    case MODE_EQ: return x == node->split;
    case MODE_NEQ: return x != node->split;
    default: return is_member(f, node, x);
    }
}

static const struct node *walk_tree(struct eval *e, const struct forest *f, int64_t root,
                                    const double *x) {
    const struct node *node = &f->nodes[root];
    for (int64_t steps = 0; node->mode != MODE_LEAF; steps++) {
        if (steps >= f->n) eval_check(e, false, "the nodes of a tree form a cycle");
        node = &f->nodes[node->branch[!takes_first(f, node, x[node->feature])]];
    }
    return node;
}

/* ---- Reading ---- */

/* A list of exactly `n` values. */
static const int64_t *ints_of(struct eval *e, const char *name, int64_t n) {
    const int64_t *list;
    if (eval_ints(e, name, &list) != n)
        eval_stop(e, fail(SOL_EINVAL, "%s does not have %lld values", name, (long long)n));
    return list;
}

/* The same, or NULL if the attribute is missing or empty. */
static const int64_t *optional_ints(struct eval *e, const char *name, int64_t n) {
    const int64_t *list;
    return eval_ints(e, name, &list) ? ints_of(e, name, n) : NULL;
}

/* `n` values of a tensor or list. A list of floats or doubles. */
static const double *doubles_of(struct eval *e, const char *name, struct array *values, int64_t n) {
    if (!values || values->n != n)
        eval_stop(e, fail(SOL_EINVAL, "%s does not have %lld values", name, (long long)n));
    return array_doubles(e->space, values);
}

static void check_index(struct eval *e, const char *name, int64_t index, int64_t n) {
    if (index < 0 || index >= n)
        eval_stop(e, fail(SOL_EINVAL, "%s has %lld, which is not below %lld", name,
                          (long long)index, (long long)n));
}

static void set_feature(struct eval *e, struct forest *f, struct node *node, int64_t feature) {
    check_index(e, "nodes_featureids", feature, INT32_MAX);
    node->feature = (int32_t)feature;
    f->greatest = max_i64(f->greatest, feature);
}

static int by_node(const void *a, const void *b) {
    const struct weight *x = a, *y = b;
    return (x->node > y->node) - (x->node < y->node);
}

/* Sorts the weights, so that those of a leaf are together, and tells the leaves. Weights of one leaf keep no order among each other:
 * their targets differ, or they are added. */
static void share_weights(struct eval *e, struct forest *f) {
    qsort(f->weights, (size_t)f->n_weights, sizeof *f->weights, by_node);
    for (int64_t i = 0; i < f->n_weights; i++) {
        struct node *node = &f->nodes[f->weights[i].node];
        check_index(e, "a target or class", f->weights[i].target, f->n_targets);
        if (node->mode != MODE_LEAF) continue;
        if (!node->n++) node->first = (int32_t)i;
    }
}

/* ---- Nodes with names ---- */

/* The name of a node, and its position in the list. */
struct name {
    int64_t tree, node, at;
};

static int by_name(const void *a, const void *b) {
    const struct name *x = a, *y = b;
    if (x->tree != y->tree) return x->tree < y->tree ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

static int64_t find_node(struct eval *e, const struct forest *f, const struct name *names,
                         int64_t tree, int64_t node) {
    const struct name key = {tree, node, 0},
                      *found = bsearch(&key, names, (size_t)f->n, sizeof key, by_name);
    if (!found)
        eval_stop(e,
                  fail(SOL_EINVAL, "tree %lld has no node %lld", (long long)tree, (long long)node));
    return found->at;
}

static struct name *sort_names(struct eval *e, const struct forest *f) {
    const int64_t *tree = ints_of(e, "nodes_treeids", f->n),
                  *node = ints_of(e, "nodes_nodeids", f->n);
    struct name *names = SPACE_ARRAY(e->space, struct name, f->n + 1);
    for (int64_t i = 0; i < f->n; i++) names[i] = (struct name){tree[i], node[i], i};
    qsort(names, (size_t)f->n, sizeof *names, by_name);
    for (int64_t i = 1; i < f->n; i++)
        eval_check(e, by_name(&names[i - 1], &names[i]) != 0,
                   "two nodes of a tree have one number");
    return names;
}

static enum mode read_mode(struct eval *e, const struct bytes *text) {
    for (int i = 0; i < COUNT(mode_names); i++)
        if (i != MODE_MEMBER && text->size == strlen(mode_names[i]) &&
            !memcmp(text->at, mode_names[i], text->size))
            return (enum mode)i;
    eval_stop(e, fail(SOL_EINVAL, "nodes_modes has \"%.*s\"", (int)min_i64((int64_t)text->size, 32),
                      text->size ? (const char *)text->at : ""));
}

static void read_nodes(struct eval *e, struct forest *f, const struct name *names) {
    const int64_t *feature = ints_of(e, "nodes_featureids", f->n),
                  *tree = ints_of(e, "nodes_treeids", f->n),
                  *yes = ints_of(e, "nodes_truenodeids", f->n),
                  *no = ints_of(e, "nodes_falsenodeids", f->n),
                  *missing = optional_ints(e, "nodes_missing_value_tracks_true", f->n);
    const double *split = doubles_of(e, "nodes_values", ml_floats(e, "nodes_values"), f->n);
    const struct onnx_attribute *modes = eval_attribute(e, "nodes_modes");
    eval_check(e, modes && modes->strings.n == f->n, "nodes_modes does not have a word per node");
    for (int64_t i = 0; i < f->n; i++) {
        struct node *node = &f->nodes[i];
        node->mode = (uint8_t)read_mode(e, ITEM(modes->strings, struct bytes, i));
        if (node->mode == MODE_LEAF) continue;
        set_feature(e, f, node, feature[i]);
        node->split = split[i];
        node->missing = missing && missing[i];
        node->branch[0] = (int32_t)find_node(e, f, names, tree[i], yes[i]);
        node->branch[1] = (int32_t)find_node(e, f, names, tree[i], no[i]);
    }
}

/* The root of a tree is its first node in the list. */
static void read_roots(struct eval *e, struct forest *f, const struct name *names) {
    f->roots = SPACE_ARRAY(e->space, int64_t, f->n + 1);
    for (int64_t i = 0; i < f->n; i++) {
        if (i && names[i].tree == names[i - 1].tree)
            f->roots[f->n_roots - 1] = min_i64(f->roots[f->n_roots - 1], names[i].at);
        else f->roots[f->n_roots++] = names[i].at;
    }
}

/* `kind`: "class" or "target", the beginning of the names of the lists of weights. */
static struct forest read_forest(struct eval *e, const char *kind, int64_t n_targets) {
    const int64_t *list, *node, *target;
    char name[4][32];
    static const char *const ends[] = {"treeids", "nodeids", "ids", "weights"};
    struct forest f = {
        .n = eval_ints(e, "nodes_nodeids", &list), .n_targets = n_targets, .greatest = -1};
    for (int i = 0; i < 4; i++) snprintf(name[i], sizeof name[i], "%s_%s", kind, ends[i]);
    f.nodes = SPACE_ARRAY(e->space, struct node, f.n + 1);
    const struct name *names = sort_names(e, &f);
    read_nodes(e, &f, names);
    read_roots(e, &f, names);
    f.n_weights = eval_ints(e, name[0], &list);
    node = ints_of(e, name[1], f.n_weights);
    target = ints_of(e, name[2], f.n_weights);
    const double *value =
        f.n_weights ? doubles_of(e, name[3], ml_floats(e, name[3]), f.n_weights) : NULL;
    f.weights = SPACE_ARRAY(e->space, struct weight, f.n_weights + 1);
    for (int64_t i = 0; i < f.n_weights; i++)
        f.weights[i] =
            (struct weight){find_node(e, &f, names, list[i], node[i]), target[i], value[i]};
    share_weights(e, &f);
    return f;
}

/* ---- Nodes with positions ---- */

/* Sets branch `k` of all inner nodes: to an inner node, or to a leaf, which come after these. */
static void read_branches(struct eval *e, struct forest *f, int k, int64_t n_inner) {
    const int64_t *to = ints_of(e, k ? "nodes_falsenodeids" : "nodes_truenodeids", n_inner),
                  *is_leaf = ints_of(e, k ? "nodes_falseleafs" : "nodes_trueleafs", n_inner);
    for (int64_t i = 0; i < n_inner; i++) {
        check_index(e, "a branch", to[i], is_leaf[i] ? f->n - n_inner : n_inner);
        f->nodes[i].branch[k] = (int32_t)(to[i] + (is_leaf[i] ? n_inner : 0));
    }
}

/* The members of all nodes of this mode, in their order; NaN ends a list. */
static void read_members(struct eval *e, struct forest *f, int64_t n_inner) {
    struct array *list = eval_tensor(e, "membership_values");
    const int64_t n = f->n_members = list ? list->n : 0;
    int64_t at = 0;
    eval_check(e, n < INT32_MAX, "membership_values");
    if (list) f->members = array_doubles(e->space, list);
    for (int64_t i = 0; i < n_inner; i++) {
        struct node *node = &f->nodes[i];
        if (node->mode != MODE_MEMBER) continue;
        eval_check(e, at < n, "membership_values has too few lists");
        for (node->first = (int32_t)at; at < n && !isnan(f->members[at]);) at++;
        node->n = (int32_t)(at++ - node->first);
    }
}

static void read_inner(struct eval *e, struct forest *f, int64_t n_inner) {
    const int64_t *feature = ints_of(e, "nodes_featureids", n_inner),
                  *missing = optional_ints(e, "nodes_missing_value_tracks_true", n_inner);
    const double *split = doubles_of(e, "nodes_splits", eval_tensor(e, "nodes_splits"), n_inner);
    const struct array *mode = eval_tensor(e, "nodes_modes");
    eval_check(e, mode && mode->n == n_inner && is_integer(mode->type),
               "nodes_modes does not have an integer per node");
    for (int64_t i = 0; i < n_inner; i++) {
        struct node *node = &f->nodes[i];
        check_index(e, "nodes_modes", array_int(mode, i), MODE_LEAF);
        node->mode = (uint8_t)array_int(mode, i);
        set_feature(e, f, node, feature[i]);
        node->split = split[i];
        node->missing = missing && missing[i];
    }
    for (int k = 0; k < 2; k++) read_branches(e, f, k, n_inner);
    read_members(e, f, n_inner);
}

static struct forest read_ensemble(struct eval *e, int64_t n_targets) {
    const int64_t *list, *roots;
    const int64_t n_inner = eval_ints(e, "nodes_featureids", &list),
                  n_leaves = eval_ints(e, "leaf_targetids", &list);
    struct forest f = {
        .n = n_inner + n_leaves, .n_weights = n_leaves, .n_targets = n_targets, .greatest = -1};
    eval_check(e, f.n < INT32_MAX, "too many nodes");
    f.nodes = SPACE_ARRAY(e->space, struct node, f.n + 1);
    f.weights = SPACE_ARRAY(e->space, struct weight, n_leaves + 1);
    const double *value = doubles_of(e, "leaf_weights", eval_tensor(e, "leaf_weights"), n_leaves);
    for (int64_t i = 0; i < n_leaves; i++) {
        f.nodes[n_inner + i].mode = MODE_LEAF;
        f.weights[i] = (struct weight){n_inner + i, list[i], value[i]};
    }
    read_inner(e, &f, n_inner);
    share_weights(e, &f);
    f.n_roots = eval_ints(e, "tree_roots", &roots);
    f.roots = SPACE_ARRAY(e->space, int64_t, f.n_roots + 1);
    for (int64_t i = 0; i < f.n_roots; i++) {
        check_index(e, "tree_roots", roots[i], n_inner);
        f.roots[i] = roots[i];
    }
    return f;
}

/* ---- Keeping ---- */

/* A forest in one block: its arrays follow. Reading the attributes takes much longer than a walk for a few rows. */
struct kept_forest {
    struct kept head;
    struct forest forest;
};

static void *copy_behind(char **at, const void *from, int64_t n, size_t size) {
    void *to = *at;
    if (n) memcpy(to, from, (size_t)n * size);
    *at += (size_t)n * size;
    return to;
}

/* Without memory for it, nothing is kept. */
static void keep_forest(struct eval *e, const struct forest *f) {
    const size_t size = (size_t)f->n * sizeof *f->nodes +
                        (size_t)f->n_weights * sizeof *f->weights +
                        (size_t)(f->n_members + f->n_roots) * sizeof(int64_t);
    struct kept_forest *k = mem_alloc(sizeof *k + size, 16);
    if (!k) return;
    char *at = (char *)(k + 1);
    k->forest = *f;
    k->forest.nodes = copy_behind(&at, f->nodes, f->n, sizeof *f->nodes);
    k->forest.weights = copy_behind(&at, f->weights, f->n_weights, sizeof *f->weights);
    k->forest.members = copy_behind(&at, f->members, f->n_members, sizeof *f->members);
    k->forest.roots = copy_behind(&at, f->roots, f->n_roots, sizeof *f->roots);
    eval_keep(e, &k->head);
}

/* The forest of an earlier run, or of the attributes. `kind`: as in read_forest; NULL for TreeEnsemble. */
static struct forest find_forest(struct eval *e, const char *kind, int64_t n_targets,
                                 const struct ml_rows *x) {
    const struct kept *kept = atomic_load(&e->kind->kept);
    const struct forest f = kept   ? ((const struct kept_forest *)(const void *)kept)->forest
                            : kind ? read_forest(e, kind, n_targets)
                                   : read_ensemble(e, n_targets);
    if (!kept) keep_forest(e, &f);
    if (f.greatest >= 0) check_index(e, "nodes_featureids", f.greatest, x->width);
    return f;
}

/* ---- Merging ---- */

enum merge { MERGE_AVERAGE, MERGE_SUM, MERGE_MIN, MERGE_MAX };

/* The values of the leaves of all trees, per target. `has`: does a target have any? The value of one that has none is 0. */
static void merge_leaves(struct eval *e, const struct forest *f, enum merge merge, const double *x,
                         double *score, bool *has) {
    memset(score, 0, (size_t)f->n_targets * sizeof *score);
    memset(has, 0, (size_t)f->n_targets * sizeof *has);
    for (int64_t t = 0; t < f->n_roots; t++) {
        const struct node *leaf = walk_tree(e, f, f->roots[t], x);
        for (int64_t i = leaf->first; i < leaf->first + leaf->n; i++) {
            const int64_t k = f->weights[i].target;
            const double v = f->weights[i].value;
            if (!has[k]) score[k] = v;
            else if (merge <= MERGE_SUM) score[k] += v;
            else score[k] = merge == MERGE_MIN ? fmin(score[k], v) : fmax(score[k], v);
            has[k] = true;
        }
    }
    for (int64_t k = 0; k < f->n_targets && merge == MERGE_AVERAGE && f->n_roots; k++)
        score[k] /= (double)f->n_roots;
}

/* The values that are added to the sums: none, one per target, or one for a single target. */
static const double *read_base(struct eval *e, int64_t n) {
    struct array *base = ml_floats(e, "base_values");
    return base ? doubles_of(e, "base_values", base, n) : NULL;
}

static void regress(struct eval *e, const struct ml_rows *x, const struct forest *f,
                    enum merge merge, enum ml_transform transform, enum type type) {
    const int64_t n = f->n_targets;
    const double *base = read_base(e, n);
    double *score = SPACE_ARRAY(e->space, double, n + 1);
    bool *has = SPACE_ARRAY(e->space, bool, n + 1);
    struct array *y = eval_out(e, 0, type, 2, (int64_t[]){x->n, n});
    for (int64_t r = 0; r < x->n; r++) {
        merge_leaves(e, f, merge, x->values + r * x->width, score, has);
        for (int64_t k = 0; k < n && base; k++) score[k] += base[k];
        ml_transform_scores(transform, (int)n, score, ML_ALONE);
        for (int64_t k = 0; k < n; k++) array_set_double(y, r * n + k, score[k]);
    }
}

static int64_t read_targets(struct eval *e) {
    const int64_t n = eval_int(e, "n_targets", 1);
    eval_check(e, n > 0 && n < INT32_MAX, "n_targets");
    return n;
}

void run_tree_regressor(struct eval *e) {
    static const char *const merges[] = {"AVERAGE", "SUM", "MIN", "MAX"};
    const struct ml_rows x = ml_rows(e);
    const struct forest f = find_forest(e, "target", read_targets(e), &x);
    const char *word = eval_word(e, "aggregate_function", "SUM", "AVERAGE SUM MIN MAX");
    int merge = 0;
    while (strcmp(merges[merge], word) != 0) merge++;
    regress(e, &x, &f, (enum merge)merge, ml_transform(e), TYPE_F32);
}

void run_tree_ensemble(struct eval *e) {
    const struct ml_rows x = ml_rows(e);
    const int64_t merge = eval_int(e, "aggregate_function", MERGE_SUM),
                  transform = eval_int(e, "post_transform", ML_NONE);
    eval_check(e, merge >= 0 && merge <= MERGE_MAX && transform >= 0 && transform <= ML_PROBIT,
               "aggregate_function or post_transform");
    const struct forest f = find_forest(e, NULL, read_targets(e), &x);
    regress(e, &x, &f, (enum merge)merge, (enum ml_transform)transform, eval_in(e, 0)->type);
}

/* ---- Classification ---- */

/*
 * Two classes may have weights for one of them only. If it is the first one, the sum of its weights is the score of the second class,
 * and that of the first follows from it: 1 - score if no weight is below 0, else -score. If it is the second one, the score of the
 * first is 0. In both cases a threshold decides. ONNX does not define this; the converters expect it.
 */
struct classes {
    struct ml_labels labels;
    const double *base;
    int n_base, only; /* the class that has all weights; -1: none */
    bool is_positive;
};

static struct classes read_classes(struct eval *e, const struct forest *f) {
    struct classes c = {.only = f->n_targets == 2 && f->n_weights ? (int)f->weights[0].target : -1,
                        .is_positive = true};
    struct array *base = ml_floats(e, "base_values");
    c.labels = ml_labels(e, "classlabels_int64s", "classlabels_strings");
    c.n_base = base ? (int)base->n : 0;
    c.base = base ? array_doubles(e->space, base) : NULL;
    eval_check(e, !base || base->n == f->n_targets || (base->n == 1 && f->n_targets == 2),
               "base_values does not have a value per class");
    for (int64_t i = 0; i < f->n_weights; i++) {
        if (f->weights[i].target != c.only) c.only = -1;
        c.is_positive &= f->weights[i].value >= 0;
    }
    return c;
}

/* The largest score among the classes that have one. */
static int64_t find_best(int64_t n, const double *score, const bool *has) {
    int64_t best = -1;
    for (int64_t k = 0; k < n; k++)
        if (has[k] && (best < 0 || score[k] > score[best])) best = k;
    return max_i64(best, 0);
}

/* Adds the base and returns the class. */
static int64_t choose(const struct classes *c, int n, double *score, bool *has) {
    for (int k = 0; k < c->n_base; k++) {
        score[c->n_base == 1 ? max_i64(c->only, 0) : k] += c->base[k];
        has[k] = true;
    }
    if (c->only < 0) return find_best(n, score, has);
    if (c->only == 1) score[0] = 0;
    return score[c->only] > (c->is_positive ? 0.5 : 0);
}

void run_tree_classifier(struct eval *e) {
    const struct ml_rows x = ml_rows(e);
    const struct ml_labels labels = ml_labels(e, "classlabels_int64s", "classlabels_strings");
    eval_check(e, labels.list, "classlabels_int64s and classlabels_strings are missing");
    const int width = labels.list->n;
    const struct forest f = find_forest(e, "class", width, &x);
    const struct classes c = read_classes(e, &f);
    const enum ml_transform transform = ml_transform(e);
    double *score = SPACE_ARRAY(e->space, double, width + 1);
    bool *has = SPACE_ARRAY(e->space, bool, width + 1);
    struct array *label = eval_out(e, 0, labels.type, 1, &x.n),
                 *y = eval_out(e, 1, TYPE_F32, 2, (int64_t[]){x.n, width});
    for (int64_t r = 0; r < x.n; r++) {
        merge_leaves(e, &f, MERGE_SUM, x.values + r * x.width, score, has);
        ml_set_label(e, label, r, &labels, choose(&c, width, score, has));
        ml_transform_scores(transform, c.only == 0 ? 1 : width, score,
                            c.is_positive ? ML_COMPLEMENT : ML_OPPOSITE);
        for (int k = 0; k < width; k++) array_set_double(y, r * width + k, score[k]);
    }
}
