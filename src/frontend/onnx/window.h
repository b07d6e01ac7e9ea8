/* Inside the ONNX frontend: windows of convolutions and pooling, over one, two or three dims. For op_window.c, op_volume.c,
 * op_deconv.c. */
#ifndef SOL_ONNX_WINDOW_H
#define SOL_ONNX_WINDOW_H

#include "import.h"

/* Depth, rows, columns. With fewer dims, the last ones are used, and the others have a kernel of 1. */
enum { WINDOW_DIMS = 3 };
struct op_window {
    int n; /* spatial dims: 1, 2 or 3 */
    int64_t kernel[WINDOW_DIMS], stride[WINDOW_DIMS], dilation[WINDOW_DIMS];
    int64_t begin[WINDOW_DIMS], end[WINDOW_DIMS]; /* padding */
};

/* Sets `n` from the rank of input 0, which is n + 2, and the rest to defaults; the kernel is 1. */
void window_init(struct op_call *c, struct op_window *w);
/* Reads the attribute `name`, a list of n integers of at least `min`, into the last n places of `out`. */
void window_list(struct op_call *c, const char *name, const struct op_window *w, int64_t min,
                 int64_t *out);
/* Sets the kernel from the weight [k, c, kernel..] at input 1; the attribute kernel_shape must be equal if it is given. */
void window_kernel(struct op_call *c, struct op_window *w);
/* Reads strides, dilations, and pads or auto_pad. */
void window_read(struct op_call *c, struct op_window *w);
/* Attributes as text: "[1,2]" of the last two dims of a list; "[top,left,bottom,right]" of the padding. */
const char *window_pair(struct op_call *c, const int64_t list[WINDOW_DIMS]);
const char *window_pads(struct op_call *c, const struct op_window *w);
/* Reshapes [n,c,w] to [n,c,1,w], and back. With two spatial dims they return their argument. */
sol_tensor window_rows(struct op_call *c, sol_tensor x, const struct op_window *w);
sol_tensor window_no_rows(struct op_call *c, sol_tensor y, const struct op_window *w);
/* Adds the layer over two dims. in: x [n,c,h,w], weight, and bias or -1. */
sol_tensor window_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups);
sol_tensor window_pool(struct op_call *c, sol_tensor x, const struct op_window *w);

/* Refuses padding as wide as the window: such a window would contain only padding, which has no maximum and no average. */
enum sol_status window_check_pads(const struct op_window *w);

/* op_volume.c: the same over three dims, composed of layers over two. */
sol_tensor volume_conv(struct op_call *c, const sol_tensor in[3], const struct op_window *w,
                       int64_t groups);
sol_tensor volume_pool(struct op_call *c, sol_tensor x, const struct op_window *w);

/* The layers of a Conv node, on its input, weight and bias (< 0: none). */
sol_tensor window_conv_node(struct op_call *c, sol_tensor in[3]);

#endif
