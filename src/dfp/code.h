/*
 * The interpreter's code, for machines without a C compiler.
 *
 *   nest  ->  code.c encodes it  ->  the words described here  ->  interp.c runs them
 *
 * Code is an array of 64 bit words without pointers, so it can be copied and stored. Values are in
 * registers, which are rows of floats, doubles or integers (enum reg). One instruction computes a strip: up to CODE_STRIP floats, which are
 * consecutive iterations (columns) of one loop, times the lanes of a channel block. So decoding costs little per value.
 *
 *   size      i, number: arg[i] of the call, or `number` if i is -1
 *   sum       n, n times (variable, size), size: the sum of variable * size, and the last size, the base
 *   range     sum, low size, high size, 1 if linear in the strip's variable and equal in all lanes
 *   ranges    n, n times range: all of them must hold
 *   register  offset in floats; doubles and i64 take two
 *   place     columns (1: a value per column of the strip, 0: one), inner (1, or the lanes of a block), register
 *   memory    index of a pointer, or -1 for scratch; element type
 *   access    sum, step per column, step per lane, 1 if each element's address must be computed on its own
 *   double    its bits
 *
 * Example: y = relu(x) is a LOOP over the row in strips of CODE_STRIP columns, with the body
 *   LOAD r0 <- x + 1 * i;  BROADCAST r2 <- r1;  ARITH MAX r3 <- r0, r2;  STORE y + 1 * i <- r3;  END
 * where r1 is a constant, set once per call.
 */
#ifndef DFP_CODE_H
#define DFP_CODE_H

#include "dfp/nest.h"

#define CODE_STRIP 512 /* floats per register: a dozen registers fit in L1 */

enum code_op {
    CODE_END,       /* ends a loop's body, and the code */
    CODE_ARITH,     /* place to, 3 registers, primitive, reg of the operands */
    CODE_BROADCAST, /* place to, place from, reg */
    CODE_CAST,      /* place to, register from, its reg, element type to */
    CODE_INDEX,     /* place to, sum: its value, an i64 */
    CODE_LOAD,      /* place to, memory, double fill, access, ranges */
    CODE_STORE,     /* place from, memory, access */
    CODE_RANGE,     /* place to, ranges: 1 where they hold, else 0 */
    CODE_VALID,     /* place to, block variable, n, n times (block, lanes that hold channels) */
    CODE_SET,       /* place to, reg, double: sets the whole register */
    CODE_FOLD,      /* primitive, reg, inner, register to, from, columns: combines them into `to` */
    CODE_LOOP, /* variable, 1 for the row, extent, words from here to the end, columns or 0, ranges, body */
};

/* The head: the first words of the code. Offsets are from the start of the code, in words. */
enum {
    HEAD_LANE_VAR,
    HEAD_TILE,      /* floats of scratch before the registers, for values between stages */
    HEAD_VARS,      /* offset of: n, n times (kind, sum offset or 0, divisor size) */
    HEAD_GRID,      /* offset of: n, n times (variable, extent size), chunks size, chunk size */
    HEAD_CONSTANTS, /* offset of: n, n times (register, reg, double) */
    HEAD_MARGINS, /* offset of: n, n times (reg, offset in scratch in elements, double, number of elements) */
    HEAD_BODY, /* offset of the first instruction */
    HEAD_WORDS,
};

/* ---- interp_types.c: rows of n values, of any register type ---- */

typedef void code_row(void *to, const void *a, const void *b, const void *c, int64_t n);
/* By register type of the operands and primitive; NULL: f32, whose rows interp.c has, or no such operation. */
extern code_row *const code_rows[N_REGS][N_PRIMITIVES];
void code_fill(enum reg reg, void *to, double value, int64_t n);
/* Converts to the values of an element type, in its register. */
void code_cast(enum reg from, enum sol_dtype to, void *at, const void *x, int64_t n);
/* Elements that lie `step` apart in memory, to and from a dense row. */
void code_load(enum sol_dtype dtype, void *to, const void *from, int64_t step, int64_t n);
void code_store(enum sol_dtype dtype, void *to, const void *from, int64_t step, int64_t n);

#endif
