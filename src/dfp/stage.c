/*
 * Stages and the grid: the order in which a kernel computes its roots (fuse.c).
 *
 *   roots with classes of dims  ->  [this file]  ->  variables, stages, the grid's variables
 *
 * Roots with the same dims share a stage, so that they share loops and nodes, unless one reads the
 * other at points other than its own: then it is in a later stage. The grid is the loops that all stages
 * share. All stages run for one grid point before any runs for the next, so scratch only holds the values that
 * stages exchange at one grid point.
 */
#include "dfp/nest.h"

/* ---- Variables ---- */

static void make_blocked_var(struct nest *nest, int dim_class) {
    int64_t blocks = nest->layout->stored / nest->lanes;
    nest->block_var = nest_add_var(nest, VAR_OUT, size_const(blocks));
    nest->class_var[dim_class] = nest->block_var;
    nest->lane_var = nest_add_var(nest, VAR_LANE, size_const(nest->lanes));
}

/* Adds a loop variable for each class of the root's dims that has none yet. */
static void make_vars(struct nest *nest, const struct value *v) {
    for (int d = 0; d < v->tensor->rank; d++) {
        int c = v->dim_class[d];
        if (c < 0 || nest->class_var[c] >= 0) continue;
        if (!nest->class_blocked[c])
            nest->class_var[c] = nest_add_var(nest, VAR_OUT, nest->class_extent[c]);
        else if (nest->block_var >= 0) nest_refuse(nest, "blocked channels in two places");
        else make_blocked_var(nest, c);
    }
}

static uint64_t own_vars(const struct nest *nest, const struct value *v) {
    uint64_t vars = 0;
    for (int d = 0; d < v->tensor->rank; d++) {
        int c = v->dim_class[d];
        if (c >= 0) vars |= var_bit(nest->class_var[c]);
        if (c >= 0 && nest->class_blocked[c]) vars |= var_bit(nest->lane_var);
    }
    return vars;
}

/* ---- Stages ---- */

/* The search for the first stage in which a root may be: behind the stages whose values it loads, or in the same stage as
 * values that it needs at its own point only. */
struct placing {
    struct nest *nest;
    int root; /* its index in nest->values */
    uint64_t vars;
    int first;  /* the result, an index in nest->stage */
    bool loads; /* it loads values of another stage */
};

static void visit_loads(struct placing *p, const struct value *reader, const struct expr *e,
                        bool at_point);

/* Visits the loads of an inlined value: at most twice per root, once at the root's own point and once at other points, where the
 * rules are stricter and include the first. Otherwise a chain of layers that each read their input twice would double the work
 * with each layer. */
static void visit_inlined(struct placing *p, struct value *v, bool at_point) {
    int visit = 2 * p->root + (at_point ? 1 : 2);
    if (v->visit >= visit) return;
    v->visit = visit;
    visit_loads(p, v, v->expr, at_point);
}

static void visit_load(struct placing *p, const struct value *reader, const struct expr *e,
                       bool at_point) {
    struct value *v = nest_find_value(p->nest, e->tensor);
    at_point = at_point && nest_is_identity(reader, v, e);
    if (!v->layer) return;
    if (!v->is_materialized) {
        visit_inlined(p, v, at_point);
        return;
    }
    bool same = at_point && p->nest->stage[v->stage].vars == p->vars;
    p->loads |= !same;
    p->first = (int)max_i64(p->first, v->stage + !same);
}

static void visit_loads(struct placing *p, const struct value *reader, const struct expr *e,
                        bool at_point) {
    for (int i = 0; i < 3 && e->arg[i]; i++) visit_loads(p, reader, e->arg[i], at_point);
    if (e->kind == EXPR_LOAD) visit_load(p, reader, e, at_point);
}

/* The loops of a stage are the dims of its first root, outermost first. */
static void add_loops(struct nest *nest, struct stage *stage, const struct value *v) {
    for (int d = 0; d < v->tensor->rank; d++)
        if (v->dim_class[d] >= 0)
            VEC_PUSH(nest->arena, &stage->loops, nest->class_var[v->dim_class[d]]);
}

/*
 * Roots come in topological order, so the roots that this one reads have stages already. It joins the first
 * possible stage with the same variables, or opens a new one.
 */
static void place_root(struct nest *nest, int root) {
    struct value *v = &nest->values.at[root];
    struct placing p = {.nest = nest, .root = root, .vars = own_vars(nest, v)};
    visit_loads(&p, v, v->expr, true);
    int s = p.first;
    while (s < nest->n_stages && nest->stage[s].vars != p.vars) s++;
    if (s == NEST_STAGES) {
        nest_refuse(nest, "too many stages for one kernel");
        return;
    }
    struct stage *stage = &nest->stage[s];
    if (s == nest->n_stages) {
        nest->n_stages++;
        stage->vars = p.vars;
        stage->scan = -1;
        stage->is_independent = true;
        add_loops(nest, stage, v);
    }
    v->stage = s;
    stage->is_independent &= !p.loads && !v->is_materialized;
    VEC_PUSH(nest->arena, &stage->roots, v);
}

void nest_find_stages(struct nest *nest) {
    nest->lane_var = nest->block_var = -1;
    for (int i = 0; i < nest->values.n && !nest->refusal; i++)
        if (nest->values.at[i].is_root) make_vars(nest, &nest->values.at[i]);
    for (int i = 0; i < nest->values.n && !nest->refusal; i++)
        if (nest->values.at[i].is_root) place_root(nest, i);
}

/* ---- The grid ---- */

/* If a stage reads a root's dim at other indices than its own point's, the whole dim must be computed before, so
 * its loop cannot be in the grid. In softmax the sum reads e at all c, so c is a loop inside of each stage. */
static void keep_whole(struct nest *nest, const struct node *load) {
    const struct value *v = load->from;
    for (int d = 0; d < v->tensor->rank; d++) {
        const struct affine *own = nest_class_index(nest, v->dim_class[d]);
        if (load->index[d] != own) nest->grid_vars &= ~affine_deps(nest, own);
    }
}

/* The stage with the most loops among those that have all of `vars`. */
static const struct stage *find_longest(const struct nest *nest, uint64_t vars) {
    const struct stage *longest = NULL;
    for (int i = 0; i < nest->n_stages; i++) {
        const struct stage *s = &nest->stage[i];
        if ((s->vars & vars) == vars && (!longest || s->loops.n > longest->loops.n)) longest = s;
    }
    return longest;
}

/* The grid has the variables of all stages. With has_free_outputs, independent stages do not restrict it: they
 * run only at grid points where the variables that they lack are 0 (open_guard in block.c). */
static void find_grid_vars(struct nest *nest) {
    uint64_t all = ~(uint64_t)0;
    nest->grid_vars = all;
    for (int i = 0; i < nest->n_stages; i++)
        if (!nest->has_free_outputs || !nest->stage[i].is_independent)
            nest->grid_vars &= nest->stage[i].vars;
    if (nest->grid_vars == all) nest->grid_vars = find_longest(nest, 0)->vars;
    for (int i = 0; i < nest->nodes.n; i++)
        if (nest->nodes.at[i]->kind == NODE_LOAD && nest->nodes.at[i]->from->is_root)
            keep_whole(nest, nest->nodes.at[i]);
    for (int i = 0; i < nest->n_stages; i++)
        if (nest->stage[i].scan >= 0) nest->grid_vars &= ~var_bit(nest->stage[i].scan);
}

/* Moves the grid's variables from the stages' loops to nest->grid, in the order of the stage with the most
 * loops. */
static void take_grid(struct nest *nest) {
    const struct stage *longest = find_longest(nest, nest->grid_vars);
    for (int i = 0; i < longest->loops.n; i++)
        if (nest->grid_vars & var_bit(longest->loops.at[i]))
            VEC_PUSH(nest->arena, &nest->grid, longest->loops.at[i]);
    for (int i = 0; i < nest->n_stages; i++) {
        struct stage *s = &nest->stage[i];
        int n = 0;
        for (int k = 0; k < s->loops.n; k++)
            if (!(nest->grid_vars & var_bit(s->loops.at[k]))) s->loops.at[n++] = s->loops.at[k];
        s->loops.n = n;
    }
}

/* Without a loop that all stages share, one thread computes everything. Small tensors are accepted: a second
 * kernel would cost more than other threads could save. */
static bool has_little_work(const struct nest *nest) {
    for (int i = 0; i < nest->values.n; i++) {
        struct size n = ir_elements(nest->values.at[i].tensor);
        if (!size_is_const(n) || size_value(n) > 16384) return false;
    }
    return true;
}

void nest_find_grid(struct nest *nest) {
    find_grid_vars(nest);
    take_grid(nest);
    if (nest->n_stages > 1 && !nest->grid.n && !nest->has_free_outputs && !has_little_work(nest))
        nest_refuse(nest, "no loop in common");
}

/* ---- Scratch ---- */

/* Sets the strides of a value in scratch, dense over the dims that are not in the grid. Returns its number of elements. (If the grid
 * runs over lanes, widen_scratch in loops.c multiplies offsets and sizes.) */
static struct size place_scratch(struct nest *nest, struct value *v) {
    struct size *stride = ARENA_ARRAY(nest->arena, struct size, SOL_MAX_RANK);
    bool blocked = nest->lane_var >= 0 && (own_vars(nest, v) & var_bit(nest->lane_var));
    struct size step = size_const(blocked ? nest->lanes : 1);
    for (int d = v->tensor->rank - 1; d >= 0; d--) {
        stride[d] = size_const(0);
        int c = v->dim_class[d];
        if (c < 0 || (nest->grid_vars & var_bit(nest->class_var[c]))) continue;
        stride[d] = step;
        struct size extent = nest->var[nest->class_var[c]].extent;
        if (d == v->tensor->rank - 1)
            extent = size_add(extent, size_const(v->margins.before + v->margins.behind));
        step = size_mul(step, extent);
    }
    v->stride = stride;
    return step;
}

bool nest_in_scratch(const struct value *v) {
    return v->is_root && v->is_read && !v->is_output && !v->lender;
}

void nest_place(const struct nest *nest, const struct value *v, struct size *at, struct size *n) {
    const int64_t width = nest->grid_lane ? nest->lanes : 1;
    *at = size_const(v->scratch * width);
    *n = size_const(v->scratch_length * width);
}

/* ---- Places of outputs ---- */

#define LEND_MIN 256 /* elements: shorter rows are faster in scratch, which is aligned */

static bool is_elsewhere(struct nest *nest, const struct node *load, const struct value *v) {
    for (int d = 0; d < v->tensor->rank; d++)
        if (load->index[d] != nest_class_index(nest, v->dim_class[d])) return true;
    return false;
}

/* Does `n` read `v`, at other points than its own if `elsewhere`? Visits each node once: nest->stamp. */
static bool reads(struct nest *nest, struct node *n, const struct value *v, bool elsewhere) {
    if (n->mark == nest->stamp) return false;
    n->mark = nest->stamp;
    if (n->kind == NODE_LOAD && n->from == v) return !elsewhere || is_elsewhere(nest, n, v);
    for (int i = 0; i < 3 && n->arg[i]; i++)
        if (reads(nest, n->arg[i], v, elsewhere)) return true;
    return false;
}

static bool stage_reads(struct nest *nest, int stage, const struct value *v, bool elsewhere) {
    const struct stage *s = &nest->stage[stage];
    nest->stamp++;
    for (int i = 0; i < s->roots.n; i++)
        if (reads(nest, s->roots.at[i]->node, v, elsewhere)) return true;
    return false;
}

/* Has the output the same points, and does nothing read `v` once the output's stage has overwritten it? Another root of that stage might
 * read it behind the store. */
static bool can_lend(struct nest *nest, const struct value *w, const struct value *v) {
    bool is_plain = w->is_output && w->tensor->dtype == SOL_F32 && v->tensor->dtype == SOL_F32;
    if (!is_plain || w->stage <= v->stage || w->tensor->rank != v->tensor->rank) return false;
    if (nest->stage[w->stage].roots.n > 1) return false;
    for (int d = 0; d < w->tensor->rank; d++)
        if (w->dim_class[d] != v->dim_class[d]) return false;
    for (int i = 0; i < nest->values.n; i++)
        if (nest->values.at[i].lender == w) return false;
    for (int i = w->stage + 1; i < nest->n_stages; i++)
        if (stage_reads(nest, i, v, false)) return false;
    return !stage_reads(nest, w->stage, v, true);
}

/*
 * Long rows that stages exchange are stored where an output will be, so that its lines are in the first cache, and are fetched while
 * the exponentials are computed. Measured: a softmax of rows of 512 takes 0.9 of the time. Rows that exceed scratch are no reason to
 * refuse then. Not in epilogues and blocks, and not if a stage runs at some points of the grid only.
 */
static void find_lender(struct nest *nest, struct value *v, struct size n) {
    bool is_short = size_is_const(n) && size_value(n) < LEND_MIN;
    bool is_other = nest->tile || nest->lane_var >= 0 || nest->has_free_outputs;
    if (is_short || is_other || value_has_margins(v)) return;
    for (int i = 0; i < nest->values.n && !v->lender; i++) {
        struct value *w = &nest->values.at[i];
        if (!can_lend(nest, w, v)) continue;
        v->lender = w;
        v->ptr = w->ptr;
        v->stride = w->stride;
    }
}

void nest_place_scratch(struct nest *nest) {
    nest->scratch_size = 0;
    for (int i = 0; i < nest->values.n; i++) {
        struct value *v = &nest->values.at[i];
        if (!nest_in_scratch(v)) continue;
        struct size n = place_scratch(nest, v);
        find_lender(nest, v, n);
        if (v->lender) continue;
        int floats = reg_floats(reg_of(v->tensor->dtype));
        const int64_t most = (int64_t)nest->caps->scratch_max / 4 / floats;
        if (!size_is_const(n) || size_value(n) > most - nest->scratch_size) {
            nest_refuse(nest, "what one stage hands to the next is too large to keep");
            return;
        }
        nest->scratch_size = round_up(nest->scratch_size, floats);
        v->scratch = nest->scratch_size / floats;
        v->scratch_length = size_value(n);
        nest->scratch_size += round_up(size_value(n) * floats, nest->lanes);
    }
}
