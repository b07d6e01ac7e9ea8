/*
 * The nest: the intermediate form of one kernel, between the layers' point expressions and the C text.
 *
 *   fuse.c    values, and which of them are roots; window.c: windows in two steps; stage.c: stages, grid
 *   lower.c   expressions -> nodes; affine.c: their indices as sums of loop variables
 *   address.c indices -> offsets in memory or scratch
 *   loops.c   fewer loops, which of them runs over lanes, how the grid is cut into tasks
 *   block.c   nodes -> instructions in loops, each in the outermost loop that its variables allow
 *   emit.c    C text, with print.c and access.c; code.c encodes the same blocks for the interpreter, interp.c
 *
 * Nodes and affine sums are unique: equal ones are the same pointer. So an expression that occurs
 * in two layers is one node and is computed once. The whole nest lives in one arena.
 *
 * Example: y = softmax(x) over the last dim of x[n][c], which pass/decompose.c has replaced by six layers.
 *
 *   values   x; m = max over c; e = exp(x - m); s = sum over c of e; y = e * (1 / s)
 *   roots    m and s, because they reduce; e, because it is expensive and two layers read it; y, the output
 *   stages   {m}, {e}, {s}, {y}: each reads an earlier one at other points, or has other dims
 *   grid     n, the loop of all stages; so scratch holds m, e and s of a single n
 *   blocks   for n { max loop; loop over c: e; sum loop; loop over c: y }, loops over c in lanes
 *
 * The cluster y = relu(x) + x would have one root, y, and one stage; the grid would be n * c, merged into a
 * single loop over lanes, with relu(x) as a node inside.
 *
 * Refusals. A function that finds that the cluster cannot be one kernel calls nest_refuse and continues with a
 * harmless value; its callers check nest->refusal before they rely on the result. A refusal is not an error:
 * clustering then puts the layers into different clusters.
 */
#ifndef DFP_NEST_H
#define DFP_NEST_H

#include "dfp/dfp.h"

#define NEST_VARS 64 /* so that a set of variables is one uint64_t */
#define NEST_TERMS 12
#define NEST_HASH 512
#define NEST_STAGES 32

/* ---- Registers ---- */

/* The types of values while they are computed. A load widens a stored element to its register type, a store narrows it again.
 * f16, bf16 and bool are floats in registers (a bool is 1.0 or 0.0), short integers are i32. */
enum reg { REG_F32, REG_F64, REG_I32, REG_I64, N_REGS };

/* ---- Variables and sums of them ---- */

enum var_kind {
    VAR_OUT,    /* runs over a dim of a root; for a blocked dim over its blocks */
    VAR_LANE,   /* position inside a channel block */
    VAR_REDUCE, /* a variable of a reduction */
    VAR_DIV,    /* floor(of / divisor) */
    VAR_MOD,    /* of - divisor * floor(of / divisor) */
};

/* OUT and REDUCE are loops, LANE is the position in a vector. DIV and MOD are not loops: they are computed from an affine sum
 * of other variables (`of`) where they are used. Their `deps` contain their own bit and the deps of `of`, so that one test
 * of a bit says whether a sum changes with a loop. */
struct var {
    enum var_kind kind;
    struct size extent;      /* runs from 0 to extent - 1; unknown for DIV */
    bool is_window;          /* over a window's taps; the text has the extent as a number */
    const struct affine *of; /* DIV, MOD */
    struct size divisor;
    uint64_t deps; /* bits of the variables that it depends on, its own included */
};

struct term {
    int var;
    struct size coef;
};

/* base + sum of coef * var; terms are sorted by variable, coefficients are not zero. Coefficients are sizes,
 * since they may contain the batch: the stride of c in [c][n] is the symbol n. The terms come right behind the base, as both are
 * compared as bytes. The sums of a nest have memory for n terms only. */
struct affine {
    int n;
    struct size base;
    struct term term[NEST_TERMS];
};

/* The condition low <= x < high. */
struct range {
    const struct affine *x;
    struct size low, high;
};

/* ---- Values: the tensors of a cluster ---- */

/* Elements of scratch in front of and behind the last dim of a row of windows (window.c): they hold `fill`. All zero: none. */
struct margins {
    int64_t before, behind;
    double fill;
};

/* How a value is computed follows from its fields:
 *   expr == NULL            loaded from memory
 *   !is_root                inlined: computed inside each reader
 *   is_root && is_output    stored to memory; if is_materialized, other stages load it from there
 *   is_root && !is_output   stored to scratch, or in the place of an output (lender), if another stage reads it (is_read), else
 *                           not stored */
struct value {
    struct tensor *tensor;
    const struct layer *layer; /* the layer of this cluster that produces it, or NULL */
    struct expr *expr;
    int n_vars; /* variables in `expr` */
    bool is_output;
    bool is_blocked;             /* stored in nest->layout */
    bool is_root;                /* computed by a stage: outputs, and what is materialized */
    bool is_materialized;        /* stored: other stages load it instead of recomputing it */
    bool is_read;                /* at least one other stage loads it */
    int stage;                   /* a root: index in nest->stage */
    int visit;                   /* mark of stage.c: how it was last visited */
    int dim_class[SOL_MAX_RANK]; /* dims of one class share a loop; -1: extent 1, no loop */
    int ptr;                     /* index in dfp_kernel.ptr, or -1 */
    const struct size *stride;   /* per dim, in elements: in memory, or in scratch */
    int64_t scratch;             /* offset in scratch, in elements; 0 for values in memory */
    int64_t scratch_length;      /* elements in scratch, with margins */
    const struct value
        *lender; /* the output in whose memory it is stored until that is computed; NULL: none */
    struct size scratch_step; /* elements from one iteration of a strip to the next: nest->strip */
    struct margins margins;
    struct node *node;       /* a root: its value at the point of its stage's loops */
    const struct affine *at; /* a root: the offset where it is stored, in elements */
};

/* ---- Nodes ---- */

/* The kinds of expressions, and VALID: 1.0 in lanes that hold channels, 0.0 in pad lanes; SCAN: the values of arg[0] combined
 * over all iterations of a loop up to this one. */
enum node_kind {
    NODE_CONST,
    NODE_LOAD,
    NODE_RANGE,
    NODE_REDUCE,
    NODE_SCAN,
    NODE_APPLY,
    NODE_VALID,
    NODE_INDEX,
    NODE_CAST,
};

/* A value that depends on the variables in `deps`. A node does not determine in which loop it is computed:
 * block.c takes the outermost loop inside which all of `deps` have values. */
struct node {
    enum node_kind kind;
    enum reg reg;             /* of the value */
    enum primitive primitive; /* APPLY */
    enum sol_dtype to;        /* CAST, REDUCE: the element type whose values the result has */
    int id;                   /* index in nest->nodes; its name in the text is v<id> */
    uint64_t deps;            /* bits of variables */
    double value; /* CONST: of an integer, an infinity stands for the register's limit */
    struct node *arg[3];
    /* LOAD; INDEX: its value is the sum in index[0] and offset */
    struct value *from;
    int n_index;
    const struct affine **index; /* per dim */
    const struct affine *offset; /* in elements */
    double fill;
    /* LOAD: if one does not hold, the value is `fill` and nothing is read. RANGE: 1.0 if all hold, else 0.0. */
    int n_ranges;
    const struct range **range;
    /* REDUCE, SCAN: index[0] of a SCAN is its loop's variable */
    enum combine combine;
    int n_vars;
    int *var;
    int n_clips; /* if one of these conditions does not hold, the body is neutral and can be skipped */
    const struct range **clip;
    struct node *next;  /* in its hash chain */
    struct block *home; /* block.c: where it is computed */
    int mark;           /* the last walk that visited it: nest->stamp */
    enum { PADS_NOT_ASKED, PADS_KNOWN, PADS_UNKNOWN } in_pads; /* cache of node_known_in_pads */
    double pad_value;
};

/* ---- Stages and blocks ---- */

/* One instruction. Its operands may be simpler than node->arg, where a loop around it makes a condition true. */
struct item {
    enum { ITEM_NODE, ITEM_REDUCE, ITEM_LOOP, ITEM_STORE } kind;
    struct node *node;
    struct node *arg[3];
    int n_ranges;
    const struct range **range; /* the node's conditions that no loop around it makes true */
    struct block *block;        /* LOOP, REDUCE: the outermost loop */
    int stage;                  /* index in nest->stage of the stage that it was built for */
    const struct value *value;  /* STORE */
};

/* A loop and its instructions in order. A reduction is a chain of nested blocks, one per variable; the innermost
 * has `reduce` and `operand`. */
struct block {
    int var;       /* -1: the kernel's body, which is no loop */
    bool is_lanes; /* each iteration computes a vector of values of `var` */
    bool is_row;   /* the last loop of the grid: the part of it that the tasks give */
    bool is_guard; /* not a loop: runs if all of `clip` hold */
    int n_clips;
    const struct range **clip; /* the loop is limited to iterations in which these hold */
    struct block *parent;
    struct node *reduce;      /* the reduction whose result this block combines `operand` into */
    struct node *operand;     /* what each iteration contributes */
    VEC(struct node *) scans; /* over this loop's iterations */
    VEC(struct item) items;
};

struct stage {
    uint64_t vars; /* the variables of its roots' dims: VAR_OUT, VAR_LANE */
    int scan; /* the loop that its SCANs run over, which is the innermost but for their operands' reductions; -1: none */
    bool is_independent; /* neither loads values of other stages nor has values that they load */
    VEC(struct value *) roots;
    VEC(int) loops; /* outermost first; from nest_find_grid on without the grid's */
    int lane;       /* the variable that runs over lanes; -1: at most its reductions have lanes */
};

struct nest {
    struct arena *arena;
    const struct device_caps *caps;
    int lanes;             /* floats per vector; also channels per block, if a tensor is blocked */
    const char *refusal;   /* the first reason why the cluster cannot be one kernel, or NULL */
    bool may_materialize;  /* expensive values that several layers read may be materialized */
    bool needs_types;      /* the text calls functions of dfp/kernel_types.h */
    bool has_free_outputs; /* independent stages do not restrict the grid */
    bool splits_windows;   /* windows of two dims are computed in two stages, if that is cheaper */
    bool has_rows;         /* at least one window is */
    bool refuses_waste;    /* while clustering: refuse to compute expensive values several times */
    struct tensor *tile;   /* an epilogue works in place on this tensor; NULL: no epilogue */

    VEC(struct value) values; /* the tensors read and produced, in topological order */
    int n_classes;            /* classes of dims; the next three are indexed by class */
    int *class_var;           /* the loop variable, or -1 */
    struct size *class_extent;
    bool *class_blocked;         /* the dim is stored in blocks */
    const struct layout *layout; /* the layout of all blocked tensors; NULL: none is blocked */

    int n_vars;
    struct var var[NEST_VARS];
    int lane_var;             /* the VAR_LANE, or -1 */
    int block_var;            /* the variable that runs over channel blocks, or -1 */
    VEC(struct node *) nodes; /* operands before users */
    struct node *node_hash[NEST_HASH];
    VEC(const struct affine *) affines;
    VEC(struct range *) ranges;
    int stamp;                   /* the last node->mark in use; each walk takes the next */
    VEC(struct memo) memo;       /* lower.c: values at points that are nodes already */
    VEC(struct reduced) reduced; /* and reductions inside of expressions */
    int lowered_stage;           /* lower.c: the stage whose root is being lowered */

    int n_stages;
    struct stage stage[NEST_STAGES];
    uint64_t grid_vars;
    VEC(int) grid;        /* loops of all stages, outermost first; the last is cut into chunks */
    bool grid_lane;       /* the last loop of the grid runs over lanes, in all stages */
    struct size chunks;   /* number of chunks of the last loop; a task computes one of them */
    struct size chunk;    /* iterations per chunk */
    int64_t scratch_size; /* floats */
    struct size
        strip; /* iterations of the grid's last loop that a stage computes before the next one does; 0: one */
    struct block *body;
    VEC(struct size) args;          /* what the kernel gets as arg[], as formulas */
    VEC(const struct size *) roles; /* per argument, the address of its size: nest_arg */
};

/* The node of `value` at the point `index`. */
struct memo {
    const struct value *value;
    const struct affine *index[SOL_MAX_RANK];
    bool guarded; /* see lower_value in lower.c */
    struct node *node;
};

/* The node of the reduction `e`, where the variables before its own have these indices. */
struct reduced {
    const struct expr *e;
    const struct affine **env;
    bool guarded;
    struct node *node;
};

/* Is dim `d` the channels of a blocked tensor? */
static inline bool value_is_channel(const struct value *v, int d) {
    return v->is_blocked && d == layout_channel_axis(v->tensor);
}

/* Has dim `d` extent 1, and so no loop? A blocked dim of a single channel still has its lanes. */
static inline bool value_is_single(const struct value *v, int d) {
    return !value_is_channel(v, d) && size_is(v->tensor->dim[d], 1);
}

static inline uint64_t var_bit(int var) { return (uint64_t)1 << var; }

/* ---- affine.c: sums and ranges are unique, so that equal ones are the same pointer; divisors are positive ---- */
const struct affine *affine_const(struct nest *nest, struct size value);
const struct affine *affine_var(struct nest *nest, int var);
const struct affine *affine_add(struct nest *nest, const struct affine *a, const struct affine *b);
const struct affine *affine_mul(struct nest *nest, const struct affine *a, struct size factor);
const struct affine *affine_div(struct nest *nest, const struct affine *a, struct size divisor);
const struct affine *affine_mod(struct nest *nest, const struct affine *a, struct size divisor);
const struct affine *affine_without(struct nest *nest, const struct affine *a, int var);
/* The coefficient of `var`, 0 if it does not occur. nest_arg needs the pointer: it tells equal sizes apart by address. */
struct size affine_coef(const struct affine *a, int var);
const struct size *affine_find_coef(const struct affine *a, int var);
uint64_t affine_deps(const struct nest *nest, const struct affine *a);
/* True only if it is certain that 0 <= a < extent. */
bool affine_is_within(const struct nest *nest, const struct affine *a, struct size extent);
const struct range *affine_range(struct nest *nest, const struct affine *x, struct size low,
                                 struct size high);
int nest_add_var(struct nest *nest, enum var_kind kind, struct size extent);
/* Records why the cluster cannot be one kernel; the first reason stays. `reason` is a constant string. */
void nest_refuse(struct nest *nest, const char *reason);

/* ---- types.c ---- */
enum reg reg_of(enum sol_dtype dtype);
enum sol_dtype reg_dtype(
    enum reg reg); /* the element type of the same values and size: of values in scratch */
int reg_floats(enum reg reg);         /* the register's size, in floats */
const char *reg_suffix(enum reg reg); /* of functions in the text: "", "_f64", "_i32", "_i64" */
bool reg_is_integer(enum reg reg);
/* Must a value of type `from` change in order to be one of type `to`, or are all values the same in registers? */
bool reg_needs_cast(enum sol_dtype from, enum sol_dtype to);
/* The value that a reduction begins with, which is its result over no values: the limit of a short integer, not of its register. */
double reduce_neutral(const struct node *reduce);
/* The element type in which the value is stored: its tensor's in memory, its register's in scratch. */
enum sol_dtype nest_stored_type(const struct value *v);

/* ---- fuse.c, stage.c ---- */
/* Sets values, classes of dims, roots and stages. `storage` NULL, while clustering: strides are assumed to be dense. */
void nest_fuse(struct nest *nest, const struct cluster *cluster, const struct storage *storage);
void nest_find_stages(struct nest *nest);
struct value *nest_find_value(struct nest *nest, const struct tensor *t);
/* window.c. If `e`, the expression of y, has a window that is cheaper in two stages: makes it read `row`, a new value. */
bool nest_split_window(struct nest *nest, struct expr *e, struct tensor *y, struct value *row);
static inline bool value_has_margins(const struct value *v) { return v->margins.behind > 0; }
/* Does `load`, in the expression of `reader`, read `from` at the reader's own point, in every dim? */
bool nest_is_identity(const struct value *reader, const struct value *from,
                      const struct expr *load);

/* ---- lower.c, node.c ---- */
void nest_lower(struct nest *nest); /* sets value->node of roots */
/* The index that runs over a class of dims; for blocked channels the stored position, block * lanes + lane. */
const struct affine *nest_class_index(struct nest *nest, int dim_class);
struct node *node_const(struct nest *nest, enum reg reg, double value);
/* The unique node equal to `like`, simplified. `like` is copied; its deps get those of its operands. */
struct node *node_make(struct nest *nest, const struct node *like);
/* The result has the operands' type; that of y and z for a select, a bool's for comparisons. */
struct node *node_apply(struct nest *nest, enum primitive primitive, struct node *x, struct node *y,
                        struct node *z);
/* The value of element type `from` in x, as one of type `to`. */
struct node *node_cast(struct nest *nest, struct node *x, enum sol_dtype from, enum sol_dtype to);
/* The node's value in pad lanes, given that blocked tensors hold zero there; false if it is not known. */
bool node_known_in_pads(const struct nest *nest, struct node *node, double *out);
/* Sets nest->nodes to the nodes that the roots need, operands first. */
void nest_collect(struct nest *nest);

/* ---- stage.c, address.c, loops.c, block.c: in this order, after nest_collect ---- */
void nest_find_grid(struct nest *nest);     /* grid; stages keep their other loops */
void nest_place_scratch(struct nest *nest); /* strides and places of values in scratch */
void nest_address(struct nest *nest);       /* node->offset of loads, value->at of roots */
void nest_merge_loops(struct nest *nest);
void nest_plan_loops(struct nest *nest);   /* lanes, chunks */
void nest_build_blocks(struct nest *nest); /* body */
/* The next loop of a reduction, from outer to inner; NULL behind the innermost one. */
const struct block *nest_inner_loop(const struct block *b);
/* The variable of a reduction that should run over lanes, if its stage has none; -1: none. */
int nest_reduce_lane(struct nest *nest, const struct node *reduce);
bool nest_in_scratch(const struct value *v);
/* The place of a value in scratch, with its margins, in elements. */
void nest_place(const struct nest *nest, const struct value *v, struct size *at, struct size *n);
/* Does a value that depends on `deps` differ between lanes, if the variable `lane` (-1: none) runs over lanes? */
static inline bool nest_is_vector(const struct nest *nest, uint64_t deps, int lane) {
    uint64_t lanes = lane >= 0 ? var_bit(lane) : 0;
    if (nest->lane_var >= 0) lanes |= var_bit(nest->lane_var);
    return (deps & lanes) != 0;
}

/* The variable of a scan's loop. */
static inline int nest_scan_var(const struct node *scan) { return scan->index[0]->term[0].var; }

/* ---- emit.c, code.c ---- */
/* The index in arg[] of a size, which must stay at its address. Sizes are told apart by address, not by value: two that happen
 * to be equal get two arguments, so that the text depends on the structure only. */
int nest_arg(struct nest *nest, const struct size *size);
/* Appends the kernel's C text, without the prelude. */
void nest_emit(struct nest *nest, struct text *text);
/* The same kernel as code for the interpreter, in the nest's arena. Adds its registers to nest->scratch_size. */
void nest_encode(struct nest *nest, const void **code, size_t *size);

#endif
