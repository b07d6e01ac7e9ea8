/*
 * src/ir/define*.c and expr.c: layers as point expressions.
 *
 * A small interpreter evaluates the expression at every output point. device/ref, which shares
 * no code with it, computes the expected value. The interpreter also checks an assumption of
 * generated code: a load that is not `checked` never reads outside of its input.
 */
#include "check.h"
#include "device/ref/ref.h"
#include "meaning.h"
#include "one_layer.h"

#include <math.h>

#define MAX_INPUTS 5
#define MAX_VARS   16

static struct arena arena;
static const int64_t symbols[SIZE_SYMBOLS] = {2, 3, 1, 1};

/* ---- The interpreter ---- */

struct eval {
    const struct layer *layer;
    const float *in[MAX_INPUTS];
    int64_t var[MAX_VARS];
    int n_checked; /* checked loads that were evaluated */
    int n_outside; /* of these, loads outside of the input */
};

static int64_t eval_size(struct size size) { return size_eval(&size, symbols); }

static int64_t eval_index(const struct eval *e, const struct index *i) {
    if (i->op == INDEX_CONST) return eval_size(i->value);
    if (i->op == INDEX_VAR) return e->var[i->var];
    int64_t a = eval_index(e, i->a), b = eval_index(e, i->b);
    bool divides = i->op == INDEX_DIV || i->op == INDEX_MOD;
    if (divides && (b <= 0 || i->b->op != INDEX_CONST))
        REQUIRE(!"a divisor is a positive constant");
    return meaning_of_index(i->op, a, b);
}

static const float *find_data(const struct eval *e, const struct tensor *t) {
    for (int i = 0; i < e->layer->n_in; i++)
        if (e->layer->in[i] == t) return e->in[i];
    return NULL;
}

static double eval_load(struct eval *e, const struct expr *x) {
    const float *data = find_data(e, x->tensor);
    int64_t at = 0;
    bool inside = true;
    if (!data || x->n_index != x->tensor->rank) REQUIRE(!"a load reads an input at a point");
    for (int i = 0; i < x->n_index; i++) {
        int64_t index = eval_index(e, x->index[i]), n = eval_size(x->tensor->dim[i]);
        inside &= index >= 0 && index < n;
        at = at * n + index;
    }
    e->n_checked += x->checked;
    e->n_outside += !inside;
    if (!x->checked && !inside) REQUIRE(!"a load without check stays inside");
    return inside ? data[at] : x->fill;
}

static double eval_expr(struct eval *e, const struct expr *x);

/* Merges the body's values at all points of variables k, k+1, .. of the reduction into `sum`. */
static double eval_reduce(struct eval *e, const struct expr *x, int k, double sum) {
    if (k == x->n_vars) return meaning_of_combine(x->combine, sum, eval_expr(e, x->arg[0]));
    int var = x->first_var + k;
    if (var >= MAX_VARS) REQUIRE(!"few variables");
    for (e->var[var] = 0; e->var[var] < eval_size(x->extent[k]); e->var[var]++)
        sum = eval_reduce(e, x, k + 1, sum);
    return sum;
}

static double eval_expr(struct eval *e, const struct expr *x) {
    double arg[3] = {0};
    int64_t at;
    switch (x->kind) {
    case EXPR_CONST: return x->value;
    case EXPR_LOAD: return eval_load(e, x);
    case EXPR_REDUCE: return eval_reduce(e, x, 0, meaning_of_nothing(x->combine));
    case EXPR_RANGE: at = eval_index(e, x->index[0]); return at >= size_value(x->low) && at < size_value(x->high);
    case EXPR_APPLY:
        for (int i = 0; i < 3 && x->arg[i]; i++) arg[i] = eval_expr(e, x->arg[i]);
        return meaning_of_primitive(x->primitive, arg[0], arg[1], arg[2]);
    }
    REQUIRE(!"a kind of expression");
    return 0;
}

/* ---- Comparing with device/ref ---- */

/* Expected loads. NEVER: no load is checked. ALWAYS: at least one load is outside of its input,
 * otherwise the case tests nothing. EITHER: loads are checked for safety, but are always inside. */
enum checks { NEVER, ALWAYS, EITHER };

struct row {
    const char *inputs, *layer;
    enum checks checks;
};

#define X "f32[$0,4,7,6]"
static const struct row rows[] = {
    {X " f32[6,4,3,3]", "conv", NEVER},
    {X " f32[6,4,3,3] f32[6]", "conv pad=[1,1,1,1]", ALWAYS},
    {X " f32[6,4,3,2]", "conv stride=[2,3] dilation=[2,1] pad=[2,0,1,1]", ALWAYS},
    {X " f32[6,2,3,3] f32[6]", "conv groups=2", NEVER},
    {X " f32[4,1,3,3]", "conv groups=4 stride=[2,2]", NEVER},
    {X " f32[8,1,1,1]", "conv groups=4", NEVER},
    {X " f32[6,4,1,1]", "conv pad=[0,0,1,1] stride=[2,2]", EITHER},
    {"f32[$0,3,5] f32[4,5] f32[4]", "linear", NEVER},
    {"f32[5] f32[4,5]", "linear", NEVER},
    {"f32[$0,3,5] f32[$0,5,4]", "matmul", NEVER},
    {"f32[3,1,2,5] f32[4,5,6]", "matmul", NEVER},
    {"f32[2,5] f32[3,5,1]", "matmul", NEVER},
    {X " f32[4] f32[4] f32[4] f32[4]", "batch_norm eps=0.5", NEVER},
    {X, "relu", NEVER},
    {X, "clamp min=-0.5 max=0.25", NEVER},
    {X, "clamp max=0.25", NEVER},
    {X, "leaky_relu alpha=0.2", NEVER},
    {X, "elu alpha=1.5", NEVER},
    {X, "sigmoid", NEVER},
    {X, "tanh", NEVER},
    {X, "gelu", NEVER},
    {X, "gelu_tanh", NEVER},
    {X, "silu", NEVER},
    {X, "hardsigmoid", NEVER},
    {X, "hardswish", NEVER},
    {X, "softplus", NEVER},
    {X, "mish", NEVER},
    {X, "exp", NEVER},
    {X, "log", NEVER},
    {X, "sqrt", NEVER},
    {X, "rsqrt", NEVER},
    {X, "abs", NEVER},
    {X, "neg", NEVER},
    {X, "square", NEVER},
    {X, "reciprocal", NEVER},
    {X, "erf", NEVER},
    {X, "copy", NEVER},
    {X " f32[4,1,1]", "add", NEVER},
    {"f32[6] " X, "sub", NEVER},
    {"f32[$0,1,3] f32[4,1]", "mul", NEVER},
    {X " f32[]", "div", NEVER},
    {X " " X, "maximum", NEVER},
    {"f32[1,1] f32[1]", "minimum", NEVER},
    {X " f32[4,1,1]", "less", NEVER},
    {"f32[3] f32[2,1]", "equal", NEVER},
    {"f32[6] " X " f32[4,1,1]", "where", NEVER},
    {X, "max_pool kernel=[2,2] stride=[2,2]", NEVER},
    {X, "max_pool kernel=[3,2] stride=[2,2] pad=[1,0,1,1] min=0.0", ALWAYS},
    {X, "max_pool kernel=[2,2] stride=[3,4] dilation=[2,1] ceil=true", ALWAYS},
    {"f32[1,1,1,1]", "max_pool kernel=[2,2] dilation=[2,2] pad=[1,1,1,1]", ALWAYS},
    {X, "avg_pool kernel=[3,3] stride=[2,2]", NEVER},
    {X, "avg_pool kernel=[3,3] stride=[2,3] pad=[1,1,1,1]", ALWAYS},
    {X, "avg_pool kernel=[3,3] stride=[2,3] pad=[1,1,1,1] count_pad=true", ALWAYS},
    {X, "avg_pool kernel=[3,2] stride=[3,4] pad=[1,0,1,1] ceil=true count_pad=true", ALWAYS},
    {X, "avg_pool kernel=[3,3] stride=[2,2] pad=[1,1,1,1] ceil=true count_pad=true", ALWAYS},
    {X, "avg_pool kernel=[2,4] stride=[2,3] pad=[0,2,1,1] ceil=true", ALWAYS},
    {"f32[1,2,1,1]", "avg_pool kernel=[2,2] stride=[2,2] ceil=true", ALWAYS},
    {X, "adaptive_avg_pool kernel=[1,1]", NEVER},
    {X, "adaptive_avg_pool kernel=[7,3]", NEVER},
    {X, "adaptive_avg_pool kernel=[3,4]", EITHER},
    {X, "adaptive_avg_pool kernel=[5,6]", EITHER},
    {X, "adaptive_avg_pool kernel=[10,13]", EITHER},
    {X, "sum", NEVER},
    {X, "sum axes=[1,3]", NEVER},
    {X, "mean axes=[-1,-2] keepdim=true", NEVER},
    {X, "mean axes=[0]", NEVER},
    {"f32[]", "mean", NEVER},
    {X, "reduce_max axes=[0,2]", NEVER},
    {X, "reduce_min keepdim=true", NEVER},
    {X, "reshape shape=[$0,-1]", NEVER},
    {X, "reshape shape=[8,-1]", NEVER},
    {"f32[4,1,6]", "reshape shape=[2,3,2,1,2]", NEVER},
    {"f32[1,1]", "reshape shape=[]", NEVER},
    {X, "permute axes=[2,0,3,1]", NEVER},
    {X, "slice axis=2 start=1 step=2 shape=[3]", NEVER},
    {X " f32[$0,1,7,6] " X, "concat axis=1", ALWAYS},
    {X, "concat axis=1", NEVER},
    {"f32[4,1,6]", "expand shape=[3,4,$0,6]", NEVER},
    {X, "pad pad=[1,2,0,3] value=-7.5", ALWAYS},
};

static int64_t count(const struct tensor *t) { return eval_size(ir_elements(t)); }

/* Values around zero, and each special value at some place. NaN only for a pointwise layer, where
 * it affects one output only. */
static float *fill(const struct layer *l, int input) {
    int64_t n = count(l->in[input]);
    float *data = ARENA_ARRAY(&arena, float, n);
    uint32_t state = 12345u + (uint32_t)input;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (float)(state >> 8) / (float)(1 << 22) - 2;
    }
    bool one = layer_infos[l->kind].traits & POINTWISE && layer_infos[l->kind].max_in == 1;
    static const float special[] = {0, -0.0f, 40, -40, INFINITY, -INFINITY, NAN};
    for (int i = 0; one && i < COUNT(special); i++) data[i] = special[i];
    if (l->kind == LAYER_batch_norm && input == 2)
        for (int64_t i = 0; i < n; i++) data[i] = fabsf(data[i]);
    return data;
}

static bool is_close(double is, double expected) {
    if (is != is || expected != expected) return is != is && expected != expected;
    return is == expected || fabs(is - expected) <= 1e-5 + 1e-5 * fabs(expected);
}

/* Moves to the next output point; the last dim changes fastest. */
static void step(struct eval *e, const struct tensor *out) {
    for (int d = out->rank - 1; d >= 0; d--) {
        if (++e->var[d] < eval_size(out->dim[d])) return;
        e->var[d] = 0;
    }
}

static bool compare(struct eval *e, const struct expr *x, const float *expected) {
    const struct tensor *out = e->layer->out[0];
    for (int64_t i = 0; i < count(out); i++, step(e, out)) {
        double is = eval_expr(e, x);
        if (is_close(is, expected[i])) continue;
        fprintf(stderr, "    at %lld: %.9g, expected %.9g\n", (long long)i, is, expected[i]);
        return false;
    }
    return true;
}

static bool check_loads(const struct eval *e, enum checks checks) {
    if (checks == NEVER) return !e->n_checked;
    return checks == ALWAYS ? e->n_outside > 0 : e->n_checked > 0;
}

static void test_row(const struct row *row) {
    struct model *m;
    const char *source = write_one_layer(&arena, row->inputs, row->layer);
    enum sol_status status = ir_parse(source, &arena, &m);
    if (status) fprintf(stderr, "    %s\n", sol_error());
    REQUIRE(!status);
    struct eval e = {.layer = m->layers.at[m->layers.n - 1]};
    for (int i = 0; i < e.layer->n_in; i++) e.in[i] = fill(e.layer, i);
    float *expected = ARENA_ARRAY(&arena, float, count(e.layer->out[0]));
    REQUIRE(!ref_layer(e.layer, symbols, e.in, expected));
    int n_vars;
    const struct expr *x = ir_define(&arena, e.layer, &n_vars);
    REQUIRE(x && n_vars >= e.layer->out[0]->rank && n_vars <= MAX_VARS);
    bool right = compare(&e, x, expected), loads = check_loads(&e, row->checks);
    CHECK(right);
    CHECK(loads);
    if (!right || !loads)
        fprintf(stderr, "    %s on %s: %d checked loads, %d outside\n", row->layer, row->inputs,
                e.n_checked, e.n_outside);
}

static void test_layers(void) {
    bool seen[N_LAYER_KINDS] = {[LAYER_input] = true,
                                [LAYER_param] = true,
                                [LAYER_scalar] = true,
                                [LAYER_gather] = true,
                                [LAYER_softmax] = true};
    for (int i = 0; i < COUNT(rows); i++) {
        test_row(&rows[i]);
        size_t size = strcspn(rows[i].layer, " ");
        seen[ir_find_kind(arena_printf(&arena, "%.*s", (int)size, rows[i].layer))] = true;
    }
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (!CHECK(seen[i])) fprintf(stderr, "    no row for %s\n", layer_infos[i].name);
}

/* ---- Constructors ---- */

static void test_folding(void) {
    struct arena *a = &arena;
    const struct index *x = index_var(a, 3), *five = index_const(a, 5),
                       *n = index_size(a, size_symbol(0));
    CHECK(index_add(a, x, index_const(a, 0)) == x && index_add(a, index_const(a, 0), x) == x);
    CHECK(index_mul(a, x, size_const(1)) == x && index_div(a, x, size_const(1)) == x);
    CHECK(size_is(index_mul(a, x, size_const(0))->value, 0));
    CHECK(size_is(index_mod(a, x, size_const(1))->value, 0));
    CHECK(size_is(index_add(a, five, index_const(a, -7))->value, -2));
    CHECK(size_is(index_div(a, index_const(a, -7), size_const(5))->value, -2));
    CHECK(size_is(index_mod(a, index_const(a, -7), size_const(5))->value, 3));
    CHECK(size_equal(index_mul(a, n, size_const(4))->value, size_scale(size_symbol(0), 4)));
    CHECK(index_div(a, n, size_const(4))->op == INDEX_DIV);
    CHECK(index_mod(a, five, size_symbol(0))->op == INDEX_MOD);
}

/* Defining a window takes no time in proportion to its size, and padding by 0 needs no checks. */
static void test_cheap(void) {
    static const struct row none = {X, "pad", NEVER};
    test_row(&none);
    struct model *m;
    int n_vars;
    const char *source =
        write_one_layer(&arena, "f32[1,1,8,8]", "adaptive_avg_pool kernel=[2147483647,3]");
    REQUIRE(!ir_parse(source, &arena, &m));
    CHECK(ir_define(&arena, m->layers.at[1], &n_vars));
}

/* Sources and softmax, which passes replace, have no expression. */
static void test_without(void) {
    static const char text[] = "model \"m\" {\n%0 = input f32[3] \"x\"\n%1 = scalar value=2.5\n"
                               "%2 = softmax %0\n}\n";
    struct model *m;
    int n_vars;
    REQUIRE(!ir_parse(text, &arena, &m));
    CHECK(!ir_define(&arena, m->layers.at[0], &n_vars));
    CHECK(!ir_define(&arena, m->layers.at[2], &n_vars));
    const struct expr *e = ir_define(&arena, m->layers.at[1], &n_vars);
    CHECK(e && e->kind == EXPR_CONST && e->value == 2.5 && n_vars == 0);
}

int main(void) {
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) {
        CHECK(!"out of memory");
    } else {
        test_layers();
        test_folding();
        test_without();
        test_cheap();
    }
    arena_fini(&arena);
    return check_done();
}
