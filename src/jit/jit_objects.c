/* The loaders: of shared objects for the processor of this process, and of files for another device. */
#include "jit/jit.h"

#include <dlfcn.h>

static void *open_object(const char *path) {
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object) (void)fail(SOL_ETOOL, "%s", dlerror());
    return object;
}

static void close_object(void *object) { (void)dlclose(object); }

const struct jit_loader jit_objects = {.open = open_object, .find = dlsym, .close = close_object};

/* ---- Images ---- */

static void *open_image(const char *path) {
    struct jit_image *image = mem_alloc(sizeof *image, 16);
    if (!image) return (void)fail(SOL_ENOMEM, "no memory to load a kernel"), NULL;
    if (!os_read(path, &image->data, &image->size)) return image;
    mem_free(image);
    return NULL;
}

static void *find_nothing(void *image, const char *symbol) {
    (void)image, (void)symbol;
    return NULL;
}

static void close_image(void *object) {
    struct jit_image *image = object;
    mem_free(image->data);
    mem_free(image);
}

const struct jit_loader jit_images = {
    .open = open_image, .find = find_nothing, .close = close_image};
