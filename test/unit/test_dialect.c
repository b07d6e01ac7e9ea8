/*
 * A device that is not this machine's CPU: capabilities of its own, and kernels in the dialect of single values, compiled by
 * device_link. Its results are those of the interpreter, on the device `c`.
 *
 * The kernels themselves are compared with point expressions by test_dfp.c.
 */
#include "check.h"
#include "compile.h"
#include "dfp/dialect.h"
#include "run/bind.h"
#include "run/micro_batch.h"

#include <math.h>
#include <string.h>

#define MOST 4096

/* ---- The device ---- */

static enum sol_status get_caps(const struct sol_options *options, struct device_caps *caps) {
    if (options->cpu) return fail(SOL_EINVAL, "there is one kind of core only");
    caps->scratch_max = 1 << 20;
    caps->grain = 4096;
    caps->threads = 1;
    caps->portion_cache = 0;
    caps->is_host = false;
    return SOL_OK;
}

static enum sol_status emit(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    if (cluster->module != MODULE_DFP) return device_c.emit(b, cluster);
    TRY(dfp_emit(b, cluster, &parts));
    device_queue_kernel(b, &parts);
    return SOL_OK;
}

/* As strict as compilers of which little is known may be. */
static enum sol_status link_kernels(struct build *b) {
    return device_link(b, &jit_objects,
                       "-shared -fPIC -std=c99 -O2 -ffp-contract=off -Wall -Wextra -pedantic "
                       "-Werror -Wno-unused-function");
}

static const char *say_available(void) { return NULL; }

static const struct device device_plain = {
    .name = "plain",
    .unavailable = say_available,
    .caps = get_caps,
    .refuse_fusion = dfp_refuse,
    .emit = emit,
    .link = link_kernels,
};

/* ---- Its programs ---- */

static const char *const models[] = {
    "%1 = softmax %0 axis=3\n",
    "%1 = softmax %0 axis=1\n",
    "%1 = layer_norm %0 axes=[2,3]\n%2 = gelu %1\n",
    "%1 = max_pool %0 kernel=[3,3] stride=[2,2] pad=[1,1,1,1]\n%2 = relu %1\n",
    "%1 = param f32[5,3,3,3] \"w\"\n%2 = conv %0 %1 pad=[1,1,1,1]\n%3 = silu %2\n",
    "%1 = cumsum %0 axis=3\n%2 = sum %1 axes=[0,2]\n",
    "%1 = permute %0 axes=[0,2,3,1]\n%2 = exp %1\n",
    "%1 = cast %0 dtype=i32\n%2 = cast %1 dtype=f64\n%3 = tanh %2\n%4 = cast %3 dtype=f32\n",
};

static float in[MOST], weight[MOST], is[MOST], should[MOST];

static struct sol_program *compile(const struct device *device, const char *layers) {
    struct sol_options options = {0};
    struct sol_program *program = NULL;
    struct sol_model *user = NULL;
    char text[512];
    int number = 0; /* of the last layer */
    for (const char *at = layers; (at = strchr(at, '\n')); at++) number++;
    snprintf(text, sizeof text,
             "model \"m\" {\nsymbol $0 \"n\"\n%%0 = input f32[$0,3,9,11] \"x\"\n%soutput %%%d "
             "\"y\"\n}\n",
             layers, number);
    if (!CHECK(!sol_model_parse(text, &user))) fprintf(stderr, "%s%s\n", text, sol_error());
    else if (!CHECK(!compile_for(device, user, &options, &program)))
        fprintf(stderr, "%s%s\n", text, sol_error());
    sol_model_free(user);
    return program;
}

static void run(struct sol_program *program, int64_t batch, float *out) {
    struct sol_weights *weights = NULL;
    REQUIRE(!sol_weights_new(program, (const void *const[]){weight}, &weights));
    memset(out, 0, MOST * sizeof *out);
    if (!CHECK(!sol_program_run(program, weights, &batch, (const void *const[]){in},
                                (void *const[]){out})))
        fprintf(stderr, "%s\n", sol_error());
    sol_weights_release(weights);
}

static int count_kernels(const struct sol_program *program, bool compiled) {
    int n = 0;
    for (int i = 0; i < program->phase[FORWARD].n; i++) {
        const struct step *step = &program->phase[FORWARD].at[i];
        n += step->kind == &step_kernel &&
             !!((const struct kernel *)step->data)->compiled == compiled;
    }
    return n;
}

static void test_model(const char *layers) {
    struct sol_program *program = compile(&device_plain, layers),
                       *other = compile(&device_c, layers);
    if (!program || !other) return;
    if (!CHECK(count_kernels(program, true) > 0 && count_kernels(program, false) == 0))
        fprintf(stderr, "not compiled:\n%s%s\n", layers, sol_error());
    CHECK(count_kernels(other, true) == 0);
    for (int64_t batch = 1; batch < 8; batch += 3) {
        run(program, batch, is);
        run(other, batch, should);
        int wrong = 0;
        for (int i = 0; i < MOST; i++)
            wrong += !(fabsf(is[i] - should[i]) <= 1e-5f * (1 + fabsf(should[i])));
        if (!CHECK(!wrong)) fprintf(stderr, "%d values are wrong:\n%s", wrong, layers);
    }
    sol_program_release(program);
    sol_program_release(other);
}

/* A device without a cache for micro-batches never divides a batch, however small the host's caches are. */
static void test_undivided(void) {
    const int64_t cache = micro_batch_cache, step = micro_batch_step, batch = 7;
    micro_batch_cache = 400, micro_batch_step = 0;
    const struct device *const both[] = {&device_plain, &device_c};
    for (int i = 0; i < 2; i++) {
        struct sol_program *program = compile(both[i], models[4]);
        int64_t symbols[SIZE_SYMBOLS] = {batch};
        struct binding *binding;
        if (!program) continue;
        REQUIRE(!binding_new(program, FORWARD, symbols, &binding));
        CHECK((binding->section[0].micro_batch == batch) == (both[i] == &device_plain));
        binding_free(binding);
        sol_program_release(program);
    }
    micro_batch_cache = cache, micro_batch_step = step;
}

/* ---- Capabilities ---- */

static enum sol_status get_odd_caps(const struct sol_options *options, struct device_caps *caps) {
    (void)options;
    caps->block = 8, caps->vector = 4;
    return SOL_OK;
}

static void test_caps(void) {
    const struct sol_options defaults = {0}, unknown = {.cpu = "abacus"};
    const struct device odd = {.name = "odd", .caps = get_odd_caps};
    struct device_caps caps;
    CHECK(!device_get_caps(&device_ref, &defaults, &caps) && caps.block == 1 && caps.vector == 1);
    CHECK(caps.is_host && caps.dialect == &dfp_plain && !caps.impls && caps.threads > 0);
    CHECK(!device_get_caps(&device_cpu, &defaults, &caps) && caps.block == caps.vector);
    CHECK(caps.vector > 1 && caps.dialect == &dfp_gnu && caps.impls && caps.is_host);
    CHECK(device_get_caps(&device_cpu, &unknown, &caps) == SOL_EINVAL &&
          strstr(sol_error(), "abacus"));
    CHECK(device_get_caps(&odd, &defaults, &caps) == SOL_EBUG && strstr(sol_error(), "8"));
}

int main(void) {
    for (int i = 0; i < MOST; i++) in[i] = sinf((float)i) * 3, weight[i] = cosf((float)i);
    for (int i = 0; i < COUNT(models); i++) test_model(models[i]);
    test_undivided();
    test_caps();
    return check_done();
}
