/*
 * Micro-batches: how many samples of the batch a step computes at a time.
 *
 * With a large batch, each step would fetch from memory what the previous step has just written. So
 * the batch is divided into micro-batches, and a section of steps runs on one micro-batch after the
 * other: intermediates stay in the caches and need less memory. Steps with large weights and small
 * samples are faster on the undivided batch.
 */
#ifndef SOL_MICRO_BATCH_H
#define SOL_MICRO_BATCH_H

#include "base/size.h"

/* Bytes that pass through the caches before the first of them are evicted. Measured: of 4, 8, 16 and 32 MiB it is the best or next
 * to it for all networks, with L2 of 1 MiB per core. To begin a step takes about 3 us, in which memory moves `micro_batch_step`. Tests
 * make both small. */
extern int64_t micro_batch_cache, micro_batch_step;

/* What a step moves, in bytes. */
struct traffic {
    int64_t per_sample; /* read and written per sample */
    int64_t
        live; /* per sample, of results that earlier steps have made and this or later steps read */
    int64_t shared; /* read by each run: weights */
    bool by_sample; /* can it run on a part of the batch? */
};

/* `bytes`: all that a step moves, a formula of the batch. */
struct traffic micro_batch_traffic(struct size bytes, bool by_sample);
/* A result of `size` bytes (a formula too) is made by step `first` and read until step `last`. */
void micro_batch_note_life(struct traffic *step, int first, int last, struct size size);

/* Chooses the micro-batch of each of the n steps, in samples, so that they move the fewest bytes;
 * `batch`: undivided. Neighbours of equal micro-batches are meant to run together. Depends on its
 * arguments alone: deterministic results must not differ by machine. */
void micro_batch_choose(int n, const struct traffic *step, int64_t batch, int64_t *micro_batch);

#endif
