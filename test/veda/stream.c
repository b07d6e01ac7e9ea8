/*
 * Requests of a context: their way to the far device, and back to the caller.
 *
 *   stream_call, stream_copy, .. -> far_target -> end_all: results of all that has ended -> collect: those of one stream
 *
 * Kernels write their results into slots of the device's memory, request number modulo VEDA_SLOTS. One copy fetches them all.
 *
 * Invariants: each command of the far device is behind all earlier ones of the context (follow). A request stays in the list until
 * it is collected, or until the device is broken and has stopped to use host memory.
 */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

VEDAresult stream_error(enum sol_status status) {
    switch (status) {
    case SOL_OK: return VEDA_SUCCESS;
    case SOL_EDEVICE: return VEDA_ERROR_VEO_COMMAND_EXCEPTION;
    case SOL_ENOMEM: return VEDA_ERROR_OUT_OF_MEMORY;
    case SOL_EINVAL: return VEDA_ERROR_INVALID_VALUE;
    default: return VEDA_ERROR_UNKNOWN;
    }
}

VEDAresult stream_check(VEDAcontext c, VEDAstream stream) {
    bool known = (stream >= -1 && stream < c->n_streams) || stream == VEDA_OWN_STREAM;
    return known ? VEDA_SUCCESS : VEDA_ERROR_UNKNOWN_STREAM;
}

/* Synchronous functions use the queue of stream 0. */
static int index_of(VEDAstream stream) {
    if (stream == VEDA_OWN_STREAM) return VEDA_MAX_STREAMS;
    return stream < 0 ? 0 : stream;
}

/* ---- Commands of the far device ---- */

/* The next command of this far stream will come behind the last one. */
static enum sol_status follow(VEDAcontext c, int stream) {
    if (c->last.stream == stream || !c->last.event) return SOL_OK;
    const int64_t arg[] = {c->last.stream, (int64_t)c->last.event};
    const struct launch wait = {.kind = LAUNCH_WAIT, .n_arg = 2, .arg = arg};
    return far_target.launch(c->far, stream, &wait, NULL);
}

/* After each command: `last` is what the next one follows, `marks` what vedaStreamQuery looks at. */
static void set_last(VEDAcontext c, int i, int far_stream, uint64_t event) {
    c->last = (struct veda_mark){far_stream, event};
    c->marks[i] = c->last;
}

/* `i`: the stream's index. */
static enum sol_status launch(VEDAcontext c, int i, int far_stream, const struct launch *l) {
    uint64_t event;
    TRY(follow(c, far_stream));
    TRY(far_target.launch(c->far, far_stream, l, &event));
    set_last(c, i, far_stream, event);
    return SOL_OK;
}

static enum sol_status copy(VEDAcontext c, int i, enum transfer_kind kind, uint64_t raw, void *host,
                            size_t size) {
    uint64_t event;
    TRY(follow(c, 1));
    const struct transfer t = {kind, .to = raw, .from = raw, .host = host, .size = size};
    TRY(far_target.copy(c->far, 1, &t, &event));
    set_last(c, i, 1, event);
    return SOL_OK;
}

VEDAresult stream_copy(VEDAcontext c, VEDAstream stream, enum transfer_kind kind, uint64_t raw,
                       void *host, size_t size) {
    VEDA_TRY(stream_check(c, stream));
    return size ? stream_error(copy(c, index_of(stream), kind, raw, host, size)) : VEDA_SUCCESS;
}

/* ---- Requests ---- */

static void free_request(struct request *r) {
    if (!r) return;
    free(r->stack);
    free(r);
}

/* Requests are in the order of their numbers: end_requests stops at the first one that is too new. */
static void append(VEDAcontext c, struct request *r) {
    r->number = ++c->n_requests;
    *c->requests_end = r;
    c->requests_end = &r->next;
}

/* The device has nothing left that uses memory of a request, or of the caller. */
void stream_drop_all(VEDAcontext c) {
    while (c->requests) {
        struct request *r = c->requests;
        c->requests = r->next;
        free_request(r);
    }
    c->requests_end = &c->requests;
    c->n_ended = c->n_requests;
}

/* Another thread may have ended some of them, and their slots may have other results by now: those stay as they are. */
static void end_requests(VEDAcontext c, uint64_t until, const uint64_t *values) {
    for (struct request *r = c->requests; r && r->number <= until; r = r->next) {
        if (!r->ended && !r->on_host) r->value = values[r->number % VEDA_SLOTS];
        r->ended = true;
    }
    if (c->n_ended < until) c->n_ended = until;
}

/* Waits without the lock. After an error also for copies, as the caller may free their memory then. */
static enum sol_status await_last(VEDAcontext c) {
    struct veda_mark last = c->last;
    lock_release(&c->lock);
    enum sol_status status = last.event ? far_target.wait(c->far, last.stream, last.event) : SOL_OK;
    if (status) (void)!far_target.wait(c->far, 1, 0);
    lock_acquire(&c->lock);
    return status;
}

/* Waits for all that was submitted so far, and fetches its results. */
static VEDAresult end_all(VEDAcontext c) {
    uint64_t until = c->n_requests, *values = NULL;
    enum sol_status status = SOL_OK;
    if (until > c->n_ended) {
        values = malloc(VEDA_SLOTS * sizeof *values);
        if (!values) return VEDA_ERROR_OUT_OF_MEMORY;
        status = copy(c, VEDA_MAX_STREAMS, TRANSFER_TO_HOST, c->results, values,
                      VEDA_SLOTS * sizeof *values);
    }
    enum sol_status waited = await_last(c);
    if (!status) status = waited;
    if (status) stream_drop_all(c);
    else if (values) end_requests(c, until, values);
    free(values);
    return stream_error(status);
}

/* Gives a request's results to the caller. */
static VEDAresult deliver(const struct request *r) {
    if (r->out) *r->out = r->value;
    if (r->stack) args_copy(&r->args, r->stack, false);
    return r->checked ? (VEDAresult)r->value : VEDA_SUCCESS;
}

/* Of the stream with index i; -1: of all. */
static VEDAresult collect(VEDAcontext c, int i) {
    VEDAresult first = VEDA_SUCCESS;
    for (struct request **at = &c->requests, *r; (r = *at);) {
        if (!r->ended || (i >= 0 && r->stream != i)) {
            at = &r->next;
            continue;
        }
        VEDAresult result = deliver(r);
        if (!first) first = result;
        *at = r->next;
        if (!*at) c->requests_end = at;
        free_request(r);
    }
    return first;
}

VEDAresult stream_sync(VEDAcontext c, VEDAstream stream) {
    VEDA_TRY(stream_check(c, stream));
    VEDA_TRY(end_all(c));
    return collect(c, stream == -1 ? -1 : index_of(stream));
}

VEDAresult stream_finish(VEDAcontext c, VEDAstream stream, VEDAresult result) {
    if (!result && stream == -1) result = stream_sync(c, 0);
    lock_release(&c->lock);
    return result;
}

/* ---- Calls ---- */

/* If all slots are in use, waits for their kernels: the only wait of a function that submits. */
static VEDAresult new_request(VEDAcontext c, VEDAstream stream, uint64_t *out,
                              struct request **request) {
    VEDA_TRY(stream_check(c, stream));
    if (c->n_requests - c->n_ended >= VEDA_SLOTS - 1) VEDA_TRY(end_all(c));
    struct request *r = calloc(1, sizeof *r);
    if (!r) return VEDA_ERROR_OUT_OF_MEMORY;
    r->stream = index_of(stream);
    r->out = out;
    *request = r;
    return VEDA_SUCCESS;
}

/* Copies the arguments that are memory to the device. */
static VEDAresult send_stack(VEDAcontext c, struct request *r, const struct veo_args *args,
                             size_t size, sol_ptr *at) {
    r->stack = calloc(1, size);
    if (!r->stack) return VEDA_ERROR_OUT_OF_MEMORY;
    r->args = *args;
    args_copy(args, r->stack, true);
    VEDA_TRY(stream_error(far_target.alloc(c->far, 1, size, at)));
    return stream_error(copy(c, r->stream, TRANSFER_TO_DEVICE, *at, r->stack, size));
}

/* Copies them back, and gives the device's memory away behind that. */
static VEDAresult fetch_stack(VEDAcontext c, struct request *r, size_t size, sol_ptr at) {
    VEDA_TRY(stream_error(copy(c, r->stream, TRANSFER_TO_HOST, at, r->stack, size)));
    return stream_error(far_target.free(c->far, 1, at));
}

static VEDAresult send_call(VEDAcontext c, struct request *r, uint64_t code, const char *name,
                            const struct veo_args *args) {
    struct veda_call call = {.code = code};
    const size_t size = args_stack_size(args);
    const sol_ptr slot = c->results + (c->n_requests + 1) % VEDA_SLOTS * sizeof r->value;
    sol_ptr at = 0;
    if (size > VEDA_STACK_LIMIT) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(args_sort(args, 0, &call)); /* finds errors before anything is submitted */
    if (size) {
        VEDA_TRY(send_stack(c, r, args, size, &at));
        VEDA_TRY(args_sort(args, at, &call));
    }
    const struct launch l = {.kind = LAUNCH_KERNEL,
                             .name = name,
                             .code = c->code,
                             .n_tasks = 1,
                             .n_ptr = 1,
                             .ptr = &slot,
                             .n_arg = sizeof call / sizeof(int64_t),
                             .arg = (const int64_t *)(const void *)&call};
    VEDA_TRY(stream_error(launch(c, r->stream, 0, &l)));
    return size ? fetch_stack(c, r, size, at) : VEDA_SUCCESS;
}

VEDAresult stream_call(VEDAcontext c, VEDAstream stream, uint64_t code, const char *name,
                       const struct veo_args *args, bool checked, uint64_t *out) {
    struct request *r;
    VEDA_TRY(new_request(c, stream, out, &r));
    r->checked = checked;
    VEDAresult result = send_call(c, r, code, name, args);
    if (!result) {
        append(c, r);
        return VEDA_SUCCESS;
    }
    if (r->stack) (void)!far_target.wait(c->far, 1, 0);
    free_request(r);
    return result;
}

VEDAresult stream_task(VEDAcontext c, VEDAstream stream, enum veda_task task, int n,
                       const uint64_t *values, uint64_t *out) {
    static const char *const names[] = {
        [VEDA_TASK_START] = "veda_start",   [VEDA_TASK_ALLOC] = "veda_mem_alloc",
        [VEDA_TASK_FREE] = "veda_mem_free", [VEDA_TASK_SWAP] = "veda_mem_swap",
        [VEDA_TASK_COPY] = "veda_memcpy",   [VEDA_TASK_FILL] = "veda_memset",
        [VEDA_TASK_CLOSE] = "veda_close",
    };
    struct veo_args args = {.n = n};
    for (int i = 0; i < n; i++) args.at[i] = (struct arg){.kind = ARG_INTEGER, .value = values[i]};
    /* Whether an allocation has succeeded is found when somebody asks for its address, as in the real library. */
    return stream_call(c, stream, task, names[task], &args, task != VEDA_TASK_ALLOC && !out, out);
}

/* ---- Host functions ---- */

/* On a thread of the far device. Whoever waits for the command sees the value. */
static void call_on_host(void *user) {
    struct request *r = user;
    r->value = r->function(r->user);
}

VEDAresult stream_call_host(VEDAcontext c, VEDAstream stream, VEDAhost_function function,
                            void *user, uint64_t *out) {
    struct request *r;
    VEDA_TRY(new_request(c, stream, out, &r));
    r->on_host = true;
    r->function = function;
    r->user = user;
    const struct launch l = {.kind = LAUNCH_HOST, .function = call_on_host, .user = r};
    VEDAresult result = stream_error(launch(c, r->stream, 1, &l));
    if (result) free_request(r);
    else append(c, r);
    return result;
}

/* ---- API ---- */

VEDAresult vedaStreamSynchronize(VEDAstream stream) {
    VEDAcontext c;
    VEDA_TRY(context_acquire_current(&c));
    VEDAresult result = stream_sync(c, stream);
    lock_release(&c->lock);
    return result;
}

static bool has_ended(VEDAcontext c, struct veda_mark mark) {
    const struct far *far = c->far;
    return atomic_load(&far->shared->ring[mark.stream].done) >= mark.event;
}

/* Asks nobody: the far device counts in shared memory. */
VEDAresult vedaStreamQuery(VEDAstream stream) {
    VEDAcontext c;
    VEDA_TRY(context_acquire_current(&c));
    VEDAresult result = stream_check(c, stream);
    if (!result) result = stream_error(far_check(c->far));
    if (!result && !has_ended(c, stream < 0 ? c->last : c->marks[stream]))
        result = VEDA_ERROR_VEO_STATE_RUNNING;
    lock_release(&c->lock);
    return result;
}

/* There are none. */
VEDAresult vedaStreamGetFlags(VEDAstream stream, uint32_t *out) {
    (void)stream;
    if (!veda_is_initialized()) return VEDA_ERROR_NOT_INITIALIZED;
    *out = 0;
    return VEDA_SUCCESS;
}

VEDAresult vedaStreamAddCallback(VEDAstream stream, VEDAstream_callback callback, void *user,
                                 unsigned flags) {
    VEDAcontext c;
    (void)flags;
    VEDA_TRY(context_acquire_current(&c));
    VEDAresult result = stream_sync(c, stream);
    lock_release(&c->lock);
    callback(stream, result, user);
    return VEDA_SUCCESS;
}
