/*
 * Fusing: which tensors of a cluster are inlined, and which ones a stage computes.
 *
 *   layers + their point expressions  ->  [this file]  ->  values, roots, classes of tied dims
 *
 * A layer without a reduction is inlined: each reader computes it. Layers with a reduction are materialized: a stage
 * computes and stores their values, and readers load them. Expensive layers (exponentials) that several layers read are
 * materialized, too, if nest->may_materialize is set. Outputs are always computed by a stage. Values that a stage computes
 * are called roots.
 *
 * Tied dims share a loop; a class is a set of tied dims. If a layer reads dim d of its input at the plain variable k, dim d of
 * the input and dim k of the output are tied. Two dims of one tensor are never tied, since one loop over both would compute
 * the diagonal only.
 */
#include "dfp/nest.h"

#include <string.h>

#define EXPENSIVE 8 /* cost from which a value is materialized rather than recomputed */

struct value *nest_find_value(struct nest *nest, const struct tensor *t) {
    for (int i = 0; i < nest->values.n; i++)
        if (nest->values.at[i].tensor == t) return &nest->values.at[i];
    return NULL;
}

/* ---- Values ---- */

static struct value *add_value(struct nest *nest, struct tensor *t) {
    struct value *known = nest_find_value(nest, t);
    if (known) return known;
    struct value v = {.tensor = t, .ptr = -1, .stage = -1};
    for (int d = 0; d < t->rank; d++) v.dim_class[d] = -1;
    VEC_PUSH(nest->arena, &nest->values, v);
    return &nest->values.at[nest->values.n - 1];
}

/* Among sources, only a scalar has an expression: it becomes a constant of the kernel and needs no memory. */
static void add_input(struct nest *nest, struct tensor *t) {
    struct value *v = add_value(nest, t);
    const struct layer *l = t->producer;
    if (v->layer || v->expr || !l || !(layer_infos[l->kind].traits & SOURCE)) return;
    v->expr = ir_define(nest->arena, l, &v->n_vars);
}

/* In front of the value that reads it. */
static void add_row(struct nest *nest, const struct layer *l, struct expr *e) {
    struct value made;
    if (!nest_split_window(nest, e, l->out[0], &made)) return;
    struct value *row = add_value(nest, made.tensor);
    row->layer = l;
    row->expr = made.expr;
    row->n_vars = made.n_vars;
    row->margins = made.margins;
    nest->has_rows = true;
}

static void add_layer(struct nest *nest, const struct layer *l) {
    for (int i = 0; i < l->n_in; i++) add_input(nest, l->in[i]);
    int n_vars;
    struct expr *e = ir_define(nest->arena, l, &n_vars);
    if (!e) nest_refuse(nest, "a layer without a point expression");
    else add_row(nest, l, e);
    struct value *v = add_value(nest, l->out[0]);
    v->layer = l;
    v->expr = e;
    v->n_vars = n_vars;
}

static int position(const struct tensor *t, struct tensor *const *at, int n) {
    for (int i = 0; i < n; i++)
        if (at[i] == t) return i;
    return -1;
}

static void find_pointer(struct value *v, const struct cluster *cluster) {
    int out = position(v->tensor, cluster->outputs.at, cluster->outputs.n);
    v->is_output = v->layer && out >= 0;
    v->ptr = out >= 0 ? cluster->inputs.n + out
                      : position(v->tensor, cluster->inputs.at, cluster->inputs.n);
}

static void add_values(struct nest *nest, const struct cluster *cluster,
                       const struct storage *storage) {
    for (int i = 0; i < cluster->layers.n && !nest->refusal; i++)
        add_layer(nest, cluster->layers.at[i]);
    for (int i = 0; i < nest->values.n; i++) {
        struct value *v = &nest->values.at[i];
        find_pointer(v, cluster);
        if (storage && !value_has_margins(v)) v->stride = storage[v->tensor->id].stride;
    }
}

/* ---- Layouts ---- */

static bool has_one_channel(const struct value *v) {
    return size_is(v->tensor->dim[layout_channel_axis(v->tensor)], 1);
}

static void use_layout(struct nest *nest, struct value *v) {
    if (!nest->layout) nest->layout = &v->tensor->layout;
    v->is_blocked = layout_equal(nest->layout, &v->tensor->layout);
    /* An input of one channel may have another layout: its only channel is read for all lanes. */
    if (!v->is_blocked && (v->layer || !has_one_channel(v)))
        nest_refuse(nest, "different blocked layouts");
}

/* Tensors of one channel come last: they determine the layout only if no other tensor is blocked. */
static void find_layout(struct nest *nest) {
    for (int single = 0; single < 2; single++)
        for (int i = 0; i < nest->values.n; i++) {
            struct value *v = &nest->values.at[i];
            const struct layout *layout = &v->tensor->layout;
            if (!layout->block || has_one_channel(v) != single) continue;
            if (layout->block != nest->lanes) nest_refuse(nest, "blocks of another width");
            use_layout(nest, v);
        }
}

/* ---- Classes of dims ---- */

/* Union-find over all dims of all values; the number of a dim is value * SOL_MAX_RANK + dim. */
struct ties {
    struct nest *nest;
    int *parent;
};

static int find(struct ties *t, int i) {
    while (t->parent[i] != i) i = t->parent[i] = t->parent[t->parent[i]];
    return i;
}

/* Would the union of classes a and b contain two dims of one tensor? For example in x + transpose(x). */
static bool would_tie_one_tensor(struct ties *t, int a, int b) {
    for (int i = 0; i < t->nest->values.n; i++) {
        bool has_a = false, has_b = false;
        for (int d = 0; d < t->nest->values.at[i].tensor->rank; d++) {
            has_a |= find(t, i * SOL_MAX_RANK + d) == a;
            has_b |= find(t, i * SOL_MAX_RANK + d) == b;
        }
        if (has_a && has_b) return true;
    }
    return false;
}

/* Dims of extent 1 are not tied: they broadcast and have no loop. Dims of different extents are not tied either: one
 * is read in part, for example by a slice. */
static void tie(struct ties *t, int from, int from_dim, int to, int to_dim) {
    struct value *values = t->nest->values.at;
    int a = find(t, from * SOL_MAX_RANK + from_dim), b = find(t, to * SOL_MAX_RANK + to_dim);
    const struct size *extent = &values[from].tensor->dim[from_dim];
    if (a == b || value_is_single(&values[from], from_dim)) return;
    if (value_is_single(&values[to], to_dim)) return;
    if (!size_equal(*extent, values[to].tensor->dim[to_dim])) return;
    if (!would_tie_one_tensor(t, a, b)) t->parent[b] = a;
}

static void tie_loads(struct ties *t, int to, const struct expr *e) {
    struct value *v = &t->nest->values.at[to];
    for (int i = 0; i < 3 && e->arg[i]; i++) tie_loads(t, to, e->arg[i]);
    if (e->kind != EXPR_LOAD) return;
    int from = (int)(nest_find_value(t->nest, e->tensor) - t->nest->values.at);
    for (int d = 0; d < e->n_index; d++)
        if (e->index[d]->op == INDEX_VAR && e->index[d]->var < v->tensor->rank)
            tie(t, from, d, to, e->index[d]->var);
}

/* Classes are numbered in the order of values and dims, so that clusters of equal structure have equal numbers. */
static void number_class(struct ties *t, int value, int dim, int *class_of) {
    struct nest *nest = t->nest;
    struct value *v = &nest->values.at[value];
    if (value_is_single(v, dim)) return;
    int *number = &class_of[find(t, value * SOL_MAX_RANK + dim)];
    if (*number < 0) {
        *number = nest->n_classes++;
        nest->class_extent[*number] = v->tensor->dim[dim];
    }
    v->dim_class[dim] = *number;
    if (value_is_channel(v, dim)) nest->class_blocked[*number] = true;
}

static void number_classes(struct ties *t) {
    struct nest *nest = t->nest;
    int n = nest->values.n * SOL_MAX_RANK;
    int *class_of = ARENA_ARRAY(nest->arena, int, n);
    for (int i = 0; i < n; i++) class_of[i] = -1;
    nest->class_extent = ARENA_ARRAY(nest->arena, struct size, n);
    nest->class_blocked = ARENA_ARRAY(nest->arena, bool, n);
    nest->class_var = ARENA_ARRAY(nest->arena, int, n);
    for (int i = 0; i < n; i++) nest->class_var[i] = -1;
    for (int i = 0; i < nest->values.n; i++)
        for (int d = 0; d < nest->values.at[i].tensor->rank; d++) number_class(t, i, d, class_of);
}

static void find_classes(struct nest *nest) {
    struct ties t = {nest, ARENA_ARRAY(nest->arena, int, nest->values.n *SOL_MAX_RANK)};
    for (int i = 0; i < nest->values.n * SOL_MAX_RANK; i++) t.parent[i] = i;
    for (int i = 0; i < nest->values.n; i++)
        if (nest->values.at[i].layer) tie_loads(&t, i, nest->values.at[i].expr);
    number_classes(&t);
}

/* ---- Roots ---- */

/* The cost of a layer per point, roughly in multiplications, without its inputs. It is only compared with EXPENSIVE. */
static double find_cost(const struct expr *e) {
    double cost = primitives[e->primitive].cost;
    for (int i = 0; i < 3 && e->arg[i]; i++) cost += find_cost(e->arg[i]);
    return cost;
}

bool nest_is_identity(const struct value *reader, const struct value *from,
                      const struct expr *load) {
    for (int d = 0; d < from->tensor->rank; d++) {
        if (value_is_single(from, d)) continue;
        const struct index *x = load->index[d];
        if (x->op != INDEX_VAR || x->var >= reader->tensor->rank) return false;
        if (from->dim_class[d] != reader->dim_class[x->var]) return false;
    }
    return true;
}

struct uses {
    const struct value *of, *reader;
    int elsewhere; /* loads at another point, or by a reader with another number of dims */
    int loads;
    int windows; /* loads by overlapping windows: each element is read several times */
};

static int count_dims(const struct value *v) {
    int n = 0;
    for (int d = 0; d < v->tensor->rank; d++) n += !value_is_single(v, d);
    return n;
}

static bool is_sum(const struct index *x) { return x->op == INDEX_ADD; }

/* Counts the loads of u->of in `e`. A window's index is a sum of two variables, as in x[2*i + r]: windows next to each other
 * read the same elements. */
static void count_uses(struct uses *u, const struct expr *e, bool in_reduction) {
    in_reduction |= e->kind == EXPR_REDUCE;
    for (int i = 0; i < 3 && e->arg[i]; i++) count_uses(u, e->arg[i], in_reduction);
    if (e->kind != EXPR_LOAD || e->tensor != u->of->tensor) return;
    u->loads++;
    u->elsewhere +=
        !nest_is_identity(u->reader, u->of, e) || count_dims(u->reader) != count_dims(u->of);
    for (int d = 0; d < e->n_index; d++) u->windows += in_reduction && is_sum(e->index[d]);
}

/* Should the value be computed once and stored? Yes if it is expensive and several layers read it, at least one of them
 * elsewhere (struct uses). */
static bool is_worth_materializing(struct nest *nest, const struct value *v) {
    struct uses u = {.of = v};
    int readers = 0;
    if (find_cost(v->expr) < EXPENSIVE) return false;
    for (int i = 0; i < nest->values.n; i++) {
        u.reader = &nest->values.at[i];
        const struct layer *l = u.reader->layer;
        if (!l || position(v->tensor, l->in, l->n_in) < 0) continue;
        u.loads =
            0; /* a layer with a row (window.c) has two values, of which one loads its input */
        count_uses(&u, u.reader->expr, false);
        readers += u.loads > 0;
    }
    if (u.windows && nest->refuses_waste)
        nest_refuse(nest, "a window would compute an expensive layer several times");
    return readers > 1 && u.elsewhere > 0;
}

static void find_roots(struct nest *nest) {
    for (int i = 0; i < nest->values.n && !nest->refusal; i++) {
        struct value *v = &nest->values.at[i];
        if (!v->layer) continue;
        v->is_materialized = expr_has(v->expr, EXPR_REDUCE) ||
                             (is_worth_materializing(nest, v) && nest->may_materialize);
        v->is_root = v->is_output || v->is_materialized;
    }
}

static void refuse_anchor(struct nest *nest, const struct cluster *cluster) {
    for (int i = 0; i < cluster->layers.n; i++)
        if (cluster->layers.n > 1 && (layer_infos[cluster->layers.at[i]->kind].traits & ANCHOR))
            nest_refuse(nest, "anchor layers stay alone");
}

void nest_fuse(struct nest *nest, const struct cluster *cluster, const struct storage *storage) {
    refuse_anchor(nest, cluster);
    if (!nest->refusal) add_values(nest, cluster, storage);
    if (!nest->refusal) find_layout(nest);
    if (nest->refusal) return;
    find_classes(nest);
    find_roots(nest);
    if (!nest->refusal) nest_find_stages(nest);
}
