/*
 * RNN, GRU, LSTM, unrolled: the number of steps is known, so layers are added for each step.
 *
 *   x [batch, steps, inputs] -> one linear layer for all steps -> per step: linear of the state, sum, gates -> state
 *
 * States are [batch, hidden] and sequences [batch, steps, ..], so that the slice of a step or a gate can be a view. The formulas
 * are those of ONNX's documentation.
 */
#include "import.h"

#include <string.h>

#define MAX_STEPS 1024

/* The inputs of all three operators. */
enum { X, WEIGHT, RECURRENCE, BIAS, LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLE };

/* The state of one direction while it is unrolled. A tensor below 0 does not exist. */
struct cell {
    struct op_call *c;
    int64_t hidden;
    const char *act[3]; /* kinds of layers: f, g, h in ONNX's documentation */
    bool reset_behind;  /* GRU: the reset gate multiplies the product, not the state */
    sol_tensor weight, recurrence, bias, recurrent_bias, peephole;
    sol_tensor h, state; /* `state`: the cell state of an LSTM, C in the documentation */
};

/* Values that are common to all directions. */
struct sequence {
    struct op_call *c;
    int n_gates, n_directions;
    int64_t steps, hidden;
    bool batch_first;
    struct size batch;
    sol_tensor x; /* [batch, steps, inputs] */
};

static sol_tensor add(struct op_call *c, sol_tensor a, sol_tensor b) {
    return LAYER2(c, "add", a, b, "");
}
static sol_tensor mul(struct op_call *c, sol_tensor a, sol_tensor b) {
    return LAYER2(c, "mul", a, b, "");
}

/* Part `k` of an axis that is divided into parts of `n` values. */
static sol_tensor part(struct op_call *c, sol_tensor x, int axis, int64_t k, int64_t n) {
    return LAYER1(c, "slice", x, "axis=%d start=%lld step=1 shape=[%lld]", axis, (long long)(k * n),
                  (long long)n);
}
/* Gate `k` of [batch, gates * hidden]. */
static sol_tensor gate(const struct cell *s, sol_tensor x, int k) {
    return part(s->c, x, 1, k, s->hidden);
}
static sol_tensor act(const struct cell *s, int i, sol_tensor x) {
    return LAYER1(s->c, s->act[i], x, "");
}

/* ---- One step. `x`: the linear layer of the inputs at this step, with bias ---- */

static void step_rnn(struct cell *s, sol_tensor x) {
    s->h = act(s, 0, add(s->c, x, LAYER2(s->c, "linear", s->h, s->recurrence, "")));
}

/* Gates: update z, reset r, hidden n. h = (1 - z) * n + z * h, computed as n + z * (h - n). With reset_behind, the reset gate
 * multiplies the product and its bias. */
static void step_gru(struct cell *s, sol_tensor x) {
    struct op_call *c = s->c;
    bool is_behind = s->reset_behind, has_bias = is_behind && s->recurrent_bias >= 0;
    sol_tensor in[3] = {s->h, s->recurrence, s->recurrent_bias};
    if (!is_behind) in[1] = part(c, s->recurrence, 0, 0, 2 * s->hidden);
    sol_tensor y = call_layer(c, "linear", 2 + has_bias, in, "");
    sol_tensor z = act(s, 0, add(c, gate(s, x, 0), gate(s, y, 0))),
               r = act(s, 0, add(c, gate(s, x, 1), gate(s, y, 1)));
    sol_tensor n = is_behind ? mul(c, r, gate(s, y, 2))
                             : LAYER2(c, "linear", mul(c, r, s->h),
                                      part(c, s->recurrence, 0, 2, s->hidden), "");
    n = act(s, 1, add(c, gate(s, x, 2), n));
    s->h = add(c, n, mul(c, z, LAYER2(c, "sub", s->h, n, "")));
}

static sol_tensor peep(const struct cell *s, sol_tensor x, int k) {
    if (s->peephole < 0) return x;
    return add(s->c, x, mul(s->c, s->state, part(s->c, s->peephole, 0, k, s->hidden)));
}

/* Gates: input, output, forget, cell. The peephole of the output gate reads the new cell state. */
static void step_lstm(struct cell *s, sol_tensor x) {
    struct op_call *c = s->c;
    x = add(c, x, LAYER2(c, "linear", s->h, s->recurrence, ""));
    sol_tensor i = act(s, 0, peep(s, gate(s, x, 0), 0)), f = act(s, 0, peep(s, gate(s, x, 2), 2)),
               g = act(s, 1, gate(s, x, 3));
    s->state = add(c, mul(c, f, s->state), mul(c, i, g));
    sol_tensor o = act(s, 0, peep(s, gate(s, x, 1), 1));
    s->h = mul(c, o, act(s, 2, s->state));
}

static const struct recurrent {
    const char *op;
    int n_gates;
    void (*step)(struct cell *s, sol_tensor x);
    const char *act[3];
} kinds[] = {{"RNN", 1, step_rnn, {"tanh"}},
             {"GRU", 3, step_gru, {"sigmoid", "tanh"}},
             {"LSTM", 4, step_lstm, {"sigmoid", "tanh", "tanh"}}};

/* ---- Parts of a direction ---- */

/* Direction `d` of [directions, ..], without that dim. */
static sol_tensor direction(const struct sequence *q, sol_tensor x, int d) {
    struct size dim[SOL_MAX_RANK];
    if (q->n_directions > 1) x = part(q->c, x, 0, d, 1);
    int rank = call_shape(q->c, x, dim);
    return rank < 1 ? x : call_reshape(q->c, x, rank - 1, dim + 1);
}

/* The state before the first step, as [batch, hidden]: zeros, or an input [directions, batch, hidden] (batch first with layout
 * 1). */
static sol_tensor initial(const struct sequence *q, int input, int d) {
    const struct size dim[2] = {q->batch, size_const(q->hidden)};
    if (call_has(q->c, input)) {
        sol_tensor x = call_tensor(q->c, input);
        if (q->n_directions > 1) x = part(q->c, x, q->batch_first, d, 1);
        return call_reshape(q->c, x, 2, dim);
    }
    return call_expand(q->c, call_scalar(q->c, 0), 2, dim);
}

/* The biases of inputs and recurrence are added, except for a GRU with reset_behind, whose reset gate multiplies only
 * the second. */
static void read_bias(const struct sequence *q, struct cell *s, int d) {
    s->bias = s->recurrent_bias = -1;
    if (!call_has(q->c, BIAS)) return;
    sol_tensor both = direction(q, call_tensor(q->c, BIAS), d);
    int64_t n = q->n_gates * q->hidden;
    s->bias = part(q->c, both, 0, 0, n);
    s->recurrent_bias = part(q->c, both, 0, 1, n);
    if (!s->reset_behind) s->bias = add(q->c, s->bias, s->recurrent_bias);
}

/* The kind of layer for ONNX's name of an activation; NULL when there is none. */
static const char *find_act(const struct bytes *name) {
    static const char *const names[][2] = {
        {"Sigmoid", "sigmoid"}, {"Tanh", "tanh"}, {"Relu", "relu"}};
    for (int i = 0; i < COUNT(names); i++)
        if (name->size == strlen(names[i][0]) && !memcmp(name->at, names[i][0], name->size))
            return names[i][1];
    return NULL;
}

/* The attribute lists the activations of all directions, one direction after the other. */
static void read_acts(const struct sequence *q, const struct recurrent *kind, struct cell *s,
                      int d) {
    const struct onnx_attribute *a = call_attribute(q->c, "activations");
    int n = kind->act[2] ? 3 : kind->act[1] ? 2 : 1;
    if (a && a->strings.n && a->strings.n != n * q->n_directions)
        call_fail(q->c, fail(SOL_EINVAL, "%d activations", a->strings.n));
    for (int i = 0; i < n && !q->c->im->status; i++) {
        bool is_given = a && a->strings.n;
        s->act[i] = is_given ? find_act(ITEM(a->strings, struct bytes, d * n + i)) : kind->act[i];
        if (!s->act[i])
            call_fail(q->c, fail(SOL_EUNSUPPORTED, "activations other than Sigmoid, Tanh, Relu"));
    }
}

static struct cell begin_cell(const struct sequence *q, const struct recurrent *kind, int d) {
    struct op_call *c = q->c;
    struct cell s = {.c = c, .hidden = q->hidden, .peephole = -1, .state = -1};
    read_acts(q, kind, &s, d);
    s.reset_behind = q->n_gates == 3 && call_int(c, "linear_before_reset", 0) != 0;
    s.weight = direction(q, call_tensor(c, WEIGHT), d);
    s.recurrence = direction(q, call_tensor(c, RECURRENCE), d);
    read_bias(q, &s, d);
    if (call_has(c, PEEPHOLE)) s.peephole = direction(q, call_tensor(c, PEEPHOLE), d);
    s.h = initial(q, INITIAL_H, d);
    if (q->n_gates == 4) s.state = initial(q, INITIAL_C, d);
    return s;
}

/* ---- All steps ---- */

/* Adds the layers of all steps of one direction. Returns [batch, steps * hidden], always in the order of time; -1 when output 0
 * is not needed. */
static sol_tensor unroll(const struct sequence *q, const struct recurrent *kind, struct cell *s,
                         bool is_reverse) {
    struct op_call *c = q->c;
    int64_t n = q->n_gates * q->hidden;
    const struct size dim[2] = {q->batch, size_const(n)};
    sol_tensor *all = ARENA_ARRAY(c->im->arena, sol_tensor, q->steps),
               in[3] = {q->x, s->weight, s->bias};
    sol_tensor x = call_layer(c, "linear", s->bias < 0 ? 2 : 3, in, "");
    for (int64_t i = 0; i < q->steps && !c->im->status; i++) {
        int64_t t = is_reverse ? q->steps - 1 - i : i;
        kind->step(s, call_reshape(c, part(c, x, 1, t, 1), 2, dim));
        all[t] = s->h;
    }
    return c->out[0] ? call_layer(c, "concat", (int)q->steps, all, "axis=1") : -1;
}

static sol_tensor join(struct op_call *c, const sol_tensor *x, int n, int axis) {
    return n > 1 ? call_layer(c, "concat", n, x, "axis=%d", axis) : x[0];
}

/* Y: [steps, directions, batch, hidden], or [batch, steps, directions, hidden]. */
static enum sol_status output_sequence(const struct sequence *q, sol_tensor *all) {
    struct op_call *c = q->c;
    const struct size dim[4] = {q->batch, size_const(q->steps), size_const(1),
                                size_const(q->hidden)};
    if (c->n_out < 1 || !c->out[0]) return SOL_OK;
    for (int d = 0; d < q->n_directions; d++) all[d] = call_reshape(c, all[d], 4, dim);
    sol_tensor y = join(c, all, q->n_directions, 2);
    return call_set_output(c, 0,
                           q->batch_first ? y : call_permute(c, y, 4, (int64_t[]){1, 2, 0, 3}));
}

/* Y_h, Y_c: [directions, batch, hidden], or the batch first. */
static enum sol_status output_last(const struct sequence *q, int i, sol_tensor *last) {
    struct op_call *c = q->c;
    struct size dim[3] = {size_const(1), q->batch, size_const(q->hidden)};
    if (i >= c->n_out || !c->out[i]) return SOL_OK;
    if (q->batch_first) dim[0] = q->batch, dim[1] = size_const(1);
    for (int d = 0; d < q->n_directions; d++) last[d] = call_reshape(c, last[d], 3, dim);
    return call_set_output(c, i, join(c, last, q->n_directions, q->batch_first));
}

/* ---- The operator ---- */

/* Refuses sequences that are shorter than the number of steps. */
static enum sol_status check_lengths(struct op_call *c, int64_t steps) {
    if (!call_has(c, LENGTHS)) return SOL_OK;
    const struct import_value *v = c->in[LENGTHS];
    bool is_full = call_shape_value(c, LENGTHS) && v->rank == 1 && size_is_const(v->dim[0]);
    for (int64_t i = 0; is_full && i < size_value(v->dim[0]); i++)
        is_full = size_is(v->shape_value[i], steps);
    return is_full ? SOL_OK : fail(SOL_EUNSUPPORTED, "sequence_lens");
}

static enum sol_status check_attributes(struct op_call *c) {
    static const char *const refused[] = {"activation_alpha", "activation_beta", "clip"};
    for (int i = 0; i < COUNT(refused); i++)
        if (call_attribute(c, refused[i])) return fail(SOL_EUNSUPPORTED, "%s", refused[i]);
    return call_int(c, "input_forget", 0) ? fail(SOL_EUNSUPPORTED, "input_forget") : SOL_OK;
}

static enum sol_status read_sequence(struct op_call *c, const struct recurrent *kind,
                                     struct sequence *q) {
    q->batch_first = call_int(c, "layout", 0) != 0;
    if (call_rank(c, X) != 3 || call_rank(c, WEIGHT) != 3 || call_rank(c, RECURRENCE) != 3)
        return fail(SOL_EINVAL, "ranks %d, %d and %d instead of 3", call_rank(c, X),
                    call_rank(c, WEIGHT), call_rank(c, RECURRENCE));
    q->n_gates = kind->n_gates;
    q->n_directions = (int)call_dim(c, RECURRENCE, 0);
    q->hidden = call_dim(c, RECURRENCE, 2);
    q->steps = call_dim(c, X, q->batch_first);
    q->batch = c->in[X]->dim[!q->batch_first];
    TRY(c->im->status);
    if (q->steps < 1 || q->steps > MAX_STEPS)
        return fail(SOL_EUNSUPPORTED, "%lld steps; 1 to %d are possible", (long long)q->steps,
                    MAX_STEPS);
    q->x = call_tensor(c, X);
    if (!q->batch_first) q->x = call_permute(c, q->x, 3, (int64_t[]){1, 0, 2});
    return check_lengths(c, q->steps);
}

/* Checks the attribute, and that the weights have as many directions. */
static enum sol_status read_direction(const struct sequence *q, bool *is_reverse) {
    const char *text = call_string(q->c, "direction");
    bool is_both = !strcmp(text, "bidirectional");
    *is_reverse = !strcmp(text, "reverse");
    if (*text && !is_both && !*is_reverse && strcmp(text, "forward") != 0)
        return fail(SOL_EINVAL, "direction \"%.32s\"", text);
    if (q->n_directions == 1 + is_both) return SOL_OK;
    return fail(SOL_EINVAL, "weights of %d directions", q->n_directions);
}

enum sol_status op_recurrent(struct op_call *c) {
    const struct recurrent *kind = kinds;
    struct sequence q = {.c = c};
    sol_tensor all[2] = {-1, -1}, h[2], state[2];
    bool is_reverse = false;
    while (strcmp(kind->op, c->op->name) != 0) kind++;
    TRY(check_attributes(c));
    TRY(read_sequence(c, kind, &q));
    TRY(read_direction(&q, &is_reverse));
    if (call_int(c, "hidden_size", q.hidden) != q.hidden)
        return fail(SOL_EINVAL, "hidden_size is not the weight's, %lld", (long long)q.hidden);
    for (int d = 0; d < q.n_directions; d++) {
        struct cell s = begin_cell(&q, kind, d);
        TRY(c->im->status);
        all[d] = unroll(&q, kind, &s, is_reverse || d == 1);
        h[d] = s.h, state[d] = s.state;
    }
    TRY(output_sequence(&q, all));
    TRY(output_last(&q, 1, h));
    return c->n_out > 2 ? output_last(&q, 2, state) : c->im->status;
}
