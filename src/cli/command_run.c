/* Commands that compile and run a network. All use with_network, which calls the command's own function at the end. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int call_network(struct network *network) {
    struct sol_results *results;
    if (network->session) {
        if (call_session(network, &results)) return complain("%s", sol_error());
        sol_results_free(results);
        return 0;
    }
    enum sol_status status = sol_program_run(network->program, network->weights, network->symbols,
                                             network->input_data, network->outputs);
    return status ? complain("%s", sol_error()) : 0;
}

int with_network(const struct options *options, network_job *todo, network_job *in_session) {
    struct network network;
    int code =
        in_session ? open_model_or_session(options, &network) : open_model(options, &network);
    if (!code && network.session) {
        code = fill_session(options, &network);
        todo = in_session;
    } else if (!code) {
        code = compile_network(options, &network);
        if (!code) code = fill_network(options, &network);
    }
    if (!code) code = todo(options, &network);
    close_network(&network);
    return code;
}

/* ---- compile ---- */

/* The arena is the memory of intermediate values. "alive at once" is the largest sum of values that are alive at one step, a
 * lower bound of the arena, so the two show how good the placement is. */
static int print_compiled(const struct options *options, struct network *network) {
    struct sol_memory memory;
    (void)options;
    if (sol_program_memory(network->program, network->symbols, &memory))
        return complain("%s", sol_error());
    say("%s", sol_program_report(network->program));
    say("read %.3f s, compiled %.3f s (kernels new to the cache: %d, with %.2f s of the C compiler's processor time), "
        "weights %.3f s\n",
        network->read_s, network->compile_s, sol_program_n_compiled(network->program),
        sol_program_compiler_seconds(network->program), network->weights_s);
    say("MiB: packed weights %.2f, arena %.2f (%.2f alive at once), scratch %.2f, program %.2f\n",
        (double)memory.weights / 1048576, (double)memory.arena / 1048576,
        (double)memory.live / 1048576, (double)memory.scratch / 1048576,
        (double)memory.constants / 1048576);
    return 0;
}

int command_compile(const struct options *options) {
    return with_network(options, print_compiled, NULL);
}

/* ---- run ---- */

/* Prints range and mean of all values, then the first eight, to compare two runs. The mean is NaN if a value is. `n` is at least
 * 1. */
static void print_values(const float *at, int64_t n) {
    double min = at[0], max = at[0], sum = 0;
    for (int64_t i = 0; i < n; i++) {
        min = at[i] < min ? at[i] : min;
        max = at[i] > max ? at[i] : max;
        sum += at[i];
    }
    printf("  from %g to %g, mean %g:", min, max, sum / (double)n);
    for (int64_t i = 0; i < n && i < 8; i++) printf(" %g", at[i]);
    printf(n > 8 ? " ..\n" : "\n");
}

/* Prints values of f32 only; files may have any type of NumPy. With --output=y, output 1 is written to y1.npy. */
int show_array(const struct options *options, const char *name, enum sol_dtype dtype, int rank,
               const int64_t *dim, const void *data, int i) {
    const int64_t n = count_elements(rank, dim);
    say("%s %s[", clean(name), dtype_name(dtype));
    for (int d = 0; d < rank; d++) printf(d ? ",%lld" : "%lld", (long long)dim[d]);
    printf("]\n");
    if (dtype == SOL_F32 && n > 0) print_values(data, n);
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
    int code = call_network(network);
    if (!code && !network->onnx && sol_program_n_params(network->program))
        note("a text has no values: the weights are random, --seed=%llu",
             (unsigned long long)options->seed);
    for (int i = 0; !code && i < sol_program_n_outputs(network->program); i++)
        code = show_output(options, network, i);
    return code;
}

int command_run(const struct options *options) {
    return with_network(options, run_once, run_session);
}

/* ---- bench ---- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest time that a fraction `share` of all calls does not exceed (nearest rank). It adds slightly less than 1 to round
 * up, since the product may exceed an integer by a rounding error. */
static double percentile(const double *sorted, int n, double share) {
    int at = (int)(share * n + 0.999999) - 1;
    return sorted[at < 0 ? 0 : at >= n ? n - 1 : at];
}

static int write_json(const struct options *options, const struct network *network, const double *t,
                      int n) {
    FILE *file = fopen(options->json, "w");
    if (!file) return complain("cannot write %s: %s", options->json, strerror(errno));
    fprintf(
        file,
        "{\"batch\": %lld, \"threads\": %d, \"calls\": %d, \"read_s\": %.6f, \"compile_s\": %.6f,\n",
        (long long)network->inputs.batch, sol_threads(), n, network->read_s, network->compile_s);
    fprintf(file, " \"median_ms\": %.6f, \"p90_ms\": %.6f, \"p99_ms\": %.6f, \"least_ms\": %.6f}\n",
            1e3 * percentile(t, n, 0.5), 1e3 * percentile(t, n, 0.9), 1e3 * percentile(t, n, 0.99),
            1e3 * t[0]);
    return fclose(file) ? complain("cannot write %s", options->json) : 0;
}

static void print_times(const struct network *network, const double *t, int n) {
    const double median = percentile(t, n, 0.5);
    printf(
        "%d calls, batch %lld, %d threads: median %.3f ms, p90 %.3f, p99 %.3f, least %.3f; %.1f samples/s\n",
        n, (long long)network->inputs.batch, sol_threads(), 1e3 * median,
        1e3 * percentile(t, n, 0.9), 1e3 * percentile(t, n, 0.99), 1e3 * t[0],
        (double)network->inputs.batch / median);
}

#define MAX_CALLS 1000000

/* Five calls that are not timed warm up caches and threads. Then it times calls until --runs and --seconds are reached. */
static int time_calls(const struct options *options, struct network *network) {
    int n = 0, code = 0;
    double *t = malloc(sizeof *t * MAX_CALLS);
    if (!t) return complain("out of memory");
    for (int i = 0; !code && i < 5; i++) code = call_network(network);
    for (double end = now() + options->seconds;
         !code && n < MAX_CALLS && (n < options->runs || now() < end); n++) {
        const double start = now();
        code = call_network(network);
        t[n] = now() - start;
    }
    if (!code) {
        qsort(t, (size_t)n, sizeof *t, compare);
        print_times(network, t, n);
        if (options->json) code = write_json(options, network, t, n);
    }
    free(t);
    return code;
}

int command_bench(const struct options *options) {
    return with_network(options, time_calls, time_calls);
}
