/*
 * Encoding: the blocks of a nest as code for interp.c. code.h describes the words.
 *
 *   nest->body  ->  [this file]  ->  dfp_kernel.code, registers behind the nest's scratch
 *
 * The innermost loop of each stage runs in strips, unless it contains reductions over whole dims: then the innermost
 * loops of these run in strips, and the columns of their results are folded at the end.
 */
#include "dfp/code.h"

#include <string.h>

/* The place of a node's value, with the fields of code.h's place; `at` is the register. */
struct place {
    int64_t at;
    int columns, inner;
    enum reg reg;
};

struct encoder {
    struct nest *nest;
    VEC(int64_t) words;
    VEC(struct place) places; /* by node id */
    VEC(const struct node *) constants;
    int64_t registers; /* floats in use */
    int strip;         /* the strip's variable, -1: none is open */
};

static void put(struct encoder *e, int64_t word) { VEC_PUSH(e->nest->arena, &e->words, word); }

static void put_double(struct encoder *e, double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(e, bits);
}

/* Code, unlike the text, depends on values: any argument of the same value can be used. */
static int find_arg(struct nest *nest, struct size size) {
    for (int i = 0; i < nest->args.n; i++)
        if (size_equal(nest->args.at[i], size)) return i;
    return nest_arg(nest, arena_copy(nest->arena, &size, sizeof size));
}

static void put_size(struct encoder *e, struct size size) {
    bool number = size_is_const(size);
    put(e, number ? -1 : find_arg(e->nest, size));
    put(e, number ? size_value(size) : 0);
}

static void put_sum(struct encoder *e, const struct affine *a) {
    put(e, a->n);
    for (int i = 0; i < a->n; i++) {
        put(e, a->term[i].var);
        put_size(e, a->term[i].coef);
    }
    put_size(e, a->base);
}

/* ---- Registers ---- */

static bool depends(uint64_t deps, int var) { return var >= 0 && (deps & var_bit(var)); }

/*
 * Registers are not reused: a kernel has some dozens of nodes, and a strip is short enough that
 * all of them fit in L1 or L2. Single values take 16 floats, so that rows stay aligned.
 */
static struct place take_register(struct encoder *e, enum reg reg, int columns, int inner) {
    struct place p = {e->registers, columns, inner, reg};
    e->registers += (columns ? CODE_STRIP : round_up(inner, 16)) * reg_floats(reg);
    return p;
}

static struct place make_place(struct encoder *e, enum reg reg, uint64_t deps) {
    bool in_lanes = depends(deps, e->nest->lane_var);
    return take_register(e, reg, depends(deps, e->strip), in_lanes ? e->nest->lanes : 1);
}

static void set_place(struct encoder *e, const struct node *n, struct place p) {
    while (e->places.n <= n->id) VEC_PUSH(e->nest->arena, &e->places, (struct place){.at = -1});
    e->places.at[n->id] = p;
}

/* Constants get a register at their first use; encode_constants writes their values. */
static struct place find_place(struct encoder *e, const struct node *n) {
    if (n->kind == NODE_CONST && (n->id >= e->places.n || e->places.at[n->id].at < 0)) {
        set_place(e, n, make_place(e, n->reg, 0));
        VEC_PUSH(e->nest->arena, &e->constants, n);
    }
    return e->places.at[n->id];
}

static void put_place(struct encoder *e, struct place p) {
    put(e, p.columns);
    put(e, p.inner);
    put(e, p.at);
}

/* Most instructions begin with the operation and the place that it writes. */
static void put_code(struct encoder *e, enum code_op op, struct place to) {
    put(e, op);
    put_place(e, to);
}

/* The register of an operand; if the operand has another shape, that of a new register to which it is broadcast. */
static int64_t widen(struct encoder *e, const struct node *n, struct place shape) {
    struct place from = find_place(e, n);
    if (from.columns == shape.columns && from.inner == shape.inner) return from.at;
    struct place to = take_register(e, from.reg, shape.columns, shape.inner);
    put_code(e, CODE_BROADCAST, to);
    put_place(e, from);
    put(e, from.reg);
    return to.at;
}

/* ---- Accesses ---- */

/* Is the sum linear in `var`? Not if it has a quotient or remainder that depends on `var`. */
static bool is_linear(const struct nest *nest, const struct affine *a, int var) {
    for (int i = 0; i < a->n; i++) {
        int v = a->term[i].var;
        if (v != var && var >= 0 && (nest->var[v].deps & var_bit(var))) return false;
    }
    return true;
}

static void put_range(struct encoder *e, const struct range *r) {
    bool lanes = depends(affine_deps(e->nest, r->x), e->nest->lane_var);
    put_sum(e, r->x);
    put_size(e, r->low);
    put_size(e, r->high);
    put(e, is_linear(e->nest, r->x, e->strip) && !lanes);
}

static void put_ranges(struct encoder *e, const struct range *const *r, int n) {
    put(e, n);
    for (int i = 0; i < n; i++) put_range(e, r[i]);
}

static void put_memory(struct encoder *e, const struct value *v) {
    put(e, nest_in_scratch(v) ? -1 : v->ptr);
    put(e, nest_stored_type(v));
}

static void put_access(struct encoder *e, const struct value *v, const struct affine *offset) {
    struct nest *nest = e->nest;
    bool tile = nest_in_scratch(v) && nest->grid_lane;
    bool linear = is_linear(nest, offset, e->strip) && is_linear(nest, offset, nest->lane_var);
    put_sum(e, offset);
    put_size(e, tile           ? size_const(1)
                : e->strip < 0 ? size_const(0)
                               : affine_coef(offset, e->strip));
    put_size(e, nest->lane_var < 0 ? size_const(0) : affine_coef(offset, nest->lane_var));
    put(e, !linear);
}

/* ---- Items ---- */

static void encode_load(struct encoder *e, const struct item *item, struct place to) {
    put_code(e, CODE_LOAD, to);
    put_memory(e, item->node->from);
    put_double(e, item->node->fill);
    put_access(e, item->node->from, item->node->offset);
    put_ranges(e, item->range, item->n_ranges);
}

/* For each segment, its last block and the number of lanes that hold channels in it. Other blocks are full. */
static void encode_valid(struct encoder *e, struct place to) {
    const struct layout *layout = e->nest->layout;
    put_code(e, CODE_VALID, to);
    put(e, e->nest->block_var);
    put(e, layout->n_segments);
    int64_t end = 0;
    for (int i = 0; i < layout->n_segments; i++) {
        end += layout->segment[i].stored / e->nest->lanes;
        put(e, end - 1);
        put(e, layout->segment[i].valid + e->nest->lanes - layout->segment[i].stored);
    }
}

static void put_arith(struct encoder *e, enum primitive primitive, enum reg reg, struct place to,
                      const int64_t from[3]) {
    put_code(e, CODE_ARITH, to);
    for (int i = 0; i < 3; i++) put(e, from[i]);
    put(e, primitive);
    put(e, reg);
}

static void encode_arith(struct encoder *e, const struct item *item, struct place to) {
    int64_t from[3] = {0};
    for (int i = 0; i < 3 && item->arg[i]; i++) from[i] = widen(e, item->arg[i], to);
    bool selects = item->node->primitive == PRIMITIVE_SELECT;
    put_arith(e, item->node->primitive, selects ? to.reg : item->arg[0]->reg, to, from);
}

static void encode_cast(struct encoder *e, const struct item *item, struct place to) {
    int64_t from = widen(e, item->arg[0], to);
    put_code(e, CODE_CAST, to);
    put(e, from);
    put(e, item->arg[0]->reg);
    put(e, item->node->to);
}

/* The sum so far, in the register that encode_loop has set to the neutral element. */
static void encode_scan(struct encoder *e, const struct item *item) {
    struct place sum = e->places.at[item->node->id];
    int64_t from[3] = {sum.at, widen(e, item->arg[0], sum)};
    put_arith(e, combines[item->node->combine].primitive, sum.reg, sum, from);
}

static void encode_node(struct encoder *e, const struct item *item) {
    if (item->node->kind == NODE_SCAN) {
        encode_scan(e, item);
        return;
    }
    struct place to = make_place(e, item->node->reg, item->node->deps);
    switch (item->node->kind) {
    case NODE_LOAD: encode_load(e, item, to); break;
    case NODE_RANGE:
        put_code(e, CODE_RANGE, to);
        put_ranges(e, item->range, item->n_ranges);
        break;
    case NODE_VALID: encode_valid(e, to); break;
    case NODE_APPLY: encode_arith(e, item, to); break;
    case NODE_CAST: encode_cast(e, item, to); break;
    case NODE_INDEX:
        put_code(e, CODE_INDEX, to);
        put_sum(e, item->node->offset);
        break;
    case NODE_CONST: /* in the code's head */
    case NODE_SCAN:
    case NODE_REDUCE: ASSERT(!"an item of its own"); break;
    }
    set_place(e, item->node, to);
}

/* A value that does not depend on the strip may still be stored once per column: then it is broadcast first. */
static void encode_store(struct encoder *e, const struct item *item) {
    const struct value *v = item->value;
    struct place shape = {.inner = 1, .reg = v->node->reg};
    shape.columns = depends(v->node->deps | affine_deps(e->nest, v->at), e->strip);
    if (depends(affine_deps(e->nest, v->at), e->nest->lane_var)) shape.inner = e->nest->lanes;
    shape.at = widen(e, item->arg[0], shape);
    put_code(e, CODE_STORE, shape);
    put_memory(e, v);
    put_access(e, v, v->at);
}

/* ---- Loops ---- */

static void put_set(struct encoder *e, struct place to, double value) {
    put_code(e, CODE_SET, to);
    put(e, to.reg);
    put_double(e, value);
}

static void encode_items(struct encoder *e, const struct block *b, int n);

/* Does the reduction run over the taps of a window only? */
static bool is_windowed(const struct nest *nest, const struct node *reduce) {
    for (int i = 0; i < reduce->n_vars; i++)
        if (!nest->var[reduce->var[i]].is_window) return false;
    return true;
}

/* Do all bounds of the reduction's loops change linearly with `var`? Only then are the active columns of a strip a range. */
static bool has_linear_bounds(const struct nest *nest, const struct block *outer, int var) {
    for (const struct block *b = outer; b; b = nest_inner_loop(b))
        for (int i = 0; i < b->n_clips; i++)
            if (!is_linear(nest, b->clip[i]->x, var)) return false;
    return true;
}

/* Does the loop run in strips? */
static bool is_strip(const struct encoder *e, const struct block *b) {
    if (e->strip >= 0 || b->is_guard || b->scans.n) return false;
    if (b->is_lanes) return true;
    for (int i = 0; i < b->items.n; i++) {
        const struct item *item = &b->items.at[i];
        if (item->kind == ITEM_LOOP) return false;
        if (item->kind != ITEM_REDUCE) continue;
        if (!is_windowed(e->nest, item->node)) return false;
        if (!has_linear_bounds(e->nest, item->block, b->var)) return false;
    }
    return true;
}

/* The number of columns of a strip. If the grid runs over lanes, scratch has room for one vector per value, so a strip that uses
 * it must not be longer. */
static int64_t strip_columns(const struct encoder *e, const struct block *b) {
    if (b->is_row && e->nest->grid_lane && e->nest->scratch_size) return e->nest->lanes;
    return e->nest->lane_var >= 0 ? CODE_STRIP / e->nest->lanes : CODE_STRIP;
}

/* Returns the position of the word with the loop's length, which end_loop writes. */
static int begin_loop(struct encoder *e, const struct block *b, bool strip) {
    put(e, CODE_LOOP);
    put(e, b->var);
    put(e, b->is_row);
    put_size(e, e->nest->var[b->var].extent);
    put(e, 0);
    int length = e->words.n - 1;
    put(e, strip ? strip_columns(e, b) : 0);
    if (strip) e->strip = b->var;
    put_ranges(e, b->clip, b->n_clips);
    return length;
}

static void end_loop(struct encoder *e, int length, bool strip) {
    if (strip) e->strip = -1;
    put(e, CODE_END);
    e->words.at[length] = e->words.n - length - 1;
}

static void encode_loop(struct encoder *e, const struct block *b) {
    bool strip = is_strip(e, b);
    for (int i = 0; i < b->scans.n; i++) {
        const struct node *n = b->scans.at[i];
        set_place(e, n, make_place(e, n->reg, n->deps));
        put_set(e, e->places.at[n->id], combines[n->combine].neutral);
    }
    int length = begin_loop(e, b, strip);
    encode_items(e, b, b->items.n);
    end_loop(e, length, strip);
}

/* ---- Reductions ---- */

/* The loops of a reduction, from outer to inner, with the instructions that were hoisted between them. */
static void encode_loops(struct encoder *e, const struct block *b, struct place sum) {
    bool strip = e->strip < 0 && b->reduce;
    int length = begin_loop(e, b, strip);
    if (b->reduce) {
        encode_items(e, b, b->items.n);
        int64_t from[3] = {sum.at, widen(e, b->operand, sum)};
        put_arith(e, combines[b->reduce->combine].primitive, sum.reg, sum, from);
    } else {
        encode_items(e, b, b->items.n - 1);
        encode_loops(e, nest_inner_loop(b), sum);
    }
    end_loop(e, length, strip);
}

/* A reduction whose own loop runs in strips combines each column separately; the columns are folded at the end. */
static void encode_reduce(struct encoder *e, const struct item *item) {
    const struct node *n = item->node;
    struct place to = make_place(e, n->reg, n->deps), sum = to;
    bool strip = e->strip < 0;
    set_place(e, n, to);
    put_set(e, to, reduce_neutral(n));
    if (strip) {
        sum = take_register(e, n->reg, true, to.inner);
        put_set(e, sum, reduce_neutral(n));
    }
    encode_loops(e, item->block, sum);
    if (!strip) return;
    put(e, CODE_FOLD);
    put(e, combines[n->combine].primitive);
    put(e, n->reg);
    put(e, to.inner);
    put(e, to.at);
    put(e, sum.at);
    put(e, CODE_STRIP / (e->nest->lane_var >= 0 ? e->nest->lanes : 1));
}

/* The first n items of the block. */
static void encode_items(struct encoder *e, const struct block *b, int n) {
    for (int i = 0; i < n; i++) {
        const struct item *item = &b->items.at[i];
        switch (item->kind) {
        case ITEM_NODE: encode_node(e, item); break;
        case ITEM_REDUCE: encode_reduce(e, item); break;
        case ITEM_STORE: encode_store(e, item); break;
        case ITEM_LOOP: encode_loop(e, item->block); break;
        }
    }
}

/* ---- The head ---- */

/* A table of all variables, and behind it the sums of quotients and remainders, whose lengths differ. */
static void encode_vars(struct encoder *e) {
    struct nest *nest = e->nest;
    e->words.at[HEAD_VARS] = e->words.n;
    put(e, nest->n_vars);
    int table = e->words.n;
    for (int i = 0; i < nest->n_vars; i++) {
        put(e, nest->var[i].kind);
        put(e, 0);
        put_size(e, nest->var[i].of ? nest->var[i].divisor : size_const(1));
    }
    for (int i = 0; i < nest->n_vars; i++) {
        if (!nest->var[i].of) continue;
        e->words.at[table + 4 * i + 1] = e->words.n;
        put_sum(e, nest->var[i].of);
    }
}

static void encode_grid(struct encoder *e) {
    struct nest *nest = e->nest;
    e->words.at[HEAD_GRID] = e->words.n;
    put(e, nest->grid.n);
    for (int i = 0; i < nest->grid.n; i++) {
        put(e, nest->grid.at[i]);
        put_size(e, nest->var[nest->grid.at[i]].extent);
    }
    put_size(e, nest->chunks);
    put_size(e, nest->chunk);
}

static void encode_constants(struct encoder *e) {
    e->words.at[HEAD_CONSTANTS] = e->words.n;
    put(e, e->constants.n);
    for (int i = 0; i < e->constants.n; i++) {
        put(e, e->places.at[e->constants.at[i]->id].at);
        put(e, e->constants.at[i]->reg);
        put_double(e, e->constants.at[i]->value);
    }
}

static void encode_margins(struct encoder *e) {
    const struct nest *nest = e->nest;
    int64_t count = 0;
    e->words.at[HEAD_MARGINS] = e->words.n;
    for (int i = 0; i < nest->values.n; i++) count += value_has_margins(&nest->values.at[i]);
    put(e, count);
    for (int i = 0; i < nest->values.n; i++) {
        const struct value *v = &nest->values.at[i];
        if (!value_has_margins(v)) continue;
        struct size at, n;
        nest_place(nest, v, &at, &n);
        put(e, reg_of(v->tensor->dtype));
        put(e, size_value(at));
        put_double(e, v->margins.fill);
        put(e, size_value(n));
    }
}

void nest_encode(struct nest *nest, const void **code, size_t *size) {
    struct encoder e = {.nest = nest, .strip = -1};
    for (int i = 0; i < HEAD_WORDS; i++) put(&e, 0);
    e.words.at[HEAD_LANE_VAR] = nest->lane_var;
    e.words.at[HEAD_TILE] = round_up(nest->scratch_size, 16);
    encode_vars(&e);
    encode_grid(&e);
    encode_margins(&e);
    e.words.at[HEAD_BODY] = e.words.n;
    encode_items(&e, nest->body, nest->body->items.n);
    put(&e, CODE_END);
    encode_constants(&e);
    nest->scratch_size = e.words.at[HEAD_TILE] + e.registers;
    *code = e.words.at;
    *size = sizeof *e.words.at * (size_t)e.words.n;
}
