/* The reference of the gradients of recurrent layers. Each sample is computed on its own, with all its gates and cells in double. */
#include "device/ref/eval.h"

#include <math.h>

/* One sample. By number of the computed step: gate[i], of all gates, and cell[i], the cell before the step. dh: the gradient of the state
 * behind a step, then of that before it; dc: of the cell. */
struct sample {
    const struct layer_call *c;
    enum layer_kind kind; /* lstm for lstm_grad */
    int64_t number, steps, length, hidden, columns;
    double *gate, *cell, *dh, *dc, *next;
};

static double logistic(double x) { return 1 / (1 + exp(-x)); }

/* Row `t` of the sample in a tensor with `steps` rows of `width` values. */
static int64_t find_row(const struct sample *s, int64_t t, int64_t steps, int64_t width) {
    const int64_t n = s->c->shape.dim[1 - s->c->attr->axis];
    return (s->c->attr->axis ? s->number * steps + t : t * n + s->number) * width;
}

static int64_t find_time(const struct sample *s, int64_t i) {
    return s->c->attr->reverse ? s->length - 1 - i : i;
}

/* Gate `g` of unit `u` at computed step `i`. */
static double *find_gate(const struct sample *s, int64_t i, int64_t g, int64_t u) {
    return &s->gate[(i * s->columns + g) * s->hidden + u];
}

/* ---- Forward ---- */

static void compute_gates(struct sample *s, int64_t i, int64_t u) {
    const int gates = ir_gates(s->kind);
    const int64_t at = find_row(s, find_time(s, i), s->steps, gates * s->hidden) + u;
    double x[4], p[4], *cell = s->cell + i * s->hidden + u;
    for (int g = 0; g < gates; g++) {
        x[g] = ref_real(s->c, 0, at + g * s->hidden);
        p[g] = ref_real(s->c, 1, at + g * s->hidden);
    }
    double *first = find_gate(s, i, 0, u);
    if (s->kind == LAYER_rnn_tanh) *first = tanh(x[0] + p[0]);
    else if (s->kind == LAYER_rnn_relu) *first = x[0] + p[0] < 0 ? 0 : x[0] + p[0];
    else if (s->kind == LAYER_gru) {
        *first = logistic(x[0] + p[0]);
        *find_gate(s, i, 1, u) = logistic(x[1] + p[1]);
        *find_gate(s, i, 2, u) = p[2];
        *find_gate(s, i, 3, u) = tanh(x[2] + *first * p[2]);
    } else {
        for (int g = 0; g < 4; g++)
            *find_gate(s, i, g, u) = g == 2 ? tanh(x[g] + p[g]) : logistic(x[g] + p[g]);
        cell[s->hidden] = *find_gate(s, i, 1, u) * *cell + *first * *find_gate(s, i, 2, u);
    }
}

/* ---- Backward ---- */

/* Replaces the gates by their gradients, given that of the state behind the step. */
static void turn(struct sample *s, int64_t i, int64_t u, double dh) {
    double *g[4];
    for (int k = 0; k < s->columns; k++) g[k] = find_gate(s, i, k, u);
    if (s->kind == LAYER_rnn_tanh) *g[0] = dh * (1 - *g[0] * *g[0]);
    else if (s->kind == LAYER_rnn_relu) *g[0] = *g[0] <= 0 ? 0 : dh;
    else if (s->kind == LAYER_gru) {
        const double r = *g[0], z = *g[1], inner = *g[2], now = *g[3];
        const double before =
            ref_real(s->c, 4, find_row(s, find_time(s, i), s->steps, s->hidden) + u);
        *g[3] = dh * (1 - z) * (1 - now * now);
        *g[0] = *g[3] * inner * r * (1 - r);
        *g[1] = dh * (before - now) * z * (1 - z);
        *g[2] = *g[3] * r;
        s->next[u] = dh * z;
    } else {
        const double take = *g[0], keep = *g[1], now = *g[2], show = *g[3];
        const double *cell = s->cell + i * s->hidden + u, shown = tanh(cell[s->hidden]);
        const double dc = s->dc[u] + dh * show * (1 - shown * shown);
        *g[0] = dc * now * take * (1 - take);
        *g[1] = dc * *cell * keep * (1 - keep);
        *g[2] = dc * take * (1 - now * now);
        *g[3] = dh * shown * show * (1 - show);
        s->dc[u] = dc * keep;
    }
}

/* The step, and the gradient of the state before it. */
static void step_back(struct sample *s, int64_t i) {
    const int64_t rows = s->steps + ir_last_states(s->kind), h = s->hidden;
    const int64_t dy = find_row(s, find_time(s, i), rows, h);
    for (int64_t u = 0; u < h; u++) {
        s->next[u] = 0;
        turn(s, i, u, s->dh[u] + ref_real(s->c, 3, dy + u));
    }
    for (int64_t u = 0; u < h; u++)
        for (int64_t k = 0; k < ir_gates(s->kind) * h; k++)
            s->next[u] += *find_gate(s, i, 0, k) * ref_real(s->c, 2, k * h + u);
    for (int64_t u = 0; u < h; u++) s->dh[u] = s->next[u];
}

static void write_steps(const struct sample *s) {
    const int64_t width = s->columns * s->hidden;
    for (int64_t t = 0; t < s->steps; t++)
        for (int64_t k = 0; k < width; k++) {
            const double value = t < s->length ? *find_gate(s, find_time(s, t), 0, k) : 0;
            ref_set_real(s->c, find_row(s, t, s->steps + 1, width) + k, value);
        }
    const int64_t last = find_row(s, s->steps, s->steps + 1, width);
    for (int64_t k = 0; k < width; k++) {
        const bool is_cell = s->kind == LAYER_lstm && k >= s->hidden && k < 2 * s->hidden;
        const double value = k < s->hidden ? s->dh[k] : is_cell ? s->dc[k - s->hidden] : 0;
        ref_set_real(s->c, last + k, value);
    }
}

static void run_sample(struct sample *s) {
    const bool is_lstm = s->kind == LAYER_lstm;
    const int64_t rows = s->steps + ir_last_states(s->kind), h = s->hidden;
    for (int64_t u = 0; u < h; u++) {
        s->dh[u] = ref_real(s->c, 3, find_row(s, s->steps, rows, h) + u);
        if (!is_lstm) continue;
        s->dc[u] = ref_real(s->c, 3, find_row(s, s->steps + 1, rows, h) + u);
        s->cell[u] = ref_real(s->c, 4, s->number * h + u);
    }
    for (int64_t i = 0; i < s->length; i++)
        for (int64_t u = 0; u < h; u++) compute_gates(s, i, u);
    for (int64_t i = s->length - 1; i >= 0; i--) step_back(s, i);
    write_steps(s);
}

static void eval(const struct layer_call *c) {
    const int64_t axis = c->attr->axis, n = c->shape.dim[1 - axis], steps = c->shape.dim[axis] - 1;
    const int64_t columns = ir_grad_columns(c->layer->kind), h = c->shape.dim[2] / columns;
    const int64_t n_gates = steps * columns * h, n_cells = (steps + 1) * h;
    double *memory = mem_alloc((size_t)(n_gates + n_cells + 3 * h) * sizeof *memory, 16);
    if (!memory) *c->status = fail(SOL_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n && !*c->status; i++) {
        double *cell = memory + n_gates, *dh = cell + n_cells;
        struct sample s = {.c = c,
                           .kind = ir_recurrent_kind(c->layer->kind),
                           .number = i,
                           .steps = steps,
                           .hidden = h,
                           .columns = columns,
                           .gate = memory,
                           .cell = cell,
                           .dh = dh,
                           .dc = dh + h,
                           .next = dh + 2 * h};
        s.length = ir_lengths(c->layer) ? ref_whole(c, c->layer->n_in - 1, i) : steps;
        if (s.length < 0 || s.length > steps)
            *c->status = fail(SOL_EINDEX, "%s: sample %lld has %lld steps, but there are %lld",
                              layer_infos[c->layer->kind].name, (long long)i, (long long)s.length,
                              (long long)steps);
        else run_sample(&s);
    }
    mem_free(memory);
}

void ref_eval_rnn_tanh_grad(const struct layer_call *c) { eval(c); }
void ref_eval_rnn_relu_grad(const struct layer_call *c) { eval(c); }
void ref_eval_lstm_grad(const struct layer_call *c) { eval(c); }
void ref_eval_gru_grad(const struct layer_call *c) { eval(c); }
