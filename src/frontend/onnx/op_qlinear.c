/*
 * Operators of the domain com.microsoft on quantized numbers, which ONNX Runtime's quantization writes.
 *
 * Their inputs are triples: numbers, scale, zero point. They are computed on the floats that these stand for, as in op_quant.c;
 * ONNX Runtime's results may differ by 1 where a value is halfway between two integers.
 */
#include "quant.h"

#include <string.h>

/* The floats of the triple at `i`; scale and zero point may be one per position of `axis`. */
static sol_tensor read_triple(struct op_call *c, int i, int64_t axis) {
    if (!call_has(c, i) || !call_has(c, i + 1)) {
        call_fail(c, fail(SOL_EINVAL, "input %d or its scale is missing", i));
        return -1;
    }
    const int rank = call_rank(c, i);
    sol_tensor zero = quant_zero(c, i + 2, axis, rank);
    return quant_read(c, call_tensor(c, i), quant_along(c, i + 1, axis, rank), zero);
}

/* Quantizes the result, with the scale at input `i` and the zero point after it. Without one, the type is that of `like`. */
static enum sol_status write_result(struct op_call *c, sol_tensor y, int i, int like) {
    const bool has_zero = call_has(c, i + 1);
    if (c->im->status) return c->im->status;
    if (!call_has(c, i)) return fail(SOL_EINVAL, "input %d, a scale, is missing", i);
    sol_tensor zero = quant_zero(c, i + 1, 0, 1);
    return call_set_output(
        c, 0,
        quant_write(c, y, quant_along(c, i, 0, 1), zero, c->in[has_zero ? i + 1 : like]->dtype));
}

/* QLinearAdd, QLinearMul */
enum sol_status op_qlinear_binary(struct op_call *c) {
    return write_result(c, LAYER2(c, c->op->layer, read_triple(c, 0, 0), read_triple(c, 3, 0), ""),
                        6, 0);
}

/* QLinearSigmoid, QLinearLeakyRelu */
enum sol_status op_qlinear_unary(struct op_call *c) {
    sol_tensor x = read_triple(c, 0, 0);
    const bool is_sigmoid = !strcmp(c->op->layer, "sigmoid");
    const char *alpha = call_format_double(c, call_float(c, "alpha", 0.01));
    x = is_sigmoid ? LAYER1(c, "sigmoid", x, "") : LAYER1(c, c->op->layer, x, "alpha=%s", alpha);
    return write_result(c, x, 3, 0);
}

/* The attribute opset is that of the Softmax from which the node was made: before 13, it is over all dims from `axis` on. */
enum sol_status op_qlinear_softmax(struct op_call *c) {
    const int rank = call_rank(c, 0);
    const int64_t axis = call_axis(c, call_int(c, "axis", -1), rank);
    if (call_int(c, "opset", 13) < 13 && axis != rank - 1)
        return fail(SOL_EUNSUPPORTED, "a softmax over several dims");
    return write_result(c, LAYER1(c, "softmax", read_triple(c, 0, 0), "axis=%d", (int)axis), 3, 0);
}

/* Moves the channels, dim `from`, to `to`. */
static sol_tensor move_channels(struct op_call *c, sol_tensor x, bool is_last, bool to_last) {
    int64_t axes[SOL_MAX_RANK];
    struct size dim[SOL_MAX_RANK];
    const int rank = call_shape(c, x, dim);
    if (!is_last || rank < 3) return x;
    for (int d = 0; d < rank; d++)
        axes[d] = d == 0 ? 0 : to_last ? d == rank - 1 ? 1 : d + 1 : d == 1 ? rank - 1 : d - 1;
    return call_permute(c, x, rank, axes);
}

/* QLinearAveragePool, QLinearGlobalAveragePool */
enum sol_status op_qlinear_pool(struct op_call *c) {
    const bool is_last = call_int(c, "channels_last", 0) != 0;
    sol_tensor x = move_channels(c, read_triple(c, 0, 0), is_last, false);
    sol_tensor y = call_operator(c, c->op->layer, 1, (struct import_value *[]){call_value(c, x)});
    return write_result(c, move_channels(c, y, is_last, true), 3, 0);
}

/* The result's scale and zero point come first. */
enum sol_status op_qlinear_concat(struct op_call *c) {
    const int n = (c->n_in - 2) / 3;
    sol_tensor *list = ARENA_ARRAY(c->im->arena, sol_tensor, n + 1);
    if (c->n_in != 2 + 3 * n) return fail(SOL_EINVAL, "%d inputs", c->n_in);
    for (int i = 2; i < c->n_in; i++)
        if (!c->in[i]) return fail(SOL_EINVAL, "input %d is missing", i);
    for (int i = 0; i < n; i++) list[i] = read_triple(c, 2 + 3 * i, 0);
    const int64_t axis = call_axis(c, call_int(c, "axis", 0), call_rank(c, 2));
    return write_result(c, call_concat(c, n, list, (int)axis), 0, 2);
}

/* ---- Products ---- */

static sol_tensor turned(struct op_call *c, sol_tensor x, const char *attribute) {
    return call_int(c, attribute, 0) ? LAYER1(c, "permute", x, "axes=[1,0]") : x;
}

/* alpha * A * B + C. C is of i32, in units of alpha and both scales. Without a scale of the result, this is of floats. */
enum sol_status op_qgemm(struct op_call *c) {
    if (!call_has(c, 3) || !call_has(c, 4)) return fail(SOL_EINVAL, "B or its scale is missing");
    if (call_rank(c, 0) != 2 || call_rank(c, 3) != 2)
        return fail(SOL_EINVAL, "ranks %d and %d", call_rank(c, 0), call_rank(c, 3));
    const int64_t axis = call_int(c, "transB", 0) ? 0 : 1;
    sol_tensor unit = LAYER2(c, "mul", quant_along(c, 1, 0, 1), quant_along(c, 4, 0, 1), "");
    sol_tensor alpha = call_scalar_of(c, call_float(c, "alpha", 1), SOL_F32);
    sol_tensor y = LAYER2(c, "matmul", turned(c, read_triple(c, 0, 0), "transA"),
                          turned(c, read_triple(c, 3, axis), "transB"), "");
    y = LAYER2(c, "mul", y, alpha, "");
    if (call_has(c, 6)) {
        unit = LAYER2(c, "mul", unit, alpha, "");
        y = LAYER2(c, "add", y,
                   LAYER2(c, "mul", call_cast(c, call_tensor(c, 6), SOL_F32), unit, ""), "");
    }
    return call_has(c, 7) ? write_result(c, y, 7, 0) : call_set_output(c, 0, y);
}

/* The products of integers, times both scales, plus a bias of floats. The integers are exact as f32. `zero` < 0: none. */
static enum sol_status scale_product(struct op_call *c, sol_tensor a, sol_tensor scale,
                                     sol_tensor b, int bias) {
    sol_tensor y = LAYER2(c, "matmul", call_cast(c, a, SOL_F32), call_cast(c, b, SOL_F32), "");
    y = LAYER2(c, "mul", y, scale, "");
    return call_set_output(c, 0,
                           call_has(c, bias) ? LAYER2(c, "add", y, call_tensor(c, bias), "") : y);
}

/* Scales and zero points of B may be one per column. */
static sol_tensor column(struct op_call *c, int i, int rank) {
    return call_has(c, i) ? quant_along(c, i, -1, rank) : -1;
}
static sol_tensor zero_column(struct op_call *c, int i, int rank) {
    return quant_zero(c, i, -1, rank);
}

/* Inputs: A, B, their scales, their zero points, a bias. */
enum sol_status op_matmul_to_float(struct op_call *c) {
    const int left = call_rank(c, 0), right = call_rank(c, 1);
    if (left < 2 || right < 2) return fail(SOL_EUNSUPPORTED, "ranks %d and %d", left, right);
    sol_tensor scale = LAYER2(c, "mul", column(c, 2, left), column(c, 3, right), "");
    return scale_product(c, quant_subtract(c, call_tensor(c, 0), zero_column(c, 4, left)), scale,
                         quant_subtract(c, call_tensor(c, 1), zero_column(c, 5, right)), 6);
}

/* Inputs: A of floats, which is quantized as a whole, B, its scale and zero point, a bias. */
enum sol_status op_dynamic_matmul(struct op_call *c) {
    const int left = call_rank(c, 0), right = call_rank(c, 1);
    sol_tensor scale, zero;
    if (left < 2 || right < 2) return fail(SOL_EUNSUPPORTED, "ranks %d and %d", left, right);
    sol_tensor a = quant_dynamic(c, call_tensor(c, 0), &scale, &zero);
    scale = LAYER2(c, "mul", scale, column(c, 2, right), "");
    return scale_product(c, quant_subtract(c, a, zero), scale,
                         quant_subtract(c, call_tensor(c, 1), zero_column(c, 3, right)), 4);
}

/* ---- LSTM ---- */

/* The weight at input `i`, [directions, inputs, gates], as LSTM has it: [directions, gates, inputs]. Scale and zero point, at input
 * `at` and after it, are one per direction, or per direction and gate. */
static struct import_value *read_gates(struct op_call *c, int i, int at) {
    struct size dim[3] = {size_const(1), size_const(1), size_const(1)};
    sol_tensor part[2];
    sol_tensor x = call_permute(c, call_tensor(c, i), 3, (int64_t[]){0, 2, 1});
    for (int k = 0; k < 2; k++) {
        const int rank = call_rank(c, at + k);
        if (rank < 1 || rank > 2)
            call_fail(c, fail(SOL_EINVAL, "input %d is of rank %d", at + k, rank));
        for (int d = 0; d < rank && d < 2; d++) dim[d] = c->in[at + k]->dim[d];
        part[k] = c->im->status ? -1 : call_reshape(c, call_tensor(c, at + k), 3, dim);
    }
    return call_value(c, quant_read(c, x, part[0], part[1]));
}

/* An LSTM with weights of 8 bits, whose input X is quantized as a whole. The state is not quantized, as it is in ONNX Runtime: so
 * results are nearer to those of the network before its quantization. */
enum sol_status op_dynamic_lstm(struct op_call *c) {
    struct import_value *in[8];
    sol_tensor scale, zero;
    for (int i = 0; i < 12; i++)
        if ((i < 3 || i > 7) && !call_has(c, i)) return fail(SOL_EINVAL, "input %d is missing", i);
    if (call_rank(c, 1) != 3 || call_rank(c, 2) != 3)
        return fail(SOL_EINVAL, "weights of rank %d and %d", call_rank(c, 1), call_rank(c, 2));
    for (int i = 0; i < 8; i++) in[i] = c->in[i];
    sol_tensor x = quant_dynamic(c, call_tensor(c, 0), &scale, &zero);
    in[0] = call_value(c, quant_read(c, x, scale, zero));
    in[1] = read_gates(c, 1, 8);
    in[2] = read_gates(c, 2, 10);
    return call_as(c, "LSTM", 8, in);
}
