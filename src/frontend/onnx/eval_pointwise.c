/*
 * Pointwise operators.
 *
 * Most are rows of eval.def with functions of scalar.h: float_* for floats, which are computed in double and rounded once; int_*
 * for integers, which are computed in 64 bits and truncated, so that they wrap as their type does. If a row does not have one of
 * the two, it refuses such elements. Bools are integers of one bit.
 */
#include "eval.h"

#include "scalar.h"

#include <string.h>

/* ---- One input ---- */

/* ONNX may allow the element type, but SOL does not support it for this operator. */
static void refuse_type(struct eval *e, enum type type) {
    eval_stop(e, fail(SOL_EUNSUPPORTED, "elements of type %s", types[type].name));
}

/* A new output 0 with the shape of x, and its type unless the row has another one. */
static struct array *like(struct eval *e, const struct array *x) {
    enum type type = e->op->result ? (enum type)e->op->result : x->type;
    return eval_out(e, 0, type, x->rank, x->dim);
}

void run_unary(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    struct array *y = like(e, x);
    if (is_integer(x->type) && e->op->int_unary) {
        for (int64_t i = 0; i < x->n; i++) array_set_int(y, i, e->op->int_unary(array_int(x, i)));
    } else if (is_float(x->type) && e->op->float_unary) {
        for (int64_t i = 0; i < x->n; i++)
            array_set_double(y, i, e->op->float_unary(array_double(x, i)));
    } else {
        refuse_type(e, x->type);
    }
}

/* Functions with one or two attributes; the row has their names and defaults. */
void run_shaped(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    struct array *y = like(e, x);
    double alpha = eval_float(e, e->op->alpha, e->op->alpha_is);
    double beta = e->op->beta ? eval_float(e, e->op->beta, e->op->beta_is) : 0;
    if (x->type == TYPE_STRING) refuse_type(e, x->type);
    for (int64_t i = 0; i < x->n; i++)
        array_set_double(y, i, e->op->shaped(array_double(x, i), alpha, beta));
}

/* x * P(X <= x) for a normally distributed X, exactly or by the approximation with tanh. */
void run_gelu(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    struct array *y = like(e, x);
    bool is_tanh = !strcmp(eval_word(e, "approximate", "none", "none tanh"), "tanh");
    double *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < x->n; i++) {
        double cubic = sqrt(2 / M_PI) * (v[i] + 0.044715 * v[i] * v[i] * v[i]);
        array_set_double(y, i, 0.5 * v[i] * (1 + (is_tanh ? tanh(cubic) : erf(v[i] / sqrt(2)))));
    }
}

/* Attributes can exclude either sign. */
void run_is_inf(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    struct array *y = eval_out(e, 0, TYPE_BOOL, x->rank, x->dim);
    bool up = eval_int(e, "detect_positive", 1), down = eval_int(e, "detect_negative", 1);
    double *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < x->n; i++) array_set_int(y, i, isinf(v[i]) && (v[i] > 0 ? up : down));
}

/* Bounds are attributes before opset 11, inputs since. */
void run_clip(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    struct array *y = like(e, x);
    if (is_integer(x->type)) {
        int64_t low = eval_in_int(e, 1, x->type == TYPE_U64 ? 0 : INT64_MIN);
        int64_t high = eval_in_int(e, 2, x->type == TYPE_U64 ? -1 : INT64_MAX);
        e->is_unsigned = x->type == TYPE_U64;
        for (int64_t i = 0; i < x->n; i++)
            array_set_int(y, i, int_smaller(e, int_larger(e, array_int(x, i), low), high));
        return;
    }
    double low = eval_in_double(e, 1, eval_float(e, "min", -INFINITY));
    double high = eval_in_double(e, 2, eval_float(e, "max", INFINITY));
    double *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < x->n; i++) array_set_double(y, i, smaller(larger(v[i], low), high));
}

/* ---- Two inputs, broadcast ---- */

/* Before opset 7, the dims of the second operand are aligned at `axis` of the first; dims of 1 are appended to align at the last
 * dim. */
static struct array *at_axis(struct eval *e, const struct array *a, struct array *b) {
    int64_t dim[SOL_MAX_RANK];
    const struct onnx_attribute *axis = eval_attribute(e, "axis");
    if (!axis || e->opset >= 7) return b;
    int first = eval_axis(e, axis->i, a->rank + 1), rank = a->rank - first;
    for (int d = 0; d < rank; d++) dim[d] = d < b->rank ? b->dim[d] : 1;
    return array_view(e->space, b, rank, dim);
}

/* A walk over the shape to which both are broadcast, with both as operands. */
static void walk_two(struct eval *e, struct array *const x[2], struct walk *walk) {
    int64_t dim[SOL_MAX_RANK];
    int rank = eval_broadcast(e, 2, x, dim);
    walk_init(walk, rank, dim);
    walk_broadcast(walk, 0, x[0]);
    walk_broadcast(walk, 1, x[1]);
}

typedef double float_function(double, double);
typedef int64_t int_function(struct eval *, int64_t, int64_t);

/* y = f(a, b), broadcast; on_int for integers, else on_float. Stops when the function is NULL. */
static struct array *combine(struct eval *e, struct array *a, struct array *b, enum type type,
                             float_function *on_float, int_function *on_int) {
    struct walk walk;
    walk_two(e, (struct array *[]){a, b}, &walk);
    struct array *y = eval_new(e, type, walk.rank, walk.dim);
    e->is_unsigned = a->type == TYPE_U64;
    if (is_integer(a->type) && is_integer(b->type) && on_int) {
        for (int64_t i = 0; i < walk.n; i++, walk_next(&walk))
            array_set_int(y, i,
                          on_int(e, array_int(a, walk.offset[0]), array_int(b, walk.offset[1])));
    } else if (on_float && a->type != TYPE_STRING && b->type != TYPE_STRING) {
        for (int64_t i = 0; i < walk.n; i++, walk_next(&walk))
            array_set_double(
                y, i, on_float(array_double(a, walk.offset[0]), array_double(b, walk.offset[1])));
    } else {
        refuse_type(e, a->type);
    }
    return y;
}

/* Equal for strings. */
static void equal_strings(struct eval *e, struct array *a, struct array *b) {
    struct walk walk;
    walk_two(e, (struct array *[]){a, b}, &walk);
    struct array *y = eval_out(e, 0, TYPE_BOOL, walk.rank, walk.dim);
    for (int64_t i = 0; i < walk.n; i++, walk_next(&walk)) {
        const struct bytes *s = (struct bytes *)a->data + walk.offset[0];
        const struct bytes *t = (struct bytes *)b->data + walk.offset[1];
        bool is_same = s->size == t->size && (!s->size || !memcmp(s->at, t->at, s->size));
        array_set_int(y, i, is_same);
    }
}

/* Both inputs have the same type. */
void run_binary(struct eval *e) {
    struct array *a = eval_in(e, 0), *b = at_axis(e, a, eval_in(e, 1));
    enum type type = e->op->result ? (enum type)e->op->result : a->type;
    if (a->type != b->type)
        eval_stop(e, fail(SOL_EINVAL, "elements of type %s and %s", types[a->type].name,
                          types[b->type].name));
    if (a->type == TYPE_STRING && !strcmp(e->op->name, "Equal")) equal_strings(e, a, b);
    else eval_set_output(e, 0, combine(e, a, b, type, e->op->float_binary, e->op->int_binary));
}

/* The result has the type of the base; the exponent may have another type. */
void run_pow(struct eval *e) {
    struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    eval_set_output(e, 0, combine(e, a, b, a->type, pow, int_pow));
}

/* With fmod=1 the result has the sign of the dividend, as in C; otherwise that of the divisor, as in Python. */
void run_mod(struct eval *e) {
    struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    bool is_c = eval_int(e, "fmod", 0);
    eval_set_output(
        e, 0, combine(e, a, b, a->type, is_c ? fmod : modulo, is_c ? int_remainder : int_modulo));
}

void run_bit_shift(struct eval *e) {
    struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    bool is_left = *eval_word(e, "direction", "", "LEFT RIGHT") == 'L';
    if (!is_integer(a->type)) refuse_type(e, a->type);
    eval_set_output(e, 0,
                    combine(e, a, b, a->type, NULL, is_left ? int_shift_left : int_shift_right));
}

/* ---- Any number of inputs ---- */

/* Combines the inputs from left to right; the result is rounded at each step. */
void run_variadic(struct eval *e) {
    struct array *y = eval_in(e, 0);
    for (int i = 1; i < e->n_in; i++)
        y = combine(e, y, eval_in(e, i), y->type, e->op->float_binary, e->op->int_binary);
    eval_set_output(e, 0, y);
}

/* Summed up in double and rounded once. */
void run_mean_of(struct eval *e) {
    enum type type = eval_in(e, 0)->type;
    struct array *y = cast_array(e, e->in[0], TYPE_F64, true);
    for (int i = 1; i < e->n_in; i++)
        y = combine(e, y, cast_array(e, eval_in(e, i), TYPE_F64, true), TYPE_F64, add, NULL);
    for (int64_t i = 0; i < y->n; i++) ((double *)y->data)[i] /= e->n_in;
    eval_set_output(e, 0, cast_array(e, y, type, true));
}

/* Any type; all three are broadcast. */
void run_where(struct eval *e) {
    struct array *x[3] = {eval_in(e, 0), eval_in(e, 1), eval_in(e, 2)};
    int64_t dim[SOL_MAX_RANK];
    int rank = eval_broadcast(e, 3, x, dim);
    struct walk walk;
    walk_init(&walk, rank, dim);
    for (int k = 0; k < 3; k++) walk_broadcast(&walk, k, x[k]);
    eval_check(e, x[0]->type == TYPE_BOOL && x[1]->type == x[2]->type, "element types");
    struct array *y = eval_out(e, 0, x[1]->type, rank, dim);
    for (int64_t i = 0; i < walk.n; i++, walk_next(&walk)) {
        int from = array_int(x[0], walk.offset[0]) ? 1 : 2;
        memcpy(array_at(y, i), array_at(x[from], walk.offset[from]), types[y->type].size);
    }
}
