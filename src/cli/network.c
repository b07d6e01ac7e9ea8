/* Prepares a network for calls: model -> ports and sizes -> program -> weights, inputs, outputs. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[] = {
#define DTYPE(code, name, type, family) [SOL_##code] = {name, sizeof(type)},
    SOL_DTYPE_LIST(DTYPE)
#undef DTYPE
};

size_t dtype_size(enum sol_dtype dtype) { return dtypes[dtype].size; }
const char *dtype_name(enum sol_dtype dtype) { return dtypes[dtype].name; }

/* ---- Ports ---- */

/* The name of an open size; "?" when it has none, or when several sizes have the same name. */
static const char *name_symbol(const void *user, int64_t dim) {
    const struct sol_model *model = user;
    const char *name = sol_model_symbol_name(model, (int)(-1 - dim)), *other;
    for (int i = 0; name && (other = sol_model_symbol_name(model, i)); i++)
        if (i != -1 - dim && !strcmp(name, other)) return "?";
    return name && *name ? name : "?";
}

static int list_ports(struct network *network) {
    struct inputs *inputs = &network->inputs;
    struct sol_port port;
    *inputs = (struct inputs){.name = name_symbol, .user = network->model};
    while (sol_model_get_input(network->model, inputs->n, &port)) inputs->n++;
    inputs->at = calloc((size_t)inputs->n + 1, sizeof *inputs->at);
    if (!inputs->at) return complain("no memory for inputs");
    for (int i = 0; i < inputs->n; i++) {
        sol_model_get_input(network->model, i, &port);
        inputs->at[i].port = port;
        for (int d = 0; d < port.rank; d++)
            if (port.dim[d] == INT64_MIN)
                return complain("input %s: its dim %d is a formula, which `sol` cannot choose",
                                clean(port.name), d);
    }
    return 0;
}

/* A symbol that is no input's dim gets the value of --batch, or 1. A network that was read for one shape has its inputs already. */
int choose_sizes(const struct options *options, struct network *network) {
    int code = 0;
    if (!network->inputs.at) {
        code = list_ports(network);
        if (!code) code = plan_inputs(options, &network->inputs);
    }
    for (int i = 0; i < SOL_MAX_SYMBOLS; i++) {
        const int64_t value = size_of(&network->inputs, -1 - i);
        network->symbols[i] = value >= 0 ? value : options->batch >= 0 ? options->batch : 1;
    }
    return code;
}

/* Prints progress only if stderr is a terminal. Kernels are chosen for the sizes of the call. */
int compile_network(const struct options *options, struct network *network) {
    struct sol_options compile = options->compile;
    if (choose_sizes(options, network)) return 1;
    compile.batch_hint = network->symbols[0];
    compile.hints = network->symbols;
    compile.n_hints = SOL_MAX_SYMBOLS;
    if (isatty(2)) compile.progress = show_progress;
    const double start = now();
    enum sol_status status = sol_compile(network->model, &compile, &network->program);
    if (isatty(2)) clear_progress();
    if (status) return complain("%s: %s", options->model, sol_error());
    network->compile_s = now() - start;
    return 0;
}

/* ---- Values ---- */

/* 16 more elements, so that an empty array is not NULL. */
void *make_array(int64_t n, enum sol_dtype dtype) {
    return n < 0 ? NULL : calloc((size_t)n + 16, dtype_size(dtype));
}

/* A random number in [-1, 1) from the upper 24 bits of xorshift, as many as a float has. Source: G. Marsaglia, "Xorshift RNGs",
 * 2003. */
static float draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (float)((double)(*state >> 40) / (1 << 23) - 1);
}

/* Other types stay 0: integers are mostly indices, and 0 is valid for every table that is not empty. */
void fill_random(uint64_t *state, enum sol_dtype dtype, int64_t n, double scale, void *data) {
    for (int64_t i = 0; dtype == SOL_F32 && i < n; i++)
        ((float *)data)[i] = draw(state) * (float)scale;
}

/* Random parameters for the text form, small enough that a deep network stays finite. A uniform number in [-s, s) has the variance
 * s^2 / 3, so s = 1.7 / sqrt(fan in + 1) keeps sums about as large as their inputs. A parameter with one dim is a bias or a
 * variance: 0.5 to 1.5. */
static void fill_param(uint64_t *state, const struct sol_port *port, const int64_t *dim, int64_t n,
                       void *data) {
    int64_t fan = 1;
    for (int d = 1; d < port->rank; d++) fan *= dim[d];
    fill_random(state, port->dtype, n, port->rank > 1 ? 1.7 / __builtin_sqrt((double)fan + 1) : 0.5,
                data);
    for (int64_t k = 0; port->rank < 2 && port->dtype == SOL_F32 && k < n; k++)
        ((float *)data)[k] += 1;
}

static int make_params(const struct options *options, struct network *network) {
    uint64_t state = options->seed * 2 + 0x9E3779B97F4A7C15u;
    int n = sol_program_n_params(network->program);
    network->params = calloc((size_t)n + 1, sizeof(void *));
    for (int i = 0; network->params && i < n; i++) {
        const struct sol_port *port = sol_program_param(network->program, i);
        int64_t dim[SOL_MAX_RANK];
        for (int d = 0; d < port->rank; d++) {
            const bool is_symbol = port->dim[d] < 0 && port->dim[d] >= -SOL_MAX_SYMBOLS;
            dim[d] = is_symbol ? network->symbols[-1 - port->dim[d]] : port->dim[d];
        }
        const int64_t size = count_elements(port->rank, dim);
        if (!(network->params[i] = make_array(size, port->dtype)))
            return complain("no memory for parameter %s", clean(port->name));
        fill_param(&state, port, dim, size, network->params[i]);
    }
    return network->params ? 0 : complain("no memory for parameters");
}

static int make_weights(const struct options *options, struct network *network) {
    int code = network->onnx ? 0 : make_params(options, network);
    if (code) return code;
    const void *const *params =
        network->onnx ? sol_onnx_params(network->onnx) : (const void *const *)network->params;
    const double start = now();
    if (sol_weights_new(network->program, params, &network->weights))
        return complain("%s: %s", options->model, sol_error());
    network->weights_s = now() - start;
    return 0;
}

static int make_inputs(const struct options *options, struct network *network) {
    const struct inputs *inputs = &network->inputs;
    network->input_data = calloc((size_t)inputs->n + 1, sizeof(void *));
    if (!network->input_data) return complain("no memory for inputs");
    if (fill_inputs(options, &network->inputs)) return 1;
    for (int i = 0; i < inputs->n; i++) network->input_data[i] = inputs->at[i].data;
    return 0;
}

static int make_outputs(struct network *network) {
    int n = sol_program_n_outputs(network->program);
    network->outputs = calloc((size_t)n + 1, sizeof(void *));
    for (int i = 0; network->outputs && i < n; i++) {
        int64_t dim[SOL_MAX_RANK];
        if (sol_program_output_shape(network->program, i, network->symbols, dim))
            return complain("%s", sol_error());
        const struct sol_port *port = sol_program_output(network->program, i);
        if (!(network->outputs[i] = make_array(count_elements(port->rank, dim), port->dtype)))
            return complain("no memory for output %s", clean(port->name));
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

/* Arrays are freed before the program, which has their number. Members that were not set are NULL. */
void close_network(struct network *network) {
    if (network->weights) sol_weights_release(network->weights);
    if (network->program) {
        free_arrays(network->params, sol_program_n_params(network->program));
        free_arrays(network->outputs, sol_program_n_outputs(network->program));
        sol_program_release(network->program);
    }
    free(network->input_data);
    free(network->values);
    if (network->session) sol_session_free(network->session);
    free_inputs(&network->inputs);
    close_source(&network->source);
    sol_model_free(network->text);
    sol_onnx_free(network->onnx);
}
