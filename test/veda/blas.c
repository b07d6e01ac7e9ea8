/*
 * A stand-in for NLC's BLAS, as far as cblas.c calls it: plain loops on all threads. Matrices are stored column by column, those of form 'T'
 * row by row.
 */
#include <stdint.h>

void sgemm_(const char *a_form, const char *b_form, const int *rows, const int *columns,
            const int *terms, const float *factor, const float *a, const int *a_step,
            const float *b, const int *b_step, const float *old, float *y, const int *y_step);

static float read_at(const char *form, const float *at, int64_t step, int64_t row, int64_t column) {
    return *form == 'T' ? at[row * step + column] : at[column * step + row];
}

void sgemm_(const char *a_form, const char *b_form, const int *rows, const int *columns,
            const int *terms, const float *factor, const float *a, const int *a_step,
            const float *b, const int *b_step, const float *old, float *y, const int *y_step) {
#pragma omp parallel for
    for (int j = 0; j < *columns; j++)
        for (int i = 0; i < *rows; i++) {
            float *to = y + (int64_t)j * *y_step + i, sum = 0;
            for (int t = 0; t < *terms; t++)
                sum += read_at(a_form, a, *a_step, i, t) * read_at(b_form, b, *b_step, t, j);
            *to = *factor * sum + (*old == 0 ? 0 : *old * *to);
        }
}
