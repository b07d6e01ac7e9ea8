/*
 * Nodes: the values that a kernel computes, as an acyclic graph without two equal nodes.
 *
 *   lower.c  ->  node_make  ->  nest->nodes, operands before users
 *
 * Nodes are simplified when they are made: a product of conditions becomes one condition, and arithmetic on
 * constants becomes a constant.
 */
#include "dfp/nest.h"

#include <math.h>
#include <string.h>

/* ---- Making unique ---- */

/* Operands, indices and ranges are unique themselves, so their pointers are hashed and compared as bytes. */
static uint64_t hash_node(const struct node *n) {
    uint64_t hash = hash_bytes((uint64_t)n->kind + (uint64_t)n->primitive + 64 * (uint64_t)n->reg,
                               &n->value, sizeof n->value);
    hash = hash_bytes(hash, n->arg, sizeof n->arg);
    hash = hash_bytes(hash, n->index, sizeof *n->index * (size_t)n->n_index);
    return hash_bytes(hash, n->range, sizeof *n->range * (size_t)n->n_ranges);
}

static bool same_bytes(const void *a, const void *b, size_t size) {
    return !size || !memcmp(a, b, size);
}

static bool is_same(const struct node *a, const struct node *b) {
    return a->kind == b->kind && a->primitive == b->primitive && a->reg == b->reg &&
           a->to == b->to && same_bytes(&a->value, &b->value, sizeof a->value) &&
           same_bytes(a->arg, b->arg, sizeof a->arg) && a->from == b->from &&
           a->n_index == b->n_index && a->n_ranges == b->n_ranges &&
           same_bytes(&a->fill, &b->fill, sizeof a->fill) &&
           same_bytes(a->index, b->index, sizeof *a->index * (size_t)a->n_index) &&
           same_bytes(a->range, b->range, sizeof *a->range * (size_t)a->n_ranges);
}

/* A reduction's result does not depend on the variables that it runs over. */
static uint64_t find_deps(const struct nest *nest, const struct node *n) {
    uint64_t deps = n->deps; /* set by the caller for VALID */
    for (int i = 0; i < 3; i++)
        if (n->arg[i]) deps |= n->arg[i]->deps;
    for (int i = 0; i < n->n_index; i++) deps |= affine_deps(nest, n->index[i]);
    for (int i = 0; i < n->n_ranges; i++) deps |= affine_deps(nest, n->range[i]->x);
    for (int i = 0; i < n->n_vars; i++) deps &= ~var_bit(n->var[i]);
    return deps;
}

/* Two reductions are never equal, as each has variables of its own; nest->memo keeps lower.c from making one twice. */
static struct node *make_unique(struct nest *nest, const struct node *like) {
    struct node **chain = &nest->node_hash[hash_node(like) % NEST_HASH];
    for (struct node *n = *chain; n; n = n->next)
        if (like->kind != NODE_REDUCE && is_same(n, like)) return n;
    struct node *made = arena_copy(nest->arena, like, sizeof *like);
    made->deps = find_deps(nest, like);
    made->next = *chain;
    made->id = nest->nodes.n;
    *chain = made;
    VEC_PUSH(nest->arena, &nest->nodes, made);
    return made;
}

struct node *node_const(struct nest *nest, enum reg reg, double value) {
    struct node n = {.kind = NODE_CONST, .reg = reg, .value = value};
    if (reg == REG_F32) n.value = (float)value;
    return make_unique(nest, &n);
}

/* ---- Arithmetic on constants ---- */

/* Numbers whose sums and products doubles hold exactly. Larger ones may wrap, which the kernel computes. */
static bool is_small(double x) { return fabs(x) < 1 << 24; }

/* Computes in double, and node_const rounds to float: not less exact than the same arithmetic in the kernel. */
static struct node *fold(struct nest *nest, const struct node *n) {
    double x[3] = {0};
    bool exact = true;
    if (n->kind != NODE_APPLY) return NULL;
    if (n->primitive == PRIMITIVE_SELECT && n->arg[0]->kind == NODE_CONST)
        return n->arg[0]->value != 0 ? n->arg[1] : n->arg[2];
    for (int i = 0; i < 3 && n->arg[i]; i++) {
        if (n->arg[i]->kind != NODE_CONST) return NULL;
        x[i] = n->arg[i]->value;
        exact &= !reg_is_integer(n->arg[i]->reg) || is_small(x[i]);
    }
    double value = exact ? primitives[n->primitive].value(x[0], x[1], x[2]) : 0;
    if (!exact || (reg_is_integer(n->reg) && !is_small(value))) return NULL;
    return node_const(nest, n->reg, value);
}

/* The product of two conditions holds if all ranges of both hold. */
static struct node *join_ranges(struct nest *nest, const struct node *a, const struct node *b) {
    struct node n = {.kind = NODE_RANGE};
    n.range = ARENA_ARRAY(nest->arena, const struct range *, a->n_ranges + b->n_ranges);
    for (int i = 0; i < a->n_ranges; i++) n.range[n.n_ranges++] = a->range[i];
    for (int i = 0; i < b->n_ranges; i++) {
        bool known = false;
        for (int k = 0; k < a->n_ranges; k++) known |= a->range[k] == b->range[i];
        if (!known) n.range[n.n_ranges++] = b->range[i];
    }
    return make_unique(nest, &n);
}

struct node *node_make(struct nest *nest, const struct node *like) {
    struct node *folded = fold(nest, like);
    if (folded) return folded;
    if (like->primitive == PRIMITIVE_MUL && like->arg[0]->kind == NODE_RANGE &&
        like->arg[1]->kind == NODE_RANGE)
        return join_ranges(nest, like->arg[0], like->arg[1]);
    if (like->primitive == PRIMITIVE_SELECT && like->arg[1] == like->arg[2]) return like->arg[1];
    return make_unique(nest, like);
}

struct node *node_apply(struct nest *nest, enum primitive primitive, struct node *x, struct node *y,
                        struct node *z) {
    struct node n = {.kind = NODE_APPLY, .primitive = primitive, .arg = {x, y, z}};
    if (primitive == PRIMITIVE_SELECT) n.reg = y->reg;
    else if (!(primitives[primitive].traits & COMPARES)) n.reg = x->reg;
    return node_make(nest, &n);
}

struct node *node_cast(struct nest *nest, struct node *x, enum sol_dtype from, enum sol_dtype to) {
    struct node n = {.kind = NODE_CAST, .reg = reg_of(to), .to = to, .arg = {x}};
    return reg_needs_cast(from, to) ? node_make(nest, &n) : x;
}

/* ---- Pad lanes ---- */

/* A reduction of equal values is known if their number does not matter: if they are neutral, or if the combine is idempotent,
 * since a reduction has at least one value. */
static bool known_reduction(const struct nest *nest, const struct node *n, double *out) {
    const struct combine_info *combine = &combines[n->combine];
    double x;
    if (!node_known_in_pads(nest, n->arg[0], &x)) return false;
    if (!combine->is_idempotent && x != combine->neutral) return false;
    *out = primitives[combine->primitive].value(combine->neutral, x, 0);
    return true;
}

/*
 * The value of a node in pad lanes, if it is the same in all of them. Blocked inputs are zero there
 * by invariant, so relu(x) and 2 * x are zero and need no mask. x + 1 and exp(x) are 1 there and must be masked
 * before they are stored; so must a sum with a tensor whose pad lanes are unknown.
 */
static bool find_known(const struct nest *nest, const struct node *n, double *out) {
    double x[3] = {0};
    bool known = true;
    *out = 0;
    switch (n->kind) {
    case NODE_CONST: *out = n->value; return true;
    case NODE_LOAD:
        /* Values in scratch are not masked: their pad lanes hold what the stage has computed there. Margins hold their fill. */
        if (value_has_margins(n->from) && n->from->margins.fill != 0) return false;
        if (n->from->is_root && !n->from->is_output)
            return node_known_in_pads(nest, n->from->node, out);
        /* If a guard fails, the load yields its fill value, which must be zero as well. */
        return n->from->is_blocked && nest->lane_var >= 0 && (n->deps & var_bit(nest->lane_var)) &&
               (!n->n_ranges || n->fill == 0);
    case NODE_RANGE:
    case NODE_INDEX:
    case NODE_SCAN:
    case NODE_VALID: return false;
    case NODE_REDUCE: return known_reduction(nest, n, out);
    case NODE_CAST: return node_known_in_pads(nest, n->arg[0], out) && *out == 0;
    case NODE_APPLY: break;
    }
    for (int i = 0; i < 3 && n->arg[i]; i++) known &= node_known_in_pads(nest, n->arg[i], &x[i]);
    if (known) *out = primitives[n->primitive].value(x[0], x[1], x[2]);
    return known;
}

/* The answer is cached in the node, since a graph has far more paths than nodes. */
bool node_known_in_pads(const struct nest *nest, struct node *n, double *out) {
    if (n->in_pads == PADS_NOT_ASKED)
        n->in_pads = find_known(nest, n, &n->pad_value) ? PADS_KNOWN : PADS_UNKNOWN;
    *out = n->pad_value;
    return n->in_pads == PADS_KNOWN;
}

/* ---- The order of computation ---- */

static void collect(struct nest *nest, struct node *n) {
    if (n->mark) return;
    n->mark = 1;
    for (int i = 0; i < 3; i++)
        if (n->arg[i]) collect(nest, n->arg[i]);
    n->id = nest->nodes.n;
    VEC_PUSH(nest->arena, &nest->nodes, n);
}

/* Drops nodes that no root uses any more after simplification: they could prevent the merging of
 * loops. */
void nest_collect(struct nest *nest) {
    nest->nodes.n = 0;
    nest->stamp = 1;
    for (int i = 0; i < nest->values.n; i++)
        if (nest->values.at[i].is_root) collect(nest, nest->values.at[i].node);
}
