/*
 * C text: prints the blocks of a nest as one function of C99 with GNU vectors.
 *
 *   nest->body  ->  [this file]  ->  text of SOL_KERNEL; sizes go to nest->args
 *
 * Values of a node are called v<id>: a `vec` where the node differs from lane to lane, else a float. A loop over lanes is
 * printed twice: for whole vectors, and for what is left, with accesses that touch no more than `n` elements.
 *
 * Invariant: equal structures give equal text, byte by byte. So numbers in the text are small constants of the layers
 * (window sizes, strides); all that depends on shapes is a<i>, the i-th argument.
 */
#include "dfp/nest.h"

#include <inttypes.h>

struct printer {
    struct nest *nest;
    struct text *text;
    int lane;     /* variable that runs over lanes here, -1: none */
    bool partial; /* in the version for n < LANES lanes */
    bool whole;   /* in the version for windows that lie inside the image */
    int indent;
};

static void line(struct printer *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void line(struct printer *p, const char *format, ...) {
    va_list args;
    text_add(p->text, "%*s", 4 * p->indent, "");
    va_start(args, format);
    text_add_args(p->text, format, args);
    va_end(args);
}

static void indent_line(struct printer *p) { text_add(p->text, "%*s", 4 * p->indent, ""); }

/* ---- Sizes and sums ---- */

int nest_arg(struct nest *nest, struct size size) {
    for (int i = 0; i < nest->args.n; i++)
        if (size_equal(nest->args.at[i], size)) return i;
    VEC_PUSH(nest->arena, &nest->args, size);
    return nest->args.n - 1;
}

/* Numbers that come from layers are part of the structure; sizes of tensors are not. */
static void print_size(struct printer *p, struct size size, bool is_number) {
    bool small = size_is_const(size) && (is_number || size_is(size, 0) || size_is(size, 1));
    if (small) text_add(p->text, "%" PRId64, size_value(size));
    else text_add(p->text, "a%d", nest_arg(p->nest, size));
}

static void print_sum(struct printer *p, const struct affine *a, bool in_lane, bool is_number,
                      int without);

/* A variable's value in lane `l`, or in the first lane. */
static void print_var(struct printer *p, int var, bool in_lane) {
    const struct var *v = &p->nest->var[var];
    if (var == p->nest->lane_var) {
        text_add(p->text, in_lane ? "l" : "0");
    } else if (v->of) {
        text_add(p->text, v->kind == VAR_DIV ? "div_floor(" : "mod_floor(");
        print_sum(p, v->of, in_lane, true, -1);
        text_add(p->text, ", ");
        print_size(p, v->divisor, false);
        text_add(p->text, ")");
    } else if (in_lane && var == p->lane) {
        text_add(p->text, "(i%d + l)", var);
    } else {
        text_add(p->text, "i%d", var);
    }
}

/* The sum of all terms but that of variable `without`. */
static void print_sum(struct printer *p, const struct affine *a, bool in_lane, bool is_number,
                      int without) {
    const char *plus = "";
    for (int i = 0; i < a->n; i++) {
        int var = a->term[i].var;
        if (var == without || (var == p->nest->lane_var && !in_lane)) continue;
        text_add(p->text, "%s", plus);
        plus = " + ";
        print_var(p, var, in_lane);
        if (size_is(a->term[i].coef, 1)) continue;
        text_add(p->text, " * ");
        print_size(p, a->term[i].coef, is_number);
    }
    if (!*plus || !size_is(a->base, 0)) {
        text_add(p->text, "%s", plus);
        print_size(p, a->base, is_number);
    }
}

/* ---- Conditions ---- */

#define FAR ((int64_t)1 << 40) /* bounds beyond are no bounds */

static bool is_bound(struct size size) {
    return !size_is_const(size) || (size_value(size) > -FAR && size_value(size) < FAR);
}

static void print_condition(struct printer *p, const struct range *r, bool in_lane) {
    const char *and = "";
    if (is_bound(r->low)) {
        print_sum(p, r->x, in_lane, true, -1);
        text_add(p->text, " >= ");
        print_size(p, r->low, true);
        and = " && ";
    }
    if (is_bound(r->high)) {
        text_add(p->text, "%s", and);
        print_sum(p, r->x, in_lane, true, -1);
        text_add(p->text, " < ");
        print_size(p, r->high, false);
    } else if (!*and) {
        text_add(p->text, "1");
    }
}

static void print_conditions(struct printer *p, const struct range *const *r, int n, bool in_lane) {
    for (int i = 0; i < n; i++) {
        if (i) text_add(p->text, " && ");
        print_condition(p, r[i], in_lane);
    }
}

static bool is_vector(const struct printer *p, uint64_t deps) {
    return nest_is_vector(p->nest, deps, p->lane);
}

static bool ranges_are_vector(const struct printer *p, const struct item *item) {
    for (int i = 0; i < item->n_ranges; i++)
        if (is_vector(p, affine_deps(p->nest, item->range[i]->x))) return true;
    return false;
}

static const char *count_text(const struct printer *p) { return p->partial ? "n" : "LANES"; }

/* ---- Operands ---- */

static void print_name(struct printer *p, const struct node *n) {
    if (n->op == EXPR_CONST) text_add_c_float(p->text, n->value);
    else text_add(p->text, "v%d", n->id);
}

/* As a vector where one is wanted. */
static void print_operand(struct printer *p, const struct node *n, bool as_vector) {
    bool widen = as_vector && !is_vector(p, n->deps);
    if (widen) text_add(p->text, "splat(");
    print_name(p, n);
    if (widen) text_add(p->text, ")");
}

static void print_declaration(struct printer *p, const struct node *n) {
    line(p, "const %s v%d = ", is_vector(p, n->deps) ? "vec" : "float", n->id);
}

/* ---- Loads ---- */

static void print_pointer(struct printer *p, const struct value *v) {
    if (nest_in_scratch(v)) text_add(p->text, "tile");
    else text_add(p->text, "p%d", v->ptr);
}

/* The variable that makes an access differ between lanes: the lane's, or that of the position in a block. */
static int lane_of(const struct printer *p, uint64_t deps) {
    if (p->nest->lane_var >= 0 && (deps & var_bit(p->nest->lane_var))) return p->nest->lane_var;
    return p->lane;
}

/* The distance from lane to lane; false when it is not the same everywhere. */
static bool find_step(const struct printer *p, const struct affine *offset, int lane,
                      struct size *step) {
    *step = affine_coef(offset, lane);
    for (int i = 0; i < offset->n; i++) {
        int var = offset->term[i].var;
        if (var != lane && (p->nest->var[var].deps & var_bit(lane))) return false;
    }
    return true;
}

static void print_address(struct printer *p, const struct value *v, const struct affine *offset) {
    print_pointer(p, v);
    text_add(p->text, " + ");
    /* Scratch of a vector of grid points has no term in the lane: it holds just these. */
    print_sum(p, offset, false, false, -1);
}

/* A vector whose lanes lie `step` apart. */
static void print_vector_load(struct printer *p, const struct value *v, const struct affine *offset,
                              struct size step) {
    bool dense = size_is(step, 1);
    text_add(p->text, dense ? "load%s(" : "gather%s(", p->partial ? "_part" : "");
    print_address(p, v, offset);
    if (!dense) {
        text_add(p->text, ", ");
        print_size(p, step, false);
    }
    text_add(p->text, p->partial ? ", n)" : ")");
}

/* Lane by lane: for whatever has no simpler form. */
static void print_lane_loads(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    line(p, "vec v%d = splat(", n->id);
    text_add_c_float(p->text, n->fill);
    text_add(p->text, ");\n");
    line(p, "for (int l = 0; l < %s; l++)\n", count_text(p));
    p->indent++;
    if (item->n_ranges) {
        line(p, "if (");
        print_conditions(p, item->range, item->n_ranges, true);
        text_add(p->text, ")\n");
        p->indent++;
    }
    line(p, "v%d[l] = ", n->id);
    print_pointer(p, n->from);
    text_add(p->text, "[");
    print_sum(p, n->offset, true, false, -1);
    text_add(p->text, "];\n");
    p->indent -= 1 + (item->n_ranges > 0);
}

/* Conditions that change with the lane and are linear in it: inside the image, where most vectors lie, one test of the
 * first and the last lane is all. */
static bool is_monotone(struct printer *p, const struct item *item, int lane) {
    struct size step;
    for (int i = 0; i < item->n_ranges; i++) {
        struct size coef = affine_coef(item->range[i]->x, lane);
        bool grows = size_is_const(coef) && size_value(coef) >= 0;
        if (!grows || !find_step(p, item->range[i]->x, lane, &step)) return false;
    }
    return true;
}

static void print_edge_test(struct printer *p, const struct item *item, int lane) {
    for (int i = 0; i < item->n_ranges; i++) {
        const struct range *r = item->range[i];
        struct size coef = affine_coef(r->x, lane);
        text_add(p->text, "%s", i ? " && " : "");
        print_condition(p, r, false);
        if (size_is(coef, 0) || !is_bound(r->high)) continue;
        text_add(p->text, " && ");
        print_sum(p, r->x, false, true, -1);
        text_add(p->text, " + (%s - 1) * %" PRId64 " < ", count_text(p), size_value(coef));
        print_size(p, r->high, false);
    }
}

static void print_edge_load(struct printer *p, const struct item *item, int lane,
                            struct size step) {
    const struct node *n = item->node;
    line(p, "vec v%d;\n", n->id);
    line(p, "if (");
    print_edge_test(p, item, lane);
    text_add(p->text, ") {\n");
    p->indent++;
    line(p, "v%d = ", n->id);
    print_vector_load(p, n->from, n->offset, step);
    text_add(p->text, ";\n");
    p->indent--;
    line(p, "} else {\n");
    p->indent++;
    line(p, "v%d = splat(", n->id);
    text_add_c_float(p->text, n->fill);
    text_add(p->text, ");\n");
    line(p, "for (int l = 0; l < %s; l++)\n", count_text(p));
    line(p, "    if (");
    print_conditions(p, item->range, item->n_ranges, true);
    text_add(p->text, ") v%d[l] = ", n->id);
    print_pointer(p, n->from);
    text_add(p->text, "[");
    print_sum(p, n->offset, true, false, -1);
    text_add(p->text, "];\n");
    p->indent--;
    line(p, "}\n");
}

static void print_guarded_load(struct printer *p, const struct item *item, bool vector,
                               struct size step) {
    const struct node *n = item->node;
    line(p, "%s v%d = ", vector ? "vec" : "float", n->id);
    text_add(p->text, vector ? "splat(" : "");
    text_add_c_float(p->text, n->fill);
    text_add(p->text, vector ? ");\n" : ";\n");
    line(p, "if (");
    print_conditions(p, item->range, item->n_ranges, false);
    text_add(p->text, ") v%d = ", n->id);
    if (vector) {
        print_vector_load(p, n->from, n->offset, step);
    } else {
        text_add(p->text, "(");
        print_address(p, n->from, n->offset);
        text_add(p->text, ")[0]");
    }
    text_add(p->text, ";\n");
}

static bool is_grid_tile(const struct printer *p, const struct value *v) {
    return nest_in_scratch(v) && p->nest->grid_lane;
}

static void print_vector_item(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    struct size step = size_const(1);
    int lane = lane_of(p, n->deps);
    bool even = is_grid_tile(p, n->from) || find_step(p, n->offset, lane, &step);
    if (!even || (ranges_are_vector(p, item) && !is_monotone(p, item, lane))) {
        print_lane_loads(p, item);
    } else if (ranges_are_vector(p, item)) {
        print_edge_load(p, item, lane, step);
    } else if (item->n_ranges) {
        print_guarded_load(p, item, true, step);
    } else {
        print_declaration(p, n);
        if (size_is(step, 0)) {
            text_add(p->text, "splat((");
            print_address(p, n->from, n->offset);
            text_add(p->text, ")[0])");
        } else {
            print_vector_load(p, n->from, n->offset, step);
        }
        text_add(p->text, ";\n");
    }
}

static void print_load(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    if (is_vector(p, n->deps)) {
        print_vector_item(p, item);
    } else if (item->n_ranges) {
        print_guarded_load(p, item, false, size_const(0));
    } else {
        print_declaration(p, n);
        print_pointer(p, n->from);
        text_add(p->text, "[");
        print_sum(p, n->offset, false, false, -1);
        text_add(p->text, "];\n");
    }
}

/* ---- Arithmetic ---- */

static const char *const names[] = {
#define EXPR_NAME(name, n) [EXPR_##name] = #name,
    EXPR_LIST(EXPR_NAME)
#undef EXPR_NAME
};

static const char *infix(int op) {
    switch (op) {
    case EXPR_ADD: return " + ";
    case EXPR_SUB: return " - ";
    case EXPR_MUL: return " * ";
    case EXPR_DIV: return " / ";
    default: return NULL;
    }
}

static void print_range(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    if (!is_vector(p, n->deps)) {
        print_declaration(p, n);
        text_add(p->text, "(");
        print_conditions(p, item->range, item->n_ranges, false);
        text_add(p->text, ") ? 1.0f : 0.0f;\n");
        return;
    }
    line(p, "vec v%d;\n", n->id);
    line(p, "for (int l = 0; l < LANES; l++) v%d[l] = (", n->id);
    print_conditions(p, item->range, item->n_ranges, true);
    text_add(p->text, ") ? 1.0f : 0.0f;\n");
}

/* How many lanes of a block hold channels: all, but for the last block of each padded segment. */
static void print_valid(struct printer *p, const struct item *item) {
    const struct layout *layout = p->nest->layout;
    int end = 0;
    line(p, "const vec v%d = valid_lanes(", item->node->id);
    for (int i = 0; i < layout->n_segments; i++) {
        const struct segment *s = &layout->segment[i];
        end += s->stored / p->nest->lanes;
        if (s->valid == s->stored) continue;
        text_add(p->text, "i%d == a%d ? a%d : ", p->nest->block_var,
                 nest_arg(p->nest, size_const(end - 1)),
                 nest_arg(p->nest, size_const(s->valid + p->nest->lanes - s->stored)));
    }
    text_add(p->text, "LANES);\n");
}

static void print_call(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    bool vector = is_vector(p, n->deps);
    const char *separator = "(";
    text_add(p->text, "%s%s", names[n->op], vector ? "" : "1");
    for (int i = 0; i < 3 && item->arg[i]; i++) {
        text_add(p->text, "%s", separator);
        print_operand(p, item->arg[i], vector);
        separator = ", ";
    }
    text_add(p->text, ");\n");
}

static void print_arithmetic(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    print_declaration(p, n);
    if (!infix(n->op)) {
        print_call(p, item);
        return;
    }
    print_operand(p, item->arg[0], false);
    text_add(p->text, "%s", infix(n->op));
    print_operand(p, item->arg[1], false);
    text_add(p->text, ";\n");
}

static void print_node(struct printer *p, const struct item *item) {
    switch (item->node->op) {
    case EXPR_LOAD: print_load(p, item); break;
    case EXPR_RANGE: print_range(p, item); break;
    case NODE_VALID: print_valid(p, item); break;
    default: print_arithmetic(p, item);
    }
}

/* ---- Stores ---- */

static void print_store(struct printer *p, const struct item *item) {
    const struct value *v = item->value;
    uint64_t deps = affine_deps(p->nest, v->at);
    struct size step = size_const(1);
    bool vector = is_vector(p, deps) || is_grid_tile(p, v);
    if (!vector) {
        indent_line(p);
        print_pointer(p, v);
        text_add(p->text, "[");
        print_sum(p, v->at, false, false, -1);
        text_add(p->text, "] = ");
        print_operand(p, item->arg[0], false);
        text_add(p->text, ";\n");
        return;
    }
    /* A root is stored at its own point, which is linear in every variable. */
    if (!is_grid_tile(p, v)) find_step(p, v->at, lane_of(p, deps), &step);
    bool dense = size_is(step, 1);
    line(p, dense ? "store%s(" : "scatter%s(", p->partial ? "_part" : "");
    print_address(p, v, v->at);
    if (!dense) {
        text_add(p->text, ", ");
        print_size(p, step, false);
    }
    text_add(p->text, ", ");
    print_operand(p, item->arg[0], true);
    text_add(p->text, p->partial ? ", n);\n" : ");\n");
}

/* ---- Loops ---- */

static void print_items(struct printer *p, const struct block *b);

static double neutral(const struct node *n) {
    if (n->combine == EXPR_ADD) return 0;
    return n->combine == EXPR_MAX ? -1.0 / 0.0 : 1.0 / 0.0;
}

static void print_combine(struct printer *p, const struct block *b) {
    const struct node *n = b->reduce;
    const char *name = names[n->combine];
    bool vector = b->is_lanes || is_vector(p, n->deps);
    line(p, "v%d%s = %s%s(v%d%s, ", n->id, b->is_lanes ? "_lanes" : "", name, vector ? "" : "1",
         n->id, b->is_lanes ? "_lanes" : "");
    bool keep = b->is_lanes && p->partial;
    text_add(p->text, keep ? "keep_part(" : "");
    print_operand(p, b->operand, vector);
    if (keep) {
        text_add(p->text, ", n, ");
        text_add_c_float(p->text, neutral(n));
        text_add(p->text, ")");
    }
    text_add(p->text, ");\n");
}

static void print_body(struct printer *p, const struct block *b) {
    p->indent++;
    print_items(p, b);
    if (b->reduce) print_combine(p, b);
    p->indent--;
    line(p, "}\n");
}

static void print_end(struct printer *p, const struct block *b) {
    const struct var *v = &p->nest->var[b->var];
    if (b->is_row) text_add(p->text, "row_end");
    else if (b->n_clips && !p->whole) text_add(p->text, "i%d_end", b->var);
    else print_size(p, v->extent, v->is_window);
}

static void print_lanes_loop(struct printer *p, const struct block *b) {
    int lane = p->lane;
    p->lane = b->var;
    line(p, "int64_t i%d = %s;\n", b->var, b->is_row ? "row" : "0");
    line(p, "for (; i%d + LANES <= ", b->var);
    print_end(p, b);
    text_add(p->text, "; i%d += LANES) {\n", b->var);
    print_body(p, b);
    line(p, "if (i%d < ", b->var);
    print_end(p, b);
    text_add(p->text, ") {\n");
    line(p, "    const int n = (int)(");
    print_end(p, b);
    text_add(p->text, " - i%d);\n", b->var);
    p->partial = true;
    print_body(p, b);
    p->partial = false;
    p->lane = lane;
}

static void print_begin(struct printer *p, const struct block *b) {
    bool clipped = b->n_clips && !p->whole;
    if (b->is_row) text_add(p->text, "row");
    else if (clipped) text_add(p->text, "i%d_begin", b->var);
    else text_add(p->text, "0");
}

static void print_guard(struct printer *p, const struct block *b) {
    line(p, "if (");
    print_conditions(p, b->clip, b->n_clips, false);
    text_add(p->text, ") {\n");
    print_body(p, b);
}

static void print_loop(struct printer *p, const struct block *b) {
    if (b->is_guard) {
        print_guard(p, b);
        return;
    }
    if (b->is_lanes) {
        line(p, "{\n");
        p->indent++;
        print_lanes_loop(p, b);
        p->indent--;
        line(p, "}\n");
        return;
    }
    line(p, "for (int64_t i%d = ", b->var);
    print_begin(p, b);
    text_add(p->text, "; i%d < ", b->var);
    print_end(p, b);
    text_add(p->text, "; i%d++) {\n", b->var);
    print_body(p, b);
}

/* ---- Reductions ---- */

static const struct block *inner_loop(const struct block *b) {
    return b->reduce ? NULL : b->items.at[b->items.n - 1].block;
}

/* low <= A + c * i < high gives ceil((low - A) / c) <= i < ceil((high - A) / c). */
static void print_bound(struct printer *p, const struct range *r, int var, struct size bound,
                        bool is_number) {
    text_add(p->text, "div_ceil(");
    print_size(p, bound, is_number);
    text_add(p->text, " - (");
    print_sum(p, r->x, false, true, var);
    text_add(p->text, "), %" PRId64 ")", size_value(affine_coef(r->x, var)));
}

static void print_bounds(struct printer *p, const struct block *b) {
    const struct var *v = &p->nest->var[b->var];
    line(p, "int64_t i%d_begin = 0, i%d_end = ", b->var, b->var);
    print_size(p, v->extent, v->is_window);
    text_add(p->text, ";\n");
    for (int i = 0; i < b->n_clips; i++) {
        const struct range *r = b->clip[i];
        if (is_bound(r->low)) {
            line(p, "i%d_begin = max_int(i%d_begin, ", b->var, b->var);
            print_bound(p, r, b->var, r->low, true);
            text_add(p->text, ");\n");
        }
        if (!is_bound(r->high)) continue;
        line(p, "i%d_end = min_int(i%d_end, ", b->var, b->var);
        print_bound(p, r, b->var, r->high, false);
        text_add(p->text, ");\n");
    }
}

static void print_whole_test(struct printer *p, const struct block *outer) {
    const char *and = "if (";
    indent_line(p);
    for (const struct block *b = outer; b; b = inner_loop(b)) {
        if (!b->n_clips) continue;
        text_add(p->text, "%si%d_begin == 0 && i%d_end == ", and, b->var, b->var);
        print_size(p, p->nest->var[b->var].extent, p->nest->var[b->var].is_window);
        and = " && ";
    }
    text_add(p->text, ") {\n");
}

/* Windows inside the image run over all of their taps, a number the compiler knows and unrolls. */
static void print_loops(struct printer *p, const struct block *outer) {
    bool whole = p->whole, clipped = false;
    for (const struct block *b = outer; b; b = inner_loop(b)) {
        clipped |= b->n_clips > 0;
        if (b->n_clips) print_bounds(p, b);
    }
    p->whole = true;
    if (clipped) {
        print_whole_test(p, outer);
        p->indent++;
        print_loop(p, outer);
        p->indent--;
        line(p, "} else {\n");
        p->indent++;
        p->whole = false;
    }
    print_loop(p, outer);
    if (clipped) {
        p->indent--;
        line(p, "}\n");
    }
    p->whole = whole;
}

static bool has_lanes(const struct block *outer) {
    for (const struct block *b = outer; b; b = inner_loop(b))
        if (b->is_lanes) return true;
    return false;
}

static void print_reduce(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    bool vector = is_vector(p, n->deps), lanes = has_lanes(item->block);
    line(p, "%s v%d = %s", vector ? "vec" : "float", n->id, vector ? "splat(" : "");
    text_add_c_float(p->text, n->value);
    text_add(p->text, "%s;\n", vector ? ")" : "");
    if (lanes) {
        line(p, "vec v%d_lanes = splat(", n->id);
        text_add_c_float(p->text, neutral(n));
        text_add(p->text, ");\n");
    }
    print_loops(p, item->block);
    if (lanes)
        line(p, "v%d = %s1(v%d, %s_lanes(v%d_lanes));\n", n->id, names[n->combine], n->id,
             names[n->combine], n->id);
}

static void print_items(struct printer *p, const struct block *b) {
    for (int i = 0; i < b->items.n; i++) {
        const struct item *item = &b->items.at[i];
        switch (item->kind) {
        case ITEM_NODE: print_node(p, item); break;
        case ITEM_REDUCE: print_reduce(p, item); break;
        case ITEM_STORE: print_store(p, item); break;
        case ITEM_LOOP: print_loop(p, item->block); break;
        }
    }
}

/* ---- The function ---- */

/* A task is a number: chunk of the last loop of the grid, then the other loops, innermost first. */
static void print_decoding(struct printer *p) {
    struct nest *nest = p->nest;
    int n = nest->grid.n;
    line(p, "const int64_t first = begin %% a%d;\n", nest_arg(nest, nest->chunks));
    line(p, "const int64_t run = min_int(end - begin, a%d - first);\n",
         nest_arg(nest, nest->chunks));
    if (n > 1) line(p, "int64_t task = begin / a%d;\n", nest_arg(nest, nest->chunks));
    for (int i = n - 2; i > 0; i--) {
        int extent = nest_arg(nest, nest->var[nest->grid.at[i]].extent);
        line(p, "const int64_t i%d = task %% a%d;\n", nest->grid.at[i], extent);
        line(p, "task /= a%d;\n", extent);
    }
    if (n > 1) line(p, "const int64_t i%d = task;\n", nest->grid.at[0]);
    line(p, "begin += run;\n");
    if (!n) return;
    int chunk = nest_arg(nest, size_const(nest->chunk));
    line(p, "const int64_t row = first * a%d;\n", chunk);
    line(p, "const int64_t row_end = min_int((first + run) * a%d, ", chunk);
    print_size(p, nest->var[nest->grid.at[n - 1]].extent, false);
    text_add(p->text, ");\n");
}

static void print_head(struct printer *p) {
    struct nest *nest = p->nest;
    line(p, "void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, "
            "int64_t end) {\n");
    for (int i = 0; i < nest->values.n; i++) {
        const struct value *v = &nest->values.at[i];
        if (v->ptr < 0) continue;
        const char *constant = v->is_output ? "" : "const ";
        line(p, "    %sfloat *restrict p%d = (%sfloat *)ptr[%d];\n", constant, v->ptr, constant,
             v->ptr);
    }
    for (int i = 0; i < nest->args.n; i++) line(p, "    const int64_t a%d = arg[%d];\n", i, i);
    line(p, "    float *restrict tile = (float *)scratch;\n");
    line(p, "    (void)tile;\n");
}

void nest_emit(struct nest *nest, struct text *text) {
    struct text body;
    struct printer p = {.nest = nest, .text = &body, .lane = -1, .indent = 2, .whole = true};
    text_init(&body, nest->arena);
    print_decoding(&p);
    print_items(&p, nest->body);
    struct printer head = {.nest = nest, .text = text, .lane = -1};
    print_head(&head);
    line(&head, "    while (begin < end) {\n");
    text_add_raw(text, body.at, body.size);
    line(&head, "    }\n}\n");
}
