/*
 * Weights: the packed parameters that `prepack` makes of one version of the parameters.
 *
 *   packs_alloc: memory for all slots -> exec_prepack fills it -> packs_deduplicate redirects slots that exist already
 *
 * Invariant: weights are immutable once sol_weights_new has returned.
 */
#include "run/program.h"

#include <string.h>

/* Sizes of packed parameters do not depend on symbols, as they are made before any call. */
size_t weights_place(const struct sol_program *program, size_t *offset) {
    const int64_t none[SIZE_SYMBOLS] = {0};
    size_t at = 0;
    for (int i = 0; i < program->n_packed; i++) {
        if (offset) offset[i] = at;
        at += (size_t)round_up(size_eval(&program->packed[i].size, none), 64);
    }
    if (offset) offset[program->n_packed] = at;
    return at;
}

/* Allocates the struct and its tables in one piece. */
static struct sol_weights *alloc_tables(const struct sol_program *program) {
    const size_t n_packed = (size_t)program->n_packed, n_params = (size_t)program->n_params;
    struct sol_weights *w =
        mem_alloc(sizeof *w + (3 * n_packed + 1) * sizeof(size_t) + n_params * sizeof(void *), 64);
    if (!w) return NULL;
    w->packed = (struct packs){.n = program->n_packed, .offset = (size_t *)(void *)(w + 1)};
    w->packed.slot = (char **)(void *)(w->packed.offset + n_packed + 1);
    w->packed.block = (struct pack_block **)(void *)(w->packed.slot + n_packed);
    w->param = (const void **)(void *)(w->packed.block + n_packed);
    return w;
}

static enum sol_status alloc_weights(const struct sol_program *program, const void *const *params,
                                     struct sol_weights **out) {
    struct sol_weights *w = alloc_tables(program);
    if (!w) return fail(SOL_ENOMEM, "no memory for weights");
    if (program->n_params) memcpy(w->param, params, (size_t)program->n_params * sizeof *params);
    const size_t size = weights_place(program, w->packed.offset);
    if (!packs_alloc(&w->packed)) {
        mem_free(w);
        return fail(SOL_ENOMEM, "no memory for %zu bytes of packed weights", size);
    }
    atomic_init(&w->n_refs, 1);
    w->program = program;
    sol_program_retain((struct sol_program *)(uintptr_t)program);
    *out = w;
    return SOL_OK;
}

enum sol_status sol_weights_new(const struct sol_program *program, const void *const *params,
                                struct sol_weights **out) {
    TRY(exec_check_pointers("parameter", program->n_params, params, program->param));
    struct sol_weights *w = NULL;
    TRY(alloc_weights(program, params, &w));
    enum sol_status status = exec_prepack(w);
    if (!status) packs_deduplicate(&w->packed);
    if (status) sol_weights_release(w);
    else *out = w;
    return status;
}

void sol_weights_retain(struct sol_weights *weights) { atomic_fetch_add(&weights->n_refs, 1); }

void sol_weights_release(struct sol_weights *weights) {
    if (!weights || atomic_fetch_sub(&weights->n_refs, 1) > 1) return;
    packs_release(&weights->packed);
    sol_program_release((struct sol_program *)(uintptr_t)weights->program);
    mem_free(weights);
}
