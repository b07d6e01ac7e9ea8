/*
 * What generated kernels call in dialects of single values: a "vector" is a float here, and LANES is 1.
 *
 *   prelude.c includes this as text -> dfp_scalar, in front of kernels of dfp_plain
 *   deploy/portable_math.h          -> libraries of portable C, whose kernels are of dfp_portable; without this comment
 *
 * C99 and its library. A function has the name of its vector version in vector.h, vector_curve.h or vector_one.h, and the same results
 * but for the last bits of EXP, LOG, TANH and ERF, which are the C library's. Element types other than f32 follow in kernel_types.h.
 * Libraries leave out this comment, which must be the file's first one.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 1
#define LANE(v, l) v
typedef float vec;

static inline int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_int(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t div_floor(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t mod_floor(int64_t a, int64_t b) { return a - div_floor(a, b) * b; }
static inline int64_t div_ceil(int64_t a, int64_t b) { return a / b + (a % b > 0); }

static inline float splat(float x) { return x; }
static inline float load(const float *at) { return *at; }
static inline void store(float *at, float x) { *at = x; }
static inline float gather(const float *at, int64_t step) {
    (void)step;
    return *at;
}
static inline float gather2(const float *at) { return *at; }
static inline void scatter(float *at, int64_t step, float x) {
    (void)step;
    *at = x;
}
static inline float valid_range(int64_t from, int64_t to) {
    return from <= 0 && to > 0 ? 1.0f : 0.0f;
}
static inline float load_lanes(const float *at, int64_t step, float other, int64_t from,
                               int64_t to) {
    (void)step;
    return from <= 0 && to > 0 ? *at : other;
}
static inline float valid_lanes(int64_t n) { return n > 0 ? 1.0f : 0.0f; }

static inline float ADD1(float a, float b) { return a + b; }
static inline float LESS1(float a, float b) { return a < b ? 1.0f : 0.0f; }
static inline float EQUAL1(float a, float b) { return a == b ? 1.0f : 0.0f; }
static inline float SELECT1(float c, float a, float b) { return c != 0.0f ? a : b; }
static inline float MAX1(float a, float b) { return b > a || b != b ? b : a; }
static inline float MIN1(float a, float b) { return b < a || b != b ? b : a; }
static inline float NEG1(float a) { return -a; }
static inline float ABS1(float a) { return fabsf(a); }
static inline float SQRT1(float a) { return sqrtf(a); }
static inline float EXP1(float a) { return expf(a); }
static inline float LOG1(float a) { return logf(a); }
static inline float TANH1(float a) { return tanhf(a); }
static inline float ERF1(float a) { return erff(a); }

#define ADD ADD1
#define LESS LESS1
#define EQUAL EQUAL1
#define SELECT SELECT1
#define MAX MAX1
#define MIN MIN1
#define NEG NEG1
#define ABS ABS1
#define SQRT SQRT1
#define EXP EXP1
#define LOG LOG1
#define TANH TANH1
#define ERF ERF1
#define ADD_lanes(x) (x)
#define MAX_lanes(x) (x)
#define MIN_lanes(x) (x)
