/*
 * `sol run`, `sol bench` and `sol profile` for a network that needs a session, as it cannot be compiled as a whole. Shapes of outputs
 * are known only after the call.
 *
 * Inputs come from files; without a file, f32 is random and other types are zero. input.c chooses the shapes.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* ONNX's numbers of element types. Types that are not in the list cannot be inputs from files or printed outputs. */
static const struct {
    int type;
    enum sol_dtype dtype;
} types[] = {{1, SOL_F32}, {2, SOL_U8},   {3, SOL_I8},   {5, SOL_I16},  {6, SOL_I32},
             {7, SOL_I64}, {9, SOL_BOOL}, {10, SOL_F16}, {11, SOL_F64}, {16, SOL_BF16}};

/* SOL_N_DTYPES: the type is not in the list. */
static enum sol_dtype find_type(int type) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) return types[i].dtype;
    return SOL_N_DTYPES;
}

static const char *name_dim(const void *user, int64_t dim) {
    const char *name = sol_session_size_name(user, dim);
    return name ? name : "?";
}

enum sol_status open_session(const struct options *o, const struct source *source,
                             struct sol_session **out) {
    if (!source->is_stream) return sol_session_read(source->path, &o->compile, out);
    return sol_session_parse(source->bytes, source->size, NULL, &o->compile, out);
}

/* Sizes without a name become LOOSE: they are independent. */
int list_session_ports(const struct sol_session *net, struct inputs *out) {
    *out = (struct inputs){.n = sol_session_n_inputs(net), .name = name_dim, .user = net};
    out->at = calloc((size_t)out->n + 1, sizeof *out->at);
    if (!out->at) return complain("no memory for inputs");
    for (int i = 0; i < out->n; i++) {
        struct sol_port *port = &out->at[i].port;
        int type;
        port->name = sol_session_input(net, i, &type, &port->rank, port->dim);
        port->dtype = find_type(type);
        for (int d = 0; d < port->rank; d++)
            if (port->dim[d] < 0 && !sol_session_size_name(net, port->dim[d])) port->dim[d] = LOOSE;
    }
    return 0;
}

/* The type is the one that the session declares. */
static void make_value(const struct sol_session *net, const struct input *input, int i,
                       struct sol_value *out) {
    int64_t dim[SOL_MAX_RANK];
    int rank;
    *out = (struct sol_value){.rank = input->rank, .data = input->data};
    sol_session_input(net, i, &out->type, &rank, dim);
    memcpy(out->dim, input->dim, sizeof out->dim);
    out->n = count_elements(input->rank, input->dim);
}

int fill_session(const struct options *o, struct network *network) {
    const int n = network->inputs.n;
    network->values = calloc((size_t)n + 1, sizeof *network->values);
    network->input_data = calloc((size_t)n + 1, sizeof(void *));
    if (!network->values || !network->input_data) return complain("no memory for inputs");
    if (fill_inputs(o, &network->inputs)) return 1;
    for (int i = 0; i < n; i++) {
        make_value(network->session, &network->inputs.at[i], i, &network->values[i]);
        network->input_data[i] = &network->values[i];
    }
    return 0;
}

enum sol_status call_session(const struct network *network, struct sol_results **out) {
    return sol_session_run(network->session, (const struct sol_value *const *)network->input_data,
                           out);
}

/* Prints or writes a tensor. Values of other types, such as sequences and strings, have no file format: only their size is
 * printed. */
static int show_value(const struct options *o, const struct sol_session *net,
                      const struct sol_value *value, int i) {
    int type, rank;
    int64_t dim[SOL_MAX_RANK];
    const char *name = sol_session_output(net, i, &type, &rank, dim);
    const enum sol_dtype dtype = find_type(value->type);
    if (dtype != SOL_N_DTYPES)
        return show_array(o, name, dtype, value->rank, value->dim, value->data, i);
    say("%s: %lld elements or items of another type\n", clean(name), (long long)value->n);
    return 0;
}

int run_session(const struct options *o, struct network *network) {
    struct sol_session *net = network->session;
    struct sol_results *results;
    int code = 0, compiled, interpreted;
    if (call_session(network, &results)) return complain("%s: %s", o->model, sol_error());
    for (int i = 0; i < sol_session_n_outputs(net) && !code; i++)
        code = show_value(o, net, sol_results_get(results, i), i);
    sol_results_free(results);
    sol_session_count(net, &compiled, &interpreted);
    printf("%d nodes ran compiled, %d were interpreted\n", compiled, interpreted);
    return code;
}
