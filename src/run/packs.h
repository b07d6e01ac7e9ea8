/*
 * Packs: memory of packed parameters, of which equal slots are stored once per process.
 *
 *   packs_alloc -> exec_prepack fills the slots -> packs_deduplicate -> calls read them -> packs_release
 *
 * Programs for several sizes of one network have equal packed parameters. Equal slots are found
 * by their content, not by the parameters they were made of.
 */
#ifndef SOL_PACKS_H
#define SOL_PACKS_H

#include "base/base.h"

/* Memory of several slots, reference counted by the slots that use it. */
struct pack_block;

struct packs {
    int n; /* slots */
    /* n + 1 offsets in bytes, in a block of all slots; slot i has offset[i + 1] - offset[i] bytes. */
    size_t *offset;
    char **slot;               /* memory of slot i */
    struct pack_block **block; /* the block that contains it; holds a reference */
};

/* Allocates zeroed memory for all slots, in one block; n and the offsets are set. False: out of memory. */
bool packs_alloc(const struct packs *packs);
/* Replaces slots by equal ones of other programs, and enters the remaining ones into the table. Call it once all slots
 * are filled; afterwards they are read-only. If memory is out, nothing is replaced. */
void packs_deduplicate(const struct packs *packs);
/* Makes the slots writable again, if no other packs use their memory: then nobody will. False: some are shared. */
bool packs_claim(const struct packs *packs);
void packs_release(const struct packs *packs);
/* Bytes of all blocks of the process, for tests. */
size_t packs_size(void);

#endif
