/*
 * Gradients of recurrent layers as plain loops over single values: f64, and weights that are computed at the call.
 *
 *   recurrent_grad.c includes this for float and double  ->  step_recurrent_grad_plain
 *   device/far_emit.c includes it as text                ->  kernels of far devices
 *
 * Without REAL it only has the numbers of the pointers. The includer defines REAL, the type, REAL_TANH of it, and RECURRENT_PLAIN, the name of the function.
 */
#ifndef SOL_RECURRENT_GRAD_NUMBERS
#define SOL_RECURRENT_GRAD_NUMBERS
/* The pointers of the step; all tensors are dense. MORE: the first cell of an lstm, the states before the steps of a gru. LENGTHS: NULL:
 * all samples have all steps. Arguments: those of recurrent_plain.h. */
enum {
    RECURRENT_GRAD_GATES,
    RECURRENT_GRAD_WEIGHT,
    RECURRENT_GRAD_DY,
    RECURRENT_GRAD_MORE,
    RECURRENT_GRAD_LENGTHS,
    RECURRENT_GRAD_OUT,
    RECURRENT_GRAD_N_POINTERS
};
#endif

#ifdef REAL
#define REAL_JOIN2(a, b) a##b
#define REAL_JOIN(a, b) REAL_JOIN2(a, b)
#define LOCAL(name) REAL_JOIN(RECURRENT_PLAIN, name)

/* The gradients `g` of the gates of a unit, which lie `units` values apart, as the gates. *dh: that of the state behind the step, which
 * becomes what the state before it gets without the products; *dc: that of the cell of an lstm. before: the cell, or the state of a gru. */
static void LOCAL(_turn)(int64_t kind, int64_t units, const REAL *gates, const REAL *before,
                         REAL *dh, REAL *dc, REAL *g) {
    const REAL d = *dh, a = gates[0];
    *dh = 0;
    if (kind == RECURRENT_TANH) g[0] = d * (1 - a * a);
    if (kind == RECURRENT_RELU) g[0] = a <= 0 ? (REAL)0 : d;
    if (kind == RECURRENT_LSTM) {
        const REAL keep = gates[units], now = gates[2 * units], show = gates[3 * units];
        const REAL shown = REAL_TANH(gates[4 * units]);
        *dc += d * show * (1 - shown * shown);
        g[0] = *dc * now * a * (1 - a);
        g[units] = *dc * *before * keep * (1 - keep);
        g[2 * units] = *dc * a * (1 - now * now);
        g[3 * units] = d * shown * show * (1 - show);
        *dc *= keep;
    }
    if (kind == RECURRENT_GRU) {
        const REAL keep = gates[units], inner = gates[2 * units], now = gates[3 * units];
        const REAL dx = d * (1 - keep) * (1 - now * now);
        g[0] = dx * inner * a * (1 - a);
        g[units] = d * (*before - now) * keep * (1 - keep);
        g[2 * units] = dx * a;
        g[3 * units] = dx;
        *dh = d * keep;
    }
}

/* One sample. */
struct LOCAL(_sample) {
    int64_t kind, units, length;
    const REAL *gates, *w, *dy, *more;
    REAL *out, *dh, *dc;
    int64_t gates_step, y_step, out_step; /* values from one step of time to the next */
    bool reverse;
};

/* Computed step `i` is this step of time. */
static int64_t LOCAL(_time)(const struct LOCAL(_sample) * s, int64_t i) {
    return s->reverse ? s->length - 1 - i : i;
}

/* The cells of an lstm, or the states of a gru, before computed step `i`; NULL: the kind needs none. */
static const REAL *LOCAL(_before)(const struct LOCAL(_sample) * s, int64_t i) {
    if (s->kind == RECURRENT_GRU) return s->more + LOCAL(_time)(s, i) * s->y_step;
    if (s->kind != RECURRENT_LSTM) return NULL;
    return i ? s->gates + LOCAL(_time)(s, i - 1) * s->gates_step + 4 * s->units : s->more;
}

static void LOCAL(_backward)(const struct LOCAL(_sample) * s) {
    const int64_t inner = s->units * dnn_recurrent_gates(s->kind);
    for (int64_t i = s->length - 1; i >= 0; i--) {
        const int64_t t = LOCAL(_time)(s, i);
        const REAL *gates = s->gates + t * s->gates_step, *before = LOCAL(_before)(s, i);
        REAL *g = s->out + t * s->out_step;
        for (int64_t u = 0; u < s->units; u++) {
            s->dh[u] += s->dy[t * s->y_step + u];
            LOCAL(_turn)
            (s->kind, s->units, gates + u, before ? before + u : NULL, s->dh + u, s->dc + u, g + u);
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
    const int64_t gates = units * dnn_recurrent_kept(kind),
                  out = units * dnn_recurrent_columns(kind);
    const int64_t stride = by_sample ? 1 : samples; /* of time, in rows of a tensor */
    for (int64_t n = begin; n < end; n++) {
        struct LOCAL(_sample)
            s = {kind, units, length ? length[n] : steps, .reverse = arg[RECURRENT_REVERSE]};
        if (s.length < 0 || s.length > steps) return n + 1;
        s.gates_step = stride * gates, s.y_step = stride * units, s.out_step = stride * out;
        s.gates = (const REAL *)ptr[RECURRENT_GRAD_GATES] + n * (by_sample ? steps : 1) * gates;
        s.w = ptr[RECURRENT_GRAD_WEIGHT];
        s.dy = (const REAL *)ptr[RECURRENT_GRAD_DY] +
               n * (by_sample ? steps + 1 + is_lstm : 1) * units;
        s.more = (const REAL *)ptr[RECURRENT_GRAD_MORE];
        if (s.more) s.more += n * (by_sample && !is_lstm ? steps : 1) * units;
        s.out = (REAL *)ptr[RECURRENT_GRAD_OUT] + n * (by_sample ? steps + 1 : 1) * out;
        s.dh = s.out + steps * s.out_step;
        s.dc = s.dh + (is_lstm ? units : 0);
        for (int64_t t = s.length; t <= steps; t++)
            memset(s.out + t * s.out_step, 0, (size_t)out * sizeof(REAL));
        for (int64_t u = 0; u < units; u++) {
            s.dh[u] = s.dy[steps * s.y_step + u];
            if (is_lstm) s.dc[u] = s.dy[(steps + 1) * s.y_step + u];
        }
        LOCAL(_backward)(&s);
    }
    return 0;
}

#undef LOCAL
#undef REAL_JOIN
#undef REAL_JOIN2
#endif
