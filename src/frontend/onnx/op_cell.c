/*
 * Cells of recurrent operators: what RNN, GRU and LSTM compute at one step, and the activations that they may have.
 *
 * The formulas are those of ONNX's documentation.
 */
#include "recurrent.h"

#include <string.h>

static sol_tensor add(struct op_call *c, sol_tensor a, sol_tensor b) {
    return LAYER2(c, "add", a, b, "");
}
static sol_tensor mul(struct op_call *c, sol_tensor a, sol_tensor b) {
    return LAYER2(c, "mul", a, b, "");
}

sol_tensor cell_part(struct op_call *c, sol_tensor x, int axis, int64_t k, int64_t n) {
    return LAYER1(c, "slice", x, "axis=%d start=%lld step=1 shape=[%lld]", axis, (long long)(k * n),
                  (long long)n);
}
/* Gate `k` of [batch, gates * hidden]. */
static sol_tensor gate(const struct cell *s, sol_tensor x, int k) {
    return cell_part(s->c, x, 1, k, s->hidden);
}

/* ---- Activations ---- */

/* `layer`: of functions that are one layer. `alpha`, `beta`: the defaults. `n`: how many parameters a node may give: alpha, or both. */
struct act_row {
    const char *name, *layer;
    sol_tensor (*build)(struct op_call *c, const struct act *a, sol_tensor x);
    double alpha, beta;
    int n;
};

static sol_tensor scalar_like(struct op_call *c, sol_tensor x, double value) {
    return call_scalar_of(c, value, call_dtype(c, x));
}
static sol_tensor plain(struct op_call *c, const struct act *a, sol_tensor x) {
    return LAYER1(c, a->row->layer, x, "");
}
static sol_tensor with_alpha(struct op_call *c, const struct act *a, sol_tensor x) {
    return LAYER1(c, a->row->layer, x, "alpha=%s", call_format_double(c, a->alpha));
}
static sol_tensor affine(struct op_call *c, const struct act *a, sol_tensor x) {
    return add(c, mul(c, x, scalar_like(c, x, a->alpha)), scalar_like(c, x, a->beta));
}
static sol_tensor hard_sigmoid(struct op_call *c, const struct act *a, sol_tensor x) {
    return call_clamp(c, affine(c, a, x), 0, 1);
}
static sol_tensor scaled_tanh(struct op_call *c, const struct act *a, sol_tensor x) {
    x = LAYER1(c, "tanh", mul(c, x, scalar_like(c, x, a->beta)), "");
    return mul(c, x, scalar_like(c, x, a->alpha));
}
static sol_tensor thresholded(struct op_call *c, const struct act *a, sol_tensor x) {
    sol_tensor is_above = LAYER2(c, "less", scalar_like(c, x, a->alpha), x, "");
    return call_where(c, is_above, x, scalar_like(c, x, 0));
}

static const struct act_row act_rows[] = {
    {"Sigmoid", "sigmoid", plain, 0, 0, 0},
    {"Tanh", "tanh", plain, 0, 0, 0},
    {"Relu", "relu", plain, 0, 0, 0},
    {"Softsign", "softsign", plain, 0, 0, 0},
    {"Softplus", "softplus", plain, 0, 0, 0},
    {"LeakyRelu", "leaky_relu", with_alpha, 0.01, 0, 1},
    {"Elu", "elu", with_alpha, 1, 0, 1},
    {"ThresholdedRelu", NULL, thresholded, 1, 0, 1},
    {"Affine", NULL, affine, 1, 0, 2},
    {"ScaledTanh", NULL, scaled_tanh, 1, 1, 2},
    {"HardSigmoid", NULL, hard_sigmoid, 0.2, 0.5, 2},
};

/* Names in the file do not end with a NUL. */
static const struct act_row *find_act(const char *name, size_t size) {
    for (int i = 0; i < COUNT(act_rows); i++)
        if (size == strlen(act_rows[i].name) && !memcmp(name, act_rows[i].name, size))
            return &act_rows[i];
    return NULL;
}

/* Activation `i` of the attribute, which lists those of all directions, one direction after the other; else the usual one. NULL
 * when it is not known. */
static const struct act_row *read_act(const struct sequence *q, const struct onnx_attribute *list,
                                      int i) {
    const char *usual = q->kind->act[i % q->kind->n_acts];
    if (!list || !list->strings.n) return find_act(usual, strlen(usual));
    const struct bytes *name = ITEM(list->strings, struct bytes, i);
    return find_act((const char *)name->at, name->size);
}

/* Number `i` of an attribute that has numbers only for the activations that take one; the default when it ends before. */
static double read_number(const struct onnx_attribute *list, int i, double default_value) {
    return list && i < list->floats.n ? (double)*ITEM(list->floats, float, i) : default_value;
}

enum sol_status cell_read_acts(struct sequence *q) {
    const struct onnx_attribute *names = call_typed(q->c, "activations", ONNX_STRINGS),
                                *alphas = call_typed(q->c, "activation_alpha", ONNX_FLOATS),
                                *betas = call_typed(q->c, "activation_beta", ONNX_FLOATS);
    int n = q->kind->n_acts * q->n_directions, n_alpha = 0, n_beta = 0;
    TRY(q->c->im->status);
    if (names && names->strings.n && names->strings.n != n)
        return fail(SOL_EINVAL, "%d activations, not %d", names->strings.n, n);
    for (int i = 0; i < n; i++) {
        const struct act_row *row = read_act(q, names, i);
        if (!row) return fail(SOL_EUNSUPPORTED, "activation %d is not one of ONNX", i);
        q->act[i] = (struct act){row, row->alpha, row->beta};
        if (row->n > 0) q->act[i].alpha = read_number(alphas, n_alpha++, row->alpha);
        if (row->n > 1) q->act[i].beta = read_number(betas, n_beta++, row->beta);
    }
    return SOL_OK;
}

/* ---- One step ---- */

static sol_tensor apply(const struct cell *s, int i, sol_tensor x) {
    return s->act[i].row->build(s->c, &s->act[i], x);
}
/* The activation of a gate: its input is clipped. */
static sol_tensor act(const struct cell *s, int i, sol_tensor x) {
    const double clip = s->q->clip;
    return apply(s, i, clip > 0 ? call_clamp(s->c, x, -clip, clip) : x);
}

static void step_rnn(struct cell *s, sol_tensor x) {
    s->h = act(s, 0, add(s->c, x, LAYER2(s->c, "linear", s->h, s->recurrence, "")));
}

/* Gates: update z, reset r, hidden n. h = (1 - z) * n + z * h, computed as n + z * (h - n). With reset_behind, the reset gate
 * multiplies the product and its bias. */
static void step_gru(struct cell *s, sol_tensor x) {
    struct op_call *c = s->c;
    bool is_behind = s->reset_behind, has_bias = is_behind && s->recurrent_bias >= 0;
    sol_tensor in[3] = {s->h, s->recurrence, s->recurrent_bias};
    if (!is_behind) in[1] = cell_part(c, s->recurrence, 0, 0, 2 * s->hidden);
    sol_tensor y = call_layer(c, "linear", 2 + has_bias, in, "");
    sol_tensor z = act(s, 0, add(c, gate(s, x, 0), gate(s, y, 0))),
               r = act(s, 0, add(c, gate(s, x, 1), gate(s, y, 1)));
    sol_tensor n = is_behind ? mul(c, r, gate(s, y, 2))
                             : LAYER2(c, "linear", mul(c, r, s->h),
                                      cell_part(c, s->recurrence, 0, 2, s->hidden), "");
    n = act(s, 1, add(c, gate(s, x, 2), n));
    s->h = add(c, n, mul(c, z, LAYER2(c, "sub", s->h, n, "")));
}

static sol_tensor peep(const struct cell *s, sol_tensor x, int k) {
    if (s->peephole < 0) return x;
    return add(s->c, x, mul(s->c, s->state, cell_part(s->c, s->peephole, 0, k, s->hidden)));
}

/* Gates: input, output, forget, cell. The peephole of the output gate reads the new cell state. */
static void step_lstm(struct cell *s, sol_tensor x) {
    struct op_call *c = s->c;
    x = add(c, x, LAYER2(c, "linear", s->h, s->recurrence, ""));
    sol_tensor i = act(s, 0, peep(s, gate(s, x, 0), 0)),
               f = s->couples ? LAYER2(c, "sub", scalar_like(c, i, 1), i, "")
                              : act(s, 0, peep(s, gate(s, x, 2), 2)),
               g = act(s, 1, gate(s, x, 3));
    s->state = add(c, mul(c, f, s->state), mul(c, i, g));
    sol_tensor o = act(s, 0, peep(s, gate(s, x, 1), 1));
    s->h = mul(c, o, apply(s, 2, s->state));
}

static const struct recurrent kinds[] = {
    {"RNN", 1, 1, step_rnn, {"Tanh"}, "rnn_tanh", {0}},
    {"GRU", 3, 2, step_gru, {"Sigmoid", "Tanh"}, "gru", {1, 0, 2}},
    {"LSTM", 4, 3, step_lstm, {"Sigmoid", "Tanh", "Tanh"}, "lstm", {0, 2, 3, 1}},
};

/* Usual cells, and those of an RNN with Relu. A gru layer multiplies the product by the reset gate, not the state. */
const char *cell_find_layer(const struct sequence *q, int d) {
    const struct act *act = q->act + d * q->kind->n_acts;
    struct op_call *c = q->c;
    const bool is_other = q->hidden < 1 || q->clip > 0 || call_int(c, "input_forget", 0) ||
                          call_has(c, 7) ||
                          (q->kind->n_gates == 3 && !call_int(c, "linear_before_reset", 0));
    if (is_other) return NULL;
    if (q->kind->n_gates == 1 && !strcmp(act->row->name, "Relu")) return "rnn_relu";
    for (int i = 0; i < q->kind->n_acts; i++)
        if (strcmp(act[i].row->name, q->kind->act[i]) != 0) return NULL;
    return q->kind->layer;
}

sol_tensor cell_order(const struct sequence *q, sol_tensor x) {
    sol_tensor part[4];
    if (q->kind->n_gates == 1) return x;
    for (int i = 0; i < q->kind->n_gates; i++)
        part[i] = cell_part(q->c, x, 0, q->kind->order[i], q->hidden);
    return call_concat(q->c, q->kind->n_gates, part, 0);
}

const struct recurrent *cell_find(const char *op) {
    const struct recurrent *kind = kinds;
    while (strcmp(kind->op, op) != 0) kind++;
    return kind;
}
