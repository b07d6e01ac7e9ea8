/* Host layers: functions of the frontend in models and programs, on all devices; their errors, effects, references, and threads. */
#include "check.h"
#include "children.h"

#include "base/base.h"
#include "ir/ir.h"
#include "pass/pass.h"
#include "run/micro_batch.h"

#include <pthread.h>
#include <sol/deploy.h>
#include <sol/sol.h>

#define PIXELS 36
#define CHANNELS 8

/* What the functions of a model have done. */
struct record {
    atomic_int n_calls, n_released;
    int order[8], n_order;
    int64_t fails_at; /* the batch for which `halve` fails */
    enum sol_status status;
    const char *message;
};
struct user {
    struct record *record;
    int number;
};

static void release(void *user) {
    struct user *u = user;
    atomic_fetch_add(&u->record->n_released, 1);
    free(u);
}

static void *new_user(struct record *record, int number) {
    struct user *u = malloc(sizeof *u);
    REQUIRE(u);
    *u = (struct user){record, number};
    return u;
}

static int64_t count(const struct sol_host_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= t->dim[d];
    return n;
}

/* out[0] = in[0] / 2, out[1] = the sum of each sample of in[0] */
static enum sol_status halve(void *user, const struct sol_host_call *call) {
    struct record *record = ((struct user *)user)->record;
    const float *x = call->in[0].data;
    float *half = call->out[0].data, *sum = call->out[1].data;
    const int64_t n = call->in[0].dim[0], size = n ? count(&call->in[0]) / n : 0;
    atomic_fetch_add(&record->n_calls, 1);
    bool fits = call->n_in == 1 && call->n_out == 2 && call->n_symbols == 1 &&
                call->symbol[0] == n && call->out[1].dim[0] == n && call->out[1].rank == 1 &&
                call->in[0].dtype == SOL_F32 && count(&call->out[0]) == count(&call->in[0]);
    if (!fits || n == record->fails_at) {
        if (record->message) strcpy(call->message, record->message);
        return fits ? record->status : SOL_EBUG;
    }
    for (int64_t i = 0; i < n; i++) sum[i] = 0;
    for (int64_t i = 0; i < n * size; i++) half[i] = x[i] / 2, sum[i / size] += x[i];
    return SOL_OK;
}

/* out[0] = in[0] + in[1] + ..; notes the order of calls */
static enum sol_status add_all(void *user, const struct sol_host_call *call) {
    struct user *u = user;
    atomic_fetch_add(&u->record->n_calls, 1);
    if (u->record->n_order < 8) u->record->order[u->record->n_order++] = u->number;
    float *y = call->out[0].data;
    for (int64_t i = 0; i < count(&call->out[0]); i++) {
        y[i] = 0;
        for (int k = 0; k < call->n_in; k++)
            y[i] += ((const float *)call->in[k].data)[count(&call->in[k]) == 1 ? 0 : i];
    }
    return SOL_OK;
}

static int new_host(struct sol_model *m, struct record *record, int number) {
    return sol_model_host(m,
                          &(struct sol_host){number ? "add_all" : "halve", number ? add_all : halve,
                                             new_user(record, number), release});
}

/* conv, relu, halve, conv: the first output is read by the second conv, the second one is an output of the model. */
static struct sol_model *make_network(struct record *record) {
    struct sol_model *m = sol_model_new("network");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 4, (int64_t[]){n, CHANNELS, 6, 6});
    sol_tensor w = sol_model_param(m, "w", SOL_F32, 4, (int64_t[]){CHANNELS, CHANNELS, 1, 1});
    sol_tensor half[2];
    int host = new_host(m, record, 0);
    sol_tensor y = sol_model_layer(m, "conv", 2, (sol_tensor[]){x, w}, "", "net:1");
    y = sol_model_layer(m, "relu", 1, &y, "", "net:2");
    sol_model_host_layer(m, host, 1, &y, "f32[$0,8,6,6] f32[$0]", "pure=true", "net:3", 2, half);
    y = sol_model_layer(m, "conv", 2, (sol_tensor[]){half[0], w}, "", "net:4");
    sol_model_output(m, "y", y);
    sol_model_output(m, "sum", half[1]);
    return m;
}

static float weight[CHANNELS * CHANNELS], image[16 * CHANNELS * PIXELS];

static void fill(void) {
    for (int i = 0; i < COUNT(weight); i++) weight[i] = (float)(i % 5 - 2);
    for (int i = 0; i < COUNT(image); i++) image[i] = (float)(i % 11 - 4);
}

/* What the network computes, in plain loops. All values are small integers or halves, so sums are exact. */
static bool is_right(int64_t n, const float *y, const float *sum) {
    for (int64_t i = 0; i < n; i++)
        for (int p = 0; p < PIXELS; p++) {
            const float *x = image + i * CHANNELS * PIXELS + p;
            float middle[CHANNELS];
            for (int k = 0; k < CHANNELS; k++) {
                middle[k] = 0;
                for (int c = 0; c < CHANNELS; c++)
                    middle[k] += weight[k * CHANNELS + c] * x[c * PIXELS];
                middle[k] = middle[k] > 0 ? middle[k] / 2 : 0;
            }
            for (int k = 0; k < CHANNELS; k++) {
                float expected = 0;
                for (int c = 0; c < CHANNELS; c++) expected += weight[k * CHANNELS + c] * middle[c];
                if (y[(i * CHANNELS + k) * PIXELS + p] != expected) return false;
            }
            if (sum[i] < 0) return false;
        }
    return true;
}

static struct sol_program *program;
static struct sol_weights *weights;
static float y_out[16 * CHANNELS * PIXELS], sum_out[16];

static void prepare(struct record *record, const char *device) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = make_network(record);
    REQUIRE(!sol_compile(m, &options, &program));
    sol_model_free(m);
    REQUIRE(!sol_weights_new(program, (const void *[]){weight}, &weights));
}

static void finish(void) {
    sol_weights_release(weights);
    sol_program_release(program);
}

static enum sol_status run(int64_t n, float *y, float *sum) {
    return sol_program_run(program, weights, &n, (const void *[]){image}, (void *[]){y, sum});
}

static void test_devices(void) {
    static const char *const devices[] = {NULL, "c", "ref"};
    for (int d = 0; d < COUNT(devices); d++) {
        struct record record = {.fails_at = -1};
        prepare(&record, devices[d]);
        for (int64_t n = 0; n <= 16; n += n < 2 ? 1 : 7) {
            CHECK(!run(n, y_out, sum_out));
            CHECK(is_right(n, y_out, sum_out));
        }
        CHECK(record.n_calls == 5 && !record.n_released);
        if (!devices[d]) CHECK(strstr(sol_program_report(program), "host: halve (net:3)"));
        finish();
        CHECK(record.n_released == 1);
    }
}

static void note_module(void *user, const struct sol_step_time *step) {
    if (!strcmp(step->module, "host")) *(int *)user += !strcmp(step->name, "halve");
}

static void test_profile(void) {
    struct record record = {.fails_at = -1};
    int n = 0;
    prepare(&record, NULL);
    CHECK(!sol_program_profile(program, weights, (int64_t[]){3}, (const void *[]){image},
                               (void *[]){y_out, sum_out}, note_module, &n));
    CHECK(n == 1 && is_right(3, y_out, sum_out));
    char *dot = sol_program_dot(program);
    CHECK(dot && strstr(dot, "label=\"host\"") && strstr(dot, "halve"));
    free(dot);
    finish();
}

/* A batch that is divided: the function still gets all samples at once. */
static void test_micro_batches(void) {
    struct record record = {.fails_at = -1};
    int64_t cache = micro_batch_cache, step = micro_batch_step;
    micro_batch_cache = 4096, micro_batch_step = 1;
    prepare(&record, NULL);
    CHECK(!run(16, y_out, sum_out) && is_right(16, y_out, sum_out));
    CHECK(record.n_calls == 1);
    finish();
    micro_batch_cache = cache, micro_batch_step = step;
}

/* ---- Errors ---- */

static void test_failure(void) {
    static const char *const devices[] = {NULL, "c", "ref"};
    for (int d = 0; d < COUNT(devices); d++) {
        struct record record = {.fails_at = 5, .status = SOL_EINVAL, .message = "index 7 of 3"};
        prepare(&record, devices[d]);
        CHECK(run(5, y_out, sum_out) == SOL_EINVAL);
        CHECK_TEXT(sol_error(), "halve (net:3): index 7 of 3");
        CHECK(!run(4, y_out, sum_out) && is_right(4, y_out, sum_out));
        record.status = (enum sol_status)99, record.message = NULL;
        CHECK(run(5, y_out, sum_out) == SOL_EDEVICE);
        CHECK_TEXT(sol_error(), "halve (net:3): the function failed");
        finish();
    }
}

static const char *const text =
    "model \"m\" {\n"
    "  symbol $0 \"n\"\n"
    "  host @0 \"aten.\\\"sort\\\"\"\n"
    "  host @1 \"print\"\n"
    "  %0 = input f32[$0,4] \"x\"\n"
    "  %1, %2 = host @0 f32[$0,4] i64[2*$0+1] %0 pure=true # \"net:1\"\n"
    "  %3 = host @1 f32[] effects=true\n"
    "  %4 = relu %1\n"
    "  output %4 \"y\"\n"
    "}\n";

static void test_text(void) {
    struct sol_model *m = NULL;
    struct sol_program *p = NULL;
    struct sol_weights *w = NULL;
    float x[4] = {0}, y[4];
    REQUIRE(!sol_model_parse(text, &m));
    char *again = sol_model_print(m);
    CHECK_TEXT(again, text);
    free(again);
    CHECK(!sol_model_check(m));
    REQUIRE(!sol_compile(m, NULL, &p) && !sol_weights_new(p, NULL, &w));
    CHECK(sol_program_run(p, w, (int64_t[]){1}, (const void *[]){x}, (void *[]){y}) ==
          SOL_EUNSUPPORTED);
    CHECK(strstr(sol_error(), "print: a model that was read from text has no such function"));
    sol_weights_release(w);
    sol_program_release(p);
    sol_model_free(m);
}

static void refuse(const char *line, const char *message) {
    char whole[512];
    struct sol_model *m = NULL;
    snprintf(whole, sizeof whole,
             "model \"m\" {\nsymbol $0 \"n\"\nhost @0 \"f\"\n%%0 = input f32[$0,4] \"x\"\n%s\n}\n",
             line);
    CHECK(sol_model_parse(whole, &m) == SOL_EINVAL);
    if (!CHECK(strstr(sol_error(), message))) fprintf(stderr, "    %s: %s\n", line, sol_error());
}

static void test_bad_text(void) {
    refuse("%1, %2 = relu %0", "only a host, or a recurrent layer with its gates, has several");
    refuse("%1, %2, %3 = lstm %0", "only a host, or a recurrent layer with its gates, has");
    refuse("%1, %2 = lstm_grad %0", "only a host, or a recurrent layer with its gates, has");
    refuse("%1, = host @0 f32[] %0", "a tensor is missing");
    refuse("%1, %2 = host @0 f32[] %0", "one type for each output");
    refuse("%1 = host @0 %0", "one type for each output");
    refuse("%1 = host @0 f33[] %0", "unknown type");
    refuse("%1 = host @1 f32[] %0", "there is no host 1");
    refuse("%1 = host f32[] %0", "a host's number is missing");
    refuse("%1 = host @0 f32[$1] %0", "does not have");
    refuse("%1 = host @0 f32[-1] %0", "dim 0 would be -1");
    refuse("%1, %1 = host @0 f32[] f32[] %0", "made twice");
    refuse("%1 = host @0 f32[] %0 pure=true effects=true", "cannot be pure");
    refuse("host @0 \"g\"", "in order");
    refuse("host @1 g", "a name in quotes");
}

/* The builder forgets an error and continues. Each function is released once, also those that were refused. */
static void test_builder(void) {
    struct record record = {.fails_at = -1};
    struct sol_model *m = sol_model_new("m");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 1, (int64_t[]){3}), y = 0, z = 0;
    int host = new_host(m, &record, 1);
    sol_model_host_layer(m, host + 1, 1, &x, "f32[3]", "", "net:1", 1, &y);
    CHECK(y < 0 && sol_model_recover(m) == SOL_EINVAL);
    CHECK_TEXT(sol_error(), "host (net:1): there is no host 1");
    sol_model_host_layer(m, host, 1, &x, "f32[3] f32[3]", "", NULL, 1, &y);
    CHECK(y < 0 && new_host(m, &record, 2) < 0 && record.n_released == 1);
    CHECK(sol_model_layer(m, "relu", 1, &x, "", NULL) < 0);
    CHECK(sol_model_recover(m) == SOL_EINVAL && strstr(sol_error(), "2 types for 1 outputs"));
    CHECK(sol_model_layer(m, "host", 1, &x, "", NULL) < 0 && sol_model_recover(m) == SOL_EINVAL);
    CHECK(!sol_model_recover(m));
    CHECK(sol_model_host(m, &(struct sol_host){"f", NULL, NULL, NULL}) < 0 && sol_model_recover(m));
    sol_model_host_layer(m, host, 1, &x, "f32[3]", "", NULL, 1, &y);
    sol_model_host_layer(m, host, 1, &y, "f32[3]", "", NULL, 1, &z);
    sol_model_output(m, "z", z);
    CHECK(z >= 0 && !sol_model_check(m) && record.n_released == 1);
    sol_model_free(m);
    CHECK(record.n_released == 2);
}

/* ---- Inputs and outputs of all kinds ---- */

/* Slices, concats, parameters, scalars, inputs and outputs of the model beside host layers. */
static void test_memory(void) {
    struct record record = {.fails_at = -1};
    struct sol_model *m = sol_model_new("memory");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 3, (int64_t[]){n, 4, 5});
    sol_tensor w = sol_model_param(m, "w", SOL_F32, 1, (int64_t[]){1});
    sol_tensor two = sol_model_scalar(m, 2), a, b, c, unread;
    int host = new_host(m, &record, 1);
    sol_tensor slice = sol_model_layer(m, "slice", 1, &x, "axis=1 start=1 shape=[2]", NULL);
    sol_model_host_layer(m, host, 3, (sol_tensor[]){slice, w, two}, "f32[$0,2,5]", "", NULL, 1, &a);
    sol_model_host_layer(m, host, 2, (sol_tensor[]){x, w}, "f32[$0,4,5]", "", NULL, 1, &b);
    sol_model_host_layer(m, host, 1, &w, "f32[1]", "", NULL, 1, &c);
    sol_model_host_layer(m, host, 1, &w, "f32[1]", "pure=true", NULL, 1, &unread);
    sol_tensor both = sol_model_layer(m, "concat", 2, (sol_tensor[]){a, b}, "axis=1", NULL);
    sol_tensor y = sol_model_layer(m, "add", 2, (sol_tensor[]){both, c}, "", NULL);
    sol_tensor outputs[] = {y, b, b, slice, c};
    for (int i = 0; i < COUNT(outputs); i++) sol_model_output(m, "", outputs[i]);
    static const char *const devices[] = {NULL, "c", "ref"};
    for (int d = 0; d < COUNT(devices); d++) {
        struct sol_options options = {.device = devices[d]};
        float p[1] = {10}, in[60], out[5][90];
        for (int i = 0; i < 60; i++) in[i] = (float)i;
        REQUIRE(!sol_compile(m, &options, &program));
        REQUIRE(!sol_weights_new(program, (const void *[]){p}, &weights));
        record.n_calls = 0;
        CHECK(!sol_program_run(program, weights, (int64_t[]){3}, (const void *[]){in},
                               (void *[]){out[0], out[1], out[2], out[3], out[4]}));
        CHECK(record.n_calls == (d == 2 ? 4 : 3)); /* `ref` runs the model as it is */
        for (int i = 0; i < 90; i++) {
            int at = i % 30 < 10 ? i / 30 * 20 + 5 + i % 30 : i / 30 * 20 + i % 30 - 10;
            CHECK(out[0][i] == (float)at + (i % 30 < 10 ? 22 : 20));
        }
        for (int i = 0; i < 60; i++) CHECK(out[1][i] == (float)i + 10 && out[2][i] == out[1][i]);
        CHECK(out[3][29] == 54 && out[4][0] == 10);
        finish();
    }
    sol_model_free(m);
    CHECK(record.n_released == 1);
}

/* ---- Element types ---- */

/* f32 to i64: out[i] = 10 * in[i]. i64 and bool to f64 and i8: the sum of both, and the bool */
static enum sol_status convert(void *user, const struct sol_host_call *call) {
    (void)user;
    const struct sol_host_tensor *in = call->in, *out = call->out;
    for (int64_t i = 0; i < count(in); i++) {
        if (in->dtype == SOL_F32) {
            ((int64_t *)out->data)[i] = (int64_t)(10 * ((float *)in->data)[i]);
            continue;
        }
        if (in[0].dtype != SOL_I64 || in[1].dtype != SOL_BOOL || out[1].dtype != SOL_I8)
            return SOL_EBUG;
        const bool truth = ((bool *)in[1].data)[i];
        ((double *)out[0].data)[i] = (double)((int64_t *)in[0].data)[i] + truth;
        ((int8_t *)out[1].data)[i] = (int8_t)truth;
    }
    return SOL_OK;
}

static void test_types(void) {
    static const char *const devices[] = {NULL, "c", "ref"};
    struct sol_model *m = sol_model_new("types");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 2, (int64_t[]){n, 3}), y, z[2];
    int host = sol_model_host(m, &(struct sol_host){"convert", convert, NULL, NULL});
    sol_model_host_layer(m, host, 1, &x, "i64[$0,3]", "", NULL, 1, &y);
    y = sol_model_layer(m, "add", 2, (sol_tensor[]){y, y}, "", NULL);
    sol_tensor mask =
        sol_model_layer(m, "less", 2, (sol_tensor[]){x, sol_model_scalar(m, 1)}, "", NULL);
    sol_model_host_layer(m, host, 2, (sol_tensor[]){y, mask}, "f64[$0,3] i8[$0,3]", "", NULL, 2, z);
    sol_model_output(m, "sum", z[0]);
    sol_model_output(m, "truth", z[1]);
    sol_model_output(m, "y", y);
    for (int d = 0; d < COUNT(devices); d++) {
        struct sol_options options = {.device = devices[d]};
        float in[6] = {-2, 0.5f, 1, 3, 0, 7};
        double sum[6];
        int8_t truth[6];
        int64_t twice[6];
        REQUIRE(!sol_compile(m, &options, &program));
        REQUIRE(!sol_weights_new(program, NULL, &weights));
        CHECK(!sol_program_run(program, weights, (int64_t[]){2}, (const void *[]){in},
                               (void *[]){sum, truth, twice}));
        for (int i = 0; i < 6; i++) {
            CHECK(twice[i] == (int64_t)(20 * in[i]) && truth[i] == (in[i] < 1));
            CHECK(sum[i] == (double)twice[i] + truth[i]);
        }
        finish();
    }
    sol_model_free(m);
}

/* A library has no frontend. */
static void test_library(void) {
    struct record record = {.fails_at = -1};
    struct sol_model *m = make_network(&record);
    struct sol_library library = {.lib_name = "lib", .func_name = "run", .path = "."};
    CHECK(sol_deploy(m, (const void *[]){weight}, &library) == SOL_EUNSUPPORTED);
    CHECK_TEXT(sol_error(), "a library cannot compute nodes of the frontend (1): halve (net:3)");
    sol_model_free(m);
    CHECK(record.n_released == 1);
}

/* ---- Effects ---- */

/* Four hosts with effects of which the results of two are unread; two pure equal layers; two equal ones that may not be merged. */
static void test_effects(void) {
    static const char *const devices[] = {NULL, "c", "ref"};
    struct record record = {.fails_at = -1};
    struct sol_model *m = sol_model_new("effects");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 1, (int64_t[]){4}), t[8];
    const int host[] = {new_host(m, &record, 1), new_host(m, &record, 2), new_host(m, &record, 3),
                        new_host(m, &record, 4)};
    sol_tensor up = sol_model_layer(m, "exp", 1, &x, "", NULL);
    sol_model_host_layer(m, host[2], 1, &up, "f32[4]", "effects=true", NULL, 1, &t[0]);
    sol_model_host_layer(m, host[0], 1, &x, "f32[4]", "effects=true", NULL, 1, &t[1]);
    sol_tensor late = sol_model_layer(m, "add", 2, (sol_tensor[]){t[1], up}, "", NULL);
    sol_model_host_layer(m, host[2], 1, &late, "f32[4]", "effects=true", NULL, 1, &t[2]);
    sol_model_host_layer(m, host[1], 0, NULL, "f32[4]", "effects=true", NULL, 1, &t[3]);
    for (int i = 4; i < 8; i++)
        sol_model_host_layer(m, host[3], 1, &x, "f32[4]", i < 6 ? "pure=true" : "", NULL, 1, &t[i]);
    sol_model_output(m, "late", late);
    for (int i = 3; i < 8; i++) sol_model_output(m, "", t[i]);
    for (int d = 0; d < COUNT(devices); d++) {
        struct sol_options options = {.device = devices[d]};
        float in[4] = {1, 2, 3, 4}, out[6][4];
        REQUIRE(!sol_compile(m, &options, &program));
        REQUIRE(!sol_weights_new(program, NULL, &weights));
        record.n_order = 0;
        CHECK(!sol_program_run(program, weights, NULL, (const void *[]){in},
                               (void *[]){out[0], out[1], out[2], out[3], out[4], out[5]}));
        int effects[8], n = 0, n_pure = 0;
        for (int i = 0; i < record.n_order; i++)
            if (record.order[i] == 4) n_pure++;
            else effects[n++] = record.order[i];
        CHECK(n == 4 && effects[0] == 3 && effects[1] == 1 && effects[2] == 3 && effects[3] == 2);
        CHECK(n_pure == (d == 2 ? 4 : 3));
        for (int k = 2; k < 6; k++) CHECK(!memcmp(out[k], in, sizeof in));
        finish();
    }
    sol_model_free(m);
    CHECK(record.n_released == 4);
}

/* ---- Threads, forks, guards ---- */

static void *call_often(void *wrong) {
    static _Thread_local float y[16 * CHANNELS * PIXELS], sum[16];
    for (int i = 0; i < 50; i++) {
        int64_t n = 1 + i % 16;
        *(int *)wrong += run(n, y, sum) != SOL_OK || !is_right(n, y, sum);
    }
    return NULL;
}

static bool calls_right(void) {
    int wrong = 0;
    call_often(&wrong);
    return !wrong;
}

static void test_threads_and_forks(void) {
    struct record record = {.fails_at = -1};
    pthread_t callers[3];
    int wrong[3] = {0};
    prepare(&record, NULL);
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_create(&callers[i], NULL, call_often, &wrong[i]));
    if (!check_cannot_fork())
        for (int i = 0; i < 5; i++) CHECK(child_does(calls_right, 30));
    for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
    CHECK(!wrong[0] && !wrong[1] && !wrong[2] && record.n_calls == 150);
    finish();
}

/* Some function of the first step must not run before the guard, nor after one that fails. */
static bool guard(void *user) {
    struct record *record = user;
    CHECK(!record->n_calls);
    return record->fails_at >= 0;
}

static void test_guard(void) {
    struct record record = {.fails_at = -1};
    struct sol_model *m = sol_model_new("guard");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 1, (int64_t[]){n}), y;
    sol_model_host_layer(m, new_host(m, &record, 1), 1, &x, "f32[$0]", "", NULL, 1, &y);
    y = sol_model_layer(m, "relu", 1, &y, "", NULL);
    sol_model_output(m, "y", y);
    sol_set_threads(2);
    REQUIRE(!sol_compile(m, NULL, &program) && !sol_weights_new(program, NULL, &weights));
    sol_model_free(m);
    for (int i = 0; i < 2; i++) {
        CHECK(!sol_program_run_speculative(guard, &record, program, weights, (int64_t[]){64},
                                           (const void *[]){image}, (void *[]){y_out}));
        CHECK(record.n_calls == i);
        record.fails_at = 1;
    }
    CHECK(y_out[5] == (image[5] > 0 ? image[5] : 0));
    finish();
    sol_set_threads(0);
}

/* Every allocation fails in turn while a model is built, compiled and run. */
static void test_out_of_memory(void) {
    static const char *const devices[] = {"c", "ref"};
    for (int d = 0; d < COUNT(devices); d++) {
        struct sol_options options = {.device = devices[d]};
        enum sol_status status = SOL_ENOMEM;
        for (long n = 1; status == SOL_ENOMEM && n < 10000; n++) {
            struct record record = {.fails_at = -1};
            program = NULL, weights = NULL;
            mem_fail_at = n;
            struct sol_model *m = make_network(&record);
            status = m ? sol_compile(m, &options, &program) : SOL_ENOMEM;
            if (!status) status = sol_weights_new(program, (const void *[]){weight}, &weights);
            if (!status) status = run(2, y_out, sum_out);
            mem_fail_at = 0;
            if (weights) sol_weights_release(weights);
            if (program) sol_program_release(program);
            sol_model_free(m);
            if (!CHECK(record.n_released == 1)) break;
        }
        CHECK(status == SOL_OK && is_right(2, y_out, sum_out));
    }
}

int main(void) {
    setenv("SOL_CC", "none", 1);
    fill();
    test_devices();
    test_profile();
    test_micro_batches();
    test_failure();
    test_text();
    test_bad_text();
    test_builder();
    test_memory();
    test_types();
    test_library();
    test_effects();
    test_threads_and_forks();
    test_guard();
    test_out_of_memory();
    return check_done();
}
