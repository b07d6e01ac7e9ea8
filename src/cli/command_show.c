/* Commands that print information and run no network: dump, devices, cache, help. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* The number of a pass that is given by name or number; -1 when there is none. `names` gets a list of all names. The library has
 * no list of passes: sol_dump gives the name of each, and NULL after the last one. */
static int find_pass(const struct sol_model *model, const char *wanted, char names[1024]) {
    char *end;
    const long number = strtol(wanted, &end, 10);
    size_t at = 0;
    for (int i = 0;; i++) {
        const char *name;
        char *text = sol_dump(model, i, &name);
        if (!text) return -1;
        free(text);
        if (!strcmp(name, wanted) || (!*end && end != wanted && number == i)) return i;
        if (at < 900) at += (size_t)snprintf(names + at, 1024 - at, at ? ", %.60s" : "%.60s", name);
    }
}

/* The name of the pass is printed as a comment, so that the output is a valid model. */
static int print_dump(const struct options *options, const struct sol_model *model) {
    const char *name;
    char names[1024] = "";
    int pass = options->after ? find_pass(model, options->after, names) : 0;
    if (pass < 0)
        return complain("there is no pass \"%s\"; give its number, or one of: %s", options->after,
                        names);
    char *text = sol_dump(model, pass, &name);
    if (!text) return complain("%s: %s", options->model, sol_error());
    say("# %s\n%s", name, text);
    free(text);
    return 0;
}

int command_dump(const struct options *options) {
    struct network network;
    int code = open_model(options, &network);
    if (!code) code = print_dump(options, network.model);
    close_network(&network);
    return code;
}

static void print_info(void *user, const struct sol_info *info) {
    (void)user;
    say("%-9s %-12s %-4s %s\n", info->kind, info->name, info->available ? "yes" : "no",
        info->detail ? info->detail : "");
}

int command_devices(const struct options *options) {
    (void)options;
    printf("SOL %s\n", sol_version());
    sol_query(print_info, NULL);
    return 0;
}

/* ---- The cache ---- */

static void print_cache(void *user, const struct sol_info *info) {
    if (!strcmp(info->kind, "cache")) print_info(user, info);
}

static void print_amount(const char *what, const struct sol_cache *amount) {
    printf("%s %lld files, %.1f MiB\n", what, (long long)amount->n_files,
           (double)amount->bytes / 1048576);
}

int command_cache(const struct options *options) {
    struct sol_cache amount;
    if (options->model && strcmp(options->model, "clear") != 0)
        return complain("what is \"%s\"? It is `sol cache` or `sol cache clear`", options->model) +
               1;
    if (options->model ? sol_cache_clear(&amount) : sol_cache_usage(&amount))
        return complain("%s", sol_error());
    if (!options->model) sol_query(print_cache, NULL);
    print_amount(options->model ? "removed" : "holds", &amount);
    return 0;
}

int command_help(const struct options *options) {
    const struct command *command = options->model ? find_command(options->model) : NULL;
    if (options->model && !command) return 2;
    if (command) print_command_help(command);
    else print_help(stdout);
    return 0;
}
