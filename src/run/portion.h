/*
 * Portions of the batch: how many images go through a step at once.
 *
 * Of a large batch, each step would fetch from memory what the step before has just put there. So a batch is cut into portions,
 * and a section of steps is run on one portion after the other: what lies between its steps stays in the caches, and takes
 * that much less memory. Steps with large weights and small images are better off with the whole batch at once.
 */
#ifndef SOL_PORTION_H
#define SOL_PORTION_H

#include "base/size.h"

/* Bytes that pass through the caches before the first of them are gone. Measured: of 4, 8, 16 and 32 MiB it is the best or next
 * to it for all networks, with L2 of 1 MiB per core. To begin a step takes about 3 us, in which memory moves `portion_step`. Tests make both small. */
extern int64_t portion_cache, portion_step;

/* What a step moves, in bytes. */
struct traffic {
    int64_t image; /* read and written per image */
    int64_t
        live; /* per image, of results that steps before have made and this one or later ones read */
    int64_t shared; /* read by each run: weights */
    bool by_image;  /* can it be run for some images of the batch? */
};

/* `bytes`: all that a step moves, a formula of the batch. */
struct traffic portion_traffic(struct size bytes, bool by_image);
/* A result of `size` bytes (a formula too) is made by step `first` and read until step `last`. */
void portion_note_life(struct traffic *step, int first, int last, struct size size);

/* Images at once of each of the n steps, to move the fewest bytes; `batch` where it is not divided. Neighbours of equal
 * portions are meant to be run together. Depends on its arguments alone: strict results must not differ by machine. */
void portion_choose(int n, const struct traffic *step, int64_t batch, int64_t *portion);

#endif
