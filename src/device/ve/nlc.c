/*
 * The BLAS of NLC, NEC's collection of numeric libraries for vector engines, if the device's compiler can link it: linear layers and matmuls.
 *
 *   dnn/choice.c -> dnn_nlc: refuse, or a plan -> device/far_emit.c: dnn/product_plain.h, nlc.h and nlc_plain.h are the text of a kernel
 *                -> device/link.c: ncc, with -lcblas -lblas_openmp behind the text
 *
 * A call is one product, which it divides among all cores.
 */
#include "device/ve/library.h"
#include "device/ve/ve.h"

#include "dnn/dnn.h"

#define WORDS "-lcblas -lblas_openmp"

EMBED_TEXT(ve_nlc_text, EMBED_FILE("src/device/ve/nlc.h") EMBED_FILE("src/device/ve/nlc_plain.h"));

static struct ve_library library = {.lock = LOCK_INITIALIZER,
                                    .name = "BLAS of NLC",
                                    .file = "libcblas and libblas_openmp",
                                    .words = WORDS,
                                    .text = "void cblas_sgemm();\n"
                                            "void (*const sol_nlc[])() = {cblas_sgemm};\n"};

static const char *probe(bool *available) { return ve_find_library(&library, available); }

/* It is linked only if there is nothing else to refuse. */
static const char *refuse(const struct dnn_problem *p) {
    bool available;
    const char *reason = dnn_plain.refuse(p);
    if (reason) return reason;
    if (p->kind != DNN_LINEAR && p->kind != DNN_MATMUL) return "not a product of matrices";
    if (p->prologue) return "has a prologue";
    reason = probe(&available);
    return available ? NULL : reason;
}

static void make_plan(struct dnn_plan *plan) {
    dnn_plain.plan(plan);
    plan->cost /= VE_LIBRARY_FACTOR;
}

const struct dnn_impl dnn_nlc = {.name = "nlc",
                                 .refuse = refuse,
                                 .plan = make_plan,
                                 .probe = probe,
                                 .by_cost = true,
                                 .text = ve_nlc_text,
                                 .library = WORDS};
