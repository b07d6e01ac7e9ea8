/*
 * The partitions of a network: a list that calls share, newest first, at most PARTITIONS_KEPT from one node on.
 *
 * The lock is held to look into the list only. A partition is counted: by the list, and by each call that looks at it, so that a call
 * goes on with one that has been replaced meanwhile. What a call holds is noted in the call, for jumps that leave it.
 *
 * Calls that plan take turns: often they want the same. They wait without the lock, since planning takes long.
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

/* Takes the oldest beyond the limit out of the list. */
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

/* Who planned when this process was forked is not in it: the turn is that of another process, and free. */
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
