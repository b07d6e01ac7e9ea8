/*
 * Models with several open sizes: one compile per device, many size vectors, against the reference.
 *
 *   gen_open -> sol_compile per device -> sol_program_run for each vector of sizes   | compared
 *            -> ref_run on the model as it was built                                 |
 *
 * Sizes that do not fit (a window larger than the image) must be refused by all devices with the same message. `test_open SEED 1`
 * runs one model again.
 */
#include "../unit/check.h"
#include "device/device.h"
#include "device/ref/ref.h"
#include "gen.h"
#include "run/micro_batch.h"
#include "run/program.h"

#include "turn.h"

#include <math.h>

#define N_MODELS 150
#define N_VECTORS 6
#define MAX_DEVICES 8

struct tensors {
    int n;
    float *at[GEN_LEAVES];
    int64_t size[GEN_LEAVES];
};

static int n_runs, n_refused;

/* Random values in a range; without `r` a value that no program writes. */
static void add_tensor(struct tensors *list, const struct tensor *t, const int64_t *symbols,
                       struct random *r, struct gen_range range) {
    int64_t n = 1;
    for (int d = 0; d < t->rank; d++) n *= size_eval(&t->dim[d], symbols);
    REQUIRE(list->n < GEN_LEAVES && n >= 0 && n < 1 << 26);
    float *at = malloc(n ? (size_t)n * sizeof *at : 1);
    REQUIRE(at);
    for (int64_t i = 0; i < n; i++) at[i] = r ? random_float(r, range.low, range.high) : 77777;
    list->at[list->n] = at;
    list->size[list->n++] = n;
}

static void free_tensors(struct tensors *list) {
    for (int i = 0; i < list->n; i++) free(list->at[i]);
    list->n = 0;
}

/* The largest error, relative to what is allowed. */
static double compare(const struct tensors *is, const struct tensors *expected, double tolerance) {
    double worst = 0;
    for (int i = 0; i < expected->n; i++) {
        double largest = 1e-3, error = 0;
        for (int64_t k = 0; k < expected->size[i]; k++) {
            double e = (double)expected->at[i][k], difference = fabs((double)is->at[i][k] - e);
            largest = fmax(largest, fabs(e));
            error = fmax(error, isnan(difference) ? INFINITY : difference);
        }
        worst = fmax(worst, error / (tolerance * largest));
    }
    return worst;
}

/* Sizes of 1, of primes and of multiples of vectors' widths. Every other batch is large enough to be divided. */
static void draw_symbols(const struct model *m, struct random *r, int vector, int64_t *symbols) {
    static const int sizes[] = {1, 2, 3, 5, 7, 11, 13, 16, 17, 23, 32, 37};
    static const int batches[] = {1, 2, 3, 5, 0, 1};
    for (int i = 1; i < m->n_symbols; i++) {
        int64_t size = vector == 1 ? 1 : RANDOM_PICK(r, sizes);
        symbols[i] = round_up(size, m->quotients.multiple[i]);
    }
    symbols[0] = batches[vector % (int)(sizeof batches / sizeof *batches)];
}

struct device_program {
    const char *device;
    struct sol_program *program;
    struct sol_weights *weights;
};

static void complain(uint64_t seed, const char *device, const struct gen *g,
                     const int64_t *symbols) {
    char *text = sol_model_print(g->model);
    printf("seed %llu on %s with sizes %lld, %lld, %lld: %s\n%s\n", (unsigned long long)seed,
           device, (long long)symbols[0], (long long)symbols[1], (long long)symbols[2], sol_error(),
           text ? text : "(no text)");
    free(text);
}

/* A call with sizes that do not fit, on every device. */
static void test_refusal(const struct device_program *at, int n, const int64_t *symbols) {
    const void *in[GEN_LEAVES] = {0};
    float nothing;
    void *out[GEN_LEAVES];
    char first[1024];
    n_refused++;
    for (int i = 0; i < GEN_LEAVES; i++) in[i] = out[i] = &nothing;
    for (int i = 0; i < n; i++) {
        int64_t dim[SOL_MAX_RANK];
        CHECK(sol_program_run(at[i].program, at[i].weights, symbols, in, out) == SOL_EINVAL);
        if (i) CHECK_TEXT(sol_error(), first);
        snprintf(first, sizeof first, "%s", sol_error());
        CHECK(sol_program_output_shape(at[i].program, 0, symbols, dim) == SOL_EINVAL);
        CHECK_TEXT(sol_error(), first);
    }
}

static void test_vector(uint64_t seed, struct gen *g, const struct model *m,
                        const struct device_program *at, int n, const struct tensors *params,
                        const int64_t *free_symbols) {
    const struct gen_range none = {0};
    int64_t symbols[SIZE_SYMBOLS] = {0};
    struct tensors in = {0}, expected = {0}, out = {0};
    formulas_derive(&at[0].program->formulas, free_symbols, m->n_symbols, symbols);
    if (formulas_check(&at[0].program->formulas, symbols)) {
        test_refusal(at, n, free_symbols);
        return;
    }
    for (int i = 0; i < m->inputs.n; i++)
        add_tensor(&in, m->inputs.at[i], symbols, g->random, g->input[i]);
    for (int i = 0; i < m->outputs.n; i++)
        add_tensor(&expected, m->outputs.at[i], symbols, NULL, none);
    REQUIRE(!ref_run(m, symbols, (const void *const *)in.at, (const void *const *)params->at,
                     (void *const *)expected.at));
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < m->outputs.n; k++)
            add_tensor(&out, m->outputs.at[k], symbols, NULL, none);
        bool ok = CHECK(!sol_program_run(at[i].program, at[i].weights, free_symbols,
                                         (const void *const *)in.at, (void *const *)out.at));
        if (ok) ok = CHECK(compare(&out, &expected, g->tolerance) <= 1);
        if (!ok) complain(seed, at[i].device, g, free_symbols);
        free_tensors(&out);
        n_runs++;
    }
    free_tensors(&in);
    free_tensors(&expected);
}

static void test_model(uint64_t seed) {
    static struct gen g;
    struct random r = random_start(seed);
    struct device_program at[MAX_DEVICES] = {0};
    struct tensors params = {0};
    int64_t symbols[SIZE_FREE] = {0}, none[SIZE_SYMBOLS] = {0};
    int n = 0;
    micro_batch_cache = seed % 3 ? (int64_t)8 << 20 : 3000;
    micro_batch_step = seed % 3 ? (int64_t)128 << 10 : 0;
    gen_open(&g, &r);
    bool ok = CHECK(!sol_model_check(g.model));
    if (!ok) printf("seed %llu: %s\n", (unsigned long long)seed, sol_error());
    const struct model *m = ir_user_model(g.model);
    for (int i = 0; ok && i < m->params.n; i++)
        add_tensor(&params, m->params.at[i], none, &r, g.param[i]);
    for (int i = 0; ok && devices[i]; i++) {
        struct sol_options options = {.device = devices[i]->name, .no_autotune = true};
        if (!has_turn(devices[i], seed, false)) continue;
        at[n].device = devices[i]->name;
        ok = CHECK(!sol_compile(g.model, &options, &at[n].program)) &&
             CHECK(!sol_weights_new(at[n].program, (const void *const *)params.at, &at[n].weights));
        if (!ok) complain(seed, devices[i]->name, &g, symbols);
        n++;
    }
    for (int vector = 0; ok && vector < N_VECTORS; vector++) {
        draw_symbols(m, &r, vector, symbols);
        test_vector(seed, &g, m, at, n, &params, symbols);
    }
    for (int i = 0; i < n; i++) {
        if (at[i].weights) sol_weights_release(at[i].weights);
        if (at[i].program) sol_program_release(at[i].program);
    }
    free_tensors(&params);
    sol_model_free(g.model);
}

/* Arguments: [seed [number of models]] */
int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    int n =
        argc > 2 ? atoi(argv[2]) : N_MODELS / (check_is_emulated("three models of four") ? 4 : 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < n; i++) test_model(seed + (uint64_t)i);
    printf("%d models, %d runs, %d vectors of sizes refused\n", n, n_runs, n_refused);
    return check_done();
}
