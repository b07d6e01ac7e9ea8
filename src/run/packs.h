/*
 * Packs: packed parameters, which all programs of a process share where they hold the same bytes.
 *
 * Programs for several sizes of one network derive the same from its parameters, such as transposed
 * and packed weights. Equal slots are found by their content, whatever parameters they were made
 * of.
 */
#ifndef SOL_PACKS_H
#define SOL_PACKS_H

#include "base/base.h"

/* Memory of several slots, counted by the slots that lie in it. */
struct pack_block;

struct packs {
    int n; /* slots */
    /* By slot, and behind the last: bytes from the first one's start if they lay in a row. */
    size_t *offset;
    char **slot;               /* its memory */
    struct pack_block **block; /* what that is part of, counted */
};

/* With n and the offsets set: zeroed memory for all slots, in one block. False: memory is out. */
bool packs_alloc(const struct packs *packs);
/* Call it once the slots are filled and do not change any more: redirects slots to equal ones of
 * other programs, or offers them to others. If memory is out, nothing changes. */
void packs_deduplicate(const struct packs *packs);
void packs_release(const struct packs *packs);
/* Bytes of all blocks of the process, for tests. */
size_t packs_size(void);

#endif
