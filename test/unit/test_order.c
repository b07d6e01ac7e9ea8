/*
 * The order of clusters, against a search of the whole graph: random models, whose layers are put into clusters, which join, in
 * random order.
 */
#include "check.h"
#include "plan/cluster.h"

#define LAYERS 40

static struct arena arena;
static jmp_buf boundary;
static uint64_t state;

static int pick(int n) {
    return (int)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) % n;
}

static struct model *make_model(void) {
    struct model *m = ir_model_new(&arena, "m");
    struct size n = size_const(3);
    struct tensor *t[LAYERS + 1];
    t[0] = ir_add_source(m, LAYER_input, "x", SOL_F32, 1, &n);
    for (int i = 1; i <= LAYERS; i++) {
        struct tensor *in[] = {t[pick(i)], t[i > 4 && pick(4) ? i - 1 - pick(4) : pick(i)]};
        REQUIRE(!ir_add(m, LAYER_add, 2, in, NULL, NULL, &t[i]));
    }
    return m;
}

static bool is_same(const struct clustering *c, const struct layer *a, const struct layer *b) {
    return a == b || (c->of[a->id] && c->of[a->id] == c->of[b->id]);
}

/* Marks all layers before those of `l`'s cluster, and their clusters; `through`: the search does not go through this one. */
static void mark(const struct clustering *c, const struct layer *l, const struct layer *through,
                 bool *seen) {
    for (int i = 0; i < c->m->layers.n; i++) {
        const struct layer *member = c->m->layers.at[i];
        for (int k = 0; k < member->n_in && is_same(c, member, l); k++) {
            const struct layer *before = member->in[k]->producer;
            if (is_same(c, before, l) || seen[before->id]) continue;
            for (int j = 0; j < c->m->layers.n; j++)
                if (is_same(c, before, c->m->layers.at[j])) seen[c->m->layers.at[j]->id] = true;
            if (!is_same(c, before, through)) mark(c, before, through, seen);
        }
    }
}

/* Does a path from `a` to `b` lead through a third one? */
static bool has_path(const struct clustering *c, const struct layer *a, const struct layer *b) {
    for (int i = 0; i < c->m->layers.n; i++) {
        const struct layer *l = c->m->layers.at[i];
        bool reads = false, seen[LAYERS + 1] = {false};
        for (int k = 0; k < l->n_in; k++) reads |= is_same(c, l->in[k]->producer, a);
        if (!reads || is_same(c, l, a) || is_same(c, l, b)) continue;
        mark(c, b, b, seen);
        if (seen[l->id]) return true;
    }
    return false;
}

static int place(const struct clustering *c, const struct layer *l) {
    return c->of[l->id] ? c->of[l->id]->place : c->place[l->id];
}

static void check_order(const struct clustering *c) {
    bool ordered = true;
    for (int i = 0; i < c->m->layers.n; i++) {
        const struct layer *l = c->m->layers.at[i];
        ordered &= c->order[place(c, l)] && is_same(c, c->order[place(c, l)], l);
        for (int k = 0; k < l->n_in; k++)
            ordered &=
                is_same(c, l, l->in[k]->producer) || place(c, l->in[k]->producer) < place(c, l);
    }
    CHECK(ordered);
}

/* Both layers, or their clusters, become one, if they may. */
static void try_join(struct clustering *c, struct layer *a, struct layer *b) {
    struct cluster *to = c->of[a->id], *from = c->of[b->id];
    if (a == b) return;
    const bool may = !has_path(c, a, b) && !has_path(c, b, a);
    if (!to) cluster_add(c, to = cluster_new(c, MODULE_DFP), a);
    if (!from && may) cluster_add(c, to, b);
    if (!from || from == to) return;
    CHECK(order_may_join(c, to, from) == may);
    if (!may) return;
    order_join(c, to, from);
    for (int i = 0; i < from->layers.n; i++) {
        VEC_PUSH(&arena, &to->layers, from->layers.at[i]);
        c->of[from->layers.at[i]->id] = to;
    }
    from->layers.n = 0;
}

static void test_model(void) {
    struct plan plan = {.arena = &arena, .model = make_model()};
    struct clustering c = {.plan = &plan, .m = plan.model};
    c.of = ARENA_ARRAY(&arena, struct cluster *, LAYERS + 1);
    c.earlier = ARENA_ARRAY(&arena, struct layer *, LAYERS + 1);
    order_init(&c);
    for (int i = 0; i < 3 * LAYERS; i++) {
        try_join(&c, c.m->layers.at[1 + pick(LAYERS)], c.m->layers.at[1 + pick(LAYERS)]);
        check_order(&c);
    }
}

int main(void) {
    arena_init(&arena);
    arena.boundary = &boundary;
    if (setjmp(boundary)) return 1;
    for (int i = 0; i < 200; i++) test_model();
    arena_fini(&arena);
    return check_done();
}
