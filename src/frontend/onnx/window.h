/* Inside the ONNX frontend: windows that move over one, two or three dims. Shared by op_window.c, op_volume.c, op_deconv.c. */
#ifndef SOL_ONNX_WINDOW_H
#define SOL_ONNX_WINDOW_H

#include "import.h"

/* Depth, rows, columns. With fewer dims the last ones count, and the others have a kernel of 1. */
enum { WINDOW_DIMS = 3 };
struct op_window {
    int n; /* dims that it moves over: 1, 2 or 3 */
    int64_t kernel[WINDOW_DIMS], stride[WINDOW_DIMS], dilation[WINDOW_DIMS];
    int64_t begin[WINDOW_DIMS], end[WINDOW_DIMS]; /* padding */
};

/* For an input of rank n + 2; the kernel is left as 1. */
void window_init(struct op_call *c, struct op_window *w);
/* A list of n numbers, of at least `min`, into the last n places. */
void window_list(struct op_call *c, const char *name, const struct op_window *w, int64_t min,
                 int64_t *out);
/* Kernel of a weight [k, c, kernel..] at input 1; kernel_shape may only repeat it. */
void window_kernel(struct op_call *c, struct op_window *w);
/* Strides, dilations, and pads as auto_pad says. */
void window_read(struct op_call *c, struct op_window *w);
/* "[1,2]" of the last two dims; "[top,left,bottom,right]". */
const char *window_pair(struct op_call *c, const int64_t list[WINDOW_DIMS]);
const char *window_pads(struct op_call *c, const struct op_window *w);
/* [n,c,w] as [n,c,1,w], and back. With two dims nothing is done. */
sol_tensor window_rows(struct op_call *c, sol_tensor x, const struct op_window *w);
sol_tensor window_no_rows(struct op_call *c, sol_tensor y, const struct op_window *w);
/* The layer over the last two dims. in: x [n,c,h,w], weight, and bias or -1. */
sol_tensor window_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups);
sol_tensor window_pool(struct op_call *c, sol_tensor x, const struct op_window *w);

/* op_volume.c: the same over three dims. */
sol_tensor volume_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups);
sol_tensor volume_pool(struct op_call *c, sol_tensor x, const struct op_window *w);

#endif
