/*
 * The nest: what DFP knows of one kernel between the layers' point expressions and the text.
 *
 *   fuse.c    values, which of them are roots, stages, grid
 *   lower.c   expressions -> nodes; affine.c: their indices as sums of loop variables
 *   address.c indices -> offsets in memory or scratch
 *   loops.c   fewer loops, which of them runs over lanes, how the grid is cut into tasks
 *   block.c   nodes -> instructions in loops, each as far out as its variables allow
 *   emit.c    C text, with print.c and access.c; code.c and interp.c: the same blocks, encoded and run without a compiler
 *
 * Nodes and affine sums are unique: equal ones are the same pointer. So an expression that occurs
 * in two layers is one node and is computed once. All of it lives in one arena.
 *
 * Example: y = softmax(x) over the last dim of x[n][c], which pass/decompose.c made five layers of.
 *
 *   values   x; m = max over c; e = exp(x - m); s = sum over c of e; y = e / s
 *   roots    m and s, because they reduce; e, because it is expensive and two read it; y, the output
 *   stages   {m}, {e}, {s}, {y}: each reads the one before at other points than its own
 *   grid     n, which all stages run over; so m, e and s of one n lie in scratch
 *   blocks   for n { max loop; loop over c: e; sum loop; loop over c: y }, loops over c in lanes
 *
 * Had the cluster been y = relu(x) + x, there would be one root, y, one stage, and its grid would be
 * all of n * c as a single loop over lanes: relu(x) is a node inside.
 *
 * Refusals. A function that finds that the cluster cannot be one kernel calls nest_refuse and continues with a harmless value; its callers check nest->refusal before they rely on the result. A refusal
 * is no error: clustering then keeps the layers apart.
 */
#ifndef DFP_NEST_H
#define DFP_NEST_H

#include "dfp/dfp.h"

#define NEST_VARS 64 /* so that a set of variables is one word */
#define NEST_TERMS 12
#define NEST_HASH 512
#define NEST_STAGES 32

/* ---- Variables and sums of them ---- */

enum var_kind {
    VAR_OUT,    /* runs over a dim of an output; for a blocked dim over its blocks */
    VAR_LANE,   /* position inside a channel block */
    VAR_REDUCE, /* runs over what a reduction combines */
    VAR_DIV,    /* floor(of / divisor) */
    VAR_MOD,    /* of - divisor * floor(of / divisor) */
};

/* OUT and REDUCE are loops, LANE is a position in the vectors of these. DIV and MOD are computed from them where they are used; their `deps`
 * hold both their own bit and those of what they are made of, so that asking "does it change with
 * loop i" is one test for sums of any kind. */
struct var {
    enum var_kind kind;
    struct size extent; /* runs from 0 to extent - 1; of DIV unknown */
    bool is_window;     /* extent is a number of the text */
    const struct affine *of;
    struct size divisor;
    uint64_t deps; /* the variables it is made of, itself included */
};

struct term {
    int var;
    struct size coef;
};

/* base + sum of coef * var; terms sorted by variable, no zero coefficients. Coefficients are sizes,
 * so that the batch may be in them: the channel's stride of [c][n] is the symbol n. */
struct affine {
    int n;
    struct term term[NEST_TERMS];
    struct size base;
};

/* The condition low <= x < high. */
struct range {
    const struct affine *x;
    struct size low, high;
};

/* ---- Values: the tensors of a cluster ---- */

/* Without an expression a value is loaded. What else happens follows from its flags: !is_root is
 * computed inside its readers; is_root
 * && is_output is stored to memory (and, if kept, read back by other stages from there); is_root &&
 * !is_output is stored to scratch if another stage reads it, else only carries a node. */
struct value {
    struct tensor *tensor;
    const struct layer *layer; /* the layer of this cluster that makes it, or NULL */
    struct expr *expr;         /* NULL when it is loaded from memory */
    int n_vars;
    bool is_output;
    bool is_blocked;      /* stored as nest->layout says */
    bool is_root;         /* computed by a stage: outputs, and what is materialized */
    bool is_materialized; /* stored: other stages load it instead of recomputing it */
    bool is_read;         /* another stage does load it */
    int stage;
    int visit;                   /* the last visit while roots are placed: stage.c */
    int dim_class[SOL_MAX_RANK]; /* dims that run together have the same class; -1: extent 1 */
    int ptr;                     /* index in dfp_kernel.ptr, or -1 */
    const struct size *stride;   /* in memory */
    int64_t scratch;             /* offset in floats, when it lies in scratch */
    struct node *node;           /* a root's value at its own point */
    const struct affine *at;     /* where a root is stored */
};

/* ---- Nodes ---- */

/* As the kinds of expressions, and VALID: 1.0 in lanes that hold channels, 0.0 in pad lanes. */
enum node_kind { NODE_CONST, NODE_LOAD, NODE_RANGE, NODE_REDUCE, NODE_APPLY, NODE_VALID };

/* A value at the current point of the loops in `deps`. A node does not say where it is computed:
 * block.c finds the outermost loop that knows all of `deps`. */
struct node {
    enum node_kind kind;
    enum primitive primitive; /* APPLY */
    int id;
    uint64_t deps;
    double value; /* CONST */
    struct node *arg[3];
    /* LOAD */
    struct value *from;
    int n_index;
    const struct affine **index; /* per dim */
    const struct affine *offset; /* in elements */
    double fill;
    /* LOAD: guards, all of which must hold; RANGE: conditions, all of which make 1.0. */
    int n_ranges;
    const struct range **range;
    /* REDUCE */
    enum combine combine;
    int n_vars;
    int *var;
    int n_clips; /* where one of them does not hold, the body is neutral */
    const struct range **clip;
    struct node *next;  /* in its hash chain */
    struct block *home; /* where it is computed, while blocks are built */
    int mark;
    enum { PADS_NOT_ASKED, PADS_KNOWN, PADS_UNKNOWN } in_pads;
    double pad_value;
};

/* ---- Stages and blocks ---- */

/* One instruction: what `node` computes, with operands as they are at this place. */
struct item {
    enum { ITEM_NODE, ITEM_REDUCE, ITEM_LOOP, ITEM_STORE } kind;
    struct node *node;
    struct node *arg[3];
    int n_ranges;
    const struct range **range; /* those that still have to be tested */
    struct block *block;        /* LOOP, REDUCE: the outermost loop */
    const struct value *value;  /* STORE */
};

/* A loop with what is done in it, in order. The body of a reduction is a chain of blocks, one per
 * variable, of which the innermost has `reduce` and `operand`. */
struct block {
    int var;       /* -1: the outermost */
    bool is_lanes; /* a vector of values of `var` at a time */
    bool is_row;   /* runs over the piece of `var` that the task has */
    bool is_guard; /* no loop: entered where all of `clip` hold */
    int n_clips;
    const struct range **clip; /* bound the loop */
    struct block *parent;
    struct node *reduce; /* what the innermost block of a reduction adds to */
    struct node *operand;
    VEC(struct item) items;
};

struct stage {
    uint64_t vars;       /* output variables */
    bool is_independent; /* exchanges no values with other stages */
    VEC(struct value *) roots;
    VEC(int) loops; /* that are not in the grid, outermost first */
    int lane;       /* variable that runs over lanes, -1: none outside of reductions */
};

struct nest {
    struct arena *arena;
    int lanes;
    const char *refusal;   /* why it cannot be one kernel; the first reason stays */
    bool may_materialize;  /* expensive values read by several stages may be kept in scratch */
    bool has_free_outputs; /* outputs that nobody reads here do not restrict the grid */
    bool refuses_waste;    /* refuse fusion that is possible but computes values several times */
    struct tensor *tile;   /* an epilogue works in place on this one; NULL: no epilogue */

    VEC(struct value) values; /* tensors read and made, topological */
    int n_classes;
    int *class_var;
    struct size *class_extent;
    bool *class_blocked;
    const struct layout *layout; /* of all blocked tensors */

    int n_vars;
    struct var var[NEST_VARS];
    int lane_var;  /* the VAR_LANE, or -1 */
    int block_var; /* the blocks' variable, or -1 */
    VEC(struct node *) nodes;
    struct node *node_hash[NEST_HASH];
    VEC(const struct affine *) affines;
    VEC(struct range *) ranges;
    int stamp;             /* last mark given to nodes by a walk */
    VEC(struct memo) memo; /* values at points: lower.c */
    int lowered_stage;     /* whose root is being lowered */

    int n_stages;
    struct stage stage[NEST_STAGES];
    uint64_t grid_vars;
    VEC(int) grid;        /* outermost first; the last one is cut into chunks */
    bool grid_lane;       /* the last one runs over lanes */
    struct size chunks;   /* per run of the last one */
    struct size chunk;    /* values of it in a chunk */
    int64_t scratch_size; /* floats */
    struct block *body;
    VEC(struct size) args;
    VEC(const struct size *) roles; /* where each of them stands */
};

struct memo {
    const struct value *value;
    const struct affine *index[SOL_MAX_RANK];
    bool guarded;
    struct node *node;
};

/* Is dim `d` the one that is cut into blocks? */
static inline bool value_is_channel(const struct value *v, int d) {
    return v->is_blocked && d == layout_channel_axis(v->tensor);
}

/* Is dim `d` of 1, and so without a loop? A single channel in blocks still has its lanes. */
static inline bool value_is_single(const struct value *v, int d) {
    return !value_is_channel(v, d) && size_is(v->tensor->dim[d], 1);
}

static inline uint64_t var_bit(int var) { return (uint64_t)1 << var; }

/* ---- affine.c ---- */
const struct affine *affine_const(struct nest *nest, struct size value);
const struct affine *affine_var(struct nest *nest, int var);
const struct affine *affine_add(struct nest *nest, const struct affine *a, const struct affine *b);
const struct affine *affine_mul(struct nest *nest, const struct affine *a, struct size factor);
const struct affine *affine_div(struct nest *nest, const struct affine *a, struct size divisor);
const struct affine *affine_mod(struct nest *nest, const struct affine *a, struct size divisor);
const struct affine *affine_without(struct nest *nest, const struct affine *a, int var);
/* The coefficient, which is 0 where the variable does not occur; as a pointer it also says which of equal sizes it is. */
struct size affine_coef(const struct affine *a, int var);
const struct size *affine_find_coef(const struct affine *a, int var);
uint64_t affine_deps(const struct nest *nest, const struct affine *a);
/* Does it surely lie in [0, extent)? */
bool affine_is_within(const struct nest *nest, const struct affine *a, struct size extent);
const struct range *affine_range(struct nest *nest, const struct affine *x, struct size low,
                                 struct size high);
int nest_add_var(struct nest *nest, enum var_kind kind, struct size extent);
void nest_refuse(struct nest *nest, const char *reason);

/* ---- fuse.c, stage.c ---- */
/* Fills in everything up to the stages. `storage` NULL: while clustering, dense strides do. */
void nest_fuse(struct nest *nest, const struct cluster *cluster, const struct storage *storage);
void nest_find_stages(struct nest *nest);
struct value *nest_find_value(struct nest *nest, const struct tensor *t);
bool nest_is_identity(const struct value *reader, const struct value *from,
                      const struct expr *load);

/* ---- lower.c, node.c ---- */
void nest_lower(struct nest *nest);
const struct affine *nest_class_index(struct nest *nest, int dim_class);
struct node *node_const(struct nest *nest, double value);
struct node *node_make(struct nest *nest, const struct node *like);
struct node *node_apply(struct nest *nest, enum primitive primitive, struct node *x, struct node *y,
                        struct node *z);
/* What the node is in pad lanes, where blocked inputs are zero; false when that is not known. */
bool node_known_in_pads(const struct nest *nest, struct node *node, double *out);
/* All nodes that the roots need, operands first. */
void nest_collect(struct nest *nest);

/* ---- stage.c, address.c, loops.c, block.c: in this order, after nest_collect ---- */
void nest_find_grid(struct nest *nest);
void nest_place_scratch(struct nest *nest);
void nest_address(struct nest *nest);
void nest_merge_loops(struct nest *nest);
void nest_plan_loops(struct nest *nest);
void nest_build_blocks(struct nest *nest);
/* The next loop of a reduction, from outer to inner; NULL behind the innermost one. */
const struct block *nest_inner_loop(const struct block *b);
/* Reductions of a stage without a lane may have lanes of their own; -1 if not. */
int nest_reduce_lane(struct nest *nest, const struct node *reduce);
bool nest_in_scratch(const struct value *v);
/* Does something with these variables differ from lane to lane, when `lane` runs over lanes? */
static inline bool nest_is_vector(const struct nest *nest, uint64_t deps, int lane) {
    uint64_t lanes = lane >= 0 ? var_bit(lane) : 0;
    if (nest->lane_var >= 0) lanes |= var_bit(nest->lane_var);
    return (deps & lanes) != 0;
}

/* ---- emit.c, code.c ---- */
/* The argument for a size; its number depends on where the size stands, not on its value, so that
 * different sizes which happen to be equal do not change the text. */
int nest_arg(struct nest *nest, const struct size *size);
void nest_emit(struct nest *nest, struct text *text);
void nest_encode(struct nest *nest, const void **code, size_t *size);

#endif
