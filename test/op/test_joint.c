/*
 * Programs with a backward part: the gradients of a generated model (groups gradient:KIND), or a random part of it that runs in
 * BACKWARD (the other groups). All results are those of the reference, which runs the model at once; BACKWARD leaves the saved values
 * as they are, so it can be repeated. Most programs save less than the fastest ones.
 *
 * A failure prints the seed and the model; `test_joint GROUP SEED 1` runs that one again (groups: gen_named).
 */
#include "../unit/check.h"
#include "device/device.h"
#include "device/ref/ref.h"
#include "gen.h"
#include "run/micro_batch.h"
#include "run/program.h"
#include "tensors.h"
#include "turn.h"

#include <math.h>
#include <pthread.h>

#define GRADIENT "gradient:"

static bool is_named; /* by the command line */

struct run {
    const char *name;
    uint64_t seed;
    struct gen g;
    bool is_gradient;
    struct sol_model *joint;
    int64_t symbols[SIZE_SYMBOLS];
    struct tensors in, params, expected;
};

/* Programs so far: all, those that save values, and those that pack for BACKWARD. */
static int n_programs, n_saving, n_packing, n_refused;

/* Pointers of the ports that a phase uses; others are NULL. */
static void pick(const struct sol_program *p, enum phase phase, const struct tensors *from,
                 const struct sol_port *(*port_of)(const struct sol_program *p, int i), void **to) {
    for (int i = 0; i < from->n; i++) {
        const struct sol_port *port = port_of(p, i);
        const bool is_used =
            phase == FORWARD ? !port->is_backward : port->is_backward || port->is_saved;
        to[i] = is_used ? from->at[i] : NULL;
    }
}

/* A call with a pointer missing that it needs, though a symbol may be 0, is refused. */
static void check_refusal(const struct run *run, const struct sol_program *p,
                          struct sol_weights *weights, void *const *in, void *const *out,
                          void *saved) {
    void *missing[GEN_LEAVES];
    const struct model *m = ir_user_model(run->joint);
    for (int i = 0; i < run->expected.n; i++) {
        if (m->output_phases.at[i] == BACKWARD || !run->expected.size[i]) continue;
        memcpy(missing, out, sizeof *out * (size_t)run->expected.n);
        missing[i] = NULL;
        const enum sol_status status =
            sol_program_forward(p, weights, run->symbols, (const void *const *)in, missing, saved);
        bool is_formula = false;
        for (int d = 0; d < m->outputs.at[i]->rank; d++)
            is_formula |= sol_program_output(p, i)->dim[d] == INT64_MIN;
        CHECK(status == SOL_EINVAL || (is_formula && !run->symbols[0]));
    }
}

static enum sol_status call(const struct run *run, const struct sol_program *p,
                            struct sol_weights *weights, enum phase phase,
                            const struct tensors *out, void *saved) {
    void *in[GEN_LEAVES], *to[GEN_LEAVES];
    pick(p, phase, &run->in, sol_program_input, in);
    pick(p, phase, out, sol_program_output, to);
    if (phase == FORWARD) check_refusal(run, p, weights, in, to, saved);
    return (phase == FORWARD)
               ? sol_program_forward(p, weights, run->symbols, (const void *const *)in, to, saved)
               : sol_program_backward(p, weights, run->symbols, (const void *const *)in, to, saved);
}

static void scramble(const struct sol_program *p, const struct tensors *out) {
    for (int i = 0; i < out->n; i++)
        if (sol_program_output(p, i)->is_backward)
            memset(out->at[i], 0x77, (size_t)(out->size[i] * size_element(out->type[i])));
}

/* FORWARD, then BACKWARD twice, the second time with weights that were packed again in their memory. */
static enum sol_status run_phases(const struct run *run, const struct sol_program *p,
                                  struct sol_weights **weights, const struct tensors *out) {
    size_t size = 0;
    TRY(sol_program_saved_size(p, run->symbols, &size));
    char *saved = aligned_alloc(64, size + 64), *before = malloc(size + 64);
    REQUIRE(saved && before);
    memset(saved, 0x77, size + 64);
    enum sol_status status = call(run, p, *weights, FORWARD, out, saved);
    memcpy(before, saved, size + 64);
    for (int i = 0; i < 2 && !status; i++) {
        scramble(p, out);
        status = call(run, p, *weights, BACKWARD, out, saved);
        if (!status) status = sol_weights_update(weights, (const void *const *)run->params.at);
    }
    CHECK(!memcmp(before, saved, size + 64));
    sol_program_saved_free(p, saved);
    free(saved);
    free(before);
    return status;
}

struct profiled {
    int n[2]; /* steps of the forward call, and of the backward call */
    bool is_ordered;
};

static void visit(void *user, const struct sol_step_time *step) {
    struct profiled *p = user;
    p->is_ordered &= step->seconds >= 0 && (step->is_backward || !p->n[1]);
    p->n[step->is_backward]++;
}

/* A profile runs both calls, and computes all outputs; both have memory. */
static enum sol_status measure(const struct run *run, const struct sol_program *p,
                               struct sol_weights *weights, const struct tensors *out) {
    struct profiled found = {.is_ordered = true};
    struct sol_memory memory;
    size_t size = 0;
    for (int i = 0; i < out->n; i++)
        memset(out->at[i], 0x77, (size_t)(out->size[i] * size_element(out->type[i])));
    TRY(sol_program_profile(p, weights, run->symbols, (const void *const *)run->in.at, out->at,
                            visit, &found));
    TRY(sol_program_memory(p, run->symbols, &memory));
    TRY(sol_program_saved_size(p, run->symbols, &size));
    CHECK(found.is_ordered && found.n[0] == p->phase[FORWARD].n &&
          found.n[1] == p->phase[BACKWARD].n);
    CHECK((p->far ? memory.saved >= size : memory.saved == size) && memory.live <= memory.arena &&
          memory.backward_live <= memory.backward_arena);
    CHECK(sol_program_arena_size(p, run->symbols) ==
          memory.arena + memory.scratch + memory.backward_arena + memory.backward_scratch);
    return SOL_OK;
}

/* Weights of zeros that get the values afterwards, in their memory. */
static enum sol_status make_weights(const struct run *run, const struct sol_program *p,
                                    struct sol_weights **out) {
    struct tensors zeros = {0};
    for (int i = 0; i < run->params.n; i++) {
        void *at = tensors_add(&zeros, run->params.type[i], run->params.size[i]);
        memset(at, 0, (size_t)(run->params.size[i] * size_element(run->params.type[i])));
    }
    enum sol_status status = sol_weights_new(p, (const void *const *)zeros.at, out);
    if (!status) status = sol_weights_update(out, (const void *const *)run->params.at);
    tensors_free(&zeros);
    return status;
}

static enum sol_status run_device(const struct run *run, const char *device,
                                  const struct tensors *out) {
    static const double recompute[] = {0, 1, 0.5, SOL_RECOMPUTE_CHEAP};
    struct sol_options options = {.device = device,
                                  .no_autotune = true,
                                  .recompute = recompute[run->seed / 3 % COUNT(recompute)]};
    if (options.recompute != 0) options.batch_hint = 1000; /* results are larger than weights */
    struct sol_program *p;
    struct sol_weights *weights = NULL;
    TRY(sol_compile(run->joint, &options, &p));
    n_programs++;
    n_saving += p->n_saved > 0;
    n_packing += p->phase[PREPACK_BACKWARD].n > 0;
    enum sol_status status = make_weights(run, p, &weights);
    if (!status)
        status = run->seed % 3 ? run_phases(run, p, &weights, out) : measure(run, p, weights, out);
    if (weights) sol_weights_release(weights);
    sol_program_release(p);
    return status;
}

static void test_device(const struct run *run, const char *device) {
    struct tensors out = {0};
    double worst = 0;
    for (int i = 0; i < run->expected.n; i++)
        tensors_add(&out, run->expected.type[i], run->expected.size[i]);
    enum sol_status status = run_device(run, device, &out);
    for (int i = 0; i < out.n && !status; i++)
        worst = fmax(worst, tensors_compare(&run->g, &out, &run->expected, i));
    if (!CHECK(!status && worst <= 1)) {
        char *text = sol_model_print(run->joint);
        printf("%s seed %llu on %s: %s\nbatch %d\n%s\n", run->name, (unsigned long long)run->seed,
               device, status ? sol_error() : "wrong", (int)run->symbols[0], text ? text : "");
        free(text);
    }
    tensors_free(&out);
}

/* Inputs of BACKWARD: gradients, or the gate, which is 1. */
static void make_tensors(struct run *run, const struct model *m) {
    const struct gen_range more = {.low = run->is_gradient ? -1 : 1, .high = 1};
    for (int i = 0; i < m->inputs.n; i++)
        tensors_add_random(&run->in, run->g.random, m->inputs.at[i], run->symbols,
                           i < run->g.n_inputs ? run->g.input[i] : more);
    for (int i = 0; i < m->params.n; i++)
        tensors_add_random(&run->params, run->g.random, m->params.at[i], run->symbols,
                           run->g.param[i]);
    for (int i = 0; i < m->outputs.n; i++)
        tensors_add(&run->expected, m->outputs.at[i]->dtype,
                    tensors_count(m->outputs.at[i], run->symbols));
}

static void test_joint(struct run *run) {
    const struct model *m = ir_user_model(run->joint);
    make_tensors(run, m);
    enum sol_status status = ref_run(m, run->symbols, (const void *const *)run->in.at,
                                     (const void *const *)run->params.at, run->expected.at);
    CHECK(!status);
    for (int i = 0; devices[i] && !status; i++)
        if (has_turn(devices[i], run->seed, is_named)) test_device(run, devices[i]->name);
    tensors_free(&run->in);
    tensors_free(&run->params);
    tensors_free(&run->expected);
}

/* Some batches are divided, as the caches are said to be small. */
static void test_model(const char *name, uint64_t seed) {
    static const int batches[] = {1, 3, 2, 7, 1, 0, 5};
    static struct run run;
    struct random r = random_start(seed);
    run = (struct run){
        .name = name, .seed = seed, .is_gradient = !strncmp(name, GRADIENT, strlen(GRADIENT))};
    run.symbols[0] = batches[seed % (uint64_t)COUNT(batches)];
    micro_batch_cache = seed % 2 ? 400 : (int64_t)8 << 20;
    micro_batch_step = seed % 2 ? 0 : (int64_t)128 << 10;
    gen_named(&run.g, &r, run.is_gradient ? name + strlen(GRADIENT) : name);
    if (run.is_gradient)
        run.g.error += run.g.tolerance; /* differences of values up to 1, as dy is */
    if (run.g.n_outputs) {
        run.joint = run.is_gradient ? gen_gradient(&run.g) : gen_joint(&run.g, &r);
        if (run.is_gradient && !run.joint) n_refused++;
        else if (CHECK(run.joint && !sol_model_check(run.joint))) test_joint(&run);
        else printf("%s seed %llu: %s\n", name, (unsigned long long)seed, sol_error());
        sol_model_free(run.joint);
    }
    sol_model_free(run.g.model);
}

static void test_group(const char *name, uint64_t seed, int n) {
    const int failed = atomic_load(&check_failed);
    for (int i = 0; i < n; i++) test_model(name, seed + (uint64_t)i);
    printf("%-18s %4d models from seed %llu, %d failures\n", name, n, (unsigned long long)seed,
           atomic_load(&check_failed) - failed);
}

/* ---- Several threads ---- */

#define THREADS 4
#define SIZE 24

/* y = x w', dx = dy relu(w): what BACKWARD reads of w alone is made once, by the thread that needs it first. */
static struct sol_program *make_layer(void) {
    char text[640];
    snprintf(text, sizeof text,
             "model \"m\" {\n%%0 = input f32[%d,%d] \"x\"\n%%1 = input f32[%d,%d] \"g\" backward\n"
             "%%2 = param f32[%d,%d] \"w\"\n%%3 = linear %%0 %%2\n%%4 = relu %%2\n"
             "%%5 = matmul %%1 %%4\noutput %%3 \"y\"\noutput %%5 \"dx\" backward\n}\n",
             SIZE, SIZE, SIZE, SIZE, SIZE, SIZE);
    struct sol_model *model = NULL;
    struct sol_program *p = NULL;
    REQUIRE(!sol_model_parse(text, &model) && !sol_compile(model, NULL, &p));
    sol_model_free(model);
    return p;
}

struct caller {
    const struct sol_program *program;
    struct sol_weights *weights;
    const float *w;
    bool is_right;
};

static void *call_both(void *user) {
    struct caller *c = user;
    static const int64_t none;
    float one[SIZE * SIZE], y[SIZE * SIZE] = {0}, dx[SIZE * SIZE] = {0};
    char saved[4096];
    size_t size = 0;
    for (int i = 0; i < SIZE * SIZE; i++) one[i] = 1;
    c->is_right = !sol_program_saved_size(c->program, &none, &size) && size <= sizeof saved &&
                  !sol_program_forward(c->program, c->weights, &none, (const void *[]){one, NULL},
                                       (void *[]){y, NULL}, saved) &&
                  !sol_program_backward(c->program, c->weights, &none, (const void *[]){NULL, one},
                                        (void *[]){NULL, dx}, saved);
    for (int i = 0; i < SIZE * SIZE; i++) {
        float row = 0, column = 0;
        for (int k = 0; k < SIZE; k++)
            row += c->w[i % SIZE * SIZE + k], column += fmaxf(c->w[k * SIZE + i % SIZE], 0);
        c->is_right &= y[i] == row && dx[i] == column;
    }
    return NULL;
}

static void test_threads(void) {
    static float w[SIZE * SIZE];
    struct sol_program *p = make_layer();
    CHECK(p->phase[PREPACK_BACKWARD].n > 0);
    for (int i = 0; i < SIZE * SIZE; i++) w[i] = (float)(i % 11 - 5);
    for (int round = 0; round < 30; round++) {
        pthread_t thread[THREADS];
        struct caller caller[THREADS];
        struct sol_weights *weights;
        REQUIRE(!sol_weights_new(p, (const void *[]){w}, &weights));
        for (int i = 0; i < THREADS; i++) {
            caller[i] = (struct caller){p, weights, w, false};
            REQUIRE(!pthread_create(&thread[i], NULL, call_both, &caller[i]));
        }
        for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < THREADS; i++) CHECK(caller[i].is_right);
        sol_weights_release(weights);
    }
    sol_program_release(p);
}

/* Saved values with two rows less than the input: their size is not that of a call while weights are packed. */
static const char open_rows[] =
    "model \"m\" {\nsymbol $0 \"h\"\n%0 = input f32[1,1,$0,1] \"x\"\n"
    "%1 = input f32[1,1,$0-2,1] \"g\" backward\n%2 = param f32[1,1,3,1] \"w\"\n"
    "%3 = conv %0 %2\n%4 = exp %3\n%5 = mul %4 %1\n%6 = scalar value=1.0\n%7 = add %4 %6\n"
    "output %7 \"y\"\noutput %5 \"z\" backward\n}\n";

static void test_open_rows(void) {
    const float x[5] = {0}, g[3] = {2, 3, 4}, w[3] = {1, 1, 1};
    float y[3], z[3];
    char saved[1024];
    size_t size = 0;
    struct sol_model *model = NULL;
    struct sol_program *p = NULL;
    struct sol_weights *weights = NULL;
    REQUIRE(!sol_model_parse(open_rows, &model) && !sol_compile(model, NULL, &p));
    REQUIRE(!sol_weights_new(p, (const void *[]){w}, &weights));
    CHECK(p->n_saved > 0);
    CHECK(!sol_program_saved_size(p, &(int64_t){5}, &size) && size && size <= sizeof saved);
    CHECK(!sol_program_forward(p, weights, &(int64_t){5}, (const void *[]){x, NULL},
                               (void *[]){y, NULL}, saved));
    CHECK(!sol_program_backward(p, weights, &(int64_t){5}, (const void *[]){NULL, g},
                                (void *[]){NULL, z}, saved));
    for (int i = 0; i < 3; i++) CHECK(y[i] == 2 && z[i] == g[i]);
    CHECK(sol_program_saved_size(p, &(int64_t){1}, &size) == SOL_EINVAL);
    sol_weights_release(weights);
    sol_program_release(p);
    sol_model_free(model);
}

static bool has_moved(const struct sol_program *p, int64_t to_device, int64_t to_host) {
    struct sol_transfers t;
    sol_program_transfers(p, &t);
    return t.to_device == to_device && t.to_host == to_host && t.weights == 3 * 4 &&
           (p->far ? t.launches > 0 : !t.launches);
}

/* What is saved stays on the device, and the caller's memory names it. */
static void test_far(void) {
    if (check_is_emulated("the device far")) return;
    const struct sol_options options = {.device = "far", .device_number = 1};
    const float x[5] = {0}, g[3] = {2, 3, 4}, w[3] = {1, 1, 1};
    const int64_t five = 5;
    float y[3], z[3];
    char saved[64], moved[64];
    size_t size = 0;
    struct sol_model *model = NULL;
    struct sol_program *p = NULL;
    struct sol_weights *weights = NULL;
    REQUIRE(!sol_model_parse(open_rows, &model));
    enum sol_status status = sol_compile(model, &options, &p);
    sol_model_free(model);
    if (status) {
        printf("far: skipped: %s\n", sol_error());
        return;
    }
    REQUIRE(!sol_weights_new(p, (const void *[]){w}, &weights));
    CHECK(!sol_program_saved_size(p, &five, &size) && size <= sizeof saved);
    CHECK(!sol_program_forward(p, weights, &five, (const void *[]){x, NULL}, (void *[]){y, NULL},
                               saved));
    CHECK(has_moved(p, 5 * 4, 3 * 4));
    CHECK(!sol_program_backward(p, weights, &five, (const void *[]){NULL, g}, (void *[]){NULL, z},
                                saved));
    CHECK(has_moved(p, 8 * 4, 6 * 4));
    for (int i = 0; i < 3; i++) CHECK(y[i] == 2 && z[i] == g[i]);
    for (int i = 0; i < 2; i++) {
        CHECK(sol_program_backward(p, weights, &five, (const void *[]){NULL, g},
                                   (void *[]){NULL, z}, i ? saved : moved) == SOL_EINVAL);
        CHECK(strstr(sol_error(), "may not be moved") != NULL);
        sol_program_saved_free(p, saved);
    }
    sol_program_saved_free(p, NULL);
    CHECK(has_moved(p, 8 * 4, 6 * 4));
    sol_weights_release(weights);
    sol_program_release(p);
}

/* Arguments: [group [seed [number of models]]] */
int main(int argc, char **argv) {
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    if (argc > 1) {
        is_named = true;
        test_group(argv[1], seed, argc > 3 ? atoi(argv[3]) : 24);
        return check_done();
    }
    test_open_rows();
    test_far();
    test_threads();
    for (int i = 0; i < N_LAYER_KINDS; i++)
        if (i != LAYER_copy && i != LAYER_host) test_group(layer_infos[i].name, seed, 4);
    for (int i = 0; i < N_LAYER_KINDS; i++) {
        char name[64];
        snprintf(name, sizeof name, GRADIENT "%s", layer_infos[i].name);
        if (i != LAYER_copy && i != LAYER_host) test_group(name, seed, 3);
    }
    test_group(GRADIENT "dag", seed, 40);
    test_group(GRADIENT "epilogue", seed, 30);
    test_group(GRADIENT "cnn", seed, 30);
    test_group("dag", seed, 100);
    test_group("mixed", seed, 40);
    test_group("epilogue", seed, 60);
    test_group("cnn", seed, 60);
    test_group("many", seed, 2);
    test_group("kept", seed, 20);
    printf(
        "%d programs, %d save values, %d pack weights for the backward call; %d models without gradients\n",
        n_programs, n_saving, n_packing, n_refused);
    CHECK(n_saving > n_programs / 8 && n_packing > n_programs / 20);
    return check_done();
}
