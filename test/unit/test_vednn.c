/*
 * src/device/ve/vednn.c: products of vector engines by VEDNN, with the stand-ins of test/veda for it and for libveda.
 *
 * Each case is a child, as a process opens libveda, and asks whether VEDNN can be linked, once. Needs a C compiler.
 */
#include "check.h"
#include "children.h"
#include "device/device.h"

#include <math.h>
#include <sol/sol.h>

#define LIMIT 120 /* seconds of a case */

static bool no_libraries; /* the option */

static float input[1 << 16], is[1 << 16], should[1 << 16];

/* ---- Programs ---- */

static struct sol_program *compile(const char *device, const char *text, int64_t batch_hint) {
    struct sol_options options = {
        .device = device, .batch_hint = batch_hint, .no_libraries = no_libraries};
    struct sol_program *program = NULL;
    struct sol_model *model = NULL;
    if (!CHECK(!sol_model_parse(text, &model)) || !CHECK(!sol_compile(model, &options, &program)))
        fprintf(stderr, "%s%s\n", text, sol_error());
    sol_model_free(model);
    REQUIRE(program);
    return program;
}

static void run(struct sol_program *program, int64_t batch, float *out) {
    const void *const all[] = {input, input + 1000, input + 2000};
    struct sol_weights *weights = NULL;
    memset(out, 0, sizeof is);
    if (!CHECK(!sol_weights_new(program, all, &weights) &&
               !sol_program_run(program, weights, &batch, all, (void *const[]){out})))
        fprintf(stderr, "%s\n", sol_error());
    sol_weights_release(weights);
}

/* A sum of products in another order. */
static bool is_right(const char *text, struct sol_program *program, int64_t batch) {
    struct sol_program *ref = compile("ref", text, 1);
    int wrong = 0;
    run(program, batch, is);
    run(ref, batch, should);
    sol_program_release(ref);
    for (int i = 0; i < COUNT(is); i++)
        wrong += !(fabsf(is[i] - should[i]) <= 1e-4f * (1 + fabsf(should[i])));
    return !wrong;
}

/* Does the report of the program, compiled for this batch, have these words? Are the results right for several batches? */
static void test_report(const char *text, int64_t batch_hint, const char *first,
                        const char *second) {
    struct sol_program *program = compile("ve", text, batch_hint);
    const char *report = sol_program_report(program);
    if (!CHECK(strstr(report, first) && strstr(report, second)))
        fprintf(stderr, "    no \"%s\" or \"%s\" in\n%s", first, second, report);
    for (int64_t batch = 0; batch < 12; batch += 1 + 2 * batch)
        if (!CHECK(is_right(text, program, batch)))
            fprintf(stderr, "    batch %d of\n%s", (int)batch, text);
    sol_program_release(program);
}

/* ---- Models ---- */

#define MODEL(inputs, layers) "model \"m\" {\nsymbol $0 \"n\"\n" inputs layers "}\n"
#define IMAGES "%0 = input f32[$0,8,9,11] \"x\"\n"

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

static void use_library(bool is_there) {
    char path[1024], compiler[2100];
    check_path("libveda.so", path, sizeof path);
    setenv("SOL_VEDA", path, 1);
    *strrchr(path, '/') = 0;
    snprintf(compiler, sizeof compiler, "cc -L%s -Wl,-rpath,%s", path, path);
    setenv("SOL_NCC", is_there ? compiler : "cc", 1);
    setenv("SOL_FAR", "latency=0,threads=3", 1);
}

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
    setenv("SOL_DISABLE", "vednn", 1);
    test_report(conv, 8, "vednn refuses: disabled by SOL_DISABLE", "-> plain");
    return !atomic_load(&check_failed);
}

/* If the library did nothing, results would be wrong. So it was called, but not where samples have gaps. */
static bool is_called(void) {
    use_library(true);
    setenv("VEDNN_RESULT", "-1", 1);
    const char *const models[] = {conv, bare, linear, gradient};
    for (int i = 0; i < COUNT(models); i++) {
        struct sol_program *program = compile("ve", models[i], 8);
        CHECK(!is_right(models[i], program, 8));
        sol_program_release(program);
    }
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

static void find_row(void *found, const struct sol_info *info) {
    if (!strcmp(info->name, "vednn") && !info->available &&
        strstr(info->detail, "cannot link libvednn_openmp"))
        ++*(int *)found;
}

static bool works_without_it(void) {
    int found = 0;
    use_library(false);
    test_report(conv, 8, "cannot link libvednn_openmp", "-> plain");
    test_report(linear, 64, "cannot link libvednn_openmp", "-> plain");
    sol_query(find_row, &found);
    return found == 1 && !atomic_load(&check_failed);
}

int main(void) {
    if (check_is_emulated("vector engines")) return check_done();
    for (int i = 0; i < COUNT(input); i++) input[i] = sinf((float)i);
    unsetenv("SOL_VISIBLE_DEVICES");
    unsetenv("SOL_DISABLE");
    CHECK(child_does(is_chosen_by_cost, LIMIT));
    CHECK(child_does(refuses, LIMIT));
    CHECK(child_does(is_called, LIMIT));
    CHECK(child_does(survives_errors, LIMIT));
    CHECK(child_does(works_without_it, LIMIT));
    return check_done();
}
