/*
 * The numbers of arguments and pointers of steps that move values, and of the words of an error.
 *
 *   program.h includes this for the steps of the host     ->  copy.c, gather.c, resample.c
 *   device/far_emit.c includes it as text for far devices ->  device/step_kernels.h
 *
 * C99 without headers. What the steps compute is told where they are defined.
 */
#ifndef SOL_STEP_NUMBERS_H
#define SOL_STEP_NUMBERS_H

/* Generated kernels that read untrusted numbers report a failure in words, as they may run where exec_fail does not reach. The words are
 * 0 before a call; they are read when it ends. */
enum error_word {
    ERROR_STATUS, /* an enum sol_status */
    ERROR_WHAT, /* address of a text on the host, which the kernel got as an argument; it may have a %lld per number */
    ERROR_NUMBER, /* the numbers of the text, in its order: the one that is wrong */
    ERROR_LIMIT,  /* and the number of rows, or steps, that there are */
    ERROR_MORE,
    ERROR_WORDS
};

/* The step of module COPY (copy.c), whose table is applied n times; strides are from one n to the next, in elements. PIXELS is only there if they
 * are open. */
enum { COPY_N, COPY_IN_STRIDE, COPY_OUT_STRIDE, COPY_PIXELS, COPY_N_ARGS };

/* The step of module GATHER. ptr = {table, indices, out}. The table's dims are [outer.., rows, inner..]. There may be
 * gaps between the parts of its first dim; otherwise it is dense (gather.c). Arguments, with sizes and strides in bytes: */
enum {
    GATHER_OUTER,      /* product of the outer dims, a count */
    GATHER_PLANES,     /* product of the outer dims without the first, a count */
    GATHER_STRIDE,     /* of the first dim */
    GATHER_ROWS,       /* the dim that indices select from */
    GATHER_ROW_STRIDE, /* from row to row */
    GATHER_INNER,      /* of the inner dims */
    GATHER_INDICES,    /* number of indices */
    GATHER_INDEX_SIZE, /* bytes: 8 or 4 */
    GATHER_LEAST,      /* legal index: -rows where negative ones count from the end, or 0 */
    GATHER_N_ARGS
};
/* The step of a layer scatter_sum, of module GATHER (gather.c). ptr = {x, indices, out}, all of them dense: x [batches, indices, inner],
 * indices [batches, indices], out [batches, rows, inner]. */
enum {
    SCATTER_BATCHES,
    SCATTER_INDICES, /* of a batch */
    SCATTER_ROWS,
    SCATTER_INNER,      /* elements */
    SCATTER_DTYPE,      /* of x, an enum sol_dtype: f32, f64 or an integer */
    SCATTER_INDEX_SIZE, /* bytes: 8 or 4 */
    SCATTER_LEAST,      /* as GATHER_LEAST */
    SCATTER_N_ARGS
};
/* The step of a layer resample, of module GATHER (resample.c). ptr = {x, y, indices and weights of rows, indices and weights of columns};
 * those of a dim without taps are NULL. x is f32 [outer][rows_in][columns_in][inner], y has `rows` and `columns` in their place. */
enum {
    RESAMPLE_OUTER,
    RESAMPLE_PLANES,     /* OUTER without the first dim */
    RESAMPLE_IN_STRIDE,  /* of the first dim, in elements */
    RESAMPLE_OUT_STRIDE, /* the same of y */
    RESAMPLE_ROWS_IN,
    RESAMPLE_ROWS,
    RESAMPLE_ROW_TAPS, /* 0: rows stay as they are */
    RESAMPLE_COLUMNS_IN,
    RESAMPLE_COLUMNS,
    RESAMPLE_COLUMN_TAPS,
    RESAMPLE_INNER,
    RESAMPLE_INDEX_SIZE, /* bytes: 8 or 4 */
    RESAMPLE_N_ARGS
};
#define RESAMPLE_N_POINTERS 6
#define RESAMPLE_TAPS 16 /* of a dim, at most */

#endif
