/*
 * The order of clusters: one in which they, and the layers that are in none yet, can run. It tells whether two clusters may join.
 *
 *   cluster.c -> order_init, order_add, order_may_join, order_join -> clustering->order, cluster->place
 *
 * All that lies on a path from A to B has a place between those of A and B, so a search for a path visits a small part of a large
 * model. When A and B join, what B needs of the places between comes before both, the rest of it behind them. This is the method of
 * Pearce and Kelly (A dynamic topological sort algorithm for directed acyclic graphs, 2006), who add edges where clusters join.
 *
 * Invariant: whatever a cluster, or a layer in none, reads is at an earlier place, or in the same cluster.
 */
#include "plan/cluster.h"

void order_init(struct clustering *c) {
    const int n = c->m->layers.n;
    c->order = arena_copy(c->plan->arena, c->m->layers.at, sizeof *c->order * (size_t)n);
    c->behind = ARENA_ARRAY(c->plan->arena, struct layer *, n + 1);
    c->needed = ARENA_ARRAY(c->plan->arena, int, n + 1);
    c->place = ARENA_ARRAY(c->plan->arena, int, c->m->n_layers + 1);
    for (int i = 0; i < n; i++) c->place[c->order[i]->id] = i;
}

static int *find_place(const struct clustering *c, const struct layer *l) {
    struct cluster *cluster = c->of[l->id];
    return cluster ? &cluster->place : &c->place[l->id];
}

/* ---- What the place `to` needs of the places behind `from` ---- */

struct search {
    struct clustering *c;
    int from, to;
};

static bool finds_path(const struct search *s, const struct layer *l);

/* Continues the search at a layer before the place `at`. */
static bool finds_before(const struct search *s, const struct layer *l, int at) {
    const int place = *find_place(s->c, l);
    if (cluster_is_source(l) || place == at || place < s->from) return false;
    if (place == s->from) return at != s->to;
    if (s->c->needed[place] == s->c->n_searches) return false;
    s->c->needed[place] = s->c->n_searches;
    if (s->c->last_needed < place) s->c->last_needed = place;
    return finds_path(s, l);
}

/* Marks what the cluster of `l` needs, or `l` if it is in none; true at once if a path from `from` goes through another place. */
static bool finds_path(const struct search *s, const struct layer *l) {
    const struct cluster *cluster = s->c->of[l->id];
    const int at = *find_place(s->c, l);
    for (int i = 0; i < (cluster ? cluster->layers.n : 1); i++) {
        const struct layer *member = cluster ? cluster->layers.at[i] : l,
                           *earlier = s->c->earlier[member->id];
        for (int k = 0; k < member->n_in; k++)
            if (finds_before(s, member->in[k]->producer, at)) return true;
        if (earlier && finds_before(s, earlier, at)) return true;
    }
    return false;
}

static bool finds_between(struct clustering *c, int a, int b) {
    const struct search s = {c, a < b ? a : b, a < b ? b : a};
    c->n_searches++;
    c->last_needed = s.from;
    return finds_path(&s, c->order[s.to]);
}

bool order_may_join(struct clustering *c, const struct cluster *a, const struct cluster *b) {
    return !finds_between(c, a->place, b->place);
}

/* ---- Joining ---- */

static void put(struct clustering *c, int place, struct layer *l) {
    c->order[place] = l;
    if (l) *find_place(c, l) = place;
}

/* The places a and b become one, that of `l`. What the search before has marked stays before it; what lies between goes behind it, and
 * what comes after the last mark stays where it is. */
static void join(struct clustering *c, int a, int b, struct layer *l) {
    const int from = a < b ? a : b, to = a < b ? b : a;
    int n = 0, next = from;
    for (int i = from + 1; i <= c->last_needed; i++)
        if (c->needed[i] == c->n_searches) put(c, next++, c->order[i]);
        else c->behind[n++] = c->order[i];
    put(c, next++, l);
    for (int i = 0; i < n; i++) put(c, next++, c->behind[i]);
    c->order[to] = NULL;
}

void order_join(struct clustering *c, struct cluster *a, const struct cluster *b) {
    join(c, a->place, b->place, a->layers.at[0]);
}

void order_add(struct clustering *c, struct cluster *cluster, const struct layer *l) {
    const int place = c->place[l->id];
    if (!cluster->layers.n) {
        cluster->place = place;
        return;
    }
    const bool is_cyclic = finds_between(c, cluster->place, place);
    ASSERT(!is_cyclic);
    join(c, cluster->place, place, cluster->layers.at[0]);
}
