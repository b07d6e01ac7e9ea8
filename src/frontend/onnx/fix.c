/*
 * Replaces open sizes of inputs by sizes of the caller. A network whose structure depends on open sizes can then be compiled as a
 * whole, instead of in partitions at each call.
 */
#include "proto.h"

#include <sol/onnx.h>
#include <string.h>

static enum sol_status fix_dim(struct arena *arena, struct onnx_dim *dim, int d, int64_t size) {
    if (size < 0) return fail(SOL_EINVAL, "dim %d cannot be %lld", d, (long long)size);
    if (dim->value && *dim->value != size)
        return fail(SOL_EINVAL, "dim %d is %lld, not %lld", d, (long long)*dim->value,
                    (long long)size);
    dim->value = arena_copy(arena, &size, sizeof size);
    return SOL_OK;
}

static enum sol_status fix_input(struct arena *arena, struct onnx_value *input,
                                 const struct sol_onnx_shape *shape) {
    struct onnx_tensor_type *tensor = input->type ? input->type->tensor : NULL;
    if (!tensor || !tensor->shape)
        return fail(SOL_EUNSUPPORTED, tensor ? "its rank is open" : "it is no tensor");
    struct list *dims = &tensor->shape->dims;
    if (dims->n != shape->rank)
        return fail(SOL_EINVAL, "it has %d dims, not %d", dims->n, shape->rank);
    for (int d = 0; d < dims->n; d++)
        TRY(fix_dim(arena, ITEM(*dims, struct onnx_dim, d), d, shape->dim[d]));
    return SOL_OK;
}

enum sol_status onnx_fix_shapes(struct arena *arena, struct onnx_graph *graph,
                                const struct sol_onnx_shape *shapes, int n) {
    for (int i = 0; i < n; i++) {
        struct onnx_value *found = NULL;
        for (int k = 0; k < graph->inputs.n && !found; k++) {
            struct onnx_value *input = ITEM(graph->inputs, struct onnx_value, k);
            if (input->name && !strcmp(input->name, shapes[i].input)) found = input;
        }
        enum sol_status status = found ? fix_input(arena, found, &shapes[i])
                                       : fail(SOL_EINVAL, "there is no such input");
        if (status) fail_prefix("input \"%.64s\": ", shapes[i].input);
        TRY(status);
    }
    return SOL_OK;
}
