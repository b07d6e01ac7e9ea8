/*
 * Requests: what the caller of a call passes, and its checks. For all devices.
 *
 *   sol_program_run, .. (request.c) -> struct request -> request_check -> exec.c on the host | far.c on a far device
 */
#ifndef SOL_REQUEST_H
#define SOL_REQUEST_H

#include "run/program.h"

/* What the caller of a call passes. */
struct request {
    const struct sol_program *program;
    const struct sol_weights *weights;
    enum phase phase;
    const int64_t *symbols;
    const void *const *inputs;
    void *const *outputs; /* NULL: not known yet */
    void *saved;
};

/* EINVAL if the request cannot be run: a negative symbol, a pointer that is NULL, no memory for what is saved. */
enum sol_status request_check(const struct request *request);
enum sol_status request_check_outputs(const struct request *request);
/* EINVAL if the value of a symbol is negative. */
enum sol_status request_check_symbols(const struct sol_program *program, const int64_t *symbols);
/* EINVAL if one of the n pointers to ports of this phase is NULL and its tensor is not empty; `what` names the kind of port in the
 * message. symbols: NULL for parameters, whose sizes are known. */
enum sol_status request_check_pointers(const struct sol_program *program, const int64_t *symbols,
                                       enum phase phase, const char *what, int n,
                                       const void *const *pointer, const struct sol_port *port);
/* Does the caller pass memory for this port in this phase? Parameters are passed in PREPACK. */
bool request_has_port(const struct sol_port *port, enum phase phase);
/* Is the value of a symbol 0? */
bool request_is_empty(const struct sol_program *program, const int64_t *symbols);

/* ---- exec.c: on the host ---- */

/* Runs all steps. Adds the time of step i to seconds[i], unless `seconds` is NULL. The request has been checked. */
enum sol_status exec_run(const struct request *request, double *seconds);
/* The same, while the guard is evaluated: sol_program_run_speculative. It checks the request. */
enum sol_status exec_run_speculative(bool (*guard)(void *user), void *user,
                                     const struct request *request, void *const *outputs);

#endif
