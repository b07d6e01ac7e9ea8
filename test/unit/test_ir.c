/*
 * src/base/size.c and src/ir: sizes, shape inference, the builder, changing models.
 *
 * A table tests inference: input types, a layer as in the text form, and the output's type
 * or a part of the error message. test_ir_text.c tests the text form, test_ir_define.c the point
 * expressions.
 */
#include "check.h"
#include "ir/ir.h"
#include "one_layer.h"

#include <math.h>

static struct arena arena; /* of the running test; main creates and frees it */

/* ---- Sizes ---- */

static struct size read_size(const char *text) {
    struct size size = {0};
    CHECK(size_parse(&text, &(struct size_table){0}, &size) && !*text);
    return size;
}

static const char *show_size(struct size size) {
    struct text text;
    text_init(&text, &arena);
    size_print(&text, size);
    return text.at;
}

static void test_size_text(void) {
    static const char *const same[] = {"0",      "7",       "-3",        "$0",         "-$0",
                                       "6*$0+1", "$0*$1-2", "$0^2-5*$3", "-2*$1^255+1"};
    for (int i = 0; i < COUNT(same); i++) CHECK_TEXT(show_size(read_size(same[i])), same[i]);
    CHECK_TEXT(show_size(read_size("1+2*$0*3+$0-8")), "7*$0-7");
    CHECK_TEXT(show_size(read_size("$1-$0+$0-$1")), "0");
    static const char *const wrong[] = {"",
                                        "x",
                                        "$",
                                        "$96",
                                        "+",
                                        "+1",
                                        "+$0-1",
                                        "3*",
                                        "2**3",
                                        "$0^",
                                        "$0^256",
                                        "$0^200*$0^200",
                                        "1++2",
                                        "9223372036854775808",
                                        "9223372036854775807+1",
                                        "$0+$1+$2+$3+$4+$5+1"};
    for (int i = 0; i < COUNT(wrong); i++) {
        const char *at = wrong[i];
        struct size size;
        CHECK(!size_parse(&at, &(struct size_table){0}, &size));
        CHECK(at == wrong[i]);
    }
}

static void test_size_arithmetic(void) {
    struct size n = size_symbol(0), h = size_symbol(1), q;
    struct size sum = size_add(size_scale(n, 6), size_const(4));
    CHECK(size_equal(sum, read_size("4+6*$0")) && !size_equal(sum, n));
    CHECK(size_is(size_sub(sum, sum), 0) && size_is_const(size_sub(sum, sum)));
    CHECK(size_equal(size_mul(size_add(n, h), size_sub(n, h)), read_size("$0^2-$1^2")));
    CHECK(size_divide(sum, size_const(2), &q) && size_equal(q, read_size("3*$0+2")));
    CHECK(!size_divide(sum, size_const(4), &q) && !size_divide(sum, n, &q));
    CHECK(!size_divide(sum, size_const(0), &q) && size_divide(size_const(0), n, &q));
    CHECK(size_is(q, 0));
    CHECK(size_divide(read_size("$0^2-$1^2"), read_size("$0-$1"), &q));
    CHECK(size_equal(q, read_size("$0+$1")));
    CHECK(size_mul(size_const(INT64_MAX), size_const(2)).bad);
    CHECK(size_add(size_mul(size_const(INT64_MAX), size_const(2)), n).bad);
    CHECK(!size_divide(size_const(INT64_MIN), size_const(-1), &q));
    CHECK(size_symbol(SIZE_SYMBOLS).bad && size_symbol(-1).bad);
    CHECK(size_never_negative(read_size("3*$0+1")) && !size_never_negative(read_size("$0-1")));
}

/* floor(a / divisor), with what a table prints for new symbols. */
static void check_quotient(const char *a, int64_t divisor, const char *want, const char *numerator,
                           int64_t new_divisor) {
    struct size_table table = {0};
    struct size found = size_floor(&table, read_size(a), divisor);
    CHECK(size_equal(found, read_size(want)));
    if (!CHECK(table.n == (numerator != NULL)) || !numerator) return;
    CHECK(size_equal(table.at[0].numerator, read_size(numerator)));
    CHECK(table.at[0].divisor == new_divisor);
}

static void test_size_quotients(void) {
    check_quotient("4*$0+3", 2, "2*$0+1", NULL, 0);
    check_quotient("-4*$0-3", 2, "-2*$0-2", NULL, 0);
    check_quotient("7", 2, "3", NULL, 0);
    check_quotient("$0+7", 1, "$0+7", NULL, 0);
    check_quotient("$0+7", 2, "$8+3", "$0+1", 2);
    check_quotient("$0-3", 2, "$8-2", "$0+1", 2);
    check_quotient("2*$0+3", 4, "$8", "$0+1", 2);
    check_quotient("-$0", 2, "-$0+$8", "$0", 2);
    check_quotient("5*$0*$1+3*$2", 3, "$2+$8", "5*$0*$1", 3);
    CHECK(size_floor(&(struct size_table){0}, size_symbol(0), 0).bad);
    CHECK(size_floor(&(struct size_table){0}, size_symbol(SIZE_SYMBOLS), 2).bad);

    struct size_table table = {0};
    struct size half = size_ceil(&table, size_symbol(1), 2);
    CHECK(size_equal(half, size_floor(&table, read_size("$1+1"), 2)) && table.n == 1);
    struct size quarter = size_ceil(&table, half, 2);
    CHECK(size_equal(quarter, size_ceil(&table, size_symbol(1), 4)) && table.n == 2);
    CHECK(size_depends(&table, quarter, 1) && !size_depends(&table, quarter, 0));
    int64_t symbols[SIZE_SYMBOLS] = {3, 9};
    size_derive(table.at, table.n, symbols);
    CHECK(size_eval(&half, symbols) == 5 && size_eval(&quarter, symbols) == 3);
    for (int i = 2; table.n < COUNT(table.at); i++)
        CHECK(!size_floor(&table, size_symbol(0), i).bad);
    CHECK(size_floor(&table, size_symbol(2), 7).bad && !size_ceil(&table, half, 2).bad);

    /* As text; also a symbol whose values are multiples of 16. */
    struct size_table two = {.n_free = 2, .multiple = {1, 16}};
    struct size size;
    const char *text = "2*floor(($0+1)/2)+floor(($1)/4)+$1";
    CHECK(size_parse(&text, &two, &size) && !*text);
    CHECK_TEXT(show_size(size), "2*$8+20*$9");
    static const char *const wrong[] = {"floor($0/2)",   "floor(($2)/2)", "floor(($10)/2)",
                                        "floor(($0)/0)", "floor(($0)/2",  "floor(($0/2))",
                                        "floor()",       "floor(($0)/-2)"};
    for (int i = 0; i < COUNT(wrong); i++)
        CHECK(!size_parse(&(const char *){wrong[i]}, &two, &size));
    char deep[400] = "";
    for (int i = 0; i < 20; i++) strcat(deep, "floor((");
    CHECK(!size_parse(&(const char *){deep}, &two, &size));
}

/* Random quotients of quotients have the values of the divisions, and equal sizes one symbol. */
static void test_random_quotients(void) {
    uint64_t state = 1;
    for (int round = 0; round < 500; round++) {
        struct size_table table = {0};
        struct size size[8] = {size_symbol(0), size_symbol(1)};
        int64_t symbols[SIZE_SYMBOLS] = {0}, value[8];
        for (int i = 0; i < 2; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            symbols[i] = value[i] = (int64_t)(state >> 58);
        }
        for (int i = 2; i < 8; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            int a = (int)(state >> 40) % i, b = (int)(state >> 44) % i;
            int64_t divisor = 1 + (int64_t)(state >> 50) % 6,
                    added = (int64_t)(state >> 56) % 9 - 4;
            struct size sum = size_add(size_add(size[a], size[b]), size_const(added));
            size[i] = size_floor(&table, sum, divisor);
            value[i] = floor_div(value[a] + value[b] + added, divisor);
            if (size[i].bad) break;
            size_derive(table.at, table.n, symbols);
            CHECK(size_eval(&size[i], symbols) == value[i]);
        }
    }
}

static void test_size_eval(void) {
    const int64_t symbols[SIZE_SYMBOLS] = {5, 3, 0, INT64_MAX};
    struct size a = read_size("2*$0^2-$1+7"), empty = read_size("$2*$0"), big = read_size("2*$3");
    CHECK(size_eval(&a, symbols) == 54);
    CHECK(size_eval(&empty, symbols) == 0);
    CHECK(size_eval(&big, symbols) == INT64_MAX);
    CHECK(size_value(size_const(0)) == 0 && size_value(size_const(-4)) == -4);
}

/* ---- Inference ---- */

struct row {
    const char *inputs; /* types, separated by blanks; they become %0, %1, .. */
    const char *layer;  /* kind and attributes, separated by a blank */
    const char *result; /* the output's type; or "!" and a part of the error message */
    enum sol_status status;
};

#define X  "f32[$0,3,8,8]"
#define X6 "f32[$0,6,8,8]"
static const struct row rows[] = {
#include "ir_cases.h"
};

static void test_row(const struct row *row) {
    struct model *m;
    const char *source = write_one_layer(&arena, row->inputs, row->layer);
    enum sol_status status = ir_parse(source, &arena, &m);
    CHECK(status == row->status);
    struct text text;
    text_init(&text, &arena);
    if (!status) ir_print_shape(&text, m->layers.at[m->layers.n - 1]->out[0]);
    bool right = *row->result == '!' ? status && strstr(sol_error(), row->result + 1)
                                     : !status && !strcmp(text.at, row->result);
    CHECK(right);
    if (status != row->status || !right)
        fprintf(stderr, "    %s on %s: %s\n", row->layer, row->inputs,
                status ? sol_error() : text.at);
}

static void test_infer(void) {
    for (int i = 0; i < COUNT(rows); i++) test_row(&rows[i]);
}

static void test_broadcast(void) {
    struct size n = size_symbol(0), one = size_const(1), out;
    CHECK(ir_broadcast(n, one, &out) && size_equal(out, n));
    CHECK(ir_broadcast(one, n, &out) && size_equal(out, n));
    CHECK(ir_broadcast(n, n, &out) && size_equal(out, n));
    CHECK(!ir_broadcast(n, size_const(2), &out));
    CHECK(!ir_broadcast(size_const(3), size_const(2), &out));
}

/* ---- The builder ---- */

static void test_builder(void) {
    struct sol_model *m = sol_model_new("tiny");
    REQUIRE(m);
    int64_t n = sol_model_symbol(m, "batch"), dim[SOL_MAX_RANK];
    CHECK(n == -1 && sol_model_symbol(m, "length") == -2);
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){n, 3, 8, 8});
    sol_tensor w = sol_model_param(m, "w", SOL_F32, 4, (int64_t[]){4, 3, 3, 3});
    sol_tensor y = sol_model_layer(m, "conv", 2, (sol_tensor[]){x, w}, "pad=[1,1,1,1]", "a.py:1");
    sol_tensor s = sol_model_scalar(m, 2);
    y = sol_model_layer(m, "mul", 2, (sol_tensor[]){y, s}, "", NULL);
    CHECK(sol_model_shape(m, y, dim) == 4);
    CHECK(dim[0] == n && dim[1] == 4 && dim[2] == 8 && dim[3] == 8);
    sol_tensor flat = sol_model_layer(m, "reshape", 1, &y, "shape=[-1]", NULL);
    CHECK(sol_model_shape(m, flat, dim) == 1 && dim[0] == INT64_MIN);
    CHECK(sol_model_shape(m, s, dim) == 0 && sol_model_shape(m, -1, dim) == -1);
    sol_model_output(m, "y", y);
    CHECK(!sol_model_check(m));
    const struct model *inner = ir_user_model(m);
    CHECK(inner->inputs.n == 1 && inner->params.n == 1 && inner->outputs.n == 1);
    CHECK(ir_is_constant(inner->params.at[0]) && !ir_is_constant(inner->outputs.at[0]));
    sol_model_free(m);
    sol_model_free(NULL);
}

/* sol_model_check reports the first error, not the later ones. */
static void check_mistake(struct sol_model *m, enum sol_status status, const char *message) {
    sol_tensor ok = sol_model_input(m, "later", SOL_F32, 0, NULL);
    CHECK(ok < 0);
    CHECK(sol_model_layer(m, "relu", 1, &ok, "", NULL) < 0);
    sol_model_output(m, "y", ok);
    (void)fail(SOL_EBUG, "something else on this thread");
    CHECK(sol_model_check(m) == status);
    CHECK(strstr(sol_error(), message));
    if (!strstr(sol_error(), message)) fprintf(stderr, "    %s: %s\n", message, sol_error());
    CHECK(sol_model_check(m) == status);
    sol_model_free(m);
}

static void test_sticky(void) {
    int64_t dim[] = {1, 3, 8, 8};
    struct sol_model *m = sol_model_new("m");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, dim), bad = 77;
    CHECK(sol_model_layer(m, "conv", 1, &x, "", "net.py:7") < 0);
    check_mistake(m, SOL_EINVAL, "conv (net.py:7): 1 inputs");

    m = sol_model_new("m");
    CHECK(sol_model_layer(m, "convolve", 1, &x, "", NULL) < 0);
    check_mistake(m, SOL_EINVAL, "convolve");

    m = sol_model_new("m");
    CHECK(sol_model_layer(m, "relu", 1, &bad, "", NULL) < 0);
    check_mistake(m, SOL_EINVAL, "input 0");

    m = sol_model_new("m");
    CHECK(sol_model_input(m, "x", SOL_F32, 1, (int64_t[]){-1}) < 0);
    check_mistake(m, SOL_EINVAL, "\"x\": dim 0 is -1");

    m = sol_model_new("m");
    CHECK(sol_model_input(m, "x", SOL_F32, 9, NULL) < 0);
    check_mistake(m, SOL_EINVAL, "rank 9");

    m = sol_model_new("m");
    CHECK(sol_model_input(m, "x", (enum sol_dtype)99, 0, NULL) < 0);
    check_mistake(m, SOL_EINVAL, "type 99");

    m = sol_model_new("m");
    CHECK(sol_model_param(m, "w", SOL_F32, 2, (int64_t[]){INT64_MAX / 2, 4}) < 0);
    check_mistake(m, SOL_EINVAL, "overflow");

    m = sol_model_new("m");
    x = sol_model_input(m, "x", SOL_F32, 4, dim);
    CHECK(sol_model_layer(m, "relu", 1, &x, "alpha=1", "net.py:9") < 0);
    check_mistake(m, SOL_EINVAL, "net.py:9: relu has no attribute");

    m = sol_model_new("m");
    for (int i = 0; i <= SIZE_FREE; i++) (void)sol_model_symbol(m, "s");
    check_mistake(m, SOL_EUNSUPPORTED, "symbols");

    m = sol_model_new("m");
    sol_model_output(m, "y", 0);
    check_mistake(m, SOL_EINVAL, "\"y\"");
}

/* A name that is too long for the parser is refused by the builder. */
static void test_long_names(void) {
    const int64_t dim[] = {1};
    char *name = arena_alloc(&arena, IR_MAX_NAME + 2);
    memset(name, 'a', IR_MAX_NAME);
    struct sol_model *m = sol_model_new(name), *parsed = NULL;
    sol_model_symbol(m, name);
    sol_tensor x = sol_model_input(m, name, SOL_F32, 1, dim);
    sol_model_output(m, name, sol_model_layer(m, "relu", 1, &x, "", name));
    char *text = sol_model_print(m);
    CHECK(text && sol_model_parse(text, &parsed) == SOL_OK);
    free(text);
    sol_model_free(parsed);
    sol_model_free(m);

    name[IR_MAX_NAME] = 'a';
    check_mistake(sol_model_new(name), SOL_EINVAL, "65537 bytes");
    for (int i = 0; i < 4; i++) {
        m = sol_model_new("m");
        x = sol_model_input(m, i == 0 ? name : "x", SOL_F32, 1, dim);
        if (i == 1) sol_model_symbol(m, name);
        if (i == 2) sol_model_layer(m, "relu", 1, &x, "", name);
        if (i == 3) sol_model_output(m, name, x);
        check_mistake(m, SOL_EINVAL, "65537 bytes");
    }
}

static void test_check_again(void) {
    struct sol_model *m = sol_model_new("m");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 0, NULL);
    CHECK(sol_model_check(m) == SOL_EINVAL && strstr(sol_error(), "no output"));
    sol_model_output(m, "y", x);
    CHECK(!sol_model_check(m));
    sol_model_free(m);
    CHECK(sol_model_check(NULL) == SOL_EINVAL && !sol_model_print(NULL));
}

/* Inputs may have any type; layers refuse types that their rule does not allow (test_types.c). */
static void test_dtypes(void) {
    struct sol_model *m = sol_model_new("m");
    sol_tensor x = sol_model_input(m, "mask", SOL_BOOL, 1, (int64_t[]){4});
    CHECK(x >= 0);
    sol_model_output(m, "y", x);
    CHECK(!sol_model_check(m));
    CHECK(sol_model_layer(m, "neg", 1, &x, "", NULL) < 0);
    CHECK(sol_model_check(m) == SOL_EUNSUPPORTED);
    sol_model_free(m);
}

/* Fails every allocation in turn: no crash, no leak, and the status is SOL_ENOMEM. */
static void build_with_failure(long fail_at, bool *passed) {
    mem_fail_at = fail_at;
    struct sol_model *m = sol_model_new("m");
    if (m) {
        int64_t dim[] = {sol_model_symbol(m, "n"), 3};
        sol_tensor x = sol_model_input(m, "x", SOL_F32, 2, dim);
        for (int i = 0; i < 40; i++) x = sol_model_layer(m, "relu", 1, &x, "", "a.py:1");
        sol_model_output(m, "y", x);
        enum sol_status status = sol_model_check(m);
        CHECK(status == SOL_OK || status == SOL_ENOMEM);
        CHECK(status == SOL_OK || x < 0 || fail_at);
        char *text = sol_model_print(m);
        *passed = !status && text;
        free(text);
    }
    mem_fail_at = 0;
    sol_model_free(m);
}

static void test_out_of_memory(void) {
    bool passed = false;
    long at = 1;
    for (; !passed && at < 1000; at++) build_with_failure(at, &passed);
    CHECK(passed && at > 3);
}

/* ---- Changing models ---- */

static struct model *parse(const char *source) {
    struct model *m = NULL;
    enum sol_status status = ir_parse(source, &arena, &m);
    CHECK(!status);
    if (status) fprintf(stderr, "    %s\n", sol_error());
    return m;
}

static const char *print(const struct model *m) {
    struct text text;
    text_init(&text, &arena);
    ir_print(&text, m);
    return text.at;
}

static const char chain[] = "model \"chain\" {\n"
                            "  symbol $0 \"n\"\n"
                            "  %0 = input f32[$0,4] \"x\"\n"
                            "  %1 = param f32[4] \"w\"\n"
                            "  %2 = relu %0 # \"a.py:1\"\n"
                            "  %3 = add %2 %1\n"
                            "  %4 = mul %3 %2\n"
                            "  output %4 \"y\"\n"
                            "  output %2 \"z\"\n"
                            "}\n";

static void test_clone(void) {
    struct model *m = parse(chain), *copy = ir_clone(&arena, m);
    CHECK_TEXT(print(copy), chain);
    CHECK(!ir_verify(copy));
    copy->layers.at[2]->kind = LAYER_tanh;
    copy->name = "other";
    CHECK_TEXT(print(m), chain);
    for (int i = 0; i < m->layers.n; i++) CHECK(copy->layers.at[i] != m->layers.at[i]);
}

/* Counts the inputs of layers that are `t`, plus one if `t` is an output. */
static int count_readers(const struct model *m, const struct tensor *t) {
    int n = ir_is_output(m, t);
    for (int i = 0; i < m->layers.n; i++)
        for (int k = 0; k < m->layers.at[i]->n_in; k++) n += m->layers.at[i]->in[k] == t;
    return n;
}

static void test_replace(void) {
    struct model *m = parse(chain);
    struct tensor *x = m->inputs.at[0], *relu = m->layers.at[2]->out[0];
    CHECK(count_readers(m, relu) == 3 && count_readers(m, x) == 1);
    CHECK(ir_is_output(m, relu) && !ir_is_output(m, x));
    ir_replace(m, relu, x);
    CHECK(count_readers(m, relu) == 0 && count_readers(m, x) == 4);
    CHECK(ir_is_output(m, x) && m->layers.at[4]->in[1] == x);
    CHECK(!ir_verify(m));
    CHECK(size_equal(ir_elements(x), read_size("4*$0")));
}

static void test_verify(void) {
    struct model *m = parse(chain);
    struct layer *last = m->layers.at[4];
    m->layers.at[4] = m->layers.at[3], m->layers.at[3] = last;
    CHECK(ir_verify(m) == SOL_EBUG && strstr(sol_error(), "before it is made"));

    m = parse(chain);
    m->layers.at[3]->out[0]->dim[1] = size_const(5);
    CHECK(ir_verify(m) == SOL_EBUG && strstr(sol_error(), "stale type or shape"));

    m = parse(chain);
    m->layers.at[3] = m->layers.at[2];
    CHECK(ir_verify(m) == SOL_EBUG && strstr(sol_error(), "made twice"));

    m = parse(chain);
    m->layers.at[2]->out[0]->producer = m->layers.at[3];
    CHECK(ir_verify(m) == SOL_EBUG && strstr(sol_error(), "another producer"));

    m = parse(chain);
    m->layers.n = 4;
    CHECK(ir_verify(m) == SOL_EBUG && strstr(sol_error(), "output 0"));
}

int main(void) {
    static void (*const tests[])(void) = {
        test_size_text,     test_size_arithmetic, test_size_quotients, test_random_quotients,
        test_size_eval,     test_infer,           test_broadcast,      test_builder,
        test_sticky,        test_long_names,      test_check_again,    test_dtypes,
        test_out_of_memory, test_clone,           test_replace,        test_verify,
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
