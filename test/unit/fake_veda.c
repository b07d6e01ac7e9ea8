/*
 * A libveda for tests of src/device/ve: devices in this process, whose commands run when the stream is synchronised.
 *
 * So it finds what a fast device hides: arguments or memory of the host that do not live long enough, and errors that come late. It is
 * compiled by the test, with -DVERSION; LACKS leaves a function out, INIT is the result of vedaInit, BITS those of a pointer's offset. $FAKE_VEDA_FAIL: how many commands
 * it takes until one fails; it is counted down. Results are numbers; see device/ve/veda.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define DEVICES 3
#define MEMORY ((size_t)1 << 28)
#define CONTEXT ((void *)0x1000) /* of device 0; the next ones follow */
#define MOST 4096
#ifndef BITS
#define BITS 37
#endif
#define OFFSET ((1ull << BITS) - 1)

enum {
    OK,
    ALREADY = 1,
    NO_CONTEXT = 2,
    NO_FUNCTION = 7,
    BAD_ARGS = 9,
    BAD_DEVICE = 12,
    NO_MODULE = 17,
    OFFSETTED = 22,
    OUTSIDE = 23,
    NO_MEMORY = 24,
    NOT_CURRENT = 27,
    UNKNOWN = 34,
    EXCEPTION = 37
};

struct block {
    char *at;
    size_t size;
    int is_used;
};
struct command {
    int kind;
    uint64_t to, from;
    size_t size;
    int value;
    uint64_t (*run)(void *);
    void *user;
    uint64_t *result;
    char *stack;
};
struct args {
    void *from;
    size_t size;
};
struct function {
    uint64_t ptr;
    const char *name;
};

enum { ALLOC, FREE, TO_DEVICE, TO_HOST, ON_DEVICE, FILL, KERNEL, HOST };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[DEVICES][MOST];
static struct command commands[DEVICES][MOST];
static int n_commands[DEVICES], is_open[DEVICES], n_blocks[DEVICES];
static size_t used[DEVICES];
static __thread long current[16];
static __thread int n_current;

static int device(void) { return n_current ? (int)(current[n_current - 1] - (long)CONTEXT) : -1; }

static struct block *find(uint64_t at) {
    const uint64_t i = at >> BITS & 0x3fffff, d = at >> (BITS + 22);
    return d < DEVICES && i && i < MOST && blocks[d][i].is_used ? &blocks[d][i] : NULL;
}

static char *resolve(uint64_t at, size_t size) {
    const struct block *b = find(at);
    const uint64_t offset = at & OFFSET;
    return b && b->at && offset + size <= b->size ? b->at + offset : NULL;
}

API int vedaMemPtr(void **out, uint64_t at) {
    const struct block *b = find(at);
    *out = b ? b->at + (at & OFFSET) : NULL;
    return b ? OK : UNKNOWN;
}

/* ---- Commands ---- */

static int run_memory(int d, const struct command *c) {
    struct block *b = find(c->to);
    if (c->kind == ALLOC) {
        if (used[d] + b->size > MEMORY) return OK; /* found by what uses it */
        used[d] += b->size;
        b->at = malloc(b->size);
        memset(b->at, 0x5a, b->size);
        return OK;
    }
    if (b->at) used[d] -= b->size;
    free(b->at);
    *b = (struct block){0};
    return OK;
}

static int fails(void) {
    const char *value = getenv("FAKE_VEDA_FAIL");
    const int left = value ? atoi(value) : 0;
    char next[16];
    snprintf(next, sizeof next, "%d", left - 1);
    if (left > 0) setenv("FAKE_VEDA_FAIL", next, 1);
    return left == 1;
}

static int run_one(int d, struct command *c) {
    char *to = resolve(c->to, c->size), *from = resolve(c->from, c->size);
    if (fails()) return EXCEPTION;
    if (c->kind <= FREE) return run_memory(d, c);
    if (c->kind >= KERNEL) {
        *c->result = c->run(c->kind == KERNEL ? c->stack : c->user);
        free(c->stack);
        return OK;
    }
    if ((c->kind != TO_HOST && !to) || ((c->kind == TO_HOST || c->kind == ON_DEVICE) && !from))
        return NO_MEMORY;
    if (c->kind == FILL) memset(to, c->value, c->size);
    else if (c->kind == TO_DEVICE) memcpy(to, c->user, c->size);
    else memmove(c->kind == TO_HOST ? c->user : to, from, c->size);
    return OK;
}

static int synchronise(int d) {
    int result = OK;
    for (int i = 0; i < n_commands[d]; i++) {
        if (!result) result = run_one(d, &commands[d][i]);
        if (result) free(commands[d][i].stack);
    }
    n_commands[d] = 0;
    return result;
}

static int add(int stream, struct command c) {
    const int d = device();
    if (d < 0) return NOT_CURRENT;
    if (stream) return BAD_ARGS;
    pthread_mutex_lock(&lock);
    int result = n_commands[d] == MOST ? synchronise(d) : OK;
    if (!result) commands[d][n_commands[d]++] = c;
    pthread_mutex_unlock(&lock);
    return result;
}

API int vedaStreamSynchronize(int stream) {
    if (device() < 0 || stream) return NOT_CURRENT;
    pthread_mutex_lock(&lock);
    const int result = synchronise(device());
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- Devices ---- */

API int vedaGetVersion(const char **text) {
    *text = VERSION;
    return OK;
}
API int vedaInit(uint32_t flags) { return flags ? BAD_ARGS : INIT; }
API int vedaDeviceGetCount(int *n) {
    *n = DEVICES;
    return OK;
}
API int vedaDeviceGetAttribute(int *value, int what, int d) {
    *value = what == 2 && d < DEVICES ? 3 : 0;
    return OK;
}
API int vedaDeviceTotalMem(size_t *size, int d) {
    *size = MEMORY;
    return d < DEVICES ? OK : BAD_DEVICE;
}

API int vedaGetErrorName(int result, const char **name) {
    static const struct {
        int result;
        const char *name;
    } rows[] = {{20, "VEDA_ERROR_NO_DEVICES_FOUND"},
                {NO_CONTEXT, "VEDA_ERROR_CANNOT_CREATE_CONTEXT"},
                {NO_FUNCTION, "VEDA_ERROR_FUNCTION_NOT_FOUND"},
                {NO_MODULE, "VEDA_ERROR_MODULE_NOT_FOUND"},
                {NO_MEMORY, "VEDA_ERROR_OUT_OF_MEMORY"},
                {UNKNOWN, "VEDA_ERROR_UNKNOWN_VPTR"},
                {OFFSETTED, "VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED"},
                {EXCEPTION, "VEDA_ERROR_VEO_COMMAND_EXCEPTION"}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].result == result) {
            *name = rows[i].name;
            return OK;
        }
    return BAD_ARGS;
}

API int vedaCtxPushCurrent(void *context) {
    current[n_current++] = (long)context;
    return OK;
}
API int vedaCtxPopCurrent(void **out) {
    if (!n_current) return NOT_CURRENT;
    *out = (void *)current[--n_current];
    return OK;
}
API int vedaCtxCreate(void **out, int mode, int d) {
    if (mode || d < 0 || d >= DEVICES) return BAD_DEVICE;
    if (is_open[d]) return NO_CONTEXT;
    is_open[d] = 1;
    *out = (char *)CONTEXT + d;
    return vedaCtxPushCurrent(*out);
}
API int vedaCtxDestroy(void *context) {
    const long d = (long)context - (long)CONTEXT;
    for (int i = 0; i < n_commands[d]; i++) free(commands[d][i].stack);
    for (int i = 0; i < MOST; i++) free(blocks[d][i].at);
    memset(blocks[d], 0, sizeof blocks[d]);
    n_commands[d] = is_open[d] = n_blocks[d] = 0, used[d] = 0;
    return OK;
}

/* ---- Memory ---- */

API int vedaMemAllocAsync(uint64_t *out, size_t size, int stream) {
    const int d = device();
    if (d < 0) return NOT_CURRENT;
    int i = 0;
    for (int n = 0; n < MOST && (!i || blocks[d][i].is_used); n++)
        i = n_blocks[d] = n_blocks[d] % (MOST - 1) + 1;
    if (blocks[d][i].is_used) return NO_MEMORY;
    blocks[d][i] = (struct block){NULL, size, 1};
    *out = (uint64_t)d << (BITS + 22) | (uint64_t)i << BITS;
    return add(stream, (struct command){.kind = ALLOC, .to = *out});
}
API int vedaMemFreeAsync(uint64_t at, int stream) {
    if (!find(at)) return UNKNOWN;
    if (at & OFFSET) return OFFSETTED;
    return add(stream, (struct command){.kind = FREE, .to = at});
}
API int vedaMemcpyHtoDAsync(uint64_t to, const void *from, size_t size, int stream) {
    return find(to) ? add(stream,
                          (struct command){
                              .kind = TO_DEVICE, .to = to, .user = (void *)from, .size = size})
                    : UNKNOWN;
}
API int vedaMemcpyDtoHAsync(void *to, uint64_t from, size_t size, int stream) {
    return find(from)
               ? add(stream,
                     (struct command){.kind = TO_HOST, .from = from, .user = to, .size = size})
               : UNKNOWN;
}
API int vedaMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t size, int stream) {
    return add(stream, (struct command){.kind = ON_DEVICE, .to = to, .from = from, .size = size});
}
API int vedaMemsetD8Async(uint64_t to, uint8_t value, size_t n, int stream) {
    return add(stream, (struct command){.kind = FILL, .to = to, .value = value, .size = n});
}

/* ---- Code ---- */

/* Modules find vedaMemPtr in this library. OpenMP's threads outlive the modules that started them. */
API int vedaModuleLoad(void **out, const char *path) {
    Dl_info own;
    (void)dlopen("libgomp.so.1", RTLD_NOW | RTLD_NODELETE);
    if (dladdr(blocks, &own)) (void)dlopen(own.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    *out = device() < 0 ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return *out ? OK : NO_MODULE;
}
#ifndef LACKS
API int vedaModuleUnload(void *module) { return dlclose(module) ? NO_MODULE : OK; }
#endif
API int vedaModuleGetFunction(struct function *out, void *module, const char *name) {
    *out = (struct function){(uint64_t)(uintptr_t)dlsym(module, name), "kernel"};
    return out->ptr ? OK : NO_FUNCTION;
}
API int vedaArgsCreate(void **out) {
    return (*out = calloc(1, sizeof(struct args))) ? OK : NO_MEMORY;
}
API int vedaArgsDestroy(void *args) {
    free(args);
    return OK;
}
API int vedaArgsSetStack(struct args *args, int i, void *from, int intent, size_t size) {
    if (i || intent) return BAD_ARGS;
    *args = (struct args){from, size};
    return OK;
}
API int vedaLaunchKernelEx(struct function f, int stream, struct args *args, int destroys,
                           uint64_t *result) {
    char *stack = malloc(args->size);
    if (destroys || !stack) return BAD_ARGS;
    memcpy(stack, args->from, args->size);
    return add(stream, (struct command){.kind = KERNEL,
                                        .run = (uint64_t (*)(void *))(uintptr_t)f.ptr,
                                        .stack = stack,
                                        .result = result});
}
API int vedaLaunchHostFuncEx(int stream, uint64_t (*function)(void *), void *user,
                             uint64_t *result) {
    return add(stream,
               (struct command){.kind = HOST, .run = function, .user = user, .result = result});
}
