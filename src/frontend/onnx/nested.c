/* Operators that contain another one, as FusedConv contains Conv: the inner one adds its layers first. */
#include "import.h"

struct import_value *call_value(struct op_call *c, sol_tensor x) {
    struct import_value *value = ARENA_NEW(c->im->arena, struct import_value);
    *value = (struct import_value){.dtype = call_dtype(c, x), .tensor = x};
    if (!c->im->status) value->rank = call_shape(c, x, value->dim);
    return value;
}

static enum sol_status build(struct op_call *c, const char *name, int n,
                             struct import_value *const *in, int n_out, struct import_value **out) {
    struct import_value *list[8] = {NULL};
    struct op_call inner = {c->im, c->node, op_find("", name), n, n_out, list, out};
    for (int i = 0; i < n; i++) list[i] = in[i];
    while (inner.n_in && !list[inner.n_in - 1]) inner.n_in--;
    return c->im->status ? c->im->status : inner.op->build(&inner);
}

enum sol_status call_as(struct op_call *c, const char *name, int n,
                        struct import_value *const *in) {
    return build(c, name, n, in, c->n_out, c->out);
}

sol_tensor call_operator(struct op_call *c, const char *name, int n,
                         struct import_value *const *in) {
    struct import_value result = {.name = "", .tensor = -1}, *out = &result;
    const enum sol_status status = build(c, name, n, in, 1, &out);
    if (status) return call_fail(c, status), -1;
    return call_tensor(&(struct op_call){.im = c->im, .n_in = 1, .in = &out}, 0);
}
