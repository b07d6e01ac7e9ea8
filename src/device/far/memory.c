/*
 * The memory manager of a far device. It runs in the host: the device only has the bytes.
 *
 * The device's memory is a list of blocks by address, without gaps; each is in use, or free. Memory that a stream frees may still be
 * used by commands that the stream has, and by these only. So a free block remembers the stream and its last event: the same stream may
 * take it at once, since its later commands run behind those; others once the event is done. Neighbours that are free are
 * merged as soon as nobody has to tell them apart. The first block that is large enough is taken, which is simple, and
 * keeps a program that repeats its allocations at the same addresses.
 *
 * Invariants: the blocks cover [0, size); no two neighbours are free for everybody; all offsets are multiples of 64.
 */
#include "device/far/parts.h"

#define ALIGNMENT 64

struct far_block {
    struct far_block *next;
    uint64_t offset, size;
    bool in_use;
    int stream;     /* free: who freed it */
    uint64_t event; /* free: others may take it when this is done; 0: at once */
};

enum sol_status far_memory_init(struct far *far) {
    far->blocks = mem_alloc(sizeof *far->blocks, 16);
    if (!far->blocks) return fail(SOL_ENOMEM, "out of memory");
    far->blocks->size = far->size;
    return SOL_OK;
}

void far_memory_fini(struct far *far) {
    for (struct far_block *block = far->blocks, *next; block; block = next) {
        next = block->next;
        mem_free(block);
    }
    far->blocks = NULL;
}

/* Is the block free for everybody? Then forgets who freed it. */
static bool has_passed(struct far *far, struct far_block *block) {
    if (block->in_use) return false;
    if (atomic_load(&far->shared->ring[block->stream].done) >= block->event) block->event = 0;
    return !block->event;
}

/* Can the two be one? The events of one stream are done in order, so the later one stands for both. */
static bool can_merge(struct far *far, struct far_block *a, struct far_block *b) {
    if (a->in_use || b->in_use) return false;
    const bool passed = has_passed(far, a), other = has_passed(far, b);
    return passed == other && (passed || a->stream == b->stream);
}

/* Merges the block with the free ones behind it. */
static void merge(struct far *far, struct far_block *block) {
    for (struct far_block *next; (next = block->next) && can_merge(far, block, next);) {
        block->size += next->size;
        if (next->event > block->event) block->event = next->event;
        block->next = next->next;
        mem_free(next);
    }
}

/* Cuts what is behind `size` bytes off. If the host has no memory for another block, the whole block is taken. */
static void split(struct far_block *block, uint64_t size) {
    struct far_block *rest = block->size > size ? mem_alloc(sizeof *rest, 16) : NULL;
    if (!rest) return;
    *rest = *block;
    rest->offset += size;
    rest->size -= size;
    block->size = size;
    block->next = rest;
}

enum sol_status far_memory_take(struct far *far, int stream, size_t size, uint64_t *offset,
                                bool *pending) {
    *pending = false;
    if (size > far->size)
        return fail(SOL_ENOMEM, "far %d: no memory for %zu bytes", far->number, size);
    const uint64_t need = (uint64_t)round_up((int64_t)size, ALIGNMENT);
    for (struct far_block *block = far->blocks; block; block = block->next) {
        if (block->in_use) continue;
        merge(far, block);
        if (!has_passed(far, block)) *pending = true;
        if (block->size < need || (block->event && block->stream != stream)) continue;
        split(block, need);
        block->in_use = true;
        *offset = block->offset;
        return SOL_OK;
    }
    return fail(SOL_ENOMEM, "far %d: no memory for %zu bytes", far->number, size);
}

/* The block becomes free, and is merged with what is in front of it, too. */
enum sol_status far_memory_give(struct far *far, int stream, uint64_t event, uint64_t offset) {
    struct far_block *before = NULL, *block = far->blocks;
    while (block && block->offset < offset) {
        before = block;
        block = block->next;
    }
    if (!block || block->offset != offset || !block->in_use)
        return fail(SOL_EINVAL, "far %d: no allocation begins at this address", far->number);
    block->in_use = false;
    block->stream = stream;
    block->event = event;
    merge(far, block);
    if (before) merge(far, before);
    return SOL_OK;
}

size_t far_used(void *context) {
    struct far *far = context;
    size_t sum = 0;
    lock_acquire(&far->lock);
    for (const struct far_block *block = far->blocks; block; block = block->next)
        if (block->in_use) sum += block->size;
    lock_release(&far->lock);
    return sum;
}
