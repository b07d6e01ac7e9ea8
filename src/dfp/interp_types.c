/*
 * The interpreter's rows of doubles and integers, casts, and accesses to elements of all types.
 *
 *   interp.c: an instruction  ->  [this file]  ->  loops that compute one value at a time, by the functions of kernel_types.h
 */
#include "dfp/code.h"

#define LANES 1
#define LANE(v, l) v
#include "dfp/kernel_types.h"

/* ---- Arithmetic ---- */

#define LOOP(name, R, T, ...)                                                                \
    static void name(void *to, const void *a, const void *b, const void *c, int64_t n) {    \
        const T *x = a, *y = b, *z = c;                                                      \
        R *out = to;                                                                         \
        (void)y, (void)z;                                                                    \
        for (int64_t i = 0; i < n; i++) out[i] = __VA_ARGS__;                                \
    }
#define LOOP1(name, s, R, T) LOOP(name##_row_##s, R, T, name##1_##s(x[i]))
#define LOOP2(name, s, R, T) LOOP(name##_row_##s, R, T, name##1_##s(x[i], y[i]))
#define LOOP3(name, s, R, T) LOOP(name##_row_##s, R, T, name##1_##s(x[i], y[i], z[i]))
#define SELECT_LOOP(s, T)                                                                    \
    static void SELECT_row_##s(void *to, const void *a, const void *b, const void *c,        \
                               int64_t n) {                                                  \
        const float *condition = a;                                                          \
        const T *x = b, *y = c;                                                              \
        T *out = to;                                                                         \
        for (int64_t i = 0; i < n; i++) out[i] = condition[i] != 0 ? x[i] : y[i];            \
    }

/* X(loop, primitive): what integers have, and what doubles have. */
#define INTEGER_ROWS(X)                                                                       \
    X(LOOP2, ADD) X(LOOP2, SUB) X(LOOP2, MUL) X(LOOP2, MAX) X(LOOP2, MIN) X(LOOP1, NEG)       \
    X(LOOP1, ABS) X(LOOP2, QUOTIENT) X(LOOP2, REMAINDER) X(LOOP2, AND) X(LOOP2, OR)           \
    X(LOOP2, XOR) X(LOOP2, SHIFT_LEFT) X(LOOP2, SHIFT_RIGHT)
#define DOUBLE_ROWS(X)                                                                        \
    X(LOOP2, ADD) X(LOOP2, SUB) X(LOOP2, MUL) X(LOOP2, DIV) X(LOOP2, MAX) X(LOOP2, MIN)       \
    X(LOOP1, NEG) X(LOOP1, ABS) X(LOOP1, SQRT) X(LOOP1, EXP) X(LOOP1, LOG) X(LOOP1, TANH)     \
    X(LOOP1, ERF) X(LOOP1, FLOOR) X(LOOP1, ROUND) X(LOOP1, SIN) X(LOOP1, COS) X(LOOP1, TAN)   \
    X(LOOP1, ASIN) X(LOOP1, ACOS) X(LOOP1, ATAN) X(LOOP1, SINH) X(LOOP1, COSH)                \
    X(LOOP1, ASINH) X(LOOP1, ACOSH) X(LOOP1, ATANH) X(LOOP2, POW)                             \
    X(LOOP2, REMAINDER)
#define I32(loop, name) loop(name, i32, int32_t, int32_t)
#define I64(loop, name) loop(name, i64, int64_t, int64_t)
#define F64(loop, name) loop(name, f64, double, double)
INTEGER_ROWS(I32)
INTEGER_ROWS(I64)
DOUBLE_ROWS(F64)
#define CHOICES(s, T) LOOP2(LESS, s, float, T) LOOP2(EQUAL, s, float, T) SELECT_LOOP(s, T)
CHOICES(f64, double)
CHOICES(i32, int32_t)
CHOICES(i64, int64_t)

LOOP3(THREEFRY, i32, int32_t, int32_t)

#define ROW_OF(s, name) [PRIMITIVE_##name] = name##_row_##s,
#define ROW_I32(loop, name) ROW_OF(i32, name)
#define ROW_I64(loop, name) ROW_OF(i64, name)
#define ROW_F64(loop, name) ROW_OF(f64, name)
#define CHOICE_ROWS(s) ROW_OF(s, LESS) ROW_OF(s, EQUAL) ROW_OF(s, SELECT)
code_row *const code_rows[N_REGS][N_PRIMITIVES] = {
    [REG_F64] = {DOUBLE_ROWS(ROW_F64) CHOICE_ROWS(f64)},
    [REG_I32] = {INTEGER_ROWS(ROW_I32) CHOICE_ROWS(i32) ROW_OF(i32, THREEFRY)},
    [REG_I64] = {INTEGER_ROWS(ROW_I64) CHOICE_ROWS(i64)},
};

/* An infinity stands for the limit of an integer type. */
static int64_t to_integer(double value, int64_t least, int64_t most) {
    return value == INFINITY ? most : value == -INFINITY ? least : (int64_t)value;
}

void code_fill(enum reg reg, void *to, double value, int64_t n) {
    const int64_t wide = to_integer(value, INT64_MIN, INT64_MAX);
    const int32_t narrow = (int32_t)to_integer(value, INT32_MIN, INT32_MAX);
    for (int64_t i = 0; i < n; i++) {
        switch (reg) {
        case REG_F32: ((float *)to)[i] = (float)value; break;
        case REG_F64: ((double *)to)[i] = value; break;
        case REG_I32: ((int32_t *)to)[i] = narrow; break;
        case REG_I64: ((int64_t *)to)[i] = wide; break;
        case N_REGS: break;
        }
    }
}

/* ---- Casts: first to the register's type, then to the element type ---- */

#define CONVERT(to, T, from, F) LOOP(convert_##to##_##from, T, F, (T)x[i])
#define CONVERT_ALL(to, T)                                                                    \
    CONVERT(to, T, f32, float)                                                                \
    CONVERT(to, T, f64, double) CONVERT(to, T, i32, int32_t) CONVERT(to, T, i64, int64_t)
CONVERT_ALL(f32, float)
CONVERT_ALL(f64, double)
CONVERT_ALL(i32, int32_t)
CONVERT_ALL(i64, int64_t)
LOOP(truth_f32, float, float, TRUTH1_f32(x[i]))
LOOP(truth_f64, float, double, TRUTH1_f64(x[i]))
LOOP(truth_i32, float, int32_t, TRUTH1_i32(x[i]))
LOOP(truth_i64, float, int64_t, TRUTH1_i64(x[i]))
LOOP(round_f16, float, float, ROUND1_f16(x[i]))
LOOP(round_bf16, float, float, ROUND1_bf16(x[i]))
LOOP(wrap_i16, int32_t, int32_t, WRAP1_i16(x[i]))
LOOP(wrap_i8, int32_t, int32_t, WRAP1_i8(x[i]))
LOOP(wrap_u8, int32_t, int32_t, WRAP1_u8(x[i]))

#define CONVERSIONS(to) {convert_##to##_f32, convert_##to##_f64, convert_##to##_i32, convert_##to##_i64}
static code_row *const conversions[N_REGS][N_REGS] = {
    [REG_F32] = CONVERSIONS(f32),
    [REG_F64] = CONVERSIONS(f64),
    [REG_I32] = CONVERSIONS(i32),
    [REG_I64] = CONVERSIONS(i64),
};
static code_row *const truths[N_REGS] = {truth_f32, truth_f64, truth_i32, truth_i64};
static code_row *const shapes[SOL_N_DTYPES] = {
    [SOL_F16] = round_f16, [SOL_BF16] = round_bf16, [SOL_I16] = wrap_i16,
    [SOL_I8] = wrap_i8,    [SOL_U8] = wrap_u8,
};

void code_cast(enum reg from, enum sol_dtype to, void *at, const void *x, int64_t n) {
    code_row *first = to == SOL_BOOL ? truths[from] : conversions[reg_of(to)][from];
    first(at, x, x, x, n);
    if (shapes[to]) shapes[to](at, at, at, at, n);
}

/* ---- Memory ---- */

#define ACCESS(d, S, T, V, how)                                                               \
    static void load_row_##d(void *to, const void *from, int64_t step, int64_t n) {          \
        for (int64_t i = 0; i < n; i++) ((T *)to)[i] = get_##d((const S *)from + i * step);  \
    }                                                                                         \
    static void store_row_##d(void *to, const void *from, int64_t step, int64_t n) {         \
        for (int64_t i = 0; i < n; i++) put_##d((S *)to + i * step, ((const T *)from)[i]);   \
    }
static float get_f32(const float *at) { return *at; }
static void put_f32(float *at, float x) { *at = x; }
ACCESS(f32, float, float, , )
SOL_TYPES(ACCESS)

typedef void access_row(void *to, const void *from, int64_t step, int64_t n);
static access_row *const loads[SOL_N_DTYPES] = {
    [SOL_F32] = load_row_f32,    [SOL_F64] = load_row_f64, [SOL_BF16] = load_row_bf16,
    [SOL_F16] = load_row_f16,    [SOL_I64] = load_row_i64, [SOL_I32] = load_row_i32,
    [SOL_I16] = load_row_i16,    [SOL_I8] = load_row_i8,   [SOL_U8] = load_row_u8,
    [SOL_BOOL] = load_row_truth,
};
static access_row *const stores[SOL_N_DTYPES] = {
    [SOL_F32] = store_row_f32,    [SOL_F64] = store_row_f64, [SOL_BF16] = store_row_bf16,
    [SOL_F16] = store_row_f16,    [SOL_I64] = store_row_i64, [SOL_I32] = store_row_i32,
    [SOL_I16] = store_row_i16,    [SOL_I8] = store_row_i8,   [SOL_U8] = store_row_u8,
    [SOL_BOOL] = store_row_truth,
};

void code_load(enum sol_dtype dtype, void *to, const void *from, int64_t step, int64_t n) {
    loads[dtype](to, from, step, n);
}
void code_store(enum sol_dtype dtype, void *to, const void *from, int64_t step, int64_t n) {
    stores[dtype](to, from, step, n);
}

/* A primitive of floats without a row in DOUBLE_ROWS is an error of the C compiler here. */
#define INTEGRAL(name, ...)
#define PRIMITIVE(name, ...) name##_row_f64,
static code_row *const all_double_rows[] __attribute__((unused)) = {
#include "ir/primitive.def"
};
