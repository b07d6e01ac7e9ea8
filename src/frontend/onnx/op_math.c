/* Operators that compute on floats: products, pointwise functions, reductions. Each function adds layers. */
#include "import.h"

#include <math.h>
#include <string.h>

static sol_tensor scale(struct op_call *c, sol_tensor x, double factor) {
    return factor == 1 ? x : LAYER2(c, "mul", x, call_scalar(c, factor), "");
}

/* ---- Products ---- */

/* The transposed matrix. */
static sol_tensor transposed(struct op_call *c, sol_tensor x) {
    return LAYER1(c, "permute", x, "axes=[1,0]");
}

/* Is input `i` constant, so that a layer may take it as its weight? */
static bool is_weight(const struct op_call *c, int i) { return c->in[i]->data != NULL; }

/* alpha * A * B + beta * C; attributes may transpose A and B. */
enum sol_status op_gemm(struct op_call *c) {
    double alpha = call_float(c, "alpha", 1), beta = call_float(c, "beta", 1);
    if (call_rank(c, 0) != 2 || call_rank(c, 1) != 2)
        return fail(SOL_EINVAL, "ranks %d and %d", call_rank(c, 0), call_rank(c, 1));
    sol_tensor in[3] = {call_tensor(c, 0), call_tensor(c, 1)};
    bool turns_b = call_int(c, "transB", 0) != 0, is_linear = is_weight(c, 1);
    if (call_int(c, "transA", 0)) in[0] = transposed(c, in[0]);
    if (turns_b != is_linear) in[1] = transposed(c, in[1]); /* linear's weight is [k, c] */
    bool is_bias = is_linear && call_has(c, 2) && alpha == 1 && beta == 1 && is_weight(c, 2) &&
                   call_rank(c, 2) == 1 && call_dim(c, 2, 0) == call_dim(c, 1, turns_b ? 0 : 1);
    if (is_bias) in[2] = call_tensor(c, 2);
    sol_tensor y = call_layer(c, is_linear ? "linear" : "matmul", 2 + is_bias, in, "");
    y = scale(c, y, alpha);
    if (is_bias || !call_has(c, 2)) return call_set_output(c, 0, y);
    return call_set_output(c, 0, LAYER2(c, "add", y, scale(c, call_tensor(c, 2), beta), ""));
}

/* A vector counts as a row on the left, and as a column on the right. */
static sol_tensor as_matrix(struct op_call *c, int i) {
    struct size dim[2] = {size_const(1), size_const(1)};
    if (call_rank(c, i) != 1) return call_tensor(c, i);
    dim[!i] = c->in[i]->dim[0];
    return call_reshape(c, call_tensor(c, i), 2, dim);
}

/* As numpy.matmul. The dims of 1 that as_matrix adds to vectors are removed from the result. */
enum sol_status op_matmul(struct op_call *c) {
    struct size dim[SOL_MAX_RANK];
    int left = call_rank(c, 0), right = call_rank(c, 1);
    if (left < 1 || right < 1) return fail(SOL_EINVAL, "ranks %d and %d", left, right);
    sol_tensor y = LAYER2(c, "matmul", as_matrix(c, 0), as_matrix(c, 1), "");
    int rank = call_shape(c, y, dim);
    if (c->im->status || (left > 1 && right > 1)) return call_set_output(c, 0, y);
    if (left == 1 && right > 1) dim[rank - 2] = dim[rank - 1];
    return call_set_output(c, 0, call_reshape(c, y, rank - (left == 1) - (right == 1), dim));
}

/* ---- Pointwise ---- */

enum sol_status op_unary(struct op_call *c) {
    return call_set_output(c, 0, LAYER1(c, c->op->layer, call_tensor(c, 0), ""));
}

enum sol_status op_gelu(struct op_call *c) {
    bool is_tanh = !strcmp(call_string(c, "approximate"), "tanh");
    return call_set_output(c, 0, LAYER1(c, is_tanh ? "gelu_tanh" : "gelu", call_tensor(c, 0), ""));
}

enum sol_status op_alpha(struct op_call *c) {
    double default_value = !strcmp(c->op->layer, "elu") ? 1.0 : 0.01;
    return call_set_output(c, 0,
                           LAYER1(c, c->op->layer, call_tensor(c, 0), "alpha=%s",
                                  call_format_double(c, call_float(c, "alpha", default_value))));
}

/* gamma * elu(x); Klambauer et al., "Self-Normalizing Neural Networks", arXiv 1706.02515 */
enum sol_status op_selu(struct op_call *c) {
    double alpha = call_float(c, "alpha", 1.67326319217681884765625),
           gamma = call_float(c, "gamma", 1.05070102214813232421875);
    return call_set_output(c, 0,
                           LAYER1(c, "elu", call_tensor(c, 0), "alpha=%s scale=%s",
                                  call_format_double(c, alpha), call_format_double(c, gamma)));
}

/* max(0, x) + min(0, alpha * (exp(x / alpha) - 1)) */
enum sol_status op_celu(struct op_call *c) {
    double alpha = call_float(c, "alpha", 1);
    return call_set_output(c, 0,
                           LAYER1(c, "elu", call_tensor(c, 0), "alpha=%s input_scale=%s",
                                  call_format_double(c, alpha), call_format_double(c, 1 / alpha)));
}

/* max(0, min(1, alpha * x + beta)) */
enum sol_status op_hard_sigmoid(struct op_call *c) {
    double alpha = call_float(c, "alpha", 0.2), beta = call_float(c, "beta", 0.5);
    sol_tensor line =
        LAYER2(c, "add", scale(c, call_tensor(c, 0), alpha), call_scalar(c, beta), "");
    return call_set_output(c, 0, call_clamp(c, line, 0, 1));
}

/* x where it is above alpha, else 0. */
enum sol_status op_thresholded_relu(struct op_call *c) {
    sol_tensor x = call_tensor(c, 0), zero = call_scalar(c, 0);
    sol_tensor is_above = LAYER2(c, "less", call_scalar(c, call_float(c, "alpha", 1)), x, "");
    return call_set_output(c, 0, call_where(c, is_above, x, zero));
}

/* x + bias below -lambd, x - bias above lambd, else 0. */
enum sol_status op_shrink(struct op_call *c) {
    double lambd = call_float(c, "lambd", 0.5), bias = call_float(c, "bias", 0);
    sol_tensor x = call_tensor(c, 0), down = LAYER2(c, "sub", x, call_scalar(c, bias), ""),
               up = LAYER2(c, "add", x, call_scalar(c, bias), "");
    sol_tensor is_above = LAYER2(c, "less", call_scalar(c, lambd), x, ""),
               is_below = LAYER2(c, "less", x, call_scalar(c, -lambd), "");
    return call_set_output(
        c, 0, call_where(c, is_below, up, call_where(c, is_above, down, call_scalar(c, 0))));
}

/* x * sigmoid(alpha * x) */
static sol_tensor swish(struct op_call *c, sol_tensor x) {
    double alpha = call_float(c, "alpha", 1);
    if (alpha == 1) return LAYER1(c, "silu", x, "");
    return LAYER2(c, "mul", x, LAYER1(c, "sigmoid", scale(c, x, alpha), ""), "");
}

enum sol_status op_swish(struct op_call *c) {
    return call_set_output(c, 0, swish(c, call_tensor(c, 0)));
}

enum sol_status op_swiglu(struct op_call *c) {
    return call_set_output(c, 0,
                           LAYER2(c, "mul", swish(c, call_tensor(c, 0)), call_tensor(c, 1), ""));
}

/* The bounds are attributes before opset 11, inputs since. */
enum sol_status op_clip(struct op_call *c) {
    double low = call_float(c, "min", -INFINITY), high = call_float(c, "max", INFINITY);
    if (call_has(c, 1)) low = call_input_float(c, 1);
    if (call_has(c, 2)) high = call_input_float(c, 2);
    return call_set_output(c, 0, call_clamp(c, call_tensor(c, 0), low, high));
}

/* [channels] as [channels, 1, ..], to broadcast along axis 1 of `rank` dims. */
static sol_tensor by_channel(struct op_call *c, sol_tensor x, int rank) {
    struct size dim[SOL_MAX_RANK];
    if (call_shape(c, x, dim) != 1) return x;
    for (int d = 1; d < rank - 1; d++) dim[d] = size_const(1);
    return call_reshape(c, x, rank - 1, dim);
}

enum sol_status op_prelu(struct op_call *c) {
    bool is_old = c->im->opset < 7 && call_rank(c, 1) == 1; /* then its one dim is the channels */
    sol_tensor slope =
        is_old ? by_channel(c, call_tensor(c, 1), call_rank(c, 0)) : call_operand(c, 1);
    return call_set_output(c, 0, LAYER2(c, "prelu", call_tensor(c, 0), slope, ""));
}

/* Before opset 7, the dims of the second operand were aligned at `axis` of the first; dims of 1 are appended, since layers align
 * at the last dim. */
static sol_tensor at_axis(struct op_call *c, sol_tensor b) {
    struct size dim[SOL_MAX_RANK];
    int rank = call_rank(c, 0), n = call_rank(c, 1);
    int64_t axis = call_axis(c, call_int(c, "axis", rank - n), rank + 1);
    if (axis + n >= rank) return b;
    call_shape(c, b, dim);
    for (int d = n; d < rank - axis; d++) dim[d] = size_const(1);
    return call_reshape(c, b, (int)(rank - axis), dim);
}

/* A division of integers by 0 is an error, so divisors must be known to differ from it. */
static enum sol_status check_divisor(struct op_call *c) {
    const struct import_value *divisor = c->in[1];
    const int64_t size = size_element(divisor->dtype);
    const char *at = c->im->is_single ? call_read_bytes(c->in[1]) : divisor->data;
    bool has_zero = false;
    if (size_family(divisor->dtype) == FAMILY_FLOAT) return SOL_OK;
    if (!at && (divisor->live || divisor->tensor >= 0 || !divisor->shape_value))
        return fail(SOL_EUNSUPPORTED, "a divisor that may be 0");
    for (int64_t i = 0; i < call_count(divisor); i++) {
        const struct size *number = at ? NULL : &divisor->shape_value[i];
        if (number && !size_is_const(*number))
            return fail(SOL_EUNSUPPORTED, "a divisor that depends on the batch");
        has_zero |=
            number ? size_is(*number, 0) : !memcmp(at + i * size, (char[8]){0}, (size_t)size);
    }
    return has_zero ? fail(SOL_EINVAL, "a division of integers by 0") : SOL_OK;
}

/* A quotient of integers is rounded towards 0. */
enum sol_status op_binary(struct op_call *c) {
    const char *kind = c->op->layer;
    bool divides = !strcmp(kind, "div");
    if (divides) TRY(check_divisor(c));
    if (divides && size_family(c->in[0]->dtype) == FAMILY_INTEGER) kind = "trunc_div";
    bool is_aligned = call_attribute(c, "axis") && call_rank(c, 1);
    sol_tensor b = is_aligned ? at_axis(c, call_tensor(c, 1)) : call_operand(c, 1);
    return call_set_output(c, 0, LAYER2(c, kind, call_operand(c, 0), b, ""));
}

/* fmod: the remainder has the sign of the dividend, else that of the divisor. */
enum sol_status op_modulo(struct op_call *c) {
    const char *kind = call_int(c, "fmod", 0) ? "rem" : "mod";
    TRY(check_divisor(c));
    return call_set_output(c, 0, LAYER2(c, kind, call_operand(c, 0), call_operand(c, 1), ""));
}

static sol_tensor fold_inputs(struct op_call *c) {
    sol_tensor y = c->n_in > 1 ? call_operand(c, 0) : call_tensor(c, 0);
    for (int i = 1; i < c->n_in; i++) y = LAYER2(c, c->op->layer, y, call_operand(c, i), "");
    return y;
}

enum sol_status op_variadic(struct op_call *c) { return call_set_output(c, 0, fold_inputs(c)); }

enum sol_status op_average(struct op_call *c) {
    return call_set_output(c, 0, scale(c, fold_inputs(c), 1.0 / c->n_in));
}

/* ---- Reductions ---- */

/* Reductions that are no layer: a sum with pointwise layers before and after it. */
struct composed {
    const char *kind, *before, *after;
};
static const struct composed *find_composed(const char *kind) {
    static const struct composed rows[] = {{"sum_square", "square", NULL},
                                           {"l1", "abs", NULL},
                                           {"l2", "square", "sqrt"},
                                           {"log_sum", NULL, "log"}};
    for (int i = 0; i < COUNT(rows); i++)
        if (!strcmp(rows[i].kind, kind)) return &rows[i];
    return NULL;
}

/* Integers are reduced as doubles where the result need not be whole, and rounded towards 0. */
static sol_tensor reduce(struct op_call *c, const char *kind, sol_tensor x, const char *axes) {
    const char *list = "axes=%s keepdim=%s", *keep = call_int(c, "keepdims", 1) ? "true" : "false";
    const struct composed *row = find_composed(kind);
    enum sol_dtype own = call_dtype(c, x);
    if (size_family(own) != FAMILY_FLOAT && import_has_word("mean l2 log_sum logsumexp", kind))
        x = call_cast(c, x, SOL_F64);
    if (row && row->before) x = LAYER1(c, row->before, x, "");
    x = LAYER1(c, row ? "sum" : kind, x, list, axes, keep);
    return call_cast(c, row && row->after ? LAYER1(c, row->after, x, "") : x, own);
}

/* What a reduction over no dims computes of each element. */
static sol_tensor without_sum(struct op_call *c, const struct composed *row, sol_tensor x) {
    if (row && row->before) x = LAYER1(c, row->before, x, "");
    return row && row->after ? LAYER1(c, row->after, x, "") : x;
}

/* The smallest or the largest number of an element type. */
static sol_tensor limit_of(struct op_call *c, enum sol_dtype dtype, bool is_largest) {
    const int64_t bits = dtype == SOL_BOOL ? 1 : 8 * size_element(dtype);
    const bool is_signed = dtype != SOL_BOOL && dtype != SOL_U8;
    int64_t *limit = arena_alloc(c->im->arena, sizeof *limit);
    if (size_family(dtype) == FAMILY_FLOAT)
        return call_scalar(c, is_largest ? INFINITY : -INFINITY);
    *limit = (int64_t)(UINT64_MAX >> (64 - bits + is_signed));
    if (!is_largest) *limit = is_signed ? -*limit - 1 : 0;
    return call_param(c, dtype, 0, NULL, limit); /* the low bytes come first */
}

/* The extreme of no values, which layers refuse: the number that no value is beyond. */
static enum sol_status extreme_of_nothing(struct op_call *c, int n, const int64_t *axes) {
    struct size dim[SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    int rank = 0;
    for (int i = 0; i < n; i++) call_axis_of_list(c, axes[i], call_rank(c, 0), named);
    for (int d = 0; d < call_rank(c, 0); d++) {
        const bool is_reduced = !n || named[d];
        if (!is_reduced || call_int(c, "keepdims", 1))
            dim[rank++] = is_reduced ? size_const(1) : c->in[0]->dim[d];
    }
    sol_tensor limit = limit_of(c, c->in[0]->dtype, !strcmp(c->op->layer, "reduce_min"));
    return call_set_output(c, 0, call_expand(c, limit, rank, dim));
}

/* Axes are an attribute in early opsets and an input later. Without axes, it reduces all dims, or none with
 * noop_with_empty_axes. */
enum sol_status op_reduce(struct op_call *c) {
    int64_t axes[SOL_MAX_RANK];
    int n = call_has(c, 1) ? call_input_ints(c, 1, SOL_MAX_RANK, axes)
                           : call_ints(c, "axes", SOL_MAX_RANK, axes);
    bool is_nothing = !n && call_int(c, "noop_with_empty_axes", 0);
    const struct composed *row = find_composed(c->op->layer);
    bool has_extreme = import_has_word("reduce_max reduce_min logsumexp", c->op->layer);
    if (call_is_empty(c, 0) && has_extreme && !is_nothing) return extreme_of_nothing(c, n, axes);
    if (is_nothing) return call_set_output(c, 0, without_sum(c, row, call_tensor(c, 0)));
    if (!row && !call_rank(c, 0)) return call_set_output(c, 0, call_tensor(c, 0));
    return call_set_output(
        c, 0, reduce(c, c->op->layer, call_tensor(c, 0), call_format_ints(c, n, axes)));
}

/* The last of equal values is the first one in reverse order. */
static sol_tensor last_extreme(struct op_call *c, sol_tensor x, int64_t axis, const char *keep) {
    const int64_t n = call_dim(c, 0, (int)axis);
    x = LAYER1(c, "slice", x, "axis=%lld start=%lld step=-1 shape=[%lld]", (long long)axis,
               (long long)n - 1, (long long)n);
    x = LAYER1(c, c->op->layer, x, "axis=%lld keepdim=%s", (long long)axis, keep);
    return LAYER2(c, "sub", call_scalar_of(c, (double)(n - 1), SOL_I64), x, "");
}

enum sol_status op_arg_extreme(struct op_call *c) {
    const int64_t axis = call_axis(c, call_int(c, "axis", 0), call_rank(c, 0));
    const char *keep = call_int(c, "keepdims", 1) ? "true" : "false";
    sol_tensor x = call_tensor(c, 0);
    TRY(c->im->status);
    if (call_int(c, "select_last_index", 0))
        return call_set_output(c, 0, last_extreme(c, x, axis, keep));
    return call_set_output(
        c, 0, LAYER1(c, c->op->layer, x, "axis=%lld keepdim=%s", (long long)axis, keep));
}

/* Reduces, for each position, the values up to this one: the row of a triangle [n, n] whose other elements are neutral. Exclusive
 * leaves out the diagonal; reverse takes the values from the position on. */
static sol_tensor reduce_triangle(struct op_call *c, sol_tensor x, int axis) {
    struct size dim[SOL_MAX_RANK];
    const int rank = call_shape(c, x, dim);
    const bool is_reverse = call_int(c, "reverse", 0), is_sum = !strcmp(c->op->layer, "sum");
    const int by = call_int(c, "exclusive", 0) != 0;
    int64_t order[SOL_MAX_RANK];
    if (rank >= SOL_MAX_RANK) call_fail(c, fail(SOL_EUNSUPPORTED, "rank %d", rank));
    if (c->im->status) return x;
    for (int d = 0; d < rank; d++) order[d] = d == axis ? rank - 1 : d == rank - 1 ? axis : d;
    x = call_permute(c, x, rank, order); /* swaps the axis and the last dim: its own inverse */
    call_shape(c, x, dim);
    dim[rank] = dim[rank - 1];
    dim[rank - 1] = size_const(1);
    x = call_reshape(c, x, rank + 1, dim);
    dim[rank - 1] = dim[rank];
    x = LAYER1(c, is_reverse ? "triu" : "tril", call_expand(c, x, rank + 1, dim),
               "diagonal=%d value=%d", is_reverse ? by : -by, !is_sum);
    return call_permute(c, LAYER1(c, c->op->layer, x, "axes=[-1]"), rank, order);
}

/* CumSum, CumProd. */
enum sol_status op_cumulate(struct op_call *c) {
    int64_t axis = 0;
    const bool is_plain = !call_int(c, "exclusive", 0) && !call_int(c, "reverse", 0);
    call_input_ints(c, 1, 1, &axis);
    axis = call_axis(c, axis, call_rank(c, 0));
    if (c->im->status) return c->im->status;
    sol_tensor x = call_tensor(c, 0);
    if (!is_plain || !strcmp(c->op->layer, "prod"))
        return call_set_output(c, 0, reduce_triangle(c, x, (int)axis));
    return call_set_output(c, 0, LAYER1(c, "cumsum", x, "axis=%lld", (long long)axis));
}
