/*
 * Windows over any number of dims, for the interpreter: where in the input a tap of the kernel lies for a place of the output.
 */
#ifndef SOL_ONNX_EVAL_WINDOW_H
#define SOL_ONNX_EVAL_WINDOW_H

#include "eval.h"

#define MAX_DIMS (SOL_MAX_RANK - 2)

/* All lists have one number per dim that the window moves over. Pads are apart: those before and those after. */
struct eval_window {
    int n; /* dims that it moves over */
    int64_t kernel[MAX_DIMS], stride[MAX_DIMS], dilation[MAX_DIMS];
    int64_t before[MAX_DIMS], after[MAX_DIMS]; /* pads */
    int64_t in[MAX_DIMS], out[MAX_DIMS];
};

/* An attribute of `n` numbers, not below `min`, which is also their default. */
void eval_window_list(struct eval *e, const char *name, int n, int64_t min, int64_t *out);
/* All but the kernel, which is set, and the output's dims. */
void eval_window_read(struct eval *e, const struct array *x, struct eval_window *w);
/* The output's dims. Whether the last window may hang over, as long as it begins within the input or the pad before it. */
void eval_window_place(struct eval *e, struct eval_window *w, bool is_ceil);
/* The input's offset of tap `k` at output place `o`, within one channel; -1: in the pad. */
int64_t eval_window_tap(const struct eval_window *w, const int64_t *o, const int64_t *k);
static inline int64_t eval_window_inner(const struct eval_window *w, const int64_t *dim) {
    return product(w->n, dim);
}

#endif
