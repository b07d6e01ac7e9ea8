/*
 * Running a program: resolves each step's pointers and passes its tasks to the thread pool.
 *
 *   run -> begin_call: binding, workspace, pool -> run_list -> run_section -> run_step -> end_call
 *
 * Steps run one after the other; the tasks of one step are independent. A call takes the program's lock twice, to get and
 * to return its binding, and allocates nothing if the binding has an idle workspace.
 */
#include "run/bind.h"
#include "run/pool.h"
#include "run/program.h"

#include <stdio.h>
#include <string.h>

/* The base addresses of all buffers of one call. */
struct bases {
    const void *const *input, *const *param;
    void *const *output;
    char *arena, *const *packed, *saved;
};

static void *resolve(const struct bases *base, const struct buffer_ref *ref, int64_t offset) {
    switch (ref->kind) {
    case BUFFER_INPUT: return (char *)(uintptr_t)base->input[ref->index] + offset;
    case BUFFER_PARAM: return (char *)(uintptr_t)base->param[ref->index] + offset;
    case BUFFER_OUTPUT: return (char *)base->output[ref->index] + offset;
    case BUFFER_ARENA: return base->arena + offset;
    case BUFFER_PACKED: return base->packed[ref->index] + offset;
    case BUFFER_SAVED: return base->saved + offset;
    case BUFFER_NONE: break;
    }
    return NULL;
}

/* Set by a failing task of this thread, cleared by exec_take_failure. */
static _Thread_local enum sol_status task_status;

void exec_fail(enum sol_status status) { task_status = status; }

enum sol_status exec_take_failure(void) {
    enum sol_status status = task_status;
    task_status = SOL_OK;
    return status;
}

/* One step on the pool. Status and message are those of the first task that failed; the message is copied, as sol_error() of
 * one thread is not visible to others. */
struct job {
    const struct step *step;
    void **ptr;
    const int64_t *arg;
    struct workspace *workspace;
    atomic_int n_failures;
    enum sol_status status;
    char message[1024];
};

static void note_failure(struct job *job, enum sol_status status) {
    if (atomic_fetch_add(&job->n_failures, 1)) return;
    job->status = status;
    snprintf(job->message, sizeof job->message, "%s", sol_error());
}

static void run_tasks(void *user, int thread, int64_t begin, int64_t end) {
    struct job *job = user;
    char *scratch = job->workspace->scratch + (size_t)thread * job->workspace->scratch_stride;
    job->step->run(job->step, job->ptr, job->arg, scratch, begin, end);
    enum sol_status status = exec_take_failure();
    if (status) note_failure(job, status);
}

/* One call in flight. */
struct call {
    bool has_pool;
    int n_threads;
    struct binding *binding;
    struct workspace *workspace;
    struct bases base;
};

/* The samples that a step computes: from number `first` on, as many as `bound` was evaluated for. */
struct micro_batch {
    int64_t first;
    const struct bound *bound;
};

static void init_job(struct job *job, const struct call *call, const struct step *step, int i,
                     const struct micro_batch *micro_batch) {
    const struct binding *b = call->binding;
    void **ptr = call->workspace->pointers;
    for (int p = 0; p < step->n_ptr; p++)
        ptr[p] = resolve(&call->base, &step->ptr[p],
                         b->ptr_offset[i][p] + micro_batch->first * b->ptr_sample_stride[i][p]);
    job->step = step, job->ptr = ptr, job->arg = micro_batch->bound->arg[i];
    job->workspace = call->workspace;
    job->status = SOL_OK; /* the message needs no clearing: it is read only after a failure */
    atomic_init(&job->n_failures, 0);
}

/* After all tasks: repeats the failure of a task on the caller's thread. */
static enum sol_status step_status(const struct job *job) {
    return job->status ? fail(job->status, "%s", job->message) : SOL_OK;
}

/* The grain makes about four chunks per thread: enough to balance load, few enough to cost little. A call without the pool uses
 * one thread: its workspace has scratch for one thread only. */
static enum sol_status run_step(const struct call *call, const struct step *step, int i,
                                const struct micro_batch *micro_batch) {
    int64_t n = micro_batch->bound->n_tasks[i];
    if (n == 0) return SOL_OK;
    struct job job;
    init_job(&job, call, step, i, micro_batch);
    if (call->n_threads > 1 && !step->on_caller)
        pool_run(n, max_i64(1, n / (4 * call->n_threads)), run_tasks, &job);
    else run_tasks(&job, 0, 0, n);
    return step_status(&job);
}

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

static void set_bases(struct call *call, const struct request *r) {
    call->base = (struct bases){.input = r->inputs,
                                .param = r->weights->param,
                                .output = r->outputs,
                                .arena = call->workspace->arena,
                                .packed = r->weights->packed.slot,
                                .saved = r->saved};
}

/* If another call has the pool, this one does not wait but runs on its own thread. */
static void take_pool(struct call *call) {
    call->has_pool = pool_begin();
    call->n_threads = call->has_pool ? pool_threads() : 1;
}
static void leave_pool(struct call *call) {
    if (call->has_pool) pool_end();
}

/* Runs steps [first, section->end) on one micro-batch after the other; `seconds`: as for run_list. */
static enum sol_status run_section(const struct call *call, const struct section *section,
                                   int first, double *seconds) {
    const int64_t batch = call->binding->symbol[0], size = section->micro_batch;
    struct micro_batch micro_batch = {0, &call->binding->full};
    do {
        if (micro_batch.first + size > batch) micro_batch.bound = &call->binding->rest;
        for (int i = first; i < section->end; i++) {
            const double start = seconds ? os_now() : 0;
            TRY(run_step(call, call->binding->step[i], i, &micro_batch));
            if (seconds) seconds[i] += os_now() - start;
        }
        micro_batch.first += size;
    } while (micro_batch.first < batch);
    return SOL_OK;
}

/* Runs all steps except the first `done` ones. Adds the time of step i to seconds[i], unless `seconds` is NULL. */
static enum sol_status run_list(const struct call *call, int done, double *seconds) {
    for (int i = 0; i < call->binding->n_sections; i++) {
        const struct section *section = &call->binding->section[i];
        if (section->end <= done) continue;
        const int first = section->begin > done ? section->begin : done;
        TRY(run_section(call, section, first, seconds));
    }
    return SOL_OK;
}

static bool is_empty_call(const struct sol_program *program, const int64_t *symbols) {
    for (int i = 0; i < program->n_symbols; i++)
        if (symbols[i] == 0) return true;
    return false;
}

/* A tensor without elements may have no memory. A dim that is a formula (ir_show_dims) may be 0 if a symbol is. */
static bool may_be_empty(const struct sol_program *program, const int64_t *symbols,
                         const struct sol_port *port) {
    for (int d = 0; d < port->rank; d++) {
        const int64_t dim = port->dim[d];
        if (dim == INT64_MIN ? is_empty_call(program, symbols)
                             : (dim < 0 ? symbols[-1 - dim] : dim) == 0)
            return true;
    }
    return false;
}

/* Does the caller pass memory for this port in this phase? Parameters are passed in PREPACK. */
static bool has_port(const struct sol_port *port, enum phase phase) {
    if (phase == BACKWARD) return port->is_backward || port->is_saved;
    return !port->is_backward;
}

enum sol_status exec_check_pointers(const struct sol_program *program, const int64_t *symbols,
                                    enum phase phase, const char *what, int n,
                                    const void *const *pointer, const struct sol_port *port) {
    for (int i = 0; i < n; i++)
        if (!pointer[i] && has_port(&port[i], phase) && !may_be_empty(program, symbols, &port[i]))
            return fail(SOL_EINVAL, "%s %d (%s) is NULL", what, i, port[i].name);
    return SOL_OK;
}

static enum sol_status check_outputs(const struct request *r) {
    return exec_check_pointers(r->program, r->symbols, r->phase, "output", r->program->n_outputs,
                               (const void *const *)r->outputs, r->program->output);
}

enum sol_status exec_check_symbols(const struct sol_program *program, const int64_t *symbols) {
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

static enum sol_status check_call(const struct request *r) {
    const struct sol_program *program = r->program;
    TRY(exec_check_symbols(program, r->symbols));
    TRY(check_saved(r));
    TRY(exec_check_pointers(program, r->symbols, r->phase, "input", program->n_inputs, r->inputs,
                            program->input));
    return r->outputs ? check_outputs(r) : SOL_OK;
}

static enum sol_status begin_call(struct call *call, const struct request *r) {
    TRY(check_call(r));
    take_pool(call);
    enum sol_status status =
        program_acquire((struct sol_program *)(uintptr_t)r->program, r->phase, r->symbols,
                        call->n_threads, &call->binding, &call->workspace);
    if (status) leave_pool(call);
    else set_bases(call, r);
    return status;
}

static void end_call(struct call *call, const struct sol_program *program) {
    leave_pool(call);
    program_give_back((struct sol_program *)(uintptr_t)program, call->binding, call->workspace);
}

/* SOL_DEBUG=time: prints one line per step and call. */
static void print_time(void *user, const struct sol_step_time *step) {
    (void)user;
    fprintf(stderr, "%10.1f us %8.1f GF/s %7.1f GB/s  %-5s %-40s %s\n", step->seconds * 1e6,
            step->flops / step->seconds * 1e-9, step->bytes / step->seconds * 1e-9, step->module,
            step->name, step->layers);
}

/* Reports one step. Called after the run, so that the visitor's own time is not measured. */
static void visit_step(const struct step *step, const struct binding *b, double seconds,
                       void (*visit)(void *user, const struct sol_step_time *step), void *user) {
    struct sol_step_time time = {.name = step->name,
                                 .module = step->module,
                                 .layers = step->layers,
                                 .seconds = seconds,
                                 .flops = (double)size_eval(&step->flops, b->symbol),
                                 .bytes = (double)size_eval(&step->bytes, b->symbol),
                                 .cluster = step->cluster,
                                 .implementation =
                                     step->implementation ? step->implementation : step->name,
                                 .n_candidates = step->n_candidates,
                                 .candidate = step->candidate,
                                 .choice = step->choice ? step->choice : "",
                                 .is_backward = b->phase == BACKWARD};
    visit(user, &time);
}

/* Measures each step, and calls `visit` for all of them after the run. */
static enum sol_status profile(const struct request *r,
                               void (*visit)(void *user, const struct sol_step_time *step),
                               void *user) {
    const struct step_list *list = &r->program->phase[r->phase];
    struct call call;
    double *seconds = mem_alloc(sizeof(double) * (size_t)(list->n + 1), 16);
    if (!seconds) return fail(SOL_ENOMEM, "no memory to profile %d steps", list->n);
    enum sol_status status = begin_call(&call, r);
    if (!status) {
        status = run_list(&call, 0, seconds);
        leave_pool(&call);
        call.has_pool = false;
        for (int i = 0; i < list->n && !status; i++)
            visit_step(&list->at[i], call.binding, seconds[i], visit, user);
        end_call(&call, r->program);
    }
    mem_free(seconds);
    return status;
}

static enum sol_status run(const struct request *r) {
    struct call call;
    if (r->program->is_timed) return profile(r, print_time, NULL);
    TRY(begin_call(&call, r));
    enum sol_status status = run_list(&call, 0, NULL);
    end_call(&call, r->program);
    return status;
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
    mem_free(r.saved);
    return status;
}

/* Can the first step run while the guard is evaluated? Not if it writes an output, as the guard supplies the outputs'
 * addresses; not if a function of the user or of the frontend computes it, as a guard that fails must leave no trace; not if it
 * needs this thread; and not if the batch is divided, as the step then is more than one job. */
static bool can_start_early(const struct sol_program *program, const struct call *call) {
    const struct step *step = program->phase[FORWARD].at;
    if (!program->phase[FORWARD].n || call->n_threads == 1) return false;
    if (step->on_caller || step->after_guard) return false;
    const struct binding *b = call->binding;
    if (!b->full.n_tasks[0] || b->section->micro_batch != b->symbol[0]) return false;
    for (int i = 0; i < step->n_ptr; i++)
        if (step->ptr[i].kind == BUFFER_OUTPUT) return false;
    return true;
}

struct guard {
    bool (*run)(void *user);
    void *user;
    bool holds;
};

static bool run_guard(void *user) {
    struct guard *guard = user;
    return guard->holds = guard->run(guard->user);
}

/* Evaluates the guard and, if possible, runs the first step at the same time. `*done`: how many steps
 * have run, 0 or 1. */
static enum sol_status run_first_step(const struct sol_program *program, struct call *call,
                                      struct guard *guard, int *done) {
    *done = can_start_early(program, call);
    if (!*done) {
        run_guard(guard);
        return SOL_OK;
    }
    struct job job;
    const struct micro_batch whole = {0, &call->binding->full};
    init_job(&job, call, call->binding->step[0], 0, &whole);
    int64_t n = whole.bound->n_tasks[0];
    pool_run_speculative(run_guard, guard, n, max_i64(1, n / (4 * call->n_threads)), run_tasks,
                         &job);
    return step_status(&job);
}

enum sol_status sol_program_run_speculative(bool (*ask)(void *user), void *user,
                                            const struct sol_program *program,
                                            const struct sol_weights *weights,
                                            const int64_t *symbols, const void *const *inputs,
                                            void *const *outputs) {
    struct call call;
    struct guard guard = {ask, user, true};
    struct request r = {program, weights, FORWARD, symbols, inputs, NULL, NULL};
    if (program->is_timed || program->phase[BACKWARD].n || is_empty_call(program, symbols))
        return ask(user) ? sol_program_run(program, weights, symbols, inputs, outputs) : SOL_OK;
    enum sol_status status = begin_call(&call, &r);
    if (status) return ask(user), status;
    call.base.output = r.outputs = outputs;
    int done;
    status = run_first_step(program, &call, &guard, &done);
    if (!guard.holds) status = SOL_OK; /* the guard failed: the result is discarded */
    else if (!status) status = check_outputs(&r);
    if (guard.holds && !status) status = run_list(&call, done, NULL);
    end_call(&call, program);
    return status;
}

/* Runs a phase of prepack as a call of its own. Its binding and workspace are freed at the end, as they are not used again. */
enum sol_status exec_prepack(const struct sol_weights *w, enum phase phase) {
    struct call call;
    TRY(binding_new(w->program, phase, NULL, &call.binding));
    take_pool(&call);
    call.workspace = workspace_new(call.binding, call.n_threads);
    enum sol_status status = SOL_OK;
    if (call.workspace) {
        set_bases(&call, &(struct request){.program = w->program, .weights = w, .phase = phase});
        status = run_list(&call, 0, NULL);
    } else {
        status = fail(SOL_ENOMEM, "no memory to pack weights");
    }
    leave_pool(&call);
    mem_free(call.workspace);
    binding_free(call.binding);
    return status;
}
