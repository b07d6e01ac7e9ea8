/*
 * Steps of generated kernels: copies the result of dfp_generate into the program's memory and makes a step of it.
 *
 * The number of tasks is an additional argument behind those of the kernel; step_kernel (run/kernel.c) reads it there.
 */
#include "dfp/step.h"

#include <string.h>

const char *dfp_symbol(struct arena *arena, const char *text) {
    return arena_printf(arena, "sol_kernel_%016llx",
                        (unsigned long long)hash_bytes(0, text, strlen(text)));
}

static struct kernel *make_kernel(struct build *b, const struct dfp_kernel *k) {
    struct kernel *kernel = ARENA_NEW(b->keep, struct kernel);
    kernel->interpret = dfp_interpret;
    kernel->code = arena_copy(b->keep, k->code, k->code_size);
    if (!b->options->keep_source) return kernel;
    kernel->symbol = dfp_symbol(b->keep, k->text);
    kernel->text = arena_strdup(b->keep, k->text);
    return kernel;
}

enum sol_status dfp_make_parts(struct build *b, const struct cluster *cluster,
                               struct dfp_parts *out) {
    struct dfp_kernel k = {0};
    TRY(dfp_generate(b->arena, cluster, b->plan->storage, &b->plan->caps, &k));
    *out = (struct dfp_parts){.kernel = make_kernel(b, &k),
                              .text = k.text,
                              .comment = k.comment,
                              .n_ptr = k.n_ptr,
                              .n_arg = k.n_arg,
                              .tasks = k.tasks,
                              .scratch_size = k.scratch_size,
                              .flops_per_task = k.flops_per_task};
    out->ptr = ARENA_ARRAY(b->arena, struct buffer_ref, k.n_ptr + 1);
    for (int i = 0; i < k.n_ptr; i++) out->ptr[i] = build_ref(b, k.ptr[i]);
    out->arg = ARENA_ARRAY(b->arena, struct size, k.n_arg + 1);
    memcpy(out->arg, k.arg, sizeof *out->arg * (size_t)k.n_arg);
    return SOL_OK;
}

enum sol_status dfp_emit(struct build *b, const struct cluster *cluster, struct dfp_parts *out) {
    TRY(dfp_make_parts(b, cluster, out));
    out->arg[out->n_arg] = out->tasks;
    struct step step = {.kind = &step_kernel,
                        .data = out->kernel,
                        .n_ptr = out->n_ptr,
                        .ptr = out->ptr,
                        .n_arg = out->n_arg + 1,
                        .arg = out->arg,
                        .scratch_size = out->scratch_size,
                        .flops = size_scale(out->tasks, (int64_t)out->flops_per_task),
                        .bytes = build_bytes(cluster),
                        .name = "nest",
                        .module = "DFP",
                        .layers = build_describe(b, cluster)};
    return build_step(b, cluster->phase, &step);
}
