/*
 * Products by the BLAS of NLC: text for the device, behind dnn/product_plain.h and nlc.h.
 *
 *   one task -> run_library: a call per product, which all cores compute -> finish: bias, residual, activation
 *            -> where BLAS cannot compute it: the units of product_plain.h
 *
 * BLAS takes matrices whose rows or columns are dense, and sizes of 32 bits. This is known only here, as sizes may be those of a call.
 */
struct matrix {
    int form, step;
};

/* Element (i, j) is at i * row + j * column. The step of a single row or column does not matter to SOL, but to BLAS. Returns 0 if BLAS
 * cannot read it. */
static int find_form(int64_t row, int64_t column, int64_t rows, int64_t columns, struct matrix *m) {
    const int is_plain = column == 1 && (row >= columns || rows == 1);
    const int64_t step = is_plain ? (rows == 1 ? columns : row) : columns == 1 ? rows : column;
    if (!is_plain && (row != 1 || (column < rows && columns != 1))) return 0;
    m->form = is_plain ? BLAS_PLAIN : BLAS_TRANSPOSED;
    m->step = (int)step;
    return step == m->step;
}

static int fits(int64_t size) { return size > 0 && size == (int)size; }

/* The first unit of a product has the beginnings of its matrices. */
static struct unit find_product(const problem *p, void *const *ptr, const int64_t *arg, int64_t i) {
    struct unit u = find_unit(p, ptr, arg, i * count_units(p->rows, p->columns));
    u.n_columns = p->columns;
    return u;
}

static int run_library(const problem *p, void *const *ptr, const int64_t *arg) {
    struct matrix a, b;
    if (!fits(p->rows) || !fits(p->columns) || !fits(p->terms) || !fits(p->y_row) ||
        p->y_row < p->columns || !find_form(p->a_row, p->a_column, p->rows, p->terms, &a) ||
        !find_form(p->b_row, p->b_column, p->terms, p->columns, &b))
        return 0;
    for (int64_t i = 0; i < p->n_products; i++) {
        const struct unit u = find_product(p, ptr, arg, i);
        cblas_sgemm(BLAS_ROWS, a.form, b.form, (int)p->rows, (int)p->columns, (int)p->terms, 1, u.a,
                    a.step, u.x, b.step, 0, u.y, (int)p->y_row);
    }
    return 1;
}

static void finish(const problem *p, void *const *ptr, const int64_t *arg) {
#ifndef MIN
    if (!ptr[BIAS] && !ptr[RESIDUAL]) return;
#endif
#pragma omp parallel for
    for (int64_t i = 0; i < p->n_products * p->rows; i++) {
        const struct unit u = find_product(p, ptr, arg, i / p->rows);
        const int64_t row = i % p->rows;
        finish_row(&u, row, u.y + row * u.y_step);
    }
}

static void run_units(const problem *p, void *const *ptr, const int64_t *arg) {
    const int64_t n = count_all(p);
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < n; i++) {
        const struct unit u = find_unit(p, ptr, arg, i);
        run_unit(p, &u);
    }
}

void SOL_KERNEL(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const problem p = read_problem(ptr, arg);
    (void)scratch;
    if (begin == end) return;
    if (run_library(&p, ptr, arg)) finish(&p, ptr, arg);
    else run_units(&p, ptr, arg);
}
