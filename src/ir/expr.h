/*
 * Point expressions: what a layer computes, as a formula for one output point.
 *
 *   layer  ->  its define function (define.c, define_shape.c, define_window.c)  ->  struct expr  ->  DFP's loops (dfp/lower.c)
 *
 * For the output point (v0, v1, ... v[rank-1]) the expression gives the input points that are read and how they are
 * combined. DFP generates loops from these expressions alone, so it has no code for any kind of layer.
 * Example, relu: max(in0[v0,v1,..], 0). Average pooling: sum over r, s of in0[v0, v1, v2*2+r, v3*2+s] / 4.
 */
#ifndef SOL_EXPR_H
#define SOL_EXPR_H

#include "ir/ir.h"

/* Integer arithmetic over loop variables. DIV rounds down; its divisor is positive. */
enum index_op { INDEX_CONST, INDEX_VAR, INDEX_ADD, INDEX_MUL, INDEX_DIV, INDEX_MOD };
struct index {
    enum index_op op;
    struct size value; /* INDEX_CONST: a polynomial of the model's symbols, mostly a plain number */
    int var;           /* INDEX_VAR: output dims are 0..rank-1, reduction variables follow */
    const struct index *a, *b; /* operands; `b` of MUL, DIV, MOD is INDEX_CONST */
};

/* Operations on the values of one point. The list is primitive.def. */
enum primitive {
    PRIMITIVE_NONE, /* in expressions other than EXPR_APPLY */
#define PRIMITIVE(name, ...) PRIMITIVE_##name,
#include "ir/primitive.def"
    N_PRIMITIVES
};
struct primitive_info {
    const char *name, *symbol; /* symbol: C's operator, or NULL */
    int n_args;
    double cost, flops;
    enum { COMPARES = 1, WRAPS = 2, RARE = 4 } traits; /* see primitive.def */
    double (*value)(double a, double b, double c);
};
extern const struct primitive_info primitives[N_PRIMITIVES];

/* Operations by which reductions merge values. The list is in primitive.def, too. */
enum combine {
#define COMBINE(name, ...) COMBINE_##name,
#include "ir/primitive.def"
    N_COMBINES
};
struct combine_info {
    const char *name;
    enum primitive primitive;
    double neutral;
    bool is_idempotent;
};
extern const struct combine_info combines[N_COMBINES];

enum expr_kind {
    EXPR_CONST, /* value: of an integer type a whole number, or an infinity for the type's limit */
    EXPR_LOAD, /* input[index...]; `fill` where an index is outside the input and `checked` is set */
    EXPR_RANGE,  /* a bool: low <= index[0] < high */
    EXPR_INDEX,  /* the value of index[0], an i64 */
    EXPR_REDUCE, /* arg[0] combined over n_vars variables */
    EXPR_APPLY,  /* a primitive of arg[] */
    EXPR_CAST,   /* arg[0] in type `type` */
};

struct expr {
    enum expr_kind kind;
    enum sol_dtype type;      /* of the value */
    enum primitive primitive; /* APPLY */
    struct expr *arg[3];
    double value; /* CONST */
    /* LOAD, RANGE, INDEX */
    struct tensor *tensor;
    int n_index;
    const struct index **index;
    bool checked;
    double fill;
    struct size low, high;
    /* REDUCE */
    enum combine combine;
    int first_var, n_vars;
    struct size *extent;
    /* REDUCE of select(variable <= v, value, neutral) over one variable: v, the output's variable whose dim it runs over, plus 1.
     * A loop over v then needs one step per value. 0: no such reduction. */
    int prefix;
};

/* The argument of define functions. n_vars counts the variables in use: the output's dims first, then reductions. */
struct define {
    struct arena *arena;
    const struct layer *layer;
    enum sol_dtype type; /* of the constants: that of the layer's inputs */
    int n_vars;
};

/* The expression of layer->out[0] at (v0..v[rank-1]), or NULL if the kind has none. *n_vars returns the number of variables in
 * it, reductions included. */
struct expr *ir_define(struct arena *arena, const struct layer *layer, int *n_vars);

/* Constructors, for define functions. Those of indices simplify x + 0, x * 1, x / 1, and arithmetic on constants. */
const struct index *index_const(struct arena *a, int64_t value);
const struct index *index_size(struct arena *a, struct size value);
const struct index *index_var(struct arena *a, int var);
const struct index *index_add(struct arena *a, const struct index *x, const struct index *y);
const struct index *index_mul(struct arena *a, const struct index *x, struct size factor);
const struct index *index_div(struct arena *a, const struct index *x, struct size divisor);
const struct index *index_mod(struct arena *a, const struct index *x, struct size divisor);
struct expr *expr_const(struct arena *a, enum sol_dtype type, double value);
/* `x` itself if it has this type. */
struct expr *expr_cast(struct arena *a, enum sol_dtype type, struct expr *x);
/* `y` and `z` are NULL where the primitive has fewer operands. The result has the operands' type, or is a bool. */
struct expr *expr_apply(struct arena *a, enum primitive primitive, struct expr *x, struct expr *y,
                        struct expr *z);
bool expr_has(const struct expr *e, enum expr_kind kind); /* `e` or an expression below it */

#endif
