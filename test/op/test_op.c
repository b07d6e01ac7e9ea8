/*
 * Layers and graphs of layers on every device, against the reference (device/ref).
 *
 *   generated model -> sol_compile for each device -> sol_program_run   | compared
 *                   -> ref_run on the model as it was built             |
 *
 * A failure prints the seed of the model and the model itself; `test_op GROUP SEED 1` runs that one
 * again, with GROUP a kind of layer, types:KIND for all its element types, dag, mixed, fusible, epilogue, cnn, many or kept.
 */
#include "../unit/check.h"
#include "device/cpu/cpu.h"
#include "device/device.h"
#include "device/ref/ref.h"
#include "gen.h"
#include "run/micro_batch.h"
#include "tensors.h"
#include "turn.h"

#include <math.h>

#define CASES_PER_LAYER 24
#define CASES_OF_TYPES  2
#define N_DAGS 500
#define N_MIXED         80
#define N_FUSIBLE 120
#define N_EPILOGUES 150
#define N_CNNS 120
#define N_KEPT 20
struct group {
    const char *name;
    uint64_t seed;
    int n, worst_of;
    double worst; /* error relative to the allowed error */
};

static bool is_named; /* by the command line */

/* Far devices have a kernel of their own for products, and texts that few models of this group would not try. */
static bool is_product(const struct group *group) {
    static const char *const names[] = {"conv", "linear", "matmul", "conv_weight", "epilogue"};
    for (int i = 0; i < COUNT(names); i++)
        if (!strcmp(group->name, names[i])) return group->seed <= 4;
    return false;
}

/* ---- One model on one device ---- */

static void count_step(void *user, const struct sol_step_time *step) {
    (void)step;
    ++*(int *)user;
}

static bool check_guard(void *user) { return *(bool *)user; }

/* A speculative run, whose guard may fail. */
static enum sol_status run_after(const struct sol_program *p, const struct sol_weights *weights,
                                 const int64_t *symbols, const struct tensors *in,
                                 const struct tensors *out) {
    bool yes = true, no = false;
    enum sol_status status = sol_program_run_speculative(check_guard, &no, p, weights, symbols,
                                                         (const void *const *)in->at, out->at);
    return status ? status
                  : sol_program_run_speculative(check_guard, &yes, p, weights, symbols,
                                                (const void *const *)in->at, out->at);
}

/* Runs the program. Returns the number of its steps, or -1 after an error. */
static int run_program(const struct sol_program *p, const int64_t *symbols,
                       const struct tensors *in, const struct tensors *params,
                       const struct tensors *out) {
    struct sol_weights *weights;
    int n_steps = 0;
    if (sol_weights_new(p, (const void *const *)params->at, &weights)) return -1;
    enum sol_status status =
        symbols[0] % 2 ? sol_program_run(p, weights, symbols, (const void *const *)in->at, out->at)
                       : run_after(p, weights, symbols, in, out);
    if (!status)
        status = sol_program_profile(p, weights, symbols, (const void *const *)in->at, out->at,
                                     count_step, &n_steps);
    sol_weights_release(weights);
    return status ? -1 : n_steps;
}

static void print_devices(void) {
    for (int i = 0; devices[i]; i++) {
        const char *reason = reason_to_skip(devices[i]);
        printf("device %s %s%s\n", devices[i]->name, reason ? "skipped: " : "tested",
               reason ? reason : "");
    }
}

static void print_model(const struct gen *g, const struct sol_program *p, const int64_t *symbols) {
    char *text = sol_model_print(g->model);
    printf("batch %d\n%s\n", (int)symbols[0], text ? text : "(no text)");
    if (p && sol_program_report(p)) printf("%s\n", sol_program_report(p));
    free(text);
}

static bool check_outputs(struct group *group, const struct gen *g, const struct tensors *is,
                          const struct tensors *expected) {
    double worst = 0;
    for (int i = 0; i < expected->n; i++) worst = fmax(worst, tensors_compare(g, is, expected, i));
    group->worst = fmax(group->worst, worst);
    return CHECK(worst <= 1);
}

/* A device that links must set `compiled` or `far` in each kernel: without it, the interpreter computes the same, only slower. */
static bool is_compiled(const struct sol_program *p, const char *name) {
    const struct device *device;
    const char *compiler = getenv("SOL_CC");
    REQUIRE(!device_find(name, &device));
    if (!device->link || getenv("TEST_RUNNER") || (compiler && !strcmp(compiler, "none")))
        return true;
    for (int i = 0; i < p->phase[FORWARD].n; i++) {
        const struct step *step = &p->phase[FORWARD].at[i];
        const struct kernel *kernel = step->data;
        if (step->kind == &step_kernel && !kernel->compiled && !kernel->far) return false;
    }
    return true;
}

static void test_device(struct group *group, const struct gen *g, const char *device,
                        const int64_t *symbols, const struct tensors *in,
                        const struct tensors *params, const struct tensors *expected) {
    struct sol_options options = {.device = device, .no_autotune = true};
    struct sol_program *p = NULL;
    struct tensors out = {0};
    for (int i = 0; i < expected->n; i++) tensors_add(&out, expected->type[i], expected->size[i]);
    bool ok = CHECK(!sol_compile(g->model, &options, &p));
    int n_steps = ok ? run_program(p, symbols, in, params, &out) : -1;
    if (ok) ok = CHECK(n_steps >= 0);
    if (ok) ok = check_outputs(group, g, &out, expected) && CHECK(is_compiled(p, device));
    if (ok && !strcmp(group->name, "fusible") && strcmp(device, "ref") && symbols[0] > 0)
        ok = CHECK(n_steps == 1);
    if (!ok) {
        printf("%s seed %llu on %s: %s, %d steps, %s\n", group->name,
               (unsigned long long)group->seed, device, n_steps < 0 ? "error" : "wrong", n_steps,
               n_steps < 0 ? sol_error() : "");
        print_model(g, p, symbols);
    }
    if (p) sol_program_release(p);
    tensors_free(&out);
}

/* ---- One model ---- */

static void test_batch(struct group *group, struct gen *g, const struct model *m, int64_t batch) {
    struct tensors in = {0}, params = {0}, expected = {0};
    int64_t symbols[SIZE_SYMBOLS] = {batch};
    for (int i = 0; i < m->inputs.n; i++)
        tensors_add_random(&in, g->random, m->inputs.at[i], symbols, g->input[i]);
    for (int i = 0; i < m->params.n; i++)
        tensors_add_random(&params, g->random, m->params.at[i], symbols, g->param[i]);
    for (int i = 0; i < m->outputs.n; i++)
        tensors_add(&expected, m->outputs.at[i]->dtype, tensors_count(m->outputs.at[i], symbols));
    enum sol_status status = ref_run(m, symbols, (const void *const *)in.at,
                                     (const void *const *)params.at, expected.at);
    if (!CHECK(!status))
        printf("%s seed %llu: ref: %s\n", group->name, (unsigned long long)group->seed,
               sol_error());
    for (int i = 0; devices[i] && !status; i++)
        if (has_turn(devices[i], group->seed, is_named || is_product(group)))
            test_device(group, g, devices[i]->name, symbols, &in, &params, &expected);
    tensors_free(&in);
    tensors_free(&params);
    tensors_free(&expected);
}

/* For about every other model, sets the sizes of caches so small that its batch is divided. */
static void shrink_caches(uint64_t seed) {
    static const int64_t caches[] = {(int64_t)8 << 20, 400, (int64_t)8 << 20, 3000};
    micro_batch_cache = caches[seed / 7 % (uint64_t)COUNT(caches)];
    micro_batch_step = micro_batch_cache > 3000 ? (int64_t)128 << 10 : 0;
}

/* Returns false when the generator has no case for this name. */
static bool test_model(struct group *group) {
    static const int batches[] = {1, 3, 2, 7, 1, 0, 5};
    static struct gen g;
    struct random r = random_start(group->seed);
    shrink_caches(group->seed);
    gen_named(&g, &r, group->name);
    bool has_case = g.n_outputs > 0;
    if (has_case && !sol_model_check(g.model))
        test_batch(group, &g, ir_user_model(g.model),
                   batches[group->seed % (uint64_t)COUNT(batches)]);
    else if (has_case) {
        CHECK(!"the generated model is legal");
        printf("%s seed %llu: %s\n", group->name, (unsigned long long)group->seed, sol_error());
    }
    sol_model_free(g.model);
    return has_case;
}

static void test_group(const char *name, uint64_t seed, int n) {
    struct group group = {.name = name};
    int failed = atomic_load(&check_failed);
    for (int i = 0; i < n; i++) {
        group.seed = seed + (uint64_t)i;
        if (test_model(&group)) continue;
        if (!CHECK(!"a kind of layer has cases")) printf("%s has no row in gen_layer.c\n", name);
        return;
    }
    printf("%-18s %4d models from seed %llu, worst error %.2f of what is allowed, %d failures\n",
           name, n, (unsigned long long)seed, group.worst, atomic_load(&check_failed) - failed);
}

/* Some models with the compiler, and more with the interpreter of generated kernels, which takes less time. */
static void test_both_ways(const char *name, uint64_t seed, int n_compiled, int n_interpreted) {
    test_group(name, seed, n_compiled);
    if (getenv("SOL_CC")) return;
    setenv("SOL_CC", "none", 1);
    printf("SOL_CC=none ");
    test_group(name, seed + (uint64_t)n_compiled, n_interpreted);
    unsetenv("SOL_CC");
}

/* With each instruction set that the machine has, and without a compiler. */
static void test_everywhere(const char *name, uint64_t seed, int n) {
    static const char *const settings[][2] = {
        {"SOL_CPU", "avx2"}, {"SOL_CPU", "generic"}, {"SOL_CC", "none"}};
    test_group(name, seed, n);
    for (int i = 0; i < COUNT(settings); i++) {
        const char *before = getenv(settings[i][0]);
        if (before) continue; /* the user has set it */
        setenv(settings[i][0], settings[i][1], 1);
        printf("%s=%s ", settings[i][0], settings[i][1]);
        test_group(name, seed, n);
        unsetenv(settings[i][0]);
    }
}

/* Arguments: [group [seed [number of models]]] */
int main(int argc, char **argv) {
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    int n = argc > 3 ? atoi(argv[3]) : 0;
    print_devices();
    if (argc > 1) {
        is_named = true;
        test_group(argv[1], seed, n ? n : CASES_PER_LAYER);
        return check_done();
    }
    /* An emulator is slow, and is used to find differences between processors, not between models. */
    const int part = check_is_emulated("three models of four") ? 4 : 1;
    for (int i = 0; i < N_LAYER_KINDS; i++) {
        char name[64];
        /* Only the planner adds copies; test_host tests host layers. */
        if (i == LAYER_copy || i == LAYER_host) continue;
        test_group(layer_infos[i].name, seed, CASES_PER_LAYER / part);
        snprintf(name, sizeof name, "types:%s", layer_infos[i].name);
        test_both_ways(name, seed, CASES_OF_TYPES, 3 * CASES_OF_TYPES);
    }
    test_group("dag", seed, N_DAGS / part);
    test_both_ways("mixed", seed, N_MIXED / part, 3 * N_MIXED / part);
    test_group("fusible", seed, N_FUSIBLE / part);
    test_everywhere("epilogue", seed, N_EPILOGUES / part);
    test_group("cnn", seed, N_CNNS / part);
    test_group("many", seed, 5);
    test_group("kept", seed, N_KEPT);
    return check_done();
}
