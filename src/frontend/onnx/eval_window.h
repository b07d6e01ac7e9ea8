/*
 * Windows over any number of dims, for the interpreter: which input element a tap of the kernel reads for an output position.
 */
#ifndef SOL_ONNX_EVAL_WINDOW_H
#define SOL_ONNX_EVAL_WINDOW_H

#include "eval.h"

#define MAX_DIMS (SOL_MAX_RANK - 2)

/* Each list has one number per spatial dim. */
struct eval_window {
    int n; /* spatial dims */
    int64_t kernel[MAX_DIMS], stride[MAX_DIMS], dilation[MAX_DIMS];
    int64_t before[MAX_DIMS], after[MAX_DIMS]; /* pads */
    int64_t in[MAX_DIMS], out[MAX_DIMS];
};

/* An attribute of `n` integers, not below `min`, which is also their default. */
void eval_window_list(struct eval *e, const char *name, int n, int64_t min, int64_t *out);
/* Sets all but the kernel, which the caller has set, and the output's dims, which eval_window_place sets. */
void eval_window_read(struct eval *e, const struct array *x, struct eval_window *w);
/* Sets the output's dims. `is_ceil`: the last window may end after the padded input if it begins in the input or in the pad
 * before it. */
void eval_window_place(struct eval *e, struct eval_window *w, bool is_ceil);
/* The offset, within a channel of the input, that tap `k` reads for output position `o`; -1: in the padding. */
int64_t eval_window_tap(const struct eval_window *w, const int64_t *o, const int64_t *k);
static inline int64_t eval_window_inner(const struct eval_window *w, const int64_t *dim) {
    return product(w->n, dim);
}

#endif
