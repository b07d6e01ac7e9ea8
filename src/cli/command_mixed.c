/*
 * `sol run` for networks of which parts are interpreted: values of any shape in and out, and nothing is known before the call.
 *
 * Inputs come from files, or are random (reals) and zero (everything else), with the sizes that the file of the network tells; open ones are
 * those of --batch.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* ONNX's numbers of element types; those that have no name here stay inside of networks. */
static const struct {
    int type;
    enum sol_dtype dtype;
} types[] = {{1, SOL_F32}, {2, SOL_U8},   {3, SOL_I8},   {5, SOL_I16},  {6, SOL_I32},
             {7, SOL_I64}, {9, SOL_BOOL}, {10, SOL_F16}, {11, SOL_F64}, {16, SOL_BF16}};

/* -1: it has no name. */
static int find_type(int type) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) return (int)types[i].dtype;
    return -1;
}

/* One input's value; its memory is malloc'ed. */
static int make_value(const struct options *o, const struct sol_mixed *net, int i,
                      struct sol_value *out) {
    uint64_t state = o->seed + 0x2545F4914F6CDD1Du + (uint64_t)i;
    const char *name = sol_mixed_input(net, i, &out->type, &out->rank, out->dim);
    const int dtype = find_type(out->type);
    if (dtype < 0 || out->rank < 0)
        return complain("input %s has a type or a rank that `sol run` cannot make", name);
    out->n = 1;
    for (int d = 0; d < out->rank; d++) {
        if (out->dim[d] < 0) out->dim[d] = o->batch;
        if (__builtin_mul_overflow(out->n, out->dim[d], &out->n) || out->n > INT64_MAX / 16)
            return complain("input %s is too large", name);
    }
    void *data = calloc((size_t)out->n + 16, dtype_size((enum sol_dtype)dtype));
    out->data = data;
    if (!data) return complain("no memory for input %s", name);
    if (!o->n_inputs) fill_random(&state, (enum sol_dtype)dtype, out->n, 1, data);
    else if (read_array(o->input[i], (enum sol_dtype)dtype, out->rank, out->dim, data)) return 1;
    return 0;
}

/* Sequences, strings and optionals have no file format; their sizes are told. */
static int show_value(const struct options *o, const struct sol_mixed *net,
                      const struct sol_value *value, int i) {
    int type, rank;
    int64_t dim[SOL_MAX_RANK];
    const char *name = sol_mixed_output(net, i, &type, &rank, dim);
    const int dtype = find_type(value->type);
    if (dtype >= 0)
        return show_array(o, name, (enum sol_dtype)dtype, value->rank, value->dim, value->data, i);
    printf("%s: %lld elements or items of another type\n", name, (long long)value->n);
    return 0;
}

static int run(const struct options *o, struct sol_mixed *net, struct sol_value *values,
               const struct sol_value **inputs) {
    struct sol_results *results;
    int code = 0, compiled, interpreted;
    for (int i = 0; i < sol_mixed_n_inputs(net) && !code; i++) {
        code = make_value(o, net, i, &values[i]);
        inputs[i] = &values[i];
    }
    if (code) return code;
    if (sol_mixed_run(net, inputs, &results)) return complain("%s: %s", o->model, sol_error());
    for (int i = 0; i < sol_mixed_n_outputs(net) && !code; i++)
        code = show_value(o, net, sol_results_get(results, i), i);
    sol_results_free(results);
    sol_mixed_count(net, &compiled, &interpreted);
    printf("%d nodes ran compiled, %d were interpreted\n", compiled, interpreted);
    return code;
}

int run_mixed(const struct options *o) {
    struct sol_mixed *net;
    if (sol_mixed_read(o->model, &o->compile, &net)) return complain("%s", sol_error());
    const int n = sol_mixed_n_inputs(net);
    struct sol_value *values = calloc((size_t)n + 1, sizeof *values);
    const struct sol_value **inputs = calloc((size_t)n + 1, sizeof *inputs);
    int code = !values || !inputs ? complain("no memory for inputs")
               : o->n_inputs && o->n_inputs != n
                   ? complain("%s has %d inputs, not %d", o->model, n, o->n_inputs)
                   : run(o, net, values, inputs);
    for (int i = 0; values && i < n; i++) free((void *)(uintptr_t)values[i].data);
    free(values);
    free(inputs);
    sol_mixed_free(net);
    return code;
}
