/* Random problems of convolutions and linear layers with their tensors, and a naive loop that computes them: for the tests of module DNN. */
#ifndef TEST_JOB_H
#define TEST_JOB_H

#include "dnn/dnn.h"
#include "random.h"

#define JOB_MAX_CHANNELS 512
#define JOB_MARK 12345.0f /* in memory that a kernel must not write */

/* A problem and the parameters of one call. Gaps are elements between samples; `place` is the
 * alignment. */
struct job {
    struct dnn_problem p;
    int c_map[JOB_MAX_CHANNELS], k_map[JOB_MAX_CHANNELS];
    int64_t batch, x_gap, y_gap, residual_gap;
    bool rounded; /* x and the weight are bf16: rounding the factors changes nothing */
    int place;    /* offset of plain tensors and the weight from an aligned address, in elements */
    bool negated; /* by an epilogue: this detects a region without a call, or with two */
};

/* The job's tensors, and the results of the naive loop. */
struct job_data {
    float *x, *weight, *bias, *residual, *scale, *shift, *y, *again, *packed, *scratch;
    void *memory[12];
    int n_memory;
    double *expected; /* [n][stored k][pixel] */
    double scale_of_y;
    struct dnn_call call;
};

/* Points of a channel of x and of y, and of the window. */
int64_t job_points_in(const struct dnn_problem *p);
int64_t job_points_out(const struct dnn_problem *p);
int job_taps(const struct dnn_problem *p);

/* A random problem and call. */
void job_make(struct random *r, const struct dnn_isa *isa, struct job *j);

/* Fills *d, which is 0: random tensors, with memory for packed weights and scratch memory as the plan says. */
void job_prepare(struct random *r, const struct dnn_plan *plan, struct job *j, struct job_data *d);

/* Packs the weights, in one order of tasks or the other. */
void job_pack(struct random *r, const struct dnn_plan *plan, struct job_data *d);

/* Runs all tasks in ranges of `step`, forwards or backwards. The result must not depend on either. */
void job_run_tasks(const struct dnn_plan *plan, const struct job *j, struct job_data *d, float *y,
                   int64_t step, bool backwards);

/* Sets d->expected and d->scale_of_y by the naive loop. */
void job_expect(const struct job *j, struct job_data *d);

/* Largest error of d->y, relative to scale_of_y; NaN counts as infinite. */
double job_error(const struct job *j, const struct job_data *d);

void job_free(struct job_data *d);

#endif
