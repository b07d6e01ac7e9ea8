/*
 * Code of vector engines: libveda loads files, so the image of a module is written to one that is gone when it is loaded.
 *
 * The file is not one in memory (/proc/self/fd): it is the device's process that opens it, not this one.
 *
 * Invariant: a module is unloaded only when all commands are done that were submitted before, as libveda unloads at once.
 */
#include "device/ve/ve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_SIZE 1024
#define ENDING ".vso"

/* Its address is the `code` of a kernel. */
struct ve_module {
    struct ve_module *next;
    veda_module module;
    struct veda_function function;
    bool is_unloaded;
    uint64_t last; /* then: the last event that may be a launch of it */
};

static struct ve_module *module_of(uint64_t code) { return (struct ve_module *)(uintptr_t)code; }

struct veda_function ve_function(uint64_t code) { return module_of(code)->function; }

/* ---- Loading ---- */

static bool write_all(int fd, const char *at, size_t size) {
    while (size) {
        const ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

/* Writes a new file that only this user can read, in $TMPDIR or /tmp. The caller removes it. */
static enum sol_status write_image(const void *image, size_t size, char path[PATH_SIZE]) {
    const char *folder = getenv("TMPDIR");
    if (!folder || *folder != '/') folder = "/tmp";
    const int length = snprintf(path, PATH_SIZE, "%s/sol-ve-XXXXXX" ENDING, folder);
    const int fd = length < PATH_SIZE ? mkstemps(path, (int)strlen(ENDING)) : -1;
    if (fd < 0) return fail(SOL_EDEVICE, "cannot make a file in %s: %s", folder, strerror(errno));
    const bool done = write_all(fd, image, size);
    const int error = errno;
    if (!close(fd) && done) return SOL_OK;
    unlink(path);
    return fail(SOL_EDEVICE, "cannot write %s: %s", path, strerror(error));
}

/* A module that cannot be loaded does not break the device. */
static enum sol_status load_file(struct ve *ve, const char *path, const char *symbol,
                                 struct ve_module *m) {
    TRY(ve_status(ve, veda.ModuleLoad(&m->module, path), "vedaModuleLoad", symbol));
    enum sol_status status = ve_status(ve, veda.ModuleGetFunction(&m->function, m->module, symbol),
                                       "vedaModuleGetFunction", symbol);
    if (status) {
        (void)veda.ModuleUnload(m->module);
        return status;
    }
    m->next = ve->modules;
    ve->modules = m;
    return SOL_OK;
}

static enum sol_status load_image(struct ve *ve, const void *image, size_t size, const char *symbol,
                                  struct ve_module *m) {
    char path[PATH_SIZE];
    TRY(write_image(image, size, path));
    enum sol_status status = ve_enter(ve);
    if (!status) status = ve_leave(ve, load_file(ve, path, symbol, m));
    unlink(path);
    return status;
}

enum sol_status ve_load(void *context, const void *image, size_t size, const char *symbol,
                        uint64_t *code) {
    struct ve_module *m = mem_alloc(sizeof *m, 16);
    if (!m) return fail(SOL_ENOMEM, "out of memory");
    enum sol_status status = load_image(context, image, size, symbol, m);
    if (status) mem_free(m);
    else *code = (uint64_t)(uintptr_t)m;
    return status;
}

/* ---- Unloading ---- */

void ve_unload_later(struct ve *ve, uint64_t code) {
    struct ve_module *m = module_of(code);
    m->is_unloaded = true;
    m->last = ve->n_submitted;
}

enum sol_status ve_unload_done(struct ve *ve) {
    for (struct ve_module **at = &ve->modules, *m; (m = *at);) {
        if (!m->is_unloaded || m->last > ve->n_done) {
            at = &m->next;
            continue;
        }
        const veda_module module = m->module;
        *at = m->next;
        mem_free(m);
        TRY(VE_CALL(ve, NULL, ModuleUnload, module));
    }
    return SOL_OK;
}

/* The device's own parts end with the context. */
void ve_free_modules(struct ve *ve) {
    for (struct ve_module *m = ve->modules, *next; m; m = next) {
        next = m->next;
        mem_free(m);
    }
    ve->modules = NULL;
}
