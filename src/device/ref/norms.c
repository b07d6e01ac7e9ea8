/* The reference of norms, of reductions that are composites, of attention, of transposed convolution and of triangles.
 * All in double. */
#include "device/ref/eval.h"

#include <math.h>

/* A window is the set of points that one mean, or one sum, is over: those that differ in the reduced axes only. `kept` has the
 * other dims. Remaining dims of each are 1, and both have the strides of x. So the offset of an element is the sum of its offsets
 * in both. */
struct windows {
    struct shape kept, reduced;
};

static bool is_reduced(const struct layer_call *c, int d, int rank) {
    if (c->layer->kind == LAYER_log_softmax) return ref_wrap_axis(c->attr->axis, rank) == d;
    for (int i = 0; i < c->attr->n_axes; i++)
        if (ref_wrap_axis(c->attr->axes[i], rank) == d) return true;
    return c->attr->n_axes == 0; /* no axes: all of them */
}

static struct windows find_windows(const struct layer_call *c) {
    struct shape xs = ref_get_shape(c, 0);
    struct windows w = {xs, xs};
    w.kept.n = w.reduced.n = 1;
    for (int d = 0; d < xs.rank; d++) {
        (is_reduced(c, d, xs.rank) ? &w.kept : &w.reduced)->dim[d] = 1;
        w.kept.n *= w.kept.dim[d];
        w.reduced.n *= w.reduced.dim[d];
    }
    return w;
}

/* The sum of term(x, argument) over the window that begins at element `first` of x. */
static double sum_window(const struct layer_call *c, const struct windows *w, int64_t first,
                         double (*term)(double x, double argument), double argument) {
    int64_t at[SOL_MAX_RANK] = {0};
    double sum = 0;
    for (int64_t i = 0; i < w->reduced.n; i++) {
        sum += term(ref_real(c, 0, first + ref_find_offset(&w->reduced, at)), argument);
        ref_step_point(&w->reduced, at);
    }
    return sum;
}

static double identity(double x) { return x; }
static double negative_size(double x) { return -fabs(x); }

/* The largest map(x) of the window; NaN if one is NaN. */
static double find_top(const struct layer_call *c, const struct windows *w, int64_t first,
                       double (*map)(double x)) {
    int64_t at[SOL_MAX_RANK] = {0};
    double top = -INFINITY;
    for (int64_t i = 0; i < w->reduced.n; i++) {
        double x = map(ref_real(c, 0, first + ref_find_offset(&w->reduced, at)));
        top = isnan(x) || x > top ? x : top;
        ref_step_point(&w->reduced, at);
    }
    return top;
}

static double itself(double x, double unused) {
    (void)unused;
    return x;
}
static double square_distance(double x, double mean) { return (x - mean) * (x - mean); }
static double exp_below(double x, double top) { return exp(x - top); }
static double absolute_power(double x, double p) { return p == 0 ? x != 0 : pow(fabs(x), p); }

/* Calls `function` for the window of each kept point, with its number and its first element. */
static void eval_windows(const struct layer_call *c,
                         void (*function)(const struct layer_call *c, const struct windows *w,
                                          int64_t number, const int64_t *at)) {
    struct windows w = find_windows(c);
    int64_t at[SOL_MAX_RANK] = {0};
    for (int64_t i = 0; i < w.kept.n; i++) {
        function(c, &w, i, at);
        ref_step_point(&w.kept, at);
    }
}

/* ---- Norms ---- */

/* value * weight + bias, as far as the layer has these inputs, at point `at` of x. */
static double scale_and_shift(const struct layer_call *c, double value, const int64_t *at) {
    for (int k = 1; k < c->layer->n_in; k++) {
        struct shape s = ref_get_shape(c, k);
        double parameter = ref_real(c, k, ref_find_broadcast(&s, c->shape.rank, at));
        value = k == 1 ? value * parameter : value + parameter;
    }
    return value;
}

/* Normalizes one window. A root mean square norm has the mean 0. */
static void normalize(const struct layer_call *c, const struct windows *w, int64_t number,
                      const int64_t *kept) {
    int64_t first = ref_find_offset(&w->kept, kept), at[SOL_MAX_RANK] = {0};
    double n = (double)w->reduced.n, mean = 0;
    (void)number;
    if (c->layer->kind == LAYER_layer_norm) mean = sum_window(c, w, first, itself, 0) / n;
    double variance = sum_window(c, w, first, square_distance, mean) / n;
    for (int64_t i = 0; i < w->reduced.n; i++) {
        int64_t element = first + ref_find_offset(&w->reduced, at), point[SOL_MAX_RANK];
        for (int d = 0; d < c->shape.rank; d++) point[d] = kept[d] + at[d];
        double y = (ref_real(c, 0, element) - mean) / sqrt(variance + c->attr->eps);
        ref_set_real(c, element, scale_and_shift(c, y, point));
        ref_step_point(&w->reduced, at);
    }
}

void ref_eval_layer_norm(const struct layer_call *c) { eval_windows(c, normalize); }

void ref_eval_rms_norm(const struct layer_call *c) { eval_windows(c, normalize); }

/* The n values of one group lie one after the other; each channel has `size` of them. */
static void normalize_group(const struct layer_call *c, int64_t first, int64_t n, int64_t size) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; i++) mean += ref_real(c, 0, first + i) / (double)n;
    for (int64_t i = 0; i < n; i++)
        variance += square_distance(ref_real(c, 0, first + i), mean) / (double)n;
    for (int64_t i = first; i < first + n; i++) {
        int64_t channel = i / size % c->shape.dim[1];
        double y = (ref_real(c, 0, i) - mean) / sqrt(variance + c->attr->eps);
        if (c->layer->n_in > 1) y *= ref_real(c, 1, channel);
        if (c->layer->n_in > 2) y += ref_real(c, 2, channel);
        ref_set_real(c, i, y);
    }
}

void ref_eval_group_norm(const struct layer_call *c) {
    int64_t size = 1, channels = c->shape.dim[1] / c->attr->groups;
    for (int d = 2; d < c->shape.rank; d++) size *= c->shape.dim[d];
    for (int64_t i = 0; i < c->shape.n; i += channels * size)
        normalize_group(c, i, channels * size, size);
}

/* ---- Reductions ---- */

static void variance_of(const struct layer_call *c, const struct windows *w, int64_t number,
                        const int64_t *at) {
    int64_t first = ref_find_offset(&w->kept, at);
    double n = (double)w->reduced.n, mean = sum_window(c, w, first, itself, 0) / n;
    ref_set_real(c, number,
                 sum_window(c, w, first, square_distance, mean) / fmax(0, n - c->attr->correction));
}

void ref_eval_variance(const struct layer_call *c) { eval_windows(c, variance_of); }

static void norm_of(const struct layer_call *c, const struct windows *w, int64_t number,
                    const int64_t *at) {
    int64_t first = ref_find_offset(&w->kept, at);
    double p = c->attr->p;
    if (isinf(p)) {
        ref_set_real(c, number,
                     p > 0 ? find_top(c, w, first, fabs) : -find_top(c, w, first, negative_size));
        return;
    }
    double sum = sum_window(c, w, first, absolute_power, p);
    ref_set_real(c, number, p == 0 ? sum : pow(sum, 1 / p));
}

/* An infinite p is the largest absolute value, a negative infinite one the smallest. */
void ref_eval_norm(const struct layer_call *c) { eval_windows(c, norm_of); }

static void logsumexp_of(const struct layer_call *c, const struct windows *w, int64_t number,
                         const int64_t *at) {
    int64_t first = ref_find_offset(&w->kept, at);
    double top = find_top(c, w, first, identity), finite = isinf(top) ? 0 : top;
    ref_set_real(c, number, log(sum_window(c, w, first, exp_below, finite)) + finite);
}

void ref_eval_logsumexp(const struct layer_call *c) { eval_windows(c, logsumexp_of); }

static void log_softmax_of(const struct layer_call *c, const struct windows *w, int64_t number,
                           const int64_t *kept) {
    int64_t first = ref_find_offset(&w->kept, kept), at[SOL_MAX_RANK] = {0};
    double top = find_top(c, w, first, identity), sum = sum_window(c, w, first, exp_below, top);
    (void)number;
    for (int64_t i = 0; i < w->reduced.n; i++) {
        int64_t element = first + ref_find_offset(&w->reduced, at);
        ref_set_real(c, element, ref_real(c, 0, element) - top - log(sum));
        ref_step_point(&w->reduced, at);
    }
}

void ref_eval_log_softmax(const struct layer_call *c) { eval_windows(c, log_softmax_of); }

/* ---- Attention ---- */

/* Element [row, column] of the matrix of input `k` at the leading dims of the output's point `at`. Several heads of the output may
 * share one head of k and v. */
static double read_matrix(const struct layer_call *c, int k, const int64_t *at, int64_t row,
                          int64_t column) {
    struct shape s = ref_get_shape(c, k), q = ref_get_shape(c, 0);
    int64_t point[SOL_MAX_RANK];
    int rank = c->shape.rank;
    for (int d = 0; d < rank - 2; d++) point[d] = at[d];
    bool is_shared = k > 0 && k < 3 && s.rank > 2 && q.rank > 2 && s.dim[s.rank - 3] > 1;
    if (is_shared && q.dim[q.rank - 3] > s.dim[s.rank - 3])
        point[rank - 3] /= q.dim[q.rank - 3] / s.dim[s.rank - 3];
    point[rank - 2] = row;
    point[rank - 1] = column;
    return ref_real(c, k, ref_find_broadcast(&s, rank, point));
}

/* The score of key `j` for the query of the output's point `at`. */
static double find_score(const struct layer_call *c, const int64_t *at, int64_t j) {
    struct shape q = ref_get_shape(c, 0);
    int64_t row = at[c->shape.rank - 2];
    double sum = 0, cap = c->attr->softcap;
    for (int64_t d = 0; d < q.dim[q.rank - 1]; d++)
        sum += read_matrix(c, 0, at, row, d) * read_matrix(c, 1, at, j, d);
    sum *= c->attr->scale;
    if (cap != 0) sum = cap * tanh(sum / cap);
    bool is_condition = c->layer->n_in > 3 && c->layer->in[3]->dtype == SOL_BOOL;
    if (is_condition && read_matrix(c, 3, at, row, j) == 0) return -INFINITY;
    if (c->layer->n_in > 3 && !is_condition) sum += read_matrix(c, 3, at, row, j);
    return c->attr->causal && j > row ? -INFINITY : sum;
}

/* If all scores are -infinity, the result is 0; NaN if the layer is strict. */
void ref_eval_attention(const struct layer_call *c) {
    struct shape k = ref_get_shape(c, 1);
    int64_t at[SOL_MAX_RANK] = {0}, keys = k.dim[k.rank - 2];
    for (int64_t i = 0; i < c->shape.n; i++) {
        double top = -INFINITY, sum = 0, value = 0;
        for (int64_t j = 0; j < keys; j++) {
            double score = find_score(c, at, j);
            top = isnan(score) || score > top ? score : top;
        }
        for (int64_t j = 0; j < keys && top != -INFINITY; j++) {
            double weight = exp(find_score(c, at, j) - top);
            sum += weight;
            value += weight * read_matrix(c, 2, at, j, at[c->shape.rank - 1]);
        }
        double hidden = c->attr->strict ? (double)NAN : 0;
        ref_set_real(c, i, top == -INFINITY ? hidden : value / sum);
        ref_step_point(&c->shape, at);
    }
}

/* ---- Transposed convolution ---- */

/* Which input position reaches output position `at` along dim `i` (0 rows, 1 columns) by weight number `r`; -1: none. */
static int64_t find_reader(const struct layer_call *c, int i, int64_t at, int64_t r, int64_t size) {
    int64_t distance = at + c->attr->pad[i] - r * c->attr->dilation[i], stride = c->attr->stride[i];
    if (distance < 0 || distance % stride || distance / stride >= size) return -1;
    return distance / stride;
}

/* The contribution of channel `channel` of x to the output's point `at`. */
static double sum_windows(const struct layer_call *c, const int64_t *at, int64_t channel,
                          int64_t k) {
    struct shape xs = ref_get_shape(c, 0), ws = ref_get_shape(c, 1);
    double sum = 0;
    for (int64_t r = 0; r < ws.dim[2]; r++)
        for (int64_t s = 0; s < ws.dim[3]; s++) {
            int64_t row = find_reader(c, 0, at[2], r, xs.dim[2]),
                    column = find_reader(c, 1, at[3], s, xs.dim[3]);
            if (row < 0 || column < 0) continue;
            int64_t x = at[0] * xs.stride[0] + channel * xs.stride[1] + row * xs.stride[2] + column,
                    w = channel * ws.stride[0] + k * ws.stride[1] + r * ws.stride[2] + s;
            sum += ref_real(c, 0, x) * ref_real(c, 1, w);
        }
    return sum;
}

void ref_eval_conv_transpose(const struct layer_call *c) {
    struct shape ws = ref_get_shape(c, 1);
    int64_t at[SOL_MAX_RANK] = {0}, each = ws.dim[0] / c->attr->groups;
    for (int64_t i = 0; i < c->shape.n; i++) {
        int64_t group = at[1] / ws.dim[1];
        double sum = c->layer->n_in > 2 ? ref_real(c, 2, at[1]) : 0;
        for (int64_t channel = group * each; channel < (group + 1) * each; channel++)
            sum += sum_windows(c, at, channel, at[1] % ws.dim[1]);
        ref_set_real(c, i, sum);
        ref_step_point(&c->shape, at);
    }
}

/* ---- Triangles ---- */

static void eval_triangle(const struct layer_call *c, int64_t sign) {
    int64_t at[SOL_MAX_RANK] = {0};
    const int64_t *row = &at[c->shape.rank - 2], *column = &at[c->shape.rank - 1];
    for (int64_t i = 0; i < c->shape.n; i++) {
        bool is_kept = sign * (*column - *row - c->attr->diagonal) >= 0;
        if (is_kept) ref_move(c, i, 0, i);
        else ref_set_constant(c, i, c->attr->value);
        ref_step_point(&c->shape, at);
    }
}

void ref_eval_tril(const struct layer_call *c) { eval_triangle(c, -1); }

void ref_eval_triu(const struct layer_call *c) { eval_triangle(c, 1); }
