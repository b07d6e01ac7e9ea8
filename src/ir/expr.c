/*
 * Constructors of index and point expressions, and the tables of primitives and combines.
 *
 * Indices are simplified: with stride 1 and no padding, v2 * 1 + r + 0 becomes v2 + r. DFP can only see that a load reads the
 * reader's own point if its index is a plain variable. Expressions are acyclic graphs: x * x has one node for x.
 */
#include "ir/expr.h"

#include <math.h>

/* ---- The tables of primitive.def ---- */

static uint32_t to_bits(double whole) { return (uint32_t)(int64_t)whole; }

/* Four rounds for each of five pairs of words that are added: two of the key and their parity. */
static double threefry(double counter, double key0, double key1) {
    static const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t k[3] = {to_bits(key0), to_bits(key1),
                           0x1BD11BDA ^ to_bits(key0) ^ to_bits(key1)};
    uint32_t x = to_bits(counter) + k[0], y = k[1];
    for (uint32_t round = 0; round < 20; round++) {
        const int turn = turns[round / 4 % 2][round % 4];
        x += y;
        y = (y << turn | y >> (32 - turn)) ^ x;
        if (round % 4 != 3) continue;
        x += k[(round / 4 + 1) % 3];
        y += k[(round / 4 + 2) % 3] + round / 4 + 1;
    }
    return (double)(int32_t)x;
}

#define PRIMITIVE(name, n, value, cost, flops, traits)         \
    static double value_##name(double a, double b, double c) { \
        (void)a, (void)b, (void)c;                             \
        return value;                                          \
    }
#include "ir/primitive.def"

const struct primitive_info primitives[N_PRIMITIVES] = {
#define PRIMITIVE(name, n, value, cost, flops, traits) \
    [PRIMITIVE_##name] = {#name, NULL, n, cost, flops, traits, value_##name},
#define OPERATOR(name, symbol) [PRIMITIVE_##name] = {#name, #symbol, 2, 1, 1, WRAPS, value_##name},
#include "ir/primitive.def"
};

const struct combine_info combines[N_COMBINES] = {
#define COMBINE(name, neutral, idempotent) \
    [COMBINE_##name] = {#name, PRIMITIVE_##name, neutral, idempotent},
#include "ir/primitive.def"
};

/* ---- Indices ---- */

static struct index *new_index(struct arena *a, enum index_op op, const struct index *x,
                               const struct index *y) {
    struct index *i = ARENA_NEW(a, struct index);
    i->op = op;
    i->a = x;
    i->b = y;
    return i;
}

const struct index *index_size(struct arena *a, struct size value) {
    struct index *i = new_index(a, INDEX_CONST, NULL, NULL);
    i->value = value;
    return i;
}
const struct index *index_const(struct arena *a, int64_t value) {
    return index_size(a, size_const(value));
}

const struct index *index_var(struct arena *a, int var) {
    struct index *i = new_index(a, INDEX_VAR, NULL, NULL);
    i->var = var;
    return i;
}

static bool is_const(const struct index *i) { return i->op == INDEX_CONST; }

const struct index *index_add(struct arena *a, const struct index *x, const struct index *y) {
    if (is_const(x) && is_const(y)) return index_size(a, size_add(x->value, y->value));
    if (is_const(x) && size_is(x->value, 0)) return y;
    if (is_const(y) && size_is(y->value, 0)) return x;
    return new_index(a, INDEX_ADD, x, y);
}

const struct index *index_mul(struct arena *a, const struct index *x, struct size factor) {
    if (is_const(x)) return index_size(a, size_mul(x->value, factor));
    if (size_is(factor, 1)) return x;
    if (size_is(factor, 0)) return index_const(a, 0);
    return new_index(a, INDEX_MUL, x, index_size(a, factor));
}

/* Rounds down also below 0, since positions in padding are negative: -1 / 2 is -1. */
const struct index *index_div(struct arena *a, const struct index *x, struct size divisor) {
    if (size_is(divisor, 1)) return x;
    if (is_const(x) && size_is_const(x->value) && size_is_const(divisor))
        return index_const(a, floor_div(size_value(x->value), size_value(divisor)));
    return new_index(a, INDEX_DIV, x, index_size(a, divisor));
}

/* The remainder of index_div, which is never negative: -1 mod 3 is 2. */
const struct index *index_mod(struct arena *a, const struct index *x, struct size divisor) {
    if (size_is(divisor, 1)) return index_const(a, 0);
    if (is_const(x) && size_is_const(x->value) && size_is_const(divisor)) {
        int64_t v = size_value(x->value), d = size_value(divisor);
        return index_const(a, v - floor_div(v, d) * d);
    }
    return new_index(a, INDEX_MOD, x, index_size(a, divisor));
}

/* ---- Expressions ---- */

struct expr *expr_const(struct arena *a, enum sol_dtype type, double value) {
    struct expr *e = ARENA_NEW(a, struct expr);
    *e = (struct expr){.kind = EXPR_CONST, .type = type, .value = value};
    return e;
}

struct expr *expr_cast(struct arena *a, enum sol_dtype type, struct expr *x) {
    struct expr cast = {.kind = EXPR_CAST, .type = type, .arg = {x}};
    return x->type == type ? x : arena_copy(a, &cast, sizeof cast);
}

/* The operands have one type; the first operand of a select is a bool. */
static enum sol_dtype type_of_result(enum primitive primitive, const struct expr *x,
                                     const struct expr *y, const struct expr *z) {
    if (primitive == PRIMITIVE_SELECT) {
        ASSERT(x->type == SOL_BOOL && y->type == z->type);
        return y->type;
    }
    ASSERT(!y || y->type == x->type);
    return primitives[primitive].traits & COMPARES ? SOL_BOOL : x->type;
}

struct expr *expr_apply(struct arena *a, enum primitive primitive, struct expr *x, struct expr *y,
                        struct expr *z) {
    struct expr *e = ARENA_NEW(a, struct expr);
    ASSERT(primitives[primitive].n_args == 1 + !!y + !!z);
    *e = (struct expr){.kind = EXPR_APPLY, .primitive = primitive, .arg = {x, y, z}};
    e->type = type_of_result(primitive, x, y, z);
    return e;
}

bool expr_has(const struct expr *e, enum expr_kind kind) {
    if (e->kind == kind) return true;
    for (int i = 0; i < 3 && e->arg[i]; i++)
        if (expr_has(e->arg[i], kind)) return true;
    return false;
}
