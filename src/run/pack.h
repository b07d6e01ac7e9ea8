/*
 * Packing: many small copies of a queue become one copy, and one launch that moves the pieces.
 *
 *   queue_copy -> pack_add -> [the next operation that needs their order] -> queue_flush: three commands
 *
 * A command has a latency of its own, which is longer than the copy of a few KiB: a model's biases, or the running statistics of its
 * norms. Uploads: a function of the host collects the bytes, they are copied as a whole, and scattered by the device. Downloads: the
 * device gathers them, they are copied as a whole, and a function of the host distributes them. So the caller's memory is read and written in
 * the order of the queue, as that of large copies is, and the queue's functions of the host find it as they expect.
 *
 * Invariant: pieces of a pack have one direction, and nothing else is submitted to the queue between the first of them and the flush.
 * A pack does not change from its flush until its event is done.
 */
#ifndef SOL_PACK_H
#define SOL_PACK_H

#include "run/target.h"

#define PACK_PIECE ((size_t)16 << 10) /* larger copies are on their own */
#define PACK_BYTES ((size_t)128 << 10)
#define PACK_PIECES 256
#define PACKS 4 /* of a queue: so many may be under way */

struct pack {
    enum transfer_kind kind;
    int n;
    size_t used;
    uint64_t event; /* when it may be filled again; 0: it is not under way */
    char *data;     /* PACK_BYTES of the host */
    sol_ptr staged; /* the same on the device */
    sol_ptr ptr[1 + PACK_PIECES];
    int64_t size[PACK_PIECES];
    void *host[PACK_PIECES];
};

/* Can this copy be a piece? */
bool pack_fits(const struct transfer *transfer);
/* Is there room for it? */
bool pack_has_room(const struct pack *pack, const struct transfer *transfer);
void pack_add(struct pack *pack, const struct transfer *transfer);
/* The copy of the whole, and the launches that move the pieces, on the device and on the host. */
struct transfer pack_transfer(const struct pack *pack);
struct launch pack_launch(const struct pack *pack);
struct launch pack_host_launch(struct pack *pack);
/* When its event is done. */
void pack_clear(struct pack *pack);

#endif
