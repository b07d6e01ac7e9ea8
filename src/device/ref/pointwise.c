/*
 * The reference of sources and of pointwise layers.
 *
 *   values x, y of the inputs at one point  ->  the layer's formula  ->  the value of the output at this point
 *
 * The formula for floats is compiled twice: for float, in which f32, f16 and bf16 compute, and for double. With C's type-generic
 * functions, exp is expf for a float. Integers and bools compute in int64_t.
 */
#include "device/ref/eval.h"

#include <tgmath.h>

/* ---- Sources ---- */

/* Inputs and parameters come from the caller. */
void ref_eval_input(const struct layer_call *c) { (void)c; }

void ref_eval_param(const struct layer_call *c) { (void)c; }

void ref_eval_scalar(const struct layer_call *c) { ref_set_constant(c, 0, c->attr->value); }

void ref_eval_arange(const struct layer_call *c) {
    const int64_t start = size_eval(&c->attr->start, c->symbols);
    for (int64_t i = 0; i < c->shape.n; i++)
        ref_set_whole(c, i, REF_WRAP(start, +, REF_WRAP(i, *, c->attr->step)));
}

/* ---- Formulas ---- */

#define ARGUMENTS(type) const struct layer_call *c, type x, type y

/* Computes all points. If there is one input, x and y are both its value. */
static void eval_points(const struct layer_call *c, float (*single)(ARGUMENTS(float)),
                        double (*twice)(ARGUMENTS(double)), int64_t (*whole)(ARGUMENTS(int64_t))) {
    int last = c->layer->n_in - 1;
    struct shape xs = ref_get_shape(c, 0), ys = ref_get_shape(c, last);
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t p = ref_find_broadcast(&xs, c->shape.rank, at),
                q = ref_find_broadcast(&ys, c->shape.rank, at);
        if (!c->is_real) ref_set_whole(c, i, whole(c, ref_whole(c, 0, p), ref_whole(c, last, q)));
        else if (c->type == SOL_F64)
            ref_set_real(c, i, twice(c, ref_real(c, 0, p), ref_real(c, last, q)));
        else
            ref_set_real(c, i,
                         (double)single(c, (float)ref_real(c, 0, p), (float)ref_real(c, last, q)));
        ref_step_point(&c->shape, at);
    }
}

#define FORMULA(type, name, ...)                \
    static type name(ARGUMENTS(type)) {         \
        (void)c, (void)y;                       \
        return __VA_ARGS__;                     \
    }
#define EVAL(name, ...) \
    void ref_eval_##name(const struct layer_call *c) { eval_points(c, __VA_ARGS__); }
#define REALS(name, real)                    \
    FORMULA(float, single_##name, real)      \
    FORMULA(double, double_##name, real)
/* A line is a layer: its formula for floats, for integers (and bools), or both. */
#define FLOATS(name, real) \
    REALS(name, real)      \
    EVAL(name, single_##name, double_##name, NULL)
#define INTEGERS(name, whole)                  \
    FORMULA(int64_t, whole_##name, whole)      \
    EVAL(name, NULL, NULL, whole_##name)
#define NUMBERS(name, real, whole)             \
    REALS(name, real)                          \
    FORMULA(int64_t, whole_##name, whole)      \
    EVAL(name, single_##name, double_##name, whole_##name)
/* A constant in the type of x. */
#define R(value) ((__typeof__(x))(value))

/* A function of floats and the same of doubles; CALL chooses. */
#define BOTH(name, ...)                                               \
    static float name##_single(float x, float y) { __VA_ARGS__ }      \
    static double name##_double(double x, double y) { __VA_ARGS__ }
#define CALL(name, x, y) _Generic(x, float: name##_single, double: name##_double)(x, y)

/* ---- One input ---- */

/* Comparisons are written so that NaN is returned, as by PyTorch's clamp. */
static double clamp(double x, double low, double high) {
    double v = x < low ? low : x;
    return v > high ? high : v;
}

static int64_t clamp_whole(const struct layer_call *c, int64_t x) {
    int64_t low = ref_constant(c->type, c->attr->min), high = ref_constant(c->type, c->attr->max);
    return min_i64(max_i64(x, low), high);
}

/* As PyTorch, which has the threshold 20: above it the result, rounded to float, is x. The same holds for 40 and double. Without it
 * exp would overflow for large x. */
BOTH(softplus, return x > y ? x : log1p(exp(x));)
#define SOFTPLUS(x) CALL(softplus, x, sizeof x == sizeof(float) ? 20 : 40)

NUMBERS(relu, x < 0 ? 0 : x, x < 0 ? 0 : x)
NUMBERS(clamp, R(clamp((double)x, (double)R(c->attr->min), (double)R(c->attr->max))),
        clamp_whole(c, x))
FLOATS(leaky_relu, x > 0 ? x : R(c->attr->alpha) * x)
FLOATS(elu,
       R(c->attr->scale) * (x > 0 ? x : R(c->attr->alpha) * expm1(R(c->attr->input_scale) * x)))
FLOATS(sigmoid, 1 / (1 + exp(-x)))
FLOATS(tanh, tanh(x))
FLOATS(gelu, R(0.5) * x * (1 + erf(x * R(M_SQRT1_2))))
FLOATS(gelu_tanh,
       R(0.5) * x * (1 + tanh(R(M_SQRT2 * M_2_SQRTPI / 2) * (x + R(0.044715) * x * x * x))))
FLOATS(silu, x / (1 + exp(-x)))
FLOATS(hardsigmoid, R(clamp((double)(x + 3), 0, 6)) / 6)
FLOATS(hardswish, x *R(clamp((double)(x + 3), 0, 6)) / 6)
FLOATS(softplus, SOFTPLUS(x))
FLOATS(mish, x *tanh(SOFTPLUS(x)))
FLOATS(exp, exp(x))
FLOATS(log, log(x))
FLOATS(sqrt, sqrt(x))
FLOATS(rsqrt, 1 / sqrt(x))
NUMBERS(abs, fabs(x), x < 0 ? REF_WRAP(0, -, x) : x)
NUMBERS(neg, -x, REF_WRAP(0, -, x))
NUMBERS(square, x *x, REF_WRAP(x, *, x))
FLOATS(reciprocal, 1 / x)
FLOATS(erf, erf(x))
FLOATS(softsign, x / (1 + fabs(x)))
FLOATS(sin, sin(x))
FLOATS(cos, cos(x))
FLOATS(tan, tan(x))
FLOATS(asin, asin(x))
FLOATS(acos, acos(x))
FLOATS(atan, atan(x))
FLOATS(sinh, sinh(x))
FLOATS(cosh, cosh(x))
FLOATS(asinh, asinh(x))
FLOATS(acosh, acosh(x))
FLOATS(atanh, atanh(x))
FLOATS(floor, floor(x))
FLOATS(ceil, ceil(x))
FLOATS(trunc, trunc(x))
/* The default rounding of IEEE 754: halves to even. */
FLOATS(round, rint(x))
NUMBERS(sign, (x > 0) - (x < 0), (x > 0) - (x < 0))
INTEGERS(bit_not, c->type == SOL_BOOL ? !x : ~x)
/* Reading and writing converts (element.h). */
NUMBERS(cast, x, x)

/* ---- Two inputs ---- */

/* NaN if x or y is NaN. */
NUMBERS(maximum, isnan(x) || x > y ? x : y, x > y ? x : y)
NUMBERS(minimum, isnan(x) || x < y ? x : y, x < y ? x : y)
NUMBERS(add, x + y, REF_WRAP(x, +, y))
NUMBERS(sub, x - y, REF_WRAP(x, -, y))
NUMBERS(mul, x *y, REF_WRAP(x, *, y))
FLOATS(div, x / y)
FLOATS(pow, pow(x, y))
FLOATS(prelu, x < 0 ? y * x : x)
NUMBERS(less, x < y, x < y)
NUMBERS(less_equal, x <= y, x <= y)
NUMBERS(equal, x == y, x == y)

/* -- Quotients and remainders -- */

/* The remainder of C is r. Must it be moved by y, so that it has the sign of y, as the remainder of Python? */
#define IS_MOVED(r, y) ((r) != 0 && ((r) < 0) != ((y) < 0))

/* The smallest i64 by -1 overflows. */
static int64_t quotient(int64_t x, int64_t y) {
    if (y == 0) return 0;
    return y == -1 ? REF_WRAP(0, -, x) : x / y;
}

static int64_t remainder_of(int64_t x, int64_t y) { return y == 0 || y == -1 ? 0 : x % y; }

/* torch.floor_divide of floats: the quotient of x - r and y is nearly whole. */
BOTH(quotient_down, __typeof__(x) r = fmod(x, y); if (y == 0) return x / y;
     return copysign(rint((x - r) / y - IS_MOVED(r, y)), x / y);)
BOTH(remainder_down, __typeof__(x) r = fmod(x, y); return IS_MOVED(r, y) ? r + y : r;)

static int64_t quotient_down_whole(int64_t x, int64_t y) {
    return REF_WRAP(quotient(x, y), -, IS_MOVED(remainder_of(x, y), y));
}

static int64_t remainder_down_whole(int64_t x, int64_t y) {
    int64_t r = remainder_of(x, y);
    return IS_MOVED(r, y) ? r + y : r;
}

NUMBERS(trunc_div, trunc(x / y), quotient(x, y))
NUMBERS(rem, fmod(x, y), remainder_of(x, y))
NUMBERS(floor_div, CALL(quotient_down, x, y), quotient_down_whole(x, y))
NUMBERS(mod, CALL(remainder_down, x, y), remainder_down_whole(x, y))

/* -- Bits -- */

INTEGERS(bit_and, x &y)
INTEGERS(bit_or, x | y)
INTEGERS(bit_xor, x ^ y)
/* Writing drops the bits beyond the type's width. */
INTEGERS(shift_left, y < 0 || y > 63 ? 0 : REF_WRAP(x, <<, y))
INTEGERS(shift_right, x >> (y < 0 || y > 63 ? 63 : y))

/* ---- Three inputs ---- */

void ref_eval_where(const struct layer_call *c) {
    struct shape s[3] = {ref_get_shape(c, 0), ref_get_shape(c, 1), ref_get_shape(c, 2)};
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < c->shape.n; i++) {
        int from = ref_whole(c, 0, ref_find_broadcast(&s[0], c->shape.rank, at)) ? 1 : 2;
        ref_move(c, i, from, ref_find_broadcast(&s[from], c->shape.rank, at));
        ref_step_point(&c->shape, at);
    }
}
