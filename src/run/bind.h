/* Bindings and workspaces: what one call needs besides the caller's tensors. */
#ifndef SOL_BIND_H
#define SOL_BIND_H

#include "run/program.h"

/* Memory of one call in flight: the arena of intermediates, and scratch per thread. */
struct workspace {
    struct workspace *next;
    char *arena, *scratch;
    void **pointers; /* of the step that runs */
    size_t scratch_stride;
    int n_threads;
};

enum sol_status binding_new(const struct step_list *list, const int64_t *symbols, int n_symbols,
                            struct binding **out);
void binding_free(struct binding *binding);
/* What a slot takes in this binding: bytes, and from the first step to the last. */
void binding_slot(const struct binding *binding, const struct slot *slot, int64_t *size, int *first,
                  int *last);
/* Bytes of the list's slots that are alive at a step. */
int64_t binding_live(const struct binding *binding, const struct step_list *list, int step);
/* NULL when memory is out; freed by mem_free. */
struct workspace *workspace_new(const struct binding *binding, int n_threads);
/* Asks the system for huge pages: large buffers cost fewer address translations. A hint, nothing more. */
void workspace_advise_huge(void *memory, size_t size);

/* The binding for these symbol values and a workspace for one call of `n_threads`; returned by program_give_back. */
enum sol_status program_acquire(struct sol_program *program, const int64_t *symbols, int n_threads,
                                struct binding **out, struct workspace **workspace);
void program_give_back(struct sol_program *program, struct binding *binding,
                       struct workspace *workspace);

#endif
