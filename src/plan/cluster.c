/*
 * Clusters: which layers share a kernel.
 *
 *   model with layouts -> [this file] -> plan->clusters, in an order in which they can run
 *
 * Module DNN takes each conv and linear with what fits its epilogue (a residual sum, then relu or clamp) and prologue (scale,
 * shift, relu on load). Module COPY takes chains that only move values, VIEW what costs nothing. All the rest is DFP's: a
 * layer joins the clusters that make its inputs as long as DFP can still make one kernel of them, and afterwards
 * clusters that read the same tensor join, so that it is read once.
 *
 * Invariant: clusters form no cycle. Joining A and B is refused when a path leads from one to the other through a third.
 */
#include "plan/plan.h"

#include <string.h>

#define CLUSTER_MAX_TENSORS 48 /* inputs and outputs of one kernel */

struct clustering {
    struct plan *plan;
    struct model *m;
    plan_refuse *refuse;
    struct cluster **of;          /* by layer id */
    int *position;                /* by layer id: place in the model */
    VEC(struct layer *) *readers; /* by tensor id */
    VEC(struct cluster *) all;    /* in the order of creation; joined ones have no layers left */
};

/* ---- Facts ---- */

static void find_readers(struct clustering *c) {
    c->readers = arena_alloc(c->plan->arena, sizeof *c->readers * (size_t)c->m->n_tensors);
    for (int i = 0; i < c->m->layers.n; i++) {
        struct layer *l = c->m->layers.at[i];
        for (int k = 0; k < l->n_in; k++) VEC_PUSH(c->plan->arena, &c->readers[l->in[k]->id], l);
    }
}

/* The only reader of `t`; NULL when there are several or the caller wants it too. */
static struct layer *single_reader(const struct clustering *c, const struct tensor *t) {
    if (c->readers[t->id].n != 1 || ir_is_output(c->m, t)) return NULL;
    return c->readers[t->id].at[0];
}

static bool is_source(const struct layer *l) { return layer_infos[l->kind].traits & SOURCE; }

static bool same_place(const struct tensor *a, const struct tensor *b) {
    if (a->rank != b->rank || !layout_equal(&a->layout, &b->layout)) return false;
    for (int d = 0; d < a->rank; d++)
        if (!size_equal(a->dim[d], b->dim[d])) return false;
    return true;
}

static struct cluster *new_cluster(struct clustering *c, enum module module) {
    struct cluster *cluster = ARENA_NEW(c->plan->arena, struct cluster);
    cluster->id = c->all.n;
    cluster->module = module;
    VEC_PUSH(c->plan->arena, &c->all, cluster);
    return cluster;
}

static void take(struct clustering *c, struct cluster *cluster, struct layer *l) {
    VEC_PUSH(c->plan->arena, &cluster->layers, l);
    c->of[l->id] = cluster;
}

/* ---- DNN: epilogue and prologue ---- */

/* Pad lanes must stay zero, so a clamp has to let zero pass. */
static bool is_act(const struct layer *l) {
    if (l->kind == LAYER_clamp) return l->attr.min <= 0 && l->attr.max >= 0;
    return l->kind == LAYER_relu;
}

/* The other input of add `l`, if it can be summed into the tile: same shape and layout, and not made from `y` itself. */
static struct tensor *find_residual(const struct layer *l, const struct tensor *y) {
    if (l->kind != LAYER_add || !same_place(l->in[0], l->in[1])) return NULL;
    struct tensor *other = l->in[0] == y ? l->in[1] : l->in[0];
    return other == y ? NULL : other;
}

/* Does making `t` need layer `l`? Layers in between are found by going up from `t`. */
static bool depends_on(struct clustering *c, const struct tensor *t, const struct layer *l,
                       char *seen) {
    if (t->producer == l) return true;
    if (seen[t->producer->id]) return false;
    seen[t->producer->id] = 1;
    for (int i = 0; i < t->producer->n_in; i++)
        if (depends_on(c, t->producer->in[i], l, seen)) return true;
    return false;
}

/* A sum of two convs goes to the later one, so that the earlier one's result is there. */
static bool is_ready_before(struct clustering *c, const struct tensor *t,
                            const struct layer *heavy) {
    const struct layer *p = t->producer;
    if ((layer_infos[p->kind].traits & HEAVY) && !c->of[p->id] &&
        c->position[p->id] > c->position[heavy->id])
        return false;
    char *seen = arena_alloc(c->plan->arena, (size_t)c->m->n_layers + 1);
    return !depends_on(c, t, heavy, seen);
}

static void take_epilogue(struct clustering *c, struct cluster *cluster) {
    struct tensor *y = cluster->heavy->out[0];
    struct layer *next = single_reader(c, y);
    struct tensor *residual = next && !c->of[next->id] ? find_residual(next, y) : NULL;
    bool dense =
        cluster->heavy->kind == LAYER_conv || !residual || !view_lies_apart(c->plan, residual);
    if (residual && dense && is_ready_before(c, residual, cluster->heavy)) {
        cluster->residual = residual;
        take(c, cluster, next);
        y = next->out[0];
        next = single_reader(c, y);
    }
    if (next && is_act(next) && !c->of[next->id] && same_place(y, next->out[0])) {
        cluster->act = next;
        take(c, cluster, next);
    }
}

/* x * scale or x + shift with a constant of one value per channel, stored as x's channels are: the constant. */
static struct tensor *per_channel(const struct layer *l, enum layer_kind kind) {
    if (l->kind != kind) return NULL;
    for (int i = 0; i < 2; i++) {
        struct tensor *t = l->in[i];
        if (t->is_constant && t->rank == 4 && layout_equal(&t->layout, &l->out[0]->layout) &&
            size_is(t->dim[2], 1) && size_is(t->dim[3], 1) && size_is(t->dim[0], 1))
            return t;
    }
    return NULL;
}
static struct tensor *other_input(const struct layer *l, const struct tensor *t) {
    return l->in[0] == t ? l->in[1] : l->in[0];
}

/* relu(x * scale + shift) read by one conv only: the conv computes it while it loads. */
static void take_prologue(struct clustering *c, struct cluster *cluster) {
    if (cluster->heavy->kind != LAYER_conv || cluster->heavy->attr.groups != 1) return;
    struct layer *act = cluster->heavy->in[0]->producer, *sum, *product;
    if (act->kind != LAYER_relu || c->of[act->id]) return;
    sum = act->in[0]->producer;
    struct tensor *shift = per_channel(sum, LAYER_add);
    if (!shift || c->of[sum->id]) return;
    product = other_input(sum, shift)->producer;
    struct tensor *scale = per_channel(product, LAYER_mul);
    if (!scale || c->of[product->id]) return;
    struct tensor *x = other_input(product, scale);
    bool alone = single_reader(c, act->out[0]) && single_reader(c, sum->out[0]) &&
                 single_reader(c, product->out[0]);
    if (!alone || !same_place(x, act->out[0])) return;
    cluster->x = x;
    cluster->scale = scale;
    cluster->shift = shift;
    cluster->prologue_act = act;
    take(c, cluster, product);
    take(c, cluster, sum);
    take(c, cluster, act);
}

static bool is_dnn(const struct clustering *c, const struct layer *l) {
    if (!(layer_infos[l->kind].traits & HEAVY) || !l->in[1]->is_constant || l->out[0]->is_constant)
        return false;
    return l->kind == LAYER_linear ||
           (l->out[0]->layout.block && c->plan->takes_conv(l, c->plan->lanes));
}

static void cluster_dnn(struct clustering *c, struct layer *l) {
    struct cluster *cluster = new_cluster(c, MODULE_DNN);
    cluster->heavy = l;
    cluster->x = l->in[0];
    take_prologue(c, cluster);
    take(c, cluster, l);
    take_epilogue(c, cluster);
}

/* ---- Copies and views ---- */

static void cluster_copy(struct clustering *c, struct layer *l) {
    struct cluster *cluster = new_cluster(c, MODULE_COPY);
    take(c, cluster, l);
    for (struct layer *next = single_reader(c, l->out[0]); next;
         next = single_reader(c, next->out[0])) {
        if (c->of[next->id] || !movement_is_possible(next)) break;
        if (movement_keeps_batch(next) != movement_keeps_batch(l))
            break; /* where images lie apart it matters */
        take(c, cluster, next);
    }
}

/* ---- DFP ---- */

/* Does a path lead from cluster `from` to `to` that leaves `from`? Stamps keep each cluster from being visited twice. */
struct search {
    struct clustering *c;
    const struct cluster *to, *also; /* reaching either counts, when it is not by a direct step */
    char *seen;
};

static bool finds_path(struct search *s, const struct cluster *at, int depth) {
    for (int i = 0; i < at->layers.n; i++) {
        const struct tensor *out = at->layers.at[i]->out[0];
        for (int k = 0; k < s->c->readers[out->id].n; k++) {
            const struct cluster *next = s->c->of[s->c->readers[out->id].at[k]->id];
            if (!next || next == at) continue;
            if (next == s->to && depth > 0) return true;
            if (next == s->to || s->seen[next->id]) continue;
            s->seen[next->id] = 1;
            if (finds_path(s, next, depth + 1)) return true;
        }
    }
    return false;
}

static bool would_cycle(struct clustering *c, const struct cluster *a, const struct cluster *b) {
    struct search there = {c, b, NULL, arena_alloc(c->plan->arena, (size_t)c->all.n)};
    if (finds_path(&there, a, 0)) return true;
    struct search back = {c, a, NULL, arena_alloc(c->plan->arena, (size_t)c->all.n)};
    return finds_path(&back, b, 0);
}

static char *mark_members(struct clustering *c, struct layer *const *at, int n) {
    char *member = arena_alloc(c->plan->arena, (size_t)c->m->n_layers + 1);
    for (int i = 0; i < n; i++) member[at[i]->id] = 1;
    return member;
}

/* Puts layers in the model's order. Insertion: they come nearly sorted, and are few. */
static void sort_layers(struct clustering *c, struct layer **at, int n) {
    for (int i = 1; i < n; i++) {
        struct layer *l = at[i];
        int k = i;
        for (; k > 0 && c->position[at[k - 1]->id] > c->position[l->id]; k--) at[k] = at[k - 1];
        at[k] = l;
    }
}

static bool lists(struct tensor *const *at, int n, const struct tensor *t) {
    for (int i = 0; i < n; i++)
        if (at[i] == t) return true;
    return false;
}

/* What a cluster reads and writes, from its layers. */
static void find_ports(struct clustering *c, struct cluster *cluster) {
    const char *inside = mark_members(c, cluster->layers.at, cluster->layers.n);
    for (int i = 0; i < cluster->layers.n; i++) {
        struct layer *l = cluster->layers.at[i];
        for (int k = 0; k < l->n_in; k++) {
            struct tensor *t = l->in[k];
            if (inside[t->producer->id] || t->producer->kind == LAYER_scalar) continue;
            if (!lists(cluster->inputs.at, cluster->inputs.n, t))
                VEC_PUSH(c->plan->arena, &cluster->inputs, t);
        }
        bool read_outside = ir_is_output(c->m, l->out[0]);
        for (int k = 0; k < c->readers[l->out[0]->id].n; k++)
            read_outside |= !inside[c->readers[l->out[0]->id].at[k]->id];
        if (read_outside) VEC_PUSH(c->plan->arena, &cluster->outputs, l->out[0]);
    }
}

static bool is_prepared(const struct cluster *cluster) {
    return cluster->layers.at[0]->out[0]->is_constant;
}

/* What the two would be together; not in the list of clusters. */
static struct cluster *unite(struct clustering *c, const struct cluster *a,
                             const struct cluster *b) {
    struct cluster *both = ARENA_NEW(c->plan->arena, struct cluster);
    both->module = MODULE_DFP;
    for (int i = 0; i < a->layers.n; i++) VEC_PUSH(c->plan->arena, &both->layers, a->layers.at[i]);
    for (int i = 0; i < b->layers.n; i++) VEC_PUSH(c->plan->arena, &both->layers, b->layers.at[i]);
    sort_layers(c, both->layers.at, both->layers.n);
    find_ports(c, both);
    return both;
}

static const char *refuse_join(struct clustering *c, struct cluster *a, struct cluster *b) {
    if (is_prepared(a) != is_prepared(b)) return "one depends on parameters only";
    const struct cluster *both = unite(c, a, b);
    if (both->inputs.n + both->outputs.n > CLUSTER_MAX_TENSORS)
        return "too many tensors for one kernel";
    const char *reason = c->refuse(c->plan->arena, both);
    if (reason) return reason;
    return would_cycle(c, a, b) ? "another kernel stands between them" : NULL;
}

static bool join(struct clustering *c, struct cluster *a, struct cluster *b) {
    if (a == b || a->module != MODULE_DFP || b->module != MODULE_DFP || refuse_join(c, a, b))
        return false;
    for (int i = 0; i < b->layers.n; i++) take(c, a, b->layers.at[i]);
    b->layers.n = 0;
    sort_layers(c, a->layers.at, a->layers.n);
    return true;
}

static void cluster_dfp(struct clustering *c, struct layer *l) {
    struct cluster *cluster = new_cluster(c, MODULE_DFP);
    take(c, cluster, l);
    for (int i = 0; i < l->n_in; i++) {
        struct cluster *maker = c->of[l->in[i]->producer->id];
        if (maker && join(c, maker, cluster)) cluster = maker;
    }
}

/* Clusters that read the same tensor and walk the same space read it once. */
static void join_siblings(struct clustering *c) {
    for (int t = 0; t < c->m->layers.n; t++) {
        const struct tensor *shared = c->m->layers.at[t]->out[0];
        int n = c->readers[shared->id].n;
        for (int i = 1; i < n; i++) {
            struct cluster *a = c->of[c->readers[shared->id].at[i - 1]->id],
                           *b = c->of[c->readers[shared->id].at[i]->id];
            if (a && b) join(c, a, b);
        }
    }
}

/* ---- All of it ---- */

static void assign(struct clustering *c, struct layer *l) {
    if (is_source(l) || c->of[l->id]) return;
    if (is_dnn(c, l)) cluster_dnn(c, l);
    else if (view_is_alias(c->plan, l)) take(c, new_cluster(c, MODULE_VIEW), l);
    else if (movement_is_possible(l)) cluster_copy(c, l);
    else cluster_dfp(c, l);
}

static void finish(struct clustering *c, struct cluster *cluster) {
    find_ports(c, cluster);
    for (int i = 0; i < cluster->outputs.n; i++)
        c->plan->maker[cluster->outputs.at[i]->id] = cluster;
    const struct layer *last = cluster->layers.at[cluster->layers.n - 1];
    cluster->prepare = is_prepared(cluster) && !ir_is_output(c->m, last->out[0]);
}

static void schedule(struct clustering *c, struct cluster *cluster, char *done) {
    if (done[cluster->id]) return;
    done[cluster->id] = 1;
    for (int i = 0; i < cluster->inputs.n; i++) {
        struct cluster *maker = c->of[cluster->inputs.at[i]->producer->id];
        if (maker) schedule(c, maker, done);
    }
    VEC_PUSH(c->plan->arena, &c->plan->clusters, cluster);
}

enum sol_status plan_clusters(struct plan *plan, plan_refuse *refuse) {
    struct clustering c = {.plan = plan, .m = plan->model, .refuse = refuse};
    c.of = ARENA_ARRAY(plan->arena, struct cluster *, c.m->n_layers + 1);
    plan->maker = ARENA_ARRAY(plan->arena, struct cluster *, c.m->n_tensors + 1);
    c.position = ARENA_ARRAY(plan->arena, int, c.m->n_layers + 1);
    for (int i = 0; i < c.m->layers.n; i++) c.position[c.m->layers.at[i]->id] = i;
    find_readers(&c);
    for (int i = 0; i < c.m->layers.n; i++)
        if (is_dnn(&c, c.m->layers.at[i])) assign(&c, c.m->layers.at[i]);
    for (int i = 0; i < c.m->layers.n; i++) assign(&c, c.m->layers.at[i]);
    join_siblings(&c);
    for (int i = 0; i < c.all.n; i++)
        if (c.all.at[i]->layers.n) finish(&c, c.all.at[i]);
    char *done = arena_alloc(plan->arena, (size_t)c.all.n + 1);
    for (int i = 0; i < c.all.n; i++)
        if (c.all.at[i]->layers.n) schedule(&c, c.all.at[i], done);
    return SOL_OK;
}
