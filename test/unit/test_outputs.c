/*
 * Outputs that depend on parameters alone: the caller's memory gets them at every call, also where other layers read
 * them or what is packed depends on them. Each model is run on the CPU and on `ref`, twice, with the memory cleared in between.
 */
#include "check.h"

#include <math.h>
#include <sol/sol.h>

enum { N_MAX = 64 };

/* Lines of a model with input %0 of [2,3], parameter %1 of [3,3], and two outputs of at most N_MAX values. */
static const char *const models[] = {
    "%2 = permute %1 axes=[1,0]\n%3 = exp %2\n%4 = matmul %0 %3\noutput %2 \"a\"\noutput %4 \"b\"\n",
    "%2 = exp %1\n%3 = relu %2\n%4 = add %3 %1\noutput %2 \"a\"\noutput %4 \"b\"\n",
    "%2 = exp %1\n%3 = matmul %0 %2\noutput %2 \"a\"\noutput %3 \"b\"\n",
    "%2 = linear %0 %1\n%3 = sigmoid %1\n%4 = linear %2 %3\noutput %3 \"a\"\noutput %4 \"b\"\n",
    "%2 = softmax %1 axis=1\n%3 = concat %2 %1 axis=1\noutput %2 \"a\"\noutput %3 \"b\"\n",
    "%2 = reshape %1 shape=[9]\n%3 = neg %2\noutput %2 \"a\"\noutput %3 \"b\"\n",
    /* A part of a concat depends on parameters alone; it is written into the call's memory. */
    "%2 = reshape %1 shape=[1,3,3]\n%3 = permute %2 axes=[0,2,1]\n%4 = linear %0 %1\n"
    "%5 = linear %4 %1\n%6 = linear %5 %1\n%7 = reshape %6 shape=[1,2,3]\n%8 = concat %7 %3 %7 axis=1\n"
    "%9 = linear %8 %1\n%10 = linear %9 %1\noutput %10 \"a\"\noutput %9 \"b\"\n",
};

static bool run(const char *lines, const char *device, float out[2][2][N_MAX]) {
    char text[512];
    float x[6], w[9];
    struct sol_model *model = NULL;
    struct sol_program *program = NULL;
    struct sol_weights *weights = NULL;
    struct sol_options options = {.device = device};
    for (int i = 0; i < 6; i++) x[i] = (float)sin(1.7 * i);
    for (int i = 0; i < 9; i++) w[i] = (float)cos(2.3 * i);
    snprintf(text, sizeof text,
             "model \"m\" {\n%%0 = input f32[2,3] \"x\"\n%%1 = param f32[3,3] \"w\"\n%s}\n", lines);
    bool good = !sol_model_parse(text, &model) && !sol_compile(model, &options, &program) &&
                !sol_weights_new(program, (const void *const[]){w}, &weights);
    for (int call = 0; call < 2 && good; call++)
        good = !sol_program_run(program, weights, NULL, (const void *const[]){x},
                                (void *const[]){out[call][0], out[call][1]});
    if (!good) fprintf(stderr, "%s%s\n", lines, sol_error());
    sol_weights_release(weights);
    sol_program_release(program);
    sol_model_free(model);
    return good;
}

int main(void) {
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        float is[2][2][N_MAX] = {0}, should[2][2][N_MAX] = {0};
        if (!CHECK(run(models[m], NULL, is)) || !CHECK(run(models[m], "ref", should))) continue;
        for (int i = 0; i < N_MAX; i++)
            for (int call = 0; call < 2; call++)
                for (int o = 0; o < 2; o++)
                    CHECK(fabsf(is[call][o][i] - should[call][o][i]) < 1e-5f);
    }
    return check_done();
}
