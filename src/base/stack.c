/*
 * How much stack a thread has left. Recursions whose depth a file decides ask before they go on, and refuse what would not fit: a host
 * may call from a thread of its own with a small stack, and the system may limit the first one's.
 */
#include "base/base.h"

#include <pthread.h>
#include <stdint.h>

/* Of this thread; `end` 0: nobody has asked yet. To ask costs reading a file of the system. */
static _Thread_local struct {
    uintptr_t begin, end;
} stack;

/* What the system does not tell counts as an empty range, which nothing lies in. */
static void find_stack(void) {
    pthread_attr_t attr;
    void *at = NULL;
    size_t size = 0;
    if (!pthread_getattr_np(pthread_self(), &attr)) {
        if (pthread_attr_getstack(&attr, &at, &size)) size = 0;
        pthread_attr_destroy(&attr);
    }
    stack.begin = (uintptr_t)at;
    stack.end = size ? stack.begin + size : 1;
}

/* Stacks grow downwards. A host may switch to stacks of its own (coroutines): of those nothing is known. */
size_t os_stack_left(void) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    if (!stack.end) find_stack();
    return here >= stack.begin && here < stack.end ? here - stack.begin : SIZE_MAX;
}

enum sol_status os_stack_check(size_t min, const char *what) {
    size_t left = os_stack_left();
    if (left >= min) return SOL_OK;
    return fail(SOL_ENOMEM, "%s: %zu of this thread's %zu KiB of stack are left", what, left >> 10,
                (size_t)(stack.end - stack.begin) >> 10);
}
