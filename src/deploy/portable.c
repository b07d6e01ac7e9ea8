/*
 * Portable C: one C99 file, with a function per generated kernel, and one that calls them in order.
 *
 * Everything that the runtime would compute is a constant in the text: sizes, offsets in the arena, numbers of tasks. The weights
 * are packed while deploying. Up to 4 MiB, they are text, too; larger ones are a file that the library reads.
 *
 *     static const float sol_weights[] = {0.0123f, ..};
 *     static void sol_kernel_5e..(void *const *ptr, const int64_t *arg, ..) { .. }    a generated kernel, LANES 1
 *     static int sol_steps(const char *weights, const char *const *in, void *const *out, char *arena) {
 *         ..
 *         {
 *             static const int64_t arg[] = {6400, 4, 64, ..};
 *             void *ptr[3];
 *             ptr[0] = (void *)(uintptr_t)(in[0]);
 *             ptr[1] = (void *)(uintptr_t)(weights + 128);
 *             ptr[2] = (void *)(uintptr_t)((const char *)arena + 16384);
 *             sol_kernel_5e..(ptr, arg, scratch, 0, 100);
 *         }
 *         ..
 *     }
 *     portable_library.c: contexts, memory, errors
 */
#include "deploy/deploy.h"
#include "dfp/dialect.h"
#include "dnn/recurrent.h"
#include "run/bind.h"

#include <string.h>

#define MAX_TEXT ((int64_t)4 << 20) /* bytes of weights as C text; compilers are slow at more */
#define ALIGN 64

bool deploy_has_file(const struct deployment *d) {
    return d->library->weights == SOL_WEIGHTS_FILE || (!d->isa && d->weights_size > MAX_TEXT);
}

size_t deploy_portable_memory(const struct deployment *d) {
    return (size_t)round_up((int64_t)d->binding->arena_size, ALIGN) + d->binding->scratch_size +
           ALIGN;
}

/* ---- Kernels ---- */

/* The text of a kernel is a comment, which lists the fused layers, and a function. */
static void print_kernel(void *text, const struct kernel *kernel) {
    static const char head[] = "void SOL_KERNEL";
    const char *function = strstr(kernel->text, head);
    text_add_raw(text, kernel->text, (size_t)(function - kernel->text));
    text_add(text, "static void %s%s\n", kernel->symbol, function + strlen(head));
}

/* Prints the source of each value of copies. */
static void print_tables(struct deployment *d, struct text *text) {
    for (int i = 0; i < d->program->phase[FORWARD].n; i++) {
        if (d->binding->step[i]->kind != &step_copy) continue;
        const struct copy_table *table = d->binding->step[i]->data;
        const bool has_form = table->form.number;
        char name[32];
        snprintf(name, sizeof name, "sol_base_%d", i);
        deploy_print_numbers(text, name,
                             has_form ? copy_form_numbers(&table->form)
                                      : (int64_t)table->n_outer * table->lanes,
                             has_form ? table->form.number : table->base);
        text_add(text, "\n");
    }
}

/* ---- Weights ---- */

/* Prints values with the padding of a weights file, so that offsets are the same in both. */
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

/* The same as words of 64 bits, for values of other types. */
static void print_words(struct text *text, const void *data, int64_t size) {
    const int64_t n = round_up(size, ALIGN) / 8;
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = 0;
        if (8 * i < size)
            memcpy(&word, (const char *)data + 8 * i, (size_t)min_i64(8, size - 8 * i));
        text_add(text, "%s0x%llxu,", i % 8 ? " " : "\n    ", (unsigned long long)word);
    }
}

/* Are all values of the program floats? */
static bool is_float_only(struct deployment *d) {
    bool is_float = !deploy_needs_types(d);
    for (int i = 0; i < d->program->n_params; i++)
        is_float &= d->program->param[i].dtype == SOL_F32;
    return is_float;
}

static void print_weights(struct deployment *d, struct text *text) {
    const bool is_float = is_float_only(d);
    void (*print)(struct text *text, const void *data, int64_t size) =
        is_float ? print_floats : print_words;
    text_add(text, "static const %s sol_weights[] = {", is_float ? "float" : "uint64_t");
    for (int i = 0; i < d->program->n_packed; i++)
        print(text, d->weights->packed.slot[i], deploy_packed_size(d, i));
    for (int i = 0; i < d->program->n_params; i++)
        if (d->param[i] >= 0) print(text, d->params[i], deploy_param_size(d, i));
    text_add(text, is_float ? "\n    0.0f};\n\n" : "\n    0};\n\n");
}

/* ---- Steps ---- */

/* Prints the base of a pointer. For parameters it is the weights, and *offset is increased by the parameter's offset. */
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
    case BUFFER_PACKED:
        text_add(text, "weights");
        *offset += (int64_t)d->weights->packed.offset[ref->index];
        break;
    case BUFFER_SAVED:
    case BUFFER_CONSTANT:
    case BUFFER_ERROR:
    case BUFFER_NONE: text_add(text, "(const char *)0"); break;
    }
}

/* Prints pointers as a base and an offset in bytes. If the batch is divided, they advance with `first`, the first sample. */
static void print_pointers(struct deployment *d, struct text *text, const struct binding *b, int i,
                           bool divided) {
    const struct step *step = b->step[i];
    text_add(text, "        void *ptr[%d];\n", step->n_ptr ? step->n_ptr : 1);
    for (int p = 0; p < step->n_ptr; p++) {
        int64_t offset = b->ptr_offset[i][p];
        text_add(text, "        ptr[%d] = (void *)(uintptr_t)(", p);
        print_base(d, text, &step->ptr[p], &offset);
        if (offset) text_add(text, " + %lld", (long long)offset);
        if (divided && b->ptr_sample_stride[i][p])
            text_add(text, " + first * %lld", (long long)b->ptr_sample_stride[i][p]);
        text_add(text, ");\n");
    }
}

/* Is it the step of a recurrent layer of f64? */
static bool is_double(const struct step *step) {
    return !size_is(step->arg[RECURRENT_IS_DOUBLE], 0);
}

/* Copies and gathers have arguments for the functions of portable_math.h. */
static void print_arguments(struct text *text, const struct step *step, const int64_t *arg) {
    if (step->kind == &step_copy) {
        const struct copy_table *t = step->data;
        const struct copy_form *f = &t->form;
        const int64_t all[] = {t->n_outer, t->n_pixels, t->lanes, t->pixel_stride, arg[1], arg[2]};
        const int64_t form[] = {f->n_parts, f->n_rows, f->n_columns, f->row_step,
                                arg[1],     arg[2],    t->element,   arg[COPY_N]};
        deploy_print_ints(text, f->number ? COUNT(form) : COUNT(all), f->number ? form : all);
    } else {
        deploy_print_ints(text, step->n_arg, arg);
    }
}

static void print_step(struct deployment *d, struct text *text, const struct binding *b, int i,
                       const struct bound *bound, bool divided) {
    const struct step *step = b->step[i];
    const long long tasks = (long long)bound->n_tasks[i];
    text_add(text, "    {\n        static const int64_t arg[] = ");
    print_arguments(text, step, bound->arg[i]);
    text_add(text, ";\n");
    print_pointers(d, text, b, i, divided);
    const int element =
        step->kind == &step_copy ? ((const struct copy_table *)step->data)->element : 0;
    if (element && ((const struct copy_table *)step->data)->form.number)
        text_add(text, "        sol_copy_form(ptr, arg, sol_base_%d);\n    }\n", i);
    else if (element == 4)
        text_add(text, "        sol_copy(ptr, arg, sol_base_%d, %lld);\n    }\n", i, tasks);
    else if (element)
        text_add(text, "        sol_copy_any(ptr, arg, sol_base_%d, %lld, %d);\n    }\n", i, tasks,
                 element);
    else if (step->kind == &step_gather)
        text_add(text, "        if (sol_gather(ptr, arg, %lld)) return 1;\n    }\n", tasks);
    else if (step->kind == &step_scatter)
        text_add(text, "        if (sol_scatter(ptr, arg)) return 1;\n    }\n");
    else if (step->kind == &step_resample)
        text_add(text, "        if (sol_resample(ptr, arg)) return 1;\n    }\n");
    else if (step->kind == &step_recurrent_plain)
        text_add(text, "        if (sol_recurrent_%s(ptr, arg, 0, %lld)) return 1;\n    }\n",
                 is_double(step) ? "f64" : "f32", tasks);
    else
        text_add(text, "        %s(ptr, arg, scratch, 0, %lld);\n    }\n",
                 ((const struct kernel *)step->data)->symbol, tasks);
}

/* A divided batch becomes a loop over its micro-batches; the steps for the rest follow it (run/micro_batch.h). */
static void print_section(struct deployment *d, struct text *text, const struct binding *b,
                          const struct section *section) {
    const long long batch = (long long)b->symbol[0], micro_batch = (long long)section->micro_batch;
    const bool divided = micro_batch < batch;
    if (divided)
        text_add(text, "    for (first = 0; first + %lld <= %lld; first += %lld) {\n", micro_batch,
                 batch, micro_batch);
    for (int i = section->begin; i < section->end; i++)
        print_step(d, text, b, i, &b->full, divided);
    if (divided) text_add(text, "    }\n");
    if (!divided || batch % micro_batch == 0) return;
    for (int i = section->begin; i < section->end; i++) print_step(d, text, b, i, &b->rest, true);
}

/* There is one thread, whose scratch follows the arena. */
static void print_steps(struct deployment *d, struct text *text, const struct binding *b) {
    text_add(text,
             "static int sol_steps(const char *weights, const char *const *in, void *const *out, "
             "char *arena) {\n    char *scratch = arena + %zu;\n    int64_t first = 0;\n"
             "    (void)weights, (void)in, (void)out, (void)scratch, (void)first;\n",
             (size_t)round_up((int64_t)b->arena_size, ALIGN));
    for (int s = 0; s < b->n_sections; s++) print_section(d, text, b, &b->section[s]);
    text_add(text, "    return 0;\n}\n\n");
}

/* ---- The interface ---- */

/* Prints `at` with NAME_ and FUNC_ at the begin of a word replaced by the library's and the function's name. */
static void print_named(struct deployment *d, struct text *text, const char *at) {
    while (*at) {
        const size_t word =
            strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789");
        const bool is_name = !strncmp(at, "NAME_", 5), is_func = !strncmp(at, "FUNC_", 5);
        if (is_name || is_func) text_add(text, "%s_", is_name ? d->lib : d->func);
        const size_t skip = is_name || is_func ? 5 : 0, n = word ? word : 1;
        text_add_raw(text, at + skip, n - skip);
        at += n;
    }
}

/* Prints rank and dims of every port; size[i] becomes the number of bytes of output i. */
static void print_shapes(struct deployment *d, struct text *text, bool is_output, int64_t *size) {
    const struct sol_program *p = d->program;
    const int n = is_output ? p->n_outputs : p->n_inputs;
    text_add(text, "static const int64_t sol_%s_shape[%d][9] = {\n", is_output ? "output" : "input",
             n + 1);
    for (int i = 0; i < n; i++) {
        const struct sol_port *port = is_output ? &p->output[i] : &p->input[i];
        int64_t shape[1 + SOL_MAX_RANK] = {port->rank};
        deploy_shape(d, is_output, i, shape + 1);
        text_add(text, "    ");
        deploy_print_ints(text, 1 + port->rank, shape);
        text_add(text, ",\n");
        if (!is_output) continue;
        size[i] = size_element(port->dtype);
        for (int r = 0; r < port->rank; r++) size[i] *= shape[1 + r];
    }
    text_add(text, "    {0}};\n");
}

/* Prints the constants that portable_library.c uses. */
static void print_numbers(struct deployment *d, struct text *text) {
    const struct sol_program *p = d->program;
    int64_t size[LIBRARY_MAX_OUTPUTS + 1] = {0};
    const size_t arena = deploy_portable_memory(d);
    text_add(
        text,
        "#define SOL_N_INPUTS %d\n#define SOL_N_OUTPUTS %d\n#define SOL_N_SIZES %d\n#define SOL_ARENA_SIZE %zu\n"
        "#define SOL_WEIGHTS_SIZE ((size_t)%lld)\n\n",
        p->n_inputs, p->n_outputs, p->n_symbols, arena, (long long)d->weights_size);
    print_shapes(d, text, false, size);
    print_shapes(d, text, true, size);
    text_add(text, "static const size_t sol_output_size[] = ");
    deploy_print_ints(text, p->n_outputs + 1, size);
    text_add(text, ";\nstatic const int64_t sol_size[] = ");
    deploy_print_ints(text, p->n_symbols, d->symbols);
    text_add(text, ";\n\n");
}

static void print_expected(struct text *text, const char *lib, const struct library_file *expect) {
    const unsigned char *byte = (const unsigned char *)expect;
    text_add(text,
             "#define SOL_FILE_NAME \"%s.weights\"\nstatic const unsigned char sol_expected[] = {",
             lib);
    for (size_t i = 0; i < sizeof *expect; i++) text_add(text, "%d, ", byte[i]);
    text_add(text, "};\n");
}

static void print_interface(struct deployment *d, struct text *text,
                            const struct library_file *expect) {
    text_add(text, "#define SOL_FILE %d\n#define SOL_STATIC %d\n", deploy_has_file(d),
             d->library->static_memory);
    if (deploy_has_file(d)) {
        text_add_raw(text, deploy_weights_hash, strlen(deploy_weights_hash));
        print_expected(text, d->lib, expect);
    }
    text_add(text, "\n");
    print_named(d, text, deploy_portable_library);
    text_add(text, "\nvoid %s(", d->func);
    deploy_print_arguments(d, text, false);
    text_add(text, ") {\n");
    deploy_print_lists(d, text);
    text_add(text, "    sol_simple((struct %s_context *)ctx, inputs, outputs);\n}\n", d->lib);
}

/* ---- The file ---- */

/* Refuses what portable C does not support, before any file is written. */
static enum sol_status check_steps(const struct deployment *d) {
    const struct step_list *list = &d->program->phase[FORWARD];
    for (int i = 0; i < list->n; i++)
        if (list->at[i].kind != &step_kernel && list->at[i].kind != &step_copy &&
            list->at[i].kind != &step_gather && list->at[i].kind != &step_scatter &&
            list->at[i].kind != &step_resample && list->at[i].kind != &step_recurrent_plain)
            return fail(SOL_EUNSUPPORTED, "%s (%s) cannot be portable C yet", list->at[i].name,
                        list->at[i].layers);
    if (deploy_has_file(d) && d->library->static_memory)
        return fail(
            SOL_EUNSUPPORTED,
            "static memory is for weights in the C text, of at most %lld MiB, these have %lld",
            (long long)(MAX_TEXT >> 20), (long long)(d->weights_size >> 20));
    return d->library->target == SOL_C_SOURCE
               ? SOL_OK
               : fail(SOL_EUNSUPPORTED, "the device \"c\" gives C sources, not libraries");
}

static enum sol_status write_network(struct deployment *d, const struct binding *b,
                                     const struct library_file *expect) {
    struct text text;
    text_init(&text, d->arena);
    deploy_print_named(d, &text,
                       DEPLOY_SOURCE_HEAD "@.h. C99; links with the library of mathematics. */\n"
                                          "#include \"@.h\"\n#include \"@_math.h\"\n\n"
                                          "#include <stddef.h>\n");
    if (!d->library->static_memory)
        text_add(&text, "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    text_add(&text, "\n");
    print_numbers(d, &text);
    if (!deploy_has_file(d)) print_weights(d, &text);
    deploy_visit_kernels(d, print_kernel, &text);
    print_tables(d, &text);
    print_steps(d, &text, b);
    print_interface(d, &text, expect);
    const char *name = arena_printf(d->arena, "%s.c", d->lib);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write_text(d, name, &text);
}

/* Appends the function of recurrent layers of one type, if a step calls it. */
static void add_recurrent(const struct deployment *d, struct text *text, bool of_double) {
    const struct step_list *list = &d->program->phase[FORWARD];
    int i = 0;
    while (i < list->n &&
           (list->at[i].kind != &step_recurrent_plain || is_double(&list->at[i]) != of_double))
        i++;
    if (i == list->n) return;
    text_add(text,
             "\n#define REAL %s\n#define REAL_EXP exp%s\n#define REAL_TANH tanh%s\n"
             "#define RECURRENT_PLAIN sol_recurrent_%s\n",
             of_double ? "double" : "float", of_double ? "" : "f", of_double ? "" : "f",
             of_double ? "f64" : "f32");
    text_add_raw(text, deploy_recurrent, strlen(deploy_recurrent));
    text_add(text, "#undef REAL\n#undef REAL_EXP\n#undef REAL_TANH\n#undef RECURRENT_PLAIN\n");
}

/* portable_math.h, with the text of the file that it includes. */
static void print_math(struct text *text) {
    static const char include[] = "#include \"dfp/scalar.h\"\n", end[] = "*/\n";
    const char *at = strstr(deploy_portable_math, include);
    const char *scalar = strstr(dfp_scalar, end) + strlen(end);
    text_add_raw(text, deploy_portable_math, (size_t)(at - deploy_portable_math));
    text_add_raw(text, scalar, strlen(scalar));
    text_add_raw(text, at + strlen(include), strlen(at + strlen(include)));
}

static enum sol_status write_math(struct deployment *d) {
    const char *name = arena_printf(d->arena, "%s_math.h", d->lib);
    struct text text;
    text_init(&text, d->arena);
    print_math(&text);
    if (deploy_needs_types(d)) text_add_raw(&text, dfp_types, strlen(dfp_types));
    add_recurrent(d, &text, false);
    add_recurrent(d, &text, true);
    VEC_PUSH(d->arena, &d->files, name);
    return deploy_write_text(d, name, &text);
}

enum sol_status deploy_portable(struct deployment *d) {
    struct library_file expect = {0};
    const char *file = arena_printf(d->arena, "%s.weights", d->lib);
    TRY(check_steps(d));
    TRY(write_math(d));
    if (deploy_has_file(d)) {
        VEC_PUSH(d->arena, &d->files, file);
        TRY(deploy_write_weights(d, file, true, &expect));
    }
    TRY(binding_new(d->program, FORWARD, d->symbols, &d->binding));
    TRY(deploy_header(d));
    return write_network(d, d->binding, &expect);
}
