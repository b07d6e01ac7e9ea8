/* From a DFP cluster to a step of a program; what all devices that run generated C have in common. */
#ifndef DFP_STEP_H
#define DFP_STEP_H

#include "dfp/dfp.h"
#include "plan/build.h"

/* A kernel as parts of a step: what it is called with, and its text, which a device may compile. */
struct dfp_parts {
    struct kernel *kernel; /* in the program; interpreted as long as nobody sets `compiled` */
    const char *text, *comment;
    int n_ptr, n_arg;
    struct buffer_ref *ptr;
    struct size *arg; /* room for one more */
    struct size tasks;
    size_t scratch_size; /* bytes per thread */
    double flops_per_task;
};
enum sol_status dfp_make_parts(struct build *build, const struct cluster *cluster,
                               struct dfp_parts *out);
/* The same, and the step. */
enum sol_status dfp_emit(struct build *build, const struct cluster *cluster, struct dfp_parts *out);

/* The name of a kernel with this text: equal for equal texts. */
const char *dfp_symbol(struct arena *arena, const char *text);

#endif
