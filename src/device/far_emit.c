/*
 * Steps of far devices, whose memory the host cannot read: each step is a kernel that the device's compiler compiles.
 *
 *   cluster -> device_emit_far -> dfp_emit, or a step of the host as for any device
 *           -> build_step -> device_convert: the step of the host becomes a kernel of step_kernels.h, its tables become constants
 *           -> device_queue_kernel -> device_link
 *
 * So the formulas of arguments are written once, in plan/build*.c and dnn/emit_recurrent.c. A converted step has the same pointers and
 * arguments, and more behind them. The last argument is the number of tasks, which is the same for all of them.
 *
 * Functions of the user and of the frontend (module HOST) stay steps of the host.
 */
#include "device/device.h"
#include "dnn/emit.h"
#include "dnn/recurrent_grad.h"
#include "dnn/step.h"
#include "run/host.h"

#include "device/step_kernels.h"

#include <math.h>
#include <string.h>

/* Tasks of a step: several for each processor of a large device, as some may take longer. */
#define TASKS_OF_STEP 256

EMBED_TEXT(far_step_numbers, EMBED_FILE("src/run/step_numbers.h"));
EMBED_TEXT(far_step_kernels, EMBED_FILE("src/device/step_kernels.h"));
EMBED_TEXT(far_product, EMBED_FILE("src/dnn/product_plain.h"));
EMBED_TEXT(far_recurrent, EMBED_FILE("src/dnn/recurrent_plain.h"));
EMBED_TEXT(far_recurrent_grad, EMBED_FILE("src/dnn/recurrent_grad_plain.h"));

/* ---- Parts of a step ---- */

static void add_pointer(struct build *b, struct step *step, struct buffer_ref pointer) {
    struct buffer_ref *ptr = ARENA_ARRAY(b->arena, struct buffer_ref, step->n_ptr + 1);
    memcpy(ptr, step->ptr, sizeof *ptr * (size_t)step->n_ptr);
    ptr[step->n_ptr++] = pointer;
    step->ptr = ptr;
}

static void add_argument(struct build *b, struct step *step, struct size argument) {
    struct size *arg = ARENA_ARRAY(b->arena, struct size, step->n_arg + 1);
    memcpy(arg, step->arg, sizeof *arg * (size_t)step->n_arg);
    arg[step->n_arg++] = argument;
    step->arg = arg;
}

static void add_number(struct build *b, struct step *step, int64_t number) {
    add_argument(b, step, size_const(number));
}

/* `text` lives as long as the program. The device passes its address, without reading it, to exec_check_words. */
static void add_message(struct build *b, struct step *step, const char *text) {
    ASSERT(step->n_arg < 64);
    step->texts |= UINT64_C(1) << step->n_arg;
    add_number(b, step, (int64_t)(uintptr_t)text);
}

static void add_errors(struct build *b, struct step *step) {
    add_pointer(b, step, (struct buffer_ref){.kind = BUFFER_ERROR});
}

/* Numbers of the program, which are in its memory already. */
static void add_numbers(struct build *b, struct step *step, const int32_t *number, int64_t n) {
    const struct constant constant = {number, (size_t)n * sizeof *number};
    VEC_PUSH(b->keep, &b->constants, constant);
    add_pointer(b, step, (struct buffer_ref){.kind = BUFFER_CONSTANT, .index = b->constants.n - 1});
}

/* The text of a kernel begins with its defines. */
static struct text begin_text(struct build *b, const char *name) {
    struct text text;
    text_init(&text, b->arena);
    text_add(&text, "#define KERNEL_%s\n#define TASKS %d\n#define STATUS %d\n", name, TASKS_OF_STEP,
             SOL_EINDEX);
    text_add_raw(&text, far_step_numbers, strlen(far_step_numbers));
    return text;
}

static void define(struct text *text, const char *name, const char *value) {
    text_add(text, "#define %s %s\n", name, value);
}

static enum sol_status queue_kernel(struct build *b, struct step *step, struct text *text,
                                    int n_tasks, const char *libraries) {
    struct kernel *kernel = ARENA_NEW(b->keep, struct kernel);
    text_add_raw(text, far_step_kernels, strlen(far_step_kernels));
    device_queue_kernel(b, &(struct dfp_parts){.kernel = kernel,
                                               .text = text->at,
                                               .comment = step->layers,
                                               .is_complete = true,
                                               .libraries = libraries});
    add_number(b, step, n_tasks);
    step->kind = &step_kernel;
    step->data = kernel;
    step->is_open = false;
    return SOL_OK;
}

static enum sol_status finish_kernel(struct build *b, struct step *step, struct text *text) {
    return queue_kernel(b, step, text, TASKS_OF_STEP, NULL);
}

/* ---- Copies and updates ---- */

static enum sol_status convert_form(struct build *b, struct step *step,
                                    const struct copy_table *table, struct text *text) {
    const struct copy_form *f = &table->form;
    const int64_t arg[] = {f->n_parts, f->n_rows, f->n_columns,
                           f->kind == COPY_RUNS ? f->n_more / 3 : 0, f->row_step};
    for (int i = 0; i < COUNT(arg); i++) add_number(b, step, arg[i]);
    add_numbers(b, step, f->number, copy_form_numbers(f));
    text_add(text, "#define COPY_NONE (%d - 1)\n", COPY_NONE + 1);
    return finish_kernel(b, step, text);
}

/* A table for open pixels stays as it is: its kernel computes the positions that copy.c adapts a table to. */
static enum sol_status convert_table(struct build *b, struct step *step,
                                     const struct copy_table *table, struct text *text) {
    const int64_t channels = (int64_t)table->n_outer * table->lanes;
    const int64_t arg[] = {channels, table->lanes, table->pixel_stride, table->in_lanes};
    for (int i = 0; i < COUNT(arg); i++) add_number(b, step, arg[i]);
    add_numbers(b, step, table->base, channels);
    return finish_kernel(b, step, text);
}

static enum sol_status convert_copy(struct build *b, struct step *step) {
    const struct copy_table *table = step->data;
    struct text text = begin_text(b, table->form.number ? "FORM" : "TABLE");
    if (step->n_arg == COPY_PIXELS) add_number(b, step, table->n_pixels);
    text_add(&text, "#define ELEMENT uint%d_t\n", 8 * table->element);
    return table->form.number ? convert_form(b, step, table, &text)
                              : convert_table(b, step, table, &text);
}

static enum sol_status convert_update(struct build *b, struct step *step) {
    struct text text = begin_text(b, "UPDATE");
    add_errors(b, step);
    return finish_kernel(b, step, &text);
}

/* ---- Gather ---- */

/* `bytes` of an index. */
static void define_number(struct text *text, struct size bytes) {
    define(text, "NUMBER", size_is(bytes, 8) ? "int64_t" : "int32_t");
}

/* The messages of gather.c. */
static void add_row_messages(struct build *b, struct step *step) {
    const bool is_gather = step->kind == &step_gather;
    add_message(b, step,
                is_gather ? "gather: " ROW_NUMBER_MESSAGE : "scatter_sum: " ROW_NUMBER_MESSAGE);
    add_message(b, step,
                is_gather ? "gather: " ROW_OUTSIDE_MESSAGE : "scatter_sum: " ROW_OUTSIDE_MESSAGE);
    add_errors(b, step);
}

static enum sol_status convert_gather(struct build *b, struct step *step) {
    struct text text = begin_text(b, "GATHER");
    const struct size row = step->arg[GATHER_INNER];
    const bool is_short = size_is_const(row) && size_value(row) <= 16;
    define_number(&text, step->arg[GATHER_INDEX_SIZE]);
    define(&text, "ROW",
           is_short ? arena_printf(b->arena, "%d", (int)size_value(row)) : "arg[GATHER_INNER]");
    add_row_messages(b, step);
    return finish_kernel(b, step, &text);
}

static enum sol_status convert_scatter(struct build *b, struct step *step) {
    struct text text = begin_text(b, "SCATTER");
    const char *type = size_c_type((enum sol_dtype)size_value(step->arg[SCATTER_DTYPE]));
    define_number(&text, step->arg[SCATTER_INDEX_SIZE]);
    define(&text, "REAL", type[0] == 'i' ? arena_printf(b->arena, "u%s", type) : type);
    add_row_messages(b, step);
    return finish_kernel(b, step, &text);
}

static enum sol_status convert_resample(struct build *b, struct step *step) {
    struct text text = begin_text(b, "RESAMPLE");
    define_number(&text, step->arg[RESAMPLE_INDEX_SIZE]);
    for (int i = 0; i < N_WHATS; i++) add_message(b, step, "resample: " TAP_NUMBER_MESSAGE);
    add_errors(b, step);
    return finish_kernel(b, step, &text);
}

/* ---- Products: the step of module DNN ---- */

/* Where the kernel finds pointers and arguments. Behind the step's own are the sizes, unless they are open: then they are there already. */
static void define_positions(struct text *text) {
    text_add(
        text,
        "enum { X = %d, WEIGHT = %d, BIAS = %d, RESIDUAL = %d, SCALE = %d, SHIFT = %d, Y = %d };\n"
        "enum { BATCH = %d, X_STRIDE = %d, Y_STRIDE = %d, SIZES = %d, IMAGES = SIZES + 4, "
        "COLUMNS = SIZES + %d };\n",
        DNN_X, DNN_WEIGHT, DNN_BIAS, DNN_RESIDUAL, DNN_SCALE, DNN_SHIFT, DNN_Y, DNN_BATCH,
        DNN_X_STRIDE, DNN_Y_STRIDE, DNN_N_ARGS, DNN_N_MATRIX);
    text_add(
        text,
        "enum { A_ROW = %d, A_COLUMN = %d, B_ROW = %d, B_COLUMN = %d, Y_ROW = %d, N_ROWS = %d, "
        "DIMS = %d, MAX_DIMS = %d, DIM_FIELDS = %d };\n",
        DNN_A_ROW, DNN_A_COLUMN, DNN_B_ROW, DNN_B_COLUMN, DNN_Y_ROW, DNN_ROWS, DNN_DIMS,
        DNN_MAX_DIMS, DNN_DIM_FIELDS);
}

/* The text of a number that may be infinite. */
static const char *float_text(struct build *b, float v) {
    if (isinf(v)) return v < 0 ? "(-INFINITY)" : "INFINITY";
    return arena_printf(b->arena, "%af", (double)v);
}

static void define_activation(struct build *b, struct text *text, const struct dnn_problem *p) {
    const bool is_clamp = p->act == DNN_ACT_CLAMP;
    if (p->prologue) define(text, "PROLOGUE", float_text(b, p->prologue_min));
    if (p->act == DNN_ACT_NONE) return;
    define(text, "MIN", float_text(b, is_clamp ? p->act_min : 0));
    define(text, "MAX", float_text(b, is_clamp ? p->act_max : INFINITY));
}

static void add_image_sizes(struct build *b, struct step *step, const struct dnn_problem *p) {
    const int side[] = {p->h, p->w, p->oh, p->ow};
    const int more[] = {p->c / p->groups,
                        p->k / p->groups,
                        p->groups,
                        p->kh,
                        p->kw,
                        p->sh,
                        p->sw,
                        p->dh,
                        p->dw,
                        p->pt,
                        p->pl};
    for (int i = 0; i < COUNT(side) && !p->open; i++) add_number(b, step, side[i]);
    for (int i = 0; i < COUNT(more); i++) add_number(b, step, more[i]);
}

/* A linear layer is one product, of x and the transposed weight. */
static void add_matrix_sizes(struct build *b, struct step *step, const struct dnn_problem *p) {
    int64_t linear[DNN_N_MATRIX] = {[DNN_A_ROW] = p->c,
                                    [DNN_A_COLUMN] = 1,
                                    [DNN_B_ROW] = 1,
                                    [DNN_B_COLUMN] = p->c,
                                    [DNN_Y_ROW] = p->k};
    const int64_t *matrix = p->kind == DNN_LINEAR ? linear : p->matrix;
    if (p->open) return;
    for (int i = 0; i < DNN_N_MATRIX; i++) add_number(b, step, matrix[i]);
    add_number(b, step, p->k);
    add_number(b, step, p->c);
}

static enum sol_status convert_product(struct build *b, struct step *step) {
    static const char *const names[] = {"CONV", "MATRIX", "MATRIX", "WEIGHT"};
    const struct dnn_plan *plan = &((const struct dnn_work *)step->data)->plan;
    const struct dnn_problem *p = &plan->problem;
    const struct dnn_impl *impl = plan->impl;
    const bool has_images = p->kind == DNN_CONV || p->kind == DNN_CONV_WEIGHT;
    struct text text = begin_text(b, names[p->kind]);
    define_positions(&text);
    define_activation(b, &text, p);
    if (has_images) add_image_sizes(b, step, p);
    else add_matrix_sizes(b, step, p);
    if (impl->text) define(&text, "LIBRARY", impl->name);
    text_add_raw(&text, far_product, strlen(far_product));
    if (!impl->text) return finish_kernel(b, step, &text);
    text_add_raw(&text, impl->text, strlen(impl->text));
    return queue_kernel(b, step, &text, 1, impl->libraries);
}

/* ---- Recurrent layers ---- */

/* `loops`: the text of the layer, or of its gradient, which needs the numbers of the first, too. */
static enum sol_status convert_loops(struct build *b, struct step *step, const char *loops,
                                     int lengths) {
    const bool is_double = size_is(step->arg[RECURRENT_IS_DOUBLE], 1);
    const int64_t kind = size_value(step->arg[RECURRENT_KIND]);
    struct text text = begin_text(b, "RECURRENT");
    text_add(&text,
             "#include <math.h>\n#include <stdbool.h>\n#include <stdint.h>\n#include <string.h>\n"
             "#define LENGTHS %d\n#define ERRORS %d\n#define RECURRENT_PLAIN run_plain\n"
             "#define dnn_recurrent_gates(kind) %d\n#define dnn_recurrent_columns(kind) %d\n"
             "#define dnn_recurrent_kept(kind) %d\n",
             lengths, step->n_ptr, dnn_recurrent_gates(kind), dnn_recurrent_columns(kind),
             dnn_recurrent_kept(kind));
    if (loops != far_recurrent) text_add_raw(&text, far_recurrent, strlen(far_recurrent));
    define(&text, "REAL", is_double ? "double" : "float");
    define(&text, "REAL_EXP", is_double ? "exp" : "expf");
    define(&text, "REAL_TANH", is_double ? "tanh" : "tanhf");
    text_add_raw(&text, loops, strlen(loops));
    add_message(b, step, arena_printf(b->keep, "%s: %s", step->name, RECURRENT_LENGTH_MESSAGE));
    add_errors(b, step);
    return finish_kernel(b, step, &text);
}

static enum sol_status convert_recurrent(struct build *b, struct step *step) {
    return convert_loops(b, step, far_recurrent, RECURRENT_LENGTHS);
}

static enum sol_status convert_recurrent_grad(struct build *b, struct step *step) {
    return convert_loops(b, step, far_recurrent_grad, RECURRENT_GRAD_LENGTHS);
}

/* ---- The device's functions ---- */

enum sol_status device_convert(struct build *b, struct step *step) {
    static const struct {
        const struct step_kind *kind;
        enum sol_status (*convert)(struct build *b, struct step *step);
    } rows[] = {{&step_copy, convert_copy},
                {&step_update, convert_update},
                {&step_gather, convert_gather},
                {&step_scatter, convert_scatter},
                {&step_resample, convert_resample},
                {&step_dnn, convert_product},
                {&step_recurrent_plain, convert_recurrent},
                {&step_recurrent_grad_plain, convert_recurrent_grad}};
    for (int i = 0; i < COUNT(rows); i++)
        if (rows[i].kind == step->kind) return rows[i].convert(b, step);
    if (step->kind == &step_kernel || step->kind == &step_host || step->kind == &step_custom)
        return SOL_OK;
    return fail(SOL_EBUG, "%s (%s) is a function of the host", step->name, step->layers);
}

static enum sol_status emit_dfp(struct build *b, const struct cluster *cluster) {
    struct dfp_parts parts = {0};
    TRY(dfp_emit(b, cluster, &parts));
    device_queue_kernel(b, &parts);
    return SOL_OK;
}

/* Kernels in C have no instruction set. */
static const struct dnn_isa no_isa;

enum sol_status device_emit_far(struct build *b, const struct cluster *cluster) {
    switch (cluster->module) {
    case MODULE_DFP: return emit_dfp(b, cluster);
    case MODULE_COPY: return build_copy(b, cluster);
    case MODULE_GATHER: return build_gather(b, cluster);
    case MODULE_RECURRENT: return dnn_emit_recurrent(b, cluster, NULL);
    case MODULE_HOST: return build_host(b, cluster);
    case MODULE_DNN: return dnn_emit(b, cluster, &no_isa, NULL, NULL);
    case MODULE_ATTENTION: /* none: such devices have no `computes` */
    case MODULE_VIEW: break;
    }
    return SOL_OK;
}
