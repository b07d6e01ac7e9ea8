/*
 * Linear layers by OpenBLAS, when the machine has it: opened at run time, never linked.
 *
 * The library is told to use one thread; SOL's pool divides the rows of the weight instead. The division does not depend on
 * the number of threads, and so neither do the results.
 */
#include "dnn/dnn.h"

#include <dlfcn.h>
#include <pthread.h>

#define COLUMNS 256 /* of y per task: enough for a gemm to be efficient, enough tasks for many threads */

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the CBLAS interface */
typedef void sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);

static struct {
    pthread_once_t once;
    sgemm *gemm;
} library = {.once = PTHREAD_ONCE_INIT};

static void *find_symbol(void *handle, const char *name, const char *prefixed) {
    void *symbol = dlsym(handle, name);
    return symbol ? symbol : dlsym(handle, prefixed);
}

/* The handle stays open for the life of the process: programs may be running in it. */
static void open_library(void) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so",
                                        "libscipy_openblas.so"};
    void *handle = NULL;
    for (int i = 0; i < COUNT(names) && !handle; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    void (*set_threads)(int);
    *(void **)&set_threads =
        find_symbol(handle, "openblas_set_num_threads", "scipy_openblas_set_num_threads");
    *(void **)&library.gemm = find_symbol(handle, "cblas_sgemm", "scipy_cblas_sgemm");
    if (library.gemm && set_threads) set_threads(1);
}

static const char *refuse(const struct dnn_problem *p) {
    if (p->kind != DNN_LINEAR) return "not a linear layer";
    pthread_once(&library.once, open_library);
    return library.gemm ? NULL : "libopenblas.so.0 cannot be opened";
}

/* About 80% of peak, and the weights once from memory. */
static void plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    double peak = 1e9;
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        if (isa->kernels == plan->kernels) peak = isa->flops_per_cycle * 3e9;
    double flops = 2.0 * (double)p->batch_hint * p->c * p->k, bytes = 4.0 * p->c * p->k;
    double compute = flops / (0.8 * peak * p->threads), memory = bytes / 20e9;
    plan->cost = compute > memory ? compute : memory;
}

static int64_t n_pack_tasks(const struct dnn_plan *plan) {
    (void)plan;
    return 0;
}
static void pack(const struct dnn_plan *plan, const float *weight, const float *scale_k,
                 float *packed, int64_t begin, int64_t end) {
    (void)plan, (void)weight, (void)scale_k, (void)packed, (void)begin, (void)end;
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch ? ceil_div(plan->problem.k, COLUMNS) : 0;
}

/* Comparisons are false for NaN, so NaN passes through, as in PyTorch. */
static float activate(const struct dnn_problem *p, float v) {
    if (p->act == DNN_ACT_NONE) return v;
    float low = p->act == DNN_ACT_RELU ? 0 : p->act_min,
          high = p->act == DNN_ACT_RELU ? v : p->act_max;
    return v < low ? low : v > high ? high : v;
}

static void finish_row(const struct dnn_problem *p, const struct dnn_call *call, int64_t row,
                       int64_t k0, int64_t k1) {
    float *y = call->y + row * p->k;
    const float *residual = call->residual ? call->residual + row * p->k : NULL;
    for (int64_t k = k0; k < k1; k++) {
        float v = y[k] + (call->bias ? call->bias[k] : 0);
        y[k] = activate(p, residual ? v + residual[k] : v);
    }
    if (call->epilogue) call->epilogue(call->epilogue_user, y + k0, row, 0, k0, (int)(k1 - k0));
}

static void run(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                int64_t begin, int64_t end) {
    (void)scratch;
    const struct dnn_problem *p = &plan->problem;
    for (int64_t task = begin; task < end; task++) {
        int64_t k0 = task * COLUMNS, k1 = min_i64(k0 + COLUMNS, p->k);
        library.gemm(ROW_MAJOR, NO_TRANS, TRANS, (int)call->batch, (int)(k1 - k0), p->c, 1, call->x,
                     p->c, call->weight + k0 * p->c, p->c, 0, call->y + k0, p->k);
        for (int64_t row = 0; row < call->batch; row++) finish_row(p, call, row, k0, k1);
    }
}

const struct dnn_impl dnn_openblas = {.name = "openblas",
                                      .refuse = refuse,
                                      .plan = plan,
                                      .n_pack_tasks = n_pack_tasks,
                                      .pack = pack,
                                      .n_tasks = n_tasks,
                                      .run = run};
