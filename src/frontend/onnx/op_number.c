/*
 * Operators on whole numbers that are known while importing: they decide shapes. Numbers are formulas of the batch, so that
 * Shape, Gather, Mul, Reshape keep an open batch open.
 */
#include "import.h"

#include <string.h>

#define MOST 65536 /* numbers in a tensor */

static int64_t count(const struct value *v) {
    int64_t n = 1;
    for (int d = 0; d < v->rank; d++) n *= size_value(v->dim[d]);
    return n;
}

static void dims_of(const struct value *v, int64_t dim[SOL_MAX_RANK]) {
    for (int d = 0; d < v->rank; d++) dim[d] = size_value(v->dim[d]);
}

/* ---- Sources ---- */

static enum sol_status give_data(struct call *c, struct data data) {
    struct value value = {.tensor = -1};
    import_constant(c->im, &data, &value);
    return call_give_value(c, 0, &value);
}

/* Exactly one of five attributes holds the value. */
enum sol_status op_constant(struct call *c) {
    if (c->node->attributes.n != 1)
        return fail(SOL_EINVAL, "it has %d values", c->node->attributes.n);
    const struct onnx_attribute *a = ITEM(c->node->attributes, struct onnx_attribute, 0);
    struct data data;
    if (!strcmp(a->name, "value")) {
        if (a->type != 4 || !a->t) return fail(SOL_EINVAL, "its value is no tensor");
        TRY(tensor_read(c->im->arena, c->im->folder, a->t, &data));
        return give_data(c, data);
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
    return give_data(c, data);
}

/* Numbers of one value, or a tensor of one real. */
enum sol_status op_constant_of_shape(struct call *c) {
    const struct onnx_attribute *a = call_attribute(c, "value");
    struct data one = {.dtype = SOL_F32, .n = 1, .at = &(float){0}};
    const struct value *shape = c->in[0];
    if (shape->rank != 1 || count(shape) > SOL_MAX_RANK)
        return fail(SOL_EUNSUPPORTED, "a shape of rank %d", shape->rank);
    if (a && (a->type != 4 || !a->t)) return fail(SOL_EINVAL, "its value is no tensor");
    if (a) TRY(tensor_read(c->im->arena, c->im->folder, a->t, &one));
    if (one.n != 1) return fail(SOL_EINVAL, "its value has %lld elements", (long long)one.n);
    int rank = (int)count(shape);
    if (one.dtype == SOL_F32) {
        struct text text;
        text_init(&text, c->im->arena);
        for (int d = 0; d < rank; d++) {
            text_add(&text, d ? "," : "");
            size_print(&text, shape->number[d]);
        }
        sol_tensor value = sol_model_scalar(c->im->model, (double)*(const float *)one.at);
        return call_give(c, 0, LAYER1(c, "expand", value, "shape=[%s]", text.at));
    }
    int64_t dim[SOL_MAX_RANK], n = 1;
    call_input_ints(c, 0, SOL_MAX_RANK, dim);
    for (int d = 0; d < rank; d++)
        if (dim[d] < 0 || __builtin_mul_overflow(n, dim[d], &n) || n > MOST)
            return fail(SOL_EUNSUPPORTED, "more than %d numbers", MOST);
    struct value item = {.tensor = -1};
    import_constant(c->im, &one, &item);
    if (!item.number) return fail(SOL_EUNSUPPORTED, "values of this type");
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) numbers[i] = item.number[0];
    return call_give_numbers(c, 0, rank, dim, numbers);
}

/* Dims from `start` to `end`, both clamped to the rank. */
enum sol_status op_shape(struct call *c) {
    const struct value *x = c->in[0];
    int64_t start = call_int(c, "start", 0), end = call_int(c, "end", x->rank);
    start = max_i64(0, min_i64(start < 0 ? start + x->rank : start, x->rank));
    end = max_i64(start, min_i64(end < 0 ? end + x->rank : end, x->rank));
    for (int64_t d = start; d < end; d++)
        if (x->dim[d].bad)
            return fail(SOL_EUNSUPPORTED, "dim %lld depends on the batch in a way that is not kept",
                        (long long)d);
    return call_give_numbers(c, 0, 1, (int64_t[]){end - start}, x->dim + start);
}

enum sol_status op_size(struct call *c) {
    struct size n = size_const(1);
    for (int d = 0; d < call_rank(c, 0); d++) n = size_mul(n, c->in[0]->dim[d]);
    if (n.bad)
        return fail(SOL_EUNSUPPORTED,
                    "the number of elements depends on the batch in a way that is not kept");
    return call_give_numbers(c, 0, 0, NULL, &n);
}

enum sol_status op_range(struct call *c) {
    int64_t at[3] = {0};
    for (int i = 0; i < 3; i++) call_input_ints(c, i, 1, &at[i]);
    if (c->im->status) return c->im->status;
    if (!at[2]) return fail(SOL_EINVAL, "a step of 0");
    double n = ((double)at[1] - (double)at[0]) / (double)at[2];
    if (n > MOST) return fail(SOL_EUNSUPPORTED, "more than %d numbers", MOST);
    int64_t whole = n > 0 ? (int64_t)n + ((double)(int64_t)n < n) : 0;
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, whole + 1);
    for (int64_t i = 0; i < whole; i++)
        numbers[i] = size_const(
            (int64_t)((uint64_t)at[0] + (uint64_t)i * (uint64_t)at[2])); /* never beyond the end */
    return call_give_numbers(c, 0, 1, &whole, numbers);
}

/* ---- Moving and computing ---- */

/* Numbers stay numbers in whatever integer type; other casts are nobody's yet, but that to what a tensor is. */
enum sol_status op_cast(struct call *c) {
    enum sol_dtype to;
    if (c->op->max_in == 2) to = c->in[1]->dtype; /* CastLike */
    else TRY(tensor_dtype(call_int(c, "to", 0), &to));
    struct value same = *c->in[0];
    if (same.number && to >= SOL_I64) same.dtype = to;
    else if (same.number) return fail(SOL_EUNSUPPORTED, "whole numbers to reals");
    if (same.dtype != to) return fail(SOL_EUNSUPPORTED, "a change of type");
    return call_give_value(c, 0, &same);
}

/* Of a list, by index: one number or several. */
enum sol_status op_gather_numbers(struct call *c) {
    const struct value *x = c->in[0], *index = c->in[1];
    int64_t dim[SOL_MAX_RANK], n = count(index);
    if (x->rank != 1 || call_int(c, "axis", 0) > 0)
        return fail(SOL_EUNSUPPORTED, "numbers of rank %d", x->rank);
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = size_is_const(index->number[i]) ? size_value(index->number[i]) : INT64_MAX;
        if (at < 0) at += count(x);
        if (at < 0 || at >= count(x))
            return fail(SOL_EINVAL, "an index outside of %lld numbers", (long long)count(x));
        numbers[i] = x->number[at];
    }
    dims_of(index, dim);
    return call_give_numbers(c, 0, index->rank, dim, numbers);
}

enum sol_status op_concat_numbers(struct call *c) {
    VEC(struct size) all = {0};
    for (int i = 0; i < c->n_in; i++) {
        if (call_rank(c, i) != 1)
            return fail(SOL_EUNSUPPORTED, "numbers of rank %d", call_rank(c, i));
        for (int64_t k = 0; k < count(c->in[i]); k++)
            VEC_PUSH(c->im->arena, &all, c->in[i]->number[k]);
        if (all.n > MOST) return fail(SOL_EUNSUPPORTED, "more than %d numbers", MOST);
    }
    return call_give_numbers(c, 0, 1, (int64_t[]){all.n}, all.at);
}

enum sol_status op_slice_numbers(struct call *c) {
    int64_t start = 0, end = 0, axis = 0, step = 1;
    const struct value *x = c->in[0];
    if (x->rank != 1 || c->n_in < 3) return fail(SOL_EUNSUPPORTED, "numbers of rank %d", x->rank);
    int n = call_input_ints(c, 1, 1, &start) + call_input_ints(c, 2, 1, &end);
    if (call_has(c, 3)) call_input_ints(c, 3, 1, &axis);
    if (call_has(c, 4)) call_input_ints(c, 4, 1, &step);
    if (c->im->status) return c->im->status;
    if (n != 2 || step != 1 || call_axis(c, axis, 1))
        return fail(SOL_EUNSUPPORTED, "a step of %lld", (long long)step);
    int64_t size = count(x);
    start = start < 0 ? max_i64(0, start + size) : min_i64(start, size);
    end = end < 0 ? max_i64(0, end + size) : min_i64(end, size);
    return call_give_numbers(c, 0, 1, (int64_t[]){max_i64(0, end - start)}, x->number + start);
}

enum sol_status op_reshape_numbers(struct call *c) {
    int64_t dim[SOL_MAX_RANK], known = 1;
    int rank = call_input_ints(c, 1, SOL_MAX_RANK, dim), open = -1;
    for (int d = 0; d < rank; d++) {
        if (dim[d] == 0 && d < call_rank(c, 0)) dim[d] = size_value(c->in[0]->dim[d]);
        if (dim[d] < 0 && open >= 0) return fail(SOL_EINVAL, "two dims are below 0");
        if (dim[d] < 0) open = d;
        else if (__builtin_mul_overflow(known, dim[d], &known)) known = -1;
    }
    int64_t n = count(c->in[0]);
    if (c->im->status) return c->im->status;
    if (open >= 0 && known > 0) dim[open] = n / known;
    if (known < 0 || (open >= 0 ? known == 0 || n % known : known != n))
        return fail(SOL_EINVAL, "%lld numbers do not fit the new shape", (long long)n);
    return call_give_numbers(c, 0, rank, dim, c->in[0]->number);
}

/* add, sub, mul, div of lists of equal length, or a list and one number. */
enum sol_status op_arithmetic(struct call *c) {
    const struct value *a = c->in[0], *b = c->in[1],
                       *longer = count(a) < count(b) || a->rank < b->rank ? b : a;
    int64_t dim[SOL_MAX_RANK], na = count(a), nb = count(b), n = count(longer);
    if ((na != n && na != 1) || (nb != n && nb != 1))
        return fail(SOL_EUNSUPPORTED, "%lld and %lld numbers", (long long)na, (long long)nb);
    struct size *numbers = ARENA_ARRAY(c->im->arena, struct size, n + 1);
    for (int64_t i = 0; i < n; i++) {
        struct size x = a->number[na == 1 ? 0 : i], y = b->number[nb == 1 ? 0 : i];
        bool divides = true;
        if (!strcmp(c->op->layer, "add")) numbers[i] = size_add(x, y);
        else if (!strcmp(c->op->layer, "sub")) numbers[i] = size_sub(x, y);
        else if (!strcmp(c->op->layer, "mul")) numbers[i] = size_mul(x, y);
        else divides = size_divide(x, y, &numbers[i]);
        /* Division of whole numbers cuts off towards 0. */
        if (!divides && size_is_const(x) && size_is_const(y) && size_value(y) > 0)
            numbers[i] = size_const(size_value(x) / size_value(y));
        else if (!divides)
            return fail(SOL_EUNSUPPORTED, "a quotient that depends on the batch, or by 0");
        if (numbers[i].bad)
            return fail(SOL_EUNSUPPORTED,
                        "a number that overflows or depends on the batch in too many ways");
    }
    dims_of(longer, dim);
    return call_give_numbers(c, 0, longer->rank, dim, numbers);
}
