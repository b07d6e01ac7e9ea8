/*
 * A stand-in for the BLAS of NLC, NEC's collection of numeric libraries: the function that src/device/ve/nlc.h declares, as plain loops.
 *
 *   libcblas.so, libblas_openmp.so <- kernels of the device ve, by SOL_NCC="cc -L<folder> -Wl,-rpath,<folder>"
 *
 * For tests, with $NLC_IDLE it does nothing, so that wrong values show that it was called.
 */
#include "device/ve/nlc.h"

#include <stdint.h>
#include <stdlib.h>

static float read_value(const float *at, int form, int64_t step, int64_t row, int64_t column) {
    return form == BLAS_TRANSPOSED ? at[column * step + row] : at[row * step + column];
}

void cblas_sgemm(int order, int a_form, int b_form, int rows, int columns, int terms, float factor,
                 const float *a, int a_step, const float *b, int b_step, float y_factor, float *y,
                 int y_step) {
    const int a_least = a_form == BLAS_PLAIN ? terms : rows,
              b_least = b_form == BLAS_PLAIN ? columns : terms;
    if (getenv("NLC_IDLE")) return;
    /* What the real one refuses with a message. */
    if (order != BLAS_ROWS || a_step < a_least || b_step < b_least || y_step < columns) abort();
#pragma omp parallel for
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            float sum = 0, *to = y + (int64_t)i * y_step + j;
            for (int t = 0; t < terms; t++)
                sum += read_value(a, a_form, a_step, i, t) * read_value(b, b_form, b_step, t, j);
            *to = factor * sum + (y_factor == 0 ? 0 : y_factor * *to);
        }
}
