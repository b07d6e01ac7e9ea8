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

/* Writes the product of unit `u` and gate `g` behind element `x`, that of the unit's first gate. */
static void keep(const struct sample *s, int64_t x, int64_t u, int g, double product) {
    const bool has_bias = s->c->layer->kind == LAYER_gru && g == 2;
    if (has_bias) product += ref_real(s->c, 3, u);
    if (s->c->products)
        ref_put_real(s->c->layer->out[1]->dtype, s->c->products, x + g * s->hidden + u, product);
}

/* The new state of unit `u`; x: the element of its first gate. */
static double compute_unit(struct sample *s, int64_t x, int64_t u) {
    double in[4], product[4];
    for (int g = 0; g < s->gates; g++) {
        in[g] = ref_real(s->c, 0, x + g * s->hidden + u);
        product[g] = multiply(s, g, u);
        keep(s, x, u, g, product[g]);
    }
    if (s->c->layer->kind == LAYER_rnn_tanh) return tanh(in[0] + product[0]);
    if (s->c->layer->kind == LAYER_rnn_relu) return in[0] + product[0] < 0 ? 0 : in[0] + product[0];
    if (s->c->layer->kind == LAYER_gru) {
        double reset = logistic(in[0] + product[0]), update = logistic(in[1] + product[1]);
        double now = tanh(in[2] + reset * (product[2] + ref_real(s->c, 3, u)));
        return (1 - update) * now + update * s->h[u];
    }
    double take = logistic(in[0] + product[0]), keep = logistic(in[1] + product[1]);
    s->cell[u] = keep * s->cell[u] + take * tanh(in[2] + product[2]);
    return logistic(in[3] + product[3]) * tanh(s->cell[u]);
}

static void write_row(const struct sample *s, int64_t t, const double *value) {
    int64_t to = find_point(s, t, s->c->shape.dim[s->c->attr->axis], s->hidden);
    for (int64_t u = 0; u < s->hidden; u++) ref_set_real(s->c, to + u, value ? value[u] : 0);
}

/* Step `t` is beyond the sample's length. */
static void clear_row(const struct sample *s, int64_t t, int64_t steps) {
    const int64_t width = s->gates * s->hidden, at = find_point(s, t, steps, width);
    write_row(s, t, NULL);
    for (int64_t i = 0; i < width && s->c->products; i++)
        ref_put_real(s->c->layer->out[1]->dtype, s->c->products, at + i, 0);
}

/* All steps of the sample, which has `length` of them. */
static void run_sample(struct sample *s, int64_t steps, int64_t length) {
    bool is_lstm = s->c->layer->kind == LAYER_lstm;
    for (int64_t u = 0; u < s->hidden; u++) {
        s->h[u] = ref_real(s->c, 2, s->number * s->hidden + u);
        if (is_lstm) s->cell[u] = ref_real(s->c, 3, s->number * s->hidden + u);
    }
    for (int64_t t = length; t < steps; t++) clear_row(s, t, steps);
    for (int64_t i = 0; i < length; i++) {
        int64_t t = s->c->attr->reverse ? length - 1 - i : i;
        int64_t x = find_point(s, t, steps, s->gates * s->hidden);
        for (int64_t u = 0; u < s->hidden; u++) s->next[u] = compute_unit(s, x, u);
        for (int64_t u = 0; u < s->hidden; u++) s->h[u] = s->next[u];
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
