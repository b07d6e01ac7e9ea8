/*
 * Long kernels: the time of planning is proportional to the number of layers, and compiling stays within the limit.
 */
#include "check.h"

#include "base/base.h"
#include <math.h>
#include <sol/sol.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char cache[] = "/tmp/sol-test-long-XXXXXX";

static double processor_s(int who) {
    struct rusage usage;
    CHECK(!getrusage(who, &usage));
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* Compiles a model of rows of 40 values to which `step` is applied n times. */
static struct sol_program *compile(int n, sol_tensor (*step)(struct sol_model *m, sol_tensor x)) {
    struct sol_model *m = sol_model_new("long");
    int64_t batch = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 3, (int64_t[]){batch, 8, 40});
    for (int i = 0; i < n; i++) x = step(m, x);
    sol_model_output(m, "y", x);
    struct sol_program *program = NULL;
    const struct sol_options options = {.no_autotune = true};
    CHECK(!sol_compile(m, &options, &program));
    sol_model_free(m);
    return program;
}

static sol_tensor add_silu(struct sol_model *m, sol_tensor x) {
    return sol_model_layer(m, "silu", 1, &x, "", NULL);
}

static sol_tensor add_softmax(struct sol_model *m, sol_tensor x) {
    x = sol_model_layer(m, "softmax", 1, &x, "axis=2", NULL);
    return sol_model_layer(m, "gelu", 1, &x, "", NULL);
}

static sol_tensor add_cut(struct sol_model *m, sol_tensor x) {
    sol_tensor part[] = {sol_model_layer(m, "slice", 1, &x, "axis=2 shape=[7]", NULL),
                         sol_model_layer(m, "slice", 1, &x, "axis=2 start=7 shape=[33]", NULL)};
    part[1] = sol_model_layer(m, "tanh", 1, &part[1], "", NULL);
    return sol_model_layer(m, "concat", 2, part, "axis=2", NULL);
}

/* silu reads its input twice, so a chain of 60 has 2^60 paths. */
static void test_planning(void) {
    double before = processor_s(RUSAGE_SELF);
    setenv("SOL_CC", "none", 1);
    sol_program_release(compile(60, add_silu));
    unsetenv("SOL_CC");
    CHECK(processor_s(RUSAGE_SELF) - before < 1);
}

/* The processor time of compiling the model's kernels with an empty cache, and their number. */
static double measure(int n, sol_tensor (*step)(struct sol_model *m, sol_tensor x),
                      int *n_compiled) {
    static int round;
    char folder[sizeof cache + 16];
    snprintf(folder, sizeof folder, "%s/%d", cache, round++);
    setenv("SOL_CACHE_DIR", folder, 1);
    struct sol_program *program = compile(n, step);
    const double seconds = sol_program_compiler_seconds(program);
    *n_compiled = sol_program_n_compiled(program);
    sol_program_release(program);
    setenv("SOL_CACHE_DIR", cache, 1);
    return seconds;
}

/* The times of one round, relative to that of a pointwise kernel, which is measured before, between and after the others. */
static void measure_round(double *rows, double *cuts) {
    int n_units, n_rows, n_cuts;
    double unit_s = measure(1, add_silu, &n_units);
    const double rows_s = measure(4, add_softmax, &n_rows);
    unit_s += measure(1, add_silu, &n_units);
    const double cuts_s = measure(3, add_cut, &n_cuts);
    unit_s = (unit_s + measure(1, add_silu, &n_units)) / 3;
    CHECK(unit_s > 0 && n_units == 1 && n_cuts > 0);
    *rows = rows_s / unit_s;
    *cuts = cuts_s / unit_s / n_cuts;
}

/* The time to compile kernels. On a busy machine the processor time of a compile varies by half, so of a few rounds one counts. */
static void test_cost(void) {
    double rows = INFINITY, cuts = INFINITY;
    for (int i = 0; i < 5 && (rows >= 12 || cuts >= 5); i++) measure_round(&rows, &cuts);
    if (!CHECK(rows < 12) || !CHECK(cuts < 5)) fprintf(stderr, "    %g %g\n", rows, cuts);
}

/* SOL_DEBUG=time prints the time of the compiler. */
static void test_said(void) {
    char text[4096];
    int pipes[2];
    REQUIRE(!pipe(pipes));
    const int before = dup(STDERR_FILENO);
    dup2(pipes[1], STDERR_FILENO);
    setenv("SOL_DEBUG", "time", 1);
    struct sol_program *program = compile(2, add_silu);
    unsetenv("SOL_DEBUG");
    dup2(before, STDERR_FILENO);
    close(before);
    close(pipes[1]);
    const ssize_t n = read(pipes[0], text, sizeof text - 1);
    text[n < 0 ? 0 : n] = 0;
    close(pipes[0]);
    CHECK(strstr(text, "1 generated kernels, 1 compiled (0 as long ones)"));
    CHECK(strstr(text, "s of processor time of the C compiler"));
    sol_program_release(program);
}

/* A kernel that is long enough for less optimization, and is in the cache afterwards. */
static void test_quick(void) {
    double before = processor_s(RUSAGE_CHILDREN);
    struct sol_program *program = compile(500, add_silu);
    double children_s = processor_s(RUSAGE_CHILDREN) - before;
    CHECK(sol_program_n_compiled(program) > 0);
    CHECK(children_s < 5 * sol_program_n_compiled(program));
    double said_s = sol_program_compiler_seconds(program);
    CHECK(said_s > 0 && said_s < children_s + 0.05);
    sol_program_release(program);
    program = compile(500, add_silu);
    CHECK(!sol_program_n_compiled(program) && sol_program_compiler_seconds(program) == 0);
    sol_program_release(program);
}

int main(void) {
    REQUIRE(mkdtemp(cache) != NULL);
    setenv("SOL_CACHE_DIR", cache, 1);
    test_planning();
    test_cost();
    test_said();
    test_quick();
    const char *const remove[] = {"rm", "-rf", cache, NULL};
    struct os_run run = {.max_s = 10};
    CHECK(!os_spawn(remove, &run, NULL, 0) && !run.code);
    return check_done();
}
