/* The reference of recurrent layers. Each sample is computed on its own, with its state in double. */
#include "device/ref/eval.h"

#include <math.h>

/* One sample: its state and cell before a step, and the state behind it. */
struct sample {
    const struct layer_call *c;
    int64_t number, hidden, gates;
    double *h, *next, *cell;
};

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* The element of x (with `width` values per point and `steps` steps) or of the output at step `t` of the sample. */
static int64_t find_point(const struct sample *s, int64_t t, int64_t steps, int64_t width) {
    const int64_t n = s->c->shape.dim[1 - s->c->attr->axis];
    return (s->c->attr->axis ? s->number * steps + t : t * n + s->number) * width;
}

/* The product of the state and the weight of unit `u` of a gate. */
static double multiply(const struct sample *s, int gate, int64_t u) {
    double sum = 0;
    for (int64_t k = 0; k < s->hidden; k++)
        sum += s->h[k] * ref_real(s->c, 1, ((gate * s->hidden) + u) * s->hidden + k);
    return sum;
}

/* Keeps column `column` of unit `u` at step `t`, if the layer has a second output. */
static void keep(const struct sample *s, int64_t t, int column, int64_t u, double value) {
    const int64_t steps = s->c->shape.dim[s->c->attr->axis] - ir_last_states(s->c->layer->kind);
    const int64_t width = ir_kept_columns(s->c->layer->kind) * s->hidden;
    if (s->c->kept)
        ref_put_real(s->c->layer->out[1]->dtype, s->c->kept,
                     find_point(s, t, steps, width) + column * s->hidden + u, value);
}

/* The new state of a unit. v: the products of its gates, which become what is kept; x: the values of x of its gates. */
static double compute_unit(struct sample *s, int64_t u, const double *x, double *v) {
    const enum layer_kind kind = s->c->layer->kind;
    if (kind == LAYER_rnn_tanh) return v[0] = tanh(x[0] + v[0]);
    if (kind == LAYER_rnn_relu) return v[0] = x[0] + v[0] < 0 ? 0 : x[0] + v[0];
    v[0] = logistic(x[0] + v[0]);
    v[1] = logistic(x[1] + v[1]);
    if (kind == LAYER_gru) {
        v[2] += ref_real(s->c, 3, u);
        v[3] = tanh(x[2] + v[0] * v[2]);
        return (1 - v[1]) * v[3] + v[1] * s->h[u];
    }
    v[2] = tanh(x[2] + v[2]);
    v[3] = logistic(x[3] + v[3]);
    v[4] = s->cell[u] = v[1] * s->cell[u] + v[0] * v[2];
    return v[3] * tanh(v[4]);
}

/* Step `t`, of `steps`. */
static void run_step(struct sample *s, int64_t t, int64_t steps) {
    const int64_t at = find_point(s, t, steps, s->gates * s->hidden);
    for (int64_t u = 0; u < s->hidden; u++) {
        double x[4], v[5];
        for (int g = 0; g < s->gates; g++) {
            x[g] = ref_real(s->c, 0, at + g * s->hidden + u);
            v[g] = multiply(s, g, u);
        }
        s->next[u] = compute_unit(s, u, x, v);
        for (int i = 0; i < ir_kept_columns(s->c->layer->kind); i++) keep(s, t, i, u, v[i]);
    }
    for (int64_t u = 0; u < s->hidden; u++) s->h[u] = s->next[u];
}

static void write_row(const struct sample *s, int64_t t, const double *value) {
    int64_t to = find_point(s, t, s->c->shape.dim[s->c->attr->axis], s->hidden);
    for (int64_t u = 0; u < s->hidden; u++) ref_set_real(s->c, to + u, value ? value[u] : 0);
}

/* Step `t` is beyond the sample's length. */
static void clear_row(const struct sample *s, int64_t t) {
    write_row(s, t, NULL);
    for (int i = 0; i < ir_kept_columns(s->c->layer->kind); i++)
        for (int64_t u = 0; u < s->hidden; u++) keep(s, t, i, u, 0);
}

/* All steps of the sample, which has `length` of them. */
static void run_sample(struct sample *s, int64_t steps, int64_t length) {
    bool is_lstm = s->c->layer->kind == LAYER_lstm;
    for (int64_t u = 0; u < s->hidden; u++) {
        s->h[u] = ref_real(s->c, 2, s->number * s->hidden + u);
        if (is_lstm) s->cell[u] = ref_real(s->c, 3, s->number * s->hidden + u);
    }
    for (int64_t t = length; t < steps; t++) clear_row(s, t);
    for (int64_t i = 0; i < length; i++) {
        int64_t t = s->c->attr->reverse ? length - 1 - i : i;
        run_step(s, t, steps);
        write_row(s, t, s->h);
    }
    write_row(s, steps, s->h);
    if (is_lstm) write_row(s, steps + 1, s->cell);
}

static void eval(const struct layer_call *c) {
    const int64_t axis = c->attr->axis, n = c->shape.dim[1 - axis], hidden = c->shape.dim[2];
    const int64_t steps = c->shape.dim[axis] - ir_last_states(c->layer->kind);
    double *memory = mem_alloc(3 * (size_t)hidden * sizeof *memory, 16);
    if (!memory) *c->status = fail(SOL_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n && !*c->status; i++) {
        struct sample s = {
            c, i, hidden, ir_gates(c->layer->kind), memory, memory + hidden, memory + 2 * hidden};
        int64_t length = ir_lengths(c->layer) ? ref_whole(c, c->layer->n_in - 1, i) : steps;
        if (length < 0 || length > steps)
            *c->status = fail(SOL_EINDEX, "%s: sample %lld has %lld steps, but there are %lld",
                              layer_infos[c->layer->kind].name, (long long)i, (long long)length,
                              (long long)steps);
        else run_sample(&s, steps, length);
    }
    mem_free(memory);
}

void ref_eval_rnn_tanh(const struct layer_call *c) { eval(c); }
void ref_eval_rnn_relu(const struct layer_call *c) { eval(c); }
void ref_eval_lstm(const struct layer_call *c) { eval(c); }
void ref_eval_gru(const struct layer_call *c) { eval(c); }
