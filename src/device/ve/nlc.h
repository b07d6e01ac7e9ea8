/*
 * The declarations of BLAS, as far as kernels call it: text for the device, and for the stand-in of tests.
 *
 * They say the same as the header of the C interface of BLAS (https://www.netlib.org/blas/), in words of SOL: its enums are ints here. Nothing is included, as a machine that
 * has the library need not have its header where the compiler looks for it.
 */
enum { BLAS_ROWS = 101, BLAS_PLAIN = 111, BLAS_TRANSPOSED = 112 };

/* y = factor * a * b + y_factor * y, of y [rows][columns] and of `terms` terms. Matrices are stored row by row, or, if transposed, column by
 * column; a_step, b_step and y_step are the elements from one to the next. */
void cblas_sgemm(int order, int a_form, int b_form, int rows, int columns, int terms, float factor,
                 const float *a, int a_step, const float *b, int b_step, float y_factor, float *y,
                 int y_step);
