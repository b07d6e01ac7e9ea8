/*
 * The partitions of a session, which calls share: one list of all, and one per first node, both newest first.
 *
 * The lock is held only while lists are read or changed. Partitions are reference counted: the lists together have a reference, and
 * so has each run that uses one, so a call can continue with a partition that has left the lists. A run records its references
 * (`held`), so that they are released even after a jump.
 *
 * Only one call plans at a time, since waiting calls often need the same partition. They wait without the lock, as planning is
 * slow.
 */
#include "partition.h"

#define MAX_WASTED 2     /* plans for the body of a loop that were not used again, before iterations are interpreted */
#define FIRST_WAIT 16    /* then: this many, and twice as many after each further plan that was not used again */
#define MAX_DOUBLINGS 16

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

void partitions_free(struct session_shared *shared) {
    for (struct partition *at = shared->partitions, *next; at; at = next) {
        next = at->next_of_all;
        let_go(at);
    }
    lock_fini(&shared->lock);
}

int64_t partitions_number(struct session_shared *shared) {
    lock_acquire(&shared->lock);
    int64_t number = ++shared->n_calls;
    lock_release(&shared->lock);
    return number;
}

void partitions_hold(struct session_call *call, int first) {
    drop(call);
    lock_acquire(&call->graph->shared->lock);
    for (struct partition *at = call->graph->slots[first].newest; at; at = at->next) {
        atomic_fetch_add(&at->n_refs, 1);
        call->held[call->n_held++] = at;
    }
    lock_release(&call->graph->shared->lock);
}

/* The run keeps the references that it has, so there is one more than a list may have. */
struct partition *partitions_new(struct session_call *call, int first) {
    struct partition *partition = mem_alloc(sizeof *partition, 64);
    if (!partition) space_stop(call->run->space, fail(SOL_ENOMEM, "no memory for a partition"));
    atomic_init(&partition->n_refs, 1);
    arena_init(&partition->arena);
    partition->arena.boundary = call->run->space->arena.boundary;
    partition->first = first;
    partition->slot = &call->graph->slots[first];
    call->held[call->n_held++] = partition;
    return partition;
}

/* The partition that was not used for longest, the oldest one of these. */
static struct partition *least_used(const struct session_shared *shared,
                                    const struct partition_slot *slot) {
    struct partition *least = slot ? slot->newest : shared->partitions;
    for (struct partition *at = least; at; at = slot ? at->next : at->next_of_all)
        if (at->last_call <= least->last_call) least = at;
    return least;
}

static int count(const struct partition_slot *slot) {
    int n = 0;
    for (const struct partition *at = slot->newest; at; at = at->next) n++;
    return n;
}

static void unlink_from_lists(struct session_shared *shared, struct partition *partition) {
    struct partition **at = &shared->partitions, **in_slot = &partition->slot->newest;
    while (*at != partition) at = &(*at)->next_of_all;
    while (*in_slot != partition) in_slot = &(*in_slot)->next;
    *at = partition->next_of_all;
    *in_slot = partition->next;
    shared->n_partitions--;
}

/* Makes room before it adds, so that the new partition is not the one that goes. */
void partitions_keep(struct session_call *call, struct partition *partition) {
    struct session_shared *shared = call->graph->shared;
    struct partition_slot *slot = partition->slot;
    struct partition *old = NULL;
    atomic_fetch_add(&partition->n_refs, 1);
    lock_acquire(&shared->lock);
    if (count(slot) >= PARTITIONS_KEPT) old = least_used(shared, slot);
    else if (shared->n_partitions >= PARTITIONS_ALL) old = least_used(shared, NULL);
    if (old) unlink_from_lists(shared, old);
    partition->next = slot->newest;
    partition->next_of_all = shared->partitions;
    slot->newest = shared->partitions = partition;
    partition->last_call = call->run->number;
    shared->n_partitions++;
    lock_release(&shared->lock);
    if (old) let_go(old);
}

/* Without the lock, as this is done in each iteration of a loop. */
void partitions_use(const struct session_call *call, struct partition *partition) {
    atomic_fetch_add_explicit(&partition->n_uses, 1, memory_order_relaxed);
    atomic_store_explicit(&partition->last_call, call->run->number, memory_order_relaxed);
}

/* ---- Bodies of loops ---- */

/* Are as many partitions kept as may be, each used in this call or the one before? A new one would replace one that is used. */
static bool is_full(const struct session_shared *shared, const struct partition_slot *slot,
                    int64_t number) {
    return count(slot) >= PARTITIONS_KEPT && least_used(shared, slot)->last_call >= number - 1;
}

/* A body whose shapes change in each iteration would be planned in each. So after MAX_WASTED plans that were not used again,
 * iterations are interpreted, for longer and longer, until the next plan. A plan that is used again allows more. */
static bool skips(const struct session_shared *shared, struct partition_slot *slot,
                  int64_t number) {
    if (!slot->newest) return false;
    if (slot->n_waits > 0) return --slot->n_waits > 0;
    slot->n_wasted = slot->newest->n_uses > 1 ? 0 : slot->n_wasted + 1;
    if (slot->n_wasted >= MAX_WASTED)
        slot->n_waits = FIRST_WAIT << min_i64(slot->n_wasted - MAX_WASTED, MAX_DOUBLINGS);
    return slot->n_waits > 0 || is_full(shared, slot, number);
}

int partitions_skip(struct session_call *call, int first) {
    struct session_shared *shared = call->graph->shared;
    struct partition_slot *slot = &call->graph->slots[first];
    if (!call->graph->is_loop) return 0;
    lock_acquire(&shared->lock);
    int end = skips(shared, slot, call->run->number) ? slot->newest->end : 0;
    lock_release(&shared->lock);
    return end;
}

/* ---- Turns ---- */

/* `planner` is the id of a process. After a fork it is the parent's, whose planning call does not exist in the child, so it is
 * ignored. */
void partitions_begin(struct session_call *call) {
    struct session_shared *shared = call->graph->shared;
    lock_acquire(&shared->lock);
    while (shared->planner == lock_process()) lock_pause(&shared->lock);
    shared->planner = lock_process();
    lock_release(&shared->lock);
    call->is_planner = true;
}

void partitions_end(struct session_call *call) {
    if (!call->is_planner) return;
    lock_acquire(&call->graph->shared->lock);
    call->graph->shared->planner = 0;
    lock_release(&call->graph->shared->lock);
    call->is_planner = false;
}

void partitions_leave(struct session_call *call) {
    partitions_end(call);
    drop(call);
}
