/* The reference of the gradients of recurrent layers. Each sample is computed on its own, in double. */
#include "device/ref/eval.h"

#include <math.h>

/* One sample. dh: the gradient of the state behind a step, then of that before it; dc: of the cell; g: of the gates of a step. */
struct sample {
    const struct layer_call *c;
    enum layer_kind kind; /* lstm for lstm_grad */
    int64_t number, steps, length, hidden, columns;
    double *dh, *dc, *next, *g;
};

/* Row `t` of the sample in a tensor with `steps` rows of `width` values. */
static int64_t find_row(const struct sample *s, int64_t t, int64_t steps, int64_t width) {
    const int64_t n = s->c->shape.dim[1 - s->c->attr->axis];
    return (s->c->attr->axis ? s->number * steps + t : t * n + s->number) * width;
}

static int64_t find_time(const struct sample *s, int64_t i) {
    return s->c->attr->reverse ? s->length - 1 - i : i;
}

/* What the layer has kept of unit `u` at computed step `i`. */
static double read_gate(const struct sample *s, int64_t i, int column, int64_t u) {
    const int64_t width = ir_kept_columns(s->kind) * s->hidden;
    return ref_real(s->c, 0,
                    find_row(s, find_time(s, i), s->steps, width) + column * s->hidden + u);
}

/* The state of a gru, or the cell of an lstm, before the step. */
static double read_before(const struct sample *s, int64_t i, int64_t u) {
    if (s->kind == LAYER_gru)
        return ref_real(s->c, 3, find_row(s, find_time(s, i), s->steps, s->hidden) + u);
    return i ? read_gate(s, i - 1, 4, u) : ref_real(s->c, 3, s->number * s->hidden + u);
}

/* The gradients of the gates, given that of the state behind the step. */
static void turn(struct sample *s, int64_t i, int64_t u, double dh) {
    double v[5], *g = s->g + u;
    const int64_t h = s->hidden;
    for (int k = 0; k < ir_kept_columns(s->kind); k++) v[k] = read_gate(s, i, k, u);
    if (s->kind == LAYER_rnn_tanh) g[0] = dh * (1 - v[0] * v[0]);
    else if (s->kind == LAYER_rnn_relu) g[0] = v[0] <= 0 ? 0 : dh;
    else if (s->kind == LAYER_gru) {
        const double r = v[0], z = v[1], inner = v[2], now = v[3];
        g[3 * h] = dh * (1 - z) * (1 - now * now);
        g[0] = g[3 * h] * inner * r * (1 - r);
        g[h] = dh * (read_before(s, i, u) - now) * z * (1 - z);
        g[2 * h] = g[3 * h] * r;
        s->next[u] = dh * z;
    } else {
        const double take = v[0], keep = v[1], now = v[2], show = v[3], shown = tanh(v[4]);
        const double dc = s->dc[u] + dh * show * (1 - shown * shown);
        g[0] = dc * now * take * (1 - take);
        g[h] = dc * read_before(s, i, u) * keep * (1 - keep);
        g[2 * h] = dc * take * (1 - now * now);
        g[3 * h] = dh * shown * show * (1 - show);
        s->dc[u] = dc * keep;
    }
}

/* Writes row `t` of the output; value: NULL: zeros. */
static void write_row(const struct sample *s, int64_t t, const double *value) {
    const int64_t width = s->columns * s->hidden, at = find_row(s, t, s->steps + 1, width);
    for (int64_t k = 0; k < width; k++) ref_set_real(s->c, at + k, value ? value[k] : 0);
}

/* The step, and the gradient of the state before it. */
static void step_back(struct sample *s, int64_t i) {
    const int64_t rows = s->steps + ir_last_states(s->kind), h = s->hidden;
    const int64_t dy = find_row(s, find_time(s, i), rows, h);
    for (int64_t u = 0; u < h; u++) {
        s->next[u] = 0;
        turn(s, i, u, s->dh[u] + ref_real(s->c, 2, dy + u));
    }
    for (int64_t u = 0; u < h; u++)
        for (int64_t k = 0; k < ir_gates(s->kind) * h; k++)
            s->next[u] += s->g[k] * ref_real(s->c, 1, k * h + u);
    for (int64_t u = 0; u < h; u++) s->dh[u] = s->next[u];
    write_row(s, find_time(s, i), s->g);
}

/* The gradients of the first state and cell, behind all steps. */
static void write_first(const struct sample *s) {
    for (int64_t k = 0; k < s->columns * s->hidden; k++) {
        const bool is_cell = s->kind == LAYER_lstm && k >= s->hidden && k < 2 * s->hidden;
        s->g[k] = k < s->hidden ? s->dh[k] : is_cell ? s->dc[k - s->hidden] : 0;
    }
    write_row(s, s->steps, s->g);
}

static void run_sample(struct sample *s) {
    const int64_t rows = s->steps + ir_last_states(s->kind), h = s->hidden;
    for (int64_t u = 0; u < h; u++) {
        s->dh[u] = ref_real(s->c, 2, find_row(s, s->steps, rows, h) + u);
        if (s->kind == LAYER_lstm)
            s->dc[u] = ref_real(s->c, 2, find_row(s, s->steps + 1, rows, h) + u);
    }
    for (int64_t t = s->length; t < s->steps; t++) write_row(s, t, NULL);
    for (int64_t i = s->length - 1; i >= 0; i--) step_back(s, i);
    write_first(s);
}

static void eval(const struct layer_call *c) {
    const int64_t axis = c->attr->axis, n = c->shape.dim[1 - axis], steps = c->shape.dim[axis] - 1;
    const int64_t columns = ir_grad_columns(c->layer->kind), h = c->shape.dim[2] / columns;
    double *memory = mem_alloc((size_t)((columns + 3) * h) * sizeof *memory, 16);
    if (!memory) *c->status = fail(SOL_ENOMEM, "out of memory");
    for (int64_t i = 0; i < n && !*c->status; i++) {
        struct sample s = {.c = c,
                           .kind = ir_recurrent_kind(c->layer->kind),
                           .number = i,
                           .steps = steps,
                           .hidden = h,
                           .columns = columns,
                           .dh = memory,
                           .dc = memory + h,
                           .next = memory + 2 * h,
                           .g = memory + 3 * h};
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
