/*
 * Inside of a queue: for queue.c, which adds commands, and event.c, which waits for them. Others use far.h.
 *
 * Invariants: last[s] is the queue's last event on stream s, and seen[s] the last event of the other stream that stream s waits for. A
 * queue that failed stays failed.
 */
#ifndef SOL_RUN_QUEUE_H
#define SOL_RUN_QUEUE_H

#include "run/far.h"
#include "run/pack.h"

#define EVENTS 256 /* of a queue: so many may be recorded and not done */

/* Weights that calls use which may not be done. */
struct kept {
    struct kept *next;
    struct sol_weights *weights;
    uint64_t event; /* of the last operation that may use them */
};

/* What the host knows of operations [1, number]. */
struct recorded {
    uint64_t number;
    uint64_t last[2]; /* of the queue, when it had these operations */
    bool may_fail;
    int64_t words[ERROR_WORDS]; /* if may_fail: the error words, once the commands are done */
};

struct sol_queue {
    struct lock lock; /* of the functions in queue_api.c */
    struct far_device *device;
    uint64_t last[2], seen[2];
    enum sol_status status; /* of the first failure */
    char message[512];
    sol_ptr arena, error; /* error: ERROR_WORDS words */
    size_t arena_size;
    bool may_fail;
    struct pack *pack; /* PACKS of them; NULL: not used yet */
    int at_pack;       /* the one that is being filled */
    bool has_no_packs; /* there was no memory for them */
    struct kept *kept; /* the latest first */
    uint64_t n_operations, n_done;
    struct recorded *recorded; /* a ring of EVENTS, by number, all > n_done; NULL: not used yet */
    int first_recorded, n_recorded;
    int n_pointers;
    sol_ptr *pointer;
    struct sol_queue *next; /* in the list of idle ones */
};

/* ---- queue.c ---- */

/* Remembers the failure whose message was set last, unless there was one before. */
enum sol_status queue_note(struct sol_queue *queue, enum sol_status status);
/* Submits the small copies that are collected. */
enum sol_status queue_flush(struct sol_queue *queue);
/* Lets stream `to` wait for what the queue has given to the other one. */
enum sol_status queue_order_streams(struct sol_queue *queue, int to);

/* ---- event.c ---- */

/* Releases the weights of operations up to this one. */
void queue_release_kept(struct sol_queue *queue, uint64_t event);

#endif
