/*
 * Rows by indices: gather and scatter_sum, on all devices. Indices that select no row fail the call; sums have the same bits with any
 * number of threads.
 */
#include "check.h"

#include "base/base.h"
#include "run/micro_batch.h"

#include <sol/deploy.h>
#include <sol/sol.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const devices[] = {NULL, "c", "ref"};
static struct sol_program *program;
static struct sol_weights *weights;

static void start(const char *text, const char *device) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = NULL;
    if (sol_model_parse(text, &m)) printf("%s\n", sol_error());
    REQUIRE(m);
    if (sol_compile(m, &options, &program)) printf("%s\n", sol_error());
    sol_model_free(m);
    REQUIRE(program && !sol_weights_new(program, NULL, &weights));
}

static void stop(void) {
    sol_weights_release(weights);
    sol_program_release(program);
    program = NULL;
}

/* ---- Errors ---- */

/* y[r] is the sum of x[j] over the indices j that are r. The output has 3 rows. */
static void test_errors(const char *device, bool wraps) {
    char text[200];
    float x[2] = {1, 2}, y[3];
    snprintf(text, sizeof text,
             "model \"m\" {\n%%0 = input f32[2] \"x\"\n%%1 = input i32[2] \"at\"\n"
             "%%2 = scatter_sum %%0 %%1 shape=[3] wraps=%s\noutput %%2 \"y\"\n}",
             wraps ? "true" : "false");
    start(text, device);
    for (int32_t i = -5; i < 5; i++) {
        const bool is_row = i < 3 && i >= (wraps ? -3 : 0);
        const int32_t at[2] = {1, i};
        const enum sol_status status =
            sol_program_run(program, weights, NULL, (const void *[]){x, at}, (void *[]){y});
        CHECK(status == (is_row ? SOL_OK : SOL_EINDEX));
        if (status)
            CHECK(strstr(sol_error(), "scatter_sum: number") && strstr(sol_error(), "3 rows"));
        else CHECK(y[(i + 3) % 3] == (i == 1 || i == -2 ? 3 : 2));
    }
    stop();
}

/* Without rows, or without columns, indices are checked as well. */
static void test_empty(const char *device) {
    const int64_t at[2] = {0, 1};
    float x[2], y[2] = {7, 7};
    start("model \"m\" {\n%0 = input f32[2,0] \"x\"\n%1 = input i64[2] \"at\"\n"
          "%2 = scatter_sum %0 %1 shape=[1]\noutput %2 \"y\"\n}",
          device);
    CHECK(sol_program_run(program, weights, NULL, (const void *[]){x, at}, (void *[]){y}) ==
          SOL_EINDEX);
    stop();
    start("model \"m\" {\nsymbol $0 \"n\"\n%0 = input f32[$0] \"x\"\n%1 = input i64[$0] \"at\"\n"
          "%2 = scatter_sum %0 %1 shape=[2]\noutput %2 \"y\"\n}",
          device);
    REQUIRE(
        !sol_program_run(program, weights, &(int64_t){0}, (const void *[]){x, at}, (void *[]){y}));
    CHECK(y[0] == 0 && y[1] == 0);
    stop();
}

/* ---- Threads ---- */

enum { WORDS = 700, WIDTH = 300, ROWS = 1000 };

/* Few rows with many indices, and many rows; each with sums that depend on the order of their terms. */
static void test_threads(int rows) {
    static float x[WORDS * WIDTH], y[ROWS * WIDTH], first[ROWS * WIDTH];
    static int64_t at[WORDS];
    char text[200];
    uint32_t state = 1;
    for (int i = 0; i < COUNT(x); i++)
        x[i] = (float)((state = state * 1664525u + 1013904223u) >> 8);
    for (int i = 0; i < WORDS; i++) at[i] = i * i % (rows / 2 + 1) - rows / 2;
    snprintf(text, sizeof text,
             "model \"m\" {\n%%0 = input f32[%d,%d] \"x\"\n%%1 = input i64[%d] \"at\"\n"
             "%%2 = scatter_sum %%0 %%1 shape=[%d]\noutput %%2 \"y\"\n}",
             WORDS, WIDTH, WORDS, rows);
    start(text, NULL);
    for (int threads = 1; threads <= 7; threads += threads == 1 ? 1 : 5) {
        sol_set_threads(threads);
        memset(y, 0xff, sizeof y);
        REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){x, at}, (void *[]){y}));
        if (threads == 1) memcpy(first, y, sizeof y);
        CHECK(!memcmp(first, y, sizeof *y * (size_t)rows * WIDTH));
    }
    for (int c = 0; c < WIDTH; c++) {
        float sum = 0;
        for (int j = 0; j < WORDS; j++)
            if ((at[j] + rows) % rows == rows - 1) sum += x[j * WIDTH + c];
        CHECK(first[(rows - 1) * WIDTH + c] == sum);
    }
    sol_set_threads(0);
    stop();
}

/* ---- Indices with gaps ---- */

/* The last two of four indices of each sample. */
static void test_gaps(const char *device) {
    const float table[5] = {0, 1, 2, 3, 4};
    const int64_t at[8] = {0, 1, 2, 3, 4, 3, 1, 0}, batch = 2;
    float y[4], z[5];
    start(
        "model \"m\" {\nsymbol $0 \"n\"\n%0 = input f32[5] \"table\"\n%1 = input i64[$0,4] \"at\"\n"
        "%2 = slice %1 axis=1 start=2 shape=[2]\n%3 = gather %0 %2\n%4 = exp %3\n"
        "%5 = scatter_sum %3 %2 shape=[5]\noutput %3 \"y\"\noutput %5 \"z\"\n}",
        device);
    REQUIRE(
        !sol_program_run(program, weights, &batch, (const void *[]){table, at}, (void *[]){y, z}));
    CHECK(y[0] == 2 && y[1] == 3 && y[2] == 1 && y[3] == 0);
    CHECK(z[0] == 0 && z[1] == 1 && z[2] == 2 && z[3] == 3 && z[4] == 0);
    stop();
}

/* An index that is a constant. */
static void test_constant(const char *device) {
    const float table[5] = {0, 1, 2, 3, 4};
    float y, z[4];
    start(
        "model \"m\" {\n%0 = input f32[5] \"table\"\n%1 = scalar value=3.0 dtype=i64\n"
        "%2 = gather %0 %1\n%3 = scatter_sum %2 %1 shape=[4]\noutput %2 \"y\"\noutput %3 \"z\"\n}",
        device);
    REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){table}, (void *[]){&y, z}));
    CHECK(y == 3 && z[0] == 0 && z[3] == 3);
    stop();
}

/* ---- Parts of a batch ---- */

/* Values that are placed along an open batch stay at their samples, also where others are computed in parts. */
static void test_placed(void) {
    enum { BATCH = 40, WIDTH_OF_SAMPLE = 500 };
    static float x[3 * WIDTH_OF_SAMPLE], a[BATCH * WIDTH_OF_SAMPLE], y[BATCH * WIDTH_OF_SAMPLE];
    const int64_t batch = BATCH, cache = micro_batch_cache, least = micro_batch_step;
    int wrong = 0;
    for (int i = 0; i < COUNT(x); i++) x[i] = (float)(i + 1);
    micro_batch_cache = 4 << 10, micro_batch_step = 1;
    start(
        "model \"m\" {\nsymbol $0 \"n\"\n%0 = input f32[3,500] \"x\"\n%1 = input f32[$0,500] \"a\"\n"
        "%2 = cumsum %1 axis=1\n%3 = place %0 axis=0 start=1 step=3 shape=[$0]\n%4 = add %2 %3\n"
        "%5 = cumsum %4 axis=1\n%6 = sub %5 %2\noutput %6 \"y\"\n}",
        NULL);
    REQUIRE(!sol_program_run(program, weights, &batch, (const void *[]){x, a}, (void *[]){y}));
    for (int i = 0; i < BATCH; i++) {
        const bool is_placed = i % 3 == 1 && i < 9;
        wrong += y[i * WIDTH_OF_SAMPLE] != (is_placed ? x[i / 3 * WIDTH_OF_SAMPLE] : 0);
    }
    CHECK(wrong == 0);
    micro_batch_cache = cache, micro_batch_step = least;
    stop();
}

/* ---- Libraries ---- */

static const char network[] =
    "model \"m\" {\n%0 = input f32[2,5,3] \"x\"\n%1 = input i32[2,5] \"at\"\n%2 = input i64[] \"seed\"\n"
    "%3 = scatter_sum %0 %1 axis=1 shape=[4]\n%4 = random %2 shape=[2,4,3] stream=5\n"
    "%5 = add %3 %4\n%6 = place %5 axis=1 start=1 step=2 shape=[9]\n"
    "%7 = reshape %0 shape=[1,2,5,3]\n%8 = max_pool_index %7 kernel=[2,2] pad=[1,1,1,1]\n"
    "output %6 \"y\"\noutput %8 \"i\"\n}";

typedef void library_call(void *ctx, const void *x, const void *at, const void *seed, float **y,
                          int32_t **i);

/* Random numbers and positions, and sums of few terms, have the same bits as those of the program. */
static void test_library(const char *folder, enum sol_target target) {
    static const char build[] =
        "cc -std=c99 -O1 -Wall -Wextra -Werror -shared -fPIC -o %s/libRows.so "
        "%s/Rows.c -lm";
    float x[30], y[54], *y_library = NULL;
    int32_t at[10], i[48], *i_library = NULL;
    const int64_t seed = 1234567890123;
    char path[300], command[800];
    struct sol_library library = {.lib_name = "Rows", .func_name = "run_rows", .path = folder};
    struct sol_model *m = NULL;
    library.target = target;
    library.device = target == SOL_C_SOURCE ? "c" : NULL;
    for (int k = 0; k < 30; k++) x[k] = (float)((k * 7) % 30);
    for (int k = 0; k < 10; k++) at[k] = k * 3 % 8 - 4;
    start(network, NULL);
    REQUIRE(
        !sol_program_run(program, weights, NULL, (const void *[]){x, at, &seed}, (void *[]){y, i}));
    stop();
    REQUIRE(!sol_model_parse(network, &m));
    if (!CHECK(!sol_deploy(m, NULL, &library))) printf("%s\n", sol_error());
    sol_model_free(m);
    snprintf(command, sizeof command, build, folder, folder);
    if (target == SOL_C_SOURCE) REQUIRE(!system(command));
    snprintf(path, sizeof path, "%s/libRows.so", folder);
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(opened);
    library_call *call;
    void *found = dlsym(opened, "run_rows");
    REQUIRE(found);
    memcpy(&call, &found, sizeof call); /* ISO C has no conversion to a function pointer */
    call(NULL, x, at, &seed, &y_library, &i_library);
    REQUIRE(y_library && i_library);
    CHECK(!memcmp(y, y_library, sizeof y) && !memcmp(i, i_library, sizeof i));
    at[9] = 4;
    free(y_library);
    free(i_library);
    y_library = NULL, i_library = NULL;
    call(NULL, x, at, &seed, &y_library, &i_library);
    CHECK(!y_library); /* no such row */
}

static void test_libraries(void) {
    char folder[2][32] = {"/tmp/sol_rows_XXXXXX", "/tmp/sol_rows_XXXXXX"}, command[100];
    for (int k = 0; k < 2; k++) {
        REQUIRE(mkdtemp(folder[k]));
        test_library(folder[k], k ? SOL_C_SOURCE : SOL_SHARED_LIB);
        snprintf(command, sizeof command, "rm -r %s", folder[k]);
        CHECK(!system(command));
    }
}

int main(void) {
    for (int i = 0; i < COUNT(devices); i++) {
        test_errors(devices[i], true);
        test_errors(devices[i], false);
        test_empty(devices[i]);
        test_gaps(devices[i]);
        test_constant(devices[i]);
    }
    test_threads(2);
    test_threads(ROWS);
    test_placed();
    test_libraries();
    return check_done();
}
