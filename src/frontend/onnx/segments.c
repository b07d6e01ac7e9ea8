/*
 * The segments of a network: a list that calls share, newest first, at most SEGMENTS_KEPT from one node on.
 *
 * The lock is held to look into the list only. A segment is counted: by the list, and by each call that looks at it, so that a call
 * goes on with one that has been replaced meanwhile. What a call holds is noted in the call, for jumps that leave it.
 *
 * Calls that plan take turns: often they want the same. They wait without the lock, since planning takes long.
 */
#include "segment.h"

static void let_go(struct segment *segment) {
    if (atomic_fetch_sub(&segment->n_refs, 1) > 1) return;
    sol_model_free(segment->model);
    if (segment->weights) sol_weights_release(segment->weights);
    if (segment->program) sol_program_release(segment->program);
    arena_fini(&segment->arena);
    mem_free(segment);
}

static void drop(struct pass *pass) {
    while (pass->n_held) let_go(pass->held[--pass->n_held]);
}

void segments_free(struct mixed_graph *graph) {
    for (struct segment *at = graph->segments, *next; at; at = next) {
        next = at->next;
        let_go(at);
    }
    lock_fini(&graph->lock);
}

void segments_hold(struct pass *pass, int first) {
    drop(pass);
    lock_take(&pass->graph->lock);
    for (struct segment *at = pass->graph->segments; at; at = at->next) {
        if (at->first != first) continue;
        atomic_fetch_add(&at->n_refs, 1);
        pass->held[pass->n_held++] = at;
    }
    lock_release(&pass->graph->lock);
}

struct segment *segments_new(struct pass *pass, int first) {
    struct segment *segment = mem_alloc(sizeof *segment, 64);
    if (!segment) space_stop(pass->run.space, fail(SOL_ENOMEM, "no memory for a segment"));
    drop(pass);
    atomic_init(&segment->n_refs, 1);
    arena_init(&segment->arena);
    segment->arena.boundary = pass->run.space->arena.boundary;
    segment->first = first;
    pass->held[pass->n_held++] = segment;
    return segment;
}

/* Takes the oldest beyond the limit out of the list. */
static struct segment *unlink_oldest(struct mixed_graph *graph, int first) {
    int n = 0;
    for (struct segment **at = &graph->segments; *at; at = &(*at)->next) {
        struct segment *segment = *at;
        if (segment->first != first || ++n <= SEGMENTS_KEPT) continue;
        *at = segment->next;
        return segment;
    }
    return NULL;
}

void segments_keep(struct mixed_graph *graph, struct segment *segment) {
    atomic_fetch_add(&segment->n_refs, 1);
    lock_take(&graph->lock);
    segment->next = graph->segments;
    graph->segments = segment;
    struct segment *old = unlink_oldest(graph, segment->first);
    lock_release(&graph->lock);
    if (old) let_go(old);
}

/* ---- Turns ---- */

/* Who planned when this process was forked is not in it: the turn is that of another process, and free. */
void segments_begin(struct pass *pass) {
    struct mixed_graph *graph = pass->graph;
    lock_take(&graph->lock);
    while (graph->planner == lock_process()) lock_pause(&graph->lock);
    graph->planner = lock_process();
    lock_release(&graph->lock);
    pass->is_planner = true;
}

void segments_end(struct pass *pass) {
    if (!pass->is_planner) return;
    lock_take(&pass->graph->lock);
    pass->graph->planner = 0;
    lock_release(&pass->graph->lock);
    pass->is_planner = false;
}

void segments_leave(struct pass *pass) {
    segments_end(pass);
    drop(pass);
}
