/*
 * Operators whose result, or one of whose factors, is known from shapes and attributes alone: Range of floats, EyeLike, AffineGrid,
 * DFT.
 */
#include "import.h"

#include <math.h>
#include <string.h>

/* A parameter of these numbers, in the element type `to`. */
static sol_tensor constant(struct op_call *c, int rank, const int64_t *dim, const double *v,
                           enum sol_dtype to) {
    return call_cast(c, call_param(c, SOL_F64, rank, dim, v), to);
}

#define MAX_NUMBERS ((int64_t)1 << 24)

/* The number of steps from start to the limit, which is not included. It is counted in doubles, since a difference of 64-bit integers
 * may overflow. */
static enum sol_status count_steps(double start, double limit, double step, int64_t *n) {
    const double exact = (limit - start) / step;
    if (step == 0 || exact != exact) return fail(SOL_EINVAL, "a step of 0, or no number");
    if (exact > 0x1p62) return fail(SOL_EUNSUPPORTED, "%g numbers", exact);
    *n = exact > 0 ? (int64_t)exact + ((double)(int64_t)exact < exact) : 0;
    return SOL_OK;
}

/* start + step * (0, 1, ..), modulo 2^64. */
static enum sol_status range_of_integers(struct op_call *c) {
    int64_t *at = ARENA_ARRAY(c->im->arena, int64_t, 3), n;
    for (int i = 0; i < 3; i++) call_input_ints(c, i, 1, &at[i]);
    TRY(c->im->status);
    TRY(count_steps((double)at[0], (double)at[1], (double)at[2], &n));
    sol_tensor x = call_arange(c, size_const(n), 1, 0);
    x = LAYER2(c, "mul", x, call_param(c, SOL_I64, 0, NULL, &at[2]), "");
    x = LAYER2(c, "add", x, call_param(c, SOL_I64, 0, NULL, &at[0]), "");
    return call_set_output(c, 0, call_cast(c, x, c->in[0]->dtype));
}

/* start, start + step, .. up to, not including, the limit. */
enum sol_status op_range_values(struct op_call *c) {
    if (size_family(c->in[0]->dtype) != FAMILY_FLOAT) return range_of_integers(c);
    const double start = call_input_float(c, 0), limit = call_input_float(c, 1),
                 step = call_input_float(c, 2);
    int64_t count;
    TRY(c->im->status);
    TRY(count_steps(start, limit, step, &count));
    if (count > MAX_NUMBERS) return fail(SOL_EUNSUPPORTED, "%lld numbers", (long long)count);
    double *v = ARENA_ARRAY(c->im->arena, double, count);
    for (int64_t i = 0; i < count; i++) v[i] = start + (double)i * step;
    return call_set_output(c, 0, constant(c, 1, &count, v, c->in[0]->dtype));
}

/* Ones on diagonal k of a matrix. */
enum sol_status op_eye_like(struct op_call *c) {
    enum sol_dtype to = c->in[0]->dtype;
    const int64_t k = call_int(c, "k", 0);
    if (call_attribute(c, "dtype")) TRY(tensor_dtype(call_int(c, "dtype", 0), &to));
    if (call_rank(c, 0) != 2) return fail(SOL_EINVAL, "rank %d", call_rank(c, 0));
    if (k < INT32_MIN || k > INT32_MAX) return fail(SOL_EUNSUPPORTED, "k is %lld", (long long)k);
    sol_tensor row = call_arange(c, c->in[0]->dim[0], 1, 1),
               column = call_arange(c, c->in[0]->dim[1], 1, 0);
    row = LAYER2(c, "add", row, call_scalar_of(c, (double)k, SOL_I64), "");
    return call_set_output(c, 0, call_cast(c, LAYER2(c, "equal", row, column, ""), to));
}

/* ---- AffineGrid ---- */

/* The coordinate of position `at` of `n`, from -1 to 1: of pixels' centers, or with `aligned` of the outermost ones. */
static double coordinate(int64_t at, int64_t n, bool aligned) {
    if (aligned) return n > 1 ? 2 * (double)at / (double)(n - 1) - 1 : 0;
    return (2 * (double)at + 1) / (double)n - 1;
}

/* The homogeneous coordinates (innermost dim first, then 1) of all positions, times the transposed matrix of each sample. */
enum sol_status op_affine_grid(struct op_call *c) {
    int64_t size[5], points = 1;
    const int n = call_input_ints(c, 1, 5, size) - 2;
    const bool aligned = call_int(c, "align_corners", 0) != 0;
    TRY(c->im->status);
    if ((n != 2 && n != 3) || call_rank(c, 0) != 3 || !size_is(c->in[0]->dim[0], size[0]) ||
        !size_is(c->in[0]->dim[1], n) || !size_is(c->in[0]->dim[2], n + 1))
        return fail(SOL_EINVAL, "shapes that do not fit");
    struct size dim[5] = {size_const(size[0])};
    for (int d = 0; d < n; d++) {
        if (size[2 + d] < 1 || size[2 + d] > 1 << 20 || points > 1 << 20)
            return fail(SOL_EUNSUPPORTED, "a dim of %lld", (long long)size[2 + d]);
        points *= size[2 + d];
        dim[1 + d] = size_const(size[2 + d]);
    }
    if (points > 1 << 22) return fail(SOL_EUNSUPPORTED, "%lld points", (long long)points);
    dim[n + 1] = size_const(n);
    double *v = ARENA_ARRAY(c->im->arena, double, points *(n + 1));
    for (int64_t p = 0; p < points; p++) {
        int64_t rest = p;
        for (int d = n - 1; d >= 0; d--, rest /= size[3 + d])
            v[p * (n + 1) + n - 1 - d] = coordinate(rest % size[2 + d], size[2 + d], aligned);
        v[p * (n + 1) + n] = 1;
    }
    const int64_t shape[2] = {points, n + 1};
    sol_tensor base = call_param(c, SOL_F64, 2, shape, v),
               theta = call_cast(c, call_tensor(c, 0), SOL_F64);
    sol_tensor y = LAYER2(c, "matmul", base, LAYER1(c, "permute", theta, "axes=[0,2,1]"), "");
    return call_set_output(c, 0, call_cast(c, call_reshape(c, y, n + 2, dim), c->in[0]->dtype));
}

/* ---- DFT ---- */

#define MAX_TRANSFORM 512

/* The sizes of a transform. parts: 2 for complex values, 1 for real ones. */
struct transform {
    int64_t n, size, n_out, parts, out_parts;
    bool is_inverse, is_half;
};

/* How much input value (i, part p) adds to result (k, part q). A one-sided spectrum stands for its mirror image, too. */
static double coefficient(const struct transform *t, int64_t i, int64_t p, int64_t k, int64_t q) {
    const double sign = t->is_inverse ? 1 : -1, by = t->is_inverse ? (double)t->size : 1;
    const double angle = sign * 2 * M_PI * (double)(k * i % t->size) / (double)t->size;
    const double re = p ? -sin(angle) : cos(angle), im = p ? cos(angle) : sin(angle);
    return (q ? im : re) / by;
}

static double *transform_matrix(struct op_call *c, const struct transform *t) {
    const int64_t columns = t->n_out * t->out_parts, used = min_i64(t->n, t->size);
    const bool mirrors = t->is_half && t->is_inverse;
    double *m = ARENA_ARRAY(c->im->arena, double, t->n * t->parts * columns);
    for (int64_t i = 0; i < used; i++)
        for (int64_t p = 0; p < t->parts; p++)
            for (int64_t j = 0; j < columns; j++) {
                const int64_t k = j / t->out_parts, q = j % t->out_parts, other = t->size - i;
                double sum = mirrors && i > t->size / 2 ? 0 : coefficient(t, i, p, k, q);
                if (mirrors && i > 0 && other > t->size / 2 && other < t->size)
                    sum += (p ? -1 : 1) * coefficient(t, other, p, k, q);
                m[(i * t->parts + p) * columns + j] = sum;
            }
    return m;
}

static enum sol_status read_transform(struct op_call *c, int axis, struct transform *t) {
    const int rank = call_rank(c, 0);
    t->is_inverse = call_int(c, "inverse", 0) != 0;
    t->is_half = call_int(c, "onesided", 0) != 0;
    t->parts = call_dim(c, 0, rank - 1);
    t->n = t->size = call_dim(c, 0, axis);
    if (t->is_half && t->is_inverse) t->size = 2 * (t->n - 1);
    if (call_has(c, 1)) call_input_ints(c, 1, 1, &t->size);
    TRY(c->im->status);
    if (axis >= rank - 1 || t->size < 1 || (t->parts != 1 && t->parts != 2))
        return fail(SOL_EINVAL, "axis, parts or length");
    if (t->size > MAX_TRANSFORM || t->n > MAX_TRANSFORM || t->n < 1)
        return fail(SOL_EUNSUPPORTED, "a transform of %lld values", (long long)t->size);
    t->n_out = t->is_half && !t->is_inverse ? t->size / 2 + 1 : t->size;
    t->out_parts = t->is_half && t->is_inverse ? 1 : 2;
    return SOL_OK;
}

/* A product with the matrix of the transform, in f64, so that the errors are far below those of f32. Before opset 20, the axis is an
 * attribute. */
enum sol_status op_dft(struct op_call *c) {
    struct transform t;
    struct size dim[SOL_MAX_RANK], flat[SOL_MAX_RANK];
    int64_t order[SOL_MAX_RANK], at = call_int(c, "axis", c->im->opset < 20 ? 1 : -2);
    const int rank = call_rank(c, 0);
    if (call_has(c, 2)) call_input_ints(c, 2, 1, &at);
    if (rank < 2) return fail(SOL_EINVAL, "rank %d", rank);
    const int axis = (int)call_axis(c, at, rank);
    TRY(read_transform(c, axis, &t));
    for (int d = 0; d < rank; d++) order[d] = d == axis ? rank - 2 : d == rank - 2 ? axis : d;
    sol_tensor x = call_cast(c, call_tensor(c, 0), SOL_F64);
    x = call_permute(c, x, rank, order);
    call_shape(c, x, dim);
    memcpy(flat, dim, sizeof flat);
    flat[rank - 2] = size_const(1);
    flat[rank - 1] = size_const(t.n * t.parts);
    x = call_reshape(c, x, rank, flat);
    const int64_t shape[2] = {t.n * t.parts, t.n_out * t.out_parts};
    x = LAYER2(c, "matmul", x, call_param(c, SOL_F64, 2, shape, transform_matrix(c, &t)), "");
    dim[rank - 2] = size_const(t.n_out);
    dim[rank - 1] = size_const(t.out_parts);
    x = call_permute(c, call_reshape(c, x, rank, dim), rank, order);
    return call_set_output(c, 0, call_cast(c, x, c->in[0]->dtype));
}
