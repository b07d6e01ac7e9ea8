/*
 * Normalization, (x - mean) / standard deviation over some dims, and losses of classification.
 *
 * Everything is computed in double and rounded once to the type of the input, which is at least as precise as with the type that
 * files set for intermediate results (stash_type). Means and deviations that are outputs have the stash type.
 */
#include "eval.h"

#include <math.h>
#include <string.h>

/* Mean and 1 / sqrt(variance + epsilon) of `n` values. */
struct moments {
    double mean, inverse;
};

/* In two passes, since mean(x^2) - mean(x)^2 would lose digits. */
static struct moments measure(const double *x, int64_t n, double epsilon) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    return (struct moments){mean, 1 / sqrt(squares / (double)n + epsilon)};
}

/* Sets output 0 to v * scale + bias. Scale and bias are inputs 1 and 2, both optional; they must broadcast to the shape of x. */
static void scale_rows(struct eval *e, const struct array *x, double *v) {
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    struct walk walk;
    walk_init(&walk, x->rank, x->dim);
    for (int k = 0; k < 2 && eval_has(e, 1 + k); k++) {
        int64_t dim[SOL_MAX_RANK];
        struct array *both[] = {y, eval_in(e, 1 + k)};
        eval_check(e, eval_broadcast(e, 2, both, dim) == x->rank && product(x->rank, dim) == x->n,
                   "a scale that does not fit");
        walk_broadcast(&walk, k, e->in[1 + k]);
    }
    for (int64_t i = 0; i < x->n; i++, walk_next(&walk)) {
        double value = v[i] * (eval_has(e, 1) ? array_double(e->in[1], walk.offset[0]) : 1);
        array_set_double(y, i,
                         value + (eval_has(e, 2) ? array_double(e->in[2], walk.offset[1]) : 0));
    }
}

/* The type of the outputs for mean and deviation. */
static enum type stash_type(struct eval *e) {
    int64_t type = eval_int(e, "stash_type", 1);
    eval_check(e, type_is_known(type) && is_float((enum type)type), "stash_type");
    return (enum type)type;
}

/* Over all dims from `axis` on. Outputs 1 and 2 are the mean and 1 / standard deviation. */
void run_layer_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int axis = eval_axis(e, eval_int(e, "axis", -1), x->rank);
    int64_t rows = product(axis, x->dim), n = product(x->rank - axis, x->dim + axis);
    int64_t dim[SOL_MAX_RANK];
    double *v = array_doubles(e->space, x), epsilon = eval_float(e, "epsilon", 1e-5);
    for (int d = 0; d < x->rank; d++) dim[d] = d < axis ? x->dim[d] : 1;
    struct array *mean = eval_out(e, 1, stash_type(e), x->rank, dim),
                 *inverse = eval_out(e, 2, stash_type(e), x->rank, dim);
    for (int64_t r = 0; r < rows; r++) {
        struct moments m = measure(v + r * n, n, epsilon);
        array_set_double(mean, r, m.mean);
        array_set_double(inverse, r, m.inverse);
        for (int64_t i = 0; i < n; i++) v[r * n + i] = (v[r * n + i] - m.mean) * m.inverse;
    }
    scale_rows(e, x, v);
}

/* Layer norm without a mean: x / sqrt(mean(x^2) + epsilon) * scale. */
void run_rms_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int axis = eval_axis(e, eval_int(e, "axis", -1), x->rank);
    int64_t rows = product(axis, x->dim), n = product(x->rank - axis, x->dim + axis);
    double *v = array_doubles(e->space, x), epsilon = eval_float(e, "epsilon", 1e-5);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += v[r * n + i] * v[r * n + i];
        double root = sqrt(squares / (double)n + epsilon);
        for (int64_t i = 0; i < n; i++) v[r * n + i] /= root;
    }
    scale_rows(e, x, v);
}

/* Input `i` as doubles; it must have `n` values, one per channel or group. */
static double *channel_input(struct eval *e, int i, int64_t n) {
    eval_check(e, eval_in(e, i)->n == n, "a vector that does not fit the channels");
    return array_doubles(e->space, e->in[i]);
}

/* Normalizes each group of channels of each sample. Scale and bias have a value per channel; before opset 21, per group. */
static void normalize_groups(struct eval *e, const struct array *x, int64_t groups) {
    eval_check(e, x->rank >= 2 && groups > 0 && x->dim[1] % groups == 0, "groups or rank");
    int64_t channels = x->dim[1], n = x->n / max_i64(1, x->dim[0] * groups);
    int64_t inner = product(x->rank - 2, x->dim + 2), per = eval_in(e, 1)->n;
    double *v = array_doubles(e->space, x), epsilon = eval_float(e, "epsilon", 1e-5);
    eval_check(e, per == channels || per == groups, "a scale that does not fit the channels");
    double *scale = channel_input(e, 1, per), *bias = channel_input(e, 2, per);
    for (int64_t g = 0; g < x->dim[0] * groups; g++) {
        struct moments m = measure(v + g * n, n, epsilon);
        for (int64_t i = g * n; i < (g + 1) * n; i++) {
            int64_t c = i / inner % channels * per / channels;
            v[i] = (v[i] - m.mean) * m.inverse * scale[c] + bias[c];
        }
    }
    eval_set_output_doubles(e, 0, x->type, x->rank, x->dim, v);
}

void run_group_norm(struct eval *e) {
    normalize_groups(e, eval_in(e, 0), eval_int(e, "num_groups", 0));
}

/* Each channel is a group of its own. */
void run_instance_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    normalize_groups(e, x, x->rank >= 2 ? x->dim[1] : 0);
}

/* In training mode, mean and variance are computed from x, and outputs 1 and 2 are the new running statistics. */
void run_batch_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    eval_check(e, x->rank >= 1, "a scalar");
    int64_t channels = x->rank > 1 ? x->dim[1] : 1,
            inner = x->rank > 2 ? product(x->rank - 2, x->dim + 2) : 1;
    double *v = array_doubles(e->space, x), epsilon = eval_float(e, "epsilon", 1e-5);
    double *scale = channel_input(e, 1, channels), *bias = channel_input(e, 2, channels);
    double *mean = channel_input(e, 3, channels), *variance = channel_input(e, 4, channels);
    double keep = eval_float(e, "momentum", 0.9);
    bool trains = eval_int(e, "training_mode", 0);
    struct array *running[2] = {eval_out(e, 1, e->in[3]->type, 1, &channels),
                                eval_out(e, 2, e->in[4]->type, 1, &channels)};
    /* new running value = old value * momentum + value of x * (1 - momentum) */
    for (int64_t c = 0; c < channels && trains; c++) {
        double sum = 0, squares = 0, n = (double)x->n / (double)channels;
        for (int64_t i = 0; i < x->n; i++) sum += i / inner % channels == c ? v[i] : 0;
        for (int64_t i = 0; i < x->n; i++)
            squares += i / inner % channels == c ? (v[i] - sum / n) * (v[i] - sum / n) : 0;
        array_set_double(running[0], c, mean[c] * keep + sum / n * (1 - keep));
        array_set_double(running[1], c, variance[c] * keep + squares / n * (1 - keep));
        mean[c] = sum / n;
        variance[c] = squares / n;
    }
    for (int64_t i = 0; i < x->n; i++) {
        int64_t c = i / inner % channels;
        v[i] = (v[i] - mean[c]) / sqrt(variance[c] + epsilon) * scale[c] + bias[c];
    }
    eval_set_output_doubles(e, 0, x->type, x->rank, x->dim, v);
}

/* x / norm along an axis; where the norm is 0, x stays 0. */
void run_lp_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int axis = eval_axis(e, eval_int(e, "axis", -1), x->rank);
    int64_t p = eval_int(e, "p", 2), n = x->dim[axis];
    int64_t inner = product(x->rank - axis - 1, x->dim + axis + 1);
    double *v = array_doubles(e->space, x);
    eval_check(e, p == 1 || p == 2, "p is neither 1 nor 2");
    for (int64_t i = 0; i < x->n / max_i64(1, n); i++) {
        double *row = v + i / inner * n * inner + i % inner, sum = 0;
        for (int64_t k = 0; k < n; k++)
            sum += p == 1 ? fabs(row[k * inner]) : row[k * inner] * row[k * inner];
        double norm = p == 1 ? sum : sqrt(sum);
        for (int64_t k = 0; k < n && norm != 0; k++) row[k * inner] /= norm;
    }
    eval_set_output_doubles(e, 0, x->type, x->rank, x->dim, v);
}

/* Over the dims `axes`, by default 0, 2, 3. 1e-9 is added to the deviation, as in ONNX's definition of the operator. */
void run_mean_variance_norm(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    static const int64_t usual[] = {0, 2, 3};
    const int64_t *axes;
    int n = eval_ints(e, "axes", &axes);
    bool named[SOL_MAX_RANK] = {false};
    struct walk walk;
    int64_t groups = 1;
    for (int i = 0; i < (n ? n : 3); i++)
        eval_axis_of_list(e, (n ? axes : usual)[i], x->rank, named);
    walk_init(&walk, x->rank, x->dim);
    for (int d = x->rank - 1; d >= 0; d--) {
        walk.stride[0][d] = named[d] ? 0 : groups;
        groups *= named[d] ? 1 : x->dim[d];
    }
    double *v = array_doubles(e->space, x), size = (double)x->n / (double)max_i64(1, groups);
    double *sum = SPACE_ARRAY(e->space, double, groups),
           *squares = SPACE_ARRAY(e->space, double, groups);
    struct walk at = walk;
    for (int64_t i = 0; i < x->n; i++, walk_next(&at)) {
        sum[at.offset[0]] += v[i];
        squares[at.offset[0]] += v[i] * v[i];
    }
    for (int64_t i = 0; i < x->n; i++, walk_next(&walk)) {
        double mean = sum[walk.offset[0]] / size;
        double variance = squares[walk.offset[0]] / size - mean * mean;
        v[i] = (v[i] - mean) / (sqrt(fmax(variance, 0)) + 1e-9);
    }
    eval_set_output_doubles(e, 0, x->type, x->rank, x->dim, v);
}

/* x / (bias + alpha / size * sum over `size` neighbouring channels of x^2) ^ beta */
void run_lrn(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    double alpha = eval_float(e, "alpha", 1e-4), beta = eval_float(e, "beta", 0.75),
           bias = eval_float(e, "bias", 1);
    int64_t size = eval_int(e, "size", 0);
    eval_check(e, x->rank >= 2 && size > 0 && size < INT32_MAX, "size or rank");
    int64_t channels = x->dim[1], inner = product(x->rank - 2, x->dim + 2);
    double *v = array_doubles(e->space, x);
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t c = i / inner % channels, first = max_i64(0, c - (size - 1) / 2);
        int64_t last = min_i64(channels - 1, c + size / 2);
        double squares = 0;
        for (int64_t k = first; k <= last; k++)
            squares += v[i + (k - c) * inner] * v[i + (k - c) * inner];
        array_set_double(y, i, v[i] / pow(bias + alpha / (double)size * squares, beta));
    }
}

/* ---- Losses ---- */

/* How the losses are reduced: not at all, to their weighted mean, or to their sum. */
enum reduction { KEEP, MEAN, SUM };

static enum reduction read_reduction(struct eval *e) {
    const char *name = eval_string(e, "reduction", "mean");
    if (!strcmp(name, "none")) return KEEP;
    eval_check(e, !strcmp(name, "mean") || !strcmp(name, "sum"), "reduction");
    return !strcmp(name, "mean") ? MEAN : SUM;
}

/* The loss is -weight[t] * v[n, t, ...], where t is the class of the target at [n, ...]; the class ignore_index has weight 0. */
static void output_losses(struct eval *e, const struct array *x, const double *v) {
    const struct array *target = eval_in(e, 1);
    enum reduction reduction = read_reduction(e);
    eval_check(e, x->rank >= 2 && target->rank == x->rank - 1, "a target of another rank");
    int64_t classes = x->dim[1], inner = product(x->rank - 2, x->dim + 2);
    bool ignores = eval_attribute(e, "ignore_index") != NULL;
    int64_t ignored = eval_int(e, "ignore_index", 0);
    double *weight = eval_has(e, 2) ? channel_input(e, 2, classes) : NULL, sum = 0, total = 0;
    eval_check(e, target->n * classes == x->n, "a target of another shape");
    struct array *y = eval_out(e, 0, x->type, reduction == KEEP ? target->rank : 0, target->dim);
    for (int64_t i = 0; i < target->n; i++) {
        int64_t class = array_int(target, i);
        bool counts = !(ignores && class == ignored);
        if (counts) class = eval_index(e, class, classes);
        double w = !counts ? 0 : weight ? weight[class] : 1;
        double loss = counts ? -w * v[(i / inner * classes + class) * inner + i % inner] : 0;
        if (reduction == KEEP) array_set_double(y, i, loss);
        sum += loss;
        total += w;
    }
    if (reduction != KEEP) array_set_double(y, 0, reduction == MEAN ? sum / total : sum);
}

/* The input is logarithms of probabilities. */
void run_nll_loss(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    output_losses(e, x, array_doubles(e->space, x));
}

/* The same for scores: applies log softmax over the classes first, which is output 1. */
void run_softmax_loss(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    eval_check(e, x->rank >= 2, "scores without classes");
    int64_t classes = x->dim[1], inner = product(x->rank - 2, x->dim + 2);
    double *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < x->n / max_i64(1, classes); i++) {
        double *row = v + i / inner * classes * inner + i % inner, top = -INFINITY, sum = 0;
        for (int64_t k = 0; k < classes; k++) top = fmax(top, row[k * inner]);
        for (int64_t k = 0; k < classes; k++) sum += exp(row[k * inner] - top);
        for (int64_t k = 0; k < classes; k++) row[k * inner] -= top + log(sum);
    }
    output_losses(e, x, v);
    eval_set_output_doubles(e, 1, x->type, x->rank, x->dim, v);
}
