/*
 * The header that users include, and for native libraries the functions behind it.
 *
 * Names from the model are shown in comments only, and of them only letters, digits and a few signs.
 */
#include "deploy/deploy.h"

#include <string.h>

static const char *const c_types[] = {
    [SOL_F32] = "float",   [SOL_F64] = "double",   [SOL_BF16] = "uint16_t", [SOL_F16] = "uint16_t",
    [SOL_I64] = "int64_t", [SOL_I32] = "int32_t",  [SOL_I16] = "int16_t",   [SOL_I8] = "int8_t",
    [SOL_U8] = "uint8_t",  [SOL_BOOL] = "uint8_t",
};

/* ---- Ports ---- */

static void print_name(struct text *text, const char *name) {
    int n = 0;
    for (; name[n] && n < 60; n++) {
        bool plain = strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-",
                            name[n]) != NULL;
        text_add(text, "%c", plain ? name[n] : '_');
    }
    text_add(text, n ? "" : "(no name)");
}

/* Sizes that the simple interface is for; open ones with a star. */
static void print_dims(struct deployment *d, struct text *text, bool is_output, int i) {
    const struct sol_program *p = d->program;
    const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
    int64_t dim[SOL_MAX_RANK];
    deploy_shape(d, is_output, i, dim);
    text_add(text, "[");
    for (int r = 0; r < port->rank; r++)
        text_add(text, "%s%lld%s", r ? ", " : "", (long long)dim[r], port->dim[r] < 0 ? "*" : "");
    text_add(text, "]");
}

static void print_ports(struct deployment *d, struct text *text, bool is_output) {
    const struct sol_program *p = d->program;
    int n = is_output ? p->n_outputs : p->n_inputs;
    for (int i = 0; i < n; i++) {
        const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
        text_add(text, " *   %s %d  %s ", is_output ? "output" : "input ", i, c_types[port->dtype]);
        print_dims(d, text, is_output, i);
        text_add(text, "  ");
        print_name(text, port->name);
        text_add(text, "\n");
    }
}

/* One argument per input, then one per output. */
void deploy_print_arguments(struct deployment *d, struct text *text) {
    const struct sol_program *p = d->program;
    text_add(text, "void *ctx");
    for (int i = 0; i < p->n_inputs; i++)
        text_add(text, ", const %s *input%d", c_types[p->input[i].dtype], i);
    for (int i = 0; i < p->n_outputs; i++)
        text_add(text, ", %s **output%d", c_types[p->output[i].dtype], i);
}

/* ---- The header ---- */

static void print_intro(struct deployment *d, struct text *text) {
    text_add(text, "/*\n * %s: a trained network. Needs the C library and nothing else.\n *\n",
             d->lib);
    print_ports(d, text, false);
    print_ports(d, text, true);
    text_add(
        text,
        " *\n * Tensors are dense, the last dimension is the innermost. Sizes with a star are open: those shown are what\n"
        " * %s is for, %s_run takes others.\n",
        d->func, d->lib);
    if (d->binding)
        text_add(text, " * Weights: %lld bytes of constants. RAM: %zu bytes, %s.\n",
                 (long long)d->weights_size, deploy_portable_memory(d),
                 d->library->static_memory ? "static" : "allocated with a context");
    if (d->library->weights == SOL_WEIGHTS_FILE)
        text_add(text,
                 " * The weights are in %s.weights, which is looked for beside the library.\n",
                 d->lib);
    text_add(text,
             " */\n#ifndef %s_H\n#define %s_H\n\n#include <stdint.h>\n\n"
             "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n",
             d->lib, d->lib);
}

/* init, seed, predict, error: four functions with the name that the user chose. */
static void print_simple(struct deployment *d, struct text *text) {
    text_add(text,
             "/* ---- Simple: one call ---- */\n\n"
             "/* Makes ready what the first call would else make ready. deviceIdx: 0. */\n"
             "void %s_init(const int deviceIdx);\n"
             "/* For random layers, of which there are none: nothing changes, returns 0. */\n"
             "int %s_seed(const int seed);\n",
             d->func, d->func);
    text_add(
        text,
        "/* Computes. Where *output is NULL it is set to new memory for free(), else it is written to. ctx: a\n"
        " * struct %s_context *, or NULL. When it fails, %s_error() says why, and new memory there is none. */\n"
        "void %s(",
        d->lib, d->func, d->func);
    deploy_print_arguments(d, text);
    text_add(text,
             ");\n"
             "/* Why the last call on this thread failed; \"\" when it did not. */\n"
             "const char *%s_error(void);\n\n",
             d->func);
}

static const char reentrant[] =
    "/* ---- Re-entrant: contexts, open sizes, error codes ---- */\n\n"
    "/* All functions may be called from any thread, and calls may overlap. An int that they return is 0, or an error:\n"
    " * 1 bad argument, 2 not possible on this processor, 3 out of memory, 4 the system failed. */\n"
    "struct @_context;\n"
    "/* weights_file: for weights in a file of their own, where it is; NULL: beside the library. */\n"
    "int @_open(const char *weights_file, struct @_context **out);\n"
    "void @_close(struct @_context *context);\n"
    "/* inputs and outputs: one pointer each. sizes: the open sizes, in the order of their first star; NULL: those above. */\n"
    "int @_run(struct @_context *context, const int64_t *sizes, const void *const *inputs,\n"
    "          void *const *outputs);\n"
    "/* The shape of a tensor for these sizes: its rank, or -1 when there is no such tensor. */\n"
    "int @_input_shape(int i, const int64_t *sizes, int64_t dim[8]);\n"
    "int @_output_shape(int i, const int64_t *sizes, int64_t dim[8]);\n"
    "/* Threads that take part in a call; 0: all cores. Libraries of one program share them. */\n"
    "void @_set_threads(int n);\n"
    "const char *@_error(void);\n\n"
    "#ifdef __cplusplus\n}\n#endif\n#endif\n";

/* `pattern` with the library's name for each @. */
static void print_named(struct text *text, const char *pattern, const char *name) {
    for (; *pattern; pattern++) {
        if (*pattern == '@') text_add(text, "%s", name);
        else text_add_raw(text, pattern, 1);
    }
}

enum sol_status deploy_header(struct deployment *d) {
    struct text text;
    text_init(&text, d->arena);
    print_intro(d, &text);
    print_simple(d, &text);
    print_named(&text, reentrant, d->lib);
    const char *name = arena_printf(d->arena, "%s.h", d->lib);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write_text(d, name, &text);
}

/* ---- Behind it ---- */

static const char functions[] =
    "#define EXPORT __attribute__((visibility(\"default\")))\n"
    "EXPORT int @_open(const char *weights_file, struct library_context **out) {\n"
    "    return (int)library_open(weights_file, out);\n}\n"
    "EXPORT void @_close(struct library_context *context) { library_close(context); }\n"
    "EXPORT int @_run(struct library_context *context, const int64_t *sizes, const void *const *inputs,\n"
    "                 void *const *outputs) {\n"
    "    return (int)library_run(context, sizes, inputs, outputs);\n}\n"
    "EXPORT int @_input_shape(int i, const int64_t *sizes, int64_t *dim) {\n"
    "    return library_shape(false, i, sizes, dim);\n}\n"
    "EXPORT int @_output_shape(int i, const int64_t *sizes, int64_t *dim) {\n"
    "    return library_shape(true, i, sizes, dim);\n}\n"
    "EXPORT void @_set_threads(int n) { library_set_threads(n); }\n"
    "EXPORT const char *@_error(void) { return sol_error(); }\n";

static const char simple_functions[] =
    "EXPORT void @_init(const int deviceIdx) { (void)deviceIdx, library_init(); }\n"
    "EXPORT int @_seed(const int seed) { return (void)seed, 0; }\n"
    "EXPORT const char *@_error(void) { return sol_error(); }\n";

/* The arguments as two lists; a list of nothing has one entry that nobody reads. */
void deploy_print_lists(struct deployment *d, struct text *text) {
    const struct sol_program *p = d->program;
    text_add(text, "    const void *const inputs[] = {");
    for (int i = 0; i < p->n_inputs; i++) text_add(text, "input%d, ", i);
    text_add(text, "0};\n    void **const outputs[] = {");
    for (int i = 0; i < p->n_outputs; i++) text_add(text, "(void **)output%d, ", i);
    text_add(text, "0};\n");
}

void deploy_print_interface(struct deployment *d, struct text *text) {
    print_named(text, functions, d->lib);
    print_named(text, simple_functions, d->func);
    text_add(text, "EXPORT void %s(", d->func);
    deploy_print_arguments(d, text);
    text_add(text, ") {\n");
    deploy_print_lists(d, text);
    text_add(text, "    library_predict(ctx, inputs, outputs);\n}\n");
}
