/*
 * GridSample: reads an image at positions that are data of the call.
 *
 * The image becomes a table with a row per pixel. Each neighbour of a position is one gather of rows, multiplied by its weight;
 * the result is their sum. Positions are computed as f64, since a rounding error may select another pixel.
 */
#include "rows.h"

#include <math.h>
#include <string.h>

enum beyond { ZEROS, BORDER, REFLECTION };
enum { MAX_SPATIAL = 3 };

/* n: spatial dims. width: neighbours per dim: 1 (nearest), 2 (linear) or 4 (cubic). */
struct sampling {
    int n, width;
    enum beyond beyond;
    bool aligned; /* -1 and 1 are the centers of the outermost pixels, not their outer edges */
    struct size dim[SOL_MAX_RANK];
    sol_tensor at[MAX_SPATIAL]; /* positions in pixels, f64 [batch, out..] */
};

static sol_tensor number(struct op_call *c, double value) {
    return call_scalar_of(c, value, SOL_F64);
}

/* x `kind` value */
static sol_tensor with(struct op_call *c, const char *kind, sol_tensor x, double value) {
    return LAYER2(c, kind, x, number(c, value), "");
}

/* Reflects x at `low` and `high` until it is between them. */
static sol_tensor reflect(struct op_call *c, sol_tensor x, double low, double high) {
    const double range = high - low;
    if (range <= 0) return with(c, "mul", x, 0);
    sol_tensor d = with(c, "rem", LAYER1(c, "abs", with(c, "sub", x, low), ""), 2 * range);
    sol_tensor is_back = LAYER2(c, "less", number(c, range), d, "");
    sol_tensor back = LAYER2(c, "sub", number(c, high + range), d, "");
    return call_where(c, is_back, back, with(c, "add", d, low));
}

/* The position along dim `d`, in pixels. Positions that are far away or NaN are moved to ones that integers can hold. The
 * coordinates of a point begin with the innermost dim. */
static sol_tensor locate(struct op_call *c, const struct sampling *s, int d) {
    const double last = (double)size_value(s->dim[2 + d]) - 1, low = s->aligned ? 0 : -0.5,
                 high = last - low;
    struct size dim[SOL_MAX_RANK];
    sol_tensor g =
        LAYER1(c, "slice", call_tensor(c, 1), "axis=-1 start=%d shape=[1]", s->n - 1 - d);
    call_shape(c, g, dim);
    g = with(c, "add", call_cast(c, call_reshape(c, g, s->n + 1, dim), SOL_F64), 1);
    sol_tensor at = s->aligned ? with(c, "mul", with(c, "div", g, 2), last)
                               : with(c, "div", with(c, "sub", with(c, "mul", g, last + 1), 1), 2);
    sol_tensor is_number = LAYER2(c, "equal", at, at, "");
    at = call_where(c, is_number, call_clamp(c, at, -1e9, 1e9), number(c, -1e9));
    if (s->width == 4 || s->beyond == ZEROS) return at;
    if (s->beyond == BORDER) return call_clamp(c, at, 0, last);
    sol_tensor is_outside = LAYER2(c, "bit_or", with(c, "less", at, low),
                                   LAYER2(c, "less", number(c, high), at, ""), "");
    return call_where(c, is_outside, reflect(c, at, low, high), at);
}

/* Keys' cubic, with a = -0.75, of a distance below 1 (near) or from 1 to 2. */
static sol_tensor cubic(struct op_call *c, sol_tensor away, bool is_near) {
    const double a = -0.75;
    sol_tensor x = LAYER1(c, "abs", away, "");
    const double k[4] = {is_near ? a + 2 : a, is_near ? -(a + 3) : -5 * a, is_near ? 0 : 8 * a,
                         is_near ? 1 : -4 * a};
    sol_tensor y = with(c, "add", with(c, "mul", x, k[0]), k[1]);
    y = with(c, "add", LAYER2(c, "mul", y, x, ""), k[2]);
    return with(c, "add", LAYER2(c, "mul", y, x, ""), k[3]);
}

/* Neighbour `k` of the position along dim `d`. */
static sol_tensor neighbour(struct op_call *c, const struct sampling *s, int d, int k) {
    if (s->width == 1) return LAYER1(c, "round", s->at[d], "");
    return with(c, "add", LAYER1(c, "floor", s->at[d], ""), k - (s->width / 2 - 1));
}

/* A neighbour's pixel: its row, its weight (< 0: 1), and whether it counts (< 0: yes). */
struct tap {
    struct rows rows;
    sol_tensor weight, counts;
};

/* Adds dim `d` to the tap: pixels outside of the image are moved into it, or do not count. */
static void add_dim(struct op_call *c, const struct sampling *s, int d, int k, int64_t stride,
                    struct tap *tap) {
    const double last = (double)size_value(s->dim[2 + d]) - 1, low = s->aligned ? 0 : -0.5;
    sol_tensor place = neighbour(c, s, d, k), away = LAYER2(c, "sub", s->at[d], place, "");
    sol_tensor weight = -1;
    if (s->width == 2) weight = LAYER2(c, "sub", number(c, 1), LAYER1(c, "abs", away, ""), "");
    if (s->width == 4) weight = cubic(c, away, k == 1 || k == 2);
    if (weight >= 0)
        tap->weight = tap->weight < 0 ? weight : LAYER2(c, "mul", tap->weight, weight, "");
    if (s->beyond == ZEROS) {
        sol_tensor inside = LAYER2(c, "equal", place, call_clamp(c, place, 0, last), "");
        tap->counts = tap->counts < 0 ? inside : LAYER2(c, "bit_and", tap->counts, inside, "");
    }
    if (s->beyond == REFLECTION) place = LAYER1(c, "trunc", reflect(c, place, low, last - low), "");
    place = call_cast(c, call_clamp(c, place, 0, last), SOL_I64);
    rows_add(c, &tap->rows,
             LAYER2(c, "mul", place, call_scalar_of(c, (double)stride, SOL_I64), ""));
}

/* The value of neighbour `t`, times its weight: [batch, out.., channels]. `table` is [batch, in.., channels]. */
static sol_tensor read_tap(struct op_call *c, const struct sampling *s, sol_tensor table, int t,
                           enum sol_dtype dtype) {
    struct tap tap = {NO_ROWS, -1, -1};
    struct size dim[SOL_MAX_RANK], rows[SOL_MAX_RANK] = {s->dim[0]};
    int64_t stride = 1;
    for (int d = s->n - 1; d >= 0; d--, t /= s->width) {
        add_dim(c, s, d, t % s->width, stride, &tap);
        stride *= size_value(s->dim[2 + d]);
        rows[1 + d] = s->dim[2 + d];
    }
    rows_add(c, &tap.rows, call_arange(c, s->dim[0], stride, s->n));
    sol_tensor y = rows_take(c, &tap.rows, table, s->n + 1, rows);
    const int rank = call_shape(c, tap.rows.sum, dim);
    dim[rank] = size_const(1);
    sol_tensor zero = call_scalar_of(c, 0, dtype);
    if (tap.weight >= 0) {
        sol_tensor weight = call_reshape(c, call_cast(c, tap.weight, dtype), rank + 1, dim);
        y = call_where(c, LAYER2(c, "equal", weight, zero, ""), zero,
                       LAYER2(c, "mul", y, weight, ""));
    }
    return tap.counts < 0 ? y : call_where(c, call_reshape(c, tap.counts, rank + 1, dim), y, zero);
}

/* The modes are bilinear and bicubic in opset 16, linear and cubic in opset 20. */
static enum sol_status read_sampling(struct op_call *c, struct sampling *s) {
    const char *mode = call_string(c, "mode"), *beyond = call_string(c, "padding_mode");
    const bool is_linear = !*mode || strstr(mode, "linear"), is_cubic = strstr(mode, "cubic");
    *s = (struct sampling){.n = call_rank(c, 0) - 2, .aligned = call_int(c, "align_corners", 0)};
    s->width = is_linear ? 2 : is_cubic ? 4 : 1;
    s->beyond = !strcmp(beyond, "border")       ? BORDER
                : !strcmp(beyond, "reflection") ? REFLECTION
                                                : ZEROS;
    if (s->width == 1 && strcmp(mode, "nearest") != 0)
        return fail(SOL_EINVAL, "mode \"%.32s\"", mode);
    if (s->beyond == ZEROS && *beyond && strcmp(beyond, "zeros") != 0)
        return fail(SOL_EINVAL, "padding_mode \"%.32s\"", beyond);
    if (s->n < 1 || s->n > MAX_SPATIAL || (is_cubic && s->n > 2) || call_rank(c, 1) != s->n + 2)
        return fail(SOL_EUNSUPPORTED, "%d spatial dims", s->n);
    if (!call_fixed_shape(c, call_tensor(c, 0), s->n + 2, s->dim)) return c->im->status;
    if (!size_is(c->in[1]->dim[s->n + 1], s->n) || !size_equal(c->in[1]->dim[0], s->dim[0]))
        return fail(SOL_EINVAL, "a grid that does not fit");
    for (int d = 0; d < s->n + 2; d++)
        if (size_value(s->dim[d]) < 1) return fail(SOL_EUNSUPPORTED, "an empty image");
    return c->im->status;
}

enum sol_status op_grid_sample(struct op_call *c) {
    struct sampling s;
    int64_t order[SOL_MAX_RANK] = {0}, back[SOL_MAX_RANK] = {0};
    int n_taps = 1;
    TRY(read_sampling(c, &s));
    const enum sol_dtype own = c->in[0]->dtype;
    const bool is_exact = own == SOL_F64 || size_family(own) != FAMILY_FLOAT;
    const enum sol_dtype dtype = is_exact ? SOL_F64 : SOL_F32;
    for (int d = 0; d < s.n; d++) {
        s.at[d] = locate(c, &s, d);
        order[1 + d] = 2 + d;
        back[2 + d] = 1 + d;
        n_taps *= s.width;
    }
    order[s.n + 1] = 1;
    back[1] = s.n + 1;
    sol_tensor table = call_permute(c, call_cast(c, call_tensor(c, 0), dtype), s.n + 2, order),
               y = -1;
    for (int t = 0; t < n_taps; t++) {
        sol_tensor value = read_tap(c, &s, table, t, dtype);
        y = y < 0 ? value : LAYER2(c, "add", y, value, "");
    }
    return call_set_output(c, 0, call_cast(c, call_permute(c, y, s.n + 2, back), own));
}
