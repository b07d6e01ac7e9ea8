/*
 * Loops: merges them, chooses which ones run over lanes, and divides the grid into tasks.
 *
 *   nodes with offsets, grid and stages  ->  [this file]  ->  merged variables, lanes, chunks
 *
 * Two loops, one directly inside the other, are merged if in every offset and condition the outer
 * coefficient is the inner coefficient times the inner extent. A chain of pointwise layers over dense
 * tensors becomes one loop.
 *
 * Extents may be symbolic; only those that are numbers influence decisions.
 */
#include "dfp/nest.h"

/* ---- Merging ---- */

/* True for h * stride + w if stride is the extent of w; also if neither variable occurs. */
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

/* A VALID node needs the block's number, so this variable must remain. */
static bool merges_in_node(const struct nest *nest, const struct node *n, int outer, int inner) {
    bool uses_block = outer == nest->block_var || inner == nest->block_var;
    if (n->kind == NODE_VALID && uses_block) return false;
    if (n->offset && !merges_in(nest, n->offset, outer, inner)) return false;
    return merges_in_ranges(nest, n->range, n->n_ranges, outer, inner) &&
           merges_in_ranges(nest, n->clip, n->n_clips, outer, inner);
}

/* Variables that a node uses, directly or inside a quotient or remainder. */
static uint64_t find_used_vars(const struct nest *nest) {
    uint64_t used = 0;
    for (int i = 0; i < nest->nodes.n; i++) {
        const struct node *n = nest->nodes.at[i];
        if (n->offset)
            for (int k = 0; k < n->offset->n; k++) used |= nest->var[n->offset->term[k].var].deps;
        for (int k = 0; k < n->n_ranges; k++) used |= affine_deps(nest, n->range[k]->x);
    }
    return used;
}

static bool merges_everywhere(const struct nest *nest, int outer, int inner) {
    uint64_t used = find_used_vars(nest);
    if (nest->var[outer].is_window || nest->var[inner].is_window) return false;
    for (int i = 0; i < nest->n_stages; i++)
        if (nest->stage[i].scan == outer || nest->stage[i].scan == inner) return false;
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

/* A list of loops must have `inner` directly behind `outer`, or neither of them. */
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

/* The inner variable now runs over both loops. The outer one's terms are dropped, as the inner coefficients cover them. */
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

/* From the innermost loop outwards, so that a whole chain can become one loop. Each merge decreases *n. */
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

/* Rates an access if `var` runs over lanes: 3 for a vector, 1 for every second element, which are two vectors and a shuffle, 0 for a
 * splat, -3 for a gather, -6 for element by element, if a quotient depends on `var`. These numbers are not tuned; only their order
 * matters. */
static double score_access(const struct nest *nest, const struct affine *offset, int var) {
    struct size coef = affine_coef(offset, var);
    if (!(affine_deps(nest, offset) & var_bit(var))) return 0;
    for (int i = 0; i < offset->n; i++) {
        int v = offset->term[i].var;
        if (v != var && (nest->var[v].deps & var_bit(var))) return -6;
    }
    return size_is(coef, 1) ? 3 : size_is(coef, 2) ? 1 : -3;
}

static bool is_reduced(const struct nest *nest, uint64_t deps) {
    for (int i = 0; i < nest->n_vars; i++)
        if (nest->var[i].kind == VAR_REDUCE && (deps & var_bit(i))) return true;
    return false;
}

/* Sums up the loads of `n` and its operands. Loads in reductions count four times, since they run more often. */
static void score_nodes(const struct nest *nest, struct node *n, int var, int stamp,
                        double *score) {
    if (n->mark == stamp) return;
    n->mark = stamp;
    for (int i = 0; i < 3 && n->arg[i]; i++) score_nodes(nest, n->arg[i], var, stamp, score);
    if (n->kind == NODE_LOAD)
        *score += score_access(nest, n->offset, var) * (is_reduced(nest, n->deps) ? 4 : 1);
}

/* A loop shorter than a vector uses only some of the lanes. The taps of such a window never run over lanes: combining the lanes
 * of one result costs as much as the taps. */
static double scale_score(const struct nest *nest, int var, double score) {
    struct size extent = nest->var[var].extent;
    if (score > 0 && nest->var[var].is_window && size_is_const(extent) &&
        size_value(extent) < nest->lanes)
        return 0;
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

/* Scans over a loop in lanes: vector.h has only sums of f32. */
static bool can_scan_lanes(const struct nest *nest, const struct stage *s, int var) {
    for (int i = 0; i < nest->nodes.n && s->scan == var; i++) {
        const struct node *n = nest->nodes.at[i];
        bool is_it = n->kind == NODE_SCAN && nest_scan_var(n) == var;
        if (is_it && (n->reg != REG_F32 || n->combine != COMBINE_ADD)) return false;
    }
    return true;
}

/* The loop with the highest score, if it is at least *best, else -1. Of equal scores the innermost loop, the last, wins. */
static int find_best_lane(struct nest *nest, const struct stage *s, const int *at, int n,
                          double *best) {
    int lane = -1;
    for (int i = 0; i < n; i++) {
        double score = score_stage(nest, s, at[i]);
        if (score < *best || !can_scan_lanes(nest, s, at[i])) continue;
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

/* The score of a stage if its reductions run over lanes instead of its loops. */
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
 * Chooses the stage's loop that runs over lanes, or -1 if lanes inside of its reductions score higher: the sum of a
 * dense row should not gather one element of each of 16 rows. Returns the score.
 */
static double plan_stage_lane(struct nest *nest, struct stage *s) {
    double best = 0, reductions = score_reductions(nest, s);
    s->lane = find_best_lane(nest, s, s->loops.at, s->loops.n, &best);
    if (s->lane >= 0 && best >= reductions) return best;
    s->lane = -1;
    return reductions;
}

/* If a loop of the grid runs over lanes, it does so in all stages, so their scores are added. */
static double score_grid(struct nest *nest, int var) {
    double score = 0;
    for (int i = 0; i < nest->n_stages; i++) score += score_stage(nest, &nest->stage[i], var);
    return score;
}

/* Is one point of the grid enough work that a task may be a single point, or a single vector of points? */
static bool has_work(const struct nest *nest) {
    for (int i = 0; i < nest->nodes.n; i++)
        if (nest->nodes.at[i]->kind == NODE_REDUCE || nest->nodes.at[i]->kind == NODE_SCAN)
            return true;
    return nest->n_stages > 1;
}

/* Is there a tensor without elements? Its strides are 0, so they do not tell which loop writes neighbouring values. */
static bool has_empty(const struct nest *nest) {
    for (int i = 0; i < nest->n_vars; i++)
        if (size_is(nest->var[i].extent, 0)) return true;
    return false;
}

/* Lanes are either a loop of the grid, for all stages, or chosen per stage: the one with the higher score. With blocked
 * tensors they are the lanes of a block. */
static void plan_lanes(struct nest *nest) {
    double own = 0, best = -1e30;
    int lane = -1;
    bool blocked = nest->lane_var >= 0, is_empty = !blocked && has_empty(nest);
    for (int i = 0; i < nest->n_stages; i++) {
        own += plan_stage_lane(nest, &nest->stage[i]);
        if (is_empty) nest->stage[i].lane = -1;
    }
    for (int i = 0; i < nest->grid.n && !blocked && !is_empty; i++) {
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
        if (s->scan >= 0) move_last(s->loops.at, s->loops.n, s->scan);
    }
}

/* If the grid runs over lanes, each value in scratch is a vector. */
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
 * Cuts the last loop of the grid into chunks. Their number must be a polynomial: c * (symbols) iterations
 * become ceil(c / wanted) * (symbols) chunks, some of which may be empty. A kernel computes consecutive
 * chunks in one loop, so small chunks cost nothing. Chunks are whole vectors, unless c < wanted, so that a
 * partial vector only occurs at the end of the loop. An epilogue's tasks are points in the order of memory, as the DNN kernel
 * that calls it counts them.
 */
static void plan_chunks(struct nest *nest) {
    nest->chunks = size_const(1);
    nest->chunk = size_const(1);
    if (!nest->grid.n) return;
    int64_t unit = nest->grid_lane ? nest->lanes : 1,
            wanted = unit * (has_work(nest) ? 1 : nest->caps->grain);
    struct size extent = nest->var[nest->grid.at[nest->grid.n - 1]].extent;
    nest->chunks = extent;
    if (extent.n != 1 || extent.bad || nest->tile) return;
    int64_t coef = extent.term[0].coef;
    int64_t chunk = size_is_const(extent) || coef >= wanted ? wanted : coef;
    nest->chunk = size_const(chunk);
    nest->chunks.term[0].coef = ceil_div(coef, chunk);
}

/* ---- Strips ---- */

#define STRIP_WINDOWS 8
#define STRIP_ROWS 16
#define STRIP_STAGES 6 /* of short rows: the text of each has the strip's loop, and more of them take the compiler too long */
#define STRIP_FLOATS (4 << 10)     /* of scratch: a part of L1 */
/* Of one tensor: with longer rows, what a stage has read is no longer in L1 for the next one. Rows in the places of outputs need no
 * scratch. */
#define STRIP_ROW_FLOATS (1 << 10)
#define STRIP_LENT_FLOATS (2 << 10)

/* The number of points of loops, which is 1 if there are none; too large if an extent is unknown. */
static int64_t count_points(const struct nest *nest, const int *var, int n) {
    struct size points = size_const(1);
    for (int i = 0; i < n; i++) points = size_mul(points, nest->var[var[i]].extent);
    return size_is_const(points) ? size_value(points) : STRIP_LENT_FLOATS;
}

/* The length of the longest row that a stage or a reduction walks through in one iteration. */
static int64_t find_row(const struct nest *nest) {
    int64_t longest = 1;
    for (int i = 0; i < nest->n_stages; i++) {
        const struct stage *s = &nest->stage[i];
        longest = max_i64(longest, count_points(nest, s->loops.at, s->loops.n));
    }
    for (int i = 0; i < nest->nodes.n; i++) {
        const struct node *n = nest->nodes.at[i];
        if (n->kind == NODE_REDUCE)
            longest = max_i64(longest, count_points(nest, n->var, n->n_vars));
    }
    return longest;
}

static bool has_lender(const struct nest *nest) {
    for (int i = 0; i < nest->values.n; i++)
        if (nest->values.at[i].lender) return true;
    return false;
}

/* The number of iterations of a strip, less than 2: no strips. Guards of independent stages would need strips of their own. */
static int64_t find_strip(const struct nest *nest, int64_t scratch) {
    if (nest->grid_lane || nest->lane_var >= 0 || !nest->grid.n || nest->has_free_outputs) return 0;
    const int64_t fit = STRIP_FLOATS / scratch;
    if (!nest->has_rows && nest->n_stages > STRIP_STAGES) return 0;
    if (!nest->has_rows) {
        const int64_t floats = has_lender(nest) ? STRIP_LENT_FLOATS : STRIP_ROW_FLOATS;
        return min_i64(fit, min_i64(STRIP_ROWS, floats / find_row(nest)));
    }
    for (int i = 0; i < nest->n_stages; i++)
        if (!nest->stage[i].loops.n) return 0;
    return min_i64(fit, STRIP_WINDOWS);
}

/*
 * Each stage computes several rows before the next stage does. The maximum of a softmax's row is known only at the end of a chain of
 * dependent instructions, and so is the sum: with other rows' values in between, the processor need not wait. With rows of windows in
 * plain images, the windows' vectors overlap two stored ones, and processors cannot load such a vector before both are in the cache.
 * Measured: a softmax of rows of 64 takes 0.71 of the time without strips; a maximum of 5 by 5 values in images of 20 by 20 0.53.
 */
static void plan_strips(struct nest *nest) {
    const int64_t size = round_up(nest->scratch_size, max_i64(nest->lanes, 2));
    const int64_t rows = size ? find_strip(nest, size) : 0;
    if (rows < 2) return;
    nest->strip = size_const(rows);
    nest->scratch_size = rows * size;
    for (int i = 0; i < nest->values.n; i++) {
        struct value *v = &nest->values.at[i];
        v->scratch_step = size_const(size / reg_floats(reg_of(v->tensor->dtype)));
    }
}

void nest_plan_loops(struct nest *nest) {
    plan_lanes(nest);
    if (nest->grid_lane) widen_scratch(nest);
    plan_strips(nest);
    plan_chunks(nest);
}
