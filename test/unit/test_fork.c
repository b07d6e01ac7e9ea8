/* Forks while other threads call a program: each child makes its own calls, and ends in time. */
#include "check.h"
#include "children.h"

#include <pthread.h>
#include <sol/sol.h>

static struct sol_program *program;
static struct sol_weights *weights;
static atomic_bool stop;

/* Calls with several sizes, each with its own binding. Returns whether all results are correct. */
static bool calls_right(void) {
    const float x[16] = {-1, 2, -3, 4, -5, 6, -7, 8, -9, 10, -11, 12, -13, 14, -15, 16};
    bool right = true;
    for (int64_t n = 1; n <= 16; n += 3) {
        float y[16] = {0};
        right &= !sol_program_run(program, weights, &n, (const void *[]){x}, (void *[]){y});
        for (int64_t i = 0; i < 16; i++) right &= y[i] == (i < n && x[i] > 0 ? x[i] : 0);
    }
    return right;
}

static void *call_often(void *wrong) {
    while (!atomic_load(&stop)) *(int *)wrong += !calls_right();
    return NULL;
}

static void test_forks_among_calls(void) {
    pthread_t callers[3];
    int wrong[3] = {0}, failed = 0;
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_create(&callers[i], NULL, call_often, &wrong[i]));
    for (int i = 0; i < 100 && !failed; i++) failed += !child_does(calls_right, 30);
    atomic_store(&stop, true);
    for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
    CHECK(!failed && !wrong[0] && !wrong[1] && !wrong[2]);
}

int main(void) {
    setenv("SOL_CC", "none", 1);
    const char *text = "model \"m\" {\nsymbol $0 \"n\"\n%0 = input f32[$0] \"x\"\n"
                       "%1 = relu %0\noutput %1 \"y\"\n}\n";
    struct sol_model *model = NULL;
    REQUIRE(!sol_model_parse(text, &model));
    REQUIRE(!sol_compile(model, NULL, &program));
    REQUIRE(!sol_weights_new(program, NULL, &weights));
    sol_model_free(model);
    CHECK(calls_right());
    if (!check_cannot_fork()) test_forks_among_calls();
    sol_weights_release(weights);
    sol_program_release(program);
    return check_done();
}
