/*
 * What the host's and the device's half of the stand-in for VEDA agree on: how a kernel gets its arguments, and the tasks that the
 * device does for the library.
 *
 * The VE passes all arguments in registers of 64 bits and in words of the stack, in their order. The host's processors have other
 * registers for floats. So the host sorts the arguments by their types as the calling convention of a C function does: integers
 * and floats to the registers of their kind, those for which no register is left to the stack.
 */
#ifndef VEDA_TASKS_H
#define VEDA_TASKS_H

#include <stdint.h>

#if defined(__x86_64__)
#define VEDA_INTEGERS 6 /* System V ABI, 3.2.3 */
#elif defined(__aarch64__)
#define VEDA_INTEGERS 8 /* AAPCS64, 6.4 */
#else
#error "how does this processor pass arguments?"
#endif
#define VEDA_FLOATS 8
#define VEDA_WORDS 48

struct veda_call {
    uint64_t code; /* a function's address, or a task */
    uint64_t integers[VEDA_INTEGERS];
    double floats[VEDA_FLOATS]; /* a float is in the lower half */
    uint64_t words[VEDA_WORDS];
};

enum veda_task {
    VEDA_TASK_START, /* base, size: the memory for allocations; number of threads for OpenMP */
    VEDA_TASK_ALLOC, /* virtual pointer, size */
    VEDA_TASK_FREE,  /* virtual pointer */
    VEDA_TASK_SWAP,  /* two virtual pointers */
    VEDA_TASK_COPY,  /* to, from, size */
    VEDA_TASK_FILL, /* virtual pointer, bytes of a value, its lower and upper half, number of values */
    VEDA_TASK_INFO,  /* n, n indices of 32 bits, n pairs of raw pointer and size to write */
    VEDA_TASK_OPEN,  /* path; the result is a handle, 0: an error */
    VEDA_TASK_FIND,  /* handle, name; the result is an address, 0: none */
    VEDA_TASK_CLOSE, /* handle */
    VEDA_N_TASKS,
};

#endif
