/*
 * Virtual pointers: the host picks an index and lets the device find memory for it, in the order of the stream.
 *
 * The host's table knows sizes, and raw addresses once somebody needed one. Then one task tells those of all indices for which the
 * host has none, also of delayed allocations (size 0), whose memory a kernel allocates.
 *
 * Invariants: each index in use without a raw address is in `unknown`. A device has an index in its table only if the host has it,
 * or had it when the commands so far were submitted. Index 0 is never in use.
 */
#include "parts.h"

#include <stdio.h>
#include <stdlib.h>

struct device_entry { /* as device.c writes it */
    uint64_t raw, size;
};

VEDAresult memory_init(VEDAcontext c) {
    c->table = calloc(VEDA_CNT_IDX + 1, sizeof *c->table); /* untouched memory costs nothing */
    c->next_idx = 1;
    return c->table ? VEDA_SUCCESS : VEDA_ERROR_OUT_OF_MEMORY;
}

/* The base of an allocation. */
static VEDAdeviceptr pointer_of(VEDAcontext c, uint32_t idx) {
    return (VEDAdeviceptr)(uintptr_t)((uint64_t)c->device << VEDA_SHIFT_DEVICE |
                                      (uint64_t)idx << VEDA_SHIFT_IDX);
}

static void print_entries(VEDAcontext c, const char *format) {
    for (uint32_t i = 1, n = 0; n < c->n_used; i++) {
        if (!c->table[i].used) continue;
        n++;
        printf(format, (void *)pointer_of(c, i), c->table[i].size);
    }
    (void)fflush(stdout);
}

void memory_fini(VEDAcontext c) {
    if (veda_traces_memory() && c->table)
        print_entries(c, "[VEDA ERROR]: VEDAdeviceptr %p with size %zuB has not been freed!\n");
    free(c->table);
    free(c->unknown);
    c->table = NULL;
    c->unknown = NULL;
    c->n_unknown = c->unknown_cap = c->n_used = 0;
}

/* ---- What the device knows ---- */

/* Keeps those in `unknown` that are in use and still unknown. */
static void sort_out(VEDAcontext c) {
    size_t n = 0;
    for (size_t i = 0; i < c->n_unknown; i++) {
        uint32_t idx = c->unknown[i];
        if (c->table[idx].used && !c->table[idx].raw) c->unknown[n++] = idx;
    }
    c->n_unknown = n;
}

static VEDAresult grow_unknown(VEDAcontext c) {
    size_t cap = c->unknown_cap ? 2 * c->unknown_cap : 64;
    uint32_t *grown = realloc(c->unknown, cap * sizeof *grown);
    if (!grown) return VEDA_ERROR_OUT_OF_MEMORY;
    c->unknown = grown;
    c->unknown_cap = cap;
    return VEDA_SUCCESS;
}

/* The index is in use and unknown by now, else sort_out might drop it. It may be in the list several times: after swaps, or if it was
 * freed and used again. */
static VEDAresult add_unknown(VEDAcontext c, uint32_t idx) {
    if (c->n_unknown == c->unknown_cap) {
        sort_out(c);
        if (2 * c->n_unknown >= c->unknown_cap) VEDA_TRY(grow_unknown(c));
    }
    c->unknown[c->n_unknown++] = idx;
    return VEDA_SUCCESS;
}

/* What another thread has swapped or freed since the question is left out. Of a delayed allocation the device tells the size, too. */
static void learn(VEDAcontext c, uint64_t n_changes, size_t n, const uint32_t *indices,
                  const struct device_entry *entries) {
    for (size_t i = 0; i < n; i++) {
        struct veda_entry *entry = &c->table[indices[i]];
        if (!entry->used || entry->raw || !entries[i].raw || entry->changed > n_changes) continue;
        entry->raw = entries[i].raw;
        entry->size = entries[i].size;
    }
    sort_out(c);
}

/* The only function that waits for raw addresses: for all that are missing at once, behind everything that was submitted. Asks for at
 * most as many as the arguments of one kernel can hold. */
static VEDAresult fetch(VEDAcontext c) {
    sort_out(c);
    const uint64_t n_changes = c->n_changes;
    const size_t most = VEDA_STACK_LIMIT / 2 / sizeof(struct device_entry),
                 n = c->n_unknown < most ? c->n_unknown : most;
    uint32_t *indices = calloc(n + 1, sizeof *indices);
    struct device_entry *entries = calloc(n + 1, sizeof *entries);
    VEDAresult result = VEDA_ERROR_OUT_OF_MEMORY;
    if (indices && entries) {
        struct veo_args args = {0};
        for (size_t i = 0; i < n; i++) indices[i] = c->unknown[i];
        (void)vedaArgsSetU64(&args, 0, n);
        (void)vedaArgsSetStack(&args, 1, indices, VEDA_ARGS_INTENT_IN, n * sizeof *indices);
        (void)vedaArgsSetStack(&args, 2, entries, VEDA_ARGS_INTENT_OUT, n * sizeof *entries);
        result =
            stream_call(c, VEDA_OWN_STREAM, VEDA_TASK_INFO, "veda_mem_info", &args, true, NULL);
        if (!result) result = stream_sync(c, VEDA_OWN_STREAM);
        if (!result) learn(c, n_changes, n, indices, entries);
    }
    free(indices);
    free(entries);
    return result;
}

/* Asks again if the index has changed while this waited. */
VEDAresult memory_entry(VEDAcontext c, VEDAdeviceptr at, bool want_raw, struct veda_entry *out) {
    const struct veda_entry *entry = &c->table[VEDA_GET_IDX(at)];
    uint64_t n_changes;
    do {
        n_changes = c->n_changes;
        if (!entry->used) return VEDA_ERROR_UNKNOWN_VPTR;
        if (!entry->raw && (want_raw || !entry->size)) VEDA_TRY(fetch(c));
    } while (entry->changed > n_changes);
    *out = *entry;
    return VEDA_SUCCESS;
}

/* ---- Allocation ---- */

static uint32_t next_idx(uint32_t idx) { return idx == VEDA_CNT_IDX ? 1 : idx + 1; }

static void drop(VEDAcontext c, uint32_t idx) {
    c->table[idx] = (struct veda_entry){.changed = ++c->n_changes};
    c->n_used--;
}

/* Indices are taken in turn, so that a pointer that was freed stays invalid for a long time. The device has freed an index before it
 * allocates it again, because that is the order of the commands. */
static VEDAresult alloc(VEDAcontext c, VEDAstream stream, size_t size, VEDAdeviceptr *out) {
    VEDA_TRY(stream_check(c, stream));
    if (c->n_used == VEDA_CNT_IDX || size > VEDA_BITS_OFFSET) return VEDA_ERROR_OUT_OF_MEMORY;
    while (c->table[c->next_idx].used) c->next_idx = next_idx(c->next_idx);
    const uint32_t idx = c->next_idx;
    const uint64_t values[] = {(uint64_t)(uintptr_t)pointer_of(c, idx), size};
    /* Before others may get the lock. */
    c->table[idx] = (struct veda_entry){.size = size, .used = true, .changed = ++c->n_changes};
    c->n_used++;
    c->next_idx = next_idx(idx);
    *out = pointer_of(c, idx);
    VEDAresult result = add_unknown(c, idx);
    if (!result && size) result = stream_task(c, stream, VEDA_TASK_ALLOC, 2, values, NULL);
    if (result) drop(c, idx);
    return result;
}

VEDAresult vedaMemAllocAsync(VEDAdeviceptr *out, size_t size, VEDAstream stream) {
    VEDAcontext c;
    if (!out) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(context_acquire_current(&c));
    return stream_finish(c, stream, alloc(c, stream, size, out));
}

VEDAresult vedaMemAlloc(VEDAdeviceptr *out, size_t size) {
    return vedaMemAllocAsync(out, size, -1);
}

/* The host forgets it at once, the device in the order of the stream. */
static VEDAresult free_entry(VEDAcontext c, VEDAstream stream, VEDAdeviceptr at) {
    const uint64_t value = (uint64_t)(uintptr_t)at;
    const struct veda_entry *entry = &c->table[VEDA_GET_IDX(at)];
    if (VEDA_GET_OFFSET(at)) return VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED;
    if (!entry->used) return VEDA_ERROR_UNKNOWN_VPTR;
    VEDA_TRY(stream_task(c, stream, VEDA_TASK_FREE, 1, &value, NULL));
    drop(c, VEDA_GET_IDX(at));
    return VEDA_SUCCESS;
}

/* All memory has died with its context. */
VEDAresult vedaMemFreeAsync(VEDAdeviceptr at, VEDAstream stream) {
    VEDAcontext c;
    VEDAresult result = context_acquire(at, &c);
    if (result == VEDA_ERROR_CONTEXT_IS_DESTROYED) return VEDA_SUCCESS;
    return result ? result : stream_finish(c, stream, free_entry(c, stream, at));
}

VEDAresult vedaMemFree(VEDAdeviceptr at) { return vedaMemFreeAsync(at, -1); }

/* ---- Swaps ---- */

/* An index that was known may be unknown now. */
static VEDAresult swap(VEDAcontext c, VEDAstream stream, VEDAdeviceptr a, VEDAdeviceptr b) {
    const uint64_t values[] = {(uint64_t)(uintptr_t)a, (uint64_t)(uintptr_t)b};
    struct veda_entry *x = &c->table[VEDA_GET_IDX(a)], *y = &c->table[VEDA_GET_IDX(b)];
    if (!x->used || !y->used) return VEDA_ERROR_UNKNOWN_VPTR;
    VEDA_TRY(stream_task(c, stream, VEDA_TASK_SWAP, 2, values, NULL));
    struct veda_entry entry = *x;
    *x = *y;
    *y = entry;
    x->changed = y->changed = ++c->n_changes;
    if (!x->raw) VEDA_TRY(add_unknown(c, VEDA_GET_IDX(a)));
    return y->raw ? VEDA_SUCCESS : add_unknown(c, VEDA_GET_IDX(b));
}

VEDAresult vedaMemSwapAsync(VEDAdeviceptr a, VEDAdeviceptr b, VEDAstream stream) {
    VEDAcontext c;
    if (VEDA_GET_DEVICE(a) != VEDA_GET_DEVICE(b)) return VEDA_ERROR_INVALID_CONTEXT;
    VEDA_TRY(context_acquire(a, &c));
    return stream_finish(c, stream, swap(c, stream, a, b));
}

VEDAresult vedaMemSwap(VEDAdeviceptr a, VEDAdeviceptr b) { return vedaMemSwapAsync(a, b, -1); }

/* ---- Questions ---- */

/* Synchronous: these functions have no stream. */
static VEDAresult ask(VEDAdeviceptr at, bool want_raw, struct veda_entry *out) {
    VEDAcontext c;
    VEDA_TRY(context_acquire(at, &c));
    VEDAresult result = memory_entry(c, at, want_raw, out);
    lock_release(&c->lock);
    return result;
}

VEDAresult vedaMemPtrSize(void **out, size_t *size, VEDAdeviceptr at) {
    struct veda_entry entry;
    if (!out || !size) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(ask(at, true, &entry));
    *out = entry.raw ? (void *)(uintptr_t)(entry.raw + VEDA_GET_OFFSET(at)) : NULL;
    *size = entry.size;
    return VEDA_SUCCESS;
}

VEDAresult vedaMemPtr(void **out, VEDAdeviceptr at) {
    size_t size;
    return vedaMemPtrSize(out, &size, at);
}

VEDAresult vedaMemSize(size_t *out, VEDAdeviceptr at) {
    struct veda_entry entry;
    if (!out) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(ask(at, false, &entry));
    *out = entry.size;
    return VEDA_SUCCESS;
}

VEDAresult vedaMemGetAddressRange(VEDAdeviceptr *base, size_t *size, VEDAdeviceptr at) {
    VEDA_TRY(vedaMemSize(size, at));
    if (base) *base = (VEDAdeviceptr)(uintptr_t)((uint64_t)(uintptr_t)at & ~VEDA_BITS_OFFSET);
    return VEDA_SUCCESS;
}

VEDAresult vedaMemGetDevice(VEDAdevice *out, VEDAdeviceptr at) {
    *out = VEDA_GET_DEVICE(at);
    return VEDA_SUCCESS;
}

/* Sizes of all allocations, also of those that a kernel made. */
static VEDAresult sum(VEDAcontext c, size_t *out) {
    VEDA_TRY(fetch(c));
    *out = 0;
    for (uint32_t i = 1, n = 0; n < c->n_used; i++) {
        n += c->table[i].used;
        *out += c->table[i].size;
    }
    return VEDA_SUCCESS;
}

VEDAresult vedaMemGetInfo(size_t *free_size, size_t *total) {
    VEDAcontext c;
    size_t used = 0;
    VEDA_TRY(context_acquire_current(&c));
    VEDAresult result = sum(c, &used);
    if (total) *total = c->memory;
    if (!result && free_size) *free_size = c->memory - used;
    lock_release(&c->lock);
    return result;
}

VEDAresult vedaMemReport(void) {
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < veda_n_devices(); i++) {
        VEDAcontext c;
        VEDA_TRY(context_of(i, &c));
        lock_acquire(&c->lock);
        if (c->active) {
            printf("# VE#%d %u of %.2fGB\n", i, c->n_used, (double)c->memory / (1 << 30));
            print_entries(c, "%p %zuB\n");
        }
        lock_release(&c->lock);
    }
    return VEDA_SUCCESS;
}
