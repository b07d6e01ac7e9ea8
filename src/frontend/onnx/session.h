/*
 * Sessions: run a graph whose partitions are compiled; the other nodes are interpreted.
 *
 *   session.c    the public functions; a call: inputs, nodes from the first to the last, outputs
 *   partition.c  plans and runs one partition, for known shapes and shape values
 *   partitions.c the list of partitions that calls share
 *   eval.h       the interpreter
 */
#ifndef SOL_ONNX_SESSION_H
#define SOL_ONNX_SESSION_H

#include "base/lock.h"
#include "eval.h"
#include "import.h"

#include <sol/onnx.h>

#define PARTITIONS_KEPT 16 /* with the same first node, for different shapes or values; a further one replaces the oldest */
struct partition;
/* A graph that is ready to run: what is known of it without inputs, and the partitions of earlier calls. */
struct session_graph {
    const struct onnx_graph *graph;
    const char *folder;
    int64_t opset;
    struct sol_options options;
    struct scope *constants; /* initializers, and results of nodes that depend on no input */
    bool *is_constant;       /* by node: its results are in `constants` */
    struct scope *last_use;  /* by name: the last node that reads it, as a scalar array */
    struct lock lock;        /* protects `planner` and `partitions` */
    int planner;             /* the process whose call plans a partition now; 0: no call plans */
    struct partition *partitions; /* newest first */
};

/* State of one call. */
struct session_call {
    struct session_graph *graph;
    struct eval_context run;
    struct scope *scope; /* values of this call; its outer scope is `constants` */
    bool *done;          /* by node: already interpreted in this call */
    int n_compiled, n_interpreted;
    int n_held; /* partitions that the call has a reference to */
    struct partition *held[PARTITIONS_KEPT];
    bool is_planner;
};

/* Runs nodes from `first` on, up to the end of one partition; *end is the node after it. */
enum sol_status partition_run(struct session_call *call, int first, int *end);
/* partitions.c: releases what a call holds, at its end, also after an error; releases all partitions of the session. */
void partitions_leave(struct session_call *call);
void partitions_free(struct session_graph *graph);
/* Interprets node `i`, unless this call has done so already. An error names the node. */
enum sol_status session_interpret(struct session_call *call, int i);

#endif
