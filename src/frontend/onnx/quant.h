/* Inside the ONNX frontend: quantized numbers. For op_quant.c, op_qlinear.c. */
#ifndef SOL_ONNX_QUANT_H
#define SOL_ONNX_QUANT_H

#include "import.h"

/* Input `i`, a number or one per position of `axis`, in the shape that broadcasts with a tensor of `rank`. */
sol_tensor quant_along(struct op_call *c, int i, int64_t axis, int rank);
/* The same for a zero point; -1 if it is missing, or if all are known to be 0. */
sol_tensor quant_zero(struct op_call *c, int i, int64_t axis, int rank);
/* x - zero point, both as i32; `zero` < 0: there is none. */
sol_tensor quant_subtract(struct op_call *c, sol_tensor x, sol_tensor zero);
/* (x - zero point) * scale */
sol_tensor quant_read(struct op_call *c, sol_tensor x, sol_tensor scale, sol_tensor zero);
/* x / scale + zero point, rounded to even and saturated; computed in f32. */
sol_tensor quant_write(struct op_call *c, sol_tensor x, sol_tensor scale, sol_tensor zero,
                       enum sol_dtype to);
/* DynamicQuantizeLinear: u8, and its scale and zero point. */
sol_tensor quant_dynamic(struct op_call *c, sol_tensor x, sol_tensor *scale, sol_tensor *point);

#endif
