/* Common subexpression elimination: layers of one kind with equal attributes and the same inputs are computed once. */
#include "pass/pass.h"

#include <string.h>

static uint64_t hash_layer(const struct layer *l) {
    uint64_t h = hash_bytes(l->kind, &l->attr, sizeof l->attr);
    for (int i = 0; i < l->n_in; i++) h = hash_bytes(h, &l->in[i]->id, sizeof l->in[i]->id);
    return h;
}

/* Frontends declare the outputs of host layers; those of other layers follow from the inputs. */
static bool has_same_outputs(const struct layer *a, const struct layer *b) {
    if (a->n_out != b->n_out) return false;
    for (int i = 0; i < a->n_out; i++)
        if (a->out[i]->dtype != b->out[i]->dtype || !ir_same_shape(a->out[i], b->out[i], -1))
            return false;
    return true;
}

/* Attributes are compared as bytes, padding included: ir_default_attr sets it to zero. */
static bool is_equal(const struct layer *a, const struct layer *b) {
    return a->kind == b->kind && a->n_in == b->n_in &&
           !memcmp(&a->attr, &b->attr, sizeof a->attr) &&
           !memcmp(a->in, b->in, sizeof *a->in * (size_t)a->n_in) && has_same_outputs(a, b);
}

/* May equal layers be computed once? A function of the frontend only if the frontend says so. */
static bool may_merge(const struct layer *l) {
    if (l->kind == LAYER_host) return l->attr.pure;
    return l->kind != LAYER_input && l->kind != LAYER_param;
}

/* Layers are visited in topological order: the inputs of a layer are already replaced by their first equal ones, so one walk also
 * merges equal subgraphs. */
enum sol_status pass_cse(struct model *m) {
    int n_buckets = 2 * m->layers.n + 1;
    struct layer **bucket = ARENA_ARRAY(m->arena, struct layer *, n_buckets);
    for (int i = 0; i < m->layers.n; i++) {
        struct layer *l = m->layers.at[i];
        if (!may_merge(l)) continue;
        uint64_t at = hash_layer(l) % (uint64_t)n_buckets;
        while (bucket[at] && !is_equal(bucket[at], l)) at = (at + 1) % (uint64_t)n_buckets;
        for (int k = 0; bucket[at] && k < l->n_out; k++)
            ir_replace(m, l->out[k], bucket[at]->out[k]);
        if (!bucket[at]) bucket[at] = l;
    }
    return SOL_OK;
}
