/* The kernels of one instruction set; one table per *_kernel.c file, defined there as ISA_NAME(dnn_..._kernels). */
#ifndef SOL_DNN_KERNELS_H
#define SOL_DNN_KERNELS_H

#include "dnn/dnn.h"

struct dnn_kernels {
    const struct dnn_direct_kernels *direct;     /* dnn/direct.h */
    const struct dnn_grouped_kernels *grouped;   /* dnn/grouped.h */
    const struct dnn_winograd_kernels *winograd; /* dnn/winograd.h */
    const struct dnn_linear_kernels *linear;     /* dnn/linear.h */
    const struct dnn_finish_kernels *finish;     /* dnn/finish.h */
    const struct dnn_probe_kernels *probe;       /* dnn/probe.h */
};

#endif
