/*
 * Sessions: run a graph whose partitions are compiled; the other nodes are interpreted.
 *
 *   session_load.c    reads a file; finds what does not depend on inputs
 *   session.c         the public functions; a call: inputs, outputs
 *   session_call.c    runs the nodes of a graph from the first to the last; the subgraphs of control flow
 *   partition_plan.c  plans and compiles one partition, for known shapes and shape values
 *   partition.c       finds the partition that fits, and runs it
 *   partitions.c      the partitions that calls share
 *   session_profile.c the times of a profiled call
 *   eval.h            the interpreter
 *
 * Subgraphs (the branches of If, the bodies of Loop and Scan) are run as the outer graph is, so they are compiled, too. Each node
 * with subgraphs has a struct session_graph for each of them, made while loading.
 */
#ifndef SOL_ONNX_SESSION_H
#define SOL_ONNX_SESSION_H

#include "base/lock.h"
#include "eval.h"
#include "import.h"

#include <sol/onnx.h>

#define PARTITIONS_KEPT 16 /* with the same first node, for different shapes or values */
#define PARTITIONS_ALL 1024 /* of all nodes of a session together. Beyond a limit, the one that was not used for longest goes */
struct partition;

/* What all graphs of a session share. */
struct session_shared {
    const char *folder;
    int64_t opset;
    struct sol_options options;
    struct lock lock; /* protects all that follows, and the slots of all graphs */
    int planner;      /* the process whose call plans a partition now; 0: no call plans */
    int n_partitions;
    struct partition *partitions; /* of all graphs, newest first */
    int64_t n_calls;
    struct singles singles;
};

/* The partitions that begin with one node. The counts are for bodies of loops only (partitions_skip). */
struct partition_slot {
    struct partition *newest;
    int n_wasted; /* plans in a row that were never used again */
    int n_waits;  /* runs that are interpreted before the next plan */
};

/* A graph that is ready to run: what is known of it without inputs, and the partitions of earlier runs. */
struct session_graph {
    struct session_shared *shared;
    const struct onnx_graph *graph;
    bool is_inner, is_loop; /* a subgraph; a subgraph that may run many times in one call */
    bool hides;             /* defines names that outer graphs define, too */
    struct scope *names;    /* that the graph defines, without its subgraphs */
    int n_names;
    int max_names; /* that it and its subgraphs define and read: an import may need them all */
    struct scope *constants;      /* initializers, and results of nodes that depend on no input */
    bool *is_constant;            /* by node: its results are in `constants` */
    struct scope *last_use;       /* by name: the last node that reads it, as a scalar array */
    struct session_graph **inner; /* by node, by attribute: subgraphs; NULL: the node has none */
    struct node_kind *kinds;      /* by node */
    struct partition_slot *slots; /* by first node */
};

/* One run of a graph: of the outer graph, a branch, or one iteration of a body. It is in the call's space. */
struct session_call {
    struct session_graph *graph;
    struct eval_context *run;
    struct session_call *outer; /* the run of the graph around this one; NULL: none */
    struct scope *scope; /* its values; then constants of the graph; then the outer run's scope */
    bool *done;          /* by node: already interpreted in this run */
    int node;            /* that runs now, for messages; -1: none */
    int n_held;          /* partitions that the run has a reference to, newest first */
    struct partition *held[PARTITIONS_KEPT + 1];
    bool is_planner;
};

/* Starts a run inside run->call, which it becomes; ends it again. After an error, the runs stay: session_fail prefixes the
 * message with the node of each, and ends all of them. */
struct session_call *session_enter(struct eval_context *run, struct session_graph *graph);
void session_leave(struct session_call *call);
void session_fail(struct eval_context *run);
/* Runs all nodes, after the caller has set the inputs in the scope. */
enum sol_status session_run_nodes(struct session_call *call);
/* Interprets node `i`, unless this run has done so already. */
enum sol_status session_interpret(struct session_call *call, int i);
/* Runs nodes from `first` on, up to the end of one partition; *end is the node after it. */
enum sol_status partition_run(struct session_call *call, int first, int *end);

/* session_load.c: fills `graph`, which is zero but for `shared`, from the bytes of a file. */
enum sol_status session_load(struct space *space, struct bytes file, const char *folder,
                             struct session_graph *graph);
/* The state of a call, whose time limit starts here. */
struct eval_context session_context(struct space *space, struct session_shared *shared);
/* "node 3, Conv "name"": the node that the run is at. */
void session_add_node(struct text *text, const struct session_call *call);

/* session_profile.c: the times of a call. */
struct session_profile {
    struct arena arena;
    struct profile_row *last, *found;
    double seconds; /* of all rows */
};
/* Adds the time of step `at` of the partition `owner`. */
void session_profile_step(struct session_profile *profile, const void *owner, int at,
                          const struct sol_step_time *time);
/* Interprets node call->node, and adds its time. */
enum sol_status session_profile_node(struct session_call *call, const struct onnx_node *node);
/* Visits the rows in the order in which they ran first. */
void session_profile_visit(const struct session_profile *profile,
                           void (*visit)(void *user, const struct sol_step_time *step), void *user);

/* partitions.c: releases what a run holds, also after an error; releases all partitions of the session. */
void partitions_leave(struct session_call *call);
void partitions_free(struct session_shared *shared);
/* Counts the calls of a session. */
int64_t partitions_number(struct session_shared *shared);

#endif
