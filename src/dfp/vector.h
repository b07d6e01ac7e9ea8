/*
 * The functions that generated kernels call: loads and stores of vectors, comparisons with PyTorch's handling of NaN, exp, log,
 * tanh, erf, and combining the lanes of a vector.
 *
 *   prelude.c includes this as text  ->  dfp_prelude, in front of generated kernels
 *   interp.c  includes this as code  ->  the interpreter computes the same values
 *
 * One source serves both, so that they cannot differ. It is C99 with GNU vectors, in pieces
 * TEXT(...); a piece becomes one line of text, so it cannot contain preprocessor lines. LANES is the
 * number of floats in a vector.
 *
 * FUNCTION: inlined, except in long kernels. APART: compiled once and called. A loop over lanes that is inlined becomes a branch
 * or an instruction per lane at each call. Such loops took more than half of the C compiler's time, so there are few.
 *
 * Selects use masks, since gcc's C has no ?: on vectors. Bit patterns are added as unsigned, since signed overflow is
 * undefined.
 */

/* These definitions are for the interpreter. Those for generated kernels are in prelude.c: one instruction where the processor
 * has it. */
#define FUNCTION static inline
#define APART static __attribute__((noinline, unused))
#define load_part load_part_any
#define load_lanes load_lanes_any
#define store_part store_part_any
#define rotate rotate_any
#define max_of max_of_any
#define min_of min_of_any

TEXT(typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));)
TEXT(typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));)
TEXT(typedef uint32_t uvec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));)

TEXT(static inline int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; })
TEXT(static inline int64_t max_int(int64_t a, int64_t b) { return a > b ? a : b; })
TEXT(static inline int64_t div_floor(int64_t a, int64_t b) { return a / b - (a % b < 0); })
TEXT(static inline int64_t mod_floor(int64_t a, int64_t b) { return a - div_floor(a, b) * b; })
TEXT(static inline int64_t div_ceil(int64_t a, int64_t b) { return a / b + (a % b > 0); })

/* ---- Memory. The _part versions access n elements only; the other lanes have no defined value. load_lanes loads lanes
 * [from, to), at most LANES, and sets the others to `other`. ---- */

TEXT(static inline vec splat(float x) { return x - (vec){0}; })
TEXT(static inline vec load(const float *at) { return *(const vec *)at; })
TEXT(static inline void store(float *at, vec v) { *(vec *)at = v; })
TEXT(static inline vec load_part_any(const float *at, int n) {
    vec v = {0};
    for (int l = 0; l < LANES; l++)
        if (l < n) v[l] = at[l];
    return v;
})
TEXT(static inline void store_part_any(float *at, vec v, int n) {
    for (int l = 0; l < LANES; l++)
        if (l < n) at[l] = v[l];
})
TEXT(APART vec load_lanes_any(const float *at, int64_t step, float other, int64_t from,
                              int64_t to) {
    float v[LANES];
    int first = (int)min_int(from, LANES);
    int end = (int)max_int(to, 0);
    if (step == 1)
        for (int l = 0; l < LANES; l++) v[l] = l >= first && l < end ? at[l] : other;
    else
        for (int l = 0; l < LANES; l++) v[l] = l >= first && l < end ? at[l * step] : other;
    return load(v);
})
TEXT(static inline vec gather(const float *at, int64_t step) {
    vec v = {0};
    for (int l = 0; l < LANES; l++) v[l] = at[l * step];
    return v;
})
TEXT(static inline vec gather_part(const float *at, int64_t step, int n) {
    vec v = {0};
    for (int l = 0; l < n; l++) v[l] = at[l * step];
    return v;
})
TEXT(static inline void scatter(float *at, int64_t step, vec v) {
    for (int l = 0; l < LANES; l++) at[l * step] = v[l];
})
TEXT(static inline void scatter_part(float *at, int64_t step, vec v, int n) {
    for (int l = 0; l < n; l++) at[l * step] = v[l];
})

/* ---- Choices. MAX(a, b) is NaN if an operand is: b is taken where b > a or b is NaN; a NaN in a stays, as comparisons with it
 * are false. ---- */

TEXT(static inline vec pick(ivec mask, vec a, vec b) {
    return (vec)(((ivec)a & mask) | ((ivec)b & ~mask));
})
/* max_of and min_of are one instruction: b if a or b is NaN. */
TEXT(static inline vec max_of_any(vec a, vec b) { return pick(a > b, a, b); })
TEXT(static inline vec min_of_any(vec a, vec b) { return pick(a < b, a, b); })
TEXT(static inline vec LESS(vec a, vec b) { return (vec)((ivec)splat(1.0f) & (a < b)); })
TEXT(static inline vec EQUAL(vec a, vec b) { return (vec)((ivec)splat(1.0f) & (a == b)); })
TEXT(static inline vec SELECT(vec c, vec a, vec b) { return pick(c != splat(0.0f), a, b); })
TEXT(static inline vec MAX(vec a, vec b) { return pick(b != b, b, max_of(b, a)); })
TEXT(static inline vec MIN(vec a, vec b) { return pick(b != b, b, min_of(b, a)); })
TEXT(static inline vec NEG(vec a) { return -a; })
TEXT(static inline vec ABS(vec a) { return (vec)((ivec)a & 0x7fffffff); })
TEXT(static inline vec ADD(vec a, vec b) { return a + b; })

TEXT(static inline vec lane_numbers(void) {
    vec v = {0};
    for (int l = 0; l < LANES; l++) v[l] = (float)l;
    return v;
})
TEXT(static inline vec valid_range(int64_t from, int64_t to) {
    vec l = lane_numbers();
    return (vec)((ivec)splat(1.0f) & (l >= splat((float)from)) & (l < splat((float)to)));
})
TEXT(static inline vec valid_lanes(int64_t n) { return LESS(lane_numbers(), splat((float)n)); })
TEXT(static inline vec keep_part(vec v, int n, float neutral) {
    return pick(lane_numbers() < splat((float)n), v, splat(neutral));
})

/* ---- Functions. Compilers turn the loop of SQRT into one instruction. ---- */

TEXT(static inline vec SQRT(vec x) {
    for (int l = 0; l < LANES; l++) x[l] = __builtin_sqrtf(x[l]);
    return x;
})

/* log(x) = e * log(2) + log1p(m), m in [-1/3, 1/3]; denormals are scaled up first. Coefficients:
 * N. Juffa. */
TEXT(FUNCTION vec LOG(vec x) {
    ivec small = x < 1.17549435e-38f;
    vec a = pick(small, x * 8388608.0f, x);
    uvec e = ((uvec)a - 0x3f2aaaabu) & 0xff800000u;
    vec m = (vec)((uvec)a - e) - 1.0f;
    vec i = __builtin_convertvector((ivec)e, vec) * 1.19209290e-7f;
    i = i - (vec)((ivec)splat(23.0f) & small);
    vec s = m * m;
    vec r = -0.130310059f * s - 0.121483512f;
    vec t = 0.140869141f * s + 0.139814854f;
    r = r * s - 0.166846126f;
    t = t * s + 0.200120345f;
    r = r * s - 0.249996200f;
    r = t * m + r;
    r = r * m + 0.333331972f;
    r = r * m - 0.5f;
    r = r * s + m;
    r = i * 0.693147182f + r;
    r = pick(x > 3.40282347e38f, x, r);
    r = pick(x == 0.0f, splat(-__builtin_inff()), r);
    return pick((x < 0.0f) | (x != x), splat(__builtin_nanf("")), r);
})
