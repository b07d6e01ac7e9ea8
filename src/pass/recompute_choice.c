/*
 * Chooses what a backward call computes again, so that few enough bytes are saved between both calls.
 *
 *   recompute.c -> [this file]: a fixed sequence of ways, from the fastest on; the first one that saves few enough -> recompute.c
 *
 * First all cheap layers are repeated, in more and more of the network from its beginning on, where a network for images has the
 * largest values. For a convolution, a batch norm and a ReLU, only the convolution's result and the statistics are saved then. After that the
 * beginning, and then the whole network, is divided into stretches, from short to long ones. What one stretch computes again lies in the
 * memory of the backward call, until its gradients are done. So long stretches need more memory there than they save, and the
 * sequence ends at the way whose sum of both is the least. This is Algorithm 3 of Chen, Xu, Zhang and Guestrin, "Training Deep Nets
 * with Sublinear Memory Cost", arXiv 1604.06174, with one difference: networks are no chains, so a stretch ends where
 * few bytes pass from the layers before to those behind.
 *
 * Invariant: a smaller budget never saves more, as it chooses a later way of the same sequence.
 */
#include "pass/recompute.h"

#define CHEAP_STEPS 8 /* the last of these ways repeats all cheap layers: SOL_RECOMPUTE_CHEAP */
#define ALL_STEPS 4
/* Into about how many stretches a network is divided. */
static const int counts[] = {48, 32, 24, 16, 12, 8, 6, 4, 3, 2};
#define N_WAYS (1 + CHEAP_STEPS + (int)COUNT(counts) * ALL_STEPS)

/* By place. */
struct stretches {
    int64_t *weight;  /* bytes that are saved if as little as possible is repeated */
    int64_t *passing; /* bytes of values that layers behind read */
    bool *is_product; /* as recompute_is_product says of the layer there */
    int *number;      /* of the stretch */
    int64_t total;    /* of all weights */
};

/* Is it a layer of FORWARD whose result may take much memory? */
static bool is_heavy(const struct recompute *r, const struct tensor *t) {
    return t->phase == FORWARD && r->size[t->id] && !r->is_light[t->id];
}

/* ---- Stretches ---- */

/* passing[p] is the sum of the sizes of all values with place <= p that are read behind p. */
static void find_passing(const struct recompute *r, struct stretches *s) {
    int *last = ARENA_ARRAY(r->m->arena, int, r->n_tensors + 1);
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_in && r->is_early[l->out[0]->id]; k++) last[l->in[k]->id] = i;
    }
    int64_t *change = ARENA_ARRAY(r->m->arena, int64_t, r->n_layers + 1), sum = 0;
    for (int i = 0; i < r->n_layers; i++) {
        const struct tensor *t = r->m->layers.at[i]->out[0];
        sum += change[i];
        if (is_heavy(r, t) && r->is_early[t->id] && last[t->id] > i) {
            sum += r->size[t->id];
            change[last[t->id]] -= r->size[t->id];
        }
        s->passing[i] = sum;
    }
}

static int64_t count_saved(const struct recompute *r) {
    int64_t sum = 0;
    for (int i = 0; i < r->n_layers; i++)
        for (int k = 0; k < r->m->layers.at[i]->n_out; k++) {
            const struct tensor *t = r->m->layers.at[i]->out[k];
            if (recompute_saves(r, t)) sum += r->size[t->id];
        }
    return sum;
}

/* The fastest way is settled. */
static void init_stretches(const struct recompute *r, struct stretches *s) {
    const int n_places = r->n_layers;
    *s = (struct stretches){.weight = ARENA_ARRAY(r->m->arena, int64_t, n_places + 1),
                            .passing = ARENA_ARRAY(r->m->arena, int64_t, n_places + 1),
                            .is_product = ARENA_ARRAY(r->m->arena, bool, n_places + 1),
                            .number = ARENA_ARRAY(r->m->arena, int, n_places + 1)};
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_out; k++)
            if (recompute_saves(r, l->out[k]))
                s->weight[r->place[l->out[k]->id]] += r->size[l->out[k]->id];
        s->is_product[i] = recompute_is_product(l);
    }
    s->total = count_saved(r);
    find_passing(r, s);
}

/* Is place p a better end of a stretch than q, which is before p? A product's result that is saved is not computed again. */
static bool is_better(const struct stretches *s, int p, int q) {
    if (s->passing[p] != s->passing[q]) return s->passing[p] < s->passing[q];
    return s->is_product[p] || !s->is_product[q];
}

/* Where the stretch after the one that begins at `from` begins. A stretch has at least half of the limit. */
static int find_next(const struct stretches *s, int from, int end, int64_t limit) {
    int best = -1;
    int64_t sum = 0;
    for (int p = from; p < end; p++) {
        sum += s->weight[p];
        if (sum > limit && best >= 0) return best + 1;
        if (sum >= limit / 2 && (best < 0 || is_better(s, p, best))) best = p;
    }
    return end;
}

static void divide(const struct recompute *r, const struct stretches *s,
                   const struct recompute_choice *c) {
    int number = 0;
    for (int from = 0, next; from < c->all_end; from = next, number++) {
        next = find_next(s, from, c->all_end, c->limit);
        for (int p = from; p < next; p++) s->number[p] = number;
    }
    for (int p = c->all_end; p < r->n_layers; p++) s->number[p] = number;
}

static void find_borders(const struct recompute *r, const struct stretches *s) {
    memset(r->is_border, 0, sizeof *r->is_border * (size_t)r->n_tensors);
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_in && r->is_early[l->out[0]->id]; k++)
            if (is_heavy(r, l->in[k]) && s->number[r->place[l->in[k]->id]] < s->number[i])
                r->is_border[l->in[k]->id] = true;
    }
}

/* ---- Ways ---- */

/* The first place before which there is this part of all bytes that the fastest way saves. */
static int find_part(const struct recompute *r, const struct stretches *s, double part) {
    int64_t sum = 0;
    for (int p = 0; p < r->n_layers; p++) {
        if (part < 1 && (double)sum >= part * (double)s->total) return p;
        sum += s->weight[p];
    }
    return r->n_layers;
}

static struct recompute_choice make_way(const struct recompute *r, const struct stretches *s,
                                        int i) {
    if (i <= CHEAP_STEPS)
        return (struct recompute_choice){.cheap_end = find_part(r, s, (double)i / CHEAP_STEPS)};
    i -= CHEAP_STEPS + 1;
    const double part = (double)(i % ALL_STEPS + 1) / ALL_STEPS;
    return (struct recompute_choice){.all_end = find_part(r, s, part),
                                     .cheap_end = r->n_layers,
                                     .limit = s->total / counts[i / ALL_STEPS]};
}

static void settle_way(const struct recompute *r, const struct stretches *s,
                       const struct recompute_choice *way) {
    divide(r, s, way);
    find_borders(r, s);
    recompute_settle(r, way);
}

/* The bytes that the heaviest stretch adds to the backward call. */
static int64_t count_heaviest(const struct stretches *s, const struct recompute_choice *way) {
    int64_t sum = 0, heaviest = 0;
    for (int p = 0; p < way->all_end; p++) {
        sum = (p && s->number[p] == s->number[p - 1] ? sum : 0) + s->weight[p];
        if (sum > heaviest) heaviest = sum;
    }
    return heaviest;
}

/* The first way that saves at most `budget`; of those up to the one that needs the least memory in all. */
static int find_way(const int64_t *saved, const int64_t *needed, int64_t budget) {
    int last = 0, least = 0;
    for (int i = 1; i < N_WAYS; i++)
        if (needed[i] < needed[last]) last = i;
    for (int i = 0; i <= last; i++) {
        if (saved[i] <= budget) return i;
        if (saved[i] < saved[least]) least = i;
    }
    return least;
}

/* The way that fits into the budget of the options. */
static int find_lean_way(const struct recompute *r, const struct stretches *s) {
    int64_t saved[N_WAYS], needed[N_WAYS];
    for (int i = 0; i < N_WAYS; i++) {
        const struct recompute_choice way = make_way(r, s, i);
        settle_way(r, s, &way);
        saved[i] = count_saved(r);
        needed[i] = saved[i] + count_heaviest(s, &way);
    }
    return find_way(saved, needed, (int64_t)((1 - r->m->recompute) * (double)s->total));
}

void recompute_choose(struct recompute *r) {
    const bool only_cheap = r->m->recompute == SOL_RECOMPUTE_CHEAP;
    struct recompute_choice way = {0};
    struct stretches s;
    recompute_settle(r, &way);
    if (r->m->recompute == 0) return;
    init_stretches(r, &s);
    way = make_way(r, &s, only_cheap ? CHEAP_STEPS : find_lean_way(r, &s));
    settle_way(r, &s, &way);
}
