/*
 * The reference (device/ref) on element types, against results that are written here as numbers.
 *
 *   row: inputs' types and values, a layer  ->  ref_run  ->  values, compared with the row's
 *
 * All other tests compare with the reference. So what it returns at the limits of a type is tested here.
 */
#include "check.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"
#include "one_layer.h"

#include <math.h>

#define MAX_VALUES 64

static struct arena arena;
static jmp_buf boundary;

/* `values`: the inputs' elements, separated by blanks, in the order of the inputs. */
static const struct row {
    const char *inputs, *layer, *values, *expected;
} rows[] = {
    /* Casts between integers wrap; to bool they compare with 0. */
    {"i64[5]", "cast dtype=i32", "1 -1 2147483648 -2147483649 4294967295",
     "1 -1 -2147483648 2147483647 -1"},
    {"i64[4]", "cast dtype=i16", "32767 32768 -32769 65536", "32767 -32768 32767 0"},
    {"i32[5]", "cast dtype=i8", "127 128 -129 256 -1", "127 -128 127 0 -1"},
    {"i32[5]", "cast dtype=u8", "255 256 -1 128 -129", "255 0 255 128 127"},
    {"u8[3]", "cast dtype=i8", "127 128 255", "127 -128 -1"},
    {"i8[3]", "cast dtype=i64", "-128 127 -1", "-128 127 -1"},
    {"i64[4]", "cast dtype=bool", "0 256 -1 4294967296", "0 1 1 1"},
    {"bool[2]", "cast dtype=i16", "0 1", "0 1"},
    {"bool[2]", "cast dtype=bf16", "0 1", "0 1"},
    {"i64[2]", "cast dtype=i64", "9223372036854775807 -9223372036854775807",
     "9223372036854775807 -9223372036854775807"},
    /* Casts from floats round towards 0; NaN is true. */
    {"f32[6]", "cast dtype=i32", "1.9 -1.9 0.5 -0.5 16777216 -2147483648",
     "1 -1 0 0 16777216 -2147483648"},
    {"f64[4]", "cast dtype=i64", "2251799813685248.5 -1.99 9007199254740993 -9223372036854775808",
     "2251799813685248 -1 9007199254740992 -9223372036854775808"},
    {"f32[3]", "cast dtype=u8", "255.9 0.99 128", "255 0 128"},
    {"f16[4]", "cast dtype=i8", "-128 127.9 1.5 -0.5", "-128 127 1 0"},
    {"f32[6]", "cast dtype=bool", "0 -0.0 1e-45 nan inf -2", "0 0 1 1 1 1"},
    /* Casts to floats round to the nearest, in the middle to even. An i64 is rounded once. */
    {"i64[3]", "cast dtype=f32", "16777217 16777219 9007199791611905",
     "16777216 16777220 9007200328482816"},
    {"i64[2]", "cast dtype=f64", "9007199254740993 9007199254740995",
     "9007199254740992 9007199254740996"},
    {"f64[4]", "cast dtype=f32", "1.00000005960464477539 1.0000001788139343 1e39 1e-46",
     "1 1.0000002384185791 inf 0"},
    {"f32[7]", "cast dtype=f16", "65519.99 65520 -65520 2049 2051 1e-8 -0.0",
     "65504 inf -inf 2048 2052 0 -0.0"},
    {"f32[5]", "cast dtype=f16", "5.9604644775390625e-8 2.9802322387695312e-8 3e-8 inf nan",
     "5.9604644775390625e-8 0 5.9604644775390625e-8 inf nan"},
    {"f32[6]", "cast dtype=bf16", "257 259 3.4e38 1e-40 -inf nan",
     "256 260 inf 1.0010271697e-40 -inf nan"},
    /* Arithmetic of integers wraps. */
    {"i8[4] i8[4]", "add", "100 -128 5 -1 100 -1 0 -1", "-56 127 5 -2"},
    {"u8[3] u8[3]", "sub", "0 5 255 1 7 255", "255 254 0"},
    {"i32[2] i32[2]", "mul", "65536 -2147483648 65536 -1", "0 -2147483648"},
    {"i64[2] i64[2]", "add", "9223372036854775807 4611686018427387905 1 1",
     "-9223372036854775808 4611686018427387906"},
    {"i16[2]", "neg", "-32768 7", "-32768 -7"},
    {"i16[2]", "abs", "-32768 -7", "-32768 7"},
    {"i8[2]", "square", "16 -3", "0 9"},
    {"i8[3]", "sign", "-128 0 5", "-1 0 1"},
    {"f32[4]", "sign", "-0.5 -0.0 nan inf", "-1 0 0 1"},
    {"i8[3]", "relu", "-128 0 5", "0 0 5"},
    {"i8[4]", "clamp min=-3.0", "-128 -3 0 127", "-3 -3 0 127"},
    {"u8[3]", "clamp min=3.0 max=200.0", "0 200 255", "3 200 200"},
    /* Quotients and remainders, of both signs, by 0 and at the limit. */
    {"i32[6] i32[6]", "floor_div", "7 -7 7 -7 5 -2147483648 2 2 -2 -2 0 -1",
     "3 -4 -4 3 0 -2147483648"},
    {"i32[6] i32[6]", "trunc_div", "7 -7 7 -7 5 -2147483648 2 2 -2 -2 0 -1",
     "3 -3 -3 3 0 -2147483648"},
    {"i32[6] i32[6]", "mod", "7 -7 7 -7 5 -2147483648 2 2 -2 -2 0 -1", "1 1 -1 -1 0 0"},
    {"i32[6] i32[6]", "rem", "7 -7 7 -7 5 -2147483648 2 2 -2 -2 0 -1", "1 -1 1 -1 0 0"},
    {"i64[1] i64[]", "floor_div", "-9223372036854775808 -1", "-9223372036854775808"},
    {"i64[1] i64[]", "rem", "-9223372036854775808 -1", "0"},
    {"f32[6] f32[6]", "floor_div", "7 -7 7 -7.5 1 -0.0 2 2 -2 -2 0 3", "3 -4 -4 3 inf -0.0"},
    {"f32[4] f32[4]", "floor_div", "5 -5 inf 1 -inf inf 2 nan", "-1 -1 nan nan"},
    {"f32[6] f32[6]", "mod", "7 -7 7 -7.5 1 5 2 2 -2 -2 0 inf", "1 1 -1 -1.5 nan 5"},
    {"f32[5] f32[5]", "rem", "7 -7 7 -7.5 inf 2 2 -2 -2 2", "1 -1 1 -1.5 nan"},
    {"f64[3] f64[3]", "trunc_div", "7 -7 1 2 2 0", "3 -3 inf"},
    /* Bits. */
    {"u8[2] u8[2]", "bit_and", "204 255 170 1", "136 1"},
    {"i8[2] i8[2]", "bit_or", "-128 4 1 3", "-127 7"},
    {"i64[1] i64[1]", "bit_xor", "-1 1", "-2"},
    {"u8[2]", "bit_not", "0 254", "255 1"},
    {"i8[2]", "bit_not", "0 -1", "-1 0"},
    {"bool[2]", "bit_not", "0 1", "1 0"},
    {"bool[4] bool[4]", "bit_xor", "0 0 1 1 0 1 0 1", "0 1 1 0"},
    {"i8[5] i8[5]", "shift_left", "1 1 1 -1 1 7 8 -1 1 100", "-128 0 0 -2 0"},
    {"i8[6] i8[6]", "shift_right", "-128 -128 127 -1 64 -3 7 8 8 -1 1 100", "-1 -1 0 -1 32 -1"},
    {"u8[3] u8[3]", "shift_right", "255 255 128 7 8 255", "1 0 0"},
    {"i64[3] i64[3]", "shift_left", "1 1 3 63 64 62",
     "-9223372036854775808 0 -4611686018427387904"},
    /* Rounding. */
    {"f32[6]", "round", "0.5 1.5 2.5 -0.5 -1.5 nan", "0 2 2 -0.0 -2 nan"},
    {"f32[3]", "floor", "-0.5 0.5 inf", "-1 0 inf"},
    {"f32[3]", "ceil", "-0.5 0.5 -inf", "-0.0 1 -inf"},
    {"f64[3]", "trunc", "-0.5 1.5 -4503599627370495.5", "-0.0 1 -4503599627370495"},
    {"bf16[2] bf16[2]", "add", "256 256 1 3", "256 260"},
    {"f16[2] f16[2]", "mul", "256 3 256 0.333251953125", "inf 1"},
    /* Comparisons, and where. */
    {"f32[4] f32[4]", "less", "1 2 nan -0.0 2 1 1 0", "1 0 0 0"},
    {"f32[4] f32[4]", "less_equal", "1 2 nan -0.0 2 2 nan 0", "1 1 0 1"},
    {"f16[3] f16[3]", "equal", "1 nan -0.0 1 nan 0", "1 0 1"},
    {"i64[2] i64[2]", "equal", "9007199254740993 5 9007199254740992 5", "0 1"},
    {"bool[4] bool[4]", "less", "0 0 1 1 0 1 0 1", "0 1 0 0"},
    {"bool[3] i64[1] i64[3]", "where", "1 0 1 9223372036854775807 1 -2 3",
     "9223372036854775807 -2 9223372036854775807"},
    {"bool[4] bool[4]", "maximum", "0 0 1 1 0 1 0 1", "0 1 1 1"},
    {"bool[4] bool[4]", "minimum", "0 0 1 1 0 1 0 1", "0 0 0 1"},
    /* Sums, products, extremes. */
    {"i8[3]", "sum", "100 100 100", "44"},
    {"f16[3]", "sum", "2048 1 1", "2050"},
    {"f32[3]", "sum", "16777216 1 1", "16777218"},
    {"i32[3]", "prod", "65536 65536 7", "0"},
    {"u8[0]", "prod", "", "1"},
    {"f64[3]", "prod", "1e200 1e200 0.5", "inf"},
    {"bool[3]", "reduce_max", "0 1 0", "1"},
    {"bool[3]", "reduce_min", "0 1 0", "0"},
    {"i64[2]", "reduce_max", "9223372036854775806 9223372036854775807", "9223372036854775807"},
    {"i8[3]", "cumsum axis=0", "100 100 100", "100 -56 44"},
    {"f32[2,3]", "cumsum axis=0", "1 2 3 10 nan 30", "1 2 3 11 nan 33"},
    {"f32[2,3]", "cumsum axis=1", "1 2 3 10 nan 30", "1 3 6 10 nan nan"},
    {"f32[5]", "argmax axis=0", "1 5 nan 5 nan", "2"},
    {"f32[5]", "argmin axis=0", "1 5 nan -inf nan", "2"},
    {"i8[4]", "argmax axis=0", "-128 7 7 -1", "1"},
    {"bool[3]", "argmin axis=0", "1 0 0", "1"},
    {"u8[2,3]", "argmax axis=-1 keepdim=true", "1 200 3 9 9 1", "1 0"},
    {"u8[2,3]", "argmin axis=0", "1 200 3 9 9 1", "0 1 1"},
    {"i8[1,1,2,2]", "max_pool kernel=[2,2] pad=[1,1,1,1] stride=[2,2]", "-128 -3 -4 -5",
     "-128 -3 -4 -5"},
    {"i8[1,1,1,2]", "max_pool kernel=[1,1] min=0.0", "-128 3", "0 3"},
    {"i8[1,1,2,2]", "max_pool_index kernel=[2,2] pad=[1,1,1,1] stride=[1,2]", "5 5 5 -3",
     "0 1 0 1 2 3"},
    {"f32[1,1,2,3]", "max_pool_index kernel=[2,2]", "nan 2 -inf 2 nan -inf", "4 4"},
    {"f32[1,1,2,2]", "max_pool_index kernel=[2,2] pad=[1,1,1,1] stride=[2,2]", "-inf -inf nan -inf",
     "0 1 2 3"},
    {"f32[1,1,1,1]", "max_pool_index kernel=[2,2] dilation=[2,2] pad=[1,1,1,1]", "7", "-1"},
    {"i8[1,1,1,3] i32[1,1,1,3]", "max_pool_grad kernel=[1,3] pad=[0,1,0,1] shape=[1,1,1,3]",
     "100 100 5 1 1 2", "0 -56 5"},
    {"f32[1,1,2,2] i32[1,1,2,2]", "max_pool_grad kernel=[2,2] stride=[2,2] shape=[1,1,4,5]",
     "1 2 3 4 6 2 -1 13", "0 0 2 0 0 0 1 0 0 0 0 0 0 4 0 0 0 0 0 0"},
    {"i8[1,2] i8[1,2] i8[1]", "linear", "100 2 2 3 1", "-49"},
    {"i64[1,2] i64[2,1]", "matmul", "9007199254740993 1 1 1", "9007199254740994"},
    {"u8[1,1,1,2] u8[1,1,1,2]", "conv", "200 100 2 3", "188"},
    /* Movements keep all bits. */
    {"i64[2]", "slice axis=0 start=1 shape=[1]", "1 -9007199254740993", "-9007199254740993"},
    {"i16[2]", "place start=1 step=2 shape=[5]", "-32768 3", "0 -32768 0 3 0"},
    {"f32[1,3]", "place axis=1 start=4 step=-2 shape=[5]", "1 nan -0.0", "-0.0 0 nan 0 1"},
    {"bool[2] bool[1]", "concat axis=0", "1 0 1", "1 0 1"},
    {"i16[1,2]", "permute axes=[1,0]", "-32768 3", "-32768 3"},
    {"u8[1]", "expand shape=[2,2]", "255", "255 255 255 255"},
    {"i32[1,1]", "pad pad=[0,1,0,1] value=-7.0", "5", "-7 5 -7"},
    {"i32[1,1]", "pad pad=[0,1,0,0] value=-inf", "5", "-2147483648 5"},
    {"bool[1,1]", "pad pad=[0,1,0,0] value=1.0", "0", "1 0"},
    {"f16[1,1]", "pad pad=[0,1,0,0] value=0.1", "5", "0.0999755859375 5"},
    {"i8[3] i32[2]", "gather axis=0", "-128 5 127 -1 0", "127 -128"},
    {"f32[4] i64[4]", "scatter_sum shape=[3]", "16777216 1 1 5 2 0 -1 2", "1 0 16777222"},
    {"i8[2,2] i32[2]", "scatter_sum shape=[2]", "100 -100 100 -100 1 1", "0 0 -56 56"},
    {"u8[2,3] i32[2,3]", "scatter_sum axis=1 shape=[2]", "1 2 3 4 5 6 0 1 0 1 1 1", "4 2 0 15"},
    {"f64[2] i32[]", "scatter_sum shape=[2]", "1 2 1", "0 0 1 2"},
    /* Random123's known answer for counter 0, key 0: 6b200159. */
    {"i32[1] i32[1] i32[1]", "random_bits", "0 0 0", "1797259609"},
    {"", "arange start=-3 step=2 shape=[4] dtype=i8", "", "-3 -1 1 3"},
    {"", "arange start=126 shape=[4] dtype=i8", "", "126 127 -128 -127"},
    {"", "arange start=2047 shape=[3] dtype=f16", "", "2047 2048 2048"},
    {"", "arange shape=[3]", "", "0 1 2"},
    {"", "scalar value=-3.0 dtype=i8", "", "-3"},
    {"", "scalar value=0.1 dtype=bf16", "", "0.10009765625"},
    {"", "scalar value=0.1 dtype=f64", "", "0.1"},
    {"", "scalar value=1.0 dtype=bool", "", "1"},
    /* Functions are of the type's precision. */
    {"f64[2]", "exp", "1 -1", "2.718281828459045 0.36787944117144233"},
    {"f32[1]", "exp", "1", "2.7182817459106445"},
    {"f16[1]", "exp", "1", "2.71875"},
    {"bf16[1]", "sqrt", "2", "1.4140625"},
    {"f64[1]", "softplus", "30", "30.000000000000092"},
    {"f64[3] f64[3]", "pow", "2 -8 10 10 3 -3", "1024 -512 0.001"},
    {"f64[2]", "mean", "1 2", "1.5"},
    {"f16[2]", "softmax axis=0", "0 0", "0.5 0.5"},
};

/* ---- Rows ---- */

static int64_t count(const struct tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= size_value(t->dim[i]);
    return n;
}

/* Reads an element's value; integers never through a double. */
static void read_number(const char **at, enum sol_dtype type, void *array, int64_t i) {
    char *end;
    bool is_real = size_family(type) == FAMILY_FLOAT;
    if (is_real) ref_put_real(type, array, i, strtod(*at, &end));
    else ref_put_whole(type, array, i, strtoll(*at, &end, 10));
    REQUIRE(end != *at);
    *at = end;
}

static bool is_same(enum sol_dtype type, const void *a, const void *b, int64_t i) {
    if (size_family(type) != FAMILY_FLOAT)
        return ref_get_whole(type, a, i) == ref_get_whole(type, b, i);
    double x = ref_get_real(type, a, i), y = ref_get_real(type, b, i);
    return isnan(y) ? isnan(x) : x == y && !signbit(x) == !signbit(y);
}

static void test_row(const struct row *row) {
    struct model *m;
    double in[8][MAX_VALUES], is[MAX_VALUES] = {0}, expected[MAX_VALUES];
    const void *inputs[8];
    void *out = is;
    const char *text = write_one_layer(&arena, row->inputs, row->layer), *at = row->values;
    if (ir_parse(text, &arena, &m)) fprintf(stderr, "%s%s\n", text, sol_error());
    REQUIRE(m);
    for (int i = 0; i < m->inputs.n; i++) {
        const struct tensor *t = m->inputs.at[i];
        inputs[i] = in[i];
        for (int64_t k = 0; k < count(t); k++) read_number(&at, t->dtype, in[i], k);
    }
    REQUIRE(!*at);
    const struct layer *layer = m->layers.at[m->layers.n - 1];
    const struct tensor *t = layer->out[0];
    REQUIRE(count(t) <= MAX_VALUES);
    at = row->expected;
    CHECK(!ref_layer(layer, (int64_t[SIZE_SYMBOLS]){1}, inputs, &out));
    for (int64_t i = 0; i < count(t); i++) {
        read_number(&at, t->dtype, expected, i);
        if (!CHECK(is_same(t->dtype, is, expected, i)))
            fprintf(stderr, "    %s of %s, element %lld: is %.17g\n", row->layer, row->inputs,
                    (long long)i, ref_get_real(t->dtype, is, i));
    }
    CHECK(!*at);
}

/* ---- Floats of 16 bits, all of them ---- */

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The value of an f16, by its definition. A bf16 is the upper half of an f32. */
static double value_of(enum sol_dtype type, uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits & 0x8000 ? -1 : 1;
    if (type == SOL_BF16) return (double)from_bits((uint32_t)bits << 16);
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? (1 + fraction / 1024.0) * pow(2, exponent - 15)
                            : fraction / 1024.0 * pow(2, -14));
}

static uint16_t round_to(enum sol_dtype type, float value) {
    uint16_t bits;
    ref_put_real(type, &bits, 0, (double)value);
    return bits;
}

/* Each value stays as it is. The middle of a value and the next larger one becomes the even one; what is beside the middle, the
 * nearer one. */
static void test_16_bits(enum sol_dtype type, uint16_t infinity) {
    int wrong = 0;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i, next = (uint16_t)(i + 1);
        double value = value_of(type, bits), is = ref_widen(type, bits);
        wrong += isnan(value) ? !isnan(is) : value != is || !signbit(value) != !signbit(is);
        if (isnan(value)) {
            wrong += !isnan(ref_widen(type, round_to(type, (float)value)));
            continue;
        }
        wrong += round_to(type, (float)value) != bits;
        if ((bits & 0x7fff) >= infinity - 1) continue;
        float middle = (float)((value + value_of(type, next)) / 2);
        float outside = copysignf(INFINITY, (float)value);
        wrong += round_to(type, middle) != (bits % 2 ? next : bits);
        wrong += round_to(type, nextafterf(middle, 0)) != bits;
        wrong += round_to(type, nextafterf(middle, outside)) != next;
    }
    if (!CHECK(!wrong)) fprintf(stderr, "    %s: %d\n", size_dtype_name(type), wrong);
}

/* ---- In double ---- */

/* 1 + x for x = 2^-40, which is nothing in f32 and less; casts to floats do not round either, those to integers do. */
static void test_double(void) {
    static const char text[] = "model \"m\" {\n%0 = input f32[2] \"x\"\n%1 = param f16[2] \"w\"\n"
                               "%2 = input i32[2] \"n\"\n%3 = cast %1 dtype=f32\n%4 = add %0 %3\n"
                               "%5 = cast %2 dtype=bf16\n%6 = cast %5 dtype=f32\n%7 = mul %4 %6\n"
                               "%8 = cast %7 dtype=i64\noutput %7 \"y\"\noutput %8 \"z\"\n}\n";
    struct model *m;
    float x[2] = {0x1p-40f, -0x1p-40f};
    uint16_t w[2];
    int32_t n[2] = {257, -1};
    double y[2];
    int64_t z[2];
    REQUIRE(!ir_parse(text, &arena, &m));
    for (int i = 0; i < 2; i++) ref_put_real(SOL_F16, w, i, 1);
    CHECK(!ref_run_double(m, (int64_t[SIZE_SYMBOLS]){0}, (const void *[]){x, n},
                          (const void *[]){w}, (void *[]){y, z}));
    CHECK(y[0] == 257 * (1 + 0x1p-40) && y[1] == -(1 - 0x1p-40));
    CHECK(z[0] == 257 && z[1] == 0);
}

/* An index that is not a row is an error of the call. */
static void test_index(const char *inputs, const char *layer, bool wraps) {
    struct model *m;
    const char *text = write_one_layer(
        &arena, inputs, wraps ? layer : arena_printf(&arena, "%s wraps=false", layer));
    REQUIRE(!ir_parse(text, &arena, &m));
    void *out = (uint8_t[3]){0};
    for (int64_t i = -5; i < 5; i++) {
        const void *in[2] = {(uint8_t[3]){1, 2, 3}, &i};
        enum sol_status status = ref_layer(m->layers.at[2], (int64_t[SIZE_SYMBOLS]){1}, in, &out);
        CHECK(status == (i < (wraps ? -3 : 0) || i > 2 ? SOL_EINDEX : SOL_OK));
    }
}

/* A model of the builder, without a program. */
static void test_evaluate(void) {
    struct sol_model *m = sol_model_new("m");
    sol_tensor x = sol_model_input(m, "x", SOL_I32, 1, (int64_t[]){3});
    sol_tensor w = sol_model_param(m, "w", SOL_I32, 1, (int64_t[]){3});
    sol_tensor y = sol_model_layer(m, "mul", 2, (sol_tensor[]){x, w}, "", NULL);
    const void *in = (int32_t[]){1, -2, 3}, *param = (int32_t[]){4, 5, 6};
    int32_t out[3] = {0};
    void *to = out;
    CHECK(sol_model_evaluate(m, &in, &param, &to) == SOL_EINVAL); /* no output */
    sol_model_output(m, "y", y);
    CHECK(!sol_model_evaluate(m, &in, &param, &to));
    CHECK(out[0] == 4 && out[1] == -10 && out[2] == 18);
    (void)sol_model_layer(m, "no such layer", 1, &x, "", NULL);
    CHECK(sol_model_evaluate(m, &in, &param, &to) == SOL_EINVAL);
    sol_model_free(m);
    m = sol_model_new("open");
    int64_t n = sol_model_symbol(m, "n");
    sol_model_output(m, "x", sol_model_input(m, "x", SOL_I32, 1, &n));
    CHECK(sol_model_evaluate(m, &in, NULL, &to) == SOL_EINVAL);
    sol_model_free(m);
}

int main(void) {
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    for (int i = 0; i < COUNT(rows); i++) test_row(&rows[i]);
    test_16_bits(SOL_F16, 0x7c00);
    test_16_bits(SOL_BF16, 0x7f80);
    test_double();
    for (int wraps = 0; wraps < 2; wraps++) {
        test_index("u8[3] i64[1]", "gather", wraps);
        test_index("u8[1] i64[1]", "scatter_sum shape=[3]", wraps);
    }
    test_evaluate();
    arena_fini(&arena);
    return check_done();
}
