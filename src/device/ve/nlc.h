/*
 * Declarations of NLC's BLAS, as far as kernels call it: text for the device, and for the stand-in of tests.
 *
 * They say the same as the C interface of BLAS (https://www.netlib.org/blas/), in words of SOL: its enums are ints here. Ints have 32 bits,
 * as in those of NLC whose names do not end in _i64. Nothing is included, as a machine that has the library need not have its header where
 * the compiler looks for it.
 */
enum { BLAS_ROW_MAJOR = 101, BLAS_AS_IS = 111, BLAS_TRANSPOSED = 112 };

/* y = factor * a * b + old * y, where a is [rows][terms], b [terms][columns], y [rows][columns]. With BLAS_ROW_MAJOR, a matrix is stored row
 * by row, a BLAS_TRANSPOSED one column by column. Its step is the elements from one of them to the next, at least as many as one has, and
 * not 0. If `old` is 0, y is not read. */
void cblas_sgemm(int order, int a_form, int b_form, int rows, int columns, int terms, float factor,
                 const float *a, int a_step, const float *b, int b_step, float old, float *y,
                 int y_step);
