/*
 * Operators on shape values that compute element by element: arithmetic, comparisons, casts.
 *
 * Elements are formulas of the batch. Sums and products of formulas are formulas. A quotient is a formula only if the division is
 * exact. A comparison is known if both sides are constants, or if one is negative and the other is a formula that never is. If a
 * result is not known, the function fails with a reason.
 */
#include "import.h"

#include <string.h>

/* ---- Element by element, with broadcasting ---- */

/* Computes one element of the result from the elements `x` of the inputs, which broadcasting has aligned. */
typedef enum sol_status compute_number(struct op_call *c, const struct size *x, struct size *out);

/* Broadcasts the dims of all inputs; returns their product, or -1 when they do not fit. */
static int64_t broadcast(const struct op_call *c, int *rank, int64_t dim[SOL_MAX_RANK]) {
    int64_t n = 1;
    for (int i = *rank = 0; i < c->n_in; i++)
        *rank = c->in[i]->rank > *rank ? c->in[i]->rank : *rank;
    for (int d = 0; d < *rank; d++) dim[d] = 1;
    for (int i = 0; i < c->n_in; i++)
        for (int d = 0, at = *rank - c->in[i]->rank; d < c->in[i]->rank; d++, at++) {
            int64_t size = size_value(c->in[i]->dim[d]);
            if (size < 0 || (size != 1 && dim[at] != 1 && dim[at] != size)) return -1;
            if (size != 1) dim[at] = size;
        }
    for (int d = 0; d < *rank; d++)
        if (__builtin_mul_overflow(n, dim[d], &n)) return -1;
    return n;
}

/* The element of `v` that is broadcast to element `i` of `dim`. */
static struct size element(const struct import_value *v, int rank, const int64_t *dim, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = rank - 1, k = v->rank - 1; k >= 0; d--, k--) {
        int64_t size = size_value(v->dim[k]);
        if (size != 1) at += i % dim[d] * step;
        step *= size;
        i /= dim[d];
    }
    return v->shape_value[at];
}

/* The number as an element of the type, modulo 2^bits. */
static struct size wrap(struct size number, enum sol_dtype to) {
    const int unused = 64 - 8 * (int)size_element(to);
    if (number.bad || !size_is_const(number) || to == SOL_BOOL) return number;
    const uint64_t bits = (uint64_t)size_value(number) << unused;
    return size_const(to == SOL_U8 ? (int64_t)(bits >> unused) : (int64_t)bits >> unused);
}

/* The result has the element type of the last input. */
static enum sol_status output_each(struct op_call *c, compute_number *compute) {
    const enum sol_dtype dtype = c->in[c->n_in - 1]->dtype;
    int64_t dim[SOL_MAX_RANK];
    int rank;
    int64_t n = broadcast(c, &rank, dim);
    if (n < 0 || n > IMPORT_MAX_SHAPE_VALUES || c->n_in > 3)
        return fail(SOL_EUNSUPPORTED, "numbers whose shapes do not fit, or more than %d",
                    IMPORT_MAX_SHAPE_VALUES);
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) {
        struct size x[3];
        for (int k = 0; k < c->n_in; k++) x[k] = element(c->in[k], rank, dim, i);
        TRY(compute(c, x, &numbers[i]));
        numbers[i] = wrap(numbers[i], dtype);
        if (numbers[i].bad)
            return fail(SOL_EUNSUPPORTED,
                        "a number that overflows or depends on the batch in too many ways");
    }
    TRY(call_set_shape_value(c, 0, rank, dim, numbers));
    if (c->out[0]) c->out[0]->dtype = dtype;
    return SOL_OK;
}

/* Integer division, towards 0: that is down where x is not negative. */
static enum sol_status divide(struct op_call *c, struct size x, struct size y, struct size *out) {
    if (size_divide(x, y, out)) return SOL_OK;
    if (!size_is_const(y) || size_value(y) <= 0 || (!size_is_const(x) && !size_never_negative(x)))
        return fail(SOL_EUNSUPPORTED, "a quotient by an open size or 0, or of a negative size");
    *out = size_is_const(x) ? size_const(size_value(x) / size_value(y))
                            : call_floor(c, x, size_value(y));
    return c->im->status;
}

static enum sol_status compute_arithmetic(struct op_call *c, const struct size *x,
                                          struct size *out) {
    if (!strcmp(c->op->layer, "add")) *out = size_add(x[0], x[1]);
    else if (!strcmp(c->op->layer, "sub")) *out = size_sub(x[0], x[1]);
    else if (!strcmp(c->op->layer, "mul")) *out = size_mul(x[0], x[1]);
    else return divide(c, x[0], x[1], out);
    return SOL_OK;
}

enum sol_status op_arithmetic(struct op_call *c) { return output_each(c, compute_arithmetic); }

/* The remainder has the sign of the divisor; with fmod, of the dividend. */
static enum sol_status compute_modulo(struct op_call *c, const struct size *x, struct size *out) {
    if (!size_is_const(x[0]) || !size_is_const(x[1]) || size_value(x[1]) <= 0)
        return fail(SOL_EUNSUPPORTED, "a remainder that depends on the batch, or by 0");
    const int64_t y = size_value(x[1]), r = size_value(x[0]) % y;
    *out = size_const(r < 0 && !call_int(c, "fmod", 0) ? r + y : r);
    return SOL_OK;
}

enum sol_status op_fold_modulo(struct op_call *c) { return output_each(c, compute_modulo); }

static enum sol_status compute_negative(struct op_call *c, const struct size *x, struct size *out) {
    (void)c;
    *out = size_scale(x[0], -1);
    return SOL_OK;
}

enum sol_status op_fold_negate(struct op_call *c) { return output_each(c, compute_negative); }

/* *out is below 0, 0 or above 0, as a is less than, equal to or greater than b. False when that depends on the batch. A formula
 * that is never negative is greater than any negative constant. */
static bool find_order(struct size a, struct size b, int64_t *out) {
    bool a_below = size_is_const(a) && size_value(a) < 0,
         b_below = size_is_const(b) && size_value(b) < 0;
    *out = 0;
    if (size_equal(a, b)) return true;
    if (size_is_const(a) && size_is_const(b)) *out = size_value(a) < size_value(b) ? -1 : 1;
    else if (a_below && size_never_negative(b)) *out = -1;
    else if (b_below && size_never_negative(a)) *out = 1;
    return *out != 0;
}

static enum sol_status compute_comparison(struct op_call *c, const struct size *x,
                                          struct size *out) {
    bool swaps = !strncmp(c->op->name, "Greater", 7),
         or_equal = strstr(c->op->name, "OrEqual") != NULL;
    int64_t order;
    if (!find_order(x[swaps], x[!swaps], &order))
        return fail(SOL_EUNSUPPORTED, "a comparison that depends on the batch");
    bool is_equal = !strcmp(c->op->layer, "equal");
    *out = size_const(order == 0 ? is_equal || or_equal : !is_equal && order < 0);
    return SOL_OK;
}

static enum sol_status output_truth(struct op_call *c, compute_number *compute) {
    TRY(output_each(c, compute));
    if (c->out[0]) c->out[0]->dtype = SOL_BOOL;
    return SOL_OK;
}

enum sol_status op_fold_compare(struct op_call *c) { return output_truth(c, compute_comparison); }

/* And, Or, Xor, Not. The result is 1 or 0. */
static enum sol_status compute_logic(struct op_call *c, const struct size *x, struct size *out) {
    bool a = !size_is(x[0], 0), b = c->n_in > 1 && !size_is(x[1], 0);
    const char *layer = c->op->layer;
    *out = size_const(!strcmp(layer, "bit_and")  ? a && b
                      : !strcmp(layer, "bit_or") ? a || b
                                                 : a != b);
    if (c->n_in == 1) *out = size_const(!a);
    return SOL_OK;
}

enum sol_status op_fold_logic(struct op_call *c) { return output_truth(c, compute_logic); }

/* ---- Types ---- */

/* A shape value as a known value of f32. */
static enum sol_status cast_to_float(struct op_call *c) {
    struct import_value value = *c->in[0];
    int64_t n = call_count(&value);
    float *data = arena_alloc_array(c->im->arena, sizeof *data, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++) {
        if (!size_is_const(value.shape_value[i]))
            return fail(SOL_EUNSUPPORTED, "a number that depends on the batch as a float");
        data[i] = (float)size_value(value.shape_value[i]);
    }
    value.dtype = SOL_F32;
    value.data = data;
    value.shape_value = NULL;
    value.tensor = -1;
    value.live = NULL; /* it has been read, so a guard holds it */
    return call_set_output_value(c, 0, &value);
}

static enum sol_status cast_numbers(struct op_call *c, enum sol_dtype to) {
    struct import_value value = *c->in[0];
    int64_t n = call_count(&value);
    if (to == SOL_F32) return cast_to_float(c);
    if (to < SOL_I64) return fail(SOL_EUNSUPPORTED, "integers to floats of this type");
    value.data = to == value.dtype ? value.data : NULL;
    if (to != value.dtype) value.live = NULL;
    value.dtype = to;
    value.tensor = -1;
    value.shape_value = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) {
        const struct size number = c->in[0]->shape_value[i];
        value.shape_value[i] = to == SOL_BOOL ? size_const(!size_is(number, 0)) : wrap(number, to);
    }
    return call_set_output_value(c, 0, &value);
}

/* A shape value keeps its elements in any integer type. */
enum sol_status op_cast(struct op_call *c) {
    enum sol_dtype to;
    if (c->op->max_in == 2) to = c->in[1]->dtype; /* CastLike */
    else TRY(tensor_dtype(call_int(c, "to", 0), &to));
    struct import_value same = *c->in[0];
    bool is_number = size_family(to) != FAMILY_FLOAT || to == SOL_F32;
    if (same.shape_value && same.tensor < 0 && is_number && call_shape_value(c, 0))
        return cast_numbers(c, to);
    if (same.dtype == to) return call_set_output_value(c, 0, &same);
    return call_set_output(c, 0, call_cast(c, call_tensor(c, 0), to));
}
