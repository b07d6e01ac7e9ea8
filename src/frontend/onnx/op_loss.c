/*
 * Losses of classes: -weight[t] * x[n, t, ..] for the class t of the target at [n, ..], where x has logarithms of probabilities.
 * A target that is ignore_index counts nothing: its loss and its weight are 0, whatever x has there.
 *
 * f16 and bf16 are computed as f32, since the sums would lose bits.
 */
#include "rows.h"

#include <string.h>

/* The weight of each target's class, 0 where it does not count; -1: all are 1. `counts` < 0: all targets count. */
static sol_tensor weigh(struct op_call *c, sol_tensor target, sol_tensor counts,
                        enum sol_dtype dtype) {
    sol_tensor weight = -1;
    if (call_has(c, 2))
        weight = call_cast(c, LAYER2(c, "gather", call_tensor(c, 2), target, "axis=0"), dtype);
    if (counts < 0) return weight;
    if (weight < 0) return call_cast(c, counts, dtype);
    return call_where(c, counts, weight, call_scalar_of(c, 0, dtype));
}

/* x[n, t, ..] */
static sol_tensor pick(struct op_call *c, sol_tensor x, sol_tensor target) {
    struct size dim[SOL_MAX_RANK];
    const int rank = call_shape(c, target, dim);
    if (rank < 1 || rank >= SOL_MAX_RANK) return x;
    memmove(dim + 2, dim + 1, sizeof *dim * (size_t)(rank - 1));
    dim[1] = size_const(1);
    x = rows_gather_elements(c, x, call_reshape(c, target, rank + 1, dim), 1);
    call_shape(c, target, dim);
    return call_reshape(c, x, rank, dim);
}

static enum sol_status output_loss(struct op_call *c, sol_tensor x, enum sol_dtype dtype) {
    const char *reduction = call_string(c, "reduction");
    bool is_sum = !strcmp(reduction, "sum"), is_mean = !*reduction || !strcmp(reduction, "mean");
    sol_tensor target = call_cast(c, call_tensor(c, 1), SOL_I64), counts = -1;
    if (!is_sum && !is_mean && strcmp(reduction, "none") != 0)
        return fail(SOL_EINVAL, "reduction \"%.32s\"", reduction);
    if (call_attribute(c, "ignore_index")) {
        sol_tensor ignored = call_scalar_of(c, (double)call_int(c, "ignore_index", 0), SOL_I64);
        counts = LAYER1(c, "bit_not", LAYER2(c, "equal", target, ignored, ""), "");
        target = call_where(c, counts, target, call_scalar_of(c, 0, SOL_I64));
    }
    sol_tensor loss = LAYER1(c, "neg", pick(c, x, target), ""),
               weight = weigh(c, target, counts, dtype);
    if (weight >= 0) loss = LAYER2(c, "mul", loss, weight, "");
    if (counts >= 0) loss = call_where(c, counts, loss, call_scalar_of(c, 0, dtype));
    if (is_mean && weight < 0) loss = LAYER1(c, "mean", loss, "");
    else if (is_sum || is_mean) loss = LAYER1(c, "sum", loss, "");
    if (is_mean && weight >= 0) loss = LAYER2(c, "div", loss, LAYER1(c, "sum", weight, ""), "");
    return call_set_output(c, 0, call_cast(c, loss, c->in[0]->dtype));
}

/* The layer "log_softmax" is applied first for SoftmaxCrossEntropyLoss, which shows it as output 1. */
enum sol_status op_class_loss(struct op_call *c) {
    const int rank = call_rank(c, 0);
    const bool is_short = c->in[0]->dtype == SOL_F16 || c->in[0]->dtype == SOL_BF16;
    const enum sol_dtype dtype = is_short ? SOL_F32 : c->in[0]->dtype;
    if (rank < 2 || call_rank(c, 1) != rank - 1)
        return fail(SOL_EINVAL, "a target of another rank");
    sol_tensor x = call_cast(c, call_tensor(c, 0), dtype);
    if (*c->op->layer) x = LAYER1(c, c->op->layer, x, "axis=1");
    if (c->n_out > 1) TRY(call_set_output(c, 1, call_cast(c, x, c->in[0]->dtype)));
    return output_loss(c, x, dtype);
}
