/*
 * Random graphs of several element types: arithmetic of integers, comparisons, bools, where, casts, tables that are read by computed
 * indices, reductions.
 *
 * All values have the same shape, or that shape with 1 in place of the last dim. Integers and bools are exact. So comparisons, casts to
 * integers and indices of extremes read only floats that are exact, too (error 0): inputs, integers that were small before they
 * were cast, and what is chosen from these.
 */
#include "base/size.h"
#include "gen_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { FLOATS = FAMILY_FLOAT, INTEGERS = FAMILY_INTEGER, TRUTHS = FAMILY_TRUTH, ALL = 7 };

static const enum sol_dtype types[] = {SOL_F32, SOL_F64, SOL_BF16, SOL_F16, SOL_I64,
                                       SOL_I32, SOL_I16, SOL_I8,   SOL_U8,  SOL_BOOL};

/* The relative error of one layer: a few units in the last place. */
static double get_rounding(enum sol_dtype type) {
    return type == SOL_F64 ? 1e-15 : type == SOL_F16 ? 2e-3 : type == SOL_BF16 ? 2e-2 : 4e-7;
}

static enum sol_dtype type_of(const struct gen *g, int value) { return g->value[value].type; }
static bool is_of(const struct gen *g, int value, int families) {
    return size_family(type_of(g, value)) & families;
}
/* Has the value the graph's shape? Tables, positions and scalars have not. */
static bool is_full(const struct gen *g, int value) {
    return g->value[value].rank == g->value[0].rank;
}
static double max_double(double a, double b) { return a > b ? a : b; }

static enum sol_dtype random_type(struct gen *g, int families) {
    for (;;) {
        enum sol_dtype type = RANDOM_PICK(g->random, types);
        if (size_family(type) & families) return type;
    }
}

/* A new input or parameter of the graph's shape, which the first value has. */
static int add_leaf(struct gen *g, enum sol_dtype type) {
    struct gen_value like = g->value[0];
    g->type = type;
    if (random_one_in(g->random, 3)) like.dim[like.rank - 1] = 1;
    bool param = random_one_in(g->random, 3);
    return gen_leaf(g, param, like.rank, like.dim, -4, 4);
}

/* An existing value, mostly a late one; a new leaf if few tries do not find one. `exact`: floats without errors only. */
static int pick(struct gen *g, int families, bool exact) {
    int first = random_one_in(g->random, 3) || g->n < 6 ? 0 : g->n - 6;
    for (int i = 0; i < 12; i++) {
        int x = random_int(g->random, first, g->n - 1);
        if (is_full(g, x) && is_of(g, x, families) && !(exact && g->value[x].error > 0)) return x;
    }
    return add_leaf(g, random_type(g, families));
}

static int pick_type(struct gen *g, enum sol_dtype type, bool exact) {
    for (int i = 0; i < 12; i++) {
        int x = random_int(g->random, 0, g->n - 1);
        if (is_full(g, x) && type_of(g, x) == type && !(exact && g->value[x].error > 0)) return x;
    }
    return add_leaf(g, type);
}

/* Adds a layer whose output has type `type`. */
static int add_typed(struct gen *g, const char *kind, int n_in, const int *in, const char *text,
                     enum sol_dtype type) {
    int y = gen_add(g, kind, n_in, in, text);
    g->value[y].type = type;
    return y;
}

/* An integer, or bool, that is exact. Bounds of integers are not tracked. */
static int add_exact(struct gen *g, const char *kind, int n_in, const int *in, const char *text,
                     enum sol_dtype type) {
    int y = add_typed(g, kind, n_in, in, text, type);
    g->value[y].error = 0;
    return y;
}

static int set_real(struct gen *g, int y, double size, double error) {
    g->value[y].size = size;
    g->value[y].error = error + get_rounding(type_of(g, y)) * size;
    return y;
}

/* A float with values of at most 4. */
static int tame(struct gen *g, int x) {
    if (g->value[x].size <= 4) return x;
    int y = gen_add(g, "clamp", 1, &x, "min=-4.0 max=4.0");
    g->value[y].size = 4;
    return y;
}

/* ---- Layers ---- */

static void add_integers(struct gen *g) {
    static const char *const unaries[] = {"neg", "abs", "sign", "bit_not", "square", "relu"};
    static const char *const binaries[] = {
        "add", "sub",    "mul",     "maximum", "minimum",   "floor_div",  "mod",
        "rem", "bit_or", "bit_and", "bit_xor", "trunc_div", "shift_left", "shift_right"};
    int in[2] = {pick(g, INTEGERS, false), 0};
    enum sol_dtype type = type_of(g, in[0]);
    in[1] = pick_type(g, type, false);
    bool one = random_one_in(g->random, 3);
    const char *kind = one ? RANDOM_PICK(g->random, unaries) : RANDOM_PICK(g->random, binaries);
    add_exact(g, kind, 2 - one, in, "", type);
}

static void add_comparison(struct gen *g) {
    static const char *const kinds[] = {"less", "less_equal", "equal"};
    int in[2] = {pick(g, ALL, true), 0};
    in[1] = pick_type(g, type_of(g, in[0]), true);
    add_exact(g, RANDOM_PICK(g->random, kinds), 2, in, "", SOL_BOOL);
}

static void add_truths(struct gen *g) {
    static const char *const kinds[] = {"bit_and", "bit_or",  "bit_xor",
                                        "maximum", "minimum", "bit_not"};
    int in[2] = {pick(g, TRUTHS, false), pick_type(g, SOL_BOOL, false)};
    const char *kind = RANDOM_PICK(g->random, kinds);
    add_exact(g, kind, strcmp(kind, "bit_not") ? 2 : 1, in, "", SOL_BOOL);
}

static void add_where(struct gen *g) {
    int in[3] = {pick_type(g, SOL_BOOL, false), pick(g, ALL, false), 0};
    enum sol_dtype type = type_of(g, in[1]);
    in[2] = pick_type(g, type, false);
    double size = max_double(g->value[in[1]].size, g->value[in[2]].size);
    double error = max_double(g->value[in[1]].error, g->value[in[2]].error);
    int y = add_typed(g, "where", 3, in, "", type);
    g->value[y].size = size;
    g->value[y].error = error;
}

static int add_cast(struct gen *g, int x, enum sol_dtype to) {
    char text[32];
    snprintf(text, sizeof text, "dtype=%s", size_dtype_name(to));
    return add_typed(g, "cast", 1, &x, text, to);
}

/* The remainder by a small number, which every type holds. */
static int make_small(struct gen *g, int x, int n) {
    g->type = type_of(g, x);
    int in[2] = {x, gen_scalar(g, n)};
    int y = add_exact(g, "mod", 2, in, "", g->type);
    g->value[y].size = n;
    return y;
}

/* Integers to any type, to floats only if they are small. */
static void cast_integer(struct gen *g) {
    int x = pick(g, INTEGERS, false);
    enum sol_dtype to = random_type(g, ALL);
    if (size_family(to) == FAMILY_FLOAT) x = make_small(g, x, 17);
    int y = add_cast(g, x, to);
    g->value[y].error = 0;
}

/* Floats to floats, and exact ones to integers: they are small and, for u8, not negative. */
static void cast_float(struct gen *g) {
    enum sol_dtype to = random_type(g, ALL);
    bool exact = size_family(to) != FAMILY_FLOAT;
    int x = tame(g, pick(g, FLOATS, exact));
    if (to == SOL_U8) x = gen_add(g, "abs", 1, &x, "");
    double size = g->value[x].size, error = g->value[x].error;
    bool narrows = get_rounding(to) > get_rounding(type_of(g, x));
    int y = add_cast(g, x, to);
    if (narrows && !exact) set_real(g, y, size, error);
}

static void add_floats(struct gen *g) {
    static const char *const kinds[] = {"add", "sub", "mul", "maximum", "minimum"};
    int which = random_int(g->random, 0, 4), x = tame(g, pick(g, FLOATS, false)),
        y = tame(g, pick_type(g, type_of(g, x), false));
    struct gen_value a = g->value[x], b = g->value[y];
    int z = gen_add(g, kinds[which], 2, (int[]){x, y}, "");
    g->value[z].error = max_double(a.error, b.error);
    if (which < 2) set_real(g, z, a.size + b.size, a.error + b.error);
    if (which == 2) set_real(g, z, a.size * b.size, a.size * b.error + b.size * a.error);
}

static void add_function(struct gen *g) {
    static const char *const kinds[] = {"tanh", "sigmoid", "erf", "sin", "relu", "abs", "neg"};
    int which = random_int(g->random, 0, 6), x = tame(g, pick(g, FLOATS, false));
    double error = g->value[x].error;
    int y = gen_add(g, kinds[which], 1, &x, "");
    if (which < 4) set_real(g, y, 1, 1.2 * error);
}

/* A table is read by integers of the graph. */
static void add_gather(struct gen *g) {
    int64_t rows = random_int(g->random, 1, 9);
    int x = make_small(g, pick(g, INTEGERS, false), (int)rows);
    if (type_of(g, x) != SOL_I32) x = add_cast(g, x, SOL_I64);
    g->type = random_type(g, ALL);
    enum sol_dtype type = g->type;
    int in[2] = {gen_leaf(g, true, 1, &rows, -4, 4), x};
    add_typed(g, "gather", 2, in, "", type);
}

/* Over the last dim, which stays as 1. */
static void add_reduction(struct gen *g) {
    static const char *const integer[] = {"sum", "prod", "reduce_max", "reduce_min"};
    char text[64];
    int axis = g->value[0].rank - 1, how = random_int(g->random, 0, 3);
    snprintf(text, sizeof text, "axes=[%d] keepdim=true", axis);
    if (how == 0) {
        int x = tame(g, pick(g, FLOATS, false));
        struct gen_value v = g->value[x];
        double n = (double)v.dim[axis];
        set_real(g, gen_add(g, "sum", 1, &x, text), n * v.size,
                 n * (v.error + get_rounding(v.type) * v.size));
    } else if (how == 1) {
        int x = pick(g, ALL, false);
        gen_add(g, integer[random_int(g->random, 2, 3)], 1, &x, text);
    } else if (how == 2) {
        int x = pick(g, INTEGERS, false);
        add_exact(g, RANDOM_PICK(g->random, integer), 1, &x, text, type_of(g, x));
    } else {
        int x = pick(g, ALL, true);
        snprintf(text, sizeof text, "axis=%d keepdim=true", axis);
        add_exact(g, random_one_in(g->random, 2) ? "argmax" : "argmin", 1, &x, text, SOL_I64);
    }
}

/* Sums along the first or last dim, and positions along the last one. */
static void add_positions(struct gen *g) {
    char text[64];
    int last = g->value[0].rank - 1, x = pick(g, INTEGERS, false);
    snprintf(text, sizeof text, "axis=%d", random_one_in(g->random, 2) ? 0 : last);
    if (random_one_in(g->random, 2)) {
        add_exact(g, "cumsum", 1, &x, text, type_of(g, x));
        return;
    }
    g->type = type_of(g, x);
    snprintf(text, sizeof text, "start=-2 step=3 shape=[%d] dtype=%s", (int)g->value[0].dim[last],
             size_dtype_name(g->type));
    int in[2] = {x,
                 gen_value(g, sol_model_layer(g->model, "arange", 0, NULL, text, NULL), 0, 0, 0)};
    add_exact(g, "add", 2, in, "", g->type);
}

/* ---- Graphs ---- */

static void (*const layers[])(struct gen *g) = {
    add_integers, add_integers, add_comparison, add_truths,    add_where,
    add_where,    cast_integer, cast_float,     cast_float,    add_floats,
    add_function, add_gather,   add_reduction,  add_positions,
};

void gen_mixed(struct gen *g, struct random *r) {
    int64_t dim[3] = {random_one_in(r, 2) ? -1 : random_int(r, 1, 9), random_int(r, 1, 5),
                      random_int(r, 1, 40)};
    gen_start(g, r, "mixed");
    g->is_mixed = true;
    if (dim[0] < 0) dim[0] = g->batch;
    g->type = RANDOM_PICK(r, types);
    int drop =
        random_int(r, 0, 1); /* rank 2: the first of three is left out, if it is not the batch */
    if (drop) dim[1] = dim[0];
    gen_leaf(g, false, 3 - drop, dim + drop, -4, 4);
    for (int i = random_int(r, 1, 20); i > 0 && g->n < GEN_VALUES - 16; i--)
        RANDOM_PICK(r, layers)(g);
    for (int i = 0; i < g->n && g->n_outputs < GEN_LEAVES; i++)
        if (!g->value[i].readers && is_full(g, i)) gen_output(g, i);
}
