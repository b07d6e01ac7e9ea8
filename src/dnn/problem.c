/*
 * Problems: the numbers of a cluster's conv, linear or matmul (struct dnn_problem in dnn.h).
 *
 *   layers, layouts, storage of a cluster -> dnn_problem_make
 *
 * Sizes that are open have their expected values; the formulas become arguments of the step (emit.c).
 */
#include "dnn/problem.h"

#include <math.h>

enum { MANY_ROWS = 256 }; /* of a matmul for which b is packed once */

/* The convolution's output and weight; of the gradient of a weight, the tensors that have their shapes. */
struct tensor *dnn_problem_y(const struct layer *l) {
    return l->kind == LAYER_conv_weight ? l->in[1] : l->out[0];
}
struct tensor *dnn_problem_weight(const struct layer *l) {
    return l->kind == LAYER_conv_weight ? l->out[0] : l->in[1];
}

const char *dnn_problem_name(const struct dnn_problem *p) {
    static const char *const names[] = {"conv", "linear", "matmul", "gradient of a weight"};
    return names[p->kind];
}

/* The map stored channel -> channel of the model, or -1 for padding; NULL if it is the identity. */
static const int *make_map(struct build *b, const struct tensor *t) {
    const struct layout *layout = &t->layout;
    if (!layout->block || (layout->n_segments == 1 && layout->segment[0].valid == layout->stored))
        return NULL;
    int *map = ARENA_ARRAY(b->keep, int, layout->stored), channel = 0, stored = 0;
    for (int s = 0; s < layout->n_segments; s++)
        for (int i = 0; i < layout->segment[s].stored; i++)
            map[stored++] = i < layout->segment[s].valid ? channel++ : -1;
    return map;
}

static int const_dim(const struct tensor *t, int d) { return (int)size_value(t->dim[d]); }
static int stored_channels(const struct tensor *t) {
    return t->layout.block ? t->layout.stored : const_dim(t, 1);
}

/* A convolution, or the gradient of one's weight. */
bool dnn_problem_has_images(const struct layer *l) {
    return ir_is_conv(l) || l->kind == LAYER_conv_weight;
}

static bool is_open_conv(const struct layer *conv) {
    const struct tensor *x = conv->in[0];
    return dnn_problem_has_images(conv) &&
           !size_is_const(size_mul(x->dim[x->rank - 2], x->dim[x->rank - 1]));
}

/* A dim's known or expected value. For expected sizes that do not fit, an image has one row or column. */
static int expect_dim(const struct tensor *t, int d, const int64_t *symbols) {
    return (int)max_i64(1, min_i64(INT32_MAX, size_eval(&t->dim[d], symbols)));
}

/* Number of images, rows and columns of x and y: known, or expected ones. */
static void set_images(const struct plan *plan, const struct cluster *cluster,
                       const struct tensor *x, const struct tensor *y, struct dnn_problem *p) {
    const struct layer *conv = cluster->dnn->anchor;
    int64_t symbols[SIZE_SYMBOLS];
    plan_expect(plan, cluster->micro_batch, symbols);
    p->batch_hint = expect_dim(x, 0, symbols);
    p->open = is_open_conv(conv);
    p->h = expect_dim(x, x->rank - 2, symbols), p->w = expect_dim(x, x->rank - 1, symbols);
    p->oh = expect_dim(y, y->rank - 2, symbols), p->ow = expect_dim(y, y->rank - 1, symbols);
}

static void set_volumes(const struct layer *conv, struct dnn_problem *p) {
    const int64_t *depth = conv->attr.depth;
    p->d = const_dim(conv->in[0], 2), p->od = const_dim(conv->out[0], 2);
    p->kd = const_dim(conv->in[1], 2);
    p->sd = (int)depth[0], p->dd = (int)depth[1], p->pd = (int)depth[2];
}

bool dnn_problem_is_turned(const struct layer *l) {
    const struct attr *a = &l->attr;
    const struct tensor *w = l->in[1];
    for (int i = 0; i < 2; i++)
        if (a->stride[i] != 1 || a->pad[i] > a->dilation[i] * (const_dim(w, 2 + i) - 1))
            return false;
    return a->groups == 1;
}

/* Shapes come from the tensors, stored channels and maps from their layouts. x is the cluster's input, before the prologue. */
static void fill_conv(struct build *b, const struct cluster *cluster, struct dnn_problem *p) {
    const struct layer *l = cluster->dnn->anchor;
    const struct tensor *x = cluster->dnn->x, *y = dnn_problem_y(l), *w = dnn_problem_weight(l);
    const struct attr *a = &l->attr;
    p->kind = l->kind == LAYER_conv_weight ? DNN_CONV_WEIGHT : DNN_CONV;
    p->groups = (int)a->groups;
    const bool transposed = l->kind == LAYER_conv_transpose;
    p->turned = transposed && dnn_problem_is_turned(l);
    p->transposed = transposed && !p->turned;
    p->c_model = transposed ? const_dim(w, 0) : const_dim(w, 1) * p->groups;
    p->k_model = transposed ? const_dim(w, 1) * p->groups : const_dim(w, 0);
    p->c = stored_channels(x);
    p->k = stored_channels(y);
    p->c_map = make_map(b, x);
    p->k_map = make_map(b, y);
    set_images(b->plan, cluster, x, y, p);
    if (w->rank == 5) set_volumes(l, p);
    p->kh = const_dim(w, w->rank - 2), p->kw = const_dim(w, w->rank - 1);
    p->sh = (int)a->stride[0], p->sw = (int)a->stride[1], p->dh = (int)a->dilation[0],
    p->dw = (int)a->dilation[1];
    p->pt = (int)a->pad[0], p->pl = (int)a->pad[1];
    if (p->turned) p->pt = p->dh * (p->kh - 1) - p->pt, p->pl = p->dw * (p->kw - 1) - p->pl;
    p->x_plain = !x->layout.block;
    p->y_plain = !y->layout.block;
}

/* Rows of a linear layer: all dims but the last. */
struct size dnn_problem_rows(const struct tensor *x) { return ir_count(x, 0, x->rank - 1); }

static void fill_linear(const struct plan *plan, const struct cluster *cluster,
                        struct dnn_problem *p) {
    int64_t symbols[SIZE_SYMBOLS];
    plan_expect(plan, cluster->micro_batch, symbols);
    struct size rows = dnn_problem_rows(cluster->dnn->x);
    p->batch_hint = max_i64(1, size_eval(&rows, symbols));
    p->kind = DNN_LINEAR;
    p->groups = p->h = p->w = p->oh = p->ow = p->kh = p->kw = p->sh = p->sw = p->dh = p->dw = 1;
    p->k = p->k_model = const_dim(cluster->dnn->anchor->in[1], 0);
    p->c = p->c_model = const_dim(cluster->dnn->anchor->in[1], 1);
    p->x_plain = p->y_plain = p->residual_plain = true;
}

/* ---- Matmuls ---- */

/* Elements between neighbours along dim d of operand i, which is dim axis[d] of x or w; 0 if the operand is broadcast there. */
static struct size find_stride(const struct build *b, const struct cluster *cluster, int i, int d) {
    const struct dnn_fusion *f = cluster->dnn;
    const struct tensor *t = i ? f->w : f->x;
    return b->plan->storage[t->id].stride[f->axis[i][d]];
}

/* Fills the sizes and strides of dim d of the output, which is one of products. */
static void fill_dim(const struct build *b, const struct cluster *cluster, const struct tensor *y,
                     int d, struct size *at) {
    const enum dnn_matrix_dim field[] = {DNN_DIM_A, DNN_DIM_B};
    at[DNN_DIM_SIZE] = y->dim[d];
    at[DNN_DIM_Y] = b->plan->storage[y->id].stride[d];
    for (int i = 0; i < 2; i++) {
        const struct tensor *operand = cluster->dnn->anchor->in[i];
        const int own = d - (y->rank - operand->rank);
        const bool is_shared = own < 0 || !size_equal(operand->dim[own], y->dim[d]);
        at[field[i]] = is_shared ? size_const(0) : find_stride(b, cluster, i, own);
    }
}

static bool is_product(struct size whole, struct size n, struct size stride) {
    return size_equal(whole, size_mul(n, stride));
}

/* Dims of products that follow each other without gaps become one: the rows, if all of them use one b; else a dim. Fewer and larger
 * products pack less. Returns the number of dims that are left. */
static int merge_dims(struct size *at, int n) {
    while (n) {
        struct size *last = at + DNN_DIMS + (n - 1) * DNN_DIM_FIELDS;
        if (!size_is(last[DNN_DIM_B], 0) ||
            !is_product(last[DNN_DIM_A], at[DNN_ROWS], at[DNN_A_ROW]) ||
            !is_product(last[DNN_DIM_Y], at[DNN_ROWS], at[DNN_Y_ROW]))
            break;
        at[DNN_ROWS] = size_mul(at[DNN_ROWS], last[DNN_DIM_SIZE]);
        n--;
    }
    return n;
}

/* `y` is the cluster's output. */
void dnn_problem_matrices(const struct build *b, const struct cluster *cluster,
                          const struct tensor *y, struct dnn_matrix_sizes *out) {
    const struct layer *l = cluster->dnn->anchor;
    const int ar = l->in[0]->rank, br = l->in[1]->rank;
    struct size *at = out->at;
    out->k = y->dim[y->rank - 1];
    out->c = l->in[0]->dim[ar - 1];
    for (int i = 0; i < DNN_N_MATRIX; i++) at[i] = size_const(0);
    at[DNN_A_ROW] = find_stride(b, cluster, 0, ar - 2);
    at[DNN_A_COLUMN] = find_stride(b, cluster, 0, ar - 1);
    at[DNN_B_ROW] = find_stride(b, cluster, 1, br - 2);
    at[DNN_B_COLUMN] = find_stride(b, cluster, 1, br - 1);
    at[DNN_Y_ROW] = b->plan->storage[y->id].stride[y->rank - 2];
    at[DNN_ROWS] = y->dim[y->rank - 2];
    for (int d = 0; d < y->rank - 2; d++)
        fill_dim(b, cluster, y, d, at + DNN_DIMS + d * DNN_DIM_FIELDS);
    const int n = merge_dims(at, y->rank - 2);
    for (int i = DNN_DIMS + n * DNN_DIM_FIELDS; i < DNN_N_MATRIX; i++) at[i] = size_const(0);
    const struct size block = size_const(b->plan->caps.block); /* rounds up k and c */
    out->packed = size_mul(size_add(out->k, block), size_add(out->c, block));
    out->packed = size_scale(out->packed, sizeof(float));
}

/* Are there sizes that a call decides, besides the first one, which follows from the rows? */
static bool is_open_matmul(const struct dnn_matrix_sizes *m) {
    const int first = size_is(m->at[DNN_DIMS], 0) ? DNN_ROWS : DNN_DIMS;
    bool open = !size_is_const(m->k) || !size_is_const(m->c);
    for (int i = 0; i < DNN_N_MATRIX; i++) open |= i != first && !size_is_const(m->at[i]);
    return open;
}

/* Do all products have the same b? */
static bool shares_b(const struct dnn_matrix_sizes *m) {
    for (int i = DNN_DIMS; i < DNN_N_MATRIX; i += DNN_DIM_FIELDS)
        if (!size_is(m->at[i + DNN_DIM_B], 0)) return false;
    return true;
}

/*
 * Is b packed once, before the products? Tasks would pack it several times, and the rows and panels of b of a task would have to fit L2
 * together. `rows`: of all products.
 */
static bool packs_b(const struct dnn_matrix_sizes *m, int64_t rows) {
    return shares_b(m) && rows >= MANY_ROWS && !m->packed.bad;
}

static int expect_int(const struct size *size, const int64_t *symbols) {
    return (int)max_i64(0, min_i64(INT32_MAX, size_eval(size, symbols)));
}

static void fill_matmul(const struct build *b, const struct cluster *cluster,
                        const struct dnn_matrix_sizes *m, struct dnn_problem *p) {
    const struct tensor *y = cluster->dnn->anchor->out[0];
    int64_t symbols[SIZE_SYMBOLS];
    plan_expect(b->plan, cluster->micro_batch, symbols);
    struct size rows = ir_count(y, 0, y->rank - 1);
    p->batch_hint = max_i64(1, size_eval(&rows, symbols));
    p->kind = DNN_MATMUL;
    p->open = is_open_matmul(m);
    p->packs_b = packs_b(m, p->batch_hint);
    p->groups = p->h = p->w = p->oh = p->ow = p->kh = p->kw = p->sh = p->sw = p->dh = p->dw = 1;
    p->k = p->k_model = expect_int(&m->k, symbols);
    p->c = p->c_model = expect_int(&m->c, symbols);
    p->x_plain = p->y_plain = p->residual_plain = true;
    for (int i = 0; i < DNN_N_MATRIX; i++) p->matrix[i] = size_eval(&m->at[i], symbols);
}

static void fill_act(const struct layer *act, struct dnn_problem *p) {
    p->act = !act ? DNN_ACT_NONE : act->kind == LAYER_relu ? DNN_ACT_RELU : DNN_ACT_CLAMP;
    if (p->act != DNN_ACT_CLAMP) return;
    p->act_min = (float)act->attr.min;
    p->act_max = (float)act->attr.max;
}

/* The cluster's output. */
struct tensor *dnn_problem_output(const struct cluster *cluster) {
    return cluster->layers.at[cluster->layers.n - 1]->out[0];
}

struct tensor *dnn_problem_bias(const struct layer *anchor) {
    if (ir_is_quantized(anchor)) return anchor->in[QUANT_BIAS];
    return anchor->n_in > 2 ? anchor->in[2] : NULL;
}

struct dnn_problem dnn_problem_make(struct build *b, const struct cluster *cluster,
                                    const struct dnn_matrix_sizes *matrices) {
    struct dnn_problem p = {.lanes = b->plan->caps.block, .threads = b->plan->caps.threads};
    p.trained = ir_has_backward(b->plan->model);
    const enum layer_kind kind = cluster->dnn->anchor->kind;
    if (dnn_problem_has_images(cluster->dnn->anchor)) fill_conv(b, cluster, &p);
    else if (kind == LAYER_matmul) fill_matmul(b, cluster, matrices, &p);
    else fill_linear(b->plan, cluster, &p);
    p.factors = cluster->dnn->anchor->attr.factors;
    p.x_type = cluster->dnn->x->dtype;
    p.w_type = cluster->dnn->anchor->in[1]->dtype;
    p.y_type = cluster->dnn->anchor->out[0]->dtype;
    p.bias = dnn_problem_bias(cluster->dnn->anchor) != NULL;
    p.residual = cluster->dnn->residual != NULL;
    p.prologue = cluster->dnn->scale != NULL;
    p.prologue_min = cluster->dnn->prologue_act ? 0 : -INFINITY;
    fill_act(cluster->dnn->act, &p);
    return p;
}
