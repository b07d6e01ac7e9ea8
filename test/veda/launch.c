/*
 * Modules, and what is launched: kernels and host functions.
 *
 * A module is opened by the worker, from the file system, as the real library does. So its static variables are those of all its
 * functions. All functions of a module live as long as it; VEDAfunction points at their names.
 */
#include "parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct veda_name {
    struct veda_name *next;
    char text[];
};

/* ---- Modules ---- */

/* A task with a text, and a result that this waits for. */
static VEDAresult ask(VEDAcontext c, enum veda_task task, const char *name, uint64_t handle,
                      const char *text, uint64_t *out) {
    struct veo_args args = {0};
    *out = 0;
    if (handle) VEDA_TRY(vedaArgsSetU64(&args, args.n, handle));
    VEDA_TRY(vedaArgsSetStack(&args, args.n, (void *)(uintptr_t)text, VEDA_ARGS_INTENT_IN,
                              strlen(text) + 1));
    VEDA_TRY(stream_call(c, VEDA_OWN_STREAM, task, name, &args, false, out));
    return stream_sync(c, VEDA_OWN_STREAM);
}

static void free_module(struct veda_module *module) {
    while (module->names) {
        struct veda_name *name = module->names;
        module->names = name->next;
        free(name);
    }
    free(module);
}

void modules_drop_all(VEDAcontext c) {
    while (c->modules) {
        struct veda_module *module = c->modules;
        c->modules = module->next;
        free_module(module);
    }
}

/* A file name alone is searched in the folders of VE_LD_LIBRARY_PATH, whose default is the current one. */
static void find_file(const char *path, char *out, size_t size) {
    const char *folders = getenv("VE_LD_LIBRARY_PATH");
    if (!folders || !*folders) folders = ".";
    (void)snprintf(out, size, "%s", path);
    if (strchr(path, '/')) return;
    for (int n; *folders; folders += n + (folders[n] == ':')) {
        n = (int)strcspn(folders, ":");
        (void)snprintf(out, size, "%.*s/%s", n, folders, path);
        if (!access(out, R_OK)) return;
    }
}

static VEDAresult load(VEDAcontext c, const char *path, VEDAmodule *out) {
    char file[4096];
    uint64_t handle;
    find_file(path, file, sizeof file);
    VEDA_TRY(ask(c, VEDA_TASK_OPEN, "veda_open", 0, file, &handle));
    if (!handle) return VEDA_ERROR_MODULE_NOT_FOUND;
    struct veda_module *module = calloc(1, sizeof *module);
    if (!module) return VEDA_ERROR_OUT_OF_MEMORY;
    *module = (struct veda_module){c->modules, handle, NULL};
    *out = c->modules = module;
    return VEDA_SUCCESS;
}

VEDAresult vedaModuleLoad(VEDAmodule *out, const char *path) {
    VEDAcontext c;
    if (!out || !path) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(context_acquire_current(&c));
    VEDAresult result = *path ? load(c, path, out) : VEDA_ERROR_INVALID_VALUE;
    lock_release(&c->lock);
    return result;
}

/* What was launched before has ended by then: the unloading is behind it. */
VEDAresult vedaModuleUnload(VEDAmodule module) {
    VEDAcontext c;
    if (!module) return VEDA_ERROR_INVALID_MODULE;
    VEDA_TRY(context_acquire_module(module, &c));
    struct veda_module **at = &c->modules;
    while (*at != module) at = &(*at)->next;
    *at = module->next;
    VEDAresult result = stream_task(c, VEDA_OWN_STREAM, VEDA_TASK_CLOSE, 1, &module->handle, NULL);
    if (!result) result = stream_sync(c, VEDA_OWN_STREAM);
    free_module(module);
    lock_release(&c->lock);
    return result;
}

/* The name is a copy, as the caller's may go away before the function does. */
static VEDAresult find(VEDAcontext c, VEDAmodule module, const char *text, VEDAfunction *out) {
    VEDA_TRY(ask(c, VEDA_TASK_FIND, "veda_find", module->handle, text, &out->ptr));
    if (!out->ptr) return VEDA_ERROR_FUNCTION_NOT_FOUND;
    struct veda_name *name = calloc(1, sizeof *name + strlen(text) + 1);
    if (!name) return VEDA_ERROR_OUT_OF_MEMORY;
    memcpy(name->text, text, strlen(text));
    name->next = module->names;
    module->names = name;
    out->kernel = name->text;
    return VEDA_SUCCESS;
}

VEDAresult vedaModuleGetFunction(VEDAfunction *out, VEDAmodule module, const char *name) {
    VEDAcontext c;
    if (!out || !module || !name) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(context_acquire_module(module, &c));
    *out = (VEDAfunction){0, "#N/A"};
    VEDAresult result = *name ? find(c, module, name, out) : VEDA_ERROR_INVALID_VALUE;
    lock_release(&c->lock);
    return result;
}

/* ---- Launches ---- */

/* The addresses of tasks are no addresses of code, so a function that was not found is recognized. Who takes the result decides what it
 * means; else it is an error code. */
VEDAresult vedaLaunchKernelEx(VEDAfunction function, VEDAstream stream, VEDAargs args,
                              const int destroy, uint64_t *result) {
    VEDAcontext c;
    if (!args) return VEDA_ERROR_INVALID_ARGS;
    if (function.ptr < VEDA_N_TASKS) return VEDA_ERROR_UNKNOWN_KERNEL;
    VEDA_TRY(context_acquire_current(&c));
    VEDAresult status = stream_call(c, stream, function.ptr, function.kernel, args,
                                    !result && !veda_is_exact(), result);
    status = stream_finish(c, stream, status);
    if (destroy) (void)vedaArgsDestroy(args);
    return status;
}

VEDAresult vedaLaunchKernel(VEDAfunction function, VEDAstream stream, VEDAargs args) {
    return vedaLaunchKernelEx(function, stream, args, 0, NULL);
}

VEDAresult vedaLaunchHostFuncEx(VEDAstream stream, VEDAhost_function function, void *user,
                                uint64_t *result) {
    VEDAcontext c;
    if (!function) return VEDA_ERROR_INVALID_ARGS;
    VEDA_TRY(context_acquire_current(&c));
    return stream_finish(c, stream, stream_call_host(c, stream, function, user, result));
}

VEDAresult vedaLaunchHostFunc(VEDAstream stream, VEDAhost_function function, void *user) {
    return vedaLaunchHostFuncEx(stream, function, user, NULL);
}
