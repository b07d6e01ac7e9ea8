/*
 * What the classifiers of ai.onnx.ml share: labels, and the transforms of scores. LinearClassifier is the simplest one.
 *
 * The definitions of the operators leave open what a single score for two classes means. SOL does as ONNX Runtime.
 */
#include "ml.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct ml_rows ml_rows(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    eval_check(e, x->rank == 1 || x->rank == 2, "an input that is neither a row nor a matrix");
    return (struct ml_rows){.n = x->rank == 1 ? 1 : x->dim[0],
                            .width = x->dim[x->rank - 1],
                            .values = array_doubles(e->space, x)};
}

/* ---- Labels ---- */

struct ml_labels ml_labels(struct eval *e, const char *ints, const char *strings) {
    const struct onnx_attribute *a = eval_attribute(e, strings), *b = eval_attribute(e, ints);
    if (a && a->strings.n) return (struct ml_labels){TYPE_STRING, &a->strings};
    if (b && b->ints.n) return (struct ml_labels){TYPE_I64, &b->ints};
    return (struct ml_labels){TYPE_NONE, NULL};
}

void ml_set_label(struct eval *e, struct array *y, int64_t i, const struct ml_labels *labels,
                  int64_t k) {
    eval_check(e, labels->list && k >= 0 && k < labels->list->n, "a class that has no label");
    memcpy(array_at(y, i), (const char *)labels->list->at + k * (int64_t)types[labels->type].size,
           types[labels->type].size);
}

static bool is_same(const struct bytes *a, const struct bytes *b) {
    return a->size == b->size && (!a->size || !memcmp(a->at, b->at, a->size));
}

int64_t ml_find_label(const struct ml_labels *labels, const struct array *x, int64_t i) {
    const struct bytes *text = (const struct bytes *)x->data + i;
    for (int k = 0; k < labels->list->n; k++)
        if (labels->type == TYPE_STRING ? is_same(ITEM(*labels->list, struct bytes, k), text)
                                        : *ITEM(*labels->list, int64_t, k) == array_int(x, i))
            return k;
    return -1;
}

struct array *ml_floats(struct eval *e, const char *name) {
    char tensor[64];
    const float *list;
    snprintf(tensor, sizeof tensor, "%s_as_tensor", name);
    struct array *array = eval_tensor(e, tensor);
    if (array && array->n) return array;
    int64_t n = eval_floats(e, name, &list);
    if (!n) return NULL;
    array = eval_new(e, TYPE_F32, 1, &n);
    memcpy(array->data, list, (size_t)n * sizeof *list);
    return array;
}

/* ---- Transforms ---- */

enum ml_transform ml_transform(struct eval *e) {
    static const char *const names[] = {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"};
    const char *word = eval_string(e, "post_transform", "NONE");
    for (int i = 0; i < COUNT(names); i++)
        if (!strcmp(names[i], word)) return (enum ml_transform)i;
    eval_stop(e, fail(SOL_EINVAL, "post_transform \"%.32s\"", word));
}

/* exp never overflows: its argument is at most 0. */
double ml_logistic(double x) {
    const double small = exp(-fabs(x));
    return x < 0 ? small / (1 + small) : 1 / (1 + small);
}

/* The inverse of the normal distribution, by the approximation of the inverse error function with the constant 0.147 (Winitzki),
 * which the other runtimes use, too: more precise results would differ from theirs. */
static double probit(double x) {
    const double at = 2 * x - 1, rest = (1 - at) * (1 + at);
    const double a = 2 / (3.14159265358979323846 * 0.147) + 0.5 * log(rest), b = log(rest) / 0.147;
    return 1.41421356 * copysign(sqrt(sqrt(a * a - b) - a), at);
}

/* `keeps_zero`: a score of 0 becomes 0 instead of exp(0 - largest), up to a factor. */
static void softmax(int n, double *score, bool keeps_zero) {
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) largest = fmax(largest, score[i]);
    for (int i = 0; i < n; i++) {
        const bool is_zero = keeps_zero && fabs(score[i]) <= 1e-7;
        score[i] = is_zero ? score[i] * exp(-largest) : exp(score[i] - largest);
        sum += score[i];
    }
    for (int i = 0; i < n; i++) score[i] = sum == 0 ? 0.5 : score[i] / sum;
}

/* A score alone has no softmax, and is not passed to the logistic function. */
static int transform_one(enum ml_transform transform, double *score, enum ml_second second) {
    const double x = score[0];
    if (second == ML_ALONE) {
        if (transform == ML_PROBIT) score[0] = probit(x);
        return 1;
    }
    score[0] = second == ML_COMPLEMENT && transform != ML_LOGISTIC ? 1 - x : -x;
    score[1] = x;
    for (int i = 0; i < 2; i++) {
        if (transform == ML_LOGISTIC) score[i] = ml_logistic(score[i]);
        if (transform == ML_PROBIT) score[i] = probit(score[i]);
    }
    return 2;
}

int ml_transform_scores(enum ml_transform transform, int n, double *score, enum ml_second second) {
    if (n == 1) return transform_one(transform, score, second);
    if (transform == ML_SOFTMAX || transform == ML_SOFTMAX_ZERO)
        softmax(n, score, transform == ML_SOFTMAX_ZERO);
    for (int i = 0; i < n; i++) {
        if (transform == ML_LOGISTIC) score[i] = ml_logistic(score[i]);
        if (transform == ML_PROBIT) score[i] = probit(score[i]);
    }
    return n;
}

/* ---- LinearClassifier ---- */

static int find_largest(int n, const double *score) {
    int best = 0;
    for (int k = 1; k < n; k++)
        if (score[k] > score[best]) best = k;
    return best;
}

/* The scores of a row are coefficients * row + intercepts. The label is decided before the transform; with one score, by its
 * sign. */
void run_linear_classifier(struct eval *e) {
    const struct ml_rows x = ml_rows(e);
    const struct ml_labels labels = ml_labels(e, "classlabels_ints", "classlabels_strings");
    const enum ml_transform transform = ml_transform(e);
    const float *weight, *bias;
    const int n_weights = eval_floats(e, "coefficients", &weight),
              n_bias = eval_floats(e, "intercepts", &bias);
    const int n = x.width ? (int)(n_weights / x.width) : n_bias;
    eval_check(e, n > 0 && n * x.width == n_weights && (!n_bias || n_bias == n),
               "coefficients or intercepts that do not fit the features");
    eval_check(e, !labels.list || labels.list->n >= (n > 1 ? n : 2), "a class that has no label");
    const bool is_pair = n == 1 && labels.list && labels.list->n == 2;
    const int width = is_pair ? 2 : n;
    struct array *label = eval_out(e, 0, labels.list ? labels.type : TYPE_I64, 1, &x.n),
                 *y = eval_out(e, 1, TYPE_F32, 2, (int64_t[]){x.n, width});
    double *score = SPACE_ARRAY(e->space, double, width);
    for (int64_t r = 0; r < x.n; r++) {
        for (int k = 0; k < n; k++) {
            score[k] = n_bias ? (double)bias[k] : 0;
            for (int64_t f = 0; f < x.width; f++)
                score[k] += (double)weight[k * x.width + f] * x.values[r * x.width + f];
        }
        const int best = n > 1 ? find_largest(n, score) : score[0] > 0;
        if (!labels.list) array_set_int(label, r, best);
        else ml_set_label(e, label, r, &labels, best);
        ml_transform_scores(transform, n, score, is_pair ? ML_COMPLEMENT : ML_ALONE);
        for (int k = 0; k < width; k++) array_set_double(y, r * width + k, score[k]);
    }
}
