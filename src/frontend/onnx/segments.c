/*
 * The segments of a network: a list that calls share, newest first, at most SEGMENTS_KEPT from one node on.
 *
 * The lock is held to look into the list only. A segment is counted: by the list, and by each call that looks at it, so that a call
 * goes on with one that has been replaced meanwhile. What a call holds is noted in the call, for jumps that leave it.
 */
#include "segment.h"

#include <string.h>

static void let_go(struct segment *segment) {
    if (atomic_fetch_sub(&segment->n_refs, 1) > 1) return;
    sol_model_free(segment->model);
    if (segment->weights) sol_weights_release(segment->weights);
    if (segment->program) sol_program_release(segment->program);
    arena_fini(&segment->arena);
    mem_free(segment);
}

void segments_leave(struct pass *pass) {
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
    segments_leave(pass);
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
    segments_leave(pass);
    atomic_init(&segment->n_refs, 1);
    arena_init(&segment->arena);
    segment->arena.boundary = pass->run.space->arena.boundary;
    segment->first = first;
    pass->held[pass->n_held++] = segment;
    return segment;
}

/* Bytes are compared, not numbers: NaN equals itself, and 0 is not minus 0. */
bool segment_same(const struct array *want, const struct array *have) {
    if (have->type != want->type || have->rank != want->rank) return false;
    for (int d = 0; d < want->rank; d++)
        if (have->dim[d] != want->dim[d]) return false;
    return !want->data || !memcmp(have->data, want->data, (size_t)want->n * types[want->type].size);
}

static bool same_event(const struct event *a, const struct event *b) {
    if (a->kind != b->kind || a->node != b->node) return false;
    if (a->kind == EARLY) return true;
    return !strcmp(a->name, b->name) && !a->array->data == !b->array->data &&
           segment_same(a->array, b->array);
}

/* Equal events make equal segments: two calls have planned at once. */
static bool is_there(const struct mixed_graph *graph, const struct segment *segment) {
    for (const struct segment *at = graph->segments; at; at = at->next) {
        bool same = at->first == segment->first && at->end == segment->end &&
                    at->events.n == segment->events.n;
        for (int i = 0; same && i < at->events.n; i++)
            same = same_event(&at->events.at[i], &segment->events.at[i]);
        if (same) return true;
    }
    return false;
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
    struct segment *old = NULL;
    lock_take(&graph->lock);
    if (!is_there(graph, segment)) {
        atomic_fetch_add(&segment->n_refs, 1);
        segment->next = graph->segments;
        graph->segments = segment;
        old = unlink_oldest(graph, segment->first);
    }
    lock_release(&graph->lock);
    if (old) let_go(old);
}
