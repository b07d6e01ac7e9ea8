/*
 * The device's half of the stand-in for VEDA: the table from virtual to raw pointers, the memory behind it, modules, and the call
 * of kernels. It runs in the worker of a far device, and is compiled when a context is created.
 *
 *   context.c, launch.c -> veda_entry, the only kernel that the far device knows -> a task of this file, or a user's kernel
 *
 * The file is one text with veda_types.h, veda_device.h and tasks.h in front. Kernels find its functions in the global scope of the loader,
 * into which it puts itself.
 *
 * Invariants: an index is allocated if its size is not 0. Its raw pointer is in the memory that the host gave, so that copies
 * reach it; NULL: there was no memory for it, as the real library leaves it.
 */
#ifndef VEDA_DEVICE_H
#include "tasks.h"
#include "veda_device.h"
#endif

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

struct entry {
    char *raw;
    size_t size;
};

/* A part of the memory that is in use; by address. */
struct block {
    struct block *next;
    char *at;
    size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* kernels may have threads */
static struct entry table[VEDA_CNT_IDX + 1];
static struct block *blocks;
static char *memory;
static size_t memory_size;

/* ---- Memory ---- */

/* The first gap that is large enough. NULL: none. */
static char *take(size_t size) {
    struct block **at = &blocks, *block;
    char *begin = memory, *end = memory + memory_size;
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    for (; *at && (size_t)((*at)->at - begin) < size; at = &(*at)->next)
        begin = (*at)->at + (*at)->size;
    if ((size_t)(end - begin) < size || !(block = malloc(sizeof *block))) return NULL;
    *block = (struct block){*at, begin, size};
    *at = block;
    return begin;
}

/* A raw pointer of NULL, which had no memory, is not found. */
static void give(const char *raw) {
    struct block **at = &blocks;
    while (*at && (*at)->at != raw) at = &(*at)->next;
    struct block *block = *at;
    if (!block) return;
    *at = block->next;
    free(block);
}

/* ---- Virtual pointers ---- */

/* For functions of whole allocations. */
static VEDAresult check_base(VEDAdeviceptr vptr) {
    if (VEDA_GET_OFFSET(vptr)) return VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED;
    return VEDA_GET_IDX(vptr) ? VEDA_SUCCESS : VEDA_ERROR_UNKNOWN_VPTR;
}

static VEDAresult alloc(struct entry *entry, size_t size) {
    if (entry->size)
        return entry->size == size ? VEDA_ERROR_VPTR_ALREADY_ALLOCATED : VEDA_ERROR_INVALID_VALUE;
    *entry = (struct entry){take(size), size};
    return entry->raw ? VEDA_SUCCESS : VEDA_ERROR_OUT_OF_MEMORY;
}

VEDAresult vedaMemAllocPtr(void **ptr, VEDAdeviceptr vptr, const size_t size) {
    if (!ptr || !size || !vptr) return VEDA_ERROR_INVALID_ARGS;
    VEDAresult result = check_base(vptr);
    if (result) return result;
    struct entry *entry = &table[VEDA_GET_IDX(vptr)];
    pthread_mutex_lock(&lock);
    result = alloc(entry, size);
    *ptr = entry->raw;
    pthread_mutex_unlock(&lock);
    return result;
}

VEDAresult vedaMemAlloc(VEDAdeviceptr vptr, const size_t size) {
    void *ptr;
    return vedaMemAllocPtr(&ptr, vptr, size);
}

VEDAresult vedaMemFree(VEDAdeviceptr vptr) {
    if (!vptr) return VEDA_ERROR_INVALID_ARGS;
    VEDAresult result = check_base(vptr);
    if (result) return result;
    struct entry *entry = &table[VEDA_GET_IDX(vptr)];
    pthread_mutex_lock(&lock);
    if (!entry->size) result = VEDA_ERROR_UNKNOWN_VPTR;
    else give(entry->raw);
    *entry = (struct entry){0};
    pthread_mutex_unlock(&lock);
    return result;
}

VEDAresult vedaMemPtrSize(void **ptr, size_t *size, VEDAdeviceptr vptr) {
    pthread_mutex_lock(&lock);
    struct entry entry = table[VEDA_GET_IDX(vptr)];
    pthread_mutex_unlock(&lock);
    if (!entry.size) return VEDA_ERROR_UNKNOWN_VPTR;
    *ptr = entry.raw ? entry.raw + VEDA_GET_OFFSET(vptr) : NULL;
    *size = entry.size;
    return VEDA_SUCCESS;
}

VEDAresult vedaMemPtr(void **ptr, VEDAdeviceptr vptr) {
    size_t size;
    return vedaMemPtrSize(ptr, &size, vptr);
}

VEDAresult vedaMemSize(size_t *size, VEDAdeviceptr vptr) {
    void *ptr;
    return vedaMemPtrSize(&ptr, size, vptr);
}

/* One of them, or both, may have no memory yet. */
VEDAresult vedaMemSwap(VEDAdeviceptr a, VEDAdeviceptr b) {
    struct entry *x = &table[VEDA_GET_IDX(a)], *y = &table[VEDA_GET_IDX(b)];
    pthread_mutex_lock(&lock);
    struct entry entry = *x;
    *x = *y;
    *y = entry;
    pthread_mutex_unlock(&lock);
    return VEDA_SUCCESS;
}

/* ---- Raw pointers ---- */

/* Kernels know the bounds of these; nobody checks them. */
VEDAresult vedaMemcpy(void *to, const void *from, const size_t size) {
    memmove(to, from, size);
    return VEDA_SUCCESS;
}

#define FILL(name, type)                                                 \
    VEDAresult name(void *at, const type value, const size_t n) {        \
        for (size_t i = 0; i < n; i++) ((type *)at)[i] = value;           \
        return VEDA_SUCCESS;                                             \
    }
FILL(vedaMemsetD8, uint8_t)
FILL(vedaMemsetD16, uint16_t)
FILL(vedaMemsetD32, uint32_t)
FILL(vedaMemsetD64, uint64_t)
#undef FILL

VEDAresult vedaMemsetD128(void *at, const uint64_t x, const uint64_t y, const size_t n) {
    uint64_t *out = at;
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = x;
        out[2 * i + 1] = y;
    }
    return VEDA_SUCCESS;
}

/* ---- Names ---- */

VEDAresult vedaGetErrorName(VEDAresult error, const char **name) {
#define NAME(name) "VEDA_ERROR_" #name,
    static const char *const names[] = {"VEDA_SUCCESS", VEDA_ERRORS(NAME)};
#undef NAME
    if ((unsigned)error >= VEDA_N_RESULTS) return VEDA_ERROR_UNKNOWN;
    *name = names[error];
    return VEDA_SUCCESS;
}

VEDAresult vedaGetErrorString(VEDAresult error, const char **name) {
    return vedaGetErrorName(error, name);
}

/* ---- Tasks of the library: tasks.h ---- */

/* The modules that are opened later find the functions of this file only if its symbols are global, but the far device has opened it
 * with local ones. Opening it again changes that. */
static uint64_t at_start(uint64_t base, uint64_t size, uint64_t threads) {
    char number[24];
    Dl_info self;
    memory = (char *)base;
    memory_size = size;
    (void)snprintf(number, sizeof number, "%d", (int)threads);
    setenv("OMP_NUM_THREADS", number,
           1); /* OpenMP reads it when the first module is loaded that needs it */
    if (!dladdr((void *)table, &self)) return VEDA_ERROR_UNKNOWN;
    return dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) ? VEDA_SUCCESS
                                                                        : VEDA_ERROR_UNKNOWN;
}

/* Raw memory of n bytes; else why not. */
static VEDAresult resolve(uint64_t vptr, uint64_t n, void **out) {
    size_t size = 0;
    VEDAresult result = vedaMemPtrSize(out, &size, (VEDAdeviceptr)vptr);
    if (result) return result;
    if (VEDA_GET_OFFSET(vptr) + n > size) return VEDA_ERROR_OUT_OF_BOUNDS;
    return *out ? VEDA_SUCCESS : VEDA_ERROR_OUT_OF_MEMORY;
}

/* The result of an allocation is not checked; who uses the pointer finds out. */
static uint64_t at_alloc(uint64_t vptr, uint64_t size) {
    return vedaMemAlloc((VEDAdeviceptr)vptr, size);
}

/* What has no memory yet, a delayed allocation, has nothing to free. */
static uint64_t at_free(uint64_t vptr) {
    VEDAresult result = vedaMemFree((VEDAdeviceptr)vptr);
    return result == VEDA_ERROR_UNKNOWN_VPTR ? VEDA_SUCCESS : result;
}

static uint64_t at_swap(uint64_t a, uint64_t b) {
    return vedaMemSwap((VEDAdeviceptr)a, (VEDAdeviceptr)b);
}

static uint64_t at_copy(uint64_t to, uint64_t from, uint64_t size) {
    void *x, *y;
    VEDAresult result = resolve(to, size, &x);
    if (!result) result = resolve(from, size, &y);
    return result ? result : vedaMemcpy(x, y, size);
}

/* n values of `unit` bytes. */
static uint64_t at_fill(uint64_t vptr, uint64_t unit, uint64_t x, uint64_t y, uint64_t n) {
    void *at;
    VEDAresult result = resolve(vptr, unit * n, &at);
    if (result) return result;
    switch (unit) {
    case 1: return vedaMemsetD8(at, (uint8_t)x, n);
    case 2: return vedaMemsetD16(at, (uint16_t)x, n);
    case 4: return vedaMemsetD32(at, (uint32_t)x, n);
    case 8: return vedaMemsetD64(at, x, n);
    default: return vedaMemsetD128(at, x, y, n);
    }
}

/* The entries of n indices. */
static uint64_t at_info(uint64_t n, uint64_t indices, uint64_t out) {
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < n; i++)
        ((struct entry *)out)[i] = table[((const uint32_t *)indices)[i]];
    pthread_mutex_unlock(&lock);
    return VEDA_SUCCESS;
}

/* The reason goes to the host's stderr, as the result has no room for it. */
static uint64_t at_open(uint64_t path) {
    void *module = dlopen((const char *)path, RTLD_NOW | RTLD_LOCAL);
    if (!module) fprintf(stderr, "[VEDA ERROR]: %s\n", dlerror());
    return (uint64_t)module;
}

static uint64_t at_find(uint64_t module, uint64_t name) {
    return (uint64_t)dlsym((void *)module, (const char *)name);
}

static uint64_t at_close(uint64_t module) { return dlclose((void *)module) != 0; }

static void *const tasks[] = {
    [VEDA_TASK_START] = (void *)at_start, [VEDA_TASK_ALLOC] = (void *)at_alloc,
    [VEDA_TASK_FREE] = (void *)at_free,   [VEDA_TASK_SWAP] = (void *)at_swap,
    [VEDA_TASK_COPY] = (void *)at_copy,   [VEDA_TASK_FILL] = (void *)at_fill,
    [VEDA_TASK_INFO] = (void *)at_info,   [VEDA_TASK_OPEN] = (void *)at_open,
    [VEDA_TASK_FIND] = (void *)at_find,   [VEDA_TASK_CLOSE] = (void *)at_close,
};

/* ---- Calls ---- */

#define W4(w, i) (w)[i], (w)[(i) + 1], (w)[(i) + 2], (w)[(i) + 3]
#define W16(w, i) W4(w, i), W4(w, (i) + 4), W4(w, (i) + 8), W4(w, (i) + 12)
#if VEDA_INTEGERS == 6
#define INTEGERS(w) (w)[0], (w)[1], (w)[2], (w)[3], (w)[4], (w)[5]
#define INTEGER_TYPES uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t
#else
#define INTEGERS(w) W4(w, 0), W4(w, 4)
#define INTEGER_TYPES T4, T4
#endif
#define T4 uint64_t, uint64_t, uint64_t, uint64_t
#define T16 T4, T4, T4, T4
#define D4 double, double, double, double

/* The registers, then the words on the stack. A function that has fewer parameters ignores what it does not know: in the calling
 * conventions of x86-64 and arm64 the caller removes the words, and the registers are lost in any call. */
typedef uint64_t function(INTEGER_TYPES, D4, D4, T16, T16, T16);

_Static_assert(VEDA_FLOATS == 8 && VEDA_WORDS == 48, "the type has so many");

/* ptr[0]: where the result goes; arg: struct veda_call. */
void veda_entry(void *const *ptr, const int64_t *arg, char *scratch, int64_t begin, int64_t end) {
    const struct veda_call *call = (const void *)arg;
    const double *f = call->floats;
    const uint64_t *w = call->words;
    uint64_t code = call->code;
    (void)scratch, (void)begin, (void)end;
    if (code < VEDA_N_TASKS) code = (uint64_t)tasks[code];
    *(uint64_t *)ptr[0] = ((function *)code)(INTEGERS(call->integers), W4(f, 0), W4(f, 4),
                                             W16(w, 0), W16(w, 16), W16(w, 32));
}
