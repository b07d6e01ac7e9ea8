/*
 * Blocks: the order of instructions.
 *
 *   stages, their loops, nodes  ->  [this file]  ->  blocks of items
 *
 * Each node is computed in the outermost loop that knows all of its variables, before whatever
 * inner loop is being built: so nothing is computed more often than it changes, and a node that is
 * there already is used again.
 *
 * Conditions of a reduction become bounds of its loops where each of them concerns one loop. Then
 * taps outside of an image are not visited, and inside nothing is tested.
 */
#include "dfp/nest.h"

struct building {
    struct nest *nest;
    struct block *at; /* the innermost open block */
    int lane;         /* the variable that runs over lanes here; -1: none */
};

/* ---- Where a node belongs ---- */

static bool holds(const struct block *b, uint64_t deps) {
    return b->var >= 0 && (deps & var_bit(b->var));
}

/* Walks out of loops as long as they do not matter. Out of a guard nothing may go: it would run
 * where its stage does not. */
static struct block *find_home(const struct building *b, uint64_t deps) {
    struct block *home = b->at;
    while (home->parent && !home->is_guard && !holds(home, deps)) home = home->parent;
    return home;
}

/* A node may be used again only from within the block it was computed in: C's scopes are the blocks. */
static bool is_open(const struct building *b, const struct block *block) {
    for (const struct block *at = b->at; at; at = at->parent)
        if (at == block) return true;
    return false;
}

/* Does a loop around us keep the condition true? */
static bool is_known(const struct building *b, const struct range *r) {
    for (const struct block *at = b->at; at; at = at->parent)
        for (int i = 0; i < at->n_clips; i++)
            if (at->clip[i] == r) return true;
    return false;
}

static void add_item(struct building *b, struct block *block, const struct item *item) {
    VEC_PUSH(b->nest->arena, &block->items, *item);
}

/* The block is put into its parent's items when it is closed: behind what was hoisted meanwhile. */
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

/* May the condition bound the loop over `var`? Its other variables must be fixed by then, and
 * the same for all lanes. */
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

/* Of the reduction's conditions, those that this loop can keep true. The rest is tested at each tap. */
static void find_bounds(struct building *b, const struct node *reduce, struct block *block) {
    block->clip = ARENA_ARRAY(b->nest->arena, const struct range *, reduce->n_clips);
    for (int i = 0; i < reduce->n_clips; i++) {
        bool known = is_known(b, reduce->clip[i]);
        if (!known && bounds_loop(b, reduce, reduce->clip[i], block->var))
            block->clip[block->n_clips++] = reduce->clip[i];
    }
}

/* The loops of a reduction, with a lane of its own as the innermost one. */
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
 * The reduction goes where its result belongs, which may be loops further out than where it is used:
 * the mean of a row is computed once per row. If nothing here runs over lanes, its own innermost loop
 * may: partial sums in a vector, combined at the end.
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

/* Those of n's conditions that no loop around us keeps true. */
static int filter_ranges(struct building *b, const struct node *n, const struct range ***out) {
    int left = 0;
    *out = ARENA_ARRAY(b->nest->arena, const struct range *, n->n_ranges);
    for (int i = 0; i < n->n_ranges; i++)
        if (!is_known(b, n->range[i])) (*out)[left++] = n->range[i];
    return left;
}

/* A condition that the loops keep true is 1, and a select on it is its first operand. */
static struct node *build_known(struct building *b, struct node *n) {
    const struct range **left;
    const struct node *condition = n->primitive == PRIMITIVE_SELECT ? n->arg[0] : n;
    if (condition->kind != NODE_RANGE || filter_ranges(b, condition, &left)) return NULL;
    return n == condition ? node_const(b->nest, 1) : build_node(b, n->arg[1]);
}

/* Builds what is needed for `n` and returns the node that stands for it here. */
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
    add_item(b, n->home, &item);
    return n;
}

/* ---- Stages ---- */

static bool is_stored(const struct value *v) { return v->is_output || nest_in_scratch(v); }

/* A stage apart that lacks some of the grid's variables runs where these are 0, so once. */
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

static void build_stage(struct nest *nest, struct block *around, struct stage *s) {
    struct building b = {nest, around, s->lane};
    open_guard(&b, s);
    for (int i = 0; i < s->loops.n; i++) open_block(&b, s->loops.at[i], s->loops.at[i] == s->lane);
    for (int i = 0; i < s->roots.n; i++) {
        struct item item = {.kind = ITEM_STORE, .value = s->roots.at[i]};
        item.arg[0] = build_node(&b, s->roots.at[i]->node);
        if (is_stored(item.value)) add_item(&b, b.at, &item);
    }
    while (b.at != around) close_loop(&b, b.at);
}

/* Dims of 1 leave no loop: then the lanes of blocks are an empty loop's body, which is the
 * grid's. */
void nest_build_blocks(struct nest *nest) {
    struct building b = {.nest = nest, .lane = -1};
    nest->body = open_block(&b, -1, false);
    struct block *row = nest->body;
    if (nest->grid.n) {
        row = open_block(&b, nest->grid.at[nest->grid.n - 1], nest->grid_lane);
        row->is_row = true;
    }
    for (int i = 0; i < nest->n_stages; i++) build_stage(nest, row, &nest->stage[i]);
    b.at = row;
    if (row != nest->body) close_loop(&b, row);
}
