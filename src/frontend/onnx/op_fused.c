/*
 * Operators of the domain com.microsoft that ONNX Runtime's optimizers write in place of several of ONNX's: a product with its
 * activation, parts of transformers.
 */
#include "import.h"

#include <math.h>
#include <string.h>

/* The number `i` of an activation's parameters: of the list activation_params, or an attribute of its own. */
static double parameter(struct op_call *c, int i, double default_value) {
    static const char *const names[] = {"activation_alpha", "activation_beta"};
    const struct onnx_attribute *list = call_typed(c, "activation_params", ONNX_FLOATS);
    if (list && i < list->floats.n) return (double)((const float *)list->floats.at)[i];
    return call_float(c, names[i], default_value);
}

static sol_tensor activate(struct op_call *c, sol_tensor y) {
    static const char *const plain[][2] = {
        {"Relu", "relu"}, {"Tanh", "tanh"}, {"Sigmoid", "sigmoid"}};
    const char *name = call_string(c, "activation");
    if (!*name) return y;
    for (int i = 0; i < COUNT(plain); i++)
        if (!strcmp(plain[i][0], name)) return LAYER1(c, plain[i][1], y, "");
    if (!strcmp(name, "LeakyRelu"))
        return LAYER1(c, "leaky_relu", y, "alpha=%s", call_format_double(c, parameter(c, 0, 0.01)));
    if (!strcmp(name, "Clip"))
        return call_clamp(c, y, parameter(c, 0, -INFINITY), parameter(c, 1, INFINITY));
    if (!strcmp(name, "HardSigmoid")) {
        y = LAYER2(c, "mul", y, call_scalar(c, parameter(c, 0, 0.2)), "");
        return call_clamp(c, LAYER2(c, "add", y, call_scalar(c, parameter(c, 1, 0.5)), ""), 0, 1);
    }
    call_fail(c, fail(SOL_EUNSUPPORTED, "activation \"%.32s\"", name));
    return y;
}

/* FusedConv, FusedGemm. Input 3 of FusedConv is added before the activation. */
enum sol_status op_fused_product(struct op_call *c) {
    sol_tensor y = call_operator(c, c->op->layer, c->n_in < 3 ? c->n_in : 3, c->in);
    if (call_has(c, 3)) y = LAYER2(c, "add", y, call_tensor(c, 3), "");
    return call_set_output(c, 0, activate(c, y));
}

/* Swaps the last two dims of input `i`, if the attribute says so. */
static sol_tensor turn(struct op_call *c, int i, const char *attribute) {
    int64_t axes[SOL_MAX_RANK];
    const int rank = call_rank(c, i);
    sol_tensor x = call_tensor(c, i);
    if (rank < 2 || !call_int(c, attribute, 0)) return x;
    for (int d = 0; d < rank; d++) axes[d] = d;
    axes[rank - 1] = rank - 2;
    axes[rank - 2] = rank - 1;
    return call_permute(c, x, rank, axes);
}

/* alpha * A * B */
enum sol_status op_fused_matmul(struct op_call *c) {
    if (call_int(c, "transBatchA", 0) || call_int(c, "transBatchB", 0))
        return fail(SOL_EUNSUPPORTED, "transBatchA and transBatchB");
    struct import_value *in[2] = {c->in[0], c->in[1]};
    if (call_int(c, "transA", 0)) in[0] = call_value(c, turn(c, 0, "transA"));
    if (call_int(c, "transB", 0)) in[1] = call_value(c, turn(c, 1, "transB"));
    const double alpha = call_float(c, "alpha", 1);
    sol_tensor y = call_operator(c, "MatMul", 2, in);
    return call_set_output(c, 0, alpha == 1 ? y : LAYER2(c, "mul", y, call_scalar(c, alpha), ""));
}

/* Gelu, BiasGelu, FastGelu, each with an optional bias */
enum sol_status op_biased(struct op_call *c) {
    sol_tensor x = call_tensor(c, 0);
    if (call_has(c, 1)) x = LAYER2(c, "add", x, call_tensor(c, 1), "");
    return call_set_output(c, 0, LAYER1(c, c->op->layer, x, ""));
}

/* x * sigmoid(alpha * x) */
enum sol_status op_quick_gelu(struct op_call *c) {
    sol_tensor x = call_tensor(c, 0), alpha = call_scalar(c, call_float(c, "alpha", 1.702));
    return call_set_output(
        c, 0, LAYER2(c, "mul", x, LAYER1(c, "sigmoid", LAYER2(c, "mul", x, alpha, ""), ""), ""));
}

/* ---- Norms ---- */

/* Over the last dim, with the weight at input `i` and the bias after it, if `has_bias`. */
static sol_tensor norm(struct op_call *c, sol_tensor x, const char *kind, int i, bool has_bias) {
    sol_tensor in[3] = {x, call_tensor(c, i), -1};
    if (has_bias) in[2] = call_tensor(c, i + 1);
    return call_layer(c, kind, 2 + has_bias, in, "axes=[-1] eps=%s",
                      call_format_double(c, call_float(c, "epsilon", 1e-12)));
}

/* The norm of x + skip + bias; output 3 is this sum. SkipSimplifiedLayerNormalization has no bias of the norm. */
enum sol_status op_skip_norm(struct op_call *c) {
    const bool is_full = !strcmp(c->op->layer, "layer_norm");
    const int bias = is_full ? 4 : 3;
    sol_tensor x = LAYER2(c, "add", call_tensor(c, 0), call_tensor(c, 1), "");
    if (call_has(c, bias)) x = LAYER2(c, "add", x, call_tensor(c, bias), "");
    TRY(call_set_output(c, 3, x));
    return call_set_output(c, 0, norm(c, x, c->op->layer, 2, is_full && call_has(c, 3)));
}

/* Rows of the table at input `i`, by the indices `at`. */
static sol_tensor rows_of(struct op_call *c, int i, struct import_value *at) {
    return call_operator(c, "Gather", 2, (struct import_value *[]){c->in[i], at});
}

/* Output 1 of EmbedLayerNormalization: how many places of each sequence the mask has, as i32; without a mask 0. */
static sol_tensor count_places(struct op_call *c) {
    if (!call_has(c, 7))
        return LAYER1(c, "reduce_max",
                      LAYER2(c, "mul", call_cast(c, call_tensor(c, 0), SOL_I32),
                             call_scalar_of(c, 0, SOL_I32), ""),
                      "axes=[1]");
    return LAYER1(c, "sum", call_cast(c, call_tensor(c, 7), SOL_I32), "axes=[1]");
}

/* Inputs: ids [batch, places], segments or none; tables of words, places, segments or none; weight and bias of the norm; a mask,
 * positions or none. */
enum sol_status op_embed_norm(struct op_call *c) {
    static const int needed[] = {2, 3, 5, 6};
    for (int i = 0; i < COUNT(needed); i++)
        if (!call_has(c, needed[i])) return fail(SOL_EINVAL, "input %d is missing", needed[i]);
    if (call_rank(c, 0) != 2) return fail(SOL_EINVAL, "ids of rank %d", call_rank(c, 0));
    if (call_has(c, 1) != call_has(c, 4))
        return fail(SOL_EINVAL, "segments and their table come together");
    if (call_int(c, "mask_index_type", 0) && call_int(c, "mask_index_type", 0) != 1)
        return fail(SOL_EUNSUPPORTED, "mask_index_type");
    sol_tensor x = rows_of(c, 2, c->in[0]);
    sol_tensor places = call_has(c, 8) ? rows_of(c, 3, c->in[8])
                                       : LAYER2(c, "gather", call_tensor(c, 3),
                                                call_arange(c, c->in[0]->dim[1], 1, 0), "axis=0");
    x = LAYER2(c, "add", x, places, "");
    if (call_has(c, 1)) x = LAYER2(c, "add", x, rows_of(c, 4, c->in[1]), "");
    if (c->n_out > 1 && c->out[1]) TRY(call_set_output(c, 1, count_places(c)));
    TRY(call_set_output(c, 2, x));
    return call_set_output(c, 0, norm(c, x, "layer_norm", 5, true));
}

/* ---- Attention ---- */

/* [batch, places, heads * size] to [batch, heads, places, size] */
static sol_tensor split_heads(struct op_call *c, sol_tensor x, int64_t heads) {
    struct size dim[SOL_MAX_RANK];
    if (call_shape(c, x, dim) != 3 || !size_is_const(dim[2]) || heads < 1 ||
        size_value(dim[2]) % heads) {
        call_fail(c, fail(SOL_EINVAL, "num_heads %lld does not fit", (long long)heads));
        return x;
    }
    dim[3] = size_const(size_value(dim[2]) / heads);
    dim[2] = size_const(heads);
    return call_permute(c, call_reshape(c, x, 4, dim), 4, (int64_t[]){0, 2, 1, 3});
}

static sol_tensor join_heads(struct op_call *c, sol_tensor x) {
    struct size dim[SOL_MAX_RANK];
    x = call_permute(c, x, 4, (int64_t[]){0, 2, 1, 3});
    if (call_shape(c, x, dim) != 4) return x;
    dim[2] = size_mul(dim[2], dim[3]);
    return call_reshape(c, x, 3, dim);
}

/* The mask at input `i` as floats that are added to scores [batch, heads, rows, places]: 0, or mask_filter_value for a place that is
 * hidden. It has a length per sequence, or 0 for each place, or row and place, that is hidden. */
static sol_tensor read_mask(struct op_call *c, int i, struct size places) {
    struct size dim[SOL_MAX_RANK], one = size_const(1);
    const int rank = call_rank(c, i);
    sol_tensor mask = call_tensor(c, i);
    if (call_shape(c, mask, dim) < 1 || rank > 3) {
        call_fail(c, fail(SOL_EUNSUPPORTED, "a mask of rank %d", rank));
        return mask;
    }
    if (rank == 1 && !size_equal(dim[0], c->in[0]->dim[0]))
        call_fail(c, fail(SOL_EUNSUPPORTED, "a mask with starts and ends"));
    mask = call_cast(c, mask, SOL_I64);
    if (rank == 1) {
        mask = call_reshape(c, mask, 2, (struct size[]){dim[0], one});
        mask = LAYER2(c, "less", call_arange(c, places, 1, 0), mask, "");
        dim[1] = places;
    }
    mask = call_cast(c, mask, SOL_BOOL);
    mask = call_reshape(
        c, mask, 4, (struct size[]){dim[0], one, rank == 3 ? dim[1] : one, dim[rank == 3 ? 2 : 1]});
    return call_where(c, mask, call_scalar(c, 0),
                      call_scalar(c, call_float(c, "mask_filter_value", -10000)));
}

/* in: q, k, v [batch, places, heads * size], then inputs of the node (0: none): a mask, a bias of the scores. */
static enum sol_status attend(struct op_call *c, const sol_tensor qkv[3], int mask, int bias) {
    const int64_t heads = call_int(c, "num_heads", 0);
    struct size dim[SOL_MAX_RANK];
    sol_tensor in[4] = {-1, -1, -1, -1};
    for (int i = 0; i < 3; i++) in[i] = split_heads(c, qkv[i], heads);
    TRY(c->im->status);
    call_shape(c, in[1], dim);
    if (call_has(c, mask)) in[3] = read_mask(c, mask, dim[2]);
    if (call_has(c, bias)) {
        sol_tensor more = call_tensor(c, bias);
        in[3] = in[3] < 0 ? more : LAYER2(c, "add", in[3], more, "");
    }
    double scale = call_float(c, "scale", 0);
    if (scale == 0) scale = 1 / sqrt((double)size_value(dim[3]));
    return call_set_output(
        c, 0,
        join_heads(c, call_layer(c, "attention", 3 + (in[3] >= 0), in, "scale=%s causal=%s",
                                 call_format_double(c, scale),
                                 call_int(c, "unidirectional", 0) ? "true" : "false")));
}

/* q, k and v are parts of input * weight + bias; inputs 3 and 5 are a mask and a bias of the scores. */
enum sol_status op_packed_attention(struct op_call *c) {
    int64_t width[3] = {0}, at = 0;
    sol_tensor part[3];
    if (call_has(c, 4) || call_has(c, 6)) return fail(SOL_EUNSUPPORTED, "a cache");
    if (call_int(c, "do_rotary", 0)) return fail(SOL_EUNSUPPORTED, "do_rotary");
    if (call_rank(c, 0) != 3 || call_rank(c, 1) != 2)
        return fail(SOL_EINVAL, "ranks %d and %d", call_rank(c, 0), call_rank(c, 1));
    const int64_t all = call_dim(c, 1, 1);
    if (call_ints(c, "qkv_hidden_sizes", 3, width) != 3)
        for (int i = 0; i < 3; i++) width[i] = all / 3;
    if (width[0] < 1 || width[1] != width[0] || width[2] < 1 || width[2] > all || width[0] > all ||
        2 * width[0] + width[2] != all)
        return fail(SOL_EINVAL, "qkv_hidden_sizes do not fit %lld columns", (long long)all);
    sol_tensor x = call_operator(c, "MatMul", 2, c->in);
    if (call_has(c, 2)) x = LAYER2(c, "add", x, call_tensor(c, 2), "");
    for (int i = 0; i < 3; at += width[i++])
        part[i] = LAYER1(c, "slice", x, "axis=2 start=%lld shape=[%lld]", (long long)at,
                         (long long)width[i]);
    return attend(c, part, 3, 5);
}

/* Input `i` plus its part, from `at` on, of the bias for q, k and v. */
static sol_tensor add_part(struct op_call *c, int i, int64_t at) {
    sol_tensor x = call_tensor(c, i);
    if (!call_has(c, 3)) return x;
    return LAYER2(c, "add", x,
                  LAYER1(c, "slice", call_tensor(c, 3), "axis=0 start=%lld shape=[%lld]",
                         (long long)at, (long long)call_dim(c, i, 2)),
                  "");
}

/* Inputs: q, k, v, the bias of all three, a mask, a bias of the scores. */
enum sol_status op_multi_head_attention(struct op_call *c) {
    for (int i = 0; i < 3; i++)
        if (!call_has(c, i) || call_rank(c, i) != 3)
            return fail(SOL_EUNSUPPORTED, "packed inputs, or a cache");
    if (c->n_in > 6) return fail(SOL_EUNSUPPORTED, "a cache");
    const int64_t width = call_dim(c, 0, 2);
    const sol_tensor part[3] = {add_part(c, 0, 0), add_part(c, 1, width),
                                add_part(c, 2, width + call_dim(c, 1, 2))};
    return attend(c, part, 4, 5);
}
