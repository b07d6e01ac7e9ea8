/*
 * RNN, GRU, LSTM: one layer, one or both directions, step by step.
 *
 * Each sequence of each direction has a state, and for LSTM a memory. A step computes the sums of all gates from the input and
 * the state, then the next state by the formula of the cell. Sequences of a batch are independent. A sequence that is shorter
 * than the others ends early: its last state is that of its last step, and its further outputs are 0.
 */
#include "eval.h"

#include "scalar.h"

#include <string.h>

/* ---- Activations ---- */

/* A function with its parameters; most ignore theirs. */
struct activation {
    double (*f)(double, double, double);
    double alpha, beta;
};

static double act_sigmoid(double x, double a, double b) { return (void)a, (void)b, sigmoid(x); }
static double act_tanh(double x, double a, double b) { return (void)a, (void)b, tanh(x); }
static double act_relu(double x, double a, double b) { return (void)a, (void)b, rectify(x); }
static double act_affine(double x, double a, double b) { return a * x + b; }
static double act_scaled_tanh(double x, double a, double b) { return a * tanh(b * x); }
static double act_softsign(double x, double a, double b) { return (void)a, (void)b, softsign(x); }
static double act_softplus(double x, double a, double b) { return (void)a, (void)b, softplus(x); }

/* The activations with their defaults, and whether they take an alpha and a beta from the attributes' lists. */
static const struct row {
    const char *name;
    struct activation usual;
    bool has_alpha, has_beta;
} activations[] = {
    {"Sigmoid", {act_sigmoid, 0, 0}, false, false},
    {"Tanh", {act_tanh, 0, 0}, false, false},
    {"Relu", {act_relu, 0, 0}, false, false},
    {"Affine", {act_affine, 1, 0}, true, true},
    {"LeakyRelu", {leaky_relu, 0.01, 0}, true, false},
    {"ThresholdedRelu", {thresholded_relu, 1, 0}, true, false},
    {"ScaledTanh", {act_scaled_tanh, 1, 1}, true, true},
    {"HardSigmoid", {hard_sigmoid, 0.2, 0.5}, true, true},
    {"Elu", {elu, 1, 0}, true, false},
    {"Softsign", {act_softsign, 0, 0}, false, false},
    {"Softplus", {act_softplus, 0, 0}, false, false},
};

/* Strings of the file do not end with a NUL. */
static const struct row *find_row(struct eval *e, const struct bytes *name) {
    for (int i = 0; i < COUNT(activations); i++)
        if (strlen(activations[i].name) == name->size &&
            !memcmp(activations[i].name, name->at, name->size))
            return &activations[i];
    eval_stop(e, fail(SOL_EUNSUPPORTED, "an activation that is not known"));
}

/* Reads `n` activations; missing ones are those of `usual`. */
static void read_activations(struct eval *e, int n, const char *const *usual,
                             struct activation *out) {
    const struct onnx_attribute *a = eval_attribute(e, "activations");
    const float *alpha, *beta;
    int n_alpha = eval_floats(e, "activation_alpha", &alpha),
        n_beta = eval_floats(e, "activation_beta", &beta);
    int given = a ? a->strings.n : 0, next_alpha = 0, next_beta = 0;
    for (int i = 0; i < n; i++) {
        struct bytes name = {(const uint8_t *)usual[i], strlen(usual[i])};
        const struct row *row = find_row(e, i < given ? ITEM(a->strings, struct bytes, i) : &name);
        out[i] = row->usual;
        if (row->has_alpha && next_alpha < n_alpha) out[i].alpha = (double)alpha[next_alpha++];
        if (row->has_beta && next_beta < n_beta) out[i].beta = (double)beta[next_beta++];
    }
}

/* Clipping comes before the activation. */
static double act(const struct activation *a, double x, double clip) {
    return a->f(clip > 0 ? fmax(-clip, fmin(clip, x)) : x, a->alpha, a->beta);
}

/* ---- One direction ---- */

/* In the order of `choice` in eval.def. */
enum cell { CELL_RNN, CELL_GRU, CELL_LSTM };

/* Sizes, the weights of the current direction, and scratch for one step. */
struct layer {
    enum cell cell;
    int64_t steps, batch, inputs, hidden, gates;
    bool by_batch, before_reset, couples;
    double clip;
    const double *w, *r, *b, *p; /* of this direction; b and p may be NULL */
    struct activation act[3];
    double *sums, *state, *memory; /* scratch [(2 * gates + 2) * hidden], h and c of one sequence */
};

/* The sums of all gates: first those of the input, then those of the state, each with its bias. */
static void sum_gates(const struct layer *l, const double *x, const double *h) {
    for (int64_t i = 0; i < l->gates * l->hidden; i++) {
        double from_x = l->b ? l->b[i] : 0, from_h = l->b ? l->b[l->gates * l->hidden + i] : 0;
        for (int64_t k = 0; k < l->inputs; k++) from_x += l->w[i * l->inputs + k] * x[k];
        for (int64_t k = 0; k < l->hidden; k++) from_h += l->r[i * l->hidden + k] * h[k];
        l->sums[i] = from_x;
        l->sums[l->gates * l->hidden + i] = from_h;
    }
}

/* The value of gate `g` for unit `i`; `more` is the peephole's term. */
static double gate(const struct layer *l, int64_t g, int64_t i, double more, int act_number) {
    int64_t at = g * l->hidden + i;
    return act(&l->act[act_number], l->sums[at] + l->sums[l->gates * l->hidden + at] + more,
               l->clip);
}

static void step_rnn(const struct layer *l) {
    for (int64_t i = 0; i < l->hidden; i++) l->state[i] = gate(l, 0, i, 0, 0);
}

/* Gates z, r, h. The reset gate multiplies the state before the product with the weights, or the product (linear_before_reset). */
static void step_gru(const struct layer *l) {
    int64_t n = l->hidden;
    double *reset = l->sums + 2 * l->gates * n, *new = reset + n;
    for (int64_t i = 0; i < n; i++) reset[i] = gate(l, 1, i, 0, 0);
    for (int64_t i = 0; i < n; i++) {
        double from_h = l->sums[l->gates * n + 2 * n + i] * reset[i];
        if (!l->before_reset) {
            from_h = l->b ? l->b[(l->gates + 2) * n + i] : 0;
            for (int64_t k = 0; k < n; k++)
                from_h += l->r[(2 * n + i) * n + k] * reset[k] * l->state[k];
        }
        new[i] = act(&l->act[1], l->sums[2 * n + i] + from_h, l->clip);
    }
    for (int64_t i = 0; i < n; i++) {
        double z = gate(l, 0, i, 0, 0);
        l->state[i] = (1 - z) * new[i] + z * l->state[i];
    }
}

/* Gates i, o, f, c; peepholes i, o, f. */
static void step_lstm(const struct layer *l) {
    int64_t n = l->hidden;
    const double *p = l->p;
    for (int64_t i = 0; i < n; i++) {
        double c = l->memory[i], in = gate(l, 0, i, p ? p[i] * c : 0, 0);
        double forget = l->couples ? 1 - in : gate(l, 2, i, p ? p[2 * n + i] * c : 0, 0);
        c = forget * c + in * gate(l, 3, i, 0, 1);
        double out = gate(l, 1, i, p ? p[n + i] * c : 0, 0);
        l->memory[i] = c;
        l->state[i] = out * act(&l->act[2], c, 0);
    }
}

/* Computes the sums of all gates first, since the cell overwrites the state. */
static void step(const struct layer *l, const double *x) {
    sum_gates(l, x, l->state);
    if (l->cell == CELL_RNN) step_rnn(l);
    else if (l->cell == CELL_GRU) step_gru(l);
    else step_lstm(l);
}

/* ---- All of it ---- */

/* Sizes, from the shapes of x and the weights, which are [directions, gates * hidden, ..]; and attributes. */
static struct layer read_layer(struct eval *e, const struct array *x, const struct array *w) {
    static const int64_t gates[] = {1, 3, 4};
    struct layer l = {.cell = (enum cell)e->op->choice, .gates = gates[e->op->choice]};
    const struct array *r = eval_in(e, 2);
    eval_check(e, x->rank == 3 && w->rank == 3 && r->rank == 3, "ranks that are not 3");
    l.by_batch = eval_int(e, "layout", 0);
    l.steps = x->dim[l.by_batch];
    l.batch = x->dim[!l.by_batch];
    l.inputs = x->dim[2];
    l.hidden = r->dim[2];
    l.clip = eval_float(e, "clip", 0);
    l.before_reset = eval_int(e, "linear_before_reset", 0);
    l.couples = eval_int(e, "input_forget", 0);
    eval_check(e,
               w->dim[1] == l.gates * l.hidden && r->dim[1] == w->dim[1] && w->dim[2] == l.inputs &&
                   r->dim[0] == w->dim[0],
               "weights that do not fit");
    l.sums = SPACE_ARRAY(e->space, double, (2 * l.gates + 2) * l.hidden);
    l.state = SPACE_ARRAY(e->space, double, l.hidden);
    l.memory = SPACE_ARRAY(e->space, double, l.hidden);
    return l;
}

/* The `n` values of an optional input; NULL when it is missing. */
static double *optional(struct eval *e, int i, int64_t n) {
    if (!eval_has(e, i)) return NULL;
    eval_check(e, eval_in(e, i)->n == n, "an input of another size");
    return array_doubles(e->space, e->in[i]);
}

/* The offset of the state of direction d, sequence b. */
static int64_t state_at(const struct layer *l, int64_t n_directions, int64_t d, int64_t b) {
    return (l->by_batch ? b * n_directions + d : d * l->batch + b) * l->hidden;
}

/* The outputs of all steps, the last states, the last memories. */
struct results {
    double *y, *h, *c;
};

/* Runs one sequence in one direction. Outputs after its length stay 0. */
static void run_sequence(const struct layer *l, const double *x, int64_t n_directions, int64_t d,
                         bool is_back, int64_t b, int64_t length, const struct results *out) {
    for (int64_t t = 0; t < length; t++) {
        int64_t at = is_back ? length - 1 - t : t;
        int64_t row = l->by_batch ? b * l->steps + at : at * l->batch + b;
        step(l, x + row * l->inputs);
        int64_t to = l->by_batch ? (row * n_directions + d) * l->hidden
                                 : ((at * n_directions + d) * l->batch + b) * l->hidden;
        memcpy(out->y + to, l->state, (size_t)l->hidden * sizeof *l->state);
    }
    int64_t to = state_at(l, n_directions, d, b);
    memcpy(out->h + to, l->state, (size_t)l->hidden * sizeof *l->state);
    memcpy(out->c + to, l->memory, (size_t)l->hidden * sizeof *l->memory);
}

static void give(struct eval *e, const struct layer *l, int64_t n_directions,
                 const struct results *r) {
    enum type type = e->in[0]->type;
    int64_t y[4] = {l->steps, n_directions, l->batch, l->hidden},
            h[3] = {n_directions, l->batch, l->hidden};
    int64_t y_by_batch[4] = {l->batch, l->steps, n_directions, l->hidden},
            h_by_batch[3] = {l->batch, n_directions, l->hidden};
    eval_set_output_doubles(e, 0, type, 4, l->by_batch ? y_by_batch : y, r->y);
    eval_set_output_doubles(e, 1, type, 3, l->by_batch ? h_by_batch : h, r->h);
    if (l->cell == CELL_LSTM)
        eval_set_output_doubles(e, 2, type, 3, l->by_batch ? h_by_batch : h, r->c);
}

/* The activations of each direction; missing ones are the cell's defaults. */
static void read_cell(struct eval *e, enum cell cell, int64_t n_directions,
                      struct activation acts[2][3]) {
    static const char *const usual[][3] = {
        {"Tanh", "", ""}, {"Sigmoid", "Tanh", ""}, {"Sigmoid", "Tanh", "Tanh"}};
    static const int counts[] = {1, 2, 3};
    struct activation all[6];
    const char *names[6];
    int n = counts[cell];
    for (int i = 0; i < n * n_directions; i++) names[i] = usual[cell][i % n];
    read_activations(e, n * (int)n_directions, names, all);
    for (int i = 0; i < n * n_directions; i++) acts[i / n][i % n] = all[i];
}

/* The optional inputs, for all directions; NULL when missing. */
struct extras {
    const double *bias, *h, *c, *peephole;
    const int64_t *lengths;
};

/* Bias, lengths, initial states, peepholes: inputs 3 to 7. */
static struct extras read_extras(struct eval *e, const struct layer *l, int64_t n) {
    int64_t size = n * l->batch * l->hidden, *lengths;
    struct extras x = {.bias = optional(e, 3, 2 * n * l->gates * l->hidden),
                       .h = optional(e, 5, size)};
    if (l->cell == CELL_LSTM) x.c = optional(e, 6, size);
    if (l->cell == CELL_LSTM) x.peephole = optional(e, 7, 3 * n * l->hidden);
    bool has_lengths = eval_in_ints(e, 4, &lengths) > 0;
    eval_check(e, !has_lengths || e->in[4]->n == l->batch, "as many lengths as sequences");
    for (int64_t i = 0; has_lengths && i < l->batch; i++)
        if (lengths[i] < 0 || lengths[i] > l->steps)
            eval_stop(e, fail(SOL_EINVAL, "sequence_lens has %lld for %lld steps",
                              (long long)lengths[i], (long long)l->steps));
    x.lengths = has_lengths ? lengths : NULL;
    return x;
}

/* Runs all sequences of the batch in one direction, each from its initial state. */
static void run_direction(struct layer *l, const struct extras *x, const double *v, int64_t n,
                          int64_t d, bool is_back, const struct results *out) {
    for (int64_t b = 0; b < l->batch; b++) {
        int64_t from = state_at(l, n, d, b);
        for (int64_t i = 0; i < l->hidden; i++) {
            l->state[i] = x->h ? x->h[from + i] : 0;
            l->memory[i] = x->c ? x->c[from + i] : 0;
        }
        run_sequence(l, v, n, d, is_back, b, x->lengths ? x->lengths[b] : l->steps, out);
    }
}

/* Runs one direction, or both. The directions are a dim of weights, states and results. */
void run_recurrent(struct eval *e) {
    const struct array *x = eval_in(e, 0), *w = eval_in(e, 1);
    struct layer l = read_layer(e, x, w);
    struct activation acts[2][3];
    int64_t n = w->dim[0], rows = l.gates * l.hidden, size = n * l.batch * l.hidden;
    const char *direction = eval_word(e, "direction", "forward", "forward reverse bidirectional");
    eval_check(e, n == (*direction == 'b' ? 2 : 1), "directions");
    read_cell(e, l.cell, n, acts);
    struct extras extras = read_extras(e, &l, n);
    double *v = array_doubles(e->space, x), *weights = array_doubles(e->space, w),
           *recurrent = array_doubles(e->space, e->in[2]);
    struct results r = {SPACE_ARRAY(e->space, double, size *l.steps),
                        SPACE_ARRAY(e->space, double, size), SPACE_ARRAY(e->space, double, size)};
    for (int64_t d = 0; d < n; d++) {
        l.w = weights + d * rows * l.inputs;
        l.r = recurrent + d * rows * l.hidden;
        l.b = extras.bias ? extras.bias + d * 2 * rows : NULL;
        l.p = extras.peephole ? extras.peephole + d * 3 * l.hidden : NULL;
        memcpy(l.act, acts[d], sizeof l.act);
        run_direction(&l, &extras, v, n, d, d == 1 || *direction == 'r', &r);
    }
    give(e, &l, n, &r);
}
