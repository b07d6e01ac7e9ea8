/*
 * Loops: as few as possible, the innermost over lanes, the outermost cut into tasks.
 *
 *   nodes with offsets, grid and stages  ->  [this file]  ->  merged variables, lanes, chunks
 *
 * Two loops, one directly inside the other, become one where every offset and condition sees them
 * as one: the outer coefficient is the inner one times the inner extent. A chain of pointwise
 * layers over dense tensors ends as one loop.
 *
 * Sizes may be symbolic, so nothing here asks how large a loop is, unless that is a number.
 */
#include "dfp/nest.h"

/* ---- Merging ---- */

/* In h * stride + w, with stride = extent of w, both are one loop; where neither occurs, too. */
static bool merges_in(const struct nest *nest, const struct affine *a, int outer, int inner) {
    struct size coef = size_mul(affine_coef(a, inner), nest->var[inner].extent);
    return size_equal(affine_coef(a, outer), coef);
}

static bool merges_in_ranges(const struct nest *nest, const struct range *const *r, int n,
                             int outer, int inner) {
    for (int i = 0; i < n; i++)
        if (!merges_in(nest, r[i]->x, outer, inner)) return false;
    return true;
}

/* Which lanes are padding depends on the block's number, so that must stay a variable. */
static bool merges_in_node(const struct nest *nest, const struct node *n, int outer, int inner) {
    bool uses_block = outer == nest->block_var || inner == nest->block_var;
    if (n->kind == NODE_VALID && uses_block) return false;
    if (n->kind == NODE_LOAD && !merges_in(nest, n->offset, outer, inner)) return false;
    return merges_in_ranges(nest, n->range, n->n_ranges, outer, inner) &&
           merges_in_ranges(nest, n->clip, n->n_clips, outer, inner);
}

/* Variables that some node needs, directly or by way of a quotient. */
static uint64_t find_used_vars(const struct nest *nest) {
    uint64_t used = 0;
    for (int i = 0; i < nest->nodes.n; i++) {
        const struct node *n = nest->nodes.at[i];
        if (n->kind == NODE_LOAD)
            for (int k = 0; k < n->offset->n; k++) used |= nest->var[n->offset->term[k].var].deps;
        for (int k = 0; k < n->n_ranges; k++) used |= affine_deps(nest, n->range[k]->x);
    }
    return used;
}

static bool merges_everywhere(const struct nest *nest, int outer, int inner) {
    uint64_t used = find_used_vars(nest);
    if (nest->var[outer].is_window || nest->var[inner].is_window) return false;
    for (int i = 0; i < nest->nodes.n; i++)
        if (!merges_in_node(nest, nest->nodes.at[i], outer, inner)) return false;
    for (int i = 0; i < nest->values.n; i++)
        if (nest->values.at[i].at && !merges_in(nest, nest->values.at[i].at, outer, inner))
            return false;
    for (int i = 0; i < nest->n_vars; i++)
        if (nest->var[i].of && (used & var_bit(i)) &&
            !merges_in(nest, nest->var[i].of, outer, inner))
            return false;
    return true;
}

/* Stages that run over one of the two must run over both, one right inside the other. */
static bool is_adjacent_in(const int *at, int n, int outer, int inner) {
    for (int i = 0; i < n; i++) {
        if (at[i] == outer) return i + 1 < n && at[i + 1] == inner;
        if (at[i] == inner) return false;
    }
    return true;
}

static bool is_adjacent(const struct nest *nest, int outer, int inner) {
    bool adjacent = is_adjacent_in(nest->grid.at, nest->grid.n, outer, inner);
    for (int i = 0; i < nest->n_stages; i++)
        adjacent &= is_adjacent_in(nest->stage[i].loops.at, nest->stage[i].loops.n, outer, inner);
    return adjacent;
}

static int remove_var(int *at, int n, int var) {
    int left = 0;
    for (int i = 0; i < n; i++)
        if (at[i] != var) at[left++] = at[i];
    return left;
}

static void drop_term(struct nest *nest, const struct affine **a, int var) {
    if (*a) *a = affine_without(nest, *a, var);
}

static void rename_dep(uint64_t *deps, int from, int to) {
    if (*deps & var_bit(from)) *deps = (*deps & ~var_bit(from)) | var_bit(to);
}

/* The inner variable now runs over both; what the outer one added is in its coefficient already. */
static void merge(struct nest *nest, int outer, int inner) {
    struct var *v = &nest->var[inner];
    v->extent = size_mul(v->extent, nest->var[outer].extent);
    for (int i = 0; i < nest->nodes.n; i++) {
        struct node *n = nest->nodes.at[i];
        drop_term(nest, &n->offset, outer);
        rename_dep(&n->deps, outer, inner);
        if (n->kind == NODE_REDUCE) n->n_vars = remove_var(n->var, n->n_vars, outer);
    }
    for (int i = 0; i < nest->ranges.n; i++) drop_term(nest, &nest->ranges.at[i]->x, outer);
    for (int i = 0; i < nest->values.n; i++) drop_term(nest, &nest->values.at[i].at, outer);
    for (int i = 0; i < nest->n_vars; i++) {
        drop_term(nest, &nest->var[i].of, outer);
        if (nest->var[i].of) rename_dep(&nest->var[i].deps, outer, inner);
    }
    nest->grid.n = remove_var(nest->grid.at, nest->grid.n, outer);
    for (int i = 0; i < nest->n_stages; i++) {
        struct stage *s = &nest->stage[i];
        s->loops.n = remove_var(s->loops.at, s->loops.n, outer);
        s->vars &= ~var_bit(outer);
    }
}

/* From the inside out, so that a chain of n loops ends as one. `n` shrinks with each merge. */
static void merge_list(struct nest *nest, const int *at, const int *n) {
    for (int i = *n - 1; i > 0; i--)
        if (is_adjacent(nest, at[i - 1], at[i]) && merges_everywhere(nest, at[i - 1], at[i]))
            merge(nest, at[i - 1], at[i]);
}

void nest_merge_loops(struct nest *nest) {
    merge_list(nest, nest->grid.at, &nest->grid.n);
    for (int i = 0; i < nest->n_stages; i++)
        merge_list(nest, nest->stage[i].loops.at, &nest->stage[i].loops.n);
    for (int i = 0; i < nest->nodes.n; i++)
        if (nest->nodes.at[i]->kind == NODE_REDUCE)
            merge_list(nest, nest->nodes.at[i]->var, &nest->nodes.at[i]->n_vars);
}

/* ---- Lanes ---- */

/* How well one access goes when `var` runs over lanes: a vector (3), a splat (0), a gather (-3), or
 * element by element (-6), as behind a division. Only the order of these numbers was ever looked at;
 * accesses in a reduction count more because they run more often. */
static double score_access(const struct nest *nest, const struct affine *offset, int var) {
    struct size coef = affine_coef(offset, var);
    if (!(affine_deps(nest, offset) & var_bit(var))) return 0;
    for (int i = 0; i < offset->n; i++) {
        int v = offset->term[i].var;
        if (v != var && (nest->var[v].deps & var_bit(var))) return -6;
    }
    return size_is(coef, 1) ? 3 : -3;
}

static bool is_reduced(const struct nest *nest, uint64_t deps) {
    for (int i = 0; i < nest->n_vars; i++)
        if (nest->var[i].kind == VAR_REDUCE && (deps & var_bit(i))) return true;
    return false;
}

static void score_nodes(const struct nest *nest, struct node *n, int var, int stamp,
                        double *score) {
    if (n->mark == stamp) return;
    n->mark = stamp;
    for (int i = 0; i < 3 && n->arg[i]; i++) score_nodes(nest, n->arg[i], var, stamp, score);
    if (n->kind == NODE_LOAD)
        *score += score_access(nest, n->offset, var) * (is_reduced(nest, n->deps) ? 4 : 1);
}

/* A short loop fills a part of the lanes only. */
static double scale_score(const struct nest *nest, int var, double score) {
    struct size extent = nest->var[var].extent;
    if (score <= 0 || !size_is_const(extent) || size_value(extent) >= nest->lanes) return score;
    return score * (double)size_value(extent) / nest->lanes;
}

static int next_stamp(struct nest *nest) { return ++nest->stamp; }

static double score_stage(struct nest *nest, const struct stage *s, int var) {
    double score = 0;
    int stamp = next_stamp(nest);
    for (int i = 0; i < s->roots.n; i++) {
        score_nodes(nest, s->roots.at[i]->node, var, stamp, &score);
        score += score_access(nest, s->roots.at[i]->at, var);
    }
    return scale_score(nest, var, score);
}

/* The last of the best: inner loops come last and win ties. */
static int find_best_lane(struct nest *nest, const struct stage *s, const int *at, int n,
                          double *best) {
    int lane = -1;
    for (int i = 0; i < n; i++) {
        double score = score_stage(nest, s, at[i]);
        if (score < *best) continue;
        *best = score;
        lane = at[i];
    }
    return lane;
}

int nest_reduce_lane(struct nest *nest, const struct node *reduce) {
    double best = 0;
    int lane = -1;
    for (int i = 0; i < reduce->n_vars; i++) {
        double score = 0;
        score_nodes(nest, reduce->arg[0], reduce->var[i], next_stamp(nest), &score);
        score = scale_score(nest, reduce->var[i], score);
        if (score <= best) continue;
        best = score;
        lane = reduce->var[i];
    }
    return lane;
}

/* What a stage gains from lanes in its reductions instead. */
static double score_reductions(struct nest *nest, const struct stage *s) {
    double best = 0;
    for (int i = 0; i < nest->n_vars; i++) {
        if (nest->var[i].kind != VAR_REDUCE) continue;
        double score = score_stage(nest, s, i);
        if (score > best) best = score;
    }
    return best;
}

static void move_last(int *at, int n, int var) {
    n = remove_var(at, n, var);
    at[n] = var;
}

/*
 * Lanes over the stage's innermost loop, or inside of its reductions, if these score more: the sum of a
 * row over dense memory should not gather one element of each of 16 rows.
 */
static double plan_stage_lane(struct nest *nest, struct stage *s) {
    double best = 0, reductions = score_reductions(nest, s);
    s->lane = find_best_lane(nest, s, s->loops.at, s->loops.n, &best);
    if (s->lane >= 0 && best >= reductions) return best;
    s->lane = -1;
    return reductions;
}

/* A lane of the grid is one for all stages, so its score is the sum of theirs. */
static double score_grid(struct nest *nest, int var) {
    double score = 0;
    for (int i = 0; i < nest->n_stages; i++) score += score_stage(nest, &nest->stage[i], var);
    return score;
}

/* Is a point of the grid so much work that a chunk of one vector is worth a task? */
static bool has_work(const struct nest *nest) {
    for (int i = 0; i < nest->nodes.n; i++)
        if (nest->nodes.at[i]->kind == NODE_REDUCE) return true;
    return nest->n_stages > 1;
}

/* One vector of the grid for all stages, or each stage its own lanes: whichever reads and writes
 * more whole vectors. */
static void plan_lanes(struct nest *nest) {
    double own = 0, best = -1e30;
    int lane = -1;
    bool blocked = nest->lane_var >= 0;
    for (int i = 0; i < nest->n_stages; i++) own += plan_stage_lane(nest, &nest->stage[i]);
    for (int i = 0; i < nest->grid.n && !blocked; i++) {
        double score = score_grid(nest, nest->grid.at[i]);
        if (score < best) continue;
        best = score;
        lane = nest->grid.at[i];
    }
    if (nest->tile && !blocked && nest->grid.n) lane = nest->grid.at[nest->grid.n - 1];
    nest->grid_lane = lane >= 0 && (nest->tile || best > own || (best == own && !has_work(nest)));
    if (nest->grid_lane) move_last(nest->grid.at, nest->grid.n, lane);
    for (int i = 0; i < nest->n_stages; i++) {
        struct stage *s = &nest->stage[i];
        if (nest->grid_lane) s->lane = lane;
        else if (blocked && (s->vars & var_bit(nest->lane_var))) s->lane = nest->lane_var;
        else if (s->lane >= 0) move_last(s->loops.at, s->loops.n, s->lane);
    }
}

/* Each value that is handed on now is a vector. */
static void widen_scratch(struct nest *nest) {
    struct size lanes = size_const(nest->lanes);
    for (int i = 0; i < nest->values.n; i++) {
        struct value *v = &nest->values.at[i];
        if (nest_in_scratch(v)) v->at = affine_mul(nest, v->at, lanes);
    }
    for (int i = 0; i < nest->nodes.n; i++) {
        struct node *n = nest->nodes.at[i];
        if (n->kind == NODE_LOAD && nest_in_scratch(n->from))
            n->offset = affine_mul(nest, n->offset, lanes);
    }
    nest->scratch_size *= nest->lanes;
}

/* ---- Tasks ---- */

/*
 * The last loop of the grid is cut into chunks. Their number has to be a polynomial: of c *
 * (symbols) elements we make ceil(c / wanted) * (symbols) chunks. A call works on runs of chunks,
 * so small ones cost nothing; they have to be whole vectors, though, for a run to end with the only
 * partial one. An epilogue's tasks are points, in the order of memory, as the kernel that calls it counts them.
 */
static void plan_chunks(struct nest *nest) {
    nest->chunks = size_const(1);
    nest->chunk = size_const(1);
    if (!nest->grid.n) return;
    int64_t unit = nest->grid_lane ? nest->lanes : 1, wanted = unit * (has_work(nest) ? 1 : 256);
    struct size extent = nest->var[nest->grid.at[nest->grid.n - 1]].extent;
    nest->chunks = extent;
    if (extent.n != 1 || extent.bad || nest->tile) return;
    int64_t coef = extent.term[0].coef;
    int64_t chunk = size_is_const(extent) || coef >= wanted ? wanted : coef;
    nest->chunk = size_const(chunk);
    nest->chunks.term[0].coef = ceil_div(coef, chunk);
}

void nest_plan_loops(struct nest *nest) {
    plan_lanes(nest);
    if (nest->grid_lane) widen_scratch(nest);
    plan_chunks(nest);
}
