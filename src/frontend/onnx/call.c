/*
 * Helpers for operator functions: attributes, inputs as shape values or tensors, layers, results.
 *
 * Errors are sticky, as in the builder, so functions read as formulas. call_set_output returns the first error.
 */
#include "import.h"

#include <stdarg.h>
#include <string.h>

/* Keeps the first error, since later ones follow from it. */
enum sol_status call_fail(struct op_call *c, enum sol_status status) {
    if (!c->im->status) c->im->status = status;
    return status;
}

bool call_has(const struct op_call *c, int i) { return i < c->n_in && c->in[i]; }

/* ---- Attributes ---- */

const struct onnx_attribute *call_attribute(const struct op_call *c, const char *name) {
    return proto_attribute(c->node, name);
}

const struct onnx_attribute *call_typed(struct op_call *c, const char *name,
                                        enum onnx_attribute_type type) {
    const struct onnx_attribute *a;
    enum sol_status status = proto_typed_attribute(c->node, name, type, &a);
    if (status) call_fail(c, status);
    return status ? NULL : a;
}

int64_t call_int(struct op_call *c, const char *name, int64_t default_value) {
    const struct onnx_attribute *a = call_typed(c, name, ONNX_INT);
    return a ? a->i : default_value;
}

double call_float(struct op_call *c, const char *name, double default_value) {
    const struct onnx_attribute *a = call_typed(c, name, ONNX_FLOAT);
    return a ? (double)a->f : default_value;
}

const char *call_string(struct op_call *c, const char *name) {
    const struct onnx_attribute *a = call_typed(c, name, ONNX_STRING);
    if (!a || !a->s) return "";
    char *copy = arena_alloc(c->im->arena, a->s->size + 1);
    memcpy(copy, a->s->at, a->s->size);
    return copy;
}

int call_ints(struct op_call *c, const char *name, int max, int64_t *out) {
    const struct onnx_attribute *a = call_typed(c, name, ONNX_INTS);
    if (!a) return 0;
    if (a->ints.n > max) {
        call_fail(c, fail(SOL_EUNSUPPORTED, "attribute %s has %d values", name, a->ints.n));
        return 0;
    }
    if (a->ints.n) memcpy(out, a->ints.at, sizeof *out * (size_t)a->ints.n);
    return a->ints.n;
}

/* ---- Inputs as shape values ---- */

/* The dims of a known value are constants. A dim that is a formula would count as 0. */
int64_t call_count(const struct import_value *v) {
    int64_t n = 1;
    for (int d = 0; d < v->rank; d++) n *= size_is_const(v->dim[d]) ? size_value(v->dim[d]) : 0;
    return n;
}

const struct size *call_shape_value(struct op_call *c, int i) {
    if (!c->in[i]) return NULL;
    c->in[i]->is_read = true;
    return c->in[i]->shape_value;
}

/* Reports an error when the values are not known, are more than `max`, or depend on the batch. */
int call_input_ints(struct op_call *c, int i, int max, int64_t *out) {
    (void)call_shape_value(c, i);
    const struct import_value *v = c->in[i];
    int64_t n = call_count(v);
    if (!v->shape_value || n > max) {
        call_fail(c, fail(SOL_EUNSUPPORTED,
                          v->shape_value ? "input %d has too many values"
                                         : "input %d is not known before the call",
                          i));
        return 0;
    }
    for (int64_t k = 0; k < n; k++) {
        if (!size_is_const(v->shape_value[k]))
            call_fail(c, fail(SOL_EUNSUPPORTED, "input %d depends on the batch", i));
        out[k] = size_is_const(v->shape_value[k]) ? size_value(v->shape_value[k]) : 0;
    }
    return (int)n;
}

/* `is_read` makes a guard: after reading a live value, the program is valid for this value only. */
const void *call_read_bytes(struct import_value *v) {
    v->is_read = true;
    return v->data || v->varies ? v->data : v->live;
}

double call_input_float(struct op_call *c, int i) {
    struct import_value *v = c->in[i];
    const void *at = call_read_bytes(v);
    if (at && size_family(v->dtype) == FAMILY_FLOAT && call_count(v) == 1)
        return tensor_double(v->dtype, at);
    if (v->shape_value && call_count(v) == 1 && size_is_const(*v->shape_value))
        return (double)size_value(*v->shape_value);
    call_fail(
        c, fail(SOL_EUNSUPPORTED, "input %d is no single number that is known before the call", i));
    return 0;
}

/* ---- Inputs as tensors ---- */

/*
 * A known value becomes a parameter when the first layer reads it, and keeps that tensor. A copy of it with other dims is a new
 * value.
 */

sol_tensor call_param(struct op_call *c, enum sol_dtype dtype, int rank, const int64_t *dim,
                      const void *data) {
    if (c->im->status) return -1;
    const char *name = c->node && c->node->name ? c->node->name : "";
    VEC_PUSH(c->im->arena, &c->im->params, data);
    return sol_model_param(c->im->model, name, dtype, rank, dim);
}

static void known_dims(const struct import_value *v, int64_t dim[SOL_MAX_RANK]) {
    for (int d = 0; d < v->rank; d++) dim[d] = size_value(v->dim[d]);
}

const void *call_write_numbers(struct op_call *c, struct import_value *v) {
    const int64_t n = call_count(v), size = size_element(v->dtype);
    char *data = arena_alloc_array(c->im->arena, (size_t)size, (size_t)n + 1);
    v->is_read = true;
    for (int64_t i = 0; i < n; i++) {
        if (!size_is_const(v->shape_value[i]))
            call_fail(c, fail(SOL_EUNSUPPORTED, "a number that depends on the batch, as data"));
        const int64_t number = size_is_const(v->shape_value[i]) ? size_value(v->shape_value[i]) : 0;
        memcpy(data + i * size, &number, (size_t)size); /* the low bytes come first */
    }
    return data;
}

static void add_param(struct op_call *c, struct import_value *v) {
    int64_t dim[SOL_MAX_RANK];
    const void *data = v->data ? v->data : call_write_numbers(c, v);
    known_dims(v, dim);
    if (c->im->status) return;
    v->tensor = sol_model_param(c->im->model, v->name, v->dtype, v->rank, dim);
    VEC_PUSH(c->im->arena, &c->im->params, data);
}

/* A live value becomes an input of the model. */
static void add_input(struct op_call *c, struct import_value *v) {
    int64_t dim[SOL_MAX_RANK];
    if (!call_count(v) && !c->im->is_single)
        call_fail(c, fail(SOL_EUNSUPPORTED, "an input without values"));
    known_dims(v, dim);
    v->tensor = sol_model_input(c->im->model, v->name, v->dtype, v->rank, dim);
    VEC_PUSH(c->im->arena, &c->im->inputs, v);
}

sol_tensor call_tensor(struct op_call *c, int i) {
    struct import_value *v = c->in[i];
    if (v->tensor < 0 && v->live) add_input(c, v);
    else if (v->tensor < 0 && (v->data || v->shape_value)) add_param(c, v);
    else if (v->tensor < 0) call_fail(c, fail(SOL_EBUG, "input %d has no value", i));
    return v->tensor;
}

sol_tensor call_scalar_of(struct op_call *c, double value, enum sol_dtype dtype) {
    return call_layer(c, "scalar", 0, NULL, "value=%s dtype=%s", call_format_double(c, value),
                      size_dtype_name(dtype));
}

sol_tensor call_scalar(struct op_call *c, double value) {
    return call_scalar_of(c, value, c->n_in && c->in[0] ? c->in[0]->dtype : SOL_F32);
}

sol_tensor call_cast(struct op_call *c, sol_tensor x, enum sol_dtype to) {
    if (c->im->status || sol_model_dtype(c->im->model, x) == to) return x;
    return LAYER1(c, "cast", x, "dtype=%s", size_dtype_name(to));
}

static bool is_one_float(const struct import_value *v) {
    return v->tensor < 0 && v->data && size_family(v->dtype) == FAMILY_FLOAT && call_count(v) == 1;
}

/* A scalar is a constant in the kernel's code; a parameter would have to be loaded. A scalar has rank 0, so it is used only if
 * another input, which is none, has at least the rank of the value: [1,1] + [3] is [1,3], but with a scalar it would be [3]. */
sol_tensor call_operand(struct op_call *c, int i) {
    const struct import_value *v = c->in[i];
    int64_t highest = 0;
    for (int k = 0; k < c->n_in; k++)
        if (k != i && c->in[k] && !is_one_float(c->in[k]))
            highest = max_i64(highest, c->in[k]->rank);
    if (!is_one_float(v) || v->rank > highest) return call_tensor(c, i);
    return call_scalar_of(c, call_input_float(c, i), v->dtype);
}

/* The builder's sizes have no quotients in their texts, so the table stays empty. */
static struct size read_size(const char *text) {
    struct size_table none = {0};
    struct size size;
    if (!size_parse(&text, &none, &size)) size.bad = 1;
    return size;
}

int call_shape(struct op_call *c, sol_tensor tensor, struct size dim[SOL_MAX_RANK]) {
    int64_t known[SOL_MAX_RANK];
    int rank = sol_model_shape(c->im->model, tensor, known);
    char text[SOL_SIZE_TEXT];
    for (int d = 0; d < rank; d++) {
        dim[d] = size_const(known[d]);
        if (known[d] < 0 && sol_model_dim(c->im->model, tensor, d, text, sizeof text))
            dim[d] = read_size(text);
    }
    return rank < 0 ? 0 : rank;
}

struct size call_floor(struct op_call *c, struct size a, int64_t divisor) {
    char text[SOL_SIZE_TEXT];
    const char *size =
        arena_printf(c->im->arena, "floor((%s)/%lld)", SIZE_FORMAT(a), (long long)divisor);
    if (sol_model_size(c->im->model, size, text, sizeof text)) return read_size(text);
    call_fail(c, sol_model_check(c->im->model));
    return size_const(0);
}

const char *call_format_size(struct op_call *c, struct size size) {
    return arena_printf(c->im->arena, "%s", SIZE_FORMAT(size));
}

int call_rank(const struct op_call *c, int i) { return c->in[i]->rank; }

int64_t call_dim(struct op_call *c, int i, int d) {
    struct size size = c->in[i]->dim[d];
    if (!size.bad && size_is_const(size)) return size_value(size);
    call_fail(c, fail(SOL_EUNSUPPORTED, "dim %d of input %d is not known before the call", d, i));
    return 1;
}

bool call_is_empty(const struct op_call *c, int i) {
    for (int d = 0; d < call_rank(c, i); d++)
        if (size_is(c->in[i]->dim[d], 0)) return true;
    return false;
}

int64_t call_axis(struct op_call *c, int64_t axis, int rank) {
    if (axis >= -rank && axis < rank) return axis < 0 ? axis + rank : axis;
    call_fail(c, fail(SOL_EINVAL, "axis %lld of a tensor of rank %d", (long long)axis, rank));
    return 0;
}

int64_t call_axis_of_list(struct op_call *c, int64_t axis, int rank, bool named[SOL_MAX_RANK]) {
    int64_t at = call_axis(c, axis, rank);
    if (named[at]) call_fail(c, fail(SOL_EINVAL, "axis %lld is given twice", (long long)axis));
    named[at] = true;
    return at;
}

/* ---- Layers ---- */

sol_tensor call_layer(struct op_call *c, const char *kind, int n, const sol_tensor *in,
                      const char *attributes, ...) {
    struct text text;
    va_list args;
    if (c->im->status) return -1;
    text_init(&text, c->im->arena);
    va_start(args, attributes);
    text_add_args(&text, attributes, args);
    va_end(args);
    const char *name = c->node->name && *c->node->name ? c->node->name : c->node->op_type;
    sol_tensor out = sol_model_layer(c->im->model, kind, n, in, text.at, name);
    if (out < 0) call_fail(c, sol_model_check(c->im->model));
    return out;
}

const char *call_format_dims(struct op_call *c, int rank, const struct size *dim) {
    struct text text;
    text_init(&text, c->im->arena);
    for (int d = 0; d < rank; d++) {
        if (d) text_add(&text, ",");
        size_print(&text, dim[d]);
        if (dim[d].bad)
            call_fail(c, fail(SOL_EUNSUPPORTED,
                              "dim %d depends on the batch in a way that is not kept", d));
    }
    return text.at;
}

sol_tensor call_reshape(struct op_call *c, sol_tensor x, int rank, const struct size *dim) {
    return LAYER1(c, "reshape", x, "shape=[%s]", call_format_dims(c, rank, dim));
}

sol_tensor call_expand(struct op_call *c, sol_tensor x, int rank, const struct size *dim) {
    return LAYER1(c, "expand", x, "shape=[%s]", call_format_dims(c, rank, dim));
}

sol_tensor call_arange(struct op_call *c, struct size n, int64_t step, int after) {
    struct size dim[SOL_MAX_RANK] = {n};
    for (int d = 1; d <= after; d++) dim[d] = size_const(1);
    sol_tensor x = call_layer(c, "arange", 0, NULL, "step=%lld shape=[%s] dtype=i64",
                              (long long)step, call_format_dims(c, 1, &n));
    return after ? call_reshape(c, x, after + 1, dim) : x;
}

sol_tensor call_where(struct op_call *c, sol_tensor condition, sol_tensor yes, sol_tensor no) {
    return call_layer(c, "where", 3, (sol_tensor[]){condition, yes, no}, "");
}

/* A layer takes a limited number of tensors, so a longer list is joined in parts, and these again. */
sol_tensor call_concat(struct op_call *c, int n, const sol_tensor *list, int axis) {
    const int most = 4096;
    sol_tensor *part = ARENA_ARRAY(c->im->arena, sol_tensor, n / most + 1);
    int n_parts = 0;
    if (n <= most) return call_layer(c, "concat", n, list, "axis=%d", axis);
    for (int i = 0; i < n; i += most)
        part[n_parts++] =
            call_layer(c, "concat", i + most < n ? most : n - i, list + i, "axis=%d", axis);
    return call_concat(c, n_parts, part, axis);
}

sol_tensor call_clamp(struct op_call *c, sol_tensor x, double low, double high) {
    return LAYER1(c, "clamp", x, "min=%s max=%s", call_format_double(c, low),
                  call_format_double(c, high));
}

enum sol_dtype call_dtype(struct op_call *c, sol_tensor x) {
    return c->im->status ? SOL_F32 : sol_model_dtype(c->im->model, x);
}

bool call_fixed_shape(struct op_call *c, sol_tensor x, int rank, struct size dim[SOL_MAX_RANK]) {
    const int known = call_shape(c, x, dim);
    bool fits = known == rank;
    for (int d = 0; d < known; d++) fits &= !dim[d].bad && size_is_const(dim[d]);
    if (!fits) call_fail(c, fail(SOL_EUNSUPPORTED, "a shape of another rank, or with open dims"));
    return !c->im->status;
}

const char *call_format_double(struct op_call *c, double value) {
    struct text text;
    text_init(&text, c->im->arena);
    text_add_double(&text, value);
    return text.at;
}

const char *call_format_ints(struct op_call *c, int n, const int64_t *list) {
    struct text text;
    text_init(&text, c->im->arena);
    for (int i = 0; i < n; i++) text_add(&text, "%s%lld", i ? "," : "[", (long long)list[i]);
    text_add(&text, n ? "]" : "[]");
    return text.at;
}

sol_tensor call_permute(struct op_call *c, sol_tensor x, int rank, const int64_t *axes) {
    bool moves = false;
    for (int d = 0; d < rank; d++) moves |= axes[d] != d;
    return moves ? LAYER1(c, "permute", x, "axes=%s", call_format_ints(c, rank, axes)) : x;
}

sol_tensor call_pick(struct op_call *c, sol_tensor x, int axis, int64_t n, const int64_t *index) {
    sol_tensor at = call_param(c, SOL_I64, 1, &n, index);
    return LAYER2(c, "gather", x, at, "axis=%d", axis);
}

/* ---- Results ---- */

/* A result that is a live input, passed on unchanged, becomes a tensor of the model. */
static void settle(struct op_call *c, struct import_value *value) {
    for (int k = 0; k < c->n_in && value->live && value->tensor < 0; k++)
        if (c->in[k] && c->in[k]->live == value->live) value->tensor = call_tensor(c, k);
    value->live = NULL;
}

enum sol_status call_set_output_value(struct op_call *c, int i, struct import_value *value) {
    settle(c, value);
    if (c->im->status) return c->im->status;
    if (i < c->n_out && c->out[i]) {
        value->name = c->out[i]->name;
        *c->out[i] = *value;
    }
    return SOL_OK;
}

enum sol_status call_set_output(struct op_call *c, int i, sol_tensor tensor) {
    struct import_value value = {.dtype = sol_model_dtype(c->im->model, tensor), .tensor = tensor};
    if (!c->im->status) value.rank = call_shape(c, tensor, value.dim);
    return call_set_output_value(c, i, &value);
}

enum sol_status call_set_shape_value(struct op_call *c, int i, int rank, const int64_t *dim,
                                     const struct size *number) {
    struct import_value value = {.dtype = SOL_I64, .rank = rank, .tensor = -1};
    int64_t n = 1;
    for (int d = 0; d < rank; d++) {
        value.dim[d] = size_const(dim[d]);
        n *= dim[d];
    }
    value.shape_value = arena_alloc_array(c->im->arena, sizeof *number, (size_t)n + 1);
    if (n) memcpy(value.shape_value, number, sizeof *number * (size_t)n);
    return call_set_output_value(c, i, &value);
}
