/*
 * DNN clusters of fixed models: which layers share a step, which must not, and that NaN propagates.
 *
 *   text of a model -> sol_compile -> names of the steps' layers, and results against ref_run
 */
#include "../unit/check.h"
#include "device/ref/ref.h"
#include "random.h"

#include <math.h>
#include <sol/sol.h>

#define MAX_VALUES (1 << 20)

/* Appends the layers of a DNN or DFP step; copies between layouts are left out. */
static void note_step(void *user, const struct sol_step_time *step) {
    char *names = user;
    if (!strcmp(step->module, "copy")) return;
    if (*names) strcat(names, "; ");
    strncat(names, step->layers, 200);
}

struct values {
    float *in[4], *param[8], *out[4], *expected[4];
    int64_t n_out[4];
};

static int64_t count(const struct tensor *t, const int64_t *symbols) {
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= size_eval(&t->dim[i], symbols);
    return n;
}

static float *new_values(struct random *r, int64_t n) {
    float *at = malloc((size_t)n * sizeof *at + 1);
    REQUIRE(at && n < MAX_VALUES);
    for (int64_t i = 0; i < n; i++) at[i] = random_float(r, -1, 1);
    return at;
}

static void make_values(struct values *v, const struct model *m, const int64_t *symbols, bool nan) {
    struct random r = random_start(7);
    REQUIRE(m->inputs.n <= 4 && m->params.n <= 8 && m->outputs.n <= 4);
    for (int i = 0; i < m->inputs.n; i++) {
        int64_t n = count(m->inputs.at[i], symbols);
        v->in[i] = new_values(&r, n);
        if (nan && n) v->in[i][n / 2] = NAN;
    }
    for (int i = 0; i < m->params.n; i++)
        v->param[i] = new_values(&r, count(m->params.at[i], symbols));
    for (int i = 0; i < m->outputs.n; i++) {
        v->n_out[i] = count(m->outputs.at[i], symbols);
        v->out[i] = new_values(&r, v->n_out[i]);
        v->expected[i] = new_values(&r, v->n_out[i]);
    }
}

static void free_values(struct values *v) {
    for (int i = 0; i < 4; i++) free(v->in[i]), free(v->out[i]), free(v->expected[i]);
    for (int i = 0; i < 8; i++) free(v->param[i]);
}

static bool is_close(const float *is, const float *expected, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (isnan(is[i]) && isnan(expected[i])) continue;
        if (!(fabsf(is[i] - expected[i]) <= 1e-4f * (1 + fabsf(expected[i])))) return false;
    }
    return true;
}

static void run(const struct sol_program *p, const struct model *m, struct values *v,
                const int64_t *symbols, char *names) {
    struct sol_weights *weights;
    const void *const *in = (const void *const *)v->in, *const *param =
                                                            (const void *const *)v->param;
    REQUIRE(!ref_run(m, symbols, in, param, (void *const *)v->expected));
    REQUIRE(!sol_weights_new(p, param, &weights));
    CHECK(!sol_program_run(p, weights, symbols, in, (void *const *)v->out));
    for (int i = 0; i < m->outputs.n; i++) CHECK(is_close(v->out[i], v->expected[i], v->n_out[i]));
    CHECK(!sol_program_profile(p, weights, symbols, in, (void *const *)v->out, note_step, names));
    sol_weights_release(weights);
}

/* Compiles and runs the model, and compares the layers of its steps with `expected`. */
static void test_model(const char *body, bool nan, const char *expected) {
    char text[4096], names[2048] = "";
    struct sol_model *model;
    struct sol_program *p;
    struct values v = {0};
    int64_t symbols[SIZE_SYMBOLS] = {2};
    struct sol_options options = {.no_autotune = true, .deterministic = nan};
    snprintf(text, sizeof text, "model \"m\" {\nsymbol $0 \"n\"\n%s}\n", body);
    if (!CHECK(!sol_model_parse(text, &model))) puts(sol_error()), exit(check_done());
    make_values(&v, ir_user_model(model), symbols, nan);
    if (!CHECK(!sol_compile(model, &options, &p))) puts(sol_error()), exit(check_done());
    run(p, ir_user_model(model), &v, symbols, names);
    if (!CHECK_TEXT(names, expected)) puts(sol_program_report(p));
    sol_program_release(p);
    sol_model_free(model);
    free_values(&v);
}

/* ---- Models: %1 is the convolution's blocked input, %2 its result; %9 is the last value ---- */

#define CONV(c, k, size)                                            \
    "%0 = input f32[$0," #c "," #size "," #size "] \"x\"\n"         \
    "%50 = param f32[" #c "," #c ",1,1] \"v\"\n"                    \
    "%1 = conv %0 %50\n"                                            \
    "%51 = param f32[" #k "," #c ",3,3] \"w\"\n"                    \
    "%2 = conv %1 %51 pad=[1,1,1,1]\n"
#define END "output %9 \"y\"\n"

static void test_one_step(void) {
    /* x * sigmoid(x) is a diamond; the sum reads the result of the first convolution. */
    test_model(CONV(32, 32, 9) "%3 = sigmoid %2\n%4 = mul %2 %3\n%9 = add %4 %1\n" END, false,
               "conv; conv+sigmoid+mul+add");
    /* Channels that do not fill a block, a layer that is 0.5 at 0, and per-channel factors. */
    test_model(CONV(3, 17, 5) "%9 = sigmoid %2\n" END, false, "conv; conv+sigmoid");
    test_model(CONV(17, 58, 5) "%60 = param f32[58,1,1] \"s\"\n%61 = param f32[1,58,1,1] \"t\"\n"
                               "%6 = abs %2\n%3 = mul %6 %60\n%4 = add %3 %61\n"
                               "%5 = clamp %4 min=0.5 max=1.0\n"
                               "%9 = gelu %5\n" END,
               false, "conv; conv+abs+mul+add+clamp+gelu");
    /* A factor per sample and channel, from an input. */
    test_model(CONV(16, 16, 4) "%60 = input f32[$0,16,1,1] \"g\"\n%3 = hardswish %2\n"
                               "%9 = mul %3 %60\n" END,
               false, "conv; conv+hardswish+mul");
    /* The residual and act of the kernel first, then a generated epilogue. */
    test_model(CONV(16, 16, 4) "%3 = add %2 %1\n%4 = relu %3\n%9 = tanh %4\n" END, false,
               "conv; conv+add+relu+tanh");
}

static void test_linear(void) {
    test_model("%0 = input f32[$0,5,33] \"x\"\n%50 = param f32[17,33] \"w\"\n"
               "%51 = param f32[17] \"b\"\n%2 = linear %0 %50 %51\n%3 = gelu %2\n"
               "%52 = param f32[17] \"s\"\n%9 = mul %3 %52\n" END,
               false, "linear+gelu+mul");
    test_model("%0 = input f32[$0,1] \"x\"\n%50 = param f32[1,1] \"w\"\n%2 = linear %0 %50\n"
               "%9 = silu %2\n" END,
               false, "linear+silu");
}

static void test_apart(void) {
    /* The result of silu is an output, too, so the epilogue ends there. */
    test_model(CONV(16, 16, 4) "%3 = silu %2\n%9 = exp %3\noutput %3 \"z\"\n" END, false,
               "conv; conv+silu; exp");
    /* The means of the convolution's result are not known while its kernel runs. */
    test_model(CONV(16, 16, 4) "%3 = silu %2\n%4 = mean %3 axes=[2,3] keepdim=true\n"
                               "%9 = mul %3 %4\n" END,
               false, "conv; conv+silu; mean+mul");
    /* A value inside of a diamond is an output. */
    test_model(
        CONV(16, 16, 4) "%3 = sigmoid %2\n%4 = mul %2 %3\noutput %3 \"z\"\n%9 = neg %4\n" END,
        false, "conv; conv; sigmoid+mul+neg");
}

static void test_nan(void) {
    test_model(
        "%0 = input f32[$0,3,5,5] \"x\"\n%50 = param f32[17,3,1,1] \"w\"\n%2 = conv %0 %50\n"
        "%3 = hardswish %2\n%4 = clamp %3 min=0.25 max=2.0\n%60 = input f32[$0,17,5,5] \"z\"\n"
        "%5 = maximum %4 %60\n%9 = tanh %5\n" END,
        true, "conv+hardswish+clamp+maximum+tanh");
    test_model("%0 = input f32[$0,33] \"x\"\n%50 = param f32[17,33] \"w\"\n%2 = linear %0 %50\n"
               "%3 = sigmoid %2\n%9 = mul %2 %3\n" END,
               true, "linear+sigmoid+mul");
}

int main(void) {
    test_one_step();
    test_linear();
    test_apart();
    test_nan();
    return check_done();
}
