/* Tools for passes: find a single reader, apply rules, sort the list of layers. */
#include "pass/pass.h"

#include <stdlib.h>

static enum sol_status apply_rule(struct model *m, const struct pass_rule *rule, struct layer *l) {
    struct tensor *out = rule->apply(m, l);
    if (!out) return SOL_EBUG;
    if (out != l->out[0]) ir_replace(m, l->out[0], out);
    return SOL_OK;
}

enum sol_status pass_apply(struct model *m, const struct pass_rule *rules, int n_rules) {
    for (int i = 0, n = m->layers.n; i < n; i++)
        for (int r = 0; r < n_rules; r++)
            if (m->layers.at[i]->kind == rules[r].kind)
                TRY(apply_rule(m, &rules[r], m->layers.at[i]));
    return SOL_OK;
}

struct layer *pass_single_reader(const struct model *m, const struct tensor *t) {
    return t->readers.n == 1 && !ir_is_output(m, t) ? t->readers.at[0] : NULL;
}

/* Depth-first walk from the outputs. It has an explicit stack, as recursion could overflow the C stack on a deep model. */
struct walk {
    struct model *m;
    char *done; /* by layer id: 1 = opened, 2 = placed */
    VEC(struct layer *) stack;
    VEC(struct layer *) order;
};

static void push_inputs(struct walk *w, const struct layer *layer) {
    for (int i = layer->n_in - 1; i >= 0; i--) {
        struct layer *producer = layer->in[i]->producer;
        if (!w->done[producer->id]) VEC_PUSH(w->m->arena, &w->stack, producer);
    }
}

/* Appends `layer` to the order, after all layers it depends on. A layer stays on the stack below its inputs; when it is on top
 * again, they are placed, and it is placed next. It may be on the stack several times, but is placed once. */
static void place_with_inputs(struct walk *w, struct layer *layer) {
    VEC_PUSH(w->m->arena, &w->stack, layer);
    while (w->stack.n) {
        struct layer *top = w->stack.at[w->stack.n - 1];
        if (!w->done[top->id]) {
            w->done[top->id] = 1;
            push_inputs(w, top);
            continue;
        }
        w->stack.n--;
        if (w->done[top->id] == 2) continue;
        w->done[top->id] = 2;
        VEC_PUSH(w->m->arena, &w->order, top);
    }
}

/* Inputs and parameters come first, so that they stay in the list even if nothing reads them. Then layers with effects, which
 * stay in their order, with what they depend on. The other layers follow depth first, each when its first reader needs it.
 * `outputs`: the model's, in the order in which they are visited. */
static void sort_layers(struct model *m, struct tensor *const *outputs) {
    struct walk w = {.m = m, .done = arena_alloc(m->arena, (size_t)m->n_layers + 1)};
    for (int i = 0; i < m->inputs.n; i++) place_with_inputs(&w, m->inputs.at[i]->producer);
    for (int i = 0; i < m->params.n; i++) place_with_inputs(&w, m->params.at[i]->producer);
    for (int i = 0; i < m->layers.n; i++)
        if (m->layers.at[i]->attr.effects) place_with_inputs(&w, m->layers.at[i]);
    for (int i = 0; i < m->outputs.n; i++) place_with_inputs(&w, outputs[i]->producer);
    for (int i = 0; i < m->updates.n; i++) place_with_inputs(&w, m->updates.at[i].value->producer);
    m->layers.n = 0;
    for (int i = 0; i < w.order.n; i++) VEC_PUSH(m->arena, &m->layers, w.order.at[i]);
}

/* An output, and how many layers of BACKWARD lie before it on the longest path. */
struct place {
    int depth, index;
    struct tensor *output;
};

static int by_depth(const void *a, const void *b) {
    const struct place *p = a, *q = b;
    return p->depth != q->depth ? p->depth - q->depth : p->index - q->index;
}

/* By layer id. The layers are sorted. */
static int *find_depths(const struct model *m) {
    int *depth = ARENA_ARRAY(m->arena, int, m->n_layers + 1);
    for (int i = 0; i < m->layers.n; i++) {
        const struct layer *l = m->layers.at[i];
        for (int k = 0; k < l->n_in && l->out[0]->phase == BACKWARD; k++) {
            const int before = depth[l->in[k]->producer->id] + 1;
            if (before > depth[l->id]) depth[l->id] = before;
        }
    }
    return depth;
}

/* The outputs, gradients last and the nearest to the results first: then a layer's weight gradient is computed when its result's
 * gradient is, which is not kept until those of all layers before are there. */
static struct tensor **order_outputs(const struct model *m) {
    const int n = m->outputs.n, *depth = find_depths(m);
    struct place *places = ARENA_ARRAY(m->arena, struct place, n + 1);
    struct tensor **outputs = ARENA_ARRAY(m->arena, struct tensor *, n + 1);
    for (int i = 0; i < n; i++)
        places[i] = (struct place){depth[m->outputs.at[i]->producer->id], i, m->outputs.at[i]};
    qsort(places, (size_t)n, sizeof *places, by_depth);
    for (int i = 0; i < n; i++) outputs[i] = places[i].output;
    return outputs;
}

void pass_clean(struct model *m) {
    sort_layers(m, m->outputs.at);
    if (ir_has_backward(m)) sort_layers(m, order_outputs(m));
    ir_find_readers(m);
}
