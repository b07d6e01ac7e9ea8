/*
 * Phases: when the steps of a program run.
 *
 *   PREPACK           once per version of the parameters    reads parameters
 *   FORWARD           at every call                         reads inputs, too
 *   PREPACK_BACKWARD  once per version of the parameters,   reads parameters and what PREPACK has packed
 *                     before the first BACKWARD
 *   BACKWARD          after a FORWARD                       reads all of them
 *
 * Only a program that trains has the last two. A tensor belongs to the phase in which it is computed, which follows from the
 * phases of what it is computed from (phase_join). So a gradient, which depends on an input of BACKWARD, is computed there.
 */
#ifndef SOL_PHASE_H
#define SOL_PHASE_H

#include <stdbool.h>

enum phase { PREPACK, FORWARD, PREPACK_BACKWARD, BACKWARD, N_PHASES };

static inline bool phase_is_prepack(enum phase phase) {
    return phase == PREPACK || phase == PREPACK_BACKWARD;
}

static inline bool phase_is_backward(enum phase phase) { return phase >= PREPACK_BACKWARD; }

/* The first phase in which values of both phases are there. */
static inline enum phase phase_join(enum phase a, enum phase b) {
    if ((a == FORWARD && b == PREPACK_BACKWARD) || (a == PREPACK_BACKWARD && b == FORWARD))
        return BACKWARD;
    return a > b ? a : b;
}

/* The phase that packs what steps of `phase` read. */
static inline enum phase phase_of_packing(enum phase phase) {
    return phase_is_backward(phase) ? PREPACK_BACKWARD : PREPACK;
}

#endif
