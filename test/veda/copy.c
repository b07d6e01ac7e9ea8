/*
 * Copies and fills of virtual pointers.
 *
 * Those between host and device need the raw address, so the host checks their bounds, and the first one of a new allocation waits.
 * All others are tasks of the device, which checks their bounds; the caller learns that when it waits.
 */
#include "parts.h"

#include <stdlib.h>

/* ---- Between host and device ---- */

static VEDAresult transfer(VEDAcontext c, VEDAstream stream, enum transfer_kind kind,
                           VEDAdeviceptr at, void *host, size_t size) {
    struct veda_entry entry;
    const uint64_t offset = VEDA_GET_OFFSET(at);
    VEDA_TRY(stream_check(c, stream));
    VEDA_TRY(memory_entry(c, at, true, &entry));
    if (!entry.size) return VEDA_ERROR_UNKNOWN_PPTR; /* no kernel has allocated it yet */
    if (offset > entry.size || size > entry.size - offset) return VEDA_ERROR_OUT_OF_BOUNDS;
    if (!entry.raw) return VEDA_ERROR_OUT_OF_MEMORY;
    return stream_copy(c, stream, kind, entry.raw + offset, host, size);
}

/* The context is that of the pointer, not the current one. */
static VEDAresult begin_transfer(VEDAstream stream, enum transfer_kind kind, VEDAdeviceptr at,
                                 void *host, size_t size) {
    VEDAcontext c;
    VEDA_TRY(context_acquire(at, &c));
    VEDAresult result = host ? transfer(c, stream, kind, at, host, size) : VEDA_ERROR_INVALID_VALUE;
    return stream_finish(c, stream, result);
}

VEDAresult vedaMemcpyHtoDAsync(VEDAdeviceptr to, const void *from, size_t size, VEDAstream stream) {
    return begin_transfer(stream, TRANSFER_TO_DEVICE, to, (void *)(uintptr_t)from, size);
}

VEDAresult vedaMemcpyHtoD(VEDAdeviceptr to, const void *from, size_t size) {
    return vedaMemcpyHtoDAsync(to, from, size, -1);
}

VEDAresult vedaMemcpyDtoHAsync(void *to, VEDAdeviceptr from, size_t size, VEDAstream stream) {
    return begin_transfer(stream, TRANSFER_TO_HOST, from, to, size);
}

VEDAresult vedaMemcpyDtoH(void *to, VEDAdeviceptr from, size_t size) {
    return vedaMemcpyDtoHAsync(to, from, size, -1);
}

/* ---- On devices ---- */

/* The virtual pointers go to the device as they are. */
static VEDAresult task(VEDAdeviceptr at, VEDAstream stream, enum veda_task what, int n,
                       const uint64_t *values) {
    VEDAcontext c;
    VEDA_TRY(context_acquire(at, &c));
    return stream_finish(c, stream, stream_task(c, stream, what, n, values, NULL));
}

/* By way of the host, which waits for both halves. */
static VEDAresult copy_between(VEDAdeviceptr to, VEDAdeviceptr from, size_t size) {
    void *host = malloc(size ? size : 1);
    if (!host) return VEDA_ERROR_OUT_OF_MEMORY;
    VEDAresult result = vedaMemcpyDtoH(host, from, size);
    if (!result) result = vedaMemcpyHtoD(to, host, size);
    free(host);
    return result;
}

VEDAresult vedaMemcpyDtoDAsync(VEDAdeviceptr to, VEDAdeviceptr from, size_t size,
                               VEDAstream stream) {
    if (!to || !from) return VEDA_ERROR_INVALID_VALUE;
    if (VEDA_GET_DEVICE(to) != VEDA_GET_DEVICE(from)) return copy_between(to, from, size);
    const uint64_t values[] = {(uint64_t)(uintptr_t)to, (uint64_t)(uintptr_t)from, size};
    return task(to, stream, VEDA_TASK_COPY, 3, values);
}

VEDAresult vedaMemcpyDtoD(VEDAdeviceptr to, VEDAdeviceptr from, size_t size) {
    return vedaMemcpyDtoDAsync(to, from, size, -1);
}

VEDAresult vedaMemcpyAsync(VEDAdeviceptr to, VEDAdeviceptr from, size_t size, VEDAstream stream) {
    return vedaMemcpyDtoDAsync(to, from, size, stream);
}

VEDAresult vedaMemcpy(VEDAdeviceptr to, VEDAdeviceptr from, size_t size) {
    return vedaMemcpyDtoDAsync(to, from, size, -1);
}

/* ---- Fills ---- */

static VEDAresult fill(VEDAdeviceptr at, uint64_t unit, uint64_t x, uint64_t y, size_t n,
                       VEDAstream stream) {
    const uint64_t values[] = {(uint64_t)(uintptr_t)at, unit, x, y, n};
    return task(at, stream, VEDA_TASK_FILL, 5, values);
}

#define FILL(name, type)                                                                \
    VEDAresult name##Async(VEDAdeviceptr at, type value, size_t n, VEDAstream stream) { \
        return fill(at, sizeof value, value, 0, n, stream);                             \
    }                                                                                   \
    VEDAresult name(VEDAdeviceptr at, type value, size_t n) {                           \
        return fill(at, sizeof value, value, 0, n, -1);                                 \
    }
FILL(vedaMemsetD8, uint8_t)
FILL(vedaMemsetD16, uint16_t)
FILL(vedaMemsetD32, uint32_t)
FILL(vedaMemsetD64, uint64_t)
#undef FILL

VEDAresult vedaMemsetD128Async(VEDAdeviceptr at, uint64_t x, uint64_t y, size_t n,
                               VEDAstream stream) {
    return fill(at, 2 * sizeof x, x, y, n, stream);
}

VEDAresult vedaMemsetD128(VEDAdeviceptr at, uint64_t x, uint64_t y, size_t n) {
    return fill(at, 2 * sizeof x, x, y, n, -1);
}
