/* Inside the ONNX frontend: elements at computed positions. For op_index.c, op_loss.c, op_sample.c, op_attention.c. */
#ifndef SOL_ONNX_ROWS_H
#define SOL_ONNX_ROWS_H

#include "import.h"

/* Row numbers of a table, a sum of terms that broadcast. `is_bad`: bools, true where an index is out of range; < 0: none. */
struct rows {
    sol_tensor sum, is_bad;
};
#define NO_ROWS ((struct rows){-1, -1})

/* Adds an i64 term that is never out of range. */
void rows_add(struct op_call *c, struct rows *rows, sol_tensor offset);
/* Adds index * stride, where `index` is data of the call: a position in a dim of `size`, from the end if it is below 0. */
void rows_add_checked(struct op_call *c, struct rows *rows, sol_tensor index, int64_t size,
                      int64_t stride);
/* The rows of x, whose first `n` dims, `dim`, are joined to one. The shape is that of the row numbers, then x's other dims. */
sol_tensor rows_take(struct op_call *c, const struct rows *rows, sol_tensor x, int n,
                     const struct size *dim);
/* y[i][j] = x[index[i][j]][j] for axis 0 of two. */
sol_tensor rows_gather_elements(struct op_call *c, sol_tensor x, sol_tensor index, int axis);

#endif
