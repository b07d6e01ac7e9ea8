/*
 * Micro-batches: how many samples of the batch a step computes at a time.
 *
 *   a step's formulas -> struct traffic -> micro_batch_choose -> micro-batch per step
 *
 * With a large batch, the output of a step does not fit into the caches, so the next step reads it from memory. Therefore
 * the batch is divided into micro-batches, and a section of steps runs on one micro-batch after the
 * other: intermediates stay in the caches and need less memory. Steps with large weights and small
 * samples are faster on the undivided batch.
 */
#ifndef SOL_MICRO_BATCH_H
#define SOL_MICRO_BATCH_H

#include "base/size.h"

/* Constants of the cost model, in bytes; tests make them small. micro_batch_cache: capacity of the caches of the host, which programs
 * keep when they are compiled (`portion_cache`). Of 4, 8, 16 and 32 MiB, 8 measured best or second best for all networks, with 1 MiB
 * of L2 per core. micro_batch_step: the cost of starting a step, about 3 us, as bytes that memory moves in that time. */
extern int64_t micro_batch_cache, micro_batch_step;

/* The memory traffic of a step, in bytes. */
struct traffic {
    int64_t per_sample; /* read and written per sample */
    int64_t live;   /* per sample: intermediates written before this step and read by it or later */
    int64_t shared; /* read by each run of the step, whatever the number of samples: weights */
    bool by_sample; /* can it run on a part of the batch? */
};

/* What one more sample adds to a size. `none`, `one`: the values of all symbols for batches of 0 and 1. */
int64_t micro_batch_per_sample(struct size size, const int64_t *none, const int64_t *one);
/* `bytes`: total traffic of the step. */
struct traffic micro_batch_traffic(struct size bytes, bool by_sample, const int64_t *none,
                                   const int64_t *one);
/* Adds an intermediate value of so many bytes per sample that lives from step `first` to `last`. */
void micro_batch_note_life(struct traffic *step, int first, int last, int64_t per_sample);

/* Chooses the micro-batch of each of the n steps, in samples, so that memory traffic is least, with caches of `cache` bytes;
 * `batch` means undivided, as all steps are if `cache` is 0. Adjacent steps with equal micro-batches form a section. The result depends on
 * the arguments only, not on the machine, as deterministic results must not. */
void micro_batch_choose(int64_t cache, int n, const struct traffic *step, int64_t batch,
                        int64_t *micro_batch);

#endif
