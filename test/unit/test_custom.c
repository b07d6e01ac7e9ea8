/* Custom layers of the C builder: functions of this program, C texts, and libraries, on all devices. */
#include "base/base.h"
#include "check.h"

#include <pthread.h>
#include <sol/deploy.h>
#include <sol/sol.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 64
#define COLUMNS 33

static atomic_int n_calls;
static atomic_bool is_failing;

static int64_t turn_tasks(const struct sol_host_call *call) { return call->in[0].dim[0]; }

/* Reverses each row, and adds the number in the attribute "add", if there is one, and the last one of "list". */
static enum sol_status turn(const struct sol_host_call *call) {
    const struct sol_host_tensor *x = &call->in[0];
    const struct sol_attribute *list = sol_attribute_find(call, "list");
    const int64_t n = x->dim[1];
    atomic_fetch_add(&n_calls, 1);
    if (atomic_load(&is_failing) && call->end == x->dim[0])
        return sol_host_fail(call, SOL_EDEVICE, "row %d failed", (int)call->end - 1);
    if (strcmp(sol_attribute_find(call, "mode")->text, "reverse") || sol_attribute_find(call, "no"))
        return SOL_EINVAL;
    const double more = sol_attribute_find(call, "add") ? sol_attribute_float(call, "add") : 0;
    const float add = (float)(more + (double)list->ints[list->n - 1]);
    for (int64_t i = call->begin; i < call->end; i++)
        for (int64_t j = 0; j < n; j++)
            ((float *)call->out[0].data)[i * n + j] =
                ((const float *)x->data)[i * n + n - 1 - j] + add;
    return SOL_OK;
}

/* The same without tasks. */
static enum sol_status turn_all(const struct sol_host_call *call) {
    struct sol_host_call all = *call;
    if (call->begin != 0 || call->end != 1) return SOL_EBUG;
    all.end = call->in[0].dim[0];
    return turn(&all);
}

static struct sol_program *program;
static struct sol_weights *weights;
static float x_in[ROWS * COLUMNS];

/* y = relu(turn(relu(x))). The attributes are dead when the program runs. */
static void prepare(sol_custom_tasks *tasks, const char *device) {
    char mode[] = "reverse", name[] = "add";
    double add[] = {0.5};
    int64_t list[] = {7, 2};
    const struct sol_attribute attributes[] = {
        {.name = name, .n = 1, .floats = add},
        {.name = "mode", .n = 1, .text = mode},
        {.name = "list", .n = 2, .ints = list},
    };
    struct sol_custom *custom = NULL;
    struct sol_model *m = sol_model_new("m");
    int64_t n = sol_model_symbol(m, "n");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 2, (int64_t[]){n, COLUMNS}), y;
    x = sol_model_layer(m, "relu", 1, &x, "", NULL);
    REQUIRE(!sol_custom_take("turn", tasks ? turn : turn_all, tasks, &custom));
    int host = sol_model_custom(m, custom, 3, attributes);
    sol_custom_release(custom);
    memset(mode, 0, sizeof mode), memset(name, 0, sizeof name), add[0] = 0, list[1] = 0;
    sol_model_host_layer(m, host, 1, &x, "f32[$0,33]", "pure=true", "net:1", 1, &y);
    sol_model_output(m, "y", sol_model_layer(m, "relu", 1, &y, "", NULL));
    struct sol_options options = {.device = device};
    REQUIRE(!sol_compile(m, &options, &program) && !sol_weights_new(program, NULL, &weights));
    sol_model_free(m);
}

static void finish(void) {
    sol_weights_release(weights);
    sol_program_release(program);
}

static enum sol_status run(int64_t n, float *y) {
    return sol_program_run(program, weights, &n, (const void *[]){x_in}, (void *[]){y});
}

static bool is_right(int64_t n, const float *y) {
    for (int64_t i = 0; i < n * COLUMNS; i++) {
        const float from = x_in[i / COLUMNS * COLUMNS + COLUMNS - 1 - i % COLUMNS];
        if (y[i] != (from > 0 ? from : 0) + 2.5f) return false;
    }
    return true;
}

static float y_out[ROWS * COLUMNS];

static void test_devices(void) {
    static const char *const devices[] = {NULL, "c", "ref"};
    for (int d = 0; d < 2 * COUNT(devices); d++) {
        prepare(d % 2 ? turn_tasks : NULL, devices[d / 2]);
        for (int64_t n = 0; n <= ROWS; n += 21) {
            atomic_store(&n_calls, 0);
            CHECK(!run(n, y_out) && is_right(n, y_out));
            if (d < 2 && n) CHECK(d ? n_calls > 1 : n_calls == 1);
        }
        finish();
    }
}

static void note_step(void *user, const struct sol_step_time *step) {
    *(int *)user += !strcmp(step->module, "custom") && !strcmp(step->name, "turn");
}

static void test_profile(void) {
    int n_steps = 0;
    int64_t n = 3;
    prepare(turn_tasks, NULL);
    CHECK(!sol_program_profile(program, weights, &n, (const void *[]){x_in}, (void *[]){y_out},
                               note_step, &n_steps));
    CHECK(n_steps == 1);
    finish();
}

static void test_failure(void) {
    prepare(turn_tasks, NULL);
    atomic_store(&is_failing, true);
    CHECK(run(4, y_out) == SOL_EDEVICE);
    CHECK_TEXT(sol_error(), "turn (net:1): row 3 failed; it was called for f32[4,33] -> f32[4,33]");
    atomic_store(&is_failing, false);
    CHECK(!run(4, y_out) && is_right(4, y_out));
    finish();
}

static void *call_often(void *wrong) {
    static _Thread_local float y[ROWS * COLUMNS];
    for (int i = 0; i < 50; i++) {
        int64_t n = 1 + i % ROWS;
        *(int *)wrong += run(n, y) != SOL_OK || !is_right(n, y);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t callers[3];
    int wrong[3] = {0};
    prepare(turn_tasks, NULL);
    for (int i = 0; i < 3; i++) REQUIRE(!pthread_create(&callers[i], NULL, call_often, &wrong[i]));
    for (int i = 0; i < 3; i++) pthread_join(callers[i], NULL);
    CHECK(!wrong[0] && !wrong[1] && !wrong[2]);
    finish();
}

/* No task of the function begins before the guard has been evaluated, although it is the first step. */
static bool guard(void *user) {
    CHECK(!n_calls);
    return *(bool *)user;
}

static void test_guard(void) {
    struct sol_custom *custom = NULL;
    struct sol_model *m = sol_model_new("guard");
    const struct sol_attribute attributes[] = {{.name = "mode", .n = 1, .text = "reverse"},
                                               {.name = "list", .n = 1, .ints = (int64_t[]){0}}};
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 2, (int64_t[]){ROWS, COLUMNS}), y;
    REQUIRE(!sol_custom_take("turn", turn, turn_tasks, &custom));
    int host = sol_model_custom(m, custom, 2, attributes);
    sol_custom_release(custom);
    sol_model_host_layer(m, host, 1, &x, "f32[64,33]", "", NULL, 1, &y);
    sol_model_output(m, "y", sol_model_layer(m, "relu", 1, &y, "", NULL));
    REQUIRE(!sol_compile(m, NULL, &program) && !sol_weights_new(program, NULL, &weights));
    sol_model_free(m);
    for (int holds = 0; holds < 2; holds++) {
        bool answer = holds;
        atomic_store(&n_calls, 0);
        CHECK(!sol_program_run_speculative(guard, &answer, program, weights, NULL,
                                           (const void *[]){x_in}, (void *[]){y_out}));
        CHECK((n_calls > 0) == holds);
    }
    finish();
}

/* ---- Without a model ---- */

static void test_call(void) {
    struct sol_custom *custom = NULL;
    const struct sol_attribute attributes[] = {{.name = "mode", .n = 1, .text = "reverse"},
                                               {.name = "list", .n = 1, .ints = (int64_t[]){1}}};
    struct sol_host_tensor in = {x_in, SOL_F32, 2, {ROWS, COLUMNS}}, out = in;
    out.data = y_out;
    const struct sol_host_call call = {
        .n_in = 1, .n_out = 1, .in = &in, .out = &out, .n_attributes = 2, .attribute = attributes};
    for (int i = 0; i < 2; i++) {
        REQUIRE(!sol_custom_take("turn", i ? turn : turn_all, i ? turn_tasks : NULL, &custom));
        atomic_store(&is_failing, true);
        CHECK(sol_custom_call(custom, &call) == SOL_EDEVICE);
        atomic_store(&is_failing, false);
        memset(y_out, 0, sizeof y_out);
        CHECK(!sol_custom_call(custom, &call));
        for (int k = 0; k < ROWS * COLUMNS; k++)
            CHECK(y_out[k] == x_in[k / COLUMNS * COLUMNS + COLUMNS - 1 - k % COLUMNS] + 1);
        sol_custom_release(custom);
    }
}

/* ---- Texts and libraries ---- */

static void test_errors(void) {
    struct sol_custom *custom = (void *)&n_calls;
    CHECK(sol_custom_take("a b", turn, NULL, &custom) == SOL_EINVAL && !custom);
    CHECK_TEXT(sol_error(), "custom layer \"a b\": its name is no name of a C function");
    CHECK(sol_custom_take("turn", NULL, NULL, &custom) == SOL_EINVAL);
    CHECK(sol_custom_compile(NULL, "", NULL, &custom) == SOL_EINVAL);
    CHECK(sol_custom_open("turn", "./missing.so", &custom) == SOL_EINVAL && !custom);
    CHECK(strstr(sol_error(), "custom layer turn: cannot open its library: ./missing.so"));
    setenv("SOL_CC", "none", 1);
    CHECK(sol_custom_compile("turn", "", NULL, &custom) == SOL_EUNSUPPORTED && !custom);
    unsetenv("SOL_CC");
    CHECK_TEXT(sol_error(), "custom layer turn: there is no C compiler: SOL_CC=none");
    CHECK(sol_custom_compile("turn", "int x = y;", NULL, &custom) == SOL_ETOOL);
    CHECK(strstr(sol_error(), "custom layer turn: the C compiler failed"));
}

/* A text whose headers the compiler finds, in a model that is compiled and deployed without its source being there. */
static void test_text(void) {
    static const char text[] =
        "#include <sol/custom.h>\n"
        "enum sol_status triple(const struct sol_host_call *call) {\n"
        "    for (int64_t i = 0; i < sol_host_count(&call->in[0]); i++)\n"
        "        ((float *)call->out[0].data)[i] = 3 * ((const float *)call->in[0].data)[i];\n"
        "    return SOL_OK;\n"
        "}\n";
    struct sol_custom *custom = NULL;
    struct sol_model *m = sol_model_new("text");
    sol_tensor x = sol_model_input(m, "x", SOL_F32, 1, (int64_t[]){5}), y;
    REQUIRE(!sol_custom_compile("triple", text, "-O2 -Iinclude", &custom));
    int host = sol_model_custom(m, custom, 0, NULL);
    sol_custom_release(custom);
    sol_model_host_layer(m, host, 1, &x, "f32[5]", "", NULL, 1, &y);
    sol_model_output(m, "y", y);
    REQUIRE(!sol_compile(m, NULL, &program) && !sol_weights_new(program, NULL, &weights));
    sol_model_free(m);
    CHECK(!sol_program_run(program, weights, NULL, (const void *[]){x_in}, (void *[]){y_out}));
    for (int i = 0; i < 5; i++) CHECK(y_out[i] == 3 * x_in[i]);
    finish();
}

static void test_limit(void) {
    struct sol_custom *custom = NULL;
    sol_tensor in[SOL_CUSTOM_TENSORS], y = 0;
    struct sol_model *m = sol_model_new("limit");
    for (int i = 0; i < COUNT(in); i++) in[i] = sol_model_input(m, "x", SOL_F32, 1, (int64_t[]){5});
    REQUIRE(!sol_custom_take("turn", turn, NULL, &custom));
    int host = sol_model_custom(m, custom, 0, NULL);
    sol_model_host_layer(m, host, COUNT(in), in, "f32[5]", "", "net:1", 1, &y);
    CHECK(y < 0 && sol_model_recover(m) == SOL_EUNSUPPORTED);
    CHECK_TEXT(sol_error(),
               "host (net:1): turn: 65 inputs and outputs; a custom layer has at most 64");
    sol_model_host_layer(m, host, COUNT(in) - 1, in, "f32[5]", "", NULL, 1, &y);
    CHECK(y >= 0);
    struct sol_library library = {.lib_name = "lib", .func_name = "run", .path = "."};
    sol_model_output(m, "y", y);
    CHECK(sol_deploy(m, NULL, &library) == SOL_EUNSUPPORTED);
    CHECK(strstr(sol_error(), "the custom layer turn has no C source"));
    sol_custom_release(custom);
    sol_model_free(m);
}

/* Reads an int as a float, then a number that is not there, and does not look at the result. */
static enum sol_status read_numbers(const struct sol_host_call *call) {
    *(float *)call->out[0].data = (float)sol_attribute_float(call, "count");
    if (call->n_attributes > 1) (void)sol_attribute_int(call, call->attribute[1].name);
    return SOL_OK;
}

static void test_numbers(void) {
    const struct sol_attribute attributes[] = {
        {.name = "count", .n = 1, .ints = (int64_t[]){6}},
        {.name = "scale", .n = 1, .floats = (double[]){0.5}}};
    float y = 0;
    const struct sol_host_tensor out = {.data = &y, .dtype = SOL_F32, .rank = 1, .dim = {1}};
    struct sol_host_call call = {
        .n_out = 1, .out = &out, .n_attributes = 1, .attribute = attributes};
    struct sol_custom *custom;
    REQUIRE(!sol_custom_take("numbers", read_numbers, NULL, &custom));
    CHECK(!sol_custom_call(custom, &call) && y == 6);
    call.n_attributes = 2;
    CHECK(sol_custom_call(custom, &call) == SOL_EINVAL);
    CHECK(strstr(sol_error(), "it has no integer \"scale\" among its attributes"));
    sol_custom_release(custom);
}

/* Every allocation fails in turn. */
static void test_out_of_memory(void) {
    enum sol_status status = SOL_ENOMEM;
    const struct sol_attribute add = {.name = "add", .n = 1, .floats = (double[]){1}};
    for (long n = 1; status == SOL_ENOMEM && n < 1000; n++) {
        struct sol_custom *custom = NULL;
        struct sol_model *m = NULL;
        sol_tensor y = 0;
        mem_fail_at = n;
        status = sol_custom_take("turn", turn, NULL, &custom);
        if (!status && !(m = sol_model_new("m"))) status = SOL_ENOMEM;
        if (!status) {
            int host = sol_model_custom(m, custom, 1, &add);
            sol_model_host_layer(m, host, 0, NULL, "f32[5]", "", NULL, 1, &y);
            sol_model_output(m, "y", y);
            status = sol_model_check(m);
        }
        mem_fail_at = 0;
        sol_model_free(m);
        sol_custom_release(custom);
    }
    CHECK(status == SOL_OK);
}

int main(void) {
    for (int i = 0; i < COUNT(x_in); i++) x_in[i] = (float)(i * 37 % 101 - 50);
    sol_set_threads(2);
    test_devices();
    test_profile();
    test_failure();
    test_threads();
    test_guard();
    test_call();
    test_errors();
    test_numbers();
    test_text();
    test_limit();
    test_out_of_memory();
    return check_done();
}
