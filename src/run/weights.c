/*
 * Weights: the packed parameters that the phases of prepack make of one version of the parameters.
 *
 *   packs_alloc: memory for all slots -> exec_prepack fills it -> packs_deduplicate redirects slots that exist already
 *
 * The parameters of a program that trains change at each step, so its slots are never shared: sol_weights_update fills the same
 * memory again, without allocating it and faulting it in.
 *
 * Invariant: weights that calls may read do not change. The packs of BACKWARD are filled before the first call reads them.
 */
#include "run/program.h"
#include "run/request.h"

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

static void set_params(struct sol_weights *w, const void *const *params) {
    const size_t n = (size_t)w->program->n_params;
    if (n) memcpy(w->param, params, n * sizeof *params);
}

/* On the program's device. */
static enum sol_status alloc_packed(struct sol_weights *w, const struct sol_program *program) {
    if (program->runner) return program->runner->alloc(w);
    const size_t size = weights_place(program, w->packed.offset);
    if (packs_alloc(&w->packed)) return SOL_OK;
    return fail(SOL_ENOMEM, "no memory for %zu bytes of packed weights", size);
}

static void free_packed(struct sol_weights *w) {
    if (w->program->runner) w->program->runner->free(w);
    else packs_release(&w->packed);
}

static enum sol_status pack(const struct sol_weights *w, enum phase phase) {
    const struct runner *runner = w->program->runner;
    return runner ? runner->pack(w, phase) : exec_prepack(w, phase);
}

static enum sol_status alloc_weights(const struct sol_program *program, const void *const *params,
                                     struct sol_weights **out) {
    struct sol_weights *w = alloc_tables(program);
    if (!w) return fail(SOL_ENOMEM, "no memory for weights");
    w->program = program;
    enum sol_status status = alloc_packed(w, program);
    if (status) {
        mem_free(w);
        return status;
    }
    atomic_init(&w->n_refs, 1);
    set_params(w, params);
    sol_program_retain((struct sol_program *)(uintptr_t)program);
    *out = w;
    return SOL_OK;
}

static enum sol_status check_params(const struct sol_program *program, const void *const *params) {
    return request_check_pointers(program, NULL, PREPACK, "parameter", program->n_params, params,
                                  program->param);
}

enum sol_status sol_weights_new(const struct sol_program *program, const void *const *params,
                                struct sol_weights **out) {
    TRY(check_params(program, params));
    struct sol_weights *w = NULL;
    TRY(alloc_weights(program, params, &w));
    enum sol_status status = pack(w, PREPACK);
    if (!status && !program->runner && !program->phase[BACKWARD].n) packs_deduplicate(&w->packed);
    if (status) sol_weights_release(w);
    else *out = w;
    return status;
}

/* ---- New values ---- */

/* The caller's reference is the only one, so no other thread uses these weights. */
static enum sol_status refill(struct sol_weights *w, const void *const *params) {
    set_params(w, params);
    w->has_backward = false;
    return pack(w, PREPACK);
}

enum sol_status sol_weights_update(struct sol_weights **weights, const void *const *params) {
    struct sol_weights *old = *weights;
    TRY(check_params(old->program, params));
    if (atomic_load(&old->n_refs) > 1 || (!old->far && !packs_claim(&old->packed))) {
        TRY(sol_weights_new(old->program, params, weights));
        sol_weights_release(old);
        return SOL_OK;
    }
    enum sol_status status = refill(old, params);
    if (!status) return SOL_OK;
    sol_weights_release(old);
    *weights = NULL;
    return status;
}

/* ---- Packs of BACKWARD ---- */

enum sol_status weights_pack_backward(struct sol_weights *w) {
    struct sol_program *program = (struct sol_program *)(uintptr_t)w->program;
    if (!program->phase[PREPACK_BACKWARD].n || !lock_begin(&program->lock, &w->has_backward))
        return SOL_OK;
    enum sol_status status = pack(w, PREPACK_BACKWARD);
    lock_end(&program->lock, &w->has_backward, !status);
    return status;
}

void sol_weights_retain(struct sol_weights *weights) { atomic_fetch_add(&weights->n_refs, 1); }

void sol_weights_release(struct sol_weights *weights) {
    if (!weights || atomic_fetch_sub(&weights->n_refs, 1) > 1) return;
    free_packed(weights);
    sol_program_release((struct sol_program *)(uintptr_t)weights->program);
    mem_free(weights);
}
