/*
 * Partitions: partition.c plans and runs them, partitions.c keeps them for later calls. The head of partition.c explains events.
 */
#ifndef SOL_ONNX_PARTITION_H
#define SOL_ONNX_PARTITION_H

#include "session.h"

enum event_kind { GUARD, KNOWN, EARLY };
/* What a later call repeats before it runs the program: a check of a value, a value that planning has computed, or a node to
 * interpret. A field is set only for the kinds that its comment names. */
struct event {
    enum event_kind kind;
    const char *name;
    struct import_value *value; /* GUARD, while planning: the builder's value of this name */
    struct array *array; /* GUARD: the shape, and the bytes unless data is NULL; KNOWN: the value */
    int node;            /* EARLY */
};

/* The nodes from `first` up to, not including, `end`. n_taken of them are in the program; the others are constants or
 * interpreted. */
struct partition {
    atomic_int n_refs;      /* references of the list and of calls */
    struct partition *next; /* in the list */
    struct arena arena;
    int first, end, n_taken;
    VEC(struct event) events;
    VEC(const char *) inputs;
    VEC(const char *) outputs;
    struct sol_model *model; /* while planning */
    struct sol_program *program;
    struct sol_weights *weights;
};

/* Takes references for the call to all partitions that begin with node `first`, newest first, and releases those it had. */
void partitions_hold(struct session_call *call, int first);
/* An empty partition, to which the call has the only reference; stops the call when memory is out. */
struct partition *partitions_new(struct session_call *call, int first);
/* Adds a partition to the list, for later calls. */
void partitions_keep(struct session_graph *graph, struct partition *partition);

/* Between these two functions no other call plans. A caller searches the list again after partitions_begin, since it may have
 * waited. */
void partitions_begin(struct session_call *call);
void partitions_end(struct session_call *call);

#endif
