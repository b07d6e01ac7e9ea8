/*
 * Prints a program as C constants, which library.c expands into the program that the runtime runs.
 *
 * Data that a step points to is printed before it: kernels, the work of DNN steps, the tables of copies. Names contain the number
 * of the step, so they do not depend on names of the model. The tables are compact, since they are most of the size of a large
 * network.
 *
 * A convolution with relu behind it becomes, shortened:
 *
 *     static const struct kernel k_sol_kernel_5e.. = {.compiled = sol_kernel_5e..};
 *     static const struct dnn_work data_0 = {.plan = {.impl = &dnn_direct, .kernels = &kernels, .param = {224, ..},
 *                                            .problem = {.kind = 0, .c = 3, .k = 64, ..}}, .finish = &k_sol_kernel_5e..};
 *     static const struct library_step run_steps[] = {{.kind = &step_dnn, .data = &data_0, .n_ptr = 9, ..}, ..};
 *     static const struct library_ref run_ptr[] = {{0, 0, 1, 602112}, ..};     x is input 0, its samples are 602112 bytes apart
 *     static const uint32_t run_arg[] = {1, 2, 3, ..};                          the batch, strides: indices into `sizes`
 *     static const struct size sizes[] = {{0}, {1, 0, {{1, {{0, 1}}}}}, ..};  0, the batch, ..
 */
#include "deploy/deploy.h"
#include "dfp/dfp.h"
#include "dnn/attention.h"
#include "dnn/recurrent.h"
#include "dnn/step.h"
#include "run/far.h"
#include "run/host.h"

#include <string.h>

/* ---- Values ---- */

/* All characters except a few safe ones are printed in octal with three digits, so that a digit after them is not part of the
 * escape, and trigraphs cannot occur. */
void deploy_print_string(struct text *text, const char *string) {
    text_add(text, "\"");
    for (const char *at = string; *at; at++) {
        const unsigned char c = (unsigned char)*at;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr(" _-.,:;+*/()[]<>=@#", c));
        text_add(text, plain ? "%c" : "\\%03o", c);
    }
    text_add(text, "\"");
}

/* INT64_MIN has no literal in C. */
void deploy_print_int(struct text *text, int64_t value) {
    bool small = value > -INT32_MAX && value < INT32_MAX;
    if (value == INT64_MIN) text_add(text, "(-INT64_MAX - 1)");
    else text_add(text, small ? "%lld" : "INT64_C(%lld)", (long long)value);
}

void deploy_print_ints(struct text *text, int64_t n, const int64_t *value) {
    text_add(text, "{");
    for (int64_t i = 0; i < n; i++) {
        if (i) text_add(text, i % 16 ? ", " : ",\n ");
        deploy_print_int(text, value[i]);
    }
    text_add(text, n ? "}" : "0}");
}

/* Prints {n, 0, {{coef, {{symbol, power}, ..}}, ..}}; zero is {0}. */
static void print_size(struct text *text, const struct size *size) {
    text_add(text, "{%d", size->n);
    if (size->n) text_add(text, ", 0, {");
    for (int i = 0; i < size->n; i++) {
        const struct size_term *term = &size->term[i];
        text_add(text, "%s{", i ? ", " : "");
        deploy_print_int(text, term->coef);
        text_add(text, ", {");
        for (int f = 0; f < SIZE_FACTORS && (!f || term->factor[f].power); f++)
            text_add(text, "%s{%d, %d}", f ? ", " : "", term->factor[f].symbol,
                     term->factor[f].power);
        text_add(text, "}}");
    }
    text_add(text, size->n ? "}}" : "}");
}

/* ---- Which steps ---- */

/* A library with packed parameters has no prepack steps. */
int deploy_n_lists(const struct deployment *d) { return d->is_packed ? 1 : 2; }

const struct step_list *deploy_list(const struct deployment *d, int i) {
    return i ? &d->program->phase[PREPACK] : &d->program->phase[FORWARD];
}

bool deploy_is_custom(const struct step *step) {
    return step->kind == &step_host || step->kind == &step_custom;
}

bool deploy_is_recurrent(const struct step *step) {
    return step->kind == &step_recurrent || step->kind == &step_recurrent_plain ||
           step->kind == &step_recurrent_pack;
}

/* The generated kernel that a step calls; NULL: none. */
static const struct kernel *kernel_of(const struct step *step) {
    if (step->kind == &step_kernel) return step->data;
    if (step->kind == &step_dnn) return ((const struct dnn_work *)step->data)->finish;
    return NULL;
}

/* Of the function that computes it, where that is loaded or linked. */
static const char *name_of(const struct kernel *kernel) {
    return kernel->far ? kernel->far->symbol : kernel->symbol;
}

/* Does a step before step `end` of list `list` use a kernel with this name? */
static bool is_known(const struct deployment *d, int list, int end, const char *symbol) {
    for (int l = 0; l <= list; l++) {
        const struct step_list *steps = deploy_list(d, l);
        for (int i = 0; i < (l < list ? steps->n : end); i++) {
            const struct kernel *kernel = kernel_of(&steps->at[i]);
            if (kernel && !strcmp(name_of(kernel), symbol)) return true;
        }
    }
    return false;
}

/* The name of a kernel is a hash of its text, so equal kernels of different layers are one function. */
void deploy_visit_kernels(struct deployment *d,
                          void (*visit)(void *user, const struct kernel *kernel), void *user) {
    for (int l = 0; l < deploy_n_lists(d); l++) {
        const struct step_list *steps = deploy_list(d, l);
        for (int i = 0; i < steps->n; i++) {
            const struct kernel *kernel = kernel_of(&steps->at[i]);
            if (kernel && !is_known(d, l, i, name_of(kernel))) visit(user, kernel);
        }
    }
}

/* ---- Kernels ---- */

/* The function in the text has the name SOL_KERNEL. */
static void print_kernel_text(void *text, const struct kernel *kernel) {
    text_add(text, "#undef SOL_KERNEL\n#define SOL_KERNEL %s\n", kernel->symbol);
    text_add_raw(text, kernel->text, strlen(kernel->text));
}

void deploy_print_kernels(struct deployment *d, struct text *text) {
    deploy_visit_kernels(d, print_kernel_text, text);
}

bool deploy_needs_types(struct deployment *d) {
    struct text text;
    text_init(&text, d->arena);
    deploy_print_kernels(d, &text);
    return text.at && strstr(text.at, DFP_NEEDS_TYPES);
}

static void print_kernel(void *text, const struct kernel *kernel) {
    text_add(text,
             "extern void %s(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, "
             "int64_t end);\nstatic const struct kernel k_%s = {.compiled = %s};\n",
             kernel->symbol, kernel->symbol, kernel->symbol);
}

/* ---- Data of steps ---- */

/* Prints the plan of a DNN step. Its implementation and kernels are names, which the linker resolves. */
static void print_work(struct text *text, const struct dnn_work *work, int step) {
    text_add(text, "static const struct dnn_work data_%d = {.plan =", step);
    dnn_print_plan(text, &work->plan);
    if (work->finish) text_add(text, ", .finish = &k_%s", work->finish->symbol);
    text_add(text, "};\n");
}

void deploy_print_numbers(struct text *text, const char *name, int64_t n, const int32_t *number) {
    text_add(text, "static const int32_t %s[] = {", name);
    for (int64_t i = 0; i < n; i++)
        if (number[i] == INT32_MIN) text_add(text, "%sINT32_MIN,", i % 16 ? "" : "\n");
        else text_add(text, i % 16 ? "%d," : "\n%d,", number[i]);
    text_add(text, "0};\n");
}

static void print_form(struct text *text, const struct copy_form *f, const char *base) {
    text_add(
        text,
        ".form = {.kind = %d, .has_holes = %d, .is_regular = %d, .n_parts = %d, .n_rows = %d, .n_columns = %d, .n_more = %d, .block = %d, "
        ".row_step = %lld, .number = %s}",
        (int)f->kind, f->has_holes, f->is_regular, f->n_parts, f->n_rows, f->n_columns, f->n_more,
        f->block, (long long)f->row_step, base);
}

/* Prints the source of each value of a sample. Only these tables grow with the tensors of the network. */
static void print_table(struct text *text, const struct copy_table *table, const char *list,
                        int step) {
    const bool has_form = table->form.number;
    const int64_t n =
        has_form ? copy_form_numbers(&table->form) : (int64_t)table->n_outer * table->lanes;
    char base[64];
    snprintf(base, sizeof base, "%s_base_%d", list, step);
    deploy_print_numbers(text, base, n, has_form ? table->form.number : table->base);
    text_add(text, "static const struct copy_table %s_data_%d = {.element = %d, ", list, step,
             table->element);
    if (has_form) print_form(text, &table->form, base);
    else
        text_add(text,
                 ".n_outer = %d, .n_pixels = %d, .lanes = %d, .pixel_stride = %lld, .base = %s, "
                 ".in_lanes = %d",
                 table->n_outer, table->n_pixels, table->lanes, (long long)table->pixel_stride,
                 base, table->in_lanes);
    text_add(text, "};\n");
}

/* The number of the step that reads the packed parameters of `plan`; -1: there is none. */
static int find_user(const struct step_list *steps, const struct dnn_plan *plan) {
    for (int i = 0; i < steps->n; i++)
        if (steps->at[i].kind == &step_dnn &&
            &((const struct dnn_work *)steps->at[i].data)->plan == plan)
            return i;
    return -1;
}

/* Prints the constants that steps point to. */
static void print_data(struct text *text, struct deployment *d, const struct step_list *list,
                       const char *name) {
    for (int i = 0; i < list->n; i++) {
        const struct step *step = &list->at[i];
        if (step->kind == &step_dnn) print_work(text, step->data, i);
        else if (step->kind == &step_copy) print_table(text, step->data, name, i);
        else if (deploy_is_custom(step)) deploy_print_custom(d, text, step, i);
    }
}

/* ---- Sizes ---- */

/* The index of a size in the table of all different sizes; the size 0 has index 0. */
static int number_of(struct deployment *d, const struct size *size) {
    if (!d->sizes.n) VEC_PUSH(d->arena, &d->sizes, size_const(0));
    for (int i = 0; i < d->sizes.n; i++)
        if (size_equal(d->sizes.at[i], *size)) return i;
    VEC_PUSH(d->arena, &d->sizes, *size);
    return d->sizes.n - 1;
}

/* An argument may be a text, which has another address in the library. */
static int number_of_argument(struct deployment *d, const struct step *step, int i) {
    const int number = number_of(d, &step->arg[i]);
    if (step->texts >> i & 1) VEC_PUSH(d->arena, &d->texts, number);
    return number;
}

static bool is_text(const struct deployment *d, int number) {
    for (int i = 0; i < d->texts.n; i++)
        if (d->texts.at[i] == number) return true;
    return false;
}

/* Prints the address of the text whose address the size is. */
static void print_address(struct text *text, const struct size *size) {
    text_add(text, "{1, 0, {{(int64_t)(uintptr_t)");
    deploy_print_string(text, (const char *)(uintptr_t)size_value(*size));
    text_add(text, ", {{0, 0}}}}}");
}

static void print_sizes(struct deployment *d, struct text *text) {
    text_add(text, "static const struct size sizes[] = {\n");
    for (int i = 0; i < d->sizes.n; i++) {
        text_add(text, " ");
        if (is_text(d, i)) print_address(text, &d->sizes.at[i]);
        else print_size(text, &d->sizes.at[i]);
        text_add(text, ",\n");
    }
    text_add(text, d->sizes.n ? "};\n" : " {0}};\n");
}

/* ---- Steps ---- */

/* The constants that the step points to: those that print_data has printed, or the table of kernels. */
static void print_data_name(struct text *text, const struct deployment *d, const struct step *step,
                            const char *list, int i) {
    if (step->kind == &step_kernel) text_add(text, "&k_%s", name_of(step->data));
    else if (step->kind == &step_copy) text_add(text, "&%s_data_%d", list, i);
    else if (step->kind == &step_dnn || deploy_is_custom(step)) text_add(text, "&data_%d", i);
    else if (step->kind == &step_dnn_pack)
        text_add(text, "&data_%d.plan", find_user(&d->program->phase[FORWARD], step->data));
    else if (step->kind == &step_attention || deploy_is_recurrent(step)) text_add(text, "&kernels");
    else text_add(text, "0");
}

static void print_steps(struct text *text, struct deployment *d, const struct step_list *list,
                        const char *name) {
    text_add(text, "static const struct library_step %s_steps[] = {\n", name);
    for (int i = 0; i < list->n; i++) {
        const struct step *step = &list->at[i];
        text_add(text, " {");
        text_add(text, ".kind = &step_%s, .data = ", step->kind->name);
        print_data_name(text, d, step, name, i);
        text_add(
            text,
            ", .n_ptr = %d, .n_arg = %d, .scratch_size = %zu, .by_sample = %d, .bytes = %d%s},\n",
            step->n_ptr, step->n_arg, step->scratch_size, step->by_sample,
            number_of(d, &step->bytes), step->is_open ? ", .is_open = 1" : "");
    }
    text_add(text, list->n ? "};\n" : " {0}};\n");
}

/* Prints the pointers of all steps as one table, and the arguments as another; library.c reads both step by step. */
static void print_pointers(struct text *text, struct deployment *d, const struct step_list *list,
                           const char *name) {
    text_add(text, "static const struct library_ref %s_ptr[] = {\n", name);
    for (int i = 0; i < list->n; i++)
        for (int p = 0; p < list->at[i].n_ptr; p++) {
            const struct buffer_ref *ref = &list->at[i].ptr[p];
            int stride = ref->sample_stride ? number_of(d, ref->sample_stride) : 0;
            text_add(text, " {%d, %d, %d, %d},\n", number_of(d, &ref->offset), ref->index,
                     (int)ref->kind, stride);
        }
    text_add(text, " {0}};\nstatic const uint32_t %s_arg[] = {", name);
    for (int i = 0; i < list->n; i++) {
        text_add(text, "\n");
        for (int a = 0; a < list->at[i].n_arg; a++)
            text_add(text, " %d,", number_of_argument(d, &list->at[i], a));
    }
    text_add(text, "\n 0};\n");
}

static void print_slots(struct text *text, struct deployment *d, const char *name,
                        const struct slot *slot, int n) {
    text_add(text, "static const struct library_slot %s[] = {\n", name);
    for (int i = 0; i < n; i++)
        text_add(text, " {%d, %d, %d},\n", number_of(d, &slot[i].size), slot[i].first,
                 slot[i].last);
    text_add(text, n ? "};\n" : " {0}};\n");
}

static void print_list(struct text *text, struct deployment *d, const struct step_list *list,
                       const char *name) {
    print_data(text, d, list, name);
    print_steps(text, d, list, name);
    print_pointers(text, d, list, name);
    print_slots(text, d, arena_printf(d->arena, "%s_slots", name), list->slot, list->n_slots);
    text_add(text, "#define %s_list {%d, %d, %s_steps, %s_slots, %s_ptr, %s_arg}\n", name, list->n,
             list->n_slots, name, name, name, name);
}

/* ---- The program ---- */

/* The names of inputs and outputs are for messages. They are printed as strings only, never as code. */
static void print_ports(struct text *text, const char *name, const struct sol_port *port, int n) {
    text_add(text, "static struct sol_port %s[] = {\n", name);
    for (int i = 0; i < n; i++) {
        text_add(text, " {");
        deploy_print_string(text, port[i].name);
        text_add(text, ", %d, %d, ", (int)port[i].dtype, port[i].rank);
        deploy_print_ints(text, port[i].rank, port[i].dim);
        text_add(text, "},\n");
    }
    text_add(text, n ? "};\n" : " {0}};\n");
}

/* Prints the dims of ports, which are formulas of the open sizes. */
static void print_port_dims(struct text *text, const char *name, const struct sol_port *port,
                            struct size (*dim)[SOL_MAX_RANK], int n) {
    text_add(text, "static struct size %s[][SOL_MAX_RANK] = {\n", name);
    for (int i = 0; i < n; i++) {
        text_add(text, " {");
        for (int r = 0; r < port[i].rank; r++) {
            if (r) text_add(text, ", ");
            print_size(text, &dim[i][r]);
        }
        text_add(text, port[i].rank ? "},\n" : "{0}},\n");
    }
    text_add(text, n ? "};\n" : " {{0}}};\n");
}

/* Prints the derived symbols and the conditions of a call. */
static void print_formulas(struct text *text, const struct formulas *f) {
    text_add(text, "static const struct size_quotient quotients[] = {\n");
    for (int i = 0; i < f->n_quotients; i++) {
        text_add(text, " {");
        print_size(text, &f->quotient[i].numerator);
        text_add(text, ", ");
        deploy_print_int(text, f->quotient[i].divisor);
        text_add(text, "},\n");
    }
    text_add(text, " {{0}, 1}};\nstatic const struct condition conditions[] = {\n");
    for (int i = 0; i < f->n_conditions; i++) {
        const struct condition *c = &f->condition[i];
        text_add(text, " {.value = ");
        print_size(text, &c->value);
        text_add(text, ", .min = %lld, .what = ", (long long)c->min);
        deploy_print_string(text, c->what);
        text_add(text, ", .rank = %d, .shape = {", c->rank);
        for (int d = 0; d < c->rank; d++) {
            if (d) text_add(text, ", ");
            print_size(text, &c->shape[d]);
        }
        text_add(text, c->rank ? "}},\n" : "{0}}},\n");
    }
    text_add(text, " {.min = 0}};\n");
}

/* Names and shapes of parameters are not needed at run time, so their ports are empty; but a far device copies parameters, and inputs. */
static void print_copied(struct deployment *d, struct text *text) {
    const struct sol_program *p = d->program;
    if (!d->far) {
        text_add(text, "static struct sol_port params[%d];\n", p->n_params + 1);
        return;
    }
    print_ports(text, "params", p->param, p->n_params);
    print_port_dims(text, "input_dims", p->input, p->input_dim, p->n_inputs);
}

/* Members of the program that only those of far devices have. */
static const char *far_members(struct deployment *d) {
    if (!d->far) return "";
    return arena_printf(d->arena,
                        ".input_dim = input_dims, .n_constants = %d, .constant = constants, "
                        ".runner = &far_runner, .far = &far,\n ",
                        d->program->n_constants);
}

static enum sol_status print_kernels(struct deployment *d, struct text *text) {
    if (d->far) return deploy_print_far(d, text);
    deploy_visit_kernels(d, print_kernel, text);
    return SOL_OK;
}

enum sol_status deploy_print_program(struct deployment *d, struct text *text) {
    const struct sol_program *p = d->program;
    const struct step_list none = {0};
    TRY(print_kernels(d, text));
    print_list(text, d, &p->phase[FORWARD], "run");
    print_list(text, d, d->is_packed ? &none : &p->phase[PREPACK], "pack");
    print_slots(text, d, "packed", p->packed, p->n_packed);
    print_sizes(d, text);
    print_ports(text, "inputs", p->input, p->n_inputs);
    print_ports(text, "outputs", p->output, p->n_outputs);
    print_port_dims(text, "output_dims", p->output, p->output_dim, p->n_outputs);
    print_formulas(text, &p->formulas);
    print_copied(d, text);
    text_add(text,
             "static struct sol_program program = {\n .n_refs = 1, .name = \"\", .n_symbols = %d, "
             ".n_inputs = %d, .n_params = %d, .n_outputs = %d,\n .input = inputs, .param = params, "
             ".output = outputs, .output_dim = output_dims,\n .formulas = {%d, %d, quotients, "
             "conditions}, .portion_cache = %lld, %s.lock = PTHREAD_MUTEX_INITIALIZER};\n",
             p->n_symbols, p->n_inputs, p->n_params, p->n_outputs, p->formulas.n_quotients,
             p->formulas.n_conditions, (long long)p->portion_cache, far_members(d));
    return SOL_OK;
}
