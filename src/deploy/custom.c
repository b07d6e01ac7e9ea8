/*
 * Custom layers in native libraries: their C text becomes files of the library, and their steps data that calls their functions.
 *
 *   struct sol_custom -> a file custom_0, with the functions named sol_custom_0_swirl, sol_custom_0_swirl_tasks
 *   struct host_step  -> constants, which library.c passes to run/host.c
 *
 * The names have the number of the code: two layers may have functions of the same name, and a function may have a name that is
 * the library's own, too.
 */
#include "deploy/deploy.h"
#include "ir/ir.h"
#include "plan/build.h"
#include "run/host.h"

#include <string.h>

/* ---- Which layers ---- */

/* A library has no frontend whose functions it could call. */
static enum sol_status check_frontend(const struct deployment *d, const struct model *m) {
    struct text text;
    int n = 0;
    text_init(&text, d->arena);
    for (int i = 0; i < m->layers.n; i++) {
        const struct layer *l = m->layers.at[i];
        if (l->kind != LAYER_host) continue;
        const struct host_function *function = m->hosts.at[l->attr.host].function;
        if (function && function->custom) continue;
        text_add(&text, "%s%s", n++ ? ", " : "", build_host_name(d->arena, m, l));
    }
    return n ? fail(SOL_EUNSUPPORTED, "a library cannot compute nodes of the frontend (%d): %s", n,
                    text.at)
             : SOL_OK;
}

enum sol_status deploy_check_hosts(const struct deployment *d, const struct model *m) {
    TRY(check_frontend(d, m));
    for (int i = 0; i < m->layers.n; i++) {
        const struct layer *l = m->layers.at[i];
        if (l->kind != LAYER_host) continue;
        const char *name = build_host_name(d->arena, m, l);
        if (!d->isa)
            return fail(SOL_EUNSUPPORTED, "portable C cannot contain the custom layer %s", name);
        if (!m->hosts.at[l->attr.host].function->custom->code->text)
            return fail(SOL_EUNSUPPORTED,
                        "the custom layer %s has no C source, only compiled code: a library cannot "
                        "contain it",
                        name);
    }
    return SOL_OK;
}

static const struct sol_custom *code_of(const struct step *step) {
    return ((const struct host_step *)step->data)->function->custom->code;
}

void deploy_find_customs(struct deployment *d) {
    const struct step_list *steps = &d->program->phase[FORWARD];
    for (int i = 0; i < steps->n; i++)
        if (deploy_is_custom(&steps->at[i]) &&
            deploy_custom_number(d, &steps->at[i]) == d->customs.n)
            VEC_PUSH(d->arena, &d->customs, code_of(&steps->at[i]));
}

int deploy_custom_number(const struct deployment *d, const struct step *step) {
    int i = 0;
    while (i < d->customs.n && d->customs.at[i] != code_of(step)) i++;
    return i;
}

/* ---- Files ---- */

enum sol_status deploy_write_custom(struct deployment *d, int i, const char *name) {
    const struct sol_custom *code = d->customs.at[i];
    struct text text;
    text_init(&text, d->arena);
    text_add(&text, "#define %s sol_custom_%d_%s\n#define %s_tasks sol_custom_%d_%s_tasks\n",
             code->name, i, code->name, code->name, i, code->name);
    text_add_raw(&text, code->text, strlen(code->text));
    return deploy_write_text(d, name, &text);
}

/* ---- Data of steps ---- */

/* Hexadecimal floats are exact; infinities and NaN have no literals. */
static void print_float(struct text *text, double value) {
    if (value != value) text_add(text, "__builtin_nan(\"\"), ");
    else if (value - value != 0) text_add(text, "%s__builtin_inf(), ", value < 0 ? "-" : "");
    else text_add(text, "%a, ", value);
}

static void print_attribute(struct text *text, const struct sol_attribute *a) {
    text_add(text, " {.name = ");
    deploy_print_string(text, a->name);
    text_add(text, ", .n = %lld, ", (long long)a->n);
    if (a->text) {
        text_add(text, ".text = ");
        deploy_print_string(text, a->text);
    } else if (a->ints) {
        text_add(text, ".ints = (const int64_t[])");
        deploy_print_ints(text, a->n, a->ints);
    } else {
        text_add(text, ".floats = (const double[]){");
        for (int64_t i = 0; i < a->n; i++) print_float(text, a->floats[i]);
        text_add(text, "0}");
    }
    text_add(text, "},\n");
}

/* Types and ranks only; the dims of a call are arguments of the step. */
static void print_tensors(struct text *text, const struct host_step *host, int step) {
    text_add(text, "static const struct sol_host_tensor tensor_%d[] = {\n", step);
    for (int i = 0; i < host->n_in + host->n_out; i++)
        text_add(text, " {NULL, %d, %d, {0}},\n", (int)host->tensor[i].dtype, host->tensor[i].rank);
    text_add(text, "};\n");
}

void deploy_print_custom(struct deployment *d, struct text *text, const struct step *step, int i) {
    const struct host_step *host = step->data;
    const struct host_custom *custom = host->function->custom;
    const char *symbol = arena_printf(d->arena, "sol_custom_%d_%s", deploy_custom_number(d, step),
                                      custom->code->name);
    text_add(text, "extern sol_custom_run %s;\n", symbol);
    if (custom->tasks) text_add(text, "extern sol_custom_tasks %s_tasks;\n", symbol);
    text_add(text, "static const struct sol_attribute attribute_%d[] = {\n", i);
    for (int a = 0; a < custom->n_attributes; a++) print_attribute(text, &custom->attribute[a]);
    text_add(text, " {0}};\nstatic struct host_custom custom_%d = {.run = %s, ", i, symbol);
    if (custom->tasks) text_add(text, ".tasks = %s_tasks, ", symbol);
    text_add(text, ".n_attributes = %d, .attribute = attribute_%d};\n", custom->n_attributes, i);
    text_add(text,
             "static struct host_function function_%d = {.n_refs = 1, .run = host_run_custom, "
             ".user = &custom_%d, .custom = &custom_%d};\n",
             i, i, i);
    print_tensors(text, host, i);
    text_add(text,
             "static const struct host_step data_%d = {&function_%d, \"%s\", %d, %d, %d, "
             "tensor_%d};\n",
             i, i, custom->code->name, host->n_in, host->n_out, host->n_symbols, i);
}
