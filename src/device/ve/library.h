/* Libraries of NEC that kernels call (library.c). */
#ifndef SOL_VE_LIBRARY_H
#define SOL_VE_LIBRARY_H

#include "base/lock.h"

/* On one core, their kernels, which are written for vector engines, are so many times as fast as loops that the compiler vectorizes. This
 * is assumed, as nobody has measured it. */
#define VE_LIBRARY_FASTER 2

/* A static one per library. */
struct ve_library {
    const char *name, *files; /* for messages */
    const char *words;        /* link it: struct jit_loader */
    const char *text;         /* refers to each function that kernels call */
    /* Of ve_find_library: */
    struct lock lock;
    int state; /* of lock_begin */
    bool is_there;
    char detail[600];
};

/* Can the device's compiler link it? Returns who links it, or why it is not available; `probe` of struct dnn_impl. */
const char *ve_find_library(struct ve_library *library, bool *available);

#endif
