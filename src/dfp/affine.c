/*
 * Affine sums of loop variables: every index and every address is base + sum of coef * variable.
 *
 *   lower.c, address.c  ->  [this file]  ->  unique struct affine, struct range
 *
 * Quotients and remainders (from reshapes, and from channels in blocks) are variables of their own,
 * so that other code can treat all indices as linear. They are simplified if the sizes allow it:
 * (16*b + l) / 16 is b for l < 16.
 *
 * Invariant: equal sums are the same pointer, terms are sorted by variable and none is zero.
 */
#include "dfp/nest.h"

#include <stddef.h>
#include <string.h>

void nest_refuse(struct nest *nest, const char *reason) {
    if (!nest->refusal) nest->refusal = reason;
}

int nest_add_var(struct nest *nest, enum var_kind kind, struct size extent) {
    if (nest->n_vars == NEST_VARS) {
        nest_refuse(nest, "too many loops for one kernel");
        return 0;
    }
    int var = nest->n_vars++;
    nest->var[var] = (struct var){.kind = kind, .extent = extent, .deps = var_bit(var)};
    return var;
}

/* ---- Making unique ---- */

static bool is_same(const struct affine *a, const struct affine *b) {
    return a->n == b->n &&
           !memcmp(&a->base, &b->base, sizeof a->base + sizeof a->term[0] * (size_t)a->n);
}

/* Linear search: a kernel has some dozens of sums, and most of them differ in their first term. */
static const struct affine *make_unique(struct nest *nest, const struct affine *a) {
    for (int i = nest->affines.n - 1; i >= 0; i--)
        if (is_same(nest->affines.at[i], a)) return nest->affines.at[i];
    const size_t size = offsetof(struct affine, term) + sizeof a->term[0] * (size_t)a->n;
    const struct affine *copy = arena_copy(nest->arena, a, size); /* without the unused terms */
    VEC_PUSH(nest->arena, &nest->affines, copy);
    return copy;
}

const struct range *affine_range(struct nest *nest, const struct affine *x, struct size low,
                                 struct size high) {
    for (int i = 0; i < nest->ranges.n; i++) {
        const struct range *r = nest->ranges.at[i];
        if (r->x == x && size_equal(r->low, low) && size_equal(r->high, high)) return r;
    }
    struct range *range = ARENA_NEW(nest->arena, struct range);
    *range = (struct range){x, low, high};
    VEC_PUSH(nest->arena, &nest->ranges, range);
    return range;
}

/* The variable for a quotient or remainder (VAR_DIV, VAR_MOD); equal operands give the same variable. */
static const struct affine *make_derived(struct nest *nest, enum var_kind kind,
                                         const struct affine *of, struct size divisor) {
    for (int i = 0; i < nest->n_vars; i++) {
        const struct var *v = &nest->var[i];
        if (v->kind == kind && v->of == of && size_equal(v->divisor, divisor))
            return affine_var(nest, i);
    }
    int var = nest_add_var(nest, kind, kind == VAR_MOD ? divisor : size_const(0));
    nest->var[var].of = of;
    nest->var[var].divisor = divisor;
    nest->var[var].deps |= affine_deps(nest, of);
    return affine_var(nest, var);
}

/* ---- Arithmetic ---- */

const struct affine *affine_const(struct nest *nest, struct size value) {
    struct affine a = {.base = value};
    return make_unique(nest, &a);
}

const struct affine *affine_var(struct nest *nest, int var) {
    struct affine a = {.n = 1, .base = size_const(0)};
    a.term[0].var = var;
    a.term[0].coef = size_const(1);
    return make_unique(nest, &a);
}

static void push_term(struct nest *nest, struct affine *a, const struct term *term) {
    if (size_is(term->coef, 0)) return;
    if (a->n == NEST_TERMS) {
        nest_refuse(nest, "an index with too many loop variables");
        return;
    }
    /* Not as a struct: padding bytes must stay zero, since sums are compared as bytes. */
    a->term[a->n].var = term->var;
    a->term[a->n++].coef = term->coef;
}

/* Merges two sorted lists of terms; push_term drops terms that cancel out. */
const struct affine *affine_add(struct nest *nest, const struct affine *a, const struct affine *b) {
    struct affine sum = {.base = size_add(a->base, b->base)};
    for (int i = 0, k = 0; i < a->n || k < b->n;) {
        int of_a = i < a->n ? a->term[i].var : NEST_VARS,
            of_b = k < b->n ? b->term[k].var : NEST_VARS;
        struct term term = {of_a < of_b ? of_a : of_b, size_const(0)};
        if (of_a == term.var) term.coef = a->term[i++].coef;
        if (of_b == term.var) term.coef = size_add(term.coef, b->term[k++].coef);
        push_term(nest, &sum, &term);
    }
    return make_unique(nest, &sum);
}

const struct affine *affine_mul(struct nest *nest, const struct affine *a, struct size factor) {
    struct affine product = {.base = size_mul(a->base, factor)};
    for (int i = 0; i < a->n; i++) {
        struct term term = {a->term[i].var, size_mul(a->term[i].coef, factor)};
        push_term(nest, &product, &term);
    }
    return make_unique(nest, &product);
}

/* The sum without the term of `var`. */
const struct affine *affine_without(struct nest *nest, const struct affine *a, int var) {
    struct affine rest = {.base = a->base};
    for (int i = 0; i < a->n; i++)
        if (a->term[i].var != var) push_term(nest, &rest, &a->term[i]);
    return make_unique(nest, &rest);
}

const struct size *affine_find_coef(const struct affine *a, int var) {
    static const struct size zero;
    for (int i = 0; i < a->n; i++)
        if (a->term[i].var == var) return &a->term[i].coef;
    return &zero;
}

struct size affine_coef(const struct affine *a, int var) { return *affine_find_coef(a, var); }

/* Includes indirect dependences: x / 16 has the bit of the quotient's variable and all bits of x. */
uint64_t affine_deps(const struct nest *nest, const struct affine *a) {
    uint64_t deps = 0;
    for (int i = 0; i < a->n; i++) deps |= nest->var[a->term[i].var].deps;
    return deps;
}

/* ---- Bounds ---- */

/* The least and the greatest value of a sum; false if a coefficient or an extent is not a number. */
static bool find_bounds(const struct nest *nest, const struct affine *a, int64_t *low,
                        int64_t *high) {
    if (!size_is_const(a->base)) return false;
    *low = *high = size_value(a->base);
    for (int i = 0; i < a->n; i++) {
        const struct var *v = &nest->var[a->term[i].var];
        if (v->kind == VAR_DIV || !size_is_const(v->extent) || !size_is_const(a->term[i].coef))
            return false;
        int64_t reach = (size_value(v->extent) - 1) * size_value(a->term[i].coef);
        *(reach < 0 ? low : high) += reach;
    }
    return true;
}

/*
 * Three proofs: a single loop variable with the same extent (the usual case, also for symbolic sizes), the
 * constant 0, and interval arithmetic if all sizes are numbers. If none succeeds, the answer is false, which
 * only costs a test in the kernel.
 */
bool affine_is_within(const struct nest *nest, const struct affine *a, struct size extent) {
    int64_t low, high;
    if (a->n == 1 && size_is(a->term[0].coef, 1) && size_is(a->base, 0) &&
        nest->var[a->term[0].var].kind != VAR_DIV &&
        size_equal(nest->var[a->term[0].var].extent, extent))
        return true;
    if (a->n == 0 && size_is(a->base, 0)) return true; /* if the dim is empty, no loop runs */
    return size_is_const(extent) && find_bounds(nest, a, &low, &high) && low >= 0 &&
           high < size_value(extent);
}

/* ---- Quotient and remainder ---- */

/* a = whole * divisor + rest. `whole` has all terms that the divisor divides exactly. The base of `rest` is
 * made non-negative, so that (4*b - 1) / 4 becomes (b - 1) + 3 / 4 and then b - 1. */
static void split(struct nest *nest, const struct affine *a, struct size divisor,
                  const struct affine **whole, const struct affine **rest) {
    struct affine w = {.base = size_const(0)}, r = {.base = a->base};
    struct size quotient;
    for (int i = 0; i < a->n; i++) {
        struct term term = a->term[i];
        bool divides = size_divide(term.coef, divisor, &quotient);
        if (divides) term.coef = quotient;
        push_term(nest, divides ? &w : &r, &term);
    }
    if (size_is_const(a->base) && size_is_const(divisor)) {
        int64_t base = size_value(a->base), d = size_value(divisor);
        w.base = size_const(floor_div(base, d));
        r.base = size_const(base - floor_div(base, d) * d);
    } else if (size_divide(a->base, divisor, &quotient)) {
        w.base = quotient;
        r.base = size_const(0);
    }
    *whole = make_unique(nest, &w);
    *rest = make_unique(nest, &r);
}

/*
 * floor((whole * d + rest) / d) = whole + floor(rest / d), and floor(rest / d) is 0 if 0 <= rest < d.
 * Examples with i < 16: (16*b + i) / 16 = b; (16*b + i) / 4 = 4*b + i/4; (32*b + 16) / 16 = 2*b + 1.
 */
const struct affine *affine_div(struct nest *nest, const struct affine *a, struct size divisor) {
    const struct affine *whole, *rest;
    if (size_is(divisor, 1)) return a;
    split(nest, a, divisor, &whole, &rest);
    if (affine_is_within(nest, rest, divisor)) return whole;
    const struct var *v = &nest->var[rest->n ? rest->term[0].var : 0];
    /* (x / a) / b is x / (a * b): one form for both, so that they can be compared. */
    if (rest->n == 1 && v->kind == VAR_DIV && size_is(rest->term[0].coef, 1) &&
        size_is(rest->base, 0))
        rest = make_derived(nest, VAR_DIV, v->of, size_mul(v->divisor, divisor));
    else rest = make_derived(nest, VAR_DIV, rest, divisor);
    return affine_add(nest, whole, rest);
}

/* Only the rest matters: (16*b + i) % 16 is i if i < 16, else a variable for i % 16. */
const struct affine *affine_mod(struct nest *nest, const struct affine *a, struct size divisor) {
    const struct affine *whole, *rest;
    if (size_is(divisor, 1)) return affine_const(nest, size_const(0));
    split(nest, a, divisor, &whole, &rest);
    if (affine_is_within(nest, rest, divisor)) return rest;
    return make_derived(nest, VAR_MOD, rest, divisor);
}
