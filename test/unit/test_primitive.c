/*
 * Conformance of each primitive and each combine of ir/primitive.def with the formulas of meaning.h: folded from constants,
 * interpreted, and compiled, for vectors and for single values, of each type in which kernels compute.
 *
 * The tests walk the lists. So a row that has no layer in the tables below fails, and its name is printed.
 */
#include "compiled.h"
#include "device/ref/element.h"
#include "dfp/nest.h"
#include "meaning.h"

#define LANES 8

/* A layer that applies only this primitive to its inputs; the largest allowed error in f32, in units in the last place; its flops; an
 * approximation, such as EXP, is expensive. */
static const struct {
    const char *layer;
    double ulps;
    double flops;
} primitive_rows[N_PRIMITIVES] = {
    [PRIMITIVE_ADD] = {"add", 0, 1},
    [PRIMITIVE_SUB] = {"sub", 0, 1},
    [PRIMITIVE_MUL] = {"mul", 0, 1},
    [PRIMITIVE_DIV] = {"div", 0, 1},
    [PRIMITIVE_MAX] = {"maximum", 0, 1},
    [PRIMITIVE_MIN] = {"minimum", 0, 1},
    [PRIMITIVE_NEG] = {"neg", 0, 1},
    [PRIMITIVE_ABS] = {"abs", 0, 1},
    [PRIMITIVE_SQRT] = {"sqrt", 0, 1},
    [PRIMITIVE_EXP] = {"exp", 4, 1},
    [PRIMITIVE_LOG] = {"log", 4, 1},
    [PRIMITIVE_TANH] = {"tanh", 4, 1},
    [PRIMITIVE_ERF] = {"erf", 4, 1},
    [PRIMITIVE_LESS] = {"less", 0, 0},
    [PRIMITIVE_EQUAL] = {"equal", 0, 0},
    [PRIMITIVE_SELECT] = {"where", 0, 0},
    [PRIMITIVE_FLOOR] = {"floor", 0, 1},
    [PRIMITIVE_ROUND] = {"round", 0, 1},
    [PRIMITIVE_SIN] = {"sin", 4, 1},
    [PRIMITIVE_COS] = {"cos", 4, 1},
    [PRIMITIVE_TAN] = {"tan", 4, 1},
    [PRIMITIVE_ASIN] = {"asin", 4, 1},
    [PRIMITIVE_ACOS] = {"acos", 4, 1},
    [PRIMITIVE_ATAN] = {"atan", 4, 1},
    [PRIMITIVE_SINH] = {"sinh", 4, 1},
    [PRIMITIVE_COSH] = {"cosh", 4, 1},
    [PRIMITIVE_ASINH] = {"asinh", 4, 1},
    [PRIMITIVE_ACOSH] = {"acosh", 4, 1},
    [PRIMITIVE_ATANH] = {"atanh", 4, 1},
    [PRIMITIVE_POW] = {"pow", 4, 1},
    [PRIMITIVE_REMAINDER] = {"rem", 0, 1},
    [PRIMITIVE_QUOTIENT] = {"trunc_div", 0, 1},
    [PRIMITIVE_AND] = {"bit_and", 0, 1},
    [PRIMITIVE_OR] = {"bit_or", 0, 1},
    [PRIMITIVE_XOR] = {"bit_xor", 0, 1},
    [PRIMITIVE_SHIFT_LEFT] = {"shift_left", 0, 1},
    [PRIMITIVE_SHIFT_RIGHT] = {"shift_right", 0, 1},
    [PRIMITIVE_THREEFRY] = {"random_bits", 0, 1},
};
static const char *const combine_rows[N_COMBINES] = {
    [COMBINE_ADD] = "sum",
    [COMBINE_MUL] = "prod",
    [COMBINE_MAX] = "reduce_max",
    [COMBINE_MIN] = "reduce_min",
};

/* The types that values have while they are computed. */
static const enum sol_dtype types[] = {SOL_F32, SOL_F64, SOL_I32, SOL_I64};

/* Values that every type rounds or cuts to its own. */
static const double edges[] = {0,       -0.0,  1,    -1,       0.5,       -2.5, 1e-45, -1e-45,
                               1.2e-38, 1e-4,  -0.7, 20,       -20,       88.8, -104,  16777216,
                               3.4e38,  -3e38, 3,    INFINITY, -INFINITY, NAN};
static const int64_t whole_edges[] = {
    0,         1,  -1, 2,  -2, 3,   7,   -8,  31,  32,  33,        63,        64,
    INT64_MIN, 65, 96, -7, 5,  100, 255, 256, 127, -95, INT64_MAX, INT32_MIN, INT32_MAX};
enum {
    N_EDGES = sizeof edges / sizeof *edges,
    N_POINTS = N_EDGES * N_EDGES,
    ROWS = 9,
    COLUMNS = 77,
    COPIES = 40
};

static struct arena arena;
static jmp_buf boundary;

/* ---- Kernels ---- */

struct test_kernel {
    struct dfp_kernel kernel;
    int n_in;
    const char *form;
    enum sol_dtype type;
    enum primitive primitive;
    enum combine combine;
};
static struct test_kernel kernels[4 * (2 * N_PRIMITIVES + 2 * N_COMBINES)];
static int n_kernels;

static void make_kernel(const char *layers, const struct test_kernel *like) {
    struct model *m;
    struct test_kernel *k = &kernels[n_kernels++];
    struct cluster *c = ARENA_NEW(&arena, struct cluster);
    REQUIRE(n_kernels <= COUNT(kernels));
    *k = *like;
    if (ir_parse(arena_printf(&arena, "model \"t\" {\n%s}\n", layers), &arena, &m))
        fprintf(stderr, "%s%s\n", layers, sol_error());
    REQUIRE(m);
    struct storage *views = ARENA_ARRAY(&arena, struct storage, m->n_tensors);
    for (int i = 0; i < m->layers.n; i++) {
        struct tensor *t = m->layers.at[i]->out[0];
        struct size step = size_const(1);
        for (int d = t->rank - 1; d >= 0; step = size_mul(step, t->dim[d--]))
            views[t->id].stride[d] = step;
        if (t->producer->kind == LAYER_input) VEC_PUSH(&arena, &c->inputs, t);
        else VEC_PUSH(&arena, &c->layers, t->producer);
        if (i == m->layers.n - 1) VEC_PUSH(&arena, &c->outputs, t);
    }
    const struct device_caps caps = compiled_caps(LANES);
    REQUIRE(!dfp_generate(&arena, c, views, &caps, &k->kernel));
}

static void run_kernel(const struct test_kernel *k, kernel_function *function, void *const *in,
                       void *out) {
    void *ptr[4] = {in[0], in[1], in[2]};
    int64_t arg[64];
    ptr[k->n_in] = out;
    REQUIRE(k->kernel.n_arg <= COUNT(arg));
    for (int i = 0; i < k->kernel.n_arg; i++) arg[i] = size_value(k->kernel.arg[i]);
    char *scratch = aligned_alloc(64, k->kernel.scratch_size / 64 * 64 + 64);
    int64_t tasks = size_value(k->kernel.tasks);
    if (function) function(ptr, arg, scratch, 0, tasks);
    else dfp_interpret(k->kernel.code, ptr, arg, scratch, 0, tasks);
    free(scratch);
}

/* Reports count `flops` for each point, or up to 4 times as many, as the last chunk of points counts as a full one. */
static void check_flops(const struct dfp_kernel *k, double flops, int points) {
    double all = k->flops_per_task * (double)size_value(k->tasks);
    CHECK(all >= flops * points && all <= 4 * flops * points);
}

/* A value of a float type, or of an integer type. */
struct number {
    double real;
    int64_t whole;
};

static bool is_float(enum sol_dtype type) { return size_family(type) == FAMILY_FLOAT; }

static struct number read_value(enum sol_dtype type, const void *array, int64_t i) {
    if (is_float(type)) return (struct number){.real = ref_get_real(type, array, i)};
    return (struct number){.whole = ref_get_whole(type, array, i)};
}

static void write_value(enum sol_dtype type, void *array, int64_t i, struct number v) {
    if (is_float(type)) ref_put_real(type, array, i, v.real);
    else ref_put_whole(type, array, i, v.whole);
}

/* ---- Primitives ---- */

/* The layer's rule refuses types for which the primitive has no meaning. QUOTIENT is of integers: of floats, trunc_div is no primitive. */
static bool has_meaning(enum primitive p, enum sol_dtype type) {
    struct tensor in = {.dtype = type}, condition = {.dtype = SOL_BOOL}, out, *results[1] = {&out},
                  *list[3] = {&in, &in, &in};
    struct layer layer = {
        .kind = ir_find_kind(primitive_rows[p].layer), .in = list, .out = results};
    layer.n_in = primitives[p].n_args;
    if (p == PRIMITIVE_SELECT) list[0] = &condition;
    return !layer_infos[layer.kind].types(&layer) && !(p == PRIMITIVE_QUOTIENT && is_float(type));
}

/* Operand a, b or c (0, 1, 2) of point i: a and b are every pair of edge values, c varies. The type rounds or wraps it. */
static struct number operand(enum sol_dtype type, int which, int i) {
    uint64_t element;
    int at = which == 0 ? i % N_EDGES : which == 1 ? i / N_EDGES : (i + i / N_EDGES + 1) % N_EDGES;
    write_value(type, &element, 0, (struct number){edges[at], whole_edges[at]});
    return read_value(type, &element, 0);
}

static enum sol_dtype type_of_operand(enum primitive p, enum sol_dtype type, int which) {
    return p == PRIMITIVE_SELECT && which == 0 ? SOL_BOOL : type;
}
static enum sol_dtype type_of_result(enum primitive p, enum sol_dtype type) {
    return primitives[p].traits & COMPARES ? SOL_BOOL : type;
}

static struct number meaning(enum primitive p, enum sol_dtype type, int i) {
    struct number a = operand(type_of_operand(p, type, 0), 0, i), b = operand(type, 1, i),
                  c = operand(type, 2, i);
    if (p == PRIMITIVE_SELECT) return a.whole ? b : c;
    if (!is_float(type))
        return (struct number){
            .whole = meaning_of_integers(p, type_of_result(p, type), a.whole, b.whole, c.whole)};
    double real = meaning_of_primitive(p, a.real, b.real, c.real);
    return (struct number){real, real != 0};
}

/* MAX and MIN of two zeros may have either sign. An approximation such as tanh may lose the sign of a zero. */
static bool agrees_f32(enum primitive p, double is, double should, double ulps) {
    bool any_zero = p == PRIMITIVE_MAX || p == PRIMITIVE_MIN || (ulps > 0 && should == 0);
    bool same_sign = isnan(is) || any_zero || !signbit(is) == !signbit(should);
    return same_sign && meaning_ulps((float)is, should) <= ulps;
}

/* Functions of doubles are the C library's, here and in kernels. */
static bool agrees(enum primitive p, enum sol_dtype type, struct number is, struct number should,
                   double ulps) {
    if (type == SOL_F32) return agrees_f32(p, is.real, should.real, ulps);
    if (!is_float(type)) return is.whole == should.whole;
    double allowed = ulps > 0 ? 4e-16 * fabs(should.real) : 0;
    if (isnan(should.real)) return isnan(is.real);
    return is.real == should.real || fabs(is.real - should.real) <= allowed;
}

/* `is` holds the results of all points, in the type that the primitive gives for operands of type `type`. */
static void compare_points(enum primitive p, enum sol_dtype type, const char *how, const void *is,
                           double ulps) {
    int wrong = 0;
    enum sol_dtype result = type_of_result(p, type);
    for (int i = 0; i < N_POINTS; i++) {
        struct number v = read_value(result, is, i), should = meaning(p, type, i);
        if (agrees(p, result, v, should, ulps) || wrong++) continue;
        struct number a = operand(type, 0, i), b = operand(type, 1, i);
        fprintf(
            stderr, "%s of %s, %s: of %g or %lld, %g or %lld it is %g or %lld, not %g or %lld\n",
            primitives[p].name, size_dtype_name(type), how, a.real, (long long)a.whole, b.real,
            (long long)b.whole, v.real, (long long)v.whole, should.real, (long long)should.whole);
    }
    CHECK(wrong == 0);
}

static double as_double(enum sol_dtype type, struct number v) {
    return is_float(type) ? v.real : (double)v.whole;
}

/* Floats are folded always, integers where all numbers are small. */
static void test_folded(enum primitive p, enum sol_dtype type) {
    struct nest *nest = ARENA_NEW(&arena, struct nest);
    nest->arena = &arena;
    int n_folded = 0;
    for (int i = 0; i < N_POINTS; i++) {
        struct node *arg[3] = {NULL};
        for (int k = 0; k < primitives[p].n_args; k++) {
            enum sol_dtype of = type_of_operand(p, type, k);
            arg[k] = node_const(nest, reg_of(of), as_double(of, operand(of, k, i)));
        }
        struct node *n = node_apply(nest, p, arg[0], arg[1], arg[2]);
        struct number should = meaning(p, type, i);
        enum sol_dtype result = type_of_result(p, type);
        if (is_float(type)) REQUIRE(n->kind == NODE_CONST);
        if (n->kind != NODE_CONST) continue;
        n_folded++;
        struct number is = {n->value, is_float(result) ? 0 : (int64_t)n->value};
        if (!CHECK(agrees(p, result, is, should, 0)))
            fprintf(stderr, "%s of %s, folded: %g, not %g\n", primitives[p].name,
                    size_dtype_name(type), n->value, as_double(result, should));
    }
    CHECK(n_folded > N_POINTS / 4 || p == PRIMITIVE_THREEFRY); /* its results are seldom small */
}

/* The text calls NAME, or NAME1 if the operands are the same for all lanes, with the suffix of the operands' type. */
static void check_text(const struct test_kernel *k, const char *text) {
    const struct primitive_info *info = &primitives[k->primitive];
    bool is_operator = info->symbol && is_float(k->type), is_vector = !strcmp(k->form, "vector");
    char call[64];
    if (is_operator) snprintf(call, sizeof call, " %s v", info->symbol);
    else
        snprintf(call, sizeof call, "= %s%s%s(v", info->name, is_vector ? "" : "1",
                 reg_suffix(reg_of(k->type)));
    if (!CHECK(strstr(text, call))) fprintf(stderr, "no \"%s\" in\n%s", call, text);
}

/* A kernel with the primitive on vectors of points or on single values. For single values, each operand is every second element of an
 * input, and the result is copied COPIES times, so the loop over the copies runs over lanes. */
static void make_primitive(enum primitive p, enum sol_dtype type, bool is_vector) {
    int n = primitives[p].n_args;
    struct test_kernel k = {
        .n_in = n, .primitive = p, .type = type, .form = is_vector ? "vector" : "single value"};
    struct text text;
    text_init(&text, &arena);
    for (int i = 0; i < n; i++)
        text_add(&text, "%%%d = input %s[%d,%d] \"x\"\n", i,
                 size_dtype_name(type_of_operand(p, type, i)), N_POINTS, is_vector ? 1 : 2);
    for (int i = 0; i < n && !is_vector; i++)
        text_add(&text, "%%%d = slice %%%d axis=1 shape=[1]\n", n + i, i);
    int first = is_vector ? 0 : n, last = first + n;
    text_add(&text, "%%%d = %s", last, primitive_rows[p].layer);
    for (int i = 0; i < n; i++) text_add(&text, " %%%d", first + i);
    if (!is_vector)
        text_add(&text, "\n%%%d = expand %%%d shape=[%d,%d]", last + 1, last, N_POINTS, COPIES);
    text_add(&text, "\n");
    make_kernel(text.at, &k);
    check_text(&k, kernels[n_kernels - 1].kernel.text);
    check_flops(&kernels[n_kernels - 1].kernel, primitive_rows[p].flops, N_POINTS);
}

static void test_compiled(const struct test_kernel *k, kernel_function *function) {
    static int64_t in[3][2 * N_POINTS], out[N_POINTS * COPIES], is[N_POINTS];
    bool is_vector = !strcmp(k->form, "vector");
    enum sol_dtype result = type_of_result(k->primitive, k->type);
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < N_POINTS; i++) {
            enum sol_dtype of = type_of_operand(k->primitive, k->type, which);
            write_value(of, in[which], is_vector ? i : 2 * i, operand(of, which, i));
        }
    for (int compiled = 0; compiled < 2; compiled++) {
        char how[64];
        snprintf(how, sizeof how, "%s of a %s", compiled ? "compiled" : "interpreted", k->form);
        run_kernel(k, compiled ? function : NULL, (void *[]){in[0], in[1], in[2]}, out);
        for (int i = 0; i < N_POINTS; i++)
            write_value(result, is, i,
                        read_value(result, out, is_vector ? i : i * COPIES + i % COPIES));
        compare_points(k->primitive, k->type, how, is, primitive_rows[k->primitive].ulps);
    }
}

/* Costs are estimates. But a primitive of floats is expensive (8 or more) exactly if it is an approximation or divides;
 * so are random bits. */
static void test_primitive(enum primitive p) {
    if (!primitive_rows[p].layer)
        fprintf(stderr, "%s has no row in primitive_rows\n", primitives[p].name);
    if (!CHECK(primitive_rows[p].layer)) return;
    bool is_long = p == PRIMITIVE_REMAINDER || p == PRIMITIVE_QUOTIENT || p == PRIMITIVE_THREEFRY;
    CHECK((primitives[p].cost >= 8) == (primitive_rows[p].ulps > 0 || is_long));
    CHECK(primitives[p].flops == primitive_rows[p].flops);
    for (int i = 0; i < COUNT(types); i++) {
        if (!has_meaning(p, types[i])) continue;
        test_folded(p, types[i]);
        make_primitive(p, types[i], true);
        make_primitive(p, types[i], false);
    }
}

/* ---- Combines ---- */

/* The facts in the combine's row of ir/primitive.def are true: its neutral element, and whether it is idempotent. */
static void test_algebra(enum combine combine) {
    const struct combine_info *info = &combines[combine];
    double (*value)(double, double, double) = primitives[info->primitive].value;
    bool idempotent = true;
    for (int i = 0; i < N_EDGES; i++) {
        double x = edges[i];
        CHECK(isnan(x) ? isnan(value(x, info->neutral, 0)) : value(x, info->neutral, 0) == x);
        CHECK(isnan(x) ? isnan(value(info->neutral, x, 0)) : value(info->neutral, x, 0) == x);
        idempotent &= isnan(x) || value(x, x, 0) == x;
    }
    CHECK(idempotent == info->is_idempotent);
}

/* Integers, so sums are exact in any order. Some rows and columns are all negative, all positive, or have special values. Products are
 * powers of 2, or 0. */
static struct number element(const struct test_kernel *k, int row, int column) {
    int x = (row * 31 + column * 17) % 23 - 11;
    int special = row == column ? row : -1;
    if (row == 1 || column == 1) x = -abs(x) - 1;
    if (row == 2 || column == 2) x = abs(x) + 1;
    if (k->combine == COMBINE_MUL) x = x % 5 ? 1 : row == 6 ? 0 : -2;
    double real = special == 3 ? NAN : special == 4 ? INFINITY : special == 5 ? -INFINITY : x;
    return (struct number){real, k->type == SOL_I64 ? x * ((int64_t)1 << 33 | 1) : x};
}

/* Along a row, the lanes of a vector are merged at the end. Along a column, each lane has its own result. */
static void make_combine(enum combine combine, enum sol_dtype type, bool along_row) {
    struct test_kernel k = {
        .n_in = 1, .combine = combine, .type = type, .form = along_row ? "row" : "column"};
    make_kernel(arena_printf(&arena, "%%0 = input %s[%d,%d] \"x\"\n%%1 = %s %%0 axes=[%d]\n",
                             size_dtype_name(type), ROWS, COLUMNS, combine_rows[combine],
                             along_row),
                &k);
    char call[64];
    snprintf(call, sizeof call, "%s_lanes%s(v", combines[combine].name, reg_suffix(reg_of(type)));
    CHECK(!strstr(kernels[n_kernels - 1].kernel.text, call) == !along_row);
    check_flops(&kernels[n_kernels - 1].kernel, 1, ROWS * COLUMNS);
}

/* The result for row, or column, number i. */
static struct number combine_all(const struct test_kernel *k, bool along_row, int i) {
    double nothing = meaning_of_nothing(k->combine);
    struct number all = {nothing, is_float(k->type) ? 0 : meaning_of_constant(k->type, nothing)};
    for (int x = 0; x < (along_row ? COLUMNS : ROWS); x++) {
        struct number v = along_row ? element(k, i, x) : element(k, x, i);
        all.real = meaning_of_combine(k->combine, all.real, v.real);
        all.whole = meaning_of_combined_integers(k->combine, k->type, all.whole, v.whole);
    }
    return all;
}

static void compare_results(const struct test_kernel *k, const char *how, const void *results) {
    bool along_row = !strcmp(k->form, "row");
    for (int i = 0; i < (along_row ? ROWS : COLUMNS); i++) {
        struct number is = read_value(k->type, results, i), should = combine_all(k, along_row, i);
        bool right = is_float(k->type)
                         ? is.real == should.real || (isnan(is.real) && isnan(should.real))
                         : is.whole == should.whole;
        if (!CHECK(right))
            fprintf(stderr, "%s of %s, of %s %d, %s: %g or %lld, not %g or %lld\n",
                    combines[k->combine].name, size_dtype_name(k->type), k->form, i, how, is.real,
                    (long long)is.whole, should.real, (long long)should.whole);
    }
}

static void test_reduction(const struct test_kernel *k, kernel_function *function) {
    static int64_t in[ROWS * COLUMNS], out[COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++)
        write_value(k->type, in, i, element(k, i / COLUMNS, i % COLUMNS));
    run_kernel(k, function, (void *[]){in, NULL, NULL}, out);
    compare_results(k, "compiled", out);
    run_kernel(k, NULL, (void *[]){in, NULL, NULL}, out);
    compare_results(k, "interpreted", out);
}

static void test_combine(enum combine combine) {
    if (!combine_rows[combine])
        fprintf(stderr, "%s has no row in combine_rows\n", combines[combine].name);
    if (!CHECK(combine_rows[combine])) return;
    test_algebra(combine);
    for (int i = 0; i < COUNT(types); i++) {
        make_combine(combine, types[i], true);
        make_combine(combine, types[i], false);
    }
}

/* ---- All of them ---- */

static void test_kernels(void) {
    struct text source;
    text_init(&source, &arena);
    for (int i = 0; i < n_kernels; i++) compiled_add(&source, i, kernels[i].kernel.text);
    void *handle = compiled_open(&source, LANES);
    for (int i = 0; i < n_kernels; i++) {
        const struct test_kernel *k = &kernels[i];
        kernel_function *function = compiled_find(handle, i);
        if (k->primitive) test_compiled(k, function);
        else test_reduction(k, function);
    }
    dlclose(handle);
}

int main(void) {
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    for (int p = PRIMITIVE_NONE + 1; p < N_PRIMITIVES; p++) test_primitive((enum primitive)p);
    for (int c = 0; c < N_COMBINES; c++) test_combine((enum combine)c);
    test_kernels();
    arena_fini(&arena);
    return check_done();
}
