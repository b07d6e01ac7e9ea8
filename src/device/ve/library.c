/*
 * Libraries of NEC that kernels of vector engines call: can the device's compiler link them?
 *
 *   vednn.c, nlc.c: their probe -> ve_find_library, which links a small text once per process
 */
#include "device/ve/library.h"

#include "device/ve/ve.h"
#include "jit/jit.h"

#include <stdio.h>

/* What the libraries themselves need must be there, too. The cache of kernels knows the answer of a compiler that could link them. */
static enum sol_status link_probe(const struct ve_library *library) {
    struct jit_loader loader = jit_images;
    struct jit_module *module = NULL;
    char all[512];
    const char *flags;
    loader.compiler = &ve_compiler;
    loader.libraries = library->words;
    TRY(ve_compiler_flags(&flags));
    (void)snprintf(all, sizeof all, "%s -Wl,-z,defs", flags);
    TRY(jit_build(&loader, all, (const char *const[]){library->text}, 1, false, &module, NULL));
    jit_release(module);
    return SOL_OK;
}

static void find(struct ve_library *library) {
    char *detail = library->detail;
    const size_t size = sizeof library->detail;
    const char *path, *version;
    library->is_there = false;
    if (jit_compiler_of(&ve_compiler, &path, &version))
        (void)snprintf(detail, size, "%s", sol_error());
    else if (link_probe(library))
        (void)snprintf(detail, size, "%s cannot link %s", path, library->file);
    else {
        library->is_there = true;
        (void)snprintf(detail, size, "%s, linked by %s", library->name, path);
    }
}

const char *ve_find_library(struct ve_library *library, bool *available) {
    if (lock_begin(&library->lock, &library->state)) {
        find(library);
        lock_end(&library->lock, &library->state, true);
    }
    *available = library->is_there;
    return library->detail;
}
