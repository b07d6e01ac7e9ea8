/*
 * Recurrent layers and their gradients over open steps and an open batch: one compile, many sizes, against the reference. With 1, 2 and 7
 * threads the bits are equal.
 *
 * test_joint.c has random models of known steps; here layers are large enough for several threads.
 */
#include "../unit/check.h"
#include "device/ref/ref.h"
#include "gen.h"
#include "run/pool.h"
#include "tensors.h"

#include <math.h>
#include <sol/run.h>
#include <string.h>

#define TOLERANCE 1e-4

struct variant {
    const char *kind;
    int gates, units, axis;
    bool reverse, has_lengths;
};

struct run {
    struct variant variant;
    struct sol_model *model;
    const struct model *m;
    struct sol_program *program;
    int64_t symbols[SIZE_SYMBOLS]; /* batch, steps */
    struct tensors in, params, out;
};

/* ---- The model: inputs x, h, c of an lstm, lengths, dy; all gradients ---- */

static sol_tensor add_layer(const struct variant *v, struct sol_model *m, int64_t batch,
                            const sol_tensor *x) {
    sol_tensor in[5] = {x[0], x[1], x[2]};
    char text[64];
    int n = 3;
    if (v->gates > 1) in[n++] = x[3];
    if (v->has_lengths) in[n++] = sol_model_input(m, "lengths", SOL_I64, 1, &batch);
    snprintf(text, sizeof text, "axis=%d reverse=%s", v->axis, v->reverse ? "true" : "false");
    return sol_model_layer(m, v->kind, n, in, text, NULL);
}

static struct sol_model *make_model(const struct variant *v) {
    struct sol_model *m = sol_model_new("recurrent");
    const int64_t batch = sol_model_symbol(m, "batch"), steps = sol_model_symbol(m, "steps");
    int64_t x_dim[3] = {steps, batch, v->gates * v->units}, state[2] = {batch, v->units};
    if (v->axis) x_dim[0] = batch, x_dim[1] = steps;
    sol_tensor x[4] = {
        sol_model_input(m, "x", SOL_F32, 3, x_dim),
        sol_model_param(m, "w", SOL_F32, 2, (int64_t[]){v->gates * v->units, v->units}),
        sol_model_input(m, "h", SOL_F32, 2, state)};
    if (v->gates == 4) x[3] = sol_model_input(m, "c", SOL_F32, 2, state);
    if (v->gates == 3) x[3] = sol_model_param(m, "b", SOL_F32, 1, state + 1);
    const int n = v->gates > 1 ? 4 : 3;
    const sol_tensor y = add_layer(v, m, batch, x), dy = sol_model_backward_input(m, "dy", y);
    sol_tensor dx[4];
    sol_model_output(m, "y", y);
    sol_model_gradients(m, 1, &y, &dy, n, x, dx);
    for (int i = 0; i < n; i++) sol_model_backward_output(m, "dx", dx[i]);
    return m;
}

/* ---- Running ---- */

static enum sol_status run_once(const struct run *run, struct sol_weights *weights,
                                struct tensors *out) {
    size_t size;
    TRY(sol_program_saved_size(run->program, run->symbols, &size));
    void *saved = aligned_alloc(64, size + 64 - size % 64);
    REQUIRE(saved);
    enum sol_status status = sol_program_forward(run->program, weights, run->symbols,
                                                 (const void *const *)run->in.at, out->at, saved);
    if (!status)
        status = sol_program_backward(run->program, weights, run->symbols,
                                      (const void *const *)run->in.at, out->at, saved);
    free(saved);
    return status;
}

static void add_outputs(const struct run *run, struct tensors *to) {
    for (int i = 0; i < run->m->outputs.n; i++)
        tensors_add(to, SOL_F32, tensors_count(run->m->outputs.at[i], run->symbols));
}

static double compare(const struct tensors *is, const struct tensors *expected, int i) {
    const float *a = is->at[i], *b = expected->at[i];
    double largest = 1e-3, error = 0;
    for (int64_t k = 0; k < is->size[i]; k++) {
        const double e = fabs((double)a[k] - (double)b[k]);
        largest = fmax(largest, fabs((double)b[k]));
        error = fmax(error, isnan(e) ? INFINITY : e);
    }
    return error / largest;
}

static void test_threads(const struct run *run, struct sol_weights *weights) {
    static const int threads[] = {1, 2, 7};
    struct tensors expected = {0};
    add_outputs(run, &expected);
    CHECK(!ref_run(run->m, run->symbols, (const void *const *)run->in.at,
                   (const void *const *)run->params.at, expected.at));
    for (size_t k = 0; k < COUNT(threads); k++) {
        struct tensors out = {0};
        add_outputs(run, &out);
        pool_set_threads(threads[k]);
        CHECK(!run_once(run, weights, &out));
        for (int i = 0; i < out.n; i++) {
            if (!CHECK(compare(&out, &expected, i) < TOLERANCE))
                printf("%s axis %d reverse %d lengths %d, %lld steps of %lld samples: output %d\n",
                       run->variant.kind, run->variant.axis, run->variant.reverse,
                       run->variant.has_lengths, (long long)run->symbols[1],
                       (long long)run->symbols[0], i);
            /* from here on, the bits of the first number of threads */
            memcpy(expected.at[i], k ? expected.at[i] : out.at[i], 4 * (size_t)out.size[i]);
            CHECK(!memcmp(out.at[i], expected.at[i], 4 * (size_t)out.size[i]));
        }
        tensors_free(&out);
    }
    tensors_free(&expected);
}

/* Each length from 0 to all steps; `wrong` more for the last sample. */
static void set_lengths(struct run *run, int64_t wrong) {
    for (int i = 0; i < run->in.n; i++) {
        if (run->in.type[i] != SOL_I64) continue;
        int64_t *length = run->in.at[i], n = run->in.size[i], steps = run->symbols[1];
        for (int64_t k = 0; k < n; k++) length[k] = (steps + k * 5) % (steps + 1);
        if (n) length[n - 1] += wrong ? steps + 1 : 0;
    }
}

static void test_sizes(struct run *run, struct random *r, int64_t steps, int64_t batch) {
    const struct gen_range range = {.low = -1, .high = 1},
                           weights_range = {.low = -0.1f, .high = 0.1f};
    struct sol_weights *weights;
    run->symbols[0] = batch, run->symbols[1] = steps;
    for (int i = 0; i < run->m->inputs.n; i++)
        tensors_add_random(&run->in, r, run->m->inputs.at[i], run->symbols, range);
    for (int i = 0; i < run->m->params.n; i++)
        tensors_add_random(&run->params, r, run->m->params.at[i], run->symbols, weights_range);
    set_lengths(run, 0);
    REQUIRE(!sol_weights_new(run->program, (const void *const *)run->params.at, &weights));
    test_threads(run, weights);
    if (run->variant.has_lengths && batch) {
        set_lengths(run, 1);
        add_outputs(run, &run->out);
        CHECK(run_once(run, weights, &run->out) == SOL_EINDEX);
        CHECK(strstr(sol_error(), "steps, but there are"));
        tensors_free(&run->out);
        run->out = (struct tensors){0};
    }
    sol_weights_release(weights);
    tensors_free(&run->in), tensors_free(&run->params);
    run->in = run->params = (struct tensors){0};
}

static void test_variant(struct random *r, struct variant variant) {
    static const int64_t sizes[][2] = {{5, 3}, {1, 1}, {9, 26}, {0, 2}, {3, 0}, {17, 1}};
    struct run run = {.variant = variant, .model = make_model(&variant)};
    run.m = ir_user_model(run.model);
    enum sol_status status = sol_model_check(run.model);
    if (!status) status = sol_compile(run.model, NULL, &run.program);
    if (!CHECK(!status)) printf("%s: %s\n", variant.kind, sol_error());
    for (size_t i = 0; i < COUNT(sizes) && !status; i++)
        test_sizes(&run, r, sizes[i][0], sizes[i][1]);
    if (run.program) sol_program_release(run.program);
    sol_model_free(run.model);
}

int main(void) {
    static const struct variant kinds[] = {
        {.kind = "rnn_tanh", .gates = 1},
        {.kind = "rnn_relu", .gates = 1},
        {.kind = "lstm", .gates = 4},
        {.kind = "gru", .gates = 3},
    };
    struct random r = random_start(1);
    for (size_t i = 0; i < COUNT(kinds); i++)
        for (int k = 0; k < 8; k++) {
            struct variant v = kinds[i];
            v.units = k % 3 ? 21 : 200;
            v.axis = k & 1, v.reverse = k >> 1 & 1, v.has_lengths = k >> 2 & 1;
            test_variant(&r, v);
        }
    pool_set_threads(0);
    return check_done();
}
