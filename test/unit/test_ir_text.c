/*
 * src/ir/text.c and attr.c: the text form. A printed model, read and printed again, gives the same text;
 * a text that is not a model gives an error with its line; the examples of docs/ir.md are correct.
 */
#include "check.h"
#include "ir/ir.h"

#include <math.h>

static struct arena arena; /* of the running test; main creates and frees it */

static const char *print(const struct model *m) {
    struct text text;
    text_init(&text, &arena);
    ir_print(&text, m);
    return text.at;
}

/* ---- Round trips ---- */

/* Every kind of layer, with values other than the defaults for all attributes. */
static const char first_layers[] = "model \"every \\\"layer\\\" \\\\ \\x0a\" {\n"
                                   "  symbol $0 \"batch\"\n"
                                   "  symbol $1 \"length\"\n"
                                   "  host @0 \"unused\"\n"
                                   "  host @1 \"aten.\\\"sort\\\"\"\n"
                                   "  %0 = input f32[$0,4,8,8] \"x\"\n"
                                   "  %1 = input f32[$0,2*$1+1] \"tokens\"\n"
                                   "  %2 = input i64[] \"a number\"\n"
                                   "  %3 = param f32[8,2,3,3] \"conv1.weight\"\n"
                                   "  %4 = param f32[8] \"conv1.bias\"\n"
                                   "  %5 = scalar value=-0.1\n"
                                   "  %6 = conv %0 %3 %4 stride=[2,1] dilation=[1,2] pad=[1,2,3,4] "
                                   "groups=2 # \"net.py:7\"\n"
                                   "  %7 = batch_norm %6 %4 %4 %4 %4 eps=0.001\n"
                                   "  %8 = param f32[5,8] \"fc\"\n"
                                   "  %9 = linear %0 %8\n"
                                   "  %10 = input u8[$0,4,8,8] \"bytes\"\n"
                                   "  %11 = param i8[8,4,3,3] \"w\"\n"
                                   "  %12 = param i32[1] \"zero\"\n"
                                   "  %13 = param f32[3] \"range\"\n"
                                   "  %14 = quant_conv %10 %11 %12 %4 %4 %13 stride=[2,1] "
                                   "dtype=i8\n"
                                   "  %15 = param i8[8,8] \"w2\"\n"
                                   "  %16 = quant_linear %10 %15 %12 %4 %4\n";

static const char *const pointwise[] = {
    "relu",
    "clamp min=-1.5",
    "clamp min=0.0 max=6.0",
    "leaky_relu alpha=0.2",
    "elu alpha=1.0",
    "sigmoid",
    "tanh",
    "gelu",
    "gelu_tanh",
    "silu",
    "hardsigmoid",
    "hardswish",
    "softplus",
    "mish",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "abs",
    "neg",
    "square",
    "reciprocal",
    "erf",
    "copy",
    "stop",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "floor",
    "ceil",
    "trunc",
    "round",
    "sign",
    "cast",
    "cast dtype=bf16",
    "softmax axis=3",
    "log_softmax axis=1",
    "elu alpha=1.0 scale=2.0 input_scale=0.5",
    "softsign",
    "layer_norm axes=[2,3] eps=0.25",
    "rms_norm axes=[3] eps=0.25",
    "group_norm groups=2 eps=0.25",
    "cumsum axis=2",
    "argmax axis=1 keepdim=true",
    "argmin",
};

static const char *const moving[] = {
    "max_pool kernel=[3,2] stride=[2,1] dilation=[2,1] pad=[1,1,1,0] min=0.0 ceil=true",
    "avg_pool kernel=[3,2] stride=[2,1] pad=[1,1,1,0] ceil=true count_pad=true",
    "max_pool_index kernel=[3,2] stride=[2,1] dilation=[2,1] pad=[1,1,1,0] ceil=true",
    "avg_pool kernel=[3,2] count_pad=true",
    "adaptive_avg_pool kernel=[3,5]",
    "sum axes=[1,2]",
    "mean axes=[3] keepdim=true",
    "prod axes=[2]",
    "reduce_max axes=[0,1,2,3]",
    "reduce_min axes=[2]",
    "logsumexp axes=[1] keepdim=true",
    "norm axes=[3] p=inf keepdim=true",
    "variance axes=[2,3] correction=1.0",
    "tril diagonal=-2 value=-inf",
    "triu diagonal=1",
    "reshape shape=[$0,2,128]",
    "permute axes=[3,0,1,2]",
    "slice axis=1 start=1 step=2 shape=[2]",
    "place axis=1 start=9 step=-2 shape=[10]",
    "expand shape=[2,$1,$0,4,8,8]",
    "pad pad=[1,2,3,4] value=-inf",
};

static const char *const binary[] = {
    "add", "sub", "mul",        "div",  "maximum", "minimum",   "pow",   "floor_div",
    "mod", "rem", "less_equal", "less", "equal",   "trunc_div", "prelu",
};

static const char *const integer[] = {"bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"};

/* Appends, for each line of a list, a layer that reads %0. Returns the next free number. */
static int add_layers(struct text *text, int number, const char *const *list, int n,
                      const char *inputs) {
    for (int i = 0; i < n; i++) {
        size_t kind = strcspn(list[i], " ");
        text_add(text, "  %%%d = %.*s %s%s\n", number++, (int)kind, list[i], inputs,
                 list[i] + kind);
    }
    return number;
}

static const struct {
    const char *kind;
    int gates;
} kinds[] = {{"rnn_tanh", 1}, {"rnn_relu", 1}, {"lstm", 4}, {"gru", 3}};

/* Of two units, forwards and backwards, on parameters of their own; every second one keeps its gates. */
static int add_recurrent(struct text *text, int n) {
    for (int i = 0; i < COUNT(kinds); n += 5 + i % 2, i++) {
        const char *kept = i % 2 ? arena_printf(&arena, ", %%%d", n + 5) : "";
        const int width = 2 * kinds[i].gates;
        const char *more = i == 2   ? arena_printf(&arena, " %%%d", n + 2)
                           : i == 3 ? arena_printf(&arena, " %%%d", n + 3)
                                    : "";
        text_add(text,
                 "  %%%d = param f32[1,3,%d] \"\"\n  %%%d = param f32[%d,2] \"\"\n"
                 "  %%%d = param f32[1,2] \"\"\n  %%%d = param f32[2] \"\"\n"
                 "  %%%d%s = %s %%%d %%%d %%%d%s axis=1 reverse=true\n",
                 n, width, n + 1, width, n + 2, n + 3, n + 4, kept, kinds[i].kind, n, n + 1, n + 2,
                 more);
    }
    return n;
}

/* Their gradients, of gates that are parameters, too. */
static int add_recurrent_grads(struct text *text, int n) {
    for (int i = 0; i < COUNT(kinds); i++, n += 5) {
        const int width = 2 * kinds[i].gates, kept = width + (width > 2 ? 2 : 0);
        const char *more = kinds[i].gates > 1 ? arena_printf(&arena, " %%%d", n + 3) : "";
        text_add(text,
                 "  %%%d = param f32[1,3,%d] \"\"\n  %%%d = param f32[%d,2] \"\"\n"
                 "  %%%d = param f32[1,%d,2] \"\"\n  %%%d = param f32[1,%s2] \"\"\n"
                 "  %%%d = %s_grad %%%d %%%d %%%d%s axis=1 reverse=true\n",
                 n, kept, n + 1, width, n + 2, i == 2 ? 5 : 4, n + 3, i == 3 ? "3," : "", n + 4,
                 kinds[i].kind, n, n + 1, n + 2, more);
    }
    return n;
}

static const char *write_every_layer(void) {
    struct text text;
    text_init(&text, &arena);
    text_add(&text, "%s", first_layers);
    int n = add_layers(&text, 17, pointwise, COUNT(pointwise), "%0");
    n = add_layers(&text, n, moving, COUNT(moving), "%0");
    n = add_layers(&text, n, binary, COUNT(binary), "%0 %5");
    n = add_layers(&text, n, integer, COUNT(integer), "%2 %2");
    text_add(&text, "  %%%d = bit_not %%2\n", n++);
    text_add(&text, "  %%%d = arange start=-2 step=3 shape=[$1] dtype=u8\n", n++);
    text_add(&text, "  %%%d = param i64[] \"\"\n  %%%d = random %%%d stream=7 shape=[$1,3]\n", n,
             n + 1, n);
    n += 2;
    text_add(&text, "  %%%d = arange shape=[3] dtype=i32\n  %%%d = random_bits %%%d %%%d %%%d\n", n,
             n + 1, n, n, n);
    n += 2;
    text_add(&text, "  %%%d = less %%5 %%0\n  %%%d = where %%%d %%5 %%0\n", n, n + 1, n);
    n += 2;
    text_add(&text, "  %%%d = matmul %%0 %%0\n", n++);
    text_add(&text,
             "  %%%d = conv_transpose %%6 %%3 %%4 stride=[2,3] dilation=[1,2] pad=[1,2,0,1] "
             "output_pad=[1,0] groups=4\n",
             n++);
    text_add(&text,
             "  %%%d = conv_transpose %%6 %%3 stride=[2,1] dilation=[1,2] pad=[1,2,3,4] groups=2 "
             "shape=[$0,4,8,8]\n",
             n++);
    text_add(&text,
             "  %%%d = conv_weight %%0 %%6 stride=[2,1] dilation=[1,2] pad=[1,2,3,4] groups=2 "
             "shape=[8,2,3,3]\n",
             n++);
    text_add(&text,
             "  %%%d = param f32[3,4,2,1,1] \"\"\n"
             "  %%%d = reshape %%0 shape=[$0,4,1,8,8]\n  %%%d = conv %%%d %%%d depth=[2,3,1,4]\n",
             n, n + 1, n + 2, n + 1, n);
    n += 3;
    text_add(&text, "  %%%d = attention %%0 %%0 %%0 %%0 scale=0.5 softcap=2.5 causal=true\n", n++);
    text_add(&text, "  %%%d, %%%d = host @1 f32[$0,2*$1] i64[] %%0 %%2 pure=true # \"net:1\"\n", n,
             n + 1);
    n += 2;
    n = add_recurrent(&text, n);
    n = add_recurrent_grads(&text, n);
    text_add(&text, "  %%%d = gather %%0 %%2 axis=2\n", n++);
    text_add(&text, "  %%%d = gather %%0 %%2 wraps=false\n", n++);
    text_add(
        &text,
        "  %%%d = param i32[4,2,4,2] \"\"\n  %%%d = param f32[4,2,4,2] \"\"\n"
        "  %%%d = max_pool_grad %%%d %%%d kernel=[3,2] stride=[2,1] dilation=[2,1] pad=[1,1,1,0] "
        "shape=[4,2,8,2] ceil=true\n",
        n, n + 1, n + 2, n + 1, n);
    n += 3;
    text_add(&text,
             "  %%%d = param i32[] \"\"\n"
             "  %%%d = scatter_sum %%0 %%%d shape=[$1+3] wraps=false\n",
             n, n + 1, n);
    n += 2;
    text_add(&text,
             "  %%%d = param f32[2,7] \"\"\n  %%%d = param i32[2,7] \"\"\n"
             "  %%%d = resample %%0 %%%d %%%d axis=2\n",
             n, n + 1, n + 2, n + 1, n);
    n += 3;
    text_add(&text, "  %%%d = concat %%0 %%0 %%0 axis=2\n", n);
    text_add(&text, "  output %%%d \"joined\"\n  output %%0 \"\"\n  output %%%d \"y\"\n}\n", n, n);
    return text.at;
}

static void test_round_trip(void) {
    struct model *m;
    const char *text = write_every_layer();
    REQUIRE(!ir_parse(text, &arena, &m));
    CHECK_TEXT(print(m), text);
    CHECK(!ir_verify(m));
    CHECK_TEXT(m->name, "every \"layer\" \\ \n");
    CHECK_TEXT(print(ir_clone(&arena, m)), text);
    bool seen[N_LAYER_KINDS] = {false};
    for (int i = 0; i < m->layers.n; i++) seen[m->layers.at[i]->kind] = true;
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (!CHECK(seen[i])) fprintf(stderr, "    no %s in the test\n", layer_infos[i].name);
}

/* Blanks, comment lines, gaps in the numbers and explicit default values are read, but not printed. */
static void test_free_form(void) {
    struct model *m;
    enum sol_status status = ir_parse("# a comment\r\n"
                                      "\n"
                                      " model \"m\" { \r\n"
                                      "\t%7 = input f32[2,3] \"x\"  \n"
                                      "   # another\n"
                                      "%3 =  sum   %7 axes=[-1]  keepdim=false # \"a # b\"\n"
                                      "output %3 \"y\"\n"
                                      "}\n\n# end",
                                      &arena, &m);
    REQUIRE(!status);
    CHECK_TEXT(print(m), "model \"m\" {\n"
                         "  %0 = input f32[2,3] \"x\"\n"
                         "  %1 = sum %0 axes=[1] # \"a # b\"\n"
                         "  output %1 \"y\"\n"
                         "}\n");
}

/* Control characters in names are printed as \xHH, so they cannot control a terminal; letters of any language stay. */
static void test_control_characters(void) {
    struct model *m;
    const char *text =
        "model \"\\x1b[2J \\xc2\\x9b \\xff gr\xc3\xbcn\" {\n  %0 = input f32[2] \"x\"\n"
        "  %1 = relu %0 # \"\\xe2\\x80\\xae.py:1\"\n  output %1 \"y\"\n}\n";
    REQUIRE(!ir_parse(text, &arena, &m));
    CHECK(m->name[0] == 27 && strstr(m->name, "\xff gr"));
    CHECK_TEXT(print(m), text);
}

static void test_public_text(void) {
    const char *text = "model \"m\" {\n  symbol $0 \"n\"\n  %0 = input f32[$0] \"x\"\n"
                       "  %1 = relu %0\n  output %1 \"y\"\n}\n";
    struct sol_model *m = NULL;
    REQUIRE(!sol_model_parse(text, &m));
    char *again = sol_model_print(m);
    CHECK_TEXT(again, text);
    int64_t dim[SOL_MAX_RANK];
    CHECK(!sol_model_check(m) && sol_model_shape(m, 1, dim) == 1 && dim[0] == -1);
    struct sol_port port;
    CHECK(sol_model_get_input(m, 0, &port) && port.rank == 1 && port.dim[0] == -1);
    CHECK_TEXT(port.name, "x");
    CHECK(!sol_model_get_input(m, 1, &port) && !sol_model_get_input(m, -1, &port));
    CHECK_TEXT(sol_model_symbol_name(m, 0), "n");
    CHECK(!sol_model_symbol_name(m, 1) && !sol_model_symbol_name(m, -1));
    sol_tensor x = 1;
    sol_model_output(m, "z", sol_model_layer(m, "neg", 1, &x, "", NULL));
    CHECK(!sol_model_check(m) && ir_user_model(m)->outputs.n == 2);
    free(again);
    sol_model_free(m);
    struct sol_model *none = NULL;
    CHECK(sol_model_parse("model", &none) == SOL_EINVAL && !none);
}

static void test_attributes(void) {
    const struct layer_info *clamp = &layer_infos[LAYER_clamp],
                            *pool = &layer_infos[LAYER_max_pool];
    struct size_table none = {0};
    struct attr a;
    CHECK(!ir_parse_attr("", clamp, &none, &a) && a.min == -INFINITY && a.max == INFINITY);
    CHECK(!ir_parse_attr("  max=6  min=-1e-3 ", clamp, &none, &a) && a.min == -0.001 && a.max == 6);
    CHECK(!ir_parse_attr("kernel=[3,2] ceil=true", pool, &none, &a) && a.kernel[1] == 2 && a.ceil);
    CHECK(a.stride[0] == 1 && a.dilation[1] == 1 && a.min == -INFINITY && !a.pad[3]);
    static const char *const wrong[] = {"min",    "min=",    "min=1,",   "min=1max=2",
                                        "mi=1",   "=1",      "min=[1]",  "minimum=1",
                                        "min =1", "min=1\n", "min=1 max"};
    for (int i = 0; i < COUNT(wrong); i++)
        CHECK(ir_parse_attr(wrong[i], clamp, &none, &a) == SOL_EINVAL);
    static const char *const lists[] = {"kernel=",     "kernel=[",      "kernel=[1,",
                                        "kernel=[1,2", "kernel=1",      "kernel=[1,2,3]",
                                        "kernel=[]",   "kernel=[$0,1]", "kernel=[1,,2]"};
    for (int i = 0; i < COUNT(lists); i++)
        CHECK(ir_parse_attr(lists[i], pool, &none, &a) == SOL_EINVAL);
    const struct layer_info *cast = &layer_infos[LAYER_cast];
    CHECK(!ir_parse_attr("", cast, &none, &a) && a.dtype == SOL_F32);
    for (int i = 0; i < SOL_N_DTYPES; i++) {
        const char *name = size_dtype_name((enum sol_dtype)i);
        CHECK(!ir_parse_attr(arena_printf(&arena, "dtype=%s", name), cast, &none, &a) &&
              (int)a.dtype == i);
    }
    static const char *const types[] = {"dtype=",  "dtype=f",    "dtype=f322",  "dtype=F32",
                                        "dtype=0", "dtype=f32,", "dtype=[f32]", "dtype=f32x=1"};
    for (int i = 0; i < COUNT(types); i++)
        CHECK(ir_parse_attr(types[i], cast, &none, &a) == SOL_EINVAL);
    CHECK(ir_find_kind("conv") == LAYER_conv && ir_find_kind("con") == N_LAYER_KINDS);
}

/* ---- Errors ---- */

static const struct {
    const char *text;
    int line;
    const char *message;
} errors[] = {
    {"", 0, "does not end"},
    {"modell \"m\" {\n}", 1, "begins with"},
    {"model m {\n}", 1, "a name in quotes"},
    {"model \"m {\n}", 1, "a name does not end"},
    {"model \"m\\", 1, "bad escape"},
    {"model \"m\\q\" {\n}", 1, "bad escape"},
    {"model \"m\\x0\" {\n}", 1, "bad escape"},
    {"model \"m\\x00\" {\n}", 1, "bad escape"},
    {"model \"m\"\n}", 1, "{ is missing"},
    {"model \"m\" { %0 = scalar\n}", 1, "{ is missing"},
    {"model \"m\" {\n", 1, "does not end"},
    {"model \"m\" {\n}\n}", 3, "something follows"},
    {"model \"m\" {\n} x", 2, "something follows"},
    {"model \"m\" {\nmodel \"m\" {\n}", 2, "a statement begins"},
    {"model \"m\" {\nsymbol 0 \"n\"\n}", 2, "a symbol's number"},
    {"model \"m\" {\nsymbol $1 \"n\"\n}", 2, "symbols are"},
    {"model \"m\" {\nsymbol $0 \"n\"\nsymbol $0 \"n\"\n}", 3, "symbols are"},
    {"model \"m\" {\nsymbol $0\n}", 2, "a name"},
    {"model \"m\" {\n%x = scalar\n}", 2, "a tensor's number"},
    {"model \"m\" {\n%99999999999999999999 = scalar\n}", 2, "a tensor's number"},
    {"model \"m\" {\n%1000001 = scalar\n}", 2, "a tensor's number is too large"},
    {"model \"m\" {\n%0 scalar\n}", 2, "= is missing"},
    {"model \"m\" {\n%0 =\n}", 2, "unknown layer"},
    {"model \"m\" {\n%0 = scaler\n}", 2, "unknown layer"},
    {"model \"m\" {\n%0 = scalar\n%0 = scalar\n}", 3, "a tensor is made twice"},
    {"model \"m\" {\n%0 = relu %0\n}", 2, "a tensor is used before"},
    {"model \"m\" {\n%0 = relu %7\n}", 2, "a tensor is used before"},
    {"model \"m\" {\n%0 = relu %\n}", 2, "a tensor's number"},
    {"model \"m\" {\n%0 = relu\n}", 2, "relu: 0 inputs"},
    {"model \"m\" {\n%0 = scalar value\n}", 2, "scalar"},
    {"model \"m\" {\n%0 = scalar # origin\n}", 2, "a name in quotes"},
    {"model \"m\" {\n%0 = scalar # \"a\" b\n}", 2, "something is left over"},
    {"model \"m\" {\n%0 = input\n}", 2, "unknown type"},
    {"model \"m\" {\n%0 = input f33[1] \"x\"\n}", 2, "unknown type"},
    {"model \"m\" {\n%0 = input f32 \"x\"\n}", 2, "unknown type"},
    {"model \"m\" {\n%0 = input f32[1\n}", 2, "bad shape"},
    {"model \"m\" {\n%0 = input f32[1,] \"x\"\n}", 2, "bad size"},
    {"model \"m\" {\n%0 = input f32[-1] \"x\"\n}", 2, ""},
    {"model \"m\" {\n%0 = input f32[$0] \"x\"\n}", 2, ""},
    {"model \"m\" {\n%0 = input f32[99999999999999999999] \"x\"\n}", 2, "bad size"},
    {"model \"m\" {\n%0 = input f32[1,1,1,1,1,1,1,1,1] \"x\"\n}", 2, "too many dims"},
    {"model \"m\" {\n%0 = input f32[1]\n}", 2, "a name"},
    {"model \"m\" {\n%0 = input f32[1] \"x\" pad=[1]\n}", 2, "something is left over"},
    {"model \"m\" {\noutput %0 \"y\"\n}", 2, "a tensor is used before"},
    {"model \"m\" {\noutput 0 \"y\"\n}", 2, "a tensor is missing"},
    {"model \"m\" {\n%0 = scalar\noutput %0\n}", 3, "a name"},
};

static void test_errors(void) {
    for (int i = 0; i < COUNT(errors); i++) {
        struct model *m;
        CHECK(ir_parse(errors[i].text, &arena, &m) == SOL_EINVAL);
        const char *line = arena_printf(&arena, "line %d", errors[i].line);
        bool said =
            !strncmp(sol_error(), line, strlen(line)) && strstr(sol_error(), errors[i].message);
        if (!CHECK(said)) fprintf(stderr, "    %s: %s\n", errors[i].message, sol_error());
    }
}

/* Reads a text after one change. If it is accepted, the model is valid. */
static void read_changed(const char *text, size_t at, char byte) {
    struct arena once = {.boundary = arena.boundary};
    struct model *m;
    struct text again;
    char *copy = arena_strdup(&once, text);
    copy[at] = byte;
    if (!ir_parse(copy, &once, &m)) {
        CHECK(!ir_verify(m));
        text_init(&again, &once);
        ir_print(&again, m);
    }
    arena_fini(&once);
}

/* Reads every prefix of a valid text, and the text with each byte changed, without a crash. */
static void test_mutations(void) {
    static const char bytes[] = {'%', '$', '"',  '\\', '[', ']', '-', '9',
                                 'x', ' ', '\n', '#',  '}', '=', 127};
    const char *good = write_every_layer();
    size_t size = strlen(good);
    for (size_t i = 0; i < size; i++)
        for (int k = 0; k < 4; k++)
            read_changed(good, i, k ? bytes[(4 * i + (size_t)k) % sizeof bytes] : 0);
}

/* Long lines, names and lists are refused or read, in time and memory proportional to the text. */
static void test_long_texts(void) {
    struct text text;
    struct model *m;
    text_init(&text, &arena);
    text_add(&text, "model \"");
    for (int i = 0; i < 65537; i++) text_add_raw(&text, "a", 1);
    text_add(&text, "\" {\n}\n");
    CHECK(ir_parse(text.at, &arena, &m) == SOL_EINVAL && strstr(sol_error(), "too long"));

    text_init(&text, &arena);
    text_add(&text, "model \"m\" {\n%%0 = input f32[1] \"x\"\n%%1 = concat");
    for (int i = 0; i < 4096; i++) text_add(&text, " %%0");
    text_add(&text, "\n");
    for (int i = 2; i < 20000; i++) text_add(&text, "%%%d = relu %%%d\n", i, i - 1);
    text_add(&text, "}\n");
    CHECK(!ir_parse(text.at, &arena, &m) && m->layers.n == 20000 && !ir_verify(m));

    text_init(&text, &arena);
    text_add(&text, "model \"m\" {\n%%0 = input f32[1] \"x\"\n%%1 = concat");
    for (int i = 0; i < 4097; i++) text_add(&text, " %%0");
    text_add(&text, "\n}\n");
    CHECK(ir_parse(text.at, &arena, &m) == SOL_EINVAL && strstr(sol_error(), "4097 inputs"));
}

/* ---- docs/ir.md ---- */

/* Takes the next block "```sol[ fails: MESSAGE]" out of *at. False when there is none. */
static bool take_example(char **at, const char **message, char **text) {
    char *open = strstr(*at, "\n```sol");
    if (!open) return false;
    char *line = open + strlen("\n```sol"), *body = strchr(line, '\n');
    char *close = body ? strstr(body, "\n```") : NULL;
    REQUIRE(close);
    *body = 0, close[1] = 0;
    const char *fails = " fails: ";
    *message = !strncmp(line, fails, strlen(fails)) ? line + strlen(fails) : NULL;
    *text = body + 1;
    *at = close + strlen("\n```");
    return true;
}

static void check_example(const char *text, const char *message) {
    struct model *m;
    enum sol_status status = ir_parse(text, &arena, &m);
    if (message) {
        CHECK(status);
        CHECK_TEXT(sol_error(), message);
        return;
    }
    if (!CHECK(!status)) fprintf(stderr, "    %s\n", sol_error());
    if (status) return;
    CHECK(!ir_verify(m) && m->outputs.n);
    const char *printed = print(m);
    REQUIRE(!ir_parse(printed, &arena, &m));
    CHECK_TEXT(print(m), printed);
}

/* Runs the examples of docs/ir.md, and checks that it names every kind of layer. */
static void test_document(void) {
    char *document, *at, *text;
    size_t size;
    const char *message;
    int n = 0;
    if (!CHECK(!os_read("docs/ir.md", &document, &size))) return;
    for (int i = 0; i < N_LAYER_KINDS; i++) {
        const char *word = arena_printf(&arena, "`%s`", layer_infos[i].name);
        if (!CHECK(strstr(document, word))) fprintf(stderr, "    %s is not in docs/ir.md\n", word);
    }
    for (at = document; take_example(&at, &message, &text); n++) check_example(text, message);
    CHECK(n >= 5);
    mem_free(document);
}

int main(void) {
    static void (*const tests[])(void) = {
        test_round_trip, test_free_form, test_control_characters, test_public_text, test_attributes,
        test_errors,     test_mutations, test_long_texts,         test_document,
    };
    jmp_buf boundary;
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) CHECK(!"out of memory");
    else
        for (int i = 0; i < COUNT(tests); i++) tests[i]();
    arena_fini(&arena);
    return check_done();
}
