/*
 * Mixed networks: a graph whose nodes run compiled where the builder takes them, interpreted elsewhere.
 *
 *   mixed.c    the public functions; a call: inputs, nodes from the first to the last, outputs
 *   segment.c  a run of nodes that became one program, for known shapes and numbers
 *   segments.c those that calls share
 *   eval.h     the interpreter
 */
#ifndef SOL_ONNX_MIXED_H
#define SOL_ONNX_MIXED_H

#include "base/lock.h"
#include "eval.h"
#include "import.h"

#include <sol/onnx.h>

#define SEGMENTS_KEPT 16 /* from one node on: for other shapes or numbers; then the oldest goes */
struct segment;
/* A graph that is ready to be called: what is known of it without inputs, and what earlier calls compiled. */
struct mixed_graph {
    const struct onnx_graph *graph;
    const char *folder;
    int64_t opset;
    struct sol_options options;
    struct scope *constants;  /* initializers, and what Constant nodes give: they outlive calls */
    bool *is_constant;        /* by node: its result is among the constants */
    struct scope *last_use;   /* by name: the last node that reads it, as an array of one number */
    struct lock lock;         /* guards the two below */
    int planner;              /* the process in which a call plans; 0: none does */
    struct segment *segments; /* newest first */
};

/* A call's state. */
struct pass {
    struct mixed_graph *graph;
    struct run run;
    struct scope *scope; /* below the constants */
    bool *done;          /* by node: interpreted already in this call */
    int n_compiled, n_interpreted;
    int n_held; /* segments that it uses, or looks at */
    struct segment *held[SEGMENTS_KEPT];
    bool is_planner;
};

/* Runs nodes from `first` on, as far as one segment goes; *end is the first that is left. */
enum sol_status segment_run(struct pass *pass, int first, int *end);
/* segments.c: at the end of a call, however it ends; and of the network. */
void segments_leave(struct pass *pass);
void segments_free(struct mixed_graph *graph);
/* Node `i` by the interpreter, once per call; its error names it. */
enum sol_status pass_interpret(struct pass *pass, int i);

#endif
