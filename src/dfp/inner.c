/*
 * Inner iterations: those whose windows are inside the image, so that no tap needs a test.
 *
 *   emit.c: a loop with windows in its body  ->  [this file]  ->  bounds of its inner iterations; which conditions hold there
 *
 * For y[i] = max over s < 3 of x[2*i + s - 1], where 0 <= 2*i + s - 1 < 112, the inner iterations are 1 <= i < 55. emit.c prints the
 * loop's body twice: without the conditions for inner iterations, and with them for the others.
 *
 * A condition takes part if it is a sum with constant, positive coefficients of the loop's variable and of variables of windows, and
 * of anything that has its value before the loop.
 */
#include "dfp/print.h"

bool print_is_known(const struct printer *p, const struct range *r) {
    for (int i = 0; i < p->known.n; i++)
        if (p->known.at[i] == r) return true;
    return false;
}

static bool is_small(struct size coef) { return size_is_const(coef) && size_value(coef) >= 0; }

/* Can the range be bounds of the loop over `var`? `inside`: the variables of loops inside of that loop. */
static bool fits(const struct printer *p, const struct range *r, int var, uint64_t inside) {
    const struct nest *nest = p->nest;
    for (int i = 0; i < r->x->n; i++) {
        const struct term *t = &r->x->term[i];
        const bool changes = t->var == var || (inside & var_bit(t->var));
        const struct var *v = &nest->var[t->var];
        if (v->of ? (v->deps & (inside | var_bit(var))) != 0 : t->var == nest->lane_var)
            return false;
        if (changes && !is_small(t->coef)) return false;
        if (!changes && print_is_vector(p, v->deps))
            return false; /* a loop over lanes around this one */
        if ((inside & var_bit(t->var)) && !v->is_window) return false;
    }
    return true;
}

static bool fit(const struct printer *p, const struct range *const *r, int n, int var,
                uint64_t inside) {
    for (int i = 0; i < n; i++)
        if (!fits(p, r[i], var, inside)) return false;
    return true;
}

static void add_ranges(struct printer *p, const struct range *const *r, int n) {
    for (int i = 0; i < n; i++)
        if (!print_is_known(p, r[i])) VEC_PUSH(p->nest->arena, &p->known, r[i]);
}

/* The variables of a reduction's loops. */
static uint64_t reduced_vars(const struct item *item) {
    uint64_t inside = 0;
    for (const struct block *b = item->block; b; b = nest_inner_loop(b)) inside |= var_bit(b->var);
    return inside;
}

/* Conditions of a reduction's loops, and of the loads in them, if all of them fit. */
static void add_reduction(struct printer *p, const struct item *item, int var) {
    const uint64_t inside = reduced_vars(item);
    for (const struct block *b = item->block; b; b = nest_inner_loop(b)) {
        if (!fit(p, b->clip, b->n_clips, var, inside)) return;
        for (int i = 0; i < b->items.n; i++)
            if (!fit(p, b->items.at[i].range, b->items.at[i].n_ranges, var, inside)) return;
    }
    for (const struct block *b = item->block; b; b = nest_inner_loop(b)) {
        add_ranges(p, b->clip, b->n_clips);
        for (int i = 0; i < b->items.n; i++)
            add_ranges(p, b->items.at[i].range, b->items.at[i].n_ranges);
    }
}

int print_find_known(struct printer *p, const struct block *b) {
    const int before = p->known.n;
    for (int i = 0; i < b->items.n; i++)
        if (b->items.at[i].kind == ITEM_LOOP) return 0;
    for (int i = 0; i < b->items.n; i++)
        if (b->items.at[i].kind == ITEM_REDUCE) add_reduction(p, &b->items.at[i], b->var);
    return p->known.n - before;
}

/* The sum at the last tap of all windows `inside`, or at their first one. Reductions around the loop have one value in it. */
static const struct affine *at_tap(struct nest *nest, const struct affine *x, uint64_t inside,
                                   bool last) {
    const struct affine *sum = x;
    for (int i = 0; i < x->n; i++) {
        const struct term *t = &x->term[i];
        if (!(inside & var_bit(t->var))) continue;
        sum = affine_without(nest, sum, t->var);
        const struct size extent = nest->var[t->var].extent;
        int64_t reach = last ? (size_value(extent) - 1) * size_value(t->coef) : 0;
        sum = affine_add(nest, sum, affine_const(nest, size_const(reach)));
    }
    return sum;
}

static void print_outer(struct printer *p, const struct range *r, int var, const char *begin,
                        const char *end) {
    const int64_t coef = size_value(affine_coef(r->x, var));
    if (coef) {
        print_bounds(p, r, coef, var, begin, end);
        return;
    }
    print_line(p, "if (!(");
    print_condition(p, r, false);
    text_add(p->text, ")) %s = 0;\n", end);
}

void print_inner_bounds(struct printer *p, const struct block *b, int n) {
    struct nest *nest = p->nest;
    const char *begin = arena_printf(nest->arena, "i%d_inner", b->var);
    const char *end = arena_printf(nest->arena, "i%d_outer", b->var);
    uint64_t inside = 0;
    for (int i = 0; i < b->items.n; i++)
        if (b->items.at[i].kind == ITEM_REDUCE) inside |= reduced_vars(&b->items.at[i]);
    for (int i = p->known.n - n; i < p->known.n; i++) {
        const struct range *r = p->known.at[i];
        const struct size far = size_const((int64_t)1 << 60);
        const struct affine *first = at_tap(nest, r->x, inside, false);
        const struct affine *last = at_tap(nest, r->x, inside, true);
        print_outer(p, affine_range(nest, first, r->low, far), b->var, begin, end);
        print_outer(p, affine_range(nest, last, size_const(-((int64_t)1 << 60)), r->high), b->var,
                    begin, end);
    }
}
