/*
 * What forward calls save for backward calls on a far device. The caller passes memory of the host, as for any program, but it only names
 * the values: its address selects memory of the device, so they never leave it.
 *
 * Invariant: one block per address. A block whose size has changed is allocated again, as the caller's memory is another one then.
 */
#include "run/far.h"

struct far_block {
    struct far_block *next;
    const void *name;
    sol_ptr at;
    size_t size;
};

static struct far_block **find(struct far_device *d, const void *name) {
    struct far_block **at = &d->saved;
    while (*at && (*at)->name != name) at = &(*at)->next;
    return at;
}

static struct far_block *take(struct far_device *d, const void *name) {
    lock_acquire(&d->lock);
    struct far_block **at = find(d, name), *block = *at;
    if (block) *at = block->next;
    lock_release(&d->lock);
    return block;
}

static void put(struct far_device *d, struct far_block *block) {
    lock_acquire(&d->lock);
    block->next = d->saved;
    d->saved = block;
    lock_release(&d->lock);
}

enum sol_status far_saved(struct far_device *d, struct sol_queue *q, const void *name, size_t size,
                          bool is_new, sol_ptr *out) {
    struct far_block *block = take(d, name);
    if (!is_new && (!block || block->size != size)) {
        if (block) put(d, block);
        return fail(
            SOL_EINVAL,
            "%s %d does not have what the forward call has saved: its memory may not be moved",
            d->target->name, d->number);
    }
    if (!block && !(block = mem_alloc(sizeof *block, 16)))
        return fail(SOL_ENOMEM, "no memory for saved values");
    block->name = name;
    enum sol_status status = SOL_OK;
    if (block->size != size) {
        status = queue_dealloc(q, block->at);
        block->at = 0, block->size = 0;
        if (!status) status = queue_alloc(q, size, &block->at);
        if (!status) block->size = size;
    }
    *out = block->at;
    put(d, block);
    return status;
}

void far_saved_free(struct far_device *d, const void *name) {
    struct far_block *block = take(d, name);
    struct sol_queue *q = NULL;
    if (!block) return;
    enum sol_status status = queue_take(d, &q);
    if (!status) status = queue_dealloc(q, block->at);
    if (q) queue_put_back(q);
    mem_free(block);
}

void far_saved_drop(struct far_device *d) {
    for (struct far_block *block = d->saved, *next; block; block = next) {
        next = block->next;
        mem_free(block);
    }
    d->saved = NULL;
}
