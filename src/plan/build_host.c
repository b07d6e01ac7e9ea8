/*
 * Module HOST: the step that calls a function of the frontend or of a custom layer, and the program's references to such functions.
 *
 *   cluster of one host layer -> build_host -> step_host or step_custom (run/host.c)
 *
 * Inputs and outputs are plain and without gaps (layout.c, storage.c). So the step needs only addresses and dims.
 */
#include "plan/build.h"
#include "run/host.h"

const char *build_host_name(struct arena *arena, const struct model *m, const struct layer *l) {
    struct text text;
    text_init(&text, arena);
    text_add_clean(&text, m->hosts.at[l->attr.host].name);
    if (!l->origin) return text.at;
    const bool is_line = l->origin[0] == '('; /* "(net.py:7)": the frontend knows no more */
    text_add(&text, is_line ? " " : " (");
    text_add_clean(&text, l->origin);
    text_add(&text, is_line ? "" : ")");
    return text.at;
}

/* Types and ranks of n tensors; their dims are arguments of the step. */
static void describe(struct build *b, struct tensor *const *at, int n, struct sol_host_tensor *to,
                     struct buffer_ref *ptr, struct size **arg) {
    for (int i = 0; i < n; i++) {
        to[i].dtype = at[i]->dtype;
        to[i].rank = at[i]->rank;
        ptr[i] = build_ref(b, at[i]);
        for (int d = 0; d < at[i]->rank; d++) *(*arg)++ = at[i]->dim[d];
    }
}

static struct host_step *new_host_step(struct build *b, const struct layer *l) {
    struct host_step *host = ARENA_NEW(b->keep, struct host_step);
    host->function = b->plan->model->hosts.at[l->attr.host].function;
    host->what = build_host_name(b->keep, b->plan->model, l);
    host->n_in = l->n_in;
    host->n_out = l->n_out;
    host->n_symbols = b->plan->model->n_symbols;
    return host;
}

enum sol_status build_host(struct build *b, const struct cluster *cluster) {
    const struct layer *l = cluster->layers.at[0];
    struct host_step *host = new_host_step(b, l);
    const struct host_custom *custom = host->function ? host->function->custom : NULL;
    const int n = l->n_in + l->n_out, n_symbols = host->n_symbols;
    struct sol_host_tensor *tensor = ARENA_ARRAY(b->keep, struct sol_host_tensor, n);
    struct buffer_ref *ptr = ARENA_ARRAY(b->arena, struct buffer_ref, n);
    struct size *arg = ARENA_ARRAY(b->arena, struct size, n_symbols + n * SOL_MAX_RANK), *at = arg;
    for (int i = 0; i < n_symbols; i++) *at++ = size_symbol(i);
    describe(b, l->in, l->n_in, tensor, ptr, &at);
    describe(b, l->out, l->n_out, tensor + l->n_in, ptr + l->n_in, &at);
    host->tensor = tensor;
    return build_step(b, cluster->phase,
                      &(struct step){.kind = custom && custom->tasks ? &step_custom : &step_host,
                                     .data = host,
                                     .n_ptr = n,
                                     .ptr = ptr,
                                     .n_arg = (int)(at - arg),
                                     .arg = arg,
                                     .scratch_size = host_scratch_size(host),
                                     .flops = size_const(0),
                                     .bytes = build_bytes(cluster),
                                     .name = b->plan->model->hosts.at[l->attr.host].name,
                                     .module = custom ? "custom" : "host",
                                     .layers = build_describe(b, cluster)});
}

/* ---- References ---- */

struct references {
    int n;
    struct host_function **at;
};

static void release_all(void *hosts) {
    const struct references *all = hosts;
    for (int i = 0; i < all->n; i++) host_release(all->at[i]);
}

/* After the allocations, as running out of memory must not leave a reference behind. */
enum sol_status build_hosts(struct build *b, const struct model *m) {
    if (!m->hosts.n) return SOL_OK;
    struct references *all = ARENA_NEW(b->keep, struct references);
    all->at = ARENA_ARRAY(b->keep, struct host_function *, m->hosts.n);
    for (; all->n < m->hosts.n; all->n++) {
        all->at[all->n] = m->hosts.at[all->n].function;
        if (all->at[all->n]) host_retain(all->at[all->n]);
    }
    b->program->hosts = all;
    b->program->release_hosts = release_all;
    return SOL_OK;
}
