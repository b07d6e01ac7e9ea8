/*
 * Layouts: which tensors are stored in channel blocks, and copies between different layouts.
 *
 *   optimized model -> [this file] -> same model with `copy` layers, every tensor with its layout
 *
 * Convolutions of module DNN read and write blocked images. Layers between them (pointwise, pooling, concat over channels) use the
 * same layout. Tensors connected this way form an island: values are reordered only where they enter or leave an island.
 * Tensors of an island without such a convolution stay plain, and if nothing gains from blocks, the output of a convolution that can
 * write it. Inputs, parameters and outputs belong to the caller: always plain.
 *
 * Segments. A concat joins, and a slice cuts, channels at numbers that may be no multiple of the block. Each part then becomes
 * a segment, padded to whole blocks, so that the concat or slice needs no copy. All tensors of one class have the same
 * cuts: a cut of one layer spreads through all layers that keep the order of channels.
 *
 * Invariant: pad lanes are zero; every kernel that writes a blocked tensor writes zeros there.
 */
#include "plan/cluster.h"
#include "plan/plan.h"

#include <string.h>

struct layouts {
    struct plan *plan;
    struct model *m;
    int n;         /* tensors before copies are added */
    int *island;   /* union-find by tensor id: all tensors of an island are blocked, or all plain */
    int *class;    /* union-find by tensor id: all tensors of a class have the same cuts */
    bool *blocked; /* by island */
    bool
        *worth; /* by island: a layer gains from blocks, besides the convolutions that write them */
    VEC(int) *cuts; /* by class: sorted channel numbers at which segments begin */
};

int layout_channel_axis(const struct tensor *t) { return t->rank == 1 ? 0 : 1; }

int layout_position(const struct layout *layout, int channel) {
    if (!layout->block) return channel;
    int stored = 0;
    for (int i = 0; i < layout->n_segments; i++) {
        if (channel < layout->segment[i].valid) return stored + channel;
        channel -= layout->segment[i].valid;
        stored += layout->segment[i].stored;
    }
    return stored;
}

bool layout_equal(const struct layout *a, const struct layout *b) {
    if (a->block != b->block || a->n_segments != b->n_segments) return false;
    return !a->n_segments ||
           !memcmp(a->segment, b->segment, sizeof *a->segment * (size_t)a->n_segments);
}

static bool is_padded(const struct layout *layout) {
    for (int i = 0; i < layout->n_segments; i++)
        if (layout->segment[i].valid != layout->segment[i].stored) return true;
    return false;
}

/* Are the values in plain order? Also true for a blocked tensor without padding that has one pixel per image: its blocks lie
 * one behind the other, as plain channels do. */
static bool is_plain_order(const struct tensor *t) {
    if (!t->layout.block) return true;
    if (is_padded(&t->layout)) return false;
    for (int d = 2; d < t->rank; d++)
        if (!size_is(t->dim[d], 1))
            return t->layout.stored == t->layout.block && t->layout.block == 1;
    return true;
}

bool layout_is_same_order(const struct tensor *a, const struct tensor *b) {
    if (a->rank == b->rank && layout_equal(&a->layout, &b->layout)) return true;
    return is_plain_order(a) && is_plain_order(b);
}

struct size layout_elements(const struct tensor *t) {
    if (!t->layout.block) return ir_elements(t);
    int axis = layout_channel_axis(t);
    struct size others = size_mul(ir_count(t, 0, axis), ir_count(t, axis + 1, t->rank));
    return size_scale(others, t->layout.stored);
}

/* ---- Union-find ---- */

static int find_root(int *parent, int i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
}
static void unite(int *parent, int a, int b) {
    parent[find_root(parent, a)] = find_root(parent, b);
}

/* ---- Which layers keep the layout of their input ---- */

static bool is_image(const struct tensor *t) {
    return t->rank == 4 && !ir_is_constant(t) && !ir_is_input(t) && size_is_const(t->dim[1]);
}
static bool is_pointwise(const struct layer *l) { return layer_infos[l->kind].traits & POINTWISE; }

/* Also a layer that spreads rows or columns. */
static bool is_window(const struct layer *l) {
    return layer_infos[l->kind].traits & WINDOW || (l->kind == LAYER_place && l->attr.axis > 1);
}

/* Is it a reduction over rows, columns or both, but not over channels or the batch? */
static bool is_spatial_reduction(const struct layer *l) {
    if (!(layer_infos[l->kind].traits & REDUCTION)) return false;
    if (!l->attr.n_axes || l->in[0]->rank != 4) return false;
    for (int i = 0; i < l->attr.n_axes; i++)
        if (l->attr.axes[i] < 2) return false;
    return l->attr.keepdim || l->attr.n_axes == 2;
}

static bool is_channel_slice(const struct layer *l) {
    return l->kind == LAYER_slice && l->attr.axis == 1 && l->attr.step == 1 &&
           size_is_const(l->attr.start);
}
static bool is_channel_concat(const struct layer *l) {
    return l->kind == LAYER_concat && l->attr.axis == 1;
}

/* A grouped convolution with as many output as input channels, as in MobileNet (depthwise) and ResNeXt. */
static bool keeps_groups(const struct layer *l) {
    return ir_is_conv(l) && l->attr.groups > 1 && size_equal(l->in[0]->dim[1], l->out[0]->dim[1]);
}

static bool same_channels(const struct tensor *a, const struct tensor *b) {
    return size_equal(a->dim[1], b->dim[1]);
}

/* Does the layer compute or move channels of images, in blocks if its inputs are? */
static bool keeps_layout(const struct layer *l) {
    return is_pointwise(l) || is_window(l) || is_spatial_reduction(l) || is_channel_slice(l) ||
           is_channel_concat(l);
}

/* Has the tensor one value per channel, as the mean of an image has? Its blocks lie in plain order, so copies of it cost next to nothing. */
static bool is_pixel(const struct tensor *t) {
    for (int d = 2; d < t->rank; d++)
        if (!size_is(t->dim[d], 1)) return false;
    return true;
}

/* A pixel belongs to no island of images: small convolutions of means, as in squeeze and excitation, are no reason to
 * copy the images around them into blocks. But it follows an image that is blocked for its own convolutions (follow_images). */
static bool is_apart(const struct tensor *a, const struct tensor *b) {
    return is_pixel(a) != is_pixel(b);
}

/* Does the layer compute its output from blocks of this input as they are? A single channel is not blocked. */
static bool is_connected(const struct layer *l, const struct tensor *in) {
    const struct tensor *out = l->out[0];
    if (!is_image(in)) return false;
    if (is_channel_concat(l)) return true;
    if (size_is(in->dim[1], 1) || size_is(out->dim[1], 1)) return false;
    if (is_pointwise(l)) return same_channels(in, out);
    return keeps_layout(l);
}

/* Joins the islands of the image tensors that `l` connects; also their classes, unless `l` cuts or joins channels. */
static void join_islands(struct layouts *s, const struct layer *l) {
    const struct tensor *out = l->out[0];
    for (int i = 0; i < l->n_in; i++) {
        const struct tensor *in = l->in[i];
        if (!is_connected(l, in)) continue;
        if (!is_apart(in, out)) unite(s->island, in->id, out->id);
        if (!is_channel_slice(l) && !is_channel_concat(l)) unite(s->class, in->id, out->id);
    }
}

/* Is it a convolution of module DNN on channel blocks? Others are computed on plain tensors, by DFP or by DNN (writes_plain). */
static bool is_dnn_conv(const struct layouts *s, const struct layer *l) {
    return s->plan->caps.block > 1 && ir_is_conv(l) && ir_is_constant(l->in[1]) &&
           is_image(l->out[0]) && s->plan->supports_anchor(l, s->plan->caps.block);
}

/* Is it the gradient of a weight that module DNN computes? It reads x and dy in blocks, and writes a plain weight. */
static bool is_dnn_weight(const struct layouts *s, const struct layer *l) {
    return s->plan->caps.block > 1 && l->kind == LAYER_conv_weight && !ir_is_constant(l->out[0]) &&
           s->plan->supports_anchor(l, s->plan->caps.block);
}

/* Does it read a plain x as it is? A block of few channels would be mostly padding. */
static bool has_few_channels(const struct layouts *s, const struct layer *l) {
    return l->attr.groups == 1 && size_value(l->in[0]->dim[1]) < s->plan->caps.block;
}

/* Blocks of few channels are mostly padding. Quantized numbers take least memory of all, and kernels join plain ones to quads. */
static bool is_narrow(const struct layouts *s, const struct layer *l) {
    return ir_is_quantized(l) && 2 * size_value(l->in[0]->dim[1]) <= s->plan->caps.block;
}

/* Marks islands whose values do not only leave a convolution: layers compute with them, or they become lines of channels, which blocks
 * are in part. An activation is the convolution's own. */
static void mark_worth(struct layouts *s, const struct layer *l) {
    const struct tensor *t = l->out[0];
    const bool turns = l->kind == LAYER_permute && l->attr.axes[t->rank - 1] != t->rank - 1;
    if (turns)
        for (t = l->in[0]; t->producer->kind == LAYER_reshape;) t = t->producer->in[0];
    if (turns || (keeps_layout(l) && !cluster_is_act(l)))
        s->worth[find_root(s->island, t->id)] = true;
}

/* x and dy of the gradient of a weight. With as many channels in groups, they are stored alike, as in the convolution. */
static void mark_weight(struct layouts *s, const struct layer *l) {
    for (int i = has_few_channels(s, l); i < 2; i++)
        if (is_image(l->in[i])) s->blocked[find_root(s->island, l->in[i]->id)] = true;
    if (l->attr.groups > 1 && same_channels(l->in[0], l->in[1]) && is_image(l->in[0]) &&
        is_image(l->in[1]))
        unite(s->class, l->in[0]->id, l->in[1]->id);
}

static void mark_blocked(struct layouts *s, const struct layer *l) {
    if (is_dnn_weight(s, l)) mark_weight(s, l);
    if (!is_dnn_conv(s, l)) return;
    const int out = find_root(s->island, l->out[0]->id);
    if (s->worth[out] || !plan_writes_plain(s->plan, l)) s->blocked[out] = true;
    if (is_image(l->in[0]) && !is_narrow(s, l))
        s->blocked[find_root(s->island, l->in[0]->id)] = true;
    if (keeps_groups(l) && is_image(l->in[0])) unite(s->class, l->in[0]->id, l->out[0]->id);
}

/* Pixels beside a blocked image are blocked, too, so that the layers between them need no copies. */
static void follow_images(struct layouts *s, const struct layer *l) {
    const struct tensor *out = l->out[0];
    for (int i = 0; i < l->n_in; i++) {
        const struct tensor *in = l->in[i], *image = is_pixel(in) ? out : in,
                            *pixel = is_pixel(in) ? in : out;
        if (is_connected(l, in) && is_apart(in, out) && s->blocked[find_root(s->island, image->id)])
            s->blocked[find_root(s->island, pixel->id)] = true;
    }
}

/* Products per value of x from which a blocked copy of x costs less than it saves: kernels for blocks take 0.5 (Winograd) to 0.95 of
 * the time. A copy takes as long as about 30 products per value. */
#define WORTH_BLOCKS 400

static int64_t count_products(const struct layer *l) {
    const struct tensor *w = l->in[1];
    const int64_t window = size_value(w->dim[2]) * size_value(w->dim[3]);
    if (l->kind == LAYER_conv_transpose) return size_value(w->dim[1]) * window;
    return size_value(w->dim[0]) * window /
           (l->attr.stride[0] * l->attr.stride[1] * l->attr.groups);
}

bool plan_writes_plain(const struct plan *plan, const struct layer *l) {
    return plan->writes_plain && plan->writes_plain(l, plan->caps.block);
}

/* A convolution reads an input of the model in plain layout, if that has few channels per group or there is little to compute. A
 * grouped one with a blocked output needs a blocked copy. */
static bool reads_plain(const struct layouts *s, const struct layer *l, int i) {
    if (ir_is_quantized(l))
        return ir_is_conv(l) && i == 0 && is_narrow(s, l) && l->attr.groups == 1;
    if (!ir_is_conv(l) || i != 0 || !ir_is_input(l->in[0])) return false;
    if (l->attr.groups > 1 && l->out[0]->layout.block) return false;
    return ir_group_size(l, l->in[0]) < s->plan->caps.block || count_products(l) < WORTH_BLOCKS;
}

/* ---- Cuts ---- */

/* Adds a cut to the tensor's class. Returns 1 if it is new, else 0. */
static int add_cut(struct layouts *s, int tensor, int at) {
    int class = find_root(s->class, tensor), i = 0;
    for (; i < s->cuts[class].n; i++) {
        if (s->cuts[class].at[i] == at) return 0;
        if (s->cuts[class].at[i] > at) break;
    }
    VEC_PUSH(s->plan->arena, &s->cuts[class], 0);
    int *cut = s->cuts[class].at;
    memmove(cut + i + 1, cut + i, sizeof *cut * (size_t)(s->cuts[class].n - 1 - i));
    cut[i] = at;
    return 1;
}

/* `part` is channels [start, start + size) of `whole`: copies the cuts of each to the other. Returns how many were new. */
static int share_cuts(struct layouts *s, int whole, int part, int start, int size, int whole_size) {
    int added = 0;
    if (start > 0) added += add_cut(s, whole, start);
    if (start + size < whole_size) added += add_cut(s, whole, start + size);
    int w = find_root(s->class, whole), p = find_root(s->class, part);
    for (int i = 0; i < s->cuts[w].n; i++) {
        int at = s->cuts[w].at[i] - start;
        if (at > 0 && at < size) added += add_cut(s, part, at);
    }
    for (int i = 0; i < s->cuts[p].n; i++) added += add_cut(s, whole, s->cuts[p].at[i] + start);
    return added;
}

static int channels(const struct tensor *t) { return (int)size_value(t->dim[1]); }
static bool is_blocked(struct layouts *s, const struct tensor *t) {
    return is_image(t) && s->blocked[find_root(s->island, t->id)];
}

/* Each group of channels begins a block, so that direct kernels read whole blocks; but not if whole groups fit into one block, as
 * long as that is so in x and y. Cuts at whole blocks begin no segments. */
static int cut_groups(struct layouts *s, const struct layer *l) {
    const struct tensor *image[] = {l->in[0], l->kind == LAYER_conv_weight ? l->in[1] : l->out[0]};
    int added = 0;
    if (same_channels(image[0], image[1]) && s->plan->caps.block % ir_group_size(l, image[0]) == 0)
        return 0;
    for (int i = 0; i < 2; i++) {
        const int size = (int)ir_group_size(l, image[i]);
        for (int at = size; is_blocked(s, image[i]) && at < channels(image[i]); at += size)
            added += add_cut(s, image[i]->id, at);
    }
    return added;
}

static int spread_cuts(struct layouts *s, const struct layer *l) {
    const struct tensor *out = l->out[0];
    int added = 0, start = 0;
    if (l->attr.groups > 1 && (is_dnn_conv(s, l) || is_dnn_weight(s, l))) return cut_groups(s, l);
    if (!is_blocked(s, out)) return 0;
    if (is_channel_slice(l) && is_blocked(s, l->in[0]))
        return share_cuts(s, l->in[0]->id, out->id, (int)size_value(l->attr.start), channels(out),
                          channels(l->in[0]));
    if (!is_channel_concat(l)) return 0;
    for (int i = 0; i < l->n_in; start += channels(l->in[i++])) {
        if (is_blocked(s, l->in[i]))
            added += share_cuts(s, out->id, l->in[i]->id, start, channels(l->in[i]), channels(out));
        else added += start > 0 ? add_cut(s, out->id, start) : 0;
    }
    return added;
}

/* Repeats until a round adds no cut. It ends, as the number of channels is finite. */
static void find_cuts(struct layouts *s) {
    for (int added = 1; added;) {
        added = 0;
        for (int i = 0; i < s->m->layers.n; i++) added += spread_cuts(s, s->m->layers.at[i]);
    }
}

/* Is no cut inside of a group of the convolution's input or output? */
static bool groups_fit(struct layouts *s, const struct layer *l, const struct tensor *image) {
    const int group = (int)ir_group_size(l, image), class = find_root(s->class, image->id);
    for (int i = 0; i < s->cuts[class].n && l->attr.groups > 1; i++)
        if (s->cuts[class].at[i] % group) return false;
    return true;
}

/* ---- Setting layouts ---- */

/* A cut at a whole number of blocks after the previous one needs no padding, so it begins no segment. */
static struct layout make_layout(struct plan *plan, int n_channels, const int *cut, int n_cuts) {
    struct layout layout = {.block = plan->caps.block};
    layout.segment = ARENA_ARRAY(plan->arena, struct segment, n_cuts + 1);
    int begin = 0;
    for (int i = 0; i <= n_cuts; i++) {
        int end = i < n_cuts ? cut[i] : n_channels;
        if (i < n_cuts && (end - begin) % plan->caps.block == 0) continue;
        struct segment segment = {end - begin, (int)round_up(end - begin, plan->caps.block)};
        layout.segment[layout.n_segments++] = segment;
        layout.stored += segment.stored;
        begin = end;
    }
    return layout;
}

static struct layout class_layout(struct layouts *s, const struct tensor *t) {
    int class = find_root(s->class, t->id);
    return make_layout(s->plan, (int)size_value(t->dim[layout_channel_axis(t)]), s->cuts[class].at,
                       s->cuts[class].n);
}

/* ---- Copies ---- */

/* A copy of `from` in `layout`. Reuses an existing one, so that all readers with this layout read the same copy. */
static enum sol_status get_copy(struct layouts *s, struct tensor *from, struct layout layout,
                                struct tensor **out) {
    for (int i = from->readers.n - 1; i >= 0; i--) {
        const struct layer *l = from->readers.at[i];
        if (l->kind != LAYER_copy || !layout_equal(&l->out[0]->layout, &layout)) continue;
        *out = l->out[0];
        return SOL_OK;
    }
    TRY(ir_add(s->m, LAYER_copy, 1, &from, NULL, from->producer->origin, out));
    (*out)->layout = layout;
    return SOL_OK;
}

/* Reshapes `t` to [1.., its dims], with the rank of the blocked image that it is combined with. */
static enum sol_status raise_rank(struct model *m, struct tensor *t, int rank,
                                  struct tensor **out) {
    struct attr attr = ir_default_attr();
    attr.n_shape = rank;
    for (int d = 0; d < rank; d++)
        attr.shape[d] = d < rank - t->rank ? size_const(1) : t->dim[d - (rank - t->rank)];
    return ir_add(m, LAYER_reshape, 1, &t, &attr, t->producer->origin, out);
}

static bool has_channels(const struct tensor *t, int rank) {
    int axis = 1 - (rank - t->rank);
    return axis >= 0 && !size_is(t->dim[axis], 1);
}

/* Gives input `i` of a blocked layer the layout `layout`. An operand with one channel is broadcast: it stays plain. */
static enum sol_status block_input(struct layouts *s, struct layer *l, int i,
                                   struct layout layout) {
    struct tensor *in = l->in[i];
    bool splat = is_pointwise(l) && !has_channels(in, 4);
    if (in->layout.block && splat) return get_copy(s, in, (struct layout){0}, &l->in[i]);
    if (in->layout.block || splat) return SOL_OK;
    if (in->rank < 4) TRY(raise_rank(s->m, in, 4, &in));
    return get_copy(s, in, layout, &l->in[i]);
}

/* The layout that input `i` of a blocked layer must have. For a concat: the output's cuts inside this part. */
static struct layout input_layout(struct layouts *s, const struct layer *l, int i) {
    const struct tensor *in = l->in[i], *out = l->out[0];
    if (!is_channel_concat(l)) return out->layout;
    int start = 0, n = 0, class = find_root(s->class, out->id);
    for (int k = 0; k < i; k++) start += channels(l->in[k]);
    int *cut = ARENA_ARRAY(s->plan->arena, int, s->cuts[class].n + 1);
    for (int k = 0; k < s->cuts[class].n; k++) {
        int at = s->cuts[class].at[k] - start;
        if (at > 0 && at < channels(in)) cut[n++] = at;
    }
    return make_layout(s->plan, channels(in), cut, n);
}

/* The layout of a copy of an input of a convolution, or of its gradient: each group begins a block. */
static struct layout divide_groups(struct layouts *s, const struct layer *l,
                                   const struct tensor *image) {
    const int n = channels(image), size = (int)ir_group_size(l, image);
    int *cut = ARENA_ARRAY(s->plan->arena, int, l->attr.groups), n_cuts = 0;
    for (int at = size; at < n; at += size) cut[n_cuts++] = at;
    return make_layout(s->plan, n, cut, n_cuts);
}

/* The layout of a copy of a convolution's x: each group begins a block, or it has the groups of y. */
static struct layout group_layout(struct layouts *s, const struct layer *l) {
    if (keeps_groups(l) && l->out[0]->layout.block) return l->out[0]->layout;
    return divide_groups(s, l, l->in[0]);
}

static enum sol_status fit_conv(struct layouts *s, struct layer *l) {
    const struct tensor *x = l->in[0];
    if (x->layout.block ? !groups_fit(s, l, x) : !reads_plain(s, l, 0))
        TRY(get_copy(s, l->in[0], group_layout(s, l), &l->in[0]));
    const int first = ir_is_quantized(l) ? QUANT_SCALE : 2,
              last = ir_is_quantized(l) ? QUANT_BIAS : l->n_in - 1;
    for (int i = first; i <= last && l->out[0]->layout.block; i++)
        TRY(get_copy(s, l->in[i], l->out[0]->layout, &l->in[i]));
    return SOL_OK;
}

/* Are groups of x and dy parts of blocks? Then both have the same layout. */
static bool share_blocks(const struct layouts *s, const struct layer *l) {
    return l->attr.groups > 1 && same_channels(l->in[0], l->in[1]) &&
           s->plan->caps.block % ir_group_size(l, l->in[0]) == 0;
}

/* x and dy of the gradient of a weight. No block has parts of groups only. */
static enum sol_status fit_weight(struct layouts *s, struct layer *l) {
    const struct tensor *x = l->in[0];
    const bool shared = share_blocks(s, l);
    for (int i = has_few_channels(s, l); i < 2; i++) {
        struct tensor *t = l->in[i];
        const bool fits = t->layout.block && groups_fit(s, l, t);
        if (fits && !(shared && i && !layout_equal(&t->layout, &l->in[0]->layout))) continue;
        const struct layout other =
            shared ? i ? l->in[0]->layout : make_layout(s->plan, channels(x), NULL, 0)
                   : divide_groups(s, l, t);
        TRY(get_copy(s, t, other, &l->in[i]));
    }
    return SOL_OK;
}

/* For layers with a plain output: inputs must be plain, too, unless the layer only moves values, which any layout allows. */
static enum sol_status fit_plain(struct layouts *s, struct layer *l) {
    if (movement_is_possible(l)) return SOL_OK;
    for (int i = 0; i < l->n_in; i++)
        if (l->in[i]->layout.block) TRY(get_copy(s, l->in[i], (struct layout){0}, &l->in[i]));
    return SOL_OK;
}

static enum sol_status fit_inputs(struct layouts *s, struct layer *l) {
    if (is_dnn_conv(s, l) && (l->out[0]->layout.block || plan_writes_plain(s->plan, l)))
        return fit_conv(s, l);
    if (is_dnn_weight(s, l)) return fit_weight(s, l);
    if (!l->out[0]->layout.block || movement_is_possible(l)) return fit_plain(s, l);
    for (int i = 0; i < l->n_in; i++) TRY(block_input(s, l, i, input_layout(s, l, i)));
    return SOL_OK;
}

static void *array(struct layouts *s, size_t item) {
    return arena_alloc(s->plan->arena, item * (size_t)s->n);
}

static void init_sets(struct layouts *s) {
    s->n = s->m->n_tensors;
    s->island = array(s, sizeof *s->island);
    s->class = array(s, sizeof *s->class);
    s->blocked = array(s, sizeof *s->blocked);
    s->worth = array(s, sizeof *s->worth);
    s->cuts = array(s, sizeof *s->cuts);
    for (int i = 0; i < s->n; i++) s->island[i] = s->class[i] = i;
}

/* Can the layer write a blocked output? If not, it writes a plain one, which is copied for blocked readers. A convolution cannot
 * if a cut is inside of one of its groups; the mean of a plain image is not worth a blocked copy of the image. */
static bool can_write_blocks(struct layouts *s, const struct layer *l) {
    if (l->kind == LAYER_conv_transpose) return is_dnn_conv(s, l); /* DFP has none */
    if (ir_is_conv(l)) return is_dnn_conv(s, l) && groups_fit(s, l, l->out[0]);
    if (is_window(l) || is_spatial_reduction(l))
        return l->in[0]->layout.block || !is_apart(l->in[0], l->out[0]);
    return is_pointwise(l) || is_channel_concat(l) || movement_is_possible(l);
}

static void set_layouts(struct layouts *s) {
    for (int i = 0; i < s->m->layers.n; i++) {
        struct tensor *t = s->m->layers.at[i]->out[0];
        if (!can_write_blocks(s, s->m->layers.at[i])) continue;
        bool reduced = t->rank == 2 && is_spatial_reduction(s->m->layers.at[i]) &&
                       s->m->layers.at[i]->in[0]->layout.block;
        if (is_blocked(s, t) || reduced) t->layout = class_layout(s, t);
    }
}

/* Each output of the model is plain, in memory of its own, and written by the call that returns it: a copy is needed for inputs,
 * parameters, blocked tensors, tensors of an earlier phase, and the second use of a tensor. */
static bool needs_copy(const struct model *m, int i) {
    const struct tensor *t = m->outputs.at[i];
    for (int k = 0; k < i; k++)
        if (m->outputs.at[k] == t) return true;
    return t->layout.block || t->phase != m->output_phases.at[i] ||
           (layer_infos[t->producer->kind].traits & SOURCE);
}

static enum sol_status add_copy(struct model *m, struct tensor *from, enum phase phase,
                                struct tensor **out) {
    TRY(ir_add(m, LAYER_copy, 1, &from, NULL, from->producer->origin, out));
    (*out)->phase = phase;
    return SOL_OK;
}

/* The new value of a parameter is plain, is computed at every call, and is not in the caller's memory of inputs and parameters: so
 * all updates of a call can be applied in any order. It may be an output, too. */
static enum sol_status separate_updates(struct layouts *s) {
    for (int i = 0; i < s->m->updates.n; i++) {
        struct tensor **value = &s->m->updates.at[i].value, *from = *value;
        bool is_source = layer_infos[from->producer->kind].traits & SOURCE;
        if (!from->layout.block && !ir_is_constant(from) && !is_source) continue;
        TRY(add_copy(s->m, from, FORWARD, value));
    }
    return SOL_OK;
}

static enum sol_status separate_outputs(struct layouts *s) {
    struct model *m = s->m;
    for (int i = 0; i < m->outputs.n; i++) {
        if (!needs_copy(m, i)) continue;
        struct tensor *from = m->outputs.at[i];
        TRY(add_copy(m, from, m->output_phases.at[i], &m->outputs.at[i]));
    }
    return SOL_OK;
}

enum sol_status plan_layouts(struct plan *plan) {
    struct layouts s = {.plan = plan, .m = plan->model};
    init_sets(&s);
    for (int i = 0; i < s.m->layers.n; i++) join_islands(&s, s.m->layers.at[i]);
    for (int i = 0; i < s.m->layers.n; i++) mark_worth(&s, s.m->layers.at[i]);
    for (int i = 0; i < s.m->layers.n; i++) mark_blocked(&s, s.m->layers.at[i]);
    for (int i = 0; i < s.m->layers.n; i++) follow_images(&s, s.m->layers.at[i]);
    find_cuts(&s);
    set_layouts(&s);
    for (int i = 0, n = s.m->layers.n; i < n; i++) TRY(fit_inputs(&s, s.m->layers.at[i]));
    TRY(separate_outputs(&s));
    return separate_updates(&s);
}
