/*
 * Printing C: sums, conditions, and the instructions of one block.
 *
 *   emit.c walks the blocks  ->  [this file]  ->  one or more lines of text per item
 *
 * A node's value is called v<id>: a `vec` if it differs between lanes, else a float. Loads, stores and
 * conditions are in access.c.
 */
#include "dfp/print.h"

#include <inttypes.h>
#include <math.h>

void print_line(struct printer *p, const char *format, ...) {
    va_list args;
    text_add(p->text, "%*s", 4 * p->indent, "");
    va_start(args, format);
    text_add_args(p->text, format, args);
    va_end(args);
}

/* ---- Sizes and sums ---- */

int nest_arg(struct nest *nest, const struct size *size) {
    for (int i = 0; i < nest->roles.n; i++)
        if (nest->roles.at[i] == size) return i;
    VEC_PUSH(nest->arena, &nest->roles, size);
    VEC_PUSH(nest->arena, &nest->args, *size);
    return nest->args.n - 1;
}

/* Numbers of layers, such as strides, are part of the structure; sizes of tensors are not. */
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

#define FAR ((int64_t)1 << 40) /* larger bounds stand for infinity */

bool print_is_bound(struct size size) {
    return !size_is_const(size) || (size_value(size) > -FAR && size_value(size) < FAR);
}

void print_condition(struct printer *p, const struct range *r, bool in_lane) {
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

static void print_bound(struct printer *p, const struct range *r, int64_t coef, int without,
                        const struct size *bound, bool is_number) {
    text_add(p->text, "div_ceil(");
    print_size(p, bound, is_number);
    text_add(p->text, " - (");
    print_sum(p, r->x, false, true, without);
    text_add(p->text, "), %" PRId64 "));\n", coef);
}

void print_bounds(struct printer *p, const struct range *r, int64_t coef, int without,
                  const char *begin, const char *end) {
    if (print_is_bound(r->low)) {
        print_line(p, "%s = max_int(%s, ", begin, begin);
        print_bound(p, r, coef, without, &r->low, true);
    }
    if (print_is_bound(r->high)) {
        print_line(p, "%s = min_int(%s, ", end, end);
        print_bound(p, r, coef, without, &r->high, false);
    }
}

bool print_is_vector(const struct printer *p, uint64_t deps) {
    return nest_is_vector(p->nest, deps, p->lane);
}

/* ---- Operands ---- */

const char *print_type(enum reg reg, bool vector) {
    static const char *const vectors[N_REGS] = {"vec", "vec_f64", "vec_i32", "vec_i64"};
    return vector ? vectors[reg] : size_c_type(reg_dtype(reg));
}

const char *print_one(const struct printer *p, enum reg reg, bool vector) {
    return vector && (p->nest->lanes > 1 || reg == REG_F32) ? "" : "1";
}

void print_need_types(struct printer *p, bool is_rare) { p->nest->needs_types |= is_rare; }

/* The smallest integer has no literal of its own. */
static void print_integer(struct printer *p, enum reg reg, double value) {
    const int bits = reg == REG_I64 ? 64 : 32;
    const int64_t most = (int64_t)(UINT64_MAX >> (65 - bits));
    const char *end = bits == 64 ? "LL" : "";
    if (value == -INFINITY) text_add(p->text, "(-%" PRId64 "%s - 1)", most, end);
    else text_add(p->text, "%" PRId64 "%s", value == INFINITY ? most : (int64_t)value, end);
}

void print_number(struct printer *p, enum reg reg, double value, bool as_vector) {
    print_need_types(p, reg != REG_F32);
    if (as_vector) text_add(p->text, "splat%s(", reg_suffix(reg));
    if (reg == REG_F32) text_add_c_float(p->text, value);
    else if (reg == REG_F64) text_add_c_double(p->text, value);
    else print_integer(p, reg, value);
    if (as_vector) text_add(p->text, ")");
}

void print_operand(struct printer *p, const struct node *n, bool as_vector) {
    bool widen = as_vector && !print_is_vector(p, n->deps);
    if (n->kind == NODE_CONST) print_number(p, n->reg, n->value, widen);
    else if (widen) text_add(p->text, "splat%s(v%d)", reg_suffix(n->reg), n->id);
    else text_add(p->text, "v%d", n->id);
}

void print_declaration(struct printer *p, const struct node *n) {
    print_need_types(p, n->reg != REG_F32);
    print_line(p, "const %s v%d = ", print_type(n->reg, print_is_vector(p, n->deps)), n->id);
}

/* ---- Arithmetic ---- */

/* Prints how many lanes of a block hold channels: all, except in the last block of each padded segment. */
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
    /* A comparison is named by its operands, a select by the values that it selects. */
    enum reg reg = n->primitive == PRIMITIVE_SELECT ? n->reg : n->arg[0]->reg;
    print_need_types(p, reg != REG_F32 || (primitives[n->primitive].traits & RARE));
    text_add(p->text, "%s%s%s", primitives[n->primitive].name, print_one(p, reg, vector),
             reg_suffix(reg));
    for (int i = 0; i < 3 && item->arg[i]; i++) {
        text_add(p->text, "%s", separator);
        print_operand(p, item->arg[i], vector);
        separator = ", ";
    }
    text_add(p->text, ");\n");
}

static void print_arithmetic(struct printer *p, const struct item *item) {
    const char *symbol = primitives[item->node->primitive].symbol;
    print_declaration(p, item->node);
    /* Operators on signed integers are undefined where they overflow; the functions wrap. */
    if (!symbol || reg_is_integer(item->node->reg)) {
        print_call(p, item);
        return;
    }
    print_operand(p, item->arg[0], false);
    text_add(p->text, " %s ", symbol);
    print_operand(p, item->arg[1], false);
    text_add(p->text, ";\n");
}

/* v7_sum += v3; v7 = v7_sum. Over lanes, v7 is v7_sum plus the sums of the lanes up to each, and its last lane is the next v7_sum. */
static void print_scan(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    const char *name = combines[n->combine].name, *suffix = reg_suffix(n->reg);
    bool vector = print_is_vector(p, n->deps), lanes = nest_scan_var(n) == p->lane;
    if (!lanes || p->nest->lanes == 1) {
        print_line(p, "v%d_sum = %s%s%s(v%d_sum, ", n->id, name, print_one(p, n->reg, vector),
                   suffix, n->id);
        print_operand(p, item->arg[0], vector);
        text_add(p->text, ");\n");
        print_declaration(p, n);
        text_add(p->text, "v%d_sum;\n", n->id);
        return;
    }
    print_declaration(p, n);
    text_add(p->text, "%s(splat(v%d_sum), %s_up_to(", name, n->id, name);
    print_operand(p, item->arg[0], true);
    text_add(p->text, "));\n");
    print_line(p, "v%d_sum = LANE(v%d, LANES - 1);\n", n->id, n->id);
}

/* ---- Casts and positions ---- */

/* The function that makes a value of the register type one of element type `to`, such as ROUND_f16; NULL: no further one. */
static const char *find_shape(enum sol_dtype to) {
    if (to == reg_dtype(reg_of(to))) return NULL;
    return size_family(to) == FAMILY_INTEGER ? "WRAP" : "ROUND";
}

/* ROUND_f16(TO_f32_i64(v)): first to the register's type, then to the element type. A bool is TRUTH(v): is v not 0? */
static void print_cast(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    const bool vector = print_is_vector(p, n->deps);
    const char *one = vector && p->nest->lanes > 1 ? "" : "1", *shape = find_shape(n->to);
    enum reg from = n->arg[0]->reg;
    bool converts = n->to != SOL_BOOL && from != n->reg;
    print_need_types(p, true);
    print_declaration(p, n);
    if (n->to == SOL_BOOL) text_add(p->text, "TRUTH%s_%s(", one, size_dtype_name(reg_dtype(from)));
    else if (shape) text_add(p->text, "%s%s_%s(", shape, one, size_dtype_name(n->to));
    if (converts)
        text_add(p->text, "TO%s_%s_%s(", one, size_dtype_name(reg_dtype(n->reg)),
                 size_dtype_name(reg_dtype(from)));
    print_operand(p, item->arg[0], vector);
    text_add(p->text, "%s%s;\n", converts ? ")" : "", shape || n->to == SOL_BOOL ? ")" : "");
}

/* The value of a sum of loop variables. */
static void print_position(struct printer *p, const struct item *item) {
    const struct node *n = item->node;
    print_need_types(p, true);
    if (!print_is_vector(p, n->deps)) {
        print_declaration(p, n);
        print_sum(p, n->offset, false, false, -1);
        text_add(p->text, ";\n");
        return;
    }
    print_line(p, "vec_i64 v%d = splat_i64(0);\n", n->id);
    print_line(p, "for (int l = 0; l < LANES; l++) LANE(v%d, l) = ", n->id);
    print_sum(p, n->offset, true, false, -1);
    text_add(p->text, ";\n");
}

void print_node(struct printer *p, const struct item *item) {
    switch (item->node->kind) {
    case NODE_LOAD: print_load(p, item); break;
    case NODE_RANGE: print_range(p, item); break;
    case NODE_VALID: print_valid(p, item); break;
    case NODE_APPLY: print_arithmetic(p, item); break;
    case NODE_CAST: print_cast(p, item); break;
    case NODE_INDEX: print_position(p, item); break;
    case NODE_SCAN: print_scan(p, item); break;
    case NODE_CONST: /* printed by print_operand */
    case NODE_REDUCE: ASSERT(!"an item of its own"); break;
    }
}
