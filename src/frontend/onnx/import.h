/*
 * Inside the ONNX frontend: what an import knows of each value, and what the functions behind the table of operators work with.
 *
 *   onnx.c    file -> struct onnx_model -> import_graph -> struct sol_onnx
 *   import.c  the graph: names, inputs, initializers, nodes in order, outputs
 *   call.c    a node's inputs, attributes and results, for op_*.c
 *   op_*.c    one function per operator or family; op.def says which
 *
 * A value is a tensor of the model, or known: values of the file, or integers that were computed while importing, such as
 * shapes, which may be formulas of the batch. Known ones become tensors only when a layer wants them.
 */
#ifndef SOL_ONNX_IMPORT_H
#define SOL_ONNX_IMPORT_H

#include "base/size.h"
#include "tensor.h"

#include <sol/sol.h>

struct import_value {
    const char *name;
    enum sol_dtype dtype;
    int rank;
    struct size dim[SOL_MAX_RANK]; /* `bad` where the builder has a formula that it does not tell */
    const void *data;              /* of the file; NULL: computed */
    struct size *shape_value;      /* its elements if they are known integers, of any integer type;
                                    * else NULL */
    sol_tensor tensor; /* < 0: not in the model (yet). A bool that was computed is f32 there */
    /* of this call alone, for sessions: its values may be read, but then they are guarded */
    const void *live;
    bool is_read; /* live values were read */
};

struct import {
    struct arena *arena;
    struct sol_model *model;
    const char *folder; /* for external data; may be NULL */
    int64_t opset;
    enum sol_status status; /* of the first failed helper: functions go on and say so at the end */
    VEC(struct import_value *) slots;  /* a hash table by name; cap a power of two */
    VEC(const void *) params;          /* values of the model's parameters, in order */
    VEC(const char *) symbols;         /* names of open batch sizes */
    VEC(struct import_value *) inputs; /* live values that became inputs of the model, in order */
};

/* Integer tensors up to this size may decide shapes; larger ones are data. */
#define IMPORT_MAX_SHAPE_VALUES 65536

struct import_value *import_find(const struct import *im, const char *name);
/* A value that holds the data of `data`; small integer tensors also as numbers. */
void import_constant(struct import *im, const struct data *data, struct import_value *out);
enum sol_status import_graph(struct import *im, const struct onnx_graph *graph);
/* The pieces of it, for sessions. Room for `n` names; a new name (NULL when taken); one node. */
void import_make_slots(struct import *im, size_t n);
struct import_value *import_define(struct import *im, const char *name);
enum sol_status import_node(struct import *im, const struct onnx_node *node);
/* Are all of a node's attributes in the list of words `known`, and none twice? */
enum sol_status import_check_attributes(const struct onnx_node *node, const char *known);

/* onnx.c: is this a model that SOL knows the versions of? Its opset. */
enum sol_status onnx_check(const struct onnx_model *model, int64_t *opset);
/* The folder of a path; false when it does not fit. */
bool onnx_folder(const char *path, char out[4096]);

/* ---- A node ---- */

struct op;
struct op_call {
    struct import *im;
    const struct onnx_node *node;
    const struct op *op;
    int n_in, n_out;
    struct import_value **in;  /* NULL: left out */
    struct import_value **out; /* to be filled by call_set_output*; an unwanted one is NULL */
};
/* Adds the node's layers and gives all its results. */
typedef enum sol_status op_build(struct op_call *c);

/* name in ONNX; inputs at least and at most; the attributes that it may have; `layer`: argument of shared functions. `fold`: for inputs
 * that are known integers; NULL: there is none. */
struct op {
    const char *name;
    int min_in, max_in;
    op_build *build, *fold;
    const char *layer, *attributes;
};
/* NULL when SOL cannot compile such an operator. */
const struct op *op_find(const char *name);
/* NULL when it cannot interpret it either: eval.c. */
const struct operator* operator_find(const char *domain, const char *name);

/* call.c. Helpers that return values are sticky: after the first mistake they return something harmless, and call_set_output, which every
 * function ends with, returns the mistake. */
enum sol_status call_fail(struct op_call *c, enum sol_status status); /* remembers it */
bool call_has(const struct op_call *c, int i);                        /* is input `i` there? */
/* The attribute, or the default. A wrong type is a mistake. */
int64_t call_int(struct op_call *c, const char *name, int64_t default_value);
double call_float(struct op_call *c, const char *name, double default_value);
/* As text, "" when missing; the caller compares. */
const char *call_string(struct op_call *c, const char *name);
/* Up to `max` numbers; their count, 0 when missing. */
int call_ints(struct op_call *c, const char *name, int max, int64_t *out);
const struct onnx_attribute *call_attribute(const struct op_call *c, const char *name);
/* Numbers of input `i`, which must be known and constant; their count. */
int call_input_ints(struct op_call *c, int i, int max, int64_t *out);
/* The one float of input `i`, which must be known. */
double call_input_float(struct op_call *c, int i);
/* All numbers of input `i`, NULL when they are not known. In a session, numbers that are read by these three functions are
 * what a program depends on; `shape_value` itself may tell whether there are any. */
const struct size *call_shape_value(struct op_call *c, int i);

/* Elements of a known value. */
int64_t call_count(const struct import_value *v);

/* Input `i` as a tensor of the model; a known one becomes a parameter. */
sol_tensor call_tensor(struct op_call *c, int i);
/* Input `i` as integers for a gather: an input of the model, or known. */
sol_tensor call_index(struct op_call *c, int i);
/* A parameter of the node's own; `data` is in the import's arena. */
sol_tensor call_param(struct op_call *c, enum sol_dtype dtype, int rank, const int64_t *dim,
                      const void *data);
/* The same, for layers that broadcast: a single number becomes a scalar. */
sol_tensor call_operand(struct op_call *c, int i);
/* Any tensor's shape; dims that are formulas are `bad`. */
int call_shape(struct op_call *c, sol_tensor tensor, struct size dim[SOL_MAX_RANK]);
/* Of input `i`. A dim that must be a constant. */
int call_rank(const struct op_call *c, int i);
int64_t call_dim(struct op_call *c, int i, int d);
int64_t call_axis(struct op_call *c, int64_t axis, int rank);
/* One of a list, which is noted in `named`; one that is there already is a mistake. */
int64_t call_axis_of_list(struct op_call *c, int64_t axis, int rank, bool named[SOL_MAX_RANK]);

/* Adds a layer; the attributes are formatted. */
sol_tensor call_layer(struct op_call *c, const char *kind, int n, const sol_tensor *in,
                      const char *attributes, ...) __attribute__((format(printf, 5, 6)));
#define LAYER1(c, kind, x, ...) call_layer(c, kind, 1, &(sol_tensor){x}, __VA_ARGS__)
#define LAYER2(c, kind, x, y, ...) call_layer(c, kind, 2, (sol_tensor[]){x, y}, __VA_ARGS__)
sol_tensor call_reshape(struct op_call *c, sol_tensor x, int rank, const struct size *dim);
sol_tensor call_expand(struct op_call *c, sol_tensor x, int rank, const struct size *dim);
sol_tensor call_permute(struct op_call *c, sol_tensor x, int rank, const int64_t *axes);
/* "1.5" and "[1,2]" as attributes, in the import's arena, whatever the locale. */
const char *call_format_double(struct op_call *c, double value);
const char *call_format_ints(struct op_call *c, int n, const int64_t *list);

/* Values index[0], index[1], .. of dim `axis`, each in its range. */
sol_tensor call_pick(struct op_call *c, sol_tensor x, int axis, int64_t n, const int64_t *index);

/* Of the first input's type. */
enum sol_status call_set_output(struct op_call *c, int i, sol_tensor tensor);
/* The same, of a type: bool is f32 in the model, 1 or 0. */
enum sol_status call_set_output_as(struct op_call *c, int i, enum sol_dtype dtype,
                                   sol_tensor tensor);
enum sol_status call_set_output_value(struct op_call *c, int i, struct import_value *value);
/* Known numbers; copied. */
enum sol_status call_set_shape_value(struct op_call *c, int i, int rank, const int64_t *dim,
                                     const struct size *number);

#define OP(name, min, max, build, fold, layer, attributes) op_build op_##build, op_##fold;
#include "op.def"
#undef OP

#endif
