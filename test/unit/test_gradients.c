/*
 * The builder's functions for gradients: which tensors have one, what is added for slices and shared tensors, errors.
 *
 * The formulas of the rules are tested by test/op/test_grad.c.
 */
#include "check.h"

#include <sol/sol.h>

#include <math.h>

static struct sol_model *new_model(int64_t n, sol_tensor *x) {
    struct sol_model *m = sol_model_new("m");
    *x = sol_model_input(m, "x", SOL_F32, 2, (int64_t[]){2, n});
    return m;
}

static sol_tensor add(struct sol_model *m, const char *kind, sol_tensor x, const char *attributes) {
    return sol_model_layer(m, kind, 1, &x, attributes, "net.py:3");
}

static sol_tensor gradient(struct sol_model *m, sol_tensor y, sol_tensor x) {
    sol_tensor dy = sol_model_backward_input(m, "dy", y), dx;
    sol_model_gradients(m, 1, &y, &dy, 1, &x, &dx);
    return dx;
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) n++;
    return n;
}

/* The gradients of slices that tile x are one concat; two readers of all of x are one sum. */
static void test_slices(void) {
    sol_tensor x;
    struct sol_model *m = new_model(6, &x);
    sol_tensor low = add(m, "slice", x, "axis=1 start=0 shape=[2]"),
               high = add(m, "slice", x, "axis=1 start=2 shape=[4]"),
               back = sol_model_layer(m, "concat", 2, (sol_tensor[]){high, low}, "axis=1", NULL),
               y = sol_model_layer(m, "mul", 2, (sol_tensor[]){back, x}, "", NULL);
    sol_model_output(m, "y", y);
    sol_model_backward_output(m, "dx", gradient(m, y, x));
    CHECK(!sol_model_check(m));
    char *text = sol_model_print(m);
    CHECK(count(text, " = concat") == 2 && count(text, " = add") == 1 && !count(text, " = expand"));
    free(text);
    sol_model_free(m);
}

/* A part that no slice has read gets zeros. */
static void test_gap(void) {
    sol_tensor x;
    struct sol_model *m = new_model(6, &x);
    sol_tensor y = add(m, "slice", x, "axis=1 start=2 shape=[3]"), dx = gradient(m, y, x);
    int64_t dim[SOL_MAX_RANK];
    CHECK(sol_model_shape(m, dx, dim) == 2 && dim[0] == 2 && dim[1] == 6);
    sol_model_output(m, "y", y);
    sol_model_backward_output(m, "dx", dx);
    CHECK(!sol_model_check(m));
    sol_model_free(m);
}

/* Comparisons and other tensors end a path. */
static void test_none(void) {
    sol_tensor x;
    struct sol_model *m = new_model(4, &x);
    sol_tensor w = sol_model_param(m, "w", SOL_F32, 1, (int64_t[]){4});
    sol_tensor less = sol_model_layer(m, "less", 2, (sol_tensor[]){x, w}, "", NULL),
               y = add(m, "cast", less, "dtype=f32");
    CHECK(gradient(m, y, x) == SOL_NO_TENSOR);
    CHECK(gradient(m, add(m, "relu", x, ""), w) == SOL_NO_TENSOR);
    CHECK(!sol_model_recover(m));
    sol_model_free(m);
}

/* A stop ends a path, and x keeps the gradients of its other readers. */
static void test_stop(void) {
    sol_tensor x;
    struct sol_model *m = new_model(4, &x);
    sol_tensor stop = add(m, "stop", x, ""),
               y = sol_model_layer(m, "mul", 2, (sol_tensor[]){stop, x}, "", NULL);
    CHECK(gradient(m, add(m, "exp", stop, ""), x) == SOL_NO_TENSOR);
    sol_model_output(m, "y", y);
    sol_model_backward_output(m, "dx", gradient(m, y, x));
    CHECK(!sol_model_check(m));
    char *text = sol_model_print(m);
    CHECK(!count(text, " = add"));
    free(text);
    sol_model_free(m);
}

static void fails(const char *kind, enum sol_status status, const char *message) {
    sol_tensor x;
    struct sol_model *m = new_model(4, &x);
    sol_tensor whole = add(m, "cast", x, "dtype=i32");
    if (!strcmp(kind, "integer x")) CHECK(gradient(m, x, whole) == -1);
    if (!strcmp(kind, "integer y")) CHECK(gradient(m, whole, x) == -1);
    if (!strcmp(kind, "no tensor")) CHECK(gradient(m, x, 99) == -1);
    CHECK(sol_model_recover(m) == status);
    CHECK_TEXT(sol_error(), message);
    sol_model_free(m);
}

static void test_errors(void) {
    fails("integer x", SOL_EINVAL, "gradients: tensor 0 is i32; only floats have gradients");
    fails("integer y", SOL_EINVAL,
          "gradients: output 0 is i32 [2,4], and its gradient i32 [2,4]; both must be of one float "
          "type and shape");
    fails("no tensor", SOL_EINVAL, "gradients: input 0 is no tensor");
}

static enum sol_status no_run(void *user, const struct sol_host_call *call) {
    (void)user, (void)call;
    return SOL_OK;
}

/* A layer without a gradient is named, with its origin; without it, its inputs need none. */
static void test_refusal(void) {
    sol_tensor x, y;
    struct sol_model *m = new_model(4, &x);
    int host = sol_model_host(m, &(struct sol_host){.name = "f", .run = no_run});
    sol_model_host_layer(m, host, 1, &x, "f32[2,4]", "", "net.py:9", 1, &y);
    sol_tensor w = sol_model_param(m, "w", SOL_F32, 1, (int64_t[]){4}),
               z = sol_model_layer(m, "mul", 2, (sol_tensor[]){y, w}, "", NULL);
    CHECK(gradient(m, z, w) >= 0);
    CHECK(gradient(m, z, x) == -1);
    CHECK(sol_model_recover(m) == SOL_EUNSUPPORTED);
    CHECK_TEXT(sol_error(),
               "gradient of host (net.py:9): a function of the frontend computes it, and "
               "has no gradient here");
    sol_model_free(m);
}

/* The gradient of an lstm reads the gates that the layer keeps: no product is computed again. */
static void test_kept_gates(void) {
    struct sol_model *m = sol_model_new("m");
    const sol_tensor x = sol_model_input(m, "x", SOL_F32, 3, (int64_t[]){5, 2, 12}),
                     w = sol_model_param(m, "w", SOL_F32, 2, (int64_t[]){12, 3}),
                     h = sol_model_input(m, "h", SOL_F32, 2, (int64_t[]){2, 3});
    const sol_tensor y = sol_model_layer(m, "lstm", 4, (sol_tensor[]){x, w, h, h}, "", "net.py:3");
    sol_model_output(m, "y", y);
    sol_model_backward_output(m, "dx", gradient(m, y, x));
    CHECK(!sol_model_check(m));
    char *text = sol_model_print(m);
    CHECK(count(text, ", %") == 1 && count(text, " = lstm ") == 1 && count(text, " = lstm_grad "));
    CHECK(!count(text, " = linear") && !count(text, " = matmul"));
    free(text);
    sol_model_free(m);
}

static void test_recompute(void) {
    const double wrong[] = {-0.5, 1.5, NAN};
    struct sol_program *program;
    sol_tensor x;
    struct sol_model *m = new_model(4, &x);
    sol_model_output(m, "y", sol_model_layer(m, "relu", 1, &x, "", NULL));
    for (int i = 0; i < 3; i++)
        CHECK(sol_compile(m, &(struct sol_options){.recompute = wrong[i]}, &program) == SOL_EINVAL);
    CHECK_TEXT(sol_error(), "recompute is nan; it may be 0 to 1, or -1");
    sol_model_free(m);
}

int main(void) {
    test_kept_gates();
    test_recompute();
    test_slices();
    test_gap();
    test_none();
    test_stop();
    test_errors();
    test_refusal();
    return check_done();
}
