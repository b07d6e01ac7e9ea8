/*
 * Packs: slots of weights' states, which all programs of a process share where they hold the same bytes.
 *
 * Programs for several sizes of one network derive the same from its parameters, such as transposed and packed weights. What is
 * equal is found by its content: so it does not matter who made it of what, and parameters may change as they like.
 */
#ifndef SOL_PACKS_H
#define SOL_PACKS_H

#include "base/base.h"

/* Memory of several slots, counted by the slots that lie in it. */
struct pack_block;

/* Of `n` slots, of which slot i takes the bytes from offset[i] to offset[i + 1]: zeroed memory in one block. False: memory is out. */
bool packs_alloc(int n, const size_t *offset, char **slot, struct pack_block **block);
/* When they are filled, and from now on do not change: lets slots point to equal ones of others, and others to these. Where memory is
 * out, it leaves them as they are. */
void packs_share(int n, const size_t *offset, char **slot, struct pack_block **block);
void packs_release(int n, struct pack_block *const *block);
/* Bytes of all blocks of the process, for tests. */
size_t packs_size(void);

#endif
