/*
 * The form of a copy: what a table of positions has in common, so that it is moved by vectors.
 *
 *   positions of a movement -> copy_form_find (copy_form.c) -> struct copy_form -> copy_form_run (copy_move.c)
 *
 * Most movements treat each dim of their output on its own: the position in the input is a sum of numbers, one per dim. The
 * dims are put into three groups: columns (the innermost ones, consecutive in the output), rows (one dim, whose neighbors are
 * consecutive in the input), and parts (all others). So a matrix that is turned has columns and rows, and is moved in blocks.
 *
 * Invariant: out[to[p] + r * row_step + c] = in[from[p] + row[r] + column[c]], and all these positions are inside of the input. It is 0
 * if from[p] < 0 or column[c] == COPY_NONE.
 */
#ifndef SOL_COPY_FORM_H
#define SOL_COPY_FORM_H

#include "base/base.h"

#define COPY_NONE INT32_MIN
#define COPY_FORM_DIMS 12
#define COPY_WINDOW 8 /* elements: columns that are turned at once */
#define COPY_LINE 64 /* bytes: the rows of a task have as many elements */
#define COPY_COLUMNS 512 /* columns of a task that turns few rows, at least */

enum copy_kind {
    COPY_RUNS, /* columns are runs of consecutive elements; more: {first column, position, length} of each */
    COPY_WINDOWS,  /* columns in groups of copy_window; more: where each group's window begins */
    COPY_TURNED,   /* rows are consecutive in the input: blocks of rows and columns */
    COPY_ELEMENTS, /* one by one */
};

/* Columns in a window come from as many consecutive elements of the input: 16 bytes of short elements, else 32. */
static inline int copy_window(int element) { return (element < 4 ? 16 : 32) / element; }

struct copy_form {
    enum copy_kind kind;
    bool has_holes; /* some columns are COPY_NONE */
    bool
        is_regular; /* of windows: all have their columns at the same places, and the same distance, as where columns are reversed */
    int n_parts, n_rows, n_columns, n_more;
    int block; /* rows of a task */
    int64_t row_step;
    const int32_t
        *number; /* from[n_parts], to[n_parts], row[n_rows], column[n_columns], more[n_more] */
};

static inline const int32_t *copy_form_to(const struct copy_form *f) {
    return f->number + f->n_parts;
}
static inline const int32_t *copy_form_row(const struct copy_form *f) {
    return f->number + 2 * (int64_t)f->n_parts;
}
static inline const int32_t *copy_form_column(const struct copy_form *f) {
    return copy_form_row(f) + f->n_rows;
}
static inline const int32_t *copy_form_more(const struct copy_form *f) {
    return copy_form_column(f) + f->n_columns;
}
static inline int64_t copy_form_numbers(const struct copy_form *f) {
    return 2 * (int64_t)f->n_parts + f->n_rows + f->n_columns + f->n_more;
}

/* A movement to find the form of. at[i]: the position in an input of n_in elements that output element i is copied from; < 0: it is 0.
 * The output has these dims, outermost first. If `pixels` is not 0, there is one more dim before the last one: pixel p is copied
 * from p * pixel_stride elements further. */
struct copy_source {
    const int64_t *at;
    int n_dims;
    int64_t dim[COPY_FORM_DIMS];
    int64_t n_in, pixels, pixel_stride;
    int element; /* bytes */
};

/* False if the dims depend on each other. `number` is in the arena. */
bool copy_form_find(struct arena *arena, const struct copy_source *source, struct copy_form *out);

int64_t copy_form_n_tasks(const struct copy_form *form);
/* Moves the tasks [begin, end) of one sample. `element`: bytes per element. */
void copy_form_run(const struct copy_form *form, int element, const void *in, void *out,
                   int64_t begin, int64_t end);

#endif
