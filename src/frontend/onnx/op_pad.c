/*
 * Pad. Constant padding is a pad layer, which pads rows and columns; a reshape makes other dims rows first. Padding with copies
 * of the input (edge, reflect, wrap) is a gather per dim, with known indices. Pads below 0 are slices.
 */
#include "import.h"

#include <string.h>

#define MAX_SIZE (1 << 24) /* of a dim that is padded with copies */

/* The pads of all dims. They are an attribute before opset 11; since opset 18, an input may list the axes that they are for. */
static void read_pads(struct op_call *c, int rank, int64_t begin[SOL_MAX_RANK],
                      int64_t end[SOL_MAX_RANK]) {
    int64_t pads[2 * SOL_MAX_RANK] = {0}, axes[SOL_MAX_RANK];
    int n = call_has(c, 1) ? call_input_ints(c, 1, 2 * SOL_MAX_RANK, pads)
                           : call_ints(c, "pads", 2 * SOL_MAX_RANK, pads);
    int n_axes = rank;
    bool named[SOL_MAX_RANK] = {false};
    for (int d = 0; d < rank; d++) axes[d] = d;
    if (call_has(c, 3)) n_axes = call_input_ints(c, 3, SOL_MAX_RANK, axes);
    if (!c->im->status && n != 2 * n_axes)
        call_fail(c, fail(SOL_EINVAL, "%d pads for %d dims", n, n_axes));
    for (int i = 0; i < n_axes && !c->im->status; i++) {
        int64_t d = call_axis_of_list(c, axes[i], rank, named);
        begin[d] = pads[i];
        end[d] = pads[n_axes + i];
        if (begin[d] < INT32_MIN || begin[d] > INT32_MAX || end[d] < INT32_MIN ||
            end[d] > INT32_MAX)
            call_fail(c, fail(SOL_EINVAL, "a pad of more than 2^31"));
    }
}

/* Pads below 0 remove values; *begin and *end become 0 then. */
static sol_tensor crop(struct op_call *c, sol_tensor x, int d, int64_t *begin, int64_t *end) {
    int64_t from = max_i64(0, -*begin), n = call_dim(c, 0, d) - from - max_i64(0, -*end);
    *begin = max_i64(0, *begin), *end = max_i64(0, *end);
    if (c->im->status || n == call_dim(c, 0, d)) return x;
    if (n < 0) call_fail(c, fail(SOL_EINVAL, "pads leave nothing of dim %d", d));
    return LAYER1(c, "slice", x, "axis=%d start=%lld step=1 shape=[%lld]", d, (long long)from,
                  (long long)n);
}

/* Pads dim `d` as the rows of [dims before d, dim d, dims after d]. */
static sol_tensor pad_constant(struct op_call *c, sol_tensor x, int d, int64_t begin, int64_t end,
                               double value) {
    struct size dim[SOL_MAX_RANK], front = size_const(1), behind = size_const(1);
    int rank = call_shape(c, x, dim);
    for (int i = 0; i < d && i < rank; i++) front = size_mul(front, dim[i]);
    for (int i = d + 1; i < rank; i++) behind = size_mul(behind, dim[i]);
    if (c->im->status) return x;
    x = call_reshape(c, x, 3, (struct size[]){front, dim[d], behind});
    x = LAYER1(c, "pad", x, "pad=[%lld,0,%lld,0] value=%s", (long long)begin, (long long)end,
               call_format_double(c, value));
    dim[d] = size_add(dim[d], size_const(begin + end));
    return call_reshape(c, x, rank, dim);
}

/* The source of position `i` in a dim of `n` values. edge: the nearest value; wrap: from the other end; reflect: mirrored, without
 * repeating the edge. */
static int64_t find_source(const char *mode, int64_t i, int64_t n) {
    if (!strcmp(mode, "edge") || n == 1) return max_i64(0, min_i64(i, n - 1));
    int64_t period = !strcmp(mode, "wrap") ? n : 2 * n - 2, at = ((i % period) + period) % period;
    return at < n ? at : period - at;
}

static sol_tensor pad_copies(struct op_call *c, sol_tensor x, int d, int64_t begin, int64_t end,
                             const char *mode) {
    struct size dim[SOL_MAX_RANK];
    call_shape(c, x, dim);
    bool is_known = !c->im->status && !dim[d].bad && size_is_const(dim[d]);
    int64_t size = is_known ? size_value(dim[d]) : 0, n = begin + size + end;
    if (n > MAX_SIZE || size < 1)
        call_fail(c,
                  fail(SOL_EUNSUPPORTED, "%lld values from %lld", (long long)n, (long long)size));
    if (c->im->status) return x;
    int64_t *index = ARENA_ARRAY(c->im->arena, int64_t, n);
    for (int64_t i = 0; i < n; i++) index[i] = find_source(mode, i - begin, size);
    return call_pick(c, x, d, n, index);
}

/* Pads the last two dims in one layer, so that an image keeps its layout. */
static sol_tensor pad_image(struct op_call *c, sol_tensor x, const int64_t *begin,
                            const int64_t *end, double value) {
    const int64_t pads[4] = {begin[0], begin[1], end[0], end[1]};
    if (!pads[0] && !pads[1] && !pads[2] && !pads[3]) return x;
    return LAYER1(c, "pad", x, "pad=%s value=%s", call_format_ints(c, 4, pads),
                  call_format_double(c, value));
}

enum sol_status op_pad(struct op_call *c) {
    int64_t begin[SOL_MAX_RANK] = {0}, end[SOL_MAX_RANK] = {0};
    const char *mode = call_string(c, "mode");
    int rank = call_rank(c, 0);
    double value = call_has(c, 2) ? call_input_float(c, 2) : call_float(c, "value", 0);
    bool is_constant = !*mode || !strcmp(mode, "constant"), is_image = is_constant && rank >= 2;
    if (!is_constant && strcmp(mode, "edge") && strcmp(mode, "reflect") && strcmp(mode, "wrap"))
        return fail(SOL_EINVAL, "mode \"%.32s\"", mode);
    read_pads(c, rank, begin, end);
    if (c->im->status) return c->im->status; /* crop negates pads, which must be in range */
    sol_tensor x = call_tensor(c, 0);
    for (int d = 0; d < rank; d++)
        if (begin[d] || end[d]) x = crop(c, x, d, &begin[d], &end[d]);
    for (int d = 0; d < (is_image ? rank - 2 : rank); d++) {
        if (!begin[d] && !end[d]) continue;
        x = is_constant ? pad_constant(c, x, d, begin[d], end[d], value)
                        : pad_copies(c, x, d, begin[d], end[d], mode);
    }
    if (is_image) x = pad_image(c, x, begin + rank - 2, end + rank - 2, value);
    return call_set_output(c, 0, x);
}

/* Crops or pads around the center. If the difference is odd, the larger half is at the end. */
enum sol_status op_center_crop_pad(struct op_call *c) {
    int64_t wanted[SOL_MAX_RANK], axes[SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    const int rank = call_rank(c, 0), n = call_input_ints(c, 1, SOL_MAX_RANK, wanted),
              n_axes = call_ints(c, "axes", SOL_MAX_RANK, axes);
    sol_tensor x = call_tensor(c, 0);
    TRY(c->im->status);
    if (n != (n_axes ? n_axes : rank)) return fail(SOL_EINVAL, "a shape that does not fit");
    for (int i = 0; i < n; i++) {
        const int d = (int)call_axis_of_list(c, n_axes ? axes[i] : i, rank, named);
        const int64_t size = call_dim(c, 0, d);
        if (wanted[i] < 1 || wanted[i] > INT32_MAX) return fail(SOL_EUNSUPPORTED, "an empty dim");
        int64_t begin = wanted[i] > size ? (wanted[i] - size) / 2 : -((size - wanted[i]) / 2),
                end = wanted[i] - size - begin;
        if (begin < 0 || end < 0) x = crop(c, x, d, &begin, &end);
        if (begin || end) x = pad_constant(c, x, d, begin, end, 0);
    }
    return call_set_output(c, 0, x);
}
