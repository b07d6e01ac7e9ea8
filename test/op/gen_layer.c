/*
 * One layer at a time: a random case for each kind of ir/layer.def.
 *
 * A function per kind chooses shapes and attributes. Sizes include 1, primes and multiples of all
 * vector widths. Windows extend beyond edges, and are larger or smaller than their stride.
 */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

#define MOST 20000 /* elements of a tensor */

static int random_leaf(struct gen *g, float low, float high) {
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, MOST, dim);
    return gen_leaf(g, false, rank, dim, low, high);
}

static void make_unary(struct gen *g, const char *kind, const char *attributes, float low,
                       float high) {
    int x = random_leaf(g, low, high);
    gen_output(g, gen_add(g, kind, 1, &x, attributes));
}

/* The second input has any shape that broadcasts with the first, which may lack dims as well. */
static void make_binary(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[2][SOL_MAX_RANK];
    (void)attributes;
    int rank = gen_shape(g, MOST, dim[0]),
        drop = random_one_in(r, 3) ? random_int(r, 0, rank - 1) : 0;
    memcpy(dim[1], dim[0], sizeof dim[1]);
    for (int i = 0; i < rank; i++)
        if (random_one_in(r, 4)) dim[random_int(r, 0, 1)][i] = 1;
    int side = random_int(r, 0, 1);
    int in[2] = {gen_leaf(g, false, rank, dim[0], -4, 4), 0};
    float low = strcmp(kind, "div") ? -4 : 0.5f;
    in[1] = gen_leaf(g, side, rank - drop, dim[1] + drop, low, 4);
    gen_output(g, gen_add(g, kind, 2, in, ""));
}

/* Random floats are almost never equal, so both operands are gathered from a table of 5 values. */
static void make_equal(struct gen *g, const char *kind, const char *attributes) {
    int64_t dim[SOL_MAX_RANK], n = 5;
    (void)attributes;
    int rank = gen_shape(g, MOST / 8, dim);
    int numbers = gen_numbers(g, false, rank, dim, 5), table = gen_leaf(g, true, 1, &n, -1, 1),
        looked_up = gen_add(g, "gather", 2, (int[]){table, numbers}, "");
    int in[2] = {looked_up, gen_add(g, "gather", 2, (int[]){table, numbers}, "")};
    if (random_one_in(g->random, 2)) in[1] = gen_add(g, "abs", 1, in + 1, "");
    gen_output(g, gen_add(g, kind, 2, in, ""));
}

static void make_where(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK], some[SOL_MAX_RANK];
    int rank = gen_shape(g, MOST, dim), in[3];
    (void)attributes;
    for (int i = 0; i < 3; i++) {
        memcpy(some, dim, sizeof some);
        for (int d = 0; d < rank && i; d++)
            if (random_one_in(r, 4)) some[d] = 1;
        int drop = i && random_one_in(r, 3) ? random_int(r, 0, rank - 1) : 0;
        in[i] = gen_leaf(g, i == 1, rank - drop, some + drop, -4, 4);
    }
    int on[2] = {in[0], in[1]};
    in[0] = gen_add(g, "less", 2, on, "");
    gen_output(g, gen_add(g, kind, 3, in, ""));
}

static void make_source(struct gen *g, const char *kind, const char *attributes) {
    int x = random_leaf(g, -4, 4);
    (void)attributes;
    if (!strcmp(kind, "scalar")) {
        int in[2] = {x, gen_value(g, sol_model_scalar(g->model, 0.75), 1, 0, 0)};
        x = gen_add(g, "mul", 2, in, "");
    }
    gen_output(g, x);
    if (strcmp(kind, "param")) return;
    /* Outputs that depend on parameters only: the parameter itself, and a layer that reads
     * it. */
    int w = gen_leaf(g, true, 2, (int64_t[]){3, 17}, -1, 1);
    gen_output(g, w);
    gen_output(g, gen_add(g, "sigmoid", 1, &w, ""));
}

/* ---- Convolution, linear, composites ---- */

static int random_image(struct gen *g, int c) {
    static const int sizes[] = {1, 2, 3, 5, 7, 8, 13, 16, 17, 28};
    int h = RANDOM_PICK(g->random, sizes), w = RANDOM_PICK(g->random, sizes);
    return gen_leaf(g, false, 4, (int64_t[]){random_one_in(g->random, 6) ? 2 : g->batch, c, h, w},
                    -1, 1);
}

static void make_conv(struct gen *g, const char *kind, const char *attributes) {
    static const int counts[] = {1, 3, 8, 16, 17, 32, 58, 64},
                     group_counts[] = {1, 1, 1, 2, 3, 16, 17};
    struct random *r = g->random;
    (void)attributes;
    int groups = RANDOM_PICK(r, group_counts), c = RANDOM_PICK(r, counts),
        k = RANDOM_PICK(r, counts);
    if (groups > 4) c = k = 1;
    int kernel = random_int(r, 0, 2) * 2 + 1,
        wide = random_one_in(r, 6) ? random_int(r, 1, 4) : kernel;
    int x = random_image(g, c * groups), dilation = random_one_in(r, 6) ? 2 : 1;
    int in[3] = {x, gen_leaf(g, true, 4, (int64_t[]){k * groups, c, kernel, wide}, -0.5f, 0.5f), 0};
    in[2] = gen_leaf(g, true, 1, (int64_t[]){k * groups}, -1, 1);
    /* The window must fit at least once, so small images get padding of the window's size. */
    int reach = (kernel - 1) * dilation, reach_w = (wide - 1) * dilation;
    bool small =
        g->value[x].dim[2] <= reach || g->value[x].dim[3] <= reach_w || random_one_in(r, 8);
    int pad = small ? reach : kernel / 2, pad_w = small ? reach_w : wide / 2;
    char text[128];
    snprintf(text, sizeof text, "stride=[%d,%d] pad=[%d,%d,%d,%d] dilation=[%d,%d] groups=%d",
             random_int(r, 1, 2), random_int(r, 1, 2), pad, pad_w, pad + random_int(r, 0, 1), pad_w,
             dilation, dilation, groups);
    gen_output(g, gen_add(g, kind, random_int(r, 2, 3), in, text));
    g->tolerance = 4e-5; /* Winograd */
}

static void make_linear(struct gen *g, const char *kind, const char *attributes) {
    static const int sizes[] = {1, 3, 7, 16, 17, 64, 100, 257, 1000};
    struct random *r = g->random;
    (void)attributes;
    int c = RANDOM_PICK(r, sizes), k = RANDOM_PICK(r, sizes), rank = random_int(r, 1, 3);
    int64_t dim[3] = {g->batch, 5, c};
    int in[3] = {gen_leaf(g, false, rank, dim + 3 - rank, -1, 1), 0, 0};
    if (rank == 2) in[0] = gen_leaf(g, false, 2, (int64_t[]){g->batch, c}, -1, 1);
    in[1] = gen_leaf(g, true, 2, (int64_t[]){k, c}, -1, 1);
    in[2] = gen_leaf(g, true, 1, (int64_t[]){k}, -1, 1);
    gen_output(g, gen_add(g, kind, random_int(r, 2, 3), in, ""));
}

/* The layers around a product in a transformer: scales before it, a softmax and a second product after it. */
static int add_attention(struct gen *g, int x, int y) {
    struct random *r = g->random;
    int64_t value[2] = {g->value[y].dim[g->value[y].rank - 1], random_int(r, 1, 20)};
    int scale = gen_value(g, sol_model_scalar(g->model, 0.5), 1, 0, 0);
    if (random_one_in(r, 2)) x = gen_add(g, "mul", 2, (int[]){x, scale}, "");
    if (random_one_in(r, 2)) y = gen_add(g, "mul", 2, (int[]){y, scale}, "");
    int scores = gen_add(g, "matmul", 2, (int[]){x, y}, "");
    if (random_one_in(r, 4)) gen_output(g, scores);
    char text[32];
    snprintf(text, sizeof text, "axis=%d", g->value[scores].rank - 1);
    int weights = gen_add(g, "softmax", 1, &scores, text);
    return gen_add(g, "matmul", 2,
                   (int[]){weights, gen_leaf(g, random_one_in(r, 2), 2, value, -1, 1)}, "");
}

/* Leading dims may be missing or 1 in either operand. */
static void make_matmul(struct gen *g, const char *kind, const char *attributes) {
    static const int sizes[] = {1, 2, 5, 16, 17, 31, 64};
    struct random *r = g->random;
    (void)attributes;
    int64_t a[4] = {g->batch, 3, RANDOM_PICK(r, sizes), RANDOM_PICK(r, sizes)},
            b[4] = {g->batch, 3, a[3], RANDOM_PICK(r, sizes)};
    int at = random_int(r, 0, 2), bt = random_int(r, 0, 2);
    for (int d = 0; d < 2; d++)
        if (random_one_in(r, 3)) (random_one_in(r, 2) ? a : b)[d] = 1;
    int in[2] = {gen_leaf(g, false, 4 - at, a + at, -1, 1),
                 gen_leaf(g, random_one_in(r, 4), 4 - bt, b + bt, -1, 1)};
    bool is_alone = random_one_in(r, 2);
    gen_output(g, is_alone ? gen_add(g, kind, 2, in, "") : add_attention(g, in[0], in[1]));
}

static void make_batch_norm(struct gen *g, const char *kind, const char *attributes) {
    static const float low[] = {-1, 0.5f, 0.5f, -1}, high[] = {1, 2, 2, 1};
    struct random *r = g->random;
    (void)attributes;
    int64_t dim[SOL_MAX_RANK], c;
    int rank = gen_shape(g, MOST, dim), in[5];
    if (rank == 1) dim[rank++] = 17;
    c = dim[1];
    in[0] = gen_leaf(g, false, rank, dim, -4, 4);
    bool param = !random_one_in(r, 5);
    for (int i = 0; i < 4; i++) in[i + 1] = gen_leaf(g, param, 1, &c, low[i], high[i]);
    gen_output(g, gen_add(g, kind, 5, in, "eps=1e-05"));
}

static void make_softmax(struct gen *g, const char *kind, const char *attributes) {
    char text[32];
    int x = random_leaf(g, -8, 8);
    (void)attributes;
    snprintf(text, sizeof text, "axis=%d", random_int(g->random, 0, g->value[x].rank - 1));
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* ---- Windows and reductions ---- */

static void make_pool(struct gen *g, const char *kind, const char *attributes) {
    static const int counts[] = {1, 3, 16, 17};
    struct random *r = g->random;
    char text[160];
    int x = random_image(g, RANDOM_PICK(r, counts)), most = 5;
    if (g->value[x].dim[2] < most) most = (int)g->value[x].dim[2];
    if (g->value[x].dim[3] < most) most = (int)g->value[x].dim[3];
    int kh = random_int(r, 1, most), kw = random_int(r, 1, most);
    int ph = random_int(r, 0, kh / 2), pw = random_int(r, 0, kw / 2);
    int used =
        snprintf(text, sizeof text, "kernel=[%d,%d] stride=[%d,%d] pad=[%d,%d,%d,%d] ceil=%s", kh,
                 kw, random_int(r, 1, 3), random_int(r, 1, 3), ph, pw, ph, pw,
                 random_one_in(r, 2) ? "true" : "false");
    const char *more = random_one_in(r, 2) ? attributes : "";
    snprintf(text + used, sizeof text - (size_t)used, " %s", more);
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

static void make_adaptive(struct gen *g, const char *kind, const char *attributes) {
    char text[64];
    int x = random_image(g, random_int(g->random, 1, 20));
    (void)attributes;
    snprintf(text, sizeof text, "kernel=[%d,%d]", random_int(g->random, 1, 8),
             random_int(g->random, 1, 8));
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* A random set of axes in rising order, as text. */
static void random_axes(struct gen *g, int rank, char text[32]) {
    int set = random_int(g->random, 1, (1 << rank) - 1), used = snprintf(text, 32, "axes=[");
    const char *comma = "";
    for (int i = 0; i < rank; i++) {
        if (!(set >> i & 1)) continue;
        used += snprintf(text + used, 32 - (size_t)used, "%s%d", comma, i);
        comma = ",";
    }
    snprintf(text + used, 32 - (size_t)used, "]");
}

static void make_reduce(struct gen *g, const char *kind, const char *attributes) {
    char axes[32], text[64];
    int x = random_leaf(g, -1, 2);
    random_axes(g, g->value[x].rank, axes);
    snprintf(text, sizeof text, "%s keepdim=%s %s", axes,
             random_one_in(g->random, 2) ? "true" : "false",
             random_one_in(g->random, 2) ? attributes : "");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* ---- Shapes ---- */

/* Splits the last dim in two if possible, and merges the first two dims after the batch if there
 * are two. */
static void make_reshape(struct gen *g, const char *kind, const char *attributes) {
    char text[160] = "shape=[", dim[24];
    int x = random_leaf(g, -1, 1), rank = g->value[x].rank;
    size_t used = strlen(text);
    (void)attributes;
    for (int i = 0; i < rank - 1; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s,",
                                 gen_dim_text(g->value[x].dim[i], dim));
    int64_t last = g->value[x].dim[rank - 1], factor = last > 0 && last % 4 == 0 ? 4 : 1;
    if (last < 0) snprintf(text + used, sizeof text - used, "%s,1]", gen_dim_text(last, dim));
    else snprintf(text + used, sizeof text - used, "%d,%d]", (int)factor, (int)(last / factor));
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

static void make_permute(struct gen *g, const char *kind, const char *attributes) {
    int x = random_leaf(g, -1, 1), rank = g->value[x].rank, axis[SOL_MAX_RANK];
    char text[64] = "axes=[";
    (void)attributes;
    for (int i = 0; i < rank; i++) {
        int at = random_int(g->random, 0, i);
        axis[i] = axis[at];
        axis[at] = i;
    }
    for (int i = 0; i < rank; i++)
        sprintf(text + strlen(text), "%d%s", axis[i], i + 1 < rank ? "," : "]");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

static void make_slice(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    char text[96];
    int x = random_leaf(g, -1, 1), axis = random_int(r, 0, g->value[x].rank - 1);
    int64_t extent = g->value[x].dim[axis];
    (void)attributes;
    if (extent < 0) { /* a symbolic dim is sliced only as a whole */
        int rank = g->value[x].rank;
        int64_t dim[SOL_MAX_RANK] = {5};
        memcpy(dim + 1, g->value[x].dim, sizeof *dim * (size_t)rank);
        x = gen_leaf(g, false, rank + 1, dim, -1, 1), axis = 0, extent = 5;
    }
    int start = random_int(r, 0, (int)extent - 1), step = random_one_in(r, 3) ? 2 : 1;
    int n = random_int(r, 1, (int)((extent - start + step - 1) / step));
    if (random_one_in(r, 3)) start += (n - 1) * step, step = -step; /* backwards */
    snprintf(text, sizeof text, "axis=%d start=%d step=%d shape=[%d]", axis, start, step, n);
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

static void make_concat(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, MOST / 4, dim), axis = random_int(r, 0, rank - 1),
        n = random_int(r, 1, 5), in[5];
    char text[32];
    (void)attributes;
    if (dim[axis] < 0) dim[axis] = 3;
    for (int i = 0; i < n; i++) {
        in[i] = gen_leaf(g, random_one_in(r, 4), rank, dim, -1, 1);
        if (random_one_in(r, 2)) dim[axis] = random_int(r, 1, 17);
    }
    snprintf(text, sizeof text, "axis=%d", axis);
    gen_output(g, gen_add(g, kind, n, in, text));
}

static void make_expand(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, MOST, dim), drop = random_int(r, 0, rank - 1);
    char text[128] = "shape=[", one[24];
    (void)attributes;
    for (int i = 0; i < rank; i++) {
        sprintf(text + strlen(text), "%s%s", gen_dim_text(dim[i], one), i + 1 < rank ? "," : "]");
        if (random_one_in(r, 2)) dim[i] = 1;
    }
    int x = gen_leaf(g, false, rank - drop, dim + drop, -1, 1);
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

static void make_pad(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    char text[96];
    int x = random_image(g, random_int(r, 1, 17));
    (void)attributes;
    snprintf(text, sizeof text, "pad=[%d,%d,%d,%d] value=%s", random_int(r, 0, 3),
             random_int(r, 0, 3), random_int(r, 0, 3), random_int(r, 0, 3),
             random_one_in(r, 2) ? "0.0" : "-1.5");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* Indices from the whole range, including negative ones. */
static void make_gather(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK], numbers[2] = {g->batch, random_int(r, 1, 9)};
    char text[32];
    (void)attributes;
    int rank = gen_shape(g, MOST / 16, dim), axis = random_int(r, 0, rank - 1);
    if (dim[axis] < 0) dim[axis] = 5;
    int drop = random_int(r, 0, 2);
    int in[2] = {gen_leaf(g, random_one_in(r, 2), rank, dim, -4, 4), 0};
    in[1] = gen_numbers(g, random_one_in(r, 4), 2 - drop, numbers + drop, dim[axis]);
    snprintf(text, sizeof text, "axis=%d", axis);
    gen_output(g, gen_add(g, kind, 2, in, text));
}

/* ---- The table ---- */

/* Kinds with one input, and the range of its values. All other kinds have a function
 * below. */
static const struct {
    const char *kind, *attributes;
    float low, high;
} unaries[] = {
    {"relu", "", -4, 4},
    {"clamp", "min=-1.0 max=2.5", -4, 4},
    {"leaky_relu", "alpha=0.1", -4, 4},
    {"elu", "alpha=1.5 scale=1.25 input_scale=0.5", -4, 4},
    {"sigmoid", "", -20, 20},
    {"tanh", "", -9, 9},
    {"gelu", "", -6, 6},
    {"gelu_tanh", "", -6, 6},
    {"silu", "", -20, 20},
    {"hardsigmoid", "", -5, 5},
    {"hardswish", "", -5, 5},
    {"softplus", "", -30, 30},
    {"mish", "", -20, 20},
    {"exp", "", -10, 10},
    {"log", "", 0.001f, 100},
    {"sqrt", "", 0, 100},
    {"rsqrt", "", 0.001f, 100},
    {"abs", "", -4, 4},
    {"neg", "", -4, 4},
    {"square", "", -4, 4},
    {"reciprocal", "", 0.01f, 4},
    {"erf", "", -4, 4},
    {"softsign", "", -4, 4},
};

static const struct {
    const char *kind;
    void (*make)(struct gen *g, const char *kind, const char *attributes);
    const char *attributes;
} others[] = {
    {"input", make_source, ""},
    {"param", make_source, ""},
    {"scalar", make_source, ""},
    {"conv", make_conv, ""},
    {"linear", make_linear, ""},
    {"batch_norm", make_batch_norm, ""},
    {"softmax", make_softmax, ""},
    {"log_softmax", make_softmax, ""},
    {"layer_norm", gen_axes_norm, ""},
    {"rms_norm", gen_axes_norm, ""},
    {"group_norm", gen_group_norm, ""},
    {"attention", gen_attention, ""},
    {"prelu", make_binary, ""},
    {"add", make_binary, ""},
    {"sub", make_binary, ""},
    {"mul", make_binary, ""},
    {"div", make_binary, ""},
    {"maximum", make_binary, ""},
    {"minimum", make_binary, ""},
    {"less", make_binary, ""},
    {"equal", make_equal, ""},
    {"where", make_where, ""},
    {"matmul", make_matmul, ""},
    {"gather", make_gather, ""},
    {"max_pool", make_pool, "min=0.0"},
    {"avg_pool", make_pool, "count_pad=true"},
    {"adaptive_avg_pool", make_adaptive, ""},
    {"sum", make_reduce, ""},
    {"mean", make_reduce, ""},
    {"reduce_max", make_reduce, ""},
    {"reduce_min", make_reduce, ""},
    {"logsumexp", make_reduce, ""},
    {"norm", make_reduce, "p=1.0"},
    {"variance", make_reduce, ""},
    {"reshape", make_reshape, ""},
    {"permute", make_permute, ""},
    {"slice", make_slice, ""},
    {"concat", make_concat, ""},
    {"expand", make_expand, ""},
    {"pad", make_pad, ""},
    {"tril", gen_triangle, ""},
    {"triu", gen_triangle, ""},
};

void gen_layer(struct gen *g, struct random *r, const char *kind) {
    gen_start(g, r, kind);
    for (size_t i = 0; i < sizeof unaries / sizeof *unaries; i++)
        if (!strcmp(kind, unaries[i].kind))
            make_unary(g, kind, unaries[i].attributes, unaries[i].low, unaries[i].high);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(kind, others[i].kind)) others[i].make(g, kind, others[i].attributes);
}
