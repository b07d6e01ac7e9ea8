/*
 * Sessions: run a graph of which the builder compiles partitions; the other nodes are interpreted.
 *
 *   session.c    the public functions; a call: inputs, nodes from the first to the last, outputs
 *   partition.c  consecutive nodes that became one program, for known shapes and shape values
 *   partitions.c those that calls share
 *   eval.h       the interpreter
 */
#ifndef SOL_ONNX_SESSION_H
#define SOL_ONNX_SESSION_H

#include "base/lock.h"
#include "eval.h"
#include "import.h"

#include <sol/onnx.h>

#define PARTITIONS_KEPT 16 /* from one node on: for other shapes or numbers; then the oldest goes */
struct partition;
/* A graph that is ready to be called: what is known of it without inputs, and what earlier calls compiled. */
struct session_graph {
    const struct onnx_graph *graph;
    const char *folder;
    int64_t opset;
    struct sol_options options;
    struct scope *constants; /* initializers, and what Constant nodes give: they outlive calls */
    bool *is_constant;       /* by node: its result is among the constants */
    struct scope *last_use;  /* by name: the last node that reads it, as an array of one number */
    struct lock lock;        /* guards the two below */
    int planner;             /* the process in which a call plans; 0: none does */
    struct partition *partitions; /* newest first */
};

/* A call's state. */
struct session_call {
    struct session_graph *graph;
    struct eval_context run;
    struct scope *scope; /* below the constants */
    bool *done;          /* by node: interpreted already in this call */
    int n_compiled, n_interpreted;
    int n_held; /* partitions that it uses, or looks at */
    struct partition *held[PARTITIONS_KEPT];
    bool is_planner;
};

/* Runs nodes from `first` on, as far as one partition goes; *end is the first that is left. */
enum sol_status partition_run(struct session_call *call, int first, int *end);
/* partitions.c: at the end of a call, however it ends; and of the network. */
void partitions_leave(struct session_call *call);
void partitions_free(struct session_graph *graph);
/* Node `i` by the interpreter, once per call; its error names it. */
enum sol_status session_interpret(struct session_call *call, int i);

#endif
