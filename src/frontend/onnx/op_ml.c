/*
 * Operators of ai.onnx.ml that are plain mathematics, as layers. Their results are f32, whatever the type of the input, except for
 * Imputer, which keeps it. Lists of the attributes have one value, or one per feature: the last dim.
 */
#include "import.h"

#include <math.h>
#include <string.h>

/* The floats of an attribute; returns their count. */
static int floats(struct op_call *c, const char *name, const float **out) {
    const struct onnx_attribute *a = call_typed(c, name, ONNX_FLOATS);
    *out = a ? a->floats.at : NULL;
    return a ? a->floats.n : 0;
}

/* A constant of `n` values that is broadcast to the features of x; an error if their number is another one. */
static sol_tensor per_feature(struct op_call *c, const char *name, enum sol_dtype dtype, int n,
                              const void *values) {
    const int rank = call_rank(c, 0);
    const int64_t dim = n;
    if (n != 1 && (rank < 1 || call_dim(c, 0, rank - 1) != n))
        call_fail(c, fail(SOL_EINVAL, "%s has %d values for %lld features", name, n,
                          rank < 1 ? 0LL : (long long)call_dim(c, 0, rank - 1)));
    return call_param(c, dtype, 1, &dim, values);
}

/* Input 0 in f32. */
static sol_tensor single(struct op_call *c) {
    if (call_rank(c, 0) < 1) call_fail(c, fail(SOL_EINVAL, "a scalar"));
    return call_cast(c, call_tensor(c, 0), SOL_F32);
}

/* (x - offset) * scale; either may be missing. */
enum sol_status op_scaler(struct op_call *c) {
    static const char *const rows[][2] = {{"offset", "sub"}, {"scale", "mul"}};
    sol_tensor x = single(c);
    for (int i = 0; i < 2; i++) {
        const float *list;
        const int n = floats(c, rows[i][0], &list);
        if (n) x = LAYER2(c, rows[i][1], x, per_feature(c, rows[i][0], SOL_F32, n, list), "");
    }
    return call_set_output(c, 0, x);
}

/* Divides each row by its largest value, or its norm. A row whose divisor is 0 stays as it is. */
enum sol_status op_normalizer(struct op_call *c) {
    const char *norm = call_attribute(c, "norm") ? call_string(c, "norm") : "MAX";
    sol_tensor x = single(c), by = -1;
    if (!strcmp(norm, "MAX")) by = LAYER1(c, "reduce_max", x, "axes=[-1] keepdim=true");
    else if (!strcmp(norm, "L1") || !strcmp(norm, "L2"))
        by = LAYER1(c, "norm", x, "p=%c axes=[-1] keepdim=true", norm[1]);
    else return fail(SOL_EINVAL, "norm \"%.32s\"", norm);
    sol_tensor zero = call_scalar_of(c, 0, SOL_F32), one = call_scalar_of(c, 1, SOL_F32);
    by = call_where(c, LAYER2(c, "equal", by, zero, ""), one, by);
    return call_set_output(c, 0, LAYER2(c, "div", x, by, ""));
}

/* Which elements are to be replaced? NaN is found as a value that differs from itself. */
static sol_tensor is_missing(struct op_call *c, sol_tensor x, double replaced) {
    if (isnan(replaced)) return LAYER1(c, "bit_not", LAYER2(c, "equal", x, x, ""), "");
    return LAYER2(c, "equal", x, call_scalar(c, replaced), "");
}

/* The lists are floats for an input of floats, and integers for one of integers. */
enum sol_status op_imputer(struct op_call *c) {
    const bool is_whole = size_family(c->in[0]->dtype) == FAMILY_INTEGER;
    const char *name = is_whole ? "imputed_value_int64s" : "imputed_value_floats";
    const struct onnx_attribute *a = call_typed(c, name, is_whole ? ONNX_INTS : ONNX_FLOATS);
    const int n = !a ? 0 : is_whole ? a->ints.n : a->floats.n;
    if (!n) return fail(SOL_EINVAL, "%s is missing", name);
    const double replaced = is_whole ? (double)call_int(c, "replaced_value_int64", 0)
                                     : call_float(c, "replaced_value_float", 0);
    sol_tensor x = call_tensor(c, 0),
               with = per_feature(c, name, is_whole ? SOL_I64 : SOL_F32, n,
                                  is_whole ? (const void *)a->ints.at : a->floats.at);
    with = call_cast(c, with, c->in[0]->dtype);
    return call_set_output(c, 0, call_where(c, is_missing(c, x, replaced), with, x));
}

/* coefficients [targets, features] * x + intercepts */
enum sol_status op_linear_regressor(struct op_call *c) {
    const float *weight, *bias;
    const int64_t targets = call_int(c, "targets", 1);
    const int n_weights = floats(c, "coefficients", &weight),
              n_bias = floats(c, "intercepts", &bias);
    const char *transform = call_string(c, "post_transform");
    if (*transform && strcmp(transform, "NONE") != 0)
        return fail(SOL_EUNSUPPORTED, "post_transform \"%.32s\"", transform);
    if (call_rank(c, 0) != 2) return fail(SOL_EINVAL, "an input of rank %d", call_rank(c, 0));
    const int64_t width = call_dim(c, 0, 1);
    if (targets < 1 || n_weights % targets || n_weights / targets != width ||
        (n_bias && n_bias != targets))
        return fail(SOL_EINVAL, "%d coefficients and %d intercepts for %lld features, %lld targets",
                    n_weights, n_bias, (long long)width, (long long)targets);
    sol_tensor in[3] = {single(c), call_param(c, SOL_F32, 2, (int64_t[]){targets, width}, weight)};
    if (n_bias) in[2] = call_param(c, SOL_F32, 1, &targets, bias);
    return call_set_output(c, 0, call_layer(c, "linear", n_bias ? 3 : 2, in, ""));
}
