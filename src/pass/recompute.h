/*
 * What a backward call computes again: shared by recompute.c, which finds and copies these layers, and recompute_choice.c, which
 * chooses among several ways.
 */
#ifndef SOL_RECOMPUTE_H
#define SOL_RECOMPUTE_H

#include "pass/pass.h"

/*
 * One way. A layer's place is its position among the layers of FORWARD. Layers before `all_end` are divided into stretches:
 * what a later stretch reads is saved, everything else of a stretch is computed again, products included. Other layers before `cheap_end` are
 * computed again if they are cheap or move values. Of the rest only values that need no memory are, which costs nothing.
 */
struct recompute_choice {
    int all_end, cheap_end;
    int64_t limit; /* bytes that a stretch may add to the backward call's memory */
};

struct recompute {
    struct model *m;
    int n_layers, n_tensors; /* of the model before layers are added */
    /* By tensor id. */
    bool *is_early;  /* FORWARD needs it, not BACKWARD alone */
    bool *read_late; /* a layer of BACKWARD reads it, or one that waits for BACKWARD */
    bool *in_memory; /* .. and needs it in memory */
    bool *is_light;  /* cheap layers compute it of sources, constants and reductions alone */
    bool *is_border; /* a later stretch reads it */
    bool *is_there;  /* BACKWARD has it, or can compute it again */
    bool *repeats;   /* BACKWARD computes it again, if it needs it */
    bool *needed;    /* BACKWARD or such a layer reads it */
    int64_t *size;   /* bytes, if it is saved; 0: the caller has it, as an input or a result */
    int *place;      /* of its producer */
};

/* ---- pass/recompute.c ---- */

/* Is it neither cheap nor a reduction? DFP's layers read values that their kernel computes; such a layer reads memory. */
bool recompute_is_product(const struct layer *l);
/* Finds what is there, repeated and needed for a choice; `is_border` is set. */
void recompute_settle(const struct recompute *r, const struct recompute_choice *choice);
/* Is the tensor saved? */
static inline bool recompute_saves(const struct recompute *r, const struct tensor *t) {
    return r->needed[t->id] && !r->repeats[t->id];
}

/* ---- pass/recompute_choice.c ---- */

/* Settles the fastest way that saves few enough bytes, or else the one that saves the fewest. */
void recompute_choose(struct recompute *r);

#endif
