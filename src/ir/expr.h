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

/* Functions of one point's values. The list is primitive.def. */
enum primitive {
    PRIMITIVE_NONE, /* of expressions that apply none */
#define PRIMITIVE(name, ...) PRIMITIVE_##name,
#include "ir/primitive.def"
    N_PRIMITIVES
};
struct primitive_info {
    const char *name, *symbol; /* symbol: C's operator, or NULL */
    int n_args;
    double cost, flops;
    double (*value)(double a, double b, double c);
};
extern const struct primitive_info primitives[N_PRIMITIVES];

/* What a reduction combines values by. The list is primitive.def, too. */
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
    EXPR_CONST, /* value */
    EXPR_LOAD, /* input[index...]; `fill` where an index is outside the input and `checked` is set */
    EXPR_RANGE,  /* 1.0 where low <= index[0] < high, else 0.0 */
    EXPR_REDUCE, /* arg[0] over n_vars variables, combined */
    EXPR_APPLY,  /* a primitive of arg[] */
};

struct expr {
    enum expr_kind kind;
    enum primitive primitive; /* APPLY */
    struct expr *arg[3];
    double value; /* CONST */
    /* LOAD, RANGE */
    struct tensor *tensor;
    int n_index;
    const struct index **index;
    bool checked;
    double fill;
    int64_t low, high;
    /* REDUCE */
    enum combine combine;
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
/* `y` and `z` are NULL where the primitive has fewer operands. */
struct expr *expr_apply(struct arena *a, enum primitive primitive, struct expr *x, struct expr *y,
                        struct expr *z);
bool expr_has(const struct expr *e, enum expr_kind kind); /* in it or below it */

#endif
