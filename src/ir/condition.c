/*
 * Conditions: what a call's sizes must fulfil so that each layer is valid, where shape inference could not know it.
 *
 *   the user's model -> ir_conditions -> struct condition -> run/bind.c checks them for each new vector of symbol values
 *
 * Shape inference gives sizes as formulas: a convolution of 7x7 makes h-6 rows of h. Whether h is at least 7 is known at the
 * call. The order is that of the layers, so the first layer that does not fit is the one in the message.
 */
#include "ir/layer.h"
#include "run/program.h"

#include <string.h>

struct collector {
    struct arena *arena;
    VEC(struct condition) found;
};

/* Symbols are never negative, so a size without negative coefficients is at least its constant. */
static bool is_certain(struct size value, int64_t min) {
    if (!size_never_negative(value)) return false;
    int64_t constant = 0;
    for (int i = 0; i < value.n; i++)
        if (!value.term[i].factor[0].power) constant = value.term[i].coef;
    return constant >= min;
}

static bool is_known(const struct collector *c, struct size value, int64_t min) {
    for (int i = 0; i < c->found.n; i++)
        if (c->found.at[i].min >= min && size_equal(c->found.at[i].value, value)) return true;
    return is_certain(value, min);
}

/* value >= min, else the message is "kind (origin): what" and the dims of `t`. */
static void require(struct collector *c, struct size value, int64_t min, const struct layer *l,
                    const char *what, const struct tensor *t) {
    if (is_known(c, value, min)) return;
    struct condition condition = {.value = value, .min = min, .rank = t->rank};
    const char *name = layer_infos[l->kind].name;
    condition.what = l->origin ? arena_printf(c->arena, "%s (%s): %s", name, l->origin, what)
                               : arena_printf(c->arena, "%s: %s", name, what);
    memcpy(condition.shape, t->dim, sizeof condition.shape);
    VEC_PUSH(c->arena, &c->found, condition);
}

/* The window must have a position; inside an input that is not empty. */
static void check_window(struct collector *c, const struct layer *l) {
    const struct tensor *in = l->in[0];
    const struct attr *a = &l->attr;
    bool is_conv = ir_is_conv(l);
    long long rows = is_conv ? size_value(l->in[1]->dim[in->rank - 2]) : a->kernel[0],
              columns = is_conv ? size_value(l->in[1]->dim[in->rank - 1]) : a->kernel[1];
    const char *what =
        arena_printf(c->arena, "a window of [%lld,%lld] does not fit into input", rows, columns);
    for (int d = 2; d < in->rank; d++) {
        require(c, in->dim[d], 1, l, "no rows or columns in input", in);
        require(c, l->out[0]->dim[d], 1, l, what, in);
    }
}

static void check_plane(struct collector *c, const struct layer *l, const struct tensor *image) {
    const struct size plane = ir_count(image, 2, 4);
    require(c, size_sub(size_const(INT32_MAX), plane), 0, l, "too many rows and columns in input",
            image);
}

static void check_random(struct collector *c, const struct layer *l) {
    const struct size most = size_const((int64_t)UINT32_MAX + 1);
    require(c, size_sub(most, ir_elements(l->out[0])), 0, l, "more than 2^32 values in", l->out[0]);
}

/* The convolution whose gradient it is must have a window. */
static void check_gradient(struct collector *c, const struct layer *l) {
    for (int d = 2; d < l->in[0]->rank; d++) {
        require(c, l->in[0]->dim[d], 1, l, "no rows or columns in input", l->in[0]);
        require(c, l->in[1]->dim[d], 1, l, "no window fits into input", l->in[0]);
    }
}

static void check_slice(struct collector *c, const struct layer *l) {
    const struct tensor *in = l->in[0];
    struct size least, most;
    if (size_is(l->attr.shape[0], 0)) return;
    infer_steps(&l->attr, l->attr.shape[0], &least, &most);
    require(c, least, 0, l, "the slice begins before input", in);
    require(c, size_sub(in->dim[l->attr.axis], most), 1, l, "the slice leaves input", in);
}

static void check_place(struct collector *c, const struct layer *l) {
    const struct tensor *out = l->out[0];
    const struct size count = l->in[0]->dim[l->attr.axis];
    struct size least, most;
    if (size_is(count, 0)) return;
    infer_steps(&l->attr, count, &least, &most);
    require(c, least, 0, l, "values begin before output", out);
    require(c, size_sub(out->dim[l->attr.axis], most), 1, l, "values leave output", out);
}

/* There is no index of the largest of no values. */
static void check_extreme(struct collector *c, const struct layer *l) {
    require(c, l->in[0]->dim[l->attr.axis], 1, l, "no values along the axis, of input", l->in[0]);
}

static void check_sizes(struct collector *c, const struct layer *l, const struct tensor *out) {
    for (int d = 0; d < out->rank; d++)
        require(c, out->dim[d], 0, l, "a negative size, of input", l->n_in ? l->in[0] : out);
}

static void check_layer(struct collector *c, const struct layer *l) {
    bool is_window = ir_is_conv(l) || l->kind == LAYER_max_pool || l->kind == LAYER_avg_pool ||
                     l->kind == LAYER_max_pool_index || l->kind == LAYER_adaptive_avg_pool;
    if (is_window) check_window(c, l);
    if (l->kind == LAYER_max_pool_index) check_plane(c, l, l->in[0]);
    if (l->kind == LAYER_max_pool_grad) check_plane(c, l, l->out[0]);
    if (l->kind == LAYER_random) check_random(c, l);
    if (l->kind == LAYER_conv_weight) check_gradient(c, l);
    if (l->kind == LAYER_slice) check_slice(c, l);
    if (l->kind == LAYER_place) check_place(c, l);
    if (l->kind == LAYER_argmax || l->kind == LAYER_argmin) check_extreme(c, l);
    for (int i = 0; i < l->n_out; i++) check_sizes(c, l, l->out[i]);
}

/* value >= min, else the message is "height must be `what` `limit`, and is [33]". */
static void limit_symbol(struct collector *c, const struct model *m, int symbol, struct size value,
                         int64_t min, const char *what, int64_t limit) {
    struct condition condition = {.value = value, .min = min, .rank = 1};
    condition.shape[0] = size_symbol(symbol);
    condition.what = arena_printf(c->arena, "%s must be %s %lld, and is", m->symbol[symbol], what,
                                  (long long)limit);
    VEC_PUSH(c->arena, &c->found, condition);
}

/* A multiple of 16 is 16 times its quotient, which is rounded down. */
static void check_symbol(struct collector *c, struct model *m, int symbol) {
    const int64_t multiple = m->quotients.multiple[symbol], least = m->quotients.least[symbol];
    const struct size value = size_symbol(symbol),
                      below = size_sub(size_free(&m->quotients, symbol), value);
    if (multiple > 1) limit_symbol(c, m, symbol, below, 0, "a multiple of", multiple);
    if (least > 0) limit_symbol(c, m, symbol, value, least, "at least", least);
}

struct condition *ir_conditions(struct arena *arena, const struct model *m, int *n) {
    struct collector c = {.arena = arena};
    for (int i = 0; i < m->n_symbols; i++) check_symbol(&c, (struct model *)(uintptr_t)m, i);
    for (int i = 0; i < m->layers.n; i++) check_layer(&c, m->layers.at[i]);
    *n = c.found.n;
    return c.found.at;
}
