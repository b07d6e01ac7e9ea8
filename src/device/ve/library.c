/*
 * Can the device's compiler link a library of NEC? The library runs in the device's process, so it cannot be opened here.
 *
 *   probe of vednn.c, nlc.c -> ve_find_library: links a small text, once per process -> candidates of dnn/choice.c, `sol devices`
 */
#include "device/ve/library.h"

#include "device/ve/ve.h"
#include "jit/jit.h"

#include <stdio.h>

/* What the library itself needs must be there, too. The cache of kernels knows the answer of a compiler that could link it. */
static enum sol_status link_text(const struct ve_library *library) {
    struct jit_loader loader = jit_images;
    struct jit_module *module = NULL;
    char all[512];
    const char *flags;
    loader.compiler = &ve_compiler;
    loader.libraries = &library->words;
    TRY(ve_compiler_flags(&flags));
    (void)snprintf(all, sizeof all, "%s -Wl,-z,defs", flags);
    TRY(jit_build(&loader, all, &library->text, 1, false, &module, NULL));
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
    else if (link_text(library))
        (void)snprintf(detail, size, "%s cannot link %s", path, library->files);
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
