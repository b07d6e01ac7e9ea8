/* Pow: of floats, by cheaper layers for usual exponents; of integers, by repeated squaring. */
#include "import.h"

/* Input `i` in the element type of x. */
static sol_tensor as_type_of(struct op_call *c, sol_tensor x, int i) {
    sol_tensor y = call_tensor(c, i);
    return c->im->status ? y : call_cast(c, y, sol_model_dtype(c->im->model, x));
}

/* Are integers odd? A bool. */
static sol_tensor is_odd(struct op_call *c, sol_tensor y) {
    return call_cast(c, LAYER2(c, "bit_and", y, call_scalar_of(c, 1, SOL_I64), ""), SOL_BOOL);
}

/* The number of bits that exponents have: 63, if they are not known. */
static int count_bits(struct op_call *c) {
    int64_t power = INT64_MAX;
    int n = 1;
    if (c->in[1]->shape_value && call_count(c->in[1]) == 1) call_input_ints(c, 1, 1, &power);
    while (n < 63 && power >> n) n++;
    return n;
}

/* Powers of integers by repeated squaring, modulo 2^64. A negative exponent gives 0, except for the bases 1 and -1. */
static sol_tensor whole_power(struct op_call *c, sol_tensor x) {
    sol_tensor y = call_cast(c, call_tensor(c, 1), SOL_I64), base = call_cast(c, x, SOL_I64);
    sol_tensor one = call_scalar_of(c, 1, SOL_I64), zero = call_scalar_of(c, 0, SOL_I64);
    sol_tensor power = base, result = one, rest = y, two = call_scalar_of(c, 2, SOL_I64);
    for (int k = 0; k < count_bits(c); k++) {
        if (k) power = LAYER2(c, "mul", power, power, "");
        if (k) rest = LAYER2(c, "trunc_div", rest, two, "");
        result = LAYER2(c, "mul", result, call_where(c, is_odd(c, rest), power, one), "");
    }
    sol_tensor is_unit = LAYER2(c, "equal", LAYER2(c, "mul", base, base, ""), one, "");
    sol_tensor unit = call_where(c, is_unit, call_where(c, is_odd(c, y), base, one), zero);
    result = call_where(c, LAYER2(c, "less", y, zero, ""), unit, result);
    return call_cast(c, result, call_dtype(c, x));
}

/* Usual powers are cheaper layers. An integer to the power of a float is a float that is rounded towards 0. */
static sol_tensor power_of_whole(struct op_call *c, sol_tensor x) {
    enum sol_dtype own = call_dtype(c, x);
    if (size_family(c->in[1]->dtype) != FAMILY_FLOAT) return whole_power(c, x);
    sol_tensor y = call_cast(c, call_tensor(c, 1), SOL_F64);
    return call_cast(c, LAYER2(c, "pow", call_cast(c, x, SOL_F64), y, ""), own);
}

enum sol_status op_power(struct op_call *c) {
    static const struct {
        double power;
        const char *first, *second;
    } rows[] = {{2, "square", NULL},
                {0.5, "sqrt", NULL},
                {-1, "reciprocal", NULL},
                {-0.5, "rsqrt", NULL},
                {4, "square", "square"}};
    const struct import_value *p = c->in[1];
    sol_tensor x = call_tensor(c, 0);
    if (size_family(c->in[0]->dtype) != FAMILY_FLOAT)
        return call_set_output(c, 0, power_of_whole(c, x));
    if ((!p->data && !p->live) || call_count(p) != 1 || p->rank > call_rank(c, 0))
        return call_set_output(c, 0, LAYER2(c, "pow", x, as_type_of(c, x, 1), ""));
    double power = call_input_float(c, 1);
    if (power == 1) return call_set_output(c, 0, x);
    if (power == 3)
        return call_set_output(c, 0, LAYER2(c, "mul", LAYER1(c, "square", x, ""), x, ""));
    for (int i = 0; i < COUNT(rows); i++) {
        if (rows[i].power != power) continue;
        sol_tensor y = LAYER1(c, rows[i].first, x, "");
        return call_set_output(c, 0, rows[i].second ? LAYER1(c, rows[i].second, y, "") : y);
    }
    return call_set_output(c, 0, LAYER2(c, "pow", x, call_scalar(c, power), ""));
}
