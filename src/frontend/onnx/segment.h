/*
 * Segments: what segment.c makes and runs, and segments.c keeps for later calls.
 */
#ifndef SOL_ONNX_SEGMENT_H
#define SOL_ONNX_SEGMENT_H

#include "mixed.h"

enum event_kind { GUARD, KNOWN, EARLY };
/* What its kind does not need is not set. */
struct event {
    enum event_kind kind;
    const char *name;
    struct value *value; /* GUARD, while planning: what the builder reads */
    struct array *array; /* GUARD: shape, and bytes unless data is NULL; KNOWN: the value */
    int node;            /* EARLY */
};

/* `first` is the node that it begins with, `end` the one behind its last; n_taken of those in between are in the program, the
 * others are constants or were interpreted. */
struct segment {
    atomic_int n_refs;    /* of the list and of calls */
    struct segment *next; /* in the list */
    struct arena arena;
    int first, end, n_taken;
    VEC(struct event) events;
    VEC(const char *) inputs;
    VEC(const char *) outputs;
    VEC(bool) truths;        /* by output: a truth value, which is 0 or 1 in the program */
    struct sol_model *model; /* while planning */
    struct sol_program *program;
    struct sol_weights *weights;
};

/* The call holds those that begin with that node, newest first, and no others. */
void segments_hold(struct pass *pass, int first);
/* An empty one, which the call holds; stops when memory is out. */
struct segment *segments_new(struct pass *pass, int first);
/* For later calls, too, from now on. */
void segments_keep(struct mixed_graph *graph, struct segment *segment);

/* Only the call between these two plans; it looks again first, as it may have waited. */
void segments_begin(struct pass *pass);
void segments_end(struct pass *pass);

#endif
