/*
 * Portable C: one file of C99, one function per generated kernel, one that calls them in turn.
 *
 * Everything that a runtime would compute is a number in the text: sizes, addresses in the arena, tasks. The weights are packed
 * here; up to 4 MiB they are text, too, above they are a file that the library reads.
 */
#include "deploy/deploy.h"
#include "run/bind.h"

#include <string.h>

#define MOST_TEXT ((int64_t)4 << 20) /* bytes of weights as C text; compilers are slow at more */
#define ALIGN 64

static bool is_embedded(const struct deployment *d) {
    return d->library->weights != SOL_WEIGHTS_FILE && d->weights_size <= MOST_TEXT;
}

/* ---- Kernels ---- */

static const char head[] = "void SOL_KERNEL"; /* of every text */

static void print_kernel(struct text *text, const struct kernel *kernel) {
    text_add(text, "static void %s", kernel->symbol);
    text_add_raw(text, kernel->text + strlen(head), strlen(kernel->text) - strlen(head));
    text_add(text, "\n");
}

/* As run/copy.c does it. */
static const char copy_text[] =
    "/* Moves values: out[(o * n_pixels + p) * lanes + l] = in[base[o * lanes + l] + p * stride], 0 where base < 0. */\n"
    "static void copy_values(void *const *ptr, const int64_t *arg, const int32_t *base, int64_t tasks) {\n"
    "    const int64_t n_outer = arg[0], n_pixels = arg[1], lanes = arg[2], stride = arg[3];\n"
    "    int64_t task, p, l;\n"
    "    for (task = 0; task < tasks; task++) {\n"
    "        const int64_t n = task / n_outer, o = task % n_outer;\n"
    "        const float *in = (const float *)ptr[0] + n * arg[4];\n"
    "        float *out = (float *)ptr[1] + n * arg[5] + o * n_pixels * lanes;\n"
    "        for (p = 0; p < n_pixels; p++)\n"
    "            for (l = 0; l < lanes; l++) {\n"
    "                const int64_t from = base[o * lanes + l];\n"
    "                out[p * lanes + l] = from < 0 ? 0.0f : in[from + p * stride];\n"
    "            }\n"
    "    }\n"
    "}\n\n";

static void print_tables(struct deployment *d, struct text *text) {
    const struct step_list *list = &d->program->steps;
    bool any = false;
    for (int i = 0; i < list->n; i++) {
        if (list->at[i].run != copy_run) continue;
        const struct copy_table *table = list->at[i].data;
        int64_t n = (int64_t)table->n_outer * table->lanes;
        if (!any) text_add_raw(text, copy_text, strlen(copy_text));
        any = true;
        text_add(text, "static const int32_t base_%d[] = {", i);
        for (int64_t k = 0; k < n; k++)
            text_add(text, k % 16 ? " %d," : "\n    %d,", table->base[k]);
        text_add(text, " 0};\n\n");
    }
}

/* ---- Weights ---- */

static void print_floats(struct text *text, const void *data, int64_t size) {
    const int64_t n = round_up(size, ALIGN) / 4;
    for (int64_t i = 0; i < n; i++) {
        float value = 0;
        if (4 * i < size) memcpy(&value, (const char *)data + 4 * i, 4);
        text_add(text, i % 8 ? " " : "\n    ");
        text_add_c_float(text, (double)value);
        text_add(text, ",");
    }
}

static void print_weights(struct deployment *d, struct text *text) {
    text_add(text, "static const float weight_values[] = {");
    if (d->state_size) print_floats(text, d->weights->state, d->state_size);
    for (int i = 0; i < d->program->n_params; i++)
        if (d->param[i] >= 0) {
            int64_t size = 4;
            for (int r = 0; r < d->program->param[i].rank; r++) size *= d->program->param[i].dim[r];
            print_floats(text, d->params[i], size);
        }
    text_add(text, "\n    0.0f};\n\n");
}

/* ---- Steps ---- */

static void print_base(struct deployment *d, struct text *text, const struct buffer_ref *ref,
                       int64_t *offset) {
    switch (ref->kind) {
    case BUFFER_INPUT: text_add(text, "in[%d]", ref->index); break;
    case BUFFER_OUTPUT: text_add(text, "(const char *)out[%d]", ref->index); break;
    case BUFFER_ARENA: text_add(text, "(const char *)arena"); break;
    case BUFFER_PARAM:
        text_add(text, "weights");
        *offset += d->param[ref->index];
        break;
    case BUFFER_STATE:
        text_add(text, "weights");
        *offset += (int64_t)d->weights->offset[ref->index];
        break;
    case BUFFER_CONST:
    case BUFFER_NONE: text_add(text, "(const char *)0"); break;
    }
}

/* Pointers are bytes from their bases; in a divided batch they move with the first image. */
static void print_pointers(struct deployment *d, struct text *text, const struct binding *b, int i,
                           bool divided) {
    const struct step *step = &d->program->steps.at[i];
    text_add(text, "        void *ptr[%d];\n", step->n_ptr ? step->n_ptr : 1);
    for (int p = 0; p < step->n_ptr; p++) {
        int64_t offset = b->ptr_offset[i][p];
        text_add(text, "        ptr[%d] = (void *)(uintptr_t)(", p);
        print_base(d, text, &step->ptr[p], &offset);
        if (offset) text_add(text, " + %lld", (long long)offset);
        if (divided && b->ptr_image[i][p])
            text_add(text, " + first * %lld", (long long)b->ptr_image[i][p]);
        text_add(text, ");\n");
    }
}

static void print_arguments(struct text *text, const struct step *step, const int64_t *arg) {
    if (step->run == copy_run) {
        const struct copy_table *t = step->data;
        const int64_t all[] = {t->n_outer, t->n_pixels, t->lanes, t->pixel_stride, arg[1], arg[2]};
        deploy_print_ints(text, COUNT(all), all);
    } else {
        deploy_print_ints(text, step->n_arg, arg);
    }
}

static void print_step(struct deployment *d, struct text *text, const struct binding *b, int i,
                       const struct bound *bound, bool divided) {
    const struct step *step = &d->program->steps.at[i];
    const long long tasks = (long long)bound->n_tasks[i];
    text_add(text, "    {\n        static const int64_t arg[] = ");
    print_arguments(text, step, bound->arg[i]);
    text_add(text, ";\n");
    print_pointers(d, text, b, i, divided);
    if (step->run == copy_run)
        text_add(text, "        copy_values(ptr, arg, base_%d, %lld);\n    }\n", i, tasks);
    else
        text_add(text, "        %s(ptr, arg, scratch, 0, %lld);\n    }\n",
                 ((const struct kernel *)step->data)->symbol, tasks);
}

static void print_section(struct deployment *d, struct text *text, const struct binding *b,
                          const struct section *section) {
    const long long batch = (long long)b->symbol[0], portion = (long long)section->portion;
    const bool divided = portion < batch;
    if (divided)
        text_add(text, "    for (first = 0; first + %lld <= %lld; first += %lld) {\n", portion,
                 batch, portion);
    for (int i = section->begin; i < section->end; i++)
        print_step(d, text, b, i, &b->full, divided);
    if (divided) text_add(text, "    }\n");
    if (!divided || batch % portion == 0) return;
    for (int i = section->begin; i < section->end; i++) print_step(d, text, b, i, &b->rest, true);
}

static void print_steps(struct deployment *d, struct text *text, const struct binding *b) {
    text_add(text, "static void run_steps(const char *weights, const char *const *in, void *const *out, "
                   "char *arena) {\n    char *scratch = arena + %zu;\n    int64_t first = 0;\n"
                   "    (void)weights, (void)in, (void)out, (void)scratch, (void)first;\n",
             (size_t)round_up((int64_t)b->arena_size, ALIGN));
    for (int s = 0; s < b->n_sections; s++) print_section(d, text, b, &b->section[s]);
    text_add(text, "}\n\n");
}

/* ---- The interface ---- */

/* @: the library's name; $: the function's. */
static void print_pattern(struct deployment *d, struct text *text, const char *pattern) {
    for (; *pattern; pattern++) {
        if (*pattern == '@') text_add(text, "%s", d->lib);
        else if (*pattern == '$') text_add(text, "%s", d->func);
        else text_add_raw(text, pattern, 1);
    }
}

static const char contexts[] =
    "struct @_context {\n    char *memory, *arena;\n};\n"
    "static struct @_context only; /* of the simple calls */\n"
    "static const char *message = \"\";\n\n"
    "static int fail(int code, const char *text) {\n    message = text;\n    return code;\n}\n\n"
    "const char *@_error(void) { return message; }\n"
    "const char *$_error(void) { return message; }\n"
    "int $_seed(const int seed) { return (void)seed, 0; }\n"
    "void @_set_threads(int n) { (void)n; }\n\n";

static const char embedded_weights[] =
    "static int open_weights(const char *path) { return (void)path, 0; }\n\n";

static const char file_weights[] =
    "static char *weight_values;\n\n"
    "static int read_weights(FILE *file) {\n"
    "    char head[4096];\n"
    "    char *values = (char *)malloc(WEIGHTS_SIZE + 1);\n"
    "    int ok = values && fread(head, 1, sizeof head, file) == sizeof head && !memcmp(head, expected, sizeof expected) &&\n"
    "             fread(values, 1, WEIGHTS_SIZE, file) == WEIGHTS_SIZE;\n"
    "    if (ok) weight_values = values;\n"
    "    else free(values);\n"
    "    return ok ? 0 : fail(1, \"the file holds no weights of this network, or memory is out\");\n"
    "}\n\n"
    "static int open_weights(const char *path) {\n"
    "    FILE *file;\n"
    "    int code;\n"
    "    if (weight_values) return 0;\n"
    "    file = fopen(path ? path : \"@.weights\", \"rb\");\n"
    "    if (!file) return fail(1, \"cannot open the file of weights\");\n"
    "    code = read_weights(file);\n"
    "    fclose(file);\n"
    "    return code;\n"
    "}\n\n";

static const char dynamic_memory[] =
    "static int prepare(struct @_context *context) {\n"
    "    if (context->arena) return 0;\n"
    "    context->memory = (char *)malloc(ARENA_SIZE + 64);\n"
    "    if (!context->memory) return fail(3, \"no memory for intermediate results\");\n"
    "    context->arena = context->memory + (64 - (uintptr_t)context->memory % 64);\n"
    "    return 0;\n"
    "}\n\n"
    "int @_open(const char *weights_file, struct @_context **out) {\n"
    "    struct @_context *context;\n"
    "    int code = open_weights(weights_file);\n"
    "    if (code) return code;\n"
    "    context = (struct @_context *)calloc(1, sizeof *context);\n"
    "    if (!context) return fail(3, \"no memory for a context\");\n"
    "    code = prepare(context);\n"
    "    if (code) free(context);\n"
    "    else *out = context;\n"
    "    return code;\n"
    "}\n\n"
    "void @_close(struct @_context *context) {\n"
    "    if (context) free(context->memory);\n"
    "    free(context);\n"
    "}\n\n"
    "static void *new_memory(size_t size) { return malloc(size); }\n"
    "static void free_memory(void *memory) { free(memory); }\n\n";

static const char static_memory[] =
    "/* All intermediate results; so there is one context, and one call at a time. */\n"
    "static union {\n    double align;\n    char at[ARENA_SIZE];\n} memory;\n\n"
    "static int prepare(struct @_context *context) {\n"
    "    context->arena = memory.at;\n"
    "    return 0;\n"
    "}\n\n"
    "int @_open(const char *weights_file, struct @_context **out) {\n"
    "    *out = &only;\n"
    "    prepare(&only);\n"
    "    return open_weights(weights_file);\n"
    "}\n\n"
    "void @_close(struct @_context *context) { (void)context; }\n\n"
    "static void *new_memory(size_t size) { return (void)size, (void *)0; }\n"
    "static void free_memory(void *at) { (void)at; }\n\n";

static const char runs[] =
    "int @_run(struct @_context *context, const int64_t *sizes, const void *const *inputs,\n"
    "          void *const *outputs) {\n"
    "    int i;\n"
    "    if (!context) return fail(1, \"no context\");\n"
    "    for (i = 0; sizes && i < N_SIZES; i++)\n"
    "        if (sizes[i] != symbol[i]) return fail(1, \"this library is for other sizes\");\n"
    "    for (i = 0; i < N_INPUTS; i++)\n"
    "        if (!inputs[i]) return fail(1, \"an input is NULL\");\n"
    "    for (i = 0; i < N_OUTPUTS; i++)\n"
    "        if (!outputs[i]) return fail(1, \"an output is NULL\");\n"
    "    run_steps((const char *)weight_values, (const char *const *)inputs, outputs, context->arena);\n"
    "    return fail(0, \"\");\n"
    "}\n\n"
    "void $_init(const int deviceIdx) {\n"
    "    (void)deviceIdx;\n"
    "    if (!open_weights((const char *)0)) prepare(&only);\n"
    "}\n\n"
    "static int predict(struct @_context *context, const void *const *inputs, void **const *outputs) {\n"
    "    void *result[N_OUTPUTS + 1];\n"
    "    int i, code = 0, made = 0;\n"
    "    for (; made < N_OUTPUTS && !code; made++) {\n"
    "        result[made] = *outputs[made] ? *outputs[made] : new_memory(output_size[made]);\n"
    "        if (!result[made]) code = fail(3, \"no memory for an output\");\n"
    "    }\n"
    "    if (!code) code = @_run(context, (const int64_t *)0, inputs, result);\n"
    "    for (i = 0; i < made; i++) {\n"
    "        if (code && !*outputs[i]) free_memory(result[i]);\n"
    "        if (!code) *outputs[i] = result[i];\n"
    "    }\n"
    "    return code;\n"
    "}\n\n"
    "static void run_simple(struct @_context *context, const void *const *inputs, void **const *outputs) {\n"
    "    int i;\n"
    "    fail(0, \"\");\n"
    "    for (i = 0; i < N_OUTPUTS; i++)\n"
    "        if (!outputs[i]) {\n            fail(1, \"where shall an output go? its pointer is NULL\");\n            return;\n        }\n"
    "    if (!context) {\n"
    "        context = &only;\n"
    "        if (open_weights((const char *)0) || prepare(context)) return;\n"
    "    }\n"
    "    predict(context, inputs, outputs);\n"
    "}\n\n";

static const char shapes[] =
    "static int copy_shape(const int64_t *shape, int64_t dim[8]) {\n"
    "    int r;\n"
    "    for (r = 0; r < (int)shape[0]; r++) dim[r] = shape[1 + r];\n"
    "    return (int)shape[0];\n"
    "}\n\n"
    "int @_input_shape(int i, const int64_t *sizes, int64_t dim[8]) {\n"
    "    (void)sizes;\n"
    "    return i >= 0 && i < N_INPUTS ? copy_shape(input_shape[i], dim) : -1;\n"
    "}\n\n"
    "int @_output_shape(int i, const int64_t *sizes, int64_t dim[8]) {\n"
    "    (void)sizes;\n"
    "    return i >= 0 && i < N_OUTPUTS ? copy_shape(output_shape[i], dim) : -1;\n"
    "}\n\n";

/* Rank and dims of every port, and bytes of the outputs. */
static void print_shapes(struct deployment *d, struct text *text, bool is_output, int64_t *size) {
    const struct sol_program *p = d->program;
    const int n = is_output ? p->n_outputs : p->n_inputs;
    text_add(text, "static const int64_t %s_shape[%d][9] = {\n", is_output ? "output" : "input",
             n + 1);
    for (int i = 0; i < n; i++) {
        const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
        int64_t shape[1 + SOL_MAX_RANK] = {port->rank};
        if (!is_output || sol_program_output_shape(p, i, d->symbols, shape + 1))
            for (int r = 0; r < port->rank; r++)
                shape[1 + r] = port->dim[r] < 0 ? d->symbols[-1 - port->dim[r]] : port->dim[r];
        text_add(text, "    ");
        deploy_print_ints(text, 1 + port->rank, shape);
        text_add(text, ",\n");
        if (!is_output) continue;
        size[i] = 4;
        for (int r = 0; r < port->rank; r++) size[i] *= shape[1 + r];
    }
    text_add(text, "    {0}};\n");
}

static void print_numbers(struct deployment *d, struct text *text, const struct binding *b) {
    const struct sol_program *p = d->program;
    int64_t size[LIBRARY_MOST_OUTPUTS + 1] = {0};
    size_t arena = (size_t)round_up((int64_t)b->arena_size, ALIGN) + b->scratch_size + ALIGN;
    text_add(text,
             "#define N_INPUTS %d\n#define N_OUTPUTS %d\n#define N_SIZES %d\n#define ARENA_SIZE %zu\n"
             "#define WEIGHTS_SIZE ((size_t)%lld)\n\n",
             p->n_inputs, p->n_outputs, p->n_symbols, arena, (long long)d->weights_size);
    print_shapes(d, text, false, size);
    print_shapes(d, text, true, size);
    text_add(text, "static const size_t output_size[] = ");
    deploy_print_ints(text, p->n_outputs + 1, size);
    text_add(text, ";\nstatic const int64_t symbol[] = ");
    deploy_print_ints(text, p->n_symbols, d->symbols);
    text_add(text, ";\n\n");
}

static void print_interface(struct deployment *d, struct text *text,
                            const struct library_file *expect) {
    print_pattern(d, text, contexts);
    if (!is_embedded(d)) {
        const unsigned char *byte = (const unsigned char *)expect;
        text_add(text, "static const unsigned char expected[] = {");
        for (size_t i = 0; i < sizeof *expect; i++) text_add(text, "%d, ", byte[i]);
        text_add(text, "};\n");
    }
    print_pattern(d, text, is_embedded(d) ? embedded_weights : file_weights);
    print_pattern(d, text, d->library->static_memory ? static_memory : dynamic_memory);
    print_pattern(d, text, runs);
    print_pattern(d, text, shapes);
    text_add(text, "void %s(", d->func);
    deploy_print_arguments(d, text);
    text_add(text, ") {\n");
    deploy_print_lists(d, text);
    text_add(text, "    run_simple((struct %s_context *)ctx, inputs, outputs);\n}\n", d->lib);
}

/* ---- The file ---- */

static enum sol_status check_steps(const struct deployment *d) {
    const struct step_list *list = &d->program->steps;
    for (int i = 0; i < list->n; i++)
        if (list->at[i].run != kernel_run && list->at[i].run != copy_run)
            return fail(SOL_EUNSUPPORTED, "%s (%s) cannot be portable C yet", list->at[i].name,
                        list->at[i].layers);
    if (!is_embedded(d) && d->library->static_memory)
        return fail(SOL_EUNSUPPORTED, "static memory is for weights of at most %lld MiB, these have %lld",
                    (long long)(MOST_TEXT >> 20), (long long)(d->weights_size >> 20));
    return d->library->target == SOL_C_SOURCE
               ? SOL_OK
               : fail(SOL_EUNSUPPORTED, "the device \"c\" gives C sources, not libraries");
}

static enum sol_status write_network(struct deployment *d, const struct binding *b,
                                     const struct library_file *expect) {
    struct text text;
    text_init(&text, d->arena);
    text_add(&text, "/* %s: see %s.h. C99; links with the library of mathematics. */\n#include \"%s.h\"\n#include \"%s_math.h\"\n\n"
                    "#include <stddef.h>\n%s\n",
             d->lib, d->lib, d->lib, d->lib,
             d->library->static_memory ? ""
                                       : "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    print_numbers(d, &text, b);
    if (is_embedded(d)) print_weights(d, &text);
    deploy_visit_kernels(d, print_kernel, &text);
    print_tables(d, &text);
    print_steps(d, &text, b);
    print_interface(d, &text, expect);
    const char *name = arena_printf(d->arena, "%s.c", d->lib);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write_text(d, name, &text);
}

static enum sol_status write_math(struct deployment *d) {
    const char *name = arena_printf(d->arena, "%s_math.h", d->lib);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write(d, name, deploy_portable_math, strlen(deploy_portable_math));
}

enum sol_status deploy_portable(struct deployment *d) {
    struct library_file expect = {0};
    const char *file = arena_printf(d->arena, "%s.weights", d->lib);
    TRY(check_steps(d));
    TRY(write_math(d));
    if (!is_embedded(d)) {
        VEC_PUSH(d->arena, &d->files, file);
        TRY(deploy_write_weights(d, file, true, &expect));
    }
    TRY(deploy_header(d));
    TRY(binding_new(&d->program->steps, d->symbols, d->program->n_symbols, &d->binding));
    return write_network(d, d->binding, &expect);
}
