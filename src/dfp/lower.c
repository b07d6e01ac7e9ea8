/*
 * Lowering: point expressions become nodes over the kernel's loop variables.
 *
 *   roots with their classes of dims  ->  [this file]  ->  value->node of each root
 *
 * The value of a tensor at a point becomes one of three nodes. If it lies in memory, or another stage computes it: a load. If
 * the same stage computes it at the same point: that node. Else: its layer's expression, with the point's indices in
 * place of the variables. This last case, inlining, fuses pointwise layers; it works for any layer without a reduction.
 *
 * Outside of a padded tensor the value is the fill, and the tensor's expression is not applied to it: lower_load makes a
 * select between the two. Since both operands of a select are computed, loads below it test their own bounds (`guarded`). Selects
 * in a layer's own expression need no such tests: loads that may lie outside are `checked` there.
 */
#include "dfp/nest.h"

#include <string.h>

#define LOWER_STACK ((size_t)8 << 10) /* bytes of stack that lowering the innermost layer may need */

/* `guarded`: the value is below a select that lower_load made, so its indices may be out of bounds. */
static struct node *lower_value(struct nest *nest, struct value *v, const struct affine **index,
                                bool guarded);

/* ---- Indices ---- */

static const struct affine *lower_index(struct nest *nest, const struct index *x,
                                        const struct affine *const *env) {
    switch (x->op) {
    case INDEX_CONST: return affine_const(nest, x->value);
    case INDEX_VAR: return env[x->var];
    case INDEX_ADD:
        return affine_add(nest, lower_index(nest, x->a, env), lower_index(nest, x->b, env));
    case INDEX_MUL: return affine_mul(nest, lower_index(nest, x->a, env), x->b->value);
    case INDEX_DIV: return affine_div(nest, lower_index(nest, x->a, env), x->b->value);
    case INDEX_MOD: return affine_mod(nest, lower_index(nest, x->a, env), x->b->value);
    }
    nest_refuse(nest, "an unknown operation of an index");
    return affine_const(nest, size_const(0));
}

const struct affine *nest_class_index(struct nest *nest, int dim_class) {
    if (dim_class < 0) return affine_const(nest, size_const(0));
    const struct affine *outer = affine_var(nest, nest->class_var[dim_class]);
    if (!nest->class_blocked[dim_class]) return outer;
    outer = affine_mul(nest, outer, size_const(nest->lanes));
    return affine_add(nest, outer, affine_var(nest, nest->lane_var));
}

static bool runs_over_blocks(const struct nest *nest, const struct affine *x) {
    return nest->lane_var >= 0 && (affine_deps(nest, x) & var_bit(nest->lane_var));
}

/* True only if it is certain that index x of dim `dim` is inside the tensor. Stored positions are inside all tensors
 * of the same layout. */
static bool is_inside(const struct nest *nest, const struct value *v, int dim,
                      const struct affine *x) {
    struct size extent = v->tensor->dim[dim];
    if (value_is_channel(v, dim)) extent = size_const(v->tensor->layout.stored);
    return affine_is_within(nest, x, extent);
}

/* With several segments, stored positions and channel numbers differ by more than a constant. So channels may only be read at
 * the stored position that the loops have; other indices are refused. */
static void check_segments(struct nest *nest, const struct value *v, int dim,
                           const struct affine *x) {
    bool is_position = runs_over_blocks(nest, x) && is_inside(nest, v, dim, x) && x->n == 2;
    if (!nest->layout || nest->layout->n_segments < 2) return;
    if (value_is_channel(v, dim) ? !is_position : runs_over_blocks(nest, x))
        nest_refuse(nest, "channels of a segmented layout are moved");
}

/* ---- Loads ---- */

static struct node *make_range(struct nest *nest, const struct range *const *range, int n) {
    struct node condition = {.kind = NODE_RANGE, .n_ranges = n};
    condition.range = arena_copy(nest->arena, range, sizeof *range * (size_t)n);
    return node_make(nest, &condition);
}

/* A loop may run though a dim of the tensor is empty: the result has values where the tensor has none (place, pad). */
static int add_guards(struct nest *nest, const struct value *v, const struct affine **index,
                      const struct range **out) {
    int n = 0;
    for (int d = 0; d < v->tensor->rank; d++)
        if (size_is(v->tensor->dim[d], 0) || !is_inside(nest, v, d, index[d]))
            out[n++] = affine_range(nest, index[d], size_const(0), v->tensor->dim[d]);
    return n;
}

static struct node *make_load(struct nest *nest, struct value *v, const struct affine **index,
                              bool guarded, double fill) {
    struct node n = {.kind = NODE_LOAD, .from = v, .fill = fill, .n_index = v->tensor->rank};
    n.reg = reg_of(v->tensor->dtype);
    const struct range *range[SOL_MAX_RANK];
    for (int d = 0; d < v->tensor->rank; d++) {
        check_segments(nest, v, d, index[d]);
        /* A plain tensor has no pad lanes, so loads must not read there. */
        guarded |= !value_is_channel(v, d) && runs_over_blocks(nest, index[d]);
    }
    if (guarded) n.n_ranges = add_guards(nest, v, index, range);
    n.index = arena_copy(nest->arena, index, sizeof *index * SOL_MAX_RANK);
    n.range = arena_copy(nest->arena, range, sizeof *range * (size_t)n.n_ranges);
    return node_make(nest, &n);
}

/* A load of a value that another stage computes. Each index must be the point's own, or inside and with one variable at most:
 * windows over such values are refused. */
static struct node *load_root(struct nest *nest, struct value *v, const struct affine **index,
                              bool guarded) {
    for (int d = 0; !value_has_margins(v) && d < v->tensor->rank; d++) {
        bool is_point = index[d] == nest_class_index(nest, v->dim_class[d]);
        bool is_bare = index[d]->n <= 1 && is_inside(nest, v, d, index[d]);
        if (!is_point && !is_bare) nest_refuse(nest, "a window over values of the same kernel");
    }
    v->is_read = true;
    return make_load(nest, v, index, guarded, 0);
}

/* Indices are unique, so comparing pointers compares points. */
static bool is_own_point(struct nest *nest, const struct value *v, const struct affine **index) {
    for (int d = 0; d < v->tensor->rank; d++)
        if (index[d] != nest_class_index(nest, v->dim_class[d])) return false;
    return true;
}

static struct node *lower_expr(struct nest *nest, const struct expr *e, const struct affine **env,
                               bool guarded);

/*
 * A checked load may lie outside of its tensor, as in a padded window. Conditions that are proved to hold are
 * left out. With the others, a load from memory yields the fill where they fail; any other value becomes
 * select(condition, value, fill).
 */
static struct node *lower_load(struct nest *nest, const struct expr *e, const struct affine **env,
                               bool guarded) {
    struct value *v = nest_find_value(nest, e->tensor);
    const struct affine *index[SOL_MAX_RANK] = {0};
    const struct range *range[SOL_MAX_RANK];
    for (int d = 0; d < e->n_index; d++) index[d] = lower_index(nest, e->index[d], env);
    int n = e->checked && !value_has_margins(v) ? add_guards(nest, v, index, range) : 0;
    if (!n) return lower_value(nest, v, index, guarded);
    if (!v->expr) return make_load(nest, v, index, true, e->fill);
    struct node *condition = make_range(nest, range, n);
    struct node *value = lower_value(nest, v, index, true);
    struct node *fill = node_const(nest, value->reg, e->fill);
    return node_apply(nest, PRIMITIVE_SELECT, condition, value, fill);
}

/* A condition in a layer's expression, such as the range of a part of a concat, as 1.0 or 0.0. */
static struct node *lower_range(struct nest *nest, const struct expr *e,
                                const struct affine **env) {
    const struct affine *x = lower_index(nest, e->index[0], env);
    const struct range *range = affine_range(nest, x, e->low, e->high);
    if (size_is(e->low, 0) && affine_is_within(nest, x, e->high))
        return node_const(nest, REG_F32, 1);
    return make_range(nest, &range, 1);
}

/* ---- Reductions ---- */

static void add_clips(struct nest *nest, struct node *reduce, const struct node *n) {
    int all = reduce->n_clips + n->n_ranges;
    const struct range **clip = ARENA_ARRAY(nest->arena, const struct range *, all);
    for (int i = 0; i < reduce->n_clips; i++) clip[i] = reduce->clip[i];
    for (int i = 0; i < n->n_ranges; i++) clip[reduce->n_clips + i] = n->range[i];
    reduce->clip = clip;
    reduce->n_clips = all;
}

/* Collects conditions without which `body` is neutral: the loops can skip iterations in which one fails. In a product,
 * conditions of either factor count: a tap in the padding contributes nothing, even if the other
 * factor is infinite. */
static void find_clips(struct nest *nest, struct node *reduce, const struct node *body) {
    double neutral = combines[reduce->combine].neutral;
    if (body->kind == NODE_LOAD && body->fill == neutral) add_clips(nest, reduce, body);
    if (body->kind == NODE_RANGE && neutral == 0) add_clips(nest, reduce, body);
    if (body->primitive == PRIMITIVE_SELECT && body->arg[0]->kind == NODE_RANGE &&
        body->arg[2]->kind == NODE_CONST && body->arg[2]->value == neutral) {
        add_clips(nest, reduce, body->arg[0]);
        find_clips(nest, reduce, body->arg[1]);
    }
    if (body->primitive == PRIMITIVE_MUL && neutral == 0) {
        find_clips(nest, reduce, body->arg[0]);
        find_clips(nest, reduce, body->arg[1]);
    }
}

/* Small constant extents of windows are printed as numbers, not passed as arguments, so that the C compiler unrolls
 * their loops. */
static void mark_window(struct nest *nest, const struct affine *x) {
    if (x->n < 2) return;
    for (int i = 0; i < x->n; i++) {
        struct var *v = &nest->var[x->term[i].var];
        if (v->kind == VAR_REDUCE && size_is_const(v->extent) && size_value(v->extent) <= 64)
            v->is_window = true;
    }
}

/* A sum of two or more variables is a window's index. In 2*i + r, only r is marked: i is not a reduction's variable. */
static void mark_windows(struct nest *nest) {
    for (int i = 0; i < nest->nodes.n; i++) {
        const struct node *n = nest->nodes.at[i];
        for (int k = 0; k < n->n_index; k++) mark_window(nest, n->index[k]);
        for (int k = 0; k < n->n_ranges; k++) mark_window(nest, n->range[k]->x);
    }
}

/* A reduction over dims of extent 1 only: the sum or product of x is x, the maximum is max(x, -inf). */
static struct node *combine_once(struct nest *nest, const struct node *reduce) {
    const struct combine_info *combine = &combines[reduce->combine];
    if (reduce->combine == COMBINE_ADD || reduce->combine == COMBINE_MUL) return reduce->arg[0];
    struct node *neutral = node_const(nest, reduce->reg, combine->neutral);
    return node_apply(nest, combine->primitive, reduce->arg[0], neutral, NULL);
}

/* Short integers are computed in 32 bits and wrapped where a result may have left their range. */
static struct node *wrap(struct nest *nest, struct node *n, enum sol_dtype type,
                         enum primitive primitive) {
    bool wraps = reg_of(type) == REG_I32 && (primitives[primitive].traits & WRAPS);
    return wraps ? node_cast(nest, n, SOL_I32, type) : n;
}

/*
 * A sum up to v over the stage's loop over v: a SCAN of the summand at v itself, one step per value. NULL if v does not run over a
 * loop of its own here, or if the stage has a scan over another loop: only one can be the innermost.
 */
static struct node *lower_scan(struct nest *nest, const struct expr *e, const struct affine **outer,
                               bool guarded) {
    if (!e->prefix || guarded) return NULL;
    struct stage *stage = &nest->stage[nest->lowered_stage];
    const struct affine *at = outer[e->prefix - 1];
    int var = at->n == 1 ? at->term[0].var : -1;
    if (var < 0 || at != affine_var(nest, var) || nest->var[var].kind != VAR_OUT) return NULL;
    bool is_own = (stage->vars & var_bit(var)) && size_equal(nest->var[var].extent, *e->extent);
    if (!is_own || var == nest->block_var || (stage->scan >= 0 && stage->scan != var)) return NULL;
    stage->scan = var;
    const struct affine **env = arena_copy(nest->arena, outer, sizeof *env * NEST_VARS);
    env[e->first_var] = at;
    struct node n = {
        .kind = NODE_SCAN, .reg = reg_of(e->type), .combine = e->combine, .n_index = 1};
    n.index = arena_copy(nest->arena, &at, sizeof at);
    n.arg[0] = lower_expr(nest, e->arg[0]->arg[1], env, guarded);
    return wrap(nest, node_make(nest, &n), e->type, combines[e->combine].primitive);
}

/*
 * Each lowered reduction has variables of its own; dims of extent 1 have none. Conditions of the body become clips, so
 * that loops can be shortened instead of testing each tap.
 */
static struct node *make_reduce(struct nest *nest, const struct expr *e,
                                const struct affine **outer, bool guarded) {
    struct node n = {
        .kind = NODE_REDUCE, .reg = reg_of(e->type), .to = e->type, .combine = e->combine};
    const struct affine **env = arena_copy(nest->arena, outer, sizeof *env * NEST_VARS);
    n.var = ARENA_ARRAY(nest->arena, int, e->n_vars);
    for (int i = 0; i < e->n_vars; i++) {
        env[e->first_var + i] = affine_const(nest, size_const(0));
        if (size_is(e->extent[i], 1)) continue;
        int var = nest_add_var(nest, VAR_REDUCE, e->extent[i]);
        env[e->first_var + i] = affine_var(nest, var);
        n.var[n.n_vars++] = var;
    }
    n.arg[0] = lower_expr(nest, e->arg[0], env, guarded);
    if (!n.n_vars) return combine_once(nest, &n);
    find_clips(nest, &n, n.arg[0]);
    return wrap(nest, node_make(nest, &n), e->type, combines[e->combine].primitive);
}

/* A reduction that an expression has in several places becomes one node. It depends on the variables before its own only. */
static struct node *lower_reduce(struct nest *nest, const struct expr *e,
                                 const struct affine **outer, bool guarded) {
    struct node *scan = lower_scan(nest, e, outer, guarded);
    if (scan) return scan;
    for (int i = 0; i < nest->reduced.n; i++) {
        const struct reduced *r = &nest->reduced.at[i];
        if (r->e == e && r->guarded == guarded &&
            !memcmp(r->env, outer, sizeof *outer * (size_t)e->first_var))
            return r->node;
    }
    struct reduced made = {.e = e, .env = outer, .guarded = guarded};
    made.node = make_reduce(nest, e, outer, guarded);
    VEC_PUSH(nest->arena, &nest->reduced, made);
    return made.node;
}

/* ---- Expressions ---- */

static struct node *lower_position(struct nest *nest, const struct expr *e,
                                   const struct affine **env) {
    const struct affine *x = lower_index(nest, e->index[0], env);
    struct node n = {.kind = NODE_INDEX, .reg = REG_I64, .n_index = 1, .offset = x};
    n.index = arena_copy(nest->arena, &x, sizeof x);
    if (runs_over_blocks(nest, x)) nest_refuse(nest, "the number of a channel in blocks");
    return node_make(nest, &n);
}

static struct node *lower_cast(struct nest *nest, const struct expr *e, const struct affine **env,
                               bool guarded) {
    return node_cast(nest, lower_expr(nest, e->arg[0], env, guarded), e->arg[0]->type, e->type);
}

static struct node *lower_expr(struct nest *nest, const struct expr *e, const struct affine **env,
                               bool guarded) {
    struct node n = {.kind = NODE_APPLY, .reg = reg_of(e->type), .primitive = e->primitive};
    switch (e->kind) {
    case EXPR_CONST: return node_const(nest, reg_of(e->type), e->value);
    case EXPR_LOAD: return lower_load(nest, e, env, guarded);
    case EXPR_RANGE: return lower_range(nest, e, env);
    case EXPR_REDUCE: return lower_reduce(nest, e, env, guarded);
    case EXPR_INDEX: return lower_position(nest, e, env);
    case EXPR_CAST: return lower_cast(nest, e, env, guarded);
    case EXPR_APPLY: break;
    }
    for (int i = 0; i < 3 && e->arg[i]; i++) n.arg[i] = lower_expr(nest, e->arg[i], env, guarded);
    return wrap(nest, node_make(nest, &n), e->type, e->primitive);
}

/* Inlining a chain of layers recurses once per layer. Clustering (nest->refuses_waste) requires twice the stack, so that a cluster
 * that it accepts can be generated later, when somewhat less stack is left. */
static struct node *inline_value(struct nest *nest, struct value *v, const struct affine **index,
                                 bool guarded) {
    const struct affine **env = ARENA_ARRAY(nest->arena, const struct affine *, NEST_VARS);
    if (os_stack_left() < (nest->refuses_waste ? 2 : 1) * LOWER_STACK) {
        nest_refuse(nest, "a chain of layers too long for the stack");
        return node_const(nest, reg_of(v->tensor->dtype), 0);
    }
    if (v->n_vars > NEST_VARS) {
        nest_refuse(nest, "a layer with too many loops");
        return node_const(nest, reg_of(v->tensor->dtype), 0);
    }
    for (int d = 0; d < v->tensor->rank; d++) env[d] = index[d];
    return lower_expr(nest, v->expr, env, guarded);
}

/* Nodes are remembered by value and point; otherwise a diamond of layers would be lowered once per path through
 * it. */
static struct node *lower_inlined(struct nest *nest, struct value *v, const struct affine **index,
                                  bool guarded) {
    struct memo memo = {.value = v, .guarded = guarded};
    memcpy(memo.index, index, sizeof memo.index);
    for (int i = 0; i < nest->memo.n; i++) {
        const struct memo *m = &nest->memo.at[i];
        if (m->value == v && m->guarded == guarded && !memcmp(m->index, index, sizeof m->index))
            return m->node;
    }
    memo.node = inline_value(nest, v, index, guarded);
    VEC_PUSH(nest->arena, &nest->memo, memo);
    return memo.node;
}

static struct node *lower_value(struct nest *nest, struct value *v, const struct affine **index,
                                bool guarded) {
    for (int d = 0; d < v->tensor->rank; d++)
        if (value_is_single(v, d)) index[d] = affine_const(nest, size_const(0));
    if (!v->expr) return make_load(nest, v, index, guarded, 0);
    bool is_here = v->is_root && v->stage == nest->lowered_stage && v->node;
    if (is_here && is_own_point(nest, v, index)) return v->node;
    if (!v->is_materialized) return lower_inlined(nest, v, index, guarded);
    return load_root(nest, v, index, guarded);
}

/* ---- Roots ---- */

/* Roots are lowered in topological order, so lower_value finds the nodes of earlier roots of the same stage. */
static void lower_root(struct nest *nest, struct value *v) {
    nest->lowered_stage = v->stage;
    const struct affine *index[SOL_MAX_RANK] = {0};
    for (int d = 0; d < v->tensor->rank; d++) index[d] = nest_class_index(nest, v->dim_class[d]);
    v->node = inline_value(nest, v, index, false);
}

/* Makes an output zero in pad lanes, unless it is known to be zero there. */
static void mask_pads(struct nest *nest, struct value *v) {
    double in_pads;
    bool padded = false;
    const struct layout *layout = &v->tensor->layout;
    for (int i = 0; i < layout->n_segments; i++)
        padded |= layout->segment[i].valid != layout->segment[i].stored;
    if (!v->is_blocked || !padded) return;
    if (node_known_in_pads(nest, v->node, &in_pads) && in_pads == 0) return;
    struct node valid = {.kind = NODE_VALID};
    valid.deps = var_bit(nest->lane_var) | var_bit(nest->block_var);
    struct node *is_channel_lane = node_make(nest, &valid);
    struct node *zero = node_const(nest, v->node->reg, 0);
    v->node = node_apply(nest, PRIMITIVE_SELECT, is_channel_lane, v->node, zero);
}

void nest_lower(struct nest *nest) {
    for (int i = 0; i < nest->values.n && !nest->refusal; i++) {
        struct value *v = &nest->values.at[i];
        if (v->is_root) lower_root(nest, v);
        if (v->is_root && v->is_output) mask_pads(nest, v);
    }
    mark_windows(nest);
}
