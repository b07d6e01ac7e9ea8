/*
 * Linear attention and causal convolution: they process a sequence position by position and keep a state.
 *
 * The state summarizes all earlier positions. It is an input and an output, so that a sequence can be processed in several calls.
 */
#include "eval.h"

#include "scalar.h"

#include <string.h>

/* S = exp(g) S + beta k (v - exp(g) S^T k)^T for one head and position; g is `decay`. Without decay S is not scaled; without beta
 * the update is k v^T. `seen` is scratch. */
static void update_state(double *state, const double *k, const double *v, const double *decay,
                         int64_t decay_step, const double *beta, int64_t size, int64_t v_size,
                         double *seen) {
    for (int64_t i = 0; i < size && decay; i++)
        for (int64_t j = 0; j < v_size; j++) state[i * v_size + j] *= exp(decay[i * decay_step]);
    for (int64_t j = 0; j < v_size; j++) {
        double known = 0;
        for (int64_t i = 0; i < size && beta; i++) known += state[i * v_size + j] * k[i];
        seen[j] = beta ? *beta * (v[j] - known) : v[j];
    }
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j < v_size; j++) state[i * v_size + j] += k[i] * seen[j];
}

/* The inputs: values are [batch, places, heads, size]; the state is [kv_heads, size, v_size] per sample. A place is a position of
 * the sequence. */
struct linear {
    int64_t batch, places, heads, kv, size, v_size;
    int64_t per_decay, per_beta; /* decays per head (1 or size), betas per place (1 or kv) */
    const double *q, *k, *v, *decay, *beta;
    double scale, *state, *seen;
};

/* The last dim of each input contains all heads. Several query heads may share a head of k and v, and its state. */
static struct linear read_heads(struct eval *e) {
    const struct array *q = eval_in(e, 0), *k = eval_in(e, 1), *v = eval_in(e, 2);
    struct linear l = {.heads = eval_int(e, "q_num_heads", 0),
                       .kv = eval_int(e, "kv_num_heads", 0)};
    eval_check(e,
               q->rank == 3 && k->rank == 3 && v->rank == 3 && l.heads > 0 && l.kv > 0 &&
                   l.heads % l.kv == 0,
               "ranks or heads that do not fit");
    l.batch = q->dim[0];
    l.places = q->dim[1];
    l.size = q->dim[2] / l.heads;
    l.v_size = v->dim[2] / l.kv;
    eval_check(e,
               q->dim[2] == l.size * l.heads && v->dim[2] == l.v_size * l.kv &&
                   k->dim[2] == l.size * l.kv && k->dim[0] == l.batch && k->dim[1] == l.places &&
                   v->dim[0] == l.batch && v->dim[1] == l.places,
               "shapes that do not fit");
    l.q = array_doubles(e->space, q);
    l.k = array_doubles(e->space, k);
    l.v = array_doubles(e->space, v);
    l.scale = eval_float(e, "scale", 0);
    if (l.scale == 0) l.scale = 1 / sqrt((double)l.size);
    return l;
}

/* Decay and beta, if the update rule has them, and the initial state. */
static void read_rule(struct eval *e, struct linear *l) {
    const char *rule = eval_word(e, "update_rule", "gated_delta", "linear gated delta gated_delta");
    int64_t rows = l->batch * l->places, n_state = l->batch * l->kv * l->size * l->v_size;
    if (strstr(rule, "gated")) {
        l->decay = array_doubles(e->space, eval_in(e, 4));
        l->per_decay = e->in[4]->n / max_i64(1, rows * l->kv);
        eval_check(e, l->per_decay == 1 || l->per_decay == l->size, "a decay that does not fit");
    }
    if (strstr(rule, "delta")) {
        l->beta = array_doubles(e->space, eval_in(e, 5));
        l->per_beta = e->in[5]->n / max_i64(1, rows);
        eval_check(e, l->per_beta == 1 || l->per_beta == l->kv, "a beta that does not fit");
    }
    eval_check(e, !eval_has(e, 3) || eval_in(e, 3)->n == n_state, "a state that does not fit");
    l->state =
        eval_has(e, 3) ? array_doubles(e->space, e->in[3]) : SPACE_ARRAY(e->space, double, n_state);
    l->seen = SPACE_ARRAY(e->space, double, l->v_size);
}

/* One step, where `bt` is sample * places + place: updates the states of all heads, then multiplies each query with its head's
 * state. */
static void step_linear(const struct linear *l, int64_t bt, double *y) {
    int64_t n = l->size * l->v_size;
    double *states = l->state + bt / l->places * l->kv * n;
    for (int64_t h = 0; h < l->kv; h++) {
        int64_t head = bt * l->kv + h;
        const double *beta =
            l->beta ? l->beta + bt * l->per_beta + (l->per_beta > 1 ? h : 0) : NULL;
        update_state(states + h * n, l->k + head * l->size, l->v + head * l->v_size,
                     l->decay ? l->decay + head * l->per_decay : NULL, l->per_decay > 1, beta,
                     l->size, l->v_size, l->seen);
    }
    for (int64_t h = 0; h < l->heads; h++) {
        double *row = y + (bt * l->heads + h) * l->v_size;
        matrix_product(l->q + (bt * l->heads + h) * l->size, states + h / (l->heads / l->kv) * n, 1,
                       l->size, l->v_size, row);
        for (int64_t j = 0; j < l->v_size; j++) row[j] *= l->scale;
    }
}

/* For each position: update_state, then the result q^T S * scale. */
void run_linear_attention(struct eval *e) {
    struct linear l = read_heads(e);
    read_rule(e, &l);
    int64_t dim[3] = {l.batch, l.places, l.heads * l.v_size},
            state[4] = {l.batch, l.kv, l.size, l.v_size};
    double *y = SPACE_ARRAY(e->space, double, product(3, dim));
    for (int64_t bt = 0; bt < l.batch * l.places; bt++) step_linear(&l, bt, y);
    enum type type = e->in[0]->type;
    eval_set_output_doubles(e, 0, type, 3, dim, y);
    eval_set_output_doubles(e, 1, eval_has(e, 3) ? e->in[3]->type : type, 4, state, l.state);
}

/* A depthwise convolution over the current and earlier positions; the state is the last kernel - 1 inputs. */
void run_causal_conv(struct eval *e) {
    const struct array *x = eval_in(e, 0), *w = eval_in(e, 1);
    eval_check(e,
               x->rank == 3 && w->rank == 3 && w->dim[0] == x->dim[1] && w->dim[1] == 1 &&
                   w->dim[2] > 0,
               "shapes that do not fit");
    int64_t rows = x->dim[0] * x->dim[1], channels = x->dim[1], n = x->dim[2], kept = w->dim[2] - 1;
    bool is_active = strcmp(eval_word(e, "activation", "none", "none silu swish"), "none") != 0;
    eval_check(e, !eval_has(e, 3) || eval_in(e, 3)->n == rows * kept, "a state that does not fit");
    eval_check(e, !eval_has(e, 2) || eval_in(e, 2)->n == channels, "a bias that does not fit");
    double *v = array_doubles(e->space, x), *weight = array_doubles(e->space, w);
    struct array *y = eval_out(e, 0, x->type, 3, x->dim),
                 *state = eval_out(e, 1, x->type, 3, (int64_t[]){x->dim[0], channels, kept});
    double *line = SPACE_ARRAY(e->space, double, kept + n);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < kept; i++)
            line[i] = eval_has(e, 3) ? array_double(e->in[3], r * kept + i) : 0;
        for (int64_t i = 0; i < n; i++) line[kept + i] = v[r * n + i];
        for (int64_t i = 0; i < n; i++) {
            double sum = eval_has(e, 2) ? array_double(e->in[2], r % channels) : 0;
            for (int64_t k = 0; k <= kept; k++)
                sum += weight[r % channels * (kept + 1) + k] * line[i + k];
            array_set_double(y, r * n + i, is_active ? swish(sum, 1, 0) : sum);
        }
        for (int64_t i = 0; i < kept; i++) array_set_double(state, r * kept + i, line[n + i]);
    }
}
