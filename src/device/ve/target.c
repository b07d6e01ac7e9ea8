/*
 * struct target of vector engines: opens a device, and its memory and copies. command.c has the rest.
 *
 * A sol_ptr is a virtual pointer of libveda. Its offset is aligned as allocations of SOL are, while the device's address behind it has
 * the alignment of the device's malloc, which is enough for its vectors.
 *
 * An allocation returns at once. A lack of memory is found by the first command that uses it, which then is ENOMEM; only an allocation
 * that no device of this size can have is refused here.
 */
#include "device/ve/ve.h"

#include <stdio.h>

#define USUAL_CORES 8 /* of a vector engine, if libveda does not know */

/* ---- Opening and closing ---- */

/* The process on the device starts here. Its context is not left to this thread. */
static enum sol_status create_context(struct ve *ve) {
    veda_context unused;
    int cores = 0;
    TRY(ve_status(ve, veda.CtxCreate(&ve->context, VEDA_CONTEXT_MODE_OMP, ve->device),
                  "vedaCtxCreate", NULL));
    (void)veda.CtxPopCurrent(&unused);
    (void)veda.DeviceGetAttribute(&cores, VEDA_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ve->device);
    ve->n_threads = cores > 0 ? cores : USUAL_CORES;
    ve->offset_bits = VEDA_OFFSET_BITS;
    return ve_status(ve, veda.DeviceTotalMem(&ve->size, ve->device), "vedaDeviceTotalMem", NULL);
}

/* libveda may not have written all results, and writes them later, if it cannot destroy the context: then they stay. */
static void close_device(void *context) {
    struct ve *ve = context;
    bool is_gone = !ve->context;
    if (!is_gone && veda.process == lock_process()) {
        if (!ve->is_broken) (void)ve_wait(ve, 0, 0);
        is_gone = !veda.CtxDestroy(ve->context);
    }
    if (is_gone) ve_free_commands(ve);
    ve_free_modules(ve);
    lock_fini(&ve->lock);
    mem_free(ve);
}

static enum sol_status open_number(struct ve *ve, int number) {
    const char *reason = ve_open_library();
    if (reason) return fail(SOL_EDEVICE, "%s", reason);
    ve->number = number;
    TRY(target_visible("ve", veda.n_devices, number, &ve->device));
    return create_context(ve);
}

static enum sol_status open_device(int number, void **context) {
    struct ve *ve = mem_alloc(sizeof *ve, 16);
    if (!ve) return fail(SOL_ENOMEM, "out of memory");
    lock_init(&ve->lock);
    enum sol_status status = open_number(ve, number);
    if (status) {
        char message[1024];
        (void)snprintf(message, sizeof message, "%s", sol_error());
        close_device(ve);
        return fail(status, "%s", message);
    }
    *context = ve;
    return SOL_OK;
}

/* ---- Memory ---- */

static enum sol_status check_size(const struct ve *ve, size_t size) {
    if (!size) return fail(SOL_EINVAL, "ve %d: an allocation of no bytes", ve->number);
    const size_t reach = ((size_t)1 << ve->offset_bits) - 1,
                 most = ve->size < reach ? ve->size : reach;
    if (size <= most) return SOL_OK;
    return fail(SOL_ENOMEM, "ve %d: an allocation of %zu bytes: at most %zu are possible",
                ve->number, size, most);
}

/* A device without memory is not broken, nor is one whose caller frees what it does not have. */
static enum sol_status check_memory(struct ve *ve, int result, const char *function) {
    const bool is_harmless = result == VEDA_ERROR_OUT_OF_MEMORY ||
                             result == VEDA_ERROR_UNKNOWN_VPTR ||
                             result == VEDA_ERROR_OFFSETTED_VPTR_NOT_ALLOWED;
    return is_harmless ? ve_status(ve, result, function, NULL)
                       : ve_check(ve, result, function, NULL);
}

/* The offset of an allocation's pointer is 0, so a bit that is set there is one of an index: offsets are shorter. The first allocation of a
 * context has index 1, which shows it. If it did not, only messages would differ: libveda refuses what is too large, too. */
static void learn_layout(struct ve *ve, veda_ptr at) {
    if (at & (((veda_ptr)1 << VEDA_OFFSET_BITS) - 1)) ve->offset_bits = VEDA_SHORT_OFFSET_BITS;
}

static enum sol_status alloc(void *context, int stream, size_t size, sol_ptr *out) {
    struct ve *ve = context;
    (void)stream;
    TRY(ve_enter(ve));
    enum sol_status status = check_size(ve, size);
    if (!status) status = check_memory(ve, veda.MemAllocAsync(out, size, 0), "vedaMemAllocAsync");
    if (!status) learn_layout(ve, *out);
    return ve_leave(ve, status);
}

static enum sol_status free_memory(void *context, int stream, sol_ptr at) {
    struct ve *ve = context;
    (void)stream;
    TRY(ve_enter(ve));
    return ve_leave(ve, check_memory(ve, veda.MemFreeAsync(at, 0), "vedaMemFreeAsync"));
}

/* ---- Copies ---- */

static enum sol_status copy_any(struct ve *ve, const struct transfer *t) {
    if (!t->size) return SOL_OK;
    switch (t->kind) {
    case TRANSFER_TO_DEVICE: return VE_CALL(ve, NULL, MemcpyHtoDAsync, t->to, t->host, t->size, 0);
    case TRANSFER_TO_HOST: return VE_CALL(ve, NULL, MemcpyDtoHAsync, t->host, t->from, t->size, 0);
    case TRANSFER_ON_DEVICE: break;
    }
    return VE_CALL(ve, NULL, MemcpyDtoDAsync, t->to, t->from, t->size, 0);
}

static enum sol_status copy(void *context, int stream, const struct transfer *t, uint64_t *event) {
    struct ve *ve = context;
    (void)stream;
    TRY(ve_enter(ve));
    enum sol_status status = copy_any(ve, t);
    if (!status) ve_count(ve, event);
    return ve_leave(ve, status);
}

const struct target ve_target = {
    .name = "ve",
    .n_streams = 1,
    .has_pieces = true,
    .open = open_device,
    .close = close_device,
    .alloc = alloc,
    .free = free_memory,
    .copy = copy,
    .load = ve_load,
    .launch = ve_launch,
    .wait = ve_wait,
};
