/*
 * The DFP module (depth first parallelism): generates one fused loop nest for a cluster of layers.
 *
 *   cluster -> fuse.c, stage.c: what is computed where -> lower.c: point expressions as nodes
 *           -> address.c, loops.c, block.c: loops, lanes, tasks, the order of instructions
 *           -> emit.c: C text with vector extensions | code.c, interp.c: the same, interpreted
 *
 * The grid is the iterators that all stages share; one grid point carries its tile through the
 * whole chain of stages before the next begins, so intermediates live in registers or L1. Nothing
 * here knows a layer by name.
 */
#ifndef SOL_DFP_H
#define SOL_DFP_H

#include "plan/plan.h"

/* May the cluster's layers become one kernel? NULL = yes, else the reason. Used while
 * clustering: no storage yet. */
const char *dfp_refuse(struct arena *arena, const struct cluster *cluster);

/* Generates the kernel of a cluster whose tensors have layouts; `storage` by tensor id; `lanes` =
 * vector width in floats. The kernel of an epilogue (cluster->tile) works in place, and its tasks are
 * the points of its output in the order of memory, a point being all lanes of a block. */
enum sol_status dfp_generate(struct arena *arena, const struct cluster *cluster,
                             const struct storage *storage, int lanes, struct dfp_kernel *out);

/* C text that goes in front of the kernels of one translation unit: vector types and helper
 * functions. */
extern const char dfp_prelude[];

/* Runs dfp_kernel.code; for machines without a C compiler. */
void dfp_interpret(const void *code, void *const *ptr, const int64_t *arg, char *scratch,
                   int64_t begin, int64_t end);

#endif
