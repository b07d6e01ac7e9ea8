/*
 * Random graphs of the layers that DFP fuses.
 *
 * Each new layer reads existing values, so chains, diamonds and values with several readers
 * occur. Values without readers are outputs. The generator tracks `size` and `error` of each value:
 * a value that is too large goes through a bounded function, such as tanh, before it is read again.
 */
#include "gen_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST 12000   /* elements of a tensor */
#define ROUNDING 4e-7 /* relative error of one layer: a few units in the last place */

static double max_double(double a, double b) { return a > b ? a : b; }

/* Sets the bounds of a new value; `error` is the error that follows from the errors of its inputs. */
static int set_value(struct gen *g, int value, double size, double low, double error) {
    g->value[value].size = size;
    g->value[value].low = low;
    g->value[value].error = error + ROUNDING * size;
    return value;
}

/* ---- One input ---- */

/* |out| <= gain * |in| + offset; |derivative| <= slope. From FIRST_SQUASH on, the functions are bounded. */
static const struct {
    const char *kind, *attributes;
    double gain, offset, slope;
} calm[] = {
    {"relu", "", 1, 0, 1},          {"leaky_relu", "alpha=0.1", 1, 0, 1},
    {"elu", "alpha=1.0", 1, 1, 1},  {"gelu", "", 1, 0, 1.2},
    {"gelu_tanh", "", 1, 0, 1.2},   {"silu", "", 1, 0, 1.2},
    {"hardswish", "", 1, 0, 1.5},   {"softplus", "", 1, 0.7, 1},
    {"mish", "", 1, 0, 1.2},        {"abs", "", 1, 0, 1},
    {"neg", "", 1, 0, 1},           {"tanh", "", 0, 1, 1},
    {"sigmoid", "", 0, 1, 0.25},    {"erf", "", 0, 1, 1.2},
    {"hardsigmoid", "", 0, 1, 0.2}, {"clamp", "min=-2.0 max=3.0", 0, 3, 1},
};
#define FIRST_SQUASH 11

static int add_calm(struct gen *g, int x, int which) {
    double size = g->value[x].size, error = g->value[x].error;
    int y = gen_add(g, calm[which].kind, 1, &x, calm[which].attributes);
    return set_value(g, y, calm[which].gain * size + calm[which].offset, 0,
                     calm[which].slope * error);
}

/* x if its values are at most `most`, else a bounded function of x. */
static int tame(struct gen *g, int x, double most) {
    int n = (int)(sizeof calm / sizeof *calm);
    return g->value[x].size <= most ? x
                                    : add_calm(g, x, random_int(g->random, FIRST_SQUASH, n - 1));
}

static int add_scalar(struct gen *g, const char *kind, int x, double value) {
    int in[2] = {x, gen_value(g, sol_model_scalar(g->model, value), fabs(value), value, 0)};
    struct gen_value v = g->value[x];
    int y = gen_add(g, kind, 2, in, "");
    if (!strcmp(kind, "mul"))
        return set_value(g, y, v.size * fabs(value), v.low * value, v.error * fabs(value));
    return set_value(g, y, v.size + fabs(value), v.low + value, v.error);
}

/* x if its values are at least 0.25, else a function of x with such values. */
static int make_positive(struct gen *g, int x) {
    if (g->value[x].low >= 0.25) return x;
    double size = g->value[x].size, error = g->value[x].error;
    return add_scalar(g, "add", set_value(g, gen_add(g, "abs", 1, &x, ""), size, 0, error), 0.5);
}

/* Layers with a limited domain or a steep slope. */
static int add_steep(struct gen *g, int x) {
    int which = random_int(g->random, 0, 5);
    x = tame(g, x, which == 0 ? 2 : 4);
    if (which >= 2) x = make_positive(g, x);
    double size = g->value[x].size, low = g->value[x].low, error = g->value[x].error;
    switch (which) {
    case 0:
        return set_value(g, gen_add(g, "exp", 1, &x, ""), exp(size), exp(-size), exp(size) * error);
    case 1: return set_value(g, gen_add(g, "square", 1, &x, ""), size * size, 0, 2 * size * error);
    case 2:
        size = max_double(fabs(log(size)), fabs(log(low)));
        return set_value(g, gen_add(g, "log", 1, &x, ""), size, 0, error / low);
    case 3: return set_value(g, gen_add(g, "sqrt", 1, &x, ""), sqrt(size), sqrt(low), error);
    case 4:
        return set_value(g, gen_add(g, "rsqrt", 1, &x, ""), 1 / sqrt(low), 1 / sqrt(size),
                         4 * error);
    default:
        return set_value(g, gen_add(g, "reciprocal", 1, &x, ""), 1 / low, 1 / size,
                         error / (low * low));
    }
}

static int add_unary(struct gen *g, int x) {
    int n = (int)(sizeof calm / sizeof *calm);
    return random_one_in(g->random, 4)
               ? add_steep(g, x)
               : add_calm(g, tame(g, x, 16), random_int(g->random, 0, n - 1));
}

/* ---- Two inputs ---- */

static bool broadcasts(const struct gen_value *a, const struct gen_value *b) {
    for (int i = 1; i <= a->rank && i <= b->rank; i++) {
        int64_t m = a->dim[a->rank - i], n = b->dim[b->rank - i];
        if (m != n && m != 1 && n != 1) return false;
        if (m == INT64_MIN && m != n)
            return false; /* a formula may be 0 at a call: it is not used */
    }
    return true;
}

/* A new leaf that broadcasts to the shape of x: leading dims may be missing, others may be 1. */
static int make_partner(struct gen *g, int x) {
    struct gen_value v = g->value[x];
    int drop = random_one_in(g->random, 3) ? random_int(g->random, 0, v.rank) : 0;
    for (int i = 0; i < v.rank; i++)
        if (v.dim[i] == INT64_MIN || random_one_in(g->random, 3)) v.dim[i] = 1;
    if (drop == v.rank) return gen_value(g, sol_model_scalar(g->model, 1.5), 1.5, 1.5, 0);
    return gen_leaf(g, random_one_in(g->random, 2), v.rank - drop, v.dim + drop, -2, 2);
}

/* Elements of the broadcast of two values. */
static int64_t count_broadcast(struct gen *g, int a, int b) {
    const struct gen_value *x = &g->value[a], *y = &g->value[b];
    int64_t n = 1;
    for (int i = 1; i <= x->rank || i <= y->rank; i++) {
        int64_t p = i <= x->rank ? gen_extent(g, x->dim[x->rank - i]) : 1;
        int64_t q = i <= y->rank ? gen_extent(g, y->dim[y->rank - i]) : 1;
        n *= p > q ? p : q;
    }
    return n;
}

static int add_binary(struct gen *g, int x, int y) {
    static const char *const kinds[] = {"add", "sub", "mul", "div", "maximum", "minimum"};
    int which = random_int(g->random, 0, 5);
    x = tame(g, x, 8);
    y = which == 3 ? make_positive(g, tame(g, y, 8)) : tame(g, y, 8);
    struct gen_value a = g->value[x], b = g->value[y];
    int in[2] = {x, y}, out;
    bool swap = which != 3 && random_one_in(g->random, 2);
    if (swap) in[0] = y, in[1] = x;
    out = gen_add(g, kinds[which], 2, in, "");
    if (which < 2) return set_value(g, out, a.size + b.size, 0, a.error + b.error);
    if (which == 2)
        return set_value(g, out, a.size * b.size, 0, a.size * b.error + b.size * a.error);
    if (which == 3)
        return set_value(g, out, a.size / b.low, 0,
                         a.error / b.low + a.size * b.error / (b.low * b.low));
    return set_value(g, out, max_double(a.size, b.size), 0, max_double(a.error, b.error));
}

/* A value that broadcasts with x to a tensor that is not too large; a new leaf if none is
 * found. */
static int find_partner(struct gen *g, int x) {
    for (int i = 0; i < 6; i++) {
        int y = random_int(g->random, 0, g->n - 1);
        if (g->value[y].rank && broadcasts(&g->value[x], &g->value[y]) &&
            count_broadcast(g, x, y) <= MOST)
            return y;
    }
    return make_partner(g, x);
}

/* ---- Reductions ---- */

static int add_reduction(struct gen *g, int x, int first_axis, int last_axis, bool keep) {
    static const char *const kinds[] = {"mean", "reduce_max", "reduce_min", "sum"};
    struct gen_value v = g->value[x];
    char text[64] = "axes=[";
    double n = 1;
    for (int i = first_axis; i <= last_axis; i++) {
        sprintf(text + strlen(text), "%d%s", i, i < last_axis ? "," : "]");
        n *= (double)gen_extent(g, v.dim[i]);
    }
    /* A sum of many values is large, so an error in one of them is small in comparison: a mean is
     * used instead. */
    int which = random_int(g->random, 0, n * v.size <= 200 ? 3 : 2);
    sprintf(text + strlen(text), " keepdim=%s", keep ? "true" : "false");
    int y = gen_add(g, kinds[which], 1, &x, text);
    double many = which == 3 ? n : 1;
    return set_value(g, y, many * v.size, 0, many * (v.error + ROUNDING * v.size));
}

/* Reduces over adjacent axes. The batch is not reduced, because it may be 0: the mean of no values is
 * NaN and the maximum is -inf, which would spread over the graph. */
static int add_any_reduction(struct gen *g, int x) {
    struct gen_value v = g->value[x];
    int first = random_int(g->random, 0, v.rank - 1),
        last = random_int(g->random, first, v.rank - 1);
    for (int i = first; i <= last; i++)
        if (v.dim[i] < 0) return x;
    return add_reduction(g, x, first, last,
                         random_one_in(g->random, 2) || last - first + 1 == v.rank);
}

/* ---- Shapes ---- */

static int add_permute(struct gen *g, int x) {
    int rank = g->value[x].rank, first = random_int(g->random, 0, rank - 1);
    char text[64] = "axes=[";
    for (int i = 0; i < rank; i++) /* a rotation; for rank 2 the transpose */
        sprintf(text + strlen(text), "%d%s", (i + first) % rank, i + 1 < rank ? "," : "]");
    return gen_add(g, "permute", 1, &x, text);
}

static int add_slice(struct gen *g, int x) {
    int axis = random_int(g->random, 0, g->value[x].rank - 1);
    int64_t extent = g->value[x].dim[axis];
    char text[96];
    if (extent < 2) return x;
    int start = random_int(g->random, 0, (int)extent - 1),
        n = random_int(g->random, 1, (int)extent - start);
    snprintf(text, sizeof text, "axis=%d start=%d step=1 shape=[%d]", axis, start, n);
    return gen_add(g, "slice", 1, &x, text);
}

static int add_concat(struct gen *g, int x) {
    int axis = random_int(g->random, 0, g->value[x].rank - 1), in[2] = {x, x};
    char text[32];
    if (g->value[x].dim[axis] < 0 || 2 * gen_elements(g, x) > MOST) return x;
    if (random_one_in(g->random, 2)) in[1] = add_unary(g, x);
    if (random_one_in(g->random, 2)) in[0] = add_unary(g, x);
    snprintf(text, sizeof text, "axis=%d", axis);
    struct gen_value a = g->value[in[0]], b = g->value[in[1]];
    int y = gen_add(g, "concat", 2, in, text);
    return set_value(g, y, max_double(a.size, b.size), 0, max_double(a.error, b.error));
}

/* All dims after the first become one. */
static int add_reshape(struct gen *g, int x) {
    struct gen_value v = g->value[x];
    int64_t n = 1;
    char text[64], first[24];
    for (int i = 1; i < v.rank; i++) n *= v.dim[i];
    for (int i = 1; i < v.rank; i++)
        if (v.dim[i] < 0) return x;
    if (v.dim[0] == INT64_MIN) return x;
    snprintf(text, sizeof text, "shape=[%s,%d]", gen_dim_text(v.dim[0], first), (int)n);
    return gen_add(g, "reshape", 1, &x, text);
}

static int add_shape(struct gen *g, int x) {
    int y;
    switch (random_int(g->random, 0, 3)) {
    case 0: y = add_permute(g, x); break;
    case 1: y = add_slice(g, x); break;
    case 2: return add_concat(g, x);
    default: y = add_reshape(g, x); break;
    }
    g->value[y].low = g->value[x].low;
    return y;
}

/* ---- Graphs ---- */

/* An existing value to read: mostly one of the last, which makes chains; sometimes any value, which
 * makes diamonds. */
static int pick(struct gen *g) {
    int first = random_one_in(g->random, 3) || g->n < 4 ? 0 : g->n - 4;
    for (int i = 0; i < 8; i++) {
        int x = random_int(g->random, first, g->n - 1);
        if (g->value[x].rank) return x;
    }
    return 0; /* the first leaf */
}

static int random_leaf(struct gen *g) {
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, MOST, dim);
    return gen_leaf(g, false, rank, dim, -2, 2);
}

static void add_something(struct gen *g) {
    int x = pick(g), y;
    switch (random_int(g->random, 0, 9)) {
    case 0:
    case 1:
    case 2: add_unary(g, x); break;
    case 3:
    case 4:
    case 5:
    case 6:
        y = find_partner(g, x);
        if (g->value[x].rank && broadcasts(&g->value[x], &g->value[y])) add_binary(g, x, y);
        break;
    case 7: add_any_reduction(g, x); break;
    case 8: add_scalar(g, random_one_in(g->random, 2) ? "mul" : "add", x, 0.75); break;
    default: add_shape(g, x); break;
    }
}

/* Values without readers become outputs, except leaves. */
static void output_unread(struct gen *g) {
    int n = g->n;
    for (int i = 0; i < n; i++)
        if (!g->value[i].readers && g->value[i].error > 0) gen_output(g, i);
    if (!g->n_outputs) gen_output(g, add_unary(g, 0));
}

void gen_dag(struct gen *g, struct random *r) {
    gen_start(g, r, "dag");
    for (int i = random_int(r, 1, 2); i > 0; i--) random_leaf(g);
    for (int i = random_int(r, 1, 16); i > 0 && g->n < GEN_VALUES - 16; i--) add_something(g);
    output_unread(g);
}

/* ---- Fusible graphs ---- */

/* `full` has the values of the full shape, in order; the last one is the end of the graph. */
struct space {
    int n, full[GEN_VALUES];
};

static int pick_full(struct gen *g, const struct space *s) {
    return s->full[random_one_in(g->random, 2) ? s->n - 1 : random_int(g->random, 0, s->n - 1)];
}

static void grow_space(struct gen *g, struct space *s) {
    int x = pick_full(g, s), y = -1;
    if (random_one_in(g->random, 2))
        y = random_one_in(g->random, 2) ? pick_full(g, s) : make_partner(g, x);
    s->full[s->n++] = y < 0 ? add_unary(g, x) : add_binary(g, x, y);
}

/* Combines all values of the full shape without readers, so that the graph is connected and has
 * one end. */
static int merge_ends(struct gen *g, struct space *s) {
    int end = s->full[s->n - 1];
    for (int i = 0; i < s->n - 1; i++)
        if (!g->value[s->full[i]].readers) end = add_binary(g, end, s->full[i]);
    return end;
}

/* A reduction over the last dims, followed by a chain of pointwise layers. */
static int add_trailing_reduction(struct gen *g, int x) {
    int rank = g->value[x].rank, first = random_int(g->random, rank > 1 ? 1 : 0, rank - 1);
    if (g->value[x].dim[first] < 0) return x;
    int y = add_reduction(g, tame(g, x, 16), first, rank - 1, true);
    for (int i = random_int(g->random, 0, 3); i > 0; i--) y = add_unary(g, y);
    return y;
}

/* Pointwise layers over one shape with broadcast leaves, possibly with a reduction at the end. */
void gen_fusible(struct gen *g, struct random *r) {
    struct space space = {0};
    int64_t dim[SOL_MAX_RANK];
    gen_start(g, r, "fusible");
    int rank = gen_shape(g, MOST, dim);
    space.full[space.n++] = gen_leaf(g, false, rank, dim, -2, 2);
    if (random_one_in(r, 3)) space.full[space.n++] = gen_leaf(g, false, rank, dim, -2, 2);
    for (int i = random_int(r, 1, 10); i > 0; i--) grow_space(g, &space);
    int end = merge_ends(g, &space), inside = space.full[random_int(r, 0, space.n - 1)];
    if (random_one_in(r, 3)) end = add_trailing_reduction(g, end);
    else if (random_one_in(r, 3) && inside != end && g->value[inside].error > 0)
        gen_output(g, inside);
    gen_output(g, end);
}

/* Many tensors: a long sum of parameters, and a concat of more parts than a kernel has pointers. */
void gen_many(struct gen *g, struct random *r) {
    int64_t dim[2];
    int in[70], n = random_int(r, 33, 70);
    gen_start(g, r, "many");
    dim[0] = g->batch, dim[1] = 3;
    int x = gen_leaf(g, false, 2, dim, -1, 1);
    for (int i = 0; i < n; i++) {
        in[i] = x;
        int add[2] = {x, gen_leaf(g, true, 1, dim + 1, -1, 1)};
        x = gen_add(g, i % 3 ? "add" : "sub", 2, add, "");
    }
    gen_output(g, x);
    gen_output(g, gen_add(g, "concat", n, in, "axis=1"));
}
