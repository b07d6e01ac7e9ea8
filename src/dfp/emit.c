/*
 * C text: prints the blocks of a nest as one function of C99.
 *
 *   nest->body  ->  [this file], print.c, the dialect  ->  text of SOL_KERNEL; sizes go to nest->args
 *
 * A loop with windows in its body is printed twice: for windows inside the image, and for windows that may extend beyond its edge
 * (inner.c). How loops over lanes are printed, the dialect says. dfp_gnu (dialect_gnu.c) prints them for whole vectors, and
 * for the rest.
 *
 * relu(x) + 1 on dense memory becomes in it, without the declarations:
 *
 *     void SOL_KERNEL(void *const *ptr, const int64_t *arg, ..., int64_t begin, int64_t end) {
 *         while (begin < end) {
 *             const int64_t first = begin % a0;                            tasks -> row, row_end
 *             ...
 *             int64_t i2 = row;
 *             for (; i2 + LANES <= row_end; i2 += LANES) {
 *                 const vec v0 = load(p0 + i2);
 *                 const vec v2 = MAX(v0, splat(0.0f));
 *                 const vec v4 = v2 + 1.0f;
 *                 store(p1 + i2, v4);
 *             }
 *             if (i2 < row_end) { the same with load_part, store_part }
 *         }
 *     }
 *
 * Invariant: equal structures give equal text, byte by byte. So the only numbers in the text are small
 * constants of the layers (window sizes, strides). Anything that depends on shapes is an argument: a<i> is
 * arg[i].
 */
#include "dfp/print.h"

#include <inttypes.h>

/* ---- Loops ---- */

static void print_items(struct printer *p, const struct block *b);

/* v = ADD(v, x) at the end of a reduction's innermost body. A reduction with lanes of its own combines into a vector of
 * v_lanes; the partial version changes only the n lanes that have an element. */
static void print_combine(struct printer *p, const struct block *b) {
    const struct node *n = b->reduce;
    const struct combine_info *combine = &combines[n->combine];
    bool has_lanes = b->is_lanes && p->dialect->begin_reduce;
    const char *one = p->is_wide ? "_wide[u]" : "", *lanes = !has_lanes    ? one
                                                             : p->unrolled ? "_lanes[u]"
                                                                           : "_lanes[0]";
    bool vector = b->is_lanes || print_is_vector(p, n->deps);
    print_line(p, "v%d%s = %s%s%s(v%d%s, ", n->id, lanes, combine->name,
               print_one(p, n->reg, vector), reg_suffix(n->reg), n->id, lanes);
    print_need_types(p, n->combine == COMBINE_MUL);
    bool keep = b->is_lanes && p->partial;
    if (keep) text_add(p->text, "keep_part%s(", reg_suffix(n->reg));
    print_operand(p, b->operand, vector);
    if (keep) {
        text_add(p->text, ", n, ");
        print_number(p, n->reg, reduce_neutral(n), false);
        text_add(p->text, ")");
    }
    text_add(p->text, ");\n");
}

/* { const int64_t i0_wide = i0 + u * LANES, i0 = i0_wide; for vector u of a wide loop over p->lane. */
void print_wide_begin(struct printer *p) {
    print_line(p, "UNROLL for (int u = 0; u < WIDE; u++) {\n");
    p->indent++;
    print_line(p, "const int64_t i%d_wide = i%d + u * LANES;\n", p->lane, p->lane);
    print_line(p, "{\n");
    p->indent++;
    print_line(p, "const int64_t i%d = i%d_wide;\n", p->lane, p->lane);
}

void print_wide_end(struct printer *p) {
    p->indent--;
    print_line(p, "}\n");
    p->indent--;
    print_line(p, "}\n");
}

void print_body(struct printer *p, const struct block *b) {
    const bool is_wide = p->is_wide && b->reduce;
    p->indent++;
    if (is_wide) print_wide_begin(p);
    print_items(p, b);
    if (b->reduce) print_combine(p, b);
    if (is_wide) print_wide_end(p);
    p->indent--;
    print_line(p, "}\n");
}

/* Is the loop limited to the iterations in which its conditions hold? */
static bool is_clipped(const struct printer *p, const struct block *b) {
    for (int i = 0; i < b->n_clips; i++)
        if (!print_is_known(p, b->clip[i])) return true;
    return false;
}

void print_end(struct printer *p, const struct block *b) {
    const struct var *v = &p->nest->var[b->var];
    if (b->is_row) text_add(p->text, "row_end");
    else if (is_clipped(p, b)) text_add(p->text, "i%d_end", b->var);
    else print_size(p, &v->extent, v->is_window);
}

/* The first iteration: the start of the tasks' row, the first tap inside the image, or 0. */
static void print_begin(struct printer *p, const struct block *b) {
    if (b->is_row) text_add(p->text, "row");
    else if (is_clipped(p, b)) text_add(p->text, "i%d_begin", b->var);
    else text_add(p->text, "0");
}

void print_versions(struct printer *p, const struct block *b, int n_known, const char *width) {
    if (!n_known) {
        print_body(p, b);
        return;
    }
    p->indent++;
    print_line(p, "if (i%d >= i%d_inner && i%d + %s <= i%d_outer) {\n", b->var, b->var, b->var,
               width, b->var);
    print_body(p, b);
    print_line(p, "else {\n");
    const int all = p->known.n;
    p->known.n -= n_known;
    p->is_edge = true;
    print_body(p, b);
    p->is_edge = false;
    p->known.n = all;
    p->indent--;
    print_line(p, "}\n");
}

/* Declares the bounds of the loop's inner iterations, in which `n` conditions hold. */
static void declare_inner(struct printer *p, const struct block *b, int n) {
    if (!n) return;
    print_line(p, "int64_t i%d_inner = 0, i%d_outer = ", b->var, b->var);
    print_end(p, b);
    text_add(p->text, ";\n");
    print_inner_bounds(p, b, n);
}

/* vec v7_sum = 0 in front of the loop over a scan's values: their sum so far. If the loop runs over lanes, it is one value. */
static void print_sums(struct printer *p, const struct block *b) {
    for (int i = 0; i < b->scans.n; i++) {
        const struct node *n = b->scans.at[i];
        bool vector = print_is_vector(p, n->deps);
        print_line(p, "%s v%d_sum = ", print_type(n->reg, vector), n->id);
        print_number(p, n->reg, combines[n->combine].neutral, vector);
        text_add(p->text, ";\n");
    }
}

/* Does no iteration read or write what another one writes? The body computes values and stores each at a place of its own: not so a value
 * in scratch that has one place for all iterations. What it reads is in inputs, or was stored by an earlier loop, or by this iteration. */
static bool is_independent(const struct printer *p, const struct block *b) {
    bool stores = false;
    for (int i = 0; i < b->items.n; i++) {
        const struct item *item = &b->items.at[i];
        if (item->kind == ITEM_NODE) continue;
        if (item->kind != ITEM_STORE) return false;
        if (!(affine_deps(p->nest, item->value->at) & var_bit(b->var))) return false;
        stores = true;
    }
    return stores && !b->reduce && !b->scans.n;
}

const char *print_hint(const struct printer *p, const struct block *b) {
    return is_independent(p, b) ? p->dialect->independent : "";
}

void print_lane_steps(struct printer *p, const struct block *b, int n_known) {
    print_line(p, "%sfor (; i%d + LANES <= ", print_hint(p, b), b->var);
    print_end(p, b);
    text_add(p->text, "; i%d += LANES) {\n", b->var);
    print_versions(p, b, n_known, "LANES");
}

static void print_lanes_loop(struct printer *p, const struct block *b) {
    int lane = p->lane, n_known = print_find_known(p, b);
    declare_inner(p, b, n_known);
    print_sums(p, b);
    p->lane = b->var;
    print_line(p, "int64_t i%d = %s;\n", b->var, b->is_row ? "row" : "0");
    p->dialect->print_lanes(p, b, n_known);
    p->lane = lane;
    p->known.n -= n_known;
}

static void print_guard(struct printer *p, const struct block *b) {
    print_line(p, "if (");
    print_conditions(p, b->clip, b->n_clips, false);
    text_add(p->text, ") {\n");
    print_body(p, b);
}

/* Marks the nodes that the item reads, also inside of its loops. */
static void mark_operands(const struct item *item, int stamp) {
    for (int i = 0; i < 3 && item->arg[i]; i++) item->arg[i]->mark = stamp;
    if (!item->block) return;
    if (item->block->operand) item->block->operand->mark = stamp;
    for (int i = 0; i < item->block->items.n; i++) mark_operands(&item->block->items.at[i], stamp);
}

/* Does the stage compute the item, or read it (it is marked)? Stages load most results of earlier reductions from scratch. One that
 * is part of a value without memory, as the sum in relu(sum(x)), is computed again. */
static bool belongs_to(const struct item *item, int stage, int stamp) {
    const bool has_result = item->kind == ITEM_NODE || item->kind == ITEM_REDUCE;
    return item->stage == stage || (has_result && item->node->mark == stamp);
}

/* One stage's loop for all iterations of a strip, with the values from in front of it that it needs. */
static void print_strip_stage(struct printer *p, const struct block *b, int stage) {
    const int stamp = ++p->nest->stamp;
    for (int i = b->items.n - 1; i >= 0; i--)
        if (belongs_to(&b->items.at[i], stage, stamp)) mark_operands(&b->items.at[i], stamp);
    print_line(p, "for (int64_t i%d = i%d_first; i%d < i%d_last; i%d++) {\n", b->var, b->var,
               b->var, b->var, b->var);
    p->indent++;
    for (int i = 0; i < b->items.n; i++)
        if (belongs_to(&b->items.at[i], stage, stamp)) print_item(p, &b->items.at[i]);
    p->indent--;
    print_line(p, "}\n");
}

/* for (i1_first = row; i1_first < row_end; i1_first += strip) { for (i1 ..) first stage; for (i1 ..) second stage; } */
static void print_strips(struct printer *p, const struct block *b) {
    const int var = b->var, strip = nest_arg(p->nest, &p->nest->strip);
    print_line(p, "for (int64_t i%d_first = row; i%d_first < row_end; i%d_first += a%d) {\n", var,
               var, var, strip);
    p->indent++;
    print_line(p, "const int64_t i%d_last = min_int(i%d_first + a%d, row_end);\n", var, var, strip);
    for (int i = 0; i < p->nest->n_stages; i++) print_strip_stage(p, b, i);
    p->indent--;
    print_line(p, "}\n");
}

/* What is declared in front of the loop has a scope of its own, as another stage may have the same loop. */
static void print_single_loop(struct printer *p, const struct block *b) {
    const int n_known = print_find_known(p, b);
    const bool declares = b->scans.n || n_known;
    if (declares) print_line(p, "{\n");
    declare_inner(p, b, n_known);
    print_sums(p, b);
    print_line(p, "%sfor (int64_t i%d = ", print_hint(p, b), b->var);
    print_begin(p, b);
    text_add(p->text, "; i%d < ", b->var);
    print_end(p, b);
    text_add(p->text, "; i%d++) {\n", b->var);
    print_versions(p, b, n_known, "1");
    if (declares) print_line(p, "}\n");
    p->known.n -= n_known;
}

static void print_loop(struct printer *p, const struct block *b) {
    if (b->is_guard) {
        print_guard(p, b);
        return;
    }
    if (b->is_row && !size_is(p->nest->strip, 0)) {
        print_strips(p, b);
        return;
    }
    if (!b->is_lanes) {
        print_single_loop(p, b);
        return;
    }
    print_line(p, "{\n");
    p->indent++;
    print_lanes_loop(p, b);
    p->indent--;
    print_line(p, "}\n");
}

/* ---- Reductions ---- */

static void print_clips(struct printer *p, const struct block *b) {
    const struct var *v = &p->nest->var[b->var];
    const char *begin = arena_printf(p->nest->arena, "i%d_begin", b->var);
    const char *end = arena_printf(p->nest->arena, "i%d_end", b->var);
    print_line(p, "int64_t %s = 0, %s = ", begin, end);
    print_size(p, &v->extent, v->is_window);
    text_add(p->text, ";\n");
    for (int i = 0; i < b->n_clips; i++) {
        int64_t coef = size_value(affine_coef(b->clip[i]->x, b->var));
        print_bounds(p, b->clip[i], coef, b->var, begin, end);
    }
}

void print_loops(struct printer *p, const struct block *outer) {
    for (const struct block *b = outer; b; b = nest_inner_loop(b))
        if (is_clipped(p, b)) print_clips(p, b);
    print_loop(p, outer);
}

/* Does one of the reduction's loops run over lanes? */
static bool has_lanes(const struct block *outer) {
    for (const struct block *b = outer; b; b = nest_inner_loop(b))
        if (b->is_lanes) return true;
    return false;
}

/* float v7 = 0; loops; in between what the dialect needs if a loop runs over lanes. */
static void print_reduce(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    bool vector = print_is_vector(p, n->deps), lanes = has_lanes(item->block);
    print_line(p, "%s v%d = ", print_type(n->reg, vector), n->id);
    print_number(p, n->reg, reduce_neutral(n), vector);
    text_add(p->text, ";\n");
    if (lanes && p->dialect->begin_reduce) p->dialect->begin_reduce(p, n);
    print_loops(p, item->block);
    if (lanes && p->dialect->end_reduce) p->dialect->end_reduce(p, n);
}

void print_item(struct printer *p, const struct item *item) {
    switch (item->kind) {
    case ITEM_NODE: print_node(p, item); break;
    case ITEM_REDUCE: print_reduce(p, item); break;
    case ITEM_STORE: print_store(p, item); break;
    case ITEM_LOOP: print_loop(p, item->block); break;
    }
}

static void print_items(struct printer *p, const struct block *b) {
    for (int i = 0; i < b->items.n; i++) print_item(p, &b->items.at[i]);
}

/* ---- The function ---- */

/* The loop over tasks, and the decoding of a task's number: the chunk of the grid's last loop changes fastest, then the other loops, innermost first. */
static void print_tasks(struct printer *p) {
    struct nest *nest = p->nest;
    int n = nest->grid.n;
    print_line(p, "while (begin < end) {\n");
    p->indent++;
    print_line(p, "const int64_t first = begin %% a%d;\n", nest_arg(nest, &nest->chunks));
    print_line(p, "const int64_t run = min_int(end - begin, a%d - first);\n",
               nest_arg(nest, &nest->chunks));
    if (n > 1) print_line(p, "int64_t task = begin / a%d;\n", nest_arg(nest, &nest->chunks));
    for (int i = n - 2; i > 0; i--) {
        int extent = nest_arg(nest, &nest->var[nest->grid.at[i]].extent);
        print_line(p, "const int64_t i%d = task %% a%d;\n", nest->grid.at[i], extent);
        print_line(p, "task /= a%d;\n", extent);
    }
    if (n > 1) print_line(p, "const int64_t i%d = task;\n", nest->grid.at[0]);
    print_line(p, "begin += run;\n");
    if (!n) return;
    int chunk = nest_arg(nest, &nest->chunk);
    print_line(p, "const int64_t row = first * a%d;\n", chunk);
    print_line(p, "const int64_t row_end = min_int((first + run) * a%d, ", chunk);
    print_size(p, &nest->var[nest->grid.at[n - 1]].extent, false);
    text_add(p->text, ");\n");
}

static void print_head(struct printer *p) {
    struct nest *nest = p->nest;
    print_line(
        p, "void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, "
           "int64_t end) {\n");
    for (int i = 0; i < nest->values.n; i++) {
        const struct value *v = &nest->values.at[i];
        if (v->ptr < 0 || v->lender) continue;
        const char *constant = v->is_output ? "" : "const ";
        bool in_place = nest->tile && (v->is_output || v->tensor == nest->tile);
        const char *type = size_c_type(v->tensor->dtype);
        print_line(p, "    %s%s *%sp%d = (%s%s *)ptr[%d];\n", constant, type,
                   in_place ? "" : "restrict ", v->ptr, constant, type, v->ptr);
    }
    for (int i = 0; i < nest->args.n; i++)
        print_line(p, "    const int64_t a%d = arg[%d];\n", i, i);
    print_line(p, "    float *restrict tile = (float *)scratch;\n");
    print_line(p, "    (void)tile;\n");
}

/* for (int64_t i = 0; i < a3; i++) tile[a2 + i] = neutral; for each value with margins. The stages only write between the margins, so
 * once per call is enough. */
static void print_value_margins(struct printer *p, const struct value *v) {
    struct nest *nest = p->nest;
    struct size *place = ARENA_ARRAY(nest->arena, struct size, 2);
    const bool strip = !size_is(nest->strip, 0);
    nest_place(nest, v, &place[0], &place[1]);
    if (strip) print_line(p, "for (int64_t k = 0; k < a%d; k++)\n", nest_arg(nest, &nest->strip));
    print_line(p, "for (int64_t i = 0; i < a%d; i++) ", nest_arg(nest, &place[1]));
    print_pointer(p, v);
    text_add(p->text, "[a%d + i", nest_arg(nest, &place[0]));
    if (strip) text_add(p->text, " + k * a%d", nest_arg(nest, &v->scratch_step));
    text_add(p->text, "] = ");
    print_number(p, reg_of(v->tensor->dtype), v->margins.fill, false);
    text_add(p->text, ";\n");
}

static void print_margins(struct printer *p) {
    for (int i = 0; i < p->nest->values.n; i++)
        if (value_has_margins(&p->nest->values.at[i]))
            print_value_margins(p, &p->nest->values.at[i]);
}

/* Prints the body first, as this finds the arguments that the head declares. */
void nest_emit(struct nest *nest, struct text *text) {
    struct text body, margins;
    struct printer p = {.nest = nest, .text = &body, .lane = -1, .indent = 1};
    p.dialect = nest->caps->dialect;
    struct printer first = {.nest = nest, .text = &margins, .lane = -1, .indent = 1};
    text_init(&body, nest->arena);
    text_init(&margins, nest->arena);
    print_margins(&first);
    print_tasks(&p);
    print_items(&p, nest->body);
    if (nest->needs_types) text_add(text, DFP_NEEDS_TYPES);
    struct printer head = {.nest = nest, .text = text, .lane = -1};
    print_head(&head);
    text_add_raw(text, margins.at, margins.size);
    text_add_raw(text, body.at, body.size);
    print_line(&head, "    }\n}\n");
}
