/*
 * src/device/ve/vednn.c: products of vector engines by VEDNN, with the stand-ins of test/veda for it and for libveda.
 *
 * Without NLC, which would take linear layers.
 */
#include "libraries.h"

/* ---- Models ---- */

static const char conv[] =
    MODEL(IMAGES "%1 = param f32[12,4,3,2] \"w\"\n%2 = param f32[12] \"b\"\n",
          "%3 = conv %0 %1 %2 groups=2 stride=[2,1] dilation=[1,2] pad=[1,1,1,1]\n"
          "%4 = relu %3\noutput %4 \"y\"\n");
static const char bare[] =
    MODEL(IMAGES "%1 = param f32[16,8,1,1] \"w\"\n", "%2 = conv %0 %1\noutput %2 \"y\"\n");
static const char in_concat[] =
    MODEL(IMAGES "%1 = param f32[16,8,1,1] \"w\"\n",
          "%2 = conv %0 %1\n%3 = concat %2 %0 axis=1\noutput %3 \"y\"\n");
static const char linear[] =
    MODEL("%0 = input f32[$0,70] \"x\"\n%1 = param f32[300,70] \"w\"\n%2 = param f32[300] \"b\"\n",
          "%3 = linear %0 %1 %2\n%4 = clamp %3 min=-2 max=3\noutput %4 \"y\"\n");
static const char gradient[] = MODEL(IMAGES "%1 = input f32[$0,6,7,6] \"dy\"\n",
                                     "%2 = conv_weight %0 %1 shape=[6,8,3,6]\noutput %2 \"dw\"\n");
static const char one_sided[] = MODEL(IMAGES "%1 = param f32[16,8,2,2] \"w\"\n",
                                      "%2 = conv %0 %1 pad=[0,0,1,1]\noutput %2 \"y\"\n");
static const char residual[] = MODEL("%0 = input f32[$0,70] \"x\"\n%1 = param f32[70,70] \"w\"\n",
                                     "%2 = linear %0 %1\n%3 = add %2 %0\noutput %3 \"y\"\n");
static const char product[] =
    MODEL("%0 = input f32[$0,9,10] \"a\"\n%1 = input f32[$0,10,11] \"b\"\n",
          "%2 = matmul %0 %1\noutput %2 \"y\"\n");

/* ---- Cases ---- */

/* One sample would use one core. The gradient of a weight has 6 channels for 8 cores, whatever the batch. */
static bool is_chosen_by_cost(void) {
    use_library(true);
    test_report(conv, 8, "    plain: estimated", "-> vednn 3x2/2 8->12");
    test_report(conv, 1, "    vednn: estimated", "-> plain 3x2/2 8->12");
    test_report(bare, 16, "    plain: estimated", "-> vednn");
    test_report(in_concat, 16, "    plain: estimated", "-> vednn");
    test_report(linear, 64, "    plain: estimated", "-> vednn 70->300");
    test_report(linear, 2, "    vednn: estimated", "-> plain 70->300");
    test_report(gradient, 1, "    plain: estimated", "-> vednn");
    return !atomic_load(&check_failed);
}

/* What is deployed must run where there is no VEDNN. */
static void test_for_deployment(void) {
    no_libraries = true;
    test_report(conv, 8, "vednn refuses: a library needs own kernels", "-> plain");
    no_libraries = false;
}

static bool refuses(void) {
    use_library(true);
    test_report(one_sided, 8, "vednn refuses: padding that differs between opposite sides",
                "-> plain");
    test_report(residual, 8, "vednn refuses: has a residual", "-> plain");
    test_report(product, 8, "vednn refuses: a product of two computed tensors", "-> plain");
    test_for_deployment();
    setenv("SOL_DISABLE", "nlc,vednn", 1);
    test_report(conv, 8, "vednn refuses: disabled by SOL_DISABLE", "-> plain");
    return !atomic_load(&check_failed);
}

/* But not where samples have gaps. */
static bool is_called(void) {
    use_library(true);
    setenv("VEDNN_RESULT", "-1", 1);
    const char *const models[] = {conv, bare, linear, gradient};
    for (int i = 0; i < COUNT(models); i++) test_call(models[i], 8);
    test_report(in_concat, 8, "    plain: estimated", "-> vednn");
    return !atomic_load(&check_failed);
}

/* The own kernel computes what the library refuses. */
static bool survives_errors(void) {
    use_library(true);
    setenv("VEDNN_RESULT", "2", 1);
    test_report(conv, 8, "    plain: estimated", "-> vednn");
    test_report(linear, 8, "    plain: estimated", "-> vednn");
    test_report(gradient, 8, "    plain: estimated", "-> vednn");
    return !atomic_load(&check_failed);
}

static bool works_without_it(void) {
    use_library(false);
    test_report(conv, 8, "cannot link libvednn_openmp", "-> plain");
    test_report(linear, 64, "cannot link libvednn_openmp", "-> plain");
    return is_listed_as_missing("vednn", "cannot link libvednn_openmp") &&
           !atomic_load(&check_failed);
}

int main(void) {
    if (check_is_emulated("vector engines")) return check_done();
    begin_cases("nlc");
    CHECK(child_does(is_chosen_by_cost, LIMIT));
    CHECK(child_does(refuses, LIMIT));
    CHECK(child_does(is_called, LIMIT));
    CHECK(child_does(survives_errors, LIMIT));
    CHECK(child_does(works_without_it, LIMIT));
    return check_done();
}
