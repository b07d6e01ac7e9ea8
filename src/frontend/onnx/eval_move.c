/*
 * Operators that move values of any type, including strings: they copy elements as bytes.
 *
 * Most walk over the result with strides in the input: permutation, slices, broadcasting. The others compute the source of each
 * point, dim by dim. Sizes of results are checked by allocation, so a Tile that needs too much memory stops there.
 */
#include "eval.h"

#include <string.h>

/* Strides may be 0 (a value repeats) or negative (backwards). */
struct array *move_strided(struct eval *e, const struct array *x, int rank, const int64_t *dim,
                           int64_t offset, const int64_t *stride) {
    struct array *y = eval_new(e, x->type, rank, dim);
    size_t size = types[x->type].size;
    struct walk walk;
    walk_init(&walk, rank, dim);
    memcpy(walk.stride[0], stride, (size_t)rank * sizeof *stride);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk))
        memcpy(array_at(y, i), array_at(x, offset + walk.offset[0]), size);
    return y;
}

/* Dim d of the result is dim axes[d] of the input, with its stride. */
struct array *move_permute(struct eval *e, const struct array *x, const int64_t *axes) {
    int64_t own[SOL_MAX_RANK], dim[SOL_MAX_RANK], stride[SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    array_strides(x, own);
    for (int d = 0; d < x->rank; d++) {
        int from = eval_axis_of_list(e, axes[d], x->rank, named);
        dim[d] = x->dim[from];
        stride[d] = own[from];
    }
    return move_strided(e, x, x->rank, dim, 0, stride);
}

/* Without perm, the order of all dims is reversed. Numbers of perm may not be negative, unlike axes. */
void run_transpose(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t reversed[SOL_MAX_RANK];
    const int64_t *perm;
    int n = eval_ints(e, "perm", &perm);
    eval_check(e, !n || n == x->rank, "perm does not fit the rank");
    for (int d = 0; d < x->rank; d++) {
        reversed[d] = x->rank - 1 - d;
        if (n && perm[d] < 0) eval_stop(e, fail(SOL_EINVAL, "perm has %lld", (long long)perm[d]));
    }
    eval_set_output(e, 0, move_permute(e, x, n ? perm : reversed));
}

/* The input is broadcast with the new shape; a 1 in it keeps the input's dim. */
void run_expand(struct eval *e) {
    struct array *x = eval_in(e, 0), shape = {.type = TYPE_BOOL};
    int64_t *wanted, dim[SOL_MAX_RANK];
    shape.rank = eval_in_ints(e, 1, &wanted);
    if (shape.rank > SOL_MAX_RANK) eval_stop(e, fail(SOL_EUNSUPPORTED, "rank %d", shape.rank));
    if (shape.rank) memcpy(shape.dim, wanted, (size_t)shape.rank * sizeof *wanted);
    int rank = eval_broadcast(e, 2, (struct array *[]){x, &shape}, dim);
    struct array *y = eval_out(e, 0, x->type, rank, dim);
    struct walk walk;
    walk_init(&walk, rank, dim);
    walk_broadcast(&walk, 0, x);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk))
        memcpy(array_at(y, i), array_at(x, walk.offset[0]), types[x->type].size);
}

/* ---- Parts ---- */

/* Clamps the bounds as in Python; *n is the number of values. With a negative step, the lower bound may be -1, before the first
 * value. */
static void clamp_slice(int64_t size, int64_t *start, int64_t end, int64_t step, int64_t *n) {
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    if (*start < 0) *start = *start < -size ? low : *start + size;
    if (end < 0) end = end < -size ? low : end + size;
    *start = min_i64(max_i64(*start, low), high);
    end = min_i64(max_i64(end, low), high);
    /* The bounds are within the dim, so distances fit in 64 bits. The step may be any number, also INT64_MIN. */
    uint64_t distance = step > 0       ? end > *start ? (uint64_t)(end - *start) : 0
                        : *start > end ? (uint64_t)(*start - end)
                                       : 0;
    uint64_t pace = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    *n = distance ? (int64_t)((distance - 1) / pace) + 1 : 0;
}

/* Bounds are attributes before opset 10, inputs since. */
void run_slice(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const int64_t *starts, *ends, *axes, *steps;
    int n = eval_list(e, 1, "starts", &starts), n_ends = eval_list(e, 2, "ends", &ends);
    int n_axes = eval_list(e, 3, "axes", &axes), n_steps = eval_list(e, 4, "steps", &steps);
    int64_t dim[SOL_MAX_RANK], stride[SOL_MAX_RANK], offset = 0;
    bool named[SOL_MAX_RANK] = {false};
    eval_check(e, n_ends == n && (!n_axes || n_axes == n) && (!n_steps || n_steps == n),
               "starts, ends, axes, steps of different lengths");
    memcpy(dim, x->dim, sizeof dim);
    array_strides(x, stride);
    for (int i = 0; i < n; i++) {
        int axis = eval_axis_of_list(e, n_axes ? axes[i] : i, x->rank, named);
        int64_t step = n_steps ? steps[i] : 1, start = starts[i];
        eval_check(e, step != 0, "a step of 0");
        clamp_slice(x->dim[axis], &start, ends[i], step, &dim[axis]);
        /* An empty slice needs no offset, and a single value no stride; so no product overflows. */
        if (dim[axis] > 0) offset += start * stride[axis];
        stride[axis] = dim[axis] > 1 ? stride[axis] * step : 0;
    }
    eval_set_output(e, 0, move_strided(e, x, x->rank, dim, offset, stride));
}

/* Part [start, start + n) of an axis. */
static struct array *part(struct eval *e, const struct array *x, int axis, int64_t start,
                          int64_t n) {
    int64_t dim[SOL_MAX_RANK], stride[SOL_MAX_RANK];
    memcpy(dim, x->dim, sizeof dim);
    array_strides(x, stride);
    dim[axis] = n;
    return move_strided(e, x, x->rank, dim, start * stride[axis], stride);
}

/* Splits into parts of given sizes, or into equal parts, of which the last may be smaller. */
void run_split(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const int64_t *sizes;
    int axis = eval_axis(e, eval_int(e, "axis", 0), x->rank);
    int found = eval_list(e, 1, "split", &sizes), n = e->n_out;
    int64_t size = x->dim[axis], each = ceil_div(size, n > 0 ? n : 1), start = 0;
    eval_check(e, !found || found == n, "as many sizes as outputs are wanted");
    eval_check(e, eval_int(e, "num_outputs", n) == n, "num_outputs does not fit the outputs");
    for (int i = 0; i < n; i++) {
        int64_t length = found ? sizes[i] : max_i64(0, min_i64(each, size - start));
        eval_check(e, length >= 0 && length <= size - start, "parts that do not fit the axis");
        eval_set_output(e, i, part(e, x, axis, start, length));
        start += length;
    }
    eval_check(e, start == size, "parts that do not fill the axis");
}

/* The dims from the axis on are contiguous in each input, so they are copied in one piece. */
static struct array *concat(struct eval *e, int n, struct array *const *x, int axis) {
    int64_t dim[SOL_MAX_RANK], outer = product(axis, x[0]->dim), at = 0;
    memcpy(dim, x[0]->dim, sizeof dim);
    for (int i = 1; i < n; i++) {
        bool fits = x[i]->rank == x[0]->rank && x[i]->type == x[0]->type;
        for (int d = 0; fits && d < x[0]->rank; d++)
            fits = d == axis || x[i]->dim[d] == x[0]->dim[d];
        eval_check(e, fits, "inputs of shapes or types that do not fit");
        dim[axis] += x[i]->dim[axis];
    }
    struct array *y = eval_new(e, x[0]->type, x[0]->rank, dim);
    size_t size = types[y->type].size;
    for (int64_t o = 0; o < outer; o++) {
        for (int i = 0; i < n; i++) {
            int64_t length = x[i]->n / outer;
            memcpy(array_at(y, at), array_at(x[i], o * length), (size_t)length * size);
            at += length;
        }
    }
    return y;
}

void run_concat(struct eval *e) {
    for (int i = 0; i < e->n_in; i++) eval_in(e, i);
    int axis = eval_axis(e, eval_int(e, "axis", 1), e->in[0]->rank);
    eval_set_output(e, 0, concat(e, e->n_in, e->in, axis));
}

/* ---- Sequences of tensors ---- */

/* Concatenates the items along an axis, or stacks them along a new one. */
void run_concat_from_sequence(struct eval *e) {
    const struct array *list = e->in[0];
    bool is_new = eval_int(e, "new_axis", 0);
    eval_check(e, list->type == TYPE_SEQUENCE && list->n > 0, "no sequence with tensors");
    struct array **x = SPACE_ARRAY(e->space, struct array *, list->n);
    memcpy(x, list->data, (size_t)list->n * sizeof *x);
    for (int64_t i = 0; i < list->n; i++)
        eval_check(e, is_tensor(x[i]), "items that are no tensors");
    int axis = eval_axis(e, eval_int(e, "axis", 0), x[0]->rank + is_new);
    for (int64_t i = 0; i < list->n && is_new; i++) {
        int64_t dim[SOL_MAX_RANK + 1];
        for (int d = 0; d <= x[i]->rank; d++)
            dim[d] = d < axis ? x[i]->dim[d] : d == axis ? 1 : x[i]->dim[d - 1];
        x[i] = array_view(e->space, x[i], x[i]->rank + 1, dim);
    }
    eval_set_output(e, 0, concat(e, (int)list->n, x, axis));
}

/* Splits into parts of one size, or of given sizes; without input 1 into single positions, whose axis keepdims 0 removes. */
void run_split_to_sequence(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *sizes, at = 0;
    int axis = eval_axis(e, eval_int(e, "axis", 0), x->rank), found = eval_in_ints(e, 1, &sizes);
    bool is_each = !eval_has(e, 1) || e->in[1]->rank == 0, vanishes = !eval_has(e, 1);
    int64_t each = eval_has(e, 1) && is_each ? sizes[0] : 1, size = x->dim[axis];
    eval_check(e, each > 0, "parts of no size");
    struct array *list = eval_sequence(e, is_each ? ceil_div(size, each) : found);
    for (int64_t i = 0; i < list->n; i++) {
        int64_t n = is_each ? min_i64(each, size - at) : sizes[i];
        eval_check(e, n >= 0 && n <= size - at, "parts that do not fit the axis");
        struct array *item = part(e, x, axis, at, n);
        if (vanishes && !eval_int(e, "keepdims", 1)) {
            for (int d = axis; d + 1 < item->rank; d++) item->dim[d] = item->dim[d + 1];
            item->rank--;
        }
        ((struct array **)list->data)[i] = item;
        at += n;
    }
    eval_check(e, at == size, "parts that do not fill the axis");
    eval_set_output(e, 0, list);
}

/* ---- Repetition and padding ---- */

/* Along each dim, the source of a position is the position modulo the input's dim. */
void run_tile(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *times, dim[SOL_MAX_RANK], own[SOL_MAX_RANK];
    eval_check(e, eval_in_ints(e, 1, &times) == x->rank, "repeats do not fit the rank");
    for (int d = 0; d < x->rank; d++)
        eval_check(e, !__builtin_mul_overflow(x->dim[d], times[d], &dim[d]), "a dim overflows");
    struct array *y = eval_out(e, 0, x->type, x->rank, dim);
    struct walk walk;
    array_strides(x, own);
    walk_init(&walk, x->rank, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk)) {
        int64_t from = 0;
        for (int d = 0; d < x->rank; d++) from += walk.at[d] % x->dim[d] * own[d];
        memcpy(array_at(y, i), array_at(x, from), types[x->type].size);
    }
}

/* Limits pads and crops, so that sums of a few of them fit in 64 bits. */
#define FARTHEST ((int64_t)1 << 48)

/* The source of padding: a constant, the mirrored input, the nearest value, or the other end. */
enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP };

/* The source of position `i` in a dim of `n` values; -1: the pad value. */
static int64_t pad_source(enum pad_mode mode, int64_t i, int64_t n) {
    if (i >= 0 && i < n) return i;
    if (mode == PAD_CONSTANT || !n) return -1;
    if (mode == PAD_EDGE) return i < 0 ? 0 : n - 1;
    if (mode == PAD_WRAP) return i - floor_div(i, n) * n;
    if (n == 1) return 0;
    /* The edge is not repeated: 0 1 2 continues with 1 0. */
    int64_t period = 2 * (n - 1), at = i - floor_div(i, period) * period;
    return at < n ? at : period - at;
}

/* `before`: the position in the result where the input begins; below 0, it is cropped. `value` NULL: zeros. */
static struct array *pad(struct eval *e, const struct array *x, const int64_t *before,
                         const int64_t *dim, enum pad_mode mode, const void *value) {
    struct array *y = eval_new(e, x->type, x->rank, dim);
    int64_t own[SOL_MAX_RANK];
    struct walk walk;
    array_strides(x, own);
    walk_init(&walk, x->rank, dim);
    for (int64_t i = 0; i < y->n; i++, walk_next(&walk)) {
        int64_t from = 0;
        for (int d = 0; d < x->rank && from >= 0; d++) {
            int64_t at = pad_source(mode, walk.at[d] - before[d], x->dim[d]);
            from = at < 0 ? -1 : from + at * own[d];
        }
        if (from >= 0 || value)
            memcpy(array_at(y, i), from < 0 ? value : array_at(x, from), types[x->type].size);
    }
    return y;
}

/* The names are in the order of the enum. */
static enum pad_mode read_mode(struct eval *e) {
    static const char *const names[] = {"constant", "reflect", "edge", "wrap"};
    const char *mode = eval_string(e, "mode", "constant");
    for (int i = 0; i < COUNT(names); i++)
        if (!strcmp(names[i], mode)) return (enum pad_mode)i;
    eval_stop(e, fail(SOL_EUNSUPPORTED, "mode \"%.32s\"", mode));
}

/* Pads are attributes before opset 11, inputs since; axes exist since 18. Pads below 0 crop. */
void run_pad(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const int64_t *pads;
    int64_t *axes, before[SOL_MAX_RANK] = {0}, dim[SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    int n = eval_list(e, 1, "pads", &pads), n_axes = eval_in_ints(e, 3, &axes);
    int count = eval_has(e, 3) ? n_axes : x->rank;
    eval_check(e, n == 2 * count && count <= SOL_MAX_RANK, "pads that do not fit the rank");
    memcpy(dim, x->dim, sizeof dim);
    for (int i = 0; i < count; i++) {
        int d = eval_axis_of_list(e, eval_has(e, 3) ? axes[i] : i, x->rank, named);
        before[d] = pads[i];
        eval_check(e, pads[i] > -FARTHEST && pads[i] < FARTHEST, "a pad out of range");
        bool is_fine = !__builtin_add_overflow(dim[d], pads[i], &dim[d]) &&
                       !__builtin_add_overflow(dim[d], pads[count + i], &dim[d]);
        eval_check(e, is_fine, "a dim overflows");
    }
    struct array *value = eval_new(e, x->type, 0, NULL);
    if (eval_has(e, 2)) {
        eval_check(e, eval_in(e, 2)->type == x->type && e->in[2]->n == 1, "the value's type");
        memcpy(value->data, e->in[2]->data, types[x->type].size);
    } else if (x->type != TYPE_STRING) {
        array_set_double(value, 0, eval_float(e, "value", 0));
    }
    eval_set_output(e, 0, pad(e, x, before, dim, read_mode(e), value->data));
}

/* Crops or pads around the center. If the difference is odd, the larger half is at the end. */
void run_center_crop_pad(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    const int64_t *axes;
    int64_t *wanted, before[SOL_MAX_RANK] = {0}, dim[SOL_MAX_RANK];
    bool named[SOL_MAX_RANK] = {false};
    int n = eval_in_ints(e, 1, &wanted), n_axes = eval_ints(e, "axes", &axes);
    eval_check(e, n == (n_axes ? n_axes : x->rank), "a shape that does not fit the axes");
    memcpy(dim, x->dim, sizeof dim);
    for (int i = 0; i < n; i++) {
        int d = eval_axis_of_list(e, n_axes ? axes[i] : i, x->rank, named);
        eval_check(e, wanted[i] >= 0, "a dim below 0");
        before[d] =
            wanted[i] > x->dim[d] ? (wanted[i] - x->dim[d]) / 2 : -((x->dim[d] - wanted[i]) / 2);
        dim[d] = wanted[i];
    }
    static const struct bytes nothing[2];
    eval_set_output(e, 0, pad(e, x, before, dim, PAD_CONSTANT, nothing));
}

/* ---- Blocks and diagonals ---- */

/* Reshapes to six dims, permutes them, and reshapes to four. */
static void move_blocks(struct eval *e, const int64_t six[6], const int64_t axes[6],
                        const int64_t out[4]) {
    const struct array *x = array_view(e->space, eval_in(e, 0), 6, six);
    eval_set_output(e, 0, array_view(e->space, move_permute(e, x, axes), 4, out));
}

/* The attribute blocksize; the limit keeps its square from overflowing. */
static int64_t read_block(struct eval *e, const struct array *x) {
    int64_t b = eval_int(e, "blocksize", 0);
    eval_check(e, x->rank == 4 && b > 0 && b <= INT16_MAX, "the blocksize or rank");
    return b;
}

/* Channels are [row in block, column in block, channel] with DCR, [channel, row, column] with CRD. */
void run_depth_to_space(struct eval *e) {
    const int64_t *d = eval_in(e, 0)->dim, b = read_block(e, e->in[0]), rest = d[1] / (b * b);
    static const int64_t dcr_axes[6] = {0, 3, 4, 1, 5, 2}, crd_axes[6] = {0, 1, 4, 2, 5, 3};
    bool is_crd = !strcmp(eval_word(e, "mode", "DCR", "DCR CRD"), "CRD");
    int64_t dcr[6] = {d[0], b, b, rest, d[2], d[3]}, crd[6] = {d[0], rest, b, b, d[2], d[3]};
    move_blocks(e, is_crd ? crd : dcr, is_crd ? crd_axes : dcr_axes,
                (int64_t[]){d[0], rest, d[2] * b, d[3] * b});
}

/* The inverse of DepthToSpace. */
void run_space_to_depth(struct eval *e) {
    const int64_t *d = eval_in(e, 0)->dim, b = read_block(e, e->in[0]);
    static const int64_t dcr_axes[6] = {0, 3, 5, 1, 2, 4}, crd_axes[6] = {0, 1, 3, 5, 2, 4};
    bool is_crd = !strcmp(eval_word(e, "mode", "DCR", "DCR CRD"), "CRD");
    move_blocks(e, (int64_t[]){d[0], d[1], d[2] / b, b, d[3] / b, b}, is_crd ? crd_axes : dcr_axes,
                (int64_t[]){d[0], d[1] * b * b, d[2] / b, d[3] / b});
}

/* The other triangle is 0, even where the input is NaN, since values are copied, not multiplied by a mask. */
void run_trilu(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    bool is_upper = eval_int(e, "upper", 1);
    int64_t k = eval_in_int(e, 1, 0);
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    eval_check(e, x->rank >= 2, "a rank below 2");
    int64_t columns = x->dim[x->rank - 1], rows = x->dim[x->rank - 2];
    /* All diagonals beyond the corners give the same result. */
    k = max_i64(-rows - 1, min_i64(k, columns + 1));
    for (int64_t i = 0; i < x->n; i++) {
        int64_t column = i % columns, row = i / columns % rows;
        if (is_upper ? column - row >= k : column - row <= k)
            memcpy(array_at(y, i), array_at(x, i), types[x->type].size);
    }
}

/* Reverses the first lengths[b] steps of each sequence. */
void run_reverse_sequence(struct eval *e) {
    const struct array *x = eval_in(e, 0);
    int64_t *lengths, own[SOL_MAX_RANK];
    int time = eval_axis(e, eval_int(e, "time_axis", 0), x->rank);
    int batch = eval_axis(e, eval_int(e, "batch_axis", 1), x->rank);
    eval_check(e, eval_in_ints(e, 1, &lengths) == x->dim[batch], "as many lengths as sequences");
    for (int64_t b = 0; b < x->dim[batch]; b++)
        eval_check(e, lengths[b] >= 0 && lengths[b] <= x->dim[time], "a length out of range");
    struct array *y = eval_out(e, 0, x->type, x->rank, x->dim);
    struct walk walk;
    array_strides(x, own);
    walk_init(&walk, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++, walk_next(&walk)) {
        int64_t t = walk.at[time], n = lengths[walk.at[batch]];
        int64_t from = t < n ? i + (n - 1 - 2 * t) * own[time] : i;
        memcpy(array_at(y, i), array_at(x, from), types[x->type].size);
    }
}
