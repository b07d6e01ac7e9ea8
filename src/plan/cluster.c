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
 * goes through a third cluster.
 */
#include "plan/cluster.h"

/* ---- Readers and members ---- */

static void find_readers(struct clustering *c) {
    c->readers = arena_alloc(c->plan->arena, sizeof *c->readers * (size_t)c->m->n_tensors);
    for (int i = 0; i < c->m->layers.n; i++) {
        struct layer *l = c->m->layers.at[i];
        for (int k = 0; k < l->n_in; k++) VEC_PUSH(c->plan->arena, &c->readers[l->in[k]->id], l);
    }
}

/* The order of layers with effects is a dependency, too. */
static void find_effects(struct clustering *c) {
    struct layer *earlier = NULL;
    c->earlier = ARENA_ARRAY(c->plan->arena, struct layer *, c->m->n_layers + 1);
    c->later = ARENA_ARRAY(c->plan->arena, struct layer *, c->m->n_layers + 1);
    for (int i = 0; i < c->m->layers.n; i++) {
        struct layer *l = c->m->layers.at[i];
        if (!l->attr.effects) continue;
        c->earlier[l->id] = earlier;
        if (earlier) c->later[earlier->id] = l;
        earlier = l;
    }
}

struct layer *cluster_single_reader(const struct clustering *c, const struct tensor *t) {
    if (c->readers[t->id].n != 1 || ir_is_output(c->m, t)) return NULL;
    struct layer *reader = c->readers[t->id].at[0];
    return reader->out[0]->phase == t->phase ? reader : NULL;
}

struct cluster *cluster_new(struct clustering *c, enum module module) {
    struct cluster *cluster = ARENA_NEW(c->plan->arena, struct cluster);
    cluster->id = c->all.n;
    cluster->module = module;
    VEC_PUSH(c->plan->arena, &c->all, cluster);
    return cluster;
}

void cluster_add(struct clustering *c, struct cluster *cluster, struct layer *l) {
    VEC_PUSH(c->plan->arena, &cluster->layers, l);
    c->of[l->id] = cluster;
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
    for (int i = 0; i < c->readers[out->id].n; i++) {
        const struct layer *reader = c->readers[out->id].at[i];
        if (c->of[reader->id] || reader->out[0]->phase != out->phase) return false;
        if (!(layer_infos[reader->kind].traits & POINTWISE) && !is_read_in_place(c, reader))
            return false;
    }
    return !ir_is_output(c->m, out) && c->readers[out->id].n;
}

/* ---- DFP ---- */

/* Search for a path between two clusters through a third one. If they joined, such a path would be a cycle; a direct edge
 * would not. */
struct search {
    struct clustering *c;
    const struct cluster *to;
    char *seen; /* by cluster id: already visited */
};

static bool finds_path(struct search *s, const struct cluster *at, int depth);

/* Continues the search at the cluster of `l`, which runs after the cluster `at`. */
static bool finds_behind(struct search *s, const struct cluster *at, const struct layer *l,
                         int depth) {
    const struct cluster *next = s->c->of[l->id];
    if (!next || next == at) return false;
    if (next == s->to && depth > 0) return true;
    if (next == s->to || s->seen[next->id]) return false;
    s->seen[next->id] = 1;
    return finds_path(s, next, depth + 1);
}

static bool finds_path(struct search *s, const struct cluster *at, int depth) {
    for (int i = 0; i < at->layers.n; i++) {
        const struct layer *l = at->layers.at[i], *later = s->c->later[l->id];
        for (int o = 0; o < l->n_out; o++)
            for (int k = 0; k < s->c->readers[l->out[o]->id].n; k++)
                if (finds_behind(s, at, s->c->readers[l->out[o]->id].at[k], depth)) return true;
        if (later && finds_behind(s, at, later, depth)) return true;
    }
    return false;
}

static bool would_cycle(struct clustering *c, const struct cluster *a, const struct cluster *b) {
    struct search there = {c, b, arena_alloc(c->plan->arena, (size_t)c->all.n)};
    if (finds_path(&there, a, 0)) return true;
    struct search back = {c, a, arena_alloc(c->plan->arena, (size_t)c->all.n)};
    return finds_path(&back, b, 0);
}

static char *mark_members(struct clustering *c, struct layer *const *at, int n) {
    char *member = arena_alloc(c->plan->arena, (size_t)c->m->n_layers + 1);
    for (int i = 0; i < n; i++) member[at[i]->id] = 1;
    return member;
}

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

static bool is_read_outside(const struct clustering *c, const char *inside,
                            const struct tensor *t) {
    for (int k = 0; k < c->readers[t->id].n; k++)
        if (!inside[c->readers[t->id].at[k]->id]) return true;
    return ir_is_output(c->m, t);
}

/* A host writes all its outputs, also those that nothing reads. */
void cluster_find_ports(struct clustering *c, struct cluster *cluster) {
    const char *inside = mark_members(c, cluster->layers.at, cluster->layers.n);
    for (int i = 0; i < cluster->layers.n; i++) {
        struct layer *l = cluster->layers.at[i];
        for (int k = 0; k < l->n_in; k++) {
            struct tensor *t = l->in[k];
            if (inside[t->producer->id] || t->producer->kind == LAYER_scalar) continue;
            if (!lists(cluster->inputs.at, cluster->inputs.n, t))
                VEC_PUSH(c->plan->arena, &cluster->inputs, t);
        }
        for (int k = 0; k < l->n_out; k++)
            if (l->kind == LAYER_host || is_read_outside(c, inside, l->out[k]))
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

static const char *refuse_join(struct clustering *c, struct cluster *a, struct cluster *b) {
    if (find_phase(a) != find_phase(b)) return "they run in different phases";
    const struct cluster *both = unite(c, a, b);
    if (both->inputs.n + both->outputs.n > CLUSTER_MAX_TENSORS)
        return "too many tensors for one kernel";
    const char *reason = c->refuse(c->plan->arena, &c->plan->caps, both);
    if (reason) return reason;
    return would_cycle(c, a, b) ? "another kernel stands between them" : NULL;
}

static bool join(struct clustering *c, struct cluster *a, struct cluster *b) {
    if (a == b || a->module != MODULE_DFP || b->module != MODULE_DFP || refuse_join(c, a, b))
        return false;
    for (int i = 0; i < b->layers.n; i++) cluster_add(c, a, b->layers.at[i]);
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
    int n = c->readers[shared->id].n;
    for (int i = 1; i < n; i++) {
        struct cluster *a = c->of[c->readers[shared->id].at[i - 1]->id],
                       *b = c->of[c->readers[shared->id].at[i]->id];
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
    find_readers(&c);
    find_effects(&c);
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
