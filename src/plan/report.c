/*
 * Prints the plan: lines of the text report, and a Graphviz graph with a box per cluster, colored by module.
 *
 *   plan -> [this file] -> build->report, program->dot
 */
#include "plan/build.h"

#include <string.h>

static const char *const module_names[] = {"DFP",       "DNN",       "copy", "gather",
                                           "recurrent", "attention", "host", "view"};
static const char *const module_colours[] = {"#cfe8cf", "#cfdcf0", "#f0e0c8", "#f0e0c8",
                                             "#cfdcf0", "#cfdcf0", "#f0cfd6", "#eeeeee"};

static const struct cluster *epilogue_of(const struct cluster *cluster) {
    return cluster->dnn ? cluster->dnn->epilogue : NULL;
}

void plan_report(struct build *b) {
    const struct cluster *cluster = b->cluster;
    text_add(&b->report, "cluster %d, %s%s: %s\n", cluster->id, module_names[cluster->module],
             phase_is_prepack(cluster->phase) ? " (once per version of the weights)" : "",
             build_describe(b, cluster));
    b->cluster_begin = b->report.size;
    const struct cluster *epilogue = epilogue_of(cluster);
    if (!epilogue) return;
    text_add(&b->report, "    generated epilogue:");
    for (int i = 0; i < epilogue->layers.n; i++)
        text_add(&b->report, " %s", layer_infos[epilogue->layers.at[i]->kind].name);
    text_add(&b->report, "\n");
}

/* Escapes text for a string of Graphviz: quotes and backslashes get a backslash, control characters become spaces. */
static void add_escaped(struct text *text, const char *string) {
    for (; *string; string++) {
        if (*string == '"' || *string == '\\') text_add(text, "\\%c", *string);
        else text_add(text, "%c", (unsigned char)*string < ' ' ? ' ' : *string);
    }
}

static void add_layer(struct text *text, const struct model *m, const struct layer *l) {
    struct text shape;
    text_init(&shape, text->arena);
    ir_print_shape(&shape, l->out[0]);
    text_add(text, "    l%d [label=\"", l->id);
    add_escaped(text, build_kind_name(m, l));
    text_add(text, "\\n");
    add_escaped(text, shape.at);
    if (l->out[0]->layout.block) text_add(text, " /%d", l->out[0]->layout.block);
    text_add(text, "\"];\n");
}

static void begin_box(struct text *text, const char *prefix, int id, enum module module) {
    text_add(text, "  subgraph cluster_%s%d {\n    label=\"%s\"; style=filled; color=\"%s\";\n",
             prefix, id, module_names[module], module_colours[module]);
}

/* A generated epilogue is a DFP box inside the cluster's box; its layers are the cluster's last ones. */
static void add_cluster(struct text *text, const struct model *m, const struct cluster *cluster) {
    const struct cluster *epilogue = epilogue_of(cluster);
    int n_own = cluster->layers.n - (epilogue ? epilogue->layers.n : 0);
    begin_box(text, "", cluster->id, cluster->module);
    for (int i = 0; i < n_own; i++) add_layer(text, m, cluster->layers.at[i]);
    if (epilogue) begin_box(text, "epilogue_", cluster->id, MODULE_DFP);
    for (int i = n_own; i < cluster->layers.n; i++) add_layer(text, m, cluster->layers.at[i]);
    text_add(text, epilogue ? "  }\n  }\n" : "  }\n");
}

static void add_edges(struct text *text, const struct layer *l) {
    for (int i = 0; i < l->n_in; i++) {
        const struct layer *from = l->in[i]->producer;
        if (ir_is_constant(l->in[i])) continue;
        text_add(text, "  l%d -> l%d;\n", from->id, l->id);
    }
}

/* Omits prepack clusters: there are many, and they would hide the network. */
const char *plan_dot(struct build *b) {
    struct text text;
    text_init(&text, b->keep);
    text_add(
        &text,
        "digraph model {\n  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=sans];\n");
    const struct model *m = b->plan->model;
    for (int i = 0; i < m->inputs.n; i++) add_layer(&text, m, m->inputs.at[i]->producer);
    for (int i = 0; i < b->plan->clusters.n; i++) {
        const struct cluster *cluster = b->plan->clusters.at[i];
        if (phase_is_prepack(cluster->phase)) continue;
        add_cluster(&text, m, cluster);
        for (int k = 0; k < cluster->layers.n; k++) add_edges(&text, cluster->layers.at[k]);
    }
    text_add(&text, "}\n");
    return text.at;
}
