/*
 * The tensors of recurrent layers and of their gradients as rows: one per step of time and sample. This file is part of deployed libraries.
 */
#ifndef SOL_RECURRENT_ROWS_H
#define SOL_RECURRENT_ROWS_H

#include "dnn/recurrent_plain.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct dnn_rows {
    float *at;
    int64_t units, columns; /* a row has `columns` times `units` values */
    int64_t step, sample;   /* values from one step of time, and from one sample, to the next */
};

/* arg: those of the layer's step. extra: rows of a sample behind its steps. */
static inline struct dnn_rows dnn_make_rows(const int64_t *arg, float *at, int columns, int extra) {
    const int64_t units = arg[RECURRENT_UNITS], width = columns * units;
    const bool by_sample = arg[RECURRENT_AXIS];
    return (struct dnn_rows){at, units, columns, by_sample ? width : width * arg[RECURRENT_SAMPLES],
                             by_sample ? width * (arg[RECURRENT_STEPS] + extra) : width};
}

static inline float *dnn_row_at(const struct dnn_rows *rows, int64_t time, int64_t n) {
    return rows->at + time * rows->step + n * rows->sample;
}

/* Clears units [unit, unit + n) of all columns of a row. */
static inline void dnn_clear_row(const struct dnn_rows *rows, int64_t time, int64_t sample,
                                 int64_t unit, int64_t n) {
    for (int64_t c = 0; c < rows->columns; c++)
        memset(dnn_row_at(rows, time, sample) + c * rows->units + unit, 0,
               (size_t)n * sizeof(float));
}

#endif
