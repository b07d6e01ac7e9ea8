/*
 * VEDNN, a library of NEC for vector engines, if the device's compiler can link it: convolutions, gradients of their weights, linear layers.
 *
 *   dnn/choice.c -> dnn_vednn: refuse, or a plan -> device/far_emit.c: dnn/product_plain.h, vednn.h and vednn_plain.h are the text of a kernel
 *                -> device/link.c: ncc, with -lvednn_openmp behind the text
 *
 * It divides the samples among the cores; for the gradient of a weight, the output channels of a group. So a single sample uses one core,
 * while the own kernel always uses all of them.
 */
#include "device/ve/library.h"
#include "device/ve/ve.h"

#include "dnn/dnn.h"

#define LIBRARY "-lvednn_openmp"

EMBED_TEXT(ve_vednn_text,
           EMBED_FILE("src/device/ve/vednn.h") EMBED_FILE("src/device/ve/vednn_plain.h"));

static struct ve_library library = {
    .lock = LOCK_INITIALIZER,
    .name = "VEDNN",
    .file = "libvednn_openmp",
    .words = LIBRARY,
    .text =
        "int vednnConvolutionForward(), vednnConvolutionBackwardFilter(), vednnLinearBackwardData();\n"
        "int (*const sol_vednn[])() = {vednnConvolutionForward, vednnConvolutionBackwardFilter,\n"
        "                              vednnLinearBackwardData};\n"};

static const char *probe(bool *available) { return ve_find_library(&library, available); }

/* ---- Plans ---- */

/* VEDNN takes the padding in front for that of both sides, and chooses its kernels by that. */
static bool pads_alike(int x, int y, int window, int stride, int dilation, int pad) {
    const int64_t rest = (int64_t)x + 2 * (int64_t)pad - (int64_t)(window - 1) * dilation - 1;
    return rest >= 0 && rest / stride + 1 == y;
}

static const char *refuse_images(const struct dnn_problem *p) {
    if (p->open) return "sizes that a call decides";
    if (!pads_alike(p->h, p->oh, p->kh, p->sh, p->dh, p->pt) ||
        !pads_alike(p->w, p->ow, p->kw, p->sw, p->dw, p->pl))
        return "padding that differs between opposite sides";
    return NULL;
}

/* It is linked only if there is nothing else to refuse. */
static const char *refuse(const struct dnn_problem *p) {
    bool available;
    const char *reason = dnn_plain.refuse(p);
    if (reason) return reason;
    reason = p->kind == DNN_MATMUL   ? "a product of two computed tensors"
             : p->prologue           ? "has a prologue"
             : p->residual           ? "has a residual"
             : p->kind == DNN_LINEAR ? NULL
                                     : refuse_images(p);
    if (reason) return reason;
    reason = probe(&available);
    return available ? NULL : reason;
}

static void make_plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const int64_t n = p->kind == DNN_CONV_WEIGHT ? p->k / p->groups : p->batch_hint;
    const int64_t rounds = ceil_div(n, p->threads);
    dnn_plain.plan(plan);
    plan->cost *= (double)(p->threads * rounds) / (VE_LIBRARY_FACTOR * (double)max_i64(n, 1));
}

const struct dnn_impl dnn_vednn = {.name = "vednn",
                                   .refuse = refuse,
                                   .plan = make_plan,
                                   .probe = probe,
                                   .by_cost = true,
                                   .text = ve_vednn_text,
                                   .library = LIBRARY};
