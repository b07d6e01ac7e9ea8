/*
 * Partitions: finds the partition whose guards hold, and runs it.
 *
 *   node `first` -> find_partition: repeat events of each -> (partition_plan, when none fits) -> run_program
 *
 * The head of partition_plan.c explains events.
 */
#include "partition.h"

#include <string.h>

#define COMPILE_STACK ((size_t)96 << 10) /* more than compiling takes */

/* Allocates an array for each output of the program. */
static enum sol_status new_outputs(struct session_call *call, const struct partition *partition,
                                   struct array **arrays, void **memory) {
    for (int i = 0; i < partition->outputs.n; i++) {
        const struct sol_port *port = sol_program_output(partition->program, i);
        int64_t dim[SOL_MAX_RANK];
        TRY(sol_program_output_shape(partition->program, i, (int64_t[4]){0}, dim));
        arrays[i] = array_new(call->run->space, type_of_dtype(port->dtype), port->rank, dim);
        memory[i] = arrays[i]->data;
    }
    return SOL_OK;
}

/* A partition that is profiled now. */
struct profiled {
    struct session_profile *profile;
    const struct partition *partition;
    int n_steps;
};

static void visit_step(void *user, const struct sol_step_time *time) {
    struct profiled *now = user;
    session_profile_step(now->profile, now->partition, now->n_steps++, time);
}

/* The program has no symbols. */
static enum sol_status run_steps(struct session_call *call, const struct partition *partition,
                                 const void *const *in, void *const *out) {
    struct profiled now = {call->run->profile, partition, 0};
    const int64_t none[4] = {0};
    if (!now.profile) return sol_program_run(partition->program, partition->weights, none, in, out);
    return sol_program_profile(partition->program, partition->weights, none, in, out, visit_step,
                               &now);
}

/* Runs the program. It reads its inputs in place and writes its outputs to new arrays of this call. */
static enum sol_status run_program(struct session_call *call, const struct partition *partition) {
    struct space *space = call->run->space;
    if (!partition->program) return SOL_OK;
    const void **in = SPACE_ARRAY(space, const void *, partition->inputs.n + 1);
    void **out = SPACE_ARRAY(space, void *, partition->outputs.n + 1);
    struct array **arrays = SPACE_ARRAY(space, struct array *, partition->outputs.n + 1);
    for (int i = 0; i < partition->inputs.n; i++)
        in[i] = scope_find(call->scope, partition->inputs.at[i])->data;
    TRY(new_outputs(call, partition, arrays, out));
    TRY(run_steps(call, partition, in, out));
    for (int i = 0; i < partition->outputs.n; i++)
        *scope_slot(call->scope, partition->outputs.at[i]) = arrays[i];
    call->run->n_compiled += partition->n_taken;
    return SOL_OK;
}

/* Copies a value of a partition, which may be freed before the call ends. */
static struct array *copy_array(struct session_call *call, const struct array *array) {
    struct array *copy = array_new(call->run->space, array->type, array->rank, array->dim);
    memcpy(copy->data, array->data, (size_t)array->n * types[array->type].size);
    return copy;
}

bool partition_guard_holds(const struct event *guard, const struct array *have) {
    return have && array_is_like(have, guard->array);
}

/* Repeats the events until a guard fails. *fits: all guards hold. Values that were interpreted before a guard failed are still
 * correct. */
static enum sol_status repeat(struct session_call *call, const struct partition *partition,
                              bool *fits) {
    *fits = true;
    for (int i = 0; i < partition->events.n && *fits; i++) {
        const struct event *event = &partition->events.at[i];
        if (event->kind == GUARD)
            *fits = partition_guard_holds(event, scope_find(call->scope, event->name));
        if (event->kind == SMALL_EARLY) *fits = partition_is_small(call, event->node);
        if (event->kind == KNOWN)
            *scope_slot(call->scope, event->name) = copy_array(call, event->array);
        else if (event->kind != GUARD && *fits) TRY(session_interpret(call, event->node));
    }
    return SOL_OK;
}

/* The newest partition from node `first` on whose guards hold; NULL: there is none. */
static enum sol_status find_partition(struct session_call *call, int first,
                                      struct partition **out) {
    bool fits = false;
    *out = NULL;
    partitions_hold(call, first);
    for (int i = 0; i < call->n_held && !fits; i++) {
        TRY(repeat(call, call->held[i], &fits));
        if (fits) *out = call->held[i];
    }
    return SOL_OK;
}

/* Plans a new partition, unless another call has just planned one that fits. Other calls see it only when it is ready. */
static enum sol_status plan_partition(struct session_call *call, int first,
                                      struct partition **out) {
    partitions_begin(call);
    TRY(find_partition(call, first, out));
    if (*out) return SOL_OK;
    const struct partition *previous = call->n_held ? call->held[0] : NULL;
    *out = partitions_new(call, first);
    TRY(partition_plan(call, *out, previous));
    partitions_keep(call, *out);
    return SOL_OK;
}

/* Interprets the nodes before `end`, as far as they do not run already. */
static enum sol_status interpret_all(struct session_call *call, int first, int end) {
    for (int i = first; i < end; i++)
        if (!call->graph->is_constant[i]) TRY(session_interpret(call, i));
    return SOL_OK;
}

/* The end of the nodes to interpret from `first` on, since none of the kept partitions fits and a new one is not worth its time, or
 * the stack may be too small for the compiler inside of so many graphs; 0: plan one. */
static int find_end(struct session_call *call, int first) {
    if (call->graph->is_inner && os_stack_left() < COMPILE_STACK) return first + 1;
    return partitions_skip(call, first);
}

/* Nodes of a graph that hides names of outer graphs are interpreted in order: whether a value is available cannot be told by its
 * name then. */
enum sol_status partition_run(struct session_call *call, int first, int *end) {
    struct partition *partition = NULL;
    *end = call->graph->hides ? first + 1 : 0;
    if (!*end) TRY(find_partition(call, first, &partition));
    if (!*end && !partition) *end = find_end(call, first);
    if (*end) return interpret_all(call, first, *end);
    if (!partition) TRY(plan_partition(call, first, &partition));
    partitions_end(call);
    partitions_use(call, partition);
    *end = partition->end;
    call->node = first; /* for the message of an error */
    enum sol_status status = run_program(call, partition);
    if (!status) call->node = -1;
    return status;
}
