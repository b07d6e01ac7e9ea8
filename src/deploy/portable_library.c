/* ---- The interface ---- */

/*
 * Behind the interface of a portable library. This is the end of its file: NAME and FUNC stand for the library's and the function's
 * name, and what comes before it defines the tables and sol_steps, which computes.
 */
struct NAME_context {
    char *memory, *arena;
};
static struct NAME_context sol_only; /* of the simple calls */
static const char *sol_message = "";

static int sol_fail(int code, const char *text) {
    sol_message = text;
    return code;
}

const char *NAME_error(void) { return sol_message; }
const char *FUNC_error(void) { return sol_message; }
int FUNC_seed(const int seed) { return (void)seed, 0; }
void NAME_set_threads(int n) { (void)n; }

/* ---- Weights ---- */

#if SOL_FILE
static char *sol_weights;

static int sol_read_weights(FILE *file) {
    char head[4096];
    char *values = (char *)malloc(SOL_WEIGHTS_SIZE + 1);
    int ok = values && fread(head, 1, sizeof head, file) == sizeof head &&
             !memcmp(head, sol_expected, sizeof sol_expected) &&
             fread(values, 1, SOL_WEIGHTS_SIZE, file) == SOL_WEIGHTS_SIZE;
    if (ok) sol_weights = values;
    else free(values);
    return ok ? 0 : sol_fail(1, "the file holds no weights of this network, or memory is out");
}

static int sol_open_weights(const char *path) {
    FILE *file;
    int code;
    if (sol_weights) return 0;
    file = fopen(path ? path : SOL_FILE_NAME, "rb");
    if (!file) return sol_fail(1, "cannot open the file of weights");
    code = sol_read_weights(file);
    fclose(file);
    return code;
}
#else
static int sol_open_weights(const char *path) { return (void)path, 0; }
#endif

/* ---- Memory ---- */

#if SOL_STATIC
/* All intermediate results; so there is one context, and one call at a time. */
static union {
    double align;
    char at[SOL_ARENA_SIZE];
} sol_memory;

static int sol_prepare(struct NAME_context *context) {
    context->arena = sol_memory.at;
    return 0;
}

int NAME_open(const char *weights_file, struct NAME_context **out) {
    *out = &sol_only;
    sol_prepare(&sol_only);
    return sol_open_weights(weights_file);
}

void NAME_close(struct NAME_context *context) { (void)context; }

static void *sol_new(size_t size) { return (void)size, (void *)0; }
static void sol_free(void *at) { (void)at; }
#else
static int sol_prepare(struct NAME_context *context) {
    if (context->arena) return 0;
    context->memory = (char *)malloc(SOL_ARENA_SIZE + 64);
    if (!context->memory) return sol_fail(3, "no memory for intermediate results");
    context->arena = context->memory + (64 - (uintptr_t)context->memory % 64);
    return 0;
}

int NAME_open(const char *weights_file, struct NAME_context **out) {
    struct NAME_context *context;
    int code = sol_open_weights(weights_file);
    if (code) return code;
    context = (struct NAME_context *)calloc(1, sizeof *context);
    if (!context) return sol_fail(3, "no memory for a context");
    code = sol_prepare(context);
    if (code) free(context);
    else *out = context;
    return code;
}

void NAME_close(struct NAME_context *context) {
    if (context) free(context->memory);
    free(context);
}

static void *sol_new(size_t size) { return malloc(size); }
static void sol_free(void *at) { free(at); }
#endif

/* ---- Calls ---- */

int NAME_run(struct NAME_context *context, const int64_t *sizes, const void *const *inputs,
             void *const *outputs) {
    int i;
    if (!context) return sol_fail(1, "no context");
    for (i = 0; sizes && i < SOL_N_SIZES; i++)
        if (sizes[i] != sol_size[i]) return sol_fail(1, "this library is for other sizes");
    for (i = 0; i < SOL_N_INPUTS; i++)
        if (!inputs[i]) return sol_fail(1, "an input is NULL");
    for (i = 0; i < SOL_N_OUTPUTS; i++)
        if (!outputs[i]) return sol_fail(1, "an output is NULL");
    if (sol_steps((const char *)sol_weights, (const char *const *)inputs, outputs, context->arena))
        return sol_fail(1, "a number in an input is outside of its table");
    return sol_fail(0, "");
}

void FUNC_init(const int deviceIdx) {
    (void)deviceIdx;
    if (!sol_open_weights((const char *)0)) sol_prepare(&sol_only);
}

/* What was allocated here is given back when the call fails. */
static void sol_predict(struct NAME_context *context, const void *const *inputs,
                        void **const *outputs) {
    void *result[SOL_N_OUTPUTS + 1];
    int i, code = 0, made = 0;
    for (; made < SOL_N_OUTPUTS && !code; made++) {
        result[made] = *outputs[made] ? *outputs[made] : sol_new(sol_output_size[made]);
        if (!result[made]) code = sol_fail(3, "no memory for an output");
    }
    if (!code) code = NAME_run(context, (const int64_t *)0, inputs, result);
    for (i = 0; i < made; i++) {
        if (code && !*outputs[i]) sol_free(result[i]);
        if (!code) *outputs[i] = result[i];
    }
}

static void sol_simple(struct NAME_context *context, const void *const *inputs,
                       void **const *outputs) {
    int i;
    sol_fail(0, "");
    for (i = 0; i < SOL_N_OUTPUTS; i++)
        if (!outputs[i]) {
            sol_fail(1, "where shall an output go? its pointer is NULL");
            return;
        }
    if (!context) {
        context = &sol_only;
        if (sol_open_weights((const char *)0) || sol_prepare(context)) return;
    }
    sol_predict(context, inputs, outputs);
}

/* ---- Shapes ---- */

static int sol_copy_shape(const int64_t *shape, int64_t dim[8]) {
    int r;
    for (r = 0; r < (int)shape[0]; r++) dim[r] = shape[1 + r];
    return (int)shape[0];
}

int NAME_input_shape(int i, const int64_t *sizes, int64_t dim[8]) {
    (void)sizes;
    return i >= 0 && i < SOL_N_INPUTS ? sol_copy_shape(sol_input_shape[i], dim) : -1;
}

int NAME_output_shape(int i, const int64_t *sizes, int64_t dim[8]) {
    (void)sizes;
    return i >= 0 && i < SOL_N_OUTPUTS ? sol_copy_shape(sol_output_shape[i], dim) : -1;
}
