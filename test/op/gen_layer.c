/*
 * One layer at a time: a random case for each kind of ir/layer.def, of one type (gen_layer) or of all types that its rule allows
 * (gen_types).
 *
 * A function per kind chooses shapes and attributes. Sizes include 1, primes and multiples of all
 * vector widths. Windows extend beyond edges, and are larger or smaller than their stride.
 */
#include "gen_parts.h"
#include "ir/ir.h"

#include <stdio.h>
#include <string.h>

int gen_random_leaf(struct gen *g, float low, float high) {
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_shape(g, GEN_MOST, dim);
    return gen_leaf(g, false, rank, dim, low, high);
}

static void make_unary(struct gen *g, const char *kind, const char *attributes, float low,
                       float high) {
    int64_t dim[SOL_MAX_RANK];
    int rank = gen_any_shape(g, GEN_MOST, dim), x = gen_leaf(g, false, rank, dim, low, high);
    gen_output(g, gen_add(g, kind, 1, &x, attributes));
}

/* To each type, from values that it can hold: what other floats become is undefined. */
static void make_cast(struct gen *g, const char *kind, const char *attributes) {
    static const float high[SOL_N_DTYPES] = {
        [SOL_I64] = 9e18f, [SOL_I32] = 2.1e9f, [SOL_I16] = 32767.9f,
        [SOL_I8] = 127.9f, [SOL_U8] = 255.9f,
    };
    bool special = g->special;
    (void)attributes;
    for (int to = 0; to < SOL_N_DTYPES; to++) {
        int64_t dim[SOL_MAX_RANK];
        char text[32];
        float most = high[to] > 0 ? high[to] : 70000;
        if (g->type == SOL_F16 && most > 65000) most = 65000;
        if (g->type == SOL_BF16 && most > 100) most *= 0.99f; /* so that rounding stays inside */
        g->special = special && high[to] == 0;
        int rank = gen_any_shape(g, 500, dim);
        int x = gen_leaf(g, false, rank, dim, to == SOL_U8 ? 0 : -most, most);
        snprintf(text, sizeof text, "dtype=%s", size_dtype_name((enum sol_dtype)to));
        gen_output(g, gen_add(g, kind, 1, &x, text));
    }
    g->special = special;
}

/* The second input has any shape that broadcasts with the first, which may lack dims as well. */
static void make_binary(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[2][SOL_MAX_RANK];
    (void)attributes;
    int rank = gen_any_shape(g, GEN_MOST, dim[0]),
        drop = random_one_in(r, 3) && rank ? random_int(r, 0, rank - 1) : 0;
    memcpy(dim[1], dim[0], sizeof dim[1]);
    for (int i = 0; i < rank; i++)
        if (random_one_in(r, 4)) dim[random_int(r, 0, 1)][i] = 1;
    int side = random_int(r, 0, 1);
    bool is_power = !strcmp(kind, "pow");
    int in[2] = {gen_leaf(g, false, rank, dim[0], is_power ? 0.1f : -4, is_power ? 3 : 4), 0};
    float low = strcmp(kind, "div") ? -4 : 0.5f;
    in[1] = gen_leaf(g, side, rank - drop, dim[1] + drop, low, 4);
    gen_output(g, gen_add(g, kind, 2, in, ""));
}

/* Random floats are almost never equal, so both operands are gathered from a table of 5 values. */
static void make_equal(struct gen *g, const char *kind, const char *attributes) {
    int64_t dim[SOL_MAX_RANK], n = 5;
    (void)attributes;
    int rank = gen_shape(g, GEN_MOST / 8, dim);
    int numbers = gen_numbers(g, false, rank, dim, 5), table = gen_leaf(g, true, 1, &n, -1, 1),
        looked_up = gen_add(g, "gather", 2, (int[]){table, numbers}, "");
    int in[2] = {looked_up, gen_add(g, "gather", 2, (int[]){table, numbers}, "")};
    if (random_one_in(g->random, 2) && g->type != SOL_BOOL)
        in[1] = gen_add(g, "abs", 1, in + 1, "");
    gen_output(g, gen_add(g, kind, 2, in, ""));
}

static void make_where(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK], some[SOL_MAX_RANK];
    int rank = gen_any_shape(g, GEN_MOST, dim), in[3];
    (void)attributes;
    for (int i = 0; i < 3; i++) {
        memcpy(some, dim, sizeof some);
        for (int d = 0; d < rank && i; d++)
            if (random_one_in(r, 4)) some[d] = 1;
        int drop = i && rank && random_one_in(r, 3) ? random_int(r, 0, rank - 1) : 0;
        in[i] = gen_leaf(g, i == 1, rank - drop, some + drop, -4, 4);
    }
    int on[2] = {in[0], in[1]};
    in[0] = gen_add(g, "less", 2, on, "");
    gen_output(g, gen_add(g, kind, 3, in, ""));
}

static void make_source(struct gen *g, const char *kind, const char *attributes) {
    int x = gen_random_leaf(g, -4, 4);
    (void)attributes;
    if (!strcmp(kind, "scalar")) {
        int in[2] = {x, gen_scalar(g, size_family(g->type) == FAMILY_FLOAT ? 0.75 : 1)};
        x = gen_add(g, g->type == SOL_F32 ? "mul" : "maximum", 2, in, "");
    }
    gen_output(g, x);
    if (strcmp(kind, "param")) return;
    /* Outputs that depend on parameters only: the parameter itself, and a layer that reads
     * it. */
    int w = gen_leaf(g, true, 2, (int64_t[]){3, 17}, -1, 1);
    gen_output(g, w);
    gen_output(g, gen_add(g, g->type == SOL_F32 ? "sigmoid" : "copy", 1, &w, ""));
}

/* Alone, and broadcast to a tensor. */
static void make_arange(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    char text[128], one[24];
    int64_t dim[2] = {random_int(r, 1, 9), random_one_in(r, 2) ? g->batch : random_int(r, 0, 40)};
    (void)attributes;
    snprintf(text, sizeof text, "start=%d step=%d shape=[%s] dtype=%s", random_int(r, -5, 5),
             random_int(r, -3, 3), gen_dim_text(dim[1], one), size_dtype_name(g->type));
    int in[2] = {gen_leaf(g, false, 2, dim, -9, 9), 0};
    in[1] = gen_value(g, sol_model_layer(g->model, kind, 0, NULL, text, NULL), 120, 0, 0);
    gen_output(g, in[1]);
    gen_output(g, gen_add(g, "maximum", 2, in, ""));
}

/* The numbers themselves, and a dropout by them. */
static void make_random(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[SOL_MAX_RANK];
    char text[160] = "shape=[", one[24];
    (void)attributes;
    const int seed = gen_positions(g, random_one_in(r, 4), 0, dim, 1000000000);
    const int rank = gen_any_shape(g, GEN_MOST, dim);
    for (int i = 0; i < rank; i++)
        sprintf(text + strlen(text), "%s%s", i ? "," : "", gen_dim_text(dim[i], one));
    sprintf(text + strlen(text), "] stream=%d", random_int(r, 0, 1000000000));
    const int u = gen_add(g, kind, 1, &seed, text);
    gen_output(g, u);
    g->type = SOL_F32;
    int in[3] = {u, gen_scalar(g, 0.25), gen_leaf(g, false, rank, dim, -4, 4)};
    in[0] = gen_add(g, "less", 2, in, "");
    gen_output(g, gen_add(g, "where", 3, in, ""));
}

static void make_bits(struct gen *g, const char *kind, const char *attributes) {
    int64_t dim[SOL_MAX_RANK];
    const int rank = gen_any_shape(g, GEN_MOST, dim),
              in[3] = {gen_leaf(g, false, rank, dim, -4, 4), gen_leaf(g, false, 0, dim, -4, 4),
                       gen_leaf(g, false, rank ? 1 : 0, dim + max_i64(0, rank - 1), -4, 4)};
    gen_output(g, gen_add(g, kind, 3, in, attributes));
}

/* ---- Along one axis ---- */

/* softmax, cumsum, argmax, argmin: along one axis. */
static void make_along(struct gen *g, const char *kind, const char *attributes) {
    char text[32];
    bool is_index = !strncmp(kind, "arg", 3);
    int x = gen_random_leaf(g, -8, 8), axis = random_int(g->random, 0, g->value[x].rank - 1);
    (void)attributes;
    if (random_one_in(g->random,
                      4)) /* rows so long that DFP stores them in the places of outputs */
        x = gen_leaf(g, false, 3, (int64_t[]){g->batch, 3, random_int(g->random, 250, 600)}, -8, 8),
        axis = random_int(g->random, 1, 2);
    if (is_index && g->value[x].dim[axis] < 0) { /* of an empty batch there is no index */
        x = gen_leaf(g, false, 2, (int64_t[]){g->batch, 17}, -8, 8);
        axis = 1;
    }
    snprintf(text, sizeof text, "axis=%d", axis);
    if (is_index && random_one_in(g->random, 2)) strcat(text, " keepdim=true");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* ---- Windows and reductions ---- */

struct pool {
    int64_t dim[4];
    int x;
    char text[160];
};

/* Rows shorter and longer than a vector, so that there are windows at both edges, and vectors without any. */
static void choose_pool(struct gen *g, const char *kind, struct pool *pool) {
    static const int counts[] = {1, 3, 16, 17}, heights[] = {1, 2, 3, 5, 7, 13},
                     widths[] = {1, 2, 3, 5, 7, 13, 16, 17, 20, 33, 70};
    struct random *r = g->random;
    const int64_t dim[] = {random_one_in(r, 6) ? 2 : g->batch, RANDOM_PICK(r, counts),
                           RANDOM_PICK(r, heights), RANDOM_PICK(r, widths)};
    const bool dilates = !strncmp(kind, "max", 3) && random_one_in(r, 4);
    memcpy(pool->dim, dim, sizeof dim);
    pool->x = gen_leaf(g, false, 4, dim, -1, 1);
    if (!strcmp(kind, "max_pool_index") && random_one_in(r, 2))
        pool->x =
            gen_add(g, "sign", 1, &pool->x, ""); /* most windows have several largest values */
    int kh = random_int(r, 1, (int)min_i64(5, dim[2])),
        kw = random_int(r, 1, (int)min_i64(5, dim[3]));
    int ph = random_int(r, 0, kh / 2), pw = random_int(r, 0, kw / 2);
    int dh = dilates && 2 * kh <= dim[2] ? 2 : 1, dw = dilates && 2 * kw <= dim[3] ? 2 : 1;
    int used = snprintf(pool->text, sizeof pool->text,
                        "kernel=[%d,%d] stride=[%d,%d] pad=[%d,%d,%d,%d] ceil=%s", kh, kw,
                        random_int(r, 1, 3), random_int(r, 1, 3), ph, pw, ph, pw,
                        random_one_in(r, 2) ? "true" : "false");
    if (dilates)
        snprintf(pool->text + used, sizeof pool->text - (size_t)used, " dilation=[%d,%d]", dh, dw);
}

static void make_pool(struct gen *g, const char *kind, const char *attributes) {
    struct pool pool;
    char text[200];
    choose_pool(g, kind, &pool);
    snprintf(text, sizeof text, "%s %s", pool.text, random_one_in(g->random, 2) ? attributes : "");
    gen_output(g, gen_add(g, kind, 1, &pool.x, text));
}

/* dy is an input, or has the positions' layout. */
static void make_pool_grad(struct gen *g, const char *kind, const char *attributes) {
    char text[256], batch[24];
    struct pool pool;
    (void)attributes;
    choose_pool(g, "max_pool_index", &pool);
    const int index = gen_add(g, "max_pool_index", 1, &pool.x, pool.text);
    int in[2] = {random_one_in(g->random, 2) ? gen_leaf(g, false, 4, g->value[index].dim, -1, 1)
                                             : gen_add(g, "max_pool", 1, &pool.x, pool.text),
                 index};
    snprintf(text, sizeof text, "%s shape=[%s,%d,%d,%d]", pool.text,
             gen_dim_text(pool.dim[0], batch), (int)pool.dim[1], (int)pool.dim[2],
             (int)pool.dim[3]);
    gen_output(g, gen_add(g, kind, 2, in, text));
}

static void make_adaptive(struct gen *g, const char *kind, const char *attributes) {
    char text[64];
    int x = gen_random_image(g, random_int(g->random, 1, 20));
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
    int x = gen_random_leaf(g, -1, 2);
    random_axes(g, g->value[x].rank, axes);
    snprintf(text, sizeof text, "%s keepdim=%s %s", axes,
             random_one_in(g->random, 2) ? "true" : "false",
             random_one_in(g->random, 2) ? attributes : "");
    gen_output(g, gen_add(g, kind, 1, &x, text));
}

/* ---- The table ---- */

/* Kinds with one input, and the range of its values. All other kinds have a function
 * below. */
static const struct {
    const char *kind, *attributes;
    float low, high;
} unaries[] = {
    {"relu", "", -4, 4},
    {"clamp", "min=1.0 max=2.0", -4, 4},
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
    {"stop", "", -4, 4},
    {"neg", "", -4, 4},
    {"square", "", -4, 4},
    {"reciprocal", "", 0.01f, 4},
    {"erf", "", -4, 4},
    {"softsign", "", -4, 4},
    {"sin", "", -20, 20},
    {"cos", "", -20, 20},
    {"tan", "", -1.4, 1.4},
    {"asin", "", -1, 1},
    {"acos", "", -1, 1},
    {"atan", "", -9, 9},
    {"sinh", "", -8, 8},
    {"cosh", "", -8, 8},
    {"asinh", "", -9, 9},
    {"acosh", "", 1, 50},
    {"atanh", "", -0.99f, 0.99f},
    {"floor", "", -9, 9},
    {"ceil", "", -9, 9},
    {"trunc", "", -9, 9},
    {"round", "", -9, 9},
    {"sign", "", -4, 4},
    {"bit_not", "", 0, 1},
};

static const struct {
    const char *kind;
    void (*make)(struct gen *g, const char *kind, const char *attributes);
    const char *attributes;
} others[] = {
    {"input", make_source, ""},
    {"param", make_source, ""},
    {"scalar", make_source, ""},
    {"conv", gen_conv_case, ""},
    {"conv_weight", gen_conv_weight, ""},
    {"linear", gen_linear_case, ""},
    {"quant_conv", gen_quant_conv_case, ""},
    {"quant_linear", gen_quant_linear_case, ""},
    {"conv_transpose", gen_conv_transpose, ""},
    {"batch_norm", gen_batch_norm_case, ""},
    {"softmax", make_along, ""},
    {"log_softmax", make_along, ""},
    {"cumsum", make_along, ""},
    {"argmax", make_along, ""},
    {"argmin", make_along, ""},
    {"arange", make_arange, ""},
    {"random", make_random, ""},
    {"random_bits", make_bits, ""},
    {"cast", make_cast, ""},
    {"layer_norm", gen_axes_norm, ""},
    {"rms_norm", gen_axes_norm, ""},
    {"group_norm", gen_group_norm, ""},
    {"attention", gen_attention, ""},
    {"rnn_tanh", gen_recurrent, ""},
    {"rnn_relu", gen_recurrent, ""},
    {"lstm", gen_recurrent, ""},
    {"gru", gen_recurrent, ""},
    {"rnn_tanh_grad", gen_recurrent_grad, ""},
    {"rnn_relu_grad", gen_recurrent_grad, ""},
    {"lstm_grad", gen_recurrent_grad, ""},
    {"gru_grad", gen_recurrent_grad, ""},
    {"prelu", make_binary, ""},
    {"add", make_binary, ""},
    {"sub", make_binary, ""},
    {"mul", make_binary, ""},
    {"div", make_binary, ""},
    {"maximum", make_binary, ""},
    {"minimum", make_binary, ""},
    {"pow", make_binary, ""},
    {"floor_div", make_binary, ""},
    {"mod", make_binary, ""},
    {"trunc_div", make_binary, ""},
    {"rem", make_binary, ""},
    {"bit_and", make_binary, ""},
    {"bit_or", make_binary, ""},
    {"bit_xor", make_binary, ""},
    {"shift_left", make_binary, ""},
    {"shift_right", make_binary, ""},
    {"less", make_binary, ""},
    {"less_equal", make_binary, ""},
    {"equal", make_equal, ""},
    {"where", make_where, ""},
    {"matmul", gen_matmul_case, ""},
    {"gather", gen_gather_case, ""},
    {"scatter_sum", gen_scatter_case, ""},
    {"resample", gen_resample_case, ""},
    {"max_pool", make_pool, "min=0.0"},
    {"max_pool_index", make_pool, ""},
    {"max_pool_grad", make_pool_grad, ""},
    {"avg_pool", make_pool, "count_pad=true"},
    {"adaptive_avg_pool", make_adaptive, ""},
    {"sum", make_reduce, ""},
    {"mean", make_reduce, ""},
    {"prod", make_reduce, ""},
    {"reduce_max", make_reduce, ""},
    {"reduce_min", make_reduce, ""},
    {"logsumexp", make_reduce, ""},
    {"norm", make_reduce, "p=1.0"},
    {"variance", make_reduce, ""},
    {"reshape", gen_reshape_case, ""},
    {"permute", gen_permute_case, ""},
    {"slice", gen_slice_case, ""},
    {"place", gen_place_case, ""},
    {"concat", gen_concat_case, ""},
    {"expand", gen_expand_case, ""},
    {"pad", gen_pad_case, ""},
    {"tril", gen_triangle, ""},
    {"triu", gen_triangle, ""},
};

static void make_case(struct gen *g, const char *kind) {
    for (size_t i = 0; i < sizeof unaries / sizeof *unaries; i++)
        if (!strcmp(kind, unaries[i].kind))
            make_unary(g, kind, unaries[i].attributes, unaries[i].low, unaries[i].high);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(kind, others[i].kind)) others[i].make(g, kind, others[i].attributes);
}

/* Does the layer's rule allow inputs of this type, or, without inputs, this output? */
static bool allows(enum layer_kind kind, enum sol_dtype type) {
    struct tensor of_type = {.dtype = type}, index = {.dtype = SOL_I64},
                  truth = {.dtype = SOL_BOOL}, out = {0}, *list[1] = {&out},
                  *in[5] = {&of_type, &of_type, &of_type, &of_type, &of_type};
    struct layer layer = {.kind = kind, .n_in = layer_infos[kind].min_in, .in = in, .out = list};
    if (kind == LAYER_where) in[0] = &truth;
    if (kind == LAYER_max_pool_grad) index.dtype = SOL_I32, in[1] = &index;
    if (kind == LAYER_gather || kind == LAYER_scatter_sum || kind == LAYER_resample) in[1] = &index;
    return !layer_infos[kind].types(&layer);
}

/* NaN and infinities have a defined result where each output depends on few inputs. */
static bool takes_specials(enum layer_kind kind) {
    static const enum layer_kind more[] = {
        LAYER_reduce_max, LAYER_reduce_min, LAYER_argmax, LAYER_argmin,
        LAYER_max_pool,   LAYER_gather,     LAYER_concat, LAYER_expand,
        LAYER_pad,        LAYER_tril,       LAYER_triu,   LAYER_max_pool_index};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (more[i] == kind) return true;
    return layer_infos[kind].traits & (POINTWISE | MOVEMENT);
}

void gen_layer(struct gen *g, struct random *r, const char *kind) {
    gen_start(g, r, kind);
    g->type = ir_find_kind(kind) < N_LAYER_KINDS && allows(ir_find_kind(kind), SOL_F32) ? SOL_F32
                                                                                        : SOL_I32;
    make_case(g, kind);
}

void gen_types(struct gen *g, struct random *r, const char *name) {
    enum layer_kind kind = ir_find_kind(name);
    gen_start(g, r, name);
    g->special = takes_specials(kind);
    for (int type = 0; type < SOL_N_DTYPES; type++) {
        g->type = (enum sol_dtype)type;
        if (allows(kind, g->type)) make_case(g, name);
    }
    /* Its inputs have different types, which its generator chooses. */
    if (!g->n_outputs) make_case(g, name);
}
