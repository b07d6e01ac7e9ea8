/*
 * Determinants, selection of boxes, optimizer steps of training.
 *
 * eval.def names the domain of operators that are not in ONNX's own. An optimizer step is plain arithmetic on lists of tensors: it
 * computes new weights from weights that are inputs, and does not change parameters of SOL.
 */
#include "eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- Boxes ---- */

/* A box by its lower and upper corner. */
struct box {
    double low[2], high[2];
};

/* `v` has two opposite corners in any order, or with is_center the center and the size. */
static struct box read_box(const double *v, bool is_center) {
    struct box b;
    for (int d = 0; d < 2; d++) {
        double a = is_center ? v[d] - v[2 + d] / 2 : v[d],
               c = is_center ? v[d] + v[2 + d] / 2 : v[2 + d];
        b.low[d] = fmin(a, c);
        b.high[d] = fmax(a, c);
    }
    return b;
}

/* Intersection over union. */
static double overlap(const struct box *a, const struct box *b) {
    double both = 1, left = 1, right = 1;
    for (int d = 0; d < 2; d++) {
        both *= fmax(0, fmin(a->high[d], b->high[d]) - fmax(a->low[d], b->low[d]));
        left *= a->high[d] - a->low[d];
        right *= b->high[d] - b->low[d];
    }
    double either = left + right - both;
    return either > 0 ? both / either : 0;
}

/* The score of a box, for sorting. */
struct scored {
    double score;
    int64_t index;
};

/* The highest score first; for equal scores, the lower index. */
static int by_score(const void *left, const void *right) {
    const struct scored *a = left, *b = right;
    if (a->score != b->score) return a->score < b->score ? 1 : -1;
    return (a->index > b->index) - (a->index < b->index);
}

/* Writes the indices of the best boxes of one class that do not overlap to `out`; returns their number, at most `max`. */
static int64_t select_boxes(const double *boxes, bool is_center, struct scored *order, int64_t n,
                            int64_t max, double limit, int64_t *out) {
    int64_t found = 0;
    qsort(order, (size_t)n, sizeof *order, by_score);
    for (int64_t i = 0; i < n && found < max; i++) {
        struct box box = read_box(boxes + 4 * order[i].index, is_center);
        bool is_free = true;
        for (int64_t k = 0; k < found && is_free; k++) {
            struct box other = read_box(boxes + 4 * out[k], is_center);
            is_free = overlap(&box, &other) <= limit;
        }
        if (is_free) out[found++] = order[i].index;
    }
    return found;
}

/* For each class of each sample: repeatedly selects the best box that does not overlap a selected one. Without the input for the
 * number of boxes nothing is selected, as ONNX defines. */
void run_non_max_suppression(struct eval *e) {
    const struct array *boxes = eval_in(e, 0), *scores = eval_in(e, 1);
    eval_check(e,
               boxes->rank == 3 && scores->rank == 3 && boxes->dim[2] == 4 &&
                   boxes->dim[1] == scores->dim[2] && boxes->dim[0] == scores->dim[0],
               "shapes that do not fit");
    int64_t n = boxes->dim[1], classes = scores->dim[1], max = eval_in_int(e, 2, 0), total = 0;
    double limit = eval_in_double(e, 3, 0), min = eval_in_double(e, 4, -INFINITY);
    double *v = array_doubles(e->space, boxes), *s = array_doubles(e->space, scores);
    struct scored *order = SPACE_ARRAY(e->space, struct scored, n);
    int64_t *found = SPACE_ARRAY(e->space, int64_t, n),
            *rows = SPACE_ARRAY(e->space, int64_t, 3 * scores->n);
    for (int64_t bc = 0; bc < boxes->dim[0] * classes; bc++) {
        int64_t left = 0;
        for (int64_t i = 0; i < n; i++)
            if (s[bc * n + i] > min || !eval_has(e, 4))
                order[left++] = (struct scored){s[bc * n + i], i};
        int64_t count = select_boxes(v + bc / classes * n * 4, eval_int(e, "center_point_box", 0),
                                     order, left, max, limit, found);
        for (int64_t i = 0; i < count; i++, total++) {
            rows[3 * total] = bc / classes;
            rows[3 * total + 1] = bc % classes;
            rows[3 * total + 2] = found[i];
        }
    }
    array_fill_ints(eval_out(e, 0, TYPE_I64, 2, (int64_t[]){total, 3}), rows);
}

/* ---- Training: inputs are rate, count, then all values, all gradients, all states; outputs are the new values and states ---- */

/* Attributes and inputs that are common to all values; each optimizer uses some of them. */
struct rule {
    double rate, count, norm, post, alpha, beta, epsilon;
    bool is_nesterov;
};

/* The rate decreases with the sum of squares of all gradients so far. */
static double step_adagrad(const struct rule *r, double x, double g, double *state) {
    g += r->norm * x;
    state[0] += g * g;
    return x - r->rate / (1 + r->count * r->alpha) * g / (sqrt(state[0]) + r->epsilon);
}

/* At the first step (count 0), the gradient is not scaled by beta. Nesterov uses the gradient plus the next momentum. */
static double step_momentum(const struct rule *r, double x, double g, double *state) {
    g += r->norm * x;
    state[0] = r->alpha * state[0] + (r->count > 0 ? r->beta : 1) * g;
    return x - r->rate * (r->is_nesterov ? g + r->alpha * state[0] : state[0]);
}

/* States are running means of the gradient and of its square. They begin at 0; the rate corrects that bias. */
static double step_adam(const struct rule *r, double x, double g, double *state) {
    g += r->norm * x;
    state[0] = r->alpha * state[0] + (1 - r->alpha) * g;
    state[1] = r->beta * state[1] + (1 - r->beta) * g * g;
    double rate = r->rate;
    if (r->count > 0) rate *= sqrt(1 - pow(r->beta, r->count)) / (1 - pow(r->alpha, r->count));
    return (1 - r->post) * (x - rate * state[0] / (sqrt(state[1]) + r->epsilon));
}

/* choice 0: Adagrad, 1: Momentum, 2: Adam. */
void run_train_step(struct eval *e) {
    static double (*const steps[])(const struct rule *, double, double,
                                   double *) = {step_adagrad, step_momentum, step_adam};
    int kind = e->op->choice, n_states = kind == 2 ? 2 : 1, n = (e->n_in - 2) / (2 + n_states);
    struct rule r = {.rate = eval_in_double(e, 0, 0),
                     .count = eval_in_double(e, 1, 0),
                     .norm = eval_float(e, "norm_coefficient", 0)};
    r.post = eval_float(e, "norm_coefficient_post", 0);
    r.alpha = eval_float(e, kind ? "alpha" : "decay_factor", kind == 2 ? 0.9 : 0);
    r.beta = eval_float(e, "beta", 0.999);
    r.epsilon = eval_float(e, "epsilon", 1e-6);
    r.is_nesterov = eval_is(e, "mode", "nesterov");
    eval_check(e, e->n_in == 2 + n * (2 + n_states) && e->n_out <= n * (1 + n_states),
               "inputs that do not fit");
    for (int k = 0; k < n; k++) {
        const struct array *x = eval_in(e, 2 + k), *g = eval_in(e, 2 + n + k);
        struct array *y = eval_out(e, k, x->type, x->rank, x->dim), *new[2] = {NULL, NULL};
        for (int s = 0; s < n_states; s++) {
            eval_check(e, eval_in(e, 2 + (2 + s) * n + k)->n == x->n && g->n == x->n,
                       "shapes that do not fit");
            new[s] = eval_out(e, (1 + s) * n + k, x->type, x->rank, x->dim);
        }
        for (int64_t i = 0; i < x->n; i++) {
            double state[2] = {0};
            for (int s = 0; s < n_states; s++)
                state[s] = array_double(e->in[2 + (2 + s) * n + k], i);
            array_set_double(y, i, steps[kind](&r, array_double(x, i), array_double(g, i), state));
            for (int s = 0; s < n_states; s++) array_set_double(new[s], i, state[s]);
        }
    }
}
