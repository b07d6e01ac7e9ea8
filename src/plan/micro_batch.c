/*
 * Which clusters can be computed for a part of the batch, and for how many samples at a time.
 *
 *   clusters and storage -> [this file] -> cluster->by_sample, cluster->micro_batch
 *
 * A tensor is batch-major if its first dim is the first symbol and its other dims do not depend on it:
 * memory then holds one sample after the other. It is batch-invariant if no dim depends on the first symbol. A layer
 * keeps samples apart if its inputs are batch-major or batch-invariant and its output is batch-major, or if all of
 * its tensors are batch-invariant. This excludes layers that mix samples: a sum over the batch has a
 * batch-invariant output, a reshape or transpose that moves the batch one that is neither. What a host layer does is not
 * known, so it never keeps samples apart. Recurrent layers do, but larger batches use their weights better.
 */
#include "run/micro_batch.h"
#include "plan/build.h"
#include "plan/cluster.h"

bool plan_is_batch_major(const struct tensor *t) {
    return t->rank > 0 && size_equal(t->dim[0], size_symbol(0)) && ir_is_invariant(t, 1);
}

/* Does a sample of the output depend on other samples, or on its position in the batch, although the shapes do not show it? */
static bool reads_batch(const struct layer *l) {
    if (l->kind == LAYER_arange) return !ir_is_invariant(l->out[0], 0);
    if (l->kind == LAYER_place) return l->attr.axis == 0 && !ir_is_invariant(l->out[0], 0);
    bool along_axis = l->kind == LAYER_gather || l->kind == LAYER_scatter_sum ||
                      l->kind == LAYER_resample || l->kind == LAYER_cumsum;
    return along_axis && l->attr.axis == 0 && !ir_is_invariant(l->in[0], 0);
}

static bool keeps_samples_apart(const struct layer *l) {
    bool all_shared = true;
    const struct size_table *quotients = &l->model->quotients;
    if (storage_is_dense(l) || reads_batch(l)) return false;
    if (size_depends(quotients, l->attr.start, 0)) return false;
    for (int i = 0; i < l->n_in; i++) {
        if (ir_is_invariant(l->in[i], 0)) continue;
        if (!plan_is_batch_major(l->in[i])) return false;
        all_shared = false;
    }
    return plan_is_batch_major(l->out[0]) || (all_shared && ir_is_invariant(l->out[0], 0));
}

/* Does the tensor begin at an offset of its root that no sample changes, and is the root batch-major exactly if the tensor is? */
static bool is_placed_by_sample(const struct plan *plan, const struct tensor *t) {
    const struct storage *s = &plan->storage[t->id];
    return !size_depends(&plan->model->quotients, s->offset, 0) &&
           plan_is_batch_major(t) == plan_is_batch_major(s->root) &&
           (plan_is_batch_major(t) || ir_is_invariant(s->root, 0));
}

static bool is_by_sample(const struct plan *plan, const struct cluster *cluster) {
    for (int i = 0; i < cluster->layers.n; i++)
        if (!keeps_samples_apart(cluster->layers.at[i])) return false;
    for (int i = 0; i < cluster->inputs.n; i++)
        if (!is_placed_by_sample(plan, cluster->inputs.at[i])) return false;
    for (int i = 0; i < cluster->outputs.n; i++)
        if (!is_placed_by_sample(plan, cluster->outputs.at[i])) return false;
    return true;
}

/* Does the cluster become a step of a call of this phase? */
static bool has_step(const struct cluster *cluster, enum phase phase) {
    return cluster->phase == phase && cluster->module != MODULE_VIEW;
}

/* ---- Expected sizes ---- */

/* An unknown size that is not the batch: usually rows or columns of an image. */
#define SIZE_HINT 224

/* Is the first symbol the batch, that is the first dim of an input? Else it is a size like others. */
static bool has_batch(const struct model *m) {
    for (int i = 0; i < m->inputs.n; i++)
        if (m->inputs.at[i]->rank && size_equal(m->inputs.at[i]->dim[0], size_symbol(0)))
            return true;
    return !m->n_symbols;
}

void plan_set_hints(struct plan *plan, const struct model *m, const struct sol_options *options) {
    for (int i = 0; i < SIZE_FREE; i++) {
        int64_t hint = i < options->n_hints ? options->hints[i] : 0;
        plan->hint[i] = hint > 0 ? hint : SIZE_HINT;
    }
    if (options->batch_hint > 0 || has_batch(m)) plan->hint[0] = max_i64(1, options->batch_hint);
}

void plan_expect(const struct plan *plan, int64_t batch, int64_t symbols[SIZE_SYMBOLS]) {
    const struct size_table *quotients = &plan->model->quotients;
    for (int i = 0; i < SIZE_FREE; i++) symbols[i] = plan->hint[i];
    symbols[0] = batch;
    size_derive(quotients->at, quotients->n, symbols);
}

/* ---- Lifetimes of intermediate values ---- */

struct life {
    int first, last; /* steps; first < 0: no step uses it yet */
};

/* The steps of one phase. */
struct steps {
    int n;
    struct cluster **at;
    struct traffic *traffic;
    int64_t *micro_batch;
};

/* Extends the lifetimes of these tensors' roots to `step`. Skips the caller's tensors and those of other phases, which always have
 * the whole batch. */
static void touch(const struct plan *plan, enum phase phase, struct life *life,
                  struct tensor *const *at, int n, int step) {
    for (int i = 0; i < n; i++) {
        const struct tensor *root = plan->storage[at[i]->id].root;
        if (root->phase != phase || cluster_is_source(root->producer) ||
            ir_is_output(plan->model, root))
            continue;
        struct life *l = &life[root->id];
        if (l->first < 0) l->first = step;
        l->last = step;
    }
}

/* What a later phase reads is saved: it has the whole batch, too. */
static void drop_saved(const struct plan *plan, enum phase phase, struct life *life) {
    for (int i = 0; i < plan->clusters.n; i++) {
        const struct cluster *cluster = plan->clusters.at[i];
        for (int k = 0; k < cluster->inputs.n && cluster->phase != phase; k++)
            life[plan->storage[cluster->inputs.at[k]->id].root->id].first = -1;
    }
}

static void note_lives(const struct plan *plan, enum phase phase, const struct steps *steps,
                       const int64_t *none, const int64_t *one) {
    const struct model *m = plan->model;
    struct life *life = ARENA_ARRAY(plan->arena, struct life, m->n_tensors + 1);
    for (int t = 0; t < m->n_tensors; t++) life[t].first = -1;
    for (int i = 0; i < steps->n; i++) {
        const struct cluster *cluster = steps->at[i];
        touch(plan, phase, life, cluster->inputs.at, cluster->inputs.n, i);
        touch(plan, phase, life, cluster->outputs.at, cluster->outputs.n, i);
    }
    drop_saved(plan, phase, life);
    for (int i = 0; i < m->layers.n; i++)
        for (int k = 0; k < m->layers.at[i]->n_out; k++) {
            const struct tensor *t = m->layers.at[i]->out[k];
            const struct life *l = &life[t->id];
            struct size size = size_scale(layout_elements(t), size_element(t->dtype));
            if (l->first >= 0)
                micro_batch_note_life(steps->traffic, l->first, l->last,
                                      micro_batch_per_sample(size, none, one));
        }
}

static struct steps new_steps(struct arena *arena, int n) {
    return (struct steps){.at = ARENA_ARRAY(arena, struct cluster *, n + 1),
                          .traffic = ARENA_ARRAY(arena, struct traffic, n + 1),
                          .micro_batch = ARENA_ARRAY(arena, int64_t, n + 1)};
}

static void divide_phase(struct plan *plan, enum phase phase, int64_t batch) {
    struct steps steps = new_steps(plan->arena, plan->clusters.n);
    int64_t none[SIZE_SYMBOLS], one[SIZE_SYMBOLS];
    plan_expect(plan, 0, none);
    plan_expect(plan, 1, one);
    for (int i = 0; i < plan->clusters.n; i++) {
        struct cluster *cluster = plan->clusters.at[i];
        if (!has_step(cluster, phase)) continue;
        steps.traffic[steps.n] =
            micro_batch_traffic(build_bytes(cluster), cluster->by_sample, none, one);
        steps.at[steps.n++] = cluster;
    }
    note_lives(plan, phase, &steps, none, one);
    micro_batch_choose(plan->caps.portion_cache, steps.n, steps.traffic, batch, steps.micro_batch);
    for (int i = 0; i < steps.n; i++) steps.at[i]->micro_batch = steps.micro_batch[i];
}

enum sol_status plan_micro_batches(struct plan *plan, int64_t batch) {
    for (int i = 0; i < plan->clusters.n; i++) {
        plan->clusters.at[i]->by_sample = is_by_sample(plan, plan->clusters.at[i]);
        plan->clusters.at[i]->micro_batch = batch;
    }
    divide_phase(plan, FORWARD, batch);
    if (ir_has_backward(plan->model)) divide_phase(plan, BACKWARD, batch);
    return SOL_OK;
}
