/*
 * Windows over any number of dims, for the interpreter: where in the input a tap of the kernel lies for a place of the output.
 */
#ifndef SOL_ONNX_EVAL_WINDOW_H
#define SOL_ONNX_EVAL_WINDOW_H

#include "eval.h"

#define MOST_DIMS (SOL_MAX_RANK - 2)

/* All lists have one number per dim that the window moves over. Pads are apart: those before and those after. */
struct window {
    int n; /* dims that it moves over */
    int64_t kernel[MOST_DIMS], stride[MOST_DIMS], dilation[MOST_DIMS];
    int64_t before[MOST_DIMS], after[MOST_DIMS]; /* pads */
    int64_t in[MOST_DIMS], out[MOST_DIMS];
};

/* An attribute of `n` numbers, not below `least`, which is also their default. */
void eval_window_list(struct eval *e, const char *name, int n, int64_t least, int64_t *out);
/* All but the kernel, which is set, and the output's dims. */
void eval_window_read(struct eval *e, const struct array *x, struct window *w);
/* The output's dims. Whether the last window may hang over, as long as it begins within the input or the pad before it. */
void eval_window_place(struct eval *e, struct window *w, bool is_ceil);
/* The input's offset of tap `k` at output place `o`, within one channel; -1: in the pad. */
int64_t eval_window_tap(const struct window *w, const int64_t *o, const int64_t *k);
static inline int64_t eval_window_inner(const struct window *w, const int64_t *dim) {
    return product(w->n, dim);
}

#endif
