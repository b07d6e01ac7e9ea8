/*
 * Where rounding errors are kept small, convolutions add up sums in parts: their errors are less than half of those of whole sums, with
 * every instruction set.
 */
#include "../unit/check.h"
#include "device/cpu/cpu.h"
#include "dnn/list.h"
#include "job.h"

#include <math.h>

/* The error of a 3x3 convolution of many channels, of positive numbers. */
static double add_many(const struct dnn_impl *impl, const struct dnn_isa *isa, bool trained) {
    static struct job job;
    struct random r = random_start(1);
    struct job_data d = {0};
    struct dnn_problem *p = &job.p;
    *p = (struct dnn_problem){.kind = DNN_CONV, .lanes = isa->lanes, .threads = 1, .groups = 1};
    p->c = p->c_model = 1024, p->k = p->k_model = 2 * isa->lanes;
    p->h = p->w = p->oh = p->ow = 4, p->kh = p->kw = 3;
    p->batch_hint = job.batch = p->sh = p->sw = p->dh = p->dw = p->pt = p->pl = 1;
    p->trained = trained;
    struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = *p};
    impl->plan(&plan);
    job_prepare(&r, &plan, &job, &d);
    for (int64_t i = 0; i < p->c * job_points_in(p); i++) d.x[i] = fabsf(d.x[i]);
    for (int64_t i = 0; i < (int64_t)p->k * p->c * 9; i++) d.weight[i] = fabsf(d.weight[i]);
    job_pack(&r, &plan, &d);
    job_expect(&job, &d);
    job_run_tasks(&plan, &job, &d, d.y, 1 << 20, false);
    const double error = job_error(&job, &d);
    job_free(&d);
    return error;
}

static void test_parts(const struct dnn_isa *isa) {
    static const struct dnn_impl *const impls[] = {&dnn_direct, &dnn_winograd4, &dnn_winograd2};
    for (int i = 0; i < COUNT(impls); i++) {
        const double whole = add_many(impls[i], isa, false), parts = add_many(impls[i], isa, true);
        printf("%s %s: error %.2e of a sum, %.2e of a sum in parts\n", impls[i]->name, isa->name,
               whole, parts);
        CHECK(parts < whole / 2);
    }
}

int main(void) {
    for (const struct dnn_isa *isa = dnn_isas; isa->name; isa++)
        if (cpu_has(isa)) test_parts(isa);
        else printf("skipped %s: this CPU lacks it\n", isa->name);
    return check_done();
}
