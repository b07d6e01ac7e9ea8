/* The program's commands, in a table from which the help is printed, too. */
#include "cli.h"
#include "option.h"

#include <string.h>
#include <sys/resource.h>

#define MIN_STACK 128 /* KiB: arguments may need a quarter, frames with paths a half. libsol checks deeper recursions */

#define CALL                                                                           \
    (BIT(BATCH) | BIT(SHAPE) | BIT(DEVICE) | BIT(CPU) | BIT(THREADS) | BIT(DETERMINISTIC) | \
     BIT(NO_AUTOTUNE) | BIT(HELP))
#define VALUES (BIT(INPUT) | BIT(SEED))
#define LIBRARY                                                                        \
    (BIT(TARGET) | BIT(WEIGHTS) | BIT(LIB_NAME) | BIT(FUNC_NAME) | BIT(COMPILER) | BIT(STATIC_MEMORY))

#define SIZES                                                                                          \
    "Sizes that the file leaves open come from the arrays of --input, from --shape, and the first one from --batch.\n" \
    "The other open sizes are 1; the output says so."

/* A new command needs a row here. */
const struct command commands[] = {
    {"compile", command_compile, "MODEL",
     "compiles a network, fills the kernel cache, says what was chosen", CALL, SIZES},
    {"run", command_run, "MODEL", "runs it once; prints, or writes, its outputs",
     CALL | VALUES | BIT(OUTPUT), SIZES "\nA text has no values: its weights are random."},
    {"bench", command_bench, "MODEL", "times calls: median, p90, p99, throughput",
     CALL | VALUES | BIT(RUNS) | BIT(SECONDS) | BIT(JSON), SIZES},
    {"profile", command_profile, "MODEL", "time, rates and implementation of each kernel",
     CALL | VALUES | BIT(RUNS) | BIT(JSON), SIZES},
    {"report", command_report, "MODEL", "the same and more as a page for a browser, report.html",
     CALL | VALUES | BIT(RUNS) | BIT(OUTPUT), SIZES},
    {"deploy", command_deploy, "MODEL", "writes a library without dependencies into a folder",
     CALL | LIBRARY | BIT(OUTPUT),
     "The function is for the sizes of --batch and --shape. More: docs/deploy.md."},
    {"dump", command_dump, "MODEL", "the network in its text form, as read or after a pass",
     BIT(AFTER) | BIT(BATCH) | BIT(SHAPE) | BIT(HELP), NULL},
    {"devices", command_devices, NULL,
     "devices, instruction sets, kernel libraries, compiler, cache", BIT(HELP), NULL},
    {"cache", command_cache, "[clear]", "what is in the kernel cache; `sol cache clear` empties it",
     BIT(HELP), NULL},
    {"help", command_help, "[COMMAND]", "what a command does and takes", BIT(HELP), NULL},
    {0},
};

const struct command *find_command(const char *name) {
    for (int i = 0; commands[i].name; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    complain("there is no command \"%s\"", name);
    print_help(stderr);
    return NULL;
}

/* `to`: stdout for the command help, stderr after wrong usage. */
void print_help(FILE *to) {
    fprintf(
        to,
        "usage: sol COMMAND [MODEL] [options]\n\n"
        "MODEL: an ONNX model or SOL's text form, whatever the file's name; - is standard input\n\n");
    for (int i = 0; commands[i].name; i++)
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].text);
    fprintf(to, "\n`sol help COMMAND` tells which of these it takes:\n\n");
    print_options(to, ~UINT64_C(0));
}

void print_command_help(const struct command *command) {
    printf("usage: sol %s%s%s%s\n\n%s\n", command->name, command->word ? " " : "",
           command->word ? command->word : "", command->takes & ~BIT(HELP) ? " [options]" : "",
           command->text);
    if (command->more) printf("%s\n", command->more);
    printf("\n");
    print_options(stdout, command->takes);
}

/* Without this check, the first large frame would crash the program. */
static bool has_stack(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur >> 10 >= MIN_STACK) return true;
    complain("the stack is limited to %llu KiB; at least %d are needed (ulimit -s)",
             (unsigned long long)limit.rlim_cur >> 10, MIN_STACK);
    return false;
}

int main(int argc, char **argv) {
    struct options options;
    if (!has_stack()) return 1;
    sol_check_environment();
    const int code = read_options(argc, argv, &options);
    return code >= 0 ? code : find_command(options.command)->run(&options);
}
