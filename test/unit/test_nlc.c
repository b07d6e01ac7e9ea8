/* src/device/ve/nlc.c: products of vector engines by NLC's BLAS, alone and beside VEDNN, with the stand-ins of test/veda. */
#include "libraries.h"

#define X(shape) "%0 = input f32" shape " \"x\"\n"
#define B(shape) "%1 = input f32" shape " \"b\"\n"
#define W(shape) "%1 = param f32" shape " \"w\"\n"

/* ---- Models ---- */

static const char linear[] = MODEL(X("[$0,70]") W("[300,70]") "%2 = param f32[300] \"b\"\n",
                                     "%3 = linear %0 %1 %2\n%4 = clamp %3 min=-2 max=3\n"
                                     "output %4 \"y\"\n");
static const char plain_linear[] =
    MODEL(X("[$0,70]") W("[30,70]"), "%2 = linear %0 %1\noutput %2 \"y\"\n");
static const char one_output[] =
    MODEL(X("[$0,70]") W("[1,70]"), "%2 = linear %0 %1\noutput %2 \"y\"\n");
static const char residual[] =
    MODEL(X("[$0,70]") W("[70,70]") "%2 = param f32[70] \"b\"\n",
            "%3 = linear %0 %1 %2\n%4 = add %3 %0\n%5 = relu %4\noutput %5 \"y\"\n");
static const char product[] =
    MODEL(X("[$0,9,10]") B("[$0,10,11]"), "%2 = matmul %0 %1\noutput %2 \"y\"\n");
static const char with_sum[] =
    MODEL(X("[$0,3,9,10]") B("[$0,3,10,11]") "%2 = input f32[$0,3,9,11] \"r\"\n",
            "%3 = matmul %0 %1\n%4 = add %3 %2\n%5 = relu %4\noutput %5 \"y\"\n");
static const char shared[] =
    MODEL(X("[$0,9,10]") W("[10,11]"), "%2 = matmul %0 %1\noutput %2 \"y\"\n");
static const char broadcast[] =
    MODEL(X("[3,9,10]") B("[$0,1,10,11]"), "%2 = matmul %0 %1\noutput %2 \"y\"\n");
static const char transposed[] =
    MODEL(X("[$0,10,9]") W("[11,10]"),
            "%2 = permute %0 axes=[0,2,1]\n%3 = permute %1 axes=[1,0]\n%4 = matmul %2 %3\n"
            "output %4 \"y\"\n");
/* As those of an attention: x is [sample][position][head][channel]. */
static const char heads[] =
    MODEL(X("[$0,9,2,10]") B("[$0,7,2,10]"),
            "%2 = permute %0 axes=[0,2,1,3]\n%3 = permute %1 axes=[0,2,3,1]\n"
            "%4 = matmul %2 %3\noutput %4 \"y\"\n");
static const char in_concat[] =
    MODEL(X("[$0,9,10]") B("[$0,10,11]"),
            "%2 = matmul %0 %1\n%3 = concat %2 %0 axis=2\noutput %3 \"y\"\n");
/* The slice is copied, as the plan gives no operand to a product of which neither rows nor columns are dense. */
static const char spread[] =
    MODEL(X("[$0,9,10]") B("[$0,10,5,2]"),
            "%2 = slice %1 axis=3 shape=[1]\n%3 = reshape %2 shape=[$0,10,5]\n"
            "%4 = matmul %0 %3\noutput %4 \"y\"\n");
static const char open_columns[] =
    MODEL(X("[3,4*$0,8]") B("[3,8,4*$0]"), "%2 = matmul %0 %1\noutput %2 \"y\"\n");
/* A call with batch 0 has no terms. */
static const char open_terms[] = MODEL(X("[5,4*$0]") B("[4*$0,12]") "%2 = input f32[5,12] \"r\"\n",
                                         "%3 = matmul %0 %1\n%4 = add %3 %2\noutput %4 \"y\"\n");
static const char conv[] =
    MODEL(IMAGES "%1 = param f32[16,8,1,1] \"w\"\n", "%2 = conv %0 %1\noutput %2 \"y\"\n");
static const char both[] =
    MODEL(IMAGES "%1 = param f32[16,8,3,3] \"w\"\n%2 = param f32[13,11] \"v\"\n",
          "%3 = conv %0 %1 pad=[1,1,1,1]\n%4 = linear %3 %2\noutput %4 \"y\"\n");

static const char *const products[] = {linear,    plain_linear, one_output, residual,    product,
                                       with_sum,  shared,       broadcast,  transposed,  heads,
                                       in_concat, spread,       open_terms, open_columns};

/* ---- Cases ---- */

static bool computes(void) {
    use_library(true);
    for (int i = 0; i < COUNT(products); i++)
        test_report(products[i], 8, "    plain: estimated", "-> nlc ");
    return !atomic_load(&check_failed);
}

/* All cores compute one row, too. Of libraries with the same cost it is the first. */
static bool is_chosen_by_cost(void) {
    use_library(true);
    test_report(linear, 1, "    vednn: estimated", "-> nlc 70->300");
    test_report(linear, 64, "    vednn: estimated", "-> nlc 70->300");
    test_report(product, 2, "vednn refuses: a product of two computed tensors", "-> nlc 10->11");
    test_report(conv, 16, "nlc refuses: no product of matrices", "-> vednn");
    test_report(conv, 1, "nlc refuses: no product of matrices", "-> plain");
    return !atomic_load(&check_failed);
}

/* Without terms it is not called: the own kernel writes the residual. */
static bool is_called(void) {
    use_library(true);
    setenv("NLC_IDLE", "1", 1);
    for (int i = 0; i < COUNT(products); i++) test_call(products[i], 7);
    struct sol_program *program = compile("ve", open_terms, 7);
    CHECK(is_right(open_terms, program, 0));
    sol_program_release(program);
    return !atomic_load(&check_failed);
}

/* What is deployed must run where there is no NLC. */
static bool refuses(void) {
    use_library(true);
    no_libraries = true;
    test_report(product, 8, "nlc refuses: a library needs own kernels", "-> plain");
    no_libraries = false;
    setenv("SOL_DISABLE", "nlc", 1);
    test_report(product, 8, "nlc refuses: disabled by SOL_DISABLE", "-> plain");
    test_report(linear, 64, "nlc refuses: disabled by SOL_DISABLE", "-> vednn");
    return !atomic_load(&check_failed);
}

/* Each library computes its part of a program. */
static bool works_beside_vednn(void) {
    use_library(true);
    test_report(both, 8, "-> vednn", "-> nlc");
    setenv("NLC_IDLE", "1", 1);
    test_call(both, 8);
    unsetenv("NLC_IDLE");
    setenv("VEDNN_RESULT", "-1", 1);
    test_call(both, 8);
    return !atomic_load(&check_failed);
}

static bool works_without_it(void) {
    use_library(false);
    test_report(product, 8, "cannot link libcblas with libblas_openmp", "-> plain");
    test_report(linear, 64, "cannot link libcblas with libblas_openmp", "-> plain");
    return is_listed_as_missing("nlc", "cannot link libcblas with libblas_openmp") &&
           !atomic_load(&check_failed);
}

int main(void) {
    if (check_is_emulated("vector engines")) return check_done();
    begin_cases("");
    CHECK(child_does(computes, LIMIT));
    CHECK(child_does(is_chosen_by_cost, LIMIT));
    CHECK(child_does(is_called, LIMIT));
    CHECK(child_does(refuses, LIMIT));
    CHECK(child_does(works_beside_vednn, LIMIT));
    CHECK(child_does(works_without_it, LIMIT));
    return check_done();
}
