/*
 * src/device/null: the skeleton of a device goes the way of the compiler's `lower`, makes steps and
 * kernels of all modules, and computes nothing.
 *
 * Nobody can choose the device, so the test does by itself what compile.c does for a device.
 */
#include "check.h"
#include "device/device.h"
#include "pass/pass.h"

/* A linear layer is DNN's, a softmax DFP's, a permutation is a copy, and a gather a step of its own. */
static const char model_text[] = "model \"m\" {\n"
                                 "%0 = input f32[4,8] \"x\"\n"
                                 "%1 = param f32[6,8] \"w\"\n"
                                 "%2 = input i64[3] \"rows\"\n"
                                 "%3 = linear %0 %1\n"
                                 "%4 = softmax %3 axis=1\n"
                                 "%5 = gather %4 %2 axis=0\n"
                                 "%6 = permute %4 axes=[1,0]\n"
                                 "output %5 \"taken\"\n"
                                 "output %6 \"turned\"\n"
                                 "}\n";

static enum sol_status lower(struct build *b, const struct device *device,
                             const struct model *model) {
    struct plan *plan = b->plan;
    plan->model = ir_clone(b->arena, model);
    TRY(pass_run_all(plan->model));
    TRY(plan_layouts(plan));
    pass_clean(plan->model);
    TRY(plan_storage(plan));
    pass_clean(plan->model);
    TRY(plan_clusters(plan, device->refuse_fusion));
    TRY(plan_images(plan, 1));
    build_init(b);
    for (int i = 0; i < plan->clusters.n; i++) {
        build_begin(b, plan->clusters.at[i]);
        TRY(device->emit(b, plan->clusters.at[i]));
    }
    TRY(device->link(b));
    return build_finish(b, model);
}

static int count_steps(const struct sol_program *program, const char *module) {
    int n = 0;
    for (int i = 0; i < program->steps.n; i++) n += !strcmp(program->steps.at[i].module, module);
    return n;
}

static void check_run(const struct sol_program *program) {
    struct sol_weights *weights = NULL;
    float x[4 * 8] = {0}, w[6 * 8] = {0}, taken[3 * 6], turned[6 * 4];
    int64_t rows[] = {0, 3, 1};
    REQUIRE(!sol_weights_new(program, (const void *const[]){w}, &weights));
    for (int i = 0; i < program->steps.n; i++) {
        const struct step *step = &program->steps.at[i];
        if (!strcmp(step->module, "DFP"))
            CHECK(((const struct kernel *)step->data)->compiled != NULL);
    }
    CHECK(!sol_program_run(program, weights, NULL, (const void *const[]){x, rows},
                           (void *const[]){taken, turned}));
    sol_weights_release(weights);
}

static void test_modules(void) {
    struct sol_model *user = NULL;
    struct arena arena;
    struct sol_options options = {0};
    struct sol_program *program = program_new();
    REQUIRE(program);
    if (!CHECK(!sol_model_parse(model_text, &user))) fprintf(stderr, "    %s\n", sol_error());
    arena_init(&arena);
    ARENA_BOUNDARY(&arena, exit(1));
    program->arena.boundary = arena.boundary;
    struct plan plan = {.arena = &arena,
                        .lanes = device_null.lanes(&options),
                        .takes_heavy = device_null.takes_heavy};
    struct build build = {.arena = &arena,
                          .keep = &program->arena,
                          .program = program,
                          .options = &options,
                          .plan = &plan};
    if (CHECK(!lower(&build, &device_null, ir_user_model(user)))) {
        CHECK(count_steps(program, "DNN") == 1 && count_steps(program, "DFP") > 0);
        CHECK(count_steps(program, "copy") == 1 && count_steps(program, "gather") == 1);
        check_run(program);
    } else {
        fprintf(stderr, "    %s\n", sol_error());
    }
    program->arena.boundary = NULL;
    arena_fini(&arena);
    sol_program_release(program);
    sol_model_free(user);
}

static void test_refusal(void) {
    const struct device *device;
    CHECK(device_find("null", &device) == SOL_EDEVICE && strstr(sol_error(), "computes nothing"));
    CHECK(!device_find(NULL, &device) && device != &device_null);
}

int main(void) {
    test_modules();
    test_refusal();
    return check_done();
}
