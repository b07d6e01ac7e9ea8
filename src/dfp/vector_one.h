/*
 * The functions of vector.h and vector_curve.h for one value, and those that combine the lanes of a vector. Included behind them, in
 * the same two ways.
 */

/* ---- The same for one value. exp, log, tanh and erf of one value are rare, so they use the vector versions. ---- */

TEXT(static inline float ADD1(float a, float b) { return a + b; })
TEXT(static inline float LESS1(float a, float b) { return a < b ? 1.0f : 0.0f; })
TEXT(static inline float EQUAL1(float a, float b) { return a == b ? 1.0f : 0.0f; })
TEXT(static inline float SELECT1(float c, float a, float b) { return c != 0.0f ? a : b; })
TEXT(static inline float MAX1(float a, float b) { return b > a || b != b ? b : a; })
TEXT(static inline float MIN1(float a, float b) { return b < a || b != b ? b : a; })
TEXT(static inline float NEG1(float a) { return -a; })
TEXT(static inline float ABS1(float a) { return __builtin_fabsf(a); })
TEXT(static inline float SQRT1(float a) { return __builtin_sqrtf(a); })
TEXT(APART float EXP1(float a) { return EXP(splat(a))[0]; })
TEXT(APART float LOG1(float a) { return LOG(splat(a))[0]; })
TEXT(APART float TANH1(float a) { return TANH(splat(a))[0]; })
TEXT(APART float ERF1(float a) { return ERF(splat(a))[0]; })

/* ---- NAME_lanes combines all lanes of a vector: lanes [0, n) with lanes [n, 2n) for n = LANES / 2, LANES / 4, .. 1. The last
 * four lanes of a maximum or minimum are combined as single values, which has a shorter chain of dependencies. ---- */

TEXT(static inline vec rotate_any(vec v, int n) {
    vec w = v;
    for (int l = 0; l < LANES; l++) w[l] = v[(l + n) % LANES];
    return w;
})
/* Lane l becomes the sum of lanes 0 to l: each step adds the lane n below, for n = 1, 2, 4, .. */
TEXT(static inline vec ADD_up_to(vec v) {
    for (int n = 1; n < LANES; n *= 2)
        v = ADD(v, pick(lane_numbers() < splat((float)n), splat(0.0f), rotate(v, LANES - n)));
    return v;
})
TEXT(static inline float ADD_lanes(vec v) {
    for (int n = LANES / 2; n > 0; n /= 2) v = ADD(v, rotate(v, n));
    return v[0];
})
TEXT(static inline float MAX_lanes(vec v) {
    for (int n = LANES / 2; n > 2; n /= 2) v = MAX(v, rotate(v, n));
    return MAX1(MAX1(v[0], v[2]), MAX1(v[1], v[3]));
})
TEXT(static inline float MIN_lanes(vec v) {
    for (int n = LANES / 2; n > 2; n /= 2) v = MIN(v, rotate(v, n));
    return MIN1(MIN1(v[0], v[2]), MIN1(v[1], v[3]));
})
