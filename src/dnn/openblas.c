/*
 * Linear layers by OpenBLAS, if it is installed.
 *
 *   task = up to COLUMNS outputs of all rows of x  ->  gemm or gemv  ->  plan->kernels->finish  ->  epilogue
 *
 * The weight is read in place; a task uses consecutive rows of it. The division into tasks does not depend on the number of
 * threads, so results do not either.
 *
 * Invariant: the library computes on the thread that calls it. Without OpenMP its number of threads is a setting of the
 * process: SOL sets it to 1 on opening. A library that other code of this process uses with more threads is refused.
 */
#include "dnn/list.h"
#include "dnn/vendor.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 256 /* most outputs per task: enough for an efficient gemm */
#define MIN_BYTES (256 << 10) /* of weights per task (within COLUMNS), to make the cost of scheduling it small */

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the CBLAS interface */
typedef void sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                   const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void sgemv(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                   const float *x, int step_x, float beta, float *y, int step_y);

static const char *const sonames[] = {"libopenblas.so.0", "libopenblas.so", "libscipy_openblas.so",
                                      NULL};
static struct {
    struct vendor vendor;
    sgemm *gemm;
    sgemv *gemv;
    int max_callers; /* most threads that may call at the same time: with more the library ends the process */
} library = {.vendor = {.path = ENV_SOL_OPENBLAS, .sonames = sonames}};

/* SciPy's builds prefix their symbols. Its builds for 64-bit integers use other names still, and are not found. */
static void *find_symbol(const char *name) {
    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    void *symbol = vendor_symbol(&library.vendor, name);
    return symbol ? symbol : vendor_symbol(&library.vendor, prefixed);
}

/* Parses "OpenBLAS 0.3.29 ... MAX_THREADS=64"; the library has no other function that returns this number. */
static bool read_config(void) {
    char *(*get_config)(void);
    *(void **)&get_config = find_symbol("openblas_get_config");
    const char *config = get_config ? get_config() : "";
    const char *max = strstr(config, "MAX_THREADS=");
    library.max_callers = max ? atoi(max + strlen("MAX_THREADS=")) : 1;
    if (strstr(config, "USE64BITINT"))
        return vendor_refuse(&library.vendor, "cannot be used: built for 64-bit integers");
    snprintf(library.vendor.detail, sizeof library.vendor.detail, "%s",
             *config ? config : "OpenBLAS");
    return true;
}

static bool take_threads(void) {
    int (*get_threads)(void);
    void (*set_threads)(int);
    *(void **)&get_threads = find_symbol("openblas_get_num_threads");
    *(void **)&set_threads = find_symbol("openblas_set_num_threads");
    if (!get_threads || !set_threads)
        return vendor_refuse(&library.vendor, "cannot be used: its threads cannot be told");
    if (get_threads() == 1 || library.vendor.omp_set_num_threads) return true;
    if (library.vendor.was_there)
        return vendor_refuse(&library.vendor,
                             "cannot be used: this process already uses it with %d threads",
                             get_threads());
    set_threads(1);
    return true;
}

static void open_library(void) {
    if (!vendor_open(&library.vendor)) return;
    *(void **)&library.gemm = find_symbol("cblas_sgemm");
    *(void **)&library.gemv = find_symbol("cblas_sgemv");
    if (!library.gemm || !library.gemv)
        vendor_refuse(&library.vendor, "cannot be used: it lacks cblas_sgemm or cblas_sgemv");
    else if (read_config()) take_threads();
}

static bool is_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    return library.vendor.handle != NULL;
}

static const char *refuse(const struct dnn_problem *p) {
    const char *reason = dnn_refuse_linear(p);
    if (reason) return reason;
    if (!is_open()) return library.vendor.detail;
    return p->threads > library.max_callers ? "more threads than the library was built for" : NULL;
}

/*
 * Cost model, as product.c's, measured by bench/libraries.c (0.3.34). For several rows the library copies the weights at every
 * call (copied_bytes_per_s).
 */
static const double multiply_efficiency = 0.75;
static const double core_bytes_per_s = 42e9, copied_bytes_per_s = 15e9, memory_bytes_per_s = 56e9;

static void plan(struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    const double threads = p->threads, batch = (double)max_i64(1, p->batch_hint);
    const double bytes = 4.0 * p->c * p->k, flops = 2 * batch * p->c * p->k;
    const int64_t min = ceil_div(MIN_BYTES, (int64_t)p->c * 4);
    plan->param[0] = min_i64(COLUMNS, round_up(min, 16));
    const double bytes_per_s = batch > 1 ? copied_bytes_per_s : core_bytes_per_s;
    plan->cost = bytes / fmin(threads * bytes_per_s, memory_bytes_per_s) +
                 flops / (multiply_efficiency * dnn_flops_per_s(plan->kernels) * threads);
}

static int64_t n_tasks(const struct dnn_plan *plan, int64_t batch) {
    return batch ? ceil_div(plan->problem.k, plan->param[0]) : 0;
}

/* y[:, k0 .. k0 + n) = x * weight[k0 .. k0 + n)^T. For a single row gemv is faster than gemm. */
static void multiply(const struct dnn_problem *p, const struct dnn_call *call, int64_t k0, int n) {
    const float *weight = call->weight + k0 * p->c;
    float *y = call->y + k0;
    if (call->batch == 1)
        library.gemv(ROW_MAJOR, NO_TRANS, n, p->c, 1, weight, p->c, call->x, 1, 0, y, 1);
    else
        library.gemm(ROW_MAJOR, NO_TRANS, TRANS, (int)call->batch, n, p->c, 1, call->x, p->c,
                     weight, p->c, 0, y, p->k);
}

static void run(const struct dnn_plan *plan, const struct dnn_call *call, void *scratch,
                int64_t begin, int64_t end) {
    (void)scratch;
    const struct dnn_problem *p = &plan->problem;
    int before = vendor_enter(&library.vendor);
    for (int64_t task = begin; task < end; task++) {
        const int64_t k0 = task * plan->param[0], n = min_i64(plan->param[0], p->k - k0);
        multiply(p, call, k0, (int)n);
        for (int64_t row = 0; row < call->batch; row++) {
            const int64_t at = row * p->k + k0;
            plan->kernels->finish(p, call->y + at, call->bias ? call->bias + k0 : NULL,
                                  p->residual ? call->residual + at : NULL, call->y + at, n);
            if (call->epilogue) call->epilogue(call->epilogue_user, row, 0, k0, (int)n);
        }
    }
    vendor_leave(&library.vendor, before);
}

static const char *probe(bool *available) {
    *available = is_open();
    return library.vendor.detail;
}

const struct dnn_impl dnn_openblas = {.name = "openblas",
                                      .refuse = refuse,
                                      .plan = plan,
                                      .n_tasks = n_tasks,
                                      .run = run,
                                      .probe = probe};
