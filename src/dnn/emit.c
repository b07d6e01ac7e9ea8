/*
 * From a DNN cluster to steps.
 *
 *   cluster -> problem -> the cheapest implementation that accepts -> a pack step in a phase of prepack, a step in the phase of the cluster
 *
 * The device passes the generated epilogue. This file appends the epilogue's pointers and arguments to those of the step;
 * dnn_step_run passes it to the implementation as a callback per finished region.
 *
 * The answer of each implementation (reason to refuse, or cost) becomes data of the step, for the program's report.
 */
#include "dnn/emit.h"

#include "dnn/depthwise.h"
#include "dnn/direct.h"
#include "dnn/grouped.h"
#include "dnn/list.h"
#include "dnn/step.h"

#include <math.h>

/* Products of all output channels' lanes per point of x, or of its window, in blocks of `lanes`. */
static int64_t count_lanes(int64_t channels, int64_t positions, int lanes) {
    return round_up(channels, lanes) * positions;
}

/* Do whole groups, of as many channels out as in, fit into one block? */
static bool share_block(int64_t in, int64_t out, int lanes) { return in == out && lanes % in == 0; }

/* A transposed convolution with groups in one block. */
static bool supports_spread(const struct layer *l, int lanes) {
    const int64_t in = ir_group_size(l, l->in[0]), out = ir_group_size(l, l->out[0]);
    const int64_t taps = size_value(l->in[1]->dim[2]) * size_value(l->in[1]->dim[3]);
    return share_block(in, out, lanes) && in < lanes && taps <= GROUPED_MAX_TAPS &&
           !env_has(ENV_SOL_DISABLE, dnn_grouped.name);
}

/* Is a transposed convolution best computed as it is? Else pass/decompose.c replaces it by a convolution whose channels are the phases of
 * all output channels. That computes more positions of the window if the stride does not divide it, and must interleave its
 * results, but fills the lanes if there are few channels. Without a stride it is a usual convolution. */
static bool supports_transposed(const struct layer *l, int lanes) {
    const struct attr *a = &l->attr;
    const int64_t phases = a->stride[0] * a->stride[1], k = size_value(l->out[0]->dim[1]);
    int64_t window = 1, positions = 1;
    if (phases == 1) return false;
    if (a->groups > 1) return supports_spread(l, lanes);
    if (phases > DIRECT_MAX_PHASES) return false;
    for (int i = 0; i < 2; i++) {
        const int64_t n = size_value(l->in[1]->dim[2 + i]);
        window *= n;
        positions *= ceil_div((n - 1) * a->dilation[i] + 1, a->stride[i]);
    }
    return count_lanes(k, window, lanes) <= 2 * count_lanes(k * phases, positions, lanes);
}

/* Do the channels of a group fill at least half of their blocks? Layouts pad each group to whole blocks. */
static bool fills_blocks(int64_t n, int lanes) { return 2 * n >= round_up(n, lanes); }

/* The convolution's output and weight; of the gradient of a weight, the tensors that have their shapes. */
static struct tensor *find_y(const struct layer *l) {
    return l->kind == LAYER_conv_weight ? l->in[1] : l->out[0];
}
static struct tensor *find_weight(const struct layer *l) {
    return l->kind == LAYER_conv_weight ? l->out[0] : l->in[1];
}

/* Is it a convolution whose groups have blocks of their own? */
static bool has_blocks(const struct layer *conv, int lanes) {
    const int64_t in = ir_group_size(conv, conv->in[0]), out = ir_group_size(conv, find_y(conv));
    return !share_block(in, out, lanes) && fills_blocks(in, lanes) && fills_blocks(out, lanes);
}

/* Images whose groups have blocks of their own, or of which full groups are in one block. */
static bool supports_weight(const struct layer *l, int lanes) {
    const int64_t in = ir_group_size(l, l->in[0]), out = ir_group_size(l, l->in[1]);
    if (l->in[0]->rank != 4) return false;
    if (l->attr.groups == 1 || has_blocks(l, lanes))
        return !env_has(ENV_SOL_DISABLE, dnn_conv_weight.name);
    return share_block(in, out, lanes) && in < lanes &&
           !env_has(ENV_SOL_DISABLE, dnn_conv_weight_grouped.name);
}

/* With groups: each group has blocks of its own (direct), or full groups fit into one block (grouped). */
bool dnn_supports(const struct layer *conv, int lanes) {
    if (conv->in[0]->dtype != SOL_F32 && !ir_is_quantized(conv)) return false;
    if (ir_is_linear(conv)) return true;
    if (conv->kind == LAYER_matmul) return !env_has(ENV_SOL_DISABLE, dnn_matmul.name);
    if (conv->kind == LAYER_conv_transpose) return supports_transposed(conv, lanes);
    if (conv->kind == LAYER_conv_weight) return supports_weight(conv, lanes);
    return conv->attr.groups == 1 || has_blocks(conv, lanes) ||
           share_block(ir_group_size(conv, conv->in[0]), ir_group_size(conv, conv->out[0]), lanes);
}

/* Without blocks, lanes are pixels of a row, which should fill a vector. x must be plain, too. Volumes have no blocks at all. */
static bool is_plain_depthwise(const struct layer *conv, int lanes) {
    const struct tensor *x = conv->in[0], *y = conv->out[0];
    const struct size groups = size_const(conv->attr.groups), width = y->dim[y->rank - 1];
    const bool is_wide = !size_is_const(width) || size_value(width) >= lanes;
    return size_equal(groups, x->dim[1]) && size_equal(groups, y->dim[1]) &&
           (x->rank == 5 || (is_wide && ir_is_input(x))) &&
           conv->attr.stride[1] <= DEPTHWISE_MAX_STRIDE &&
           !env_has(ENV_SOL_DISABLE, dnn_depthwise.name);
}

/* Winograd needs blocks, and takes less time than a copy of y, unless there are few channels. */
bool dnn_writes_plain(const struct layer *conv, int lanes) {
    const struct attr *a = &conv->attr;
    const struct tensor *x = conv->in[0], *w = conv->in[1];
    if (conv->kind != LAYER_conv || x->dtype != SOL_F32) return false;
    if (x->rank == 5 && !size_is_const(x->dim[2])) return false;
    if (is_plain_depthwise(conv, lanes)) return true;
    const bool is_square =
        a->groups == 1 && size_is(w->dim[x->rank - 2], 3) && size_is(w->dim[x->rank - 1], 3);
    const int64_t channels = size_value(w->dim[1]) * (x->rank == 5 ? size_value(w->dim[2]) : 1);
    return !env_has(ENV_SOL_DISABLE, dnn_direct.name) &&
           (a->groups == 1 || has_blocks(conv, lanes)) &&
           (!is_square || a->stride[0] > 1 || a->stride[1] > 1 || channels < lanes);
}

bool dnn_computes(const struct layer *l, int lanes) {
    if (l->kind == LAYER_attention) return dnn_computes_attention(l);
    if (!ir_is_conv(l) || !ir_is_constant(l->in[1]) || ir_is_constant(l->in[0])) return false;
    return l->kind == LAYER_conv_transpose ? dnn_supports(l, lanes) : dnn_writes_plain(l, lanes);
}

/* ---- Problem ---- */

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
static bool has_images(const struct layer *l) {
    return ir_is_conv(l) || l->kind == LAYER_conv_weight;
}

static bool is_open_conv(const struct layer *conv) {
    const struct tensor *x = conv->in[0];
    return has_images(conv) && !size_is_const(size_mul(x->dim[x->rank - 2], x->dim[x->rank - 1]));
}

/* A dim's known or expected value. For expected sizes that do not fit, an image has one row or column. */
static int expect_dim(const struct tensor *t, int d, const int64_t *symbols) {
    return (int)max_i64(1, min_i64(INT32_MAX, size_eval(&t->dim[d], symbols)));
}

/* Rows and columns of x and y: known, or expected ones. */
static void set_images(const struct plan *plan, const struct layer *conv, const struct tensor *x,
                       const struct tensor *y, struct dnn_problem *p) {
    int64_t symbols[SIZE_SYMBOLS];
    plan_expect(plan, 1, symbols);
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

/* Shapes come from the tensors, stored channels and maps from their layouts. x is the cluster's input, before the prologue. */
static void fill_conv(struct build *b, const struct cluster *cluster, struct dnn_problem *p) {
    const struct layer *l = cluster->dnn->anchor;
    const struct tensor *x = cluster->dnn->x, *y = find_y(l), *w = find_weight(l);
    const struct attr *a = &l->attr;
    p->kind = l->kind == LAYER_conv_weight ? DNN_CONV_WEIGHT : DNN_CONV;
    p->groups = (int)a->groups;
    p->transposed = l->kind == LAYER_conv_transpose;
    p->c_model = p->transposed ? const_dim(w, 0) : const_dim(w, 1) * p->groups;
    p->k_model = p->transposed ? const_dim(w, 1) * p->groups : const_dim(w, 0);
    p->c = stored_channels(x);
    p->k = stored_channels(y);
    p->c_map = make_map(b, x);
    p->k_map = make_map(b, y);
    set_images(b->plan, l, x, y, p);
    if (w->rank == 5) set_volumes(l, p);
    p->kh = const_dim(w, w->rank - 2), p->kw = const_dim(w, w->rank - 1);
    p->sh = (int)a->stride[0], p->sw = (int)a->stride[1], p->dh = (int)a->dilation[0],
    p->dw = (int)a->dilation[1];
    p->pt = (int)a->pad[0], p->pl = (int)a->pad[1];
    p->x_plain = !x->layout.block;
    p->y_plain = !y->layout.block;
}

/* Rows of a linear layer: all dims but the last. */
static struct size count_rows(const struct tensor *x) { return ir_count(x, 0, x->rank - 1); }

static void fill_linear(const struct plan *plan, const struct cluster *cluster,
                        struct dnn_problem *p) {
    int64_t symbols[SIZE_SYMBOLS];
    plan_expect(plan, cluster->micro_batch, symbols);
    struct size rows = count_rows(cluster->dnn->x);
    p->batch_hint = max_i64(1, size_eval(&rows, symbols));
    p->kind = DNN_LINEAR;
    p->groups = p->h = p->w = p->oh = p->ow = p->kh = p->kw = p->sh = p->sw = p->dh = p->dw = 1;
    p->k = p->k_model = const_dim(cluster->dnn->anchor->in[1], 0);
    p->c = p->c_model = const_dim(cluster->dnn->anchor->in[1], 1);
    p->x_plain = p->y_plain = p->residual_plain = true;
}

/* ---- Matmuls ---- */

/* The sizes of a matmul: of struct dnn_problem, as formulas. */
struct matrix_sizes {
    struct size k, c, at[DNN_N_MATRIX];
};

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
static void find_matrices(const struct build *b, const struct cluster *cluster,
                          const struct tensor *y, struct matrix_sizes *out) {
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
}

/* Are there sizes that a call decides, besides the first one, which follows from the rows? */
static bool is_open_matmul(const struct matrix_sizes *m) {
    const int first = size_is(m->at[DNN_DIMS], 0) ? DNN_ROWS : DNN_DIMS;
    bool open = !size_is_const(m->k) || !size_is_const(m->c);
    for (int i = 0; i < DNN_N_MATRIX; i++) open |= i != first && !size_is_const(m->at[i]);
    return open;
}

static int expect_int(const struct size *size, const int64_t *symbols) {
    return (int)max_i64(0, min_i64(INT32_MAX, size_eval(size, symbols)));
}

static void fill_matmul(const struct build *b, const struct cluster *cluster,
                        const struct matrix_sizes *m, struct dnn_problem *p) {
    const struct tensor *y = cluster->dnn->anchor->out[0];
    int64_t symbols[SIZE_SYMBOLS];
    plan_expect(b->plan, cluster->micro_batch, symbols);
    struct size rows = ir_count(y, 0, y->rank - 1);
    p->batch_hint = max_i64(1, size_eval(&rows, symbols));
    p->kind = DNN_MATMUL;
    p->open = is_open_matmul(m);
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
static struct tensor *find_output(const struct cluster *cluster) {
    return cluster->layers.at[cluster->layers.n - 1]->out[0];
}

static struct tensor *find_bias(const struct layer *anchor) {
    if (ir_is_quantized(anchor)) return anchor->in[QUANT_BIAS];
    return anchor->n_in > 2 ? anchor->in[2] : NULL;
}

static struct dnn_problem make_problem(struct build *b, const struct cluster *cluster,
                                       const struct matrix_sizes *matrices) {
    struct dnn_problem p = {.batch_hint = cluster->micro_batch,
                            .lanes = b->plan->caps.block,
                            .threads = b->plan->caps.threads};
    const enum layer_kind kind = cluster->dnn->anchor->kind;
    if (has_images(cluster->dnn->anchor)) fill_conv(b, cluster, &p);
    else if (kind == LAYER_matmul) fill_matmul(b, cluster, matrices, &p);
    else fill_linear(b->plan, cluster, &p);
    p.factors = cluster->dnn->anchor->attr.factors;
    p.x_type = cluster->dnn->x->dtype;
    p.w_type = cluster->dnn->anchor->in[1]->dtype;
    p.y_type = cluster->dnn->anchor->out[0]->dtype;
    p.bias = find_bias(cluster->dnn->anchor) != NULL;
    p.residual = cluster->dnn->residual != NULL;
    p.prologue = cluster->dnn->scale != NULL;
    p.prologue_min = cluster->dnn->prologue_act ? 0 : -INFINITY;
    fill_act(cluster->dnn->act, &p);
    return p;
}

/* ---- Choice ---- */

/* Deterministic mode: the same bits at every run and compile on one kind of processor, for any number of threads. So only own
 * kernels, whose sums have one order; and no choice by timing, nor by cost, which depends on threads and batch_hint. */
static bool is_deterministic(const struct build *b) { return b->options->deterministic; }

static const char *refuse(const struct build *b, const struct dnn_impl *impl,
                          const struct dnn_problem *p) {
    if (env_has(ENV_SOL_DISABLE, impl->name)) return "disabled by SOL_DISABLE";
    if (b->options->keep_source && impl->probe) return "a library needs own kernels";
    if (is_deterministic(b) && (impl->approximate || impl->probe)) return "deterministic numerics";
    return dnn_refuse(impl, p);
}

static const char *name_kind(const struct dnn_problem *p) {
    static const char *const names[] = {"conv", "linear", "matmul", "gradient of a weight"};
    return names[p->kind];
}

/* The implementations that the device has. */
static int count_impls(const struct build *b) {
    int n = 0;
    while (b->plan->caps.impls && b->plan->caps.impls[n]) n++;
    return n;
}

static void report_choice(struct build *b, const struct sol_candidate *candidate,
                          const struct dnn_plan *best) {
    const struct dnn_problem *p = &best->problem;
    for (const struct sol_candidate *c = candidate; c < candidate + count_impls(b); c++)
        if (c->refusal) text_add(&b->report, "    %s refuses: %s\n", c->name, c->refusal);
        else text_add(&b->report, "    %s: estimated %.1f us\n", c->name, c->seconds * 1e6);
    if (p->kind == DNN_LINEAR || p->kind == DNN_MATMUL)
        text_add(&b->report, "    -> %s %d->%d\n", best->impl->name, p->c, p->k);
    else
        text_add(&b->report, "    -> %s %dx%d/%d %d->%d @%dx%d groups %d\n", best->impl->name,
                 p->kh, p->kw, p->sh, p->c, p->k, p->h, p->w, p->groups);
}

/* All cores, from memory to memory. A program that trains packs the weights again at each call. */
static const double pack_bytes_per_s = 8e9;

/* Fills candidate[] with each implementation's answer, and plans[] with the plans of those that accept: cheapest first, at
 * equal cost in the list's order; in deterministic mode in the list's order. Returns the number of plans. */
static int find_plans(const struct build *b, const struct dnn_problem *p, const struct dnn_isa *isa,
                      struct sol_candidate *candidate, struct dnn_plan *plans) {
    int n = 0;
    for (int i = 0; i < count_impls(b); i++) {
        const struct dnn_impl *impl = b->plan->caps.impls[i];
        candidate[i] = (struct sol_candidate){.name = impl->name, .refusal = refuse(b, impl, p)};
        if (candidate[i].refusal) continue;
        struct dnn_plan plan = {.impl = impl, .kernels = isa->kernels, .problem = *p};
        impl->plan(&plan);
        if (ir_has_backward(b->plan->model))
            plan.cost += (double)plan.packed_size / pack_bytes_per_s;
        candidate[i].seconds = plan.cost;
        int at = n++;
        for (; !is_deterministic(b) && at > 0 && plans[at - 1].cost > plan.cost; at--)
            plans[at] = plans[at - 1];
        plans[at] = plan;
    }
    return n;
}

/* Index of the cheapest own kernel; 0 if all plans are libraries'. Without timing it is unknown whether a library is faster;
 * with own kernels, results do not depend on installed libraries. */
static int find_own(const struct dnn_plan *plans, int n) {
    int own = 0;
    while (own < n && plans[own].impl->probe) own++;
    return own < n ? own : 0;
}

static enum sol_status choose(struct build *b, const struct dnn_problem *p,
                              const struct dnn_isa *isa, dnn_tune *tune,
                              struct sol_candidate *candidate, struct dnn_plan *best) {
    struct dnn_plan *plans = ARENA_ARRAY(b->arena, struct dnn_plan, count_impls(b) + 1);
    int n = find_plans(b, p, isa, candidate, plans), near = 0;
    if (!n) return fail(SOL_EUNSUPPORTED, "no kernel takes this %s", name_kind(p));
    while (near < n && plans[near].cost <= DNN_NEAR_TIE * plans[0].cost) near++;
    if (is_deterministic(b)) near = 1;
    *best = plans[tune && near > 1 ? tune(b->arena, plans, near) : find_own(plans, n)];
    report_choice(b, candidate, best);
    return SOL_OK;
}

/* ---- Steps ---- */

static enum sol_status emit_pack(struct build *b, const struct cluster *cluster,
                                 const struct dnn_plan *plan, struct buffer_ref *packed) {
    const struct tensor *w = cluster->dnn->anchor->in[1];
    *packed = build_packed(b, (int64_t)plan->packed_size, "packed weight");
    struct buffer_ref ptr[] = {build_ref(b, w), *packed};
    struct step step = {.kind = &step_dnn_pack,
                        .data = plan,
                        .n_ptr = COUNT(ptr),
                        .ptr = ptr,
                        .bytes = size_const((int64_t)plan->packed_size),
                        .name = "pack",
                        .module = "DNN",
                        .layers = "pack"};
    return build_step(b, phase_of_packing(b->cluster->phase), &step);
}

/* Elements from one sample of t to the next. Samples of a conv may have gaps between them (in a concat); the rows of a linear
 * layer are dense. */
static struct size batch_stride(const struct build *b, const struct tensor *t, bool is_conv) {
    if (!t) return size_const(0);
    return is_conv ? b->plan->storage[t->id].stride[0] : t->dim[t->rank - 1];
}

/* Each value of y, or of a transposed convolution's x, takes part in the products of all other dims of the weight. */
static struct size count_flops(const struct cluster *cluster) {
    const struct layer *l = cluster->dnn->anchor;
    const struct tensor *y = find_y(l), *w = find_weight(l);
    int64_t products = 1;
    if (l->kind == LAYER_matmul)
        return size_scale(size_mul(ir_elements(y), w->dim[w->rank - 2]), 2);
    for (int d = 1; d < w->rank; d++) products *= size_value(w->dim[d]);
    return size_scale(ir_elements(l->kind == LAYER_conv_transpose ? l->in[0] : y), 2 * products);
}

static const char *name_step(struct build *b, const struct dnn_plan *plan) {
    const struct dnn_problem *p = &plan->problem;
    if (p->kind == DNN_LINEAR || p->kind == DNN_MATMUL)
        return arena_printf(b->arena, "%s %d->%d", name_kind(p), p->c, p->k);
    return arena_printf(b->arena, "%s %s %dx%d/%d %d->%d @%dx%d",
                        p->transposed ? "transposed conv" : name_kind(p), plan->impl->name, p->kh,
                        p->kw, p->sh, p->c_model, p->k_model, p->h, p->w);
}

/* The last arguments of a matmul's step. */
static struct size find_size(const struct matrix_sizes *m, int i) {
    return i < DNN_N_MATRIX ? m->at[i] : i == DNN_N_MATRIX ? m->k : m->c;
}

/* Appends the step that runs the plan. Its y is the cluster's output: the implementation writes it, then the epilogue works
 * on it in place. */
static enum sol_status emit_run(struct build *b, const struct cluster *cluster,
                                const struct dnn_work *work, const struct sol_candidate *candidate,
                                const struct matrix_sizes *matrices, struct buffer_ref packed,
                                struct buffer_ref partial, const struct step *epilogue) {
    const struct dnn_plan *plan = &work->plan;
    const struct layer *anchor = cluster->dnn->anchor;
    const bool is_weight = anchor->kind == LAYER_conv_weight;
    const struct tensor *y = is_weight ? find_y(anchor) : find_output(cluster),
                        *x = cluster->dnn->x;
    const bool is_conv = has_images(anchor), open = plan->problem.open;
    const bool is_quantized = ir_is_quantized(anchor);
    const int n_ptr = DNN_N_POINTERS + epilogue->n_ptr, n_last = DNN_N_ARGS + epilogue->n_arg,
              n_arg = n_last + (open ? dnn_n_sizes(plan->problem.kind) : 0);
    struct buffer_ref *ptr = ARENA_ARRAY(b->arena, struct buffer_ref, n_ptr);
    struct size *arg = ARENA_ARRAY(b->arena, struct size, n_arg);
    ptr[DNN_X] = build_ref(b, x);
    ptr[DNN_PACKED] = packed;
    ptr[DNN_WEIGHT] = build_ref(b, plan->packed_size ? NULL : cluster->dnn->w);
    ptr[DNN_BIAS] = build_ref(b, find_bias(anchor));
    ptr[DNN_RESIDUAL] = build_ref(b, cluster->dnn->residual);
    ptr[DNN_SCALE] = build_ref(b, is_quantized ? anchor->in[QUANT_SCALE] : cluster->dnn->scale);
    ptr[DNN_SHIFT] = build_ref(b, cluster->dnn->shift);
    ptr[DNN_ZERO] = build_ref(b, is_quantized ? anchor->in[QUANT_ZERO] : NULL);
    ptr[DNN_RANGE] = build_ref(b, anchor->n_in > QUANT_RANGE ? anchor->in[QUANT_RANGE] : NULL);
    ptr[DNN_Y] = plan->partial_size ? partial : build_ref(b, find_output(cluster));
    arg[DNN_BATCH] = is_conv ? x->dim[0] : count_rows(y);
    arg[DNN_X_STRIDE] = batch_stride(b, x, is_conv);
    arg[DNN_Y_STRIDE] = batch_stride(b, y, is_conv);
    arg[DNN_RESIDUAL_STRIDE] = batch_stride(b, cluster->dnn->residual, is_conv);
    for (int i = DNN_N_POINTERS; i < n_ptr; i++) ptr[i] = epilogue->ptr[i - DNN_N_POINTERS];
    for (int i = DNN_N_ARGS; i < n_last; i++) arg[i] = epilogue->arg[i - DNN_N_ARGS];
    for (int i = n_last; i < n_arg; i++)
        arg[i] = is_conv ? (i < n_last + 2 ? anchor->in[0] : find_y(anchor))
                               ->dim[x->rank - 2 + (i - n_last) % 2]
                         : find_size(matrices, i - n_last);
    struct step step = {.kind = &step_dnn,
                        .is_open = open,
                        .data = work,
                        .n_ptr = n_ptr,
                        .ptr = ptr,
                        .n_arg = n_arg,
                        .arg = arg,
                        .scratch_size = dnn_step_scratch(plan) + epilogue->scratch_size,
                        .flops = count_flops(cluster),
                        .bytes = build_bytes(cluster),
                        .name = name_step(b, plan),
                        .module = "DNN",
                        .layers = build_describe(b, cluster),
                        .implementation = plan->impl->name,
                        .n_candidates = count_impls(b),
                        .candidate = candidate};
    return build_step(b, b->cluster->phase, &step);
}

/* Appends the step that makes the cluster's output of partial results. */
static enum sol_status emit_join(struct build *b, const struct cluster *cluster,
                                 const struct dnn_plan *plan, struct buffer_ref partial) {
    struct buffer_ref ptr[] = {partial, build_ref(b, find_output(cluster))};
    struct step step = {.kind = &step_dnn_join,
                        .data = plan,
                        .n_ptr = COUNT(ptr),
                        .ptr = ptr,
                        .n_arg = 1,
                        .arg = &cluster->dnn->x->dim[0],
                        .bytes = size_const((int64_t)plan->partial_size),
                        .name = "sum of parts",
                        .module = "DNN",
                        .layers = build_describe(b, cluster)};
    return build_step(b, b->cluster->phase, &step);
}

enum sol_status dnn_emit(struct build *b, const struct cluster *cluster, const struct dnn_isa *isa,
                         dnn_tune *tune, const struct step *epilogue) {
    static const struct step none;
    struct dnn_work *work = ARENA_NEW(b->keep, struct dnn_work);
    struct matrix_sizes matrices;
    if (cluster->dnn->anchor->kind == LAYER_matmul)
        find_matrices(b, cluster, find_output(cluster), &matrices);
    struct dnn_problem problem = make_problem(b, cluster, &matrices);
    struct buffer_ref packed = {.kind = BUFFER_NONE}, partial = packed;
    struct sol_candidate *candidate =
        ARENA_ARRAY(b->keep, struct sol_candidate, count_impls(b) + 1);
    TRY(choose(b, &problem, isa, tune, candidate, &work->plan));
    if (!epilogue) epilogue = &none;
    work->finish = epilogue->data;
    if (work->plan.packed_size) TRY(emit_pack(b, cluster, &work->plan, &packed));
    if (work->plan.partial_size)
        partial =
            build_temporary(b, size_const((int64_t)work->plan.partial_size), "parts of a gradient");
    TRY(emit_run(b, cluster, work, candidate, &matrices, packed, partial, epilogue));
    return work->plan.partial_size ? emit_join(b, cluster, &work->plan, partial) : SOL_OK;
}
