/* Random cases of recurrent layers: all kinds, both directions, both orders of x's dims, lengths, states and weights of any origin. */
#include "gen_parts.h"

#include <stdio.h>
#include <string.h>

/* Also of their gradients, lstm_grad and others. */
static int count_gates(const char *kind) {
    return !strncmp(kind, "lstm", 4) ? 4 : !strncmp(kind, "gru", 3) ? 3 : 1;
}

/* Weights are small enough that neither a state nor a gradient grows with the steps. */
static float most_weight(const char *kind, int64_t units) {
    const float most = 1.0f / (float)units;
    return most > 0.2f || !strncmp(kind, "rnn_relu", 8) ? most : 0.2f;
}

/* The number of steps of each sample, from 0 to all of them. */
static int add_lengths(struct gen *g, int64_t n, int64_t steps) {
    int x = gen_numbers(g, random_one_in(g->random, 3) && n > 0, 1, &n, steps);
    enum sol_dtype type = g->value[x].type;
    x = gen_add(g, "abs", 1, &x, "");
    if (type != SOL_I64) x = gen_add(g, "cast", 1, &x, "dtype=i64");
    g->value[x].type = SOL_I64;
    return x;
}

/* Sometimes the weight is an input, which is not packed. */
int gen_recurrent_of(struct gen *g, const char *kind, int x, int64_t n, int64_t units, int axis,
                     int lengths) {
    struct random *r = g->random;
    int64_t gates = count_gates(kind), state[2] = {n, units}, w[2] = {gates * units, units};
    const float high = most_weight(kind, units);
    char text[64];
    int in[5] = {x, gen_leaf(g, random_int(r, 0, 7) > 0, 2, w, -high, high),
                 gen_leaf(g, n > 0 && random_one_in(r, 4), 2, state, -1, 1)},
        n_in = 3;
    if (gates == 4) in[n_in++] = gen_leaf(g, false, 2, state, -1, 1);
    if (gates == 3) in[n_in++] = gen_leaf(g, random_int(r, 0, 3) > 0, 1, &units, -1, 1);
    if (lengths >= 0) in[n_in++] = lengths;
    snprintf(text, sizeof text, "axis=%d reverse=%s", axis, random_one_in(r, 2) ? "true" : "false");
    return gen_add(g, kind, n_in, in, text);
}

/* The states of all steps, through one more layer, and what is behind them. */
static void add_outputs(struct gen *g, int y, int64_t steps, int axis) {
    char text[64];
    snprintf(text, sizeof text, "axis=%d shape=[%d]", axis, (int)steps);
    int all = gen_add(g, "slice", 1, &y, text);
    snprintf(text, sizeof text, "axis=%d start=%d shape=[1]", axis, (int)steps);
    int last = gen_add(g, "slice", 1, &y, text);
    gen_output(g, random_one_in(g->random, 2) ? gen_add(g, "neg", 1, &all, "") : all);
    gen_output(g, last);
}

/* Random sizes: dim[axis] steps and dim[1 - axis] samples, *axis, and units. Returns whether samples have lengths. */
static bool choose_sizes(struct gen *g, int64_t *dim, int *axis, int64_t *units) {
    static const int sizes[] = {1, 3, 7, 16, 17, 33, 64, 70}, counts[] = {1, 2, 7, 8, 26};
    struct random *r = g->random;
    *units = RANDOM_PICK(r, sizes);
    const int64_t steps = RANDOM_PICK(r, sizes) % 32,
                  n = random_one_in(r, 2) ? g->batch : RANDOM_PICK(r, counts);
    *axis = random_int(r, 0, 1);
    dim[*axis] = steps, dim[1 - *axis] = n;
    return steps > 0 && random_one_in(r, 3);
}

void gen_recurrent(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[3], units;
    int axis;
    bool has_lengths = choose_sizes(g, dim, &axis, &units);
    const int64_t steps = dim[axis], n = dim[1 - axis];
    (void)attributes;
    dim[2] = count_gates(kind) * units;
    int x = gen_leaf(g, random_one_in(r, 6) && n > 0, 3, dim, -2, 2);
    int y =
        gen_recurrent_of(g, kind, x, n, units, axis, has_lengths ? add_lengths(g, n, steps) : -1);
    if (random_one_in(r, 2)) gen_output(g, y);
    else add_outputs(g, y, steps, axis);
}

/* The layers that compute gradients, on inputs of their own: a rule (ir/grad_recurrent.c) gives them other values. */
void gen_recurrent_grad(struct gen *g, const char *kind, const char *attributes) {
    struct random *r = g->random;
    int64_t dim[3], units;
    int axis;
    const int gates = count_gates(kind), kept = gates > 1 ? gates + 1 : 1;
    bool has_lengths = choose_sizes(g, dim, &axis, &units);
    const int64_t steps = dim[axis], n = dim[1 - axis];
    int64_t w[2] = {gates * units, units}, state[2] = {n, units};
    const float high = most_weight(kind, units);
    char text[64];
    int in[5], n_in = 0;
    (void)attributes;
    dim[2] = kept * units;
    /* Gates are in (0, 1), else gradients would grow with the steps. */
    in[n_in++] = gen_leaf(g, random_one_in(r, 6) && n > 0, 3, dim, gates > 1 ? 0 : -1, 1);
    in[n_in++] = gen_leaf(g, random_int(r, 0, 7) > 0, 2, w, -high, high);
    dim[2] = units;
    dim[axis] = steps + 1 + (gates == 4);
    in[n_in++] = gen_leaf(g, false, 3, dim, -1, 1);
    dim[axis] = steps;
    if (gates == 4) in[n_in++] = gen_leaf(g, false, 2, state, -1, 1);
    if (gates == 3) in[n_in++] = gen_leaf(g, false, 3, dim, -1, 1);
    if (has_lengths) in[n_in++] = add_lengths(g, n, steps);
    snprintf(text, sizeof text, "axis=%d reverse=%s", axis, random_one_in(r, 2) ? "true" : "false");
    gen_output(g, gen_add(g, kind, n_in, in, text));
}
