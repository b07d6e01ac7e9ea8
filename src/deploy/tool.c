/* Finds the compiler for a library and runs it, without a shell and with a time limit. */
#include "deploy/deploy.h"

#include "device/cpu/cpu.h"
#include "jit/jit.h"

#include <stdio.h>
#include <string.h>

/* Longer than for a kernel, since a library has far more text. */
#define TIMEOUT_S 900
#define OUTPUT_SIZE 4096
#define SHOWN_OUTPUT 700

/* The compiler of the option, else that of generated kernels, or the usual cross compiler for arm64. */
static enum sol_status find_compiler(struct deployment *d, const char **out) {
    const char *version, *path;
    if (d->library->compiler) {
        *out = arena_strdup(d->arena, d->library->compiler);
        return SOL_OK;
    }
    if (!strcmp(d->isa->arch, "arm64") && strcmp(CPU_NAME, "arm64")) {
        *out = "aarch64-linux-gnu-gcc";
        return SOL_OK;
    }
    TRY(jit_compiler(&path, &version));
    *out = path;
    return SOL_OK;
}

/* The path of the "objcopy" or "ar" that the compiler uses. */
static enum sol_status ask_program(struct deployment *d, const char *compiler, const char *program,
                                   const char **out) {
    char output[OUTPUT_SIZE];
    const char *argv[] = {compiler, arena_printf(d->arena, "-print-prog-name=%s", program), NULL};
    struct os_run run = {.max_s = 60};
    TRY(os_spawn(argv, &run, output, sizeof output));
    if (run.code) return fail(SOL_ETOOL, "%s does not say where its %s is", compiler, program);
    output[strcspn(output, "\n")] = 0;
    *out = arena_strdup(d->arena, output);
    return SOL_OK;
}

enum sol_status deploy_find_tool(struct deployment *d, struct deploy_tool *out) {
    TRY(find_compiler(d, &out->compiler));
    if (d->library->target == SOL_SHARED_LIB) return SOL_OK;
    size_t first = strcspn(out->compiler, " ");
    const char *program = arena_printf(d->arena, "%.*s", (int)first, out->compiler);
    TRY(ask_program(d, program, "objcopy", &out->objcopy));
    return ask_program(d, program, "ar", &out->ar);
}

/* ---- Running ---- */

/* Exit codes of `env` when it cannot start a program. */
enum { CANNOT_RUN = 126, CANNOT_FIND = 127 };

static enum sol_status report_failure(const char *program, int code, char *output) {
    if (code < 0) return fail(SOL_ETOOL, "%s did not end within %d s", program, TIMEOUT_S);
    if (strlen(output) > SHOWN_OUTPUT) output[SHOWN_OUTPUT] = 0;
    if (code == CANNOT_RUN || code == CANNOT_FIND)
        return fail(SOL_ETOOL, "cannot start %s:\n%s", program, output);
    return fail(SOL_ETOOL, "%s failed with exit code %d:\n%s", program, code, output);
}

/* TMPDIR is the temporary folder, so that files that a killed compiler leaves are removed with it. */
enum sol_status deploy_run(struct deployment *d, const char *command, const char *const *words) {
    VEC(const char *) argv = {0};
    char output[OUTPUT_SIZE], *at = arena_strdup(d->arena, command);
    VEC_PUSH(d->arena, &argv, "env");
    VEC_PUSH(d->arena, &argv, arena_printf(d->arena, "TMPDIR=%s", d->work));
    const int program = argv.n;
    for (at += strspn(at, " "); *at; at += strspn(at, " ")) {
        VEC_PUSH(d->arena, &argv, at);
        at += strcspn(at, " ");
        if (*at) *at++ = 0;
    }
    if (argv.n == program) return fail(SOL_EINVAL, "the compiler is named \"%s\"", command);
    for (; *words; words++) VEC_PUSH(d->arena, &argv, *words);
    VEC_PUSH(d->arena, &argv, NULL);
    struct os_run run = {.max_s = TIMEOUT_S};
    TRY(os_spawn(argv.at, &run, output, sizeof output));
    return run.code ? report_failure(argv.at[program], run.code, output) : SOL_OK;
}
