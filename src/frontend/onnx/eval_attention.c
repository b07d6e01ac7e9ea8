/*
 * Attention, rotary embedding, SwiGLU.
 *
 * Inputs are first converted to [batch, heads, places, size of a head], where places are the positions of a sequence. The scores
 * of all heads are in memory at once, [batch, heads, rows, columns], so this is not for long sequences. A mask adds -infinity to
 * the scores of places that a query must not see. A row that sees no place gives zeros, not NaN.
 */
#include "eval.h"

#include "scalar.h"

#include <string.h>

/* [batch, places, heads * size] to [batch, heads, places, size]; rank 4 does not change. */
static struct array *by_head(struct eval *e, const struct array *x, int64_t heads) {
    if (x->rank == 4) return array_view(e->space, x, 4, x->dim);
    eval_check(e, x->rank == 3 && heads > 0 && x->dim[2] % heads == 0, "heads that do not fit");
    int64_t dim[4] = {x->dim[0], x->dim[1], heads, x->dim[2] / heads};
    return move_permute(e, array_view(e->space, x, 4, dim), (int64_t[]){0, 2, 1, 3});
}

/* The inverse of by_head. */
static struct array *join_heads(struct eval *e, const struct array *x, int rank) {
    if (rank == 4) return array_view(e->space, x, 4, x->dim);
    int64_t dim[3] = {x->dim[0], x->dim[2], x->dim[1] * x->dim[3]};
    return array_view(e->space, move_permute(e, x, (int64_t[]){0, 2, 1, 3}), 3, dim);
}

/* Concatenates `past`, which may be NULL, and x along axis 2 of four. */
static struct array *behind(struct eval *e, const struct array *past, const struct array *x) {
    if (!past) return array_view(e->space, x, 4, x->dim);
    eval_check(e,
               past->rank == 4 && past->type == x->type && past->dim[0] == x->dim[0] &&
                   past->dim[1] == x->dim[1] && past->dim[3] == x->dim[3],
               "a past that does not fit");
    int64_t dim[4] = {x->dim[0], x->dim[1], past->dim[2] + x->dim[2], x->dim[3]};
    struct array *y = eval_new(e, x->type, 4, dim);
    size_t size = types[x->type].size;
    int64_t old = past->dim[2] * dim[3], new = x->dim[2] * dim[3];
    for (int64_t i = 0; i < dim[0] * dim[1]; i++) {
        memcpy(array_at(y, i * (old + new)), array_at(past, i * old), (size_t)old * size);
        memcpy(array_at(y, i * (old + new) + old), array_at(x, i * new), (size_t)new * size);
    }
    return y;
}

/* Sizes: batch, heads of q, heads of k and v, places of q (rows), places of k (columns), sizes of a head of q and of v. */
struct attention {
    int64_t batch, heads, kv_heads, rows, columns, size, v_size;
    double scale, softcap;
};

/* Reads the sizes and checks that q, k and v fit. The default scale is 1 / sqrt(size of a head). */
static struct attention measure(struct eval *e, const struct array *q, const struct array *k,
                                const struct array *v) {
    struct attention a = {q->dim[0], q->dim[1], k->dim[1], q->dim[2], k->dim[2],
                          q->dim[3], v->dim[3], 0,         0};
    eval_check(e,
               k->dim[0] == a.batch && v->dim[0] == a.batch && v->dim[1] == a.kv_heads &&
                   k->dim[3] == a.size && v->dim[2] == a.columns && a.kv_heads > 0 &&
                   a.heads % a.kv_heads == 0,
               "q, k and v that do not fit");
    a.scale = eval_float(e, "scale", 1 / sqrt((double)a.size));
    a.softcap = eval_float(e, "softcap", 0);
    return a;
}

/* q k^T * scale: [batch, heads, rows, columns]. */
static double *scores(struct eval *e, const struct attention *a, const double *q, const double *k) {
    int64_t plane = a->rows * a->columns;
    double *s = SPACE_ARRAY(e->space, double, a->batch * a->heads * plane);
    for (int64_t i = 0; i < a->batch * a->heads * plane; i++) {
        int64_t h = i / plane,
                kv = h / a->heads * a->kv_heads + h % a->heads / (a->heads / a->kv_heads);
        const double *left = q + (h * a->rows + i / a->columns % a->rows) * a->size;
        const double *right = k + (kv * a->columns + i % a->columns) * a->size;
        for (int64_t d = 0; d < a->size; d++) s[i] += left[d] * right[d];
        s[i] *= a->scale;
    }
    return s;
}

/* p v: [batch, heads, rows, v_size]. */
static double *weigh(struct eval *e, const struct attention *a, const double *p, const double *v) {
    double *y = SPACE_ARRAY(e->space, double, a->batch * a->heads * a->rows * a->v_size);
    for (int64_t h = 0; h < a->batch * a->heads; h++) {
        int64_t kv = h / a->heads * a->kv_heads + h % a->heads / (a->heads / a->kv_heads);
        matrix_product(p + h * a->rows * a->columns, v + kv * a->columns * a->v_size, a->rows,
                       a->columns, a->v_size, y + h * a->rows * a->v_size);
    }
    return y;
}

/* ---- Masks ---- */

/* The mask at one point. If its last dim is too short, the rest is masked. */
static double mask_at(const struct array *mask, const int64_t at[4]) {
    int64_t offset = 0, n = 1;
    for (int d = mask->rank - 1; d >= 0; d--) {
        int64_t i = at[4 - mask->rank + d];
        if (mask->dim[d] != 1 && i >= mask->dim[d]) return -INFINITY;
        offset += (mask->dim[d] == 1 ? 0 : i) * n;
        n *= mask->dim[d];
    }
    if (mask->type == TYPE_BOOL) return array_int(mask, offset) ? 0 : -INFINITY;
    return array_double(mask, offset);
}

/* The mask must broadcast to [batch, heads, rows, columns], but its last dim may be shorter than the columns. */
static void check_mask(struct eval *e, const struct array *mask, const struct attention *a) {
    int64_t dim[4] = {a->batch, a->heads, a->rows, a->columns};
    eval_check(e, mask->rank <= 4 && mask->n > 0, "a mask of another rank");
    for (int d = 0; d < mask->rank; d++) {
        int64_t size = mask->dim[d], wanted = dim[4 - mask->rank + d];
        eval_check(e, size == 1 || size == wanted || d == mask->rank - 1,
                   "a mask that does not fit");
    }
}

/* Which places a query may see. left, right: how far before and after its own place; -1: no limit. past: the number of cached
 * places before the first one. lengths: how many places of each sequence are not padding. */
struct attention_window {
    bool is_causal;
    int64_t left, right, past;
    const struct array *mask, *lengths;
};

/* The term that is added to a score: -infinity if the query must not see the place, else the mask. */
static double bias_at(const struct attention_window *w, const struct attention *a,
                      const int64_t at[4]) {
    int64_t length = w->lengths ? array_int(w->lengths, at[0]) : a->columns;
    int64_t offset = w->lengths ? length - a->rows : w->past, from = offset + at[2], j = at[3];
    /* Padding is never visible, even if the mask allows it. */
    if (w->lengths && j >= length) return -INFINITY;
    if (w->is_causal && j > from) return -INFINITY;
    if (w->left >= 0 && j < from - w->left) return -INFINITY;
    if (w->right >= 0 && j > from + w->right) return -INFINITY;
    return w->mask ? mask_at(w->mask, at) : 0;
}

/* Adds bias_at to all scores. Returns for each row whether it sees any place, which depends on the masks only, not on scores that
 * are infinite or NaN. */
static bool *add_bias(struct eval *e, const struct attention_window *w, const struct attention *a,
                      double *s) {
    bool *sees = SPACE_ARRAY(e->space, bool, a->batch * a->heads * a->rows);
    struct walk walk;
    walk_init(&walk, 4, (int64_t[]){a->batch, a->heads, a->rows, a->columns});
    for (int64_t i = 0; i < walk.n; i++, walk_next(&walk)) {
        double bias = bias_at(w, a, walk.at);
        s[i] += bias;
        sees[i / a->columns] |= bias != -INFINITY;
    }
    return sees;
}

/* Softmax of each row. A row that sees no place, or has only -infinity, becomes 0; a row with NaN becomes NaN. `sees` may be
 * NULL: all rows see places. */
static void softmax(const struct attention *a, const bool *sees, double *s) {
    for (int64_t r = 0; r < a->batch * a->heads * a->rows; r++) {
        double *row = s + r * a->columns;
        bool is_any = false;
        for (int64_t i = 0; i < a->columns; i++) is_any |= row[i] != -INFINITY;
        if (!is_any || (sees && !sees[r])) memset(row, 0, (size_t)a->columns * sizeof *row);
        else softmax_rows(row, 1, a->columns, 1);
    }
}

/* The position of a query counts from the first cached place. */
static struct attention_window read_window(struct eval *e, const struct attention *a,
                                           int64_t past) {
    struct attention_window w = {.is_causal = eval_int(e, "is_causal", 0),
                                 .left = eval_int(e, "left_window_size", -1),
                                 .right = eval_int(e, "right_window_size", -1),
                                 .past = past};
    if (eval_has(e, 3)) check_mask(e, w.mask = eval_in(e, 3), a);
    if (eval_has(e, 6)) w.lengths = eval_in(e, 6);
    eval_check(e, !w.lengths || w.lengths->n == a->batch, "as many lengths as sequences");
    for (int64_t i = 0; w.lengths && i < w.lengths->n; i++)
        eval_check(e, array_int(w.lengths, i) >= 0 && array_int(w.lengths, i) <= a->columns,
                   "a length beyond the places");
    eval_check(e, w.left < INT32_MAX && w.right < INT32_MAX, "a window too large");
    return w;
}

/* Sets output 3 to the scores, if the attribute qk_matmul_output_mode selects this step. */
static void show(struct eval *e, int64_t step, const struct attention *a, enum type type,
                 const double *s) {
    if (eval_int(e, "qk_matmul_output_mode", 0) == step)
        eval_set_output_doubles(e, 3, type, 4, (int64_t[]){a->batch, a->heads, a->rows, a->columns},
                                s);
}

/* The steps are those of opset 25: scale, cap, mask, softmax. The cached k and v, inputs 4 and 5, are put before the new ones;
 * outputs 1 and 2 are the extended caches. */
void run_attention(struct eval *e) {
    int rank = eval_in(e, 0)->rank;
    int64_t heads = eval_int(e, "q_num_heads", 0), kv_heads = eval_int(e, "kv_num_heads", 0);
    const struct array *q = by_head(e, eval_in(e, 0), heads);
    const struct array *past = eval_has(e, 4) ? eval_in(e, 4) : NULL;
    struct array *k = behind(e, past, by_head(e, eval_in(e, 1), kv_heads));
    struct array *v =
        behind(e, eval_has(e, 5) ? eval_in(e, 5) : NULL, by_head(e, eval_in(e, 2), kv_heads));
    struct attention a = measure(e, q, k, v);
    struct attention_window window = read_window(e, &a, past ? past->dim[2] : 0);
    double *s = scores(e, &a, array_doubles(e->space, q), array_doubles(e->space, k));
    int64_t n = a.batch * a.heads * a.rows * a.columns;
    show(e, 0, &a, q->type, s);
    for (int64_t i = 0; i < n && a.softcap > 0; i++) s[i] = a.softcap * tanh(s[i] / a.softcap);
    show(e, 1, &a, q->type, s);
    bool *sees = add_bias(e, &window, &a, s);
    show(e, 2, &a, q->type, s);
    softmax(&a, sees, s);
    show(e, 3, &a, q->type, s);
    int64_t dim[4] = {a.batch, a.heads, a.rows, a.v_size};
    double *y = weigh(e, &a, s, array_doubles(e->space, v));
    eval_set_output(e, 0, join_heads(e, eval_from_doubles(e, q->type, 4, dim, y), rank));
    eval_set_output(e, 1, k);
    eval_set_output(e, 2, v);
}

/* Runs the subgraph `name` of the node, if there is one, on scores or probabilities; returns the result. */
static double *modify(struct eval *e, const char *name, const struct attention *a, double *s) {
    if (!eval_attribute(e, name)) return s;
    int64_t dim[4] = {a->batch, a->heads, a->rows, a->columns};
    int64_t type =
        eval_int(e, "softmax_precision", e->in[0]->type == TYPE_F64 ? TYPE_F64 : TYPE_F32);
    eval_check(e, type_is_known(type) && is_float((enum type)type), "softmax_precision");
    const struct onnx_graph *graph = eval_graph(e, name);
    struct array *in = eval_from_doubles(e, (enum type)type, 4, dim, s), *out;
    eval_check(e, graph->outputs.n == 1, "a graph of several outputs");
    eval_subgraph(e, graph, 1, &in, &out);
    eval_check(e, is_tensor(out) && out->n == in->n, "a graph that changes the shape");
    return array_doubles(e->space, out);
}

/* Grouped heads as in run_attention; subgraphs may change the scores before the softmax, and the probabilities after it. */
void run_flex_attention(struct eval *e) {
    const struct array *q = eval_in(e, 0), *k = eval_in(e, 1), *v = eval_in(e, 2);
    eval_check(e, q->rank == 4 && k->rank == 4 && v->rank == 4, "a rank other than 4");
    struct attention a = measure(e, q, k, v);
    double *s = scores(e, &a, array_doubles(e->space, q), array_doubles(e->space, k));
    s = modify(e, "score_mod", &a, s);
    softmax(&a, NULL, s);
    s = modify(e, "prob_mod", &a, s);
    eval_set_output_doubles(e, 0, q->type, 4, (int64_t[]){a.batch, a.heads, a.rows, a.v_size},
                            weigh(e, &a, s, array_doubles(e->space, v)));
}

/* ---- Rotation ---- */

/* Rotates pairs of a head's values by an angle that depends on the position. Pairs are (i, i + half), or neighbours if
 * interleaved. */
void run_rotary_embedding(struct eval *e) {
    int rank = eval_in(e, 0)->rank;
    const struct array *x = by_head(e, eval_in(e, 0), eval_int(e, "num_heads", 0));
    const struct array *cosines = eval_in(e, 1), *sines = eval_in(e, 2);
    const struct array *ids = eval_has(e, 3) ? eval_in(e, 3) : NULL;
    int64_t places = x->dim[2], size = x->dim[3], turned = eval_int(e, "rotary_embedding_dim", 0);
    bool is_interleaved = eval_int(e, "interleaved", 0);
    if (!turned) turned = size;
    int64_t half = turned / 2, rows = cosines->n / max_i64(1, half);
    eval_check(e, turned > 0 && turned <= size && turned % 2 == 0, "rotary_embedding_dim");
    eval_check(e,
               sines->n == cosines->n && cosines->rank && cosines->dim[cosines->rank - 1] == half &&
                   (!ids || ids->n == x->dim[0] * places),
               "caches that do not fit");
    double *v = array_doubles(e->space, x);
    for (int64_t i = 0; i < x->n / max_i64(1, size) * half; i++) {
        int64_t head = i / half, p = i % half,
                place = head / (x->dim[1] * places) * places + head % places;
        int64_t row = eval_index(e, ids ? array_int(ids, place) : place, rows);
        double *first = v + head * size + (is_interleaved ? 2 * p : p);
        double *second = first + (is_interleaved ? 1 : half), a = *first, b = *second;
        double c = array_double(cosines, row * half + p), s = array_double(sines, row * half + p);
        *first = c * a - s * b;
        *second = s * a + c * b;
    }
    eval_set_output(e, 0, join_heads(e, eval_from_doubles(e, x->type, 4, x->dim, v), rank));
}

/* swish(a) * b, without broadcasting. */
void run_swiglu(struct eval *e) {
    const struct array *a = eval_in(e, 0), *b = eval_in(e, 1);
    double alpha = eval_float(e, "alpha", 1);
    struct array *y = eval_out(e, 0, a->type, a->rank, a->dim);
    eval_check(e, a->n == b->n && a->type != TYPE_STRING && b->type != TYPE_STRING, "shapes");
    for (int64_t i = 0; i < a->n; i++)
        array_set_double(y, i, swish(array_double(a, i), alpha, 0) * array_double(b, i));
}
