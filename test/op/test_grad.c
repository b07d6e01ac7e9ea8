/*
 * The rules of gradients, by central finite differences on the reference in double: for a random direction v of each leaf x,
 *
 *   (s(x + h v) - s(x - h v)) / 2h  =  sum(dx * v),   s = sum(y * dy) with random dy
 *
 * Steps are so small that few points have a kink between them; if a direction meets one, a smaller step does not. Each kind of layer
 * prints how many gradients were compared, or the reason why it has none.
 *
 * A failure prints the seed and the model; `test_grad KIND SEED 1` runs that one again.
 */
#include "../unit/check.h"
#include "device/ref/element.h"
#include "device/ref/ref.h"
#include "gen.h"
#include "tensors.h"

#include <math.h>
#include <string.h>

#define TRIES 6
#define TOLERANCE 2e-4

struct run {
    struct gen g;
    struct sol_model *joint;
    const struct model *m;
    int64_t symbols[SIZE_SYMBOLS];
    struct tensors in, params, out; /* floats of `out` are f64 */
};

static int n_compared; /* gradients of leaves */

static void evaluate(struct run *run) {
    REQUIRE(!ref_run_double(run->m, run->symbols, (const void *const *)run->in.at,
                            (const void *const *)run->params.at, run->out.at));
}

/* s = sum(y * dy); the inputs dy are the last ones, one per float output, in order. */
static double find_sum(struct run *run) {
    double s = 0;
    int dy = run->g.n_inputs;
    evaluate(run);
    for (int i = 0; i < run->out.n; i++) {
        const struct tensor *y = run->m->outputs.at[i];
        if (run->m->output_phases.at[i] == BACKWARD || size_family(y->dtype) != FAMILY_FLOAT)
            continue;
        for (int64_t k = 0; k < run->out.size[i]; k++)
            s += ((const double *)run->out.at[i])[k] * ref_get_real(y->dtype, run->in.at[dy], k);
        dy++;
    }
    return s;
}

/* Moves a leaf by h along random directions of length 1. at[i] keeps the values before. */
static void step(void *at, const double *before, const double *v, enum sol_dtype type, int64_t n,
                 double h) {
    for (int64_t i = 0; i < n; i++) ref_put_real(type, at, i, before[i] + h * v[i]);
}

/* The difference of s over a step, less what the gradient says, relative to the sum of the products' sizes. */
static double compare(struct run *run, void *at, const double *before, const double *v,
                      const double *dx, enum sol_dtype type, int64_t n, double h) {
    double expected = 0, size = 1e-300;
    double *low = malloc(sizeof *low * (size_t)(n + 1));
    REQUIRE(low);
    step(at, before, v, type, n, -h);
    for (int64_t i = 0; i < n; i++) low[i] = ref_get_real(type, at, i);
    const double from = find_sum(run);
    step(at, before, v, type, n, h);
    const double to = find_sum(run);
    for (int64_t i = 0; i < n; i++) {
        const double moved = ref_get_real(type, at, i) - low[i];
        expected += dx[i] * moved;
        size += fabs(dx[i] * moved);
    }
    step(at, before, v, type, n, 0);
    free(low);
    const double rounding = 1e-14 * fmax(fabs(from), 1);
    return fmax(0, fabs(to - from - expected) - rounding) / size;
}

/* Leaf `at` of `n` elements, with its gradient. */
static double test_leaf(struct run *run, struct random *r, void *at, enum sol_dtype type, int64_t n,
                        const double *gradient) {
    double *before = malloc(sizeof *before * (size_t)(n + 1)),
           *v = malloc(sizeof *v * (size_t)(n + 1)), *dx = malloc(sizeof *dx * (size_t)(n + 1));
    double worst = INFINITY;
    REQUIRE(before && v && dx);
    memcpy(dx, gradient, sizeof *dx * (size_t)n);
    for (int64_t i = 0; i < n; i++) before[i] = ref_get_real(type, at, i);
    for (int i = 0; i < TRIES && worst > TOLERANCE; i++) {
        for (int64_t k = 0; k < n; k++) v[k] = (double)random_float(r, -1, 1);
        worst = compare(run, at, before, v, dx, type, n, ldexp(1, -14 - 2 * i));
    }
    n_compared += n > 0;
    free(before), free(v), free(dx);
    return n ? worst : 0;
}

/* Output number `i` is the gradient of the leaf with its name: leaves of generated models are called x0, w1, .. */
static void test_output(struct run *run, struct random *r, int i, const struct tensor *leaf,
                        void *at, int64_t n, const char *name, uint64_t seed) {
    evaluate(run);
    double error = test_leaf(run, r, at, leaf->dtype, n, run->out.at[i]);
    if (CHECK(error <= TOLERANCE)) return;
    char *text = sol_model_print(run->joint);
    printf("%s seed %llu batch %d: gradient of \"%s\" differs by %g\n%s\n", name,
           (unsigned long long)seed, (int)run->symbols[0], leaf->name, error, text ? text : "");
    free(text);
}

static void make_tensors(struct run *run, struct random *r) {
    const struct model *m = run->m;
    const struct gen_range seeds = {.low = -1, .high = 1};
    for (int i = 0; i < m->inputs.n; i++)
        tensors_add_random(&run->in, r, m->inputs.at[i], run->symbols,
                           i < run->g.n_inputs ? run->g.input[i] : seeds);
    for (int i = 0; i < m->params.n; i++)
        tensors_add_random(&run->params, r, m->params.at[i], run->symbols, run->g.param[i]);
    for (int i = 0; i < m->outputs.n; i++) {
        const struct tensor *t = m->outputs.at[i];
        tensors_add(&run->out, size_family(t->dtype) == FAMILY_FLOAT ? SOL_F64 : t->dtype,
                    tensors_count(t, run->symbols));
    }
}

/* Gradients are in the order of the leaves, without those that have none. */
static void test_outputs(struct run *run, struct random *r, const char *name, uint64_t seed) {
    const struct model *m = run->m;
    int i = 0;
    while (i < m->outputs.n && m->output_phases.at[i] != BACKWARD) i++;
    for (int k = 0; k < run->g.n_inputs && i < m->outputs.n; k++)
        if (m->inputs.at[k]->name && !strcmp(m->inputs.at[k]->name, m->output_names.at[i]))
            test_output(run, r, i++, m->inputs.at[k], run->in.at[k], run->in.size[k], name, seed);
    for (int k = 0; k < m->params.n && i < m->outputs.n; k++)
        if (!strcmp(m->params.at[k]->name, m->output_names.at[i]))
            test_output(run, r, i++, m->params.at[k], run->params.at[k], run->params.size[k], name,
                        seed);
    CHECK(i == m->outputs.n);
}

/* False: the model has no gradient, for the reason in sol_error(). */
static bool test_model(const char *name, uint64_t seed) {
    static const int batches[] = {1, 3, 2, 5};
    static struct run run;
    struct random r = random_start(seed);
    run = (struct run){.symbols = {batches[seed % COUNT(batches)]}};
    gen_named(&run.g, &r, name);
    run.joint = run.g.n_outputs ? gen_gradient(&run.g) : NULL;
    const bool has_gradient = run.joint;
    if (has_gradient) {
        run.m = ir_user_model(run.joint);
        CHECK(!sol_model_check(run.joint));
        make_tensors(&run, &r);
        test_outputs(&run, &r, name, seed);
        tensors_free(&run.in), tensors_free(&run.params), tensors_free(&run.out);
    }
    sol_model_free(run.joint);
    sol_model_free(run.g.model);
    return has_gradient;
}

static void test_group(const char *name, uint64_t seed, int n) {
    const int failed = atomic_load(&check_failed), before = n_compared;
    int refused = 0;
    char reason[256] = "";
    for (int i = 0; i < n; i++)
        if (!test_model(name, seed + (uint64_t)i)) {
            refused++;
            snprintf(reason, sizeof reason, "%s", sol_error());
        }
    CHECK(!refused || n_compared == before); /* a kind has gradients, or none at all */
    printf("%-18s %4d gradients, %d failures", name, n_compared - before,
           atomic_load(&check_failed) - failed);
    if (refused) printf("; %d models without: %s", refused, reason);
    printf("\n");
}

/* Arguments: [group [seed [number of models]]] */
int main(int argc, char **argv) {
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    if (argc > 1) {
        test_group(argv[1], seed, argc > 3 ? atoi(argv[3]) : 24);
        return check_done();
    }
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (i != LAYER_copy && i != LAYER_host) test_group(layer_infos[i].name, seed, 8);
    test_group("dag", seed, 30);
    return check_done();
}
