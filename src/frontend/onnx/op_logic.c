/* Operators on bools and on the bits of integers. */
#include "import.h"

#include <math.h>
#include <string.h>

enum sol_status op_compare(struct op_call *c) {
    bool swaps = !strncmp(c->op->name, "Greater", 7);
    sol_tensor a = call_operand(c, swaps), b = call_operand(c, !swaps);
    return call_set_output(c, 0, LAYER2(c, c->op->layer, a, b, ""));
}

/* And, Or, Xor, and the same of bits. */
enum sol_status op_logic(struct op_call *c) {
    return call_set_output(c, 0, LAYER2(c, c->op->layer, call_tensor(c, 0), call_tensor(c, 1), ""));
}

enum sol_status op_shift(struct op_call *c) {
    const char *direction = call_string(c, "direction");
    bool is_left = !strcmp(direction, "LEFT");
    if (!is_left && strcmp(direction, "RIGHT") != 0)
        return fail(SOL_EINVAL, "direction \"%.32s\"", direction);
    const char *kind = is_left ? "shift_left" : "shift_right";
    return call_set_output(c, 0, LAYER2(c, kind, call_tensor(c, 0), call_tensor(c, 1), ""));
}

enum sol_status op_is_nan(struct op_call *c) {
    sol_tensor x = call_tensor(c, 0);
    return call_set_output(c, 0, LAYER1(c, "bit_not", LAYER2(c, "equal", x, x, ""), ""));
}

/* Detects infinities of both signs, unless an attribute excludes one. */
enum sol_status op_is_inf(struct op_call *c) {
    bool above = call_int(c, "detect_positive", 1) != 0,
         below = call_int(c, "detect_negative", 1) != 0;
    sol_tensor x = call_tensor(c, 0);
    if (above && below) x = LAYER1(c, "abs", x, "");
    if (!above && !below) return fail(SOL_EUNSUPPORTED, "neither sign");
    sol_tensor infinity = call_scalar(c, above ? INFINITY : -INFINITY);
    return call_set_output(c, 0, LAYER2(c, "equal", x, infinity, ""));
}

enum sol_status op_where(struct op_call *c) {
    sol_tensor in[3] = {call_tensor(c, 0), call_operand(c, 1), call_operand(c, 2)};
    return call_set_output(c, 0, call_layer(c, "where", 3, in, ""));
}

enum sol_status op_trilu(struct op_call *c) {
    const char *kind = call_int(c, "upper", 1) ? "triu" : "tril";
    int64_t k = 0;
    if (call_has(c, 1)) call_input_ints(c, 1, 1, &k);
    k = max_i64(INT32_MIN, min_i64(k, INT32_MAX)); /* beyond these, it is empty or everything */
    return call_set_output(c, 0, LAYER1(c, kind, call_tensor(c, 0), "diagonal=%lld", (long long)k));
}
