/*
 * From a DFP cluster to a step of a program, for all devices that run generated C.
 *
 *   dfp_generate  ->  dfp_make_parts: parts in the program's memory  ->  dfp_emit: a step
 */
#ifndef DFP_STEP_H
#define DFP_STEP_H

#include "dfp/dfp.h"
#include "plan/build.h"

/* The parts of a kernel's step: the kernel, its arguments, and its text, which a device may compile. */
struct dfp_parts {
    struct kernel *kernel; /* in the program's arena; interpreted unless `compiled` is set */
    const char *text, *comment;
    bool is_complete; /* the text needs no prelude: it is no loop nest */
    const char *
        library; /* words for the compiler that link what it calls, as in struct jit_loader; NULL: none */
    int n_ptr, n_arg;
    struct buffer_ref *ptr;
    struct size *arg; /* n_arg formulas, and room for one more: the number of tasks */
    struct size tasks;
    size_t scratch_size; /* bytes per thread */
    double flops_per_task;
};
enum sol_status dfp_make_parts(struct build *build, const struct cluster *cluster,
                               struct dfp_parts *out);
/* The same, and appends the step, whose last argument is the number of tasks. */
enum sol_status dfp_emit(struct build *build, const struct cluster *cluster, struct dfp_parts *out);

/* The C name of the kernel with this text: a hash, so equal texts get equal names. */
const char *dfp_symbol(struct arena *arena, const char *text);

#endif
