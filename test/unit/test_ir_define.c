/*
 * src/ir/define*.c and expr.c: layers as point expressions.
 *
 * A small interpreter evaluates the expression at every output point. device/ref, which shares
 * no code with it, computes the expected value. The interpreter also checks an assumption of
 * generated code: a load that is not `checked` never reads outside of its input.
 */
#include "check.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"
#include "meaning.h"
#include "one_layer.h"

#include <math.h>

#define MAX_INPUTS 6
#define MAX_VARS   16

static struct arena arena;
static const int64_t symbols[SIZE_SYMBOLS] = {2, 3, 1, 1};

/* ---- The interpreter ---- */

/* `real` of floats, which are not rounded to their type until the end; `whole` of integers and bools, which wrap at each step. */
struct value {
    double real;
    int64_t whole;
};

struct eval {
    const struct layer *layer;
    const void *in[MAX_INPUTS];
    int64_t var[MAX_VARS];
    int n_checked; /* checked loads that were evaluated */
    int n_outside; /* of these, loads outside of the input */
};

static bool is_float(enum sol_dtype type) { return size_family(type) == FAMILY_FLOAT; }

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

static const void *find_data(const struct eval *e, const struct tensor *t) {
    for (int i = 0; i < e->layer->n_in; i++)
        if (e->layer->in[i] == t) return e->in[i];
    return NULL;
}

static struct value read_value(enum sol_dtype type, const void *data, int64_t at) {
    if (is_float(type)) return (struct value){.real = ref_get_real(type, data, at)};
    return (struct value){.whole = ref_get_whole(type, data, at)};
}

static struct value make_constant(enum sol_dtype type, double value) {
    if (is_float(type)) return (struct value){.real = value};
    return (struct value){.whole = meaning_of_constant(type, value)};
}

/* A value of type `from` in type `to`. */
static struct value convert(enum sol_dtype from, enum sol_dtype to, struct value v) {
    uint64_t element[1];
    if (is_float(from)) ref_put_real(to, element, 0, v.real);
    else ref_put_whole(to, element, 0, v.whole);
    return read_value(to, element, 0);
}

static struct value eval_load(struct eval *e, const struct expr *x) {
    const void *data = find_data(e, x->tensor);
    int64_t at = 0;
    bool inside = true;
    if (!data || x->n_index != x->tensor->rank) REQUIRE(!"a load reads an input at a point");
    if (x->type != x->tensor->dtype) REQUIRE(!"a load has its tensor's type");
    for (int i = 0; i < x->n_index; i++) {
        int64_t index = eval_index(e, x->index[i]), n = eval_size(x->tensor->dim[i]);
        inside &= index >= 0 && index < n;
        at = at * n + index;
    }
    e->n_checked += x->checked;
    e->n_outside += !inside;
    if (!x->checked && !inside) REQUIRE(!"a load without check stays inside");
    return inside ? read_value(x->type, data, at) : make_constant(x->type, x->fill);
}

static struct value eval_expr(struct eval *e, const struct expr *x);

static struct value eval_combine(const struct expr *x, struct value a, struct value b) {
    if (is_float(x->type))
        return (struct value){.real = meaning_of_combine(x->combine, a.real, b.real)};
    return (struct value){.whole =
                              meaning_of_combined_integers(x->combine, x->type, a.whole, b.whole)};
}

/* Merges the body's values at all points of variables k, k+1, .. of the reduction into `sum`. */
static struct value eval_reduce(struct eval *e, const struct expr *x, int k, struct value sum) {
    if (k == x->n_vars) return eval_combine(x, sum, eval_expr(e, x->arg[0]));
    int var = x->first_var + k;
    if (var >= MAX_VARS) REQUIRE(!"few variables");
    for (e->var[var] = 0; e->var[var] < eval_size(x->extent[k]); e->var[var]++)
        sum = eval_reduce(e, x, k + 1, sum);
    return sum;
}

static struct value eval_apply(struct eval *e, const struct expr *x) {
    struct value v[3] = {{0}};
    for (int i = 0; i < 3 && x->arg[i]; i++) v[i] = eval_expr(e, x->arg[i]);
    if (x->primitive == PRIMITIVE_SELECT) return v[0].whole ? v[1] : v[2];
    if (!is_float(x->arg[0]->type))
        return (struct value){.whole = meaning_of_integers(x->primitive, x->type, v[0].whole,
                                                           v[1].whole, v[2].whole)};
    double real = meaning_of_primitive(x->primitive, v[0].real, v[1].real, v[2].real);
    return is_float(x->type) ? (struct value){.real = real} : (struct value){.whole = real != 0};
}

static struct value eval_expr(struct eval *e, const struct expr *x) {
    int64_t at;
    switch (x->kind) {
    case EXPR_CONST: return make_constant(x->type, x->value);
    case EXPR_LOAD: return eval_load(e, x);
    case EXPR_REDUCE:
        return eval_reduce(e, x, 0, make_constant(x->type, meaning_of_nothing(x->combine)));
    case EXPR_RANGE:
        at = eval_index(e, x->index[0]);
        return (struct value){.whole = at >= size_value(x->low) && at < size_value(x->high)};
    case EXPR_INDEX: return (struct value){.whole = eval_index(e, x->index[0])};
    case EXPR_APPLY: return eval_apply(e, x);
    case EXPR_CAST: return convert(x->arg[0]->type, x->type, eval_expr(e, x->arg[0]));
    }
    REQUIRE(!"a kind of expression");
    return (struct value){0};
}

/* ---- Comparing with device/ref ---- */

/* Expected loads. NEVER: no load is checked. ALWAYS: at least one load is outside of its input,
 * otherwise the case tests nothing. EITHER: loads are checked for safety, but are always inside. */
enum checks { NEVER, ALWAYS, EITHER };

/* T is each type that the layer's rule allows. */
struct row {
    const char *inputs, *layer;
    enum checks checks;
};

#define X "T[$0,4,7,6]"
static const struct row rows[] = {
    {X " T[6,4,3,3]", "conv", NEVER},
    {X " T[6,4,3,3] T[6]", "conv pad=[1,1,1,1]", ALWAYS},
    {X " T[6,4,3,2]", "conv stride=[2,3] dilation=[2,1] pad=[2,0,1,1]", ALWAYS},
    {X " T[6,2,3,3] T[6]", "conv groups=2", NEVER},
    {X " T[4,1,3,3]", "conv groups=4 stride=[2,2]", NEVER},
    {X " T[8,1,1,1]", "conv groups=4", NEVER},
    {X " T[6,4,1,1]", "conv pad=[0,0,1,1] stride=[2,2]", EITHER},
    {"T[$0,4,5,6,7] T[6,4,3,3,2] T[6]", "conv depth=[2,1,1,0] pad=[1,0,1,1]", ALWAYS},
    {"T[$0,4,5,6,7] T[6,2,2,3,2]", "conv depth=[1,3,0,0] groups=2 stride=[2,1]", NEVER},
    {"T[$0,4,5,6,7] T[4,1,2,1,1]", "conv depth=[1,1,0,1] groups=4", ALWAYS},
    {X " T[$0,6,5,4]", "conv_weight shape=[6,4,3,3]", NEVER},
    {X " T[$0,6,7,6]", "conv_weight shape=[6,4,3,3] pad=[1,1,1,1]", ALWAYS},
    {X " T[$0,6,3,2]",
     "conv_weight shape=[6,2,3,2] groups=2 stride=[2,3] dilation=[2,1] pad=[2,0,1,1]", ALWAYS},
    {X " T[$0,8,3,2]", "conv_weight shape=[8,1,3,3] groups=4 stride=[2,2]", NEVER},
    {X " T[$0,4,4,6]", "conv_weight shape=[4,1,1,1] groups=4 pad=[0,0,1,0] stride=[2,1]", EITHER},
    {"T[$0,4,5,6,7] T[$0,6,3,6,6]", "conv_weight shape=[6,4,3,3,2] depth=[2,1,1,1] pad=[1,0,1,0]",
     ALWAYS},
    {"T[$0,4,5,6,7] T[$0,6,2,2,6]",
     "conv_weight shape=[6,2,2,3,2] depth=[1,3,0,0] groups=2 stride=[2,1]", NEVER},
    {"T[$0,3,5] T[4,5] T[4]", "linear", NEVER},
    {"T[5] T[4,5]", "linear", NEVER},
    {"u8[$0,4,7,6] i8[6,4,3,2] i32[1] f32[6] f32[6]", "quant_conv pad=[2,0,1,1] stride=[2,1]",
     ALWAYS},
    {"i8[$0,4,7,6] i8[6,2,3,3] i32[1] f32[6] f32[6]", "quant_conv groups=2 dilation=[2,1]", NEVER},
    {"u8[$0,3,5] i8[4,5] i32[1] f32[4] f32[4]", "quant_linear", NEVER},
    {"i8[5] i8[4,5] i32[1] f32[4] f32[4] f32[3]", "quant_linear dtype=i8", NEVER},
    {"T[$0,3,5] T[$0,5,4]", "matmul", NEVER},
    {"T[3,1,2,5] T[4,5,6]", "matmul", NEVER},
    {"T[2,5] T[3,5,1]", "matmul", NEVER},
    {X " T[4] T[4] T[4] T[4]", "batch_norm eps=0.5", NEVER},
    {X, "relu", NEVER},
    {"f32[5,7]", "clamp min=-0.5 max=0.25", NEVER},
    {X, "clamp min=1.0 max=2.0", NEVER},
    {X, "clamp max=1.0", NEVER},
    {X, "leaky_relu alpha=0.2", NEVER},
    {X, "elu alpha=1.5", NEVER},
    {X, "elu alpha=1.5 scale=0.5 input_scale=2.0", NEVER},
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
    {X, "stop", NEVER},
    {X, "neg", NEVER},
    {X, "square", NEVER},
    {X, "reciprocal", NEVER},
    {X, "erf", NEVER},
    {X, "softsign", NEVER},
    {X, "sin", NEVER},
    {X, "cos", NEVER},
    {X, "tan", NEVER},
    {X, "asin", NEVER},
    {X, "acos", NEVER},
    {X, "atan", NEVER},
    {X, "sinh", NEVER},
    {X, "cosh", NEVER},
    {X, "asinh", NEVER},
    {X, "acosh", NEVER},
    {X, "atanh", NEVER},
    {X, "floor", NEVER},
    {X, "ceil", NEVER},
    {X, "trunc", NEVER},
    {X, "round", NEVER},
    {X, "sign", NEVER},
    {X, "bit_not", NEVER},
    {X, "cast dtype=f32", NEVER},
    {X, "cast dtype=f64", NEVER},
    {X, "cast dtype=bf16", NEVER},
    {X, "cast dtype=f16", NEVER},
    {X, "cast dtype=i64", NEVER},
    {X, "cast dtype=i32", NEVER},
    {X, "cast dtype=i16", NEVER},
    {X, "cast dtype=i8", NEVER},
    {X, "cast dtype=u8", NEVER},
    {X, "cast dtype=bool", NEVER},
    {X, "copy", NEVER},
    {X " T[4,1,1]", "add", NEVER},
    {"T[6] " X, "sub", NEVER},
    {"T[$0,1,3] T[4,1]", "mul", NEVER},
    {X " T[]", "div", NEVER},
    {X " " X, "maximum", NEVER},
    {"T[1,1] T[1]", "minimum", NEVER},
    {X " " X, "pow", NEVER},
    {X " " X, "floor_div", NEVER},
    {X " " X, "mod", NEVER},
    {X " " X, "trunc_div", NEVER},
    {X " " X, "rem", NEVER},
    {X " " X, "bit_and", NEVER},
    {X " " X, "bit_or", NEVER},
    {X " " X, "bit_xor", NEVER},
    {X " " X, "shift_left", NEVER},
    {X " " X, "shift_right", NEVER},
    {X " T[4,1,1]", "less", NEVER},
    {X " T[4,1,1]", "less_equal", NEVER},
    {"T[3] T[2,1]", "equal", NEVER},
    {X " T[4,1,1]", "prelu", NEVER},
    {"bool[6] " X " T[4,1,1]", "where", NEVER},
    {X, "max_pool kernel=[2,2] stride=[2,2]", NEVER},
    {X, "max_pool kernel=[3,2] stride=[2,2] pad=[1,0,1,1] min=0.0", ALWAYS},
    {X, "max_pool kernel=[2,2] stride=[3,4] dilation=[2,1] ceil=true", ALWAYS},
    {"T[1,1,1,1]", "max_pool kernel=[2,2] dilation=[2,2] pad=[1,1,1,1]", ALWAYS},
    {X, "max_pool_index kernel=[2,2] stride=[2,2]", NEVER},
    {X, "max_pool_index kernel=[3,2] stride=[2,2] pad=[1,0,1,1]", ALWAYS},
    {X, "max_pool_index kernel=[2,2] stride=[3,4] dilation=[2,1] ceil=true", ALWAYS},
    {"T[1,1,1,1]", "max_pool_index kernel=[2,2] dilation=[2,2] pad=[1,1,1,1]", ALWAYS},
    {"T[$0,4,2,2] i32[$0,4,2,2]", "max_pool_grad kernel=[2,3] stride=[2,3] shape=[$0,4,4,6]",
     NEVER},
    {"T[$0,4,2,3] i32[$0,4,2,3]",
     "max_pool_grad kernel=[3,2] stride=[2,2] pad=[1,0,1,1] shape=[$0,4,4,5]", ALWAYS},
    {"T[$0,4,3,2] i32[$0,4,3,2]",
     "max_pool_grad kernel=[2,3] stride=[3,1] dilation=[2,2] ceil=true shape=[$0,4,9,6]", ALWAYS},
    {X, "avg_pool kernel=[3,3] stride=[2,2]", NEVER},
    {X, "avg_pool kernel=[3,3] stride=[2,3] pad=[1,1,1,1]", ALWAYS},
    {X, "avg_pool kernel=[3,3] stride=[2,3] pad=[1,1,1,1] count_pad=true", ALWAYS},
    {X, "avg_pool kernel=[3,2] stride=[3,4] pad=[1,0,1,1] ceil=true count_pad=true", ALWAYS},
    {X, "avg_pool kernel=[3,3] stride=[2,2] pad=[1,1,1,1] ceil=true count_pad=true", ALWAYS},
    {X, "avg_pool kernel=[2,4] stride=[2,3] pad=[0,2,1,1] ceil=true", ALWAYS},
    {"T[1,2,1,1]", "avg_pool kernel=[2,2] stride=[2,2] ceil=true", ALWAYS},
    {X, "adaptive_avg_pool kernel=[1,1]", NEVER},
    {X, "adaptive_avg_pool kernel=[7,3]", NEVER},
    {X, "adaptive_avg_pool kernel=[3,4]", EITHER},
    {X, "adaptive_avg_pool kernel=[5,6]", EITHER},
    {X, "adaptive_avg_pool kernel=[10,13]", EITHER},
    {X, "sum", NEVER},
    {X, "sum axes=[1,3]", NEVER},
    {X, "mean axes=[-1,-2] keepdim=true", NEVER},
    {X, "mean axes=[0]", NEVER},
    {"T[]", "mean", NEVER},
    {X, "reduce_max axes=[0,2]", NEVER},
    {X, "reduce_min keepdim=true", NEVER},
    {X, "prod axes=[1,3]", NEVER},
    {"T[4,0]", "prod", NEVER},
    {X, "cumsum axis=2", NEVER},
    {"T[$0]", "cumsum axis=-1", NEVER},
    {"", "arange start=-3 step=2 shape=[9] dtype=T", NEVER},
    {"", "arange shape=[$0]", NEVER},
    {"i32[5,1] i32[$0] i32[]", "random_bits", NEVER},
    {X, "reshape shape=[$0,-1]", NEVER},
    {X, "reshape shape=[8,-1]", NEVER},
    {"T[4,1,6]", "reshape shape=[2,3,2,1,2]", NEVER},
    {"T[1,1]", "reshape shape=[]", NEVER},
    {X, "permute axes=[2,0,3,1]", NEVER},
    {X, "slice axis=2 start=1 step=2 shape=[3]", NEVER},
    {X, "slice axis=2 start=6 step=-3 shape=[3]", NEVER},
    {X, "place axis=2 start=1 shape=[9]", ALWAYS},
    {X, "place axis=3 start=2 step=3 shape=[20]", ALWAYS},
    {X, "place axis=1 start=8 step=-1 shape=[10]", ALWAYS},
    {X, "place axis=0 start=5*$0 step=-4 shape=[$0+20]", ALWAYS},
    {"T[$0]", "place start=2*$0 shape=[4*$0]", ALWAYS},
    {"T[0,3]", "place axis=0 shape=[4]", ALWAYS},
    {X " T[$0,1,7,6] " X, "concat axis=1", ALWAYS},
    {X, "concat axis=1", NEVER},
    {"T[4,1,6]", "expand shape=[3,4,$0,6]", NEVER},
    {"f32[5,7]", "pad pad=[1,2,0,3] value=-7.5", ALWAYS},
    {X, "pad pad=[1,2,0,3] value=1.0", ALWAYS},
    {X, "pad pad=[0,1,0,1] value=-inf", ALWAYS},
    {X, "tril", NEVER},
    {X, "tril diagonal=2 value=1.0", NEVER},
    {X, "triu diagonal=-3 value=-inf", NEVER},
    {"T[3,$0]", "triu diagonal=1", NEVER},
};

static int64_t count(const struct tensor *t) { return eval_size(ir_elements(t)); }

/* Floats are around zero, and each special value is at some place. NaN only for a pointwise layer, where
 * it affects one output only. What a cast of it to an integer gives is undefined. */
static double make_real(const struct layer *l, int input, int64_t i, uint32_t bits) {
    static const double special[] = {0, -0.0, 40, -40, INFINITY, -INFINITY, NAN};
    bool one = layer_infos[l->kind].traits & POINTWISE && layer_infos[l->kind].max_in == 1;
    bool to_integer = size_family(l->out[0]->dtype) == FAMILY_INTEGER;
    if (one && !to_integer && i < COUNT(special)) return special[i];
    double value = (double)(bits >> 8) / (1 << 22) - 2;
    bool positive = (l->kind == LAYER_batch_norm && input == 2) || l->out[0]->dtype == SOL_U8;
    if (to_integer) value *= 50;
    return positive ? fabs(value) : value;
}

/* Integers are small at every second place, and of the type's whole range at the others. */
static void *fill(const struct layer *l, int input) {
    enum sol_dtype type = l->in[input]->dtype;
    int64_t n = count(l->in[input]);
    void *data = ARENA_ARRAY(&arena, uint64_t, n);
    uint64_t state = 12345u + (uint64_t)input;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        int64_t number = (int64_t)(state >> 32) - INT32_MAX;
        if (is_float(type))
            ref_put_real(type, data, i, make_real(l, input, i, (uint32_t)(state >> 32)));
        else ref_put_whole(type, data, i, i % 2 ? number % 5 : (int64_t)(state ^ state >> 29));
    }
    return data;
}

/* Floats that overflow their type are infinite. */
static bool is_close(enum sol_dtype type, struct value is, struct value expected) {
    if (!is_float(type)) return is.whole == expected.whole;
    double allowed = type == SOL_F64    ? 1e-12
                     : type == SOL_F16  ? 2e-3
                     : type == SOL_BF16 ? 2e-2
                                        : 1e-5;
    double a = convert(type, type, is).real, b = expected.real;
    if (a != a || b != b) return a != a && b != b;
    return a == b || fabs(a - b) <= allowed + allowed * fabs(b);
}

/* Moves to the next output point; the last dim changes fastest. */
static void step(struct eval *e, const struct tensor *out) {
    for (int d = out->rank - 1; d >= 0; d--) {
        if (++e->var[d] < eval_size(out->dim[d])) return;
        e->var[d] = 0;
    }
}

static bool compare(struct eval *e, const struct expr *x, const void *results) {
    const struct tensor *out = e->layer->out[0];
    if (x->type != out->dtype) REQUIRE(!"the expression has the output's type");
    for (int64_t i = 0; i < count(out); i++, step(e, out)) {
        struct value is = eval_expr(e, x), expected = read_value(out->dtype, results, i);
        if (is_close(out->dtype, is, expected)) continue;
        fprintf(stderr, "    at %lld: %.17g, %lld; expected %.17g, %lld\n", (long long)i, is.real,
                (long long)is.whole, expected.real, (long long)expected.whole);
        return false;
    }
    return true;
}

static bool check_loads(const struct eval *e, enum checks checks) {
    if (checks == NEVER) return !e->n_checked;
    return checks == ALWAYS ? e->n_outside > 0 : e->n_checked > 0;
}

/* `text` with the type's name in place of T. */
static const char *write_type(const char *text, enum sol_dtype type) {
    struct text out;
    text_init(&out, &arena);
    for (; *text; text++)
        if (*text == 'T') text_add(&out, "%s", size_dtype_name(type));
        else text_add_raw(&out, text, 1);
    return out.at;
}

static void test_model(const struct model *m, const struct row *row) {
    struct eval e = {.layer = m->layers.at[m->layers.n - 1]};
    const struct tensor *out = e.layer->out[0];
    for (int i = 0; i < e.layer->n_in; i++) e.in[i] = fill(e.layer, i);
    void *expected = ARENA_ARRAY(&arena, uint64_t, count(out));
    REQUIRE(!ref_layer(e.layer, symbols, e.in, &expected));
    int n_vars;
    const struct expr *x = ir_define(&arena, e.layer, &n_vars);
    REQUIRE(x && n_vars >= out->rank && n_vars <= MAX_VARS);
    bool right = compare(&e, x, expected), loads = check_loads(&e, row->checks);
    CHECK(right);
    CHECK(loads);
    if (!right || !loads)
        fprintf(stderr, "    %s on %s as %s: %d checked loads, %d outside\n", row->layer,
                row->inputs, size_dtype_name(out->dtype), e.n_checked, e.n_outside);
}

/* With each type that the layer's rule does not refuse. */
static void test_row(const struct row *row) {
    bool has_type = strchr(row->inputs, 'T') || strchr(row->layer, 'T');
    int n = 0;
    for (int type = 0; type < (has_type ? SOL_N_DTYPES : 1); type++) {
        struct model *m;
        const char *inputs = write_type(row->inputs, (enum sol_dtype)type),
                   *layer = write_type(row->layer, (enum sol_dtype)type);
        enum sol_status status = ir_parse(write_one_layer(&arena, inputs, layer), &arena, &m);
        if (status == SOL_EUNSUPPORTED && has_type) continue;
        if (status) fprintf(stderr, "    %s\n", sol_error());
        REQUIRE(!status);
        test_model(m, row);
        n++;
    }
    CHECK(n > 0);
}

/* Composites have no expression (test_composite.c), nor have sources; gathers, their inverses, resamples and recurrent layers are not generated. */
static void test_layers(void) {
    bool seen[N_LAYER_KINDS] = {
        [LAYER_input] = true,       [LAYER_param] = true,          [LAYER_scalar] = true,
        [LAYER_gather] = true,      [LAYER_resample] = true,       [LAYER_softmax] = true,
        [LAYER_log_softmax] = true, [LAYER_layer_norm] = true,     [LAYER_rms_norm] = true,
        [LAYER_group_norm] = true,  [LAYER_attention] = true,      [LAYER_logsumexp] = true,
        [LAYER_norm] = true,        [LAYER_conv_transpose] = true, [LAYER_variance] = true,
        [LAYER_argmax] = true,      [LAYER_argmin] = true,         [LAYER_host] = true,
        [LAYER_scatter_sum] = true, [LAYER_random] = true};
    for (int i = 0; i < COUNT(rows); i++) {
        test_row(&rows[i]);
        size_t size = strcspn(rows[i].layer, " ");
        seen[ir_find_kind(arena_printf(&arena, "%.*s", (int)size, rows[i].layer))] = true;
    }
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (!(layer_infos[i].traits & RECURRENT) && !CHECK(seen[i]))
            fprintf(stderr, "    no row for %s\n", layer_infos[i].name);
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
