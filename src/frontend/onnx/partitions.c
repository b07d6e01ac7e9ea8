/*
 * The partitions of a session: a list that calls share, newest first, with at most PARTITIONS_KEPT that begin with the same node.
 *
 * The lock is held only while the list is read or changed. Partitions are reference counted: the list has a reference, and so has
 * each call that uses one, so a call can continue with a partition that has left the list. A call records its references
 * (`held`), so that they are released even after a jump.
 *
 * Only one call plans at a time, since waiting calls often need the same partition. They wait without the lock, as planning is
 * slow.
 */
#include "partition.h"

static void let_go(struct partition *partition) {
    if (atomic_fetch_sub(&partition->n_refs, 1) > 1) return;
    sol_model_free(partition->model);
    if (partition->weights) sol_weights_release(partition->weights);
    if (partition->program) sol_program_release(partition->program);
    arena_fini(&partition->arena);
    mem_free(partition);
}

static void drop(struct session_call *call) {
    while (call->n_held) let_go(call->held[--call->n_held]);
}

void partitions_free(struct session_graph *graph) {
    for (struct partition *at = graph->partitions, *next; at; at = next) {
        next = at->next;
        let_go(at);
    }
    lock_fini(&graph->lock);
}

void partitions_hold(struct session_call *call, int first) {
    drop(call);
    lock_acquire(&call->graph->lock);
    for (struct partition *at = call->graph->partitions; at; at = at->next) {
        if (at->first != first) continue;
        atomic_fetch_add(&at->n_refs, 1);
        call->held[call->n_held++] = at;
    }
    lock_release(&call->graph->lock);
}

struct partition *partitions_new(struct session_call *call, int first) {
    struct partition *partition = mem_alloc(sizeof *partition, 64);
    if (!partition) space_stop(call->run.space, fail(SOL_ENOMEM, "no memory for a partition"));
    drop(call);
    atomic_init(&partition->n_refs, 1);
    arena_init(&partition->arena);
    partition->arena.boundary = call->run.space->arena.boundary;
    partition->first = first;
    call->held[call->n_held++] = partition;
    return partition;
}

/* Removes the oldest partition beyond the limit from the list and returns it. */
static struct partition *unlink_oldest(struct session_graph *graph, int first) {
    int n = 0;
    for (struct partition **at = &graph->partitions; *at; at = &(*at)->next) {
        struct partition *partition = *at;
        if (partition->first != first || ++n <= PARTITIONS_KEPT) continue;
        *at = partition->next;
        return partition;
    }
    return NULL;
}

void partitions_keep(struct session_graph *graph, struct partition *partition) {
    atomic_fetch_add(&partition->n_refs, 1);
    lock_acquire(&graph->lock);
    partition->next = graph->partitions;
    graph->partitions = partition;
    struct partition *old = unlink_oldest(graph, partition->first);
    lock_release(&graph->lock);
    if (old) let_go(old);
}

/* ---- Turns ---- */

/* `planner` is the id of a process. After a fork it is the parent's, whose planning call does not exist in the child, so it is
 * ignored. */
void partitions_begin(struct session_call *call) {
    struct session_graph *graph = call->graph;
    lock_acquire(&graph->lock);
    while (graph->planner == lock_process()) lock_pause(&graph->lock);
    graph->planner = lock_process();
    lock_release(&graph->lock);
    call->is_planner = true;
}

void partitions_end(struct session_call *call) {
    if (!call->is_planner) return;
    lock_acquire(&call->graph->lock);
    call->graph->planner = 0;
    lock_release(&call->graph->lock);
    call->is_planner = false;
}

void partitions_leave(struct session_call *call) {
    partitions_end(call);
    drop(call);
}
