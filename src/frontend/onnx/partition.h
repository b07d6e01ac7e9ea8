/*
 * Partitions: what partition.c makes and runs, and partitions.c keeps for later calls.
 */
#ifndef SOL_ONNX_PARTITION_H
#define SOL_ONNX_PARTITION_H

#include "session.h"

enum event_kind { GUARD, KNOWN, EARLY };
/* What its kind does not need is not set. */
struct event {
    enum event_kind kind;
    const char *name;
    struct import_value *value; /* GUARD, while planning: what the builder reads */
    struct array *array;        /* GUARD: shape, and bytes unless data is NULL; KNOWN: the value */
    int node;                   /* EARLY */
};

/* `first` is the node that it begins with, `end` the one behind its last; n_taken of those in between are in the program, the
 * others are constants or were interpreted. */
struct partition {
    atomic_int n_refs;      /* of the list and of calls */
    struct partition *next; /* in the list */
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
void partitions_hold(struct session_call *call, int first);
/* An empty one, which the call holds; stops when memory is out. */
struct partition *partitions_new(struct session_call *call, int first);
/* For later calls, too, from now on. */
void partitions_keep(struct session_graph *graph, struct partition *partition);

/* Only the call between these two plans; it looks again first, as it may have waited. */
void partitions_begin(struct session_call *call);
void partitions_end(struct session_call *call);

#endif
