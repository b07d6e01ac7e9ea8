/*
 * Printing C: sums, conditions, and the instructions of one block.
 *
 *   emit.c walks the blocks  ->  [this file]  ->  one or more lines of text per item
 *
 * A node's value is called v<id>: a `vec` where it differs from lane to lane, else a float. In the
 * version for what is left of a loop over lanes, accesses touch `n` elements and no more.
 */
#include "dfp/print.h"

#include <inttypes.h>

void print_line(struct printer *p, const char *format, ...) {
    va_list args;
    text_add(p->text, "%*s", 4 * p->indent, "");
    va_start(args, format);
    text_add_args(p->text, format, args);
    va_end(args);
}

void print_indent(struct printer *p) { text_add(p->text, "%*s", 4 * p->indent, ""); }

/* ---- Sizes and sums ---- */

int nest_arg(struct nest *nest, const struct size *size) {
    for (int i = 0; i < nest->roles.n; i++)
        if (nest->roles.at[i] == size) return i;
    VEC_PUSH(nest->arena, &nest->roles, size);
    VEC_PUSH(nest->arena, &nest->args, *size);
    return nest->args.n - 1;
}

/* Numbers that come from layers are part of the structure; sizes of tensors are not. */
void print_size(struct printer *p, const struct size *size, bool is_number) {
    bool small = is_number || size_is(*size, 0) || size_is(*size, 1);
    if (small && size_is_const(*size)) text_add(p->text, "%" PRId64, size_value(*size));
    else text_add(p->text, "a%d", nest_arg(p->nest, size));
}

/* A variable's value in lane `l`, or in the first lane. */
static void print_var(struct printer *p, int var, bool in_lane) {
    const struct var *v = &p->nest->var[var];
    if (var == p->nest->lane_var) {
        text_add(p->text, in_lane ? "l" : "0");
    } else if (v->of) {
        text_add(p->text, v->kind == VAR_DIV ? "div_floor(" : "mod_floor(");
        print_sum(p, v->of, in_lane, true, -1);
        text_add(p->text, ", ");
        print_size(p, &v->divisor, false);
        text_add(p->text, ")");
    } else if (in_lane && var == p->lane) {
        text_add(p->text, "(i%d + l)", var);
    } else {
        text_add(p->text, "i%d", var);
    }
}

/* The sum of all terms but that of variable `without`. */
void print_sum(struct printer *p, const struct affine *a, bool in_lane, bool is_number,
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
        print_size(p, &a->term[i].coef, is_number);
    }
    if (!*plus || !size_is(a->base, 0)) {
        text_add(p->text, "%s", plus);
        print_size(p, &a->base, is_number);
    }
}

/* ---- Conditions ---- */

#define FAR ((int64_t)1 << 40) /* bounds beyond are no bounds */

bool print_is_bound(struct size size) {
    return !size_is_const(size) || (size_value(size) > -FAR && size_value(size) < FAR);
}

static void print_condition(struct printer *p, const struct range *r, bool in_lane) {
    const char *and = "";
    if (print_is_bound(r->low)) {
        print_sum(p, r->x, in_lane, true, -1);
        text_add(p->text, " >= ");
        print_size(p, &r->low, true);
        and = " && ";
    }
    if (print_is_bound(r->high)) {
        text_add(p->text, "%s", and);
        print_sum(p, r->x, in_lane, true, -1);
        text_add(p->text, " < ");
        print_size(p, &r->high, false);
    } else if (!*and) {
        text_add(p->text, "1");
    }
}

void print_conditions(struct printer *p, const struct range *const *r, int n, bool in_lane) {
    for (int i = 0; i < n; i++) {
        if (i) text_add(p->text, " && ");
        print_condition(p, r[i], in_lane);
    }
}

bool print_is_vector(const struct printer *p, uint64_t deps) {
    return nest_is_vector(p->nest, deps, p->lane);
}

static bool ranges_are_vector(const struct printer *p, const struct item *item) {
    for (int i = 0; i < item->n_ranges; i++)
        if (print_is_vector(p, affine_deps(p->nest, item->range[i]->x))) return true;
    return false;
}

static const char *count_text(const struct printer *p) { return p->partial ? "n" : "LANES"; }

/* ---- Operands ---- */

static void print_name(struct printer *p, const struct node *n) {
    if (n->op == EXPR_CONST) text_add_c_float(p->text, n->value);
    else text_add(p->text, "v%d", n->id);
}

/* As a vector where one is wanted. */
void print_operand(struct printer *p, const struct node *n, bool as_vector) {
    bool widen = as_vector && !print_is_vector(p, n->deps);
    if (widen) text_add(p->text, "splat(");
    print_name(p, n);
    if (widen) text_add(p->text, ")");
}

static void print_declaration(struct printer *p, const struct node *n) {
    print_line(p, "const %s v%d = ", print_is_vector(p, n->deps) ? "vec" : "float", n->id);
}

/* ---- Loads ---- */

static void print_pointer(struct printer *p, const struct value *v) {
    if (nest_in_scratch(v)) text_add(p->text, "tile");
    else text_add(p->text, "p%d", v->ptr);
}

/* The variable that makes an access differ between lanes: the lane's, or that of the position in
 * a block. */
static int lane_of(const struct printer *p, uint64_t deps) {
    if (p->nest->lane_var >= 0 && (deps & var_bit(p->nest->lane_var))) return p->nest->lane_var;
    return p->lane;
}

static const struct size zero, one = {.n = 1, .term = {{.coef = 1}}};

static const struct size *find_coef(const struct affine *a, int var) {
    for (int i = 0; i < a->n; i++)
        if (a->term[i].var == var) return &a->term[i].coef;
    return &zero;
}

/* The distance from lane to lane; false when it is not the same everywhere. */
static bool find_step(const struct printer *p, const struct affine *offset, int lane,
                      const struct size **step) {
    *step = find_coef(offset, lane);
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
                              const struct size *step) {
    bool dense = size_is(*step, 1), second = size_is(*step, 2) && !p->partial;
    const char *name = dense ? "load" : second ? "gather2" : "gather";
    text_add(p->text, "%s%s(", name, p->partial ? "_part" : "");
    print_address(p, v, offset);
    if (!dense && !second) {
        text_add(p->text, ", ");
        print_size(p, step, false);
    }
    text_add(p->text, p->partial ? ", n)" : ")");
}

/* Lane by lane: for whatever has no simpler form. The value is declared already. */
static void print_lane_loads(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    print_line(p, "v%d = splat(", n->id);
    text_add_c_float(p->text, n->fill);
    text_add(p->text, ");\n");
    print_line(p, "for (int l = 0; l < %s; l++)\n", count_text(p));
    print_line(p, "    ");
    if (item->n_ranges) {
        text_add(p->text, "if (");
        print_conditions(p, item->range, item->n_ranges, true);
        text_add(p->text, ") ");
    }
    text_add(p->text, "LANE(v%d, l) = ", n->id);
    print_pointer(p, n->from);
    text_add(p->text, "[");
    print_sum(p, n->offset, true, false, -1);
    text_add(p->text, "];\n");
}

/* Conditions that change with the lane and are linear in it: inside the image, where most
 * vectors lie, one test of the first and the last lane is all. */
static bool is_monotone(struct printer *p, const struct item *item, int lane) {
    const struct size *step;
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
        if (size_is(coef, 0) || !print_is_bound(r->high)) continue;
        text_add(p->text, " && ");
        print_sum(p, r->x, false, true, -1);
        text_add(p->text, " + (%s - 1) * %" PRId64 " < ", count_text(p), size_value(coef));
        print_size(p, &r->high, false);
    }
}

static void print_edge_load(struct printer *p, const struct item *item, int lane,
                            const struct size *step) {
    const struct node *n = item->node;
    print_line(p, "if (");
    print_edge_test(p, item, lane);
    text_add(p->text, ") {\n");
    print_line(p, "    v%d = ", n->id);
    print_vector_load(p, n->from, n->offset, step);
    text_add(p->text, ";\n");
    print_line(p, "} else {\n");
    p->indent++;
    print_lane_loads(p, item);
    p->indent--;
    print_line(p, "}\n");
}

/* vec v = fill; if (conditions) v = load(...): nothing is read where it may not be. */
static void print_guarded_load(struct printer *p, const struct item *item, bool vector,
                               const struct size *step) {
    const struct node *n = item->node;
    print_line(p, "%s v%d = ", vector ? "vec" : "float", n->id);
    text_add(p->text, vector ? "splat(" : "");
    text_add_c_float(p->text, n->fill);
    text_add(p->text, vector ? ");\n" : ";\n");
    print_line(p, "if (");
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

/* Scratch of a nest whose grid runs over lanes: one vector per value, whatever else it depends on. */
static bool is_grid_tile(const struct printer *p, const struct value *v) {
    return nest_in_scratch(v) && p->nest->grid_lane;
}

static void print_vector_item(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    const struct size *step = &one;
    int lane = lane_of(p, n->deps);
    bool even = is_grid_tile(p, n->from) || find_step(p, n->offset, lane, &step);
    bool edge = ranges_are_vector(p, item);
    if (!even || edge) print_line(p, "vec v%d;\n", n->id);
    if (!even || (edge && !is_monotone(p, item, lane))) {
        print_lane_loads(p, item);
    } else if (edge) {
        print_edge_load(p, item, lane, step);
    } else if (item->n_ranges) {
        print_guarded_load(p, item, true, step);
    } else {
        print_declaration(p, n);
        if (size_is(*step, 0)) {
            text_add(p->text, "splat((");
            print_address(p, n->from, n->offset);
            text_add(p->text, ")[0])");
        } else {
            print_vector_load(p, n->from, n->offset, step);
        }
        text_add(p->text, ";\n");
    }
}

/*
 * In the order of their cost: a scalar, a splat, a vector, a gather, a loop over lanes. Conditions
 * are tested once where they are the same for all lanes, else in the first and last lane, else in each.
 */
static void print_load(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    if (print_is_vector(p, n->deps)) {
        print_vector_item(p, item);
    } else if (item->n_ranges) {
        print_guarded_load(p, item, false, &zero);
    } else {
        print_declaration(p, n);
        print_pointer(p, n->from);
        text_add(p->text, "[");
        print_sum(p, n->offset, false, false, -1);
        text_add(p->text, "];\n");
    }
}

/* ---- Arithmetic ---- */

const char *const print_names[] = {
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
    if (!print_is_vector(p, n->deps)) {
        print_declaration(p, n);
        text_add(p->text, "(");
        print_conditions(p, item->range, item->n_ranges, false);
        text_add(p->text, ") ? 1.0f : 0.0f;\n");
        return;
    }
    print_line(p, "vec v%d;\n", n->id);
    print_line(p, "for (int l = 0; l < LANES; l++) LANE(v%d, l) = (", n->id);
    print_conditions(p, item->range, item->n_ranges, true);
    text_add(p->text, ") ? 1.0f : 0.0f;\n");
}

/* How many lanes of a block hold channels: all, but for the last block of each padded segment. */
static void print_valid(struct printer *p, const struct item *item) {
    const struct layout *layout = p->nest->layout;
    int end = 0;
    print_line(p, "const vec v%d = valid_lanes(", item->node->id);
    for (int i = 0; i < layout->n_segments; i++) {
        const struct segment *s = &layout->segment[i];
        end += s->stored / p->nest->lanes;
        if (s->valid == s->stored) continue;
        struct size *last = ARENA_ARRAY(p->nest->arena, struct size, 2);
        last[0] = size_const(end - 1);
        last[1] = size_const(s->valid + p->nest->lanes - s->stored);
        text_add(p->text, "i%d == a%d", p->nest->block_var, nest_arg(p->nest, &last[0]));
        text_add(p->text, " ? a%d : ", nest_arg(p->nest, &last[1]));
    }
    text_add(p->text, "LANES);\n");
}

static void print_call(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    bool vector = print_is_vector(p, n->deps);
    const char *separator = "(";
    text_add(p->text, "%s%s", print_names[n->op], vector ? "" : "1");
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

void print_node(struct printer *p, const struct item *item) {
    switch (item->node->op) {
    case EXPR_LOAD: print_load(p, item); break;
    case EXPR_RANGE: print_range(p, item); break;
    case NODE_VALID: print_valid(p, item); break;
    default: print_arithmetic(p, item);
    }
}

/* ---- Stores ---- */

void print_store(struct printer *p, const struct item *item) {
    const struct value *v = item->value;
    uint64_t deps = affine_deps(p->nest, v->at);
    const struct size *step = &one;
    bool vector = print_is_vector(p, deps) || is_grid_tile(p, v);
    if (!vector) {
        print_indent(p);
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
    bool dense = size_is(*step, 1);
    print_line(p, dense ? "store%s(" : "scatter%s(", p->partial ? "_part" : "");
    print_address(p, v, v->at);
    if (!dense) {
        text_add(p->text, ", ");
        print_size(p, step, false);
    }
    text_add(p->text, ", ");
    print_operand(p, item->arg[0], true);
    text_add(p->text, p->partial ? ", n);\n" : ");\n");
}
