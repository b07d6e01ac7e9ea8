/*
 * The part of the builder for training (sol.h, Gradients).
 *
 *   sol_model_backward_input, sol_model_gradients, sol_model_backward_output  ->  [this file]  ->  ir_gradients (grad.c)
 */
#include "ir/api.h"

BODY enum sol_status add_backward_input(struct sol_model *user, const char *name, sol_tensor like,
                                        sol_tensor *out) {
    const struct tensor *of = api_get_tensor(user, like);
    TRY(ir_check_name(name));
    if (!of) return fail(SOL_EINVAL, "backward input \"%s\" is like no tensor", name ? name : "");
    struct tensor *t = ir_add_source(user->m, LAYER_input, name, of->dtype, of->rank, of->dim);
    ir_set_backward(t);
    *out = api_hand_out(user, t);
    return SOL_OK;
}

sol_tensor sol_model_backward_input(struct sol_model *user, const char *name, sol_tensor like) {
    sol_tensor out = POISON;
    BUILDER_BOUNDARY(user, add_backward_input(user, name, like, &out));
    return out;
}

BODY enum sol_status add_gradients(struct sol_model *user, int n_y, const sol_tensor *y,
                                   const sol_tensor *dy, int n_x, const sol_tensor *x,
                                   sol_tensor *dx) {
    struct tensor **from, **seed, **to;
    TRY(api_get_tensors(user, "gradients", n_y, y, &from));
    TRY(api_get_tensors(user, "gradients", n_y, dy, &seed));
    TRY(api_get_tensors(user, "gradients", n_x, x, &to));
    struct tensor **found = ARENA_ARRAY(&user->arena, struct tensor *, n_x + 1);
    TRY(ir_gradients(user->m, n_y, from, seed, n_x, to, found));
    for (int i = 0; i < n_x; i++) dx[i] = found[i] ? api_hand_out(user, found[i]) : SOL_NO_TENSOR;
    return SOL_OK;
}

void sol_model_gradients(struct sol_model *user, int n_y, const sol_tensor *y, const sol_tensor *dy,
                         int n_x, const sol_tensor *x, sol_tensor *dx) {
    for (int i = 0; i < n_x; i++) dx[i] = POISON;
    BUILDER_BOUNDARY(user, add_gradients(user, n_y, y, dy, n_x, x, dx));
}

BODY enum sol_status add_backward_output(struct sol_model *user, const char *name,
                                         sol_tensor handle) {
    struct tensor *t = api_get_tensor(user, handle);
    if (!t) return fail(SOL_EINVAL, "output \"%s\" is no tensor", name ? name : "");
    return ir_add_output(user->m, t, name, BACKWARD);
}

void sol_model_backward_output(struct sol_model *user, const char *name, sol_tensor handle) {
    BUILDER_BOUNDARY(user, add_backward_output(user, name, handle));
}
