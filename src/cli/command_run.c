/* Commands that compile and run a network. All go through with_network, and differ in what they do then. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int call(struct network *network) {
    enum sol_status status =
        sol_program_run(network->program, network->weights, network->symbols,
                        (const void *const *)network->inputs, network->outputs);
    return status ? complain("%s", sol_error()) : 0;
}

typedef int job(const struct options *, struct network *);

/* What comes between a model and the command's own job. `code` is how reading the model went. */
static int go_on(int code, const struct options *options, struct network *network, job *todo) {
    if (!code) code = compile_network(options, network);
    if (!code) code = fill_network(options, network);
    if (!code) code = todo(options, network);
    close_network(network);
    return code;
}

static int with_network(const struct options *options, job *todo) {
    struct network network;
    return go_on(open_model(options, &network), options, &network, todo);
}

/* ---- compile ---- */

/* The arena is what values between kernels take. Alive at once is the sum of those that some step needs together: no
 * placement can do with less, so the two tell how good this one is. */
static int print_compiled(const struct options *options, struct network *network) {
    struct sol_memory memory;
    (void)options;
    if (sol_program_memory(network->program, network->symbols, &memory))
        return complain("%s", sol_error());
    printf("%s", sol_program_report(network->program));
    printf(
        "read %.3f s, compiled %.3f s (%d kernels; the others were in the cache), weights %.3f s\n",
        network->read_s, network->compile_s, sol_program_n_compiled(network->program),
        network->weights_s);
    printf(
        "MiB: packed weights %.2f, arena %.2f (%.2f alive at once), scratch %.2f, program %.2f\n",
        (double)memory.weights / 1048576, (double)memory.arena / 1048576,
        (double)memory.live / 1048576, (double)memory.scratch / 1048576,
        (double)memory.constants / 1048576);
    return 0;
}

int command_compile(const struct options *options) { return with_network(options, print_compiled); }

/* ---- run ---- */

/* Range and mean over all of them, then the first eight: enough to see whether two runs agree. A NaN shows in the
 * mean. There is at least one value. */
static void print_values(const float *at, int64_t n) {
    double least = at[0], most = at[0], sum = 0;
    for (int64_t i = 0; i < n; i++) {
        least = at[i] < least ? at[i] : least;
        most = at[i] > most ? at[i] : most;
        sum += at[i];
    }
    printf("  from %g to %g, mean %g:", least, most, sum / (double)n);
    for (int64_t i = 0; i < n && i < 8; i++) printf(" %g", at[i]);
    printf(n > 8 ? " ..\n" : "\n");
}

/* Values are printed for f32 alone; files take every type that NumPy has. Output 1 of --output=y goes to y1.npy. */
int show_array(const struct options *options, const char *name, enum sol_dtype dtype, int rank,
               const int64_t *dim, const void *data, int i) {
    int64_t n = 1;
    printf("%s %s[", name, dtype_name(dtype));
    for (int d = 0; d < rank; d++) {
        printf(d ? ",%lld" : "%lld", (long long)dim[d]);
        n *= dim[d];
    }
    printf("]\n");
    if (dtype == SOL_F32 && n) print_values(data, n);
    if (!options->output) return 0;
    char path[4096];
    if (snprintf(path, sizeof path, "%s%d.npy", options->output, i) >= (int)sizeof path)
        return complain("the path is too long");
    return write_array(path, dtype, rank, dim, data);
}

static int show_output(const struct options *options, const struct network *network, int i) {
    const struct sol_port *port = sol_program_output(network->program, i);
    int64_t dim[SOL_MAX_RANK];
    if (sol_program_output_shape(network->program, i, network->symbols, dim))
        return complain("%s", sol_error());
    return show_array(options, port->name, port->dtype, port->rank, dim, network->outputs[i], i);
}

static int run_once(const struct options *options, struct network *network) {
    int code = call(network);
    for (int i = 0; !code && i < sol_program_n_outputs(network->program); i++)
        code = show_output(options, network, i);
    return code;
}

int command_run(const struct options *options) {
    struct network network;
    int code = read_model(options, &network);
    return code == NEEDS_INTERPRETER ? run_mixed(options)
                                     : go_on(code, options, &network, run_once);
}

/* ---- bench ---- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest time that `share` of all calls do not exceed (nearest rank). It rounds up with a little less than 1,
 * as a product may come out a hair above the whole number that it is. */
static double percentile(const double *sorted, int n, double share) {
    int at = (int)(share * n + 0.999999) - 1;
    return sorted[at < 0 ? 0 : at >= n ? n - 1 : at];
}

static int write_json(const struct options *options, const struct network *network, const double *t,
                      int n) {
    FILE *file = fopen(options->json, "w");
    if (!file) return complain("cannot write %s", options->json);
    fprintf(
        file,
        "{\"batch\": %lld, \"threads\": %d, \"calls\": %d, \"read_s\": %.6f, \"compile_s\": %.6f,\n",
        (long long)options->batch, sol_threads(), n, network->read_s, network->compile_s);
    fprintf(file, " \"median_ms\": %.6f, \"p90_ms\": %.6f, \"p99_ms\": %.6f, \"least_ms\": %.6f}\n",
            1e3 * percentile(t, n, 0.5), 1e3 * percentile(t, n, 0.9), 1e3 * percentile(t, n, 0.99),
            1e3 * t[0]);
    return fclose(file) ? complain("cannot write %s", options->json) : 0;
}

#define MOST_CALLS 1000000

/* Five calls that do not count warm up caches and threads. Then it goes on until there are enough calls and enough
 * seconds. */
static int time_calls(const struct options *options, struct network *network) {
    int n = 0, code = 0;
    double *t = malloc(sizeof *t * MOST_CALLS);
    if (!t) return complain("out of memory");
    for (int i = 0; !code && i < 5; i++) code = call(network);
    for (double end = now() + options->seconds;
         !code && n < MOST_CALLS && (n < options->runs || now() < end); n++) {
        double start = now();
        code = call(network);
        t[n] = now() - start;
    }
    if (!code) {
        qsort(t, (size_t)n, sizeof *t, compare);
        double median = percentile(t, n, 0.5);
        printf(
            "%d calls, batch %lld, %d threads: median %.3f ms, p90 %.3f, p99 %.3f, least %.3f; %.1f images/s\n",
            n, (long long)options->batch, sol_threads(), 1e3 * median, 1e3 * percentile(t, n, 0.9),
            1e3 * percentile(t, n, 0.99), 1e3 * t[0], (double)options->batch / median);
        if (options->json) code = write_json(options, network, t, n);
    }
    free(t);
    return code;
}

int command_bench(const struct options *options) { return with_network(options, time_calls); }

/* ---- profile ---- */

#define MOST_STEPS 4096

struct profile {
    int n, run;
    struct step {
        struct sol_step_time facts; /* of the last run; texts live as long as the program */
        double *seconds;            /* of each run */
    } step[MOST_STEPS];
    int runs;
};

/* Steps come in the same order in each run, so their places tell them apart; those beyond MOST_STEPS are left out.
 * Without memory for its times a step counts as 0. */
static void visit_step(void *user, const struct sol_step_time *facts) {
    struct profile *profile = user;
    if (profile->n == MOST_STEPS) return;
    struct step *step = &profile->step[profile->n++];
    if (!step->seconds) step->seconds = calloc((size_t)profile->runs, sizeof(double));
    step->facts = *facts;
    if (step->seconds) step->seconds[profile->run] = facts->seconds;
}

/* Leaves the median of all runs in each step's facts. */
static void take_medians(struct profile *profile) {
    for (int i = 0; i < profile->n; i++) {
        struct step *step = &profile->step[i];
        if (step->seconds) qsort(step->seconds, (size_t)profile->runs, sizeof(double), compare);
        step->facts.seconds = step->seconds ? step->seconds[profile->runs / 2] : 0;
    }
}

/* Operations are counted as of a plain convolution, so a better algorithm may come out above the peak; bytes are
 * those that no kernel can do without. */
static int print_profile(const struct options *options, const struct network *network,
                         const struct profile *profile) {
    double total = 0, flops = 0;
    (void)options, (void)network;
    for (int i = 0; i < profile->n; i++) {
        total += profile->step[i].facts.seconds;
        flops += profile->step[i].facts.flops;
    }
    printf("%9s %5s %8s %7s  module what\n", "ms", "%", "GF/s", "GB/s");
    for (int i = 0; i < profile->n; i++) {
        const struct sol_step_time *f = &profile->step[i].facts;
        double seconds = f->seconds > 1e-12 ? f->seconds : 1e-12;
        printf("%9.3f %5.1f %8.1f %7.1f  %-6s %s: %s\n", 1e3 * f->seconds,
               100 * f->seconds / (total > 0 ? total : 1), 1e-9 * f->flops / seconds,
               1e-9 * f->bytes / seconds, f->module, f->name, f->layers);
    }
    printf("%9.3f 100.0 %8.1f          %d threads; this machine's peak is %.0f GF/s\n", 1e3 * total,
           1e-9 * flops / (total > 0 ? total : 1), sol_threads(), 1e-9 * sol_measure_flops());
    return 0;
}

/* A full disk may be noticed only when the buffer is written out, hence the look at fclose. */
static int write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    bool is_written = file && fputs(text, file) >= 0;
    if (file) is_written &= !fclose(file);
    return is_written ? 0 : complain("cannot write %s", path);
}

static int write_report(const struct options *options, const struct network *network,
                        const struct profile *profile) {
    struct sol_step_time *steps = calloc((size_t)profile->n + 1, sizeof *steps);
    const char *path = options->output ? options->output : "report.html";
    for (int i = 0; steps && i < profile->n; i++) steps[i] = profile->step[i].facts;
    char *page = steps ? sol_program_page(network->program, options->model, network->symbols, steps,
                                          profile->n)
                       : NULL;
    int code =
        page ? write_text(path, page) : complain("%s", steps ? sol_error() : "out of memory");
    if (!code) printf("wrote %s\n", path);
    free(page);
    free(steps);
    return code;
}

/* Times all steps and hands their medians to `show`. The first call, which is not timed, pays for what is made only
 * once. */
static int profile_calls(const struct options *options, struct network *network,
                         int (*show)(const struct options *, const struct network *,
                                     const struct profile *)) {
    struct profile *profile = calloc(1, sizeof *profile);
    if (!profile) return complain("out of memory");
    int code = call(network);
    profile->runs = options->runs;
    for (; !code && profile->run < profile->runs; profile->run++) {
        profile->n = 0;
        if (sol_program_profile(network->program, network->weights, network->symbols,
                                (const void *const *)network->inputs, network->outputs, visit_step,
                                profile))
            code = complain("%s", sol_error());
    }
    if (!code) take_medians(profile);
    if (!code) code = show(options, network, profile);
    for (int i = 0; i < MOST_STEPS; i++) free(profile->step[i].seconds);
    free(profile);
    return code;
}

static int profile_network(const struct options *options, struct network *network) {
    return profile_calls(options, network, print_profile);
}

int command_profile(const struct options *options) {
    return with_network(options, profile_network);
}

static int report_network(const struct options *options, struct network *network) {
    return profile_calls(options, network, write_report);
}

int command_report(const struct options *options) { return with_network(options, report_network); }
