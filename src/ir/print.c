/*
 * Prints a model in its text form, which docs/ir.md defines; text.c reads it.
 *
 * Invariant: tensors are numbered in the order of the text, so that printing, parsing and printing again gives the same text.
 */
#include "ir/ir.h"

#include <inttypes.h>

static const char *escape_quote(char byte) {
    return byte == '"' ? "\\\"" : byte == '\\' ? "\\\\" : NULL;
}

/* A name in quotes. Bytes that terminals or editors would not keep become \xNN. */
static void print_name(struct text *text, const char *name) {
    text_add(text, "\"");
    text_add_escaped(text, name, escape_quote);
    text_add(text, "\"");
}

void ir_print_shape(struct text *text, const struct tensor *t) {
    text_add(text, "%s[", size_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++) {
        if (i) text_add(text, ",");
        size_print(text, t->dim[i]);
    }
    text_add(text, "]");
}

/* Tensors are numbered in the order of the text, so that printing and parsing again gives the same text. */
static int *number_tensors(struct arena *arena, const struct model *m) {
    int *number = ARENA_ARRAY(arena, int, m->n_tensors + 1);
    for (int i = 0, n = 0; i < m->layers.n; i++)
        for (int k = 0; k < m->layers.at[i]->n_out; k++) number[m->layers.at[i]->out[k]->id] = n++;
    return number;
}

/* " @0 f32[$0,8] i64[$0]": the number of the host, and the outputs' types. */
static void print_host(struct text *text, const struct layer *l) {
    text_add(text, " @%" PRId64, l->attr.host);
    for (int i = 0; i < l->n_out; i++) {
        text_add(text, " ");
        ir_print_shape(text, l->out[i]);
    }
}

static void print_layer(struct text *text, const struct layer *l, const int *number) {
    for (int i = 0; i < l->n_out; i++)
        text_add(text, i ? ", %%%d" : "  %%%d", number[l->out[i]->id]);
    text_add(text, " = %s", layer_infos[l->kind].name);
    if (l->kind == LAYER_host) print_host(text, l);
    if (l->kind == LAYER_input || l->kind == LAYER_param) {
        text_add(text, " ");
        ir_print_shape(text, l->out[0]);
        text_add(text, " ");
        print_name(text, l->out[0]->name);
        if (l->out[0]->phase == BACKWARD) text_add(text, " backward");
        if (l->out[0]->is_trained) text_add(text, " trained");
    }
    for (int i = 0; i < l->n_in; i++) text_add(text, " %%%d", number[l->in[i]->id]);
    ir_print_attr(text, &layer_infos[l->kind], &l->attr);
    if (l->origin) {
        text_add(text, " # ");
        print_name(text, l->origin);
    }
    text_add(text, "\n");
}

static void print_symbols(struct text *text, const struct model *m) {
    for (int i = 0; i < m->n_symbols; i++) {
        text_add(text, "  symbol $%d ", i);
        print_name(text, m->symbol[i]);
        if (m->quotients.multiple[i] > 1)
            text_add(text, " multiple=%" PRId64, m->quotients.multiple[i]);
        if (m->quotients.least[i] > 0) text_add(text, " least=%" PRId64, m->quotients.least[i]);
        text_add(text, "\n");
    }
    for (int i = 0; i < m->quotients.n; i++) {
        text_add(text, "  symbol $%d = floor((", SIZE_FREE + i);
        size_print(text, m->quotients.at[i].numerator);
        text_add(text, ")/%" PRId64 ")\n", m->quotients.at[i].divisor);
    }
}

void ir_print(struct text *text, const struct model *m) {
    const int *number = number_tensors(text->arena, m);
    text_add(text, "model ");
    print_name(text, m->name);
    text_add(text, " {\n");
    print_symbols(text, m);
    for (int i = 0; i < m->hosts.n; i++) {
        text_add(text, "  host @%d ", i);
        print_name(text, m->hosts.at[i].name);
        text_add(text, "\n");
    }
    for (int i = 0; i < m->layers.n; i++) print_layer(text, m->layers.at[i], number);
    for (int i = 0; i < m->outputs.n; i++) {
        text_add(text, "  output %%%d ", number[m->outputs.at[i]->id]);
        print_name(text, m->output_names.at[i]);
        text_add(text, m->output_phases.at[i] == BACKWARD ? " backward\n" : "\n");
    }
    for (int i = 0; i < m->updates.n; i++)
        text_add(text, "  update %%%d %%%d\n", number[m->updates.at[i].param->id],
                 number[m->updates.at[i].value->id]);
    text_add(text, "}\n");
}
