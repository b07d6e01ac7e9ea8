/* Operators that contain another one, as FusedConv contains Conv: the inner one adds its layers first. */
#include "import.h"

struct import_value *call_value(struct op_call *c, sol_tensor x) {
    struct import_value *value = ARENA_NEW(c->im->arena, struct import_value);
    *value = (struct import_value){.dtype = call_dtype(c, x), .tensor = x};
    if (!c->im->status) value->rank = call_shape(c, x, value->dim);
    return value;
}

sol_tensor call_operator(struct op_call *c, const char *name, int n,
                         struct import_value *const *in) {
    struct import_value result = {.name = "", .tensor = -1}, *out = &result, *list[8] = {NULL};
    struct op_call inner = {c->im, c->node, op_find("", name), n, 1, list, &out};
    for (int i = 0; i < n; i++) list[i] = in[i];
    while (inner.n_in && !list[inner.n_in - 1]) inner.n_in--;
    if (!c->im->status) call_fail(c, inner.op->build(&inner));
    return c->im->status ? -1
                         : call_tensor(&(struct op_call){.im = c->im, .n_in = 1, .in = &out}, 0);
}
