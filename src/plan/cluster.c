/*
 * Clusters: which layers share a kernel.
 *
 *   model with layouts -> [this file] -> plan->clusters, in an order in which they can run
 *
 * Module DNN gets each conv, linear and matmul with the layers that fit into its epilogue and prologue (anchor.c). Module COPY gets chains
 * and groups (group.c) of layers that only move values, GATHER single gathers and their inverses, RECURRENT single recurrent layers, HOST single host layers, VIEW single layers that need no step. Module DFP gets all other
 * layers, and slices that only they read: a layer joins the clusters that compute its inputs, if DFP can make one kernel of them. At the end, DFP
 * clusters that read the same tensor join, so that it is read once. For y = relu(conv(x)); z = softmax(y) + y the result is
 * {conv, relu} and {softmax's five layers, +}.
 *
 * Invariant: all layers of a cluster have the same phase. Clusters form no cycle: A and B do not join if a path from one to the other
 * goes through a third cluster (order.c).
 */
#include "plan/cluster.h"
#include "pass/pass.h"

/* ---- Readers and members ---- */

/* The order of layers with effects is a dependency, too. */
static void find_effects(struct clustering *c) {
    struct layer *earlier = NULL;
    c->earlier = ARENA_ARRAY(c->plan->arena, struct layer *, c->m->n_layers + 1);
    for (int i = 0; i < c->m->layers.n; i++) {
        struct layer *l = c->m->layers.at[i];
        if (!l->attr.effects) continue;
        c->earlier[l->id] = earlier;
        earlier = l;
    }
}

struct layer *cluster_single_reader(const struct clustering *c, const struct tensor *t) {
    struct layer *reader = pass_single_reader(c->m, t);
    return reader && reader->out[0]->phase == t->phase ? reader : NULL;
}

struct cluster *cluster_new(struct clustering *c, enum module module) {
    struct cluster *cluster = ARENA_NEW(c->plan->arena, struct cluster);
    cluster->id = c->all.n;
    cluster->module = module;
    VEC_PUSH(c->plan->arena, &c->all, cluster);
    return cluster;
}

static void put(struct clustering *c, struct cluster *cluster, struct layer *l) {
    VEC_PUSH(c->plan->arena, &cluster->layers, l);
    c->of[l->id] = cluster;
}

void cluster_add(struct clustering *c, struct cluster *cluster, struct layer *l) {
    order_add(c, cluster, l);
    put(c, cluster, l);
}

/* ---- Copies and views ---- */

static void cluster_copy(struct clustering *c, struct layer *l) {
    struct cluster *cluster = cluster_new(c, MODULE_COPY);
    cluster_add(c, cluster, l);
    for (struct layer *next = cluster_single_reader(c, l->out[0]); next;
         next = cluster_single_reader(c, next->out[0])) {
        if (c->of[next->id] || !movement_is_possible(next)) break;
        if (c->plan->storage[next->out[0]->id].is_strided) break; /* a view of the copy */
        if (movement_keeps_batch(next) != movement_keeps_batch(l))
            break; /* one table is applied either per sample or to the whole tensor */
        cluster_add(c, cluster, next);
    }
}

/* Is it a slice that only pointwise layers read, or slices like it? Their kernel reads it in place: of a window's values, which
 * are slices of one image, none is copied. */
static bool is_read_in_place(const struct clustering *c, const struct layer *l) {
    const struct tensor *out = l->out[0];
    if (l->kind != LAYER_slice || out->layout.block || l->in[0]->layout.block ||
        ir_is_constant(out))
        return false;
    for (int i = 0; i < out->readers.n; i++) {
        const struct layer *reader = out->readers.at[i];
        if (c->of[reader->id] || reader->out[0]->phase != out->phase) return false;
        if (!(layer_infos[reader->kind].traits & POINTWISE) && !is_read_in_place(c, reader))
            return false;
    }
    return !ir_is_output(c->m, out) && out->readers.n;
}

/* ---- DFP ---- */

/* Puts layers in the model's order, by insertion sort: they are few and nearly sorted. */
void cluster_sort(struct clustering *c, struct layer **at, int n) {
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

/* Of the cluster whose ports are being found. */
static bool is_inside(const struct clustering *c, const struct layer *l) {
    return c->inside[l->id] == c->n_found;
}

static bool is_read_outside(const struct clustering *c, const struct tensor *t) {
    for (int k = 0; k < t->readers.n; k++)
        if (!is_inside(c, t->readers.at[k])) return true;
    return ir_is_output(c->m, t);
}

/* A host writes all its outputs, also those that nothing reads. */
void cluster_find_ports(struct clustering *c, struct cluster *cluster) {
    c->n_found++;
    for (int i = 0; i < cluster->layers.n; i++) c->inside[cluster->layers.at[i]->id] = c->n_found;
    for (int i = 0; i < cluster->layers.n; i++) {
        struct layer *l = cluster->layers.at[i];
        for (int k = 0; k < l->n_in; k++) {
            struct tensor *t = l->in[k];
            if (is_inside(c, t->producer) || t->producer->kind == LAYER_scalar) continue;
            if (!lists(cluster->inputs.at, cluster->inputs.n, t))
                VEC_PUSH(c->plan->arena, &cluster->inputs, t);
        }
        for (int k = 0; k < l->n_out; k++)
            if (l->kind == LAYER_host || is_read_outside(c, l->out[k]))
                VEC_PUSH(c->plan->arena, &cluster->outputs, l->out[k]);
    }
}

/* The union of two clusters, as a trial: it is not in c->all. */
static struct cluster *unite(struct clustering *c, const struct cluster *a,
                             const struct cluster *b) {
    struct cluster *both = ARENA_NEW(c->plan->arena, struct cluster);
    both->module = MODULE_DFP;
    for (int i = 0; i < a->layers.n; i++) VEC_PUSH(c->plan->arena, &both->layers, a->layers.at[i]);
    for (int i = 0; i < b->layers.n; i++) VEC_PUSH(c->plan->arena, &both->layers, b->layers.at[i]);
    cluster_sort(c, both->layers.at, both->layers.n);
    cluster_find_ports(c, both);
    return both;
}

/* All layers of a cluster have the same. */
static enum phase find_phase(const struct cluster *cluster) {
    return cluster->layers.at[0]->out[0]->phase;
}

/* The cheaper questions first: most pairs that cannot join have a cluster between them. */
static bool may_join(struct clustering *c, const struct cluster *a, const struct cluster *b) {
    if (a == b || a->module != MODULE_DFP || b->module != MODULE_DFP) return false;
    if (find_phase(a) != find_phase(b) || !order_may_join(c, a, b)) return false;
    const struct cluster *both = unite(c, a, b);
    return both->inputs.n + both->outputs.n <= CLUSTER_MAX_TENSORS &&
           !c->refuse(c->plan->arena, &c->plan->caps, both);
}

static bool join(struct clustering *c, struct cluster *a, struct cluster *b) {
    if (!may_join(c, a, b)) return false;
    order_join(c, a, b);
    for (int i = 0; i < b->layers.n; i++) put(c, a, b->layers.at[i]);
    b->layers.n = 0;
    cluster_sort(c, a->layers.at, a->layers.n);
    return true;
}

/* Does `l` widen 8 bits that are in memory in any case, as others read them, too? Then each kernel that needs the wide values
 * computes them again: this is faster than to store and load them. */
static bool widens_stored(const struct clustering *c, const struct layer *l) {
    const struct tensor *x = l->kind == LAYER_cast ? l->in[0] : NULL;
    return x && size_element(x->dtype) == 1 && size_element(l->out[0]->dtype) > 1 &&
           !ir_is_constant(x) && !cluster_single_reader(c, x);
}

static void cluster_dfp(struct clustering *c, struct layer *l) {
    struct cluster *cluster = cluster_new(c, MODULE_DFP);
    cluster_add(c, cluster, l);
    if (widens_stored(c, l)) return;
    for (int i = 0; i < l->n_in; i++) {
        struct cluster *maker = c->of[l->in[i]->producer->id];
        if (maker && join(c, maker, cluster)) cluster = maker;
    }
}

/* Joins DFP clusters that read the same tensor, so that they read it once. */
static void join_readers(struct clustering *c, const struct tensor *shared) {
    int n = shared->readers.n;
    for (int i = 1; i < n; i++) {
        struct cluster *a = c->of[shared->readers.at[i - 1]->id],
                       *b = c->of[shared->readers.at[i]->id];
        if (a && b) join(c, a, b);
    }
}

static void join_siblings(struct clustering *c) {
    for (int i = 0; i < c->m->layers.n; i++)
        for (int k = 0; k < c->m->layers.at[i]->n_out; k++)
            join_readers(c, c->m->layers.at[i]->out[k]);
}

/* ---- All layers ---- */

/* Puts a layer into a cluster. plan_clusters calls it for all anchors first, so that the layers that they fuse are not in
 * DFP clusters yet. */
static void assign(struct clustering *c, struct layer *l) {
    if (cluster_is_source(l) || c->of[l->id]) return;
    if (cluster_is_dnn(c, l)) cluster_dnn(c, l);
    else if (storage_is_view(c->plan, l)) cluster_add(c, cluster_new(c, MODULE_VIEW), l);
    else if (movement_is_possible(l) && !is_read_in_place(c, l)) cluster_copy(c, l);
    else if (l->kind == LAYER_gather || l->kind == LAYER_scatter_sum || l->kind == LAYER_resample)
        cluster_add(c, cluster_new(c, MODULE_GATHER), l);
    else if (layer_infos[l->kind].traits & RECURRENT)
        cluster_add(c, cluster_new(c, MODULE_RECURRENT), l);
    else if (l->kind == LAYER_attention) cluster_add(c, cluster_new(c, MODULE_ATTENTION), l);
    else if (l->kind == LAYER_host) cluster_add(c, cluster_new(c, MODULE_HOST), l);
    else cluster_dfp(c, l);
}

static void finish(struct clustering *c, struct cluster *cluster) {
    cluster_find_ports(c, cluster);
    /* Also for tensors that only this cluster reads: one of them may be the root of an output. */
    for (int i = 0; i < cluster->layers.n; i++)
        for (int k = 0; k < cluster->layers.at[i]->n_out; k++)
            c->plan->maker[cluster->layers.at[i]->out[k]->id] = cluster;
    cluster->phase = find_phase(cluster);
}

/* Appends the clusters that make the inputs and the one with the effect before, then the cluster: depth first. Clusters form no
 * cycle, so this ends. */
static void schedule(struct clustering *c, struct cluster *cluster, char *done) {
    if (done[cluster->id]) return;
    done[cluster->id] = 1;
    for (int i = 0; i < cluster->inputs.n; i++) {
        struct cluster *maker = c->of[cluster->inputs.at[i]->producer->id];
        if (maker) schedule(c, maker, done);
    }
    const struct layer *earlier = c->earlier[cluster->layers.at[0]->id];
    if (earlier) schedule(c, c->of[earlier->id], done);
    VEC_PUSH(c->plan->arena, &c->plan->clusters, cluster);
}

enum sol_status plan_clusters(struct plan *plan, plan_refuse *refuse) {
    struct clustering c = {.plan = plan, .m = plan->model, .refuse = refuse};
    c.of = ARENA_ARRAY(plan->arena, struct cluster *, c.m->n_layers + 1);
    plan->maker = ARENA_ARRAY(plan->arena, struct cluster *, c.m->n_tensors + 1);
    c.position = ARENA_ARRAY(plan->arena, int, c.m->n_layers + 1);
    for (int i = 0; i < c.m->layers.n; i++) c.position[c.m->layers.at[i]->id] = i;
    c.inside = ARENA_ARRAY(plan->arena, int, c.m->n_layers + 1);
    find_effects(&c);
    order_init(&c);
    for (int i = 0; i < c.m->layers.n; i++)
        if (cluster_is_dnn(&c, c.m->layers.at[i])) assign(&c, c.m->layers.at[i]);
    cluster_groups(&c);
    for (int i = 0; i < c.m->layers.n; i++) assign(&c, c.m->layers.at[i]);
    join_siblings(&c);
    for (int i = 0; i < c.all.n; i++)
        if (c.all.at[i]->layers.n) finish(&c, c.all.at[i]);
    char *done = arena_alloc(plan->arena, (size_t)c.all.n + 1);
    for (int i = 0; i < c.all.n; i++)
        if (c.all.at[i]->layers.n) schedule(&c, c.all.at[i], done);
    return SOL_OK;
}
