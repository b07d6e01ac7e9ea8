/*
 * The implementation of far devices: products of plain tensors by a kernel in C, which the device's compiler compiles.
 *
 *   plan/layout.c, plan/anchor.c -> dnn_plain_supports, dnn_plain_takes_conv
 *   dnn_emit -> dnn_plain: a plan -> device/far_emit.c: dnn/product_plain.h, the text of the kernel
 *
 * The weight is read in place. Convolutions of few channels in a group are left to module DFP: there is no product of matrices in them.
 */
#include "dnn/emit.h"

#define LEAST_CHANNELS 4 /* of a group's output */
#define FLOPS_PER_S 1e11

static bool is_disabled(void) { return env_has(ENV_SOL_DISABLE, dnn_plain.name); }

/* Images, of enough channels in a group of y, or of its gradient. */
static bool takes_images(const struct layer *l, const struct tensor *y) {
    return l->in[0]->rank == 4 && ir_group_size(l, y) >= LEAST_CHANNELS;
}

bool dnn_plain_supports(const struct layer *l, int lanes) {
    (void)lanes;
    if (is_disabled() || l->in[0]->dtype != SOL_F32 || l->in[1]->dtype != SOL_F32 ||
        l->out[0]->dtype != SOL_F32)
        return false;
    if (l->kind == LAYER_conv_weight) return takes_images(l, l->in[1]);
    if (l->kind == LAYER_conv) return takes_images(l, l->out[0]);
    return ir_is_linear(l) || l->kind == LAYER_matmul;
}

bool dnn_plain_takes_conv(const struct layer *conv, int lanes) {
    return conv->kind == LAYER_conv && dnn_plain_supports(conv, lanes);
}

static const char *refuse(const struct dnn_problem *p) {
    if (p->transposed || p->turned) return "transposed convolution";
    if (!p->x_plain || !p->y_plain) return "x or y is not plain";
    return NULL;
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    plan->cost = 2.0 * (double)p->batch_hint * p->k * p->oh * p->ow * (p->c / p->groups) * p->kh *
                 p->kw / FLOPS_PER_S;
}

const struct dnn_impl dnn_plain = {.name = "plain", .refuse = refuse, .plan = make_plan};
const struct dnn_impl *const dnn_far_impls[] = {&dnn_plain, NULL};
