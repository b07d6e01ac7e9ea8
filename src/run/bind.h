/*
 * Bindings and workspaces: the sizes and the memory of one call.
 *
 *   program + symbols -> program_acquire -> binding, workspace -> exec.c runs the call -> program_give_back
 */
#ifndef SOL_BIND_H
#define SOL_BIND_H

#include "run/program.h"

/* Memory of one call in flight: the arena of intermediates, and scratch per thread. */
struct workspace {
    struct workspace *next;
    char *arena, *scratch;
    void **pointers;       /* of the step that runs */
    size_t scratch_stride; /* bytes from one thread's scratch to the next */
    int n_threads;
};

/* Evaluates the formulas of a phase for these values of the free symbols, which prepack phases do not have. The caller frees the
 * binding. EINVAL if a condition does not hold. */
enum sol_status binding_new(const struct sol_program *program, enum phase phase,
                            const int64_t *symbols, struct binding **out);
/* The same for micro-batches whose intermediates fit into `cache` bytes, instead of the program's portion_cache. */
enum sol_status binding_new_for(const struct sol_program *program, enum phase phase,
                                const int64_t *symbols, int64_t cache, struct binding **out);
void binding_free(struct binding *binding);
/* The size of a slot in this binding, in bytes, and the first and last step of its lifetime. */
void binding_slot(const struct binding *binding, const struct slot *slot, int64_t *size, int *first,
                  int *last);
/* Bytes of the list's slots that are alive at a step. */
int64_t binding_live(const struct binding *binding, const struct step_list *list, int step);
/* The samples that a step computes: from number `first` on, as many as `bound` was evaluated for. */
struct micro_batch {
    int64_t first;
    const struct bound *bound;
};
/* Visits the steps from number `done` on in the order of execution: sections, in each its micro-batches, for each its steps. Ends with
 * the first status that is not SOL_OK. */
typedef enum sol_status binding_visit(void *user, int step, const struct micro_batch *micro_batch);
enum sol_status binding_walk(const struct binding *binding, int done, binding_visit *visit,
                             void *user);
/* NULL: out of memory. The caller frees it by mem_free. */
struct workspace *workspace_new(const struct binding *binding, int n_threads);

/* The binding of FORWARD or BACKWARD for these symbol values, and a workspace for one call with `n_threads` threads (`workspace` NULL:
 * none). After the call, return both by program_give_back. */
enum sol_status program_acquire(struct sol_program *program, enum phase phase,
                                const int64_t *symbols, int n_threads, struct binding **out,
                                struct workspace **workspace);
void program_give_back(struct sol_program *program, struct binding *binding,
                       struct workspace *workspace);

#endif
