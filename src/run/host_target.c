/*
 * The host as a target: queues on the host's own devices. Its memory is the host's, and a command is done when it was submitted.
 *
 * Programs of the host have no launches: sol_program_enqueue runs them by exec.c.
 */
#include "run/far.h"

#include <string.h>

static char context; /* there is nothing to open */

static enum sol_status open_host(int number, void **out) {
    if (number) return fail(SOL_EDEVICE, "there is no device %d: the only one is 0", number);
    *out = &context;
    return SOL_OK;
}

static void close_host(void *host) { (void)host; }

static enum sol_status alloc_host(void *host, int stream, size_t size, sol_ptr *out) {
    (void)host, (void)stream;
    void *at = mem_alloc(size, 64);
    *out = (sol_ptr)(uintptr_t)at;
    return at ? SOL_OK : fail(SOL_ENOMEM, "no memory for %zu bytes", size);
}

static enum sol_status free_host(void *host, int stream, sol_ptr at) {
    (void)host, (void)stream;
    mem_free((void *)(uintptr_t)at);
    return SOL_OK;
}

static enum sol_status copy_host(void *host, int stream, const struct transfer *t,
                                 uint64_t *event) {
    void *to = t->kind == TRANSFER_TO_HOST ? t->host : (void *)(uintptr_t)t->to;
    const void *from = t->kind == TRANSFER_TO_DEVICE ? t->host : (void *)(uintptr_t)t->from;
    (void)host, (void)stream, (void)event;
    memmove(to, from, t->size);
    return SOL_OK;
}

static enum sol_status load_host(void *host, const void *image, size_t size, const char *symbol,
                                 uint64_t *code) {
    (void)host, (void)image, (void)size, (void)code;
    return fail(SOL_EBUG, "%s: the host loads no images", symbol);
}

static enum sol_status launch_host(void *host, int stream, const struct launch *l,
                                   uint64_t *event) {
    (void)host, (void)stream, (void)event;
    if (l->kind == LAUNCH_KERNEL) return fail(SOL_EBUG, "%s: the host launches nothing", l->name);
    if (l->kind == LAUNCH_FILL)
        memset((void *)(uintptr_t)l->ptr[0], (int)l->arg[0], (size_t)l->arg[1]);
    if (l->kind == LAUNCH_HOST) l->function(l->user);
    return SOL_OK;
}

static enum sol_status wait_host(void *host, int stream, uint64_t event) {
    (void)host, (void)stream, (void)event;
    return SOL_OK;
}

const struct target host_target = {.name = "host",
                                   .n_streams = 1,
                                   .open = open_host,
                                   .close = close_host,
                                   .alloc = alloc_host,
                                   .free = free_host,
                                   .copy = copy_host,
                                   .load = load_host,
                                   .launch = launch_host,
                                   .wait = wait_host};
