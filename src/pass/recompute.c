/*
 * Decides which values of the forward call are saved for the backward call, and which are computed again.
 *
 *   y = x * scale + shift, read by both calls   ->   y, and y' = x * scale + shift in BACKWARD, which joins the kernel that reads it
 *
 * A value is computed again if only layers that may be repeated lie between it and values that are there in BACKWARD: saved ones,
 * parameters, inputs of the call, and results of reductions, which are small. By default these are cheap layers (pointwise ones,
 * broadcasts) whose result no product of BACKWARD reads, as the product's kernel needs it in memory. Then repeating costs neither the
 * time to write and read it nor memory. To save less (`recompute` in struct sol_options), others are repeated, too, at the cost of time:
 * recompute_choice.c chooses which.
 *
 * Copies come just before their first reader (pass_clean), so their results take memory only around it. They have the same bits
 * as the first ones if the same kernel computes them; random numbers depend on their position and the seed only. Layers of the
 * frontend may have effects, and are never repeated; no update of a parameter is either, as it is no layer.
 *
 * Invariant: the copies belong to BACKWARD, though their inputs would be there in FORWARD.
 */
#include "pass/recompute.h"

static bool is_backward(const struct layer *l) { return l->out[0]->phase == BACKWARD; }

static bool is_source(const struct layer *l) { return layer_infos[l->kind].traits & SOURCE; }

/* Its result is a formula per point, or the same values in another shape. */
static bool is_cheap(const struct layer *l) {
    return layer_infos[l->kind].traits & POINTWISE || l->kind == LAYER_expand ||
           l->kind == LAYER_reshape || l->kind == LAYER_arange;
}

static bool is_small(const struct layer *l) { return layer_infos[l->kind].traits & REDUCTION; }

static bool moves_values(const struct layer *l) {
    return layer_infos[l->kind].traits & MOVEMENT || l->kind == LAYER_concat;
}

bool recompute_is_product(const struct layer *l) { return !is_cheap(l) && !is_small(l); }

/* Sums of sizes do not overflow. */
#define MAX_ELEMENTS ((int64_t)1 << 40)

static void find_sizes(const struct recompute *r) {
    const struct model *m = r->m;
    int64_t symbols[SIZE_SYMBOLS] = {0};
    for (int i = 0; i < SIZE_FREE; i++) symbols[i] = m->hint ? m->hint[i] : 1;
    size_derive(m->quotients.at, m->quotients.n, symbols);
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = m->layers.at[i];
        for (int k = 0; k < l->n_out && l->out[0]->phase == FORWARD; k++) {
            const struct size n = ir_elements(l->out[k]);
            if (is_source(l)) continue;
            r->size[l->out[k]->id] =
                min_i64(size_eval(&n, symbols), MAX_ELEMENTS) * size_element(l->out[k]->dtype);
        }
    }
    for (int i = 0; i < m->outputs.n; i++) r->size[m->outputs.at[i]->id] = 0;
}

/* What outputs, updates and effects of FORWARD need. */
static void find_early(const struct recompute *r) {
    const struct model *m = r->m;
    for (int i = 0; i < m->outputs.n; i++)
        r->is_early[m->outputs.at[i]->id] |= m->output_phases.at[i] == FORWARD;
    for (int i = 0; i < m->updates.n; i++) r->is_early[m->updates.at[i].value->id] = true;
    for (int i = r->n_layers - 1; i >= 0; i--) {
        const struct layer *l = m->layers.at[i];
        bool is_early = l->attr.effects && !is_backward(l);
        for (int k = 0; k < l->n_out; k++) is_early |= r->is_early[l->out[k]->id];
        for (int k = 0; k < l->n_out; k++) r->is_early[l->out[k]->id] = is_early;
        for (int k = 0; k < l->n_in && is_early; k++) r->is_early[l->in[k]->id] = true;
    }
}

/* The place of a layer that only BACKWARD needs is that of its last input. */
static int find_place(const struct recompute *r, const struct layer *l, int i) {
    int place = 0;
    if (r->is_early[l->out[0]->id]) return i;
    for (int k = 0; k < l->n_in; k++)
        if (r->place[l->in[k]->id] > place) place = r->place[l->in[k]->id];
    return place;
}

static bool is_light(const struct recompute *r, const struct layer *l) {
    if (is_source(l) || is_small(l)) return true;
    if (!is_cheap(l)) return false;
    for (int k = 0; k < l->n_in; k++)
        if (l->in[k]->phase == FORWARD && !r->is_light[l->in[k]->id]) return false;
    return true;
}

static void find_places(const struct recompute *r) {
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_out; k++) {
            r->place[l->out[k]->id] = find_place(r, l, i);
            r->is_light[l->out[k]->id] = is_light(r, l);
        }
    }
}

/* The only input that is not light; NULL if there are none or several. */
static struct tensor *find_heavy_input(const struct recompute *r, const struct layer *l) {
    struct tensor *found = NULL;
    for (int k = 0; k < l->n_in; k++) {
        struct tensor *t = l->in[k];
        if (t->phase != FORWARD || r->is_light[t->id] || t == found) continue;
        if (found) return NULL;
        found = t;
    }
    return found;
}

/* A cheap layer of FORWARD that only BACKWARD needs, such as x - mean, waits for it, unless its result is smaller than x, as a
 * mask is. So several of them save x only, and FORWARD need not write their results. */
static void find_waiting(const struct recompute *r) {
    for (int i = r->n_layers - 1; i >= 0; i--) {
        const struct layer *l = r->m->layers.at[i];
        const struct tensor *t = l->out[0], *x = find_heavy_input(r, l);
        if (t->phase == FORWARD && !r->is_early[t->id] && r->read_late[t->id] &&
            !r->in_memory[t->id] && is_cheap(l) && x && r->size[x->id] <= r->size[t->id])
            r->read_late[x->id] = true;
    }
}

static void find_readers(const struct recompute *r) {
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_in && is_backward(l); k++) {
            r->read_late[l->in[k]->id] = true;
            r->in_memory[l->in[k]->id] |= recompute_is_product(l);
        }
    }
    find_waiting(r);
}

/* Does the layer read a weight that is larger than its result? Packing the weight again would cost more than saving the result. */
static bool reads_larger_weight(const struct recompute *r, const struct layer *l) {
    for (int k = 0; k < l->n_in; k++) {
        const struct tensor *w = l->in[k];
        if (!ir_is_constant(w) || is_cheap(l)) continue;
        if (size_value(ir_elements(w)) * size_element(w->dtype) > r->size[l->out[0]->id])
            return true;
    }
    return false;
}

static bool may_repeat(const struct recompute *r, const struct recompute_choice *c,
                       const struct layer *l) {
    const struct tensor *t = l->out[0];
    const int place = r->place[t->id];
    if (t->phase != FORWARD || is_source(l) || l->kind == LAYER_host) return false;
    if (place < c->all_end)
        return r->size[t->id] && !r->is_border[t->id] && !is_small(l) && !reads_larger_weight(r, l);
    if (place < c->cheap_end) return r->size[t->id] && (is_cheap(l) || moves_values(l));
    return is_cheap(l) && !r->in_memory[t->id];
}

static bool inputs_are_there(const struct recompute *r, const struct layer *l) {
    for (int k = 0; k < l->n_in; k++)
        if (!r->is_there[l->in[k]->id]) return false;
    return true;
}

static bool has_anyway(const struct recompute *r, const struct layer *l, const struct tensor *t) {
    return t->phase != FORWARD || is_source(l) || r->read_late[t->id] || r->is_border[t->id] ||
           is_small(l);
}

static void find_there(const struct recompute *r, const struct recompute_choice *choice) {
    for (int i = 0; i < r->n_layers; i++) {
        const struct layer *l = r->m->layers.at[i];
        const bool repeats = may_repeat(r, choice, l) && inputs_are_there(r, l);
        for (int k = 0; k < l->n_out; k++) {
            r->repeats[l->out[k]->id] = repeats;
            r->is_there[l->out[k]->id] = repeats || has_anyway(r, l, l->out[k]);
        }
    }
}

static bool is_repeated(const struct recompute *r, const struct layer *l) {
    for (int k = 0; k < l->n_out; k++)
        if (r->needed[l->out[k]->id] && r->repeats[l->out[k]->id]) return true;
    return false;
}

static void find_needed(const struct recompute *r) {
    memcpy(r->needed, r->read_late, sizeof *r->needed * (size_t)r->n_tensors);
    for (int i = r->n_layers - 1; i >= 0; i--) {
        const struct layer *l = r->m->layers.at[i];
        for (int k = 0; k < l->n_in && is_repeated(r, l); k++) r->needed[l->in[k]->id] = true;
    }
}

void recompute_settle(const struct recompute *r, const struct recompute_choice *choice) {
    find_there(r, choice);
    find_needed(r);
}

/* The copies of a chain of layers, from its first to its last: layers are visited in topological order, and all of a chain may be
 * repeated. copy[t]: in BACKWARD; NULL: there is none. */
static enum sol_status repeat(const struct recompute *r, const struct layer *l,
                              struct tensor **copy) {
    struct tensor **in = ARENA_ARRAY(r->m->arena, struct tensor *, l->n_in + 1);
    for (int k = 0; k < l->n_in; k++) in[k] = copy[l->in[k]->id] ? copy[l->in[k]->id] : l->in[k];
    struct tensor **out = &copy[l->out[0]->id];
    TRY(ir_add(r->m, l->kind, l->n_in, in, &l->attr, l->origin, out));
    ir_set_backward(*out);
    ir_copy_gates(l, *out, copy);
    return SOL_OK;
}

static void redirect(const struct recompute *r, struct layer *l, struct tensor *const *copy) {
    for (int k = 0; k < l->n_in; k++)
        if (l->in[k]->id < r->n_tensors && copy[l->in[k]->id]) l->in[k] = copy[l->in[k]->id];
}

enum sol_status pass_recompute(struct model *m) {
    const int n = m->n_tensors;
    if (!ir_has_backward(m)) return SOL_OK;
    struct recompute r = {.m = m,
                          .n_layers = m->layers.n,
                          .n_tensors = n,
                          .read_late = ARENA_ARRAY(m->arena, bool, n + 1),
                          .in_memory = ARENA_ARRAY(m->arena, bool, n + 1),
                          .is_early = ARENA_ARRAY(m->arena, bool, n + 1),
                          .is_light = ARENA_ARRAY(m->arena, bool, n + 1),
                          .is_border = ARENA_ARRAY(m->arena, bool, n + 1),
                          .is_there = ARENA_ARRAY(m->arena, bool, n + 1),
                          .repeats = ARENA_ARRAY(m->arena, bool, n + 1),
                          .needed = ARENA_ARRAY(m->arena, bool, n + 1),
                          .size = ARENA_ARRAY(m->arena, int64_t, n + 1),
                          .place = ARENA_ARRAY(m->arena, int, n + 1)};
    struct tensor **copy = ARENA_ARRAY(m->arena, struct tensor *, n + 1);
    find_sizes(&r);
    find_early(&r);
    find_places(&r);
    find_readers(&r);
    recompute_choose(&r);
    for (int i = 0; i < r.n_layers; i++)
        if (is_repeated(&r, m->layers.at[i])) TRY(repeat(&r, m->layers.at[i], copy));
    for (int i = 0; i < r.n_layers; i++)
        if (is_backward(m->layers.at[i])) redirect(&r, m->layers.at[i], copy);
    return SOL_OK;
}
