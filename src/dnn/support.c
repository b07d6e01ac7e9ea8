/*
 * What module DNN computes: asked before layouts are chosen and layers are fused.
 *
 *   plan/layout.c, plan/anchor.c, pass/decompose.c -> dnn_supports, dnn_writes_plain, dnn_computes
 */
#include "dnn/depthwise.h"
#include "dnn/direct.h"
#include "dnn/emit.h"
#include "dnn/grouped.h"
#include "dnn/list.h"
#include "dnn/problem.h"

/* Products of all output channels' lanes per point of x, or of its window, in blocks of `lanes`. */
static int64_t count_lanes(int64_t channels, int64_t positions, int lanes) {
    return round_up(channels, lanes) * positions;
}

/* Do whole groups, of as many channels out as in, fit into one block? */
static bool share_block(int64_t in, int64_t out, int lanes) { return in == out && lanes % in == 0; }

/* A transposed convolution with groups in one block. */
static bool supports_spread(const struct layer *l, int lanes) {
    const int64_t in = ir_group_size(l, l->in[0]), out = ir_group_size(l, l->out[0]);
    const int64_t taps = size_value(l->in[1]->dim[2]) * size_value(l->in[1]->dim[3]);
    return share_block(in, out, lanes) && in < lanes && taps <= GROUPED_MAX_TAPS &&
           !env_has(ENV_SOL_DISABLE, dnn_grouped.name);
}

/* Is a transposed convolution best computed as it is? Else pass/decompose.c replaces it by a convolution whose channels are the phases of
 * all output channels. That computes more positions of the window if the stride does not divide it, and must interleave its
 * results, but fills the lanes if there are few channels. Without a stride it is a usual convolution with a turned weight. */
static bool supports_transposed(const struct layer *l, int lanes) {
    const struct attr *a = &l->attr;
    const int64_t phases = a->stride[0] * a->stride[1], k = size_value(l->out[0]->dim[1]);
    int64_t window = 1, positions = 1;
    if (phases == 1) return dnn_problem_is_turned(l);
    if (a->groups > 1) return supports_spread(l, lanes);
    if (phases > DIRECT_MAX_PHASES) return false;
    for (int i = 0; i < 2; i++) {
        const int64_t n = size_value(l->in[1]->dim[2 + i]);
        window *= n;
        positions *= ceil_div((n - 1) * a->dilation[i] + 1, a->stride[i]);
    }
    return count_lanes(k, window, lanes) <= 2 * count_lanes(k * phases, positions, lanes);
}

/* Do the channels of a group fill at least half of their blocks? Layouts pad each group to whole blocks. */
static bool fills_blocks(int64_t n, int lanes) { return 2 * n >= round_up(n, lanes); }

/* Is it a convolution whose groups have blocks of their own? */
static bool has_blocks(const struct layer *conv, int lanes) {
    const int64_t in = ir_group_size(conv, conv->in[0]),
                  out = ir_group_size(conv, dnn_problem_y(conv));
    return !share_block(in, out, lanes) && fills_blocks(in, lanes) && fills_blocks(out, lanes);
}

/* Images whose groups have blocks of their own, or of which full groups are in one block. */
static bool supports_weight(const struct layer *l, int lanes) {
    const int64_t in = ir_group_size(l, l->in[0]), out = ir_group_size(l, l->in[1]);
    if (l->in[0]->rank != 4) return false;
    if (l->attr.groups == 1 || has_blocks(l, lanes))
        return !env_has(ENV_SOL_DISABLE, dnn_conv_weight.name);
    return share_block(in, out, lanes) && in < lanes &&
           !env_has(ENV_SOL_DISABLE, dnn_conv_weight_grouped.name);
}

/* With groups: each group has blocks of its own (direct), or full groups fit into one block (grouped). */
bool dnn_supports(const struct layer *conv, int lanes) {
    if (conv->in[0]->dtype != SOL_F32 && !ir_is_quantized(conv)) return false;
    if (ir_is_linear(conv)) return true;
    if (conv->kind == LAYER_matmul) return !env_has(ENV_SOL_DISABLE, dnn_matmul.name);
    if (conv->kind == LAYER_conv_transpose) return supports_transposed(conv, lanes);
    if (conv->kind == LAYER_conv_weight) return supports_weight(conv, lanes);
    return conv->attr.groups == 1 || has_blocks(conv, lanes) ||
           share_block(ir_group_size(conv, conv->in[0]), ir_group_size(conv, conv->out[0]), lanes);
}

/* Without blocks, lanes are pixels of a row, which should fill a vector. x must be plain, too. Volumes have no blocks at all. */
static bool is_plain_depthwise(const struct layer *conv, int lanes) {
    const struct tensor *x = conv->in[0], *y = conv->out[0];
    const struct size groups = size_const(conv->attr.groups), width = y->dim[y->rank - 1];
    const bool is_wide = !size_is_const(width) || size_value(width) >= lanes;
    return size_equal(groups, x->dim[1]) && size_equal(groups, y->dim[1]) &&
           (x->rank == 5 || (is_wide && ir_is_input(x))) &&
           conv->attr.stride[1] <= DEPTHWISE_MAX_STRIDE &&
           !env_has(ENV_SOL_DISABLE, dnn_depthwise.name);
}

/* Winograd needs blocks, and takes less time than a copy of y, unless there are few channels. */
bool dnn_writes_plain(const struct layer *conv, int lanes) {
    const struct attr *a = &conv->attr;
    const struct tensor *x = conv->in[0], *w = conv->in[1];
    if (conv->kind != LAYER_conv || x->dtype != SOL_F32) return false;
    if (x->rank == 5 && !size_is_const(x->dim[2])) return false;
    if (is_plain_depthwise(conv, lanes)) return true;
    const bool is_square =
        a->groups == 1 && size_is(w->dim[x->rank - 2], 3) && size_is(w->dim[x->rank - 1], 3);
    const int64_t channels = size_value(w->dim[1]) * (x->rank == 5 ? size_value(w->dim[2]) : 1);
    return !env_has(ENV_SOL_DISABLE, dnn_direct.name) &&
           (a->groups == 1 || has_blocks(conv, lanes)) &&
           (!is_square || a->stride[0] > 1 || a->stride[1] > 1 || channels < lanes);
}

bool dnn_computes(const struct layer *l, int lanes) {
    if (l->kind == LAYER_attention) return dnn_computes_attention(l);
    if (!ir_is_conv(l) || !ir_is_constant(l->in[1]) || ir_is_constant(l->in[0])) return false;
    return l->kind == LAYER_conv_transpose ? dnn_supports(l, lanes) : dnn_writes_plain(l, lanes);
}
