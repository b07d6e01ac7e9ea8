/*
 * Groups: layers that together only move the values of one tensor, such as the slices and concats of a mirrored border, or the
 * expands of an enlarged image, become one copy.
 *
 *   plan_clusters -> [this file] -> clusters of module COPY, for which movement.c makes tables
 *
 * A group is found from its last layer backward. Tensors inside of it that others read, too, end it: they are the group's input.
 *
 * Invariant: a group has one input and one output, so it is in no cycle with other clusters.
 */
#include "plan/cluster.h"

struct group {
    struct clustering *c;
    int *is_end;    /* by tensor id: `number` if this group does not make it */
    int *is_inside; /* by layer id: `trial` if it is in the group */
    int number, trial;
    struct tensor *in;
    bool has_several; /* inputs */
    VEC(struct layer *) layers;
};

/* Views around attention (view.c) lie in memory of another order: a copy must not write it. */
static bool is_strided_view(const struct group *g, const struct layer *l) {
    const struct storage *storage = g->c->plan->storage;
    return storage[l->out[0]->id].is_strided || (l->n_in && storage[l->in[0]->id].is_strided);
}

static bool fits(const struct group *g, const struct layer *l, enum phase phase) {
    if (l->out[0]->phase != phase || cluster_is_source(l) || g->c->of[l->id] ||
        !movement_fits_group(l))
        return false;
    if (is_strided_view(g, l)) return false;
    return l->kind != LAYER_concat || !storage_is_view(g->c->plan, l);
}

static void collect(struct group *g, struct layer *l) {
    if (g->is_inside[l->id] == g->trial) return;
    g->is_inside[l->id] = g->trial;
    VEC_PUSH(g->c->plan->arena, &g->layers, l);
    for (int i = 0; i < l->n_in; i++) {
        struct tensor *t = l->in[i];
        if (g->is_end[t->id] != g->number && fits(g, t->producer, l->out[0]->phase)) {
            collect(g, t->producer);
            continue;
        }
        g->has_several = g->has_several || (g->in && g->in != t);
        g->in = t;
    }
}

/* Marks a tensor that layers outside read, too; false if there is none. */
static bool find_end(struct group *g) {
    for (int i = 1; i < g->layers.n; i++) {
        const struct tensor *t = g->layers.at[i]->out[0];
        bool is_read = ir_is_output(g->c->m, t);
        for (int k = 0; k < t->readers.n; k++)
            is_read = is_read || g->is_inside[t->readers.at[k]->id] != g->trial;
        if (!is_read) continue;
        g->is_end[t->id] = g->number;
        return true;
    }
    return false;
}

static bool is_dense(const struct group *g, const struct tensor *t) {
    return !g->c->plan->storage[t->id].has_batch_stride;
}

/* Has `l` a kernel of its own, or none? */
static bool is_apart(const struct group *g, const struct layer *l) {
    return cluster_is_source(l) || g->c->of[l->id];
}

/* Are there pads that share their kernel with no other layer? A copy moves their rows as they are. */
static bool has_lone_pad(const struct group *g) {
    const struct tensor *out = g->layers.at[0]->out[0];
    bool is_alone = g->in && is_apart(g, g->in->producer), has_pad = false;
    for (int i = 0; i < out->readers.n; i++) is_alone = is_alone && is_apart(g, out->readers.at[i]);
    for (int i = 0; i < g->layers.n; i++) has_pad = has_pad || g->layers.at[i]->kind == LAYER_pad;
    return is_alone && has_pad;
}

/* Is it worth a copy? Not if single layers, or an alias, do the same. A movement across samples needs tensors without gaps. */
static bool is_useful(const struct group *g) {
    bool batched = true, has_more = false;
    for (int i = 0; i < g->layers.n; i++) {
        const struct layer *l = g->layers.at[i];
        batched = batched && movement_keeps_batch(l);
        has_more = has_more || l->kind == LAYER_concat || l->kind == LAYER_expand;
    }
    const struct tensor *out = g->layers.at[0]->out[0];
    has_more = has_more || has_lone_pad(g);
    return has_more && !g->has_several && (batched || (is_dense(g, g->in) && is_dense(g, out)));
}

/* The group that ends with `last`, if there is one. */
static void group(struct group *g, struct layer *last) {
    if (last->kind == LAYER_expand || !fits(g, last, last->out[0]->phase)) return;
    g->number++;
    do {
        g->trial++;
        g->layers.n = 0;
        g->in = NULL;
        g->has_several = false;
        collect(g, last);
    } while (find_end(g));
    if (!is_useful(g)) return;
    cluster_sort(g->c, g->layers.at, g->layers.n);
    struct cluster *cluster = cluster_new(g->c, MODULE_COPY);
    for (int i = 0; i < g->layers.n; i++) cluster_add(g->c, cluster, g->layers.at[i]);
}

void cluster_groups(struct clustering *c) {
    struct group g = {.c = c};
    g.is_end = ARENA_ARRAY(c->plan->arena, int, c->m->n_tensors + 1);
    g.is_inside = ARENA_ARRAY(c->plan->arena, int, c->m->n_layers + 1);
    for (int i = c->m->layers.n - 1; i >= 0; i--)
        if (!c->of[c->m->layers.at[i]->id]) group(&g, c->m->layers.at[i]);
}
