/*
 * Einsum: sums of products over labelled dims.
 *
 * Two operands become a matmul: dims that both have and the result has (batch), dims of one operand only (rows, columns), and dims
 * that are summed. Everything else is a product of broadcast operands with a sum behind it.
 */
#include "import.h"

#include <string.h>

#define MAX_INPUTS 16
#define DOTS 128 /* labels from DOTS on are dims of "..."; DOTS + SOL_MAX_RANK - 1 is the last one */

/* The labels of a tensor's dims, from outermost to innermost. */
struct labels {
    int n, at[SOL_MAX_RANK];
};

static int find(const struct labels *l, int label) {
    for (int i = 0; i < l->n; i++)
        if (l->at[i] == label) return i;
    return -1;
}

static enum sol_status push(struct labels *l, int label) {
    if (l->n == SOL_MAX_RANK) return fail(SOL_EUNSUPPORTED, "more than %d labels", SOL_MAX_RANK);
    l->at[l->n++] = label;
    return SOL_OK;
}

/* Reads labels up to `end`; "..." stands for `dots` dims. */
static enum sol_status read_term(const char *at, const char *end, int dots, struct labels *out) {
    *out = (struct labels){0};
    for (bool seen = false; at < end; at++) {
        if (*at == ' ') continue;
        if (*at != '.') {
            TRY(push(out, (unsigned char)*at));
            continue;
        }
        if (seen || end - at < 3 || at[1] != '.' || at[2] != '.')
            return fail(SOL_EINVAL, "dots that are no ellipsis");
        for (int d = 0; d < dots; d++) TRY(push(out, DOTS + SOL_MAX_RANK - dots + d));
        seen = true;
        at += 2;
    }
    return SOL_OK;
}

static int count_letters(const char *at, const char *end) {
    int n = 0;
    for (; at < end; at++) n += *at != ' ' && *at != '.';
    return n;
}

/* An equation: the labels of all operands and of the result. */
struct equation {
    int n;
    struct labels operand[MAX_INPUTS], result;
};

/* Without an arrow, the result has the dims of all ellipses, and in alphabetical order the letters that occur once. */
static enum sol_status default_result(struct equation *q) {
    int count[DOTS + SOL_MAX_RANK] = {0};
    for (int k = 0; k < q->n; k++)
        for (int i = 0; i < q->operand[k].n; i++) count[q->operand[k].at[i] % COUNT(count)]++;
    for (int label = DOTS; label < COUNT(count); label++)
        if (count[label]) TRY(push(&q->result, label));
    for (int label = 0; label < DOTS; label++)
        if (count[label] == 1) TRY(push(&q->result, label));
    return SOL_OK;
}

static enum sol_status read_equation(struct op_call *c, struct equation *q) {
    const char *at = call_string(c, "equation"), *arrow = strstr(at, "->");
    int dots = 0;
    for (const char *s = at; *s; s++)
        if ((unsigned char)*s >= DOTS) return fail(SOL_EINVAL, "a label that is no letter");
    if (c->n_in > MAX_INPUTS) return fail(SOL_EUNSUPPORTED, "%d operands", c->n_in);
    for (q->n = 0; q->n < c->n_in; q->n++) {
        const char *end = q->n + 1 < c->n_in ? strchr(at, ',') : arrow ? arrow : at + strlen(at);
        if (!end) return fail(SOL_EINVAL, "an equation of fewer operands");
        const int own = call_rank(c, q->n) - count_letters(at, end);
        if (own > dots) dots = own;
        TRY(read_term(at, end, own < 0 ? 0 : own, &q->operand[q->n]));
        if (q->operand[q->n].n != call_rank(c, q->n))
            return fail(SOL_EINVAL, "labels that do not fit operand %d", q->n);
        at = *end ? end + 1 : end;
    }
    return arrow ? read_term(arrow + 2, arrow + strlen(arrow), dots, &q->result)
                 : default_result(q);
}

/* ---- Operands ---- */

/* A label that operand x has twice selects the diagonal of these dims: the other elements become 0 and are summed. */
static sol_tensor take_diagonals(struct op_call *c, sol_tensor x, struct labels *l) {
    struct size dim[SOL_MAX_RANK];
    for (int b = l->n - 1; b > 0; b--) {
        const int a = find(l, l->at[b]);
        const int64_t axis = b;
        if (a == b || call_shape(c, x, dim) != l->n) continue;
        if (!size_equal(dim[a], dim[b])) call_fail(c, fail(SOL_EUNSUPPORTED, "dims that differ"));
        sol_tensor is_on = LAYER2(c, "equal", call_arange(c, dim[a], 1, l->n - 1 - a),
                                  call_arange(c, dim[b], 1, l->n - 1 - b), "");
        x = call_where(c, is_on, x, call_scalar_of(c, 0, call_dtype(c, x)));
        x = LAYER1(c, "sum", x, "axes=%s", call_format_ints(c, 1, &axis));
        memmove(l->at + b, l->at + b + 1, sizeof *l->at * (size_t)(l->n - 1 - b));
        l->n--;
    }
    return x;
}

/* Orders the dims of x as in `to`; labels that x does not have become dims of 1. */
static sol_tensor align(struct op_call *c, sol_tensor x, const struct labels *l,
                        const struct labels *to) {
    struct size dim[SOL_MAX_RANK], out[SOL_MAX_RANK];
    int64_t order[SOL_MAX_RANK];
    int n = 0;
    if (call_shape(c, x, dim) != l->n) return x;
    for (int i = 0; i < to->n; i++) {
        const int from = find(l, to->at[i]);
        if (from >= 0) order[n++] = from;
        out[i] = from >= 0 ? dim[from] : size_const(1);
    }
    return call_reshape(c, call_permute(c, x, n, order), to->n, out);
}

/* ---- Products ---- */

/* The product of all operands, broadcast to all labels, and the sum over those that the result does not have. */
static sol_tensor sum_products(struct op_call *c, const struct equation *q, const sol_tensor *x) {
    struct labels all = q->result;
    int64_t axes[SOL_MAX_RANK];
    for (int k = 0; k < q->n; k++)
        for (int i = 0; i < q->operand[k].n; i++)
            if (find(&all, q->operand[k].at[i]) < 0) {
                enum sol_status status = push(&all, q->operand[k].at[i]);
                if (status) call_fail(c, status);
            }
    if (c->im->status) return x[0];
    sol_tensor y = align(c, x[0], &q->operand[0], &all);
    for (int k = 1; k < q->n; k++)
        y = LAYER2(c, "mul", y, align(c, x[k], &q->operand[k], &all), "");
    for (int d = q->result.n; d < all.n; d++) axes[d - q->result.n] = d;
    if (all.n == q->result.n) return y;
    return LAYER1(c, "sum", y, "axes=%s", call_format_ints(c, all.n - q->result.n, axes));
}

/* The labels of `a` that `b` has, and the result has; `in_b`, `in_result`: whether they must. */
static void select(const struct labels *a, const struct labels *b, bool in_b,
                   const struct labels *result, bool in_result, struct labels *out) {
    *out = (struct labels){0};
    for (int i = 0; i < a->n; i++)
        if ((find(b, a->at[i]) >= 0) == in_b && (find(result, a->at[i]) >= 0) == in_result)
            out->at[out->n++] = a->at[i];
}

/* x as [batch.., joined first, joined second]. */
static sol_tensor as_matrix(struct op_call *c, sol_tensor x, const struct labels *own,
                            const struct labels *batch, const struct labels *first,
                            const struct labels *second) {
    struct size dim[SOL_MAX_RANK], out[SOL_MAX_RANK + 2];
    struct labels order = *batch;
    for (int i = 0; i < first->n; i++) order.at[order.n++] = first->at[i];
    for (int i = 0; i < second->n; i++) order.at[order.n++] = second->at[i];
    x = align(c, x, own, &order);
    if (c->im->status || call_shape(c, x, dim) != order.n) return x;
    for (int i = 0; i < batch->n; i++) out[i] = dim[i];
    out[batch->n] = out[batch->n + 1] = size_const(1);
    for (int i = batch->n; i < order.n; i++) {
        struct size *side = &out[batch->n + (i >= batch->n + first->n)];
        *side = size_mul(*side, dim[i]);
    }
    return call_reshape(c, x, batch->n + 2, out);
}

/* Is the sum a matmul? Each dim that is summed must be in both operands, and equal dims must have equal sizes. */
static bool is_product(struct op_call *c, const struct equation *q, const sol_tensor *x) {
    struct size left[SOL_MAX_RANK], right[SOL_MAX_RANK];
    const struct labels *a = &q->operand[0], *b = &q->operand[1];
    bool sums = false;
    if (q->n != 2 || call_shape(c, x[0], left) != a->n || call_shape(c, x[1], right) != b->n)
        return false;
    for (int i = 0; i < a->n; i++) {
        const int other = find(b, a->at[i]);
        const bool is_kept = find(&q->result, a->at[i]) >= 0;
        if (other >= 0 ? !size_equal(left[i], right[other]) : !is_kept) return false;
        sums |= !is_kept;
    }
    for (int i = 0; i < b->n; i++)
        if (find(a, b->at[i]) < 0 && find(&q->result, b->at[i]) < 0) return false;
    return sums;
}

static sol_tensor multiply(struct op_call *c, const struct equation *q, const sol_tensor *x) {
    struct labels batch, rows, columns, summed, order;
    struct size dim[SOL_MAX_RANK], left[SOL_MAX_RANK], right[SOL_MAX_RANK];
    const struct labels *a = &q->operand[0], *b = &q->operand[1];
    select(a, b, true, &q->result, true, &batch);
    select(a, b, true, &q->result, false, &summed);
    select(a, b, false, &q->result, true, &rows);
    select(b, a, false, &q->result, true, &columns);
    order = batch;
    for (int i = 0; i < rows.n; i++) order.at[order.n++] = rows.at[i];
    for (int i = 0; i < columns.n; i++) order.at[order.n++] = columns.at[i];
    if (batch.n + 2 > SOL_MAX_RANK) return sum_products(c, q, x);
    sol_tensor y = LAYER2(c, "matmul", as_matrix(c, x[0], a, &batch, &rows, &summed),
                          as_matrix(c, x[1], b, &batch, &summed, &columns), "");
    call_shape(c, x[0], left);
    call_shape(c, x[1], right);
    for (int i = 0; i < order.n; i++) {
        const int from = find(a, order.at[i]);
        dim[i] = from >= 0 ? left[from] : right[find(b, order.at[i])];
    }
    return align(c, call_reshape(c, y, order.n, dim), &order, &q->result);
}

enum sol_status op_einsum(struct op_call *c) {
    struct equation q = {0};
    sol_tensor x[MAX_INPUTS];
    TRY(read_equation(c, &q));
    for (int i = 0; i < q.result.n; i++) {
        int found = 0;
        for (int k = 0; k < q.n; k++) found += find(&q.operand[k], q.result.at[i]) >= 0;
        if (!found || find(&q.result, q.result.at[i]) != i)
            return fail(SOL_EINVAL, "a result label that is in no operand, or twice");
    }
    for (int k = 0; k < q.n; k++) x[k] = take_diagonals(c, call_tensor(c, k), &q.operand[k]);
    TRY(c->im->status);
    bool multiplies = is_product(c, &q, x);
    return call_set_output(c, 0, multiplies ? multiply(c, &q, x) : sum_products(c, &q, x));
}
