/*
 * Operators that process a sequence position by position and keep a state: causal convolution, linear attention.
 *
 * The steps of a sequence are unrolled, so linear attention is compiled for short sequences only; longer ones are interpreted. f16 and bf16 are computed as f32.
 */
#include "import.h"

#include <math.h>
#include <string.h>

#define MAX_STEPS 64 /* places that are compiled */
#define PIECE 1024   /* places whose layers a model that is run at once has */

static enum sol_dtype wide(enum sol_dtype dtype) { return dtype == SOL_F64 ? SOL_F64 : SOL_F32; }

static sol_tensor read(struct op_call *c, int i) {
    return call_cast(c, call_tensor(c, i), wide(c->in[0]->dtype));
}

/* ---- Causal convolution ---- */

/* x [n, c, places] behind the state, which is the last kernel - 1 places before; zeros if it is left out. */
static sol_tensor behind_state(struct op_call *c, sol_tensor x, int64_t kept) {
    if (!kept) return x;
    if (call_has(c, 3)) return LAYER2(c, "concat", read(c, 3), x, "axis=2");
    return LAYER1(c, "pad", x, "pad=[0,%lld,0,0]", (long long)kept);
}

/* Each channel by itself, over the current and earlier places. Output 1 is the state for the next call. */
enum sol_status op_causal_conv(struct op_call *c) {
    const char *activation = call_string(c, "activation");
    const bool is_active = !strcmp(activation, "silu") || !strcmp(activation, "swish");
    struct size dim[SOL_MAX_RANK];
    if (call_rank(c, 0) != 3 || call_rank(c, 1) != 3) return fail(SOL_EINVAL, "ranks other than 3");
    if (*activation && !is_active && strcmp(activation, "none") != 0)
        return fail(SOL_EINVAL, "activation \"%.32s\"", activation);
    const int64_t channels = call_dim(c, 0, 1), places = call_dim(c, 0, 2),
                  taps = call_dim(c, 1, 2), kept = taps - 1;
    if (taps < 1) return fail(SOL_EINVAL, "a kernel without values");
    sol_tensor line = behind_state(c, read(c, 0), kept), in[3] = {line, read(c, 1), -1};
    const struct size weight[4] = {size_const(channels), size_const(1), size_const(1),
                                   size_const(taps)};
    call_shape(c, line, dim);
    in[0] = call_reshape(c, line, 4, (struct size[]){dim[0], dim[1], size_const(1), dim[2]});
    in[1] = call_reshape(c, in[1], 4, weight);
    if (call_has(c, 2)) in[2] = read(c, 2);
    sol_tensor y =
        call_layer(c, "conv", 2 + call_has(c, 2), in, "groups=%lld", (long long)channels);
    if (is_active) y = LAYER1(c, "silu", y, "");
    y = call_reshape(c, y, 3, c->in[0]->dim);
    if (c->n_out > 1 && c->out[1]) {
        sol_tensor state = LAYER1(c, "slice", line, "axis=2 start=%lld shape=[%lld]",
                                  (long long)places, (long long)kept);
        TRY(call_set_output(c, 1, call_cast(c, state, c->in[0]->dtype)));
    }
    return call_set_output(c, 0, call_cast(c, y, c->in[0]->dtype));
}

/* ---- Linear attention ---- */

/* Sizes, and the inputs of all places: q [batch, places, kv, shared, size], where `shared` heads of q share a head of k and v;
 * k [batch, places, kv, size, 1], v [batch, places, kv, 1, v_size]; decay and beta (< 0: none) broadcast with
 * [batch, places, kv, size, v_size]. */
struct linear {
    struct size batch;
    int64_t places, heads, kv, size, v_size;
    double scale;
    sol_tensor q, k, v, decay, beta;
};

/* Input `i`, [batch, places, ..], as [batch, places, a, b, c]. */
static sol_tensor five(struct op_call *c, const struct linear *l, int i, int64_t d2, int64_t d3,
                       int64_t d4) {
    return call_reshape(c, read(c, i), 5,
                        (struct size[]){l->batch, size_const(l->places), size_const(d2),
                                        size_const(d3), size_const(d4)});
}

/* Elements per place of an input. */
static int64_t per_place(struct op_call *c, int i) {
    int64_t n = 1;
    for (int d = 2; d < call_rank(c, i); d++) n *= call_dim(c, i, d);
    return n;
}

/* The decay is per head, or per head and row of the state; beta is per place, or per head. */
static enum sol_status read_rule(struct op_call *c, struct linear *l) {
    const char *rule = call_string(c, "update_rule");
    if (!*rule) rule = "gated_delta";
    if (strcmp(rule, "linear") != 0 && strcmp(rule, "gated") != 0 && strcmp(rule, "delta") != 0 &&
        strcmp(rule, "gated_delta") != 0)
        return fail(SOL_EINVAL, "update_rule \"%.32s\"", rule);
    const bool is_gated = strstr(rule, "gated"), is_delta = strstr(rule, "delta");
    if ((is_gated && !call_has(c, 4)) || (is_delta && !call_has(c, 5)))
        return fail(SOL_EINVAL, "no decay, or no beta");
    const int64_t decays = is_gated ? per_place(c, 4) / l->kv : 0,
                  betas = is_delta ? per_place(c, 5) : 0;
    if ((is_gated && decays != 1 && decays != l->size) ||
        (is_delta && betas != 1 && betas != l->kv))
        return fail(SOL_EINVAL, "a decay or a beta that does not fit");
    if (is_gated) l->decay = LAYER1(c, "exp", five(c, l, 4, l->kv, decays, 1), "");
    if (is_delta) l->beta = five(c, l, 5, betas, 1, 1);
    return c->im->status;
}

static enum sol_status read_heads(struct op_call *c, struct linear *l) {
    *l = (struct linear){.heads = call_int(c, "q_num_heads", 0),
                         .kv = call_int(c, "kv_num_heads", 0),
                         .scale = call_float(c, "scale", 0),
                         .decay = -1,
                         .beta = -1};
    for (int i = 0; i < 3; i++)
        if (call_rank(c, i) != 3) return fail(SOL_EINVAL, "ranks other than 3");
    if (l->heads < 1 || l->kv < 1 || l->heads % l->kv) return fail(SOL_EINVAL, "heads do not fit");
    l->batch = c->in[0]->dim[0];
    l->places = call_dim(c, 0, 1);
    l->size = call_dim(c, 0, 2) / l->heads;
    l->v_size = call_dim(c, 2, 2) / l->kv;
    if (!c->im->is_single && (l->places > MAX_STEPS || l->places < 1))
        return fail(SOL_EUNSUPPORTED, "a sequence of %lld places", (long long)l->places);
    if (l->size < 1 || l->v_size < 1) return fail(SOL_EINVAL, "heads without values");
    if (l->scale == 0) l->scale = 1 / sqrt((double)l->size);
    l->q = five(c, l, 0, l->kv, l->heads / l->kv, l->size);
    l->k = five(c, l, 1, l->kv, l->size, 1);
    l->v = five(c, l, 2, l->kv, 1, l->v_size);
    return c->im->status;
}

/* Place `t` of [batch, places, ..4 dims], without the dim of places. */
static sol_tensor at_place(struct op_call *c, sol_tensor x, int64_t t) {
    struct size dim[SOL_MAX_RANK];
    x = LAYER1(c, "slice", x, "axis=1 start=%lld shape=[1]", (long long)t);
    if (call_shape(c, x, dim) != 5) return x;
    return call_reshape(c, x, 4, (struct size[]){dim[0], dim[2], dim[3], dim[4]});
}

/* S = exp(g) S + beta k (v - exp(g) S^T k)^T, where S is [batch, kv, size, v_size]. Without decay S is not scaled; without beta the
 * update is k v^T. */
static sol_tensor update_state(struct op_call *c, const struct linear *l, sol_tensor state,
                               int64_t t) {
    sol_tensor k = at_place(c, l->k, t), v = at_place(c, l->v, t);
    if (l->decay >= 0) state = LAYER2(c, "mul", state, at_place(c, l->decay, t), "");
    if (l->beta >= 0) {
        sol_tensor known =
            LAYER1(c, "sum", LAYER2(c, "mul", state, k, ""), "axes=[2] keepdim=true");
        v = LAYER2(c, "mul", LAYER2(c, "sub", v, known, ""), at_place(c, l->beta, t), "");
    }
    return LAYER2(c, "add", state, LAYER2(c, "mul", k, v, ""), "");
}

/* Computes what the next places and the outputs need. A model that is run at once is run for pieces of the sequence, since the
 * layers of a long one would take much memory. */
static void settle(struct op_call *c, struct linear *l, sol_tensor *state, int n, sol_tensor *y) {
    sol_tensor *const known[] = {&l->q, &l->k, &l->v, &l->decay, &l->beta, state};
    sol_tensor **all = ARENA_ARRAY(c->im->arena, sol_tensor *, COUNT(known) + n);
    memcpy(all, known, sizeof known);
    for (int i = 0; i < n; i++) all[COUNT(known) + i] = &y[i];
    call_fail(c, call_settle(c, COUNT(known) + n, all));
}

/* Adds the layers of the places begin .. end - 1: for each one update_state, then the result q S * scale. Returns the results as
 * [batch, places, heads * v_size]. */
static sol_tensor unroll(struct op_call *c, const struct linear *l, sol_tensor *state,
                         int64_t begin, int64_t end) {
    const struct size row[3] = {l->batch, size_const(1), size_const(l->heads * l->v_size)};
    sol_tensor *y = ARENA_ARRAY(c->im->arena, sol_tensor, end - begin + 1);
    for (int64_t t = begin; t < end; t++) {
        *state = update_state(c, l, *state, t);
        sol_tensor place = LAYER2(c, "matmul", at_place(c, l->q, t), *state, "");
        y[t - begin] = call_reshape(c, place, 3, row);
    }
    if (begin < end) return call_layer(c, "concat", (int)(end - begin), y, "axis=1");
    return call_expand(c, call_scalar_of(c, 0, wide(c->in[0]->dtype)), 3,
                       (struct size[]){row[0], size_const(0), row[2]});
}

enum sol_status op_linear_attention(struct op_call *c) {
    struct linear l;
    TRY(read_heads(c, &l));
    TRY(read_rule(c, &l));
    const enum sol_dtype own = c->in[0]->dtype, dtype = wide(own);
    const int n = l.places > PIECE ? (int)((l.places - 1) / PIECE + 1) : 1;
    const struct size shape[4] = {l.batch, size_const(l.kv), size_const(l.size),
                                  size_const(l.v_size)};
    sol_tensor *y = ARENA_ARRAY(c->im->arena, sol_tensor, n);
    sol_tensor state = call_has(c, 3) ? call_reshape(c, read(c, 3), 4, shape)
                                      : call_expand(c, call_scalar_of(c, 0, dtype), 4, shape);
    for (int i = 0; i < n && !c->im->status; i++) {
        const int64_t begin = (int64_t)i * PIECE;
        y[i] = unroll(c, &l, &state, begin, min_i64(l.places, begin + PIECE));
        if (i < n - 1) settle(c, &l, &state, i + 1, y);
    }
    sol_tensor all = n > 1 ? call_concat(c, n, y, 1) : y[0];
    all = LAYER2(c, "mul", all, call_scalar_of(c, l.scale, dtype), "");
    if (c->n_out > 1)
        TRY(call_set_output(c, 1, call_cast(c, state, call_has(c, 3) ? c->in[3]->dtype : own)));
    return call_set_output(c, 0, call_cast(c, all, own));
}
