/*
 * Point expressions: a layer's mathematics, said once.
 *
 * For the output point (v0, v1, ... v[rank-1]) a layer's define function (define.c) says which input points it
 * reads and how they combine. DFP lowers these trees to loops; it knows no layer by name.
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
    int var;           /* INDEX_VAR: 0..rank-1 output dims, then reduction variables */
    const struct index *a, *b; /* operands; of MUL, DIV, MOD `b` is INDEX_CONST */
};

/* name, operands, C scalar meaning. MAX and MIN give NaN when either operand is NaN. */
#define EXPR_LIST(X)                                                                                 \
    X(ADD, 2) X(SUB, 2) X(MUL, 2) X(DIV, 2) X(MAX, 2) X(MIN, 2) X(NEG, 1) X(ABS, 1) X(SQRT, 1)       \
    X(EXP, 1) X(LOG, 1) X(TANH, 1) X(ERF, 1)                                                         \
    X(LESS, 2) X(EQUAL, 2) X(SELECT, 3) /* LESS, EQUAL: 1.0 or 0.0; SELECT(c, a, b): c != 0 ? a : b */

enum expr_op {
    EXPR_CONST, /* value */
    EXPR_LOAD, /* input[index...]; `fill` where an index is outside the input and `checked` is set */
    EXPR_RANGE, /* 1.0 where low <= index[0] < high, else 0.0 */
    /* `combine` (ADD, MAX or MIN) of arg[0] over n_vars variables, from `value` on */
    EXPR_REDUCE,
#define EXPR_ENUM(name, n) EXPR_##name,
    EXPR_LIST(EXPR_ENUM)
#undef EXPR_ENUM
};

struct expr {
    enum expr_op op;
    double value;
    struct expr *arg[3];
    /* LOAD, RANGE */
    struct tensor *tensor;
    int n_index;
    const struct index **index;
    bool checked;
    double fill;
    int64_t low, high;
    /* REDUCE */
    enum expr_op combine;
    int first_var, n_vars;
    struct size *extent;
};

/* What a define function is given. Reduction variables are numbered from n_vars on. */
struct define {
    struct arena *arena;
    const struct layer *layer;
    int n_vars;
};

/* Expression of layer->out[0] at (v0..v[rank-1]); *n_vars returns the number of variables in use. */
struct expr *ir_define(struct arena *arena, const struct layer *layer, int *n_vars);

/* Constructors, for define functions. They simplify: x + 0, x * 1, numbers. */
const struct index *index_const(struct arena *a, int64_t value);
const struct index *index_size(struct arena *a, struct size value);
const struct index *index_var(struct arena *a, int var);
const struct index *index_add(struct arena *a, const struct index *x, const struct index *y);
const struct index *index_mul(struct arena *a, const struct index *x, struct size factor);
const struct index *index_div(struct arena *a, const struct index *x, struct size divisor);
const struct index *index_mod(struct arena *a, const struct index *x, struct size divisor);
struct expr *expr_const(struct arena *a, double value);
struct expr *expr_unary(struct arena *a, enum expr_op op, struct expr *x);
struct expr *expr_binary(struct arena *a, enum expr_op op, struct expr *x, struct expr *y);

#endif
