/*
 * The free stack of the calling thread. Recursive functions whose depth depends on a file check it and fail before the
 * stack overflows: the calling thread may have a small stack.
 */
#include "base/base.h"

#include <pthread.h>
#include <stdint.h>

/* The address range of this thread's stack, cached, as finding it reads a file of the system. `end` 0: not known yet. */
static _Thread_local struct {
    uintptr_t begin, end;
} stack;

/* If the system does not know the range, it is [0, 1), which contains no address of a frame. */
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

/* Stacks grow downwards. If the thread runs on another stack (a coroutine of the host), the result is SIZE_MAX. */
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
