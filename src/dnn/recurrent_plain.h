/*
 * Recurrent layers as plain loops over single values: f64, weights that are computed at the call, and portable C.
 *
 *   recurrent.c includes this for float and double  ->  step_recurrent_plain
 *   deploy/portable.c includes it as text           ->  portable libraries
 *
 * Without REAL it only has the numbers of arguments. The includer defines REAL, the type, REAL_EXP and REAL_TANH of it, and RECURRENT_PLAIN, the name of the function. C99. The formulas
 * are those of PyTorch's manual.
 */
#ifndef SOL_RECURRENT_NUMBERS
#define SOL_RECURRENT_NUMBERS

enum { RECURRENT_TANH, RECURRENT_RELU, RECURRENT_LSTM, RECURRENT_GRU };
/* The arguments of a step. AXIS: 1 if samples are outermost in x and y, 0 if steps are. TILE: units per task of the vector kernel. */
enum {
    RECURRENT_KIND,
    RECURRENT_REVERSE,
    RECURRENT_AXIS,
    RECURRENT_STEPS,
    RECURRENT_SAMPLES,
    RECURRENT_UNITS,
    RECURRENT_TILE,
    RECURRENT_IS_DOUBLE,
    RECURRENT_N_ARGS
};
/* Its pointers; all tensors are dense. MORE: the cell of an lstm, the bias of a gru. LENGTHS: NULL: all samples have all steps. PRODUCTS:
 * the second output; NULL: there is none. */
enum {
    RECURRENT_X,
    RECURRENT_WEIGHT,
    RECURRENT_STATE,
    RECURRENT_MORE,
    RECURRENT_LENGTHS,
    RECURRENT_Y,
    RECURRENT_PRODUCTS,
    RECURRENT_N_POINTERS
};
#endif

#ifdef REAL
#define REAL_JOIN2(a, b) a##b
#define REAL_JOIN(a, b) REAL_JOIN2(a, b)
#define LOCAL(name) REAL_JOIN(RECURRENT_PLAIN, name)

static REAL LOCAL(_sigmoid)(REAL x) { return (REAL)1 / ((REAL)1 + REAL_EXP(-x)); }

/* The new state of a unit. x, w: of its first gate, the other gates follow `units` values and `units` rows behind, as do those of
 * `products`; more: the unit's cell, which is replaced, or its bias. */
static REAL LOCAL(_unit)(int64_t kind, int64_t units, int64_t u, const REAL *x, const REAL *w,
                         const REAL *h, REAL *more, REAL *products) {
    const int64_t gates = kind == RECURRENT_LSTM ? 4 : kind == RECURRENT_GRU ? 3 : 1;
    REAL product[4] = {0, 0, 0, 0}, now, first;
    int64_t g, k;
    for (g = 0; g < gates; g++) {
        const REAL *row = w + g * units * units;
        for (k = 0; k < units; k++) product[g] += h[k] * row[k];
    }
    if (kind == RECURRENT_GRU) product[2] += *more;
    for (g = 0; g < gates && products; g++) products[g * units] = product[g];
    first = x[0] + product[0];
    if (kind == RECURRENT_TANH) return REAL_TANH(first);
    if (kind == RECURRENT_RELU) return first < 0 ? (REAL)0 : first;
    first = LOCAL(_sigmoid)(first);
    if (kind == RECURRENT_GRU) {
        now = REAL_TANH(x[2 * units] + first * product[2]);
        return LOCAL(_sigmoid)(x[units] + product[1]) * (h[u] - now) + now;
    }
    now = LOCAL(_sigmoid)(x[units] + product[1]) * *more;
    *more = now + first * REAL_TANH(x[2 * units] + product[2]);
    return LOCAL(_sigmoid)(x[3 * units] + product[3]) * REAL_TANH(*more);
}

static void LOCAL(_copy)(int64_t n, const REAL *from, REAL *to) {
    for (; n > 0; n--) *to++ = *from++;
}

/* Computes all steps of samples [begin, end). Returns 1 + the number of a sample with more steps than there are, or less than 0; else 0. */
static int64_t RECURRENT_PLAIN(void *const *ptr, const int64_t *arg, int64_t begin, int64_t end) {
    const int64_t kind = arg[RECURRENT_KIND], units = arg[RECURRENT_UNITS];
    const int64_t gates = kind == RECURRENT_LSTM ? 4 : kind == RECURRENT_GRU ? 3 : 1;
    const int64_t steps = arg[RECURRENT_STEPS], samples = arg[RECURRENT_SAMPLES];
    const int64_t rows = steps + 1 + (kind == RECURRENT_LSTM);
    const int64_t x_step = (arg[RECURRENT_AXIS] ? 1 : samples) * gates * units;
    const int64_t y_step = (arg[RECURRENT_AXIS] ? 1 : samples) * units;
    int64_t n, i, u;
    for (n = begin; n < end; n++) {
        const int64_t length =
            ptr[RECURRENT_LENGTHS] ? ((const int64_t *)ptr[RECURRENT_LENGTHS])[n] : steps;
        const REAL *x =
            (const REAL *)ptr[RECURRENT_X] + n * (arg[RECURRENT_AXIS] ? steps : 1) * gates * units;
        const REAL *w = (const REAL *)ptr[RECURRENT_WEIGHT];
        const REAL *h = (const REAL *)ptr[RECURRENT_STATE] + n * units;
        REAL *y = (REAL *)ptr[RECURRENT_Y] + n * (arg[RECURRENT_AXIS] ? rows : 1) * units;
        REAL *more = (REAL *)ptr[RECURRENT_MORE], *products = (REAL *)ptr[RECURRENT_PRODUCTS];
        if (length < 0 || length > steps) return n + 1;
        if (products) products += n * (arg[RECURRENT_AXIS] ? steps : 1) * gates * units;
        if (kind == RECURRENT_LSTM) {
            LOCAL(_copy)(units, more + n * units, y + (steps + 1) * y_step);
            more = y + (steps + 1) * y_step;
        }
        for (i = 0; i < length; i++) {
            const int64_t t = arg[RECURRENT_REVERSE] ? length - 1 - i : i;
            for (u = 0; u < units; u++)
                y[t * y_step + u] = LOCAL(_unit)(kind, units, u, x + t * x_step + u, w + u * units,
                                                 h, more ? more + u : (REAL *)0,
                                                 products ? products + t * x_step + u : (REAL *)0);
            h = y + t * y_step;
        }
        for (i = length; i < steps; i++) {
            for (u = 0; u < units; u++) y[i * y_step + u] = 0;
            for (u = 0; u < gates * units && products; u++) products[i * x_step + u] = 0;
        }
        LOCAL(_copy)(units, h, y + steps * y_step);
    }
    return 0;
}

#undef LOCAL
#undef REAL_JOIN
#undef REAL_JOIN2
#endif
