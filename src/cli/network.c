/* A network from its file to a call: read, compile, weights, inputs, outputs. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
#define DTYPE(code, name, size) [SOL_##code] = {name, size},
    SOL_DTYPE_LIST(DTYPE)
#undef DTYPE
};

size_t dtype_size(enum sol_dtype dtype) { return dtypes[dtype].size; }
const char *dtype_name(enum sol_dtype dtype) { return dtypes[dtype].name; }

/* ---- Reading ---- */

/* malloc'ed, NUL behind it; NULL when it cannot be read. The size is not asked for first: the path may be a pipe. */
static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, room = 0, n = 1;
    while (file && n) {
        if (size + 1 >= room) {
            char *more = realloc(text, room = 2 * room + 4096);
            if (!more) break;
            text = more;
        }
        n = fread(text + size, 1, room - 1 - size, file);
        size += n;
        text[size] = 0;
    }
    if (file) fclose(file);
    return text;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

static int open_text(const char *path, struct network *out) {
    char *text = read_text(path);
    if (!text) return complain("cannot read %s", path);
    enum sol_status status = sol_model_parse(text, &out->text);
    free(text);
    out->model = out->text;
    return status ? complain("%s: %s", path, sol_error()) : 0;
}

int read_model(const struct options *options, struct network *out) {
    *out = (struct network){0};
    for (int i = 0; i < 4; i++) out->symbols[i] = options->batch;
    double start = now();
    int code = 0;
    if (!ends_with(options->model, ".onnx")) {
        code = open_text(options->model, out);
    } else {
        enum sol_status status = sol_onnx_read(options->model, &out->onnx);
        if (status == SOL_EUNSUPPORTED) return NEEDS_INTERPRETER;
        if (status) return complain("%s", sol_error());
        out->model = sol_onnx_model(out->onnx);
    }
    out->read_s = now() - start;
    return code;
}

int open_model(const struct options *options, struct network *out) {
    int code = read_model(options, out);
    return code == NEEDS_INTERPRETER ? complain("%s", sol_error()) : code;
}

/* A line on the terminal that is overwritten. */
void show_progress(void *user, int done, int total, const char *what) {
    (void)user;
    fprintf(stderr, "\r\033[K%d/%d %s%s", done, total, what, done == total ? "\r\033[K" : "");
    fflush(stderr);
}

/* Progress is for people: when stderr is a file or a pipe there is none. */
int compile_network(const struct options *options, struct network *network) {
    struct sol_options compile = options->compile;
    double start = now();
    if (isatty(2)) compile.progress = show_progress;
    if (sol_compile(network->model, &compile, &network->program))
        return complain("%s: %s", options->model, sol_error());
    network->compile_s = now() - start;
    return 0;
}

/* ---- Values ---- */

int64_t port_shape(const struct network *network, const struct sol_port *port,
                   int64_t dim[SOL_MAX_RANK]) {
    int64_t n = 1;
    for (int d = 0; d < port->rank; d++) {
        dim[d] = port->dim[d] < 0 ? network->symbols[-1 - port->dim[d]] : port->dim[d];
        if (__builtin_mul_overflow(n, dim[d], &n)) return -1;
    }
    return n < INT64_MAX / 16 ? n : -1;
}

/* Zeroed, for `n` elements; with room for an empty one. */
static void *make_array(int64_t n, enum sol_dtype dtype) {
    return n < 0 ? NULL : calloc((size_t)n + 16, dtype_size(dtype));
}

/* xorshift, in [-1, 1). Source: G. Marsaglia, "Xorshift RNGs", 2003. The upper 24 bits are used, as many as a float
 * has. */
static float draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

/* Other types stay 0: whole numbers are mostly indices, and 0 is one that every table has. */
void fill_random(uint64_t *state, enum sol_dtype dtype, int64_t n, double scale, void *data) {
    for (int64_t i = 0; dtype == SOL_F32 && i < n; i++)
        ((float *)data)[i] = draw(state) * (float)scale;
}

/* Random parameters of a text: small enough that a deep network stays finite. A uniform number in [-s, s) has the
 * variance s^2 / 3, so s = 1.7 / sqrt(fan in + 1) keeps sums about as large as their inputs. A single dim is a bias
 * or a variance: 0.5 to 1.5. */
static int make_params(const struct options *options, struct network *network) {
    uint64_t state = options->seed * 2 + 0x9E3779B97F4A7C15u;
    int n = sol_program_n_params(network->program);
    network->params = calloc((size_t)n + 1, sizeof(void *));
    for (int i = 0; network->params && i < n; i++) {
        const struct sol_port *port = sol_program_param(network->program, i);
        int64_t dim[SOL_MAX_RANK], size = port_shape(network, port, dim), fan = 1;
        for (int d = 1; d < port->rank; d++) fan *= dim[d];
        if (!(network->params[i] = make_array(size, port->dtype)))
            return complain("no memory for parameters");
        fill_random(&state, port->dtype, size,
                    port->rank > 1 ? 1.7 / __builtin_sqrt((double)fan + 1) : 0.5,
                    network->params[i]);
        for (int64_t k = 0; port->rank < 2 && port->dtype == SOL_F32 && k < size; k++)
            ((float *)network->params[i])[k] += 1;
    }
    return network->params ? 0 : complain("no memory for parameters");
}

static int make_weights(const struct options *options, struct network *network) {
    int code = network->onnx ? 0 : make_params(options, network);
    if (code) return code;
    const void *const *params =
        network->onnx ? sol_onnx_params(network->onnx) : (const void *const *)network->params;
    double start = now();
    if (sol_weights_new(network->program, params, &network->weights))
        return complain("%s: %s", options->model, sol_error());
    network->weights_s = now() - start;
    return 0;
}

/* All inputs come from files, in the network's order, or none does. The seed differs from that of parameters. */
static int make_inputs(const struct options *options, struct network *network) {
    uint64_t state = options->seed + 0x2545F4914F6CDD1Du;
    int n = sol_program_n_inputs(network->program);
    if (options->n_inputs && options->n_inputs != n)
        return complain("%s has %d inputs, not %d", options->model, n, options->n_inputs);
    network->inputs = calloc((size_t)n + 1, sizeof(void *));
    for (int i = 0; network->inputs && i < n; i++) {
        const struct sol_port *port = sol_program_input(network->program, i);
        int64_t dim[SOL_MAX_RANK], size = port_shape(network, port, dim);
        if (!(network->inputs[i] = make_array(size, port->dtype)))
            return complain("no memory for input %d", i);
        if (!options->n_inputs) fill_random(&state, port->dtype, size, 1, network->inputs[i]);
        else if (read_array(options->input[i], port->dtype, port->rank, dim, network->inputs[i]))
            return 1;
    }
    return network->inputs ? 0 : complain("no memory for inputs");
}

static int make_outputs(struct network *network) {
    int n = sol_program_n_outputs(network->program);
    network->outputs = calloc((size_t)n + 1, sizeof(void *));
    for (int i = 0; network->outputs && i < n; i++) {
        int64_t dim[SOL_MAX_RANK], size = 1;
        if (sol_program_output_shape(network->program, i, network->symbols, dim))
            return complain("%s", sol_error());
        const struct sol_port *port = sol_program_output(network->program, i);
        for (int d = 0; d < port->rank; d++) size *= dim[d];
        if (!(network->outputs[i] = make_array(size, port->dtype)))
            return complain("no memory for output %d", i);
    }
    return network->outputs ? 0 : complain("no memory for outputs");
}

int fill_network(const struct options *options, struct network *network) {
    int code = make_weights(options, network);
    if (!code) code = make_inputs(options, network);
    return code ? code : make_outputs(network);
}

static void free_arrays(void **arrays, int n) {
    for (int i = 0; arrays && i < n; i++) free(arrays[i]);
    free(arrays);
}

/* The program knows how many arrays there are, so they go before it. What was not reached is still NULL. */
void close_network(struct network *network) {
    if (network->weights) sol_weights_release(network->weights);
    if (network->program) {
        free_arrays(network->params, sol_program_n_params(network->program));
        free_arrays(network->inputs, sol_program_n_inputs(network->program));
        free_arrays(network->outputs, sol_program_n_outputs(network->program));
        sol_program_release(network->program);
    }
    sol_model_free(network->text);
    sol_onnx_free(network->onnx);
}
