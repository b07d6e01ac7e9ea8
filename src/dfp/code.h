/*
 * Code for machines without a C compiler: the words that code.c writes and interp.c runs.
 *
 * Code is an array of 64 bit words without pointers, so it can be copied and stored. Values live in
 * registers, which are rows of floats: a strip of up to CODE_STRIP values of the innermost loop
 * (times the lanes of a channel block) is computed by one instruction, so that decoding it costs
 * little.
 *
 *   size      argument number or -1, number: what arg[] holds at the call, or the number itself
 *   sum       n, n times (variable, size), size: base + sum of coef * variable
 *   range     sum, low size, high size, 1 if linear in the strip's variable and equal in all lanes
 *   register  offset in floats
 *   place     columns (1: one per value of the strip), inner (1, or the lanes of a block), register
 *
 * Example: y = relu(x) is a LOOP over the row in strips of CODE_STRIP columns, with the body
 *   LOAD r0 <- x + 1 * i;  BROADCAST r2 <- r1;  ARITH MAX r3 <- r0, r2;  STORE y + 1 * i <- r3;  END
 * where r1 is a constant, set once per call.
 */
#ifndef DFP_CODE_H
#define DFP_CODE_H

#include "dfp/nest.h"

#define CODE_STRIP 512 /* floats: a dozen registers fit into L1 */

enum code_op {
    CODE_END,       /* of a loop's body, or of all */
    CODE_ARITH,     /* place to, 3 registers, primitive */
    CODE_BROADCAST, /* place to, place from */
    CODE_LOAD,      /* place to, memory, fill, access, n ranges */
    CODE_STORE,     /* place from, memory, access */
    CODE_RANGE,     /* place to, n ranges */
    CODE_VALID,     /* place to, variable, n, n times (last block, lanes) */
    CODE_SET,       /* place to, value; the whole register */
    CODE_FOLD,      /* primitive, inner, to, from, columns: all of them combined with `to` */
    CODE_LOOP, /* variable, row, size, words of the body, columns of a strip or 0, n ranges, body */
};

/* access = sum, column step, lane step, 1 if every element's address has to be computed by itself.
 * memory = pointer number, or -1 for scratch. Values (fill, constants) are the bits of a double. */

/* The head: everything that comes before the body. */
enum {
    HEAD_LANE_VAR,
    HEAD_TILE,      /* floats of scratch in front of the registers */
    HEAD_VARS,      /* offset of: n, n times (kind, sum offset or 0, divisor size) */
    HEAD_GRID,      /* offset of: n, n times (variable, size), chunks size, chunk size */
    HEAD_CONSTANTS, /* offset of: n, n times (register, value) */
    HEAD_BODY,
    HEAD_WORDS,
};

#endif
