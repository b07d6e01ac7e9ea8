/*
 * Every allocation fails in turn while a model is parsed, compiled, packed and run, forwards and backwards. Each must return
 * SOL_ENOMEM, leak nothing (run it under ASan), and work again afterwards.
 *
 * mem_fail_at counts down the calls of mem_alloc and mem_realloc on this thread; the n-th one
 * returns NULL. The test increases n until a whole pass needs fewer than n allocations and succeeds.
 */
#include "../unit/check.h"

#include "base/base.h"
#include "device/cpu/cpu.h"
#include "dnn/dnn.h"
#include <sol/sol.h>

extern const struct dnn_impl dnn_onednn;

#define MAX_ALLOCATIONS 100000

/* A network with convolutions that have fused and other neighbours, a concat, a reduction, a linear layer, and a parameter that
 * calls write: the sum of all results. */
static struct sol_model *make_model(void) {
    struct sol_model *m = sol_model_new("fault");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){n, 3, 8, 8});
    sol_tensor w = sol_model_param(m, "w", SOL_F32, 4, (int64_t[]){17, 3, 3, 3});
    sol_tensor v = sol_model_param(m, "v", SOL_F32, 4, (int64_t[]){17, 17, 3, 3});
    sol_tensor b = sol_model_param(m, "b", SOL_F32, 1, (int64_t[]){17});
    sol_tensor u = sol_model_param(m, "u", SOL_F32, 2, (int64_t[]){5, 34});
    sol_tensor y = sol_model_layer(m, "conv", 3, (sol_tensor[]){x, w, b}, "pad=[1,1,1,1]", "net:1");
    y = sol_model_layer(m, "relu", 1, &y, "", "net:2");
    sol_tensor z = sol_model_layer(m, "conv", 2, (sol_tensor[]){y, v}, "pad=[1,1,1,1]", "net:3");
    z = sol_model_layer(m, "add", 2, (sol_tensor[]){z, y}, "", "net:4");
    z = sol_model_layer(m, "silu", 1, &z, "", "net:5");
    z = sol_model_layer(m, "concat", 2, (sol_tensor[]){y, z}, "axis=1", "net:6");
    z = sol_model_layer(m, "mean", 1, &z, "axes=[2,3]", "net:7");
    z = sol_model_layer(m, "linear", 2, (sol_tensor[]){z, u}, "", "net:8");
    sol_model_output(m, "y", z);
    sol_tensor s = sol_model_param(m, "s", SOL_F32, 1, (int64_t[]){5});
    z = sol_model_layer(m, "sum", 1, &z, "axes=[0]", "net:9");
    sol_model_update(m, s, sol_model_layer(m, "add", 2, (sol_tensor[]){s, z}, "", "net:10"));
    return m;
}

#define N_OUT 15 /* the output's values, then the parameter's */

static void fill(float *at, int n, float value) {
    for (int i = 0; i < n; i++) at[i] = value * (float)(i % 7 - 3);
}

/* Parses, compiles, packs and runs. Releases everything, also after an error. */
static enum sol_status live_once(const char *text, const char *device, float y[N_OUT]) {
    static float x[2 * 3 * 64], w[17 * 3 * 9], v[17 * 17 * 9], b[17], u[5 * 34];
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = NULL;
    struct sol_program *p = NULL;
    struct sol_weights *weights = NULL;
    int64_t batch = 2;
    fill(x, COUNT(x), 0.5f), fill(w, COUNT(w), 0.1f), fill(v, COUNT(v), 0.02f);
    fill(b, COUNT(b), 0.2f), fill(u, COUNT(u), 0.1f), fill(y, N_OUT, 1000), fill(y + 10, 5, 1);
    enum sol_status status = sol_model_parse(text, &m);
    if (!status) status = sol_compile(m, &options, &p);
    if (!status) status = sol_weights_new(p, (const void *[]){w, v, b, u, y + 10}, &weights);
    if (!status) status = sol_program_run(p, weights, &batch, (const void *[]){x}, (void *[]){y});
    if (weights) sol_weights_release(weights);
    if (p) sol_program_release(p);
    if (m) sol_model_free(m);
    return status;
}

/* ---- Training ---- */

static struct sol_model *make_joint(void) {
    struct sol_model *m = sol_model_new("training");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){n, 3, 8, 8});
    sol_tensor leaf[2] = {sol_model_param(m, "w", SOL_F32, 4, (int64_t[]){4, 3, 3, 3}),
                          sol_model_param(m, "u", SOL_F32, 2, (int64_t[]){5, 4})};
    sol_tensor y = sol_model_layer(m, "conv", 2, (sol_tensor[]){x, leaf[0]}, "", "net:1");
    y = sol_model_layer(m, "silu", 1, &y, "", "net:2");
    y = sol_model_layer(m, "mean", 1, &y, "axes=[2,3]", "net:3");
    y = sol_model_layer(m, "linear", 2, (sol_tensor[]){y, leaf[1]}, "", "net:4");
    sol_model_output(m, "y", y);
    sol_tensor dy = sol_model_backward_input(m, "dy", y), dx[2] = {0};
    sol_model_gradients(m, 1, &y, &dy, 2, leaf, dx);
    for (int i = 0; i < 2; i++) sol_model_backward_output(m, i ? "du" : "dw", dx[i]);
    return m;
}

static float learned[4 * 27], learned_u[5 * 4];

/* Forward, backward, a step of the parameters, and forward again. */
static enum sol_status train(struct sol_program *p, struct sol_weights **weights, void *saved,
                             float *y) {
    static float x[2 * 3 * 64], dy[2 * 5], dw[COUNT(learned)], du[COUNT(learned_u)];
    const int64_t batch = 2;
    fill(x, COUNT(x), 0.5f), fill(dy, COUNT(dy), 0.3f);
    const void *in[] = {x, dy}, *params[] = {learned, learned_u};
    void *out[] = {y, dw, du};
    TRY(sol_program_forward(p, *weights, &batch, in, out, saved));
    TRY(sol_program_backward(p, *weights, &batch, in, out, saved));
    for (int i = 0; i < COUNT(dw); i++) learned[i] -= dw[i];
    for (int i = 0; i < COUNT(du); i++) learned_u[i] -= du[i];
    TRY(sol_weights_update(weights, params));
    return sol_program_forward(p, *weights, &batch, in, out, saved);
}

static enum sol_status train_once(const char *text, const char *device, float y[N_OUT]) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = NULL;
    struct sol_program *p = NULL;
    struct sol_weights *weights = NULL;
    size_t size = 0;
    void *saved = NULL;
    fill(learned, COUNT(learned), 0.1f), fill(learned_u, COUNT(learned_u), 0.2f);
    fill(y, N_OUT, 1000), fill(y + 10, 5, 1);
    enum sol_status status = sol_model_parse(text, &m);
    if (!status) status = sol_compile(m, &options, &p);
    if (!status) status = sol_weights_new(p, (const void *[]){learned, learned_u}, &weights);
    if (!status) status = sol_program_saved_size(p, &(int64_t){2}, &size);
    REQUIRE(!posix_memalign(&saved, 64, size + 1));
    if (!status) status = train(p, &weights, saved, y);
    if (weights) sol_weights_release(weights);
    if (p) sol_program_release(p);
    if (m) sol_model_free(m);
    free(saved);
    return status;
}

/* ---- Failures ---- */

typedef enum sol_status live_fn(const char *text, const char *device, float y[N_OUT]);

/* A pass that fails may have written outputs, but not the parameter. */
static bool is_unchanged(const float y[N_OUT]) {
    float before[5];
    fill(before, 5, 1);
    return !memcmp(before, y + 10, sizeof before);
}

/* After a failed allocation another way may be taken (a cache that cannot be read is built again), so
 * rounding may differ. */
static bool is_close(const float *a, const float *b) {
    for (int i = 0; i < N_OUT; i++)
        if (!(a[i] - b[i] < 1e-4f && b[i] - a[i] < 1e-4f)) return false;
    return true;
}

/* After a failed allocation the call may also succeed, with the correct result. Any other error than
 * ENOMEM is a failure. */
static void test_allocations(live_fn *live, const char *text, const char *device) {
    float expected[N_OUT], y[N_OUT];
    long n = 0, survived = 0;
    bool failed = true;
    if (!CHECK(!live(text, device, expected))) printf("%s: %s\n", device, sol_error());
    while (failed && n < MAX_ALLOCATIONS) {
        mem_fail_at = ++n;
        enum sol_status status = live(text, device, y);
        failed = mem_fail_at == 0;
        mem_fail_at = 0;
        bool right =
            status ? status == SOL_ENOMEM && failed && is_unchanged(y) : is_close(y, expected);
        if (!CHECK(right))
            printf("%s: allocation %ld: %s\n", device, n, status ? sol_error() : "wrong result");
        survived += failed && !status;
    }
    CHECK(!failed && n > 10);
    printf("%s, %s: %ld allocations failed in turn, %ld did not matter\n", device,
           live == train_once ? "training" : "inference", n - 1, survived);
    CHECK(!live(text, device, y) && is_close(y, expected));
}

/* The builder's functions return no status: after an error, sol_model_check returns it. */
static void test_builder(struct sol_model *make(void)) {
    long n = 0;
    bool failed = true;
    while (failed && n < MAX_ALLOCATIONS) {
        mem_fail_at = ++n;
        struct sol_model *m = make();
        failed = !m || sol_model_check(m);
        mem_fail_at = 0;
        if (m) sol_model_free(m);
    }
    CHECK(!failed);
    printf("builder: %ld allocations failed in turn\n", n - 1);
}

/* The same, with a vendor's library for all layers that it accepts. */
static void test_library(const char *text, const char *own_and_others) {
    setenv("SOL_DISABLE", own_and_others, 1);
    test_allocations(live_once, text, CPU_NAME);
    unsetenv("SOL_DISABLE");
}

static char *print(struct sol_model *m) {
    REQUIRE(m && !sol_model_check(m));
    char *text = sol_model_print(m);
    sol_model_free(m);
    REQUIRE(text);
    return text;
}

int main(void) {
    sol_set_threads(1); /* so all allocations are on this thread */
    char *text = print(make_model()), *joint = print(make_joint());
    test_builder(make_model);
    test_builder(make_joint);
    test_allocations(live_once, text, "ref");
    test_allocations(live_once, text, CPU_NAME);
    test_allocations(train_once, joint, CPU_NAME);
    bool available = false;
    dnn_onednn.probe(&available);
    if (available) test_library(text, "winograd4,winograd2,grouped,direct,linear,openblas");
    else printf("skipped: no oneDNN here\n");
    free(text), free(joint);
    return check_done();
}
