/*
 * Contexts: one per device, and each thread's stack of them.
 *
 * A context is a static object, so a handle of one that was destroyed can be recognized. It becomes active again when another one
 * of its device is created. What it has, memory, modules and results, dies with the process of its far device.
 *
 * Invariant: `far` is open if and only if `active`; both change only under the lock.
 */
#include "parts.h"

#include "jit/jit.h"

#include <sol/sol.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK 64 /* contexts of a thread */
#define HEAP_SHARE 7 / 8 /* of a device's memory, for allocations; the rest is for results and arguments */

EMBED_TEXT(veda_device_text,
           EMBED_FILE("test/veda/veda_types.h") EMBED_FILE("test/veda/veda_device.h")
               EMBED_FILE("test/veda/tasks.h") EMBED_FILE("test/veda/device.c"));

/* Compiled objects in the cache are of a version. The library has none of SOL's own, which would need more of SOL. */
const char *sol_version(void) { return "veda"; }

static struct veda_context contexts[VEDA_MAX_DEVICES];
static _Atomic int n_exits;
static _Thread_local struct {
    int n, n_exits; /* of the library, when the stack was used last: each one empties it */
    VEDAcontext at[STACK];
} stack;

/* ---- The device's half ---- */

/* In place of run/visible.c: SOL_VISIBLE_DEVICES is for the program that uses this library, which has counted by it already. */
enum sol_status target_visible(const char *name, int n_devices, int number, int *out) {
    *out = number;
    return number >= 0 && number < n_devices ? SOL_OK
                                             : fail(SOL_EDEVICE, "there is no %s %d", name, number);
}

/* The object has one function for the far device, and is loaded once: a second loading would have tables of its own. */
static enum sol_status load_code(VEDAcontext c) {
    const char *const text = veda_device_text;
    char flags[128];
    struct jit_module *module;
    (void)snprintf(flags, sizeof flags,
                   "-shared -fPIC -O2 -w -D_GNU_SOURCE -DVEDA_OFFSET_BITS=%d -pthread -ldl",
                   veda_offset_bits());
    TRY(jit_build(&jit_images, flags, &text, 1, false, &module, NULL));
    const struct jit_image *image = jit_object(module, 0);
    enum sol_status status =
        far_target.load(c->far, image->data, image->size, "veda_entry", &c->code);
    jit_release(module);
    return status;
}

/* ---- Beginning and end ---- */

/* The device gets its memory as one block, in which its half allocates: so allocations happen in the order of the stream, and
 * kernels can allocate, too. The far device's own allocator only has what is left. */
static VEDAresult open_far(VEDAcontext c) {
    sol_ptr heap;
    const size_t size = c->memory * HEAP_SHARE;
    VEDA_TRY(stream_error(far_target.open(veda_physical_id(c->device), &c->far)));
    VEDA_TRY(stream_error(load_code(c)));
    VEDA_TRY(stream_error(far_target.alloc(c->far, 0, VEDA_SLOTS * sizeof(uint64_t), &c->results)));
    VEDA_TRY(stream_error(far_target.alloc(c->far, 0, size, &heap)));
    const uint64_t threads = c->mode == VEDA_CONTEXT_MODE_OMP ? (uint64_t)veda_n_cores() : 1,
                   values[] = {heap, size, threads};
    VEDA_TRY(stream_task(c, 0, VEDA_TASK_START, 3, values, NULL));
    return stream_sync(c, 0);
}

/* Once the far device is closed, nothing uses memory of the requests any more. */
static void shut(VEDAcontext c) {
    if (c->far) far_target.close(c->far);
    stream_drop_all(c);
    modules_drop_all(c);
    memory_fini(c);
    c->far = NULL;
    c->active = false;
}

/* The caller holds the lock, also while the worker starts: nobody can use the context before. */
static VEDAresult start(VEDAcontext c, int mode) {
    if (c->active) return VEDA_ERROR_CANNOT_CREATE_CONTEXT;
    if (mode != VEDA_CONTEXT_MODE_OMP && mode != VEDA_CONTEXT_MODE_SCALAR)
        return VEDA_ERROR_INVALID_VALUE;
    c->mode = mode;
    c->n_streams = mode == VEDA_CONTEXT_MODE_OMP ? 1 : veda_n_cores();
    c->memory = veda_device_memory();
    c->last = (struct veda_mark){0};
    memset(c->marks, 0, sizeof c->marks);
    c->n_requests = c->n_ended = 0;
    c->requests_end = &c->requests;
    VEDAresult result = memory_init(c);
    if (!result && (result = open_far(c)) != VEDA_SUCCESS) {
        log_write(LOG_ERROR, "a context of VEDA: %s", sol_error());
        result = VEDA_ERROR_CANNOT_CREATE_CONTEXT;
    }
    c->active = true;
    if (result) shut(c);
    return result;
}

/* Waits for what runs. Its errors have nobody to go to. */
static VEDAresult stop(VEDAcontext c) {
    if (!c->active) return VEDA_ERROR_CONTEXT_IS_DESTROYED;
    (void)!stream_sync(c, -1);
    shut(c);
    return VEDA_SUCCESS;
}

void contexts_init(void) {
    for (int i = 0; i < VEDA_MAX_DEVICES; i++) {
        lock_init(&contexts[i].lock);
        contexts[i].device = i;
    }
}

void contexts_exit(void) {
    for (int i = 0; i < VEDA_MAX_DEVICES; i++) {
        lock_acquire(&contexts[i].lock);
        (void)!stop(&contexts[i]);
        lock_release(&contexts[i].lock);
        lock_fini(&contexts[i].lock);
    }
    atomic_fetch_add(&n_exits, 1);
}

/* ---- Finding one ---- */

VEDAresult context_of(VEDAdevice device, VEDAcontext *out) {
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= veda_n_devices()) return VEDA_ERROR_INVALID_DEVICE;
    *out = &contexts[device];
    return VEDA_SUCCESS;
}

/* A destroyed context is left unlocked. */
static VEDAresult acquire(VEDAcontext c, VEDAcontext *out) {
    lock_acquire(&c->lock);
    *out = c;
    if (c->active) return VEDA_SUCCESS;
    lock_release(&c->lock);
    return VEDA_ERROR_CONTEXT_IS_DESTROYED;
}

/* Before each use of the stack. */
static VEDAresult check_stack(void) {
    int n = atomic_load(&n_exits);
    if (stack.n_exits != n) stack.n = 0;
    stack.n_exits = n;
    return veda_is_initialized() ? VEDA_SUCCESS : VEDA_ERROR_NOT_INITIALIZED;
}

VEDAresult context_acquire_current(VEDAcontext *out) {
    VEDA_TRY(check_stack());
    return stack.n ? acquire(stack.at[stack.n - 1], out) : VEDA_ERROR_UNKNOWN_CONTEXT;
}

VEDAresult context_acquire(VEDAdeviceptr at, VEDAcontext *out) {
    VEDAcontext c;
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    if (!at) return VEDA_ERROR_INVALID_VALUE;
    VEDA_TRY(context_of(VEDA_GET_DEVICE(at), &c));
    return acquire(c, out);
}

VEDAresult context_acquire_module(VEDAmodule module, VEDAcontext *out) {
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    for (int i = 0; i < veda_n_devices(); i++) {
        if (acquire(&contexts[i], out)) continue;
        for (const struct veda_module *m = contexts[i].modules; m; m = m->next)
            if (m == module) return VEDA_SUCCESS;
        lock_release(&contexts[i].lock);
    }
    return VEDA_ERROR_UNKNOWN_MODULE;
}

/* ---- The stack ---- */

static VEDAresult push(VEDAcontext c) {
    if (stack.n == STACK) return VEDA_ERROR_INVALID_CONTEXT;
    stack.at[stack.n++] = c;
    return VEDA_SUCCESS;
}

/* From this thread's stack only, as the real library does: others find out that it is not active. */
static void forget(VEDAcontext c) {
    int n = 0;
    for (int i = 0; i < stack.n; i++)
        if (stack.at[i] != c) stack.at[n++] = stack.at[i];
    stack.n = n;
}

VEDAresult vedaCtxGetCurrent(VEDAcontext *out) {
    VEDA_TRY(context_acquire_current(out));
    lock_release(&(*out)->lock);
    return VEDA_SUCCESS;
}

VEDAresult vedaCtxSetCurrent(VEDAcontext c) {
    if (!c && veda_is_exact()) return VEDA_ERROR_INVALID_CONTEXT;
    VEDA_TRY(check_stack());
    if (stack.n) stack.n--;
    return c ? push(c) : VEDA_SUCCESS;
}

VEDAresult vedaCtxPushCurrent(VEDAcontext c) {
    if (!c) return VEDA_ERROR_INVALID_CONTEXT;
    VEDA_TRY(check_stack());
    return push(c);
}

/* Fails if the top was destroyed, and leaves it there. */
VEDAresult vedaCtxPopCurrent(VEDAcontext *out) {
    VEDAcontext c;
    VEDA_TRY(vedaCtxGetCurrent(&c));
    stack.n--;
    if (out) *out = c;
    return VEDA_SUCCESS;
}

/* ---- Making and asking ---- */

VEDAresult vedaCtxCreate(VEDAcontext *out, int mode, VEDAdevice device) {
    VEDAcontext c;
    VEDA_TRY(check_stack());
    VEDA_TRY(context_of(device, &c));
    lock_acquire(&c->lock);
    VEDAresult result = start(c, mode);
    lock_release(&c->lock);
    if (result) return result;
    *out = c;
    return push(c);
}

VEDAresult vedaCtxDestroy(VEDAcontext c) {
    if (!c) return VEDA_ERROR_UNKNOWN_CONTEXT;
    VEDA_TRY(check_stack());
    forget(c);
    lock_acquire(&c->lock);
    VEDAresult result = stop(c);
    lock_release(&c->lock);
    return result;
}

VEDAresult vedaCtxGet(VEDAcontext *out, const VEDAdevice device) { return context_of(device, out); }

/* The primary context is the context. Nobody counts who retains it, and the stack stays as it is. */
VEDAresult vedaDevicePrimaryCtxRetain(VEDAcontext *out, VEDAdevice device) {
    VEDA_TRY(context_of(device, out));
    lock_acquire(&(*out)->lock);
    VEDAresult result = (*out)->active ? VEDA_SUCCESS : start(*out, VEDA_CONTEXT_MODE_OMP);
    lock_release(&(*out)->lock);
    return result;
}

VEDAresult vedaDevicePrimaryCtxRelease(VEDAdevice device) {
    (void)device;
    return VEDA_SUCCESS;
}

VEDAresult vedaDevicePrimaryCtxGetState(VEDAdevice device, uint32_t *flags, int *active) {
    VEDAcontext c;
    VEDA_TRY(context_of(device, &c));
    lock_acquire(&c->lock);
    *flags = 0;
    *active = c->active;
    lock_release(&c->lock);
    return VEDA_SUCCESS;
}

VEDAresult vedaCtxGetDevice(VEDAdevice *out) {
    VEDAcontext c;
    VEDA_TRY(vedaCtxGetCurrent(&c));
    *out = c->device;
    return VEDA_SUCCESS;
}

VEDAresult vedaCtxGetApiVersion(VEDAcontext c, uint32_t *out) {
    if (!c || !out) return VEDA_ERROR_INVALID_ARGS;
    *out = 1;
    return VEDA_SUCCESS;
}

VEDAresult vedaCtxStreamCnt(int *out) {
    VEDAcontext c;
    VEDA_TRY(vedaCtxGetCurrent(&c));
    *out = c->n_streams;
    return VEDA_SUCCESS;
}

VEDAresult vedaCtxSynchronize(void) { return vedaStreamSynchronize(-1); }
