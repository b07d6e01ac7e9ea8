/*
 * Gradients of recurrent layers as plain loops over single values: f64, and weights that are computed at the call.
 *
 *   recurrent_grad.c includes this for float and double  ->  step_recurrent_grad_plain
 *   device/far_emit.c includes it as text                ->  kernels of far devices
 *
 * Without REAL it only has the numbers of the pointers. The includer defines REAL, the type, REAL_EXP and REAL_TANH of it, and RECURRENT_PLAIN, the name of the function.
 */
#ifndef SOL_RECURRENT_GRAD_NUMBERS
#define SOL_RECURRENT_GRAD_NUMBERS
/* The pointers of the step; all tensors are dense. MORE: the first cell of an lstm, the states before the steps of a gru. LENGTHS: NULL:
 * all samples have all steps. CELLS: of an lstm, memory for the cells behind all steps, [steps,n,units]. Arguments: those of recurrent_plain.h. */
enum {
    RECURRENT_GRAD_X,
    RECURRENT_GRAD_PRODUCT,
    RECURRENT_GRAD_WEIGHT,
    RECURRENT_GRAD_DY,
    RECURRENT_GRAD_MORE,
    RECURRENT_GRAD_LENGTHS,
    RECURRENT_GRAD_CELLS,
    RECURRENT_GRAD_OUT,
    RECURRENT_GRAD_N_POINTERS
};
#endif

#ifdef REAL
#define REAL_JOIN2(a, b) a##b
#define REAL_JOIN(a, b) REAL_JOIN2(a, b)
#define LOCAL(name) REAL_JOIN(RECURRENT_PLAIN, name)

static REAL LOCAL(_sigmoid)(REAL x) { return (REAL)1 / ((REAL)1 + REAL_EXP(-x)); }

/* The gates of a unit of one step. Gate g of x, of the product and of `gates` lies g * units values behind the pointer; before, cell: of an lstm. */
static void LOCAL(_gates)(int64_t kind, int64_t units, const REAL *x, const REAL *product,
                          const REAL *before, REAL *cell, REAL *gates) {
    const REAL first = x[0] + product[0];
    if (kind == RECURRENT_TANH) gates[0] = REAL_TANH(first);
    else if (kind == RECURRENT_RELU) gates[0] = first < 0 ? (REAL)0 : first;
    else {
        gates[0] = LOCAL(_sigmoid)(first);
        gates[units] = LOCAL(_sigmoid)(x[units] + product[units]);
    }
    if (kind == RECURRENT_LSTM) {
        gates[2 * units] = REAL_TANH(x[2 * units] + product[2 * units]);
        gates[3 * units] = LOCAL(_sigmoid)(x[3 * units] + product[3 * units]);
        *cell = gates[units] * *before + gates[0] * gates[2 * units];
    }
    if (kind == RECURRENT_GRU) {
        gates[2 * units] = product[2 * units];
        gates[3 * units] = REAL_TANH(x[2 * units] + gates[0] * gates[2 * units]);
    }
}

/* Replaces the gates of a unit by their gradients. *dh: that of the state behind the step, which becomes what the state before it gets
 * without the products; *dc: that of the cell of an lstm. before: the cell, or the state of a gru. */
static void LOCAL(_turn)(int64_t kind, int64_t units, REAL *gates, REAL *dh, REAL *dc,
                         const REAL *before, const REAL *cell) {
    const REAL d = *dh, a = gates[0];
    *dh = 0;
    if (kind == RECURRENT_TANH) gates[0] = d * (1 - a * a);
    if (kind == RECURRENT_RELU) gates[0] = a <= 0 ? (REAL)0 : d;
    if (kind == RECURRENT_LSTM) {
        const REAL keep = gates[units], now = gates[2 * units], show = gates[3 * units];
        const REAL shown = REAL_TANH(*cell);
        *dc += d * show * (1 - shown * shown);
        gates[0] = *dc * now * a * (1 - a);
        gates[units] = *dc * *before * keep * (1 - keep);
        gates[2 * units] = *dc * a * (1 - now * now);
        gates[3 * units] = d * shown * show * (1 - show);
        *dc *= keep;
    }
    if (kind == RECURRENT_GRU) {
        const REAL keep = gates[units], inner = gates[2 * units], now = gates[3 * units];
        const REAL dx = d * (1 - keep) * (1 - now * now);
        gates[0] = dx * inner * a * (1 - a);
        gates[units] = d * (*before - now) * keep * (1 - keep);
        gates[2 * units] = dx * a;
        gates[3 * units] = dx;
        *dh = d * keep;
    }
}

/* One sample. */
struct LOCAL(_sample) {
    int64_t kind, units, length;
    const REAL *x, *product, *w, *dy, *more;
    REAL *cells, *out, *dh, *dc;
    int64_t x_step, y_step, cell_step, out_step; /* values from one step of time to the next */
    bool reverse;
};

/* Computed step `i` is this step of time. */
static int64_t LOCAL(_time)(const struct LOCAL(_sample) * s, int64_t i) {
    return s->reverse ? s->length - 1 - i : i;
}

/* The cells of an lstm, or the states of a gru, before computed step `i`. */
static const REAL *LOCAL(_before)(const struct LOCAL(_sample) * s, int64_t i) {
    if (s->kind == RECURRENT_GRU) return s->more + LOCAL(_time)(s, i) * s->y_step;
    return i ? s->cells + LOCAL(_time)(s, i - 1) * s->cell_step : s->more;
}

static void LOCAL(_forward)(const struct LOCAL(_sample) * s) {
    const bool is_lstm = s->kind == RECURRENT_LSTM;
    for (int64_t i = 0; i < s->length; i++) {
        const int64_t t = LOCAL(_time)(s, i);
        for (int64_t u = 0; u < s->units; u++) LOCAL(_gates)
        (s->kind, s->units, s->x + t * s->x_step + u, s->product + t * s->x_step + u,
         is_lstm ? LOCAL(_before)(s, i) + u : NULL,
         is_lstm ? s->cells + t * s->cell_step + u : NULL, s->out + t * s->out_step + u);
    }
}

static void LOCAL(_backward)(const struct LOCAL(_sample) * s) {
    const bool has_before = s->kind == RECURRENT_LSTM || s->kind == RECURRENT_GRU;
    const int64_t inner = s->units * dnn_recurrent_gates(s->kind);
    for (int64_t i = s->length - 1; i >= 0; i--) {
        const int64_t t = LOCAL(_time)(s, i);
        REAL *g = s->out + t * s->out_step;
        for (int64_t u = 0; u < s->units; u++) {
            s->dh[u] += s->dy[t * s->y_step + u];
            LOCAL(_turn)
            (s->kind, s->units, g + u, s->dh + u, s->dc + u,
             has_before ? LOCAL(_before)(s, i) + u : NULL,
             s->kind == RECURRENT_LSTM ? s->cells + t * s->cell_step + u : NULL);
        }
        for (int64_t k = 0; k < inner; k++)
            for (int64_t u = 0; u < s->units; u++) s->dh[u] += g[k] * s->w[k * s->units + u];
    }
}

/* Computes samples [begin, end). Returns 1 + the number of a sample with more steps than there are, or less than 0; else 0. */
static int64_t RECURRENT_PLAIN(void *const *ptr, const int64_t *arg, int64_t begin, int64_t end) {
    const int64_t kind = arg[RECURRENT_KIND], units = arg[RECURRENT_UNITS];
    const int64_t steps = arg[RECURRENT_STEPS], samples = arg[RECURRENT_SAMPLES];
    const int64_t by_sample = arg[RECURRENT_AXIS], is_lstm = kind == RECURRENT_LSTM;
    const int64_t *length = ptr[RECURRENT_GRAD_LENGTHS];
    const int64_t x = units * dnn_recurrent_gates(kind), out = units * dnn_recurrent_columns(kind);
    const int64_t stride = by_sample ? 1 : samples; /* of time, in rows of a tensor */
    for (int64_t n = begin; n < end; n++) {
        struct LOCAL(_sample)
            s = {kind, units, length ? length[n] : steps, .reverse = arg[RECURRENT_REVERSE]};
        if (s.length < 0 || s.length > steps) return n + 1;
        s.x_step = stride * x, s.y_step = stride * units, s.out_step = stride * out;
        s.cell_step = samples * units;
        s.x = (const REAL *)ptr[RECURRENT_GRAD_X] + n * (by_sample ? steps : 1) * x;
        s.product = (const REAL *)ptr[RECURRENT_GRAD_PRODUCT] + n * (by_sample ? steps : 1) * x;
        s.w = ptr[RECURRENT_GRAD_WEIGHT];
        s.dy = (const REAL *)ptr[RECURRENT_GRAD_DY] +
               n * (by_sample ? steps + 1 + is_lstm : 1) * units;
        s.more = (const REAL *)ptr[RECURRENT_GRAD_MORE];
        if (s.more) s.more += n * (by_sample && !is_lstm ? steps : 1) * units;
        s.cells = ptr[RECURRENT_GRAD_CELLS];
        if (s.cells) s.cells += n * units;
        s.out = (REAL *)ptr[RECURRENT_GRAD_OUT] + n * (by_sample ? steps + 1 : 1) * out;
        s.dh = s.out + steps * s.out_step;
        s.dc = s.dh + (is_lstm ? units : 0);
        for (int64_t t = s.length; t <= steps; t++)
            memset(s.out + t * s.out_step, 0, (size_t)out * sizeof(REAL));
        for (int64_t u = 0; u < units; u++) {
            s.dh[u] = s.dy[steps * s.y_step + u];
            if (is_lstm) s.dc[u] = s.dy[(steps + 1) * s.y_step + u];
        }
        LOCAL(_forward)(&s);
        LOCAL(_backward)(&s);
    }
    return 0;
}

#undef LOCAL
#undef REAL_JOIN
#undef REAL_JOIN2
#endif
