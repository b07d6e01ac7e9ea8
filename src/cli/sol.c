/* The program's commands and options, in two tables, which are its help, too. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* A new command is a row here. One that needs no model may still get a second word, which stands where the model
 * would: `sol cache clear`. */
static const struct command {
    const char *name;
    int (*run)(const struct options *options);
    bool needs_model;
    const char *text;
} commands[] = {
    {"compile", command_compile, true,
     "compiles a network, fills the kernel cache, says what was chosen"},
    {"run", command_run, true, "runs it once; prints, or writes, its outputs"},
    {"bench", command_bench, true, "times calls: median, p90, p99, throughput"},
    {"profile", command_profile, true, "time, rates and implementation of each kernel"},
    {"report", command_report, true,
     "the same and more as a page for a browser, --output=FILE; report.html"},
    {"deploy", command_deploy, true,
     "writes a library without dependencies into the folder --output"},
    {"dump", command_dump, true, "the network in its text form, as read or after a pass"},
    {"devices", command_devices, false, "devices, kernel libraries, compiler, cache"},
    {"cache", command_cache, false, "`sol cache clear` empties the kernel cache"},
};
#define N_COMMANDS (int)(sizeof commands / sizeof *commands)

/* What getopt_long answers: numbers of rows, from 1 on, so that none is the 0 that it has for flags. Row 0 stays
 * empty. */
enum {
    BATCH = 1,
    INPUT,
    OUTPUT,
    RUNS,
    SECONDS,
    SEED,
    JSON,
    AFTER,
    DEVICE,
    THREADS,
    STRICT,
    NO_AUTOTUNE,
    CPU,
    TARGET,
    WEIGHTS,
    LIB_NAME,
    FUNC_NAME,
    COMPILER,
    STATIC_MEMORY,
    HELP
};

/* `value` is what stands behind the = in the help; NULL: a switch without a value. Most texts end with the default,
 * behind a semicolon. A new option is a row, a number above, and a case of read_option. */
static const struct option_row {
    const char *name, *value, *text;
} rows[] = {
    [BATCH] = {"batch", "N", "value of open sizes; 1"},
    [INPUT] = {"input", "FILE", "an input, .npy or raw values; once per input, random without"},
    [OUTPUT] = {"output", "PREFIX",
                "run: writes PREFIX0.npy, ..; report: the file; deploy: the folder"},
    [RUNS] = {"runs", "N", "bench, profile: calls at least; 30"},
    [SECONDS] = {"seconds", "S", "bench: goes on that long; 2"},
    [SEED] = {"seed", "N", "of random inputs and parameters; 0"},
    [JSON] = {"json", "FILE", "bench: results for programs"},
    [AFTER] = {"after", "PASS", "dump: the pass's name or number; 0 is as read"},
    [DEVICE] = {"device", "NAME", "see `sol devices`; the best one"},
    [THREADS] = {"threads", "N", "that take part in a call; all cores"},
    [STRICT] = {"strict", NULL, "no algorithm that rounds more than plain sums"},
    [NO_AUTOTUNE] = {"no-autotune", NULL, "choose by cost alone, without timing"},
    [CPU] = {"cpu", "NAME", "its instruction set: avx512, avx2, neon"},
    [TARGET] = {"target", "KIND", "deploy: shared_lib, static_lib or c_source"},
    [WEIGHTS] = {"weights", "PLACE", "deploy: embedded, file or packed"},
    [LIB_NAME] = {"lib-name", "NAME", "deploy: of files and symbols; MyNetwork"},
    [FUNC_NAME] = {"func-name", "NAME", "deploy: of the function to call; predict"},
    [COMPILER] = {"compiler", "CC", "deploy: instead of the usual one"},
    [STATIC_MEMORY] = {"static-memory", NULL, "deploy: c_source without malloc"},
    [HELP] = {"help", NULL, "this text"},
};
#define N_ROWS (int)(sizeof rows / sizeof *rows)

int complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("sol: ", stderr);
    vfprintf(stderr, format, args);
    fputs("\n", stderr);
    va_end(args);
    return 1;
}

/* Help that was asked for is a success and goes to stdout; after a mistake it goes to stderr, and the code is 2. */
static int usage(FILE *to) {
    fprintf(
        to,
        "usage: sol COMMAND [MODEL] [options]      MODEL: an .onnx file, or SOL's text form\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(to, "\n");
    for (int i = 1; i < N_ROWS; i++) {
        char name[40];
        snprintf(name, sizeof name, "--%s%s%s", rows[i].name, rows[i].value ? "=" : "",
                 rows[i].value ? rows[i].value : "");
        fprintf(to, "  %-18s %s\n", name, rows[i].text);
    }
    return to == stderr ? 2 : 0;
}

/* ---- Options ---- */

/* A whole number from `least` on. Returns 0, or 2 for bad usage: complain gives 1. The limit lets it fit an int. */
static int read_count(const char *name, const char *text, long long least, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end == text || *end || errno || *out < least || *out > INT32_MAX)
        return complain("--%s=%s is no number from %lld on", name, text, least) + 1;
    return 0;
}

/* Texts stay where they are, in argv, which lives as long as the options. The number of threads belongs to the
 * library, not to a network, so it takes effect at once. */
static int read_option(int row, const char *value, struct options *o) {
    int64_t n = 0;
    switch (row) {
    case BATCH: return read_count(rows[row].name, value, 0, &o->batch);
    case SEED: {
        int code = read_count(rows[row].name, value, 0, &n);
        o->seed = (uint64_t)n;
        return code;
    }
    case RUNS: {
        int code = read_count(rows[row].name, value, 1, &n);
        o->runs = (int)n;
        return code;
    }
    case THREADS: {
        int code = read_count(rows[row].name, value, 1, &n);
        if (!code) sol_set_threads((int)n);
        return code;
    }
    case SECONDS: o->seconds = atof(value); return o->seconds >= 0 ? 0 : 2;
    case INPUT:
        if (o->n_inputs == MOST_FILES) return complain("more than %d inputs", MOST_FILES) + 1;
        o->input[o->n_inputs++] = value;
        return 0;
    case OUTPUT: o->output = value; return 0;
    case JSON: o->json = value; return 0;
    case AFTER: o->after = value; return 0;
    case DEVICE: o->compile.device = value; return 0;
    case STRICT: o->compile.no_winograd = true; return 0;
    case NO_AUTOTUNE: o->compile.no_autotune = true; return 0;
    case CPU: o->compile.cpu = value; return 0;
    case TARGET: o->target = value; return 0;
    case WEIGHTS: o->weights = value; return 0;
    case LIB_NAME: o->lib_name = value; return 0;
    case FUNC_NAME: o->func_name = value; return 0;
    case COMPILER: o->compiler = value; return 0;
    case STATIC_MEMORY: o->static_memory = true; return 0;
    default: return 2;
    }
}

/* Options may stand anywhere: getopt_long moves them to the front, and what is left are the command and the model. It
 * has its own message for an option that it does not know. */
static int read_options(int argc, char **argv, struct options *o) {
    struct option table[N_ROWS] = {0};
    for (int i = 1; i < N_ROWS; i++)
        table[i - 1] =
            (struct option){rows[i].name, rows[i].value ? required_argument : no_argument, NULL, i};
    for (int row; (row = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        if (row == HELP) exit(usage(stdout));
        int code = row == '?' ? 2 : read_option(row, optarg, o);
        if (code) return code;
    }
    return 0;
}

/* The batch is also the size that kernels are chosen for. */
int main(int argc, char **argv) {
    struct options options = {.batch = 1, .runs = 30, .seconds = 2};
    int code = read_options(argc, argv, &options);
    if (code) return code;
    if (optind == argc) return usage(stderr);
    options.command = argv[optind++];
    if (optind < argc) options.model = argv[optind++];
    if (optind < argc) return complain("what is \"%s\"?", argv[optind]) + 1;
    options.compile.batch_hint = options.batch;
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, options.command) != 0) continue;
        if (commands[i].needs_model && !options.model)
            return complain("%s needs a model", options.command) + 1;
        return commands[i].run(&options);
    }
    complain("there is no command \"%s\"", options.command);
    return usage(stderr);
}
