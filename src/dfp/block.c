/*
 * Blocks: the order of instructions.
 *
 *   stages, their loops, nodes  ->  [this file]  ->  blocks of items
 *
 * Each node is computed in the outermost loop inside which all of its variables have values, in front of
 * the inner loop that is being built. So it is computed only as often as its value changes, and later uses
 * inside that loop find it there.
 *
 * A condition of a reduction becomes a bound of one of its loops if possible (bounds_loop). Then taps outside
 * of an image are skipped, and taps inside need no test.
 */
#include "dfp/nest.h"

struct building {
    struct nest *nest;
    struct block *at; /* the innermost open block */
    int lane;         /* the variable that runs over lanes here; -1: none */
    int stage;        /* the stage that is being built */
};

/* ---- Where a node belongs ---- */

static bool holds(const struct block *b, uint64_t deps) {
    return b->var >= 0 && (deps & var_bit(b->var));
}

/* Leaves loops as long as `deps` do not depend on them. Nothing leaves a guard: it would also run
 * where its stage does not. */
static struct block *find_home(const struct building *b, uint64_t deps) {
    struct block *home = b->at;
    while (home->parent && !home->is_guard && !holds(home, deps)) home = home->parent;
    return home;
}

/* A node may be used again only inside the block that computes it: in C its variable is local to the block. */
static bool is_open(const struct building *b, const struct block *block) {
    for (const struct block *at = b->at; at; at = at->parent)
        if (at == block) return true;
    return false;
}

/* Is the condition true in the open block, because it bounds a loop or guard around it? */
static bool is_known(const struct building *b, const struct range *r) {
    for (const struct block *at = b->at; at; at = at->parent)
        for (int i = 0; i < at->n_clips; i++)
            if (at->clip[i] == r) return true;
    return false;
}

static void add_item(struct building *b, struct block *block, const struct item *item) {
    VEC_PUSH(b->nest->arena, &block->items, *item);
    block->items.at[block->items.n - 1].stage = b->stage;
}

/* close_loop adds the block to its parent's items, so that items hoisted until then are in front of it. */
static struct block *open_block(struct building *b, int var, bool is_lanes) {
    struct block *block = ARENA_NEW(b->nest->arena, struct block);
    block->var = var;
    block->is_lanes = is_lanes;
    block->parent = b->at;
    b->at = block;
    return block;
}

static void close_loop(struct building *b, struct block *block) {
    struct item item = {.kind = ITEM_LOOP, .block = block};
    b->at = block->parent;
    add_item(b, b->at, &item);
}

/* ---- Reductions ---- */

static struct node *build_node(struct building *b, struct node *n);

/* Can the condition bound the loop over `var`? Its other variables must have values before the loop, the same in
 * all lanes. */
static bool bounds_loop(const struct building *b, const struct node *reduce, const struct range *r,
                        int var) {
    struct size coef = affine_coef(r->x, var);
    if (!size_is_const(coef) || size_value(coef) <= 0 || var == b->lane) return false;
    uint64_t deps = 0;
    for (int i = 0; i < r->x->n; i++)
        if (r->x->term[i].var != var) deps |= b->nest->var[r->x->term[i].var].deps;
    for (int i = 0; i < reduce->n_vars; i++)
        if (deps & var_bit(reduce->var[i])) return false;
    return !nest_is_vector(b->nest, deps, b->lane);
}

/* Bounds the loop by all conditions of the reduction for which this is possible. Others are tested at each tap. */
static void find_bounds(struct building *b, const struct node *reduce, struct block *block) {
    block->clip = ARENA_ARRAY(b->nest->arena, const struct range *, reduce->n_clips);
    for (int i = 0; i < reduce->n_clips; i++) {
        bool known = is_known(b, reduce->clip[i]);
        if (!known && bounds_loop(b, reduce, reduce->clip[i], block->var))
            block->clip[block->n_clips++] = reduce->clip[i];
    }
}

/* Opens the loops of a reduction, the one over `lane` (-1: none) innermost. Returns the outermost. */
static struct block *open_reduction(struct building *b, struct node *reduce, int lane) {
    struct block *outer = NULL;
    for (int i = 0; i <= reduce->n_vars; i++) {
        int var = i < reduce->n_vars ? reduce->var[i] : lane;
        if (var < 0 || (var == lane && i < reduce->n_vars)) continue;
        struct block *block = open_block(b, var, var == lane);
        if (var == lane) b->lane = lane;
        find_bounds(b, reduce, block);
        if (!outer) outer = block;
    }
    return outer;
}

const struct block *nest_inner_loop(const struct block *b) {
    return b->reduce ? NULL : b->items.at[b->items.n - 1].block;
}

/*
 * The reduction is placed where its result belongs (find_home), which may be further out than where it is used:
 * the mean of a row is computed once per row. If no loop around it runs over lanes, its own innermost loop
 * may: it makes a vector of partial sums, which are combined at the end.
 */
static void build_reduction(struct building *b, struct node *n) {
    struct building outside = *b;
    bool has_lane = b->lane >= 0 || nest_is_vector(b->nest, n->arg[0]->deps, -1);
    int lane = has_lane ? -1 : nest_reduce_lane(b->nest, n);
    struct item item = {.kind = ITEM_REDUCE, .node = n};
    struct block *home = find_home(b, n->deps);
    b->at = home;
    item.block = open_reduction(b, n, lane);
    struct block *inner = b->at;
    inner->operand = build_node(b, n->arg[0]);
    inner->reduce = n;
    while (b->at != item.block) close_loop(b, b->at);
    add_item(b, home, &item);
    n->home = home;
    *b = outside;
}

/* ---- Nodes ---- */

/* The conditions of n that must be tested: no loop or guard around makes them true. Returns their number. */
static int filter_ranges(struct building *b, const struct node *n, const struct range ***out) {
    int left = 0;
    *out = ARENA_ARRAY(b->nest->arena, const struct range *, n->n_ranges);
    for (int i = 0; i < n->n_ranges; i++)
        if (!is_known(b, n->range[i])) (*out)[left++] = n->range[i];
    return left;
}

/* A condition that loops make true is 1, and a select on it is its first value. NULL: not such a node. */
static struct node *build_known(struct building *b, struct node *n) {
    const struct range **left;
    const struct node *condition = n->primitive == PRIMITIVE_SELECT ? n->arg[0] : n;
    if (condition->kind != NODE_RANGE || filter_ranges(b, condition, &left)) return NULL;
    return n == condition ? node_const(b->nest, REG_F32, 1) : build_node(b, n->arg[1]);
}

/* Adds the instructions that compute `n`. Returns the node to use for it in this block, which may be a simpler one. */
static struct node *build_node(struct building *b, struct node *n) {
    struct node *known = build_known(b, n);
    if (known) return known;
    if (n->kind == NODE_CONST || (n->home && is_open(b, n->home))) return n;
    if (n->kind == NODE_REDUCE) {
        build_reduction(b, n);
        return n;
    }
    struct item item = {.kind = ITEM_NODE, .node = n};
    for (int i = 0; i < 3 && n->arg[i]; i++) item.arg[i] = build_node(b, n->arg[i]);
    item.n_ranges = filter_ranges(b, n, &item.range);
    n->home = find_home(b, n->deps);
    if (n->kind == NODE_SCAN) VEC_PUSH(b->nest->arena, &n->home->scans, n);
    add_item(b, n->home, &item);
    return n;
}

/* ---- Stages ---- */

static bool is_stored(const struct value *v) {
    return v->is_output || v->lender || nest_in_scratch(v);
}

/* An independent stage may lack some of the grid's variables: it runs only where these are 0, so once. */
static void open_guard(struct building *b, const struct stage *s) {
    struct nest *nest = b->nest;
    const struct range **clip = ARENA_ARRAY(nest->arena, const struct range *, nest->grid.n);
    int n = 0;
    for (int i = 0; i < nest->grid.n; i++) {
        int var = nest->grid.at[i];
        if (s->vars & var_bit(var)) continue;
        clip[n++] = affine_range(nest, affine_var(nest, var), size_const(0), size_const(1));
    }
    if (!n) return;
    struct block *guard = open_block(b, nest_add_var(nest, VAR_OUT, size_const(1)), false);
    guard->is_guard = true;
    guard->clip = clip;
    guard->n_clips = n;
}

static void build_stage(struct nest *nest, struct block *around, int stage) {
    struct stage *s = &nest->stage[stage];
    struct building b = {nest, around, s->lane, stage};
    open_guard(&b, s);
    for (int i = 0; i < s->loops.n; i++) open_block(&b, s->loops.at[i], s->loops.at[i] == s->lane);
    for (int i = 0; i < s->roots.n; i++) {
        struct item item = {.kind = ITEM_STORE, .value = s->roots.at[i]};
        item.arg[0] = build_node(&b, s->roots.at[i]->node);
        if (is_stored(item.value)) add_item(&b, b.at, &item);
    }
    while (b.at != around) close_loop(&b, b.at);
}

/* Without a grid, as when all dims are 1, the stages are in the kernel's body itself. */
void nest_build_blocks(struct nest *nest) {
    struct building b = {.nest = nest, .lane = -1};
    nest->body = open_block(&b, -1, false);
    struct block *row = nest->body;
    if (nest->grid.n) {
        row = open_block(&b, nest->grid.at[nest->grid.n - 1], nest->grid_lane);
        row->is_row = true;
    }
    for (int i = 0; i < nest->n_stages; i++) build_stage(nest, row, i);
    b.at = row;
    if (row != nest->body) close_loop(&b, row);
}
