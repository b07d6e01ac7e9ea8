/*
 * exp, and tanh and erf by exponentials: one form for all x. vector_table.h has all three for processors whose registers hold tables.
 * Included behind vector.h, in the same two ways.
 */

/* p * 2^n for t = n + 1.5 * 2^23: as two factors, since the result may be denormal. */
TEXT(static inline vec scale_by(vec p, vec t) {
    ivec n = (ivec)((uvec)t - 0x4b400000u);
    uvec half = (uvec)(n >> 1);
    return p * (vec)((half + 127) << 23) * (vec)(((uvec)n - half + 127) << 23);
})

/* exp(x) = 2^n * exp(r), |r| <= ln(2)/2. Adding 1.5 * 2^23 to x / ln(2) rounds it to n; the sum is t. exp_rest is r;
 * exp_tail is (exp(r) - 1 - r) / r^2, with the least largest error relative to exp(r) - 1. EXP: 0.92 ulp, also where results are
 * denormal; the result of NaN is NaN. */
TEXT(static inline vec exp_rest(vec x, vec t) {
    vec n = t - 12582912.0f;
    vec r = x - n * 0.693145752f;
    return r - n * 1.42860677e-6f;
})
TEXT(static inline vec exp_tail(vec r) {
    vec p = r * 1.38703140e-3f + 8.36625881e-3f;
    p = p * r + 4.16674390e-2f;
    p = p * r + 0.166665465f;
    return p * r + 0.49999997f;
})
TEXT(FUNCTION vec EXP(vec x) {
    vec c = max_of(splat(-104.0f), min_of(splat(89.0f), x));
    vec t = c * 1.44269504f + 12582912.0f;
    vec r = exp_rest(c, t);
    vec p = exp_tail(r) * r + 1.0f;
    return scale_by(p * r + 1.0f, t);
})

/* exp(x) - 1 for |x| <= 80. The sum of both parts is exact enough for small x: there n is 0, and 2^n - 1 as well. */
TEXT(static inline vec exp_minus_1(vec x) {
    vec t = x * 1.44269504f + 12582912.0f;
    vec r = exp_rest(x, t);
    vec q = exp_tail(r) * (r * r) + r;
    vec s = (vec)(((uvec)t - 0x4b400000u + 127) << 23);
    return q * s + (s - 1.0f);
})
TEXT(static inline vec with_sign(vec size, vec x) {
    return (vec)((ivec)size | ((ivec)x & (int32_t)0x80000000));
})

/* With m = exp(2 |x|) - 1, tanh is y = m / d, d = m + 2, with the sign of x. Then y is corrected by what is left of m, divided by d;
 * 1 / d is about (1 - y) / 2, but for y near 1, which needs no correction. `lost` is what the rounding of m + 2 has lost. 1.8 ulp. Beyond 10 tanh is 1. */
TEXT(FUNCTION vec TANH(vec x) {
    vec a = min_of(splat(10.0f), ABS(x));
    vec m = exp_minus_1(a + a);
    vec d = m + 2.0f;
    vec y = m / d;
    vec lost = min_of(m, splat(2.0f)) - (d - max_of(m, splat(2.0f)));
    vec left = (m - y * d) - y * lost;
    return with_sign(y + left * max_of(0.4999f - 0.5f * y, splat(0.0f)), x);
})

/* 1 - exp(t * p - t), where t * p - t approximates log(1 - erf(t)): 1.8 ulp. Beyond 4 erf is 1. */
TEXT(FUNCTION vec ERF(vec x) {
    vec t = min_of(splat(4.0f), ABS(x));
    vec p = 9.38864378e-6f * t - 1.18869146e-4f;
    p = p * t + 6.37397286e-4f;
    p = p * t - 1.67574733e-3f;
    p = p * t + 1.69580017e-4f;
    p = p * t + 1.91477835e-2f;
    p = p * t - 1.02776296e-1f;
    p = p * t - 6.36619568e-1f;
    p = p * t - 1.28379166e-1f;
    return with_sign(-exp_minus_1(p * t - t), x);
})
