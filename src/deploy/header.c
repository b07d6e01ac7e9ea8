/*
 * Prints the header that users include, and for native libraries the functions that it declares.
 *
 * The text of the header depends on the library: in portable C, sizes are fixed, and memory is allocated per call or static.
 * Names of the model occur in comments, and in declarations after a prefix such as input0_; only letters, digits and a few other
 * characters are printed.
 */
#include "deploy/deploy.h"

#include <string.h>

/* ---- Ports ---- */

#define IDENTIFIER "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

/* Prints at most `max` characters of `name`. Each run of characters that are not in `signs` becomes one "_". */
static void print_plain(struct text *text, const char *name, const char *signs, int max) {
    for (int n = 0; *name && n < max; n++) {
        if (strchr(signs, *name)) text_add_raw(text, name++, 1);
        else text_add(text, "_"), name += strcspn(name, signs);
    }
}

static const struct sol_port *port_of(const struct deployment *d, bool is_output, int i) {
    return is_output ? &d->program->output[i] : &d->program->input[i];
}

static bool is_portable(const struct deployment *d) { return !d->isa; }

/* The sizes of portable C are fixed; in other libraries, sizes that the model leaves open are open. */
static bool has_open_sizes(const struct deployment *d) {
    return !is_portable(d) && d->program->n_symbols > 0;
}

/* Prints the sizes of the simple interface; open ones with a star. */
static void print_dims(struct deployment *d, struct text *text, bool is_output, int i) {
    const struct sol_port *port = port_of(d, is_output, i);
    int64_t dim[SOL_MAX_RANK];
    deploy_shape(d, is_output, i, dim);
    text_add(text, "[");
    for (int r = 0; r < port->rank; r++)
        text_add(text, "%s%lld%s", r ? ", " : "", (long long)dim[r],
                 port->dim[r] < 0 && has_open_sizes(d) ? "*" : "");
    text_add(text, "]");
}

/* What the elements are where the C type does not tell; "" where it does. */
static const char *element_note(enum sol_dtype dtype) {
    switch (dtype) {
    case SOL_BOOL: return "  (bool: 0 or 1)";
    case SOL_F16: return "  (bits of a float16)";
    case SOL_BF16: return "  (bits of a bfloat16: the upper half of a float)";
    default: return "";
    }
}

static void print_ports(struct deployment *d, struct text *text, bool is_output) {
    const struct sol_program *p = d->program;
    for (int i = 0; i < (is_output ? p->n_outputs : p->n_inputs); i++) {
        const struct sol_port *port = port_of(d, is_output, i);
        text_add(text, " *   %s %d  %s ", is_output ? "output" : "input ", i,
                 size_c_type(port->dtype));
        print_dims(d, text, is_output, i);
        text_add(text, "  ");
        if (!*port->name) text_add(text, "(no name)");
        print_plain(text, port->name, IDENTIFIER ".- ", 60);
        text_add(text, "%s\n", element_note(port->dtype));
    }
}

/* Prints a name such as "output0_scores"; the prefix makes it differ from other arguments and from macros. */
static void print_argument(struct deployment *d, struct text *text, bool is_output, int i) {
    const char *name = port_of(d, is_output, i)->name;
    const char *number = arena_printf(d->arena, "%s%d", is_output ? "output" : "input", i);
    text_add(text, "%s", number);
    if (!*name || !strcmp(name, number)) return;
    text_add(text, "_");
    print_plain(text, name, IDENTIFIER, 40);
}

/* One argument per input, then one per output. */
void deploy_print_arguments(struct deployment *d, struct text *text, bool with_names) {
    const struct sol_program *p = d->program;
    text_add(text, "void *ctx");
    for (int i = 0; i < p->n_inputs; i++) {
        text_add(text, ", const %s *", size_c_type(p->input[i].dtype));
        if (with_names) print_argument(d, text, false, i);
        else text_add(text, "input%d", i);
    }
    for (int i = 0; i < p->n_outputs; i++) {
        text_add(text, ", %s **", size_c_type(p->output[i].dtype));
        if (with_names) print_argument(d, text, true, i);
        else text_add(text, "output%d", i);
    }
}

/* ---- The header ---- */

void deploy_print_named(struct deployment *d, struct text *text, const char *pattern) {
    for (; *pattern; pattern++) {
        if (*pattern == '@') text_add(text, "%s", d->lib);
        else if (*pattern == '$') text_add(text, "%s", d->func);
        else text_add_raw(text, pattern, 1);
    }
}

static void print_memory(struct deployment *d, struct text *text) {
    const bool is_static = d->library->static_memory;
    text_add(text, " * Weights: %lld bytes. RAM: %zu bytes, %s.\n", (long long)d->weights_size,
             deploy_portable_memory(d),
             is_static ? "static" : "which each call allocates and gives back");
}

static const char beside[] =
    " * The weights are in @.weights, which is looked for beside the library.\n";
static const char read_once[] =
    " * The weights are in @.weights. The first call reads them, from the working directory unless @_open has named\n"
    " * another place, and they stay. Where the compiler has no atomic operations, let $_init or @_open be called before\n"
    " * there are several threads.\n";

static void print_intro(struct deployment *d, struct text *text) {
    deploy_print_named(d, text, DEPLOY_HEADER_HEAD);
    if (d->far)
        text_add(text,
                 " Runs on %s (%s), whose driver it opens at its first call.\n"
                 " * It is linked with the C library and nothing else.\n *\n",
                 d->far->name, d->far->what);
    else text_add(text, " Needs the C library and nothing else.\n *\n");
    print_ports(d, text, false);
    print_ports(d, text, true);
    text_add(text, " *\n * Tensors are dense, the last dimension is the innermost.%s\n",
             is_portable(d) ? " All sizes are fixed." : "");
    if (has_open_sizes(d))
        deploy_print_named(
            d, text,
            " * Sizes with a star are open: those shown are what $ is for, @_run takes others.\n");
    if (is_portable(d)) print_memory(d, text);
    if (deploy_has_file(d)) deploy_print_named(d, text, is_portable(d) ? read_once : beside);
    deploy_print_named(d, text,
                       " */\n#ifndef @_H\n#define @_H\n\n#include <stdint.h>\n\n"
                       "#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n");
}

static const char overlapping[] =
    "/* All functions may be called from any thread, and calls may overlap. */\n\n";
static const char overlapping_portable[] =
    "/* All functions may be called from any thread, and calls may overlap: each has memory of its own. Messages are per\n"
    " * thread on Unix and Windows; elsewhere compile with -DSOL_THREAD_LOCAL=_Thread_local, if there are threads. */\n\n";
static const char one_at_a_time[] =
    "/* One call at a time: memory is static. A call of $ or @_run that begins during another one fails with a message and\n"
    " * writes nothing, if the compiler has atomic operations for pointers; without them, this is not detected. */\n\n";

static const char *calls(const struct deployment *d) {
    if (!is_portable(d)) return overlapping;
    return d->library->static_memory ? one_at_a_time : overlapping_portable;
}

/* The simple interface: four functions with the name that the user chose, predict by default. */
static const char simple_head[] =
    "/* ---- Simple: one call ---- */\n\n"
    "/* Makes ready what the first call would else make ready. deviceIdx: ";
static const char simple[] =
    "void $_init(const int deviceIdx);\n"
    "/* For random layers, of which there are none: nothing changes, returns 0. */\n"
    "int $_seed(const int seed);\n";
static const char predict_malloc[] =
    "/* Computes. Where *output is NULL it is set to new memory for free(), else it is written to. ctx: a\n"
    " * struct @_context *, or NULL. When it fails, $_error() says why, and leaves no new memory. */\n";
static const char predict_static[] =
    "/* Computes, and writes to *output, which is memory of the caller. ctx: a struct @_context *, or NULL. When it fails,\n"
    " * $_error() says why. */\n";
static const char error[] =
    "/* Why the last call of this thread, of whatever function of the library, failed; \"\" when it did not. */\n"
    "const char *$_error(void);\n\n";

static void print_simple(struct deployment *d, struct text *text) {
    deploy_print_named(d, text, calls(d));
    deploy_print_named(d, text, simple_head);
    text_add(text, "%s. */\n",
             d->far ? "the device's number, from 0, which is used without this call"
                    : "0, as there is one device");
    deploy_print_named(d, text, simple);
    deploy_print_named(d, text, d->library->static_memory ? predict_static : predict_malloc);
    text_add(text, "void %s(", d->func);
    deploy_print_arguments(d, text, true);
    text_add(text, ");\n");
    deploy_print_named(d, text, error);
}

static const char contexts[] =
    "/* ---- Re-entrant: contexts, error codes ---- */\n\n"
    "/* An int that these return is 0, or an error: 1 bad argument, 2 not possible on this processor, 3 out of memory, 4 the\n"
    " * system failed. @_error() is $_error(). */\n"
    "struct @_context;\n"
    "/* weights_file: for weights in a file of their own, where it is; NULL: the usual place. The first call reads and\n"
    " * checks them; all contexts share them. */\n"
    "int @_open(const char *weights_file, struct @_context **out);\n"
    "void @_close(struct @_context *context);\n";
static const char open_sizes[] =
    "/* inputs and outputs: one pointer each. sizes: the open sizes, in the order of their first star; NULL: those above. */\n";
static const char fixed_sizes[] =
    "/* inputs and outputs: one pointer each. sizes: NULL, as they are fixed. */\n";
static const char shapes[] =
    "int @_run(struct @_context *context, const int64_t *sizes, const void *const *inputs,\n"
    "          void *const *outputs);\n"
    "/* The shape of a tensor for these sizes: its rank, or -1 when there is no such tensor or the sizes are not possible. */\n"
    "int @_input_shape(int i, const int64_t *sizes, int64_t dim[8]);\n"
    "int @_output_shape(int i, const int64_t *sizes, int64_t dim[8]);\n";
static const char threads[] =
    "/* Threads that take part in a call; 0: all cores. Libraries of one program share them. */\n";
static const char one_thread[] =
    "/* Changes nothing: a call runs on the thread that makes it. */\n";
static const char device_threads[] = "/* Changes nothing: a call uses all of the device. */\n";
static const char end[] = "void @_set_threads(int n);\nconst char *@_error(void);\n\n"
                          "#ifdef __cplusplus\n}\n#endif\n#endif\n";

static void print_contexts(struct deployment *d, struct text *text) {
    deploy_print_named(d, text, contexts);
    deploy_print_named(d, text, has_open_sizes(d) ? open_sizes : fixed_sizes);
    deploy_print_named(d, text, shapes);
    deploy_print_named(d, text, d->far ? device_threads : is_portable(d) ? one_thread : threads);
    deploy_print_named(d, text, end);
}

enum sol_status deploy_header(struct deployment *d) {
    struct text text;
    text_init(&text, d->arena);
    print_intro(d, &text);
    print_simple(d, &text);
    print_contexts(d, &text);
    const char *name = arena_printf(d->arena, "%s.h", d->lib);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write_text(d, name, &text);
}

/* ---- The functions ---- */

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
    "EXPORT void $_init(const int deviceIdx) { library_init(deviceIdx); }\n"
    "EXPORT int $_seed(const int seed) { return (void)seed, library_seed(); }\n"
    "EXPORT const char *$_error(void) { return sol_error(); }\n";

/* Prints the arguments as two arrays. Each ends with an unused 0, since an array must not be empty. */
void deploy_print_lists(struct deployment *d, struct text *text) {
    const struct sol_program *p = d->program;
    text_add(text, "    const void *const inputs[] = {");
    for (int i = 0; i < p->n_inputs; i++) text_add(text, "input%d, ", i);
    text_add(text, "0};\n    void **const outputs[] = {");
    for (int i = 0; i < p->n_outputs; i++) text_add(text, "(void **)output%d, ", i);
    text_add(text, "0};\n");
}

void deploy_print_interface(struct deployment *d, struct text *text) {
    deploy_print_named(d, text, functions);
    deploy_print_named(d, text, simple_functions);
    text_add(text, "EXPORT void %s(", d->func);
    deploy_print_arguments(d, text, false);
    text_add(text, ") {\n");
    deploy_print_lists(d, text);
    text_add(text, "    library_predict(ctx, inputs, outputs);\n}\n");
}
