/*
 * The steps of far devices (device/far_emit.c), on the host's memory: each step is a compiled kernel. Random models and their gradients
 * against the reference, and wrong indices, which must give the messages of the host's steps.
 *
 *   generated model -> compile_for the device of this file -> sol_program_forward, sol_program_backward | compared
 *                   -> ref_run on the model as it was built                                             |
 *
 * A failure prints the seed and the model; `test_far_emit GROUP SEED 1` runs that one again (groups: gen_named, gradient:GROUP,
 * joint:GROUP, open).
 */
#include "../unit/check.h"
#include "compile.h"
#include "device/ref/ref.h"
#include "dfp/dialect.h"
#include "dnn/emit.h"
#include "gen.h"
#include "run/host.h"
#include "run/micro_batch.h"
#include "tensors.h"

#include <math.h>

#define GRADIENT "gradient:"
#define JOINT    "joint:"

/* ---- The device ---- */

static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    (void)options;
    caps->block = caps->vector = 4;
    caps->dialect = &dfp_gnu;
    caps->impls = dnn_impls;
    return SOL_OK;
}

static const char *say_unavailable(void) { return NULL; }

static enum sol_status link_kernels(struct build *b) {
    return device_link(b, &jit_objects,
                       "-shared -fPIC -std=gnu99 -O1 -Wno-psabi -fno-strict-aliasing -DLANES=4");
}

static const struct device device_plain = {
    .name = "plain",
    .unavailable = say_unavailable,
    .caps = get_caps,
    .refuse_fusion = dfp_refuse,
    .emit = device_emit_far,
    .convert = device_convert,
    .link = link_kernels,
};

/* A device with layouts in channel blocks, which come from convolutions on the host: a test of copies into and out of blocks. */

static enum sol_status emit_dnn(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    const struct dnn_isa *isa = dnn_isas;
    while (isa->lanes != 4) isa++;
    if (!cluster->dnn->epilogue) return dnn_emit(b, cluster, isa, NULL, NULL);
    TRY(dfp_make_parts(b, cluster->dnn->epilogue, &parts));
    device_queue_kernel(b, &parts);
    const struct step epilogue = {.data = parts.kernel,
                                  .n_ptr = parts.n_ptr,
                                  .n_arg = parts.n_arg,
                                  .ptr = parts.ptr,
                                  .arg = parts.arg,
                                  .scratch_size = parts.scratch_size};
    return dnn_emit(b, cluster, isa, NULL, &epilogue);
}

static enum sol_status emit_any(struct build *b, const struct cluster *cluster) {
    return cluster->module == MODULE_DNN ? emit_dnn(b, cluster) : device_emit_far(b, cluster);
}

/* Converts copies, which are most of the other steps. */
static enum sol_status convert_copies(struct build *b, struct step *step) {
    return step->kind == &step_copy ? device_convert(b, step) : SOL_OK;
}

static const struct device device_blocks = {
    .name = "blocks",
    .unavailable = say_unavailable,
    .caps = get_caps,
    .supports_anchor = dnn_supports,
    .writes_plain = dnn_writes_plain,
    .refuse_fusion = dfp_refuse,
    .emit = emit_any,
    .convert = convert_copies,
    .link = link_kernels,
};

/* ---- One model ---- */

struct run {
    const char *name;
    const struct device *device;
    uint64_t seed;
    struct gen g;
    struct sol_model *model;
    int64_t symbols[SIZE_SYMBOLS];
    struct tensors in, params, expected, out;
};

static int n_programs, n_steps, n_constants;

static void check_steps(const struct sol_program *p, bool is_plain) {
    n_programs++;
    n_constants += p->n_constants;
    for (enum phase phase = 0; phase < N_PHASES; phase++)
        for (int i = 0; i < p->phase[phase].n; i++) {
            const struct step *step = &p->phase[phase].at[i];
            n_steps++;
            if (is_plain)
                CHECK(step->kind == &step_kernel && ((const struct kernel *)step->data)->compiled);
            else CHECK(step->kind != &step_copy);
        }
}

static enum sol_status run_program(const struct run *run, const struct sol_program *p,
                                   const struct sol_weights *weights) {
    const void *const *in = (const void *const *)run->in.at;
    size_t size = 0;
    if (!ir_has_backward(ir_user_model(run->model)))
        return sol_program_run(p, weights, run->symbols, in, run->out.at);
    TRY(sol_program_saved_size(p, run->symbols, &size));
    void *saved = aligned_alloc(64, size + 64 - size % 64);
    REQUIRE(saved);
    enum sol_status status = sol_program_forward(p, (struct sol_weights *)(uintptr_t)weights,
                                                 run->symbols, in, run->out.at, saved);
    if (!status)
        status = sol_program_backward(p, (struct sol_weights *)(uintptr_t)weights, run->symbols, in,
                                      run->out.at, saved);
    free(saved);
    return status;
}

static enum sol_status compile_and_run(const struct run *run) {
    const struct sol_options options = {.no_autotune = true, .recompute = run->seed % 2 ? 0.5 : 0};
    struct sol_program *p;
    struct sol_weights *weights = NULL;
    TRY(compile_for(run->device, run->model, &options, &p));
    check_steps(p, run->device == &device_plain);
    enum sol_status status = sol_weights_new(p, (const void *const *)run->params.at, &weights);
    if (!status) status = run_program(run, p, weights);
    if (weights) sol_weights_release(weights);
    sol_program_release(p);
    return status;
}

static void compare(const struct run *run) {
    double worst = 0;
    enum sol_status status = compile_and_run(run);
    for (int i = 0; i < run->out.n && !status; i++)
        worst = fmax(worst, tensors_compare(&run->g, &run->out, &run->expected, i));
    if (CHECK(!status && worst <= 1)) return;
    char *text = sol_model_print(run->model);
    printf("%s seed %llu: %s, error %g\nsizes %lld, %lld, %lld\n%s\n", run->name,
           (unsigned long long)run->seed, status ? sol_error() : "wrong", worst,
           (long long)run->symbols[0], (long long)run->symbols[1], (long long)run->symbols[2],
           text ? text : "");
    free(text);
}

/* Inputs of BACKWARD that are not the generator's are gradients, or the gate, which is 1. */
static void test_sizes(struct run *run) {
    const struct model *m = ir_user_model(run->model);
    const struct gen_range more = {.low = strncmp(run->name, JOINT, strlen(JOINT)) ? -1 : 1,
                                   .high = 1};
    for (int i = 0; i < m->inputs.n; i++)
        tensors_add_random(&run->in, run->g.random, m->inputs.at[i], run->symbols,
                           i < run->g.n_inputs ? run->g.input[i] : more);
    for (int i = 0; i < m->params.n; i++)
        tensors_add_random(&run->params, run->g.random, m->params.at[i], run->symbols,
                           run->g.param[i]);
    for (int i = 0; i < m->outputs.n; i++) {
        const int64_t n = tensors_count(m->outputs.at[i], run->symbols);
        tensors_add(&run->expected, m->outputs.at[i]->dtype, n);
        tensors_add(&run->out, m->outputs.at[i]->dtype, n);
    }
    CHECK(!ref_run(m, run->symbols, (const void *const *)run->in.at,
                   (const void *const *)run->params.at, run->expected.at));
    compare(run);
    tensors_free(&run->in), tensors_free(&run->params);
    tensors_free(&run->expected), tensors_free(&run->out);
}

/* ---- Random models ---- */

static struct sol_model *generate(struct run *run, struct random *r) {
    const bool is_gradient = !strncmp(run->name, GRADIENT, strlen(GRADIENT));
    const bool is_joint = !strncmp(run->name, JOINT, strlen(JOINT));
    if (!strcmp(run->name, "open")) gen_open(&run->g, r);
    else
        gen_named(&run->g, r,
                  run->name + (is_gradient ? strlen(GRADIENT)
                               : is_joint  ? strlen(JOINT)
                                           : 0));
    if (is_gradient) run->g.error += run->g.tolerance; /* as in test_joint.c */
    if (!run->g.n_outputs) return NULL;
    return is_gradient ? gen_gradient(&run->g) : is_joint ? gen_joint(&run->g, r) : run->g.model;
}

/* Open sizes of images and sequences are large enough for windows. */
static void draw_symbols(struct run *run, const struct model *m) {
    static const int batches[] = {1, 3, 2, 7, 1, 0, 5};
    for (int i = 0; i < m->n_symbols; i++)
        run->symbols[i] = round_up(16 + (int64_t)(run->seed + (uint64_t)i) % 9,
                                   max_i64(1, m->quotients.multiple[i]));
    run->symbols[0] = batches[run->seed % (uint64_t)COUNT(batches)];
    size_derive(m->quotients.at, m->quotients.n, run->symbols);
}

static void test_model(const struct device *device, const char *name, uint64_t seed) {
    static struct run run;
    struct random r = random_start(seed);
    run = (struct run){.name = name, .device = device, .seed = seed};
    micro_batch_cache = seed % 2 ? 400 : (int64_t)8 << 20;
    micro_batch_step = seed % 2 ? 0 : (int64_t)128 << 10;
    run.model = generate(&run, &r);
    if (run.model && CHECK(!sol_model_check(run.model))) {
        draw_symbols(&run, ir_user_model(run.model));
        test_sizes(&run);
    }
    if (run.model != run.g.model) sol_model_free(run.model);
    sol_model_free(run.g.model);
}

static void test_group(const struct device *device, const char *name, uint64_t seed, int n) {
    const int failed = atomic_load(&check_failed);
    for (int i = 0; i < n; i++) test_model(device, name, seed + (uint64_t)i);
    printf("%-6s %-22s %4d models from seed %llu, %d failures\n", device->name, name, n,
           (unsigned long long)seed, atomic_load(&check_failed) - failed);
}

/* ---- Wrong indices ---- */

/* Compiles for the device, or the host's device `c` if it is NULL, runs with these inputs and the parameter, and writes the message. */
static enum sol_status run_text(const struct device *device, const char *text,
                                const void *const *in, const void *param, char *message) {
    static char out[1 << 12];
    const struct device *c;
    struct sol_model *model = NULL;
    struct sol_program *p = NULL;
    struct sol_weights *weights = NULL;
    REQUIRE(!sol_model_parse(text, &model) && !device_find("c", &c));
    if (!CHECK(!compile_for(device ? device : c, model, &(struct sol_options){0}, &p)))
        printf("%s\n", sol_error());
    REQUIRE(p && !sol_weights_new(p, &param, &weights));
    enum sol_status status = sol_program_run(p, weights, NULL, in, (void *[]){out});
    snprintf(message, 256, "%s", status ? sol_error() : "");
    sol_weights_release(weights);
    sol_program_release(p);
    sol_model_free(model);
    return status;
}

static void check_message(const char *text, const void *const *in, const char *part) {
    char host[256], far[256];
    CHECK(run_text(NULL, text, in, NULL, host) == SOL_EINDEX);
    CHECK(run_text(&device_plain, text, in, NULL, far) == SOL_EINDEX);
    CHECK_TEXT(far, host);
    if (!CHECK(strstr(far, part))) printf("%s\n", far);
}

static void test_indices(void) {
    static const float x[64];
    static const int64_t wrong[] = {1, 7, 0}, outside[] = {1, -((int64_t)1 << 53), 0};
    static const int32_t low[] = {-1, -6, 4};
    const char *head = "model \"m\" {\n%0 = input f32[5,4] \"x\"\n%1 = input i64[3] \"i\"\n";
    const char *rows = "model \"m\" {\n%0 = input f32[5,4] \"x\"\n%1 = input i32[3] \"i\"\n";
    char text[512];
#define MODEL(first, rest) (snprintf(text, sizeof text, "%s%s}\n", first, rest), text)
    const char *gather = "%2 = gather %0 %1 axis=0\noutput %2 \"y\"\n",
               *plain = "%2 = gather %0 %1 axis=0 wraps=false\noutput %2 \"y\"\n";
    check_message(MODEL(head, gather), (const void *[]){x, wrong},
                  "number 7, but there are 5 rows");
    check_message(MODEL(rows, gather), (const void *[]){x, low}, "number -6, but there are 5 rows");
    check_message(MODEL(head, plain), (const void *[]){x, outside}, "an index is outside");
    check_message("model \"m\" {\n%0 = input f32[3,4] \"x\"\n%1 = input i64[3] \"i\"\n"
                  "%2 = scatter_sum %0 %1 axis=0 shape=[6]\noutput %2 \"y\"\n}\n",
                  (const void *[]){x, wrong}, "scatter_sum: number 7, but there are 6 rows");
    check_message("model \"m\" {\n%0 = input f32[2,5,4] \"x\"\n%1 = input i64[1,3] \"i\"\n"
                  "%2 = input f32[1,3] \"w\"\n%3 = resample %0 %1 %2 axis=1\noutput %3 \"y\"\n}\n",
                  (const void *[]){x, wrong, x}, "number 7, but there are 5 elements");
    check_message("model \"m\" {\n%0 = input f32[5,3,8] \"x\"\n%1 = input f32[8,2] \"w\"\n"
                  "%2 = input f32[3,2] \"h\"\n%3 = input f32[3,2] \"c\"\n%4 = input i64[3] \"n\"\n"
                  "%5 = lstm %0 %1 %2 %3 %4 axis=0\noutput %5 \"y\"\n}\n",
                  (const void *[]){(float[120]){0}, x, x, x, wrong},
                  "sample 1 has 7 steps, but there are 5");
}

/* A call that fails leaves the caller's parameter as it was. */
static void test_updates(void) {
    const char *text = "model \"m\" {\n%0 = input f32[5,4] \"x\"\n%1 = input i64[3] \"i\"\n"
                       "%2 = param f32[3,4] \"p\"\n%3 = gather %0 %1 axis=0\n%4 = add %3 %2\n"
                       "output %4 \"y\"\nupdate %2 %4\n}\n";
    float x[20], p[12];
    char message[256];
    for (int i = 0; i < 20; i++) x[i] = (float)i;
    for (int i = 0; i < 12; i++) p[i] = 100;
    CHECK(run_text(&device_plain, text, (const void *[]){x, (int64_t[]){0, 9, 1}}, p, message) ==
          SOL_EINDEX);
    for (int i = 0; i < 12; i++) CHECK(p[i] == 100);
    CHECK(!run_text(&device_plain, text, (const void *[]){x, (int64_t[]){2, 0, 4}}, p, message));
    for (int i = 0; i < 12; i++) CHECK(p[i] == 100 + x[i % 4 + (i < 4 ? 8 : i < 8 ? 0 : 16)]);
}

/* Nothing interprets such kernels. */
static void test_no_compiler(void) {
    char *before = getenv("SOL_CC") ? strdup(getenv("SOL_CC")) : NULL;
    struct sol_model *model = NULL;
    struct sol_program *p = NULL;
    REQUIRE(!sol_model_parse("model \"m\" {\n%0 = input f32[5,4] \"x\"\n%1 = relu %0\n"
                             "output %1 \"y\"\n}\n",
                             &model));
    setenv("SOL_CC", "none", 1);
    CHECK(compile_for(&device_plain, model, &(struct sol_options){0}, &p) == SOL_ETOOL);
    CHECK(strstr(sol_error(), "must be compiled"));
    if (before) setenv("SOL_CC", before, 1);
    else unsetenv("SOL_CC");
    free(before);
    sol_model_free(model);
}

static void test_all(uint64_t seed) {
    static const char *const kinds[] = {"permute", "reshape", "slice",    "place",       "concat",
                                        "expand",  "pad",     "gather",   "scatter_sum", "resample",
                                        "lstm",    "gru",     "rnn_tanh", "rnn_relu"};
    static const char *const others[] = {"cnn", "mixed", "dag", "epilogue", "kept"};
    char name[64];
    for (int i = 0; i < COUNT(kinds); i++) {
        test_group(&device_plain, kinds[i], seed, 12);
        snprintf(name, sizeof name, "types:%s", kinds[i]);
        test_group(&device_plain, name, seed, 1);
        snprintf(name, sizeof name, GRADIENT "%s", kinds[i]);
        test_group(&device_plain, name, seed, 4);
    }
    for (int i = 0; i < COUNT(others); i++) {
        test_group(&device_plain, others[i], seed, 8);
        snprintf(name, sizeof name, JOINT "%s", others[i]);
        test_group(&device_plain, name, seed, 4);
    }
    test_group(&device_plain, "open", seed, 20);
    test_group(&device_blocks, "cnn", seed, 20);
    test_group(&device_blocks, JOINT "cnn", seed, 8);
    test_group(&device_blocks, "open", seed, 40);
}

/* Arguments: [group [seed [number of models]]] */
int main(int argc, char **argv) {
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    if (argc > 1) {
        test_group(&device_plain, argv[1], seed, argc > 3 ? atoi(argv[3]) : 24);
        test_group(&device_blocks, argv[1], seed, argc > 3 ? atoi(argv[3]) : 24);
        return check_done();
    }
    test_no_compiler();
    if (getenv("SOL_CC") && !strcmp(getenv("SOL_CC"), "none")) return check_done();
    test_indices();
    test_updates();
    test_all(seed);
    printf("%d programs, %d steps, %d constants\n", n_programs, n_steps, n_constants);
    return check_done();
}
