/*
 * What tests of the libraries of NEC share: programs of the device `ve`, with the stand-ins of test/veda, beside the device `ref`.
 *
 * Each case is a child, as a process opens libveda, and asks whether a library can be linked, once. Needs a C compiler.
 */
#ifndef LIBRARIES_H
#define LIBRARIES_H

#include "check.h"
#include "children.h"
#include "device/device.h"

#include <math.h>
#include <sol/sol.h>

#define LIMIT 120 /* seconds of a case */

static bool no_libraries; /* the option */

static float input[1 << 16], is[1 << 16], should[1 << 16];

/* ---- Programs ---- */

static struct sol_program *compile(const char *device, const char *text, int64_t batch_hint) {
    struct sol_options options = {
        .device = device, .batch_hint = batch_hint, .no_libraries = no_libraries};
    struct sol_program *program = NULL;
    struct sol_model *model = NULL;
    if (!CHECK(!sol_model_parse(text, &model)) || !CHECK(!sol_compile(model, &options, &program)))
        fprintf(stderr, "%s%s\n", text, sol_error());
    sol_model_free(model);
    REQUIRE(program);
    return program;
}

static void run(struct sol_program *program, int64_t batch, float *out) {
    const void *const all[] = {input, input + 1000, input + 2000};
    struct sol_weights *weights = NULL;
    memset(out, 0, sizeof is);
    if (!CHECK(!sol_weights_new(program, all, &weights) &&
               !sol_program_run(program, weights, &batch, all, (void *const[]){out})))
        fprintf(stderr, "%s\n", sol_error());
    sol_weights_release(weights);
}

/* A sum of products in another order. */
static bool is_right(const char *text, struct sol_program *program, int64_t batch) {
    struct sol_program *ref = compile("ref", text, 1);
    int wrong = 0;
    run(program, batch, is);
    run(ref, batch, should);
    sol_program_release(ref);
    for (int i = 0; i < COUNT(is); i++)
        wrong += !(fabsf(is[i] - should[i]) <= 1e-4f * (1 + fabsf(should[i])));
    return !wrong;
}

/* Does the report of the program, compiled for this batch, have these words? Are the results right for several batches? */
static void test_report(const char *text, int64_t batch_hint, const char *first,
                        const char *second) {
    static const int batches[] = {0, 1, 4, 7};
    struct sol_program *program = compile("ve", text, batch_hint);
    const char *report = sol_program_report(program);
    if (!CHECK(strstr(report, first) && strstr(report, second)))
        fprintf(stderr, "    no \"%s\" or \"%s\" in\n%s", first, second, report);
    for (int i = 0; i < COUNT(batches); i++)
        if (!CHECK(is_right(text, program, batches[i])))
            fprintf(stderr, "    batch %d of\n%s", batches[i], text);
    sol_program_release(program);
}

#define MODEL(inputs, layers) "model \"m\" {\nsymbol $0 \"n\"\n" inputs layers "}\n"
#define IMAGES "%0 = input f32[$0,8,9,11] \"x\"\n"

/* With the stand-ins, or without any library. */
static void use_library(bool is_there) {
    char path[1024], compiler[2100];
    check_path("libveda.so", path, sizeof path);
    setenv("SOL_VEDA", path, 1);
    *strrchr(path, '/') = 0;
    snprintf(compiler, sizeof compiler, "cc -L%s -Wl,-rpath,%s", path, path);
    setenv("SOL_NCC", is_there ? compiler : "cc", 1);
    setenv("SOL_FAR", "latency=0,threads=3", 1);
}

/* Before the first case. */
static void begin_cases(const char *disabled) {
    for (int i = 0; i < COUNT(input); i++) input[i] = sinf((float)i);
    unsetenv("SOL_VISIBLE_DEVICES");
    setenv("SOL_DISABLE", disabled, 1);
}

/* If the library does nothing, results are wrong. So it is called. */
static void test_call(const char *text, int64_t batch) {
    struct sol_program *program = compile("ve", text, batch);
    if (!CHECK(!is_right(text, program, batch))) fprintf(stderr, "    not called for\n%s", text);
    sol_program_release(program);
}

/* Does sol_query say of library `name` that it is not available, for a reason with these words? */
struct wanted_row {
    const char *name, *words;
    int found;
};
static void find_row(void *user, const struct sol_info *info) {
    struct wanted_row *row = user;
    row->found +=
        !strcmp(info->name, row->name) && !info->available && strstr(info->detail, row->words);
}
static bool is_listed_as_missing(const char *name, const char *words) {
    struct wanted_row row = {name, words, 0};
    sol_query(find_row, &row);
    return row.found == 1;
}

#endif
