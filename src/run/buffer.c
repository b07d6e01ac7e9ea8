/*
 * The memory that users have allocated on a far device: a table of allocations, sorted by address, so that a pointer that is foreign, freed
 * or too far is refused when it is passed instead of destroying something on the device.
 *
 * Invariant: allocations do not overlap. The table changes when an operation is added to a queue, not when the device computes it.
 */
#include "run/far.h"

#include <string.h>

void buffers_init(struct buffers *b) {
    *b = (struct buffers){0};
    lock_init(&b->lock);
}

void buffers_fini(struct buffers *b) {
    mem_free(b->buffer);
    lock_fini(&b->lock);
}

/* The number of allocations that begin at or before `at`. */
static int find(const struct buffers *b, sol_ptr at) {
    int low = 0, high = b->n;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (b->buffer[middle].at <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool grow(struct buffers *b) {
    if (b->n < b->capacity) return true;
    const int capacity = b->capacity ? 2 * b->capacity : 64;
    struct buffer *larger = mem_alloc(sizeof *larger * (size_t)capacity, 16);
    if (!larger) return false;
    if (b->n) memcpy(larger, b->buffer, sizeof *larger * (size_t)b->n);
    mem_free(b->buffer);
    b->buffer = larger;
    b->capacity = capacity;
    return true;
}

bool buffers_add(struct buffers *b, sol_ptr at, size_t size) {
    lock_acquire(&b->lock);
    const bool ok = grow(b);
    if (ok) {
        const int i = find(b, at);
        memmove(b->buffer + i + 1, b->buffer + i, sizeof *b->buffer * (size_t)(b->n++ - i));
        b->buffer[i] = (struct buffer){at, size};
    }
    lock_release(&b->lock);
    return ok;
}

bool buffers_remove(struct buffers *b, sol_ptr at) {
    lock_acquire(&b->lock);
    const int i = find(b, at) - 1;
    const bool found = i >= 0 && b->buffer[i].at == at;
    if (found) memmove(b->buffer + i, b->buffer + i + 1, sizeof *b->buffer * (size_t)(--b->n - i));
    lock_release(&b->lock);
    return found;
}

enum sol_status buffers_check(struct buffers *b, const char *what, sol_ptr at, size_t size) {
    lock_acquire(&b->lock);
    const int i = find(b, at) - 1;
    const struct buffer buffer = i >= 0 ? b->buffer[i] : (struct buffer){0};
    lock_release(&b->lock);
    const uint64_t offset = at - buffer.at;
    if (i < 0 || offset >= buffer.size)
        return fail(SOL_EINVAL, "%s: %#llx is not in memory that was allocated on the device", what,
                    (unsigned long long)at);
    if (size <= buffer.size - offset) return SOL_OK;
    return fail(SOL_EINVAL, "%s: %zu bytes from byte %llu on, but the allocation has %zu", what,
                size, (unsigned long long)offset, buffer.size);
}
