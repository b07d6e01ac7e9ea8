/*
 * Quantization: a scale and a zero point for the whole tensor, per position of an axis, or per block of an axis.
 *
 * The quotient by the scale is rounded to f32 first, as the operator defines: otherwise digits that f32 does not have would
 * decide how values halfway between two integers are rounded. Then it is rounded to even, the zero point is added, and the sum is
 * saturated.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* How scales are assigned to elements. */
struct grid {
    int64_t n, inner,
        block; /* the axis: its size, the product of the dims after it, elements that share a scale */
    int64_t per; /* number of scales along the axis; 1: one for all */
};

/* `scale` is one number, a list along an axis, or a tensor of x's rank in which each scale is for a block of the axis. */
static struct grid read_grid(struct eval *e, const struct array *x, const struct array *scale) {
    struct grid g = {1, 1, eval_int(e, "block_size", 0), 1};
    if (scale->n == 1 && scale->rank <= 1) return g;
    int axis = eval_axis(e, eval_int(e, "axis", 1), x->rank);
    g.n = x->dim[axis];
    g.inner = product(x->rank - axis - 1, x->dim + axis + 1);
    eval_check(e, g.block >= 0, "block_size");
    if (!g.block) {
        eval_check(e, scale->n == g.n, "scales that do not fit the axis");
        g.per = g.n;
        g.block = 1;
        g.inner = product(x->rank - axis - 1, x->dim + axis + 1);
        return g;
    }
    g.per = ceil_div(g.n, g.block);
    eval_check(e,
               scale->rank == x->rank && scale->dim[axis] == g.per &&
                   scale->n == x->n / max_i64(1, g.n) * g.per,
               "scales that do not fit the blocks");
    return g;
}

/* The index of the scale of element `i`. */
static int64_t scale_of(const struct grid *g, bool is_blocked, int64_t i) {
    if (g->per == 1 && !is_blocked) return 0;
    int64_t at = i / g->inner % g->n / g->block;
    return is_blocked ? (i / g->inner / g->n * g->per + at) * g->inner + i % g->inner : at;
}

/* The least and the greatest value of an integer type. */
static void bounds_of(enum type type, double *low, double *high) {
    int bits = type == TYPE_I4 || type == TYPE_U4   ? 4
               : type == TYPE_I2 || type == TYPE_U2 ? 2
                                                    : 8 * (int)types[type].size;
    bool is_signed = types[type].kind == KIND_SIGNED;
    *low = is_signed ? -ldexp(1, bits - 1) : 0;
    *high = ldexp(1, is_signed ? bits - 1 : bits) - 1;
}

/* For integers: rounds to even, adds the zero point and saturates to the type. For small floats: adds the zero point and rounds. */
static void set_quantized(struct array *y, int64_t i, double value, double zero, bool saturates) {
    double low, high;
    if (is_float(y->type)) {
        ((uint8_t *)y->data)[i] = (uint8_t)float_encode(y->type, value + zero, saturates);
        return;
    }
    bounds_of(y->type, &low, &high);
    value = rint(value) + zero;
    array_set_double(y, i, fmax(low, fmin(high, value)));
}

/* The result's type is that of the attribute, else of the zero point, else u8. */
void run_quantize(struct eval *e) {
    const struct array *x = eval_in(e, 0), *scale = eval_in(e, 1);
    const struct array *zero = eval_has(e, 2) ? eval_in(e, 2) : NULL;
    int64_t type = eval_int(e, "output_dtype", 0);
    if (!type) type = zero ? (int64_t)zero->type : TYPE_U8;
    eval_check(e, type_is_known(type) && types[type].size <= 2 && type != TYPE_STRING,
               "output_dtype");
    eval_check(e, !zero || zero->n == scale->n, "as many zero points as scales");
    struct grid g = read_grid(e, x, scale);
    bool is_blocked = eval_int(e, "block_size", 0) > 0 && scale->n > 1,
         saturates = eval_int(e, "saturate", 1);
    struct array *y = eval_out(e, 0, (enum type)type, x->rank, x->dim);
    enum type precise = (enum type)eval_int(e, "precision", 0);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t k = scale_of(&g, is_blocked, i);
        double value = array_double(x, i) / array_double(scale, k);
        if (!precise || precise == TYPE_F32) value = (double)(float)value;
        set_quantized(y, i, value, zero ? array_double(zero, k) : 0, saturates);
    }
}

/* (x - zero point) * scale. */
void run_dequantize(struct eval *e) {
    const struct array *x = eval_in(e, 0), *scale = eval_in(e, 1);
    const struct array *zero = eval_has(e, 2) ? eval_in(e, 2) : NULL;
    int64_t type = eval_int(e, "output_dtype", 0);
    if (!type) type = scale->type;
    eval_check(e, type_is_known(type) && is_float((enum type)type), "output_dtype");
    eval_check(e, !zero || zero->n == scale->n, "as many zero points as scales");
    struct grid g = read_grid(e, x, scale);
    bool is_blocked = eval_int(e, "block_size", 0) > 0 && scale->n > 1;
    struct array *y = eval_out(e, 0, (enum type)type, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t k = scale_of(&g, is_blocked, i);
        double value = array_double(x, i) - (zero ? array_double(zero, k) : 0);
        array_set_double(y, i, value * array_double(scale, k));
    }
}
