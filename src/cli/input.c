/*
 * Shapes and values of a call's inputs. The network fixes a shape or leaves some sizes open. Open sizes come from --batch,
 * --shape and the arrays of --input, which must agree, also if several inputs have the same open size.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* ---- Open sizes ---- */

static struct size_value *find_size(const struct inputs *inputs, int64_t number) {
    for (int i = 0; i < inputs->n_sizes; i++)
        if (inputs->size[i].number == number) return (struct size_value *)&inputs->size[i];
    return NULL;
}

int64_t size_of(const struct inputs *inputs, int64_t number) {
    const struct size_value *size = find_size(inputs, number);
    return size ? size->value : -1;
}

static void set_size(struct inputs *inputs, int64_t number, int64_t value, const char *from) {
    if (number == LOOSE || find_size(inputs, number) || inputs->n_sizes == MAX_FILES) return;
    struct size_value *size = &inputs->size[inputs->n_sizes++];
    size->number = number;
    size->value = value;
    snprintf(size->from, sizeof size->from, "%s", from);
}

bool has_open_sizes(const struct inputs *inputs) {
    for (int i = 0; i < inputs->n; i++)
        for (int d = 0; d < inputs->at[i].port.rank; d++)
            if (inputs->at[i].port.dim[d] < 0) return true;
    return false;
}

/* ---- Shapes ---- */

/* The shape of the port, with the open sizes that have a value by now; the others stay below 0. */
static void known_shape(const struct inputs *inputs, const struct sol_port *port, int64_t *out) {
    for (int d = 0; d < port->rank; d++) {
        const int64_t value = port->dim[d] < 0 ? size_of(inputs, port->dim[d]) : port->dim[d];
        out[d] = value < 0 ? port->dim[d] : value;
    }
}

/* "; height is 480 by input a (a.npy)": where the present value of an open size comes from; "" if it has none. */
static void explain(const struct inputs *inputs, int64_t dim, char out[512]) {
    const struct size_value *size = dim < 0 ? find_size(inputs, dim) : NULL;
    *out = 0;
    if (!size) return;
    snprintf(out, 512, "; %s is %lld by %s", clean(inputs->name(inputs->user, dim)),
             (long long)size->value, size->from);
}

static int refuse_shape(const struct inputs *inputs, const struct sol_port *port, int rank,
                        const int64_t *dim, const char *from, int64_t culprit) {
    char wanted[512], found[512], reason[512];
    int64_t known[SOL_MAX_RANK];
    known_shape(inputs, port, known);
    explain(inputs, culprit, reason);
    return complain("%s: its shape is not %s but %s, for input %s%s", from,
                    print_shape(wanted, port->rank, known, inputs->name, inputs->user),
                    print_shape(found, rank, dim, NULL, NULL), clean(port->name), reason);
}

/* Sets the shape of an input, which comes from `from`, and the open sizes in it. Refuses a shape that does not fit. */
static int take_shape(struct inputs *inputs, struct input *input, int rank, const int64_t *dim,
                      const char *from) {
    const struct sol_port *port = &input->port;
    char source[160];
    int64_t known[SOL_MAX_RANK];
    snprintf(source, sizeof source, "input %s (%s)", clean(port->name), clean(from));
    if (port->rank >= 0 && rank != port->rank)
        return refuse_shape(inputs, port, rank, dim, from, 0);
    known_shape(inputs, port, known);
    for (int d = 0; d < port->rank; d++)
        if (known[d] >= 0 && known[d] != dim[d])
            return refuse_shape(inputs, port, rank, dim, from, port->dim[d]);
    for (int d = 0; d < port->rank; d++) {
        if (port->dim[d] >= 0) continue;
        const int64_t before = size_of(inputs, port->dim[d]);
        if (before >= 0 && before != dim[d])
            return refuse_shape(inputs, port, rank, dim, from, port->dim[d]);
        set_size(inputs, port->dim[d], dim[d], source);
    }
    input->rank = rank;
    memcpy(input->dim, dim, sizeof *dim * (size_t)rank);
    return 0;
}

/* ---- Where shapes come from ---- */

/* --batch sets the first size of each input in which it is open. An error if no input has an open first size or one equal to it. */
static int take_batch(const struct options *o, struct inputs *inputs) {
    char from[64];
    bool is_open = false;
    snprintf(from, sizeof from, "--batch=%lld", (long long)o->batch);
    for (int i = 0; o->batch >= 0 && i < inputs->n; i++) {
        struct input *input = &inputs->at[i];
        if (input->port.rank < 1) continue;
        is_open |= input->port.dim[0] < 0 || input->port.dim[0] == o->batch;
        if (input->port.dim[0] < 0) set_size(inputs, input->port.dim[0], o->batch, from);
        if (input->port.dim[0] == LOOSE) input->port.dim[0] = o->batch;
    }
    if (is_open || o->batch < 0) return 0;
    return complain("%s: the first size of no input of %s is open", from, o->model);
}

/* "1,3,480,640" or "1x3x480x640". */
static int parse_sizes(const char *text, const char *at, int64_t dim[SOL_MAX_RANK], int *rank) {
    for (*rank = 0; *at; (*rank)++) {
        char *end;
        const long long value = strtoll(at, &end, 10);
        const bool is_last = !*end, is_parted = *end == ',' || *end == 'x';
        if (end == at || value < 0 || value > INT32_MAX || (!is_last && !is_parted) ||
            *rank == SOL_MAX_RANK || (is_parted && !end[1]))
            return complain("--shape=%s: a shape is such as 1,3,480,640", text);
        dim[*rank] = value;
        at = end + is_parted;
    }
    return 0;
}

static void list_inputs(const struct inputs *inputs, char out[2048]) {
    char shape[512];
    int at = 0;
    for (int i = 0; i < inputs->n && at < 1500; i++) {
        const struct sol_port *port = &inputs->at[i].port;
        const bool is_known = port->rank >= 0;
        at += snprintf(out + at, (size_t)(2048 - at), "%s%s %s", i ? ", " : "", clean(port->name),
                       is_known
                           ? print_shape(shape, port->rank, port->dim, inputs->name, inputs->user)
                           : "of any shape");
    }
    if (!inputs->n) snprintf(out, 2048, "none");
}

/* The input of --shape=NAME:SIZES. The name may be left out if there is only one input. It may contain colons. */
static struct input *find_input(const struct inputs *inputs, const char *text, const char **sizes) {
    const char *colon = strrchr(text, ':');
    const size_t n = colon ? (size_t)(colon - text) : 0;
    *sizes = colon ? colon + 1 : text;
    for (int i = 0; i < inputs->n; i++) {
        const char *name = inputs->at[i].port.name;
        if (colon ? strlen(name) == n && !strncmp(name, text, n) : inputs->n == 1)
            return &inputs->at[i];
    }
    return NULL;
}

static int take_option(struct inputs *inputs, const char *text) {
    const char *sizes;
    char list[2048], from[80];
    int64_t dim[SOL_MAX_RANK];
    int rank;
    struct input *input = find_input(inputs, text, &sizes);
    list_inputs(inputs, list);
    if (!input) return complain("--shape=%s: write NAME:SIZES; the inputs are %s", text, list);
    if (parse_sizes(text, sizes, dim, &rank)) return 1;
    snprintf(from, sizeof from, "--shape=%.60s", clean(text));
    return take_shape(inputs, input, rank, dim, from);
}

static int take_file(struct inputs *inputs, struct input *input, const char *path) {
    if (open_array(path, &input->array)) return 1;
    if (input->port.dtype == SOL_N_DTYPES)
        return complain("%s: input %s has elements that no file has", path,
                        clean(input->port.name));
    if (!array_is(&input->array, input->port.dtype))
        return complain("%s: its elements are not %s but %s, for input %s", path,
                        dtype_name(input->port.dtype), input->array.type, clean(input->port.name));
    if (input->array.is_raw) return 0;
    return take_shape(inputs, input, input->array.rank, input->array.dim, path);
}

/* ---- Sizes that nothing gives ---- */

/* Open sizes without a value become 1. A note says so, except for the batch. */
static int complete(struct inputs *inputs, struct input *input) {
    bool is_guess = false;
    char shape[512];
    const struct sol_port *port = &input->port;
    if (input->rank >= 0) return 0;
    if (port->rank < 0)
        return complain("input %s may have any shape: choose one by --shape=%s:SIZES",
                        clean(port->name), clean(port->name));
    input->rank = port->rank;
    for (int d = 0; d < port->rank; d++) {
        const int64_t value = port->dim[d] < 0 ? size_of(inputs, port->dim[d]) : port->dim[d];
        is_guess |= value < 0 && d;
        if (value < 0) set_size(inputs, port->dim[d], 1, "default");
        input->dim[d] = value < 0 ? 1 : value;
    }
    if (is_guess)
        note("input %s is %s; choose its open sizes by --shape=%s:SIZES, or by an array",
             clean(port->name), print_shape(shape, input->rank, input->dim, NULL, NULL),
             clean(port->name));
    return 0;
}

int plan_inputs(const struct options *o, struct inputs *inputs) {
    char list[2048];
    int code = 0;
    list_inputs(inputs, list);
    if (o->n_inputs && o->n_inputs != inputs->n)
        return complain("%s has %d inputs, not %d: %s", o->model, inputs->n, o->n_inputs, list);
    for (int i = 0; i < inputs->n; i++) inputs->at[i].rank = -1;
    code = take_batch(o, inputs);
    for (int i = 0; i < o->n_shapes && !code; i++) code = take_option(inputs, o->shape[i]);
    for (int i = 0; i < o->n_inputs && !code; i++)
        code = take_file(inputs, &inputs->at[i], o->input[i]);
    for (int i = 0; i < inputs->n && !code; i++) code = complete(inputs, &inputs->at[i]);
    inputs->batch = !code && inputs->n && inputs->at[0].rank > 0 ? inputs->at[0].dim[0] : 1;
    return code;
}

/* ---- Values ---- */

int64_t count_elements(int rank, const int64_t *dim) {
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        if (dim[d] < 0 || __builtin_mul_overflow(n, dim[d], &n)) return -1;
    return n < INT64_MAX / 16 ? n : -1;
}

/* The state of the random numbers differs from that of parameters. */
int fill_inputs(const struct options *o, struct inputs *inputs) {
    uint64_t state = o->seed + 0x2545F4914F6CDD1Du;
    for (int i = 0; i < inputs->n; i++) {
        struct input *input = &inputs->at[i];
        const int64_t n = count_elements(input->rank, input->dim);
        if (input->port.dtype == SOL_N_DTYPES)
            return complain("input %s has elements that `sol` cannot make",
                            clean(input->port.name));
        if (!(input->data = make_array(n, input->port.dtype)))
            return complain("no memory for input %s", clean(input->port.name));
        if (!input->array.file) fill_random(&state, input->port.dtype, n, 1, input->data);
        else if (read_array(&input->array, input->port.dtype, n, input->data)) return 1;
    }
    return 0;
}

void free_inputs(struct inputs *inputs) {
    for (int i = 0; i < inputs->n; i++) {
        close_array(&inputs->at[i].array);
        free(inputs->at[i].data);
    }
    free(inputs->at);
    *inputs = (struct inputs){0};
}
