/*
 * Finds and runs C compilers: the one for this machine, and those of devices.
 *
 *   $SOL_CC -> probe: path and version -> jit_run_tool: source to object
 *
 * It is started without a shell. It is killed if it uses more processor time than $SOL_CC_TIMEOUT; this is not wall time, so
 * that a busy machine causes no timeouts. A compiler that hangs is killed after 15 times that, in wall time. Probed compilers are
 * kept in a list that only grows, without a lock, so that a fork cannot happen while the list is locked. Two threads may probe at
 * once, which costs some milliseconds.
 */
#include "jit/jit_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_LIMIT_S 4
#define PATIENCE 15      /* limit of wall time / limit of processor time, for busy machines */
#define OUTPUT_SIZE 4096 /* bytes of the compiler's output that are read */
#define SHOWN_OUTPUT 700 /* bytes of it in a message of 1 KiB, which also has a path */

static _Atomic(struct jit_tool *) tools;

/* ---- Commands ---- */

static int count_words(const char *text) {
    int n = 0;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        text += strcspn(text, " ");
        n++;
    }
    return n;
}

/* Cuts `text` into words, in place. */
static void split_words(char *text, const char **words) {
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        *words++ = text;
        text += strcspn(text, " ");
        if (*text) *text++ = 0;
    }
}

double jit_limit_s(const struct jit_tool *tool) {
    const char *value = env_get(ENV_SOL_CC_TIMEOUT);
    double seconds;
    if (value && text_parse_double(&value, &seconds) && !*value && seconds > 0) return seconds;
    return DEFAULT_LIMIT_S * (tool->choice->slowness ? tool->choice->slowness : 1);
}

/* Runs the words of `command`, then `tail`, whose `n_tail` items may contain spaces. */
static enum sol_status run(const struct jit_tool *tool, const char *command,
                           const char *const *tail, int n_tail, char *output, struct os_run *out) {
    int n = count_words(command);
    size_t argv_size =
        sizeof(char *) * (size_t)(n + n_tail + 1); /* the last is NULL, as memory is zeroed */
    const char **argv = mem_alloc(argv_size + strlen(command) + 1, 16);
    if (!argv) return fail(SOL_ENOMEM, "out of memory: cannot start the C compiler");
    char *words = (char *)argv + argv_size;
    memcpy(words, command, strlen(command) + 1);
    split_words(words, argv);
    for (int i = 0; i < n_tail; i++) argv[n + i] = tail[i];
    double limit_s = jit_limit_s(tool);
    *out = (struct os_run){.max_processor_s = limit_s, .max_s = PATIENCE * limit_s};
    enum sol_status status = os_spawn(argv, out, output, OUTPUT_SIZE);
    mem_free(argv);
    return status;
}

/* ---- Which compiler ---- */

/* Finds the program `name`, of `size` bytes, as a shell would, but never in the working directory:
 * relative entries of PATH are skipped. */
static bool find_program(const char *name, int size, char path[JIT_PATH_SIZE]) {
    if (memchr(name, '/', (size_t)size)) {
        int length = snprintf(path, JIT_PATH_SIZE, "%.*s", size, name);
        return length < JIT_PATH_SIZE && !access(path, X_OK);
    }
    const char *at = getenv("PATH");
    for (int step; at && *at; at += step + (at[step] == ':')) {
        step = (int)strcspn(at, ":");
        if (*at != '/') continue;
        int length = snprintf(path, JIT_PATH_SIZE, "%.*s/%.*s", step, at, size, name);
        if (length < JIT_PATH_SIZE && !access(path, X_OK)) return true;
    }
    return false;
}

/* Runs --version: tests that the program runs. The version is a part of the cache keys. */
static enum sol_status ask_version(struct jit_tool *tool) {
    static const char *const tail[] = {"--version"};
    struct os_run asked;
    TRY(run(tool, tool->command, tail, 1, tool->version, &asked));
    if (asked.code < 0) return fail(SOL_ETOOL, "%s --version did not end", tool->command);
    if (asked.code)
        return fail(SOL_ETOOL, "%s --version failed with exit code %d", tool->command, asked.code);
    tool->version[strcspn(tool->version, "\n")] = 0;
    return SOL_OK;
}

/* Sets the tool's command to `words`, with the path of the first word; false if that is no program. */
static bool take_command(struct jit_tool *tool, const char *words) {
    char path[JIT_PATH_SIZE];
    words += strspn(words, " ");
    int size = (int)strcspn(words, " ");
    if (!size || !find_program(words, size, path)) return false;
    (void)snprintf(tool->command, JIT_PATH_SIZE + strlen(words), "%s%s", path, words + size);
    return true;
}

static const struct jit_choice host_choice = {
    .what = "C compiler", .variable = ENV_SOL_CC, .usual = {"cc", "gcc", "clang"}};

/* None of the usual ones works: names all of them. */
static enum sol_status refuse_usual(const struct jit_choice *choice) {
    (void)fail(SOL_EUNSUPPORTED, "%s", choice->usual[0]);
    for (int i = 1; choice->usual[i]; i++)
        (void)fail(SOL_EUNSUPPORTED, "%s%s%s", sol_error(), choice->usual[i + 1] ? ", " : " and ",
                   choice->usual[i]);
    return fail(SOL_EUNSUPPORTED, "there is no %s: none of %s works; set %s", choice->what,
                sol_error(), env_name(choice->variable));
}

static enum sol_status probe(struct jit_tool *tool) {
    const struct jit_choice *choice = tool->choice;
    const char *variable = env_name(choice->variable);
    if (!strcmp(tool->asked, "none"))
        return fail(SOL_EUNSUPPORTED, "there is no %s: %s=none", choice->what, variable);
    if (*tool->asked) {
        if (take_command(tool, tool->asked)) return ask_version(tool);
        return fail(SOL_ETOOL, "%s=%s: there is no such program", variable, tool->asked);
    }
    for (int i = 0; choice->usual[i]; i++)
        if (take_command(tool, choice->usual[i]) && !ask_version(tool)) return SOL_OK;
    return refuse_usual(choice);
}

static struct jit_tool *known_tool(struct jit_tool *first, const struct jit_choice *choice,
                                   const char *asked) {
    while (first && (first->choice != choice || strcmp(first->asked, asked))) first = first->next;
    return first;
}

/* One block: the tool and its three texts. */
static struct jit_tool *new_tool(const struct jit_choice *choice, const char *asked) {
    size_t asked_size = strlen(asked) + 1;
    size_t command_size = JIT_PATH_SIZE + asked_size;
    struct jit_tool *tool = mem_alloc(sizeof *tool + asked_size + command_size + OUTPUT_SIZE, 16);
    if (!tool) return NULL;
    char *texts = (char *)(tool + 1);
    tool->choice = choice;
    tool->asked = memcpy(texts, asked, asked_size);
    tool->command = texts + asked_size;
    tool->version = tool->command + command_size;
    return tool;
}

enum sol_status jit_find_tool(const struct jit_choice *choice, const struct jit_tool **out) {
    if (!choice) choice = &host_choice;
    const char *asked = env_get(choice->variable);
    if (!asked) asked = "";
    struct jit_tool *tool = known_tool(atomic_load(&tools), choice, asked);
    if (!tool) {
        tool = new_tool(choice, asked);
        if (!tool) return fail(SOL_ENOMEM, "out of memory: cannot look for a C compiler");
        tool->status = probe(tool);
        if (tool->status == SOL_ENOMEM) { /* not a property of the compiler: not kept */
            mem_free(tool);
            return SOL_ENOMEM;
        }
        if (tool->status) (void)snprintf(tool->version, OUTPUT_SIZE, "%s", sol_error());
        tool->next = atomic_load(&tools);
        while (!atomic_compare_exchange_weak(&tools, &tool->next, tool)) continue;
    }
    *out = tool;
    return tool->status ? fail(tool->status, "%s", tool->version) : SOL_OK;
}

enum sol_status jit_compiler(const char **path, const char **version) {
    return jit_compiler_of(NULL, path, version);
}

enum sol_status jit_compiler_of(const struct jit_choice *choice, const char **path,
                                const char **version) {
    const struct jit_tool *tool;
    TRY(jit_find_tool(choice, &tool));
    *path = tool->command;
    *version = tool->version;
    return SOL_OK;
}

/* ---- Running it ---- */

/* Cuts the text to at most `size` bytes, and to whole lines if there are several. */
static void cut_lines(char *text, size_t size) {
    size_t length = strlen(text);
    if (length > size) length = size;
    text[length] = 0;
    char *last = strrchr(text, '\n');
    if (last) *last = 0;
}

static enum sol_status report_end(const struct jit_tool *tool, struct jit_run *run, int code,
                                  char *output) {
    run->timed_out = code < 0;
    if (!code) return SOL_OK;
    if (code < 0)
        return fail(SOL_ETOOL, "the C compiler did not end within %g s: %s: %s", jit_limit_s(tool),
                    tool->command, run->shown);
    cut_lines(output, SHOWN_OUTPUT);
    return fail(SOL_ETOOL, "the C compiler failed with exit code %d: %s\n%s", code, run->shown,
                output);
}

#define MAX_LIBRARIES 8

enum sol_status jit_run_tool(const struct jit_tool *tool, struct jit_run *out) {
    size_t size = strlen(tool->command) + strlen(out->flags[0]) + strlen(out->flags[1]) + 3;
    char *command = mem_alloc(size, 16);
    if (!command) return fail(SOL_ENOMEM, "out of memory: cannot start the C compiler");
    (void)snprintf(command, size, "%s %s %s", tool->command, out->flags[0], out->flags[1]);
    const char *tail[3 + MAX_LIBRARIES + 1] = {"-o", out->object, out->source};
    char libraries[256] = "-lm";
    if (out->libraries) (void)snprintf(libraries, sizeof libraries, "%s -lm", out->libraries);
    const int n = count_words(libraries);
    ASSERT(n <= MAX_LIBRARIES + 1);
    split_words(libraries, tail + 3);
    char output[OUTPUT_SIZE];
    struct os_run ended;
    enum sol_status status = run(tool, command, tail, 3 + n, output, &ended);
    mem_free(command);
    out->processor_s = ended.processor_s;
    return status ? status : report_end(tool, out, ended.code, output);
}
