/*
 * Attention, and the rotation of its inputs.
 *
 * Usual attention is one composite layer, which pass/decompose.c replaces. What the layer does not have (windows, lengths of padded
 * sequences, causal attention behind a cache, scores as an output) is composed here of simple layers, step by step as ONNX defines
 * them: scale, cap, mask, softmax.
 */
#include "rows.h"

#include <math.h>
#include <string.h>

/* [batch, places, heads * size] to [batch, heads, places, size]; rank 4 does not change. */
static sol_tensor by_head(struct op_call *c, int i, int64_t heads) {
    struct size dim[4];
    sol_tensor x = call_tensor(c, i);
    if (call_rank(c, i) == 4) return x;
    int64_t all = call_rank(c, i) == 3 ? call_dim(c, i, 2) : 1;
    if (heads < 1 || all % heads) {
        call_fail(c, fail(SOL_EINVAL, "%lld heads of input %d do not fit", (long long)heads, i));
        return x;
    }
    for (int d = 0; d < 2; d++) dim[d] = c->in[i]->dim[d];
    dim[2] = size_const(heads);
    dim[3] = size_const(all / heads);
    return call_permute(c, call_reshape(c, x, 4, dim), 4, (int64_t[]){0, 2, 1, 3});
}

/* The inverse of by_head. */
static sol_tensor join_heads(struct op_call *c, sol_tensor x) {
    struct size dim[SOL_MAX_RANK];
    if (call_rank(c, 0) == 4 || call_shape(c, x, dim) != 4) return x;
    dim[0] = c->in[0]->dim[0];
    dim[1] = c->in[0]->dim[1];
    dim[2] = size_mul(dim[3], size_const(call_int(c, "q_num_heads", 0)));
    return call_reshape(c, call_permute(c, x, 4, (int64_t[]){0, 2, 1, 3}), 3, dim);
}

/* The mask, in which -infinity also hides what causal attention hides. q and k are [batch, heads, places, size]. */
static sol_tensor causal_mask(struct op_call *c, sol_tensor q, sol_tensor k) {
    struct size dim[SOL_MAX_RANK], places[SOL_MAX_RANK] = {size_const(1)};
    sol_tensor mask = call_tensor(c, 3);
    if (!call_int(c, "is_causal", 0) || call_shape(c, q, dim) != 4) return mask;
    int rank = call_shape(c, mask, places), full = rank < 2 ? 2 : rank;
    places[full - 2] = dim[2];
    if (call_shape(c, k, dim) == 4) places[full - 1] = dim[2];
    return LAYER1(c, "tril", call_expand(c, mask, full, places), "value=-inf");
}

/* ONNX: a row that the mask hides as a whole is 0, whatever its scores. The layer adds a mask of floats to the scores, as PyTorch,
 * so that NaN stays NaN. */
static sol_tensor clear_hidden(struct op_call *c, sol_tensor y, const sol_tensor in[4]) {
    if (!call_has(c, 3) || c->in[3]->dtype == SOL_BOOL) return y;
    sol_tensor top =
        LAYER1(c, "reduce_max", causal_mask(c, in[0], in[1]), "axes=[-1] keepdim=true");
    sol_tensor is_hidden = LAYER2(c, "equal", top, call_scalar(c, -(double)INFINITY), "");
    sol_tensor choice[3] = {is_hidden, call_scalar(c, 0), y};
    return call_layer(c, "where", 3, choice, "");
}

/* The cached keys or values in input `i`, if there are any, before the new ones in x. */
static sol_tensor behind(struct op_call *c, int i, sol_tensor x) {
    return call_has(c, i) ? LAYER2(c, "concat", call_tensor(c, i), x, "axis=2") : x;
}

/* ---- Steps ---- */

/* Sizes, and what a query may see. left, right: how many places before and after its own; below 0: no limit. All places count
 * from the first cached one. */
struct steps {
    struct size batch;
    int64_t heads, kv_heads, rows, columns, past, left, right;
    bool is_causal;
    sol_tensor length; /* of each sequence, i64 [batch,1,1,1]; < 0: none is padded */
};

/* Each head of k or v is repeated for the heads of q that share it. */
static sol_tensor repeat_heads(struct op_call *c, const struct steps *s, sol_tensor x) {
    struct size dim[SOL_MAX_RANK];
    if (s->heads == s->kv_heads || call_shape(c, x, dim) != 4) return x;
    struct size each[5] = {dim[0], dim[1], size_const(1), dim[2], dim[3]};
    x = call_reshape(c, x, 5, each);
    each[2] = size_const(s->heads / s->kv_heads);
    x = call_expand(c, x, 5, each);
    dim[1] = size_const(s->heads);
    return call_reshape(c, x, 4, dim);
}

/* Takes each length from a table of all that are possible, so that one beyond the places is an error of the call. */
static sol_tensor read_lengths(struct op_call *c, const struct steps *s) {
    const int64_t n = s->columns + 1;
    int64_t *table = ARENA_ARRAY(c->im->arena, int64_t, n);
    for (int64_t i = 0; i < n; i++) table[i] = i;
    sol_tensor index = call_cast(c, call_tensor(c, 6), SOL_I64);
    index = LAYER2(c, "gather", call_param(c, SOL_I64, 1, &n, table), index, "axis=0 wraps=false");
    return call_reshape(c, index, 4,
                        (struct size[]){s->batch, size_const(1), size_const(1), size_const(1)});
}

static sol_tensor both(struct op_call *c, sol_tensor a, sol_tensor b) {
    return a < 0 ? b : LAYER2(c, "bit_and", a, b, "");
}

static sol_tensor plus(struct op_call *c, sol_tensor x, int64_t n) {
    return n ? LAYER2(c, "add", x, call_scalar_of(c, (double)n, SOL_I64), "") : x;
}

/* Bools that are true where a query (row) may see a place (column), without the mask; -1: everywhere. */
static sol_tensor find_visible(struct op_call *c, const struct steps *s) {
    sol_tensor column = call_arange(c, size_const(s->columns), 1, 0), seen = -1;
    sol_tensor own = plus(c, call_arange(c, size_const(s->rows), 1, 1), s->past);
    if (s->length >= 0) {
        own = LAYER2(c, "add", plus(c, s->length, -s->rows),
                     call_arange(c, size_const(s->rows), 1, 1), "");
        seen = LAYER2(c, "less", column, s->length, "");
    }
    if (s->is_causal) seen = both(c, seen, LAYER2(c, "less_equal", column, own, ""));
    if (s->left >= 0)
        seen = both(c, seen, LAYER2(c, "less_equal", plus(c, own, -s->left), column, ""));
    if (s->right >= 0)
        seen = both(c, seen, LAYER2(c, "less_equal", column, plus(c, own, s->right), ""));
    return seen;
}

/* The mask, input 3. What is missing at the end of its last dim is hidden. */
static sol_tensor read_mask(struct op_call *c, const struct steps *s) {
    struct size dim[SOL_MAX_RANK];
    sol_tensor mask = call_tensor(c, 3);
    const int rank = call_shape(c, mask, dim);
    const int64_t n = rank ? call_dim(c, 3, rank - 1) : 1;
    if (n == 1 || n >= s->columns) return mask;
    if (rank == 1) mask = call_reshape(c, mask, 2, (struct size[]){size_const(1), dim[0]});
    return LAYER1(c, "pad", mask, "pad=[0,0,0,%lld] value=%s", (long long)(s->columns - n),
                  c->in[3]->dtype == SOL_BOOL ? "0" : "-inf");
}

/* Shows the result of step `i` as output 3, if the attribute selects it. */
static enum sol_status show(struct op_call *c, int64_t i, sol_tensor scores) {
    if (c->n_out < 4 || call_int(c, "qk_matmul_output_mode", 0) != i) return SOL_OK;
    return call_set_output(c, 3, call_cast(c, scores, c->in[0]->dtype));
}

/* Adds the mask to the scores. *hidden: bools, true for a row that sees no place, whatever its scores; -1: there is none. */
static sol_tensor add_mask(struct op_call *c, const struct steps *s, sol_tensor scores,
                           sol_tensor *hidden) {
    const enum sol_dtype dtype = call_dtype(c, scores);
    sol_tensor seen = find_visible(c, s), mask = call_has(c, 3) ? read_mask(c, s) : -1;
    sol_tensor never = call_scalar_of(c, -(double)INFINITY, dtype);
    if (mask >= 0 && c->in[3]->dtype == SOL_BOOL) seen = both(c, seen, mask);
    else if (mask >= 0) {
        mask = call_cast(c, mask, dtype);
        scores = LAYER2(c, "add", scores, mask, "");
        seen = both(c, seen, LAYER2(c, "less", never, mask, ""));
    }
    *hidden = -1;
    if (seen < 0) return scores;
    *hidden = LAYER1(c, "bit_not", LAYER1(c, "reduce_max", seen, "axes=[-1] keepdim=true"), "");
    return call_where(c, seen, scores, never);
}

/* Softmax, in which a row that is hidden, or has only -infinity, becomes 0. */
static sol_tensor weigh_places(struct op_call *c, sol_tensor scores, sol_tensor hidden) {
    const enum sol_dtype dtype = call_dtype(c, scores);
    sol_tensor top = LAYER1(c, "reduce_max", scores, "axes=[-1] keepdim=true");
    sol_tensor is_dead = LAYER2(c, "equal", top, call_scalar_of(c, -(double)INFINITY, dtype), "");
    if (hidden >= 0) is_dead = LAYER2(c, "bit_or", is_dead, hidden, "");
    return call_where(c, is_dead, call_scalar_of(c, 0, dtype),
                      LAYER1(c, "softmax", scores, "axis=-1"));
}

static enum sol_status attend(struct op_call *c, struct steps *s, const sol_tensor in[3],
                              double scale) {
    const bool is_short = size_element(c->in[0]->dtype) == 2;
    const enum sol_dtype dtype = is_short ? SOL_F32 : c->in[0]->dtype;
    const double limit = call_float(c, "softcap", 0);
    sol_tensor q = call_cast(c, in[0], dtype), hidden,
               k = call_cast(c, repeat_heads(c, s, in[1]), dtype),
               v = call_cast(c, repeat_heads(c, s, in[2]), dtype);
    sol_tensor y = LAYER2(c, "matmul", q, call_permute(c, k, 4, (int64_t[]){0, 1, 3, 2}), "");
    y = LAYER2(c, "mul", y, call_scalar_of(c, scale, dtype), "");
    TRY(show(c, 0, y));
    if (limit > 0) {
        y = LAYER1(c, "tanh", LAYER2(c, "div", y, call_scalar_of(c, limit, dtype), ""), "");
        y = LAYER2(c, "mul", y, call_scalar_of(c, limit, dtype), "");
    }
    TRY(show(c, 1, y));
    if (call_has(c, 6)) s->length = read_lengths(c, s);
    y = add_mask(c, s, y, &hidden);
    TRY(show(c, 2, y));
    y = weigh_places(c, y, hidden);
    TRY(show(c, 3, y));
    y = call_cast(c, LAYER2(c, "matmul", y, v, ""), c->in[0]->dtype);
    return call_set_output(c, 0, join_heads(c, y));
}

/* ---- The node ---- */

/* Does the node need more than the layer has? */
static bool needs_steps(struct op_call *c, const struct steps *s) {
    const struct import_value *mask = call_has(c, 3) ? c->in[3] : NULL;
    if (s->left >= 0 || s->right >= 0 || call_has(c, 6) || (s->is_causal && s->past)) return true;
    if (c->n_out > 3 && c->out[3]) return true;
    if (!mask || !mask->rank) return false;
    struct size last = mask->dim[mask->rank - 1];
    return !size_is(last, 1) && !size_equal(last, size_const(s->columns));
}

static enum sol_status measure(struct op_call *c, const sol_tensor in[3], struct steps *s) {
    struct size q[SOL_MAX_RANK], k[SOL_MAX_RANK];
    if (call_shape(c, in[0], q) != 4 || call_shape(c, in[1], k) != 4)
        return c->im->status ? c->im->status : fail(SOL_EINVAL, "q or k of another rank");
    for (int d = 1; d < 4; d++)
        if (q[d].bad || !size_is_const(q[d]) || k[d].bad || !size_is_const(k[d]))
            return fail(SOL_EUNSUPPORTED, "heads or places of unknown size");
    *s = (struct steps){.batch = q[0],
                        .heads = size_value(q[1]),
                        .kv_heads = size_value(k[1]),
                        .rows = size_value(q[2]),
                        .columns = size_value(k[2]),
                        .past = call_has(c, 4) ? call_dim(c, 4, 2) : 0,
                        .left = call_int(c, "left_window_size", -1),
                        .right = call_int(c, "right_window_size", -1),
                        .is_causal = call_int(c, "is_causal", 0) != 0,
                        .length = -1};
    if (s->kv_heads < 1 || s->heads % s->kv_heads) return fail(SOL_EINVAL, "heads do not fit");
    if (s->left > INT32_MAX || s->right > INT32_MAX) return fail(SOL_EINVAL, "a window too large");
    return c->im->status;
}

static enum sol_status use_layer(struct op_call *c, const sol_tensor in[4], double scale) {
    sol_tensor y =
        call_layer(c, "attention", 3 + call_has(c, 3), in, "scale=%s softcap=%s causal=%s",
                   call_format_double(c, scale), call_format_double(c, call_float(c, "softcap", 0)),
                   call_int(c, "is_causal", 0) ? "true" : "false");
    return call_set_output(c, 0, join_heads(c, clear_hidden(c, y, in)));
}

enum sol_status op_attention(struct op_call *c) {
    int64_t heads = call_int(c, "q_num_heads", 0), kv_heads = call_int(c, "kv_num_heads", 0);
    struct size dim[SOL_MAX_RANK];
    struct steps steps;
    for (int i = 4; i < 6; i++)
        if (call_has(c, i) && call_rank(c, i) != 4)
            return fail(SOL_EINVAL, "a cache of rank %d", call_rank(c, i));
    sol_tensor in[4] = {by_head(c, 0, heads), behind(c, 4, by_head(c, 1, kv_heads)),
                        behind(c, 5, by_head(c, 2, kv_heads)), -1};
    if (call_has(c, 3)) in[3] = call_tensor(c, 3);
    TRY(measure(c, in, &steps));
    call_shape(c, in[0], dim);
    double scale = call_float(c, "scale", 1 / sqrt((double)size_value(dim[3])));
    if (c->n_out > 1) TRY(call_set_output(c, 1, in[1]));
    if (c->n_out > 2) TRY(call_set_output(c, 2, in[2]));
    return needs_steps(c, &steps) ? attend(c, &steps, in, scale) : use_layer(c, in, scale);
}

/* ---- Rotation ---- */

/* Input `i` of RotaryEmbedding, a table of cosines or sines, as [batch or 1, places, 1, half]: by position ids, or in order. */
static sol_tensor angles(struct op_call *c, int i, int64_t places, int64_t half) {
    struct size dim[SOL_MAX_RANK];
    sol_tensor x = call_tensor(c, i);
    if (call_has(c, 3)) x = LAYER2(c, "gather", x, call_tensor(c, 3), "axis=0");
    int rank = call_shape(c, x, dim);
    if (c->im->status) return x;
    if (rank < 2 || rank > 3 || !size_is(dim[rank - 1], half) || !size_is(dim[rank - 2], places))
        call_fail(c, fail(SOL_EUNSUPPORTED, "caches of another shape"));
    struct size out[4] = {rank == 3 ? dim[0] : size_const(1), size_const(places), size_const(1),
                          size_const(half)};
    return call_reshape(c, x, 4, out);
}

/* The first or second values of all pairs in [batch, places, heads, turned]: neighbours if interleaved, else halves. */
static sol_tensor side(struct op_call *c, sol_tensor x, int which, int64_t half, bool alternates) {
    return LAYER1(c, "slice", x, "axis=3 start=%lld step=%d shape=[%lld]",
                  (long long)(alternates ? which : which * half), alternates ? 2 : 1,
                  (long long)half);
}

/* Puts the pairs together again. */
static sol_tensor join_sides(struct op_call *c, sol_tensor a, sol_tensor b, bool alternates) {
    struct size dim[SOL_MAX_RANK], five[5];
    if (!alternates) return LAYER2(c, "concat", a, b, "axis=3");
    if (call_shape(c, a, dim) != 4) return a;
    memcpy(five, dim, sizeof dim[0] * 4);
    five[4] = size_const(1);
    sol_tensor y =
        LAYER2(c, "concat", call_reshape(c, a, 5, five), call_reshape(c, b, 5, five), "axis=4");
    dim[3] = size_scale(dim[3], 2);
    return call_reshape(c, y, 4, dim);
}

/* Input 0 as [batch, places, heads, size]. */
static sol_tensor by_place(struct op_call *c, struct size dim[4]) {
    const int64_t heads = call_int(c, "num_heads", 0);
    sol_tensor x = call_tensor(c, 0);
    if (call_rank(c, 0) == 4) x = call_permute(c, x, 4, (int64_t[]){0, 2, 1, 3});
    else if (call_rank(c, 0) == 3 && heads > 0 && call_dim(c, 0, 2) % heads == 0)
        x = call_reshape(c, x, 4,
                         (struct size[]){c->in[0]->dim[0], c->in[0]->dim[1], size_const(heads),
                                         size_const(call_dim(c, 0, 2) / heads)});
    else call_fail(c, fail(SOL_EINVAL, "heads that do not fit"));
    struct size all[SOL_MAX_RANK] = {{0}};
    call_shape(c, x, all);
    memcpy(dim, all, 4 * sizeof *dim);
    return x;
}

/* Each pair (a, b) of a head's values is rotated: (c a - s b, s a + c b). Values behind the first `turned` stay. */
enum sol_status op_rotary_embedding(struct op_call *c) {
    struct size dim[4];
    const bool alternates = call_int(c, "interleaved", 0) != 0;
    sol_tensor x = by_place(c, dim);
    TRY(c->im->status);
    if (!size_is_const(dim[1]) || !size_is_const(dim[3]))
        return fail(SOL_EUNSUPPORTED, "open places");
    const int64_t places = size_value(dim[1]), size = size_value(dim[3]),
                  wanted = call_int(c, "rotary_embedding_dim", 0), turned = wanted ? wanted : size;
    if (turned < 2 || turned > size || turned % 2) return fail(SOL_EINVAL, "rotary_embedding_dim");
    sol_tensor co = angles(c, 1, places, turned / 2), si = angles(c, 2, places, turned / 2);
    sol_tensor head = LAYER1(c, "slice", x, "axis=3 shape=[%lld]", (long long)turned);
    sol_tensor a = side(c, head, 0, turned / 2, alternates),
               b = side(c, head, 1, turned / 2, alternates);
    sol_tensor first =
                   LAYER2(c, "sub", LAYER2(c, "mul", co, a, ""), LAYER2(c, "mul", si, b, ""), ""),
               second =
                   LAYER2(c, "add", LAYER2(c, "mul", si, a, ""), LAYER2(c, "mul", co, b, ""), "");
    sol_tensor y = join_sides(c, first, second, alternates);
    if (turned < size) {
        sol_tensor rest = LAYER1(c, "slice", x, "axis=3 start=%lld shape=[%lld]", (long long)turned,
                                 (long long)(size - turned));
        y = LAYER2(c, "concat", y, rest, "axis=3");
    }
    if (call_rank(c, 0) == 4) y = call_permute(c, y, 4, (int64_t[]){0, 2, 1, 3});
    else y = call_reshape(c, y, 3, c->in[0]->dim);
    return call_set_output(c, 0, y);
}
