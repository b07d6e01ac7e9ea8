/*
 * struct target of far devices: checks what the caller asks for, and turns it into records of the rings.
 *
 * Errors of the caller are found here, in the call, where a real device would find them later or never: commands on the wrong
 * stream, ranges outside the device's memory, events that do not exist yet.
 *
 * Invariant: every function but `close` first asks far_check, so that a broken device is never used.
 */
#include "device/far/parts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- Opening and closing ---- */

static void close_device(void *context) {
    struct far *far = context;
    atomic_store(&far->closing, true);
    far_stop(far);
    if (far->process == lock_process()) {
        far_engine_stop(far);
        if (*far->trace) far_write_trace(far);
    }
    far_free(far);
    far_memory_fini(far);
    lock_fini(&far->lock);
    mem_free(far);
}

static enum sol_status open_parts(struct far *far, const struct far_settings *settings) {
    far->size = settings->memory;
    TRY(far_memory_init(far));
    TRY(far_start(far, settings));
    return far_engine_start(far);
}

static enum sol_status open_device(int number, void **context) {
    struct far_settings settings;
    struct far *far = mem_alloc(sizeof *far, 16);
    if (!far) return fail(SOL_ENOMEM, "out of memory");
    lock_init(&far->lock);
    far->number = number;
    far->process = lock_process();
    far->memory = far->socket = -1;
    int n = far_read_settings(&settings, far->trace, sizeof far->trace), unused;
    enum sol_status status = target_visible("far", n, number, &unused); /* all are equal */
    if (!status) status = open_parts(far, &settings);
    if (status) {
        char message[1024];
        (void)snprintf(message, sizeof message, "%s", sol_error());
        close_device(far);
        return fail(status, "%s", message);
    }
    *context = far;
    return SOL_OK;
}

int far_worker(void *context) { return ((struct far *)context)->worker; }

/* ---- Memory ---- */

static enum sol_status check_stream(struct far *far, int stream) {
    if (stream >= 0 && stream < FAR_STREAMS) return far_check(far);
    return fail(SOL_EINVAL, "far %d: no stream %d", far->number, stream);
}

static enum sol_status take(struct far *far, int stream, size_t size, sol_ptr *out, bool *pending) {
    uint64_t offset = 0;
    lock_acquire(&far->lock);
    enum sol_status status = far_memory_take(far, stream, size, &offset, pending);
    lock_release(&far->lock);
    if (!status) *out = (uint64_t)(uintptr_t)far->base + offset;
    return status;
}

static bool lets_fail(struct far *far) {
    lock_acquire(&far->lock);
    int64_t n = ++far->n_allocs;
    lock_release(&far->lock);
    return n == far->shared->settings.fail_alloc;
}

/* If there is no memory now, waits for what the other stream has freed. */
static enum sol_status alloc(void *context, int stream, size_t size, sol_ptr *out) {
    struct far *far = context;
    TRY(check_stream(far, stream));
    if (!size) return fail(SOL_EINVAL, "far %d: an allocation of no bytes", far->number);
    if (lets_fail(far))
        return fail(SOL_ENOMEM, "far %d: SOL_FAR lets an allocation of %zu bytes fail", far->number,
                    size);
    bool pending;
    enum sol_status status = take(far, stream, size, out, &pending);
    if (!status || !pending) return status;
    TRY(far_wait_event(far, !stream, 0));
    return take(far, stream, size, out, &pending);
}

static enum sol_status free_memory(void *context, int stream, sol_ptr at) {
    struct far *far = context;
    TRY(check_stream(far, stream));
    lock_acquire(&far->lock);
    enum sol_status status =
        far_memory_give(far, stream, far->n_submitted[stream], at - (uint64_t)(uintptr_t)far->base);
    lock_release(&far->lock);
    return status;
}

/* EINVAL if a part of the range is not in the device's memory. */
static enum sol_status check_range(struct far *far, sol_ptr at, uint64_t size) {
    uint64_t offset = at - (uint64_t)(uintptr_t)far->base;
    if (offset <= far->size && size <= far->size - offset) return SOL_OK;
    return fail(SOL_EINVAL, "far %d: 0x%llx, %llu bytes, is not in the device's memory",
                far->number, (unsigned long long)at, (unsigned long long)size);
}

/* ---- Copies ---- */

static const struct {
    const char *name;
    enum far_kind kind;
} transfers[] = {
    [TRANSFER_TO_DEVICE] = {"copy to the device", FAR_TO_DEVICE},
    [TRANSFER_TO_HOST] = {"copy to the host", FAR_TO_HOST},
    [TRANSFER_ON_DEVICE] = {"copy on the device", FAR_ON_DEVICE},
};

static enum sol_status copy(void *context, int stream, const struct transfer *t, uint64_t *event) {
    struct far *far = context;
    TRY(check_stream(far, stream));
    if (t->kind != TRANSFER_ON_DEVICE && stream != 1)
        return fail(SOL_EINVAL, "far %d: copies run on stream 1", far->number);
    struct far_record record = {.kind = transfers[t->kind].kind, .n_tasks = (int64_t)t->size};
    if (t->kind == TRANSFER_TO_HOST) {
        record.code = t->from;
    } else {
        record.code = t->to;
    }
    record.argument = t->kind == TRANSFER_ON_DEVICE ? t->from : (uint64_t)(uintptr_t)t->host;
    TRY(check_range(far, record.code, t->size));
    if (t->kind == TRANSFER_ON_DEVICE) TRY(check_range(far, t->from, t->size));
    return far_submit(far, stream, record, NULL, NULL, transfers[t->kind].name, event);
}

/* ---- Code ---- */

/* Writes an image to a new file in memory; -1: an error. */
static int write_image(const void *image, size_t size) {
    int fd = memfd_create("sol-far-module", MFD_CLOEXEC);
    for (size_t done = 0; fd >= 0 && done < size;) {
        ssize_t n = write(fd, (const char *)image + done, size - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            close(fd);
            return -1;
        }
        done += (size_t)n;
    }
    return fd;
}

static enum sol_status load(void *context, const void *image, size_t size, const char *symbol,
                            uint64_t *code) {
    struct far *far = context;
    TRY(far_check(far));
    struct far_message message = {.question = FAR_LOAD};
    if (strlen(symbol) >= sizeof message.text)
        return fail(SOL_EINVAL, "far %d: a symbol is too long", far->number);
    (void)snprintf(message.text, sizeof message.text, "%s", symbol);
    int fd = write_image(image, size);
    if (fd < 0)
        return fail(SOL_EDEVICE, "far %d: cannot load %s: %s", far->number, symbol,
                    strerror(errno));
    enum sol_status status = far_ask(far, &message, fd);
    close(fd);
    if (status) fail_prefix("loading %s: ", symbol);
    if (status) return status;
    message.text[sizeof message.text - 1] = 0;
    if (message.is_error)
        return fail(SOL_EDEVICE, "far %d: cannot load %s: %s", far->number, symbol, message.text);
    *code = message.address;
    return SOL_OK;
}

/* ---- Launches ---- */

static const struct {
    const char *name;
    enum far_kind kind;
    int only; /* the stream that computes it; -1: any */
} kinds[] = {
    [LAUNCH_KERNEL] = {"a kernel", FAR_KERNEL, 0},
    [LAUNCH_FILL] = {"a fill", FAR_FILL, 0},
    [LAUNCH_HOST] = {"a host function", FAR_HOST, 1},
    [LAUNCH_WAIT] = {"a wait", FAR_WAIT, -1},
    [LAUNCH_UNLOAD] = {"an unload", FAR_UNLOAD, 0},
    [LAUNCH_SCATTER] = {"a scatter", FAR_SCATTER, 0},
    [LAUNCH_GATHER] = {"a gather", FAR_GATHER, 0},
};

/* Waiting for an event that nobody has submitted could wait forever. Two streams cannot wait for each other, since each event was
 * submitted before the command that waits for it. */
static enum sol_status check_wait(struct far *far, const struct launch *l) {
    bool good = l->n_arg == 2 && l->arg[0] >= 0 && l->arg[0] < FAR_STREAMS;
    if (good) {
        lock_acquire(&far->lock);
        good = l->arg[1] >= 0 && (uint64_t)l->arg[1] <= far->n_submitted[l->arg[0]];
        lock_release(&far->lock);
    }
    return good ? SOL_OK : fail(SOL_EINVAL, "far %d: a wait for no event", far->number);
}

static enum sol_status check_fill(struct far *far, const struct launch *l) {
    if (l->n_ptr != 1 || l->n_arg != 2 || l->arg[1] < 0)
        return fail(SOL_EINVAL, "far %d: a fill needs an address, a byte and a size", far->number);
    return check_range(far, l->ptr[0], (uint64_t)l->arg[1]);
}

static enum sol_status check_pieces(struct far *far, const struct launch *l) {
    int64_t sum = 0;
    if (l->n_ptr != l->n_arg + 1)
        return fail(SOL_EINVAL, "far %d: a size for each piece", far->number);
    for (int i = 0; i < l->n_arg; i++) {
        TRY(check_range(far, l->ptr[i + 1], (uint64_t)l->arg[i]));
        sum += l->arg[i];
    }
    return check_range(far, l->ptr[0], (uint64_t)sum);
}

static enum sol_status check_launch(struct far *far, int stream, const struct launch *l) {
    TRY(check_stream(far, stream));
    if (kinds[l->kind].only >= 0 && kinds[l->kind].only != stream)
        return fail(SOL_EINVAL, "far %d: %s runs on stream %d", far->number, kinds[l->kind].name,
                    kinds[l->kind].only);
    if (l->kind == LAUNCH_FILL) return check_fill(far, l);
    if (l->kind == LAUNCH_SCATTER || l->kind == LAUNCH_GATHER) return check_pieces(far, l);
    return l->kind == LAUNCH_WAIT ? check_wait(far, l) : SOL_OK;
}

static enum sol_status launch(void *context, int stream, const struct launch *l, uint64_t *event) {
    struct far *far = context;
    TRY(check_launch(far, stream, l));
    struct far_record record = {.kind = kinds[l->kind].kind,
                                .n_ptr = l->n_ptr,
                                .n_arg = l->n_arg,
                                .code = l->code,
                                .n_tasks = l->n_tasks,
                                .scratch = l->scratch};
    if (l->kind == LAUNCH_HOST) {
        memcpy(&record.code, &l->function, sizeof l->function);
        record.argument = (uint64_t)(uintptr_t)l->user;
        record.n_tasks = 0;
    }
    return far_submit(far, stream, record, l->ptr, l->arg, l->name ? l->name : kinds[l->kind].name,
                      event);
}

static enum sol_status wait_event(void *context, int stream, uint64_t event) {
    struct far *far = context;
    if (stream < 0 || stream >= FAR_STREAMS)
        return fail(SOL_EINVAL, "far %d: no stream %d", far->number, stream);
    return far_wait_event(far, stream, event);
}

const struct target far_target = {
    .name = "far",
    .n_streams = FAR_STREAMS,
    .has_pieces = true,
    .open = open_device,
    .close = close_device,
    .alloc = alloc,
    .free = free_memory,
    .copy = copy,
    .load = load,
    .launch = launch,
    .wait = wait_event,
};
