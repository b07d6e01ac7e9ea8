/*
 * Conformance of each primitive and each combine of ir/primitive.def with the formulas of meaning.h: folded from constants,
 * interpreted, and compiled, for floats and for vectors.
 *
 * The tests walk the lists. So a row that has no layer in the tables below fails, and its name is printed.
 */
#include "compiled.h"
#include "dfp/nest.h"
#include "meaning.h"

#define LANES 8

/* A layer that applies only this primitive to its inputs; the largest allowed error, in units in the last place; its flops. */
static const struct {
    const char *layer;
    double ulps;
    double flops;
} primitive_rows[N_PRIMITIVES] = {
    [PRIMITIVE_ADD] = {"add", 0, 1},     [PRIMITIVE_SUB] = {"sub", 0, 1},
    [PRIMITIVE_MUL] = {"mul", 0, 1},     [PRIMITIVE_DIV] = {"div", 0, 1},
    [PRIMITIVE_MAX] = {"maximum", 0, 1}, [PRIMITIVE_MIN] = {"minimum", 0, 1},
    [PRIMITIVE_NEG] = {"neg", 0, 1},     [PRIMITIVE_ABS] = {"abs", 0, 1},
    [PRIMITIVE_SQRT] = {"sqrt", 0, 1},   [PRIMITIVE_EXP] = {"exp", 4, 1},
    [PRIMITIVE_LOG] = {"log", 4, 1},     [PRIMITIVE_TANH] = {"tanh", 4, 1},
    [PRIMITIVE_ERF] = {"erf", 4, 1},     [PRIMITIVE_LESS] = {"less", 0, 0},
    [PRIMITIVE_EQUAL] = {"equal", 0, 0}, [PRIMITIVE_SELECT] = {"where", 0, 0},
};
static const char *const combine_rows[N_COMBINES] = {
    [COMBINE_ADD] = "sum",
    [COMBINE_MAX] = "reduce_max",
    [COMBINE_MIN] = "reduce_min",
};

static const float edges[] = {0,        -0.0f,  1,     -1,       0.5f,      -2.5f, 1e-45f, -1e-45f,
                              1.2e-38f, 1e-4f,  -0.7f, 20,       -20,       88.8f, -104,   16777216,
                              3.4e38f,  -3e38f, 3,     INFINITY, -INFINITY, NAN};
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
    enum primitive primitive;
    enum combine combine;
};
static struct test_kernel kernels[4 * N_PRIMITIVES + 4 * N_COMBINES];
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
    REQUIRE(!dfp_generate(&arena, c, views, LANES, &k->kernel));
}

static void run_kernel(const struct test_kernel *k, kernel_function *function, float *const *in,
                       float *out) {
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

/* ---- Primitives ---- */

/* Operand a, b or c (0, 1, 2) of point i: a and b are every pair of edge values, c varies. */
static float operand(int which, int i) {
    return edges[which == 0   ? i % N_EDGES
                 : which == 1 ? i / N_EDGES
                              : (i + i / N_EDGES + 1) % N_EDGES];
}

/* MAX and MIN of two zeros may have either sign. An approximation such as tanh may lose the sign of a zero. */
static bool agrees(enum primitive p, float is, double should, double ulps) {
    bool any_zero = p == PRIMITIVE_MAX || p == PRIMITIVE_MIN || (ulps > 0 && should == 0);
    bool same_sign = isnan(is) || any_zero || !signbit(is) == !signbit(should);
    return same_sign && meaning_ulps(is, should) <= ulps;
}

static void compare_points(enum primitive p, const char *how, const float *is, double ulps) {
    int wrong = 0;
    for (int i = 0; i < N_POINTS; i++) {
        double a = (double)operand(0, i), b = (double)operand(1, i), c = (double)operand(2, i);
        double should = meaning_of_primitive(p, a, b, c);
        if (!agrees(p, is[i], should, ulps) && !wrong++)
            fprintf(stderr, "%s, %s: of %g, %g, %g it is %g, not %g\n", primitives[p].name, how, a,
                    b, c, (double)is[i], should);
    }
    CHECK(wrong == 0);
}

static void test_folded(enum primitive p) {
    float is[N_POINTS];
    for (int i = 0; i < N_POINTS; i++)
        is[i] = (float)primitives[p].value((double)operand(0, i), (double)operand(1, i),
                                           (double)operand(2, i));
    compare_points(p, "the row's value", is, 0);
    struct nest *nest = ARENA_NEW(&arena, struct nest);
    nest->arena = &arena;
    for (int i = 0; i < N_POINTS; i++) {
        struct node *arg[3] = {NULL};
        for (int k = 0; k < primitives[p].n_args; k++)
            arg[k] = node_const(nest, (double)operand(k, i));
        struct node *n = node_apply(nest, p, arg[0], arg[1], arg[2]);
        REQUIRE(n->kind == NODE_CONST);
        is[i] = (float)n->value;
    }
    compare_points(p, "folded", is, 0);
}

/* The text calls NAME, or NAME1 if the operands are the same for all lanes. */
static void check_text(enum primitive p, const char *text, bool is_vector) {
    const struct primitive_info *info = &primitives[p];
    char call[64];
    if (info->symbol) snprintf(call, sizeof call, " %s v", info->symbol);
    else snprintf(call, sizeof call, "= %s%s(v", info->name, is_vector ? "" : "1");
    if (!CHECK(strstr(text, call))) fprintf(stderr, "no \"%s\" in\n%s", call, text);
}

/* A kernel with the primitive on vectors of points or on floats. For floats, each operand is every second element of an input, and the
 * result is copied COPIES times, so the loop over the copies runs over lanes. */
static void make_primitive(enum primitive p, bool is_vector) {
    int n = primitives[p].n_args;
    struct test_kernel k = {.n_in = n, .primitive = p, .form = is_vector ? "vector" : "float"};
    struct text text;
    text_init(&text, &arena);
    for (int i = 0; i < n; i++)
        text_add(&text, "%%%d = input f32[%d,%d] \"x\"\n", i, N_POINTS, is_vector ? 1 : 2);
    for (int i = 0; i < n && !is_vector; i++)
        text_add(&text, "%%%d = slice %%%d axis=1 shape=[1]\n", n + i, i);
    int first = is_vector ? 0 : n, last = first + n;
    text_add(&text, "%%%d = %s", last, primitive_rows[p].layer);
    for (int i = 0; i < n; i++) text_add(&text, " %%%d", first + i);
    if (!is_vector)
        text_add(&text, "\n%%%d = expand %%%d shape=[%d,%d]", last + 1, last, N_POINTS, COPIES);
    text_add(&text, "\n");
    make_kernel(text.at, &k);
    check_text(p, kernels[n_kernels - 1].kernel.text, is_vector);
    check_flops(&kernels[n_kernels - 1].kernel, primitive_rows[p].flops, N_POINTS);
}

static void test_compiled(const struct test_kernel *k, kernel_function *function) {
    static float in[3][2 * N_POINTS], out[N_POINTS * COPIES], is[N_POINTS];
    bool is_vector = !strcmp(k->form, "vector");
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < N_POINTS; i++) in[which][is_vector ? i : 2 * i] = operand(which, i);
    for (int compiled = 0; compiled < 2; compiled++) {
        char how[64];
        snprintf(how, sizeof how, "%s of a %s", compiled ? "compiled" : "interpreted", k->form);
        run_kernel(k, compiled ? function : NULL, (float *[]){in[0], in[1], in[2]}, out);
        for (int i = 0; i < N_POINTS; i++) is[i] = out[is_vector ? i : i * COPIES + i % COPIES];
        compare_points(k->primitive, how, is, primitive_rows[k->primitive].ulps);
    }
}

/* Costs are estimates. But a primitive is expensive (8 or more) exactly if it is an approximation. */
static void test_primitive(enum primitive p) {
    if (!primitive_rows[p].layer)
        fprintf(stderr, "%s has no row in primitive_rows\n", primitives[p].name);
    if (!CHECK(primitive_rows[p].layer)) return;
    CHECK((primitives[p].cost >= 8) == (primitive_rows[p].ulps > 0));
    CHECK(primitives[p].flops == primitive_rows[p].flops);
    test_folded(p);
    make_primitive(p, true);
    make_primitive(p, false);
}

/* ---- Combines ---- */

/* The facts in the combine's row of ir/primitive.def are true: its neutral element, and whether it is idempotent. */
static void test_algebra(enum combine combine) {
    const struct combine_info *info = &combines[combine];
    double (*value)(double, double, double) = primitives[info->primitive].value;
    bool idempotent = true;
    for (int i = 0; i < N_EDGES; i++) {
        double x = (double)edges[i];
        CHECK(isnan(x) ? isnan(value(x, info->neutral, 0)) : value(x, info->neutral, 0) == x);
        CHECK(isnan(x) ? isnan(value(info->neutral, x, 0)) : value(info->neutral, x, 0) == x);
        idempotent &= isnan(x) || value(x, x, 0) == x;
    }
    CHECK(idempotent == info->is_idempotent);
}

/* Integers, so sums are exact in any order. Some rows and columns are all negative, all positive, or have special values. */
static float element(int row, int column) {
    int x = (row * 31 + column * 17) % 23 - 11;
    int special = row == column ? row : -1;
    if (row == 1 || column == 1) x = -abs(x) - 1;
    if (row == 2 || column == 2) x = abs(x) + 1;
    return special == 3 ? NAN : special == 4 ? INFINITY : special == 5 ? -INFINITY : (float)x;
}

/* Along a row, the lanes of a vector are merged at the end. Along a column, each lane has its own result. */
static void make_combine(enum combine combine, bool along_row) {
    struct test_kernel k = {.n_in = 1, .combine = combine, .form = along_row ? "row" : "column"};
    make_kernel(arena_printf(&arena, "%%0 = input f32[%d,%d] \"x\"\n%%1 = %s %%0 axes=[%d]\n", ROWS,
                             COLUMNS, combine_rows[combine], along_row),
                &k);
    char call[64];
    snprintf(call, sizeof call, "%s_lanes(v", combines[combine].name);
    CHECK(!strstr(kernels[n_kernels - 1].kernel.text, call) == !along_row);
    check_flops(&kernels[n_kernels - 1].kernel, 1, ROWS * COLUMNS);
}

static void compare_results(const struct test_kernel *k, const char *how, const float *is) {
    bool along_row = !strcmp(k->form, "row");
    for (int i = 0; i < (along_row ? ROWS : COLUMNS); i++) {
        double should = meaning_of_nothing(k->combine);
        for (int x = 0; x < (along_row ? COLUMNS : ROWS); x++)
            should = meaning_of_combine(k->combine, should,
                                        (double)(along_row ? element(i, x) : element(x, i)));
        if (!CHECK(meaning_ulps(is[i], should) == 0))
            fprintf(stderr, "%s of %s %d, %s: %g, not %g\n", combines[k->combine].name, k->form, i,
                    how, (double)is[i], should);
    }
}

static void test_reduction(const struct test_kernel *k, kernel_function *function) {
    static float in[ROWS * COLUMNS], out[COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) in[i] = element(i / COLUMNS, i % COLUMNS);
    run_kernel(k, function, (float *[]){in, NULL, NULL}, out);
    compare_results(k, "compiled", out);
    run_kernel(k, NULL, (float *[]){in, NULL, NULL}, out);
    compare_results(k, "interpreted", out);
}

static void test_combine(enum combine combine) {
    if (!combine_rows[combine])
        fprintf(stderr, "%s has no row in combine_rows\n", combines[combine].name);
    if (!CHECK(combine_rows[combine])) return;
    test_algebra(combine);
    make_combine(combine, true);
    make_combine(combine, false);
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
