/*
 * Operators that normalize: norms and softmax. Most become one composite layer each, which pass/decompose.c replaces
 * by simpler ones.
 */
#include "import.h"

#include <math.h>
#include <string.h>

/* "axes=[first,..,rank-1]" */
static const char *axes_from(struct op_call *c, int first, int rank) {
    int64_t axes[SOL_MAX_RANK];
    for (int d = first; d < rank; d++) axes[d - first] = d;
    return call_format_ints(c, rank - first, axes);
}

static const char *epsilon(struct op_call *c) {
    return call_format_double(c, call_float(c, "epsilon", 1e-5));
}

/* momentum * old + (1 - momentum) * new */
static sol_tensor keep_running(struct op_call *c, sol_tensor old, sol_tensor new) {
    double momentum = call_float(c, "momentum", 0.9);
    enum sol_dtype type = call_dtype(c, old);
    old = LAYER2(c, "mul", old, call_scalar_of(c, momentum, type), "");
    new = LAYER2(c, "mul", call_cast(c, new, type), call_scalar_of(c, 1 - momentum, type), "");
    return LAYER2(c, "add", old, new, "");
}

/* In training, mean and variance are those of x over all dims but the channels, and outputs 1 and 2 are running values. */
static enum sol_status measure_channels(struct op_call *c, sol_tensor in[5]) {
    int64_t axes[SOL_MAX_RANK];
    int n = 0;
    for (int d = 0; d < call_rank(c, 0); d++)
        if (d != 1) axes[n++] = d;
    const char *list = call_format_ints(c, n, axes);
    sol_tensor mean = LAYER1(c, "mean", in[0], "axes=%s", list),
               variance = LAYER1(c, "variance", in[0], "axes=%s correction=0", list);
    TRY(call_set_output(c, 1, keep_running(c, in[1], mean)));
    TRY(call_set_output(c, 2, keep_running(c, in[2], variance)));
    in[1] = mean;
    in[2] = variance;
    return SOL_OK;
}

/* ONNX's order is x, scale, bias, mean, variance; SOL's x, mean, variance, weight, bias. */
enum sol_status op_batch_norm(struct op_call *c) {
    if (!call_int(c, "spatial", 1)) return fail(SOL_EUNSUPPORTED, "spatial=0");
    static const int order[] = {0, 3, 4, 1, 2};
    sol_tensor in[5];
    for (int i = 0; i < 5; i++) in[i] = call_tensor(c, order[i]);
    if (call_int(c, "training_mode", 0)) TRY(measure_channels(c, in));
    else if (c->n_out > 1) return fail(SOL_EUNSUPPORTED, "outputs of training");
    return call_set_output(c, 0, call_layer(c, "batch_norm", 5, in, "eps=%s", epsilon(c)));
}

/* Each channel is a group of its own. */
enum sol_status op_instance_norm(struct op_call *c) {
    int rank = call_rank(c, 0);
    if (rank < 3) return fail(SOL_EINVAL, "an input of rank %d", rank);
    sol_tensor in[3] = {call_tensor(c, 0), call_tensor(c, 1), call_tensor(c, 2)};
    return call_set_output(c, 0,
                           call_layer(c, "group_norm", 3, in, "groups=%lld eps=%s",
                                      (long long)call_dim(c, 0, 1), epsilon(c)));
}

/* Before opset 21, scale and bias have one value per group: each is repeated for the channels of its group. */
static sol_tensor per_channel(struct op_call *c, int i, int64_t groups, int64_t channels) {
    sol_tensor x = call_tensor(c, i);
    if (c->im->opset >= 21 || groups == channels || groups < 1) return x;
    struct size each[2] = {size_const(groups), size_const(1)},
                full[2] = {each[0], size_const(channels / groups)}, all = size_const(channels);
    return call_reshape(c, call_expand(c, call_reshape(c, x, 2, each), 2, full), 1, &all);
}

enum sol_status op_group_norm(struct op_call *c) {
    int64_t groups = call_int(c, "num_groups", 0), channels = call_dim(c, 0, 1);
    sol_tensor in[3] = {call_tensor(c, 0), per_channel(c, 1, groups, channels),
                        per_channel(c, 2, groups, channels)};
    return call_set_output(
        c, 0,
        call_layer(c, "group_norm", 3, in, "groups=%lld eps=%s", (long long)groups, epsilon(c)));
}

/* Outputs 1 and 2, for training, are the mean and 1 / standard deviation. */
static enum sol_status set_statistics(struct op_call *c, const char *axes) {
    sol_tensor x = call_tensor(c, 0), eps = call_scalar(c, call_float(c, "epsilon", 1e-5));
    sol_tensor variance = LAYER1(c, "variance", x, "axes=%s keepdim=true", axes);
    TRY(call_set_output(c, 1, LAYER1(c, "mean", x, "axes=%s keepdim=true", axes)));
    return call_set_output(c, 2, LAYER1(c, "rsqrt", LAYER2(c, "add", variance, eps, ""), ""));
}

/* Over all dims from `axis` on. */
enum sol_status op_layer_norm(struct op_call *c) {
    int rank = call_rank(c, 0), axis = (int)call_axis(c, call_int(c, "axis", -1), rank);
    const char *axes = axes_from(c, axis, rank);
    sol_tensor in[3] = {call_tensor(c, 0), call_tensor(c, 1), -1};
    if (call_has(c, 2)) in[2] = call_tensor(c, 2);
    if (c->n_out > 1) TRY(set_statistics(c, axes));
    return call_set_output(
        c, 0,
        call_layer(c, "layer_norm", 2 + call_has(c, 2), in, "axes=%s eps=%s", axes, epsilon(c)));
}

enum sol_status op_rms_norm(struct op_call *c) {
    int rank = call_rank(c, 0), axis = (int)call_axis(c, call_int(c, "axis", -1), rank);
    return call_set_output(c, 0,
                           LAYER2(c, "rms_norm", call_tensor(c, 0), call_tensor(c, 1),
                                  "axes=%s eps=%s", axes_from(c, axis, rank), epsilon(c)));
}

/* x / norm along one axis. If the norm is 0, ONNX defines the result as 0. */
enum sol_status op_lp_norm(struct op_call *c) {
    const int64_t axis = call_axis(c, call_int(c, "axis", -1), call_rank(c, 0)),
                  p = call_int(c, "p", 2);
    if (p != 1 && p != 2) return fail(SOL_EINVAL, "p is %lld", (long long)p);
    sol_tensor x = call_tensor(c, 0), norm = LAYER1(c, "norm", x, "p=%lld axes=%s keepdim=true",
                                                    (long long)p, call_format_ints(c, 1, &axis));
    sol_tensor is_zero = LAYER2(c, "equal", norm, call_scalar(c, 0), "");
    sol_tensor in[3] = {is_zero, call_scalar(c, 1), norm};
    return call_set_output(c, 0, LAYER2(c, "div", x, call_layer(c, "where", 3, in, ""), ""));
}

/* (x - mean) / (standard deviation + 1e-9); the number is ONNX's. */
enum sol_status op_mean_variance(struct op_call *c) {
    int64_t axes[SOL_MAX_RANK] = {0, 2, 3};
    int n = call_attribute(c, "axes") ? call_ints(c, "axes", SOL_MAX_RANK, axes) : 3;
    const char *list = call_format_ints(c, n, axes);
    sol_tensor x = call_tensor(c, 0), mean = LAYER1(c, "mean", x, "axes=%s keepdim=true", list),
               variance = LAYER1(c, "variance", x, "axes=%s keepdim=true", list);
    sol_tensor deviation =
        LAYER2(c, "add", LAYER1(c, "sqrt", variance, ""), call_scalar(c, 1e-9), "");
    return call_set_output(c, 0, LAYER2(c, "div", LAYER2(c, "sub", x, mean, ""), deviation, ""));
}

/* ---- Softmax ---- */

/* 1 at the first largest value along the axis, else 0. */
static sol_tensor hardmax(struct op_call *c, sol_tensor x, int axis) {
    struct size dim[SOL_MAX_RANK], along[SOL_MAX_RANK];
    int rank = call_shape(c, x, dim);
    if (c->im->status || !size_is_const(dim[axis])) {
        call_fail(c, fail(SOL_EUNSUPPORTED, "a dim that is not known"));
        return x;
    }
    for (int d = axis; d < rank; d++) along[d - axis] = d == axis ? dim[d] : size_const(1);
    sol_tensor index = LAYER1(c, "argmax", x, "axis=%d keepdim=true", axis),
               position = call_layer(c, "arange", 0, NULL, "shape=[%lld] dtype=i64",
                                     (long long)size_value(dim[axis]));
    position = call_reshape(c, position, rank - axis, along);
    sol_tensor is_largest = LAYER2(c, "equal", position, index, "");
    return c->im->status ? x : call_cast(c, is_largest, sol_model_dtype(c->im->model, x));
}

/* Softmax, LogSoftmax, Hardmax. Before opset 13, they are over all dims from `axis` on. An input without values, which has no
 * maximum, is its own result. */
enum sol_status op_softmax(struct op_call *c) {
    bool is_old = c->im->opset < 13;
    const char *kind = c->op->layer;
    int rank = call_rank(c, 0),
        axis = (int)call_axis(c, call_int(c, "axis", is_old ? 1 : -1), rank);
    struct size dim[SOL_MAX_RANK], flat[2] = {size_const(1), size_const(1)};
    sol_tensor x = call_tensor(c, 0);
    bool joins = is_old && axis != rank - 1;
    if (call_is_empty(c, 0)) return call_set_output(c, 0, x);
    call_shape(c, x, dim);
    for (int d = 0; d < rank; d++) flat[d >= axis] = size_mul(flat[d >= axis], dim[d]);
    if (joins) x = call_reshape(c, x, 2, flat);
    if (joins) axis = 1;
    x = *kind ? LAYER1(c, kind, x, "axis=%d", axis) : hardmax(c, x, axis);
    return call_set_output(c, 0, joins ? call_reshape(c, x, rank, dim) : x);
}
