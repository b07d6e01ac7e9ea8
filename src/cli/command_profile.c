/* `sol profile` and `sol report`: the time of each step, as a table, as JSON, or as an HTML report. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 4096

struct profile {
    int n, run;
    struct step {
        struct sol_step_time facts; /* of the first run; candidates live as long as the program */
        char *name, *module, *layers;
        double *seconds; /* of each run */
    } step[MAX_STEPS];
    int runs;
};

typedef int show_profile(const struct options *, const struct network *, const struct profile *);
/* Makes a call of `user` and visits its steps. */
typedef void visit_function(void *profile, const struct sol_step_time *facts);
typedef enum sol_status profiled_call(void *user, visit_function *visit, void *profile);

/* ---- Measuring ---- */

/* The texts of a session's steps are valid only now. A text is "" when memory is out. */
static void keep_facts(struct step *step, const struct sol_step_time *facts) {
    step->facts = *facts;
    step->name = strdup(facts->name);
    step->module = strdup(facts->module);
    step->layers = strdup(facts->layers);
    step->facts.name = step->name ? step->name : "";
    step->facts.module = step->module ? step->module : "";
    step->facts.layers = step->layers ? step->layers : "";
}

/* Called for each step of a run, always in the same order, so the position identifies a step. Steps beyond MAX_STEPS are ignored.
 * When memory is out, the time of a step is 0. */
static void visit_step(void *user, const struct sol_step_time *facts) {
    struct profile *profile = user;
    if (profile->n == MAX_STEPS) return;
    struct step *step = &profile->step[profile->n++];
    if (!step->name) keep_facts(step, facts);
    if (!step->seconds) step->seconds = calloc((size_t)profile->runs, sizeof(double));
    if (step->seconds) step->seconds[profile->run] = facts->seconds;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sets the time of each step to the median of all runs. */
static void take_medians(struct profile *profile) {
    for (int i = 0; i < profile->n; i++) {
        struct step *step = &profile->step[i];
        if (step->seconds) qsort(step->seconds, (size_t)profile->runs, sizeof(double), compare);
        step->facts.seconds = step->seconds ? step->seconds[profile->runs / 2] : 0;
    }
}

static void free_profile(struct profile *profile) {
    for (int i = 0; i < MAX_STEPS; i++) {
        free(profile->step[i].seconds);
        free(profile->step[i].name);
        free(profile->step[i].module);
        free(profile->step[i].layers);
    }
    free(profile);
}

static void ignore_step(void *profile, const struct sol_step_time *facts) {
    (void)profile;
    (void)facts;
}

/* Measures all steps and passes their medians to `show`. The first call is not timed, since it does work that is done only once. */
static int profile_calls(const struct options *options, struct network *network,
                         profiled_call *call, void *user, show_profile *show) {
    struct profile *profile = calloc(1, sizeof *profile);
    if (!profile) return complain("out of memory");
    int code = call(user, ignore_step, NULL) ? complain("%s", sol_error()) : 0;
    profile->runs = options->runs;
    for (; !code && profile->run < profile->runs; profile->run++) {
        profile->n = 0;
        if (call(user, visit_step, profile)) code = complain("%s", sol_error());
    }
    if (!code) take_medians(profile);
    if (!code) code = show(options, network, profile);
    free_profile(profile);
    return code;
}

static enum sol_status profile_program(void *user, visit_function *visit, void *profile) {
    struct network *network = user;
    return sol_program_profile(network->program, network->weights, network->symbols,
                               network->input_data, network->outputs, visit, profile);
}

static enum sol_status profile_session(void *user, visit_function *visit, void *profile) {
    struct network *network = user;
    return sol_session_profile(
        network->session, (const struct sol_value *const *)network->input_data, visit, profile);
}

/* ---- As JSON ---- */

/* Prints a JSON string. `text` may come from a file; after sol_clean it is UTF-8 without control characters. */
static void print_string(FILE *file, const char *text) {
    const size_t n = strlen(text), size = sol_clean(text, n, false, NULL, 0) + 1;
    char *clean_text = malloc(size);
    fputc('"', file);
    if (clean_text) sol_clean(text, n, false, clean_text, size);
    for (const char *c = clean_text; c && *c; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', file);
        fputc(*c, file);
    }
    fputc('"', file);
    free(clean_text);
}

static void print_step_json(FILE *file, const struct sol_step_time *step) {
    fputs("{\"name\": ", file);
    print_string(file, step->name);
    fputs(", \"module\": ", file);
    print_string(file, step->module);
    fputs(", \"layers\": ", file);
    print_string(file, step->layers);
    fprintf(file, ", \"ms\": %.6f, \"flops\": %.0f, \"bytes\": %.0f}", 1e3 * step->seconds,
            step->flops, step->bytes);
}

static int write_json(const struct options *options, const struct network *network,
                      const struct profile *profile) {
    FILE *file = fopen(options->json, "w");
    if (!file) return complain("cannot write %s: %s", options->json, strerror(errno));
    fprintf(
        file,
        "{\"batch\": %lld, \"threads\": %d, \"runs\": %d, \"peak_gflops\": %.3f,\n \"steps\": [",
        (long long)network->inputs.batch, sol_threads(), profile->runs, 1e-9 * sol_measure_flops());
    for (int i = 0; i < profile->n; i++) {
        fputs(i ? ",\n  " : "\n  ", file);
        print_step_json(file, &profile->step[i].facts);
    }
    fputs("]}\n", file);
    return fclose(file) ? complain("cannot write %s", options->json) : 0;
}

/* ---- As a table ---- */

/* Operations are those of a direct convolution, so a faster algorithm may exceed the machine's peak. Bytes are the least that a
 * kernel must move. */
static void print_step(const struct sol_step_time *f, double total) {
    const double seconds = f->seconds > 1e-12 ? f->seconds : 1e-12;
    say("%9.3f %5.1f %8.1f %7.1f  %-6s %s: %s\n", 1e3 * f->seconds,
        100 * f->seconds / (total > 0 ? total : 1), 1e-9 * f->flops / seconds,
        1e-9 * f->bytes / seconds, f->module, f->name, f->layers);
}

/* Of a far device: what a profiled call copies. The first call is not among the runs. */
static void print_transfers(const struct network *network, int calls) {
    struct sol_transfers t = {0};
    if (network->program) sol_program_transfers(network->program, &t);
    if (t.launches)
        printf(
            "a call copies %lld bytes to the device, %lld to the host, and starts %lld kernels; parameters: %lld bytes\n",
            (long long)t.to_device / calls, (long long)t.to_host / calls,
            (long long)t.launches / calls, (long long)t.weights);
}

static int print_profile(const struct options *options, const struct network *network,
                         const struct profile *profile) {
    double total = 0, flops = 0;
    for (int i = 0; i < profile->n; i++) {
        total += profile->step[i].facts.seconds;
        flops += profile->step[i].facts.flops;
    }
    printf("%9s %5s %8s %7s  module what\n", "ms", "%", "GF/s", "GB/s");
    for (int i = 0; i < profile->n; i++) print_step(&profile->step[i].facts, total);
    printf("%9.3f 100.0 %8.1f          batch %lld, %d threads; this machine's peak is %.0f GF/s\n",
           1e3 * total, 1e-9 * flops / (total > 0 ? total : 1), (long long)network->inputs.batch,
           sol_threads(), 1e-9 * sol_measure_flops());
    print_transfers(network, profile->runs + 1);
    return options->json ? write_json(options, network, profile) : 0;
}

/* Checks fclose, too, since a full disk may be reported only when the buffer is written. */
static int write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    bool is_written = file && fputs(text, file) >= 0;
    const char *reason = file ? "" : strerror(errno);
    if (file) is_written &= !fclose(file);
    return is_written ? 0 : complain("cannot write %s%s%s", path, *reason ? ": " : "", reason);
}

static int write_report(const struct options *options, const struct network *network,
                        const struct profile *profile) {
    struct sol_step_time *steps = calloc((size_t)profile->n + 1, sizeof *steps);
    const char *path = options->output ? options->output : "report.html";
    for (int i = 0; steps && i < profile->n; i++) steps[i] = profile->step[i].facts;
    char *html = steps ? sol_program_html_report(network->program, options->model, network->symbols,
                                                 steps, profile->n)
                       : NULL;
    int code =
        html ? write_text(path, html) : complain("%s", steps ? sol_error() : "out of memory");
    if (!code) say("wrote %s\n", path);
    free(html);
    free(steps);
    return code;
}

static int profile_network(const struct options *options, struct network *network) {
    return profile_calls(options, network, profile_program, network, print_profile);
}

static int print_session(const struct options *options, struct network *network) {
    return profile_calls(options, network, profile_session, network, print_profile);
}

int command_profile(const struct options *options) {
    return with_network(options, profile_network, print_session);
}

static int report_network(const struct options *options, struct network *network) {
    return profile_calls(options, network, profile_program, network, write_report);
}

int command_report(const struct options *options) {
    return with_network(options, report_network, NULL);
}
