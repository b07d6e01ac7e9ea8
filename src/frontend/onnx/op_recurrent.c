/*
 * RNN, GRU, LSTM.
 *
 *   x -> one linear layer for all steps -> usual cells: a recurrent layer, over any number of steps
 *                                       -> other cells: per step linear of the state, sum, gates -> state
 *
 * Other cells are unrolled: the number of steps is known, so layers are added for each step. x is then [batch, steps, inputs]. States are [batch, hidden] and sequences [batch, steps, ..], so that the slice of a step or a gate can be a view. The formulas
 * are those of ONNX's documentation. f16 and bf16 are computed as f32, so that rounding errors do not grow with the steps.
 */
#include "recurrent.h"

#include <string.h>

/* The most steps that are compiled: a compiler needs time for each layer. A model that is run at once may have any number. */
#define MAX_STEPS 1024

/* The inputs of all three operators. */
enum { X, WEIGHT, RECURRENCE, BIAS, LENGTHS, INITIAL_H, INITIAL_C, PEEPHOLE, N_INPUTS };

/* ---- Parts of a direction ---- */

/* Input `i` in the type that is computed in. */
static sol_tensor read(const struct sequence *q, int i) {
    return call_cast(q->c, call_tensor(q->c, i), q->dtype);
}

/* Direction `d` of [directions, ..], without that dim. */
static sol_tensor direction(const struct sequence *q, int input, int d) {
    struct size dim[SOL_MAX_RANK];
    sol_tensor x = read(q, input);
    if (q->n_directions > 1) x = cell_part(q->c, x, 0, d, 1);
    int rank = call_shape(q->c, x, dim);
    return rank < 1 ? x : call_reshape(q->c, x, rank - 1, dim + 1);
}

/* The state before the first step, as [batch, hidden]: zeros, or an input [directions, batch, hidden] (batch first with layout
 * 1). */
static sol_tensor initial(const struct sequence *q, int input, int d) {
    const struct size dim[2] = {q->batch, size_const(q->hidden)};
    if (call_has(q->c, input)) {
        sol_tensor x = read(q, input);
        if (q->n_directions > 1) x = cell_part(q->c, x, q->batch_first, d, 1);
        return call_reshape(q->c, x, 2, dim);
    }
    return call_expand(q->c, call_scalar_of(q->c, 0, q->dtype), 2, dim);
}

/* The biases of inputs and recurrence are added, except for a GRU with reset_behind, whose reset gate multiplies only
 * the second. */
static void read_bias(const struct sequence *q, struct cell *s, int d) {
    s->bias = s->recurrent_bias = -1;
    if (!call_has(q->c, BIAS)) return;
    sol_tensor both = direction(q, BIAS, d);
    int64_t n = q->kind->n_gates * q->hidden;
    s->bias = cell_part(q->c, both, 0, 0, n);
    s->recurrent_bias = cell_part(q->c, both, 0, 1, n);
    if (!s->reset_behind) s->bias = LAYER2(q->c, "add", s->bias, s->recurrent_bias, "");
}

static struct cell begin_cell(const struct sequence *q, int d) {
    struct op_call *c = q->c;
    struct cell s = {.c = c, .q = q, .hidden = q->hidden, .peephole = -1, .state = -1};
    s.act = q->act + d * q->kind->n_acts;
    s.reset_behind = call_int(c, "linear_before_reset", 0) != 0;
    s.couples = call_int(c, "input_forget", 0) != 0;
    s.weight = direction(q, WEIGHT, d);
    s.recurrence = direction(q, RECURRENCE, d);
    read_bias(q, &s, d);
    if (call_has(c, PEEPHOLE)) s.peephole = direction(q, PEEPHOLE, d);
    s.h = initial(q, INITIAL_H, d);
    if (q->kind->n_gates == 4) s.state = initial(q, INITIAL_C, d);
    return s;
}

/* ---- All steps ---- */

/* One step. A sequence that is shorter keeps its state at the steps that it does not have. In reverse these come first. */
static void step(struct cell *s, int64_t t, sol_tensor x) {
    const sol_tensor h = s->h, state = s->state, valid = s->q->valid;
    struct size dim[2] = {s->q->batch, size_const(1)};
    s->q->kind->step(s, x);
    if (valid < 0) return;
    sol_tensor now = call_reshape(s->c, cell_part(s->c, valid, 1, t, 1), 2, dim);
    s->h = call_where(s->c, now, s->h, h);
    if (state >= 0) s->state = call_where(s->c, now, s->state, state);
}

/* Adds the layers of the steps begin .. end - 1. Returns their states as [batch, (end - begin) * hidden], in the order of time; -1
 * when output 0 is not needed. */
static sol_tensor unroll(struct cell *s, sol_tensor x, int64_t begin, int64_t end) {
    struct op_call *c = s->c;
    const int64_t n = end - begin;
    const struct size dim[2] = {s->q->batch, size_const(s->q->kind->n_gates * s->hidden)};
    sol_tensor *all = ARENA_ARRAY(c->im->arena, sol_tensor, n + 1);
    for (int64_t i = 0; i < n && !c->im->status; i++) {
        const int64_t at = s->is_reverse ? n - 1 - i : i;
        step(s, begin + at, call_reshape(c, cell_part(c, x, 1, begin + at, 1), 2, dim));
        all[at] = s->h;
    }
    if (!c->out[0]) return -1;
    return n ? call_layer(c, "concat", (int)n, all, "axis=1")
             : call_expand(c, call_scalar_of(c, 0, s->q->dtype), 2,
                           (struct size[]){s->q->batch, size_const(0)});
}

/* Computes what the next steps and the outputs need. */
static void settle(struct sequence *q, struct cell *s, sol_tensor *x, int n_pieces,
                   sol_tensor *piece) {
    sol_tensor *const known[] = {
        x,     &s->recurrence, &s->recurrent_bias, &s->peephole, &s->h,       &s->state,
        &q->x, &q->valid,      &q->y[0],           &q->h[0],     &q->state[0]};
    sol_tensor **all = ARENA_ARRAY(q->c->im->arena, sol_tensor *, COUNT(known) + n_pieces);
    memcpy(all, known, sizeof known);
    for (int i = 0; i < n_pieces; i++) all[COUNT(known) + i] = &piece[i];
    call_fail(q->c, call_settle(q->c, COUNT(known) + n_pieces, all));
}

/* Sets the results of a direction: of all steps [batch, steps * hidden], and of the last one [batch, hidden]. A model that is run at
 * once is run for pieces of the steps, since the layers of a long sequence would take much memory. */
static void run_direction(struct sequence *q, struct cell *s, int d) {
    struct op_call *c = q->c;
    const int n = q->steps > MAX_STEPS ? (int)((q->steps - 1) / MAX_STEPS + 1) : 1;
    sol_tensor *piece = ARENA_ARRAY(c->im->arena, sol_tensor, n),
               in[3] = {q->x, s->weight, s->bias};
    sol_tensor x = call_layer(c, "linear", s->bias < 0 ? 2 : 3, in, "");
    for (int i = 0; i < n; i++) piece[i] = -1;
    for (int i = 0; i < n && !c->im->status; i++) {
        const int64_t at = s->is_reverse ? n - 1 - i : i, begin = at * MAX_STEPS;
        piece[at] = unroll(s, x, begin, min_i64(q->steps, begin + MAX_STEPS));
        if (i < n - 1) settle(q, s, &x, n, piece);
    }
    q->y[d] = n > 1 && c->out[0] ? call_concat(c, n, piece, 1) : piece[0];
    q->h[d] = s->h, q->state[d] = s->state;
}

static sol_tensor join(struct op_call *c, const sol_tensor *x, int n, int axis) {
    return n > 1 ? call_concat(c, n, x, axis) : x[0];
}

/* Zeros where a sequence does not have the step. y [batch, steps, directions, hidden] */
static sol_tensor blank(const struct sequence *q, sol_tensor y) {
    const struct size one = size_const(1), dim[4] = {q->batch, size_const(q->steps), one, one};
    sol_tensor zero = call_scalar_of(q->c, 0, call_dtype(q->c, y));
    return call_where(q->c, call_reshape(q->c, q->valid, 4, dim), y, zero);
}

/* Y: [steps, directions, batch, hidden], or [batch, steps, directions, hidden]. */
static enum sol_status output_sequence(struct sequence *q) {
    struct op_call *c = q->c;
    const struct size dim[4] = {q->batch, size_const(q->steps), size_const(1),
                                size_const(q->hidden)};
    if (c->n_out < 1 || !c->out[0]) return SOL_OK;
    for (int d = 0; d < q->n_directions; d++) q->y[d] = call_reshape(c, q->y[d], 4, dim);
    sol_tensor y = call_cast(c, join(c, q->y, q->n_directions, 2), c->in[X]->dtype);
    if (q->valid >= 0) y = blank(q, y);
    return call_set_output(c, 0,
                           q->batch_first ? y : call_permute(c, y, 4, (int64_t[]){1, 2, 0, 3}));
}

/* Y_h, Y_c: [directions, batch, hidden], or the batch first. */
static enum sol_status output_last(struct sequence *q, int i, sol_tensor *last) {
    struct op_call *c = q->c;
    struct size dim[3] = {size_const(1), q->batch, size_const(q->hidden)};
    if (i >= c->n_out || !c->out[i]) return SOL_OK;
    if (q->batch_first) dim[0] = q->batch, dim[1] = size_const(1);
    for (int d = 0; d < q->n_directions; d++) last[d] = call_reshape(c, last[d], 3, dim);
    sol_tensor y = join(c, last, q->n_directions, q->batch_first);
    return call_set_output(c, i, call_cast(c, y, c->in[X]->dtype));
}

/* ---- As a layer ---- */

/* The bias of the product of the inputs, with that of the state, and of a gru the part of the latter that the layer adds itself. */
static sol_tensor order_bias(const struct sequence *q, struct cell *s, sol_tensor *last) {
    struct op_call *c = q->c;
    const struct size hidden = size_const(q->hidden);
    sol_tensor zero = call_scalar_of(c, 0, q->dtype);
    if (q->kind->n_gates == 3) *last = call_expand(c, zero, 1, &hidden);
    if (s->bias < 0) return -1;
    if (q->kind->n_gates != 3) return cell_order(q, s->bias);
    sol_tensor more = cell_order(q, s->recurrent_bias),
               joined[2] = {cell_part(c, more, 0, 0, 2 * q->hidden), *last};
    *last = cell_part(c, more, 0, 2, q->hidden);
    return LAYER2(c, "add", cell_order(q, s->bias), call_concat(c, 2, joined, 0), "");
}

/* The part of a layer's output that is behind the states of all steps. */
static sol_tensor last_row(const struct sequence *q, sol_tensor y, int i) {
    const struct size dim[2] = {q->batch, size_const(q->hidden)};
    struct size at = size_add(q->n_steps, size_const(i));
    return call_reshape(q->c,
                        LAYER1(q->c, "slice", y, "axis=%d start=%s step=1 shape=[1]",
                               q->batch_first, call_format_size(q->c, at)),
                        2, dim);
}

/* Sets the results of a direction: of all steps [steps, batch, hidden], or the batch first, and of the last one. */
static void add_direction(struct sequence *q, struct cell *s, int d, sol_tensor lengths) {
    struct op_call *c = q->c;
    sol_tensor more = s->state, bias = order_bias(q, s, &more), in[5];
    sol_tensor product[3] = {q->x, cell_order(q, s->weight), bias};
    int n = 0;
    in[n++] = call_layer(c, "linear", bias < 0 ? 2 : 3, product, "");
    in[n++] = cell_order(q, s->recurrence);
    in[n++] = s->h;
    if (q->kind->n_gates > 1) in[n++] = more;
    if (lengths >= 0) in[n++] = lengths;
    sol_tensor y = call_layer(c, cell_find_layer(q, d), n, in, "axis=%d reverse=%s", q->batch_first,
                              s->is_reverse ? "true" : "false");
    q->h[d] = last_row(q, y, 0);
    if (q->kind->n_gates == 4) q->state[d] = last_row(q, y, 1);
    q->y[d] = LAYER1(c, "slice", y, "axis=%d start=0 step=1 shape=[%s]", q->batch_first,
                     call_format_size(c, q->n_steps));
}

/* Y of directions that are layers: [steps, directions, batch, hidden], or [batch, steps, directions, hidden]. */
static enum sol_status output_layers(struct sequence *q) {
    struct op_call *c = q->c;
    const int axis = 1 + q->batch_first;
    if (c->n_out < 1 || !c->out[0]) return SOL_OK;
    for (int d = 0; d < q->n_directions; d++) {
        struct size dim[SOL_MAX_RANK];
        call_shape(c, q->y[d], dim);
        for (int i = 3; i > axis; i--) dim[i] = dim[i - 1];
        dim[axis] = size_const(1);
        q->y[d] = call_reshape(c, q->y[d], 4, dim);
    }
    sol_tensor y = join(c, q->y, q->n_directions, axis);
    return call_set_output(c, 0, call_cast(c, y, c->in[X]->dtype));
}

/* ---- The operator ---- */

/* The shape of each input. A size that is not known before the call fits; layers compare it with others at the call. */
static enum sol_status check_shapes(const struct sequence *q) {
    static const char *const names[] = {"X",         "W",         "R", "B", "sequence_lens",
                                        "initial_h", "initial_c", "P"};
    struct op_call *c = q->c;
    const struct size d = size_const(q->n_directions), h = size_const(q->hidden),
                      gates = size_const(q->kind->n_gates * q->hidden);
    const struct size before = q->batch_first ? q->batch : d,
                      behind = q->batch_first ? d : q->batch;
    const struct {
        int rank;
        struct size dim[3];
    } shapes[N_INPUTS] = {[X] = {3, {c->in[X]->dim[0], c->in[X]->dim[1], c->in[X]->dim[2]}},
                          [WEIGHT] = {3, {d, gates, c->in[X]->dim[2]}},
                          [RECURRENCE] = {3, {d, gates, h}},
                          [BIAS] = {2, {d, size_scale(gates, 2)}},
                          [LENGTHS] = {1, {q->batch}},
                          [INITIAL_H] = {3, {before, behind, h}},
                          [INITIAL_C] = {3, {before, behind, h}},
                          [PEEPHOLE] = {2, {d, size_scale(h, 3)}}};
    for (int i = 0; i < c->n_in; i++) {
        const struct import_value *v = c->in[i];
        bool fits = !v || v->rank == shapes[i].rank;
        for (int k = 0; v && fits && k < v->rank; k++)
            fits = size_equal(v->dim[k], shapes[i].dim[k]) || !size_is_const(v->dim[k]) ||
                   !size_is_const(shapes[i].dim[k]);
        if (!fits)
            return fail(SOL_EINVAL, "%s is [%s], not [%s]", names[i],
                        call_format_dims(c, v->rank, v->dim),
                        call_format_dims(c, shapes[i].rank, shapes[i].dim));
    }
    return SOL_OK;
}

/* Checks the lengths that are known. *are_full: all are known to be the number of steps. Lengths of this call only are checked, for
 * the sake of a clear message, but not read: that would make the program valid for them alone. */
static enum sol_status check_lengths(const struct sequence *q, bool *are_full) {
    const struct import_value *v = q->c->in[LENGTHS];
    const struct size *length = v->live ? v->shape_value : call_shape_value(q->c, LENGTHS);
    const bool is_open = !size_is_const(q->n_steps);
    *are_full = length && !v->live && !is_open;
    for (int64_t i = 0; length && !is_open && i < call_count(v); i++) {
        const int64_t n = size_is_const(length[i]) ? size_value(length[i]) : 0;
        if (n < 0 || n > q->steps)
            return fail(SOL_EINVAL, "sequence_lens has %lld for %lld steps", (long long)n,
                        (long long)q->steps);
        *are_full &= n == q->steps;
    }
    return SOL_OK;
}

/* The lengths as i64 [batch]; -1: all sequences have all steps. The layer checks them at the call. */
static enum sol_status find_lengths(struct sequence *q, sol_tensor *out) {
    bool are_full = true;
    if (call_has(q->c, LENGTHS)) TRY(check_lengths(q, &are_full));
    *out = are_full ? -1
                    : call_reshape(q->c, call_cast(q->c, call_tensor(q->c, LENGTHS), SOL_I64), 1,
                                   &q->batch);
    return q->c->im->status;
}

/* For cells that are unrolled. Takes each length from a table of all that are possible, so that one that is too large, or negative,
 * is an error of the call. */
static enum sol_status read_lengths(struct sequence *q) {
    struct op_call *c = q->c;
    bool are_full = true;
    if (call_has(c, LENGTHS)) TRY(check_lengths(q, &are_full));
    if (are_full) return SOL_OK;
    sol_tensor table = call_arange(c, size_const(q->steps + 1), 1, 0),
               index = call_cast(c, call_tensor(c, LENGTHS), SOL_I64),
               length = LAYER2(c, "gather", table, index, "axis=0 wraps=false");
    const struct size row[3] = {size_const(1), size_const(q->steps), size_const(1)},
                      column[3] = {q->batch, size_const(1), size_const(1)};
    sol_tensor place = call_reshape(c, call_arange(c, row[1], 1, 0), 3, row);
    q->valid = LAYER2(c, "less", place, call_reshape(c, length, 3, column), "");
    return c->im->status;
}

static enum sol_status read_sequence(struct op_call *c, struct sequence *q) {
    q->batch_first = call_int(c, "layout", 0) != 0;
    q->clip = call_float(c, "clip", 0);
    if (call_rank(c, X) != 3 || call_rank(c, WEIGHT) != 3 || call_rank(c, RECURRENCE) != 3)
        return fail(SOL_EINVAL, "ranks %d, %d and %d instead of 3", call_rank(c, X),
                    call_rank(c, WEIGHT), call_rank(c, RECURRENCE));
    if (size_family(c->in[X]->dtype) != FAMILY_FLOAT)
        return fail(SOL_EUNSUPPORTED, "X is %s", size_dtype_name(c->in[X]->dtype));
    q->dtype = c->in[X]->dtype == SOL_F64 ? SOL_F64 : SOL_F32;
    q->n_directions = (int)call_dim(c, RECURRENCE, 0);
    q->hidden = call_dim(c, RECURRENCE, 2);
    q->n_steps = c->in[X]->dim[q->batch_first];
    q->steps = size_is_const(q->n_steps) ? size_value(q->n_steps) : -1;
    q->batch = c->in[X]->dim[!q->batch_first];
    TRY(c->im->status);
    TRY(check_shapes(q));
    q->x = read(q, X);
    return c->im->status;
}

/* What unrolling needs: a known number of steps, and x and the lengths with the batch first. */
static enum sol_status prepare_steps(struct sequence *q) {
    const bool is_single = q->c->im->is_single;
    q->steps = call_dim(q->c, X, q->batch_first);
    TRY(q->c->im->status);
    if (!is_single && (q->steps < 1 || q->steps > MAX_STEPS))
        return fail(SOL_EUNSUPPORTED, "%lld steps of such a cell; 1 to %d are possible",
                    (long long)q->steps, MAX_STEPS);
    if (!q->batch_first) q->x = call_permute(q->c, q->x, 3, (int64_t[]){1, 0, 2});
    return read_lengths(q);
}

/* Checks the attribute, and that the weights have as many directions. */
static enum sol_status read_direction(const struct sequence *q, bool *is_reverse) {
    const char *text = call_string(q->c, "direction");
    bool is_both = !strcmp(text, "bidirectional");
    *is_reverse = !strcmp(text, "reverse");
    if (*text && !is_both && !*is_reverse && strcmp(text, "forward") != 0)
        return fail(SOL_EINVAL, "direction \"%.32s\"", text);
    if (q->n_directions == 1 + is_both) return SOL_OK;
    return fail(SOL_EINVAL, "weights of %d directions", q->n_directions);
}

enum sol_status op_recurrent(struct op_call *c) {
    struct sequence q = {.c = c,
                         .kind = cell_find(c->op->name),
                         .valid = -1,
                         .y = {-1, -1},
                         .h = {-1, -1},
                         .state = {-1, -1}};
    bool is_reverse = false;
    TRY(read_sequence(c, &q));
    TRY(read_direction(&q, &is_reverse));
    TRY(cell_read_acts(&q));
    if (call_int(c, "hidden_size", q.hidden) != q.hidden)
        return fail(SOL_EINVAL, "hidden_size is not the weight's, %lld", (long long)q.hidden);
    bool are_layers = true;
    sol_tensor lengths = -1;
    for (int d = 0; d < q.n_directions; d++) are_layers &= cell_find_layer(&q, d) != NULL;
    TRY(are_layers ? find_lengths(&q, &lengths) : prepare_steps(&q));
    for (int d = 0; d < q.n_directions; d++) {
        struct cell s = begin_cell(&q, d);
        s.is_reverse = is_reverse || d == 1;
        TRY(c->im->status);
        if (are_layers) add_direction(&q, &s, d, lengths);
        else run_direction(&q, &s, d);
    }
    TRY(are_layers ? output_layers(&q) : output_sequence(&q));
    TRY(output_last(&q, 1, q.h));
    return c->n_out > 2 ? output_last(&q, 2, q.state) : c->im->status;
}
