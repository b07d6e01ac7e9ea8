/*
 * Clusters of module DNN: which layers are fused with a conv, linear or matmul.
 *
 *   cluster.c -> [this file] -> cluster of an anchor, its prologue and its epilogue
 *
 * The kernels implement a fixed set of operations: scale, shift and relu when they load, a residual sum and relu or clamp before
 * they store. Pointwise layers after these become the generated epilogue, a DFP cluster inside the DNN cluster: the
 * kernel calls it on each finished tile, while the tile is in the cache.
 *
 * Quantized anchors have no prologue, and no closed set: their own inputs say how sums become values of y.
 *
 * Invariant: a cluster made here has one output, and none of its inputs depends on it.
 */
#include "plan/cluster.h"

#define EPILOGUE_MAX_LAYERS 32

static bool same_place(const struct tensor *a, const struct tensor *b) {
    return ir_same_shape(a, b, -1) && layout_equal(&a->layout, &b->layout);
}

static bool is_anchor(const struct layer *l) {
    return (layer_infos[l->kind].traits & ANCHOR) || l->kind == LAYER_matmul;
}

/* ---- The fixed set: residual and activation ---- */

/* Pad lanes must stay zero, so zero must be in the range of a clamp. */
bool cluster_is_act(const struct layer *l) {
    if (l->kind == LAYER_clamp) return l->attr.min <= 0 && l->attr.max >= 0;
    return l->kind == LAYER_relu;
}

/* The other input of `l` besides `y`, if `l` is an add of two different tensors with the same shape and layout; else NULL. */
static struct tensor *find_residual(const struct layer *l, const struct tensor *y) {
    if (l->kind != LAYER_add || !same_place(l->in[0], l->in[1])) return NULL;
    struct tensor *other = l->in[0] == y ? l->in[1] : l->in[0];
    return other == y ? NULL : other;
}

/* Does `t` depend on layer `l`? Searches `t`'s producers; `seen`: by layer id. */
static bool depends_on(struct clustering *c, const struct tensor *t, const struct layer *l,
                       char *seen) {
    if (t->producer == l) return true;
    if (seen[t->producer->id]) return false;
    seen[t->producer->id] = 1;
    for (int i = 0; i < t->producer->n_in; i++)
        if (depends_on(c, t->producer->in[i], l, seen)) return true;
    return false;
}

/* Can `t` be computed before `anchor`? Of the sum of two convs, the later conv takes the sum; the earlier one is its residual. */
static bool is_ready_before(struct clustering *c, const struct tensor *t,
                            const struct layer *anchor) {
    const struct layer *p = t->producer;
    if (is_anchor(p) && !c->of[p->id] && c->position[p->id] > c->position[anchor->id]) return false;
    char *seen = arena_alloc(c->plan->arena, (size_t)c->m->n_layers + 1);
    return !depends_on(c, t, anchor, seen);
}

/* As is_ready_before. Constants and sources are always ready. */
static bool is_ready(struct clustering *c, const struct tensor *t, const struct layer *anchor) {
    return ir_is_constant(t) || cluster_is_source(t->producer) || is_ready_before(c, t, anchor);
}

/* A convolution with a plain output has no residual and no generated epilogue. */
static bool is_plain_conv(const struct layer *anchor) {
    return ir_is_conv(anchor) && !anchor->out[0]->layout.block;
}

/* A linear layer's kernel writes rows without gaps between them. */
static bool can_write(const struct clustering *c, const struct layer *anchor,
                      const struct tensor *out) {
    return !ir_is_linear(anchor) || !c->plan->storage[out->id].has_batch_stride;
}

/* Fuses a residual sum and an activation, if they follow; returns the last tensor of the cluster. */
static struct tensor *take_closed(struct clustering *c, struct cluster *cluster) {
    struct dnn_fusion *f = cluster->dnn;
    const struct layer *anchor = f->anchor;
    struct tensor *y = anchor->out[0];
    struct layer *next = cluster_single_reader(c, y);
    struct tensor *residual = next && !c->of[next->id] ? find_residual(next, y) : NULL;
    if (is_plain_conv(anchor)) residual = NULL;
    bool dense =
        ir_is_conv(anchor) || !residual || !c->plan->storage[residual->id].has_batch_stride;
    if (residual && dense && can_write(c, anchor, next->out[0]) &&
        is_ready_before(c, residual, anchor)) {
        f->residual = residual;
        cluster_add(c, cluster, next);
        y = next->out[0];
        next = cluster_single_reader(c, y);
    }
    if (next && cluster_is_act(next) && !c->of[next->id] && same_place(y, next->out[0]) &&
        can_write(c, anchor, next->out[0])) {
        f->act = next;
        cluster_add(c, cluster, next);
        y = next->out[0];
    }
    return y;
}

/* ---- The generated epilogue ---- */

static bool holds(const struct cluster *e, const struct tensor *t) {
    bool found = t == e->tile;
    for (int i = 0; i < e->layers.n; i++) found |= e->layers.at[i]->out[0] == t;
    return found;
}

static bool has_layer(const struct cluster *e, const struct layer *l) {
    for (int i = 0; i < e->layers.n; i++)
        if (e->layers.at[i] == l) return true;
    return false;
}

/* The earlier one, in the model's order, of `first` (may be NULL) and the readers of `t` outside the epilogue. */
static struct layer *earlier_reader(const struct clustering *c, const struct cluster *e,
                                    const struct tensor *t, struct layer *first) {
    for (int i = 0; i < t->readers.n; i++) {
        struct layer *l = t->readers.at[i];
        if (has_layer(e, l)) continue;
        if (!first || c->position[l->id] < c->position[first->id]) first = l;
    }
    return first;
}

/* The first layer outside the epilogue that reads one of its tensors. */
static struct layer *find_next(const struct clustering *c, const struct cluster *e) {
    struct layer *next = earlier_reader(c, e, e->tile, NULL);
    for (int i = 0; i < e->layers.n; i++)
        next = earlier_reader(c, e, e->layers.at[i]->out[0], next);
    return next;
}

static bool may_follow(struct clustering *c, const struct cluster *e, const struct layer *anchor,
                       const struct layer *l) {
    const struct tensor *out = l->out[0];
    if (c->of[l->id] || !(layer_infos[l->kind].traits & POINTWISE) || !same_place(e->tile, out) ||
        out->phase != e->tile->phase)
        return false;
    for (int i = 0; i < l->n_in; i++)
        if (!holds(e, l->in[i]) && !is_ready(c, l->in[i], anchor)) return false;
    return true;
}

/* The operand of a pointwise layer that is no constant; the first one of several. */
static struct tensor *find_operand(const struct layer *l) {
    for (int i = 0; i < l->n_in; i++)
        if (!ir_is_constant(l->in[i])) return l->in[i];
    return l->in[0];
}

/* Is `from` better read than an operand computed of it? If it has fewer bytes (a quantized residual), or if it is saved: a kernel that
 * computes the operand, such as the mask of a ReLU, would read it, too. */
static bool reads_rather(const struct cluster *e, const struct tensor *from,
                         const struct tensor *operand) {
    return size_element(from->dtype) < size_element(operand->dtype) ||
           (e->tile->phase == BACKWARD && from->phase == FORWARD);
}

/* Adds the layers that compute an operand of `l`, if nothing else reads it and what they read is better read. All are ready. */
static void take_operands(struct clustering *c, struct cluster *e, const struct layer *l) {
    for (int i = 0; i < l->n_in; i++) {
        struct tensor *t = l->in[i];
        struct layer *chain[EPILOGUE_MAX_LAYERS];
        int n = 0;
        if (holds(e, t)) continue;
        for (const struct layer *reader = l; n + e->layers.n + 1 < EPILOGUE_MAX_LAYERS; n++) {
            struct layer *from = t->producer;
            if (c->of[from->id] || !(layer_infos[from->kind].traits & POINTWISE) ||
                !same_place(e->tile, t) || cluster_single_reader(c, t) != reader)
                break;
            reader = chain[n] = from;
            t = find_operand(from);
        }
        if (!reads_rather(e, t, l->in[i])) continue;
        while (n) VEC_PUSH(c->plan->arena, &e->layers, chain[--n]);
    }
}

/* Is only the last layer's output read outside of the epilogue? Layers are in the model's order, so no other one can be the
 * single output. */
static bool leaves_once(const struct clustering *c, const struct cluster *e) {
    for (int i = -1; i < e->layers.n - 1; i++) {
        const struct tensor *t = i < 0 ? e->tile : e->layers.at[i]->out[0];
        if (ir_is_output(c->m, t) || earlier_reader(c, e, t, NULL)) return false;
    }
    return true;
}

/* Can DFP generate the epilogue with the layers that it has now? */
static bool is_possible(struct clustering *c, const struct cluster *anchor, struct cluster *e) {
    const struct tensor *out = e->layers.at[e->layers.n - 1]->out[0];
    e->inputs.n = e->outputs.n = 0;
    cluster_find_ports(c, e);
    if (!can_write(c, anchor->dnn->anchor, out)) return false;
    if (e->inputs.n + e->outputs.n > CLUSTER_MAX_TENSORS) return false;
    return !c->refuse(c->plan->arena, &c->plan->caps, e);
}

/* Adds layer by layer, then keeps the longest prefix (n layers) that has one output and that DFP can generate. */
static void take_generated(struct clustering *c, struct cluster *cluster, struct tensor *tile) {
    struct cluster *e = ARENA_NEW(c->plan->arena, struct cluster);
    int n = 0;
    *e = (struct cluster){.id = cluster->id, .module = MODULE_DFP, .tile = tile};
    while (e->layers.n < EPILOGUE_MAX_LAYERS) {
        struct layer *next = find_next(c, e);
        if (!next || !may_follow(c, e, cluster->dnn->anchor, next)) break;
        take_operands(c, e, next);
        VEC_PUSH(c->plan->arena, &e->layers, next);
        if (leaves_once(c, e) && is_possible(c, cluster, e)) n = e->layers.n;
    }
    if (!n) return;
    e->layers.n = n;
    e->inputs.n = e->outputs.n = 0;
    cluster_find_ports(c, e);
    for (int i = 0; i < n; i++) cluster_add(c, cluster, e->layers.at[i]);
    storage_set_in_place(c->plan, tile, e->outputs.at[0]);
    cluster->dnn->epilogue = e;
}

/* ---- The prologue ---- */

/* The constant input of `l`, if `l` is of this kind and the constant has one value per channel in x's layout; else NULL. */
static struct tensor *per_channel(const struct layer *l, enum layer_kind kind) {
    if (l->kind != kind) return NULL;
    for (int i = 0; i < 2; i++) {
        struct tensor *t = l->in[i];
        if (ir_is_constant(t) && t->rank == 4 && layout_equal(&t->layout, &l->out[0]->layout) &&
            size_is(t->dim[2], 1) && size_is(t->dim[3], 1) && size_is(t->dim[0], 1))
            return t;
    }
    return NULL;
}
static struct tensor *other_input(const struct layer *l, const struct tensor *t) {
    return l->in[0] == t ? l->in[1] : l->in[0];
}

/* Fuses relu(x * scale + shift) into the conv that reads it, if that is the only reader: the conv computes it when it loads. */
static void take_prologue(struct clustering *c, struct cluster *cluster) {
    struct dnn_fusion *f = cluster->dnn;
    if (!ir_is_conv(f->anchor) || f->anchor->attr.groups != 1) return;
    struct layer *act = f->anchor->in[0]->producer, *sum, *product;
    if (act->kind != LAYER_relu || c->of[act->id]) return;
    sum = act->in[0]->producer;
    struct tensor *shift = per_channel(sum, LAYER_add);
    if (!shift || c->of[sum->id]) return;
    product = other_input(sum, shift)->producer;
    struct tensor *scale = per_channel(product, LAYER_mul);
    if (!scale || c->of[product->id]) return;
    struct tensor *x = other_input(product, scale);
    bool alone = cluster_single_reader(c, act->out[0]) && cluster_single_reader(c, sum->out[0]) &&
                 cluster_single_reader(c, product->out[0]);
    if (!alone || !same_place(x, act->out[0])) return;
    f->x = x;
    f->scale = scale;
    f->shift = shift;
    f->prologue_act = act;
    cluster_add(c, cluster, product);
    cluster_add(c, cluster, sum);
    cluster_add(c, cluster, act);
}

/* ---- The operands of a matmul ---- */

/* Takes a permute of operand i into the cluster, if nothing else reads it: the kernel reads its input with other strides. One of the
 * last two dims of the operand must stay dense; else copying it would be slow. */
static void take_permute(struct clustering *c, struct cluster *cluster, int i) {
    struct dnn_fusion *f = cluster->dnn;
    struct tensor *t = f->anchor->in[i];
    struct layer *l = t->producer;
    for (int d = 0; d < t->rank; d++) f->axis[i][d] = d;
    if (l->kind != LAYER_permute || ir_is_constant(t) || c->of[l->id] ||
        !cluster_single_reader(c, t))
        return;
    const int last = t->rank - 1;
    if (l->in[0]->layout.block || (l->attr.axes[last] != last && l->attr.axes[last - 1] != last))
        return;
    for (int d = 0; d < t->rank; d++) f->axis[i][d] = l->attr.axes[d];
    *(i ? &f->w : &f->x) = l->in[0];
    cluster_add(c, cluster, l);
}

#define LEAST_PRODUCT 4 /* rows, columns and terms */

/* Is it worth packing an operand? The expected sizes of the products decide; DFP computes small ones, together with other layers.
 * Linear layers of a model with a backward call are such products: their rows are samples, of which there are many in training. */
static bool is_matrix_product(const struct clustering *c, const struct layer *l) {
    const struct tensor *a = l->in[0], *b = l->in[1], *y = l->out[0];
    int64_t symbols[SIZE_SYMBOLS];
    if (a->layout.block || b->layout.block || y->layout.block) return false;
    if (ir_is_constant(y) || a->producer->kind == LAYER_scalar || b->producer->kind == LAYER_scalar)
        return false;
    plan_expect(c->plan, ir_has_backward(c->m) ? LEAST_PRODUCT : 1, symbols);
    return size_eval(&y->dim[y->rank - 2], symbols) >= LEAST_PRODUCT &&
           size_eval(&y->dim[y->rank - 1], symbols) >= LEAST_PRODUCT &&
           size_eval(&a->dim[a->rank - 1], symbols) >= LEAST_PRODUCT;
}

bool cluster_is_dnn(const struct clustering *c, const struct layer *l) {
    if (l->kind == LAYER_matmul)
        return is_matrix_product(c, l) && c->plan->supports_anchor(l, c->plan->caps.block);
    if (l->kind == LAYER_conv_weight)
        return (l->in[1]->layout.block || c->plan->caps.block == 1) && !ir_is_constant(l->out[0]) &&
               c->plan->supports_anchor(l, c->plan->caps.block);
    if (!is_anchor(l) || !ir_is_constant(l->in[1]) || ir_is_constant(l->out[0])) return false;
    if (ir_is_conv(l) && !l->out[0]->layout.block) return plan_writes_plain(c->plan, l);
    return c->plan->supports_anchor(l, c->plan->caps.block);
}

void cluster_dnn(struct clustering *c, struct layer *l) {
    struct cluster *cluster = cluster_new(c, MODULE_DNN);
    cluster->dnn = ARENA_NEW(c->plan->arena, struct dnn_fusion);
    *cluster->dnn = (struct dnn_fusion){.anchor = l, .x = l->in[0], .w = l->in[1]};
    if (l->kind == LAYER_conv_weight) {
        cluster_add(c, cluster, l);
        return;
    }
    if (ir_is_quantized(l)) {
        cluster_add(c, cluster, l);
        take_generated(c, cluster, l->out[0]);
        return;
    }
    take_prologue(c, cluster);
    for (int i = 0; i < 2 && l->kind == LAYER_matmul; i++) take_permute(c, cluster, i);
    cluster_add(c, cluster, l);
    struct tensor *y = take_closed(c, cluster);
    if (!is_plain_conv(l) && c->plan->caps.calls_epilogue) take_generated(c, cluster, y);
}
