/* Options: a table from which their help is printed, too. Values are checked here, before any file is read. */
#include "option.h"

#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* `value`: the text after = in the help; NULL: an option without a value. Most texts end with a semicolon and the default. A new
 * option needs a row, a number in option.h, a case of read_option, and a bit in the commands that have it. */
static const struct {
    const char *name, *value, *text;
} rows[N_OPTION_ROWS] = {
    [BATCH] = {"batch", "N", "the first size of inputs, where it is open; 1"},
    [SHAPE] =
        {"shape", "NAME:SIZES",
         "the shape of an input with open sizes, as x:1,3,480,640; the only one needs no name"},
    [INPUT] =
        {"input", "FILE",
         "an input, .npy or raw values, which gives open sizes, too; once per input, in their order; random without"},
    [OUTPUT] = {"output", "PATH",
                "run: writes PATH0.npy, PATH1.npy, ..; report: the file; deploy: the folder"},
    [RUNS] = {"runs", "N", "calls at least; 30"},
    [SECONDS] = {"seconds", "S", "goes on that long; 2"},
    [SEED] = {"seed", "N", "of random inputs and parameters; 0"},
    [JSON] = {"json", "FILE", "writes the results for programs"},
    [AFTER] = {"after", "PASS", "the pass's name or number; 0 is as read"},
    [DEVICE] = {"device", "NAME[:N]",
                "see `sol devices`; the best one. far:1 is the second far device"},
    [CPU] = {"cpu", "NAME", "its instruction set, see `sol devices`; the best one"},
    [THREADS] = {"threads", "N", "that take part in a call; all cores"},
    [DETERMINISTIC] = {"deterministic", NULL, "no algorithm that rounds more than plain sums"},
    [NO_AUTOTUNE] = {"no-autotune", NULL, "choose by cost alone, without timing"},
    [TARGET] = {"target", "KIND", "shared_lib, static_lib or c_source; shared_lib"},
    [WEIGHTS] = {"weights", "PLACE", "embedded, file or packed; embedded"},
    [LIB_NAME] = {"lib-name", "NAME", "of files and symbols; MyNetwork"},
    [FUNC_NAME] = {"func-name", "NAME", "of the function to call; predict"},
    [COMPILER] = {"compiler", "CC", "instead of the usual one"},
    [STATIC_MEMORY] = {"static-memory", NULL, "c_source without malloc"},
    [HELP] = {"help", NULL, "what a command does and takes"},
    [VERSION] = {"version", NULL, "SOL's version"},
};

void print_options(FILE *to, uint64_t takes) {
    for (int i = 1; i < N_OPTION_ROWS; i++) {
        char name[40];
        if (!(takes & BIT(i))) continue;
        snprintf(name, sizeof name, "--%s%s%s", rows[i].name, rows[i].value ? "=" : "",
                 rows[i].value ? rows[i].value : "");
        fprintf(to, "  %-19s %s\n", name, rows[i].text);
    }
}

/* ---- Names that libsol knows ---- */

/* The names of a kind, and whether `wanted` is one of them. */
struct names {
    const char *kind, *wanted;
    bool is_any, is_found; /* is_any: includes names that are not available on this machine */
    char list[512];
};

static void visit_name(void *user, const struct sol_info *info) {
    struct names *names = user;
    const size_t n = strlen(names->list);
    if (strcmp(info->kind, names->kind) != 0 || (!info->available && !names->is_any)) return;
    names->is_found |= !strcmp(info->name, names->wanted);
    snprintf(names->list + n, sizeof names->list - n, n ? ", %s" : "%s", info->name);
}

/* Returns 0, or 2 after a message that lists the names. NULL, which selects the best one, is valid. */
static int check_name(const char *option, const char *kind, const char *wanted, bool is_any) {
    struct names names = {.kind = kind, .wanted = wanted, .is_any = is_any};
    if (wanted) sol_query(visit_name, &names);
    if (!wanted || names.is_found) return 0;
    return complain("--%s=%s: it can be %s", option, wanted, names.list) + 1;
}

/* A library may be for another machine; sol_deploy checks its device. */
static int check_names(const struct command *command, const struct options *o) {
    const bool is_library = command->takes & BIT(TARGET);
    if (!is_library && check_name("device", "device", o->compile.device, true)) return 2;
    return check_name("cpu", "isa", o->compile.cpu, is_library);
}

/* ---- Reading ---- */

/* An integer from `min` to INT32_MAX. Returns 0, or 2 for wrong usage (complain returns 1). */
static int read_count(const char *name, const char *text, long long min, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (end == text || *end || errno || *out < min || *out > INT32_MAX)
        return complain("--%s=%s is no number from %lld on", name, text, min) + 1;
    return 0;
}

static int read_seconds(const char *text, double *out) {
    char *end;
    *out = strtod(text, &end);
    if (end == text || *end || !(*out >= 0 && *out < 1e6))
        return complain("--seconds=%s is no number of seconds", text) + 1;
    return 0;
}

/* The cores that this process may use. */
static int count_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN)
                                                  : CPU_COUNT(&set);
}

/* Sets the number of threads at once, since it belongs to the library, not to a network. */
static int read_threads(const char *text) {
    const int max = sol_max_threads(), cores = count_cores();
    int64_t n;
    if (read_count("threads", text, 1, &n)) return 2;
    if (n > max)
        note("--threads=%lld: %d are used, the most that make sense here", (long long)n, max);
    else if (n > cores)
        note("--threads=%lld: more than the %d cores that there are, and slower", (long long)n,
             cores);
    sol_set_threads(n > max ? max : (int)n);
    return 0;
}

static int add_file(const char *name, const char *value, const char **list, int *n) {
    if (*n == MAX_FILES) return complain("--%s is given more than %d times", name, MAX_FILES) + 1;
    list[(*n)++] = value;
    return 0;
}

/* NAME or NAME:NUMBER. */
static int read_device(const char *value, struct options *o) {
    const char *colon = strchr(value, ':');
    int64_t number = 0;
    if (colon && read_count("device", colon + 1, 0, &number)) return 2;
    const int n = colon ? (int)(colon - value) : (int)strlen(value);
    snprintf(o->device, sizeof o->device, "%.*s", n, value);
    o->compile.device = o->device;
    o->compile.device_number = (int)number;
    return 0;
}

/* Stores the value of an option. Strings point into argv, which lives as long as the options. */
static int read_option(int row, const char *value, struct options *o) {
    int64_t n = 0;
    int code = 0;
    switch (row) {
    case BATCH: return read_count(rows[row].name, value, 0, &o->batch);
    case SHAPE: return add_file(rows[row].name, value, o->shape, &o->n_shapes);
    case INPUT: return add_file(rows[row].name, value, o->input, &o->n_inputs);
    case SEED:
        code = read_count(rows[row].name, value, 0, &n);
        o->seed = (uint64_t)n;
        return code;
    case RUNS:
        code = read_count(rows[row].name, value, 1, &n);
        o->runs = (int)n;
        return code;
    case THREADS: return read_threads(value);
    case SECONDS: return read_seconds(value, &o->seconds);
    case OUTPUT: o->output = value; return 0;
    case JSON: o->json = value; return 0;
    case AFTER: o->after = value; return 0;
    case DEVICE: return read_device(value, o);
    case CPU: o->compile.cpu = value; return 0;
    case DETERMINISTIC: o->compile.deterministic = true; return 0;
    case NO_AUTOTUNE: o->compile.no_autotune = true; return 0;
    case TARGET: o->target = value; return 0;
    case WEIGHTS: o->weights = value; return 0;
    case LIB_NAME: o->lib_name = value; return 0;
    case FUNC_NAME: o->func_name = value; return 0;
    case COMPILER: o->compiler = value; return 0;
    case STATIC_MEMORY: o->static_memory = true; return 0;
    default: return 0;
    }
}

/* After '?' of getopt_long: optopt is the option whose value is missing or not allowed; an unknown option is the last argument
 * that was read. */
static int refuse_option(int argc, char **argv) {
    const char *text = optind > 0 && optind <= argc ? argv[optind - 1] : "";
    if (optopt <= 0 || optopt >= N_OPTION_ROWS)
        return complain("unrecognized or ambiguous option %s; `sol help` lists them", text) + 1;
    const char *name = rows[optopt].name, *value = rows[optopt].value;
    if (!value) return complain("--%s takes no value", name) + 1;
    return complain("--%s needs a value: --%s=%s", name, name, value) + 1;
}

/* Options may be anywhere: getopt_long moves them to the front, and the command and the model remain. *given gets the bits of the
 * options that were given. */
static int read_all(int argc, char **argv, struct options *o, uint64_t *given) {
    struct option table[N_OPTION_ROWS] = {0};
    for (int i = 1; i < N_OPTION_ROWS; i++)
        table[i - 1] =
            (struct option){rows[i].name, rows[i].value ? required_argument : no_argument, NULL, i};
    opterr = 0;
    for (int row; (row = getopt_long(argc, argv, "", table, NULL)) != -1;) {
        if (row == '?') return refuse_option(argc, argv);
        if (read_option(row, optarg, o)) return 2;
        *given |= BIT(row);
    }
    return 0;
}

/* Refuses options that the command does not use, instead of ignoring them. */
static int check_given(const struct command *command, uint64_t given) {
    const uint64_t extra = given & ~command->takes;
    for (int i = 1; i < N_OPTION_ROWS; i++) {
        if (!(extra & BIT(i))) continue;
        complain("`sol %s` does not use --%s; it takes%s", command->name, rows[i].name,
                 command->takes & ~BIT(HELP) ? ":" : " no options");
        print_options(stderr, command->takes & ~BIT(HELP));
        return 2;
    }
    return 0;
}

static int check_command(const struct options *o, uint64_t given) {
    const struct command *command = find_command(o->command);
    if (!command) return 2;
    if (given & BIT(HELP)) {
        print_command_help(command);
        return 0;
    }
    if (check_given(command, given) || check_names(command, o)) return 2;
    if (o->model && !command->word)
        return complain("what is \"%s\"? `sol %s` takes nothing", o->model, o->command) + 1;
    if (!o->model && command->word && *command->word != '[')
        return complain("`sol %s` needs a model", o->command) + 1;
    return -1;
}

int read_options(int argc, char **argv, struct options *out) {
    uint64_t given = 0;
    *out = (struct options){.batch = -1, .runs = 30, .seconds = 2};
    if (read_all(argc, argv, out, &given)) return 2;
    if (given & BIT(VERSION)) {
        printf("SOL %s\n", sol_version());
        return 0;
    }
    if (optind < argc) out->command = argv[optind++];
    if (optind < argc) out->model = argv[optind++];
    if (optind < argc) return complain("what is \"%s\"?", argv[optind]) + 1;
    if (out->command) return check_command(out, given);
    print_help(given & BIT(HELP) ? stdout : stderr);
    return given & BIT(HELP) ? 0 : 2;
}
