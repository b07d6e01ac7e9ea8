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
    /* Convolution */
    {X " f32[4,3,3,3]", "conv", "f32[$0,4,6,6]", 0},
    {X " f32[4,3,3,3] f32[4]", "conv pad=[1,1,1,1]", "f32[$0,4,8,8]", 0},
    {X " f32[4,3,3,3]", "conv pad=[1,0,2,1] stride=[2,3]", "f32[$0,4,5,3]", 0},
    {X " f32[4,3,3,3]", "conv dilation=[3,2]", "f32[$0,4,2,4]", 0},
    {X6 " f32[4,3,1,1]", "conv groups=2", "f32[$0,4,8,8]", 0},
    {X6 " f32[12,1,3,3]", "conv groups=6", "f32[$0,12,6,6]", 0},
    {X " f32[64,64,7,7]", "conv", "!weight [64,64,7,7] expects 64 channels, input [?,3,8,8] has 3",
     SOL_EINVAL},
    {X " f32[4,3,9,3]", "conv", "!does not fit", SOL_EINVAL},
    {X " f32[4,3,3,3] f32[3]", "conv", "!bias", SOL_EINVAL},
    {X " f32[4,3,3,3] f32[4,1]", "conv", "!bias", SOL_EINVAL},
    {X " f32[4,3,3]", "conv", "!weight", SOL_EINVAL},
    {X " f32[4,$0,3,3]", "conv", "!weight", SOL_EINVAL},
    {X " f32[4,3,0,3]", "conv", "!kernel", SOL_EINVAL},
    {X " f32[4,3,3,3]", "conv stride=[0,1]", "!stride", SOL_EINVAL},
    {X " f32[4,3,3,3]", "conv dilation=[1,0]", "!dilation", SOL_EINVAL},
    {X " f32[4,3,3,3]", "conv pad=[0,0,-1,0]", "!pad", SOL_EINVAL},
    {X " f32[4,3,3,3]", "conv pad=[9223372036854775807,0,0,0]", "!pad", SOL_EINVAL},
    {X " f32[4,3,3,3]", "conv groups=0", "!groups", SOL_EINVAL},
    {X " f32[4,3,3,3]", "conv groups=2", "!groups", SOL_EINVAL},
    {"f32[3,8,8] f32[4,3,3,3]", "conv", "![3,8,8]", SOL_EINVAL},
    {"f32[1,$0,8,8] f32[4,3,3,3]", "conv", "!channels", SOL_EUNSUPPORTED},
    {"f32[1,3,$0,8] f32[4,3,3,3]", "conv", "f32[1,4,$0-2,6]", 0},
    {"f32[1,3,$0,$0] f32[4,3,3,3]", "conv stride=[2,1] pad=[1,1,1,1]", "f32[1,4,$8,$0]", 0},
    {X, "conv", "!1 inputs", SOL_EINVAL},
    {X " f64[4,3,3,3]", "conv", "!input 0 is f32, but input 1 is f64", SOL_EINVAL},
    /* Linear, batch norm, softmax */
    {"f32[$0,7,5] f32[9,5] f32[9]", "linear", "f32[$0,7,9]", 0},
    {"f32[5] f32[9,5]", "linear", "f32[9]", 0},
    {"u8[$0,7,5] i8[9,5] i32[1] f32[9] f32[9]", "quant_linear", "f32[$0,7,9]", 0},
    {"u8[$0,5] i8[9,5] i32[1] f32[9] f32[9] f32[3]", "quant_linear dtype=i8", "i8[$0,9]", 0},
    {"u8[$0,4] i8[9,5] i32[1] f32[9] f32[9]", "quant_linear",
     "!weight [9,5] does not fit input [?,4]", SOL_EINVAL},
    {"u8[2,5] i8[9,5] i32[2] f32[9] f32[9]", "quant_linear", "!zero point [2]", SOL_EINVAL},
    {"u8[2,5] i8[9,5] i32[1] f32[5] f32[9]", "quant_linear", "!scale [5]", SOL_EINVAL},
    {"u8[2,5] i8[9,5] i32[1] f32[9] f32[1,9]", "quant_linear", "!bias [1,9]", SOL_EINVAL},
    {"u8[2,5] i8[9,5] i32[1] f32[9] f32[9] f32[2]", "quant_linear dtype=u8", "!range [2]",
     SOL_EINVAL},
    {"u8[$0,3,8,8] i8[9,3,3,3] i32[1] f32[9] f32[9]", "quant_conv stride=[2,2]", "f32[$0,9,3,3]",
     0},
    {"u8[$0,4,8,8] i8[9,3,3,3] i32[1] f32[9] f32[9]", "quant_conv", "!expects 3 channels",
     SOL_EINVAL},
    {"f32[$0,4] f32[9,5]", "linear", "!weight [9,5] does not fit input [?,4]", SOL_EINVAL},
    {"f32[] f32[9,5]", "linear", "!weight", SOL_EINVAL},
    {"f32[2,5] f32[9,5] f32[5]", "linear", "!bias", SOL_EINVAL},
    {"f32[$0,4,2,5] f32[4,5,3]", "matmul", "f32[$0,4,2,3]", 0},
    {"f32[2,5] f32[$0,5,3]", "matmul", "f32[$0,2,3]", 0},
    {"f32[2,5] f32[4,3]", "matmul", "!no product of [2,5] and [4,3]", SOL_EINVAL},
    {"f32[2,2,5] f32[3,5,3]", "matmul", "!no product", SOL_EINVAL},
    {"f32[5] f32[5,3]", "matmul", "!no product", SOL_EINVAL},
    {X " f32[3] f32[3] f32[3] f32[3]", "batch_norm eps=0.001", X, 0},
    {X " f32[3] f32[3] f32[4] f32[3]", "batch_norm", "!parameter [4]", SOL_EINVAL},
    {"f32[3] f32[3] f32[3] f32[3] f32[3]", "batch_norm", "!channels", SOL_EINVAL},
    {X, "softmax axis=-1", X, 0},
    {"u8[3]", "clamp min=-1.0", "!-1 is no constant of type u8", SOL_EINVAL},
    {"i8[3]", "clamp max=128.0", "!128 is no constant of type i8", SOL_EINVAL},
    {"i32[3]", "clamp max=0.5", "!0.5 is no constant of type i32", SOL_EINVAL},
    {"i32[3]", "clamp max=nan", "!nan is no constant of type i32", SOL_EINVAL},
    {"i32[3]", "clamp min=-inf max=-2147483648.0", "i32[3]", 0},
    {"i8[1,1,3,3]", "max_pool min=-129.0", "!-129 is no constant of type i8", SOL_EINVAL},
    {"bool[3,3]", "pad value=2.0", "!2 is no constant of type bool", SOL_EINVAL},
    {"bool[3,3]", "pad pad=[1,1,0,0] value=-inf", "bool[4,4]", 0},
    {"", "scalar value=inf dtype=i64", "!inf is no constant of type i64", SOL_EINVAL},
    {"", "scalar value=9007199254740993.0 dtype=i64", "i64[]", 0},
    {"", "scalar value=-1.0 dtype=bool", "!-1 is no constant of type bool", SOL_EINVAL},
    {X, "cumsum axis=-2", X, 0},
    {"f32[]", "cumsum", "!axis 0 of a tensor of rank 0", SOL_EINVAL},
    {X, "argmax axis=-3", "i64[$0,8,8]", 0},
    {X, "argmin keepdim=true", "i64[1,3,8,8]", 0},
    {"u8[5]", "argmax", "i64[]", 0},
    {"f32[]", "argmax", "!axis 0 of a tensor of rank 0", SOL_EINVAL},
    {"f32[2,0]", "argmin axis=1", "!no largest or smallest of axis 1, which is empty", SOL_EINVAL},
    {"", "arange shape=[$0] dtype=i32", "i32[$0]", 0},
    {"i64[]", "random shape=[$0,3] stream=1073741823", "f32[$0,3]", 0},
    {"i64[]", "random shape=[]", "f32[]", 0},
    {"i64[1]", "random shape=[3]", "!seed [1] is not one value", SOL_EINVAL},
    {"i64[]", "random shape=[3] stream=-1", "!stream -1; streams are 0 to 1073741823", SOL_EINVAL},
    {"i64[]", "random shape=[65536,65537]", "!more than 2^32 values", SOL_EUNSUPPORTED},
    {"i32[3] i32[2,1] i32[]", "random_bits", "i32[2,3]", 0},
    {"", "arange shape=[]", "!needs one length in shape", SOL_EINVAL},
    {"", "arange shape=[2,3]", "!needs one length in shape", SOL_EINVAL},
    {"", "arange shape=[-1]", "!dim 0 would be -1", SOL_EINVAL},
    {"f32[3]", "arange shape=[3]", "!1 inputs; it takes 0 to 0", SOL_EINVAL},
    {X, "softmax axis=4", "!axis 4 of a tensor of rank 4", SOL_EINVAL},
    {X, "softmax axis=-5", "!axis -5", SOL_EINVAL},
    {X, "log_softmax axis=1", X, 0},
    {X, "log_softmax axis=4", "!axis 4 of a tensor of rank 4", SOL_EINVAL},
    /* Transposed convolution */
    {X " f32[3,4,3,3] f32[4]", "conv_transpose", "f32[$0,4,10,10]", 0},
    {X6 " f32[6,2,4,3]", "conv_transpose groups=2 stride=[2,3] pad=[1,1,1,0] output_pad=[1,0]",
     "f32[$0,4,17,23]", 0},
    {X " f32[4,3,3,3]", "conv_transpose", "!weight [4,3,3,3] in 1 groups does not fit", SOL_EINVAL},
    {X " f32[3,4,3,3]", "conv_transpose groups=2", "!in 2 groups", SOL_EINVAL},
    {X " f32[3,4,3,3] f32[3]", "conv_transpose", "!bias [3]", SOL_EINVAL},
    {X " f32[3,4,3,3]", "conv_transpose pad=[9,0,9,0]", "!no rows", SOL_EINVAL},
    {X " f32[3,4,3,3]", "conv_transpose stride=[0,1]", "!stride", SOL_EINVAL},
    {X " f32[3,4,3,3]", "conv_transpose output_pad=[-1,0]", "!output_pad", SOL_EINVAL},
    {X " f32[3,4,3,3]", "conv_transpose stride=[2147483647,1]", "!too many", SOL_EINVAL},
    /* Norms and composite reductions */
    {X " f32[8] f32[8,1]", "layer_norm axes=[-1]", X, 0},
    {X " f32[8] f32[9]", "layer_norm axes=[-1]", "!parameter [9] does not broadcast", SOL_EINVAL},
    {X " f32[2,1,1,1,1]", "layer_norm", "!parameter [2,1,1,1,1]", SOL_EINVAL},
    {X " f32[$0,3,8,8]", "rms_norm axes=[1]", X, 0},
    {X, "rms_norm axes=[4]", "!axis 4", SOL_EINVAL},
    {X6 " f32[6] f32[6]", "group_norm groups=3", X6, 0},
    {X6, "group_norm groups=4", "!4 groups do not divide 6 channels", SOL_EINVAL},
    {X6, "group_norm groups=0", "!0 groups", SOL_EINVAL},
    {X6 " f32[3]", "group_norm groups=3", "!parameter [3]", SOL_EINVAL},
    {"f32[3]", "group_norm", "!no constant number of channels", SOL_EINVAL},
    {X, "logsumexp axes=[1]", "f32[$0,8,8]", 0},
    {"f32[2,0]", "logsumexp axes=[1]", "!axis 1, which is empty", SOL_EINVAL},
    {X, "norm p=1.0 axes=[-1] keepdim=true", "f32[$0,3,8,1]", 0},
    {X, "norm p=nan", "!p is NaN", SOL_EINVAL},
    {"f32[2,0]", "norm p=inf axes=[1]", "!which is empty", SOL_EINVAL},
    {"f32[2,0]", "norm axes=[1]", "f32[2]", 0},
    {X, "variance axes=[0]", "f32[3,8,8]", 0},
    {X, "variance axes=[1,2] correction=1.0", "f32[$0,8]", 0},
    {X, "variance axes=[0] correction=1.0", "!a dim of unknown size", SOL_EUNSUPPORTED},
    /* Attention: q, k, v, mask */
    {"f32[$0,8,5,16] f32[$0,8,7,16] f32[$0,8,7,4]", "attention causal=true", "f32[$0,8,5,4]", 0},
    {"f32[5,16] f32[7,16] f32[7,4] f32[5,7]", "attention", "f32[5,4]", 0},
    {"f64[5,16] f64[7,16] f64[7,4] bool[5,7]", "attention", "f64[5,4]", 0},
    {"f32[5,16] f32[7,16] f32[7,4] i64[5,7]", "attention", "!input 3 is i64", SOL_EUNSUPPORTED},
    {"f32[$0,8,5,16] f32[7,16] f32[1,7,4] f32[8,1,7]", "attention", "f32[$0,8,5,4]", 0},
    {"f32[$0,8,5,16] f32[$0,2,7,16] f32[$0,2,7,4] f32[7]", "attention", "f32[$0,8,5,4]", 0},
    {"f32[$0,8,5,16] f32[$0,3,7,16] f32[$0,3,7,4]", "attention", "!no attention", SOL_EINVAL},
    {"f32[$0,8,5,16] f32[$0,2,7,16] f32[$0,4,7,4]", "attention", "!no attention", SOL_EINVAL},
    {"f32[5,16] f32[7,15] f32[7,4]", "attention", "!no attention of [5,16], [7,15] and [7,4]",
     SOL_EINVAL},
    {"f32[5,16] f32[7,16] f32[6,4]", "attention", "!no attention", SOL_EINVAL},
    {"f32[5,16] f32[7,16] f32[4]", "attention", "!no attention", SOL_EINVAL},
    {"f32[5,16] f32[7,16] f32[7,4] f32[5,6]", "attention",
     "!mask [5,6] does not broadcast to "
     "scores [5,7]",
     SOL_EINVAL},
    {"f32[5,16] f32[7,16] f32[7,4] f32[2,5,7]", "attention", "!mask [2,5,7]", SOL_EINVAL},
    {"f32[5,16] f32[0,16] f32[0,4]", "attention", "!there are no keys", SOL_EINVAL},
    /* Recurrent layers: gates, weight, state, and cell or bias, lengths */
    {"f32[$0,7,20] f32[20,5] f32[7,5] f32[7,5]", "lstm", "f32[$0+2,7,5]", 0},
    {"f32[$0,7,20] f32[20,5] f32[$0,5] f32[$0,5] i64[$0]", "lstm axis=-2", "f32[$0,9,5]", 0},
    {"f32[7,$0,15] f32[15,5] f32[$0,5] f32[5] i64[$0]", "gru reverse=true", "f32[8,$0,5]", 0},
    {"f64[0,1,1] f64[1,1] f64[1,1]", "rnn_tanh", "f64[1,1,1]", 0},
    {"f32[7,2,5] f32[5,5] f32[2,5] i32[2]", "rnn_relu", "!the lengths are i32", SOL_EUNSUPPORTED},
    {"f32[7,2,5] f32[5,5] f32[2,5] i64[7]", "rnn_relu", "!the number of steps [7]", SOL_EINVAL},
    /* Their gradients: gates, products, weight, dy, and cell or states, lengths */
    {"f32[$0,7,20] f32[$0,7,20] f32[20,5] f32[$0+2,7,5] f32[7,5]", "lstm_grad", "f32[$0+1,7,20]",
     0},
    {"f32[$0,7,15] f32[$0,7,15] f32[15,5] f32[$0,8,5] f32[$0,7,5] i64[$0]", "gru_grad axis=1",
     "f32[$0,8,20]", 0},
    {"f32[7,2,5] f32[7,2,5] f32[5,5] f32[8,2,5]", "rnn_relu_grad", "f32[8,2,5]", 0},
    {"f32[7,2,5] f32[6,2,5] f32[5,5] f32[8,2,5]", "rnn_relu_grad", "!the product [6,2,5]",
     SOL_EINVAL},
    {"f32[7,2,5] f32[7,2,5] f32[5,5] f32[7,2,5]", "rnn_tanh_grad", "!the gradient [7,2,5]",
     SOL_EINVAL},
    {"f32[7,2,20] f32[7,2,20] f32[20,5] f32[9,2,5] f32[7,5]", "lstm_grad", "!the cell [7,5]",
     SOL_EINVAL},
    {"f32[7,2,15] f32[7,2,15] f32[15,5] f32[8,2,5] f32[2,5]", "gru_grad", "!the states [2,5]",
     SOL_EINVAL},
    {"f32[7,2,5] f32[5,5] f32[7,5]", "rnn_tanh",
     "!the state [7,5] does not fit gates [7,2,5] and weight [5,5]", SOL_EINVAL},
    {"f32[7,2,20] f32[20,5] f32[2,5] f32[5]", "lstm", "!the cell [5]", SOL_EINVAL},
    {"f32[7,2,15] f32[15,5] f32[2,5] f32[2,5]", "gru", "!the bias [2,5]", SOL_EINVAL},
    {"f32[7,2,15] f32[20,5] f32[2,5] f32[2,5]", "lstm", "!gates [7,2,15] do not fit weight [20,5]",
     SOL_EINVAL},
    {"f32[7,2,0] f32[0,0] f32[2,0]", "rnn_tanh", "!do not fit", SOL_EINVAL},
    {"f32[2,5] f32[5,5] f32[2,5]", "rnn_tanh", "!gates [2,5] with steps along axis 0", SOL_EINVAL},
    {"f32[7,2,5] f32[5,5] f32[2,5]", "rnn_tanh axis=2", "!along axis 2", SOL_EINVAL},
    {"f32[7,2,5] f32[5,5] f32[2,5]", "rnn_tanh axis=3", "!axis 3", SOL_EINVAL},
    /* Triangles */
    {X, "tril diagonal=-1", X, 0},
    {X, "triu value=2.0", X, 0},
    {"f32[3]", "tril", "!rows and columns", SOL_EINVAL},
    {"u8[3,3]", "tril value=-1.0", "!u8", SOL_EINVAL},
    {X, "triu diagonal=4294967296", "!too far", SOL_EINVAL},
    /* Pointwise */
    {X, "relu", X, 0},
    {"bool[3]", "relu", "!input 0 is bool; it must be a float or an integer", SOL_EUNSUPPORTED},
    {X " f32[3,1,1]", "add", X, 0},
    {"f32[3,1,1] " X, "add", X, 0},
    {"f32[$0,1] f32[1,4]", "mul", "f32[$0,4]", 0},
    {"f32[] f32[]", "sub", "f32[]", 0},
    {"f32[0] f32[1]", "div", "f32[0]", 0},
    {"f32[$0] f32[4]", "maximum", "!do not broadcast", SOL_EINVAL},
    {"f32[2,3] f32[3,2]", "minimum", "![2,3] and [3,2]", SOL_EINVAL},
    {"bool[3] f32[$0,1] f32[]", "where", "f32[$0,3]", 0},
    {"bool[3] f32[2,1] f32[4]", "where", "!do not broadcast", SOL_EINVAL},
    {"f32[9,4]", "place axis=-1 start=1 step=2 shape=[8]", "f32[9,8]", 0},
    {"f32[9,$0]", "place axis=1 start=$0 shape=[2*$0+1]", "f32[9,2*$0+1]", 0},
    {"f32[9,0]", "place axis=1 start=7 shape=[2]", "f32[9,2]", 0},
    {"f32[9,4]", "place axis=1 start=2 step=2 shape=[8]",
     "!4 values from 2 by 2 leave axis 1 of [9,8]", SOL_EINVAL},
    {"f32[9,4]", "place axis=1 start=2 step=-1 shape=[8]", "!4 values from 2 by -1 leave axis 1",
     SOL_EINVAL},
    {"f32[9,4]", "place axis=1 step=0 shape=[8]", "!needs start >= 0, a step", SOL_EINVAL},
    {"f32[9,4]", "place axis=2 shape=[8]", "!axis 2 of a tensor of rank 2", SOL_EINVAL},
    {"f32[9,4,5] i64[$0,3]", "gather axis=1", "f32[9,$0,3,5]", 0},
    {"f32[9] i32[]", "gather", "f32[]", 0},
    {"f32[9] f32[2]", "gather", "!input 1 is f32; it must be i64 or i32", SOL_EUNSUPPORTED},
    {"f32[$0,9,4,5] i64[$0,9]", "scatter_sum shape=[7]", "f32[7,4,5]", 0},
    {"f32[$0,9,4,5] i32[$0,9]", "scatter_sum axis=1 shape=[$0+7]", "f32[$0,$0+7,4,5]", 0},
    {"f32[2,9] i64[2,9]", "scatter_sum axis=2 shape=[7]", "f32[2,9,7]", 0},
    {"f32[2,9] i64[]", "scatter_sum shape=[7]", "f32[7,2,9]", 0},
    {"f32[2,9] i64[2]", "scatter_sum axis=2 shape=[7]", "!2 batch dims, but the indices [2] have 1",
     SOL_EINVAL},
    {"f32[2,9] i64[3]", "scatter_sum shape=[7]", "!indices [3] are not the first ones of x [2,9]",
     SOL_EINVAL},
    {"f32[2] i64[2,1]", "scatter_sum shape=[7]", "!fewer dims", SOL_EINVAL},
    {"f32[2] i64[2]", "scatter_sum", "!one number of rows", SOL_EINVAL},
    {"f32[2] i64[2]", "scatter_sum shape=[-1]", "!dim 0 would be -1", SOL_EINVAL},
    {"f32[9,4] i64[2,5] f32[2,5]", "resample axis=1", "f32[9,5]", 0},
    {"f32[9,4,6] i64[2,$0] f32[2,$0] i64[3,5] f32[3,5]", "resample axis=1", "f32[9,$0,5]", 0},
    {"f32[9,4] i64[2,5] f32[3,5]", "resample",
     "!input 1 is [2,5] and input 2 is [3,5]; both must be [taps, n]", SOL_EINVAL},
    {"f32[9,4] i64[2,5] f32[2,5] i64[2,5]", "resample", "!no weights", SOL_EINVAL},
    {"f32[9,4] i64[2,5] f32[2,5] i64[2,5] f32[2,5]", "resample axis=1", "!no axis 2", SOL_EINVAL},
    {"f32[9,4] i64[17,5] f32[17,5]", "resample", "!17 taps", SOL_EUNSUPPORTED},
    {"f32[9,4] f32[2,5] f32[2,5]", "resample", "!input 1 is f32; it must be i64 or i32",
     SOL_EUNSUPPORTED},
    {"i64[9] i64[2]", "gather", "i64[2]", 0},
    {"f32[1,1,1,1,1,1] i64[2,1,1,1]", "gather", "!rank 9", SOL_EUNSUPPORTED},
    /* Windows. The results in ceil mode are those of PyTorch 2.x. */
    {X, "max_pool kernel=[2,2] stride=[2,2]", "f32[$0,3,4,4]", 0},
    {"f32[1,1,5,6]", "max_pool kernel=[2,2] stride=[2,2] ceil=true", "f32[1,1,3,3]", 0},
    {"f32[1,1,5,6]", "max_pool_index kernel=[2,2] stride=[2,2] ceil=true", "i32[1,1,3,3]", 0},
    {"f32[1,1,65536,32768]", "max_pool_index", "!more than 2147483647", SOL_EUNSUPPORTED},
    {"f32[1,1,3,3] i32[1,1,3,3]",
     "max_pool_grad kernel=[2,2] stride=[2,2] ceil=true shape=[1,1,5,6]", "f32[1,1,5,6]", 0},
    {"f32[$0,1,3,2*$0] i32[$0,1,3,2*$0]", "max_pool_grad kernel=[2,2] shape=[$0,1,4,2*$0+1]",
     "f32[$0,1,4,2*$0+1]", 0},
    {"f32[1,1,3,3] i32[1,1,2,3]", "max_pool_grad kernel=[2,2] shape=[1,1,4,4]",
     "!give [1,1,3,3], but input 1 is [1,1,2,3]", SOL_EINVAL},
    {"f32[1,1,3,3] i32[1,1,3,3]", "max_pool_grad kernel=[2,2] shape=[1,4,4]", "!", SOL_EINVAL},
    {"f32[1,1,3,3] i32[1,1,3,3]", "max_pool_grad kernel=[2,2]", "!", SOL_EINVAL},
    {"f32[1,1,4,4]", "max_pool kernel=[3,3] stride=[3,3] pad=[1,1,1,1] ceil=true", "f32[1,1,2,2]",
     0},
    {"f32[1,1,6,6]", "max_pool kernel=[3,3] stride=[4,4] pad=[1,1,1,1] ceil=true", "f32[1,1,2,2]",
     0},
    {"f32[1,1,1,1]", "avg_pool kernel=[2,2] stride=[2,2] ceil=true", "f32[1,1,1,1]", 0},
    {"f32[1,1,1,1]", "avg_pool kernel=[2,2] stride=[2,2]", "!does not fit", SOL_EINVAL},
    {X, "max_pool kernel=[3,3] dilation=[2,2]", "f32[$0,3,4,4]", 0},
    {"f32[1,1,$0,$0]", "max_pool kernel=[3,3] stride=[2,1] ceil=true", "f32[1,1,$8,$0-2]", 0},
    {"f32[1,1,$0,6]", "max_pool kernel=[2,2] stride=[3,3] ceil=true", "!is no formula",
     SOL_EUNSUPPORTED},
    {"f32[1,1,$0,$0]", "adaptive_avg_pool kernel=[2,3]", "f32[1,1,2,3]", 0},
    {X, "avg_pool kernel=[3,3] pad=[2,0,0,0]", "!pad 2 is more than half", SOL_EINVAL},
    {X, "avg_pool kernel=[0,3]", "!kernel", SOL_EINVAL},
    {X, "avg_pool kernel=[4294967296,3]", "!kernel", SOL_EINVAL},
    {X, "adaptive_avg_pool kernel=[1,5]", "f32[$0,3,1,5]", 0},
    {X, "adaptive_avg_pool kernel=[0,1]", "!kernel", SOL_EINVAL},
    {"f32[1,3,0,8]", "adaptive_avg_pool", "!rows", SOL_EINVAL},
    /* Reductions */
    {X, "sum", "f32[]", 0},
    {X, "sum keepdim=true", "f32[1,1,1,1]", 0},
    {X, "mean axes=[-1,2]", "f32[$0,3]", 0},
    {X, "mean axes=[3,2] keepdim=true", "f32[$0,3,1,1]", 0},
    {"f32[]", "sum", "f32[]", 0},
    {X, "sum axes=[1,-3]", "!axis 1 is given twice", SOL_EINVAL},
    {X, "sum axes=[4]", "!axis 4", SOL_EINVAL},
    {"f32[2,0]", "sum", "f32[]", 0},
    {"f32[2,0]", "reduce_max axes=[1]", "!empty", SOL_EINVAL},
    {"f32[2,0]", "reduce_min axes=[1]", "!empty", SOL_EINVAL},
    {"f32[2,0]", "reduce_min axes=[0]", "f32[0]", 0},
    /* Shapes */
    {X, "reshape shape=[$0,-1]", "f32[$0,192]", 0},
    {X, "reshape shape=[-1,8]", "f32[24*$0,8]", 0},
    {"f32[1,1]", "reshape shape=[]", "f32[]", 0},
    {X, "reshape shape=[-1,-1]", "!two dims", SOL_EINVAL},
    {X, "reshape shape=[$0,191]", "!number of elements", SOL_EINVAL},
    {X, "reshape shape=[-1,5]", "!number of elements", SOL_EINVAL},
    {"f32[0,3]", "reshape shape=[0,-1]", "!number of elements", SOL_EINVAL},
    {"f32[6]", "reshape shape=[-2,-3]", "!dim 0 would be -2", SOL_EINVAL},
    {X, "permute axes=[0,2,3,1]", "f32[$0,8,8,3]", 0},
    {X, "permute axes=[-1,0,1,2]", "f32[8,$0,3,8]", 0},
    {X, "permute axes=[0,1,2]", "!3 axes", SOL_EINVAL},
    {X, "permute axes=[0,1,2,2]", "!axis 2 is given twice", SOL_EINVAL},
    {X, "slice axis=1 start=1 shape=[2]", "f32[$0,2,8,8]", 0},
    {X, "slice axis=-1 step=3 shape=[3]", "f32[$0,3,8,3]", 0},
    {X, "slice axis=0 shape=[$0]", X, 0},
    {X, "slice axis=1 start=9 shape=[0]", "f32[$0,0,8,8]", 0},
    {X, "slice axis=1 start=1 shape=[3]", "!leave axis 1", SOL_EINVAL},
    {X, "slice axis=1 start=9223372036854775807 shape=[2]", "!leave axis 1", SOL_EINVAL},
    {X, "slice axis=1 step=0 shape=[1]", "!step", SOL_EINVAL},
    {X, "slice axis=3 start=7 step=-3 shape=[3]", "f32[$0,3,8,3]", 0},
    {X, "slice axis=3 start=7 step=-3 shape=[4]", "!leave axis 3", SOL_EINVAL},
    {X, "slice axis=3 start=8 step=-1 shape=[2]", "!leave axis 3", SOL_EINVAL},
    {X, "slice axis=0 start=$0-1 step=-1 shape=[$0]", X, 0},
    {X, "slice axis=1 start=-1 shape=[1]", "!start", SOL_EINVAL},
    {X, "slice axis=0 shape=[1]", "f32[1,3,8,8]", 0},
    {X, "slice axis=0 start=$0-1 shape=[1]", "f32[1,3,8,8]", 0},
    {X, "slice axis=0 start=2 shape=[$0-2]", "f32[$0-2,3,8,8]", 0},
    {X, "slice axis=0 start=$1 shape=[1]", "!a symbol that the model does not have", SOL_EINVAL},
    {X, "slice axis=1 start=$0 shape=[1]", "f32[$0,1,8,8]", 0},
    {X " " X6, "concat axis=1", "f32[$0,9,8,8]", 0},
    {X " " X, "concat axis=-1", "f32[$0,3,8,16]", 0},
    {X " " X6, "concat axis=2", "!differ", SOL_EINVAL},
    {X " f32[3,8,8]", "concat axis=1", "!differ", SOL_EINVAL},
    {"f32[1,3,1]", "expand shape=[$0,5,3,4]", "f32[$0,5,3,4]", 0},
    {"f32[2]", "expand shape=[3]", "!cannot be expanded", SOL_EINVAL},
    {"f32[2,2]", "expand shape=[2]", "!more dims", SOL_EINVAL},
    {X, "pad pad=[1,2,3,4] value=-1.5", "f32[$0,3,12,14]", 0},
    {"f32[2,$0]", "pad pad=[0,1,0,1]", "f32[2,$0+2]", 0},
    {X, "pad pad=[-1,0,0,0]", "!pads", SOL_EUNSUPPORTED},
    {"f32[2]", "pad", "!rows", SOL_EINVAL},
    /* Attributes */
    {X, "relu alpha=1", "!relu has no attribute \"alpha\"", SOL_EINVAL},
    {X, "elu alpha", "!alpha", SOL_EINVAL},
    {X, "elu alpha=x", "!alpha", SOL_EINVAL},
    {X, "softmax axis=1.5", "!axis", SOL_EINVAL},
    {X, "sum axes=[0,0,0,0,0,0,0,0,0]", "!axes", SOL_EINVAL},
    {X, "sum keepdim=2", "!keepdim", SOL_EINVAL},
    {X, "sum keepdim=trueish", "!keepdim", SOL_EINVAL},
    {X, "max_pool kernel=[2]", "!kernel", SOL_EINVAL},
    {X, "max_pool kernel=[2,2,2]", "!kernel", SOL_EINVAL},
    /* Symbols that the model does not have; sizes that may be negative, or overflow */
    {"f32[1]", "expand shape=[$1]", "!dim 0 is $1, a symbol that the model does not have",
     SOL_EINVAL},
    {"f32[1]", "expand shape=[$0-5]", "f32[$0-5]", 0},
    {"f32[1]", "expand shape=[-5]", "!dim 0 would be -5", SOL_EINVAL},
    {"f32[$0-5]", "relu", "f32[$0-5]", 0},
    {X " f32[0,$0,1,1]", "conv", "!weight", SOL_EINVAL},
    {X " f32[0,3,1,1]", "conv groups=9223372036854775807", "!no channels", SOL_EUNSUPPORTED},
    {"f32[1,3,0,8] f32[4,3,1,1]", "conv pad=[1,1,1,1]", "!rows", SOL_EINVAL},
    {"f32[2,3] f32[0,3]", "linear", "!no channels", SOL_EUNSUPPORTED},
    {X, "max_pool kernel=[3,3] dilation=[2,2] pad=[2,2,2,2]", X, 0},
    {"f32[1,1,9223372036854775807,1]", "max_pool stride=[2147483647,1] ceil=true", "!overflow",
     SOL_EUNSUPPORTED},
    {"f32[0,4294967296,4294967296]", "relu", "!overflow", SOL_EUNSUPPORTED},
    {"f32[9007199254740992]", "neg", "!overflow", SOL_EUNSUPPORTED},
    {"f32[9007199254740991]", "neg", "f32[9007199254740991]", 0},
    {"f32[4294967296] f32[4294967296,1]", "add", "!overflow", SOL_EUNSUPPORTED},
    {"f32[9223372036854775807] f32[1]", "concat", "!overflow", SOL_EUNSUPPORTED},
    {"f32[1]", "expand shape=[4294967296,4294967296]", "!overflow", SOL_EUNSUPPORTED},
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
