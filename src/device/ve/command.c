/*
 * Commands of an open vector engine: kernels, fills, host functions; waiting for them, and what became of them.
 *
 *   ve_launch: struct ve_command -> libveda's stream | ve_wait: synchronises the stream, looks at results, frees commands
 *
 * libveda has no events. There is one stream, so a command is done when a synchronisation that began after it was submitted has
 * returned: an event is the number of commands so far.
 *
 * Invariant: what libveda may read or write later, a command's block and result, stays where it is until a synchronisation that
 * began later has succeeded, or the context is destroyed.
 */
#include "device/ve/entry.h"
#include "device/ve/ve.h"

#include <stdio.h>
#include <string.h>

/* A kernel or host function whose end nobody has seen. */
struct ve_command {
    struct ve_command *next;
    uint64_t event, result;
    void (*function)(void *user); /* of the host */
    void *user;
    size_t n_block; /* numbers that there is room for in the block */
    int64_t *block; /* what entry.h reads */
    char name[128];
};

/* ---- Errors ---- */

static enum sol_status status_of(int result) {
    switch (result) {
    case VEDA_ERROR_OUT_OF_MEMORY: return SOL_ENOMEM;
    case VEDA_ERROR_UNKNOWN_VPTR:
    case VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED: return SOL_EINVAL;
    default: return SOL_EDEVICE;
    }
}

/* Results of a later libveda, or what a kernel returns by mistake, may have no name. */
enum sol_status ve_status(const struct ve *ve, int result, const char *function, const char *name) {
    const char *text = NULL;
    char number[32];
    if (!result) return SOL_OK;
    (void)snprintf(number, sizeof number, "result %d", result);
    if (veda.GetErrorName(result, &text) || !text) text = number;
    return fail(status_of(result), "ve %d: %s: %s%s%s%s", ve->number, function, text,
                name ? " (" : "", name ? name : "", name ? ")" : "");
}

enum sol_status ve_check(struct ve *ve, int result, const char *function, const char *name) {
    const enum sol_status status = ve_status(ve, result, function, name);
    if (!status || ve->is_broken) return status;
    ve->is_broken = true;
    ve->status = status;
    (void)snprintf(ve->message, sizeof ve->message, "%s", sol_error());
    return status;
}

/* ---- Entering and leaving ---- */

/* The lock is free in a forked child, but nothing of libveda may be called there. */
static enum sol_status check_process(const struct ve *ve) {
    if (veda.process == lock_process()) return SOL_OK;
    return fail(SOL_EDEVICE, "ve %d: it was opened before a fork, and cannot be used in the child",
                ve->number);
}

enum sol_status ve_enter(struct ve *ve) {
    TRY(check_process(ve));
    lock_acquire(&ve->lock);
    enum sol_status status = ve->is_broken ? fail(ve->status, "%s", ve->message)
                                           : VE_CALL(ve, NULL, CtxPushCurrent, ve->context);
    if (status) lock_release(&ve->lock);
    return status;
}

enum sol_status ve_leave(struct ve *ve, enum sol_status status) {
    veda_context unused;
    (void)veda.CtxPopCurrent(&unused); /* fails only if nothing was pushed */
    lock_release(&ve->lock);
    return status;
}

void ve_count(struct ve *ve, uint64_t *event) {
    ve->n_submitted++;
    if (event) *event = ve->n_submitted;
}

/* ---- Commands ---- */

static struct ve_command *take_command(struct ve *ve, const struct launch *l) {
    struct ve_command *c = ve->spare;
    if (c) ve->spare = c->next;
    else c = mem_alloc(sizeof *c, 16);
    if (!c) return NULL;
    c->next = NULL;
    c->event = ve->n_submitted + 1;
    c->result = 0;
    c->function = l->kind == LAUNCH_HOST ? l->function : NULL;
    c->user = l->user;
    (void)snprintf(c->name, sizeof c->name, "%s", l->name ? l->name : "");
    return c;
}

static void put_back(struct ve *ve, struct ve_command *c) {
    c->next = ve->spare;
    ve->spare = c;
}

/* Behind all others, once libveda has it. */
static void append(struct ve *ve, struct ve_command *c) {
    if (!ve->first) ve->last = &ve->first;
    *ve->last = c;
    ve->last = &c->next;
}

/* Frees the commands up to `event`, and reports the first result that is no success. */
static enum sol_status finish(struct ve *ve, uint64_t event) {
    enum sol_status status = SOL_OK;
    for (struct ve_command *c; (c = ve->first) && c->event <= event; put_back(ve, c)) {
        ve->first = c->next;
        if (!status && !c->function)
            status = ve_check(ve, (int)c->result, "a kernel", *c->name ? c->name : NULL);
    }
    if (event > ve->n_done) ve->n_done = event;
    return status;
}

static void free_list(struct ve_command *c) {
    for (struct ve_command *next; c; c = next) {
        next = c->next;
        mem_free(c->block);
        mem_free(c);
    }
}

void ve_free_commands(struct ve *ve) {
    free_list(ve->first);
    free_list(ve->spare);
    ve->first = ve->spare = NULL;
}

/* ---- Kernels ---- */

/* The memory that kernels with less scratch used is freed behind them. */
static enum sol_status grow_scratch(struct ve *ve, size_t size, const char *name) {
    if (size <= ve->scratch_size) return SOL_OK;
    if (ve->scratch) TRY(VE_CALL(ve, name, MemFreeAsync, ve->scratch, 0));
    ve->scratch = 0, ve->scratch_size = 0;
    TRY(VE_CALL(ve, name, MemAllocAsync, &ve->scratch, size, 0));
    ve->scratch_size = size;
    return SOL_OK;
}

/* Writes the block that entry.h reads. False: out of memory. */
static bool pack(const struct ve *ve, const struct launch *l, size_t scratch,
                 struct ve_command *c) {
    const size_t n = VE_HEADER + (size_t)l->n_ptr + (size_t)l->n_arg;
    if (n > c->n_block) {
        mem_free(c->block);
        c->block = mem_alloc(n * sizeof *c->block, 16);
        c->n_block = c->block ? n : 0;
    }
    if (!c->block) return false;
    c->block[VE_N_PTR] = l->n_ptr;
    c->block[VE_N_TASKS] = l->n_tasks;
    c->block[VE_N_THREADS] = l->kind == LAUNCH_KERNEL ? ve->n_threads : 1; /* pieces: in order */
    c->block[VE_OFFSET] = ((int64_t)1 << ve->offset_bits) - 1;
    c->block[VE_SCRATCH] = (int64_t)ve->scratch;
    c->block[VE_SCRATCH_SIZE] = (int64_t)scratch;
    for (int i = 0; i < l->n_ptr; i++) c->block[VE_HEADER + i] = (int64_t)l->ptr[i];
    for (int i = 0; i < l->n_arg; i++) c->block[VE_HEADER + l->n_ptr + i] = l->arg[i];
    return true;
}

/* libveda has copied the arguments, but not what they point to, when it has the kernel. */
static enum sol_status submit(struct ve *ve, const struct launch *l, struct ve_command *c) {
    const size_t size = (VE_HEADER + (size_t)l->n_ptr + (size_t)l->n_arg) * sizeof *c->block;
    veda_args args;
    TRY(VE_CALL(ve, l->name, ArgsCreate, &args));
    enum sol_status status =
        VE_CALL(ve, l->name, ArgsSetStack, args, 0, c->block, VEDA_ARGS_INTENT_IN, size);
    if (!status)
        status = VE_CALL(ve, l->name, LaunchKernelEx, ve_function(l->code), 0, args, 0, &c->result);
    (void)veda.ArgsDestroy(args);
    return status;
}

static enum sol_status launch_kernel(struct ve *ve, const struct launch *l) {
    const size_t scratch = (size_t)round_up((int64_t)l->scratch, 64);
    TRY(grow_scratch(ve, scratch * (size_t)ve->n_threads, l->name));
    struct ve_command *c = take_command(ve, l);
    if (!c) return fail(SOL_ENOMEM, "no memory for a launch");
    enum sol_status status =
        pack(ve, l, scratch, c) ? submit(ve, l, c) : fail(SOL_ENOMEM, "no memory for a launch");
    if (status) put_back(ve, c);
    else append(ve, c);
    return status;
}

/* ---- Other commands ---- */

/* On a thread of libveda's. The function must not use the device: a thread may wait for it while it holds the lock. */
static uint64_t call_function(void *user) {
    struct ve_command *c = user;
    c->function(c->user);
    return 0;
}

static enum sol_status launch_host(struct ve *ve, const struct launch *l) {
    struct ve_command *c = take_command(ve, l);
    if (!c) return fail(SOL_ENOMEM, "no memory for a launch");
    enum sol_status status =
        VE_CALL(ve, l->name, LaunchHostFuncEx, 0, call_function, c, &c->result);
    if (status) put_back(ve, c);
    else append(ve, c);
    return status;
}

static enum sol_status fill(struct ve *ve, const struct launch *l) {
    if (l->n_ptr != 1 || l->n_arg != 2 || l->arg[1] < 0)
        return fail(SOL_EINVAL, "ve %d: a fill needs an address, a byte and a size", ve->number);
    if (!l->arg[1]) return SOL_OK;
    return VE_CALL(ve, l->name, MemsetD8Async, l->ptr[0], (uint8_t)l->arg[0], (size_t)l->arg[1], 0);
}

/* Without a kernel, each piece is a copy. */
static enum sol_status launch_pieces(struct ve *ve, const struct launch *l) {
    veda_ptr at = l->ptr[0];
    if (l->code) return launch_kernel(ve, l);
    for (int i = 0; i < l->n_arg; at += (veda_ptr)l->arg[i++]) {
        const bool gather = l->kind == LAUNCH_GATHER;
        const veda_ptr place = l->ptr[1 + i];
        TRY(VE_CALL(ve, l->name, MemcpyDtoDAsync, gather ? at : place, gather ? place : at,
                    (size_t)l->arg[i], 0));
    }
    return SOL_OK;
}

/* With one stream, commands wait for those before them anyway. */
static enum sol_status launch_any(struct ve *ve, const struct launch *l) {
    switch (l->kind) {
    case LAUNCH_KERNEL: return launch_kernel(ve, l);
    case LAUNCH_SCATTER:
    case LAUNCH_GATHER: return launch_pieces(ve, l);
    case LAUNCH_FILL: return fill(ve, l);
    case LAUNCH_HOST: return launch_host(ve, l);
    case LAUNCH_UNLOAD: ve_unload_later(ve, l->code); break;
    case LAUNCH_WAIT: break;
    }
    return SOL_OK;
}

enum sol_status ve_launch(void *context, int stream, const struct launch *launch, uint64_t *event) {
    struct ve *ve = context;
    struct launch l = *launch;
    (void)stream;
    if (ve_prepare_pieces) TRY(ve_prepare_pieces(ve, &l));
    TRY(ve_enter(ve));
    enum sol_status status = launch_any(ve, &l);
    if (!status) ve_count(ve, event);
    return ve_leave(ve, status);
}

/* ---- Waiting ---- */

/* Copies of a broken device may still use the host's memory, which the caller frees after this wait. */
static void drain(struct ve *ve) {
    veda_context unused;
    if (veda.process != lock_process() || veda.CtxPushCurrent(ve->context)) return;
    (void)veda.StreamSynchronize(0);
    (void)veda.CtxPopCurrent(&unused);
}

/* The context stays current while the lock is released. */
static int synchronise(struct ve *ve) {
    lock_release(&ve->lock);
    const int result = veda.StreamSynchronize(0);
    lock_acquire(&ve->lock);
    return result;
}

/* Waits until all commands so far are done. */
static enum sol_status wait_all(struct ve *ve) {
    const uint64_t event = ve->n_submitted;
    const char *name = ve->first && *ve->first->name ? ve->first->name : NULL;
    char copy[sizeof ve->first->name];
    if (name) (void)snprintf(copy, sizeof copy, "%s", name);
    TRY(ve_check(ve, synchronise(ve), "vedaStreamSynchronize", name ? copy : NULL));
    TRY(finish(ve, event));
    return ve_unload_done(ve);
}

enum sol_status ve_wait(void *context, int stream, uint64_t event) {
    struct ve *ve = context;
    (void)stream;
    enum sol_status status = ve_enter(ve);
    if (status) {
        drain(ve);
        return status;
    }
    const bool is_done = ve->n_done >= (event ? event : ve->n_submitted);
    return ve_leave(ve, is_done ? SOL_OK : wait_all(ve));
}
