/*
 * The IR: a Model is a list of Layers in topological order; Layers read and write Tensors.
 *
 *   builder (model.c) / text (text.c)  ->  struct model  ->  passes  ->  clusters  ->  program
 *
 * A model lives in one arena. Tensors and layers have dense ids, so that other parts keep data in arrays by id; an id
 * is never used twice in a model. A tensor points to its producer and to its readers.
 *
 * Each kind of layer is one line of layer.def: name, number of inputs, attributes, traits, and four functions: infer computes the
 * output's shape, types its element type, define gives what it computes as a point expression, for DFP, grad adds its gradient. Its scalar reference is in device/ref.
 */
#ifndef SOL_IR_H
#define SOL_IR_H

#include "base/size.h"
#include "run/phase.h"

#include <sol/sol.h>

/* ---- Layouts ---- */

/* A range of channels that is padded to whole blocks: `valid` channels take `stored` places; stored % block == 0. */
struct segment {
    int valid, stored;
};
/* The order of a tensor's values in memory. block == 0: plain, that is dense and row major. Else the channel axis (1; 0 for
 * rank 1) is split into blocks: [n][c / block][h][w][block]. Invariant: pad lanes hold zero, every writer writes zero there. */
struct layout {
    int block;
    int n_segments;
    struct segment *segment;
    int stored; /* channels including padding: the sum over all segments */
};

/* ---- Model ---- */

enum layer_kind {
#define LAYER(kind, ...) LAYER_##kind,
#include "ir/layer.def"
#undef LAYER
    N_LAYER_KINDS
};

/* The attributes of all kinds of layers; layer.def lists which ones a kind has. attr.def is their table for the text form. */
struct attr {
    int64_t kernel[2], stride[2], dilation[2]; /* rows, columns; 1 by default */
    int64_t pad[4];                            /* top, left, bottom, right */
    int64_t depth[4];      /* of volumes: stride, dilation, padding in front and behind */
    int64_t output_pad[2]; /* rows, columns */
    int64_t groups;
    int64_t axis, step, padding, diagonal, stream;
    struct size start;
    int n_axes;
    int64_t axes[SOL_MAX_RANK];
    int n_shape;
    struct size shape[SOL_MAX_RANK];
    double min, max, alpha, value, eps, p, scale, input_scale, correction, softcap;
    enum sol_dtype dtype;   /* of the output */
    enum sol_dtype factors; /* bf16: products of f32 values may round both factors to bf16 */
    bool keepdim, ceil, count_pad, causal, reverse, effects, pure, wraps, strict;
    int64_t host; /* of a host layer: its number in the model's list of hosts */
};

struct tensor {
    int id;
    enum sol_dtype dtype;
    int rank;
    struct size dim[SOL_MAX_RANK]; /* outermost first */
    struct layer *producer;
    /* of the model's layers, as often as they read it: see ir_find_readers */
    VEC(struct layer *) readers;
    const char *name;
    enum phase phase;     /* in which it is computed, or first passed by the caller */
    bool is_updated;      /* a parameter that is in the model's list of updates */
    bool is_trained;      /* a parameter whose gradient was asked for: it changes after BACKWARD */
    struct layout layout; /* chosen by plan/layout.c */
};

struct layer {
    int id;
    enum layer_kind kind;
    int n_in, n_out;
    struct tensor **in, **out; /* out: one; more of a host, or of a recurrent layer with gates */
    struct attr attr;
    struct model *model; /* that it is part of */
    const char *origin;  /* where the user's program calls it, such as "net.py:7", or NULL */
};

/* A function of the frontend that computes host layers. `function` is NULL in a model that was read from text. */
struct host {
    const char *name;
    struct host_function *function; /* run/host.h */
};

/* After the last layer of a call, the values of `value` are written into the memory of the parameter `param`. */
struct update {
    struct tensor *param, *value;
};

struct model {
    struct arena *arena;
    const char *name;
    int n_symbols; /* free ones, by number */
    const char *symbol[SIZE_FREE];
    struct size_table quotients; /* the derived symbols, and what is known of the free ones */
    VEC(struct host) hosts;
    /* Topological order: producers before readers. Layers with the attribute `effects` are in the order of their effects. */
    VEC(struct layer *) layers;
    VEC(struct tensor *) inputs, params;
    VEC(struct tensor *) outputs;
    VEC(const char *) output_names;
    VEC(enum phase) output_phases; /* FORWARD, or BACKWARD: a gradient */
    VEC(struct update) updates;    /* at most one per parameter */
    int n_tensors, n_layers;       /* ids in use are below these */
    int n_edits;                   /* how often ir_add and ir_replace have changed the model */
    /* Composites that the device of this compile computes as a whole, with channel blocks of `lanes`: decompose leaves them. NULL: none. */
    bool (*computes)(const struct layer *layer, int lanes);
    int lanes;
    double recompute;    /* as in struct sol_options */
    const int64_t *hint; /* typical values of the free symbols; NULL: unknown */
};

/* One kind of layer: a line of layer.def. */
struct define;
struct rule;
struct layer_info {
    const char *name;
    int min_in, max_in;
    const char *attrs; /* the names of its attributes, separated by blanks */
    /* checks inputs and attributes; sets out[0]'s rank and dims */
    enum sol_status (*infer)(struct layer *layer);
    /* see expr.h; returns NULL if the kind has no point expression */
    struct expr *(*define)(struct define *d);
    /* checks the inputs' element types; sets out[0]'s */
    enum sol_status (*types)(struct layer *layer);
    /* adds the layers that compute the gradients of its inputs (rule.h) */
    void (*grad)(struct rule *r);
    enum {
        POINTWISE = 1,
        MOVEMENT = 2,
        SOURCE = 4,
        ANCHOR = 8,
        WINDOW = 16,
        REDUCTION = 32,
        RECURRENT = 64
    } traits;
};
/* POINTWISE: out[i] depends on in[i] (after broadcasting) only. MOVEMENT: moves values of its only input, computes nothing. SOURCE: has no
 * inputs. ANCHOR: a conv, transposed or not, or linear, which the DNN module computes and DNN clusters are built around.
 * WINDOW: reads rows and columns around each point, channel by channel. REDUCTION: over `axes`, with `keepdim`. RECURRENT: computes
 * steps one after the other, each from the one before (lstm and others). */
extern const struct layer_info layer_infos[N_LAYER_KINDS];

/* Anchors: a linear layer, of floats or of quantized numbers; any one of quantized numbers. */
static inline bool ir_is_linear(const struct layer *l) {
    return l->kind == LAYER_linear || l->kind == LAYER_quant_linear;
}
static inline bool ir_is_quantized(const struct layer *l) {
    return l->kind == LAYER_quant_conv || l->kind == LAYER_quant_linear;
}
/* Inputs of a quantized anchor; those of others are x, weight, bias. */
enum { QUANT_X, QUANT_WEIGHT, QUANT_ZERO, QUANT_SCALE, QUANT_BIAS, QUANT_RANGE };

/* Depends only on parameters that no call writes: computed once per version of them. */
static inline bool ir_is_constant(const struct tensor *t) { return phase_is_prepack(t->phase); }

/* ---- ir/model.c: building and changing ---- */

struct model *ir_model_new(struct arena *arena, const char *name);
struct tensor *ir_add_source(struct model *m, enum layer_kind kind, const char *name,
                             enum sol_dtype dtype, int rank, const struct size *dim);
/* Limit of names and origins, in bytes. The parser needs one; the builder has the same, so that every printed model can be
 * parsed. */
#define IR_MAX_NAME 65536
enum sol_status ir_check_name(const char *name); /* NULL is fine */
/* Appends a free symbol; *out: its number. least >= 0, multiple >= 1. */
enum sol_status ir_add_symbol(struct model *m, const char *name, int64_t least, int64_t multiple,
                              int *out);
/* Checks a shape: its symbols are the model's, no dim can be negative, and its padded size in bytes fits in 64 bits. */
enum sol_status ir_check_shape(const struct model *m, int rank, const struct size *dim);
/* EINVAL if the model does not have all symbols of a size. */
enum sol_status ir_check_symbols(const struct model *m, struct size size);
/* Appends a layer and infers its output. `attr` and `origin` may be NULL. On errors `*out` is not set. */
enum sol_status ir_add(struct model *m, enum layer_kind kind, int n_in, struct tensor *const *in,
                       const struct attr *attr, const char *origin, struct tensor **out);
/* The type of a tensor that a frontend declares. */
struct tensor_type {
    enum sol_dtype dtype;
    int rank;
    struct size dim[SOL_MAX_RANK];
};
#define IR_MAX_PORTS 4096 /* the most inputs of a layer, and outputs of a host layer */
/* Appends a layer that host number attr->host computes, with outputs of the declared types. On errors `out` is not set. */
enum sol_status ir_add_host(struct model *m, int n_in, struct tensor *const *in, int n_out,
                            const struct tensor_type *type, const struct attr *attr,
                            const char *origin, struct tensor **out);
/* The second output of a recurrent layer, for its gradient; the layer gets one if it has none. */
struct tensor *ir_keep_gates(struct layer *l);
/* `copy` is the output of a copy of the layer. If the layer has a second output, map[its id] becomes that of the copy. */
void ir_copy_gates(const struct layer *l, const struct tensor *copy, struct tensor **map);
struct attr ir_default_attr(void);
/* An input that the caller passes to BACKWARD only, such as the gradient of an output; or the output of a layer that runs there though
 * its inputs are there in FORWARD. Call it before layers read it. */
void ir_set_backward(struct tensor *t);
/* Adds an output of a call of FORWARD, or of BACKWARD. EINVAL if FORWARD does not have the tensor. */
enum sol_status ir_add_output(struct model *m, struct tensor *t, const char *name,
                              enum phase phase);
/* Does the model have a part that runs in BACKWARD? */
bool ir_has_backward(const struct model *m);
/* Adds an update. From then on, what depends on the parameter is no constant. */
enum sol_status ir_add_update(struct model *m, struct tensor *param, struct tensor *value);
/* Deep copy into another arena, so that passes never change the user's model. Layers of the copy run as soon as their inputs are there. */
struct model *ir_clone(struct arena *arena, const struct model *m);
/* Lists the readers of each tensor, in the model's order. ir_add and ir_replace keep the lists; who removes layers, or changes their inputs,
 * calls this (pass_clean does). */
void ir_find_readers(struct model *m);
/* Makes all readers of `from` read `to` instead; where `from` is an output or the value of an update, `to` becomes it. */
void ir_replace(struct model *m, struct tensor *from, struct tensor *to);
/* Is the tensor a result of a call: an output, or the value of an update? */
bool ir_is_output(const struct model *m, const struct tensor *t);
/* Is it an input of the model, or such values in another shape? */
bool ir_is_input(const struct tensor *t);
struct size ir_elements(const struct tensor *t);
struct size ir_count(const struct tensor *t, int begin, int end); /* product of dims [begin, end) */
/* Are all dims equal, except dim `except`? -1: no exception. */
bool ir_same_shape(const struct tensor *a, const struct tensor *b, int64_t except);
/* Are dims [begin, rank) the same for any batch, that is independent of symbol 0? */
bool ir_is_invariant(const struct tensor *t, int begin);
/* Is it a convolution, transposed or not, of floats or of quantized numbers? */
bool ir_is_conv(const struct layer *layer);
/* Channels per group of `image`, which is the input or the output of a convolution. */
int64_t ir_group_size(const struct layer *conv, const struct tensor *image);
/* Dims as the public interface encodes them: a number, -1 - s for symbol s, INT64_MIN for any other formula. */
void ir_show_dims(const struct tensor *t, int64_t dim[SOL_MAX_RANK]);

/* ---- ir/grad.c ---- */

/* Adds the layers that compute the gradients of s = sum(y[0] * dy[0]) + sum(y[1] * dy[1]) + .. by each x: tensors of x's type and shape.
 * dx[i] is NULL if no y depends on x[i] through floats. dy are mostly inputs of the backward call; each has y's type and shape. If a
 * layer between has no gradient, the message names it. */
enum sol_status ir_gradients(struct model *m, int n_y, struct tensor *const *y,
                             struct tensor *const *dy, int n_x, struct tensor *const *x,
                             struct tensor **dx);

/* ---- ir/infer_recurrent.c ---- */

/* The kind of recurrent layer whose gradient this kind computes: lstm for lstm_grad. Other kinds are returned as they are. */
enum layer_kind ir_recurrent_kind(enum layer_kind kind);
/* The kind that computes its gradient: lstm_grad for lstm. */
enum layer_kind ir_recurrent_grad(enum layer_kind kind);
/* Is it a recurrent layer, not the gradient of one? */
bool ir_may_keep_gates(enum layer_kind kind);
/* The number of gates of a recurrent layer: x and w have this many values per unit of the state. */
int ir_gates(enum layer_kind kind);
/* What the output has behind the states of all steps: the last state, and the last cell of an lstm. */
int ir_last_states(enum layer_kind kind);
/* How many values per unit the second output of a recurrent layer has, its gates; and the output of its gradient. */
int ir_kept_columns(enum layer_kind kind);
int ir_grad_columns(enum layer_kind kind);
/* Gives `gates` the type and the shape of the second output of a recurrent layer. */
void ir_set_gates(const struct layer *layer, struct tensor *gates);
/* The optional last input, the number of steps of each sample; NULL: all samples have all steps. */
struct tensor *ir_lengths(const struct layer *layer);

/* ---- ir/infer.c, ir/infer_norm.c, ir/verify.c, ir/print.c, ir/text.c ---- */

bool ir_broadcast(struct size a, struct size b, struct size *out); /* NumPy's rule for one dim */
/* How many heads of an attention's queries share one head of keys and values; 1 unless heads are grouped. */
int64_t ir_head_group(const struct layer *layer);
enum sol_status ir_verify(const struct model *m); /* the message names the broken invariant */
void ir_print(struct text *text, const struct model *m);
enum sol_status ir_parse(const char *source, struct arena *arena, struct model **out);
void ir_print_shape(struct text *text, const struct tensor *t); /* "f32[$0,3,224,224]" */
/* Reads types separated by blanks, "f32[$0,3] i64[$0]". Returns them in m's arena. */
enum sol_status ir_parse_types(const char *text, struct model *m, struct tensor_type **out, int *n);
enum sol_status ir_parse_attr(const char *text, const struct layer_info *info,
                              struct size_table *table, struct attr *out);
void ir_print_attr(struct text *text, const struct layer_info *info, const struct attr *attr);
enum layer_kind ir_find_kind(const char *name); /* N_LAYER_KINDS when unknown */

/* ---- ir/condition.c: what must hold at a call ---- */

struct condition; /* run/program.h */
/* All conditions on the symbols of a model whose sizes depend on them, in `arena`. */
struct condition *ir_conditions(struct arena *arena, const struct model *m, int *n);

/* ---- ir/api.c ---- */

/* The model in a user's handle, which keeps owning it. */
const struct model *ir_user_model(const struct sol_model *user);

#endif
