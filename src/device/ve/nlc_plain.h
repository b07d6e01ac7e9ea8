/*
 * Products by the BLAS of NLC: text for the device, behind dnn/product_plain.h and nlc.h.
 *
 *   one task -> run_library: a call per product, which BLAS divides among all cores -> finish: bias, residual, activation
 *            -> where BLAS cannot compute it: the units of product_plain.h
 *
 * BLAS reads matrices whose rows or columns are dense, and whose sizes have 32 bits; those of a call are known only here. Without terms, it
 * might leave y as it is.
 */
typedef struct {
    int form, step;
} matrix;

static int fits(int64_t n) { return n > 0 && n <= INT32_MAX; }

/* The step from line to line, of n dense elements each; 0: they are not dense, or overlap. Steps along a dim of one element may be any. */
static int64_t find_step(int64_t line, int64_t element, int64_t n_lines, int64_t n) {
    if (element != 1 && n != 1) return 0;
    if (n_lines == 1) return n;
    return line >= n ? line : 0;
}

/* Element (i, j) is at i * row + j * column. Returns 0 if BLAS cannot read it. */
static int describe(int64_t row, int64_t column, int64_t rows, int64_t columns, matrix *out) {
    int64_t step = find_step(row, column, rows, columns);
    out->form = step ? BLAS_AS_IS : BLAS_TRANSPOSED;
    if (!step) step = find_step(column, row, columns, rows);
    out->step = (int)step;
    return fits(step);
}

/* The first unit of a product is at the beginnings of its matrices. All its columns are finished at once. */
static struct unit find_product(const problem *p, void *const *ptr, const int64_t *arg, int64_t i) {
    struct unit u = find_unit(p, ptr, arg, i * count_units(p->rows, p->columns));
    u.n_columns = p->columns;
    return u;
}

static int run_library(const problem *p, void *const *ptr, const int64_t *arg) {
    const int64_t rows = p->rows, columns = p->columns, terms = p->terms;
    const int64_t y_step = find_step(p->y_row, 1, rows, columns);
    matrix a, b;
    if (!fits(rows) || !fits(columns) || !fits(terms) || !fits(y_step) ||
        !describe(p->a_row, p->a_column, rows, terms, &a) ||
        !describe(p->b_row, p->b_column, terms, columns, &b))
        return 1;
    for (int64_t i = 0; i < p->n_products; i++) {
        const struct unit u = find_product(p, ptr, arg, i);
        cblas_sgemm(BLAS_ROW_MAJOR, a.form, b.form, (int)rows, (int)columns, (int)terms, 1, u.a,
                    a.step, u.x, b.step, 0, u.y, (int)y_step);
    }
    return 0;
}

static void finish(const problem *p, void *const *ptr, const int64_t *arg) {
#ifndef MIN
    if (!ptr[BIAS] && !ptr[RESIDUAL]) return;
#endif
#pragma omp parallel for
    for (int64_t i = 0; i < p->n_products * p->rows; i++) {
        const struct unit u = find_product(p, ptr, arg, i / p->rows);
        finish_row(&u, i % p->rows, u.y + i % p->rows * u.y_step);
    }
}
