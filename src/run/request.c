/*
 * Requests: checks what the caller of a call passes, and runs the program where it was compiled for.
 *
 *   sol_program_run, sol_program_forward, sol_program_backward, sol_program_profile -> request_check -> run
 *
 * Deployed libraries contain this file, so it reaches far devices by the table of a program, never by name.
 */
#include "run/request.h"

#include <stdio.h>
#include <string.h>

/* ---- Checks ---- */

bool request_is_empty(const struct sol_program *program, const int64_t *symbols) {
    for (int i = 0; i < program->n_symbols; i++)
        if (symbols[i] == 0) return true;
    return false;
}

/* A tensor without elements may have no memory. A dim that is a formula (ir_show_dims) may be 0 if a symbol is. */
static bool may_be_empty(const struct sol_program *program, const int64_t *symbols,
                         const struct sol_port *port) {
    for (int d = 0; d < port->rank; d++) {
        const int64_t dim = port->dim[d];
        if (dim == INT64_MIN ? request_is_empty(program, symbols)
                             : (dim < 0 ? symbols[-1 - dim] : dim) == 0)
            return true;
    }
    return false;
}

bool request_has_port(const struct sol_port *port, enum phase phase) {
    if (phase == BACKWARD) return port->is_backward || port->is_saved;
    return !port->is_backward;
}

enum sol_status request_check_pointers(const struct sol_program *program, const int64_t *symbols,
                                       enum phase phase, const char *what, int n,
                                       const void *const *pointer, const struct sol_port *port) {
    for (int i = 0; i < n; i++)
        if (!pointer[i] && request_has_port(&port[i], phase) &&
            !may_be_empty(program, symbols, &port[i]))
            return fail(SOL_EINVAL, "%s %d (%s) is NULL", what, i, port[i].name);
    return SOL_OK;
}

enum sol_status request_check_outputs(const struct request *r) {
    return request_check_pointers(r->program, r->symbols, r->phase, "output", r->program->n_outputs,
                                  (const void *const *)r->outputs, r->program->output);
}

enum sol_status request_check_symbols(const struct sol_program *program, const int64_t *symbols) {
    for (int i = 0; i < program->n_symbols; i++)
        if (symbols[i] < 0)
            return fail(SOL_EINVAL, "symbol %d is %lld: sizes are >= 0", i, (long long)symbols[i]);
    return SOL_OK;
}

/* Are there values to save, but no memory for them? */
static enum sol_status check_saved(const struct request *r) {
    size_t size = 0;
    if (!r->program->n_saved || r->saved) return SOL_OK;
    TRY(sol_program_saved_size(r->program, r->symbols, &size));
    if (!size) return SOL_OK;
    return fail(SOL_EINVAL, "there is no memory for %zu bytes that the backward call needs", size);
}

enum sol_status request_check(const struct request *r) {
    const struct sol_program *program = r->program;
    TRY(request_check_symbols(program, r->symbols));
    TRY(check_saved(r));
    TRY(request_check_pointers(program, r->symbols, r->phase, "input", program->n_inputs, r->inputs,
                               program->input));
    return r->outputs ? request_check_outputs(r) : SOL_OK;
}

/* ---- Runs ---- */

static enum sol_status run_steps(const struct request *r, double *seconds) {
    const struct runner *runner = r->program->runner;
    TRY(request_check(r));
    return runner ? runner->run(r, seconds) : exec_run(r, seconds);
}

/* SOL_DEBUG=time: prints one line per step and call. */
static void print_time(void *user, const struct sol_step_time *step) {
    (void)user;
    fprintf(stderr, "%10.1f us %8.1f GF/s %7.1f GB/s  %-5s %-40s %s\n", step->seconds * 1e6,
            step->flops / step->seconds * 1e-9, step->bytes / step->seconds * 1e-9, step->module,
            step->name, step->layers);
}

/* Reports one step. Called after the run, so that the visitor's own time is not measured. */
static void visit_step(const struct step *step, const int64_t *symbol, bool is_backward,
                       double seconds, void (*visit)(void *user, const struct sol_step_time *step),
                       void *user) {
    struct sol_step_time time = {.name = step->name,
                                 .module = step->module,
                                 .layers = step->layers,
                                 .seconds = seconds,
                                 .flops = (double)size_eval(&step->flops, symbol),
                                 .bytes = (double)size_eval(&step->bytes, symbol),
                                 .cluster = step->cluster,
                                 .implementation =
                                     step->implementation ? step->implementation : step->name,
                                 .n_candidates = step->n_candidates,
                                 .candidate = step->candidate,
                                 .choice = step->choice ? step->choice : "",
                                 .is_backward = is_backward};
    visit(user, &time);
}

/* Measures each step, and calls `visit` for all of them after the run. */
static enum sol_status profile(const struct request *r,
                               void (*visit)(void *user, const struct sol_step_time *step),
                               void *user) {
    const struct sol_program *p = r->program;
    const struct step_list *list = &p->phase[r->phase];
    int64_t symbol[SIZE_SYMBOLS];
    double *seconds = mem_alloc(sizeof(double) * (size_t)(list->n + 1), 16);
    if (!seconds) return fail(SOL_ENOMEM, "no memory to profile %d steps", list->n);
    enum sol_status status = run_steps(r, seconds);
    if (!status) formulas_derive(&p->formulas, r->symbols, p->n_symbols, symbol);
    for (int i = 0; i < list->n && !status; i++)
        visit_step(&list->at[i], symbol, r->phase == BACKWARD, seconds[i], visit, user);
    mem_free(seconds);
    return status;
}

static enum sol_status run(const struct request *r) {
    return r->program->is_timed ? profile(r, print_time, NULL) : run_steps(r, NULL);
}

/* For callers that make one call of it. */
static enum sol_status refuse_backward(const struct sol_program *program) {
    if (!program->phase[BACKWARD].n) return SOL_OK;
    return fail(
        SOL_EUNSUPPORTED,
        "a network with a backward part runs by sol_program_forward and sol_program_backward");
}

enum sol_status sol_program_run(const struct sol_program *program,
                                const struct sol_weights *weights, const int64_t *symbols,
                                const void *const *inputs, void *const *outputs) {
    TRY(refuse_backward(program));
    return run(&(struct request){program, weights, FORWARD, symbols, inputs, outputs, NULL});
}

enum sol_status sol_program_forward(const struct sol_program *program,
                                    const struct sol_weights *weights, const int64_t *symbols,
                                    const void *const *inputs, void *const *outputs, void *saved) {
    return run(&(struct request){program, weights, FORWARD, symbols, inputs, outputs, saved});
}

enum sol_status sol_program_backward(const struct sol_program *program, struct sol_weights *weights,
                                     const int64_t *symbols, const void *const *inputs,
                                     void *const *outputs, void *saved) {
    TRY(weights_pack_backward(weights));
    return run(&(struct request){program, weights, BACKWARD, symbols, inputs, outputs, saved});
}

enum sol_status sol_program_profile(const struct sol_program *program, struct sol_weights *weights,
                                    const int64_t *symbols, const void *const *inputs,
                                    void *const *outputs,
                                    void (*visit)(void *user, const struct sol_step_time *step),
                                    void *user) {
    size_t size;
    struct request r = {program, weights, FORWARD, symbols, inputs, outputs, NULL};
    if (!program->phase[BACKWARD].n) return profile(&r, visit, user);
    TRY(sol_program_saved_size(program, symbols, &size));
    r.saved = mem_alloc(size + 1, 64);
    if (!r.saved) return fail(SOL_ENOMEM, "no %zu bytes for saved values", size);
    enum sol_status status = profile(&r, visit, user);
    r.phase = BACKWARD;
    if (!status) status = weights_pack_backward(weights);
    if (!status) status = profile(&r, visit, user);
    sol_program_saved_free(program, r.saved);
    mem_free(r.saved);
    return status;
}

enum sol_status sol_program_run_speculative(bool (*ask)(void *user), void *user,
                                            const struct sol_program *program,
                                            const struct sol_weights *weights,
                                            const int64_t *symbols, const void *const *inputs,
                                            void *const *outputs) {
    const struct request r = {program, weights, FORWARD, symbols, inputs, NULL, NULL};
    if (program->is_timed || program->runner || program->phase[BACKWARD].n ||
        request_is_empty(program, symbols))
        return ask(user) ? sol_program_run(program, weights, symbols, inputs, outputs) : SOL_OK;
    return exec_run_speculative(ask, user, &r, outputs);
}
