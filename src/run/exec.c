/*
 * Running a program on the host: resolves each step's pointers and passes its tasks to the thread pool.
 *
 *   request.c -> exec_run -> begin_call: binding, workspace, pool -> binding_walk -> run_step -> end_call
 *
 * Steps run one after the other; the tasks of one step are independent. A call takes the program's lock twice, to get and
 * to return its binding, and allocates nothing if the binding has an idle workspace.
 */
#include "run/bind.h"
#include "run/pool.h"
#include "run/request.h"

#include <stdio.h>
#include <string.h>

/* The base addresses of all buffers of one call. */
struct bases {
    const void *const *input, *const *param;
    void *const *output;
    char *arena, *const *packed, *saved;
    const struct constant *constant;
    int64_t *error;
};

static void *resolve(const struct bases *base, const struct buffer_ref *ref, int64_t offset) {
    switch (ref->kind) {
    case BUFFER_INPUT: return (char *)(uintptr_t)base->input[ref->index] + offset;
    case BUFFER_PARAM: return (char *)(uintptr_t)base->param[ref->index] + offset;
    case BUFFER_OUTPUT: return (char *)base->output[ref->index] + offset;
    case BUFFER_ARENA: return base->arena + offset;
    case BUFFER_PACKED: return base->packed[ref->index] + offset;
    case BUFFER_SAVED: return base->saved + offset;
    case BUFFER_CONSTANT: return (char *)(uintptr_t)base->constant[ref->index].at + offset;
    case BUFFER_ERROR: return base->error;
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

enum sol_status exec_check_words(const int64_t words[ERROR_WORDS]) {
    const char *what = (const char *)(uintptr_t)words[ERROR_WHAT];
    if (!words[ERROR_STATUS]) return SOL_OK;
    return fail((enum sol_status)words[ERROR_STATUS], what, (long long)words[ERROR_NUMBER],
                (long long)words[ERROR_LIMIT], (long long)words[ERROR_MORE]);
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
    job->step->kind->run(job->step, job->ptr, job->arg, scratch, begin, end);
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
    int64_t error[ERROR_WORDS];
};

static void init_job(struct job *job, const struct call *call, int i,
                     const struct micro_batch *micro_batch) {
    const struct binding *b = call->binding;
    const struct step *step = b->step[i];
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
static enum sol_status run_step(const struct call *call, int i,
                                const struct micro_batch *micro_batch) {
    const int64_t n = micro_batch->bound->n_tasks[i];
    if (n == 0) return SOL_OK;
    struct job job;
    init_job(&job, call, i, micro_batch);
    if (call->n_threads > 1 && !job.step->kind->on_caller)
        pool_run(n, max_i64(1, n / (4 * call->n_threads)), run_tasks, &job);
    else run_tasks(&job, 0, 0, n);
    return step_status(&job);
}

static void set_bases(struct call *call, const struct request *r) {
    call->base = (struct bases){.input = r->inputs,
                                .param = r->weights->param,
                                .output = r->outputs,
                                .arena = call->workspace->arena,
                                .packed = r->weights->packed.slot,
                                .saved = r->saved,
                                .constant = r->program->constant,
                                .error = call->error};
    call->error[ERROR_STATUS] = SOL_OK;
}

/* If another call has the pool, this one does not wait but runs on its own thread. */
static void take_pool(struct call *call) {
    call->has_pool = pool_begin();
    call->n_threads = call->has_pool ? pool_threads() : 1;
}
static void leave_pool(struct call *call) {
    if (call->has_pool) pool_end();
}

struct timed_call {
    const struct call *call;
    double *seconds; /* by step; NULL: not measured */
};

static enum sol_status visit_step(void *user, int i, const struct micro_batch *micro_batch) {
    const struct timed_call *timed = user;
    if (!timed->seconds) return run_step(timed->call, i, micro_batch);
    const double start = os_now();
    TRY(run_step(timed->call, i, micro_batch));
    timed->seconds[i] += os_now() - start;
    return SOL_OK;
}

/* Runs all steps except the first `done` ones. Adds the time of step i to seconds[i], unless `seconds` is NULL. */
static enum sol_status run_list(const struct call *call, int done, double *seconds) {
    TRY(binding_walk(call->binding, done, visit_step, &(struct timed_call){call, seconds}));
    return exec_check_words(call->error);
}

static enum sol_status begin_call(struct call *call, const struct request *r) {
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

/* glibc's malloc takes memory of at least so many bytes from the system and gives it back when it is freed. So such an output is fresh:
 * page faults are a large part of the time to write it: of a gradient of 268 MB 43 of 107 ms, without huge pages. */
#define FRESH ((size_t)32 << 20)

static void advise_outputs(const struct call *call, const struct request *r) {
    for (int i = 0; i < r->program->n_outputs && r->outputs; i++) {
        if (!r->outputs[i] || !request_has_port(&r->program->output[i], r->phase)) continue;
        const size_t bytes = program_port_size(r->program, true, i, call->binding->symbol);
        if (bytes >= FRESH) mem_advise_huge(r->outputs[i], bytes);
    }
}

enum sol_status exec_run(const struct request *r, double *seconds) {
    struct call call;
    TRY(begin_call(&call, r));
    advise_outputs(&call, r);
    enum sol_status status = run_list(&call, 0, seconds);
    end_call(&call, r->program);
    return status;
}

/* Can the first step run while the guard is evaluated? Not if it writes an output, as the guard supplies the outputs'
 * addresses; not if a function of the user or of the frontend computes it, as a guard that fails must leave no trace; not if it
 * needs this thread; and not if the batch is divided, as the step then is more than one job. */
static bool can_start_early(const struct sol_program *program, const struct call *call) {
    const struct step *step = program->phase[FORWARD].at;
    if (!program->phase[FORWARD].n || call->n_threads == 1) return false;
    if (step->kind->on_caller || step->kind->after_guard) return false;
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
    init_job(&job, call, 0, &whole);
    int64_t n = whole.bound->n_tasks[0];
    pool_run_speculative(run_guard, guard, n, max_i64(1, n / (4 * call->n_threads)), run_tasks,
                         &job);
    return step_status(&job);
}

enum sol_status exec_run_speculative(bool (*ask)(void *user), void *user, const struct request *r,
                                     void *const *outputs) {
    struct call call;
    struct guard guard = {ask, user, true};
    struct request known = *r;
    enum sol_status status = request_check(r);
    if (!status) status = begin_call(&call, r);
    if (status) return ask(user), status;
    call.base.output = known.outputs = outputs;
    int done;
    status = run_first_step(r->program, &call, &guard, &done);
    if (!guard.holds) status = SOL_OK; /* the guard failed: the result is discarded */
    else if (!status) status = request_check_outputs(&known);
    if (guard.holds && !status) status = run_list(&call, done, NULL);
    end_call(&call, r->program);
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
