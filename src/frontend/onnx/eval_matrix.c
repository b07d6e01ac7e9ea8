/*
 * Matrix products of floats and of integers; Einsum; determinants.
 *
 * Batch dims are broadcast by a walk whose offsets count matrices. Floats are summed up in double. Integers wrap at 64 bits and are
 * truncated to their type once, which gives the same bits as wrapping at every step. Quantized products subtract zero points,
 * multiply exactly, and scale last.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* The innermost loop runs along rows of b and c, which are contiguous. */
void matrix_product(const double *a, const double *b, int64_t m, int64_t k, int64_t n, double *c) {
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++) c[i * n + j] += a[i * k + p] * b[p * n + j];
}

/* c += a b, wrapping at 64 bits; c is zero before. */
static void int_product(const int64_t *a, const int64_t *b, int64_t m, int64_t k, int64_t n,
                        int64_t *c) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++)
                c[i * n + j] = (int64_t)((uint64_t)c[i * n + j] +
                                         (uint64_t)a[i * k + p] * (uint64_t)b[p * n + j]);
}

/* The sizes of a product [m, k] x [k, n], as in numpy.matmul: a vector is a row on the left, a column on the right. */
struct product {
    int64_t m, k, n;
    int rank; /* of the result */
    int64_t dim[SOL_MAX_RANK];
    struct walk batch; /* offsets of operands 0 and 1 are in matrices */
};

/* The dims before the last two, as an array of single matrices. */
static struct array batch_of(const struct array *x) {
    struct array batch = {.type = x->type, .rank = x->rank > 2 ? x->rank - 2 : 0};
    memcpy(batch.dim, x->dim, sizeof batch.dim);
    return batch;
}

/* Computes the sizes; the result has no dim for an operand that is a vector. */
static struct product plan_product(struct eval *e, const struct array *a, const struct array *b) {
    struct product p = {.m = 1, .n = 1};
    struct array left = batch_of(a), right = batch_of(b);
    eval_check(e, a->rank && b->rank, "a product of scalars");
    p.k = a->dim[a->rank - 1];
    if (a->rank > 1) p.m = a->dim[a->rank - 2];
    if (b->rank > 1) p.n = b->dim[b->rank - 1];
    eval_check(e, p.k == b->dim[b->rank > 1 ? b->rank - 2 : 0], "matrices that do not fit");
    int rank = eval_broadcast(e, 2, (struct array *[]){&left, &right}, p.dim);
    walk_init(&p.batch, rank, p.dim);
    walk_broadcast(&p.batch, 0, &left);
    walk_broadcast(&p.batch, 1, &right);
    if (a->rank > 1) p.dim[rank++] = p.m;
    if (b->rank > 1) p.dim[rank++] = p.n;
    p.rank = rank;
    return p;
}

/* x minus its zero points, which may be NULL. `by_row`: x is the left operand, with zero points per row; else per column. */
static int64_t *shifted(struct eval *e, const struct array *x, const struct array *zero,
                        bool by_row) {
    int64_t *v = array_ints(e->space, x), columns = x->rank ? x->dim[x->rank - 1] : 1;
    int64_t rows = x->rank > 1 ? x->dim[x->rank - 2] : 1;
    if (!zero) return v;
    /* One zero point for all; one per row or column; or one per row or column of each matrix of a batch. */
    int64_t per = zero->n == 1 ? 1 : by_row ? rows : columns;
    eval_check(e,
               zero->n && (zero->n == per || zero->n == x->n / max_i64(1, by_row ? columns : rows)),
               "zero points that do not fit");
    for (int64_t i = 0; i < x->n; i++) {
        int64_t at = by_row ? i / columns : i / (rows * columns) * columns + i % columns;
        v[i] = (int64_t)((uint64_t)v[i] - (uint64_t)array_int(zero, at % zero->n));
    }
    return v;
}

/* Multiplies integers; sums of 64 bits are exact for inputs of 8 bits. */
static int64_t *multiply_ints(struct eval *e, const struct product *p, const int64_t *a,
                              const int64_t *b) {
    struct walk batch = p->batch;
    int64_t *c = SPACE_ARRAY(e->space, int64_t, product(p->rank, p->dim));
    for (int64_t i = 0; i < batch.n; i++, walk_next(&batch))
        int_product(a + batch.offset[0] * p->m * p->k, b + batch.offset[1] * p->k * p->n, p->m,
                    p->k, p->n, c + i * p->m * p->n);
    return c;
}

void run_matmul(struct eval *e) {
    const struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    struct product p = plan_product(e, a, b);
    struct array *y = eval_out(e, 0, a->type, p.rank, p.dim);
    if (is_integer(a->type)) {
        array_fill_ints(y, multiply_ints(e, &p, array_ints(e->space, a), array_ints(e->space, b)));
        return;
    }
    double *left = array_doubles(e->space, a), *right = array_doubles(e->space, b);
    double *c = SPACE_ARRAY(e->space, double, y->n);
    for (int64_t i = 0; i < p.batch.n; i++, walk_next(&p.batch))
        matrix_product(left + p.batch.offset[0] * p.m * p.k, right + p.batch.offset[1] * p.k * p.n,
                       p.m, p.k, p.n, c + i * p.m * p.n);
    array_fill_doubles(y, c);
}

/* Inputs of 8 bits; the result is i32. */
void run_matmul_integer(struct eval *e) {
    const struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    struct product p = plan_product(e, a, b);
    int64_t *left = shifted(e, a, eval_has(e, 2) ? e->in[2] : NULL, true);
    int64_t *right = shifted(e, b, eval_has(e, 3) ? e->in[3] : NULL, false);
    array_fill_ints(eval_out(e, 0, TYPE_I32, p.rank, p.dim), multiply_ints(e, &p, left, right));
}

/* An integer product, which is scaled, then rounded to the type of y's zero point. */
void run_qlinear_matmul(struct eval *e) {
    const struct array *a = eval_in(e, 0), *b = eval_in(e, 3), *zero = eval_in(e, 7);
    struct product p = plan_product(e, a, b);
    int64_t *c = multiply_ints(e, &p, shifted(e, a, eval_in(e, 2), true),
                               shifted(e, b, eval_in(e, 5), false));
    struct array *y = eval_out(e, 0, zero->type, p.rank, p.dim);
    const struct array *a_scale = eval_in(e, 1), *b_scale = eval_in(e, 4), *scale = eval_in(e, 6);
    eval_check(e, a_scale->n && b_scale->n && scale->n && zero->n, "scales");
    for (int64_t i = 0; i < y->n; i++) {
        int64_t row = i / p.n, column = i / (p.m * p.n) * p.n + i % p.n;
        double factor = array_double(a_scale, row % a_scale->n) *
                        array_double(b_scale, column % b_scale->n) /
                        array_double(scale, row % scale->n);
        bool is_signed = types[y->type].kind == KIND_SIGNED;
        double value = rint((double)c[i] * factor) + (double)array_int(zero, row % zero->n);
        array_set_double(y, i, fmax(is_signed ? -128 : 0, fmin(is_signed ? 127 : 255, value)));
    }
}

/* alpha * A * B + beta * C; attributes may transpose A and B. */
void run_gemm(struct eval *e) {
    const struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    eval_check(e, a->rank == 2 && b->rank == 2, "matrices of another rank than 2");
    if (eval_int(e, "transA", 0)) a = move_permute(e, a, (int64_t[]){1, 0});
    if (eval_int(e, "transB", 0)) b = move_permute(e, b, (int64_t[]){1, 0});
    eval_check(e, a->dim[1] == b->dim[0], "matrices that do not fit");
    struct array *y = eval_out(e, 0, a->type, 2, (int64_t[]){a->dim[0], b->dim[1]});
    double *c = SPACE_ARRAY(e->space, double, y->n), alpha = eval_float(e, "alpha", 1),
           beta = eval_float(e, "beta", 1);
    matrix_product(array_doubles(e->space, a), array_doubles(e->space, b), a->dim[0], a->dim[1],
                   b->dim[1], c);
    struct walk walk;
    walk_init(&walk, 2, y->dim);
    if (eval_has(e, 2)) {
        int64_t dim[SOL_MAX_RANK];
        int rank = eval_broadcast(e, 2, (struct array *[]){y, eval_in(e, 2)}, dim);
        eval_check(e, rank == 2 && product(2, dim) == y->n, "a bias that does not fit");
        walk_broadcast(&walk, 0, e->in[2]);
    }
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk)) {
        double bias = eval_has(e, 2) ? beta * array_double(e->in[2], walk.offset[0]) : 0;
        array_set_double(y, i, alpha * c[i] + bias);
    }
}

/* ---- Einsum ---- */

#define MAX_LABELS SOL_MAX_RANK /* letters, and dims of "..." */

/* Labels in the order of the walk: those of the result first. The dims of "..." have labels from 128 on. */
struct einsum {
    int n_labels, n_out;
    int label[MAX_LABELS];
    int64_t size[MAX_LABELS];
};

/* Writes the labels of one operand, with "..." expanded, to `out`; returns their number. */
static int read_term(struct eval *e, const char *at, const char *end, int rank, int *out) {
    int n = 0, letters = 0;
    for (const char *c = at; c < end; c++) letters += *c != '.' && *c != ' ';
    for (; at < end; at++) {
        if (*at == ' ') continue;
        int dots = *at == '.' ? rank - letters : 1;
        for (int d = 0; d < dots; d++) {
            eval_check(e, n < SOL_MAX_RANK, "too many labels");
            out[n++] = *at == '.' ? 128 + SOL_MAX_RANK - dots + d : *at;
        }
        if (*at == '.') at += 2;
    }
    eval_check(e, n == rank, "labels that do not fit the rank");
    return n;
}

/* The index of a label, which is appended if it is new. */
static int find_label(struct eval *e, struct einsum *s, int label) {
    for (int i = 0; i < s->n_labels; i++)
        if (s->label[i] == label) return i;
    eval_check(e, s->n_labels < MAX_LABELS, "too many labels");
    s->label[s->n_labels] = label;
    s->size[s->n_labels] = 1;
    return s->n_labels++;
}

static int count_label(const int *labels, int n, int label) {
    int count = 0;
    for (int i = 0; i < n; i++) count += labels[i] == label;
    return count;
}

/* Without "->", the result has the dims of "...", then the letters that occur once, in alphabetical order. */
static void default_result(struct eval *e, struct einsum *s, const int *all, int n) {
    for (int label = 128; label < 128 + SOL_MAX_RANK; label++)
        if (count_label(all, n, label)) find_label(e, s, label);
    for (int label = 'A'; label <= 'z'; label++)
        if (count_label(all, n, label) == 1) find_label(e, s, label);
}

/* Sets the sizes of the labels of x; a dim of 1 is broadcast. */
static void add_sizes(struct eval *e, struct einsum *s, const struct array *x, const int *labels) {
    for (int d = 0; d < x->rank; d++) {
        int64_t *size = &s->size[find_label(e, s, labels[d])];
        eval_check(e, *size == 1 || x->dim[d] == 1 || *size == x->dim[d],
                   "sizes of a label differ");
        if (x->dim[d] != 1) *size = x->dim[d];
    }
}

/* Labels of the result come first in the walk, so all terms of a result point are consecutive. */
static struct array *sum_products(struct eval *e, const struct einsum *s, struct walk *walk) {
    struct array *y = eval_new(e, e->in[0]->type, s->n_out, s->size);
    int64_t inner = product(s->n_labels - s->n_out, s->size + s->n_out);
    double *v[MAX_OPERANDS];
    for (int k = 0; k < e->n_in; k++) v[k] = array_doubles(e->space, e->in[k]);
    for (int64_t i = 0; i < y->n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < inner; j++, walk_next(walk)) {
            double term = 1;
            for (int k = 0; k < e->n_in; k++) term *= v[k][walk->offset[k]];
            sum += term;
        }
        array_set_double(y, i, sum);
    }
    return y;
}

/* Reads the labels of the result, after the arrow. `all`: the `n` labels of all operands. */
static void read_result(struct eval *e, struct einsum *s, const char *arrow, const int *all,
                        int n) {
    int dots = 0, letters = 0, result[SOL_MAX_RANK];
    for (int label = 128; label < 128 + SOL_MAX_RANK; label++)
        dots += count_label(all, n, label) > 0;
    for (const char *c = arrow + 2; *c; c++) letters += *c != '.' && *c != ' ';
    int rank = letters + (strchr(arrow, '.') ? dots : 0);
    int count = read_term(e, arrow + 2, arrow + strlen(arrow), rank, result);
    for (int i = 0; i < count; i++) find_label(e, s, result[i]);
}

/* A walk over all labels. If an operand has a label twice, its strides are added: the walk goes along the diagonal. */
static struct walk walk_labels(struct eval *e, struct einsum *s, int labels[][SOL_MAX_RANK]) {
    struct walk walk;
    s->n_out = s->n_labels;
    for (int k = 0; k < e->n_in; k++) add_sizes(e, s, e->in[k], labels[k]);
    walk_init(&walk, s->n_labels, s->size);
    for (int k = 0; k < e->n_in; k++) {
        int64_t own[SOL_MAX_RANK];
        array_strides(e->in[k], own);
        for (int d = 0; d < e->in[k]->rank; d++)
            if (e->in[k]->dim[d] > 1) walk.stride[k][find_label(e, s, labels[k][d])] += own[d];
    }
    return walk;
}

/* Each point of the result is the sum, over all positions of the other labels, of the product of the operands. */
void run_einsum(struct eval *e) {
    const char *at = eval_string(e, "equation", ""), *arrow = strstr(at, "->");
    int labels[MAX_OPERANDS][SOL_MAX_RANK], all[MAX_OPERANDS * SOL_MAX_RANK], n_all = 0;
    struct einsum s = {0};
    if (e->n_in > MAX_OPERANDS) eval_stop(e, fail(SOL_EUNSUPPORTED, "%d operands", e->n_in));
    for (int k = 0; k < e->n_in; k++) {
        const char *end = k + 1 < e->n_in ? strchr(at, ',') : arrow ? arrow : at + strlen(at);
        eval_check(e, end != NULL, "an equation of fewer operands");
        int n = read_term(e, at, end, eval_in(e, k)->rank, labels[k]);
        for (int d = 0; d < n; d++) all[n_all++] = labels[k][d];
        at = *end ? end + 1 : end;
    }
    if (arrow) read_result(e, &s, arrow, all, n_all);
    else default_result(e, &s, all, n_all);
    struct walk walk = walk_labels(e, &s, labels);
    eval_set_output(e, 0, sum_products(e, &s, &walk));
}

/* ---- Determinants ---- */

/* Gaussian elimination with partial pivoting; overwrites the matrix. */
static double determinant(double *a, int64_t n) {
    double result = 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t top = k;
        for (int64_t i = k + 1; i < n; i++)
            if (fabs(a[i * n + k]) > fabs(a[top * n + k])) top = i;
        /* The column is zero, so the matrix is singular. */
        if (a[top * n + k] == 0) return 0;
        for (int64_t j = 0; j < n && top != k; j++) {
            double kept = a[k * n + j];
            a[k * n + j] = a[top * n + j];
            a[top * n + j] = kept;
        }
        result *= top != k ? -a[k * n + k] : a[k * n + k];
        for (int64_t i = k + 1; i < n; i++) {
            double factor = a[i * n + k] / a[k * n + k];
            for (int64_t j = k; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
        }
    }
    return result;
}

/* One determinant per matrix of the last two dims. */
void run_det(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    eval_check(e, x->rank >= 2 && x->dim[x->rank - 1] == x->dim[x->rank - 2], "no square matrix");
    int64_t n = x->dim[x->rank - 1];
    struct array *y = eval_out(e, 0, x->type, x->rank - 2, x->dim);
    double *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < y->n; i++) array_set_double(y, i, determinant(v + i * n * n, n));
}
