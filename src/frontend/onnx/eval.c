/*
 * The table of interpreted operators, and helpers for their functions: attributes, inputs, results.
 *
 * The helpers check what they return: an attribute of the wrong type, an input that is missing or no tensor, or an axis beyond
 * the rank jumps out with a message. So functions check only what is specific to the operator. session.c adds the node's number
 * and name to the message.
 */
#include "eval.h"

#include "import.h"

#include <string.h>

static const struct operator operators[] = {
#define EVAL(name_, min, max, function, ...) \
    {.name = #name_, .min_in = min, .max_in = max, .run = run_##function, ##__VA_ARGS__},
#include "eval.def"
#undef EVAL
};

/* ONNX's own domain is "" or "ai.onnx". */
static const struct operator *operator_find(const char *domain, const char *name) {
    bool is_standard = !domain || !*domain || !strcmp(domain, "ai.onnx");
    for (int i = 0; name && i < COUNT(operators); i++) {
        const struct operator *op = &operators[i];
        if (is_standard ? op->domain != NULL : !op->domain || strcmp(op->domain, domain) != 0)
            continue;
        if (!strcmp(op->name, name)) return op;
    }
    return NULL;
}

void node_kind(const struct onnx_node *node, struct node_kind *out) {
    out->interpreted = operator_find(node->domain, node->op_type);
    out->compiled = op_find(node->domain, node->op_type);
}

void eval_stop(struct eval *e, enum sol_status status) { space_stop(e->space, status); }

void eval_check(struct eval *e, bool holds, const char *what) {
    if (!holds) eval_stop(e, fail(SOL_EINVAL, "%s", what));
}

/* ---- A node ---- */

/* Finds the values of the inputs. Inputs that are left out at the end of the list are not counted. */
static void find_inputs(struct eval *e) {
    for (int i = 0; i < e->n_in; i++) {
        const char *name = *ITEM(e->node->inputs, const char *, i);
        if (!*name) continue;
        e->in[i] = scope_find(e->scope, name);
        if (!e->in[i])
            eval_stop(e, fail(SOL_EINVAL, "input \"%.64s\" is no output of an earlier node", name));
    }
    while (e->n_in && !e->in[e->n_in - 1]) e->n_in--;
}

static void check_inputs(struct eval *e) {
    for (int i = 0; i < e->op->min_in; i++)
        if (!eval_has(e, i)) eval_stop(e, fail(SOL_EINVAL, "input %d is missing", i));
    if (e->n_in > e->op->max_in)
        eval_stop(e, fail(SOL_EINVAL, "%d inputs; it takes at most %d", e->n_in, e->op->max_in));
}

/* Stores the outputs in the scope. An output with an empty name is not needed. If the function has not set another one, SOL does
 * not support that output. */
static void store_outputs(struct eval *e) {
    for (int i = 0; i < e->n_out; i++) {
        const char *name = *ITEM(e->node->outputs, const char *, i);
        if (!*name) continue;
        if (!e->out[i]) eval_stop(e, fail(SOL_EUNSUPPORTED, "output %d (\"%.64s\")", i, name));
        *scope_slot(e->scope, name) = e->out[i];
    }
}

/* Runs the operator's own function. Checks attributes first: ignoring one that it does not know could give a wrong result. */
static enum sol_status run_function(struct eval *e) {
    TRY(import_check_attributes(e->node, e->op->attributes ? e->op->attributes : ""));
    check_inputs(e);
    e->op->run(e);
    return SOL_OK;
}

/* Operators that have layers are computed by these. What the layers refuse is left to the operator's function, if it has one. */
enum sol_status eval_node(struct eval_context *run, struct scope *scope,
                          const struct onnx_node *node, struct node_kind *kind) {
    struct eval e = {.run = run,
                     .space = run->space,
                     .scope = scope,
                     .node = node,
                     .op = kind->interpreted,
                     .kind = kind,
                     .opset = run->opset,
                     .n_in = node->inputs.n,
                     .n_out = node->outputs.n};
    e.in = SPACE_ARRAY(e.space, struct array *, e.n_in + 1);
    e.out = SPACE_ARRAY(e.space, struct array *, e.n_out + 1);
    find_inputs(&e);
    enum sol_status status = kind->compiled ? eval_layers(&e, kind) : SOL_EUNSUPPORTED;
    if (status == SOL_EUNSUPPORTED && kind->interpreted) status = run_function(&e);
    else if (!kind->compiled) status = fail(SOL_EUNSUPPORTED, "SOL has no such operator");
    if (!status) store_outputs(&e);
    return status;
}

/* ---- Attributes ---- */

const struct onnx_attribute *eval_attribute(const struct eval *e, const char *name) {
    return proto_attribute(e->node, name);
}

static const struct onnx_attribute *find_typed(struct eval *e, const char *name,
                                               enum onnx_attribute_type type) {
    const struct onnx_attribute *a;
    enum sol_status status = proto_typed_attribute(e->node, name, type, &a);
    if (status) eval_stop(e, status);
    return a;
}

int64_t eval_int(struct eval *e, const char *name, int64_t default_value) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_INT);
    return a ? a->i : default_value;
}

double eval_float(struct eval *e, const char *name, double default_value) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_FLOAT);
    return a ? (double)a->f : default_value;
}

/* A copy, since strings in the file do not end with a NUL. */
const char *eval_string(struct eval *e, const char *name, const char *default_value) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_STRING);
    if (!a || !a->s) return default_value;
    char *copy = SPACE_ARRAY(e->space, char, (int64_t)a->s->size + 1);
    if (a->s->size) memcpy(copy, a->s->at, a->s->size);
    return copy;
}

bool eval_is(struct eval *e, const char *name, const char *value) {
    return !strcmp(eval_string(e, name, ""), value);
}

const char *eval_word(struct eval *e, const char *name, const char *default_value,
                      const char *words) {
    const char *word = eval_string(e, name, default_value);
    if (import_has_word(words, word)) return word;
    eval_stop(e, fail(SOL_EUNSUPPORTED, "%s \"%.32s\"", name, word));
}

int eval_ints(struct eval *e, const char *name, const int64_t **out) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_INTS);
    *out = a ? a->ints.at : NULL;
    return a ? a->ints.n : 0;
}

int eval_floats(struct eval *e, const char *name, const float **out) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_FLOATS);
    *out = a ? a->floats.at : NULL;
    return a ? a->floats.n : 0;
}

/* Stops when the graph is missing; an operator with an optional graph calls eval_attribute first. */
const struct onnx_graph *eval_graph(struct eval *e, const char *name) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_GRAPH);
    if (!a || !a->g) eval_stop(e, fail(SOL_EINVAL, "attribute %s is missing", name));
    return a->g;
}

/* The tensor is read each time the node runs. That is rare: nodes of the outer graph that read only constants run once, while
 * loading. */
struct array *eval_tensor(struct eval *e, const char *name) {
    const struct onnx_attribute *a = find_typed(e, name, ONNX_TENSOR);
    if (!a) return NULL;
    if (!a->t) eval_stop(e, fail(SOL_EINVAL, "attribute %s holds no tensor", name));
    struct array *array = SPACE_ARRAY(e->space, struct array, 1);
    enum sol_status status = array_read(&e->space->arena, e->run->folder, a->t, array);
    if (status) eval_stop(e, status);
    return array;
}

/* ---- Inputs ---- */

struct array *eval_in(struct eval *e, int i) {
    if (!eval_has(e, i)) eval_stop(e, fail(SOL_EINVAL, "input %d is missing", i));
    if (!is_tensor(e->in[i])) eval_stop(e, fail(SOL_EINVAL, "input %d is no tensor", i));
    return e->in[i];
}

/* A list is a tensor of rank 1; some files use a scalar for a list of one number. */
int eval_in_ints(struct eval *e, int i, int64_t **out) {
    *out = NULL;
    if (!eval_has(e, i)) return 0;
    const struct array *x = eval_in(e, i);
    if (x->rank > 1 || x->n > INT32_MAX || !is_integer(x->type))
        eval_stop(e, fail(SOL_EINVAL, "input %d is no list of integers", i));
    *out = array_ints(e->space, x);
    return (int)x->n;
}

/* A single number of any rank, since some files write a scalar as [1]. Floats are truncated. */
int64_t eval_in_int(struct eval *e, int i, int64_t default_value) {
    if (!eval_has(e, i)) return default_value;
    const struct array *x = eval_in(e, i);
    if (x->n != 1 || x->type == TYPE_STRING)
        eval_stop(e, fail(SOL_EINVAL, "input %d is no single number", i));
    return array_int(x, 0);
}

/* As eval_in_int, for floats. */
double eval_in_double(struct eval *e, int i, double default_value) {
    if (!eval_has(e, i)) return default_value;
    const struct array *x = eval_in(e, i);
    if (x->n != 1 || x->type == TYPE_STRING)
        eval_stop(e, fail(SOL_EINVAL, "input %d is no single number", i));
    return array_double(x, 0);
}

/* Negative axes count from the end. A scalar has no axis. */
int eval_axis(struct eval *e, int64_t axis, int rank) {
    if (axis < -rank || axis >= rank)
        eval_stop(e, fail(SOL_EINVAL, "axis %lld of a tensor of rank %d", (long long)axis, rank));
    return (int)(axis < 0 ? axis + rank : axis);
}

int eval_axis_of_list(struct eval *e, int64_t axis, int rank, bool named[SOL_MAX_RANK]) {
    int at = eval_axis(e, axis, rank);
    if (named[at]) eval_stop(e, fail(SOL_EINVAL, "axis %lld is given twice", (long long)axis));
    named[at] = true;
    return at;
}

/* The range is checked before the addition, so nothing overflows. */
int64_t eval_index(struct eval *e, int64_t index, int64_t size) {
    if (index < -size || index >= size)
        eval_stop(
            e, fail(SOL_EINVAL, "index %lld of a dim of %lld", (long long)index, (long long)size));
    return index < 0 ? index + size : index;
}

/* ---- Results ---- */

struct array *eval_new(struct eval *e, enum type type, int rank, const int64_t *dim) {
    return array_new(e->space, type, rank, dim);
}

void eval_set_output(struct eval *e, int i, struct array *array) {
    if (i < e->n_out) e->out[i] = array;
}

struct array *eval_out(struct eval *e, int i, enum type type, int rank, const int64_t *dim) {
    struct array *array = eval_new(e, type, rank, dim);
    eval_set_output(e, i, array);
    return array;
}

struct array *eval_sequence(struct eval *e, int64_t n) {
    struct array *list = SPACE_ARRAY(e->space, struct array, 1);
    *list = (struct array){.type = TYPE_SEQUENCE, .n = n};
    list->data = SPACE_ARRAY(e->space, struct array *, n);
    return list;
}

/* A scalar. */
struct array *eval_number(struct eval *e, enum type type, int64_t value) {
    struct array *y = eval_new(e, type, 0, NULL);
    array_set_int(y, 0, value);
    return y;
}

const struct array *eval_sequence_in(struct eval *e, int i) {
    eval_check(e, eval_has(e, i) && e->in[i]->type == TYPE_SEQUENCE,
               "an input that is no sequence");
    return e->in[i];
}

struct array *eval_from_doubles(struct eval *e, enum type type, int rank, const int64_t *dim,
                                const double *values) {
    struct array *array = eval_new(e, type, rank, dim);
    array_fill_doubles(array, values);
    return array;
}

void eval_set_output_doubles(struct eval *e, int i, enum type type, int rank, const int64_t *dim,
                             const double *values) {
    eval_set_output(e, i, eval_from_doubles(e, type, rank, dim, values));
}

/* As in NumPy: shapes are aligned at their last dims, and a dim of 1 fits any other. */
int eval_broadcast(struct eval *e, int n, struct array *const *arrays, int64_t dim[SOL_MAX_RANK]) {
    int rank = 0;
    for (int i = 0; i < n; i++)
        if (arrays[i]->rank > rank) rank = arrays[i]->rank;
    for (int d = 0; d < rank; d++) dim[d] = 1;
    for (int i = 0; i < n; i++) {
        for (int d = 0; d < arrays[i]->rank; d++) {
            int64_t *wide = &dim[rank - arrays[i]->rank + d], size = arrays[i]->dim[d];
            if (size != 1 && *wide != 1 && size != *wide)
                eval_stop(e, fail(SOL_EINVAL, "dims %lld and %lld do not broadcast",
                                  (long long)*wide, (long long)size));
            if (size != 1) *wide = size;
        }
    }
    return rank;
}
