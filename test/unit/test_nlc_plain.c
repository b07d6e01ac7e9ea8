/*
 * src/device/ve/nlc_plain.h, compiled for the host: the text of a product, with any strides of its operands. Models have few of them.
 *
 * BLAS, a stand-in below, must get each operand that is a matrix, and no other one; else the own kernel computes the product.
 */
#include "check.h"

#include "base/base.h"

#include <stdint.h>

/* The defines of src/device/far_emit.c, for a product with a bias, a residual and an activation. */
#define KERNEL_MATRIX
#define LIBRARY nlc
#define SOL_KERNEL run_kernel
#define MIN (-3.0f)
#define MAX 4.0f
enum { X, WEIGHT, BIAS, RESIDUAL, Y, N_PTR };

enum { A_ROW, A_COLUMN, B_ROW, B_COLUMN, Y_ROW, N_ROWS, DIMS };
enum { MAX_DIMS = 6, DIM_FIELDS = 4, BATCH = 0, SIZES = 1 };
enum { COLUMNS = SIZES + DIMS + MAX_DIMS * DIM_FIELDS, N_ARG = COLUMNS + 2 };

void run_kernel(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end);

#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "dnn/product_plain.h"

#include "device/ve/nlc.h"
#include "device/ve/nlc_plain.h"

#define N 5000 /* floats of a buffer */
static float x[N], weight[N], bias[N], residual[N], is[N], should[N];
static int n_calls;

/* ---- The stand-in ---- */

static float read_at(const float *at, int form, int64_t step, int64_t i, int64_t j) {
    return form == BLAS_AS_IS ? at[i * step + j] : at[j * step + i];
}

void cblas_sgemm(int order, int a_form, int b_form, int rows, int columns, int terms, float factor,
                 const float *a, int a_step, const float *b, int b_step, float old, float *y,
                 int y_step) {
    CHECK(order == BLAS_ROW_MAJOR && rows > 0 && columns > 0 && terms > 0 && factor == 1 && !old);
    CHECK(a_step >= (a_form == BLAS_AS_IS ? terms : rows) && y_step >= columns);
    CHECK(b_step >= (b_form == BLAS_AS_IS ? columns : terms));
    n_calls++;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float sum = 0;
            for (int64_t t = 0; t < terms; t++)
                sum += read_at(a, a_form, a_step, i, t) * read_at(b, b_form, b_step, t, j);
            y[i * y_step + j] = sum;
        }
}

/* ---- Cases ---- */

/* Strides between rows and between columns. */
struct strides {
    int64_t row, column;
};

struct size {
    int64_t rows, columns, terms, n_products;
};

/* Products 77 elements apart, of which b has one for all. */
enum { APART = 77 };

static float expect(const struct size *s, struct strides a, struct strides b, int64_t n, int64_t i,
                    int64_t j) {
    float sum = bias[j] + residual[(n * s->rows + i) * s->columns + j];
    for (int64_t t = 0; t < s->terms; t++)
        sum += x[n * APART + i * a.row + t * a.column] * weight[t * b.row + j * b.column];
    return sum < MIN ? MIN : sum > MAX ? MAX : sum;
}

static void run_both(const struct size *s, struct strides a, struct strides b, int64_t y_row) {
    const int64_t arg[N_ARG] = {s->rows * s->n_products,
                                a.row,
                                a.column,
                                b.row,
                                b.column,
                                y_row,
                                s->rows,
                                s->n_products,
                                APART,
                                0,
                                s->rows * y_row,
                                [COLUMNS] = s->columns,
                                s->terms};
    for (int64_t i = 0; i < N; i++) is[i] = should[i] = NAN;
    for (int64_t n = 0; n < s->n_products; n++)
        for (int64_t i = 0; i < s->rows; i++)
            for (int64_t j = 0; j < s->columns; j++)
                should[(n * s->rows + i) * y_row + j] = expect(s, a, b, n, i, j);
    n_calls = 0;
    run_kernel((void *[N_PTR]){x, weight, bias, residual, is}, arg, NULL, 0, 1);
}

/* Gaps between rows of y stay as they are. */
static bool is_right(void) {
    int wrong = 0;
    for (int i = 0; i < N; i++)
        wrong += isnan(should[i]) ? !isnan(is[i]) : !(fabsf(is[i] - should[i]) < 1e-4f);
    return !wrong;
}

/* With one row or column, what would be the stride to the next one does not count. */
static bool is_matrix(struct strides s, int64_t rows, int64_t columns) {
    const bool by_row = (s.column == 1 || columns == 1) && (s.row >= columns || rows == 1);
    const bool by_column = (s.row == 1 || rows == 1) && (s.column >= rows || columns == 1);
    return by_row || by_column;
}

static int test_case(const struct size *s, struct strides a, struct strides b, int64_t y_row) {
    const bool takes = s->terms && s->columns && is_matrix(a, s->rows, s->terms) &&
                       is_matrix(b, s->terms, s->columns);
    run_both(s, a, b, y_row);
    if (!CHECK(is_right()) || !CHECK(n_calls == (takes ? s->n_products : 0)))
        fprintf(stderr, "    %d x %d, %d terms: %d,%d and %d,%d, %d calls\n", (int)s->rows,
                (int)s->columns, (int)s->terms, (int)a.row, (int)a.column, (int)b.row,
                (int)b.column, n_calls);
    return takes;
}

static void test_strides(void) {
    static const struct strides all[] = {{1, 1}, {1, 3}, {3, 1}, {1, 9}, {9, 1},  {0, 1},
                                         {1, 0}, {2, 9}, {9, 2}, {0, 5}, {40, 1}, {1, 40}};
    static const struct size sizes[] = {{3, 7, 5, 2}, {1, 7, 5, 3}, {3, 1, 5, 1}, {3, 7, 1, 2},
                                        {1, 1, 1, 2}, {1, 1, 6, 1}, {3, 7, 0, 2}, {2, 40, 9, 1},
                                        {3, 7, 5, 0}, {3, 0, 5, 2}};
    int n_taken = 0;
    for (int i = 0; i < COUNT(sizes); i++)
        for (int a = 0; a < COUNT(all); a++)
            for (int b = 0; b < COUNT(all); b++)
                for (int gap = 0; gap < 2; gap++)
                    n_taken += test_case(&sizes[i], all[a], all[b], sizes[i].columns + gap);
    CHECK(n_taken > 400);
}

/* Is each element where BLAS looks for it, and is the step one that BLAS accepts? */
static bool is_described(struct strides s, const struct size *n, matrix m) {
    const bool by_row = m.form == BLAS_AS_IS;
    if (m.step < (by_row ? n->columns : n->rows)) return false;
    for (int64_t i = 0; i < n->rows; i++)
        for (int64_t j = 0; j < n->columns; j++)
            if (i * s.row + j * s.column != (by_row ? i * m.step + j : j * m.step + i))
                return false;
    return true;
}

static bool has_description(struct strides s, const struct size *n) {
    for (int form = BLAS_AS_IS; form <= BLAS_TRANSPOSED; form++)
        for (int step = 1; step < 8; step++)
            if (is_described(s, n, (matrix){form, step})) return true;
    return false;
}

/* All small sizes and strides: what is described is right, and what is not has no description. */
static void test_descriptions(void) {
    for (int64_t i = 0; i < 8 * 8 * 4 * 4; i++) {
        const struct strides s = {i % 8, i / 8 % 8};
        const struct size n = {.rows = i / 64 % 4 + 1, .columns = i / 256 + 1};
        matrix m;
        const bool is_found = describe(s.row, s.column, n.rows, n.columns, &m);
        if (!CHECK(is_found == has_description(s, &n) && (!is_found || is_described(s, &n, m))))
            fprintf(stderr, "    %d,%d of %d x %d\n", (int)s.row, (int)s.column, (int)n.rows,
                    (int)n.columns);
    }
}

/* Only sizes that fit are passed on. Nor is the stride between rows of y, if there is one row. */
static void test_limits(void) {
    static const struct size one_row = {1, 7, 5, 1};
    matrix m;
    CHECK(test_case(&one_row, (struct strides){5, 1}, (struct strides){7, 1}, 0));
    CHECK(test_case(&one_row, (struct strides){0, 1}, (struct strides){1, 5}, 3));
    CHECK(describe(INT32_MAX, 1, 2, 3, &m) && m.form == BLAS_AS_IS && m.step == INT32_MAX);
    CHECK(describe(1, INT32_MAX, 2, 3, &m) && m.form == BLAS_TRANSPOSED && m.step == INT32_MAX);
    CHECK(!describe((int64_t)INT32_MAX + 1, 1, 2, 3, &m));
    CHECK(!describe(1, (int64_t)INT32_MAX + 1, 2, 3, &m));
    CHECK(!describe(((int64_t)1 << 32) + 8, 1, 2, 3, &m));
    CHECK(fits(1) && fits(INT32_MAX) && !fits(0) && !fits((int64_t)INT32_MAX + 1));
}

int main(void) {
    for (int i = 0; i < N; i++) {
        x[i] = sinf((float)i);
        weight[i] = cosf(1.7f * (float)i);
        bias[i] = sinf(0.3f * (float)i);
        residual[i] = cosf(0.7f * (float)i);
    }
    test_strides();
    test_descriptions();
    test_limits();
    return check_done();
}
