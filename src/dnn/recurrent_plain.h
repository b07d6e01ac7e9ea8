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
/* Its pointers; all tensors are dense. MORE: the cell of an lstm, the bias of a gru. LENGTHS: NULL: all samples have all steps. KEPT:
 * the second output, the gates (ir/layer.def); NULL: there is none. */
enum {
    RECURRENT_X,
    RECURRENT_WEIGHT,
    RECURRENT_STATE,
    RECURRENT_MORE,
    RECURRENT_LENGTHS,
    RECURRENT_Y,
    RECURRENT_KEPT,
    RECURRENT_N_POINTERS
};
#endif

#ifdef REAL
#define REAL_JOIN2(a, b) a##b
#define REAL_JOIN(a, b) REAL_JOIN2(a, b)
#define LOCAL(name) REAL_JOIN(RECURRENT_PLAIN, name)

static REAL LOCAL(_sigmoid)(REAL x) { return (REAL)1 / ((REAL)1 + REAL_EXP(-x)); }

/* The products of the state with the rows of all gates of a unit. */
static void LOCAL(_multiply)(int64_t gates, int64_t units, const REAL *w, const REAL *h,
                             REAL *product) {
    int64_t g, k;
    for (g = 0; g < gates; g++, w += units * units) {
        product[g] = 0;
        for (k = 0; k < units; k++) product[g] += h[k] * w[k];
    }
}

/* The new state of a unit. `v`: its products, which become the values that are kept; x: of its first gate, the others follow `units` values
 * behind; h: its state; more: its cell, which is replaced, or its bias. */
static REAL LOCAL(_unit)(int64_t kind, int64_t units, const REAL *x, REAL h, REAL *more, REAL *v) {
    const REAL first = x[0] + v[0];
    if (kind == RECURRENT_TANH) return v[0] = REAL_TANH(first);
    if (kind == RECURRENT_RELU) return v[0] = first < 0 ? (REAL)0 : first;
    v[0] = LOCAL(_sigmoid)(first);
    v[1] = LOCAL(_sigmoid)(x[units] + v[1]);
    if (kind == RECURRENT_GRU) {
        v[2] += *more;
        v[3] = REAL_TANH(x[2 * units] + v[0] * v[2]);
        return v[1] * (h - v[3]) + v[3];
    }
    v[2] = REAL_TANH(x[2 * units] + v[2]);
    v[3] = LOCAL(_sigmoid)(x[3 * units] + v[3]);
    v[4] = *more = v[1] * *more + v[0] * v[2];
    return v[3] * REAL_TANH(v[4]);
}

static void LOCAL(_copy)(int64_t n, const REAL *from, REAL *to) {
    for (; n > 0; n--) *to++ = *from++;
}

/* Computes all steps of samples [begin, end). Returns 1 + the number of a sample with more steps than there are, or less than 0; else 0. */
static int64_t RECURRENT_PLAIN(void *const *ptr, const int64_t *arg, int64_t begin, int64_t end) {
    const int64_t kind = arg[RECURRENT_KIND], units = arg[RECURRENT_UNITS];
    const int64_t gates = kind == RECURRENT_LSTM ? 4 : kind == RECURRENT_GRU ? 3 : 1;
    const int64_t columns = gates > 1 ? gates + 1 : 1; /* that are kept */
    const int64_t steps = arg[RECURRENT_STEPS], samples = arg[RECURRENT_SAMPLES];
    const int64_t rows = steps + 1 + (kind == RECURRENT_LSTM);
    const int64_t y_step = (arg[RECURRENT_AXIS] ? 1 : samples) * units;
    int64_t n, i, u, c;
    for (n = begin; n < end; n++) {
        const int64_t length =
            ptr[RECURRENT_LENGTHS] ? ((const int64_t *)ptr[RECURRENT_LENGTHS])[n] : steps;
        const REAL *x =
            (const REAL *)ptr[RECURRENT_X] + n * (arg[RECURRENT_AXIS] ? steps : 1) * gates * units;
        const REAL *w = (const REAL *)ptr[RECURRENT_WEIGHT];
        const REAL *h = (const REAL *)ptr[RECURRENT_STATE] + n * units;
        REAL *y = (REAL *)ptr[RECURRENT_Y] + n * (arg[RECURRENT_AXIS] ? rows : 1) * units;
        REAL *more = (REAL *)ptr[RECURRENT_MORE], *kept = (REAL *)ptr[RECURRENT_KEPT];
        if (length < 0 || length > steps) return n + 1;
        if (kept) kept += n * (arg[RECURRENT_AXIS] ? steps : 1) * columns * units;
        if (kind == RECURRENT_LSTM) {
            LOCAL(_copy)(units, more + n * units, y + (steps + 1) * y_step);
            more = y + (steps + 1) * y_step;
        }
        for (i = 0; i < length; i++) {
            const int64_t t = arg[RECURRENT_REVERSE] ? length - 1 - i : i;
            for (u = 0; u < units; u++) {
                REAL v[5];
                LOCAL(_multiply)(gates, units, w + u * units, h, v);
                y[t * y_step + u] = LOCAL(_unit)(kind, units, x + t * gates * y_step + u, h[u],
                                                 more ? more + u : (REAL *)0, v);
                for (c = 0; c < columns && kept; c++)
                    kept[t * columns * y_step + c * units + u] = v[c];
            }
            h = y + t * y_step;
        }
        for (i = length; i < steps; i++) {
            for (u = 0; u < units; u++) y[i * y_step + u] = 0;
            for (u = 0; u < columns * units && kept; u++) kept[i * columns * y_step + u] = 0;
        }
        LOCAL(_copy)(units, h, y + steps * y_step);
    }
    return 0;
}

#undef LOCAL
#undef REAL_JOIN
#undef REAL_JOIN2
#endif
