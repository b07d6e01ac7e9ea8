/*
 * src/ir/types.c: which element types each kind of layer takes, and the type of its output.
 *
 *   row: a layer and its rule  ->  a model for each type T  ->  accepted with the right type, or refused with the right message
 *
 * The rules are written a second time here, per layer.
 */
#include "check.h"
#include "ir/ir.h"
#include "one_layer.h"

static struct arena arena;
static jmp_buf boundary;

enum { F = FAMILY_FLOAT, I = FAMILY_INTEGER, B = FAMILY_TRUTH };
/* In `output`, T is the inputs' type. */
static const struct row {
    const char *inputs, *layer;
    int families;
    const char *output, *message;
} rows[] = {
#define FLOATS   F, "T", "it must be a float"
#define NUMBERS  F | I, "T", "it must be a float or an integer"
#define INTEGERS I, "T", "it must be an integer"
#define BITS     I | B, "T", "it must be an integer or bool"
#define ANY      F | I | B, "T", ""
#define GIVES(t) F | I | B, t, ""
    {"T[1,4,3,3] T[4,4,1,1] T[4]", "conv", NUMBERS},
    {"T[1,4,2,3,3] T[4,4,2,1,1] T[4]", "conv", NUMBERS},
    {"T[2,3] T[4,3] T[4]", "linear", NUMBERS},
    {"T[2,3] T[3,2]", "matmul", NUMBERS},
    {"T[2,3] T[3] T[3] T[3] T[3]", "batch_norm", FLOATS},
    {"T[3]", "softmax", FLOATS},
    {"T[3]", "log_softmax", FLOATS},
    {"T[1,4,3,3] T[4,4,1,1] T[4]", "conv_transpose", FLOATS},
    {"T[2,4,3,3] T[2,6,2,3]", "conv_weight shape=[6,4,2,1]", FLOATS},
    {"T[2,3] T[3] T[3]", "layer_norm", FLOATS},
    {"T[2,3] T[3]", "rms_norm", FLOATS},
    {"T[2,3] T[3] T[3]", "group_norm", FLOATS},
    {"T[2,3] T[4,3] T[4,3] T[2,4]", "attention", FLOATS},
    {"T[2,3] T[4,3] T[4,3] bool[2,4]", "attention", FLOATS},
    {"T[4,2,3] T[3,3] T[2,3]", "rnn_tanh", FLOATS},
    {"T[4,2,3] T[3,3] T[2,3]", "rnn_relu", FLOATS},
    {"T[4,2,12] T[12,3] T[2,3] T[2,3]", "lstm", FLOATS},
    {"T[4,2,9] T[9,3] T[2,3] T[3]", "gru", FLOATS},
    {"T[4,2,3] T[3,3] T[5,2,3]", "rnn_tanh_grad", FLOATS},
    {"T[4,2,3] T[3,3] T[5,2,3]", "rnn_relu_grad", FLOATS},
    {"T[4,2,15] T[12,3] T[6,2,3] T[2,3]", "lstm_grad", FLOATS},
    {"T[4,2,12] T[9,3] T[5,2,3] T[4,2,3]", "gru_grad", FLOATS},
    {"T[3]", "logsumexp", FLOATS},
    {"T[3]", "norm", FLOATS},
    {"T[3]", "variance", FLOATS},
    {"T[3]", "softsign", FLOATS},
    {"T[3] T[3]", "prelu", FLOATS},
    {"T[3,3]", "tril", ANY},
    {"T[3,3]", "triu", ANY},
    {"T[3]", "argmax", GIVES("i64")},
    {"T[3]", "argmin", GIVES("i64")},
    {"T[3]", "relu", NUMBERS},
    {"T[3]", "clamp min=0.0", NUMBERS},
    {"T[3]", "leaky_relu", FLOATS},
    {"T[3]", "elu", FLOATS},
    {"T[3]", "sigmoid", FLOATS},
    {"T[3]", "tanh", FLOATS},
    {"T[3]", "gelu", FLOATS},
    {"T[3]", "gelu_tanh", FLOATS},
    {"T[3]", "silu", FLOATS},
    {"T[3]", "hardsigmoid", FLOATS},
    {"T[3]", "hardswish", FLOATS},
    {"T[3]", "softplus", FLOATS},
    {"T[3]", "mish", FLOATS},
    {"T[3]", "exp", FLOATS},
    {"T[3]", "log", FLOATS},
    {"T[3]", "sqrt", FLOATS},
    {"T[3]", "rsqrt", FLOATS},
    {"T[3]", "abs", NUMBERS},
    {"T[3]", "neg", NUMBERS},
    {"T[3]", "square", NUMBERS},
    {"T[3]", "reciprocal", FLOATS},
    {"T[3]", "erf", FLOATS},
    {"T[3]", "sin", FLOATS},
    {"T[3]", "cos", FLOATS},
    {"T[3]", "tan", FLOATS},
    {"T[3]", "asin", FLOATS},
    {"T[3]", "acos", FLOATS},
    {"T[3]", "atan", FLOATS},
    {"T[3]", "sinh", FLOATS},
    {"T[3]", "cosh", FLOATS},
    {"T[3]", "asinh", FLOATS},
    {"T[3]", "acosh", FLOATS},
    {"T[3]", "atanh", FLOATS},
    {"T[3]", "floor", FLOATS},
    {"T[3]", "ceil", FLOATS},
    {"T[3]", "trunc", FLOATS},
    {"T[3]", "round", FLOATS},
    {"T[3]", "sign", NUMBERS},
    {"T[3]", "bit_not", BITS},
    {"T[3]", "cast dtype=i16", GIVES("i16")},
    {"T[3]", "cast", GIVES("f32")},
    {"T[3] T[3]", "add", NUMBERS},
    {"T[3] T[3]", "sub", NUMBERS},
    {"T[3] T[3]", "mul", NUMBERS},
    {"T[3] T[3]", "div", FLOATS},
    {"T[3] T[3]", "maximum", ANY},
    {"T[3] T[3]", "minimum", ANY},
    {"T[3] T[3]", "pow", FLOATS},
    {"T[3] T[3]", "floor_div", NUMBERS},
    {"T[3] T[3]", "mod", NUMBERS},
    {"T[3] T[3]", "trunc_div", NUMBERS},
    {"T[3] T[3]", "rem", NUMBERS},
    {"T[3] T[3]", "bit_and", BITS},
    {"T[3] T[3]", "bit_or", BITS},
    {"T[3] T[3]", "bit_xor", BITS},
    {"T[3] T[3]", "shift_left", INTEGERS},
    {"T[3] T[3]", "shift_right", INTEGERS},
    {"T[3] T[3]", "less", GIVES("bool")},
    {"T[3] T[3]", "less_equal", GIVES("bool")},
    {"T[3] T[3]", "equal", GIVES("bool")},
    {"bool[3] T[3] T[3]", "where", ANY},
    {"T[3] i32[3] i32[3]", "where", B, "i32", "the condition is ?; it must be bool"},
    {"T[1,1,3,3]", "max_pool", NUMBERS},
    {"T[1,1,3,3]", "max_pool_index", F | I, "i32", "it must be a float or an integer"},
    {"T[1,1,3,3] i32[1,1,3,3]", "max_pool_grad shape=[1,1,3,3]", NUMBERS},
    {"T[1,1,3,3]", "avg_pool", FLOATS},
    {"T[1,1,3,3]", "adaptive_avg_pool", FLOATS},
    {"T[3]", "sum", NUMBERS},
    {"T[3]", "mean", FLOATS},
    {"T[3]", "prod", NUMBERS},
    {"T[3]", "reduce_max", ANY},
    {"T[3]", "reduce_min", ANY},
    {"T[3]", "cumsum", NUMBERS},
    {"T[3]", "stop", ANY},
    {"T[3]", "reshape shape=[3,1]", ANY},
    {"T[3]", "permute axes=[0]", ANY},
    {"T[3]", "slice shape=[2]", ANY},
    {"T[3]", "place shape=[5]", ANY},
    {"T[3] T[3] T[3]", "concat", ANY},
    {"T[3]", "expand shape=[2,3]", ANY},
    {"T[3,3]", "pad pad=[1,1,1,1]", ANY},
    {"T[3] i32[2]", "gather", ANY},
    {"T[3,2] i64[3]", "scatter_sum shape=[5]", NUMBERS},
    {"T[3]", "copy", ANY},
    {"", "scalar dtype=T", ANY},
    {"", "arange shape=[3] dtype=T", ANY},
};

/* `text` with `name` in place of `letter`. */
static const char *replace(const char *text, char letter, const char *name) {
    struct text out;
    text_init(&out, &arena);
    for (; *text; text++)
        if (*text == letter) text_add(&out, "%s", name);
        else text_add_raw(&out, text, 1);
    return out.at;
}

static enum sol_status parse(const char *inputs, const char *layer, const struct tensor **out) {
    struct model *m;
    enum sol_status status = ir_parse(write_one_layer(&arena, inputs, layer), &arena, &m);
    if (!status) *out = m->layers.at[m->layers.n - 1]->out[0];
    return status;
}

static void test_type(const struct row *row, enum sol_dtype type) {
    const char *name = size_dtype_name(type);
    const struct tensor *out = NULL;
    enum sol_status status =
        parse(replace(row->inputs, 'T', name), replace(row->layer, 'T', name), &out);
    bool right;
    if (size_family(type) & row->families)
        right = !status && !strcmp(size_dtype_name(out->dtype), replace(row->output, 'T', name));
    else
        right = status == SOL_EUNSUPPORTED &&
                strstr(sol_error(), replace(row->message, '?', name)) && strstr(sol_error(), name);
    if (!CHECK(right))
        fprintf(stderr, "    %s of %s: %s\n", row->layer, name, status ? sol_error() : "accepted");
}

/* Where all inputs must have one type, another type of the last one is refused. */
static void test_mixed(const struct row *row) {
    const char *last = strrchr(row->inputs, ' ');
    const struct tensor *out;
    if (!last || last[1] != 'T') return;
    const char *inputs = arena_printf(&arena, "%.*s%s", (int)(last - row->inputs), row->inputs,
                                      replace(last, 'T', row->families & F ? "f16" : "u8"));
    const char *first = row->families & F ? "f64" : "i8";
    enum sol_status status = parse(replace(inputs, 'T', first), row->layer, &out);
    bool right =
        status == SOL_EINVAL && strstr(sol_error(), first) && strstr(sol_error(), "but input");
    if (!CHECK(right))
        fprintf(stderr, "    %s of two types: %s\n", row->layer, status ? sol_error() : "accepted");
}

/* Indices may be i64 or i32. */
static void test_indices(void) {
    static const struct row row = {"f32[3] T[2]", "gather", 0, "f32",
                                   "input 1 is ?; it must be i64 or i32"};
    const struct tensor *out;
    for (int type = 0; type < SOL_N_DTYPES; type++)
        if (type != SOL_I64 && type != SOL_I32) test_type(&row, (enum sol_dtype)type);
    CHECK(parse("f32[3] f32[3]", "scatter_sum shape=[2]", &out) == SOL_EUNSUPPORTED);
    CHECK(!parse("bool[3] i64[2]", "gather", &out) && out->dtype == SOL_BOOL);
    CHECK(!parse("f16[3] i32[2]", "gather", &out) && out->dtype == SOL_F16);
}

/* Each has one type of inputs. */
static void test_random(void) {
    static const struct row seed = {"T[]", "random shape=[3]", 0, "f32",
                                    "the seed is ?; it must be i64"},
                            bits = {"T[3] T[3] T[3]", "random_bits", 0, "i32",
                                    "input 0 is ?; it must be i32"};
    const struct tensor *out;
    for (enum sol_dtype type = 0; type < SOL_N_DTYPES; type++) {
        if (type != SOL_I64) test_type(&seed, type);
        if (type != SOL_I32) test_type(&bits, type);
    }
    CHECK(!parse("i64[]", "random shape=[3]", &out) && out->dtype == SOL_F32);
    CHECK(!parse("i32[3] i32[] i32[]", "random_bits", &out) && out->dtype == SOL_I32);
    CHECK(parse("i32[3] i32[] i64[]", "random_bits", &out) == SOL_EUNSUPPORTED);
}

/* x and the weights are f32. */
static void test_taps(void) {
    static const struct row index = {"f32[3] T[2,5] f32[2,5]", "resample", 0, "f32",
                                     "input 1 is ?; it must be i64 or i32"},
                            x = {"T[3] i32[2,5] f32[2,5]", "resample", 0, "f32",
                                 "input 0 is ?; it must be f32"},
                            weight = {"f32[3] i32[2,5] T[2,5]", "resample", 0, "f32",
                                      "input 2 is ?; it must be f32"};
    const struct tensor *out;
    for (enum sol_dtype type = 0; type < SOL_N_DTYPES; type++) {
        if (type != SOL_I64 && type != SOL_I32) test_type(&index, type);
        if (type == SOL_F32) continue;
        test_type(&x, type);
        test_type(&weight, type);
    }
    CHECK(!parse("f32[3] i64[2,5] f32[2,5]", "resample", &out) && out->dtype == SOL_F32);
    CHECK(parse("f32[3,3] i64[2,5] f32[2,5] i32[2,5] f32[2,5]", "resample", &out));
}

/* Each input of a quantized product has a type of its own. A range makes the result 8 bits. */
static void test_quantized(const char *x, const char *layer) {
    static const char *const others[] = {"i32[1]", "f32[4]", "f32[4]"};
    const struct tensor *out;
    const char *good = arena_printf(&arena, "u8%s i32[1] f32[4] f32[4]", x);
    CHECK(!parse(good, layer, &out) && out->dtype == SOL_F32);
    CHECK(parse(good, arena_printf(&arena, "%s dtype=u8", layer), &out) == SOL_EINVAL);
    good = arena_printf(&arena, "%s f32[3]", good);
    CHECK(!parse(good, arena_printf(&arena, "%s dtype=i8", layer), &out) && out->dtype == SOL_I8);
    CHECK(parse(good, layer, &out) == SOL_EINVAL && strstr(sol_error(), "u8 or i8 with a range"));
    CHECK(parse(arena_printf(&arena, "i32%s i32[1] f32[4] f32[4]", x), layer, &out) ==
              SOL_EUNSUPPORTED &&
          strstr(sol_error(), "input 0 is i32; it must be u8 or i8"));
    for (int i = 0; i < 3; i++) {
        const char *in[3] = {others[0], others[1], others[2]};
        in[i] = i ? "f64[4]" : "i64[1]";
        CHECK(parse(arena_printf(&arena, "i8%s %s %s %s", x, in[0], in[1], in[2]), layer, &out) ==
              SOL_EUNSUPPORTED);
        CHECK(strstr(sol_error(), arena_printf(&arena, "input %d is ", i + 2)));
    }
}

int main(void) {
    bool seen[N_LAYER_KINDS] = {[LAYER_input] = true,  [LAYER_param] = true,
                                [LAYER_host] = true,   [LAYER_resample] = true,
                                [LAYER_random] = true, [LAYER_random_bits] = true};
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    for (int i = 0; i < COUNT(rows); i++) {
        for (int type = 0; type < SOL_N_DTYPES; type++) test_type(&rows[i], (enum sol_dtype)type);
        test_mixed(&rows[i]);
        int size = (int)strcspn(rows[i].layer, " ");
        seen[ir_find_kind(arena_printf(&arena, "%.*s", size, rows[i].layer))] = true;
    }
    test_indices();
    test_random();
    test_taps();
    test_quantized("[1,4,3,3] i8[4,4,1,1]", "quant_conv");
    test_quantized("[2,3] i8[4,3]", "quant_linear");
    seen[LAYER_quant_conv] = seen[LAYER_quant_linear] = true;
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (!CHECK(seen[i])) fprintf(stderr, "    no row for %s\n", layer_infos[i].name);
    arena_fini(&arena);
    return check_done();
}
