/* Inside the ONNX frontend: cells of recurrent operators, RNN, GRU, LSTM. For op_recurrent.c, op_cell.c. */
#ifndef SOL_ONNX_RECURRENT_H
#define SOL_ONNX_RECURRENT_H

#include "import.h"

struct cell;

/* An operator. `step` adds the layers of one step; `x` is the linear layer of the inputs at this step, with bias. */
struct recurrent {
    const char *op;
    int n_gates, n_acts;
    void (*step)(struct cell *s, sol_tensor x);
    const char *act[3]; /* the usual activations */
    const char *
        layer; /* the layer of libsol with these activations, and the places of its gates in ONNX's order */
    int order[4];
};
const struct recurrent *cell_find(const char *op);

/* An activation with its parameters. */
struct act {
    const struct act_row *row;
    double alpha, beta;
};

/* Values that are common to all directions. */
struct sequence {
    struct op_call *c;
    const struct recurrent *kind;
    int n_directions;
    int64_t hidden;
    struct size n_steps;
    int64_t steps; /* the same as a number, for cells that are unrolled */
    bool batch_first;
    struct size batch;
    enum sol_dtype dtype; /* that is computed in */
    double clip;          /* inputs of activations are at most this, and at least -clip; 0: any */
    struct act act[6];    /* of all directions, one after the other */
    sol_tensor x;         /* [batch, steps, inputs] */
    sol_tensor valid;     /* bools [batch, steps, 1]: has a sequence this step? < 0: all have */
    /* Results, by direction: of all steps, and of the last one. Below 0 before they exist. */
    sol_tensor y[2], h[2], state[2];
};

/* The state of one direction while it is unrolled. A tensor below 0 does not exist. */
struct cell {
    struct op_call *c;
    const struct sequence *q;
    int64_t hidden;
    const struct act *act; /* f, g, h in ONNX's documentation */
    bool is_reverse;
    bool reset_behind; /* GRU: the reset gate multiplies the product, not the state */
    bool couples;      /* LSTM: the forget gate is 1 - the input gate */
    sol_tensor weight, recurrence, bias, recurrent_bias, peephole;
    sol_tensor h, state; /* `state`: the cell state of an LSTM, C in the documentation */
};

/* Reads the activations of all directions into q->act. */
enum sol_status cell_read_acts(struct sequence *q);

/* The layer of libsol that computes the cell in this direction; NULL: only layers for each step do. */
const char *cell_find_layer(const struct sequence *q, int direction);
/* The gates along the first axis of a weight or bias, in the order of that layer instead of ONNX's. */
sol_tensor cell_order(const struct sequence *q, sol_tensor x);

/* Part `k` of an axis that is divided into parts of `n` values. */
sol_tensor cell_part(struct op_call *c, sol_tensor x, int axis, int64_t k, int64_t n);

#endif
