/*
 * The dialect of GNU vectors: a loop over lanes is printed for whole vectors, and for the rest.
 *
 *   emit.c -> print_vectors: for (; i2 + LANES <= row_end; i2 += LANES) { .. } if (i2 < row_end) { the same for n lanes }
 *          -> begin_reduce, end_reduce: v7_lanes[CHAINS], whose vectors are combined at the end of a reduction over lanes
 *
 * LANES is defined by the compiler's flags, as 4, 8 or 16.
 */
#include "dfp/dialect.h"
#include "dfp/print.h"

/* The partial version: the n < LANES iterations behind the last whole vector. */
static void print_rest(struct printer *p, const struct block *b, int n_known) {
    print_line(p, "if (i%d < ", b->var);
    print_end(p, b);
    text_add(p->text, ") {\n");
    print_line(p, "    const int n = (int)(");
    print_end(p, b);
    text_add(p->text, " - i%d);\n", b->var);
    p->partial = true;
    print_versions(p, b, n_known, "n");
    p->partial = false;
}

/* A reduction over lanes combines CHAINS vectors in turns: one alone would wait for the end of each addition before the next. */
static void print_unrolled(struct printer *p, const struct block *b) {
    print_line(p, "for (; i%d + CHAINS * LANES <= ", b->var);
    print_end(p, b);
    text_add(p->text, ";) {\n");
    print_line(p, "    UNROLL for (int u = 0; u < CHAINS; u++, i%d += LANES) {\n", b->var);
    p->indent++;
    p->unrolled = true;
    print_body(p, b);
    p->unrolled = false;
    p->indent--;
    print_line(p, "}\n");
}

/* ---- Rows of reductions ---- */

/* Do the loops of a reduction contain nothing but loads and arithmetic of the innermost one that differ between lanes? */
static bool is_simple_reduction(const struct printer *p, const struct block *b) {
    for (int i = 0; i < b->items.n; i++) {
        const struct item *item = &b->items.at[i];
        const bool is_node = item->kind == ITEM_NODE;
        if (!is_node && (b->reduce || item->kind != ITEM_LOOP)) return false;
        if (is_node && !b->reduce && nest_is_vector(p->nest, item->node->deps, p->lane))
            return false;
        if (item->kind == ITEM_LOOP && !is_simple_reduction(p, item->block)) return false;
    }
    return !b->is_guard;
}

/* The reduction of a row whose body computes it, then at most nodes and stores of outputs; -1: the row is another one. */
static int find_wide(const struct printer *p, const struct block *b) {
    int at = -1;
    if (!b->is_row || p->nest->tile || b->scans.n) return -1;
    for (int i = 0; i < b->items.n; i++) {
        const struct item *item = &b->items.at[i];
        const bool is_vector =
            item->kind == ITEM_NODE && nest_is_vector(p->nest, item->node->deps, p->lane);
        if (item->kind == ITEM_LOOP || (is_vector && at < 0)) return -1;
        if (item->kind == ITEM_STORE && (at < 0 || !item->value->is_output)) return -1;
        if (item->kind != ITEM_REDUCE) continue;
        if (at >= 0 || !nest_is_vector(p->nest, item->node->deps, p->lane)) return -1;
        if (!is_simple_reduction(p, item->block)) return -1;
        at = i;
    }
    return at;
}

/*
 * WIDE vectors of a row at once, if each is a reduction: its values are far apart in memory, as of a sum over rows, so whole lines and
 * their neighbors are read together, and no sum waits for the one before. The order of each sum stays the same.
 */
static void print_wide(struct printer *p, const struct block *b) {
    const int at = find_wide(p, b);
    if (at < 0) return;
    const struct node *n = b->items.at[at].node;
    print_line(p, "for (; i%d + WIDE * LANES <= row_end; i%d += WIDE * LANES) {\n", b->var, b->var);
    p->indent++;
    for (int i = 0; i < at; i++) print_item(p, &b->items.at[i]);
    print_line(p, "%s v%d_wide[WIDE];\n", print_type(n->reg, true), n->id);
    print_line(p, "UNROLL for (int u = 0; u < WIDE; u++) v%d_wide[u] = ", n->id);
    print_number(p, n->reg, reduce_neutral(n), true);
    text_add(p->text, ";\n");
    p->is_wide = true;
    print_loops(p, b->items.at[at].block);
    p->is_wide = false;
    print_wide_begin(p);
    print_line(p, "const %s v%d = v%d_wide[u];\n", print_type(n->reg, true), n->id, n->id);
    for (int i = at + 1; i < b->items.n; i++) print_item(p, &b->items.at[i]);
    print_wide_end(p);
    p->indent--;
    print_line(p, "}\n");
}

/* ---- The dialect ---- */

static void print_vectors(struct printer *p, const struct block *b, int n_known) {
    if (!n_known) print_wide(p, b);
    if (b->reduce) print_unrolled(p, b);
    print_lane_steps(p, b, n_known);
    print_rest(p, b, n_known);
}

/* vec v7_lanes[CHAINS] = 0; */
static void begin_reduce(struct printer *p, const struct node *n) {
    print_line(p, "%s v%d_lanes[CHAINS];\n", print_type(n->reg, true), n->id);
    print_line(p, "UNROLL for (int u = 0; u < CHAINS; u++) v%d_lanes[u] = ", n->id);
    print_number(p, n->reg, reduce_neutral(n), true);
    text_add(p->text, ";\n");
}

/* v7_lanes[0] = ADD(v7_lanes[0], v7_lanes[u]) for each other vector of the reduction. */
static void print_join(struct printer *p, const struct node *n) {
    const char *name = combines[n->combine].name, *suffix = reg_suffix(n->reg);
    print_line(
        p,
        "UNROLL for (int u = 1; u < CHAINS; u++) v%d_lanes[0] = %s%s(v%d_lanes[0], v%d_lanes[u]);\n",
        n->id, name, suffix, n->id, n->id);
}

/* v7 = ADD1(v7, ADD_lanes(v7_lanes[0])); */
static void end_reduce(struct printer *p, const struct node *n) {
    const char *name = combines[n->combine].name, *suffix = reg_suffix(n->reg);
    print_join(p, n);
    print_line(p, "v%d = %s1%s(v%d, %s_lanes%s(v%d_lanes[0]));\n", n->id, name, suffix, n->id, name,
               suffix, n->id);
}

const struct dfp_dialect dfp_gnu = {.name = "gnu",
                                    .has_vectors = true,
                                    .prelude = {dfp_prelude},
                                    .independent = "",
                                    .print_lanes = print_vectors,
                                    .begin_reduce = begin_reduce,
                                    .end_reduce = end_reduce};
