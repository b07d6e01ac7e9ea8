/*
 * The IR: a Model is a list of Layers in topological order; Layers read and write Tensors.
 *
 *   builder (model.c) / text (text.c)  ->  struct model  ->  passes  ->  clusters  ->  program
 *
 * All of it lives in one arena. Tensors and layers have dense ids for side arrays; an id is never used twice
 * in a model. A tensor knows its producer but not its readers; passes search the list for them
 * (pass/edit.c).
 *
 * Every layer's facts stand in one line of layer.def: name, arity, attributes, and three functions:
 * infer (shapes), define (its mathematics as a point expression, for DFP), and, in device/ref, its scalar reference.
 */
#ifndef SOL_IR_H
#define SOL_IR_H

#include "base/size.h"

#include <sol/sol.h>

/* ---- Layouts ---- */

/* A channel dim may be stored as segments, each padded to whole blocks: valid <= stored, stored % block == 0. */
struct segment {
    int valid, stored;
};
/* block == 0: plain, dense, row major. Else the channel axis (1; 0 for rank 1) is split: [n][c / block][h][w][block],
 * and pad lanes hold zero by invariant: every writer writes zero there. */
struct layout {
    int block;
    int n_segments;
    struct segment *segment;
    int stored; /* channels with padding */
};

/* ---- Model ---- */

enum layer_kind {
#define LAYER(kind, ...) LAYER_##kind,
#include "ir/layer.def"
#undef LAYER
    N_LAYER_KINDS
};

/* All attributes of all layers; which ones a kind has stands in layer.def. Printed and parsed by attr.def's table. */
struct attr {
    int64_t kernel[2], stride[2], dilation[2]; /* rows, columns; 1 by default */
    int64_t pad[4];                            /* top, left, bottom, right */
    int64_t groups;
    int64_t axis, start, step;
    int n_axes;
    int64_t axes[SOL_MAX_RANK];
    int n_shape;
    struct size shape[SOL_MAX_RANK];
    double min, max, alpha, value, eps;
    bool keepdim, ceil, count_pad;
};

struct tensor {
    int id;
    enum sol_dtype dtype;
    int rank;
    struct size dim[SOL_MAX_RANK]; /* outermost first */
    struct layer *producer;
    const char *name;
    bool is_constant;     /* depends on parameters only: computed once per version of the weights */
    struct layout layout; /* chosen by plan/layout.c */
};

struct layer {
    int id;
    enum layer_kind kind;
    int n_in, n_out;
    struct tensor **in, *out[1]; /* one output each today; several are reached by several layers */
    struct attr attr;
    const char *origin; /* a line of the user's program, or NULL */
};

struct model {
    struct arena *arena;
    const char *name;
    int n_symbols;
    const char *symbol[SIZE_SYMBOLS];
    VEC(struct layer *) layers; /* topological: inputs before readers */
    VEC(struct tensor *) inputs, params;
    VEC(struct tensor *) outputs;
    VEC(const char *) output_names;
    int n_tensors, n_layers; /* ids given out so far */
};

/* The facts of one kind of layer, from layer.def. */
struct define;
struct layer_info {
    const char *name;
    int min_in, max_in;
    const char *attrs; /* names of its attributes, separated by blanks */
    /* checks, and sets out[0]'s dtype, rank and dims */
    enum sol_status (*infer)(struct layer *layer);
    /* see expr.h; its answer is NULL for what has no expression */
    struct expr *(*define)(struct define *d);
    enum {
        POINTWISE = 1,
        SHAPE_ONLY = 2,
        SOURCE = 4,
        ANCHOR = 8,
        INTEGER_INDEX = 16,
        ANY_TYPE = 32
    } traits;
};
/* POINTWISE: out[i] depends on in[i] (after broadcasting) only. SHAPE_ONLY: moves values, computes nothing.
 * ANCHOR: an op that the DNN module computes, around which clusters are built. INTEGER_INDEX: input 1
 * holds integers. ANY_TYPE: the output is of the input's type, which may be any. All other inputs
 * and outputs are f32. */
extern const struct layer_info layer_infos[N_LAYER_KINDS];

/* ---- ir/model.c: building and changing ---- */

struct model *ir_model_new(struct arena *arena, const char *name);
struct tensor *ir_add_source(struct model *m, enum layer_kind kind, const char *name,
                             enum sol_dtype dtype, int rank, const struct size *dim);
/* Names and origins, so that all that is printed can be parsed; the parser is the one that needs a limit. */
#define IR_MAX_NAME 65536
enum sol_status ir_check_name(const char *name); /* NULL is fine */
/* Is this a shape that a model may have? Known symbols, never negative, and sizes of it in bytes, padded, fit 64 bits. */
enum sol_status ir_check_shape(const struct model *m, int rank, const struct size *dim);
/* Appends a layer, infers its output. `attr` NULL = defaults. */
enum sol_status ir_add(struct model *m, enum layer_kind kind, int n_in, struct tensor *const *in,
                       const struct attr *attr, const char *origin, struct tensor **out);
struct attr ir_default_attr(void);
/* Deep copy into another arena, so that passes never change the user's model. */
struct model *ir_clone(struct arena *arena, const struct model *m);
/* Every reader of `from` reads `to` instead; outputs too. */
void ir_replace(struct model *m, struct tensor *from, struct tensor *to);
bool ir_is_output(const struct model *m, const struct tensor *t);
struct size ir_elements(const struct tensor *t);
struct size ir_count(const struct tensor *t, int begin, int end); /* product of dims [begin, end) */
/* Equal dims but for dim `except`; -1: all of them. */
bool ir_same_shape(const struct tensor *a, const struct tensor *b, int64_t except);
/* Is no dim from `begin` on open until the call? */
bool ir_is_fixed(const struct tensor *t, int begin);
/* Dims as the public interface shows them: a number, -1 - s for symbol s, INT64_MIN for any other formula. */
void ir_show_dims(const struct tensor *t, int64_t dim[SOL_MAX_RANK]);

/* ---- ir/infer.c, ir/verify.c, ir/text.c ---- */

bool ir_broadcast(struct size a, struct size b, struct size *out); /* NumPy's rule for one dim */
enum sol_status ir_verify(const struct model *m); /* EBUG with the broken invariant */
void ir_print(struct text *text, const struct model *m);
enum sol_status ir_parse(const char *source, struct arena *arena, struct model **out);
void ir_print_shape(struct text *text, const struct tensor *t); /* "f32[$0,3,224,224]" */
enum sol_status ir_parse_attr(const char *text, const struct layer_info *info, struct attr *out);
void ir_print_attr(struct text *text, const struct layer_info *info, const struct attr *attr);
enum layer_kind ir_find_kind(const char *name); /* N_LAYER_KINDS when unknown */

/* ---- ir/api.c ---- */

/* The model inside a user's handle. */
const struct model *ir_user_model(const struct sol_model *user);

#endif
