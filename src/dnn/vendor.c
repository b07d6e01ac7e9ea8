/*
 * Opens vendors' libraries.
 *
 * Security: opening a library runs its code. A path from the environment must be absolute. Bare names are searched by dlopen,
 * which does not search the working directory, unless the user's LD_LIBRARY_PATH contains it.
 */
#include "dnn/vendor.h"

#include <dlfcn.h>
#include <stdio.h>

_Thread_local long vendor_fail_at;

bool vendor_call_fails(void) { return vendor_fail_at > 0 && --vendor_fail_at == 0; }

bool vendor_refuse(struct vendor *vendor, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(vendor->detail, sizeof vendor->detail, format, args);
    va_end(args);
    vendor->handle = NULL;
    return false;
}

/* RTLD_LOCAL: its symbols must not mix with those of another copy, such as the one inside PyTorch. */
static void *open_file(struct vendor *vendor, const char *file) {
    void *before = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    vendor->was_there = before != NULL;
    return before ? before : dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static bool open_path(struct vendor *vendor, const char *path) {
    if (path[0] != '/')
        return vendor_refuse(vendor, "cannot be opened: %s is no absolute path", path);
    vendor->handle = open_file(vendor, path);
    if (vendor->handle) return true;
    const char *reason = dlerror();
    return vendor_refuse(vendor, "cannot be opened: %s", reason ? reason : path);
}

static bool open_any(struct vendor *vendor) {
    for (int i = 0; vendor->sonames[i] && !vendor->handle; i++)
        vendor->handle = open_file(vendor, vendor->sonames[i]);
    if (vendor->handle) return true;
    return vendor_refuse(vendor, "cannot be opened: no %s in the system's library folders",
                         vendor->sonames[0]);
}

/* dlsym searches the library and its dependencies, so it finds the OpenMP that the library itself uses. */
bool vendor_open(struct vendor *vendor) {
    const char *path = env_get(vendor->path);
    if (!(path ? open_path(vendor, path) : open_any(vendor))) return false;
    *(void **)&vendor->omp_get_max_threads = vendor_symbol(vendor, "omp_get_max_threads");
    *(void **)&vendor->omp_set_num_threads = vendor_symbol(vendor, "omp_set_num_threads");
    return true;
}

void *vendor_symbol(const struct vendor *vendor, const char *name) {
    return dlsym(vendor->handle, name);
}

int vendor_enter(const struct vendor *vendor) {
    if (!vendor->omp_get_max_threads || !vendor->omp_set_num_threads) return 0;
    int before = vendor->omp_get_max_threads();
    if (before != 1) vendor->omp_set_num_threads(1);
    return before;
}

void vendor_leave(const struct vendor *vendor, int before) {
    if (before > 1) vendor->omp_set_num_threads(before);
}
