/* src/device/ve/nlc.c: linear layers and matmuls of vector engines by the BLAS of NLC. */
#include "ve_products.h"

/* ---- Models ---- */

static const char linear[] =
    MODEL("%0 = input f32[$0,70] \"x\"\n%1 = param f32[300,70] \"w\"\n%2 = param f32[300] \"b\"\n",
          "%3 = linear %0 %1 %2\n%4 = clamp %3 min=-2 max=3\noutput %4 \"y\"\n");
static const char residual[] = MODEL("%0 = input f32[$0,70] \"x\"\n%1 = param f32[70,70] \"w\"\n",
                                     "%2 = linear %0 %1\n%3 = add %2 %0\noutput %3 \"y\"\n");
static const char many[] =
    MODEL("%0 = input f32[$0,3,9,10] \"a\"\n%1 = input f32[$0,3,10,11] \"b\"\n",
          "%2 = matmul %0 %1\n%3 = relu %2\noutput %3 \"y\"\n");
/* Both operands are stored by columns. */
static const char transposed[] =
    MODEL("%0 = input f32[$0,10,9] \"a\"\n%1 = input f32[$0,11,10] \"b\"\n",
          "%2 = permute %0 axes=[0,2,1]\n%3 = permute %1 axes=[0,2,1]\n"
          "%4 = matmul %2 %3\noutput %4 \"y\"\n");
/* Rows of b are apart by 5 of 2 values: neither rows nor columns are dense. */
static const char spread[] =
    MODEL("%0 = input f32[$0,9,10] \"a\"\n%1 = input f32[$0,10,5,2] \"b\"\n",
          "%2 = slice %1 axis=3 shape=[1]\n%3 = reshape %2 shape=[$0,10,5]\n"
          "%4 = matmul %0 %3\noutput %4 \"y\"\n");
static const char both[] = MODEL(
    "%0 = input f32[$0,8,6,6] \"x\"\n%1 = param f32[12,8,3,3] \"w\"\n%2 = param f32[10,432] \"v\"\n",
    "%3 = conv %0 %1 pad=[1,1,1,1]\n%4 = relu %3\n%5 = reshape %4 shape=[$0,432]\n"
    "%6 = linear %5 %2\noutput %6 \"y\"\n");

static const char *const all[] = {linear, residual, many, transposed};

/* ---- Cases ---- */

/* A product uses all cores, so the own kernel is never better; VEDNN computes a convolution of the same program. */
static bool is_chosen_by_cost(void) {
    use_library(true);
    for (int i = 0; i < COUNT(all); i++) test_report(all[i], 2, "    plain: estimated", "-> nlc");
    test_report(spread, 2, "    plain: estimated", "-> ");
    test_report(both, 8, "-> vednn 3x3/1", "-> nlc 432->10");
    return !atomic_load(&check_failed);
}

/* If the library did nothing, results would be wrong. So it was called. */
static bool is_called(void) {
    use_library(true);
    setenv("NLC_IDLE", "1", 1);
    for (int i = 0; i < COUNT(all); i++) {
        struct sol_program *program = compile("ve", all[i], 8);
        if (!CHECK(!is_right(all[i], program, 8))) fprintf(stderr, "    %s", all[i]);
        sol_program_release(program);
    }
    return !atomic_load(&check_failed);
}

static bool refuses(void) {
    use_library(true);
    no_libraries = true;
    test_report(linear, 8, "nlc refuses: a library needs own kernels", "-> plain");
    no_libraries = false;
    test_report(both, 8, "nlc refuses: not a product of matrices", "-> vednn");
    setenv("SOL_DISABLE", "nlc,vednn", 1);
    test_report(linear, 8, "nlc refuses: disabled by SOL_DISABLE", "-> plain");
    return !atomic_load(&check_failed);
}

static void find_row(void *found, const struct sol_info *info) {
    if (!strcmp(info->name, "nlc") && !info->available &&
        strstr(info->detail, "cannot link libcblas and libblas_openmp"))
        ++*(int *)found;
}

static bool works_without_it(void) {
    int found = 0;
    use_library(false);
    test_report(linear, 64, "cannot link libcblas", "-> plain");
    sol_query(find_row, &found);
    return found == 1 && !atomic_load(&check_failed);
}

int main(void) {
    if (check_is_emulated("vector engines")) return check_done();
    for (int i = 0; i < COUNT(input); i++) input[i] = sinf((float)i);
    unsetenv("SOL_VISIBLE_DEVICES");
    unsetenv("SOL_DISABLE");
    CHECK(child_does(is_chosen_by_cost, LIMIT));
    CHECK(child_does(is_called, LIMIT));
    CHECK(child_does(refuses, LIMIT));
    CHECK(child_does(works_without_it, LIMIT));
    return check_done();
}
