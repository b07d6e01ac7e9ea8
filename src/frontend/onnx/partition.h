/*
 * Partitions: partition_plan.c makes them, whose head explains events; partition.c runs them; partitions.c keeps them for later calls.
 */
#ifndef SOL_ONNX_PARTITION_H
#define SOL_ONNX_PARTITION_H

#include "session.h"

#define SMALL 32 /* elements: fewer are not worth a kernel, and may decide shapes */

enum event_kind { GUARD, KNOWN, EARLY, SMALL_EARLY };
/* What a later call repeats before it runs the program: a check of a value, a value that planning has computed, or a node to
 * interpret. A field is set only for the kinds that its comment names. */
struct event {
    enum event_kind kind;
    const char *name;
    struct import_value *value; /* GUARD, while planning: the builder's value of this name */
    struct array *array; /* GUARD: the shape, and the bytes unless data is NULL; KNOWN: the value */
    int node;            /* EARLY, SMALL_EARLY */
    bool varies; /* GUARD: other runs had other values, so the program does not depend on them */
};

/* The nodes from `first` up to, not including, `end`. n_taken of them are in the program; the others are constants or
 * interpreted. */
struct partition {
    atomic_int n_refs;             /* references of the lists and of runs */
    struct partition *next;        /* with the same first node, next older */
    struct partition *next_of_all; /* of the session, next older */
    struct partition_slot *slot;
    atomic_int n_uses;      /* runs */
    atomic_llong last_call; /* the number of the last call that used it */
    struct arena arena;
    int first, end, n_taken;
    VEC(struct event) events;
    VEC(const char *) inputs;
    VEC(const char *) outputs;
    struct sol_model *model; /* while planning */
    struct sol_program *program;
    struct sol_weights *weights;
};

/* Takes references for the run to all partitions that begin with node `first`, newest first, and releases those it had. */
void partitions_hold(struct session_call *call, int first);
/* An empty partition, to which only the run has a reference; stops the call when memory is out. */
struct partition *partitions_new(struct session_call *call, int first);
/* Adds a partition to the lists, for later runs. */
void partitions_keep(struct session_call *call, struct partition *partition);
/* Notes that the run uses the partition. */
void partitions_use(const struct session_call *call, struct partition *partition);
/* No partition from node `first` on fits. In the body of a loop a new one may not be worth its time: returns the end of the nodes
 * to interpret instead, or 0. */
int partitions_skip(struct session_call *call, int first);

/* Between these two functions no other call plans. A caller searches the list again after partitions_begin, since it may have
 * waited. */
void partitions_begin(struct session_call *call);
void partitions_end(struct session_call *call);

/* partition_plan.c: plans and compiles a partition from its first node on, and interprets the nodes of its EARLY events. `previous`:
 * the newest partition with the same first node, or NULL. */
enum sol_status partition_plan(struct session_call *call, struct partition *partition,
                               const struct partition *previous);
/* Have the inputs of node `i` at most SMALL elements, as far as they have values? */
bool partition_is_small(const struct session_call *call, int i);
/* Has the value the type, the shape and, if the guard has them, the bytes of the guard? NULL has not. */
bool partition_guard_holds(const struct event *guard, const struct array *have);

#endif
