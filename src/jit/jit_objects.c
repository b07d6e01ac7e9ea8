/* The loader of shared objects for the processor of this process. */
#include "jit/jit.h"

#include <dlfcn.h>

static void *open_object(const char *path) {
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) (void)fail(SOL_ETOOL, "%s", dlerror());
    return object;
}

static void close_object(void *object) { (void)dlclose(object); }

const struct jit_loader jit_objects = {.open = open_object, .find = dlsym, .close = close_object};
