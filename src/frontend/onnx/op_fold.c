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

/* Sets output 0 to a shape value with the element type of the first input. */
static enum sol_status output_like(struct op_call *c, int rank, const int64_t *dim,
                                   const struct size *numbers) {
    TRY(call_set_shape_value(c, 0, rank, dim, numbers));
    if (c->out[0]) c->out[0]->dtype = c->in[0]->dtype;
    return SOL_OK;
}

static int64_t product(const struct import_value *v, int begin, int end) {
    int64_t n = 1;
    for (int d = begin; d < end; d++) n *= size_value(v->dim[d]);
    return n;
}

/* The functions below see a value as [outer, rows, inner]: the dims before an axis, the axis, and the dims after it. */

/* Element `i` of `index`, as a position in a dim of `rows`; -1 with a message when it is out of range. */
static int64_t read_row(const struct import_value *index, int64_t i, int64_t rows) {
    int64_t at =
        size_is_const(index->shape_value[i]) ? size_value(index->shape_value[i]) : INT64_MAX;
    if (at < 0) at += rows;
    if (at >= 0 && at < rows) return at;
    (void)fail(SOL_EINVAL, "an index outside of %lld numbers", (long long)rows);
    return -1;
}

/* The dims of the index replace dim `axis` of x. */
enum sol_status op_fold_gather(struct op_call *c) {
    const struct import_value *x = c->in[0], *index = c->in[1];
    int axis = (int)call_axis(c, call_int(c, "axis", 0), x->rank), rank = x->rank - 1 + index->rank;
    TRY(c->im->status);
    if (rank > SOL_MAX_RANK) return fail(SOL_EUNSUPPORTED, "rank %d", rank);
    int64_t dim[2 * SOL_MAX_RANK], rows = size_value(x->dim[axis]), n = call_count(index),
                                   outer = product(x, 0, axis),
                                   inner = product(x, axis + 1, x->rank);
    if (n && outer * inner > IMPORT_MAX_SHAPE_VALUES / n)
        return fail(SOL_EUNSUPPORTED, "more than %d numbers", IMPORT_MAX_SHAPE_VALUES);
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, outer * n * inner + 1);
    for (int64_t i = 0; i < outer * n * inner; i++) {
        int64_t row = read_row(index, i / inner % n, rows);
        if (row < 0) return SOL_EINVAL;
        numbers[i] = x->shape_value[(i / inner / n * rows + row) * inner + i % inner];
    }
    for (int d = 0; d < axis; d++) dim[d] = size_value(x->dim[d]);
    dims_of(index, dim + axis);
    for (int d = axis + 1; d < x->rank; d++) dim[index->rank + d - 1] = size_value(x->dim[d]);
    return output_like(c, rank, dim, numbers);
}

/* Each element has the position of its index, but along the axis that of the index's value. */
enum sol_status op_fold_gather_elements(struct op_call *c) {
    const struct import_value *x = c->in[0], *index = c->in[1];
    int axis = (int)call_axis(c, call_int(c, "axis", 0), x->rank);
    int64_t dim[SOL_MAX_RANK], n = call_count(index);
    if (c->im->status || x->rank != index->rank)
        return c->im->status ? c->im->status
                             : fail(SOL_EINVAL, "ranks %d and %d", x->rank, index->rank);
    for (int d = 0; d < x->rank; d++)
        if (d != axis && size_value(index->dim[d]) > size_value(x->dim[d]))
            return fail(SOL_EINVAL, "more indices than numbers along dim %d", d);
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, step = 1, row = read_row(index, i, size_value(x->dim[axis]));
        if (row < 0) return SOL_EINVAL;
        for (int d = x->rank - 1; d >= 0; d--) {
            at += (d == axis ? row : rest % size_value(index->dim[d])) * step;
            rest /= size_value(index->dim[d]);
            step *= size_value(x->dim[d]);
        }
        numbers[i] = x->shape_value[at];
    }
    dims_of(index, dim);
    return output_like(c, index->rank, dim, numbers);
}

/* Supports vectors only, which shapes are; so the axis is 0. */
enum sol_status op_fold_concat(struct op_call *c) {
    VEC(struct size) all = {0};
    for (int i = 0; i < c->n_in; i++) {
        if (call_rank(c, i) != 1)
            return fail(SOL_EUNSUPPORTED, "numbers of rank %d", call_rank(c, i));
        for (int64_t k = 0; k < call_count(c->in[i]); k++)
            VEC_PUSH(c->im->arena, &all, c->in[i]->shape_value[k]);
        if (all.n > IMPORT_MAX_SHAPE_VALUES)
            return fail(SOL_EUNSUPPORTED, "more than %d numbers", IMPORT_MAX_SHAPE_VALUES);
    }
    return output_like(c, 1, (int64_t[]){all.n}, all.at);
}

/* Supports one range of a vector with step 1, as for parts of shapes. Bounds below 0 count from the end; bounds are clamped, as in
 * Python. */
enum sol_status op_fold_slice(struct op_call *c) {
    int64_t start = 0, end = 0, axis = 0, step = 1;
    const struct import_value *x = c->in[0];
    if (x->rank != 1 || c->n_in < 3) return fail(SOL_EUNSUPPORTED, "numbers of rank %d", x->rank);
    int n = call_input_ints(c, 1, 1, &start) + call_input_ints(c, 2, 1, &end);
    if (call_has(c, 3)) call_input_ints(c, 3, 1, &axis);
    if (call_has(c, 4)) call_input_ints(c, 4, 1, &step);
    if (c->im->status) return c->im->status;
    if (n != 2 || step != 1 || call_axis(c, axis, 1))
        return fail(SOL_EUNSUPPORTED, "a step of %lld", (long long)step);
    int64_t size = call_count(x);
    start = start < 0 ? max_i64(0, start + size) : min_i64(start, size);
    end = end < 0 ? max_i64(0, end + size) : min_i64(end, size);
    return output_like(c, 1, (int64_t[]){max_i64(0, end - start)}, x->shape_value + start);
}

/* A 0 keeps the input's dim; a dim below 0 is inferred. The elements do not change. */
enum sol_status op_fold_reshape(struct op_call *c) {
    int64_t dim[SOL_MAX_RANK], known = 1;
    int rank = call_input_ints(c, 1, SOL_MAX_RANK, dim), open = -1;
    for (int d = 0; d < rank; d++) {
        if (dim[d] == 0 && d < call_rank(c, 0)) dim[d] = size_value(c->in[0]->dim[d]);
        if (dim[d] < 0 && open >= 0) return fail(SOL_EINVAL, "two dims are below 0");
        if (dim[d] < 0) open = d;
        else if (__builtin_mul_overflow(known, dim[d], &known)) known = -1;
    }
    int64_t n = call_count(c->in[0]);
    if (c->im->status) return c->im->status;
    if (open >= 0 && known > 0) dim[open] = n / known;
    if (known < 0 || (open >= 0 ? known == 0 || n % known : known != n))
        return fail(SOL_EINVAL, "%lld numbers do not fit the new shape", (long long)n);
    return output_like(c, rank, dim, c->in[0]->shape_value);
}
