/*
 * Updates: parameters that calls write. Their text form, errors, and values after calls, on all devices and for all element types.
 *
 * All values are small integers, so that all devices compute the same bits.
 */
#include "check.h"

#include "base/base.h"
#include "ir/ir.h"

#include <sol/deploy.h>
#include <sol/sol.h>

static const char *const devices[] = {"ref", "c", NULL};

static struct sol_model *parse(const char *text) {
    struct sol_model *m = NULL;
    if (sol_model_parse(text, &m)) printf("%s\n", sol_error());
    REQUIRE(m);
    return m;
}

/* ---- Text and errors ---- */

#define HEAD                                                                                     \
    "model \"m\" {\n  symbol $0 \"n\"\n  %0 = input f32[$0,4] \"x\"\n  %1 = param f32[4] \"s\"\n" \
    "  %2 = param f32[4] \"t\"\n  %3 = sum %0 axes=[0]\n  %4 = add %3 %1\n  output %4 \"y\"\n"

static void test_text(void) {
    const char *text = HEAD "  update %1 %4\n  update %2 %1\n}\n";
    struct sol_model *m = parse(text);
    char *again = sol_model_print(m);
    CHECK_TEXT(again, text);
    free(again);
    const char *name;
    char *dump = sol_dump(m, 100, &name);
    CHECK(!dump); /* there are fewer passes */
    for (int pass = 0; (dump = sol_dump(m, pass, &name)); pass++) {
        CHECK(strstr(dump, "update %1 ") && strstr(dump, "update %2 "));
        free(dump);
    }
    sol_model_free(m);
}

static void fails(const char *statements, const char *message) {
    char text[1024];
    struct sol_model *m = NULL;
    snprintf(text, sizeof text, "%s%s}\n", HEAD, statements);
    CHECK(sol_model_parse(text, &m) == SOL_EINVAL);
    CHECK_TEXT(sol_error(), message);
}

static void test_errors(void) {
    fails("update %4 %1\n", "line 9: update: only a parameter can be updated");
    fails("update %0 %1\n", "line 9: update: only a parameter can be updated");
    fails("update %1 %4\nupdate %1 %3\n", "line 10: update: parameter \"s\" is updated twice");
    fails("update %1 %0\n", "line 9: update: parameter \"s\" and its new value differ in shape or "
                            "element type");
    fails("%5 = cast %1 dtype=i32\nupdate %1 %5\n",
          "line 10: update: parameter \"s\" and its new value differ in shape or element type");
    fails("update %1\n", "line 9, column 10: a tensor is missing");
    fails("update %1 %4 %3\n", "line 9, column 14: something is left over");
    fails("update %1 %9\n", "line 9, column 13: a tensor is used before it is made");
    struct sol_model *m = sol_model_new("m");
    sol_tensor s = sol_model_param(m, "s", SOL_F32, 0, NULL);
    sol_model_update(m, s, 7);
    CHECK(sol_model_check(m) == SOL_EINVAL);
    CHECK_TEXT(sol_error(), "update: the value is no tensor");
    sol_model_free(m);
}

/* ir_verify finds what a wrong pass would leave behind. */
static void verify_fails(void (*damage)(struct model *m), const char *message) {
    struct arena arena;
    struct model *m;
    arena_init(&arena);
    ARENA_BOUNDARY(&arena, REQUIRE(!"memory"));
    REQUIRE(!ir_parse(HEAD "update %1 %4\n}", &arena, &m));
    CHECK(!ir_verify(m));
    damage(m);
    CHECK(ir_verify(m) == SOL_EBUG);
    CHECK_TEXT(sol_error(), message);
    arena_fini(&arena);
}

static void update_again(struct model *m) {
    struct update u = m->updates.at[0];
    VEC_PUSH(m->arena, &m->updates, u);
}
static void update_input(struct model *m) { m->updates.at[0].param = m->inputs.at[0]; }
static void change_value(struct model *m) { m->updates.at[0].value = m->inputs.at[0]; }
static void make_constant(struct model *m) { m->params.at[0]->phase = PREPACK; }
static void drop_value(struct model *m) { m->layers.n--, m->outputs.n = 0; }

static void test_verify(void) {
    verify_fails(update_again, "update 1 is the second of a parameter");
    verify_fails(update_input, "update 0 is not of a parameter that is marked as updated");
    verify_fails(make_constant, "update 0 is not of a parameter that is marked as updated");
    verify_fails(change_value, "update 0 has a value of another type or shape");
    verify_fails(drop_value, "update 0 has a tensor that is made by no layer");
}

/* ---- Calls ---- */

static struct sol_program *program;
static struct sol_weights *weights;

static void start(const char *text, const char *device, void *const *params) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_model *m = parse(text);
    if (!CHECK(!sol_compile(m, &options, &program))) printf("%s\n", sol_error());
    sol_model_free(m);
    REQUIRE(program);
    REQUIRE(!sol_weights_new(program, (const void *const *)params, &weights));
}

static void stop(void) {
    sol_weights_release(weights);
    sol_program_release(program);
    program = NULL;
}

/* Reads see the values from before the call; the sum over calls is exact, also of a batch of 0 and of micro-batches. */
static void test_sum(const char *device) {
    static float x[4000], y[4], s[4], t[4];
    for (int i = 0; i < COUNT(x); i++) x[i] = (float)(i % 4);
    for (int i = 0; i < 4; i++) s[i] = 1, t[i] = 7;
    start(HEAD "update %1 %4\nupdate %2 %1\n}", device, (void *[]){s, t});
    CHECK(sol_program_param(program, 0)->is_updated && sol_program_param(program, 1)->is_updated);
    CHECK(!sol_program_input(program, 0)->is_updated);
    float expected = 1, before = 7;
    for (int64_t n = 0; n <= 1000; n += 250) {
        REQUIRE(!sol_program_run(program, weights, &n, (const void *[]){x}, (void *[]){y}));
        before = expected;
        expected += 3 * (float)n;
        CHECK(y[3] == expected && s[3] == expected && t[3] == before && s[0] == 1);
    }
    s[3] = -5; /* the caller may write it without new weights */
    REQUIRE(!sol_program_run(program, weights, &(int64_t){1}, (const void *[]){x}, (void *[]){y}));
    CHECK(y[3] == -2 && s[3] == -2 && t[3] == -5);
    stop();
}

/* Two parameters are exchanged, a third one gets an input, a fourth one a constant, a fifth one a part of an input. */
static void test_sources(const char *device) {
    float a[2] = {1, 2}, b[2] = {3, 4}, c[2] = {5, 6}, d[2] = {7, 8}, e[2] = {9, 10},
          f[2] = {-1, 1};
    float x[2] = {11, 12}, y[2], z[4] = {13, 14, 15, 16};
    start(
        "model \"m\" {\n%0 = param f32[2] \"a\"\n%1 = param f32[2] \"b\"\n%2 = param f32[2] \"c\"\n"
        "%3 = param f32[2] \"d\"\n%4 = param f32[2] \"e\"\n%5 = param f32[2] \"f\"\n"
        "%6 = input f32[2] \"x\"\n%7 = input f32[1,4] \"z\"\n%8 = add %0 %6\n%9 = relu %5\n"
        "%10 = slice %7 axis=1 start=1 shape=[2]\n%11 = reshape %10 shape=[2]\n"
        "output %8 \"y\"\nupdate %0 %1\nupdate %1 %0\nupdate %2 %6\nupdate %3 %9\n"
        "update %4 %11\n}",
        device, (void *[]){a, b, c, d, e, f});
    REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){x, z}, (void *[]){y}));
    CHECK(a[0] == 3 && a[1] == 4 && b[0] == 1 && b[1] == 2 && c[0] == 11 && c[1] == 12);
    CHECK(d[0] == 0 && d[1] == 1 && e[0] == 14 && e[1] == 15 && f[0] == -1 && y[0] == 12);
    /* an input in the memory of a parameter: all layers read it before it is written */
    REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){a, z}, (void *[]){y}));
    CHECK(y[0] == 6 && y[1] == 8 && a[0] == 1 && b[0] == 3 && c[0] == 3 && c[1] == 4);
    stop();
}

/* The backward call reads a parameter as it was before the forward call, also through layers that wait for it. */
static void test_backward(const char *device) {
    float s[4] = {1, 2, 3, 4}, x[4] = {1, 1, 1, 1}, g[4] = {2, 2, 2, 2}, y[4], a[4], b[4];
    char saved[256];
    size_t size = 0;
    start("model \"m\" {\n%0 = input f32[4] \"x\"\n%1 = input f32[4] \"g\" backward\n"
          "%2 = param f32[4] \"s\"\n%3 = add %0 %2\n%4 = mul %1 %2\n%5 = reshape %2 shape=[2,2]\n"
          "%6 = reshape %1 shape=[2,2]\n%7 = mul %5 %6\nupdate %2 %3\noutput %3 \"y\"\n"
          "output %4 \"a\" backward\noutput %7 \"b\" backward\n}",
          device, (void *[]){s});
    REQUIRE(!sol_program_saved_size(program, NULL, &size) && size <= sizeof saved);
    CHECK(!sol_program_forward(program, weights, NULL, (const void *[]){x, NULL},
                               (void *[]){y, NULL, NULL}, saved));
    CHECK(!sol_program_backward(program, weights, NULL, (const void *[]){NULL, g},
                                (void *[]){NULL, a, b}, saved));
    for (int i = 0; i < 4; i++)
        CHECK(y[i] == (float)(i + 2) && s[i] == y[i] && a[i] == (float)(2 * i + 2) && b[i] == a[i]);
    CHECK(sol_program_run(program, weights, NULL, (const void *[]){x, NULL},
                          (void *[]){y, NULL, NULL}) == SOL_EUNSUPPORTED);
    CHECK(sol_program_forward(program, weights, NULL, (const void *[]){x, NULL},
                              (void *[]){y, NULL, NULL}, NULL) == SOL_EINVAL);
    stop();
}

/* Weight, bias and scale of convolutions and products that are written: they are computed anew at each call, never folded. */
static void test_weights(const char *device) {
    float w[16 * 16], b[16], s[16], x[16 * 9], y[16 * 9];
    for (int i = 0; i < COUNT(w); i++) w[i] = (float)(i % 3 - 1);
    for (int i = 0; i < 16; i++) b[i] = (float)i, s[i] = 1;
    for (int i = 0; i < COUNT(x); i++) x[i] = (float)(i % 5);
    start("model \"m\" {\n%0 = input f32[1,16,3,3] \"x\"\n%1 = param f32[16,16,1,1] \"w\"\n"
          "%2 = param f32[16] \"b\"\n%3 = param f32[16,1,1] \"s\"\n%4 = conv %0 %1 %2\n"
          "%5 = mul %4 %3\n%6 = relu %5\n%7 = scalar value=1.0\n%8 = sub %1 %7\n%9 = add %2 %7\n"
          "%10 = add %3 %7\noutput %6 \"y\"\nupdate %1 %8\nupdate %2 %9\nupdate %3 %10\n}",
          device, (void *[]){w, b, s});
    for (int call = 0; call < 3; call++) {
        bool right = true;
        REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){x}, (void *[]){y}));
        for (int k = 0; k < 16; k++)
            for (int p = 0; p < 9; p++) {
                float sum = (float)(k + call);
                for (int i = 0; i < 16; i++)
                    sum += x[i * 9 + p] * (float)((k * 16 + i) % 3 - 1 - call);
                sum *= (float)(1 + call);
                right &= y[k * 9 + p] == (sum > 0 ? sum : 0);
            }
        CHECK(right);
    }
    CHECK(w[0] == -4 && b[0] == 3 && s[0] == 4);
    stop();
}

/* The steps before an update are divided into micro-batches; it gets the sum over all of them. */
static void test_micro_batches(const char *device) {
    enum { N = 96, SAMPLE = 8 * 32 * 32 };
    float w[8 * 8 * 9] = {0}, s[8] = {0}, *x = malloc(sizeof(float) * N * SAMPLE), y[N * 8];
    REQUIRE(x);
    for (int k = 0; k < 8; k++)
        for (int c = 0; c < 8; c++) w[(k * 8 + c) * 9 + 4] = 1;
    for (int i = 0; i < N * SAMPLE; i++) x[i] = (float)(i % 2);
    start(
        "model \"m\" {\nsymbol $0 \"n\"\n%0 = input f32[$0,8,32,32] \"x\"\n%1 = param f32[8,8,3,3] \"w\"\n"
        "%2 = param f32[8] \"s\"\n%3 = conv %0 %1 pad=[1,1,1,1]\n%4 = relu %3\n"
        "%5 = conv %4 %1 pad=[1,1,1,1]\n%6 = add %5 %4\n%7 = sum %6 axes=[2,3]\n"
        "%8 = sum %7 axes=[0]\n%9 = add %2 %8\noutput %7 \"y\"\nupdate %2 %9\n}",
        device, (void *[]){w, s});
    for (int call = 1; call <= 2; call++) {
        int64_t n = N;
        REQUIRE(!sol_program_run(program, weights, &n, (const void *[]){x}, (void *[]){y}));
        CHECK(y[0] == 72 * 512 && s[0] == (float)(72 * 512 * N * call) && s[7] == s[0]);
    }
    stop();
    free(x);
}

/* A part of a cache is replaced; a value that is an output and the new value of two parameters; types of all sizes. */
static void test_types(const char *device) {
    for (int type = 0; type < SOL_N_DTYPES; type++) {
        const char *name = size_dtype_name((enum sol_dtype)type);
        size_t bytes = 6 * (size_t)size_element((enum sol_dtype)type);
        _Alignas(8) char x[6 * 8], cache[6 * 8], other[6 * 8], y[6 * 8], expected[6 * 8];
        char text[1024];
        for (int i = 0; i < COUNT(x); i++) x[i] = 1, cache[i] = other[i] = y[i] = 0;
        memset(expected, 0, sizeof expected), memset(expected, 1, bytes / 3);
        snprintf(
            text, sizeof text,
            "model \"m\" {\n%%0 = input %s[2,1] \"x\"\n%%1 = param %s[2,3] \"cache\"\n"
            "%%2 = param %s[2,3] \"other\"\n%%3 = slice %%1 axis=1 start=1 shape=[2]\n"
            "%%4 = concat %%0 %%3 axis=1\n output %%4 \"y\"\nupdate %%1 %%4\nupdate %%2 %%4\n}",
            name, name, name);
        start(text, device, (void *[]){cache, other});
        REQUIRE(!sol_program_run(program, weights, NULL, (const void *[]){x}, (void *[]){y}));
        for (int i = 0; i < 2; i++) {
            size_t size = bytes / 6;
            CHECK(!memcmp(cache + (size_t)i * 3 * size, x, size));
            for (size_t k = size; k < 3 * size; k++) CHECK(cache[(size_t)i * 3 * size + k] == 0);
        }
        CHECK(!memcmp(cache, y, bytes) && !memcmp(other, y, bytes));
        stop();
    }
}

/* A failed call writes no parameter, although the update does not depend on the layer that fails. */
static void test_failure(const char *device) {
    float s = 1, table[4] = {0, 1, 2, 3}, y;
    int64_t index = 9;
    start("model \"m\" {\n%0 = input f32[4] \"table\"\n%1 = input i64[1] \"index\"\n"
          "%2 = param f32[1] \"s\"\n%3 = gather %0 %1 axis=0\n%4 = add %2 %2\noutput %3 \"y\"\n"
          "update %2 %4\n}",
          device, (void *[]){&s});
    const void *const in[] = {table, &index};
    CHECK(sol_program_run(program, weights, NULL, in, (void *[]){&y}) == SOL_EINDEX && s == 1);
    index = 2;
    CHECK(!sol_program_run(program, weights, NULL, in, (void *[]){&y}) && s == 2 && y == 2);
    stop();
}

static bool never(void *user) { return *(int *)user != 0; }

/* A run whose guard fails writes nothing. */
static void test_speculative(const char *device) {
    float s[2] = {1, 2}, x[2] = {3, 4}, y[2];
    int holds = 0;
    start("model \"m\" {\n%0 = input f32[2] \"x\"\n%1 = param f32[2] \"s\"\n%2 = add %0 %1\n"
          "output %2 \"y\"\nupdate %1 %0\n}",
          device, (void *[]){s});
    const void *const in[] = {x};
    (void)!sol_program_run_speculative(never, &holds, program, weights, NULL, in, (void *[]){y});
    CHECK(s[0] == 1 && s[1] == 2);
    holds = 1;
    CHECK(!sol_program_run_speculative(never, &holds, program, weights, NULL, in, (void *[]){y}));
    CHECK(s[0] == 3 && y[0] == 4);
    stop();
}

static void count_updates(void *user, const struct sol_step_time *step) {
    *(int *)user += !strcmp(step->name, "update") && !strcmp(step->layers, "update of s");
}

/* Profile and report have a step for each update. */
static void test_report(void) {
    float s = 0, x = 2, y;
    int n = 0;
    start("model \"m\" {\n%0 = input f32[1] \"x\"\n%1 = param f32[1] \"s\"\n%2 = add %0 %1\n"
          "output %2 \"y\"\nupdate %1 %2\n}",
          NULL, (void *[]){&s});
    CHECK(!sol_program_profile(program, weights, NULL, (const void *[]){&x}, (void *[]){&y},
                               count_updates, &n));
    CHECK(n == 1 && s == 2 && strstr(sol_program_report(program), "update of s\n"));
    char *html = sol_program_html_report(program, "t", NULL, NULL, 0);
    free(html);
    stop();
}

static void test_deploy(void) {
    struct sol_model *m = parse(HEAD "update %2 %4\n}");
    float s[4] = {0};
    struct sol_library library = {
        .lib_name = "lib_state", .func_name = "run_state", .path = "/tmp"};
    CHECK(sol_deploy(m, (const void *[]){s, s}, &library) == SOL_EUNSUPPORTED);
    CHECK_TEXT(sol_error(), "a library has no state, but the model writes parameter \"t\"");
    sol_model_free(m);
}

int main(void) {
    test_text();
    test_errors();
    test_verify();
    for (int i = 0; i < COUNT(devices); i++) {
        test_sum(devices[i]);
        test_sources(devices[i]);
        test_weights(devices[i]);
        if (strcmp(devices[i] ? devices[i] : "", "ref")) test_backward(devices[i]);
        test_types(devices[i]);
        test_failure(devices[i]);
        test_speculative(devices[i]);
    }
    test_micro_batches(NULL);
    test_report();
    test_deploy();
    return check_done();
}
