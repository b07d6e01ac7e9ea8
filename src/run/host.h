/*
 * Host nodes: functions that compute a part of a program, over the memory of the call's tensors. Two kinds:
 *
 *   sol_model_host   -> struct host_function -> step host_run -> host_call -> the frontend, for an operator that only PyTorch has
 *   sol_model_custom -> the same, with struct host_custom    -> host_call -> the C function of a custom layer (sol/custom.h)
 *
 * Models and programs share the functions. A frontend's function runs on the thread of the call. That of a custom layer may have
 * tasks, which SOL's threads compute.
 */
#ifndef SOL_RUN_HOST_H
#define SOL_RUN_HOST_H

#include "run/program.h"

#include <sol/sol.h>

/* The code of a custom layer: functions, and where they come from. */
struct sol_custom {
    atomic_int n_refs;
    const char *name; /* of the layer, and of the function */
    sol_custom_run *run;
    sol_custom_tasks *tasks; /* NULL: one task */
    const char *text,
        *flags;   /* C text, of which libraries are made; NULL: there are compiled functions only */
    void *module; /* loaded machine code, which `close` frees; NULL: none */
    void (*close)(void *module);
};

/* A custom layer: code with attributes. */
struct host_custom {
    sol_custom_run *run;
    sol_custom_tasks *tasks;
    int n_attributes;
    const struct sol_attribute *attribute;
    struct sol_custom *code; /* NULL in deployed libraries */
};
/* The function of a struct sol_host whose `user` is a struct host_custom. */
enum sol_status host_run_custom(void *user, const struct sol_host_call *call);

/* The function of a struct sol_host. Models and programs hold references; the last one calls `release`. */
struct host_function {
    atomic_int n_refs;
    enum sol_status (*run)(void *user, const struct sol_host_call *call);
    void *user;
    void (*release)(void *user);
    const struct host_custom *custom; /* `user`, if it is a custom layer; else NULL */
};

/* NULL: out of memory, also when the custom layer `host->user` was made; `host->release` has been called then. */
struct host_function *host_new(const struct sol_host *host);
void host_retain(struct host_function *function);
void host_release(struct host_function *function); /* NULL is fine */

/* The number of tasks of a call, of which only types and dims are read: 0 if there is nothing to compute. */
int64_t host_count_tasks(const struct host_function *function, const struct sol_host_call *call);
/* Calls the function for the tasks from call->begin to call->end. `what` names the node in the message of an error: "aten.foo (net.py:7)". EUNSUPPORTED if there is no
 * function, because the model was read from text. EINVAL if the call has no tasks, but an output that is not empty. */
enum sol_status host_call(const struct host_function *function, const char *what,
                          const struct sol_host_call *call);

/* The step of module HOST: data = struct host_step; ptr = inputs, outputs; arg = the values of the symbols, then the dims of all
 * inputs and outputs. It has one task, except where a custom layer has NAME_tasks. */
struct host_step {
    struct host_function *function; /* of the program */
    const char *what;
    int n_in, n_out, n_symbols;
    const struct sol_host_tensor *tensor; /* types and ranks of inputs and outputs */
};
/* Bytes of scratch that host_run needs. */
size_t host_scratch_size(const struct host_step *host);
extern const struct step_kind step_host;   /* on the thread of the call */
extern const struct step_kind step_custom; /* a custom layer with tasks */

#endif
