/*
 * The DFP module (depth first parallelism): generates one fused loop nest for a cluster of layers.
 *
 *   cluster -> fuse.c, stage.c: what is computed in which stage -> lower.c: point expressions as nodes
 *           -> address.c, loops.c, block.c: loops, lanes, tasks, the order of instructions
 *           -> emit.c: C text with vector extensions | code.c, interp.c: the same, interpreted
 *
 * The grid is the loops that all stages share. All stages run for one grid point before any runs for the
 * next, so intermediates stay in registers or in L1. No code here depends on the kind of a layer.
 */
#ifndef SOL_DFP_H
#define SOL_DFP_H

#include "plan/plan.h"

/* NULL if one kernel can compute the cluster's layers, else the reason, a constant string. For clustering: layouts
 * are known, storage is not. */
const char *dfp_refuse(struct arena *arena, const struct device_caps *caps,
                       const struct cluster *cluster);

/* Generates the kernel of a cluster whose tensors have layouts, in caps->dialect with vectors of caps->vector; `storage` is indexed by
 * tensor id. *out lies in `arena`. The kernel of an epilogue (cluster->tile) works in place. Its tasks are the
 * points of its output in the order of memory; in a blocked output a point is all lanes of a block. */
enum sol_status dfp_generate(struct arena *arena, const struct cluster *cluster,
                             const struct storage *storage, const struct device_caps *caps,
                             struct dfp_kernel *out);

/* C text to put in front of the kernels of one translation unit: vector types and helper functions. LANES must be
 * defined before it. It is the prelude of dfp_gnu (dfp/dialect.h). */
extern const char dfp_prelude[];
/* The text of dfp/kernel_types.h, which kernels need behind the prelude if they contain this line. */
extern const char dfp_types[];
#define DFP_NEEDS_TYPES "/* with kernel_types.h */\n"

/* Runs tasks [begin, end) of dfp_kernel.code without a C compiler. The other arguments are those of the compiled kernel:
 * `scratch` has dfp_kernel.scratch_size bytes. */
void dfp_interpret(const void *code, void *const *ptr, const int64_t *arg, char *scratch,
                   int64_t begin, int64_t end);

#endif
