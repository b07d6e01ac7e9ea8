/*
 * Operators that SOL compiles, computed at once: the builder makes a model of the one node, and the reference runs it.
 *
 *   arrays -> [replace] -> find or build a struct single -> sol_model_evaluate -> [restore] -> arrays
 *
 * So the interpreter needs no second definition of these operators. A single is valid for the types and shapes of inputs that it
 * was built for, and for the values that the builder has read. Singles are kept for later runs of the node, such as the next
 * iteration of a loop: they never change, and are freed with the session.
 *
 * ONNX has element types that layers do not have: where an operator only moves elements, their numbers take their place; where it
 * computes with unsigned integers, these are widened to 64 bits, and results lose the upper bits again.
 */
#include "eval.h"
#include "import.h"

#include <string.h>

#define MAX_NUMBERS 1024 /* elements: an integer tensor of more has no shape value */
#define KEPT 4           /* singles of a node */

struct single {
    struct single *next;        /* of the node */
    struct single *next_of_all; /* of the session */
    struct arena arena;
    struct import im; /* owns its model */
    struct array *
        in; /* by input: type and shape, and the bytes if the builder has read them. TYPE_NONE: left out */
    struct array *
        out; /* by output: the same, and the values if no layer computes them. TYPE_NONE: no one reads it */
    VEC(int) feed; /* by input of the model: the node's input */
};

/* A run of a node. */
struct single_run {
    struct eval *e;
    const struct op *op;
    struct single *single;
    struct array **in; /* in place of e->in: replaced ones have elements of TYPE_I64 */
    bool moves;        /* elements are replaced by their numbers, else widened */
    enum type from;    /* the element type that results get back; TYPE_NONE: none was replaced */
    int64_t
        n_moved; /* elements that have numbers: 1 to n_moved, in the order of inputs. 0 is the element zero */
    int64_t *first; /* by input: the number of its first element; 0: not replaced */
};

/* ---- Element types that layers do not have ---- */

/* Each element of a result is an element of an input, or zero. */
static bool only_moves(const char *name) {
    return import_has_word("CenterCropPad Concat DepthToSpace Expand Flatten Gather GatherElements "
                           "GatherND Identity Pad Reshape ReverseSequence Shape Size Slice "
                           "SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where",
                           name);
}

/* The input that has the type of all results of 64 bits; -1: they are of 64 bits whatever the inputs are. */
static int type_giver(const char *name) {
    if (import_has_word("ArgMax ArgMin Cast CastLike Shape Size", name)) return -1;
    return strcmp(name, "OneHot") ? 0 : 2;
}

static void number_elements(struct single_run *run, int i, struct array *to) {
    int64_t *number = to->data;
    run->first[i] = 1 + run->n_moved;
    for (int64_t k = 0; k < to->n; k++) number[k] = ++run->n_moved;
}

/* Unsigned integers of 64 bits fit if they are below 2^63. */
static enum sol_status widen(const struct array *x, struct array *to) {
    int64_t *value = to->data;
    for (int64_t k = 0; k < to->n; k++)
        if ((value[k] = array_int(x, k)) < 0)
            return fail(SOL_EUNSUPPORTED, "an unsigned integer of 2^63 or more");
    return SOL_OK;
}

/* Puts an array of 64-bit integers in place of input `i`. */
static enum sol_status replace(struct single_run *run, int i) {
    const struct array *x = run->e->in[i];
    const char *name = run->op->name;
    bool is_unsigned = types[x->type].kind == KIND_UNSIGNED;
    if (import_has_word("Cast CastLike DequantizeLinear QuantizeLinear", name) ||
        !(run->moves || is_unsigned))
        return fail(SOL_EUNSUPPORTED, "elements of type %s", types[x->type].name);
    run->in[i] = array_new(run->e->space, TYPE_I64, x->rank, x->dim);
    int giver = type_giver(name);
    if (giver >= 0 && (run->moves || i == giver)) run->from = x->type;
    if (!run->moves) return widen(x, run->in[i]);
    number_elements(run, i, run->in[i]);
    return SOL_OK;
}

static enum sol_status replace_all(struct single_run *run) {
    struct eval *e = run->e;
    run->in = SPACE_ARRAY(e->space, struct array *, e->n_in + 1);
    run->first = SPACE_ARRAY(e->space, int64_t, e->n_in + 1);
    for (int i = 0; i < e->n_in; i++) {
        enum sol_dtype dtype;
        run->in[i] = e->in[i];
        if (!e->in[i]) continue;
        if (!is_tensor(e->in[i])) return fail(SOL_EUNSUPPORTED, "input %d is no tensor", i);
        if (!type_dtype(e->in[i]->type, &dtype)) TRY(replace(run, i));
    }
    return SOL_OK;
}

/* Writes the element of this number to element `i` of a result, which is zero before. */
static void restore_element(const struct single_run *run, int64_t number, struct array *to,
                            int64_t i) {
    for (int k = run->e->n_in - 1; k >= 0 && number; k--) {
        if (!run->first[k] || number < run->first[k]) continue;
        memcpy(array_at(to, i), array_at(run->e->in[k], number - run->first[k]),
               types[to->type].size);
        return;
    }
}

static struct array *restore(const struct single_run *run, struct array *x) {
    const int64_t *value = x->data;
    if (!run->from || x->type != TYPE_I64) return x;
    struct array *to = array_new(run->e->space, run->from, x->rank, x->dim);
    for (int64_t i = 0; i < x->n; i++) {
        if (run->moves) restore_element(run, value[i], to, i);
        else array_set_int(to, i, value[i]);
    }
    return to;
}

/* ---- Building ---- */

static const char *name_of(const struct list *names, int i) {
    return *ITEM(*names, const char *, i);
}

/* Defines the value of input `i` in the import. The builder may read it. */
static enum sol_status bring(struct single_run *run, int i) {
    const char *name = name_of(&run->e->node->inputs, i);
    const struct array *x = run->in[i];
    struct import *im = &run->single->im;
    enum sol_dtype dtype = SOL_I64;
    if (import_find(im, name)) return SOL_OK;
    (void)type_dtype(x->type, &dtype); /* replace_all has refused other types */
    struct data data = import_describe(x, dtype);
    struct import_value *value = import_define(im, name);
    if (!value) return SOL_EINVAL;
    if (x->n > MAX_NUMBERS) import_data(&data, value);
    else import_constant(im, &data, value);
    value->live = value->data;
    value->data = NULL;
    return SOL_OK;
}

/* Notes the types and shapes of inputs and outputs, and the values that were read or computed. */
static void note(struct single_run *run) {
    struct single *s = run->single;
    struct eval *e = run->e;
    s->in = ARENA_ARRAY(&s->arena, struct array, e->n_in + 1);
    s->out = ARENA_ARRAY(&s->arena, struct array, e->n_out + 1);
    for (int i = 0; i < e->n_in; i++) {
        const struct import_value *v =
            run->in[i] ? import_find(&s->im, name_of(&e->node->inputs, i)) : NULL;
        if (!v) continue;
        s->in[i] = *run->in[i];
        size_t size = (size_t)s->in[i].n * types[s->in[i].type].size;
        s->in[i].data = v->is_read ? arena_copy(&s->arena, run->in[i]->data, size + !size) : NULL;
    }
    for (int i = 0; i < e->n_out; i++) {
        const char *name = name_of(&e->node->outputs, i);
        const struct import_value *v = *name ? import_find(&s->im, name) : NULL;
        if (!v) continue;
        const struct array *made = import_array(e->space, v);
        s->out[i] = *made;
        size_t size = (size_t)made->n * types[made->type].size;
        s->out[i].data = v->tensor < 0 ? arena_copy(&s->arena, made->data, size + !size) : NULL;
        if (v->tensor >= 0) sol_model_output(s->im.model, name, v->tensor);
    }
}

static enum sol_status build(struct single_run *run) {
    struct single *s = run->single;
    struct eval *e = run->e;
    s->im = (struct import){.arena = &s->arena,
                            .model = s->im.model,
                            .folder = e->run->folder,
                            .opset = e->opset,
                            .is_single = true};
    import_make_slots(&s->im, 16 + 2 * (size_t)(e->n_in + e->n_out));
    for (int i = 0; i < e->n_in; i++)
        if (run->in[i]) TRY(bring(run, i));
    TRY(import_node(&s->im, e->node));
    note(run);
    for (int k = 0; k < s->im.inputs.n; k++) {
        int i = 0;
        while (!run->in[i] ||
               import_find(&s->im, name_of(&e->node->inputs, i)) != s->im.inputs.at[k])
            i++;
        VEC_PUSH(&s->arena, &s->feed, i);
    }
    return SOL_OK;
}

/* ---- Running ---- */

static bool fits(const struct single *s, const struct single_run *run) {
    for (int i = 0; i < run->e->n_in; i++) {
        const struct array *want = &s->in[i], *have = run->in[i];
        if (!have != !want->type) return false;
        if (have && !array_is_like(have, want)) return false;
    }
    return true;
}

static enum sol_status evaluate(struct single_run *run) {
    const struct single *s = run->single;
    struct eval *e = run->e;
    const void **in = SPACE_ARRAY(e->space, const void *, s->feed.n + 1);
    void **out = SPACE_ARRAY(e->space, void *, e->n_out + 1);
    int n = 0;
    for (int k = 0; k < s->feed.n; k++) in[k] = run->in[s->feed.at[k]]->data;
    for (int i = 0; i < e->n_out; i++) {
        const struct array *as = &s->out[i];
        if (!as->type) continue;
        e->out[i] = array_new(e->space, as->type, as->rank, as->dim);
        if (as->data) memcpy(e->out[i]->data, as->data, (size_t)as->n * types[as->type].size);
        else out[n++] = e->out[i]->data;
    }
    if (n) TRY(sol_model_evaluate(s->im.model, in, s->im.params.at, out));
    for (int i = 0; i < e->n_out; i++)
        if (e->out[i]) e->out[i] = restore(run, e->out[i]);
    return SOL_OK;
}

static enum sol_status compute(void *user) {
    struct single_run *run = user;
    struct single *s = run->single;
    s->arena.boundary = run->e->space->arena.boundary;
    TRY(build(run));
    return evaluate(run);
}

static void free_single(struct single *s) {
    sol_model_free(s->im.model);
    arena_fini(&s->arena);
    mem_free(s);
}

/* Adds the single to the lists; false if it has values of this run, if the node has enough singles, or if nothing is kept while a
 * session is loaded. */
static bool keep(const struct single_run *run, struct node_kind *kind) {
    struct single *s = run->single;
    struct singles *all = run->e->run->singles;
    if (!all || s->im.settled.n || atomic_fetch_add(&kind->n_singles, 1) >= KEPT) return false;
    s->arena.boundary = NULL;
    s->next = atomic_load(&kind->singles);
    while (!atomic_compare_exchange_weak(&kind->singles, &s->next, s)) {}
    s->next_of_all = atomic_load(&all->newest);
    while (!atomic_compare_exchange_weak(&all->newest, &s->next_of_all, s)) {}
    return true;
}

/* A single is no memory of the space, so no jump may pass this function. */
static enum sol_status build_and_run(struct single_run *run, struct node_kind *kind) {
    struct single *s = run->single = mem_alloc(sizeof *s, 16);
    if (!s) return fail(SOL_ENOMEM, "no memory for a node");
    *s = (struct single){.im.model = sol_model_new("node")};
    arena_init(&s->arena);
    enum sol_status status = s->im.model ? space_protect(run->e->space, compute, run)
                                         : fail(SOL_ENOMEM, "no memory for a model");
    if (status || !keep(run, kind)) free_single(s);
    return status;
}

enum sol_status eval_layers(struct eval *e, struct node_kind *kind) {
    struct single_run run = {
        .e = e, .op = kind->compiled, .moves = only_moves(kind->compiled->name)};
    TRY(replace_all(&run));
    for (run.single = atomic_load(&kind->singles); run.single; run.single = run.single->next)
        if (fits(run.single, &run)) return evaluate(&run);
    return build_and_run(&run, kind);
}

void eval_free_singles(struct singles *all) {
    for (struct single *s = atomic_load(&all->newest), *next; s; s = next) {
        next = s->next_of_all;
        free_single(s);
    }
    for (struct kept *block = atomic_load(&all->kept), *next; block; block = next) {
        next = block->next;
        mem_free(block);
    }
}

/* The first block of a node stays; a second call at the same time frees its own. While a session is loaded, nothing is kept. */
void eval_keep(struct eval *e, struct kept *block) {
    struct singles *all = e->run->singles;
    struct kept *none = NULL;
    if (!all || !atomic_compare_exchange_strong(&e->kind->kept, &none, block)) {
        mem_free(block);
        return;
    }
    block->next = atomic_load(&all->kept);
    while (!atomic_compare_exchange_weak(&all->kept, &block->next, block)) {}
}
