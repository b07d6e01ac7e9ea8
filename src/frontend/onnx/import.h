/*
 * Inside the ONNX frontend: the state of an import, and the helpers that the operator functions use.
 *
 *   onnx.c    file -> struct onnx_model -> import_graph -> struct sol_onnx
 *   import.c  the graph: names, inputs, initializers, nodes in order, outputs
 *   call.c    a node's inputs, attributes and results, for op_*.c
 *   op_*.c    one function per operator or family of operators; op.def lists them
 *   settle.c  for sequences that are too long for one model
 *
 * A value is either a tensor of the model, or known while importing. A known value has data in the file, or is a shape value:
 * integers such as shapes, which may be formulas of open sizes. A known value becomes a tensor only when a layer reads it.
 */
#ifndef SOL_ONNX_IMPORT_H
#define SOL_ONNX_IMPORT_H

#include "array.h"
#include "base/size.h"
#include "tensor.h"

#include <sol/sol.h>

struct import_value {
    const char *name;
    enum sol_dtype dtype;
    int rank;
    struct size dim[SOL_MAX_RANK];
    const void *data;         /* values of the file; NULL: the value is computed */
    struct size *shape_value; /* elements of a known integer tensor of any type; else NULL */
    sol_tensor tensor;        /* < 0: not in the model (yet) */
    const void *live; /* in sessions: values of this call only; reading them makes a guard */
    bool is_read;     /* live values were read: they need a guard */
    bool varies;      /* the live values must not be read: they differ from run to run */
};

/* A tensor that call_settle has computed. */
struct settled {
    sol_tensor tensor;
    enum sol_dtype dtype;
    int rank;
    int64_t dim[SOL_MAX_RANK];
    void *data;
    bool is_new; /* computed by the last call_settle, not by one before */
};

struct import {
    struct arena *arena;
    struct sol_model *model;
    const char *folder; /* for external data; may be NULL */
    int64_t opset;
    enum sol_status status; /* of the first helper that failed; functions return it at their end */
    VEC(struct import_value *) slots; /* a hash table by name; cap a power of two */
    VEC(const void *) params;         /* values of the model's parameters, in order */
    VEC(const char *) symbols;        /* names of open sizes */
    bool is_single; /* the model has one node and is run at once: layers are as good as folding */
    VEC(struct settled) settled; /* not empty: the model is valid for the values of this run only */
    bool
        has_open_dims; /* not only first dims of inputs that have names: sizes may be equal without being known to be */
    VEC(struct import_value *) inputs; /* live values that became inputs of the model, in order */
};

/* Integer tensors up to this size may decide shapes; larger ones are data. */
#define IMPORT_MAX_SHAPE_VALUES 65536

struct import_value *import_find(const struct import *im, const char *name);
/* Fills `out` with the data of `data`; a small integer tensor also gets shape_value. */
void import_constant(struct import *im, const struct data *data, struct import_value *out);
/* The same, without the shape value. */
void import_data(const struct data *data, struct import_value *out);
/* A tensor of the interpreter, of element type `dtype`, as one of a file. */
struct data import_describe(const struct array *array, enum sol_dtype dtype);
/* An array for a value whose dims are constants, with its elements if they are known. */
struct array *import_array(struct space *space, const struct import_value *v);
enum sol_status import_graph(struct import *im, const struct onnx_graph *graph);
/* Parts of import_graph, for sessions. import_make_slots: room for `n` / 2 names. import_define: adds a name; NULL with a message
 * when it exists already. import_node: adds one node. */
void import_make_slots(struct import *im, size_t n);
struct import_value *import_define(struct import *im, const char *name);
enum sol_status import_node(struct import *im, const struct onnx_node *node);
/* Is `word` in a list of words that are separated by spaces? */
bool import_has_word(const char *list, const char *word);
/* Checks that all attributes of a node are in the list of words `known`, and that none occurs twice. */
enum sol_status import_check_attributes(const struct onnx_node *node, const char *known);

/* onnx.c: checks that SOL supports the model's IR version and opset; *opset is the opset of the default domain. */
enum sol_status onnx_check(const struct onnx_model *model, int64_t *opset);
/* Copies the folder of `path` to `out`; false when it does not fit. */
bool onnx_folder(const char *path, char out[4096]);

/* ---- A node ---- */

struct op;
struct op_call {
    struct import *im;
    const struct onnx_node *node;
    const struct op *op;
    int n_in, n_out;
    struct import_value **in;  /* NULL: left out */
    struct import_value **out; /* set by call_set_output*; NULL: the node names no such output */
};
/* Adds the layers of the node and sets all its outputs. */
typedef enum sol_status op_build(struct op_call *c);

/* A row of op.def: domain and name in ONNX; least and greatest number of inputs; `build` adds layers; `fold` computes the node instead when
 * all inputs are shape values (op_none: it cannot); `layer` is an argument for shared functions; `attributes` lists the allowed
 * ones. */
struct op {
    const char *domain, *name; /* domain "": ONNX's own */
    int min_in, max_in;
    op_build *build, *fold;
    const char *layer, *attributes;
};
/* NULL when SOL cannot compile such an operator. */
const struct op *op_find(const char *domain, const char *name);

/* call.c. Errors are sticky: after the first error, helpers return harmless values. Each operator function ends with a
 * call_set_output*, which returns that error. */
enum sol_status call_fail(struct op_call *c, enum sol_status status); /* keeps the first error */
bool call_has(const struct op_call *c, int i);                        /* is input `i` present? */
/* The attribute, or the default. A wrong type is an error. */
int64_t call_int(struct op_call *c, const char *name, int64_t default_value);
double call_float(struct op_call *c, const char *name, double default_value);
/* The attribute as text, "" when it is missing. */
const char *call_string(struct op_call *c, const char *name);
/* An attribute of up to `max` integers; returns their count, 0 when it is missing. */
int call_ints(struct op_call *c, const char *name, int max, int64_t *out);
const struct onnx_attribute *call_attribute(const struct op_call *c, const char *name);
/* NULL when it is missing or has another type, which is an error. */
const struct onnx_attribute *call_typed(struct op_call *c, const char *name,
                                        enum onnx_attribute_type type);
/* The integers of input `i`, which must be a shape value without formulas; returns their count, at most `max`. */
int call_input_ints(struct op_call *c, int i, int max, int64_t *out);
/* The one float of input `i`, which must be known. */
double call_input_float(struct op_call *c, int i);
/* The shape value of input `i`, NULL when it has none. In a session, a partition gets a guard for each value that one of these
 * three functions reads. Testing whether `shape_value` is NULL makes no guard. */
const struct size *call_shape_value(struct op_call *c, int i);

/* The number of elements of a known value. */
int64_t call_count(const struct import_value *v);
/* The bytes of a value that is known, or of this call only: a guard makes the program depend on them. NULL: there are none. */
const void *call_read_bytes(struct import_value *v);

/* The elements of a shape value in memory, as integers of its type. */
const void *call_write_numbers(struct op_call *c, struct import_value *v);

/* Input `i` as a tensor of the model; a known one becomes a parameter. */
sol_tensor call_tensor(struct op_call *c, int i);
/* A constant of the first input's element type. */
sol_tensor call_scalar(struct op_call *c, double value);
sol_tensor call_scalar_of(struct op_call *c, double value, enum sol_dtype dtype);
/* `x` itself if it has this element type. */
sol_tensor call_cast(struct op_call *c, sol_tensor x, enum sol_dtype to);
/* A new parameter that belongs to this node alone; `data` is in the import's arena. */
sol_tensor call_param(struct op_call *c, enum sol_dtype dtype, int rank, const int64_t *dim,
                      const void *data);
/* Input `i` as a tensor, for layers that broadcast: a known value with one element becomes a scalar. */
sol_tensor call_operand(struct op_call *c, int i);
/* The shape of any tensor of the model; returns the rank. */
int call_shape(struct op_call *c, sol_tensor tensor, struct size dim[SOL_MAX_RANK]);
/* floor(a / divisor); `bad` if there are too many such sizes. */
struct size call_floor(struct op_call *c, struct size a, int64_t divisor);
/* A size as attribute text, in the import's arena. */
const char *call_format_size(struct op_call *c, struct size size);
/* "2,$0,4" */
const char *call_format_dims(struct op_call *c, int rank, const struct size *dim);
/* Rank of input `i`; its dim `d`, which must be a constant; an axis of `rank` dims, which may be negative, as 0 to rank - 1. */
int call_rank(const struct op_call *c, int i);
bool call_is_empty(const struct op_call *c, int i); /* has input `i` a dim of 0? */
int64_t call_dim(struct op_call *c, int i, int d);
int64_t call_axis(struct op_call *c, int64_t axis, int rank);
/* The same for an axis of a list: it is marked in `named`, and an axis that occurs twice is an error. */
int64_t call_axis_of_list(struct op_call *c, int64_t axis, int rank, bool named[SOL_MAX_RANK]);

/* Adds a layer; `attributes` is a printf format of the text form. */
sol_tensor call_layer(struct op_call *c, const char *kind, int n, const sol_tensor *in,
                      const char *attributes, ...) __attribute__((format(printf, 5, 6)));
#define LAYER1(c, kind, x, ...) call_layer(c, kind, 1, &(sol_tensor){x}, __VA_ARGS__)
#define LAYER2(c, kind, x, y, ...) call_layer(c, kind, 2, (sol_tensor[]){x, y}, __VA_ARGS__)
sol_tensor call_reshape(struct op_call *c, sol_tensor x, int rank, const struct size *dim);
sol_tensor call_expand(struct op_call *c, sol_tensor x, int rank, const struct size *dim);
sol_tensor call_permute(struct op_call *c, sol_tensor x, int rank, const int64_t *axes);
/* Joins `n` tensors along `axis`; there may be more than a layer takes. */
sol_tensor call_concat(struct op_call *c, int n, const sol_tensor *list, int axis);
/* The i64 0, step, 2 * step, .., of shape [n,1,..] with `after` dims of 1. */
sol_tensor call_arange(struct op_call *c, struct size n, int64_t step, int after);
sol_tensor call_where(struct op_call *c, sol_tensor condition, sol_tensor yes, sol_tensor no);
sol_tensor call_clamp(struct op_call *c, sol_tensor x, double low, double high);
/* After an error: f32. */
enum sol_dtype call_dtype(struct op_call *c, sol_tensor x);
/* Reads the dims of a tensor; refuses the node, and returns false, if one is open or their number is not `rank`. */
bool call_fixed_shape(struct op_call *c, sol_tensor x, int rank, struct size dim[SOL_MAX_RANK]);
/* Text of attributes, "1.5" and "[1,2]", in the import's arena. It does not depend on the locale. */
const char *call_format_double(struct op_call *c, double value);
const char *call_format_ints(struct op_call *c, int n, const int64_t *list);

/* The elements index[0], index[1], .. of dim `axis`; each index is within the dim. */
sol_tensor call_pick(struct op_call *c, sol_tensor x, int axis, int64_t n, const int64_t *index);

/* nested.c. call_value: a tensor as an input. call_operator: adds the layers of ONNX's operator `name`, which reads the attributes of
 * this node, on `n` inputs (NULL: left out; at most 8), and returns its output 0. call_as: its outputs are those of this node. */
struct import_value *call_value(struct op_call *c, sol_tensor x);
enum sol_status call_as(struct op_call *c, const char *name, int n, struct import_value *const *in);
sol_tensor call_operator(struct op_call *c, const char *name, int n,
                         struct import_value *const *in);

/* settle.c, for models that are run at once and would be too large: computes the `n` tensors of the list (< 0: none) now.
 * They become parameters of a new model; all other tensors are lost, but for the inputs. */
enum sol_status call_settle(struct op_call *c, int n, sol_tensor *const *list);

/* Sets output `i` to a tensor. */
enum sol_status call_set_output(struct op_call *c, int i, sol_tensor tensor);
enum sol_status call_set_output_value(struct op_call *c, int i, struct import_value *value);
/* Sets output `i` to a shape value; `number` is copied. */
enum sol_status call_set_shape_value(struct op_call *c, int i, int rank, const int64_t *dim,
                                     const struct size *number);

#define OP(name, min, max, build, fold, layer, attributes) op_build op_##build, op_##fold;
#define OP_OF(domain, name, min, max, build, layer, attributes) op_build op_##build;
#include "op.def"
#undef OP
#undef OP_OF

#endif
