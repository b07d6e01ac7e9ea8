/* What a core can do at best, for people: limits that kernels are compared with. */
#ifndef SOL_PROBE_H
#define SOL_PROBE_H

#include <stdint.h>

struct dnn_probe_kernels {
    /* Multiply-adds on registers alone; returns their floating point operations. `out`: one value per lane. */
    double (*multiply)(int64_t rounds, float *out);
    /* Reads n floats, n a multiple of 128, and leaves their sum in `out`. */
    void (*read)(const float *at, int64_t n, float *out);
};

#endif
