/*
 * The interpreter: computes one node at a time, for all element types. It runs the nodes that are too small to compile, or that SOL
 * cannot compile.
 *
 *   eval_layer.c  operators of op.def: by their layers
 *   eval.def      THE list of operators that have a function
 *   eval.c        the table, and helpers for its functions: attributes, inputs, results
 *   eval_*.c      the functions, by group
 *   scope.c       names and values of a graph while it runs
 *
 * A function reads e->in (NULL: left out) and sets e->out. Errors do not return: eval_stop jumps out of the function with the
 * message, and so does each function that allocates (array.h). So a function reads like the operator's definition:
 *
 *     void run_trace(struct eval *e) {
 *         const struct array *x = eval_in(e, 0);
 *         eval_check(e, x->rank == 2, "no matrix");
 *         double *v = array_doubles(e->space, x), sum = 0;
 *         for (int64_t i = 0; i < min_i64(x->dim[0], x->dim[1]); i++) sum += v[i * x->dim[1] + i];
 *         eval_set_output_doubles(e, 0, x->type, 0, NULL, &sum);
 *     }
 *
 * A function must check the values that come from data: indices, sizes, divisors, and dims of inputs against each other. Sizes of
 * results need no check: allocation refuses sizes that are negative, overflow or exceed the limit.
 */
#ifndef SOL_ONNX_EVAL_H
#define SOL_ONNX_EVAL_H

#include "array.h"
#include "proto.h"

#include <stdatomic.h>

struct scope;
struct operator;
struct session_call;
struct session_profile;
struct singles;

/* One call of a network. */
struct eval_context {
    struct space *space;
    const char *folder; /* for external data */
    int64_t opset;
    double deadline;                 /* loops stop when os_now() exceeds it */
    struct session_call *call;       /* the innermost graph that runs now; NULL: none */
    int64_t number;                  /* calls of a session are counted */
    struct session_profile *profile; /* NULL: the call is not profiled */
    struct singles *singles;         /* of the session; NULL while it is loaded */
    int n_compiled, n_interpreted;   /* nodes, also those of subgraphs, each time that they run */
};

/* One node. */
struct eval {
    struct eval_context *run;
    struct space *space;
    struct scope *scope; /* names that the node and its subgraphs can read */
    const struct onnx_node *node;
    const struct operator* op;
    struct node_kind *kind;
    int64_t opset;
    int n_in, n_out;
    struct array **in, **out;
};
typedef void eval_function(struct eval *e);

/* A row of eval.def. */
struct operator{
    const char *name;
    int min_in, max_in;
    eval_function *run;
    int choice;             /* which member of a family */
    const char *domain;     /* NULL: ONNX's own */
    const char *attributes; /* the allowed ones; a node with another one is refused */
};

/* How a node can be computed: by a function of eval.def, by the layers of op.def. NULL: not so. */
struct op;
struct single;
struct node_kind {
    const struct operator* interpreted;
    const struct op *compiled;
    struct single
        *_Atomic singles; /* eval_layer.c: models of earlier runs of the node, newest first */
    atomic_int n_singles;
    struct kept *_Atomic kept; /* by the operator's function; NULL: nothing */
};
/* What an operator has made of a node's attributes, for later runs of the node: the head of a block of mem_alloc, which never
 * changes. eval_keep takes ownership of the block. */
struct kept {
    struct kept *next;
};
void eval_keep(struct eval *e, struct kept *block);
void node_kind(const struct onnx_node *node, struct node_kind *out);
/* All singles of a session, and all that operators have kept. */
struct singles {
    struct single *_Atomic newest;
    struct kept *_Atomic kept;
};

/* Computes a node of the graph of `scope` and stores its results there. */
enum sol_status eval_node(struct eval_context *run, struct scope *scope,
                          const struct onnx_node *node, struct node_kind *kind);
/* eval_layer.c: computes the node by the layers that it is compiled to, and sets all results. */
enum sol_status eval_layers(struct eval *e, struct node_kind *kind);
void eval_free_singles(struct singles *all);

/* ---- For operators ---- */

void eval_stop(struct eval *e, enum sol_status status) __attribute__((noreturn, cold));
static inline bool eval_has(const struct eval *e, int i) { return i < e->n_in && e->in[i]; }

/* The attribute, or the default when it is missing. A wrong type stops the call. */
const struct onnx_attribute *eval_attribute(const struct eval *e, const char *name);
int64_t eval_int(struct eval *e, const char *name, int64_t default_value);
double eval_float(struct eval *e, const char *name, double default_value);
const char *eval_string(struct eval *e, const char *name, const char *default_value);
bool eval_is(struct eval *e, const char *name, const char *value); /* is the attribute `value`? */
/* A string attribute that must be one of `words`, which are separated by spaces. */
const char *eval_word(struct eval *e, const char *name, const char *default_value,
                      const char *words);
int eval_ints(struct eval *e, const char *name, const int64_t **out);
int eval_floats(struct eval *e, const char *name, const float **out);
const struct onnx_graph *eval_graph(struct eval *e, const char *name);
/* A tensor attribute's values; NULL when missing. */
struct array *eval_tensor(struct eval *e, const char *name);

/* Values of input `i`. eval_in_ints returns their count, 0 when the input is missing. */
int eval_in_ints(struct eval *e, int i, int64_t **out);
int64_t eval_in_int(struct eval *e, int i, int64_t default_value);
double eval_in_double(struct eval *e, int i, double default_value);
int eval_axis(struct eval *e, int64_t axis, int rank);
/* The same for an axis of a list: it is marked in `named`, and an axis that occurs twice stops the call. */
int eval_axis_of_list(struct eval *e, int64_t axis, int rank, bool named[SOL_MAX_RANK]);
/* An index or bound that counts from the end when negative, within `size`; stops outside. */
int64_t eval_index(struct eval *e, int64_t index, int64_t size);
/* The tensor input `i`; stops when it is missing or a sequence. */
struct array *eval_in(struct eval *e, int i);
void eval_check(struct eval *e, bool holds, const char *what); /* EINVAL */

/* Results. eval_set_output sets an output to a complete array. eval_out sets it to a new array of zeros, which the caller then
 * fills. An output that the node does not name may be set, too. eval_sequence makes a sequence of `n` items, which the caller
 * sets. */
struct array *eval_sequence(struct eval *e, int64_t n);
static inline struct array **eval_items(const struct array *sequence) { return sequence->data; }
/* Input `i`, which must be a sequence; a tensor is not accepted as a sequence of one item. */
const struct array *eval_sequence_in(struct eval *e, int i);
struct array *eval_new(struct eval *e, enum type type, int rank, const int64_t *dim);
void eval_set_output(struct eval *e, int i, struct array *array);
struct array *eval_out(struct eval *e, int i, enum type type, int rank, const int64_t *dim);
void eval_set_output_doubles(struct eval *e, int i, enum type type, int rank, const int64_t *dim,
                             const double *values);
struct array *eval_from_doubles(struct eval *e, enum type type, int rank, const int64_t *dim,
                                const double *values);
/* Computes the dims that `n` arrays broadcast to; returns the rank. */
int eval_broadcast(struct eval *e, int n, struct array *const *arrays, int64_t dim[SOL_MAX_RANK]);

/* A scalar. */
struct array *eval_number(struct eval *e, enum type type, int64_t value);
/* eval_sequence.c. An array of `dim` whose element at `index` is element offset + sum(index[d] * stride[d]) of x. */
struct array *move_strided(struct eval *e, const struct array *x, int rank, const int64_t *dim,
                           int64_t offset, const int64_t *stride);
/* Dim d of the result is dim axes[d] of x. */
struct array *move_permute(struct eval *e, const struct array *x, const int64_t *axes);

/* scope.c */
struct scope *scope_new(struct space *space, struct scope *outer, int max_names);
/* The constants of a graph, seen inside of another scope. The result shares the names and values of `constants`. */
struct scope *scope_inside(struct space *space, const struct scope *constants, struct scope *outer);
/* The value of a name in this scope or the nearest outer one; NULL when it has none. */
struct array *scope_find(const struct scope *scope, const char *name);
/* Is this value a constant of the session? */
bool scope_is_constant(const struct scope *scope, const char *name);
/* Where the value of a name is stored in this scope, not in an outer one. The scope must have room for the name (scope_new). */
struct array **scope_slot(struct scope *scope, const char *name);
/* session_call.c: runs a subgraph of the node inside e->scope, with `n_in` values for its inputs; stores its outputs in `out`. */
void eval_subgraph(struct eval *e, const struct onnx_graph *graph, int n_in, struct array **in,
                   struct array **out);
#define EVAL(name, min, max, function, ...) eval_function run_##function;
#include "eval.def"
#undef EVAL

#endif
