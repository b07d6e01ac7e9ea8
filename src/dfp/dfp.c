/*
 * DFP's entry points: whether layers can share a kernel, and generating the kernel of a cluster.
 *
 *   plan/cluster.c  ->  dfp_refuse, for growing clusters          device (dfp/step.c)  ->  dfp_generate, for the final ones
 *
 * Both build the same nest, so that every accepted cluster can be generated. They first try to materialize expensive
 * values; if that is refused, these are computed again for each reader.
 */
#include "dfp/dialect.h"
#include "dfp/nest.h"

/* Does the node load the epilogue's tile at another place than `at`, where the result is stored? */
static bool reads_elsewhere(const struct nest *nest, const struct node *n,
                            const struct affine *at) {
    if (n->kind != NODE_LOAD || n->from->tensor != nest->tile) return false;
    return n->n_ranges || n->offset != at;
}

/* An epilogue must be a single stage whose loops are all in the grid: a task is a point, and points are independent. Its result takes the
 * tile's place. */
static void check_epilogue(struct nest *nest) {
    const struct stage *s = &nest->stage[0];
    bool same_type = s->roots.n == 1 && s->roots.at[0]->tensor->dtype == nest->tile->dtype;
    if (nest->n_stages != 1 || !same_type || s->loops.n || nest->scratch_size) {
        nest_refuse(nest, "not pointwise");
        return;
    }
    for (int i = 0; i < nest->nodes.n; i++)
        if (nest->nodes.at[i]->kind == NODE_REDUCE ||
            reads_elsewhere(nest, nest->nodes.at[i], s->roots.at[0]->at))
            nest_refuse(nest, "not pointwise");
}

/* From layers to addresses, or to nest->refusal. Clustering needs no more and passes NULL for `storage`; dfp_generate
 * continues with loops, blocks and text. */
static struct nest *build_as(struct arena *arena, const struct cluster *cluster,
                             const struct storage *storage, const struct device_caps *caps,
                             int lanes, bool may_materialize, bool has_free_outputs,
                             bool splits_windows) {
    struct nest *nest = ARENA_NEW(arena, struct nest);
    nest->arena = arena;
    nest->caps = caps;
    nest->lanes = lanes;
    nest->tile = cluster->tile;
    nest->may_materialize = may_materialize && !cluster->tile;
    nest->has_free_outputs = has_free_outputs;
    nest->splits_windows = splits_windows;
    nest->refuses_waste = !storage;
    nest_fuse(nest, cluster, storage);
    if (!nest->refusal) nest_lower(nest);
    if (nest->refusal) return nest;
    nest_collect(nest);
    nest_find_grid(nest);
    nest_place_scratch(nest);
    if (!nest->refusal) nest_address(nest);
    if (!nest->refusal && nest->tile) check_epilogue(nest);
    return nest;
}

/* Windows are split, unless the cluster is refused then: their rows may be too large for scratch. */
static struct nest *build(struct arena *arena, const struct cluster *cluster,
                          const struct storage *storage, const struct device_caps *caps, int lanes,
                          bool may_materialize, bool has_free_outputs) {
    struct nest *nest =
        build_as(arena, cluster, storage, caps, lanes, may_materialize, has_free_outputs, true);
    if (!nest->refusal || !nest->has_rows) return nest;
    return build_as(arena, cluster, storage, caps, lanes, may_materialize, has_free_outputs, false);
}

/* 0: no tensor is blocked. */
static int find_block(const struct cluster *cluster) {
    for (int i = 0; i < cluster->layers.n; i++) {
        const struct layer *l = cluster->layers.at[i];
        if (l->out[0]->layout.block) return l->out[0]->layout.block;
        for (int k = 0; k < l->n_in; k++)
            if (l->in[k]->layout.block) return l->in[k]->layout.block;
    }
    return 0;
}

static const char *refuse(struct arena *arena, const struct device_caps *caps,
                          const struct cluster *cluster) {
    const int block = find_block(cluster), lanes = block ? block : caps->judged_vector;
    if (block && block != caps->vector) return "channel blocks that do not fill a vector";
    if (!build(arena, cluster, NULL, caps, lanes, true, false)->refusal) return NULL;
    return build(arena, cluster, NULL, caps, lanes, false, false)->refusal;
}

/* Clustering calls this thousands of times, so each nest has an arena that is freed at once. Reasons are constant strings. */
const char *dfp_refuse(struct arena *arena, const struct device_caps *caps,
                       const struct cluster *cluster) {
    struct arena own;
    arena_init(&own);
    ARENA_BOUNDARY(&own, goto out_of_memory);
    const char *reason = refuse(&own, caps, cluster);
    arena_fini(&own);
    return reason;
out_of_memory:
    arena_fini(&own);
    longjmp(*arena->boundary, 1);
}

/* ---- Generating ---- */

static void find_pointers(struct arena *arena, const struct cluster *c, struct dfp_kernel *out) {
    out->n_ptr = c->inputs.n + c->outputs.n;
    out->ptr = ARENA_ARRAY(arena, struct tensor *, out->n_ptr);
    for (int i = 0; i < c->inputs.n; i++) out->ptr[i] = c->inputs.at[i];
    for (int i = 0; i < c->outputs.n; i++) out->ptr[c->inputs.n + i] = c->outputs.at[i];
}

/* Kinds and origins of the layers. The comment is not part of the text, which must not depend on origins. */
static const char *make_comment(struct arena *arena, const struct cluster *c) {
    struct text text;
    text_init(&text, arena);
    for (int i = 0; i < c->layers.n; i++) {
        const struct layer *l = c->layers.at[i];
        text_add(&text, "%s%s", i ? ", " : "", layer_infos[l->kind].name);
        if (!l->origin) continue;
        text_add(&text, " (");
        text_add_clean(&text, l->origin);
        text_add(&text, ")");
    }
    return text.at;
}

static void print_kinds(struct text *text, const struct cluster *c) {
    text_add(text, "/*");
    for (int i = 0; i < c->layers.n; i++)
        text_add(text, " %s", layer_infos[c->layers.at[i]->kind].name);
    text_add(text, " */\n");
}

static struct size count_tasks(const struct nest *nest) {
    struct size tasks = nest->chunks;
    for (int i = 0; i + 1 < nest->grid.n; i++)
        tasks = size_mul(tasks, nest->var[nest->grid.at[i]].extent);
    return tasks;
}

/* How often one task computes a node that depends on these variables. Symbolic extents count as 1. */
static double count_points(const struct nest *nest, uint64_t deps) {
    double points = 1;
    for (int k = 0; k + 1 < nest->grid.n; k++) deps &= ~var_bit(nest->grid.at[k]);
    for (int v = 0; v < nest->n_vars; v++) {
        const struct var *var = &nest->var[v];
        if (!(deps & var_bit(v)) || !size_is_const(var->extent) || var->kind > VAR_REDUCE) continue;
        bool is_cut = nest->grid.n && v == nest->grid.at[nest->grid.n - 1];
        int64_t n = size_value(var->extent);
        points *= (double)(is_cut ? min_i64(n, size_value(nest->chunk)) : n);
    }
    return points;
}

static double count_flops(const struct nest *nest) {
    double flops = 0;
    for (int i = 0; i < nest->nodes.n; i++) {
        const struct node *n = nest->nodes.at[i];
        if (n->kind == NODE_REDUCE) flops += count_points(nest, n->arg[0]->deps);
        flops += primitives[n->primitive].flops * count_points(nest, n->deps);
    }
    return flops;
}

/* Outputs may have been added since clustering accepted these layers. The last attempt comes closest to what it
 * accepted: values are not materialized unless they reduce, and independent stages, such as those of added outputs, do
 * not restrict the grid. */
static struct nest *generate_nest(struct arena *arena, const struct cluster *cluster,
                                  const struct storage *storage, const struct device_caps *caps) {
    const int lanes = caps->vector;
    struct nest *nest = build(arena, cluster, storage, caps, lanes, true, false);
    if (nest->refusal) nest = build(arena, cluster, storage, caps, lanes, false, false);
    return nest->refusal ? build(arena, cluster, storage, caps, lanes, false, true) : nest;
}

/* The nest is in `own`, the result in `arena`. */
static enum sol_status generate(struct arena *own, struct arena *arena,
                                const struct cluster *cluster, const struct storage *storage,
                                const struct device_caps *caps, struct dfp_kernel *out) {
    struct nest *nest = generate_nest(own, cluster, storage, caps);
    if (nest->refusal) return fail(SOL_EUNSUPPORTED, "no kernel: %s", nest->refusal);
    nest_merge_loops(nest);
    nest_plan_loops(nest);
    nest_build_blocks(nest);
    struct text text;
    text_init(&text, arena);
    print_kinds(&text, cluster);
    nest_emit(nest, &text);
    if (nest->refusal) return fail(SOL_EUNSUPPORTED, "no kernel: %s", nest->refusal);
    *out = (struct dfp_kernel){.text = text.at, .comment = make_comment(arena, cluster)};
    find_pointers(arena, cluster, out);
    out->tasks = count_tasks(nest);
    out->flops_per_task = count_flops(nest);
    nest_encode(nest, &out->code, &out->code_size);
    out->code = arena_copy(arena, out->code, out->code_size);
    out->scratch_size = (size_t)nest->scratch_size * sizeof(float);
    out->n_arg = nest->args.n;
    out->arg = arena_copy(arena, nest->args.at, sizeof *out->arg * (size_t)out->n_arg);
    return SOL_OK;
}

enum sol_status dfp_generate(struct arena *arena, const struct cluster *cluster,
                             const struct storage *storage, const struct device_caps *caps,
                             struct dfp_kernel *out) {
    struct arena own;
    jmp_buf *const boundary = arena->boundary;
    if (caps->dialect->has_vectors != (caps->vector > 1))
        return fail(SOL_EBUG, "no kernel: dialect %s cannot have vectors of %d",
                    caps->dialect->name, caps->vector);
    arena_init(&own);
    ARENA_BOUNDARY(&own, goto out_of_memory);
    arena->boundary = own.boundary;
    const enum sol_status status = generate(&own, arena, cluster, storage, caps, out);
    arena_fini(&own);
    arena->boundary = boundary;
    return status;
out_of_memory:
    arena_fini(&own);
    arena->boundary = boundary;
    longjmp(*boundary, 1);
}
