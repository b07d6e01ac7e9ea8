/*
 * Operators on shape values: integers that are known while importing, and may decide shapes. They are formulas of the batch, so
 * an open batch stays open through Shape, Gather, Mul and Reshape.
 */
#include "import.h"

#include <string.h>

static void dims_of(const struct import_value *v, int64_t dim[SOL_MAX_RANK]) {
    for (int d = 0; d < v->rank; d++) dim[d] = size_value(v->dim[d]);
}

/* ---- Sources ---- */

static enum sol_status output_data(struct op_call *c, struct data data) {
    struct import_value value = {.tensor = -1};
    import_constant(c->im, &data, &value);
    return call_set_output_value(c, 0, &value);
}

/* Exactly one of five attributes has the value: value (a tensor), value_int, value_ints, value_float or value_floats. The name
 * decides the type that the attribute must have (AttributeProto.type: 1 float, 2 int, 4 tensor, 6 floats, 7 ints). */
enum sol_status op_constant(struct op_call *c) {
    if (c->node->attributes.n != 1)
        return fail(SOL_EINVAL, "it has %d values", c->node->attributes.n);
    const struct onnx_attribute *a = ITEM(c->node->attributes, struct onnx_attribute, 0);
    struct data data;
    if (!strcmp(a->name, "value")) {
        if (a->type != 4 || !a->t) return fail(SOL_EINVAL, "its value is no tensor");
        TRY(tensor_read(c->im->arena, c->im->folder, a->t, &data));
        return output_data(c, data);
    }
    bool is_list = a->name[strlen(a->name) - 1] == 's', is_float = a->name[6] == 'f';
    int64_t wanted = is_float ? is_list ? 6 : 1 : is_list ? 7 : 2;
    if (a->type != wanted)
        return fail(SOL_EINVAL, "attribute %s has type %lld instead of %lld", a->name,
                    (long long)a->type, (long long)wanted);
    const struct list *list = is_float ? &a->floats : &a->ints;
    const void *one = is_float ? (const void *)&a->f : &a->i;
    data = (struct data){.dtype = is_float ? SOL_F32 : SOL_I64,
                         .rank = is_list,
                         .dim = {list->n},
                         .n = is_list ? list->n : 1};
    data.at = is_list ? list->at : one;
    if (!data.at) data.at = one; /* an empty list */
    return output_data(c, data);
}

/* For floats: a layer that expands a scalar, whose shape may depend on the batch. For integers: a shape value, all of whose elements
 * are stored, so their number is limited. */
enum sol_status op_constant_of_shape(struct op_call *c) {
    const struct onnx_attribute *a = call_attribute(c, "value");
    struct data one = {.dtype = SOL_F32, .n = 1, .at = &(float){0}};
    const struct import_value *shape = c->in[0];
    if (shape->rank != 1 || call_count(shape) > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "a shape of rank %d", shape->rank);
    if (a && (a->type != 4 || !a->t)) return fail(SOL_EINVAL, "its value is no tensor");
    if (a) TRY(tensor_read(c->im->arena, c->im->folder, a->t, &one));
    if (one.n != 1) return fail(SOL_EINVAL, "its value has %lld elements", (long long)one.n);
    int rank = (int)call_count(shape);
    if (size_family(one.dtype) == FAMILY_FLOAT) {
        sol_tensor value = call_scalar_of(c, tensor_double(one.dtype, one.at), one.dtype);
        return call_set_output(c, 0, call_expand(c, value, rank, shape->shape_value));
    }
    int64_t dim[SOL_MAX_RANK], n = 1;
    call_input_ints(c, 0, SOL_MAX_RANK, dim);
    for (int d = 0; d < rank; d++)
        if (dim[d] < 0 || __builtin_mul_overflow(n, dim[d], &n) || n > IMPORT_MAX_SHAPE_VALUES)
            return fail(SOL_EUNSUPPORTED, "more than %d numbers", IMPORT_MAX_SHAPE_VALUES);
    struct import_value item = {.tensor = -1};
    import_constant(c->im, &one, &item);
    if (!item.shape_value) return fail(SOL_EUNSUPPORTED, "values of this type");
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) numbers[i] = item.shape_value[0];
    TRY(call_set_shape_value(c, 0, rank, dim, numbers));
    if (c->out[0]) c->out[0]->dtype = one.dtype;
    return SOL_OK;
}

/* Dims from `start` to `end`, both clamped to the rank. */
enum sol_status op_shape(struct op_call *c) {
    const struct import_value *x = c->in[0];
    int64_t start = call_int(c, "start", 0), end = call_int(c, "end", x->rank);
    start = max_i64(0, min_i64(start < 0 ? start + x->rank : start, x->rank));
    end = max_i64(start, min_i64(end < 0 ? end + x->rank : end, x->rank));
    for (int64_t d = start; d < end; d++)
        if (x->dim[d].bad)
            return fail(SOL_EUNSUPPORTED, "dim %lld depends on the batch in a way that is not kept",
                        (long long)d);
    return call_set_shape_value(c, 0, 1, (int64_t[]){end - start}, x->dim + start);
}

enum sol_status op_size(struct op_call *c) {
    struct size n = size_const(1);
    for (int d = 0; d < call_rank(c, 0); d++) n = size_mul(n, c->in[0]->dim[d]);
    if (n.bad)
        return fail(SOL_EUNSUPPORTED,
                    "the number of elements depends on the batch in a way that is not kept");
    return call_set_shape_value(c, 0, 0, NULL, &n);
}

/* ceil((limit - start) / step) integers. They are counted in doubles and computed unsigned, since a difference of 64-bit integers
 * may overflow. */
enum sol_status op_range(struct op_call *c) {
    int64_t at[3] = {0};
    for (int i = 0; i < 3; i++) call_input_ints(c, i, 1, &at[i]);
    if (c->im->status) return c->im->status;
    if (!at[2]) return fail(SOL_EINVAL, "a step of 0");
    double n = ((double)at[1] - (double)at[0]) / (double)at[2];
    if (n > IMPORT_MAX_SHAPE_VALUES)
        return fail(SOL_EUNSUPPORTED, "more than %d numbers", IMPORT_MAX_SHAPE_VALUES);
    int64_t count = n > 0 ? (int64_t)n + ((double)(int64_t)n < n) : 0;
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, count + 1);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = size_const(
            (int64_t)((uint64_t)at[0] + (uint64_t)i * (uint64_t)at[2])); /* never beyond the end */
    return call_set_shape_value(c, 0, 1, &count, numbers);
}

/* ---- Moving ---- */

/* An operator that moves elements moves formulas as it moves numbers. So its layers are run once, at importing, on the numbers of the
 * formulas, and the formulas take the places that their numbers have come to. */
struct moving {
    struct op_call *c;
    struct import im; /* of a model of the node alone */
    VEC(struct size) moved;
    int64_t *number; /* the result */
};

/* Is input `i` moved? The others tell where to: their numbers must be known. */
static bool is_moved(const struct op_call *c, int i) {
    if (!strcmp(c->op->name, "Concat")) return true;
    return strcmp(c->op->name, "Where") ? i == 0 : i > 0;
}

/* Numbers for the formulas of input `i`. */
static const int64_t *number_formulas(struct moving *m, int i) {
    struct op_call *c = m->c;
    int64_t n = call_count(c->in[i]);
    int64_t *number = ARENA_ARRAY(c->im->arena, int64_t, n + 1);
    for (int64_t k = 0; k < n; k++) {
        number[k] = m->moved.n;
        VEC_PUSH(c->im->arena, &m->moved, c->in[i]->shape_value[k]);
    }
    return number;
}

static enum sol_status bring(struct moving *m, int i) {
    struct import_value *v = m->c->in[i];
    const char *name = *ITEM(m->c->node->inputs, const char *, i);
    struct data data = {.dtype = v->dtype, .rank = v->rank, .n = call_count(v)};
    for (int k = 0; k < i; k++) {
        if (m->c->in[k] != v) continue;
        if (is_moved(m->c, k) == is_moved(m->c, i)) return SOL_OK;
        return fail(SOL_EUNSUPPORTED, "numbers that are moved by themselves");
    }
    for (int d = 0; d < v->rank; d++) data.dim[d] = size_value(v->dim[d]);
    if (is_moved(m->c, i)) data.dtype = SOL_I64;
    data.at = is_moved(m->c, i) ? number_formulas(m, i) : call_write_numbers(m->c, v);
    TRY(m->c->im->status);
    struct import_value *value = import_define(&m->im, name);
    if (!value) return SOL_EINVAL;
    import_constant(&m->im, &data, value);
    return SOL_OK;
}

/* Numbers that the builder knows, without a layer, stay as they are. */
static enum sol_status move_numbers(struct moving *m) {
    const char *name = *ITEM(m->c->node->outputs, const char *, 0);
    import_make_slots(&m->im, 16 + 2 * (size_t)(m->c->n_in + m->c->n_out));
    for (int i = 0; i < m->c->n_in; i++)
        if (m->c->in[i]) TRY(bring(m, i));
    TRY(import_node(&m->im, m->c->node));
    const struct import_value *v = import_find(&m->im, name);
    if (!v) return fail(SOL_EUNSUPPORTED, "no output");
    int64_t n = call_count(v);
    if (n > IMPORT_MAX_SHAPE_VALUES)
        return fail(SOL_EUNSUPPORTED, "more than %d numbers", IMPORT_MAX_SHAPE_VALUES);
    m->number = ARENA_ARRAY(m->im.arena, int64_t, n + 1);
    for (int64_t k = 0; k < n && v->shape_value; k++) m->number[k] = size_value(v->shape_value[k]);
    if (v->tensor < 0) return SOL_OK;
    sol_model_output(m->im.model, name, v->tensor);
    return sol_model_evaluate(m->im.model, NULL, m->im.params.at, (void *[]){m->number});
}

/* The model is no memory of the arena, so a jump to the arena's boundary stops here first. */
static enum sol_status run_moving(struct moving *m) {
    struct arena *arena = m->im.arena;
    jmp_buf own, *outer = arena->boundary;
    volatile bool has_jumped = true;
    volatile enum sol_status status = SOL_ENOMEM;
    m->im.model = sol_model_new("numbers");
    if (!m->im.model) return fail(SOL_ENOMEM, "no memory for a model");
    arena->boundary = &own;
    if (!setjmp(own)) {
        status = move_numbers(m);
        has_jumped = false;
    }
    arena->boundary = outer;
    sol_model_free(m->im.model);
    if (has_jumped) longjmp(*outer, 1);
    return status;
}

/* Concat, Expand, Gather, GatherElements, Reshape, Slice, Where, .. The result has the element type of the last input that is
 * moved. */
enum sol_status op_fold_moves(struct op_call *c) {
    struct moving m = {.c = c};
    int64_t dim[SOL_MAX_RANK];
    if (!c->n_out) return fail(SOL_EUNSUPPORTED, "no output");
    m.im = (struct import){.arena = c->im->arena, .opset = c->im->opset, .is_single = true};
    TRY(run_moving(&m));
    const struct import_value *v = import_find(&m.im, *ITEM(c->node->outputs, const char *, 0));
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, call_count(v) + 1);
    for (int64_t k = 0; k < call_count(v); k++) numbers[k] = m.moved.at[m.number[k]];
    dims_of(v, dim);
    TRY(call_set_shape_value(c, 0, v->rank, dim, numbers));
    const int giver = is_moved(c, 0) ? 0 : 1;
    if (c->out[0]) c->out[0]->dtype = c->in[giver]->dtype;
    return SOL_OK;
}
