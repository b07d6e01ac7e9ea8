/*
 * src/device/null: the skeleton of a device makes steps and kernels for all modules, and computes nothing.
 *
 * sol_compile refuses this device, so the test calls compile_for.
 */
#include "check.h"
#include "compile.h"

/* One layer for each module: linear for DNN, softmax for DFP, permute for COPY, gather for GATHER. */
static const char model_text[] = "model \"m\" {\n"
                                 "%0 = input f32[4,8] \"x\"\n"
                                 "%1 = param f32[6,8] \"w\"\n"
                                 "%2 = input i64[3] \"rows\"\n"
                                 "%3 = linear %0 %1\n"
                                 "%4 = softmax %3 axis=1\n"
                                 "%5 = gather %4 %2 axis=0\n"
                                 "%6 = permute %4 axes=[1,0]\n"
                                 "output %5 \"taken\"\n"
                                 "output %6 \"turned\"\n"
                                 "}\n";

static int count_steps(const struct sol_program *program, const char *module) {
    int n = 0;
    for (int i = 0; i < program->phase[FORWARD].n; i++)
        n += !strcmp(program->phase[FORWARD].at[i].module, module);
    return n;
}

static void check_run(const struct sol_program *program) {
    struct sol_weights *weights = NULL;
    float x[4 * 8] = {0}, w[6 * 8] = {0}, taken[3 * 6], turned[6 * 4];
    int64_t rows[] = {0, 3, 1};
    REQUIRE(!sol_weights_new(program, (const void *const[]){w}, &weights));
    for (int i = 0; i < program->phase[FORWARD].n; i++) {
        const struct step *step = &program->phase[FORWARD].at[i];
        if (!strcmp(step->module, "DFP"))
            CHECK(((const struct kernel *)step->data)->compiled != NULL);
    }
    CHECK(!sol_program_run(program, weights, NULL, (const void *const[]){x, rows},
                           (void *const[]){taken, turned}));
    sol_weights_release(weights);
}

static void test_modules(void) {
    struct sol_model *user = NULL;
    struct sol_program *program = NULL;
    struct sol_options options = {0};
    REQUIRE(!sol_model_parse(model_text, &user));
    if (CHECK(!compile_for(&device_null, user, &options, &program))) {
        CHECK(count_steps(program, "DNN") == 1 && count_steps(program, "DFP") > 0);
        CHECK(count_steps(program, "copy") == 1 && count_steps(program, "gather") == 1);
        check_run(program);
    } else {
        fprintf(stderr, "    %s\n", sol_error());
    }
    sol_program_release(program);
    sol_model_free(user);
}

static void test_refusal(void) {
    const struct device *device;
    CHECK(device_find("null", &device) == SOL_EDEVICE && strstr(sol_error(), "computes nothing"));
    CHECK(!device_find(NULL, &device) && device != &device_null);
}

int main(void) {
    test_modules();
    test_refusal();
    return check_done();
}
