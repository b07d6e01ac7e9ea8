/*
 * Host nodes: functions of the frontend that compute a part of a program, such as an operator that only PyTorch has.
 *
 *   sol_model_host -> struct host_function, shared by models and programs -> step host_run -> host_call -> the frontend
 *
 * A function runs at every call, on the thread of the call, over the memory of the call's tensors.
 */
#ifndef SOL_RUN_HOST_H
#define SOL_RUN_HOST_H

#include "run/program.h"

#include <sol/sol.h>

/* The function of a struct sol_host. Models and programs hold references; the last one calls `release`. */
struct host_function {
    atomic_int n_refs;
    enum sol_status (*run)(void *user, const struct sol_host_call *call);
    void *user;
    void (*release)(void *user);
};

/* NULL: out of memory; `host->release` has been called then. */
struct host_function *host_new(const struct sol_host *host);
void host_retain(struct host_function *function);
void host_release(struct host_function *function); /* NULL is fine */

/* Calls the function. `what` names the node in the message of an error: "aten.foo (net.py:7)". EUNSUPPORTED if there is no
 * function, because the model was read from text. */
enum sol_status host_call(const struct host_function *function, const char *what,
                          struct sol_host_call *call);

/* The step of module HOST: data = struct host_step; ptr = inputs, outputs; arg = the values of the symbols, then the dims of all
 * inputs and outputs. It has one task. */
struct host_step {
    struct host_function *function; /* of the program */
    const char *what;
    int n_in, n_out, n_symbols;
    const struct sol_host_tensor *tensor; /* types and ranks of inputs and outputs */
};
/* Bytes of scratch that host_run needs. */
size_t host_scratch_size(const struct host_step *host);
void host_run(const struct step *step, void *const *ptr, const int64_t *arg, void *scratch,
              int64_t begin, int64_t end);
int64_t host_n_tasks(const struct step *step, const int64_t *arg);

#endif
