/* Tensors of one run: random values, and comparing with the reference. */
#include "tensors.h"

#include "../unit/check.h"
#include "device/ref/element.h"

#include <math.h>

/* ---- Tensors ---- */

int64_t tensors_count(const struct tensor *t, const int64_t *symbols) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= size_eval(&t->dim[i], symbols);
    return n;
}

void *tensors_add(struct tensors *list, enum sol_dtype type, int64_t n) {
    REQUIRE(list->n < GEN_LEAVES && n >= 0 && n < 1 << 26);
    size_t size = (size_t)(n * size_element(type));
    void *at = malloc(size + !size);
    REQUIRE(at);
    memset(at, 0x77, size);
    list->at[list->n] = at;
    list->size[list->n] = n;
    list->type[list->n++] = type;
    return at;
}

static double random_double(struct random *r, double low, double high) {
    return low + (high - low) * (double)(random_next(r) >> 8) / (double)((int64_t)1 << 40);
}

static double random_real(struct random *r, enum sol_dtype type, struct gen_range range) {
    static const double special[] = {NAN, INFINITY, -INFINITY, -0.0, 0, 1e-40, -6e-8, 1};
    if (range.special && random_one_in(r, 12)) return RANDOM_PICK(r, special);
    if (type == SOL_F32) return (double)random_float(r, range.low, range.high);
    return random_double(r, (double)range.low, (double)range.high);
}

/* Limits, small numbers, such as distances of shifts, and any numbers. */
static int64_t random_whole(struct random *r, enum sol_dtype type, struct gen_range range) {
    int64_t lowest = ref_constant(type, -INFINITY), highest = ref_constant(type, INFINITY);
    if (range.is_index) return random_int(r, (int)range.low, (int)range.high);
    switch (random_int(r, 0, 7)) {
    case 0: return lowest;
    case 1: return highest;
    case 2: return random_int(r, -1, 1);
    case 3:
    case 4: return random_int(r, -3, 70);
    default: return (int64_t)(random_next(r) ^ random_next(r) << 24);
    }
}

void tensors_add_random(struct tensors *list, struct random *r, const struct tensor *t,
                        const int64_t *symbols, struct gen_range range) {
    int64_t n = tensors_count(t, symbols);
    void *at = tensors_add(list, t->dtype, n);
    for (int64_t i = 0; i < n; i++)
        if (size_family(t->dtype) == FAMILY_FLOAT)
            ref_put_real(t->dtype, at, i, random_real(r, t->dtype, range));
        else ref_put_whole(t->dtype, at, i, random_whole(r, t->dtype, range));
}

void tensors_free(struct tensors *list) {
    for (int i = 0; i < list->n; i++) free(list->at[i]);
}

/* ---- Comparing ---- */

static bool is_same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* The allowed error of floats, relative to that of f32. Those of 16 bits may differ by a few units in the last place, as some layers are
 * several, each of which rounds. */
static double get_scale(enum sol_dtype type) {
    static const double scale[SOL_N_DTYPES] = {1, 1e-7, 2500, 400};
    return scale[type];
}

/* The largest error, relative to the allowed error; infinite if NaN or Inf are in different
 * places. */
static double compare_floats(const struct gen *g, int output, enum sol_dtype type, const void *is,
                             const void *expected, int64_t n) {
    double worst = 0, largest = 0;
    int64_t where = 0;
    for (int64_t i = 0; i < n; i++) {
        double should = ref_get_real(type, expected, i);
        if (isfinite(should)) largest = fmax(largest, fabs(should));
    }
    for (int64_t i = 0; i < n; i++) {
        double a = ref_get_real(type, is, i), b = ref_get_real(type, expected, i);
        if (is_same(a, b)) continue;
        double error = fabs(a - b);
        if (!isfinite(error)) error = INFINITY;
        if (error > worst) where = i, worst = error;
    }
    double allowed = (g->tolerance * largest + g->error) * get_scale(type);
    if (g->is_mixed) allowed = g->output_error[output];
    if (worst > allowed)
        printf("%s: element %lld is %g, expected %g, largest %g\n", size_dtype_name(type),
               (long long)where, ref_get_real(type, is, where), ref_get_real(type, expected, where),
               largest);
    return worst > 0 ? worst / allowed : 0; /* infinite if no error is allowed */
}

/* 0, or infinite if there is a difference: integers are exact. */
static double compare_integers(enum sol_dtype type, const void *is, const void *expected,
                               int64_t n) {
    size_t size = (size_t)size_element(type);
    for (int64_t i = 0; i < n; i++) {
        const char *a = (const char *)is + (size_t)i * size,
                   *b = (const char *)expected + (size_t)i * size;
        if (!memcmp(a, b, size)) continue;
        printf("%s: element %lld is %lld, expected %lld\n", size_dtype_name(type), (long long)i,
               (long long)ref_get_whole(type, is, i), (long long)ref_get_whole(type, expected, i));
        return INFINITY;
    }
    return 0;
}

double tensors_compare(const struct gen *g, const struct tensors *is,
                       const struct tensors *expected, int i) {
    enum sol_dtype type = expected->type[i];
    if (size_family(type) != FAMILY_FLOAT)
        return compare_integers(type, is->at[i], expected->at[i], expected->size[i]);
    return compare_floats(g, i, type, is->at[i], expected->at[i], expected->size[i]);
}
