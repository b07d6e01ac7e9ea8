/*
 * Portable C has each primitive and each combine of floats a second time, in deploy/portable_math.h and dfp/kernel_types.h. Here all rows of ir/primitive.def are called
 * as generated text calls them, and compared with the formulas of meaning.h. A row without its functions does not compile.
 */
#include "meaning.h"

/* Last: its macros are words of other headers. */
#include "deploy/portable_math.h"
/* Behind it, as in libraries. */

#include "dfp/kernel_types.h"

#define CALL_1(f) f(a)
#define CALL_2(f) f(a, b)
#define CALL_3(f) f(a, b, c)

/* Operators of C need no function. `f` is expanded as in generated text, `f##1` is the form for floats. */
#define OPERATOR(name, symbol)
#define INTEGRAL(name, ...)
#define PRIMITIVE(name, n, ...)                          \
    static float vector_##name(float a, float b, float c) { \
        (void)a, (void)b, (void)c;                       \
        return CALL_##n(name);                           \
    }                                                    \
    static float float_##name(float a, float b, float c) { \
        (void)a, (void)b, (void)c;                       \
        return CALL_##n(name##1);                        \
    }
#define COMBINE(name, neutral, idempotent)                                     \
    static float lanes_##name(float a) { return name##_lanes(a); }             \
    static float combine_##name(float a, float b) { return name##1(a, b); }
#include "ir/primitive.def"

static const struct {
    const char *name;
    enum primitive primitive;
    float (*vector)(float, float, float), (*scalar)(float, float, float);
} primitive_rows[] = {
#define OPERATOR(name, symbol)
#define INTEGRAL(name, ...)
#define PRIMITIVE(name, n, ...) \
    {#name, PRIMITIVE_##name, vector_##name, float_##name},
#include "ir/primitive.def"
};

static const struct {
    enum combine combine;
    float (*lanes)(float), (*combine_two)(float, float);
} combine_rows[] = {
#define COMBINE(name, neutral, idempotent) {COMBINE_##name, lanes_##name, combine_##name},
#include "ir/primitive.def"
};

static const float edges[] = {0,     -0.0f, 1,        -1,       0.5f,    -2.5f,    1e-45f,    -0.7f,
                              88.5f, -104,  16777216, 1.2e-38f, 3.4e38f, INFINITY, -INFINITY, NAN};
enum { N_EDGES = sizeof edges / sizeof *edges };

/* The C library's approximations, which are the expensive primitives, are exact to a few units in the last place. */
static void test_primitives(void) {
    for (size_t row = 0; row < sizeof primitive_rows / sizeof *primitive_rows; row++) {
        double ulps = primitives[primitive_rows[row].primitive].cost >= 8 ? 4 : 0;
        for (int i = 0; i < N_EDGES * N_EDGES * N_EDGES; i++) {
            float a = edges[i % N_EDGES], b = edges[i / N_EDGES % N_EDGES],
                  c = edges[i / N_EDGES / N_EDGES];
            double should = meaning_of_primitive(primitive_rows[row].primitive, (double)a,
                                                 (double)b, (double)c);
            if (!CHECK(meaning_ulps(primitive_rows[row].vector(a, b, c), should) <= ulps) ||
                !CHECK(meaning_ulps(primitive_rows[row].scalar(a, b, c), should) <= ulps))
                fprintf(stderr, "    %s of %g, %g, %g\n", primitive_rows[row].name, (double)a,
                        (double)b, (double)c);
        }
    }
}

static void test_combines(void) {
    for (size_t row = 0; row < sizeof combine_rows / sizeof *combine_rows; row++)
        for (int i = 0; i < N_EDGES * N_EDGES; i++) {
            float a = edges[i % N_EDGES], b = edges[i / N_EDGES];
            double should = meaning_of_combine(combine_rows[row].combine, (double)a, (double)b);
            CHECK(meaning_ulps(combine_rows[row].combine_two(a, b), should) == 0);
            CHECK(meaning_ulps(combine_rows[row].lanes(a), (double)a) == 0);
        }
}

int main(void) {
    test_primitives();
    test_combines();
    return check_done();
}
