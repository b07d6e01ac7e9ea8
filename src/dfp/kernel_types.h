/*
 * What generated kernels call for element types other than f32, and functions that few kernels need.
 *
 * Behind the prelude (vector.h), or behind deploy/portable_math.h, in the text of kernels that need it; the interpreter includes it,
 * too. LANES and LANE(v, l) are defined; with LANES 1, a vector is a single value.
 *
 * Values are computed in registers: f32 (no suffix), _f64, _i32, _i64. f16 and bf16 are stored as bits, and widened to f32; bools, 1.0f
 * or 0.0f in registers, are stored as 1 or 0; short integers are widened to i32. NAME1_x computes one value, NAME_x a vector.
 *
 * Integers wrap. Arithmetic is done on unsigned integers, since signed overflow is undefined in C.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- One value: integers. Unsigned U has as many bits as T ---- */

#define SOL_INTEGER(s, T, U, BITS)                                                                 \
    static inline T ADD1_##s(T a, T b) { return (T)((U)a + (U)b); }                                \
    static inline T SUB1_##s(T a, T b) { return (T)((U)a - (U)b); }                                \
    static inline T MUL1_##s(T a, T b) { return (T)((U)a * (U)b); }                                \
    static inline T NEG1_##s(T a) { return (T)(0 - (U)a); }                                        \
    static inline T ABS1_##s(T a) { return a < 0 ? NEG1_##s(a) : a; }                              \
    static inline T MAX1_##s(T a, T b) { return a > b ? a : b; }                                   \
    static inline T MIN1_##s(T a, T b) { return a < b ? a : b; }                                   \
    static inline T QUOTIENT1_##s(T a, T b) {                                                      \
        return b == 0 ? 0 : b == -1 ? NEG1_##s(a) : (T)(a / b);                                    \
    }                                                                                              \
    static inline T REMAINDER1_##s(T a, T b) { return b == 0 || b == -1 ? 0 : (T)(a % b); }        \
    static inline T AND1_##s(T a, T b) { return a & b; }                                           \
    static inline T OR1_##s(T a, T b) { return a | b; }                                            \
    static inline T XOR1_##s(T a, T b) { return a ^ b; }                                           \
    static inline T SHIFT_LEFT1_##s(T a, T b) { return b < 0 || b >= BITS ? 0 : (T)((U)a << b); }  \
    static inline T SHIFT_RIGHT1_##s(T a, T b) {                                                   \
        return b < 0 || b >= BITS ? (a < 0 ? -1 : 0) : (T)(a >> b);                                \
    }

/* Threefry-2x32-20 of U, a type of unsigned numbers or vectors of them; ir/primitive.def has the source. */
#define SOL_TURN(x, y, n) x += y, y = (y << n | y >> (32 - n)) ^ x
#define SOL_TURNS(x, y, k, l, number, a, b, c, d) \
    SOL_TURN(x, y, a), SOL_TURN(x, y, b), SOL_TURN(x, y, c), SOL_TURN(x, y, d), x += k, y += l + number
#define SOL_THREEFRY(name, T, U)                                                \
    static inline T name(T counter, T key0, T key1) {                           \
        const U a = (U)key0, b = (U)key1, c = a ^ b ^ 0x1BD11BDAu;              \
        U x = (U)counter + a, y = b;                                            \
        SOL_TURNS(x, y, b, c, 1u, 13, 15, 26, 6);                               \
        SOL_TURNS(x, y, c, a, 2u, 17, 29, 16, 24);                              \
        SOL_TURNS(x, y, a, b, 3u, 13, 15, 26, 6);                               \
        SOL_TURNS(x, y, b, c, 4u, 17, 29, 16, 24);                              \
        SOL_TURNS(x, y, c, a, 5u, 13, 15, 26, 6);                               \
        return (T)x;                                                            \
    }

SOL_INTEGER(i32, int32_t, uint32_t, 32)
SOL_THREEFRY(THREEFRY1_i32, int32_t, uint32_t)
SOL_INTEGER(i64, int64_t, uint64_t, 64)

/* ---- One value: floats. MAX and MIN are NaN if an operand is. ---- */

#define SOL_FUNCTION1(name, s, T, value) \
    static inline T name##1##s(T a) { return value; }
#define SOL_FUNCTION2(name, s, T, value) \
    static inline T name##1##s(T a, T b) { return value; }
SOL_FUNCTION2(ADD, _f64, double, a + b)
SOL_FUNCTION2(SUB, _f64, double, a - b)
SOL_FUNCTION2(MUL, _f64, double, a *b)
SOL_FUNCTION2(DIV, _f64, double, a / b)
SOL_FUNCTION2(MAX, _f64, double, b > a || b != b ? b : a)
SOL_FUNCTION2(MIN, _f64, double, b < a || b != b ? b : a)
SOL_FUNCTION1(NEG, _f64, double, -a)
SOL_FUNCTION1(ABS, _f64, double, fabs(a))
SOL_FUNCTION1(SQRT, _f64, double, sqrt(a))
SOL_FUNCTION1(EXP, _f64, double, exp(a))
SOL_FUNCTION1(LOG, _f64, double, log(a))
SOL_FUNCTION1(TANH, _f64, double, tanh(a))
SOL_FUNCTION1(ERF, _f64, double, erf(a))
SOL_FUNCTION1(FLOOR, _f64, double, floor(a))
SOL_FUNCTION1(ROUND, _f64, double, rint(a))
SOL_FUNCTION1(SIN, _f64, double, sin(a))
SOL_FUNCTION1(COS, _f64, double, cos(a))
SOL_FUNCTION1(TAN, _f64, double, tan(a))
SOL_FUNCTION1(ASIN, _f64, double, asin(a))
SOL_FUNCTION1(ACOS, _f64, double, acos(a))
SOL_FUNCTION1(ATAN, _f64, double, atan(a))
SOL_FUNCTION1(SINH, _f64, double, sinh(a))
SOL_FUNCTION1(COSH, _f64, double, cosh(a))
SOL_FUNCTION1(ASINH, _f64, double, asinh(a))
SOL_FUNCTION1(ACOSH, _f64, double, acosh(a))
SOL_FUNCTION1(ATANH, _f64, double, atanh(a))
SOL_FUNCTION2(POW, _f64, double, pow(a, b))
SOL_FUNCTION2(REMAINDER, _f64, double, fmod(a, b))
SOL_FUNCTION2(MUL, , float, a *b)
SOL_FUNCTION1(FLOOR, , float, floorf(a))
SOL_FUNCTION1(ROUND, , float, rintf(a))
SOL_FUNCTION1(SIN, , float, sinf(a))
SOL_FUNCTION1(COS, , float, cosf(a))
SOL_FUNCTION1(TAN, , float, tanf(a))
SOL_FUNCTION1(ASIN, , float, asinf(a))
SOL_FUNCTION1(ACOS, , float, acosf(a))
SOL_FUNCTION1(ATAN, , float, atanf(a))
SOL_FUNCTION1(SINH, , float, sinhf(a))
SOL_FUNCTION1(COSH, , float, coshf(a))
SOL_FUNCTION1(ASINH, , float, asinhf(a))
SOL_FUNCTION1(ACOSH, , float, acoshf(a))
SOL_FUNCTION1(ATANH, , float, atanhf(a))
SOL_FUNCTION2(POW, , float, powf(a, b))
SOL_FUNCTION2(REMAINDER, , float, fmodf(a, b))

/* ---- One value: comparisons, selects, conversions between registers ---- */

#define SOL_CHOICE(s, T)                                                                   \
    static inline float LESS1_##s(T a, T b) { return a < b ? 1.0f : 0.0f; }                \
    static inline float EQUAL1_##s(T a, T b) { return a == b ? 1.0f : 0.0f; }              \
    static inline T SELECT1_##s(float c, T a, T b) { return c != 0.0f ? a : b; }           \
    static inline float TRUTH1_##s(T a) { return a != 0 ? 1.0f : 0.0f; }
SOL_CHOICE(f64, double)
SOL_CHOICE(i32, int32_t)
SOL_CHOICE(i64, int64_t)
static inline float TRUTH1_f32(float a) { return a != 0 ? 1.0f : 0.0f; }

#define SOL_CONVERSION(to, T, from, F) \
    static inline T TO1_##to##_##from(F a) { return (T)a; }
SOL_CONVERSION(f32, float, f64, double)
SOL_CONVERSION(f32, float, i32, int32_t)
SOL_CONVERSION(f32, float, i64, int64_t)
SOL_CONVERSION(f64, double, f32, float)
SOL_CONVERSION(f64, double, i32, int32_t)
SOL_CONVERSION(f64, double, i64, int64_t)
SOL_CONVERSION(i32, int32_t, f32, float)
SOL_CONVERSION(i32, int32_t, f64, double)
SOL_CONVERSION(i32, int32_t, i64, int64_t)
SOL_CONVERSION(i64, int64_t, f32, float)
SOL_CONVERSION(i64, int64_t, f64, double)
SOL_CONVERSION(i64, int64_t, i32, int32_t)

/* ---- One value: short types. Floats are rounded to the nearest, halves to even. ---- */

static inline uint32_t sol_float_bits(float a) {
    uint32_t bits;
    memcpy(&bits, &a, 4);
    return bits;
}
static inline float sol_bits_float(uint32_t bits) {
    float a;
    memcpy(&a, &bits, 4);
    return a;
}

/* The exponent is moved by a product, which is exact for denormal numbers, too. */
static inline float get_f16(const uint16_t *at) {
    const uint32_t sign = (uint32_t)(*at & 0x8000) << 16, rest = *at & 0x7fff;
    if (rest >= 0x7c00) return sol_bits_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    return sol_bits_float(sign |
                          sol_float_bits(sol_bits_float(rest << 13) * 5.192296858534828e33f));
}
/* Below 2^-14, adding 0.5 rounds to a multiple of 2^-24, the smallest f16. From 65520 on, the result is infinite. */
static inline void put_f16(uint16_t *at, float x) {
    const uint32_t sign = sol_float_bits(x) >> 16 & 0x8000, a = sol_float_bits(x) & 0x7fffffff;
    uint32_t rest = a + 0xc8000fffu + (a >> 13 & 1);
    if (a > 0x7f800000) rest = 0x7e00u << 13;
    else if (a >= 0x477ff000) rest = 0x7c00u << 13;
    else if (a < 0x38800000) rest = (sol_float_bits(sol_bits_float(a) + 0.5f) - 0x3f000000u) << 13;
    *at = (uint16_t)(sign | rest >> 13);
}
static inline float get_bf16(const uint16_t *at) { return sol_bits_float((uint32_t)*at << 16); }
static inline void put_bf16(uint16_t *at, float x) {
    const uint32_t bits = sol_float_bits(x);
    if (x != x) *at = (uint16_t)(bits >> 16 | 0x40);
    else *at = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float ROUND1_f16(float x) {
    uint16_t bits;
    put_f16(&bits, x);
    return get_f16(&bits);
}
static inline float ROUND1_bf16(float x) {
    uint16_t bits;
    put_bf16(&bits, x);
    return get_bf16(&bits);
}
static inline float get_truth(const uint8_t *at) { return *at ? 1.0f : 0.0f; }
static inline void put_truth(uint8_t *at, float x) { *at = x != 0.0f; }
static inline int32_t WRAP1_i16(int32_t x) { return (int16_t)(uint16_t)(uint32_t)x; }
static inline int32_t WRAP1_i8(int32_t x) { return (int8_t)(uint8_t)(uint32_t)x; }
static inline int32_t WRAP1_u8(int32_t x) { return (uint8_t)(uint32_t)x; }

#define SOL_ELEMENT(d, S, T)                                \
    static inline T get_##d(const S *at) { return (T)*at; } \
    static inline void put_##d(S *at, T x) { *at = (S)x; }
SOL_ELEMENT(f64, double, double)
SOL_ELEMENT(i64, int64_t, int64_t)
SOL_ELEMENT(i32, int32_t, int32_t)
SOL_ELEMENT(i16, int16_t, int32_t)
SOL_ELEMENT(i8, int8_t, int32_t)
SOL_ELEMENT(u8, uint8_t, int32_t)

/* All element types but f32: X(name, stored type, register's type, vector, is a vector converted by the compiler alone?) */
#define SOL_TYPES(X)                             \
    X(f64, double, double, vec_f64, CONVERTED)   \
    X(i64, int64_t, int64_t, vec_i64, CONVERTED) \
    X(i32, int32_t, int32_t, vec_i32, CONVERTED) \
    X(i16, int16_t, int32_t, vec_i32, CONVERTED) \
    X(i8, int8_t, int32_t, vec_i32, BYTES)       \
    X(u8, uint8_t, int32_t, vec_i32, BYTES)      \
    X(f16, uint16_t, float, vec, SINGLY)         \
    X(bf16, uint16_t, float, vec, SINGLY)        \
    X(truth, uint8_t, float, vec, TRUTH)

#if LANES > 1

/* ---- Vectors. Functions that are not inlined keep the C compiler's time short. ---- */

/* Vectors of 8-byte values fill two registers. Compilers compare and convert such vectors element by element, but not their halves: so
 * these functions compute PARTS parts. */
#define SOL_COMPARE(name, s, test, PARTS)                                                         \
    static inline vec name##_##s(vec_##s a, vec_##s b) {                                          \
        ivec all;                                                                                 \
        for (int h = 0; h < PARTS; h++) {                                                         \
            const part_##s x = ((part_##s *)&a)[h], y = ((part_##s *)&b)[h];                      \
            ((truth_##s *)&all)[h] = __builtin_convertvector(test, truth_##s);                    \
        }                                                                                         \
        return (vec)(all & (ivec)splat(1.0f));                                                    \
    }
/* y where `test` holds, else x */
#define SOL_CHOOSE(name, s, test, PARTS)                                                          \
    static inline vec_##s name##_##s(vec_##s a, vec_##s b) {                                      \
        for (int h = 0; h < PARTS; h++) {                                                         \
            const part_##s x = ((part_##s *)&a)[h], y = ((part_##s *)&b)[h];                      \
            const bits_of_##s mask = test;                                                        \
            ((part_##s *)&a)[h] =                                                                 \
                (part_##s)(((bits_of_##s)y & mask) | ((bits_of_##s)x & ~mask));                   \
        }                                                                                         \
        return a;                                                                                 \
    }
#define SOL_VECTOR(s, T, M, PARTS)                                                                \
    typedef T vec_##s __attribute__((vector_size(sizeof(T) * LANES), aligned(sizeof(T)), may_alias)); \
    typedef M mask_##s                                                                            \
        __attribute__((vector_size(sizeof(T) * LANES), aligned(sizeof(T)), may_alias));           \
    typedef T part_##s                                                                            \
        __attribute__((vector_size(sizeof(T) * LANES / PARTS), aligned(sizeof(T)), may_alias));   \
    typedef M bits_of_##s                                                                         \
        __attribute__((vector_size(sizeof(T) * LANES / PARTS), aligned(sizeof(T)), may_alias));   \
    typedef int32_t truth_##s                                                                     \
        __attribute__((vector_size(4 * LANES / PARTS), aligned(4), may_alias));                   \
    static inline vec_##s splat_##s(T x) { return x - (vec_##s){0}; }                             \
    static inline vec_##s pick_##s(mask_##s mask, vec_##s a, vec_##s b) {                         \
        return (vec_##s)(((mask_##s)a & mask) | ((mask_##s)b & ~mask));                           \
    }                                                                                             \
    SOL_COMPARE(LESS, s, x < y, PARTS)                                                            \
    SOL_COMPARE(EQUAL, s, x == y, PARTS)                                                          \
    static inline vec TRUTH_##s(vec_##s a) {                                                      \
        return splat(1.0f) - EQUAL_##s(a, splat_##s(0));                                          \
    }                                                                                             \
    static inline vec_##s SELECT_##s(vec c, vec_##s a, vec_##s b) {                               \
        return pick_##s(__builtin_convertvector(c != splat(0.0f), mask_##s), a, b);               \
    }                                                                                             \
    SOL_CHOOSE(MAX, s, (y > x) | (y != y), PARTS)                                                 \
    SOL_CHOOSE(MIN, s, (y < x) | (y != y), PARTS)                                                 \
    static inline vec_##s keep_part_##s(vec_##s v, int n, T neutral) {                            \
        vec_##s r = splat_##s(neutral);                                                           \
        for (int l = 0; l < LANES; l++)                                                           \
            if (l < n) r[l] = v[l];                                                               \
        return r;                                                                                 \
    }
SOL_VECTOR(f64, double, int64_t, 2)
SOL_VECTOR(i32, int32_t, int32_t, 1)
SOL_VECTOR(i64, int64_t, int64_t, 2)
static inline vec TRUTH_f32(vec a) { return (vec)((ivec)splat(1.0f) & (a != splat(0.0f))); }

#define SOL_VECTOR_INTEGER(s, U)                                                                   \
    typedef U bits_##s __attribute__((vector_size(sizeof(U) * LANES), aligned(sizeof(U)), may_alias)); \
    static inline vec_##s ADD_##s(vec_##s a, vec_##s b) {                                          \
        return (vec_##s)((bits_##s)a + (bits_##s)b);                                               \
    }                                                                                              \
    static inline vec_##s SUB_##s(vec_##s a, vec_##s b) {                                          \
        return (vec_##s)((bits_##s)a - (bits_##s)b);                                               \
    }                                                                                              \
    static inline vec_##s MUL_##s(vec_##s a, vec_##s b) {                                          \
        return (vec_##s)((bits_##s)a * (bits_##s)b);                                               \
    }                                                                                              \
    static inline vec_##s NEG_##s(vec_##s a) { return (vec_##s)(0 - (bits_##s)a); }                \
    static inline vec_##s ABS_##s(vec_##s a) { return pick_##s(a < 0, NEG_##s(a), a); }            \
    static inline vec_##s AND_##s(vec_##s a, vec_##s b) { return a & b; }                          \
    static inline vec_##s OR_##s(vec_##s a, vec_##s b) { return a | b; }                           \
    static inline vec_##s XOR_##s(vec_##s a, vec_##s b) { return a ^ b; }
SOL_VECTOR_INTEGER(i32, uint32_t)
SOL_VECTOR_INTEGER(i64, uint64_t)
SOL_THREEFRY(THREEFRY_i32, vec_i32, bits_i32)
static inline vec_f64 ADD_f64(vec_f64 a, vec_f64 b) { return a + b; }
static inline vec_f64 MUL_f64(vec_f64 a, vec_f64 b) { return a * b; }
static inline vec_f64 NEG_f64(vec_f64 a) { return -a; }
static inline vec MUL(vec a, vec b) { return a * b; }

#define SOL_EACH1(name, s, V)                                                \
    APART V name##s(V a) {                                                   \
        for (int l = 0; l < LANES; l++) a[l] = name##1##s(a[l]);             \
        return a;                                                            \
    }
#define SOL_EACH2(name, s, V)                                                \
    APART V name##s(V a, V b) {                                              \
        for (int l = 0; l < LANES; l++) a[l] = name##1##s(a[l], b[l]);       \
        return a;                                                            \
    }
#if LANES == 16 && defined __AVX512F__ && !defined __clang__
static inline vec FLOOR(vec a) { return __builtin_ia32_rndscaleps_mask(a, 1, a, -1, 4); }
static inline vec ROUND(vec a) { return __builtin_ia32_rndscaleps_mask(a, 0, a, -1, 4); }
#elif LANES == 8 && defined __AVX2__
static inline vec FLOOR(vec a) { return __builtin_ia32_roundps256(a, 1); }
static inline vec ROUND(vec a) { return __builtin_ia32_roundps256(a, 0); }
#else
SOL_EACH1(FLOOR, , vec)
SOL_EACH1(ROUND, , vec)
#endif

/* sin, cos and pow of floats, computed in f64, so that no step of them needs care: 0.51 ulp. Rare numbers are left to the C library. */
typedef float part_f32 __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
#define SOL_SHIFT 6755399441055744.0 /* 1.5 * 2^52: a sum with it is rounded to an integer, in its low bits */
#define SOL_FAR(name, all, ...)                                                                   \
    APART vec name(__VA_ARGS__) {                                                                 \
        for (int l = 0; l < LANES; l++) a[l] = all;                                               \
        return a;                                                                                 \
    }
SOL_FAR(sol_far_sin, sinf(a[l]), vec a)
SOL_FAR(sol_far_cos, cosf(a[l]), vec a)
SOL_FAR(sol_far_pow, powf(a[l], b[l]), vec a, vec b)

/* (-1)^n * sin(x - (n - shift) * pi), which is sin(x) if `shift` is 0, cos(x) if it is 0.5. The parts of pi have 33 bits, so that
 * products with n below 2^19 are exact. */
static inline part_f64 sol_sine(part_f64 x, double shift) {
    part_f64 t = x * 0.31830988618379067 + shift;
    t = t + SOL_SHIFT;
    const part_f64 n = (t - SOL_SHIFT) - shift;
    part_f64 r = x - n * 3.14159265346825122834;
    r = r - n * 1.21542010126079319532e-10;
    r = r - n * 4.0445324974223329116e-21;
    const part_f64 s = r * r;
    part_f64 p = s * 1.6059043836821613e-10 - 2.505210838544172e-8;
    p = p * s + 2.7557319223985893e-6;
    p = p * s - 1.984126984126984e-4;
    p = p * s + 8.333333333333333e-3;
    p = p * s - 0.16666666666666666;
    p = p * (s * r) + r;
    return (part_f64)((bits_of_f64)p ^ (bits_of_f64)t << 63);
}
#define SOL_SINE(name, far, shift)                                                                \
    APART vec name(vec a) {                                                                       \
        if (!(MAX_lanes(ABS(a)) < 1e6f)) return far(a);                                           \
        for (int h = 0; h < 2; h++) {                                                             \
            const part_f64 x = __builtin_convertvector(((part_f32 *)&a)[h], part_f64);            \
            ((part_f32 *)&a)[h] = __builtin_convertvector(sol_sine(x, shift), part_f32);          \
        }                                                                                         \
        return a;                                                                                 \
    }
SOL_SINE(SIN, sol_far_sin, 0.0)
SOL_SINE(COS, sol_far_cos, 0.5)

/* log2 of |x| = e + log2(m), m in [sqrt(1/2), sqrt(2)]; with s = (m - 1) / (m + 1), log(m) = 2 * (s + s^3/3 + s^5/5 + ..). Of 0: far
 * below the exponents of floats. */
static inline part_f64 sol_log2(part_f64 x) {
    const bits_of_f64 bits = (bits_of_f64)x & 0x7fffffffffffffff,
                      e = (bits - 0x3fe6a09e667f3bcd) >> 52, none = bits == 0;
    const part_f64 m = (part_f64)(bits - (e << 52)), s = (m - 1.0) / (m + 1.0), s2 = s * s;
    part_f64 p = s2 * (1.0 / 13) + 1.0 / 11;
    p = p * s2 + 1.0 / 9;
    p = p * s2 + 1.0 / 7;
    p = p * s2 + 1.0 / 5;
    p = p * s2 + 1.0 / 3;
    p = p * s2 + 1.0;
    const part_f64 exponent = (part_f64)(e + 0x4338000000000000) - SOL_SHIFT,
                   sum = p * (s * 2.8853900817779268) + exponent;
    return (part_f64)(((bits_of_f64)sum & ~none) | ((bits_of_f64)((part_f64){0} - 1e300) & none));
}
/* 2^t, for t that are limited to a float's range. */
static inline part_f64 sol_exp2(part_f64 t) {
    const part_f64 low = (part_f64){0} - 200.0, high = (part_f64){0} + 200.0;
    const bits_of_f64 below = t<low, above = t> high;
    t = (part_f64)(((bits_of_f64)low & below) | ((bits_of_f64)t & ~below));
    t = (part_f64)(((bits_of_f64)high & above) | ((bits_of_f64)t & ~above));
    const part_f64 n = t + SOL_SHIFT, r = (t - (n - SOL_SHIFT)) * 0.6931471805599453;
    part_f64 p = r * 2.7557319223985893e-6 + 2.48015873015873e-5;
    p = p * r + 1.984126984126984e-4;
    p = p * r + 1.388888888888889e-3;
    p = p * r + 8.333333333333333e-3;
    p = p * r + 0.041666666666666664;
    p = p * r + 0.16666666666666666;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return (part_f64)((bits_of_f64)p + ((bits_of_f64)n << 52));
}
/* |x|^y, negative if x is and y is odd, NaN if x is negative and y is no integer. Floats from 2^24 on are even. */
static inline part_f64 sol_pow(part_f64 x, part_f64 y) {
    const part_f64 size = sol_exp2(sol_log2(x) * y), n = y + SOL_SHIFT;
    const bits_of_f64 far = (y > (part_f64){0} + 1e8) | (y < (part_f64){0} - 1e8),
                      is_whole = (n - SOL_SHIFT == y) | far, none = (x < (part_f64){0}) & ~is_whole,
                      sign = (bits_of_f64)x & (bits_of_f64)n << 63 & is_whole & ~far;
    return (part_f64)(((bits_of_f64)size ^ sign) | none);
}
APART vec POW(vec a, vec b) {
    if (!(MAX_lanes(ABS(a)) < INFINITY && MAX_lanes(ABS(b)) < INFINITY)) return sol_far_pow(a, b);
    for (int h = 0; h < 2; h++) {
        const part_f64 x = __builtin_convertvector(((part_f32 *)&a)[h], part_f64),
                       y = __builtin_convertvector(((part_f32 *)&b)[h], part_f64);
        ((part_f32 *)&a)[h] = __builtin_convertvector(sol_pow(x, y), part_f32);
    }
    return a;
}

SOL_EACH1(TAN, , vec)
SOL_EACH1(ASIN, , vec)
SOL_EACH1(ACOS, , vec)
SOL_EACH1(ATAN, , vec)
SOL_EACH1(SINH, , vec)
SOL_EACH1(COSH, , vec)
SOL_EACH1(ASINH, , vec)
SOL_EACH1(ACOSH, , vec)
SOL_EACH1(ATANH, , vec)
SOL_EACH2(REMAINDER, , vec)
SOL_EACH1(ROUND, _f16, vec)
SOL_EACH1(ROUND, _bf16, vec)
SOL_EACH1(ABS, _f64, vec_f64)
SOL_EACH1(SQRT, _f64, vec_f64)
SOL_EACH1(EXP, _f64, vec_f64)
SOL_EACH1(LOG, _f64, vec_f64)
SOL_EACH1(TANH, _f64, vec_f64)
SOL_EACH1(ERF, _f64, vec_f64)
SOL_EACH1(FLOOR, _f64, vec_f64)
SOL_EACH1(ROUND, _f64, vec_f64)
SOL_EACH1(SIN, _f64, vec_f64)
SOL_EACH1(COS, _f64, vec_f64)
SOL_EACH1(TAN, _f64, vec_f64)
SOL_EACH1(ASIN, _f64, vec_f64)
SOL_EACH1(ACOS, _f64, vec_f64)
SOL_EACH1(ATAN, _f64, vec_f64)
SOL_EACH1(SINH, _f64, vec_f64)
SOL_EACH1(COSH, _f64, vec_f64)
SOL_EACH1(ASINH, _f64, vec_f64)
SOL_EACH1(ACOSH, _f64, vec_f64)
SOL_EACH1(ATANH, _f64, vec_f64)
SOL_EACH2(POW, _f64, vec_f64)
SOL_EACH2(REMAINDER, _f64, vec_f64)
SOL_EACH2(QUOTIENT, _i32, vec_i32)
SOL_EACH2(REMAINDER, _i32, vec_i32)
SOL_EACH2(SHIFT_LEFT, _i32, vec_i32)
SOL_EACH2(SHIFT_RIGHT, _i32, vec_i32)
SOL_EACH2(QUOTIENT, _i64, vec_i64)
SOL_EACH2(REMAINDER, _i64, vec_i64)
SOL_EACH2(SHIFT_LEFT, _i64, vec_i64)
SOL_EACH2(SHIFT_RIGHT, _i64, vec_i64)

/* From register to register, and to the values of a short integer type. */
#define SOL_VECTOR_CONVERSION(to, V, from, F) \
    static inline V TO_##to##_##from(F a) { return __builtin_convertvector(a, V); }
SOL_VECTOR_CONVERSION(f32, vec, f64, vec_f64)
SOL_VECTOR_CONVERSION(f32, vec, i32, vec_i32)
SOL_VECTOR_CONVERSION(f32, vec, i64, vec_i64)
SOL_VECTOR_CONVERSION(f64, vec_f64, f32, vec)
SOL_VECTOR_CONVERSION(f64, vec_f64, i32, vec_i32)
SOL_VECTOR_CONVERSION(f64, vec_f64, i64, vec_i64)
SOL_VECTOR_CONVERSION(i32, vec_i32, f32, vec)
SOL_VECTOR_CONVERSION(i32, vec_i32, f64, vec_f64)
SOL_VECTOR_CONVERSION(i32, vec_i32, i64, vec_i64)
SOL_VECTOR_CONVERSION(i64, vec_i64, f32, vec)
SOL_VECTOR_CONVERSION(i64, vec_i64, f64, vec_f64)
SOL_VECTOR_CONVERSION(i64, vec_i64, i32, vec_i32)
static inline vec_i32 WRAP_i16(vec_i32 x) { return (vec_i32)((bits_i32)x << 16) >> 16; }
static inline vec_i32 WRAP_i8(vec_i32 x) { return (vec_i32)((bits_i32)x << 24) >> 24; }
static inline vec_i32 WRAP_u8(vec_i32 x) { return x & 255; }

/* All lanes of a vector, combined. */
#define SOL_LANES(name, s, T, V)                                                 \
    APART T name##_lanes##s(V v) {                                               \
        T all = v[0];                                                            \
        for (int l = 1; l < LANES; l++) all = name##1##s(all, v[l]);             \
        return all;                                                              \
    }
#define SOL_ALL_LANES(s, T, V) \
    SOL_LANES(ADD, s, T, V) SOL_LANES(MUL, s, T, V) SOL_LANES(MAX, s, T, V) SOL_LANES(MIN, s, T, V)
SOL_ALL_LANES(_f64, double, vec_f64)
SOL_ALL_LANES(_i32, int32_t, vec_i32)
SOL_ALL_LANES(_i64, int64_t, vec_i64)
SOL_LANES(MUL, , float, vec)

/* ---- Vectors in memory, as in vector.h ---- */

#define SOL_LOAD_CONVERTED(d, S, V)                                                             \
    typedef S mem_##d __attribute__((vector_size(sizeof(S) * LANES), aligned(sizeof(S)), may_alias)); \
    static inline V load_##d(const S *at) {                                                     \
        return __builtin_convertvector(*(const mem_##d *)at, V);                                \
    }                                                                                           \
    static inline void store_##d(S *at, V v) {                                                  \
        *(mem_##d *)at = __builtin_convertvector(v, mem_##d);                                   \
    }
/* gcc 12 converts between bytes and i32 one by one, but for storing with AVX-512. */
#if LANES == 16 && defined __AVX512F__ && !defined __clang__
typedef char sol_bytes __attribute__((vector_size(16), aligned(1), may_alias));
static inline vec_i32 WIDEN_i8(const void *at) {
    return (vec_i32)__builtin_ia32_pmovsxbd512_mask(*(const sol_bytes *)at, (vec_i32){0}, -1);
}
static inline vec_i32 WIDEN_u8(const void *at) {
    return (vec_i32)__builtin_ia32_pmovzxbd512_mask(*(const sol_bytes *)at, (vec_i32){0}, -1);
}
#define SOL_NARROW(d, v) __builtin_convertvector(v, mem_##d)
#define SOL_LOAD_BYTES SOL_LOAD_WIDENED
#elif LANES == 8 && defined __AVX2__ && !defined __clang__
typedef char sol_bytes __attribute__((vector_size(16)));
typedef long long sol_half __attribute__((aligned(1), may_alias));
typedef short sol_short __attribute__((vector_size(16)));
typedef long long sol_pair __attribute__((vector_size(16)));
static inline vec_i32 WIDEN_i8(const void *at) {
    const sol_pair bytes = {*(const sol_half *)at, 0};
    return (vec_i32)__builtin_ia32_pmovsxbd256((sol_bytes)bytes);
}
static inline vec_i32 WIDEN_u8(const void *at) {
    const sol_pair bytes = {*(const sol_half *)at, 0};
    return (vec_i32)__builtin_ia32_pmovzxbd256((sol_bytes)bytes);
}
#define SOL_NARROW(d, v) __builtin_convertvector(__builtin_convertvector(v, sol_short), mem_##d)
#define SOL_LOAD_BYTES SOL_LOAD_WIDENED
#else
#define SOL_LOAD_BYTES SOL_LOAD_CONVERTED
#endif
#define SOL_LOAD_WIDENED(d, S, V)                                                               \
    typedef S mem_##d __attribute__((vector_size(sizeof(S) * LANES), aligned(sizeof(S)), may_alias)); \
    static inline V load_##d(const S *at) { return WIDEN_##d(at); }                             \
    static inline void store_##d(S *at, V v) { *(mem_##d *)at = SOL_NARROW(d, v); }
#define SOL_LOAD_SINGLY(d, S, V)                                                                \
    APART V load_##d(const S *at) {                                                             \
        V v = {0};                                                                              \
        for (int l = 0; l < LANES; l++) v[l] = get_##d(at + l);                                 \
        return v;                                                                               \
    }                                                                                           \
    APART void store_##d(S *at, V v) {                                                          \
        for (int l = 0; l < LANES; l++) put_##d(at + l, v[l]);                                  \
    }
/* As bytes: one by one they would wait for each other's stores. */
#define SOL_LOAD_TRUTH(d, S, V)                                                                 \
    static inline V load_##d(const S *at) {                                                     \
        return (V)((ivec)splat(1.0f) & (ivec)(load_u8(at) != 0));                               \
    }                                                                                           \
    static inline void store_##d(S *at, V v) { store_u8(at, (vec_i32)(v != splat(0.0f)) & 1); }
#define SOL_MEMORY(d, S, T, V, how)                                                             \
    SOL_LOAD_##how(d, S, V)                                                                     \
    APART V gather_part_##d(const S *at, int64_t step, int n) {                                 \
        V v = {0};                                                                              \
        for (int l = 0; l < n; l++) v[l] = get_##d(at + l * step);                              \
        return v;                                                                               \
    }                                                                                           \
    APART void scatter_part_##d(S *at, int64_t step, V v, int n) {                              \
        for (int l = 0; l < n; l++) put_##d(at + l * step, v[l]);                               \
    }                                                                                           \
    static inline V load_part_##d(const S *at, int n) { return gather_part_##d(at, 1, n); }     \
    static inline void store_part_##d(S *at, V v, int n) { scatter_part_##d(at, 1, v, n); }     \
    static inline V gather_##d(const S *at, int64_t step) {                                     \
        return gather_part_##d(at, step, LANES);                                                \
    }                                                                                           \
    static inline void scatter_##d(S *at, int64_t step, V v) {                                  \
        scatter_part_##d(at, step, v, LANES);                                                   \
    }                                                                                           \
    APART V load_lanes_##d(const S *at, int64_t step, T other, int64_t from, int64_t to) {      \
        V v = {0};                                                                              \
        for (int l = 0; l < LANES; l++) v[l] = l >= from && l < to ? get_##d(at + l * step) : other; \
        return v;                                                                               \
    }
SOL_TYPES(SOL_MEMORY)

#else

/* ---- One lane: a vector is a value ---- */

typedef double vec_f64;
typedef int32_t vec_i32;
typedef int64_t vec_i64;
static inline double splat_f64(double x) { return x; }
static inline int32_t splat_i32(int32_t x) { return x; }
static inline int64_t splat_i64(int64_t x) { return x; }
#define SOL_MEMORY(d, S, T, V, how)                                                             \
    static inline T load_##d(const S *at) { return get_##d(at); }                               \
    static inline void store_##d(S *at, T x) { put_##d(at, x); }                                \
    static inline T gather_##d(const S *at, int64_t step) {                                     \
        (void)step;                                                                             \
        return get_##d(at);                                                                     \
    }                                                                                           \
    static inline void scatter_##d(S *at, int64_t step, T x) {                                  \
        (void)step;                                                                             \
        put_##d(at, x);                                                                         \
    }                                                                                           \
    static inline T load_lanes_##d(const S *at, int64_t step, T other, int64_t from, int64_t to) { \
        (void)step;                                                                             \
        return from <= 0 && to > 0 ? get_##d(at) : other;                                       \
    }
SOL_TYPES(SOL_MEMORY)
#define MUL_lanes(x) (x)
#define ADD_lanes_f64(x) (x)
#define MUL_lanes_f64(x) (x)
#define MAX_lanes_f64(x) (x)
#define MIN_lanes_f64(x) (x)
#define ADD_lanes_i32(x) (x)
#define MUL_lanes_i32(x) (x)
#define MAX_lanes_i32(x) (x)
#define MIN_lanes_i32(x) (x)
#define ADD_lanes_i64(x) (x)
#define MUL_lanes_i64(x) (x)
#define MAX_lanes_i64(x) (x)
#define MIN_lanes_i64(x) (x)
static inline float MUL(float a, float b) { return MUL1(a, b); }
static inline float FLOOR(float a) { return FLOOR1(a); }
static inline float ROUND(float a) { return ROUND1(a); }
static inline float SIN(float a) { return SIN1(a); }
static inline float COS(float a) { return COS1(a); }
static inline float TAN(float a) { return TAN1(a); }
static inline float ASIN(float a) { return ASIN1(a); }
static inline float ACOS(float a) { return ACOS1(a); }
static inline float ATAN(float a) { return ATAN1(a); }
static inline float SINH(float a) { return SINH1(a); }
static inline float COSH(float a) { return COSH1(a); }
static inline float ASINH(float a) { return ASINH1(a); }
static inline float ACOSH(float a) { return ACOSH1(a); }
static inline float ATANH(float a) { return ATANH1(a); }
static inline float POW(float a, float b) { return POW1(a, b); }
static inline float REMAINDER(float a, float b) { return REMAINDER1(a, b); }

#endif
