/* The functions that all generators share. */
#include "base/size.h"
#include "gen_parts.h"

#include "ir/ir.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t extents[] = {1, 1, 2, 3, 5, 7, 13, 16, 17, 32, 48, 64};

void gen_start(struct gen *g, struct random *r, const char *name) {
    memset(g, 0, sizeof *g);
    g->random = r;
    g->model = sol_model_new(name);
    g->batch = sol_model_symbol(g->model, "n");
    g->tolerance = 1e-5;
}

int gen_value(struct gen *g, sol_tensor tensor, double size, double low, double error) {
    struct gen_value v = {
        .tensor = tensor, .type = g->type, .size = size, .low = low, .error = error};
    v.rank = sol_model_shape(g->model, tensor, v.dim);
    g->value[g->n] = v;
    return g->n++;
}

static int add_leaf(struct gen *g, enum sol_dtype dtype, bool param, int rank, const int64_t *dim,
                    struct gen_range range) {
    char name[16];
    for (int i = 0; i < rank; i++) param = param && dim[i] >= 0; /* parameters have fixed sizes */
    int at = param ? g->n_params++ : g->n_inputs++;
    double low = (double)range.low, high = (double)range.high;
    snprintf(name, sizeof name, "%c%d", param ? 'w' : 'x', at);
    (param ? g->param : g->input)[at] = range;
    sol_tensor t = param ? sol_model_param(g->model, name, dtype, rank, dim)
                         : sol_model_input(g->model, name, dtype, rank, dim);
    int value = gen_value(g, t, fmax(fabs(low), fabs(high)), low, 0);
    g->value[value].type = dtype;
    return value;
}

int gen_leaf(struct gen *g, bool param, int rank, const int64_t *dim, float low, float high) {
    struct gen_range range = {.low = low, .high = high, .special = g->special};
    return add_leaf(g, g->type, param, rank, dim, range);
}

int gen_numbers(struct gen *g, bool param, int rank, const int64_t *dim, int64_t n) {
    enum sol_dtype dtype = random_one_in(g->random, 2) ? SOL_I64 : SOL_I32;
    struct gen_range range = {.low = (float)-n, .high = (float)(n - 1), .is_index = true};
    return add_leaf(g, dtype, param, rank, dim, range);
}

int gen_positions(struct gen *g, bool param, int rank, const int64_t *dim, int64_t n) {
    struct gen_range range = {.low = 0, .high = (float)(n - 1), .is_index = true};
    return add_leaf(g, SOL_I64, param, rank, dim, range);
}

int gen_scalar(struct gen *g, double value) {
    char text[64];
    snprintf(text, sizeof text, "value=%g dtype=%s", value, size_dtype_name(g->type));
    sol_tensor t = sol_model_layer(g->model, "scalar", 0, NULL, text, NULL);
    return gen_value(g, t, fabs(value), value, 0);
}

int gen_add(struct gen *g, const char *kind, int n_in, const int *in, const char *attributes) {
    sol_tensor tensors[GEN_VALUES];
    for (int i = 0; i < n_in; i++) {
        tensors[i] = g->value[in[i]].tensor;
        g->value[in[i]].readers++;
    }
    const struct gen_value *first = &g->value[in[0]];
    sol_tensor out = sol_model_layer(g->model, kind, n_in, tensors, attributes, NULL);
    int value = gen_value(g, out, first->size, first->low, first->error);
    g->value[value].type = first->type;
    return value;
}

void gen_output(struct gen *g, int value) {
    char name[16];
    g->output_error[g->n_outputs] = g->value[value].error;
    snprintf(name, sizeof name, "y%d", g->n_outputs++);
    sol_model_output(g->model, name, g->value[value].tensor);
    g->value[value].readers++;
    g->error = fmax(g->error, g->value[value].error);
}

int64_t gen_extent(const struct gen *g, int64_t dim) {
    (void)g;
    return dim < 0 ? GEN_BATCH : dim;
}

int64_t gen_elements(const struct gen *g, int value) {
    int64_t n = 1;
    for (int i = 0; i < g->value[value].rank; i++) n *= gen_extent(g, g->value[value].dim[i]);
    return n;
}

int gen_shape(struct gen *g, int64_t most, int64_t *dim) {
    int rank = random_int(g->random, 1, 4);
    int64_t n = 1;
    for (int i = 0; i < rank; i++) {
        dim[i] = i == 0 && random_one_in(g->random, 2) ? g->batch : RANDOM_PICK(g->random, extents);
        if (n * gen_extent(g, dim[i]) > most) dim[i] = 1;
        n *= gen_extent(g, dim[i]);
    }
    return rank;
}

int gen_any_shape(struct gen *g, int64_t most, int64_t *dim) {
    int rank = gen_shape(g, most, dim), how = random_int(g->random, 0, 15);
    if (how == 0) return 0;
    if (how == 1) dim[rank++] = random_int(g->random, 1, 2);
    if (how == 2) dim[random_int(g->random, 0, rank - 1)] = 0;
    return rank;
}

const char *gen_dim_text(int64_t dim, char text[24]) {
    if (dim < 0) snprintf(text, 24, "$%d", (int)(-dim - 1));
    else snprintf(text, 24, "%d", (int)dim);
    return text;
}

/* The builder's handles are numbers of layers, as every layer and source makes one tensor. */
static struct size size_of(const struct gen *g, int value, int d) {
    const struct model *m = ir_user_model(g->model);
    return m->layers.at[g->value[value].tensor]->out[0]->dim[d];
}

const char *gen_size_text(const struct gen *g, int value, int d, char text[SIZE_TEXT]) {
    size_format(text, size_of(g, value, d));
    return text;
}

bool gen_same_dim(const struct gen *g, int x, int y, int d) {
    return size_equal(size_of(g, x, d), size_of(g, y, d));
}

void gen_named(struct gen *g, struct random *r, const char *name) {
    if (!strcmp(name, "dag")) gen_dag(g, r);
    else if (!strcmp(name, "mixed")) gen_mixed(g, r);
    else if (!strcmp(name, "fusible")) gen_fusible(g, r);
    else if (!strcmp(name, "epilogue")) gen_epilogue(g, r);
    else if (!strcmp(name, "cnn")) gen_cnn(g, r);
    else if (!strcmp(name, "many")) gen_many(g, r);
    else if (!strcmp(name, "kept")) gen_kept(g, r);
    else if (!strncmp(name, "types:", 6)) gen_types(g, r, name + 6);
    else gen_layer(g, r, name);
}
