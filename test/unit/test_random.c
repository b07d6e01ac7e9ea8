/*
 * Random numbers: their statistics, and that they have the same bits on all devices, with any number of threads, and in parts of a batch.
 */
#include "check.h"

#include "run/bind.h"
#include "run/micro_batch.h"

#include <sol/sol.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#define N 1000000

static const char *const devices[] = {NULL, "c", "ref"};

static struct sol_program *compile(const char *text, const char *device) {
    struct sol_options options = {.device = device, .no_autotune = true, .batch_hint = 37};
    struct sol_model *m = NULL;
    struct sol_program *program = NULL;
    if (sol_model_parse(text, &m)) printf("%s\n", sol_error());
    REQUIRE(m);
    if (sol_compile(m, &options, &program)) printf("%s\n", sol_error());
    sol_model_free(m);
    REQUIRE(program);
    return program;
}

static struct sol_weights *pack(struct sol_program *program, const void *const *params) {
    struct sol_weights *weights = NULL;
    REQUIRE(!sol_weights_new(program, params, &weights));
    return weights;
}

/* Values of a stream. `shape` has `n` values. */
static void draw(const char *device, int64_t seed, int stream, const char *shape, float *out) {
    char text[200];
    snprintf(text, sizeof text,
             "model \"m\" {\n%%0 = input i64[] \"seed\"\n%%1 = random %%0 shape=[%s] stream=%d\n"
             "output %%1 \"y\"\n}",
             shape, stream);
    struct sol_program *program = compile(text, device);
    struct sol_weights *weights = pack(program, NULL);
    REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){&seed}, (void *[]){out}));
    sol_weights_release(weights);
    sol_program_release(program);
}

/* ---- Statistics ---- */

static float a[N], b[N];

/* The limits are five standard deviations of the statistic. Seed and stream are fixed, so the test always gives the same result. */
static void test_distribution(int64_t seed, int stream) {
    double sum = 0, squares = 0, chi = 0;
    static int count[256];
    memset(count, 0, sizeof count);
    draw(NULL, seed, stream, "1000000", a);
    for (int i = 0; i < N; i++) {
        const double x = (double)a[i];
        REQUIRE(x >= 0 && x < 1 && x * 0x1p24 == floor(x * 0x1p24));
        sum += x;
        squares += (x - 0.5) * (x - 0.5);
        count[(int)(x * 256)]++;
    }
    for (int i = 0; i < 256; i++) {
        const double expected = N / 256.0, d = count[i] - expected;
        chi += d * d / expected;
    }
    CHECK(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    CHECK(fabs(squares / N - 1.0 / 12) < 5 * sqrt(1.0 / 180 / N));
    CHECK(fabs(chi - 255) < 5 * sqrt(2 * 255.0));
}

/* The correlation of x[i] and y[i + lag]. */
static double correlate(const float *x, const float *y, int lag) {
    double sum = 0;
    for (int i = 0; i + lag < N; i++) sum += ((double)x[i] - 0.5) * ((double)y[i + lag] - 0.5);
    return sum / (N - lag) * 12;
}

static void test_independence(int64_t seed, int stream, int64_t other_seed, int other_stream) {
    draw(NULL, seed, stream, "1000000", a);
    draw(NULL, other_seed, other_stream, "1000000", b);
    for (int lag = 0; lag < 3; lag++) CHECK(fabs(correlate(a, b, lag)) < 5 / sqrt(N));
    for (int lag = 1; lag < 4; lag++) CHECK(fabs(correlate(a, a, lag)) < 5 / sqrt(N));
}

/* ---- Equal bits ---- */

static void test_shapes(const char *device) {
    static const char *const shapes[] = {"1000000",       "10,100000", "50,20,1000",
                                         "4,5,5,100,100", "1000000,1", "100000,10"};
    draw("ref", -7, 11, "1000000", a);
    for (int threads = 1; threads <= 7; threads += threads == 1 ? 1 : 5) {
        sol_set_threads(threads);
        for (int i = 0; i < COUNT(shapes); i++) {
            memset(b, 0xff, sizeof b);
            draw(device, -7, 11, shapes[i], b);
            CHECK(!memcmp(a, b, sizeof a));
        }
    }
    sol_set_threads(0);
}

/* ---- Parts of a batch ---- */

static const char network[] =
    "model \"m\" {\nsymbol $0 \"n\"\n%0 = input f32[$0,8,20,20] \"x\"\n%1 = input i64[] \"seed\"\n"
    "%2 = param f32[8,8,3,3] \"v\"\n%3 = param f32[8,8,3,3] \"w\"\n%4 = conv %0 %2 pad=[1,1,1,1]\n"
    "%5 = exp %4\n%6 = conv %5 %2 pad=[1,1,1,1]\n%7 = exp %6\n"
    "%8 = random %1 shape=[$0,8,20,20] stream=1\n%9 = scalar value=0.5\n%10 = less %8 %9\n"
    "%11 = scalar value=0.0\n%12 = where %10 %11 %7\n%13 = conv %12 %3\n%14 = exp %13\n"
    "%15 = conv %14 %3\noutput %12 \"y\"\noutput %15 \"z\"\n}";
enum { BATCH = 37, SAMPLE = 8 * 20 * 20 };

/* Is some step computed for a part of the batch at a time? */
static bool is_divided(const struct sol_program *program) {
    struct binding *binding;
    bool divided = false;
    REQUIRE(!binding_new(program, FORWARD, &(int64_t){BATCH}, &binding));
    for (int i = 0; i < binding->n_sections; i++)
        divided = divided || binding->section[i].micro_batch < BATCH;
    binding_free(binding);
    return divided;
}

/* y is 0 where the random number is below 1/2, and exp elsewhere. */
static void test_division(void) {
    static float x[BATCH * SAMPLE], w[8 * 8 * 9], y[BATCH * SAMPLE], z[BATCH * SAMPLE];
    const int64_t seed = 99, batch = BATCH, cache = micro_batch_cache, step = micro_batch_step;
    draw("ref", seed, 1, "37,8,20,20", a);
    micro_batch_cache = 64 << 10, micro_batch_step = 1;
    struct sol_program *program = compile(network, NULL);
    struct sol_weights *weights = pack(program, (const void *[]){w, w});
    CHECK(is_divided(program));
    REQUIRE(
        !sol_program_run(program, weights, &batch, (const void *[]){x, &seed}, (void *[]){y, z}));
    int wrong = 0;
    for (int i = 0; i < BATCH * SAMPLE; i++) wrong += (y[i] == 0) != (a[i] < 0.5f);
    CHECK(wrong == 0);
    micro_batch_cache = cache, micro_batch_step = step;
    sol_weights_release(weights);
    sol_program_release(program);
}

int main(void) {
    test_distribution(0, 0);
    test_distribution(1, 0);
    test_distribution(INT64_MIN, 1000000000);
    test_independence(0, 0, 0, 1);
    test_independence(1, 5, 2, 5);
    test_independence(1, 5, 1 + ((int64_t)1 << 32), 5);
    test_independence(0, 2, 2, 0);
    for (int i = 0; i < COUNT(devices); i++) test_shapes(devices[i]);
    test_division();
    return check_done();
}
