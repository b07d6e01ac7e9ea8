/*
 * Quantized numbers: an integer stands for (integer - zero point) * scale, with one scale for the whole tensor, or one per position
 * of an axis.
 *
 * Products of quantized numbers are computed on the floats that they stand for, and quantized again: ONNX's operators define the
 * same result up to the rounding of sums. Products whose results are the integer sums are computed with integers.
 */
#include "quant.h"
#include "window.h"

#include <math.h>

sol_tensor quant_along(struct op_call *c, int i, int64_t axis, int rank) {
    struct size dim[SOL_MAX_RANK];
    sol_tensor x = call_tensor(c, i);
    if (!call_rank(c, i)) return x;
    if (size_is(c->in[i]->dim[0], 1) && call_rank(c, i) == 1) return call_reshape(c, x, 0, NULL);
    int at = (int)call_axis(c, axis, rank);
    if (call_rank(c, i) != 1)
        call_fail(c, fail(SOL_EUNSUPPORTED, "a scale or zero point of rank %d", call_rank(c, i)));
    for (int d = 0; d < rank; d++) dim[d] = size_const(1);
    dim[at] = c->in[i]->dim[0];
    return c->im->status ? x : call_reshape(c, x, rank, dim);
}

/* Is every byte of the value, which the file has, 0? Values of one call are not read, as they would need a guard. */
static bool is_zero(const struct import_value *v) {
    const int64_t size = v->data ? call_count(v) * (int64_t)size_element(v->dtype) : -1;
    for (int64_t i = 0; i < size; i++)
        if (((const char *)v->data)[i]) return false;
    return size >= 0;
}

sol_tensor quant_zero(struct op_call *c, int i, int64_t axis, int rank) {
    if (!call_has(c, i) || is_zero(c->in[i])) return -1;
    return quant_along(c, i, axis, rank);
}

sol_tensor quant_subtract(struct op_call *c, sol_tensor x, sol_tensor zero) {
    x = call_cast(c, x, SOL_I32);
    return zero < 0 ? x : LAYER2(c, "sub", x, call_cast(c, zero, SOL_I32), "");
}

sol_tensor quant_read(struct op_call *c, sol_tensor x, sol_tensor scale, sol_tensor zero) {
    x = quant_subtract(c, x, zero);
    if (c->im->status) return x;
    x = call_cast(c, x, sol_model_dtype(c->im->model, scale));
    return LAYER2(c, "mul", x, scale, "");
}

sol_tensor quant_write(struct op_call *c, sol_tensor x, sol_tensor scale, sol_tensor zero,
                       enum sol_dtype to) {
    const int bits = 8 * (int)size_element(to);
    const bool is_signed = to != SOL_U8;
    if (size_family(to) != FAMILY_INTEGER || bits > 16)
        call_fail(c, fail(SOL_EUNSUPPORTED, "quantization to %s", size_dtype_name(to)));
    sol_tensor y = LAYER2(c, "div", call_cast(c, x, SOL_F32), call_cast(c, scale, SOL_F32), "");
    y = LAYER1(c, "round", y, "");
    if (zero >= 0) y = LAYER2(c, "add", y, call_cast(c, zero, SOL_F32), "");
    y = LAYER1(c, "clamp", y, "min=%s max=%s",
               call_format_double(c, is_signed ? -ldexp(1, bits - 1) : 0),
               call_format_double(c, ldexp(1, is_signed ? bits - 1 : bits) - 1));
    return call_cast(c, y, to);
}

enum sol_status op_dequantize(struct op_call *c) {
    int64_t axis = call_int(c, "axis", 1);
    int rank = call_rank(c, 0);
    sol_tensor zero = quant_zero(c, 2, axis, rank);
    return call_set_output(c, 0,
                           quant_read(c, call_tensor(c, 0), quant_along(c, 1, axis, rank), zero));
}

enum sol_status op_quantize(struct op_call *c) {
    int64_t axis = call_int(c, "axis", 1);
    int rank = call_rank(c, 0);
    sol_tensor zero = quant_zero(c, 2, axis, rank);
    enum sol_dtype to = call_has(c, 2) ? c->in[2]->dtype : SOL_U8;
    return call_set_output(
        c, 0, quant_write(c, call_tensor(c, 0), quant_along(c, 1, axis, rank), zero, to));
}

/* The scale makes the range of the values, and 0, fit u8. All steps round to f32, as the operator defines. */
sol_tensor quant_dynamic(struct op_call *c, sol_tensor x, sol_tensor *scale, sol_tensor *point) {
    sol_tensor zero = call_scalar_of(c, 0, SOL_F32), one = call_scalar_of(c, 1, SOL_F32);
    sol_tensor high = LAYER2(c, "maximum", LAYER1(c, "reduce_max", x, ""), zero, ""),
               low = LAYER2(c, "minimum", LAYER1(c, "reduce_min", x, ""), zero, "");
    sol_tensor range = LAYER2(c, "sub", high, low, ""),
               is_empty = LAYER2(c, "equal", range, zero, "");
    range = call_where(c, is_empty, one, range);
    *scale = LAYER2(c, "div", range, call_scalar_of(c, 255, SOL_F32), "");
    *point = quant_write(c, LAYER1(c, "neg", low, ""), *scale, -1, SOL_U8);
    return quant_write(c, x, *scale, *point, SOL_U8);
}

enum sol_status op_dynamic_quantize(struct op_call *c) {
    sol_tensor scale, point;
    TRY(call_set_output(c, 0, quant_dynamic(c, call_tensor(c, 0), &scale, &point)));
    TRY(call_set_output(c, 1, scale));
    return call_set_output(c, 2, point);
}

/* ---- Products ---- */

/* A zero point per row of A, and per column of B. */
enum sol_status op_matmul_integer(struct op_call *c) {
    int left = call_rank(c, 0), right = call_rank(c, 1);
    sol_tensor a_zero = quant_zero(c, 2, -2, left > 1 ? left : 2),
               b_zero = quant_zero(c, 3, -1, right);
    if (left < 2 || right < 2) return fail(SOL_EUNSUPPORTED, "ranks %d and %d", left, right);
    sol_tensor a = quant_subtract(c, call_tensor(c, 0), a_zero),
               b = quant_subtract(c, call_tensor(c, 1), b_zero);
    return call_set_output(c, 0, LAYER2(c, "matmul", a, b, ""));
}

enum sol_status op_conv_integer(struct op_call *c) {
    sol_tensor x_zero = quant_zero(c, 2, 1, call_rank(c, 0)),
               w_zero = quant_zero(c, 3, 0, call_rank(c, 1));
    sol_tensor in[3] = {quant_subtract(c, call_tensor(c, 0), x_zero),
                        quant_subtract(c, call_tensor(c, 1), w_zero), -1};
    return call_set_output(c, 0, window_conv_node(c, in));
}

/* Inputs: A, its scale and zero point, B and its, the result's scale and zero point. */
enum sol_status op_qlinear_matmul(struct op_call *c) {
    int left = call_rank(c, 0), right = call_rank(c, 3);
    if (left < 2 || right < 2) return fail(SOL_EUNSUPPORTED, "ranks %d and %d", left, right);
    sol_tensor a = quant_read(c, call_tensor(c, 0), quant_along(c, 1, -2, left),
                              quant_zero(c, 2, -2, left)),
               b = quant_read(c, call_tensor(c, 3), quant_along(c, 4, -1, right),
                              quant_zero(c, 5, -1, right));
    sol_tensor y = LAYER2(c, "matmul", a, b, "");
    return call_set_output(c, 0,
                           quant_write(c, y, quant_along(c, 6, -1, left),
                                       quant_zero(c, 7, -1, left), c->in[7]->dtype));
}

/* Inputs: x, its scale and zero point, the weight and its, the result's scale and zero point, and a bias of i32 in units of
 * both scales. */
enum sol_status op_qlinear_conv(struct op_call *c) {
    int rank = call_rank(c, 0);
    sol_tensor x_scale = quant_along(c, 1, 1, rank), w_scale = quant_along(c, 4, 0, rank);
    sol_tensor in[3] = {quant_read(c, call_tensor(c, 0), x_scale, quant_zero(c, 2, 1, rank)),
                        quant_read(c, call_tensor(c, 3), w_scale, quant_zero(c, 5, 0, rank)), -1};
    struct import_value *inputs[2] = {c->in[0], c->in[3]};
    struct op_call inner = *c;
    inner.in = inputs;
    inner.n_in = 2;
    if (call_has(c, 8)) {
        sol_tensor unit = LAYER2(c, "mul", call_tensor(c, 1), quant_along(c, 4, 0, 1), "");
        in[2] = LAYER2(c, "mul", call_cast(c, call_tensor(c, 8), SOL_F32), unit, "");
    }
    sol_tensor y = window_conv_node(&inner, in);
    return call_set_output(
        c, 0,
        quant_write(c, y, quant_along(c, 6, 1, rank), quant_zero(c, 7, 1, rank), c->in[7]->dtype));
}
