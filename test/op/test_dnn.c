/*
 * Conformance of the DNN module: every implementation of convolutions and linear layers, with every
 * instruction set, against a naive loop.
 *
 *   random problem -> refuse? -> plan -> pack -> run, twice -> compare
 *
 * The memory around the output is compared, too. Each implementation gets at least N_ACCEPTED problems that
 * it accepts (job.c).
 *
 * Quantized products have a test of their own, test_int8.c.
 *
 * Two more tests. NaN propagates: if all of x is NaN, all of y is NaN. Every call of a vendor's
 * library fails in turn: the result is an error, nothing leaks, and later results are correct.
 */
#include "../unit/check.h"
#include "channels.h"
#include "device/cpu/cpu.h"
#include "dnn/list.h"
#include "dnn/onednn.h"
#include "job.h"
#include "run/program.h"

#include <math.h>

#define N_ACCEPTED 200
#define N_NAN 30
#define N_FAILING 20
#define MAX_TRIES 200000
#define MAX_CALLS 20000 /* more calls and allocations than one run of a library has */
#define MAX_REASONS 32

struct row {
    int accepted, refused;
    const char *reason[MAX_REASONS];
    int count[MAX_REASONS];
    double worst, worst_allowed; /* error and allowed error with the largest ratio */
};

/* Are the gaps between samples unchanged, and have both runs given the same bits? */
static bool is_tidy(const struct job *j, const struct job_data *d) {
    int64_t image = (int64_t)j->p.k * job_points_out(&j->p), stride = image + j->y_gap;
    for (int64_t n = 0; n + 1 < j->batch; n++)
        for (int64_t i = image; i < stride; i++)
            if (d->y[n * stride + i] != JOB_MARK) return false;
    size_t size = j->batch ? (size_t)(j->batch * stride - j->y_gap) * sizeof(float) : 0;
    return !size || !memcmp(d->y, d->again, size);
}

/* The error of a direct sum of n products grows like sqrt(n) (at most 1e-7 * sqrt(n) was measured).
 * Winograd adds the rounding errors of its transforms; F(4,3) has up to about ten times the error of
 * direct. 1e-5 is the limit in docs/numerics.md. Factors that are rounded to bf16 have errors of up to 2^-9 of their values. */
static double find_allowed(const struct dnn_impl *impl, const struct job *j) {
    double n = (double)(j->p.c_model / j->p.groups) * job_taps(&j->p);
    const bool loses_bits = j->p.factors == SOL_BF16 && (!j->rounded || j->p.prologue);
    return 3e-7 * sqrt(n) + 1e-6 + (impl->approximate ? 1e-5 : 0) + (loses_bits ? 0x1p-7 : 0);
}

static void print_job(const struct dnn_impl *impl, const struct dnn_isa *isa, const struct job *j) {
    const struct dnn_problem *p = &j->p;
    printf("  %s %s: batch %d, c %d (model %d), k %d (model %d), groups %d, ", impl->name,
           isa->name, (int)j->batch, p->c, p->c_model, p->k, p->k_model, p->groups);
    printf("image %dx%d -> %dx%d, window %dx%d stride %d,%d pad %d,%d dilation %d,%d,", p->h, p->w,
           p->oh, p->ow, p->kh, p->kw, p->sh, p->sw, p->pt, p->pl, p->dh, p->dw);
    printf("%s%s%s%s%s%s act %d, ", p->x_plain ? " x plain" : "", p->y_plain ? " y plain" : "",
           p->bias ? " bias" : "", p->residual ? " residual" : "",
           p->residual && p->residual_plain ? " (plain)" : "", p->prologue ? " prologue" : "",
           (int)p->act);
    printf("threads %d, gaps %d %d %d, place %d\n", p->threads, (int)j->x_gap, (int)j->y_gap,
           (int)j->residual_gap, j->place);
    if (j->negated) printf("  with an epilogue\n");
}

static void run_job(struct random *r, const struct dnn_plan *plan, struct job *j,
                    struct job_data *d) {
    job_prepare(r, plan, j, d);
    job_pack(r, plan, d);
    job_expect(j, d);
    job_run_tasks(plan, j, d, d->y, 1 << 20, false);
    job_run_tasks(plan, j, d, d->again, random_int(r, 1, 3), true);
}

static void test_job(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j, struct row *row) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    struct job_data d = {0};
    impl->plan(&plan);
    run_job(r, &plan, j, &d);
    double error = job_error(j, &d), allowed = find_allowed(impl, j);
    if (row->worst_allowed == 0 || error / allowed > row->worst / row->worst_allowed) {
        row->worst = error;
        row->worst_allowed = allowed;
    }
    bool ok = CHECK(error <= allowed);
    ok &= CHECK(is_tidy(j, &d));
    ok &= CHECK(!exec_take_failure());
    ok &= CHECK(isfinite(plan.cost) && plan.cost > 0);
    if (!ok) printf("  error %g, allowed %g:\n", error, allowed), print_job(impl, isa, j);
    job_free(&d);
}

/* ---- NaN ---- */

/* Does every window begin inside the image? */
static bool reads_everywhere(const struct dnn_problem *p) {
    if (p->kd && (p->pd > 0 || (p->od - 1) * p->sd >= p->d)) return false;
    return p->pt == 0 && p->pl == 0 && (p->oh - 1) * p->sh < p->h && (p->ow - 1) * p->sw < p->w;
}

static int64_t count_numbers(const struct job *j, const float *y) {
    const struct dnn_problem *p = &j->p;
    int64_t out = job_points_out(p), stride = p->k * out + j->y_gap, n_numbers = 0;
    for (int64_t n = 0; n < j->batch; n++)
        for (int k = 0; k < p->k; k++)
            for (int64_t i = 0; i < out && !(p->k_map && p->k_map[k] < 0); i++)
                n_numbers += !isnan(y[n * stride + locate_pixel(p->lanes, p->y_plain, out, k, i)]);
    return n_numbers;
}

static void test_nan(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    struct job_data d = {0};
    impl->plan(&plan);
    job_prepare(r, &plan, j, &d);
    int64_t image = j->p.c * job_points_in(&j->p);
    for (int64_t i = 0; i < j->batch * (image + j->x_gap) - j->x_gap; i++) d.x[i] = NAN;
    job_pack(r, &plan, &d);
    job_run_tasks(&plan, j, &d, d.y, 1 << 20, false);
    if (!CHECK(count_numbers(j, d.y) == 0)) {
        printf("  %d numbers:\n", (int)count_numbers(j, d.y));
        print_job(impl, isa, j);
    }
    job_free(&d);
}

/* ---- Failing calls of libraries ---- */

/* Refuse, plan, pack and run, while the n-th call or allocation fails. Returns true if there were fewer than n. */
static bool live_once(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                      struct job *j, long *fail_at, long n) {
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = j->p};
    struct job_data d = {0};
    onednn_forget();
    *fail_at = n;
    bool ok = !dnn_refuse(impl, &j->p);
    if (ok) impl->plan(&plan);
    if (ok) job_prepare(r, &plan, j, &d);
    if (ok) job_pack(r, &plan, &d);
    enum sol_status status = exec_take_failure();
    if (ok && !status) job_run_tasks(&plan, j, &d, d.y, 1 << 20, false);
    if (!status) status = exec_take_failure();
    bool failed = *fail_at == 0;
    *fail_at = 0;
    ok = ok && !status;
    CHECK(failed || ok);
    if (ok) job_expect(j, &d);
    if (ok) CHECK(job_error(j, &d) <= find_allowed(impl, j));
    job_free(&d);
    return !failed;
}

static void test_failing(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                         struct job *j, long *n_failed) {
    long *const countdowns[] = {&vendor_fail_at, &mem_fail_at};
    for (int i = 0; i < COUNT(countdowns); i++) {
        long n = 1;
        while (!live_once(r, impl, isa, j, countdowns[i], n) && n < MAX_CALLS) n++;
        CHECK(n < MAX_CALLS);
        *n_failed += n - 1;
    }
}

/* ---- The table ---- */

static void count_reason(struct row *row, const char *reason) {
    int i = 0;
    while (i < MAX_REASONS - 1 && row->reason[i] && strcmp(row->reason[i], reason)) i++;
    row->reason[i] = reason;
    row->count[i]++;
    row->refused++;
}

/* The next random problem that the implementation accepts. */
static bool find_job(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa,
                     struct job *j, struct row *row) {
    for (int i = 0; i < MAX_TRIES; i++) {
        job_make(r, isa, j);
        const char *reason = dnn_refuse(impl, &j->p);
        if (!reason) return true;
        count_reason(row, reason);
    }
    return false;
}

static void test_all_nan(struct random *r, const struct dnn_impl *impl, const struct dnn_isa *isa) {
    static struct job job;
    struct row row = {0};
    for (int n = 0; n < N_NAN && find_job(r, impl, isa, &job, &row);) {
        if (!reads_everywhere(&job.p) || !job.batch) continue;
        test_nan(r, impl, isa, &job);
        n++;
    }
}

static void test_all_failing(struct random *r, const struct dnn_impl *impl,
                             const struct dnn_isa *isa) {
    static struct job job;
    struct row row = {0};
    long n_failed = 0;
    for (int n = 0; n < N_FAILING && find_job(r, impl, isa, &job, &row); n++)
        test_failing(r, impl, isa, &job, &n_failed);
    if (n_failed) printf("           %6ld calls and allocations failed in turn\n", n_failed);
}

/* Tests of their own have matmuls, whose operands have strides of their own, and gradients of weights: test_matmul.c, test_conv_weight.c. */
static bool is_tested_elsewhere(const struct dnn_impl *impl) {
    return !strcmp(impl->name, "matmul") || impl == &dnn_conv_weight ||
           impl == &dnn_conv_weight_grouped || impl == &dnn_winograd_weight;
}

static void test_implementation(const struct dnn_impl *impl, const struct dnn_isa *isa,
                                uint64_t seed) {
    static struct job job;
    struct row row = {0};
    struct random r = random_start(seed);
    bool available = true;
    const char *detail = impl->probe ? impl->probe(&available) : NULL;
    if (!available) {
        printf("%-10s %-8s skipped: %s\n", impl->name, isa->name, detail);
        return;
    }
    while (row.accepted < N_ACCEPTED && find_job(&r, impl, isa, &job, &row)) {
        row.accepted++;
        test_job(&r, impl, isa, &job, &row);
    }
    CHECK(row.accepted == N_ACCEPTED);
    printf("%-10s %-8s accepted %4d, worst error %.1e of allowed %.1e, refused %5d\n", impl->name,
           isa->name, row.accepted, row.worst, row.worst_allowed, row.refused);
    for (int i = 0; i < MAX_REASONS && row.reason[i]; i++)
        printf("           %6d refused: %s\n", row.count[i], row.reason[i]);
    test_all_nan(&r, impl, isa);
    if (impl->probe) test_all_failing(&r, impl, isa);
}

/* Arguments: [seed [implementation]] */
int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    int n_tested = 0;
    printf("seed %llu\n", (unsigned long long)seed);
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++) {
        const bool has = cpu_has(isa);
        if (!has) printf("skipped %s: this CPU lacks it\n", isa->name);
        for (int i = 0; has && dnn_impls[i]; i++)
            if (dnn_impls[i] != &dnn_linear_int8 && !is_tested_elsewhere(dnn_impls[i]) &&
                (argc < 3 || !strcmp(argv[2], dnn_impls[i]->name))) {
                test_implementation(dnn_impls[i], isa, seed);
                n_tested++;
            }
    }
    if (!CHECK(n_tested > 0))
        fprintf(stderr, "no implementation of this test has the name %s\n", argv[2]);
    return check_done();
}
