/*
 * exp, and tanh and erf by exponentials: one form for all x. vector_table.h has all three for processors whose registers hold tables.
 * Included behind vector.h, in the same two ways.
 *
 * 2^n: adding 1.5 * 2^23 + b rounds to an integer n, and the lowest bits of the sum t are n + b. With the bias b = 127 of exponents,
 * t << 23 is 2^n. Factors of 2^n keep a NaN in x, where an addition to the exponent would not.
 *
 * Processors have many steps of these functions under way at once, so some polynomials are sums of shorter ones.
 */

/* exp(x) = 2^n * exp(r), |r| <= ln(2)/2. exp_tail is (exp(r) - 1 - r) / r^2, with the least largest error relative to exp(r) - 1. 2^n is
 * the product of two powers, as the result may be denormal: t is n + 254, `half` the half of it. 0.92 ulp, also where results are
 * denormal; the result of NaN is NaN. */
TEXT(static inline vec exp_tail(vec r) {
    vec p = r * 1.38703140e-3f + 8.36625881e-3f;
    p = p * r + 4.16674390e-2f;
    p = p * r + 0.166665465f;
    return p * r + 0.49999997f;
})
TEXT(FUNCTION vec EXP(vec x) {
    vec c = max_of(splat(-104.0f), min_of(splat(89.0f), x));
    vec t = c * 1.44269504f + 12583166.0f;
    vec n = t - 12583166.0f;
    vec r = c - n * 0.693145752f;
    r = r - n * 1.42860677e-6f;
    uvec half = (uvec)t >> 1;
    vec s = (vec)(half << 23);
    vec p = exp_tail(r) * r + 1.0f;
    return (p * (r * s) + s) * (vec)(((uvec)t - half) << 23);
})

TEXT(static inline vec with_sign(vec size, vec x) {
    return (vec)((ivec)size | ((ivec)x & (int32_t)0x80000000));
})

/* Near 0 a polynomial of x^2; elsewhere 1 - 2 * e / (e + 1) for e = exp(-2 |x|), which is 2^n * 2^f. There the error of e counts a third,
 * so that a polynomial of f of degree 5 is enough, and beyond 10 tanh is 1. 1.7 ulp. */
TEXT(FUNCTION vec TANH(vec x) {
    vec a = min_of(splat(10.0f), ABS(x));
    vec t = a * -2.88539004f + 12583039.0f;
    vec f = a * -2.88539004f - (t - 12583039.0f);
    vec e = f * 1.32647273e-3f + 9.67151299e-3f;
    e = e * f + 5.55073358e-2f;
    e = e * f + 0.240222424f;
    e = e * f + 0.693147004f;
    e = (e * f + 1.0f) * (vec)((uvec)t << 23);
    vec far = with_sign(1.0f - (e + e) / (e + 1.0f), x);
    vec s = x * x;
    vec p = s * -5.51516376e-3f + 2.04694197e-2f;
    p = p * s - 5.36880232e-2f;
    p = p * s + 0.133308306f;
    p = p * s - 0.333332598f;
    return pick(a < 0.65f, p * (s * x) + x, far);
})

/* 1 - exp(z), where z = t * p - t approximates log(1 - erf(t)): 1.8 ulp. For small |z| the sum of both parts of exp(z) - 1 is exact
 * enough: there n is 0, and 2^n - 1 as well. Beyond 4 erf is 1. */
TEXT(FUNCTION vec ERF(vec x) {
    vec t = min_of(splat(4.0f), ABS(x));
    vec s = t * t;
    vec p = 9.38864378e-6f * t - 1.18869146e-4f;
    p = p * s + (6.37397286e-4f * t - 1.67574733e-3f);
    p = p * s + (1.69580017e-4f * t + 1.91477835e-2f);
    p = p * t - 1.02776296e-1f;
    p = p * t - 6.36619568e-1f;
    p = p * t - 1.28379166e-1f;
    vec z = p * t - t;
    vec n = z * 1.44269504f + 12583039.0f;
    vec r = z - (n - 12583039.0f) * 0.693147182f;
    vec q = exp_tail(r) * (r * r) + r;
    vec power = (vec)((uvec)n << 23);
    return with_sign((1.0f - power) - q * power, x);
})
