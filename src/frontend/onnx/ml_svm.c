/*
 * Support vector machines, as LIBSVM stores them (Chang, Lin, "LIBSVM: A Library for Support Vector Machines", 2011).
 *
 * A classifier of n classes has a decision for each pair of classes. The support vectors are sorted by class. A vector of class i has
 * a coefficient for each of the other n - 1 classes. Without support vectors the coefficients are those of linear functions, one per
 * class.
 */
#include "ml.h"

#include <math.h>
#include <string.h>

/* What both operators have. `width` is the number of features. */
struct svm {
    const char *kernel;
    double gamma, offset, degree;
    int64_t n, width; /* of the support vectors; 0: the machine is linear */
    const float *vector, *weight, *rho;
    int n_weights, n_rho;
};

/* Checks that the lists fit `n` vectors of `width` features. */
static struct svm read_svm(struct eval *e, int64_t n, int64_t width) {
    const float *kernel;
    struct svm s = {.n = n, .width = width};
    int n_kernel = eval_floats(e, "kernel_params", &kernel),
        n_vectors = eval_floats(e, "support_vectors", &s.vector);
    s.kernel = eval_word(e, "kernel_type", "LINEAR", "LINEAR POLY RBF SIGMOID");
    s.n_weights = eval_floats(e, "coefficients", &s.weight);
    s.n_rho = eval_floats(e, "rho", &s.rho);
    eval_check(e, !n_kernel || n_kernel == 3, "kernel_params does not have 3 values");
    eval_check(e, s.n_rho > 0, "rho is missing");
    eval_check(e, n >= 0 && (n ? width == n_vectors / n && n * width == n_vectors : !n_vectors),
               "support_vectors do not fit their number and the features");
    if (!n_kernel) return s;
    s.gamma = (double)kernel[0];
    s.offset = (double)kernel[1];
    s.degree = (double)kernel[2];
    return s;
}

static double dot(int64_t n, const double *x, const float *v) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * (double)v[i];
    return sum;
}

static double squared_distance(int64_t n, const double *x, const float *v) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (x[i] - (double)v[i]) * (x[i] - (double)v[i]);
    return sum;
}

/* The similarity of a row and a support vector. */
static double kernel_of(const struct svm *s, const double *x, const float *v) {
    if (*s->kernel == 'R') return exp(-s->gamma * squared_distance(s->width, x, v));
    const double product = dot(s->width, x, v);
    if (*s->kernel == 'L') return product;
    const double scaled = s->gamma * product + s->offset;
    return *s->kernel == 'P' ? pow(scaled, s->degree) : tanh(scaled);
}

/* One value per row; one_class makes it the sign. */
void run_svm_regressor(struct eval *e) {
    const struct ml_rows x = ml_rows(e);
    const struct svm s = read_svm(e, eval_int(e, "n_supports", 0), x.width);
    const bool is_sign = eval_int(e, "one_class", 0) != 0;
    if (ml_transform(e)) eval_stop(e, fail(SOL_EUNSUPPORTED, "a post_transform"));
    eval_check(e, s.n_weights == (s.n ? s.n : x.width), "coefficients");
    struct array *y = eval_out(e, 0, TYPE_F32, 2, (int64_t[]){x.n, 1});
    for (int64_t r = 0; r < x.n; r++) {
        const double *row = x.values + r * x.width;
        double sum = (double)s.rho[0] + (s.n ? 0 : dot(x.width, row, s.weight));
        for (int64_t j = 0; j < s.n; j++)
            sum += (double)s.weight[j] * kernel_of(&s, row, s.vector + j * x.width);
        array_set_double(y, r, !is_sign ? sum : sum > 0 ? 1 : -1);
    }
}

/* ---- Classification ---- */

/* `n` classes; class i has vectors start[i] to start[i + 1] - 1. `a` and `b` are for probabilities, NULL: there are none. */
struct classifier {
    struct svm svm;
    int n, n_pairs;
    int64_t *start;
    const float *a, *b;
};

/* Sums the vectors of the classes; returns their number, 0 for a linear machine. */
static int64_t read_starts(struct eval *e, struct classifier *c) {
    const int64_t *counts;
    int n = eval_ints(e, "vectors_per_class", &counts);
    c->start = SPACE_ARRAY(e->space, int64_t, c->n + 1);
    eval_check(e, !n || n == c->n, "vectors_per_class does not have a number per class");
    for (int i = 0; i < n; i++) {
        eval_check(e, counts[i] >= 0 && counts[i] < INT32_MAX, "vectors_per_class");
        c->start[i + 1] = c->start[i] + counts[i];
    }
    return c->start[n];
}

static struct classifier read_classifier(struct eval *e, int n, int64_t width) {
    struct classifier c = {.n = n};
    const int64_t n_vectors = read_starts(e, &c);
    c.svm = read_svm(e, n_vectors, width);
    eval_check(e, !n_vectors || n <= 4096, "too many classes"); /* pairs are counted as int */
    c.n_pairs = n_vectors ? n * (n - 1) / 2 : 0;
    int n_a = eval_floats(e, "prob_a", &c.a), n_b = eval_floats(e, "prob_b", &c.b);
    eval_check(e, n_a == n_b && (!n_a || !n_vectors || n_a == c.n_pairs), "prob_a and prob_b");
    if (!n_a || !n_vectors) c.a = NULL;
    eval_check(e, c.svm.n_weights == (n_vectors ? (n - 1) * n_vectors : n * width),
               "coefficients do not fit the classes and vectors");
    eval_check(e, c.svm.n_rho >= (n_vectors ? c.n_pairs : 1), "rho does not have a value per pair");
    return c;
}

/* The decision between each two classes, and how many each class won. */
static void decide(const struct classifier *c, const double *similar, double *score,
                   double *votes) {
    const float *weight = c->svm.weight;
    for (int i = 0, pair = 0; i < c->n; i++) {
        for (int j = i + 1; j < c->n; j++, pair++) {
            double sum = (double)c->svm.rho[pair];
            for (int64_t k = c->start[i]; k < c->start[i + 1]; k++)
                sum += (double)weight[(j - 1) * c->svm.n + k] * similar[k];
            for (int64_t k = c->start[j]; k < c->start[j + 1]; k++)
                sum += (double)weight[i * c->svm.n + k] * similar[k];
            score[pair] = sum;
            votes[sum > 0 ? i : j]++;
        }
    }
}

/*
 * Probabilities p of n classes from those of pairs, r[i,j]: the minimum of the sum of (r[j,i] p[i] - r[i,j] p[j])^2, by the iteration
 * of LIBSVM with its limits (Wu, Lin, Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004).
 */
static void couple(int n, const double *r, double *q, double *qp, double *p) {
    for (int i = 0; i < n; i++) {
        p[i] = 1.0 / n;
        q[i * n + i] = 0;
        for (int j = 0; j < n; j++) {
            if (j == i) continue;
            q[i * n + i] += r[j * n + i] * r[j * n + i];
            q[i * n + j] = -r[j * n + i] * r[i * n + j];
        }
    }
    for (int step = 0; step < (n > 100 ? n : 100); step++) {
        double all = 0, error = 0;
        for (int i = 0; i < n; i++) {
            qp[i] = 0;
            for (int j = 0; j < n; j++) qp[i] += q[i * n + j] * p[j];
            all += p[i] * qp[i];
        }
        for (int i = 0; i < n; i++) error = fmax(error, fabs(qp[i] - all));
        if (error < 0.005 / n) return;
        for (int i = 0; i < n; i++) {
            const double by = (all - qp[i]) / q[i * n + i];
            p[i] += by;
            all = (all + by * (by * q[i * n + i] + 2 * qp[i])) / (1 + by) / (1 + by);
            for (int j = 0; j < n; j++) {
                qp[j] = (qp[j] + by * q[i * n + j]) / (1 + by);
                p[j] /= 1 + by;
            }
        }
    }
}

/* Memory for one row. */
struct row {
    double *similar, *score, *votes, *r, *q, *qp, *p;
};

/* Replaces the scores of the pairs by the probabilities of the classes. */
static void estimate(const struct classifier *c, struct row *row) {
    for (int i = 0, pair = 0; i < c->n; i++) {
        for (int j = i + 1; j < c->n; j++, pair++) {
            const double at = row->score[pair] * (double)c->a[pair] + (double)c->b[pair],
                         p = fmin(fmax(1 - ml_logistic(at), 1e-7), 1 - 1e-7);
            row->r[i * c->n + j] = p;
            row->r[j * c->n + i] = 1 - p;
        }
    }
    couple(c->n, row->r, row->q, row->qp, row->p);
    memcpy(row->score, row->p, (size_t)c->n * sizeof *row->p);
}

static struct row new_row(struct eval *e, const struct classifier *c) {
    const int64_t n = c->n, most = max_i64(max_i64(n, c->n_pairs), 2);
    struct row row = {.similar = SPACE_ARRAY(e->space, double, c->svm.n + 1),
                      .score = SPACE_ARRAY(e->space, double, most),
                      .votes = SPACE_ARRAY(e->space, double, n)};
    if (!c->a) return row;
    row.r = SPACE_ARRAY(e->space, double, n *n);
    row.q = SPACE_ARRAY(e->space, double, n *n);
    row.qp = SPACE_ARRAY(e->space, double, n);
    row.p = SPACE_ARRAY(e->space, double, n);
    return row;
}

/* Fills the scores of a row; returns the class with the most votes, or of a linear machine the largest score. */
static int classify(const struct classifier *c, const double *x, struct row *row) {
    const struct svm *s = &c->svm;
    double *by = s->n ? row->votes : row->score;
    int best = 0;
    memset(row->votes, 0, (size_t)c->n * sizeof *row->votes);
    for (int64_t k = 0; k < s->n; k++) row->similar[k] = kernel_of(s, x, s->vector + k * s->width);
    if (s->n) decide(c, row->similar, row->score, row->votes);
    for (int k = 0; k < c->n && !s->n; k++)
        row->score[k] = (double)s->rho[0] + dot(s->width, x, s->weight + k * s->width);
    for (int k = 1; k < c->n; k++)
        if (by[k] > by[best]) best = k;
    if (c->a) estimate(c, row);
    return best;
}

/* One decision without probabilities stands for two classes, and becomes two scores, which ONNX does not define. They are
 * opposites only without a transform, as in ONNX Runtime. */
void run_svm_classifier(struct eval *e) {
    const struct ml_rows x = ml_rows(e);
    const struct ml_labels labels = ml_labels(e, "classlabels_ints", "classlabels_strings");
    const enum ml_transform transform = ml_transform(e);
    eval_check(e, labels.list, "classlabels_ints and classlabels_strings are missing");
    const struct classifier c = read_classifier(e, labels.list->n, x.width);
    struct row row = new_row(e, &c);
    const int n_scores = c.svm.n && !c.a ? c.n_pairs : c.n;
    const bool is_pair = n_scores == 1 && c.n == 2;
    const int width = is_pair ? 2 : n_scores;
    const enum ml_second second = !is_pair ? ML_ALONE : transform ? ML_COMPLEMENT : ML_OPPOSITE;
    struct array *label = eval_out(e, 0, labels.type, 1, &x.n),
                 *y = eval_out(e, 1, TYPE_F32, 2, (int64_t[]){x.n, width});
    for (int64_t r = 0; r < x.n; r++) {
        const int best = classify(&c, x.values + r * x.width, &row);
        ml_set_label(e, label, r, &labels, best);
        ml_transform_scores(transform, n_scores, row.score, second);
        for (int k = 0; k < width; k++) array_set_double(y, r * width + k, row.score[k]);
    }
}
