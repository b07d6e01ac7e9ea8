/* Libraries of NEC that kernels of vector engines call (library.c). */
#ifndef SOL_VE_LIBRARY_H
#define SOL_VE_LIBRARY_H

#include "base/lock.h"

struct ve_library {
    const char *name, *file; /* for messages */
    const char *words;       /* that link it: struct jit_loader */
    const char *text;        /* names all functions that kernels call */
    /* After ve_find_library: */
    struct lock lock;
    int state; /* of lock_begin */
    bool is_there;
    char detail[600];
};

/* Returns what it is and who links it, or the reason why it is not available. Any thread may ask. */
const char *ve_find_library(struct ve_library *library, bool *available);

/* Assumed, as nobody has measured it: on one core NEC's kernels, which are written with intrinsics, are so many times as fast as loops that
 * the compiler vectorizes. */
#define VE_LIBRARY_FACTOR 2

#endif
