/*
 * Pointwise layers of numbers of any type, as point expressions: rounding, quotients, remainders, bits, comparisons, powers.
 *
 * A bool is a number, too: 1 or 0. So logical operations are products, maxima and differences.
 */
#include "ir/define.h"

#define X define_in(d, 0)
#define Y define_in(d, 1)

static bool is_float(const struct define *d) { return size_family(d->type) == FAMILY_FLOAT; }
static bool is_truth(const struct define *d) { return d->type == SOL_BOOL; }

/* ---- Rounding ---- */

static struct expr *ceiling(struct define *d, struct expr *x) {
    return UNARY(NEG, UNARY(FLOOR, UNARY(NEG, x)));
}
static struct expr *truncate(struct define *d, struct expr *x) {
    return SELECT(BINARY(LESS, x, C(0)), ceiling(d, x), UNARY(FLOOR, x));
}

struct expr *define_floor(struct define *d) { return UNARY(FLOOR, X); }
struct expr *define_ceil(struct define *d) { return ceiling(d, X); }
struct expr *define_trunc(struct define *d) { return truncate(d, X); }
struct expr *define_round(struct define *d) { return UNARY(ROUND, X); }
/* x > 0 ? 1 : x < 0 ? -1 : 0 */
struct expr *define_sign(struct define *d) {
    struct expr *x = X, *below = SELECT(BINARY(LESS, x, C(0)), C(-1), C(0));
    return SELECT(BINARY(LESS, C(0), x), C(1), below);
}
struct expr *define_sin(struct define *d) { return UNARY(SIN, X); }
struct expr *define_cos(struct define *d) { return UNARY(COS, X); }
struct expr *define_tan(struct define *d) { return UNARY(TAN, X); }
struct expr *define_asin(struct define *d) { return UNARY(ASIN, X); }
struct expr *define_acos(struct define *d) { return UNARY(ACOS, X); }
struct expr *define_atan(struct define *d) { return UNARY(ATAN, X); }
struct expr *define_sinh(struct define *d) { return UNARY(SINH, X); }
struct expr *define_cosh(struct define *d) { return UNARY(COSH, X); }
struct expr *define_asinh(struct define *d) { return UNARY(ASINH, X); }
struct expr *define_acosh(struct define *d) { return UNARY(ACOSH, X); }
struct expr *define_atanh(struct define *d) { return UNARY(ATANH, X); }
struct expr *define_pow(struct define *d) { return BINARY(POW, X, Y); }

/* ---- Quotients and remainders ---- */

/* Do a remainder and its divisor have different signs, so that Python's remainder and quotient differ from C's? */
static struct expr *needs_shift(struct define *d, struct expr *remainder, struct expr *divisor) {
    struct expr *left = BINARY(LESS, remainder, C(0)), *right = BINARY(LESS, divisor, C(0));
    struct expr *differ = SELECT(BINARY(EQUAL, left, right), expr_const(d->arena, SOL_BOOL, 0),
                                 expr_const(d->arena, SOL_BOOL, 1));
    return SELECT(BINARY(EQUAL, remainder, C(0)), expr_const(d->arena, SOL_BOOL, 0), differ);
}

static struct expr *modulo(struct define *d, struct expr *x, struct expr *y) {
    struct expr *r = BINARY(REMAINDER, x, y);
    return SELECT(needs_shift(d, r, y), BINARY(ADD, r, y), r);
}

struct expr *define_mod(struct define *d) { return modulo(d, X, Y); }
struct expr *define_rem(struct define *d) { return BINARY(REMAINDER, X, Y); }
struct expr *define_trunc_div(struct define *d) {
    return is_float(d) ? truncate(d, BINARY(DIV, X, Y)) : BINARY(QUOTIENT, X, Y);
}

/* Floats as PyTorch: for the remainder r of C, (x - r) / y is nearly whole, and is rounded to the nearest. Where the remainder of Python
 * is r + y, the quotient is smaller by 1. Where y is 0 the result is x / y. */
static struct expr *floor_quotient(struct define *d, struct expr *x, struct expr *y) {
    struct expr *r = BINARY(REMAINDER, x, y), *whole = BINARY(DIV, BINARY(SUB, x, r), y);
    struct expr *shift = SELECT(needs_shift(d, r, y), C(1), C(0));
    struct expr *quotient = UNARY(ROUND, BINARY(SUB, whole, shift));
    return SELECT(BINARY(EQUAL, y, C(0)), BINARY(DIV, x, y), quotient);
}

struct expr *define_floor_div(struct define *d) {
    struct expr *x = X, *y = Y;
    if (is_float(d)) return floor_quotient(d, x, y);
    struct expr *q = BINARY(QUOTIENT, x, y);
    return SELECT(needs_shift(d, BINARY(REMAINDER, x, y), y), BINARY(SUB, q, C(1)), q);
}

/* ---- Bits ---- */

struct expr *define_bit_and(struct define *d) {
    return is_truth(d) ? BINARY(MUL, X, Y) : BINARY(AND, X, Y);
}
struct expr *define_bit_or(struct define *d) {
    return is_truth(d) ? BINARY(MAX, X, Y) : BINARY(OR, X, Y);
}
struct expr *define_bit_xor(struct define *d) {
    return is_truth(d) ? UNARY(ABS, BINARY(SUB, X, Y)) : BINARY(XOR, X, Y);
}
struct expr *define_bit_not(struct define *d) {
    return is_truth(d) ? BINARY(SUB, C(1), X) : BINARY(XOR, X, C(-1));
}
struct expr *define_shift_left(struct define *d) { return BINARY(SHIFT_LEFT, X, Y); }
struct expr *define_shift_right(struct define *d) { return BINARY(SHIFT_RIGHT, X, Y); }

/* ---- Comparisons ---- */

struct expr *define_less(struct define *d) { return BINARY(LESS, X, Y); }
struct expr *define_equal(struct define *d) { return BINARY(EQUAL, X, Y); }
/* Not "not y < x", which would hold for NaN. */
struct expr *define_less_equal(struct define *d) {
    struct expr *x = X, *y = Y;
    return BINARY(MAX, BINARY(LESS, x, y), BINARY(EQUAL, x, y));
}

struct expr *define_random_bits(struct define *d) {
    return expr_apply(d->arena, PRIMITIVE_THREEFRY, X, Y, define_in(d, 2));
}

/* ---- Positions ---- */

/* start + i * step. Computed as i64, then cast: exact for all types that hold the result. */
struct expr *define_arange(struct define *d) {
    const struct attr *a = &d->layer->attr;
    const struct index *at =
        PLUS(TIMES(VAR(0), size_const(a->step)), index_size(d->arena, a->start));
    struct expr index = {.kind = EXPR_INDEX, .type = SOL_I64, .n_index = 1};
    index.index = arena_copy(d->arena, &at, sizeof at);
    return CAST(d->type, arena_copy(d->arena, &index, sizeof index));
}
