/*
 * A stand-in for the C interface of NLC's BLAS: the function that src/device/ve/nlc.h declares.
 *
 *   kernels of the device ve -> libcblas.so -> libblas_openmp.so (blas.c), by SOL_NCC="cc -L<folder> -Wl,-rpath,<folder>"
 *
 * As the real one, it needs the other library, and refuses steps that are too short. For tests, with $NLC_IDLE it does nothing, so that wrong
 * values show that it was called.
 */
#include "device/ve/nlc.h"

#include <stdio.h>
#include <stdlib.h>

void sgemm_(const char *a_form, const char *b_form, const int *rows, const int *columns,
            const int *terms, const float *factor, const float *a, const int *a_step,
            const float *b, const int *b_step, const float *old, float *y, const int *y_step);

static void check(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "cblas_sgemm: wrong %s\n", what);
    abort();
}

static const char *form_name(int form) {
    check(form == BLAS_AS_IS || form == BLAS_TRANSPOSED, "form");
    return form == BLAS_AS_IS ? "N" : "T";
}

/* What is stored row by row is the transposed matrix, stored column by column: that of y is the product of those of b and a. */
void cblas_sgemm(int order, int a_form, int b_form, int rows, int columns, int terms, float factor,
                 const float *a, int a_step, const float *b, int b_step, float old, float *y,
                 int y_step) {
    check(order == BLAS_ROW_MAJOR, "order");
    check(rows > 0 && columns > 0 && terms > 0, "size");
    check(a_step >= (a_form == BLAS_AS_IS ? terms : rows), "step of a");
    check(b_step >= (b_form == BLAS_AS_IS ? columns : terms), "step of b");
    check(y_step >= columns, "step of y");
    if (getenv("NLC_IDLE")) return;
    sgemm_(form_name(b_form), form_name(a_form), &columns, &rows, &terms, &factor, b, &b_step, a,
           &a_step, &old, y, &y_step);
}
