/*
 * The capabilities of a device: the numbers and tables by which the planner and the modules adapt to it.
 *
 *   device->caps(options) -> struct plan -> passes, plan, dfp, dnn; portion_cache also -> struct sol_program
 *
 * A value says what the device is good at; no code asks for its name. device_get_caps (device/device.h) fills in defaults, so that a
 * device sets only what differs.
 */
#ifndef PLAN_CAPS_H
#define PLAN_CAPS_H

#include "base/base.h"

struct dfp_dialect;
struct dnn_impl;

struct device_caps {
    /* Width of a channel block in floats: a blocked layout stores so many channels of a pixel together. 1: all layouts are plain. */
    int block;
    /* Vector width of generated code in floats, which is -DLANES= for the C compiler: 4, 8 or 16 with GNU vectors, 1 in a dialect of
     * single values. DFP maps one block to one vector: so it is equal to `block`, unless that is 1. */
    int vector;
    /* The width by which clustering judges plain layers. It decides only whether rows of windows are stored (dfp/window.c) and how
     * scratch is rounded, and is the same for all devices, so that one network has the same clusters everywhere. */
    int judged_vector;
    size_t
        scratch_max; /* bytes of scratch per thread of a generated kernel: a part of a core's L2 */
    int64_t grain;   /* elements per task of a generated kernel that has little work per element */
    int threads;     /* that share the tasks of a step, for the cost models of module DNN */
    /* Bytes of the cache in which the intermediates of a micro-batch stay (run/micro_batch.h). 0: the batch is never divided, as on
     * devices whose steps are fast only on large batches. */
    int64_t portion_cache;
    const struct dfp_dialect *dialect;   /* of generated code: dfp/dialect.h */
    const struct dnn_impl *const *impls; /* of module DNN, NULL at the end; NULL: there are none */
    /* They call a generated epilogue for each region of the output that they have computed. Else it is a kernel of its own. */
    bool calls_epilogue;
    bool is_host; /* its memory is the host's, so that a program can run on the caller's pointers */
};

#endif
