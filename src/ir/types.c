/*
 * Type rules: which element types a layer's inputs may have, and the element type of its output.
 *
 *   ir_add  ->  the rule in the layer's line of layer.def  ->  out[0]->dtype, or an error that names the input
 *
 * Layers never convert: where types differ, frontends add `cast` layers by the rules of their framework.
 */
#include "ir/layer.h"

#define ANY (FAMILY_FLOAT | FAMILY_INTEGER | FAMILY_TRUTH)

static const char *type_of(const struct layer *l, int i) {
    return size_dtype_name(l->in[i]->dtype);
}

/* All inputs from number `first` on must have one type, of one of the families. */
static enum sol_status check_equal(const struct layer *l, int first, int families,
                                   const char *what) {
    for (int i = first; i < l->n_in; i++) {
        if (!(size_family(l->in[i]->dtype) & families))
            return fail(SOL_EUNSUPPORTED, "input %d is %s; it must be %s", i, type_of(l, i), what);
        if (l->in[i]->dtype != l->in[first]->dtype)
            return fail(SOL_EINVAL, "input %d is %s, but input %d is %s", first, type_of(l, first),
                        i, type_of(l, i));
    }
    return SOL_OK;
}

/* The output has the inputs' type. */
static enum sol_status keep_type(struct layer *l, int families, const char *what) {
    TRY(check_equal(l, 0, families, what));
    l->out[0]->dtype = l->in[0]->dtype;
    return SOL_OK;
}

enum sol_status types_any(struct layer *l) { return keep_type(l, ANY, "of any type"); }
enum sol_status types_floats(struct layer *l) { return keep_type(l, FAMILY_FLOAT, "a float"); }
enum sol_status types_numbers(struct layer *l) {
    return keep_type(l, FAMILY_FLOAT | FAMILY_INTEGER, "a float or an integer");
}
enum sol_status types_integers(struct layer *l) {
    return keep_type(l, FAMILY_INTEGER, "an integer");
}
enum sol_status types_bits(struct layer *l) {
    return keep_type(l, FAMILY_INTEGER | FAMILY_TRUTH, "an integer or bool");
}

enum sol_status types_compare(struct layer *l) {
    TRY(check_equal(l, 0, ANY, "of any type"));
    l->out[0]->dtype = SOL_BOOL;
    return SOL_OK;
}

enum sol_status types_pool_index(struct layer *l) {
    TRY(types_numbers(l));
    l->out[0]->dtype = SOL_I32;
    return SOL_OK;
}

enum sol_status types_index(struct layer *l) {
    TRY(check_equal(l, 0, ANY, "of any type"));
    l->out[0]->dtype = SOL_I64;
    return SOL_OK;
}

/* A condition, and two values of one type. */
enum sol_status types_where(struct layer *l) {
    if (l->in[0]->dtype != SOL_BOOL)
        return fail(SOL_EUNSUPPORTED, "the condition is %s; it must be bool", type_of(l, 0));
    TRY(check_equal(l, 1, ANY, "of any type"));
    l->out[0]->dtype = l->in[1]->dtype;
    return SOL_OK;
}

/* Floats, and as input 3 a mask, which may also be bool. */
enum sol_status types_attention(struct layer *l) {
    struct layer all = *l;
    if (l->n_in > 3 && l->in[3]->dtype == SOL_BOOL) all.n_in = 3;
    return keep_type(&all, FAMILY_FLOAT, "a float");
}

/* Floats, and as optional last input the lengths. */
enum sol_status types_recurrent(struct layer *l) {
    struct layer all = *l;
    const struct tensor *lengths = ir_lengths(l);
    if (lengths && lengths->dtype != SOL_I64)
        return fail(SOL_EUNSUPPORTED, "the lengths are %s; they must be i64",
                    size_dtype_name(lengths->dtype));
    if (lengths) all.n_in--;
    return keep_type(&all, FAMILY_FLOAT, "a float");
}

enum sol_status types_gather(struct layer *l) {
    enum sol_dtype index = l->in[1]->dtype;
    if (index != SOL_I64 && index != SOL_I32)
        return fail(SOL_EUNSUPPORTED, "input 1 is %s; it must be i64 or i32", type_of(l, 1));
    l->out[0]->dtype = l->in[0]->dtype;
    return SOL_OK;
}

enum sol_status types_scatter_sum(struct layer *l) {
    struct layer x = *l;
    x.n_in = 1;
    TRY(types_numbers(&x));
    return types_gather(l);
}

enum sol_status types_pool_grad(struct layer *l) {
    if (l->in[1]->dtype != SOL_I32)
        return fail(SOL_EUNSUPPORTED, "input 1 is %s; it must be i32", type_of(l, 1));
    return types_scatter_sum(l);
}

enum sol_status types_random_bits(struct layer *l) {
    for (int i = 0; i < l->n_in; i++)
        if (l->in[i]->dtype != SOL_I32)
            return fail(SOL_EUNSUPPORTED, "input %d is %s; it must be i32", i, type_of(l, i));
    l->out[0]->dtype = SOL_I32;
    return SOL_OK;
}

enum sol_status types_random(struct layer *l) {
    if (l->in[0]->dtype != SOL_I64)
        return fail(SOL_EUNSUPPORTED, "the seed is %s; it must be i64", type_of(l, 0));
    l->out[0]->dtype = SOL_F32;
    return SOL_OK;
}

/* x and the weights are f32; the indices of both dims have one type. */
enum sol_status types_resample(struct layer *l) {
    for (int i = 0; i < l->n_in; i++) {
        const enum sol_dtype type = l->in[i]->dtype;
        const bool is_index = i % 2 == 1;
        if (is_index ? type != SOL_I64 && type != SOL_I32 : type != SOL_F32)
            return fail(SOL_EUNSUPPORTED, "input %d is %s; it must be %s", i, type_of(l, i),
                        is_index ? "i64 or i32" : "f32");
    }
    if (l->n_in > 3 && l->in[1]->dtype != l->in[3]->dtype)
        return fail(SOL_EUNSUPPORTED, "input 1 is %s, but input 3 is %s", type_of(l, 1),
                    type_of(l, 3));
    l->out[0]->dtype = SOL_F32;
    return SOL_OK;
}

/* Inputs of quant_conv and quant_linear, in order. The output is f32, or with a range what the attribute says: u8 or i8. */
enum sol_status types_quant(struct layer *l) {
    static const enum sol_dtype types[] = {SOL_U8, SOL_I8, SOL_I32, SOL_F32, SOL_F32, SOL_F32};
    const enum sol_dtype to = l->attr.dtype;
    for (int i = 0; i < l->n_in; i++)
        if (l->in[i]->dtype != types[i] && !(i == 0 && l->in[0]->dtype == SOL_I8))
            return fail(SOL_EUNSUPPORTED, "input %d is %s; it must be %s%s", i, type_of(l, i),
                        size_dtype_name(types[i]), i ? "" : " or i8");
    if (l->n_in < 6 ? to != SOL_F32 : to != SOL_U8 && to != SOL_I8)
        return fail(SOL_EINVAL, "the result is %s; it must be %s", size_dtype_name(to),
                    l->n_in < 6 ? "f32 without a range" : "u8 or i8 with a range");
    return types_cast(l);
}

/* The attribute says the type: of casts, and of layers without inputs. */
enum sol_status types_cast(struct layer *l) {
    l->out[0]->dtype = l->attr.dtype;
    return SOL_OK;
}
enum sol_status types_source(struct layer *l) { return types_cast(l); }

/* The frontend has declared the outputs. */
enum sol_status types_declared(struct layer *l) {
    (void)l;
    return SOL_OK;
}
