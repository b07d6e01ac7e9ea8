/*
 * Flex attention: attention whose scores and probabilities are changed by subgraphs.
 *
 * Inputs are [batch, heads, places, size of a head], where places are the positions of a sequence. The scores of all heads are in
 * memory at once, [batch, heads, rows, columns], so this is not for long sequences. A row that sees no place gives zeros, not NaN.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* c = a b for row-major matrices. The innermost loop runs along rows of b and c, which are contiguous. */
static void matrix_product(const double *a, const double *b, int64_t m, int64_t k, int64_t n,
                           double *c) {
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < n; j++) c[i * n + j] += a[i * k + p] * b[p * n + j];
}

/* exp(x) / sum(exp(x)) along the middle dim of [outer, n, inner], in place. The maximum is subtracted first, so that nothing
 * overflows. */
static void softmax_rows(double *x, int64_t outer, int64_t n, int64_t inner) {
    for (int64_t i = 0; i < outer * inner; i++) {
        double *row = x + i / inner * n * inner + i % inner, top = -INFINITY, sum = 0;
        for (int64_t k = 0; k < n; k++) top = fmax(top, row[k * inner]);
        for (int64_t k = 0; k < n; k++) sum += row[k * inner] = exp(row[k * inner] - top);
        for (int64_t k = 0; k < n; k++) row[k * inner] /= sum;
    }
}

/* Sizes: batch, heads of q, heads of k and v, places of q (rows), places of k (columns), sizes of a head of q and of v. */
struct attention {
    int64_t batch, heads, kv_heads, rows, columns, size, v_size;
    double scale, softcap;
};

/* Reads the sizes and checks that q, k and v fit. The default scale is 1 / sqrt(size of a head). */
static struct attention measure(struct eval *e, const struct array *q, const struct array *k,
                                const struct array *v) {
    struct attention a = {q->dim[0], q->dim[1], k->dim[1], q->dim[2], k->dim[2],
                          q->dim[3], v->dim[3], 0,         0};
    eval_check(e,
               k->dim[0] == a.batch && v->dim[0] == a.batch && v->dim[1] == a.kv_heads &&
                   k->dim[3] == a.size && v->dim[2] == a.columns && a.kv_heads > 0 &&
                   a.heads % a.kv_heads == 0,
               "q, k and v that do not fit");
    a.scale = eval_float(e, "scale", 1 / sqrt((double)a.size));
    a.softcap = eval_float(e, "softcap", 0);
    return a;
}

/* q k^T * scale: [batch, heads, rows, columns]. */
static double *scores(struct eval *e, const struct attention *a, const double *q, const double *k) {
    int64_t plane = a->rows * a->columns;
    double *s = SPACE_ARRAY(e->space, double, a->batch * a->heads * plane);
    for (int64_t i = 0; i < a->batch * a->heads * plane; i++) {
        int64_t h = i / plane,
                kv = h / a->heads * a->kv_heads + h % a->heads / (a->heads / a->kv_heads);
        const double *left = q + (h * a->rows + i / a->columns % a->rows) * a->size;
        const double *right = k + (kv * a->columns + i % a->columns) * a->size;
        for (int64_t d = 0; d < a->size; d++) s[i] += left[d] * right[d];
        s[i] *= a->scale;
    }
    return s;
}

/* p v: [batch, heads, rows, v_size]. */
static double *weigh(struct eval *e, const struct attention *a, const double *p, const double *v) {
    double *y = SPACE_ARRAY(e->space, double, a->batch * a->heads * a->rows * a->v_size);
    for (int64_t h = 0; h < a->batch * a->heads; h++) {
        int64_t kv = h / a->heads * a->kv_heads + h % a->heads / (a->heads / a->kv_heads);
        matrix_product(p + h * a->rows * a->columns, v + kv * a->columns * a->v_size, a->rows,
                       a->columns, a->v_size, y + h * a->rows * a->v_size);
    }
    return y;
}

/* Softmax of each row. A row that has only -infinity becomes 0; a row with NaN becomes NaN. */
static void softmax(const struct attention *a, double *s) {
    for (int64_t r = 0; r < a->batch * a->heads * a->rows; r++) {
        double *row = s + r * a->columns;
        bool is_any = false;
        for (int64_t i = 0; i < a->columns; i++) is_any |= row[i] != -INFINITY;
        if (!is_any) memset(row, 0, (size_t)a->columns * sizeof *row);
        else softmax_rows(row, 1, a->columns, 1);
    }
}

/* Runs the subgraph `name` of the node, if there is one, on scores or probabilities; returns the result. */
static double *modify(struct eval *e, const char *name, const struct attention *a, double *s) {
    if (!eval_attribute(e, name)) return s;
    int64_t dim[4] = {a->batch, a->heads, a->rows, a->columns};
    int64_t type =
        eval_int(e, "softmax_precision", e->in[0]->type == TYPE_F64 ? TYPE_F64 : TYPE_F32);
    eval_check(e, type_is_known(type) && is_float((enum type)type), "softmax_precision");
    const struct onnx_graph *graph = eval_graph(e, name);
    struct array *in = eval_from_doubles(e, (enum type)type, 4, dim, s), *out;
    eval_check(e, graph->outputs.n == 1, "a graph of several outputs");
    eval_subgraph(e, graph, 1, &in, &out);
    eval_check(e, is_tensor(out) && out->n == in->n, "a graph that changes the shape");
    return array_doubles(e->space, out);
}

/* Grouped heads as in run_attention; subgraphs may change the scores before the softmax, and the probabilities after it. */
void run_flex_attention(struct eval *e) {
    const struct array *q = eval_in(e, 0), *k = eval_in(e, 1), *v = eval_in(e, 2);
    eval_check(e, q->rank == 4 && k->rank == 4 && v->rank == 4, "a rank other than 4");
    struct attention a = measure(e, q, k, v);
    double *s = scores(e, &a, array_doubles(e->space, q), array_doubles(e->space, k));
    s = modify(e, "score_mod", &a, s);
    softmax(&a, s);
    s = modify(e, "prob_mod", &a, s);
    eval_set_output_doubles(e, 0, q->type, 4, (int64_t[]){a.batch, a.heads, a.rows, a.v_size},
                            weigh(e, &a, s, array_doubles(e->space, v)));
}
